"""Remembered checkpoints: what makes a rollback or a fork visible (law 6, step V7).

Rules:
1. Per origin the signed note, in a file; it advances only to what was proven to continue it.
2. A smaller size is refused. Another root at the same size, or another beginning, is a fork: both signed
   notes are kept, the second beside the first, and the first stays what is remembered.
3. A checkpoint is signed by the ledger key in force at its size. A rotation is learnt from root's own signed
   event, proven to stand under a checkpoint of the new key; what was learnt is never forgotten: the proof is
   kept beside the note, and proven again when it is read.
4. No quorum is asked for: witnesses come after the ledger's answer. Exports are judged by it.
5. The file is replaced whole. It is not fsynced: a loss falls back to an older checkpoint of the same log,
   which detects less and never errs.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from ledger.bundle import prove_presence, shown_ledger_key
from ledger.checkpoint import Checkpoint, open_note
from ledger.errors import FormatError, VerificationError
from ledger.head import check_continues, check_signatures, parse_remembered
from ledger.merkle import verify_consistency
from ledger.note import VerifierKey, parse_note
from ledger.trust import TrustDocument

__all__ = ["Memory"]

_ROTATIONS: Final = ".rotations"


class Memory:
    """The latest checkpoint of one log that this client verified. One owner at a time."""

    def __init__(self, trust: TrustDocument, folder: Path | None, reader: str = "") -> None:
        """`folder` None keeps it in this process only; `reader` keeps several clients' memories apart.

        Raises FormatError where the files are not a checkpoint of this log and rotations of its key.
        """
        self._trust = trust.without_quorum()
        self._whole_trust = trust
        self._file: Path | None = None
        self._rotations: tuple[tuple[int, VerifierKey], ...] = ()  # (index of the event, the new key)
        self.note: bytes | None = None
        self.checkpoint: Checkpoint | None = None
        if folder is not None:
            digest = sha256(f"{trust.origin}\n{reader}".encode()).hexdigest()[:32]
            self._file = folder / f"{digest}.checkpoint"
            if self._file.exists():
                self.note = self._file.read_bytes()
                self.checkpoint = _parsed(self._file, self.note, trust.origin)
            if (kept := self._file.with_suffix(_ROTATIONS)).exists():
                self._rotations = self._kept(kept)

    @property
    def size(self) -> int:
        """The remembered size; 0 before the first."""
        return 0 if self.checkpoint is None else self.checkpoint.size

    def open(self, note: bytes) -> Checkpoint:
        """V5 and V6 of a checkpoint. Raises VerificationError."""
        parsed, checkpoint = open_note(note, self._trust.origin)
        check_signatures(parsed, self._key_at(checkpoint.size), self._trust)
        return checkpoint

    def check_quorum(self, note: bytes, size: int) -> None:
        """V6 in full of a checkpoint of `size` entries. Raises VerificationError NO_QUORUM and its like."""
        check_signatures(parse_note(note), self._key_at(size), self._whole_trust)

    def learn(self, bundle: bytes) -> None:
        """Takes the rotations of the ledger key that a partial bundle proves (GetCheckpoint).

        Root signed them; the checkpoint of the bundle is not remembered.
        Raises VerificationError: V2 to V6 of the bundle; V4 NOT_A_ROTATION; V7 FORKED where other
        rotations were learnt before.
        """
        learnt = self._proven(bundle)
        known = len(self._rotations)
        if learnt[:known] != self._rotations[: len(learnt)]:
            raise VerificationError(
                "V7",
                "FORKED",
                f"expected {len(self._rotations)} rotations of the ledger key as before, got others",
            )
        if len(learnt) > known:  # an answer that was overtaken by a newer one takes nothing back
            self._rotations = learnt
            if self._file is not None:
                _replace(self._file.with_suffix(_ROTATIONS), bundle)

    def _proven(self, bundle: bytes) -> tuple[tuple[int, VerifierKey], ...]:
        """The rotations that a bundle proves, by index."""
        present = prove_presence(bundle, self._trust)
        if any(entry.body != "ledger_key_rotated" for entry in present):
            bodies = ", ".join(str(entry.body) for entry in present)
            raise VerificationError("V4", "NOT_A_ROTATION", f"expected LedgerKeyRotated alone, got {bodies}")
        keys = ((entry.index, shown_ledger_key([entry], self._trust)) for entry in present)
        return tuple(sorted(keys, key=lambda rotation: rotation[0]))

    def _kept(self, file: Path) -> tuple[tuple[int, VerifierKey], ...]:
        """The rotations that were learnt before. Raises FormatError that names the file and what to do."""
        try:
            return self._proven(file.read_bytes())
        except VerificationError as error:
            raise FormatError(
                error.reason,
                f"{file}: {error.message}; put these remembered rotations back from a copy, or remove it: "
                "then an older key of the ledger is believed until the ledger tells of the newer one",
            ) from error

    def _key_at(self, size: int) -> VerifierKey:
        """The ledger key in force at a size, as far as this client knows."""
        return next((key for index, key in reversed(self._rotations) if index < size), self._trust.log)

    def check(
        self, known: Checkpoint | None, note: bytes, checkpoint: Checkpoint, proof: list[bytes]
    ) -> None:
        """That `checkpoint` continues `known` by `proof`. Raises VerificationError V7; then both are kept."""
        if known is None:
            return
        holds = verify_consistency(known.size, checkpoint.size, known.root, checkpoint.root, proof)
        try:
            check_continues(known, checkpoint.size, checkpoint.root, known.root if holds else None)
        except VerificationError:
            self._keep_evidence(note)
            raise

    def advance(self, note: bytes, checkpoint: Checkpoint) -> None:
        """Remembers a checkpoint that was checked to continue the remembered one."""
        self.note, self.checkpoint = note, checkpoint
        if self._file is not None:
            _replace(self._file, note)

    def _keep_evidence(self, note: bytes) -> None:
        if self._file is not None:
            self._file.with_suffix(f".fork-{sha256(note).hexdigest()[:16]}").write_bytes(note)


def _replace(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(data)
    temporary.replace(file)


def _parsed(file: Path, note: bytes, origin: str) -> Checkpoint:
    """The remembered checkpoint. Raises FormatError that names the file and what to do."""
    try:
        return parse_remembered(note, origin)
    except FormatError as error:
        raise FormatError(
            error.reason,
            f"{file}: {error.message}; put this remembered checkpoint back from a copy, or remove it: then a "
            "rollback from before cannot be detected",
        ) from error
