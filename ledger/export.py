"""Export files: a checkpoint and every entry under it, in one file (design section 4).

    assay/export/v1\\n ‖ u32 length ‖ checkpoint, a signed note of at most 64 KiB ‖ run of entries to the end

Rules kept here:

- The run is the bytes that the store holds and the wire carries; nothing is re-encoded (law 2).
- No trust document stands inside: what a log is judged by comes another way.
- Reading holds a chunk at a time, whatever the file's size; every length is checked before it is used.

Nothing is verified here: that is `ledger.verify`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from ledger.errors import FormatError

__all__ = ["EXPORT_LINE", "MAX_CHECKPOINT_BYTES", "BinaryReader", "encode_export_header", "read_export"]

EXPORT_LINE: Final = b"assay/export/v1\n"
MAX_CHECKPOINT_BYTES: Final = 65_536

_CHUNK_BYTES: Final = 1 << 20
_LENGTH_BYTES: Final = 4


class BinaryReader(Protocol):
    """An open binary file, or whatever reads as one."""

    def read(self, size: int, /) -> bytes:
        """1 to `size` bytes; none at the end."""


def encode_export_header(checkpoint: bytes) -> bytes:
    """All that stands before the run. FormatError BAD_EXPORT for a checkpoint above 64 KiB."""
    _check_length(len(checkpoint))
    return EXPORT_LINE + len(checkpoint).to_bytes(_LENGTH_BYTES, "big") + checkpoint


def read_export(stream: BinaryReader) -> tuple[bytes, Iterator[bytes]]:
    """The checkpoint note, and the run of entries in chunks of at most 1 MiB, cut anywhere.

    Raises FormatError BAD_EXPORT for another first line or a checkpoint above 64 KiB, CUT_SHORT where the
    file ends before the run.
    """
    if (line := _read_exactly(stream, len(EXPORT_LINE))) != EXPORT_LINE:
        raise FormatError("BAD_EXPORT", f"expected the first line {EXPORT_LINE!r}, got {line!r}")
    length = int.from_bytes(_read_exactly(stream, _LENGTH_BYTES), "big")
    _check_length(length)
    return _read_exactly(stream, length), _chunks(stream)


def _chunks(stream: BinaryReader) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK_BYTES):
        yield chunk


def _check_length(length: int) -> None:
    if length > MAX_CHECKPOINT_BYTES:
        raise FormatError(
            "BAD_EXPORT", f"expected a checkpoint of at most {MAX_CHECKPOINT_BYTES} bytes, got {length}"
        )


def _read_exactly(stream: BinaryReader, length: int) -> bytes:
    parts: list[bytes] = []
    missing = length
    while missing:
        if not (part := stream.read(missing)):
            raise FormatError("CUT_SHORT", f"expected {missing} more bytes before the entries, got the end")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
