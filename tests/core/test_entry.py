"""Entries, runs and placement."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.batch import MAX_BATCH_EVENTS, MAX_EVENT_BYTES
from ledger.entry import (
    FIRST_PREVIOUS,
    MAX_RECORDED_AT,
    Entry,
    Opening,
    decode_entry,
    encode_entry,
    encode_run,
    iter_run,
    place_batch,
)
from ledger.errors import FormatError
from ledger.merkle import leaf_hash
from ledger.note import decode_base64
from tests.core.refusal import refusal

OPENING = Opening(3, "author.test/a", b"\x01\x02\x03\x04", bytes(range(16)), 9, bytes(range(64)))
FIRST = Entry(7, 1_767_225_600_000_000, leaf_hash(b"before"), 0, OPENING, b"event")
NEXT = replace(FIRST, index=8, offset=1, opening=None)
DATA = encode_entry(FIRST)

u64 = st.integers(0, 2**64 - 1)
names = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="+"), min_size=1, max_size=128
)
hashes = st.binary(min_size=32, max_size=32)
times = st.integers(0, MAX_RECORDED_AT - 1)
events = st.binary(min_size=1, max_size=200)
openings = st.builds(
    Opening,
    st.integers(1, MAX_BATCH_EVENTS),
    names,
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=16, max_size=16),
    u64,
    st.binary(min_size=64, max_size=64),
)
entries = st.one_of(
    st.builds(Entry, u64, times, hashes, st.just(0), openings, events),
    st.builds(Entry, u64, times, hashes, st.integers(1, MAX_BATCH_EVENTS - 1), st.none(), events),
)


def test_golden_entries_decode(vectors: dict[str, str]) -> None:
    """The golden entries decode to linked, numbered events and encode to themselves."""
    previous = FIRST_PREVIOUS
    for index in range(7):
        data = bytes.fromhex(vectors[f"entry.{index}"])
        entry = decode_entry(data)
        assert (index, previous, b"event %d" % index) == (entry.index, entry.previous, entry.event)
        assert (index in (0, 1, 4, 5)) == (entry.opening is not None)
        assert data == encode_entry(entry)
        previous = leaf_hash(data)
        assert decode_base64(vectors[f"leaf.{index}"]) == previous


@given(entries)
def test_law_02_an_entry_has_one_encoding(entry: Entry) -> None:
    """An entry decodes from its bytes and encodes to them; the event stands in them as it was sent."""
    data = encode_entry(entry)
    assert entry == decode_entry(data)
    assert data.endswith(entry.event)
    assert data == encode_entry(decode_entry(data))


@given(st.binary(max_size=300), st.integers(0, len(DATA)), st.integers(0, len(DATA)))
def test_any_bytes_are_an_entry_or_a_format_error(noise: bytes, start: int, end: int) -> None:
    """Decoding raises nothing but FormatError, and what decodes encodes to itself."""
    for data in (noise, DATA[:start] + noise + DATA[end:]):
        with suppress(FormatError):
            assert data == encode_entry(decode_entry(data))


def test_an_entry_cut_short_is_refused() -> None:
    """Every prefix that ends before the event's first byte is refused, and no length is trusted."""
    for end in range(len(DATA) - len(FIRST.event) + 1):
        with pytest.raises(FormatError):
            decode_entry(DATA[:end])
    assert b"e" == decode_entry(DATA[: 1 - len(FIRST.event)]).event


def at(position: int, value: bytes) -> bytes:
    """The entry with bytes replaced."""
    return DATA[:position] + value + DATA[position + len(value) :]


HEAD = encode_entry(NEXT)[: -len(NEXT.event)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "BAD_LENGTH"),
        (DATA[:50], "BAD_LENGTH"),
        (DATA[:53], "BAD_LENGTH"),
        (DATA[: 53 + len(OPENING.name) + 92], "BAD_LENGTH"),
        (bytes(65_536), "BAD_LENGTH"),
        (at(0, b"\x00"), "BAD_VERSION"),
        (at(0, b"\x02"), "BAD_VERSION"),
        (at(9, MAX_RECORDED_AT.to_bytes(8, "big")), "BAD_TIME"),
        (at(51, b"\x00\x00"), "BAD_COUNT"),
        (at(51, b"\x10\x01"), "BAD_COUNT"),
        (at(53, b"\x00"), "BAD_NAME"),
        (at(53, b"\xff"), "BAD_LENGTH"),
        (at(54, b"+"), "BAD_NAME"),
        (at(54, b"\xe4"), "BAD_NAME"),
        (DATA[: -len(FIRST.event)], "EVENT_SIZE"),
        (DATA + bytes(MAX_EVENT_BYTES), "EVENT_SIZE"),
        (HEAD, "EVENT_SIZE"),
        (HEAD + bytes(MAX_EVENT_BYTES + 1), "EVENT_SIZE"),
        (HEAD[:49] + b"\x10\x00event", "BAD_OFFSET"),
        (HEAD[:49] + b"\xff\xffevent", "BAD_OFFSET"),
        # The first fault in the order of V2 and V3 is the one that is named.
        (HEAD[:9] + bytes([255] * 8) + HEAD[17:49] + b"\xff\xff", "EVENT_SIZE"),
        (HEAD[:9] + bytes([255] * 8) + HEAD[17:49] + b"\xff\xffevent", "BAD_TIME"),
    ],
)
def test_what_is_no_entry(data: bytes, reason: str) -> None:
    """Each field out of its bounds is refused with its reason."""
    assert reason == refusal(decode_entry, data)


def test_a_name_may_be_128_bytes() -> None:
    """The longest name fits; one byte more is refused."""
    longest = replace(FIRST, opening=replace(OPENING, name="n" * 128))
    assert longest == decode_entry(encode_entry(longest))
    assert "BAD_NAME" == refusal(encode_entry, replace(FIRST, opening=replace(OPENING, name="n" * 129)))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (replace(FIRST, opening=None), "BAD_OPENING"),
        (replace(FIRST, offset=1), "BAD_OPENING"),
        (replace(NEXT, offset=MAX_BATCH_EVENTS), "BAD_OFFSET"),
        (replace(NEXT, offset=-1), "BAD_OFFSET"),
        (replace(FIRST, index=-1), "BAD_WIDTH"),
        (replace(FIRST, index=2**64), "BAD_WIDTH"),
        (replace(FIRST, recorded_at=-1), "BAD_TIME"),
        (replace(FIRST, recorded_at=MAX_RECORDED_AT), "BAD_TIME"),
        (replace(FIRST, previous=bytes(31)), "BAD_WIDTH"),
        (replace(FIRST, event=b""), "EVENT_SIZE"),
        (replace(FIRST, event=bytes(MAX_EVENT_BYTES + 1)), "EVENT_SIZE"),
        (replace(FIRST, opening=replace(OPENING, count=0)), "BAD_COUNT"),
        (replace(FIRST, opening=replace(OPENING, count=4097)), "BAD_COUNT"),
        (replace(FIRST, opening=replace(OPENING, name="a b")), "BAD_NAME"),
        (replace(FIRST, opening=replace(OPENING, key_id=b"")), "BAD_WIDTH"),
        (replace(FIRST, opening=replace(OPENING, stream=bytes(15))), "BAD_WIDTH"),
        (replace(FIRST, opening=replace(OPENING, sequence=-1)), "BAD_WIDTH"),
        (replace(FIRST, opening=replace(OPENING, sequence=2**64)), "BAD_WIDTH"),
        (replace(FIRST, opening=replace(OPENING, signature=bytes(63))), "BAD_WIDTH"),
    ],
)
def test_what_is_not_read_is_not_written(entry: Entry, reason: str) -> None:
    """A field out of its bounds or width is refused, never cut or padded."""
    assert reason == refusal(encode_entry, entry)


# --- runs ------------------------------------------------------------------------------------------------


def test_golden_run(vectors: dict[str, str]) -> None:
    """The golden run has its length and gives back the entries; so does Tessera's bundle of three."""
    golden = [bytes.fromhex(vectors[f"entry.{index}"]) for index in range(7)]
    run = encode_run(golden)
    assert int(vectors["run.length"]) == len(run)
    assert golden == list(iter_run(run)) == list(iter_run(memoryview(run)))
    assert "00036f6e65000374776f00057468726565" == encode_run([b"one", b"two", b"three"]).hex()


def test_tessera_bundles_are_runs(sample_data: Path) -> None:
    """Tessera's entry bundles split into its entries and are written byte for byte by us."""
    bundle = (sample_data / "tessera-log/tile/entries/000.p/15").read_bytes()
    found = list(iter_run(bundle))
    assert (15, b"one", b"fivten") == (len(found), found[0], found[-1])
    assert bundle == encode_run(found)


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_a_run_cut_short_is_refused(parts: list[bytes], data: st.DataObject) -> None:
    """A run splits into what it was made of; cut anywhere but between entries it is CUT_SHORT."""
    run = encode_run(parts)
    assert parts == list(iter_run(run))
    cut = data.draw(st.integers(0, len(run)))
    whole = {len(encode_run(parts[:k])): parts[:k] for k in range(len(parts) + 1)}
    if cut in whole:
        assert whole[cut] == list(iter_run(run[:cut]))
    else:
        assert "CUT_SHORT" == refusal(list, iter_run(run[:cut]))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_run_or_a_format_error(data: bytes) -> None:
    """Splitting raises nothing but FormatError, and what splits joins to itself."""
    with suppress(FormatError):
        assert data == encode_run(iter_run(data))


def test_a_run_holds_no_entry_above_65535_bytes() -> None:
    """The longest entry that a length can say fits; one byte more is BAD_LENGTH."""
    assert [bytes(65_535)] == list(iter_run(encode_run([bytes(65_535)])))
    assert "BAD_LENGTH" == refusal(encode_run, [bytes(65_536)])


# --- placement -------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 21), times, hashes, openings, st.lists(events, min_size=1, max_size=20))
def test_law_04_a_batch_lands_whole_and_contiguous(
    first_index: int, recorded_at: int, previous: bytes, opening: Opening, batch: list[bytes]
) -> None:
    """Placement gives what encoding one by one gives: one time, indexes and offsets in a row, each linked."""
    opening = replace(opening, count=len(batch))
    placed, leaves = place_batch(first_index, recorded_at, previous, opening, batch)
    expected, link = [], previous
    for offset, event in enumerate(batch):
        head = None if offset else opening
        expected.append(encode_entry(Entry(first_index + offset, recorded_at, link, offset, head, event)))
        link = leaf_hash(expected[-1])
    assert expected == placed
    assert [leaf_hash(data) for data in placed] == leaves
    assert placed == list(iter_run(encode_run(placed)))


def test_what_cannot_be_placed() -> None:
    """Another count than the opening's, no event, an event too large, or an index past the end: refused."""
    batch = [b"a", b"b", b"c"]

    def reason(first_index: int = 0, opening: Opening = OPENING, events: list[bytes] = batch) -> str:
        with pytest.raises(FormatError) as error:
            place_batch(first_index, 0, FIRST_PREVIOUS, opening, events)
        return error.value.reason

    assert "BAD_COUNT" == reason(opening=replace(OPENING, count=2))
    assert "EMPTY_BATCH" == reason(events=[])
    assert "EVENT_SIZE" == reason(events=[b"a", b"", b"c"])
    assert "EVENT_SIZE" == reason(events=[b"a", b"b", bytes(MAX_EVENT_BYTES + 1)])
    assert "BAD_WIDTH" == reason(first_index=2**64 - 2)
    placed, _ = place_batch(2**64 - 3, 0, FIRST_PREVIOUS, OPENING, batch)
    assert 2**64 - 1 == decode_entry(placed[-1]).index
