"""The sequencer: the one owner of the head (design section 8).

Rules kept here:

- One task judges, places, links, hashes, signs, stores and answers, commit after commit; nobody else moves
  the head. Batches that wait are committed together, up to 8 MiB, taken from each author in turn. A commit
  waits for nobody: it lets come what the loop has in hand, a few turns of it, and no clock.
- No future resolves before the commit and the released checkpoint are on disk (law 3).
- A commit that fails leaves nothing behind in memory; its authors may send again. A store in doubt is fatal.
- An author who goes away changes nothing: a batch that has its turn is committed all the same.
- A batch sent again gets its first position, whatever happened since (law 5). One that meets itself in the
  same commit waits for the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ledger.checkpoint import Checkpoint, sign_checkpoint
from ledger.errors import (
    AssayError,
    FatalError,
    FormatError,
    InputError,
    NotFoundError,
    OverloadedError,
    RefusedError,
)
from ledger.server.folds import Folded, FoldRunner
from ledger.server.metrics import Metrics
from ledger.server.reader import Reader
from ledger.server.state import Draft, KeyRing, Placed, Prepared, State
from ledger.server.store import Commit, Store, marker_originator
from ledger.server.turns import FairQueue
from ledger.server.waiters import Waiters
from ledger.touches import Condition

__all__ = ["Head", "Position", "Sequencer"]

_MAX_COMMIT: Final = 8 * 2**20  # bytes of events
_YIELD_FROM: Final = 64  # events of a batch after which other work may run
_IDLE_TURNS: Final = 3  # turns of the loop in which no batch came: those of a request from wire to queue
_MOST_TURNS: Final = 16
_STOPPING: Final = 1.0  # seconds
_IDLE: Final = 1.0  # seconds without a commit after which the store is asked whether it is still ours

_log = logging.getLogger("ledger.server")


@dataclass(frozen=True, slots=True)
class Head:
    """The log as released: what readers may be told."""

    size: int
    root: bytes
    checkpoint: bytes  # signed note


@dataclass(frozen=True, slots=True)
class Position:
    """Where a batch stands."""

    first_index: int
    count: int
    recorded_at: int
    previous: bytes


@dataclass(slots=True)
class _Waiting:
    batch: Prepared
    condition: Condition | None
    answer: asyncio.Future[Position]

    def place(self, placed: Placed) -> None:
        self.tell(Position(placed.first_index, len(placed.leaves), placed.recorded_at, placed.previous))

    def tell(self, position: Position) -> None:
        if not self.answer.done():  # done: the author went away
            self.answer.set_result(position)

    def fail(self, error: AssayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


def _fatal(reason: str) -> FatalError:
    """What authors learn of a fault that stops the ledger; the operator's log has the rest."""
    return FatalError(reason, "expected to go on, got a fault that stops the ledger")


class Sequencer:
    """Owns `state`, `head` and the store's writing side."""

    def __init__(
        self,
        state: State,
        store: Store,
        keys: KeyRing,
        clock: Callable[[], int],
        folds: FoldRunner,
        reader: Reader,
        metrics: Metrics,
    ) -> None:
        """`clock` gives microseconds since 1970, or raises OverloadedError while it is in doubt.

        `state` is what `recover` made of `store`.
        """
        self._state = state
        self._store = store
        self._keys = keys
        self._clock = clock
        self._folds = folds
        self._reader = reader
        self._metrics = metrics
        self._queue: FairQueue[_Waiting] = FairQueue()
        self._more = asyncio.Event()
        self._waiters = Waiters()
        self._stopping = False
        self._submitted = 0  # batches that were ever queued
        self._clock_doubted = False
        # The last consistency proof and its sizes: the answers of one commit mostly ask for the same one.
        self._proof: tuple[int, int, list[bytes]] = (0, 0, [])
        self._writer = ThreadPoolExecutor(1, "ledger-writer")
        self._seen_alone = 0.0  # the loop's time at which the store was last seen to be ours
        self._head: Head | None = None
        if (stored := store.head()) is not None:
            self._head = Head(stored[0], state.tree.root(), stored[1])
            if store.released() != stored[1]:
                store.release(stored[1])

    # --- what readers may know ------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The committed state, to read."""
        return self._state

    @property
    def size(self) -> int:
        """The released size."""
        return 0 if self._head is None else self._head.size

    @property
    def head(self) -> Head:
        """The released head. Raises NotFoundError(EMPTY_LOG)."""
        if self._head is None:
            raise NotFoundError("EMPTY_LOG", "expected a log that root has opened, got an empty one")
        return self._head

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The inclusion proof of `index` at a released `size`. Raises RefusedError, FormatError."""
        self._released(size)
        if index >= size:
            raise FormatError("OUT_OF_RANGE", f"expected an index below {size}, got {index}")
        return self._state.tree.inclusion(index, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The consistency proof between two released sizes; nothing where `old` is 0."""
        self._released(max(old, new))
        if old > new:
            raise FormatError("OUT_OF_RANGE", f"expected an old size of at most {new}, got {old}")
        if not old:
            return []
        if self._proof[:2] != (old, new):
            self._proof = (old, new, self._state.tree.consistency(old, new))
        return self._proof[2]

    def _released(self, size: int) -> None:
        # While a commit is on its way the tree is larger than what was released, and its errors would say so.
        if size > self.size:
            raise RefusedError("AHEAD_OF_LOG", f"expected a size of at most {self.size}, got {size}")

    async def beyond(self, size: int) -> None:
        """Waits until the released size is greater. Raises OverloadedError(STOPPING)."""
        await self._waiters.until(lambda: self.size > size or self._stopping)
        if self.size <= size:
            raise OverloadedError("STOPPING", "expected a ledger that goes on, got one that stops", _STOPPING)

    # --- what authors do ------------------------------------------------------------------------------------

    def submit(self, batch: Prepared, condition: Condition | None) -> asyncio.Future[Position]:
        """Queues a batch. The future holds its position, or the error that refuses it."""
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        if self._stopping:
            answer.set_exception(
                OverloadedError("STOPPING", "expected a ledger that goes on, got one that stops", _STOPPING)
            )
            return answer
        self._submitted += 1
        self._queue.append(batch.note.name, _Waiting(batch, condition, answer))
        self._more.set()
        return answer

    def stop(self) -> None:
        """Takes nothing more; `run` ends when what waits is committed."""
        self._stopping = True
        self._more.set()
        self._waiters.wake()

    async def run(self) -> None:
        """Commits until stopped. Raises FatalError, after which the process must end."""
        try:
            while self._queue or not self._stopping:
                try:
                    async with asyncio.timeout(_IDLE):
                        await self._more.wait()
                except TimeoutError:
                    await self._see_that_alone()
                    continue
                self._more.clear()
                while self._queue:
                    # Who is only refused, or only sends again, must not keep it from looking.
                    if asyncio.get_running_loop().time() >= self._seen_alone + _IDLE:
                        await self._see_that_alone()
                    await self._gather()
                    await self._one_commit(self._take_group())
                    await self._folds.room()
        except FatalError as error:
            self._stopping = True
            while self._queue:
                self._queue.pop().fail(_fatal(error.reason))
            self._waiters.wake()
            raise
        finally:
            self._writer.shutdown()

    async def _gather(self) -> None:
        """Lets batches come while turns of the loop bring some: ten cost little more to commit than one."""
        idle = 0
        for _ in range(_MOST_TURNS):
            submitted = self._submitted
            await asyncio.sleep(0)
            if self._submitted == submitted:
                idle += 1
                if idle == _IDLE_TURNS:
                    return

    async def _see_that_alone(self) -> None:
        """A ledger that is no longer the one writer stops, though nobody has anything to write."""

        def look() -> tuple[int, bytes] | None:
            self._store.hold()
            return self._store.head()

        stored = await asyncio.get_running_loop().run_in_executor(self._writer, look)
        if (size := 0 if stored is None else stored[0]) != self._state.size:
            raise FatalError(
                "HEAD_MOVED",
                f"expected the stored log to end at {self._state.size}, got {size}: another writer",
            )
        self._seen_alone = asyncio.get_running_loop().time()

    def _take_group(self) -> list[_Waiting]:
        group = [self._queue.pop()]
        size = group[0].batch.size
        while self._queue and (size := size + self._queue.first.batch.size) <= _MAX_COMMIT:
            group.append(self._queue.pop())
        return group

    async def _one_commit(self, group: Sequence[_Waiting]) -> None:
        draft = Draft.of(self._state)
        placed: list[tuple[_Waiting, Placed]] = []
        again: list[_Waiting] = []
        try:
            if unknown := self._state.unknown_streams(waiting.batch for waiting in group):
                self._state.next_sequence |= await self._reader.next_sequences(unknown)
            for waiting in group:
                await self._judge(draft, waiting, placed, again)
            if placed:
                await self._commit(draft)
        except OverloadedError as error:
            index, cause = self._state.size, error.__cause__ or error
            told = {"index": index, "reason": error.reason}
            _log.error("a commit at index %d was not stored: %r", index, cause, extra=told)
            for waiting, _ in placed:
                waiting.fail(error)
        except Exception as error:
            # Whatever it is, memory and store may differ now: nobody may hang, and nothing goes on from here.
            reason = error.reason if isinstance(error, FatalError) else "SEQUENCER_BROKEN"
            for waiting in group:
                waiting.fail(_fatal(reason))
            if isinstance(error, FatalError):
                raise
            raise FatalError(reason, f"expected to go on, got {error!r}") from error
        else:
            for waiting, place in placed:
                waiting.place(place)
        for waiting in reversed(again):
            self._queue.put_back(waiting.batch.note.name, waiting)

    async def _judge(
        self,
        draft: Draft,
        waiting: _Waiting,
        placed: list[tuple[_Waiting, Placed]],
        again: list[_Waiting],
    ) -> None:
        batch = waiting.batch
        try:
            if batch.note.sequence < draft.expected_sequence(batch):
                if draft.in_this_draft(batch):
                    again.append(waiting)
                else:
                    waiting.tell(await self._first_position(batch))
                    self._metrics.resends.inc()
                return
            placed.append((waiting, draft.place(batch, waiting.condition, self._clock(), self._keys)))
            self._clock_doubted = False
        except InputError as error:
            waiting.fail(error)
        except OverloadedError as error:  # The clock is not to be believed now.
            waiting.fail(error)
            if not self._clock_doubted:
                _log.error("batches are refused until the clock is right: %s", error)
            self._clock_doubted = True
        if len(batch.data) >= _YIELD_FROM:
            await asyncio.sleep(0)

    async def _first_position(self, batch: Prepared) -> Position:
        """Where a batch that is sent again stands. Raises RefusedError(EQUIVOCATION) for another text."""
        note = batch.note
        originator = marker_originator(batch.grant.key.public_key, note.stream)
        marker = await self._reader.marker(originator, note.sequence)
        if marker is None:
            raise FatalError("STORE_BROKEN", f"expected a marker of sequence {note.sequence}, got none")
        if marker.root != note.root:
            raise RefusedError(
                "EQUIVOCATION",
                f"expected root {marker.root.hex()}, placed at {marker.first_index} for sequence "
                f"{note.sequence} of this stream, got {note.root.hex()}",
            )
        if marker.first_index >= self._state.size:
            # It is placed, but not here: no proof of it can be given, and no refusal would be true.
            raise FatalError(
                "HEAD_MOVED",
                f"expected batches placed below {self._state.size}, got one at {marker.first_index}: another "
                "writer",
            )
        entry = await self._reader.opening(marker.first_index)
        return Position(entry.index, len(batch.data), entry.recorded_at, entry.previous)

    async def _commit(self, draft: Draft) -> None:
        """Signs and stores a draft, then makes it the state. Raises OverloadedError, FatalError."""
        state = self._state
        tree = state.tree
        tree.extend([leaf for placed in draft.placed for leaf in placed.leaves])
        checkpoint = Checkpoint(draft.authority.trust.origin, draft.size, tree.root())
        signed = sign_checkpoint(checkpoint, self._keys.holding(draft.authority))
        first_index = state.size
        run = b"".join(draft.runs)
        commit = Commit(first_index, run, tuple(draft.markers), draft.size, signed)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await loop.run_in_executor(self._writer, self._store_and_release, commit)
        except OverloadedError as error:
            self._metrics.store_errors.labels(error.reason).inc()
            tree.truncate(state.size)
            raise
        self._seen_alone = loop.time()
        self._metrics.committed(loop.time() - started, len(run), len(draft.placed), draft.size - first_index)
        state.absorb(draft)
        self._head = Head(draft.size, checkpoint.root, signed)
        self._reader.keep(first_index, run)
        for p in draft.placed:
            self._folds.give(Folded(p.first_index, p.recorded_at, p.grant, p.leaves, p.events))
        self._waiters.wake()

    def _store_and_release(self, commit: Commit) -> None:
        self._store.commit(commit)
        self._store.release(commit.checkpoint)
