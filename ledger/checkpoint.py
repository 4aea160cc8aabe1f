"""Checkpoints: what a log signs about its size and root (C2SP tlog-checkpoint.md, tlog-cosignature.md).

Rules kept here:

- The text is origin, size, base64 root, a line each. Extension lines are kept where another log wrote them;
  ours never writes any.
- A checkpoint has one spelling: what parses gives back its own bytes.
- A checkpoint is opened for one log: its origin is the ledger key's name (V5) and that key signed it (V6). It
  covers at least one entry.
- A witness's cosignature covers the time too, `cosignature/v1`, so that it cannot pass for a log's signature.
- A known witness signs once, and its bad cosignature is an error. How many are needed is policy's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ledger.errors import FormatError, VerificationError
from ledger.merkle import HASH_BYTES
from ledger.note import (
    KEY_TYPE_COSIGNATURE,
    Note,
    Signer,
    VerifierKey,
    decode_base64,
    decode_decimal,
    decode_text,
    encode_base64,
    parse_note,
    sign_note,
    signature_line,
)

__all__ = [
    "Checkpoint",
    "cosign",
    "open_checkpoint",
    "open_note",
    "parse_checkpoint_text",
    "sign_checkpoint",
    "verify_cosignatures",
]

_COSIGNATURE_V1: Final = b"cosignature/v1\ntime %d\n"
_TIME_BYTES: Final = 8
_MAX_TIME: Final = 2**63 - 1
_SIGNATURE_REASONS: Final = frozenset({"BAD_SIGNATURE_LINE", "TOO_MANY_SIGNATURES"})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A log's `root` (32 bytes) at `size` entries; `extensions` only where parsed from another's text."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def text(self) -> bytes:
        """The note text, signed and cosigned."""
        lines = (self.origin, str(self.size), encode_base64(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines).encode()


def parse_checkpoint_text(text: bytes) -> Checkpoint:
    """The checkpoint of a note's text.

    Raises FormatError: BAD_NOTE, BAD_CHECKPOINT, BAD_DECIMAL (the size), BAD_BASE64 (the root).
    """
    match decode_text(text).split("\n"):
        case [origin, size, encoded, *extensions, ""] if all((origin, *extensions)):
            checkpoint = Checkpoint(origin, decode_decimal(size), decode_base64(encoded), tuple(extensions))
        case _:
            raise FormatError("BAD_CHECKPOINT", f"expected lines origin, size, root, got {text[:300]!r}")
    if len(checkpoint.root) != HASH_BYTES:
        raise FormatError("BAD_CHECKPOINT", f"expected a root of 32 bytes, got {len(checkpoint.root)}")
    return checkpoint


def sign_checkpoint(checkpoint: Checkpoint, key: Signer) -> bytes:
    """The signed note of `checkpoint`, whose origin must be the key's name.

    Raises FormatError: OTHER_ORIGIN, EXTENSIONS, or what `parse_checkpoint_text` finds wrong.
    """
    if checkpoint.origin != key.verifier_key.name:
        name = key.verifier_key.name
        raise FormatError("OTHER_ORIGIN", f"expected origin {name}, got {checkpoint.origin}")
    if checkpoint.extensions:
        raise FormatError("EXTENSIONS", f"expected no extension line, got {len(checkpoint.extensions)}")
    text = checkpoint.text()
    parse_checkpoint_text(text)
    return sign_note(text, key)


def open_checkpoint(data: bytes, key: VerifierKey, *more: VerifierKey) -> Checkpoint:
    """The checkpoint in the signed note `data`, by one key at least of a log's, all type 1 and of its name.

    Raises VerificationError: what `open_note` raises, V6 for the signature. The root and the cosignatures are
    the caller's to check.
    """
    note, checkpoint = open_note(data, key.name)
    note.verify((key, *more))
    return checkpoint


def open_note(data: bytes, origin: str) -> tuple[Note, Checkpoint]:
    """V5: the signed note, not yet verified, and the checkpoint in it.

    Whether size and root are the log's is for whoever counted. Raises VerificationError V5: OTHER_ORIGIN,
    EMPTY_LOG, or what the parsers find; V6 for signature lines that do not parse.
    """
    try:
        note = parse_note(data)
        checkpoint = parse_checkpoint_text(note.text)
    except FormatError as error:
        step = "V6" if error.reason in _SIGNATURE_REASONS else "V5"
        raise VerificationError(step, error.reason, error.message) from error
    if checkpoint.origin != origin:
        raise VerificationError("V5", "OTHER_ORIGIN", f"expected {origin}, got {checkpoint.origin}")
    if not checkpoint.size:
        raise VerificationError("V5", "EMPTY_LOG", "expected a size of 1 or more, got 0")
    return note, checkpoint


def cosign(text: bytes, key: Signer, timestamp: int) -> bytes:
    """The signature line of a witness (key type 4) under a checkpoint's `text`; seconds since 1970.

    Raises FormatError: BAD_KEY_TYPE, BAD_TIME, or what `parse_checkpoint_text` finds wrong.
    """
    parse_checkpoint_text(text)
    known = key.verifier_key
    if known.type != KEY_TYPE_COSIGNATURE:
        raise FormatError("BAD_KEY_TYPE", f"expected key type 4, got {known.type} of {known.name}")
    if not 0 <= timestamp <= _MAX_TIME:
        raise FormatError("BAD_TIME", f"expected seconds from 0 to 2^63-1, got {timestamp}")
    signature = key.sign(_COSIGNATURE_V1 % timestamp + text)
    return signature_line(known.name, known.key_id, timestamp.to_bytes(_TIME_BYTES, "big") + signature)


def verify_cosignatures(note: Note, witnesses: Iterable[VerifierKey]) -> dict[VerifierKey, int]:
    """Which of `witnesses` (type 4; others are passed over) cosigned, and when, in seconds since 1970.

    Raises VerificationError V6: BAD_COSIGNATURE or SIGNED_TWICE by a witness among them. Where none cosigned
    the answer is empty.
    """
    times: dict[VerifierKey, int] = {}
    for key in witnesses:
        if key.type != KEY_TYPE_COSIGNATURE or (payload := note.payload(key)) is None:
            continue
        timestamp = int.from_bytes(payload[:_TIME_BYTES], "big")
        message = _COSIGNATURE_V1 % timestamp + note.text
        if timestamp > _MAX_TIME or not key.verify(message, payload[_TIME_BYTES:]):
            raise VerificationError("V6", "BAD_COSIGNATURE", f"expected a cosignature by {key}, got another")
        times[key] = timestamp
    return times
