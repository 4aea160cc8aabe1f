"""The offline verifier: a log is true, or the first entry at fault is named (design sections 5 and 9).

The steps, in code and messages by their numbers:

V1  trust document
V2  lengths, version, count, name, event size, index, link, time (not smaller; equal if offset > 0)
V3  an opening iff no batch is open, offset as expected, none open at the end, sequence, size limit, signature
V4  name and key id known and in force, entry 0, the role may write the type, key rules
V5  checkpoint text, origin, size of at least 1 and as counted, root
V6  its signatures by the ledger key in force at its size, and a quorum of witnesses
V7  consistent with the remembered checkpoint

Rules kept here:

- The first fault met is reported. Within an entry that is by number, but at an opening V4 comes before the
  sequence, and a batch's signature is checked at its last entry. A signature, open-batch or size fault names
  the batch's first index, every other the entry's own.
- Bytes are judged as stored; nothing is re-encoded but the batch note, which has one spelling (law 2).
- An event is parsed once. The rules of admission are not applied: what was admitted stays readable.
- A fold sees an entry only after its batch's signature held, with the parse that V4 judged.
- A type that this release does not know makes the answer "cannot tell", never "verified"; all other checks go
  on, and a fault found after it comes first.
- Memory grows with authors' streams (about 160 bytes each), not with entries. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NoReturn

from ledger.batch import MAX_BATCH_BYTES, MAX_EVENT_BYTES, batch_text
from ledger.checkpoint import open_note
from ledger.entry import (
    ENTRY_HEADER,
    ENTRY_VERSION,
    FIRST_PREVIOUS,
    MAX_RECORDED_AT,
    Entry,
    Opening,
    decode_entry,
)
from ledger.errors import CannotTellError, FormatError, InputError, VerificationError
from ledger.export import BinaryReader, read_export
from ledger.fold import Fold, Reader, read_event
from ledger.head import Freshness, check_continues, check_signatures, parse_remembered
from ledger.merkle import LEAF_PREFIX, Frontier, root
from ledger.trust import KEY_EVENTS, WRITER, Authority, Grant, TrustDocument, parse_trust_document
from ledger.v1 import event_pb2
from ledger.verified import Clean, Keys, Verified

__all__ = [
    "Batch",
    "Keys",
    "Verified",
    "Verifier",
    "open_export",
    "read_trust",
    "verify_export",
]

_HEADER_BYTES: Final = ENTRY_HEADER.size
# `decode_entry` finds these before index and link are compared; the steps' order is kept by looking again.
_LATE_REASONS: Final = frozenset({"BAD_TIME", "BAD_OFFSET"})
# role -> what it may write without a further look: all of its file but key events
_WRITES: Final[Mapping[int, frozenset[str]]] = {
    role: frozenset(body for body, writer in WRITER.items() if writer == role) - KEY_EVENTS
    for role in WRITER.values()
}


@dataclass(slots=True)
class Batch:
    """The batch being read; the verifier's own."""

    first: int
    opening: Opening
    grant: Grant
    writes: frozenset[str]
    #: Keys as if the batch's key events had acted already.
    keys: Keys
    size: int = 0
    leaves: list[bytes] = field(default_factory=list)
    event_leaves: list[bytes] = field(default_factory=list)
    #: Kept for the fold only.
    events: list[event_pb2.Event] = field(default_factory=list)


def read_trust(data: bytes) -> TrustDocument:
    """V1: the trust document. Raises VerificationError V1."""
    try:
        return parse_trust_document(data)
    except FormatError as error:
        raise VerificationError("V1", error.reason, error.message) from error


class Verifier:
    """Takes the run of entries in chunks, then the checkpoint. One that raised is spent.

    `remembered` is a signed note that passed before; FormatError where it is none or of another log. `fresh`:
    how old cosignatures may be, where that is judged.
    """

    def __init__(
        self,
        trust: TrustDocument,
        *,
        fold: Fold | None = None,
        remembered: bytes | None = None,
        reader: Reader = read_event,
        keys: Keys | None = None,
        fresh: Freshness | None = None,
    ) -> None:
        self._trust = trust
        self._fresh = fresh
        self._fold = fold
        self._remembered = None if remembered is None else parse_remembered(remembered, trust.origin)
        self._read = reader
        self._keys: Keys = Authority.initial(trust) if keys is None else keys
        self._rest = b""  # the beginning of an entry that the next chunk goes on with
        self._index = 0  # of the next entry
        self._leaf = FIRST_PREVIOUS
        self._first_time = 0
        self._time = 0
        self._batch: Batch | None = None
        self._batches = 0
        self._tree = Frontier()
        self._root_then: bytes | None = None
        self._sequences: dict[bytes, dict[bytes, int]] = {}  # public key -> stream -> next sequence
        self._authors: dict[str, int] = {}
        self._newer_first = 0
        self._newer_count = 0

    @property
    def size(self) -> int:
        """Entries read so far."""
        return self._index

    @property
    def keys(self) -> Keys:
        """The keys after the last whole batch."""
        return self._keys

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the run, cut anywhere. Raises VerificationError V2, V3 or V4."""
        data = self._rest + chunk
        position = 0
        while True:
            if self._batch is not None:
                position = self._continue(self._batch, data, position)
            start = position + 2
            stop = start + int.from_bytes(data[position:start], "big")
            if start > len(data) or stop > len(data):
                break
            self._open(data[start:stop])
            position = stop
        self._rest = data[position:]

    def absorb(self, clean: Clean, keys: Keys) -> bool:
        """Take a range that was judged elsewhere, if it begins where this verifier stands; whether it does.

        `keys` is what it was judged under: this verifier's `keys` at the time.
        """
        if self._rest or self._batch is not None or keys is not self._keys:
            return False
        if (self._index, self._leaf) != (clean.first, clean.previous) or clean.first_time < self._time:
            return False
        for public_key, streams in clean.sequences.items():
            known = self._sequences.get(public_key, {})
            if any(known.get(stream, 0) != first for stream, (first, _) in streams.items()):
                return False
        if self._passes_remembered(clean.count):
            return False  # its leaves are needed one by one
        for public_key, streams in clean.sequences.items():
            following = {stream: after for stream, (_, after) in streams.items()}
            self._sequences.setdefault(public_key, {}).update(following)
        for name, count in clean.authors.items():
            self._authors[name] = self._authors.get(name, 0) + count
        for level, node in clean.subtrees:
            self._tree.join(level, node)
        self._index += clean.count
        self._leaf, self._time = clean.last, clean.last_time
        self._batches += clean.batches
        return True

    def finish(self, checkpoint: bytes) -> Verified:
        """The log's end, under its signed note.

        Raises VerificationError V2 to V7; CannotTellError NEWER_EVENT_TYPE where all else holds.
        """
        if self._rest:
            message = f"expected a whole entry, got {len(self._rest)} bytes, then the end"
            raise self._fault("V2", "CUT_SHORT", message)
        if (batch := self._batch) is not None:
            message = f"expected {batch.opening.count} entries, got {len(batch.leaves)}, then the end"
            raise self._fault("V3", "OPEN_BATCH", message, batch.first)
        note, claimed = open_note(checkpoint, self._trust.origin)
        found = self._tree.root()
        if claimed.size != self._index:
            raise VerificationError("V5", "BAD_SIZE", f"expected {claimed.size} entries, got {self._index}")
        if claimed.root != found:
            raise VerificationError("V5", "BAD_ROOT", f"expected {claimed.root.hex()}, got {found.hex()}")
        ledger_key = self._keys.ledger_key
        witnesses = check_signatures(note, ledger_key, self._trust, self._fresh)
        if self._remembered is not None:
            check_continues(self._remembered, self._index, found, self._root_then)
        if self._newer_count:
            raise CannotTellError(
                "NEWER_EVENT_TYPE",
                f"expected event types that this release knows, got {self._newer_count} entries of others, "
                f"the first at index {self._newer_first}; all else holds; use a newer release",
            )
        return Verified(
            claimed.origin,
            claimed.size,
            found,
            checkpoint,
            self._authors,
            self._batches,
            self._first_time,
            self._time,
            ledger_key,
            witnesses,
            None if self._remembered is None else self._remembered.size,
            self._keys,
        )

    # --- V2, V3: entries and batches -----------------------------------------------------------------------

    def _open(self, data: bytes) -> None:
        """The first entry of a batch; V4 before the sequence."""
        entry = self._entry(data)
        opening = entry.opening
        if opening is None:
            message = f"expected an opening at offset 0, got offset {entry.offset}"
            raise self._fault("V3", "NO_OPENING", message)
        try:
            grant = self._keys.find(opening.name, opening.key_id)
        except InputError as error:
            raise self._fault("V4", error.reason, error.message) from error
        batch = Batch(self._index, opening, grant, _WRITES.get(grant.role, frozenset()), self._keys)
        if not self._index:
            self._first_time = entry.recorded_at
        self._time = entry.recorded_at
        self._take(batch, data, entry.event)
        self._check_sequence(batch)
        if opening.count == 1:
            self._close(batch)
        else:
            self._batch = batch

    def _check_sequence(self, batch: Batch) -> None:
        """V3: the next of its public key and stream."""
        opening = batch.opening
        streams = self._sequences.setdefault(batch.grant.key.public_key, {})
        expected = streams.get(opening.stream, 0)
        if opening.sequence != expected:
            reason = "SEQUENCE_GAP" if opening.sequence > expected else "SEQUENCE_REPEATED"
            message = f"expected sequence {expected} of {opening.name}, got {opening.sequence}"
            raise self._fault("V3", reason, message, batch.first)
        streams[opening.stream] = expected + 1

    def _continue(self, batch: Batch, data: bytes, position: int) -> int:
        """The batch's further entries as far as `data` holds them; where it goes on. The inner loop."""
        pack, take = ENTRY_HEADER.pack, self._take
        count, recorded_at, end = batch.opening.count, self._time, len(data)
        for offset in range(len(batch.leaves), count):
            start = position + 2
            if start > end or (stop := start + (data[position] << 8 | data[position + 1])) > end:
                return position
            # One comparison for version, index, time, link, offset; which of them failed is found after.
            header = pack(ENTRY_VERSION, self._index, recorded_at, self._leaf, offset)
            event = data[start + _HEADER_BYTES : stop]
            if not data.startswith(header, start) or not 1 <= len(event) <= MAX_EVENT_BYTES:
                self._refuse(batch, data[start:stop], offset)
            take(batch, data[start:stop], event)
            position = stop
        self._close(batch)
        return position

    def _entry(self, data: bytes) -> Entry:
        """V2, in the order of its words."""
        entry: Entry | None = None
        late: FormatError | None = None
        try:
            entry = decode_entry(data)
        except FormatError as error:
            if error.reason not in _LATE_REASONS:
                raise self._fault("V2", error.reason, error.message) from error
            late = error
        _, index, recorded_at, previous, offset = ENTRY_HEADER.unpack_from(data)
        if index != self._index:
            raise self._fault("V2", "BAD_INDEX", f"expected index {self._index}, got {index}")
        if previous != self._leaf:
            raise self._fault("V2", "BAD_LINK", f"expected link {self._leaf.hex()}, got {previous.hex()}")
        if recorded_at < self._time or (offset and index and recorded_at != self._time):
            expected = f"{self._time}" if offset else f"{self._time} or later"
            raise self._fault("V2", "BAD_TIME", f"expected {expected}, got {recorded_at}")
        if recorded_at >= MAX_RECORDED_AT:
            raise self._fault("V2", "BAD_TIME", f"expected less than {MAX_RECORDED_AT}, got {recorded_at}")
        if entry is None:
            raise self._fault("V3", "BAD_OFFSET", f"expected an offset of a batch, got {offset}") from late
        return entry

    def _refuse(self, batch: Batch, data: bytes, expected: int) -> NoReturn:
        """Why an entry does not go on with the open batch."""
        entry = self._entry(data)
        if entry.opening is not None:
            count = batch.opening.count
            message = f"expected offset {expected} of {count}, got another opening at index {self._index}"
            raise self._fault("V3", "OPEN_BATCH", message, batch.first)
        raise self._fault("V3", "BAD_OFFSET", f"expected offset {expected}, got {entry.offset}")

    def _take(self, batch: Batch, entry: bytes, data: bytes) -> None:
        """V3 size limit and V4 of one event; then it is part of the batch."""
        batch.size += len(data)
        if batch.size > MAX_BATCH_BYTES:
            message = f"expected events of at most {MAX_BATCH_BYTES} bytes, got {batch.size} or more"
            raise self._fault("V3", "OVER_SIZE", message, batch.first)
        try:
            event, body = self._read(data)
            if body not in batch.writes:
                self._judge(batch, event, body)
        except InputError as error:
            raise self._fault("V4", error.reason, error.message) from error
        self._leaf = leaf = sha256(LEAF_PREFIX + entry).digest()
        batch.leaves.append(leaf)
        batch.event_leaves.append(sha256(LEAF_PREFIX + data).digest())
        if self._fold is not None:
            batch.events.append(event)
        self._index += 1

    def _judge(self, batch: Batch, event: event_pb2.Event, body: str | None) -> None:
        """V4 of an event that needs a further look: entry 0, the role, key rules, in this order."""
        count = batch.opening.count
        if not self._index:
            batch.keys = batch.keys.with_key_event(0, event, count)
        if body is None:
            if not self._newer_count:
                self._newer_first = self._index
            self._newer_count += 1
            return
        batch.keys.check_writer(batch.grant, body)
        if self._index and body in KEY_EVENTS:
            batch.keys = batch.keys.with_key_event(self._index, event, count)

    def _close(self, batch: Batch) -> None:
        """V3, the author's signature; then the batch acts."""
        opening, grant = batch.opening, batch.grant
        text = batch_text(
            self._trust.origin, opening.stream, opening.sequence, opening.count, root(batch.event_leaves)
        )
        if not grant.key.verify(text, opening.signature):
            message = f"expected a signature by {grant.key} under {text!r}, got another"
            raise self._fault("V3", "BAD_BATCH_SIGNATURE", message, batch.first)
        self._grow(batch.leaves)
        self._keys = batch.keys
        self._authors[grant.name] = self._authors.get(grant.name, 0) + opening.count
        self._batches += 1
        self._batch = None
        if self._fold is not None:
            for index, leaf, event in zip(
                range(batch.first, self._index), batch.leaves, batch.events, strict=True
            ):
                self._fold.apply(index, self._time, leaf, grant, event, opening.count == 1)

    def _grow(self, leaves: list[bytes]) -> None:
        """Into the tree; on the way past the remembered size its root is kept, for V7."""
        if self._remembered is not None and self._passes_remembered(len(leaves)):
            then = self._tree.copy()
            then.extend(leaves[: self._remembered.size - self._tree.size])
            self._root_then = then.root()
        self._tree.extend(leaves)

    def _passes_remembered(self, count: int) -> bool:
        """Whether the tree reaches the remembered size with `count` more leaves."""
        size = self._tree.size
        return self._remembered is not None and size < self._remembered.size <= size + count

    def _fault(self, step: str, reason: str, message: str, index: int | None = None) -> VerificationError:
        return VerificationError(step, reason, message, index=self._index if index is None else index)


def open_export(stream: BinaryReader) -> tuple[bytes, Iterator[bytes]]:
    """`export.read_export`, with VerificationError V2 for what it finds."""
    try:
        return read_export(stream)
    except FormatError as error:
        raise VerificationError("V2", error.reason, error.message) from error


def verify_export(
    stream: BinaryReader,
    trust: TrustDocument,
    *,
    remembered: bytes | None = None,
    fold: Fold | None = None,
    fresh: Freshness | None = None,
    progress: Callable[[int], None] | None = None,
) -> Verified:
    """V2 to V7 of an export file, in one pass; `progress` is told the number of bytes of each chunk read.

    Raises VerificationError; CannotTellError NEWER_EVENT_TYPE; FormatError where `remembered` is not of this
    log; and what `fold` raises.
    """
    verifier = Verifier(trust, fold=fold, remembered=remembered, fresh=fresh)
    checkpoint, chunks = open_export(stream)
    for chunk in chunks:
        verifier.feed(chunk)
        if progress is not None:
            progress(len(chunk))
    return verifier.finish(checkpoint)
