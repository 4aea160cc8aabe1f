"""Partial bundles: some entries of a log with the proof that they stand in it (design section 4).

    assay/bundle/v1\\n ‖ u32 length ‖ checkpoint ‖ u16 number of citations (1 or more) ‖ citations

    citation   claim of the cited entry ‖ u8 1 ‖ claim of its author's KeyGranted, or u8 0 where root wrote it
    claim      placed entry ‖ placed opening at index - offset, or u16 0 at offset 0 ‖ 32B batch root ‖ path
    placed     u16 length ‖ entry ‖ path of the entry in the tree of the checkpoint's size
    path       u8 number ‖ that many hashes of 32 bytes, leaf to root

Rules kept here:

- A bundle has one spelling: what decodes re-encodes to its own bytes, and nothing follows the last citation.
- The checkpoint is signed by the ledger key of the last LedgerKeyRotated that is cited, or else of the trust
  document: a rotation elsewhere in the log cannot be seen from here.
- Presence is proven, completeness is not: that the author's key was revoked before, or that a key rule was
  broken elsewhere, cannot be excluded. So the answer is never "verified".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from ledger.batch import batch_text, event_root
from ledger.checkpoint import Checkpoint, open_note
from ledger.entry import MAX_ENTRY_BYTES, Entry, Opening, decode_entry
from ledger.errors import CannotTellError, FormatError, InputError, VerificationError
from ledger.export import MAX_CHECKPOINT_BYTES
from ledger.fold import read_event
from ledger.head import check_signatures
from ledger.merkle import HASH_BYTES, leaf_hash, path, verify_inclusion
from ledger.note import VerifierKey
from ledger.trust import Authority, Grant, TrustDocument
from ledger.v1 import event_pb2

__all__ = [
    "BUNDLE_LINE",
    "Bundle",
    "Citation",
    "Claim",
    "Placed",
    "Present",
    "decode_bundle",
    "encode_bundle",
    "make_claim",
    "prove_presence",
    "shown_ledger_key",
    "verify_bundle",
]

BUNDLE_LINE: Final = b"assay/bundle/v1\n"

# A tree of 2^64 leaves has no longer path.
_MAX_PATH: Final = 64
_MAX_CITATIONS: Final = 65_535


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry as stored, and its inclusion proof: 32 bytes each, leaf to root."""

    entry: bytes
    inclusion: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """An entry with all that shows who signed it: its batch's opening (None at offset 0), root, and path."""

    placed: Placed
    opening: Placed | None
    batch_root: bytes
    author_path: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Citation:
    """A cited entry and its author's KeyGranted; None where root wrote it."""

    claim: Claim
    grant: Claim | None


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as parsed; nothing is verified."""

    checkpoint: bytes
    citations: tuple[Citation, ...]


@dataclass(frozen=True, slots=True)
class Present:
    """An entry that stands in the log, signed by its author; `body` None for a type unknown here."""

    index: int
    recorded_at: int
    leaf: bytes
    grant: Grant
    event: event_pb2.Event
    body: str | None


# --- writing -----------------------------------------------------------------------------------------------


def make_claim(
    index: int, entry_at: Callable[[int], bytes], inclusion_of: Callable[[int], Sequence[bytes]]
) -> Claim:
    """The claim for the entry at `index`; the callables give an entry and its inclusion proof by index.

    Raises FormatError: BAD_BUNDLE where no batch opens at index - offset, and what `decode_entry` raises.
    """
    data = entry_at(index)
    offset = decode_entry(data).offset
    first = entry_at(index - offset)
    opening = decode_entry(first).opening
    if opening is None:
        raise FormatError("BAD_BUNDLE", f"expected an opening at index {index - offset}, got none")
    events = [decode_entry(entry_at(index - offset + k)).event for k in range(opening.count)]
    return Claim(
        Placed(data, tuple(inclusion_of(index))),
        Placed(first, tuple(inclusion_of(index - offset))) if offset else None,
        event_root(events),
        tuple(path([leaf_hash(event) for event in events], offset)),
    )


def encode_bundle(bundle: Bundle) -> bytes:
    """The bundle's bytes. FormatError BAD_BUNDLE for what has no encoding."""
    _require(len(bundle.checkpoint) <= MAX_CHECKPOINT_BYTES, "a checkpoint of at most 64 KiB")
    _require(1 <= len(bundle.citations) <= _MAX_CITATIONS, f"1 to {_MAX_CITATIONS} citations")
    parts = [BUNDLE_LINE, len(bundle.checkpoint).to_bytes(4, "big"), bundle.checkpoint]
    parts.append(len(bundle.citations).to_bytes(2, "big"))
    for citation in bundle.citations:
        parts += _encode_claim(citation.claim)
        parts += [b"\x00"] if citation.grant is None else [b"\x01", *_encode_claim(citation.grant)]
    return b"".join(parts)


def _encode_claim(claim: Claim) -> list[bytes]:
    _require(len(claim.batch_root) == HASH_BYTES, "a batch root of 32 bytes")
    opening = [b"\x00\x00"] if claim.opening is None else _encode_placed(claim.opening)
    return [*_encode_placed(claim.placed), *opening, claim.batch_root, *_encode_path(claim.author_path)]


def _encode_placed(placed: Placed) -> list[bytes]:
    _require(1 <= len(placed.entry) <= MAX_ENTRY_BYTES, f"an entry of 1 to {MAX_ENTRY_BYTES} bytes")
    return [len(placed.entry).to_bytes(2, "big"), placed.entry, *_encode_path(placed.inclusion)]


def _encode_path(hashes: Sequence[bytes]) -> list[bytes]:
    fits = len(hashes) <= _MAX_PATH and all(len(value) == HASH_BYTES for value in hashes)
    _require(fits, f"a path of up to {_MAX_PATH} hashes of 32 bytes")
    return [bytes([len(hashes)]), *hashes]


def _require(holds: bool, expected: str) -> None:
    if not holds:
        raise FormatError("BAD_BUNDLE", f"expected {expected}, got another")


# --- reading -----------------------------------------------------------------------------------------------


class _Cursor:
    """Takes a bundle's bytes from front to back; every length is checked before it is used."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise FormatError("CUT_SHORT", f"expected {end} bytes or more, got {len(self._data)}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def path(self) -> tuple[bytes, ...]:
        count = self.number(1)
        _require(count <= _MAX_PATH, f"a path of up to {_MAX_PATH} hashes")
        return tuple(self.take(HASH_BYTES) for _ in range(count))

    def placed(self) -> Placed | None:
        length = self.number(2)
        return Placed(self.take(length), self.path()) if length else None

    def claim(self) -> Claim:
        placed = self.placed()
        if placed is None:
            raise FormatError("BAD_BUNDLE", "expected an entry, got none")
        return Claim(placed, self.placed(), self.take(HASH_BYTES), self.path())

    def end(self) -> None:
        _require(self._position == len(self._data), "the end after the last citation")


def decode_bundle(data: bytes) -> Bundle:
    """The bundle in `data`; nothing is verified. FormatError BAD_BUNDLE, CUT_SHORT."""
    cursor = _Cursor(data)
    _require(cursor.take(len(BUNDLE_LINE)) == BUNDLE_LINE, f"the first line {BUNDLE_LINE!r}")
    length = cursor.number(4)
    _require(length <= MAX_CHECKPOINT_BYTES, "a checkpoint of at most 64 KiB")
    checkpoint = cursor.take(length)
    count = cursor.number(2)
    _require(count >= 1, "1 citation or more")
    citations = []
    for _ in range(count):
        claim = cursor.claim()
        granted = cursor.number(1)
        _require(granted <= 1, "0 or 1 before a grant")
        citations.append(Citation(claim, cursor.claim() if granted else None))
    cursor.end()
    return Bundle(checkpoint, tuple(citations))


# --- verifying ---------------------------------------------------------------------------------------------


def verify_bundle(data: bytes, trust: TrustDocument) -> NoReturn:
    """Always raises: CannotTellError COMPLETENESS_NOT_PROVEN once all that a bundle can show holds.

    Raises what `prove_presence` raises where it does not.
    """
    present = prove_presence(data, trust)
    indexes = ", ".join(str(entry.index) for entry in present)
    raise CannotTellError(
        "COMPLETENESS_NOT_PROVEN",
        f"COMPLETENESS NOT PROVEN: {len(present)} entries stand in the log, signed by their authors (index "
        f"{indexes}); that a key was revoked before cannot be excluded; verify an export of the whole log",
    )


def prove_presence(data: bytes, trust: TrustDocument) -> tuple[Present, ...]:
    """The cited entries, in the bundle's order: placed under the checkpoint, signed, within their role.

    Raises VerificationError V2 to V6 as in `ledger.verify`, V5 NOT_INCLUDED for a proof that does not hold.
    """
    try:
        bundle = decode_bundle(data)
    except FormatError as error:
        raise VerificationError("V2", error.reason, error.message) from error
    note, checkpoint = open_note(bundle.checkpoint, trust.origin)
    present = tuple(_prove(citation, checkpoint, trust) for citation in bundle.citations)
    check_signatures(note, shown_ledger_key(present, trust), trust)
    return present


def shown_ledger_key(present: Sequence[Present], trust: TrustDocument) -> VerifierKey:
    """The ledger key after the last rotation among entries that are present; the trusted one without any.

    Raises VerificationError V4: a key that cannot be this ledger's.
    """
    rotations = [entry for entry in present if entry.body == "ledger_key_rotated"]
    if not rotations:
        return trust.log
    last = max(rotations, key=lambda entry: entry.index)
    try:
        return Authority.initial(trust).with_key_event(last.index, last.event, 1).ledger_key
    except InputError as error:
        raise VerificationError("V4", error.reason, error.message, index=last.index) from error


def _prove(citation: Citation, checkpoint: Checkpoint, trust: TrustDocument) -> Present:
    authority = Authority.initial(trust)
    entry, opening = _check_places(citation.claim, checkpoint)
    index = entry.index
    try:
        if citation.grant is not None:
            authority = _with_grant(authority, citation.grant, checkpoint, index - entry.offset)
        grant = authority.find(opening.name, opening.key_id)
        event, body = read_event(entry.event)
        if body is not None:
            authority.check_writer(grant, body)
    except InputError as error:
        raise VerificationError("V4", error.reason, error.message, index=index) from error
    if citation.grant is not None and grant.granted_at < 0:
        raise VerificationError("V4", "BAD_BUNDLE", "expected no grant for root, got one", index=index)
    _check_author(citation.claim, entry, opening, grant, trust.origin)
    return Present(index, entry.recorded_at, leaf_hash(citation.claim.placed.entry), grant, event, body)


def _with_grant(authority: Authority, claim: Claim, checkpoint: Checkpoint, before: int) -> Authority:
    """The authority after a KeyGranted by root whose batch ended before index `before`."""
    entry, opening = _check_places(claim, checkpoint)
    first = entry.index - entry.offset
    root_grant = authority.find(opening.name, opening.key_id)
    event, body = read_event(entry.event)
    if body != "key_granted" or first + opening.count > before:
        message = f"expected a KeyGranted that acts before index {before}, got {body} at {entry.index}"
        raise VerificationError("V4", "KEY_UNKNOWN", message, index=before)
    _check_author(claim, entry, opening, root_grant, authority.trust.origin)
    return authority.with_key_event(entry.index, event, opening.count)


def _check_places(claim: Claim, checkpoint: Checkpoint) -> tuple[Entry, Opening]:
    """V2, V3 and V5 of the entry and its opening: both stand where they say, in one batch."""
    entry = _check_placed(claim.placed, checkpoint)
    first = entry if claim.opening is None else _check_placed(claim.opening, checkpoint)
    opening = first.opening
    belongs = (
        opening is not None
        and (claim.opening is None) == (entry.offset == 0)
        and first.index + entry.offset == entry.index
        and first.recorded_at == entry.recorded_at
        and entry.offset < opening.count
    )
    if opening is None or not belongs:
        message = f"expected the opening of offset {entry.offset}, got index {first.index}"
        raise VerificationError("V3", "NO_OPENING", message, index=entry.index)
    if first.index + opening.count > checkpoint.size:
        message = f"expected {opening.count} entries from {first.index} on, got a log of {checkpoint.size}"
        raise VerificationError("V3", "OPEN_BATCH", message, index=first.index)
    return entry, opening


def _check_placed(placed: Placed, checkpoint: Checkpoint) -> Entry:
    try:
        entry = decode_entry(placed.entry)
    except FormatError as error:
        raise VerificationError("V2", error.reason, error.message) from error
    leaf = leaf_hash(placed.entry)
    if not verify_inclusion(leaf, entry.index, checkpoint.size, placed.inclusion, checkpoint.root):
        message = f"expected a proof of inclusion in size {checkpoint.size}, got another"
        raise VerificationError("V5", "NOT_INCLUDED", message, index=entry.index)
    return entry


def _check_author(claim: Claim, entry: Entry, opening: Opening, grant: Grant, origin: str) -> None:
    """V3: the author signed a batch of this count with this event at this offset."""
    leaf = leaf_hash(entry.event)
    if not verify_inclusion(leaf, entry.offset, opening.count, claim.author_path, claim.batch_root):
        message = f"expected a path of event {entry.offset} of {opening.count}, got another"
        raise VerificationError("V3", "NOT_IN_BATCH", message, index=entry.index)
    text = batch_text(origin, opening.stream, opening.sequence, opening.count, claim.batch_root)
    if not grant.key.verify(text, opening.signature):
        message = f"expected a signature by {grant.key} under {text!r}, got another"
        raise VerificationError("V3", "BAD_BATCH_SIGNATURE", message, index=entry.index - entry.offset)
