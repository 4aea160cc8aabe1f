"""Inclusion proofs as text, to carry away and check offline (C2SP tlog-proof.md, `tlog-proof@v1`).

Rules kept here:

- One spelling: what parses re-encodes to its own bytes.
- The checkpoint is carried as it was signed, and is opened by whoever checks the proof
  (`checkpoint.open_checkpoint`, then `merkle.verify_inclusion` with its size and root).
- The extra data is not authenticated: nothing may rest on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger.errors import FormatError
from ledger.merkle import HASH_BYTES
from ledger.note import decode_base64, decode_decimal, encode_base64

__all__ = ["Proof", "encode_proof", "parse_proof"]

_HEADER: Final = "c2sp.org/tlog-proof@v1"
_EXTRA: Final = "extra "
_INDEX: Final = "index "
# A tree of 2^64 leaves has no longer path.
_MAX_HASHES: Final = 64


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof as parsed. `checkpoint` is a signed note not yet opened; `extra` is unauthenticated."""

    index: int
    #: 32 bytes each, leaf to root.
    hashes: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes | None = None


def encode_proof(index: int, hashes: Sequence[bytes], checkpoint: bytes, extra: bytes | None = None) -> bytes:
    """The proof's text. FormatError BAD_DECIMAL for the index, BAD_PROOF for the hashes."""
    decode_decimal(str(index))
    _check_hashes(hashes)
    lines = [_HEADER, _INDEX + str(index), *map(encode_base64, hashes)]
    if extra is not None:
        lines.insert(1, _EXTRA + encode_base64(extra))
    return "".join(f"{line}\n" for line in lines).encode("ascii") + b"\n" + checkpoint


def parse_proof(data: bytes) -> Proof:
    """The proof in `data`; nothing is verified. FormatError BAD_PROOF, BAD_DECIMAL or BAD_BASE64."""
    head, blank, checkpoint = data.partition(b"\n\n")
    try:
        lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError("BAD_PROOF", f"expected ASCII lines, got byte {head[error.start]:#04x}") from error
    extra = None
    if len(lines) > 1 and lines[1].startswith(_EXTRA):
        extra = decode_base64(lines.pop(1).removeprefix(_EXTRA))
    match lines:
        case [header, position, *encoded] if blank and header == _HEADER and position.startswith(_INDEX):
            index = decode_decimal(position.removeprefix(_INDEX))
        case _:
            raise FormatError("BAD_PROOF", f"expected {_HEADER}, index, hashes, got {head[:300]!r}")
    hashes = tuple(decode_base64(line) for line in encoded[: _MAX_HASHES + 1])
    _check_hashes(hashes)
    return Proof(index, hashes, checkpoint, extra)


def _check_hashes(hashes: Sequence[bytes]) -> None:
    if len(hashes) > _MAX_HASHES or any(len(value) != HASH_BYTES for value in hashes):
        raise FormatError("BAD_PROOF", f"expected up to {_MAX_HASHES} hashes of 32 bytes, got {len(hashes)}")
