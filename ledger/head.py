"""A checkpoint judged: steps V6 and V7 of the verifier (design section 9); V5 is `checkpoint.open_note`.

V6  signed by the ledger key in force at that size, and a quorum of witnesses
V7  consistent with the remembered checkpoint

Rules kept here:

- A log only grows (law 6): what was signed at the remembered size still stands in every later checkpoint.
- A smaller size is no proof of a rollback, the export may just be older; it is refused all the same, since
  what came after cannot be seen in it.
- Another root at the same size, or another beginning, is a fork. Both signed notes are the evidence.
- A cosignature says that its witness saw nothing else up to its time. Where an age is asked for, only those
  count towards the quorum that are younger; the time it is judged against is handed in.

Remembering is the caller's: per origin the signed note, replaced only after a full pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.checkpoint import Checkpoint, parse_checkpoint_text, verify_cosignatures
from ledger.errors import FormatError, VerificationError
from ledger.note import Note, VerifierKey, parse_note
from ledger.trust import TrustDocument

__all__ = ["Freshness", "check_continues", "check_signatures", "parse_remembered"]


_AHEAD: Final = 300  # seconds by which a witness's clock may be ahead of the auditor's


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old a cosignature may be: `max_age` seconds at `now`, seconds since 1970."""

    now: int
    max_age: int

    def holds(self, time: int) -> bool:
        """Whether a cosignature of this time counts."""
        return self.now - self.max_age <= time <= self.now + _AHEAD


def check_signatures(
    note: Note, ledger_key: VerifierKey, trust: TrustDocument, fresh: Freshness | None = None
) -> tuple[str, ...]:
    """V6: the ledger key's signature and the quorum; the witnesses that cosigned, by name.

    Raises VerificationError V6: NO_KNOWN_SIGNATURE, BAD_SIGNATURE, SIGNED_TWICE, BAD_COSIGNATURE, NO_QUORUM;
    STALE_COSIGNATURE where `fresh` is asked for and a quorum is there, but not of cosignatures that are.
    """
    note.verify([ledger_key], step="V6")
    cosigners = verify_cosignatures(note, trust.policy.witnesses.values())
    names = tuple(key.name for key in cosigners)
    if not trust.policy.satisfied_by(frozenset(cosigners)):
        raise VerificationError(
            "V6",
            "NO_QUORUM",
            f"expected cosignatures of the quorum {trust.policy.quorum}, got {', '.join(names) or 'none'}: "
            "ask for what the ledger's witnesses have cosigned",
        )
    if fresh is not None:
        _check_fresh(cosigners, trust, fresh)
    return names


def _check_fresh(cosigners: Mapping[VerifierKey, int], trust: TrustDocument, fresh: Freshness) -> None:
    """A quorum of fresh cosignatures; where the document demands no quorum, one of them at least."""
    if not cosigners:
        raise VerificationError(
            "V6",
            "STALE_COSIGNATURE",
            f"expected a cosignature at most {fresh.max_age} s old, got none of any age: no witness of the "
            "trust document cosigned this checkpoint, and nothing else says when it was the newest",
        )
    young = frozenset(key for key, time in cosigners.items() if fresh.holds(time))
    if not young or not trust.policy.satisfied_by(young):
        ages = ", ".join(f"{key.name} {fresh.now - time} s" for key, time in cosigners.items())
        raise VerificationError(
            "V6",
            "STALE_COSIGNATURE",
            f"expected cosignatures at most {fresh.max_age} s old by the quorum {trust.policy.quorum}, got "
            f"{ages}: ask for a newer export; if there is none, the ledger may withhold what came after",
        )


def parse_remembered(note: bytes, origin: str) -> Checkpoint:
    """The checkpoint of a remembered signed note. Its signatures were verified before it was remembered.

    Raises FormatError: OTHER_ORIGIN, EMPTY_LOG, or what the note's parsers raise. That is the memory's fault,
    not the log's.
    """
    checkpoint = parse_checkpoint_text(parse_note(note).text)
    if checkpoint.origin != origin:
        raise FormatError(
            "OTHER_ORIGIN", f"remembered checkpoint: expected {origin}, got {checkpoint.origin}"
        )
    if not checkpoint.size:
        raise FormatError("EMPTY_LOG", "remembered checkpoint: expected a size of 1 or more, got 0")
    return checkpoint


def check_continues(remembered: Checkpoint, size: int, root: bytes, root_then: bytes | None) -> None:
    """V7: whether the log of `size` and `root` continues what is remembered.

    `root_then`: its root over the first `remembered.size` entries; None where it has fewer.
    Raises VerificationError V7: ROLLED_BACK, FORKED.
    """
    if size < remembered.size:
        raise VerificationError(
            "V7",
            "ROLLED_BACK",
            f"expected size {remembered.size} or more, got {size}: rolled back or older export",
        )
    found = root if size == remembered.size else root_then
    if found != remembered.root:
        got = "none" if found is None else found.hex()
        raise VerificationError(
            "V7",
            "FORKED",
            f"expected root {remembered.root.hex()} at size {remembered.size}, got {got}: "
            "keep both signed checkpoints, they are the evidence",
        )
