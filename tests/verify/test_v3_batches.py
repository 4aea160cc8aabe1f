"""V3: openings, offsets, the open batch, sequences, the size limit, the author's signature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.batch import MAX_BATCH_BYTES
from ledger.entry import Entry, Opening, decode_entry
from ledger.v1 import event_pb2
from tests.events import minimal_event
from tests.forge import ROLES, ROOT, Forge, granted, make_key, numbered, refused

OTHER_STREAM = b"\x01" * 16


def _opening(forge: Forge, index: int) -> Opening:
    opening = decode_entry(forge.entries[index]).opening
    assert opening is not None
    return opening


def test_v3_an_opening_where_no_batch_is_open() -> None:
    """An entry at offset 1 with no batch open lacks its opening; it is named itself."""
    forge = Forge.opened("runner")
    last = decode_entry(forge.entries[-1])
    stray = numbered(0).SerializeToString()
    forge.add(
        "runner",
        stray,
        recorded_at=last.recorded_at,
        edits={0: lambda entry: replace(entry, offset=1, opening=None)},
    )
    refused(forge, "V3", "NO_OPENING", 2)


def test_v3_an_opening_at_entry_0() -> None:
    """The first entry of a log opens a batch; there is no entry before whose time it could have."""
    forge = Forge()
    forge.add(ROOT, numbered(0), edits={0: lambda entry: replace(entry, offset=1, opening=None)})
    refused(forge, "V3", "NO_OPENING", 0)


def test_v3_no_opening_while_a_batch_is_open() -> None:
    """A batch that opens within another names the first index of the one left open."""
    forge = Forge.opened("runner")
    opening = _opening(forge, 1)
    forge.add("runner", *map(numbered, range(3)), edits={2: lambda e: replace(e, offset=0, opening=opening)})
    refused(forge, "V3", "OPEN_BATCH", 2)


@pytest.mark.parametrize("got", [1, 3, 4095])
def test_v3_offset_as_expected(got: int) -> None:
    """Offset 2 follows offset 1: neither a repeated nor a skipped one does."""
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(4)), edits={2: lambda entry: replace(entry, offset=got)})
    refused(forge, "V3", "BAD_OFFSET", 4)


def test_v3_offset_that_no_batch_can_have() -> None:
    """An offset of 4096 or more is refused as any other unexpected one."""
    forge = Forge.opened("runner")
    forge.add(
        "runner", *map(numbered, range(2)), mangles={1: lambda data: data[:49] + b"\x10\x00" + data[51:]}
    )
    refused(forge, "V3", "BAD_OFFSET", 3)


def test_v3_no_batch_open_at_the_end() -> None:
    """A log that ends within a batch names the batch's first index, even under a checkpoint of that size."""
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(4)))
    refused(forge, "V3", "OPEN_BATCH", 2, export=forge.export(size=4))


@pytest.mark.parametrize(("sequence", "reason"), [(1, "SEQUENCE_GAP"), (2**64 - 1, "SEQUENCE_GAP")])
def test_v3_sequence_begins_at_0(sequence: int, reason: str) -> None:
    """A stream's first batch has sequence 0."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), sequence=sequence)
    refused(forge, "V3", reason, 2)


@pytest.mark.parametrize(
    ("sequence", "reason"), [(3, "SEQUENCE_GAP"), (1, "SEQUENCE_REPEATED"), (0, "SEQUENCE_REPEATED")]
)
def test_v3_sequence_has_no_gap_and_no_repetition(sequence: int, reason: str) -> None:
    """A withheld batch shows once a later one of its stream is placed; so does a batch placed again."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0))
    forge.add("runner", numbered(1), numbered(2))
    forge.add("runner", numbered(3), sequence=sequence)
    refused(forge, "V3", reason, 5)


def test_v3_each_stream_and_each_key_counts_alone() -> None:
    """Sequences run within a public key and a stream: in another stream or by another key they begin at 0."""
    second = make_key("runner", "second")
    forge = Forge.opened("runner")
    forge.add(ROOT, granted(second, ROLES["runner"]))
    forge.add("runner", numbered(0))
    forge.add("runner", numbered(1), stream=OTHER_STREAM)
    forge.add(second, numbered(2))
    forge.add("runner", numbered(3))
    assert {"root": 3, "runner": 4} == forge.verify().authors


def _filling(size: int) -> list[event_pb2.Event]:
    """Events of 60,000 bytes and one smaller, `size` in all."""
    whole, rest = divmod(size, 60_000)
    sizes = [60_000] * whole + ([rest] if rest else [])
    empty = len(minimal_event("span_recorded", otlp_span=b"x" * 1000).SerializeToString()) - 1000
    return [
        minimal_event("span_recorded", otlp_span=b"x" * (length - empty - (length > 16_500) * 2))
        for length in sizes
    ]


def test_v3_size_limit() -> None:
    """Events of 3 MiB in all are a batch; one byte more names the batch's first index."""
    for excess in (0, 1):
        events = [event.SerializeToString() for event in _filling(MAX_BATCH_BYTES + excess)]
        assert MAX_BATCH_BYTES + excess == sum(map(len, events))
        forge = Forge.opened("runner")
        forge.add("runner", *events)
        if excess:
            refused(forge, "V3", "OVER_SIZE", 2)
        else:
            assert 2 + len(events) == forge.verify().size


def test_v3_signature_by_another_key() -> None:
    """A batch under a granted key's name, signed by another key, names the batch's first index."""
    forge = Forge.opened("runner", "trainer")
    forge.add("runner", *map(numbered, range(3)), signer=make_key("trainer"))
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 3)


def test_v3_signature_over_another_origin() -> None:
    """A batch signed for another log is nothing in this one."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), numbered(1), origin="ledger.test/assay-fedcba9876543210")
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 2)


def _with(entry: Entry, **changes: object) -> Entry:
    assert entry.opening is not None
    return replace(entry, opening=replace(entry.opening, **changes))  # type: ignore[arg-type]  # a field of it


def test_v3_signature_over_another_stream() -> None:
    """A batch moved into another stream loses its signature."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), edits={0: lambda entry: _with(entry, stream=OTHER_STREAM)})
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 2)


def test_v3_signature_over_another_count() -> None:
    """A batch that is cut, count and all, loses its signature."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), numbered(1), edits={0: lambda entry: _with(entry, count=1)})
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 2, export=forge.export(size=3))


@pytest.mark.parametrize("at", [0, 31, 32, 63])
def test_v3_signature_every_half_counts(at: int) -> None:
    """One bit of R or of S makes another signature."""

    def flip(entry: Entry) -> Entry:
        assert entry.opening is not None
        flipped = bytearray(entry.opening.signature)
        flipped[at] ^= 1
        return _with(entry, signature=bytes(flipped))

    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), numbered(1), edits={0: flip})
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 2)


def test_v3_signature_that_libraries_disagree_about() -> None:
    """S + L is refused, so that no author can split auditors."""
    order = 2**252 + 27742317777372353535851937790883648493

    def malleate(entry: Entry) -> Entry:
        assert entry.opening is not None
        signature = entry.opening.signature
        s = int.from_bytes(signature[32:], "little") + order
        return _with(entry, signature=signature[:32] + s.to_bytes(32, "little"))

    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), edits={0: malleate})
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 2)


def test_v3_event_changed_within_a_batch() -> None:
    """A ledger that changes an event, links and all, is left with a signature that does not hold."""
    forge = Forge.opened("runner")
    other = numbered(9).SerializeToString()
    forge.add("runner", *map(numbered, range(3)), edits={1: lambda entry: replace(entry, event=other)})
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 2)


def test_v3_at_an_opening_v4_comes_before_the_sequence() -> None:
    """A wrong sequence under an unknown key is refused for the key; under a wrong role, for the role."""
    forge = Forge.opened("runner")
    forge.add("stranger", numbered(0), sequence=7)
    refused(forge, "V4", "KEY_UNKNOWN", 2)
    forge = Forge.opened("runner")
    forge.add("runner", minimal_event("training_started"), sequence=7)
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 2)


def test_v3_the_sequence_comes_before_the_signature() -> None:
    """A wrong sequence is met at the opening, a wrong signature at the last entry."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), sequence=7, signer=ROOT)
    refused(forge, "V3", "SEQUENCE_GAP", 2)


def test_v3_the_signature_comes_after_v4_of_every_entry() -> None:
    """A wrong role in the last entry of a batch with a wrong signature is met first."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), minimal_event("verdict_issued"), signer=ROOT)
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", 3)


def test_v3_the_size_limit_comes_before_v4() -> None:
    """The event that makes a batch too large is refused for that, whatever it says."""
    events: list[event_pb2.Event] = _filling(MAX_BATCH_BYTES)
    forge = Forge.opened("runner")
    forge.add("runner", *events, minimal_event("verdict_issued"))
    refused(forge, "V3", "OVER_SIZE", 2)


def test_v3_the_first_fault_met_is_reported() -> None:
    """Of a bad signature at index 2 and an unknown key after it the signature is reported."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), signer=ROOT)
    forge.add("stranger", numbered(1))
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", 2)
