"""Genesis: the batches that open a log, signed by root before any server runs (design section 5).

Rules kept here:

- Root signs offline; the file carries notes and events and no key, so that no server ever holds root's.
- The batches enter as any batch does, through the ledger's ordinary path: nothing here grants anything.
- Layout, big-endian: `u32 length, note, u16 count, then count × (u16 length, event)`, repeated to the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from ledger.batch import MAX_BATCH_EVENTS, check_batch_shape
from ledger.errors import FormatError

__all__ = ["MAX_NOTE_BYTES", "decode_genesis", "encode_genesis"]

#: One signature line and six lines of text: a batch note stays far below.
MAX_NOTE_BYTES: Final = 4096

_NOTE_LENGTH: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")
_EVENT_LENGTH: Final = struct.Struct(">H")


def encode_genesis(batches: Iterable[tuple[bytes, Sequence[bytes]]]) -> bytes:
    """The file for `(note, events)` pairs, in their order.

    Raises FormatError: BAD_LENGTH for a note that is empty or too long, and what `check_batch_shape` raises.
    """
    parts: list[bytes] = []
    for note, events in batches:
        _check_note_length(len(note))
        check_batch_shape(events)
        parts += (_NOTE_LENGTH.pack(len(note)), note, _COUNT.pack(len(events)))
        for event in events:
            parts += (_EVENT_LENGTH.pack(len(event)), event)
    return b"".join(parts)


def decode_genesis(data: bytes) -> list[tuple[bytes, list[bytes]]]:
    """The `(note, events)` pairs of a genesis file. Neither notes nor events are judged.

    Raises FormatError: CUT_SHORT, BAD_LENGTH, BAD_COUNT.
    """
    batches: list[tuple[bytes, list[bytes]]] = []
    position = 0
    while position < len(data):
        length, position = _number(data, position, _NOTE_LENGTH)
        _check_note_length(length)
        note, position = _piece(data, position, length)
        count, position = _number(data, position, _COUNT)
        if not 1 <= count <= MAX_BATCH_EVENTS:
            raise FormatError("BAD_COUNT", f"expected 1 to {MAX_BATCH_EVENTS} events, got {count}")
        events: list[bytes] = []
        for _ in range(count):
            length, position = _number(data, position, _EVENT_LENGTH)
            event, position = _piece(data, position, length)
            events.append(event)
        batches.append((note, events))
    return batches


def _check_note_length(length: int) -> None:
    if not 1 <= length <= MAX_NOTE_BYTES:
        raise FormatError("BAD_LENGTH", f"expected a note of 1 to {MAX_NOTE_BYTES} bytes, got {length}")


def _number(data: bytes, position: int, shape: struct.Struct) -> tuple[int, int]:
    piece, end = _piece(data, position, shape.size)
    return int.from_bytes(piece, "big"), end


def _piece(data: bytes, position: int, length: int) -> tuple[bytes, int]:
    end = position + length
    if end > len(data):
        raise FormatError(
            "CUT_SHORT", f"expected {length} bytes from byte {position}, got {len(data) - position}"
        )
    return data[position:end], end
