"""Entries: events as placed in the log, the log's leaf data (design section 4).

Rules kept here:

- An entry has one encoding, big-endian: version, index, time, link, offset, the opening if the offset is 0,
  the event bytes as the author sent them. What is stored is what is hashed, sent and verified (law 2).
- The link is the leaf hash of the entry before, SHA-256(00 ‖ entry): chain and tree commit to the same thing.
- Every length is checked before it is used; a reader refuses what a writer would not write.
- A run of entries is `u16 length, entry` repeated, the encoding of tlog-tiles entry bundles.

One entry is judged alone here. Whether index, time, link and offset follow the entry before is the verifier's
to say (V2, V3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from ledger.batch import MAX_BATCH_EVENTS, MAX_EVENT_BYTES, STREAM_BYTES, check_batch_shape
from ledger.errors import FormatError
from ledger.merkle import HASH_BYTES, LEAF_PREFIX, leaf_hash
from ledger.note import check_name

__all__ = [
    "ENTRY_HEADER",
    "ENTRY_VERSION",
    "FIRST_PREVIOUS",
    "MAX_ENTRY_BYTES",
    "MAX_RECORDED_AT",
    "Entry",
    "Opening",
    "decode_entry",
    "decode_opening",
    "encode_entry",
    "encode_run",
    "iter_run",
    "place_batch",
]

ENTRY_VERSION: Final = 1
#: Exclusive: the year 10000 in microseconds since 1970.
MAX_RECORDED_AT: Final = 253_402_300_800_000_000
MAX_ENTRY_BYTES: Final = 65_535
#: The link of entry 0.
FIRST_PREVIOUS: Final = bytes(HASH_BYTES)

#: version, index, recorded_at, previous, offset: what every entry begins with.
ENTRY_HEADER: Final = struct.Struct(">BQQ32sH")
_OPENING_HEAD: Final = struct.Struct(">HB")  # count, length of the name
_OPENING_TAIL: Final = struct.Struct(">4s16sQ64s")  # key id, stream, sequence, signature
_LENGTH: Final = struct.Struct(">H")
_U64_END: Final = 2**64


@dataclass(frozen=True, slots=True)
class Opening:
    """What the first entry of a batch says of the whole: with the root, all of the author's signed note."""

    count: int
    name: str
    #: 4 bytes.
    key_id: bytes
    #: 16 bytes.
    stream: bytes
    sequence: int
    #: 64 bytes, over the batch note's text.
    signature: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """An event in its place."""

    index: int
    #: Microseconds since 1970.
    recorded_at: int
    #: Leaf hash of the entry before, 32 bytes; zeros at index 0.
    previous: bytes
    #: Position within the batch, 0 to count - 1.
    offset: int
    #: Present iff `offset` is 0.
    opening: Opening | None
    event: bytes


def encode_entry(entry: Entry) -> bytes:
    """The entry's one encoding.

    Raises FormatError: BAD_OPENING, BAD_WIDTH for a field that does not fit, and what `decode_entry` raises.
    """
    opening = entry.opening
    if (opening is None) == (entry.offset == 0):
        raise FormatError("BAD_OPENING", f"expected an opening at offset 0 only, got offset {entry.offset}")
    _check(entry)
    _check_width("index", 0 <= entry.index < _U64_END)
    _check_width("previous", len(entry.previous) == HASH_BYTES)
    head = ENTRY_HEADER.pack(ENTRY_VERSION, entry.index, entry.recorded_at, entry.previous, entry.offset)
    if opening is None:
        return head + entry.event
    _check_width("key id", len(opening.key_id) == 4)
    _check_width("stream", len(opening.stream) == STREAM_BYTES)
    _check_width("sequence", 0 <= opening.sequence < _U64_END)
    _check_width("signature", len(opening.signature) == 64)
    name = opening.name.encode("ascii")
    tail = _OPENING_TAIL.pack(opening.key_id, opening.stream, opening.sequence, opening.signature)
    return head + _OPENING_HEAD.pack(opening.count, len(name)) + name + tail + entry.event


def decode_entry(data: bytes) -> Entry:
    """The entry that `data` encodes.

    Raises FormatError, the first of BAD_LENGTH, BAD_VERSION, BAD_COUNT, BAD_NAME, EVENT_SIZE, BAD_TIME,
    BAD_OFFSET.
    """
    if not ENTRY_HEADER.size <= len(data) <= MAX_ENTRY_BYTES:
        raise FormatError("BAD_LENGTH", f"expected {ENTRY_HEADER.size} bytes to 65,535, got {len(data)}")
    version, index, recorded_at, previous, offset = ENTRY_HEADER.unpack_from(data)
    if version != ENTRY_VERSION:
        raise FormatError("BAD_VERSION", f"expected entry version {ENTRY_VERSION}, got {version}")
    opening, start = (None, ENTRY_HEADER.size) if offset else decode_opening(data)
    entry = Entry(index, recorded_at, previous, offset, opening, data[start:])
    _check(entry)
    return entry


def decode_opening(data: bytes) -> tuple[Opening, int]:
    """The opening of an entry at offset 0, and where the event begins. Only lengths are checked.

    For entries that were decoded or written before. Raises FormatError BAD_LENGTH.
    """
    start = ENTRY_HEADER.size + _OPENING_HEAD.size
    if len(data) < start:
        raise FormatError("BAD_LENGTH", f"expected an opening, got {len(data)} bytes")
    count, name_length = _OPENING_HEAD.unpack_from(data, ENTRY_HEADER.size)
    name_end = start + name_length
    end = name_end + _OPENING_TAIL.size
    if len(data) < end:
        raise FormatError("BAD_LENGTH", f"expected an opening of {end} bytes, got {len(data)}")
    # Latin-1 never fails; `check_name` refuses what is not ASCII.
    name = data[start:name_end].decode("latin-1")
    return Opening(count, name, *_OPENING_TAIL.unpack_from(data, name_end)), end


def _check(entry: Entry) -> None:
    """What reader and writer refuse alike, in the order of V2 and V3."""
    if entry.opening is not None:
        if not 1 <= entry.opening.count <= MAX_BATCH_EVENTS:
            raise FormatError("BAD_COUNT", f"expected 1 to {MAX_BATCH_EVENTS}, got {entry.opening.count}")
        check_name(entry.opening.name)
    if not 1 <= len(entry.event) <= MAX_EVENT_BYTES:
        raise FormatError("EVENT_SIZE", f"expected 1 to {MAX_EVENT_BYTES} bytes, got {len(entry.event)}")
    if not 0 <= entry.recorded_at < MAX_RECORDED_AT:
        raise FormatError("BAD_TIME", f"expected microseconds below year 10000, got {entry.recorded_at}")
    if not 0 <= entry.offset < MAX_BATCH_EVENTS:
        raise FormatError("BAD_OFFSET", f"expected an offset below {MAX_BATCH_EVENTS}, got {entry.offset}")


def _check_width(field: str, fits: bool) -> None:
    if not fits:
        raise FormatError("BAD_WIDTH", f"expected a {field} of the encoding's width, got another")


def encode_run(entries: Iterable[bytes]) -> bytes:
    """Entries as a run. FormatError BAD_LENGTH for one above 65,535 bytes."""
    parts: list[bytes] = []
    for entry in entries:
        if len(entry) > MAX_ENTRY_BYTES:
            raise FormatError("BAD_LENGTH", f"expected at most {MAX_ENTRY_BYTES} bytes, got {len(entry)}")
        parts += (_LENGTH.pack(len(entry)), entry)
    return b"".join(parts)


def iter_run(data: bytes | memoryview) -> Iterator[bytes]:
    """The entries of a run, one by one, not decoded. FormatError CUT_SHORT where the run ends within one."""
    position, end = 0, len(data)
    while position < end:
        start = position + _LENGTH.size
        if start > end:
            raise FormatError("CUT_SHORT", f"expected a length up to byte {start}, got {end} bytes")
        position = start + (data[start - 2] << 8 | data[start - 1])
        if position > end:
            raise FormatError("CUT_SHORT", f"expected an entry up to byte {position}, got {end} bytes")
        yield bytes(data[start:position])


def place_batch(
    first_index: int, recorded_at: int, previous: bytes, opening: Opening, events: Sequence[bytes]
) -> tuple[list[bytes], list[bytes]]:
    """All entries of a batch and their leaf hashes, linked on from `previous`, the leaf hash before them.

    The same bytes as `encode_entry`, one by one. Raises FormatError: what `check_batch_shape` and
    `encode_entry` raise, BAD_COUNT where the opening counts other than `events`.
    """
    check_batch_shape(events)
    if opening.count != len(events):
        raise FormatError("BAD_COUNT", f"expected a count of {len(events)}, got {opening.count}")
    _check_width("last index", first_index + len(events) <= _U64_END)
    first = encode_entry(Entry(first_index, recorded_at, previous, 0, opening, events[0]))
    leaf = leaf_hash(first)
    entries, leaves = [first], [leaf]
    pack = ENTRY_HEADER.pack
    for offset in range(1, len(events)):
        entry = pack(ENTRY_VERSION, first_index + offset, recorded_at, leaf, offset) + events[offset]
        leaf = sha256(LEAF_PREFIX + entry).digest()
        entries.append(entry)
        leaves.append(leaf)
    return entries, leaves
