"""Verification on all cores, by ranges (design section 9).

Rules kept here:

- The serial verifier is the truth. A worker finds out no more than that a range has no fault, if it begins
  where it says and the keys are those it was given. The verifier takes it when it comes to stand there;
  whatever is not clean, or begins elsewhere, it reads itself. So every finding is the serial verifier's own.
- Key events, unknown types and everything else that needs a further look are not clean: they are rare.
- Ranges are read at most `ahead` in advance: memory does not grow with the log.

The executor is handed in: processes, since threads share one interpreter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Final, NoReturn, TypeAlias

from ledger.entry import ENTRY_HEADER
from ledger.errors import VerificationError
from ledger.export import BinaryReader
from ledger.head import Freshness
from ledger.merkle import subtrees
from ledger.trust import TrustDocument
from ledger.v1 import event_pb2
from ledger.verified import Clean, Keys, Verified
from ledger.verify import Batch, Verifier, open_export

__all__ = ["judge_range", "verify_export_parallel"]

_RANGE_BYTES: Final = 1 << 21
# Bytes, far above any batch: what is longer without a batch's beginning is no log's, and is handed on to be
# refused.
_MOST_HELD: Final = 1 << 24

_Waiting: TypeAlias = tuple[Future[Clean | None], Keys, bytes]


def verify_export_parallel(
    stream: BinaryReader,
    trust: TrustDocument,
    executor: Executor,
    *,
    ahead: int,
    remembered: bytes | None = None,
    fresh: Freshness | None = None,
    progress: Callable[[int], None] | None = None,
    range_bytes: int = _RANGE_BYTES,
) -> Verified:
    """As `verify.verify_export` without a fold, with the same findings, on the executor's workers.

    `ahead`: ranges of about `range_bytes` in flight, say twice the workers. Raises what it raises, and what
    the executor raises when a worker dies.
    """
    verifier = Verifier(trust, remembered=remembered, fresh=fresh)
    checkpoint, chunks = open_export(stream)
    waiting: deque[_Waiting] = deque()
    first = 0
    try:
        for count, run in _ranges(chunks, range_bytes):
            if first:
                task = executor.submit(judge_range, trust, verifier.keys, first, run)
                waiting.append((task, verifier.keys, run))
            else:
                # The first range opens the log and grants keys; without them no worker could judge.
                verifier.feed(run)
            first += count
            if len(waiting) > ahead:
                _settle(verifier, *waiting.popleft())
            if progress is not None:
                progress(len(run))
        while waiting:
            _settle(verifier, *waiting.popleft())
    finally:
        for task, _, _ in waiting:
            task.cancel()
    return verifier.finish(checkpoint)


def _settle(verifier: Verifier, task: Future[Clean | None], keys: Keys, run: bytes) -> None:
    clean = task.result()
    if clean is None or not verifier.absorb(clean, keys):
        verifier.feed(run)


def _ranges(chunks: Iterable[bytes], size: int) -> Iterator[tuple[int, bytes]]:
    """Whole batches, `size` bytes of them or more: number of entries and run. What is left comes last."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if len(held) < size:
            continue
        cut, count = _last_beginning(held)
        if not cut and len(held) > _MOST_HELD:
            cut = len(held)
        if cut:
            yield count, bytes(held[:cut])
            del held[:cut]
    if held:
        yield 0, bytes(held)


def _last_beginning(run: bytearray) -> tuple[int, int]:
    """Where the last batch in `run` begins, and how many entries stand before it; 0, 0 without one."""
    position = entries = cut = before = 0
    end, low = len(run), ENTRY_HEADER.size - 1  # where the offset's low byte stands in an entry
    while (start := position + 2) <= end:
        stop = start + (run[position] << 8 | run[position + 1])
        if stop > end:
            break
        # Bytes, not a slice: of all loops over the entries this is the one that workers do not share.
        if stop - start > low and not run[start + low] and not run[start + low - 1]:
            cut, before = position, entries
        position, entries = stop, entries + 1
    return cut, before


def judge_range(trust: TrustDocument, keys: Keys, first: int, run: bytes) -> Clean | None:
    """What a worker does: whether the `run` that begins with entry `first` is clean under `keys`."""
    if len(run) < 2 + ENTRY_HEADER.size:
        return None
    judged = _Range(trust, keys, first, run)
    try:
        judged.feed(run)
    except VerificationError:
        # Not a finding: the verifier reads this range itself and says what it is.
        return None
    return judged.clean()


class _Range(Verifier):
    """The serial verifier, begun in the middle of a log."""

    def __init__(self, trust: TrustDocument, keys: Keys, first: int, run: bytes) -> None:
        super().__init__(trust, keys=keys)
        _, _, recorded_at, previous, _ = ENTRY_HEADER.unpack_from(run, 2)
        self._index = self._first = first
        self._leaf = self._previous = previous
        self._time = self._range_time = recorded_at
        self._leaves: list[bytes] = []
        self._ranges: dict[bytes, dict[bytes, tuple[int, int]]] = {}

    def clean(self) -> Clean | None:
        """The result; None where the range ends within an entry or a batch."""
        if self._rest or self._batch is not None:
            return None
        return Clean(
            self._first,
            self._previous,
            self._range_time,
            self._time,
            len(self._leaves),
            self._leaf,
            subtrees(self._first, self._leaves),
            self._ranges,
            self._authors,
            self._batches,
        )

    def _check_sequence(self, batch: Batch) -> None:
        opening = batch.opening
        streams = self._ranges.setdefault(batch.grant.key.public_key, {})
        first, expected = streams.get(opening.stream, (opening.sequence, opening.sequence))
        if opening.sequence != expected:
            raise self._fault("V3", "SEQUENCE", "not clean")
        streams[opening.stream] = (first, expected + 1)

    def _judge(self, batch: Batch, event: event_pb2.Event, body: str | None) -> NoReturn:
        raise self._fault("V4", "FURTHER_LOOK", "not clean")

    def _grow(self, leaves: list[bytes]) -> None:
        self._leaves += leaves
