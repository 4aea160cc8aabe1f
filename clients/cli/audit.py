"""Verification and replay of a file, without a network: what `assay verify` and `assay replay` stand on.

Rules:
1. A remembered checkpoint advances only after a full pass (step V7); on a fork both signed notes are kept.
2. A replay takes two passes in bounded memory: the first finds the sizes that verdicts were made at, the second
   verifies, folds, and takes the roots at those sizes as they stream past.
3. What the first pass reads is believed in nothing: a size that it missed makes the replay fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clients.cli.show import progress
from clients.memory import Memory
from gate.replay import Replay, Replayed
from ledger.checkpoint import parse_checkpoint_text
from ledger.entry import decode_entry
from ledger.errors import FormatError, VerificationError
from ledger.export import read_export
from ledger.fold import read_event
from ledger.merkle import Frontier
from ledger.note import parse_note
from ledger.verify import Verified, read_trust, verify_export

if TYPE_CHECKING:
    from ledger.fold import Fold
    from ledger.receipt import Receipts
    from ledger.trust import Grant, TrustDocument
    from ledger.v1 import event_pb2

__all__ = ["Audit", "audit", "default_memory", "replay_file"]

# The tag of VerdictIssued in an event: varint of 242 << 3 | 2. Rules most entries out before they are parsed.
_VERDICT_TAG: Final = b"\x92\x0f"


def default_memory() -> Path:
    """Where checkpoints are remembered unless said otherwise: the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "assay" / "checkpoints"


@dataclass(frozen=True, slots=True)
class Audit:
    """What to judge by: the trust document, and the folder of remembered checkpoints or None."""

    trust: TrustDocument
    memory: Path | None

    @classmethod
    def of(cls, trust: Path, memory: Path | None) -> Audit:
        """Reads the trust document. Raises VerificationError V1, OSError."""
        return cls(read_trust(trust.read_bytes()), memory)


def audit(file: Path, by: Audit, label: str = "verify", fold: Fold | None = None) -> Verified:
    """Steps V2 to V7 of an export file; remembers its checkpoint after a full pass.

    Raises VerificationError, CannotTellError, FormatError for a broken memory, OSError.
    """
    memory = None if by.memory is None else Memory(by.trust, by.memory)
    remembered = None if memory is None else memory.note
    try:
        with file.open("rb") as stream, progress(label, file.stat().st_size) as advance:
            verified = verify_export(stream, by.trust, remembered=remembered, fold=fold, progress=advance)
    except VerificationError as error:
        if memory is not None and error.reason == "FORKED":
            _keep_both(file, memory)
        raise
    if memory is not None:
        memory.advance(verified.checkpoint, parse_checkpoint_text(parse_note(verified.checkpoint).text))
    return verified


def _keep_both(file: Path, memory: Memory) -> None:
    """Keeps the fork's other signed note beside the remembered one; raises what says so."""
    with file.open("rb") as stream:
        note, _ = read_export(stream)
    memory.check(memory.checkpoint, note, parse_checkpoint_text(parse_note(note).text), [])


class _RootsThen:
    """The fold of a replay, with the log's root at each size that a verdict names."""

    def __init__(self, sizes: frozenset[int]) -> None:
        self.replay = Replay(self._root_at)
        self._sizes = sizes
        self._roots: dict[int, bytes] = {}
        self._tree = Frontier()

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the next entry."""
        self.replay.apply(index, recorded_at, leaf, grant, event, alone)
        self._tree.append(leaf)
        if self._tree.size in self._sizes:
            self._roots[self._tree.size] = self._tree.root()

    def _root_at(self, size: int) -> bytes:
        if size not in self._roots:
            raise VerificationError(
                "R2", "FILE_CHANGED", f"expected the same file in both passes, got a verdict made at size {size}"
            )
        return self._roots[size]


def replay_file(file: Path, by: Audit) -> tuple[Verified, Replayed, Receipts]:
    """Verifies and replays an export file: who passed, what was replayed, and the receipts at its end.

    Raises VerificationError V1 to V7 and R1 to R3, CannotTellError NEWER_EVENT_TYPE, OSError.
    """
    fold = _RootsThen(_sizes_judged(file))
    verified = audit(file, by, "replay", fold)
    return verified, fold.replay.result(), fold.replay.receipts


def _sizes_judged(file: Path) -> frozenset[int]:
    """The log sizes that verdicts in the file name; a file that does not parse ends the search early."""
    sizes: set[int] = set()
    with file.open("rb") as stream, progress("look for verdicts", file.stat().st_size) as advance:
        try:
            _, chunks = read_export(stream)
            for entry in _entries(chunks, advance):
                if _VERDICT_TAG in entry:
                    event, body = read_event(decode_entry(entry).event)
                    if body == "verdict_issued":
                        sizes.add(event.verdict_issued.log_size)
        except FormatError:
            return frozenset(sizes)  # the pass that verifies says what is wrong, and where
    return frozenset(sizes)


def _entries(chunks: Iterator[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    """The entries of a run that comes cut anywhere; what is left at its end is the verifier's matter."""
    rest = b""
    for chunk in chunks:
        data, position = rest + chunk, 0
        while position + 2 <= len(data):
            stop = position + 2 + int.from_bytes(data[position : position + 2], "big")
            if stop > len(data):
                break
            yield data[position + 2 : stop]
            position = stop
        rest = data[position:]
        advance(len(chunk))
