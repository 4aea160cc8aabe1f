"""Batches: what an author signs (design section 4).

Rules kept here:

- An author signs the note `assay/batch/v1`, origin, stream, sequence, count, root: one signature for 1 to
  4096 events. The root is the RFC 6962 root over the event bytes, so each event stays provable alone.
- The origin stands inside what is signed: a batch made for one log is nothing in another.
- The note is rebuilt from an entry's fixed-width fields when it is verified, law 2's one exception. So it has
  one spelling, and a note that is not what it re-encodes to is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger.errors import FormatError
from ledger.merkle import HASH_BYTES, leaf_hash, root
from ledger.note import (
    Signer,
    check_name,
    decode_base64,
    encode_base64,
    parse_note,
    sign_note,
    signature_line,
)

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_EVENTS",
    "MAX_EVENT_BYTES",
    "STREAM_BYTES",
    "BatchNote",
    "batch_text",
    "check_batch_shape",
    "event_root",
    "parse_batch_note",
    "sign_batch",
]

MAX_BATCH_EVENTS: Final = 4096
#: Sum of the events' lengths.
MAX_BATCH_BYTES: Final = 3 * 2**20
MAX_EVENT_BYTES: Final = 60_000
STREAM_BYTES: Final = 16

_HEADER: Final = "assay/batch/v1"


def batch_text(origin: str, stream: bytes, sequence: int, count: int, root: bytes) -> bytes:
    """The note text of a batch: `stream` 16 bytes, `root` 32; the fields are not checked."""
    return f"{_HEADER}\n{origin}\n{stream.hex()}\n{sequence}\n{count}\n{encode_base64(root)}\n".encode()


@dataclass(frozen=True, slots=True)
class BatchNote:
    """A batch note's fields. Made by `parse_batch_note` they are within their bounds; nothing is verified."""

    origin: str
    #: 16 random bytes, chosen when the client starts.
    stream: bytes
    #: 0, 1, 2 … within this public key and stream.
    sequence: int
    count: int
    root: bytes
    #: The author's key name.
    name: str
    key_id: bytes
    #: 64 bytes over `text()`.
    signature: bytes

    def text(self) -> bytes:
        """What the author signed."""
        return batch_text(self.origin, self.stream, self.sequence, self.count, self.root)

    def encode(self) -> bytes:
        """The note, in its one spelling."""
        return self.text() + b"\n" + signature_line(self.name, self.key_id, self.signature)


def parse_batch_note(data: bytes) -> BatchNote:
    """The batch note in `data`. Neither signature nor events are checked.

    Raises FormatError: what `note.parse_note` raises, BAD_BATCH_NOTE for the text and for any spelling but
    the one, BAD_BASE64, BAD_NAME, BAD_SEQUENCE, EMPTY_BATCH, TOO_MANY_EVENTS.
    """
    note = parse_note(data)
    lines = note.text.decode().split("\n")
    if len(lines) != 7 or lines[0] != _HEADER or len(note.signatures) != 1:
        raise FormatError("BAD_BATCH_NOTE", f"expected {_HEADER}, 5 lines, 1 signature, got {data[:300]!r}")
    _, origin, stream, sequence, count, encoded, _ = lines
    signature = note.signatures[0]
    try:
        # Read freely, then compared with its own encoding: one rule for every way to misspell.
        batch = BatchNote(
            origin,
            bytes.fromhex(stream),
            int(sequence),
            int(count),
            decode_base64(encoded),
            signature.name,
            signature.key_id,
            signature.payload,
        )
    except ValueError as error:
        raise FormatError("BAD_BATCH_NOTE", f"expected hex and decimals, got {lines[2:5]!r}"[:300]) from error
    _check_fields(batch)
    if (again := batch.encode()) != data:
        raise FormatError("BAD_BATCH_NOTE", f"expected {again!r}, got {data[:900]!r}")
    return batch


def _check_fields(batch: BatchNote) -> None:
    check_name(batch.origin)
    check_name(batch.name)
    for what, value, length in (
        ("stream", batch.stream, STREAM_BYTES),
        ("root", batch.root, HASH_BYTES),
        ("signature", batch.signature, 64),
    ):
        if len(value) != length:
            raise FormatError("BAD_BATCH_NOTE", f"expected a {what} of {length} bytes, got {len(value)}")
    if not 0 <= batch.sequence < 2**64:
        raise FormatError("BAD_SEQUENCE", f"expected a sequence below 2^64, got {batch.sequence:#x}"[:300])
    _check_count(batch.count)


def _check_count(count: int) -> None:
    if count < 1:
        raise FormatError("EMPTY_BATCH", f"expected 1 event or more, got {count:#x}"[:300])
    if count > MAX_BATCH_EVENTS:
        raise FormatError("TOO_MANY_EVENTS", f"expected at most {MAX_BATCH_EVENTS}, got {count:#x}"[:300])


def check_batch_shape(events: Sequence[bytes]) -> None:
    """Raise FormatError EMPTY_BATCH, TOO_MANY_EVENTS, EVENT_SIZE or OVER_SIZE unless `events` fit a batch."""
    _check_count(len(events))
    lengths = [*map(len, events)]
    if not min(lengths) or max(lengths) > MAX_EVENT_BYTES:
        at, got = next((k, n) for k, n in enumerate(lengths) if not 1 <= n <= MAX_EVENT_BYTES)
        raise FormatError("EVENT_SIZE", f"expected 1 to {MAX_EVENT_BYTES} bytes, got {got} in event {at}")
    if (total := sum(lengths)) > MAX_BATCH_BYTES:
        raise FormatError("OVER_SIZE", f"expected events of at most {MAX_BATCH_BYTES} bytes, got {total}")


def event_root(events: Sequence[bytes]) -> bytes:
    """The RFC 6962 root over event bytes: what the author signs for them."""
    return root([leaf_hash(event) for event in events])


def sign_batch(key: Signer, origin: str, stream: bytes, sequence: int, events: Sequence[bytes]) -> bytes:
    """The signed batch note for `events`, in their order.

    Raises FormatError: what `check_batch_shape` and `parse_batch_note` raise for the same values.
    """
    check_batch_shape(events)
    note = sign_note(batch_text(origin, stream, sequence, len(events), event_root(events)), key)
    parse_batch_note(note)
    return note
