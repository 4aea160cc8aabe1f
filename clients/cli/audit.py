"""Verification and replay of a file, without a network: what `assay verify` and `assay replay` stand on.

Rules:
1. A remembered checkpoint advances only after a full pass (step V7), a replay's own steps included.
2. On a fork both signed notes are kept.
3. A file of another log than the trust document's is said to be that before any entry is judged.
4. A file is an export or a folder of tiles; the same steps judge both.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from clients.cli.show import progress
from clients.memory import Memory
from clients.tiles import check_hash_tiles, log_bytes, open_log
from ledger.bundle import BUNDLE_LINE, verify_bundle
from ledger.checkpoint import parse_checkpoint_text
from ledger.errors import FormatError, VerificationError
from ledger.export import read_export
from ledger.note import parse_note
from ledger.parallel import verify_export_parallel
from ledger.verify import Verified, read_trust, verify_export

if TYPE_CHECKING:
    from gate.replay import Replayed
    from ledger.head import Freshness
    from ledger.receipt import Receipts
    from ledger.trust import TrustDocument

_WORTH_ALL_CORES: Final = 8 * 2**20  # bytes; below it the workers cost more than they save

__all__ = ["Audit", "default_memory"]


def default_memory() -> Path:
    """Where checkpoints are remembered unless said otherwise: the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "assay" / "checkpoints"


@dataclass(frozen=True, slots=True)
class Audit:
    """What to judge by: the trust document, the folder of remembered checkpoints or None, and how old
    cosignatures may be, None for any age."""

    trust: TrustDocument
    memory: Path | None
    fresh: Freshness | None = None

    @classmethod
    def of(cls, trust: Path, memory: Path | None, fresh: Freshness | None = None) -> Audit:
        """Reads the trust document. Raises VerificationError V1, OSError."""
        return cls(read_trust(trust.read_bytes()), memory, fresh)

    def verify(self, file: Path) -> Verified:
        """Steps V2 to V7 of an export file or a folder of tiles; a pass is remembered.

        Raises VerificationError, CannotTellError, FormatError for a broken memory, OSError.
        """

        def run(remembered: bytes | None) -> Verified:
            size, cores = log_bytes(file), os.cpu_count() or 1
            with ExitStack() as opened:
                stream = opened.enter_context(open_log(file))
                advance = opened.enter_context(progress("verify", size))
                if size < _WORTH_ALL_CORES or cores == 1:
                    return verify_export(
                        stream, self.trust, remembered=remembered, fresh=self.fresh, progress=advance
                    )
                spawned = multiprocessing.get_context("spawn")
                workers = opened.enter_context(ProcessPoolExecutor(cores, spawned))
                return verify_export_parallel(
                    stream,
                    self.trust,
                    workers,
                    ahead=2 * cores,
                    remembered=remembered,
                    fresh=self.fresh,
                    progress=advance,
                )

        self._check_file(file)
        return self._remembering(file, run)

    def replay(self, file: Path) -> tuple[Verified, Replayed, Receipts]:
        """Steps V2 to V7 and R1 to R3; gives the receipts at the file's end too. Errors as `verify`'s."""
        from gate.replay import replay_export

        replayed: list[tuple[Replayed, Receipts]] = []

        def run(remembered: bytes | None) -> Verified:
            # The file is read twice.
            with ExitStack() as opened, progress("replay", 2 * log_bytes(file)) as advance:

                def reopen() -> BinaryIO:
                    return opened.enter_context(open_log(file))

                verified, replay = replay_export(
                    reopen, self.trust, remembered=remembered, fresh=self.fresh, progress=advance
                )
            replayed.append((replay.result(), replay.receipts))
            return verified

        self._check_file(file)
        verified = self._remembering(file, run)
        return verified, *replayed[0]

    def _check_file(self, file: Path) -> None:
        """What is said before any entry is judged: the file is of another log, or a partial bundle."""
        _refuse_bundle(file, self.trust)
        if (origin := _origin_of(file)) not in (None, self.trust.origin):
            raise VerificationError(
                "V5",
                "OTHER_ORIGIN",
                f"expected a file of {self.trust.origin}, which the trust document is for, got a file of "
                f"{origin}",
            )

    def _remembering(self, file: Path, run: Callable[[bytes | None], Verified]) -> Verified:
        """Runs a pass against what is remembered, then looks at hash tiles, and remembers what passed."""
        memory = Memory(self.trust, self.memory)
        try:
            verified = run(memory.note)
        except VerificationError as error:
            if error.reason == "FORKED":
                _keep_both(file, memory)
            raise
        if file.is_dir():
            check_hash_tiles(file, verified.size, verified.root)
        memory.advance(verified.checkpoint, parse_checkpoint_text(parse_note(verified.checkpoint).text))
        return verified


def _refuse_bundle(file: Path, trust: TrustDocument) -> None:
    """A partial bundle proves presence and no more: CannotTellError once that holds."""
    with open_log(file) as stream:
        if stream.read(len(BUNDLE_LINE)) == BUNDLE_LINE:
            verify_bundle(BUNDLE_LINE + stream.read(), trust)


def _origin_of(file: Path) -> str | None:
    """Whose log an export says that it is; None where that cannot be read, which V2 or V5 then names."""
    with open_log(file) as stream:
        try:
            note, _ = read_export(stream)
            return parse_checkpoint_text(parse_note(note).text).origin
        except FormatError:
            return None


def _keep_both(file: Path, memory: Memory) -> None:
    """Keeps the fork's other signed note beside the remembered one; raises what says so."""
    with open_log(file) as stream:
        note, _ = read_export(stream)
    memory.check(memory.checkpoint, note, parse_checkpoint_text(parse_note(note).text), [])
