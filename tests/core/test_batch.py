"""Batch notes: what an author signs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.batch import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    MAX_EVENT_BYTES,
    BatchNote,
    batch_text,
    check_batch_shape,
    event_root,
    parse_batch_note,
    sign_batch,
)
from ledger.errors import FormatError
from ledger.merkle import leaf_hash, path, verify_inclusion
from ledger.note import SigningKey, parse_note, sign_note
from tests.core.refusal import refusal
from tests.vectors.regenerate import signing_key, unescape

KEY = SigningKey("author.test/a", bytes(range(32)))
ORIGIN = "ledger.test/x-0011223344556677"
STREAM = bytes(range(0xA0, 0xB0))
EVENTS = [b"one", b"two", b"three"]
NOTE = sign_batch(KEY, ORIGIN, STREAM, 9, EVENTS)
BATCH = parse_batch_note(NOTE)
TEXT = BATCH.text()

names = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="+"), min_size=1, max_size=128
)


def test_golden_batches_parse(vectors: dict[str, str]) -> None:
    """The golden notes parse to fields that give back text and note, and their authors' keys verify them."""
    for number, (author, start, end) in enumerate(
        [("root", 0, 1), ("runner", 1, 4), ("gate", 4, 5), ("runner", 5, 7)]
    ):
        text, line = unescape(vectors[f"batch.{number}.text"]), unescape(vectors[f"batch.{number}.sigline"])
        batch = parse_batch_note(text + b"\n" + line)
        assert (text, text + b"\n" + line) == (batch.text(), batch.encode())
        assert (vectors["origin"], end - start) == (batch.origin, batch.count)
        assert event_root([b"event %d" % n for n in range(start, end)]) == batch.root
        key = signing_key(vectors, author).verifier_key
        assert (key.name, key.key_id) == (batch.name, batch.key_id)
        assert key.verify(batch.text(), batch.signature)


def test_law_02_the_note_rebuilt_from_fields_is_the_note_signed() -> None:
    """The fields that an entry keeps give back, with origin and root, the bytes that the author signed."""
    assert NOTE == replace(BATCH).encode()
    rebuilt = batch_text(ORIGIN, BATCH.stream, BATCH.sequence, BATCH.count, event_root(EVENTS))
    assert parse_note(NOTE).text == rebuilt
    assert KEY.verifier_key.verify(rebuilt, BATCH.signature)
    assert BatchNote(
        ORIGIN, STREAM, 9, 3, event_root(EVENTS), "author.test/a", KEY.verifier_key.key_id, KEY.sign(rebuilt)
    ) == parse_batch_note(NOTE)


def test_law_04_a_signature_covers_the_whole_batch() -> None:
    """No event of a batch can change, move, go or come under its signature."""
    for events in ([b"two", b"one", b"three"], EVENTS[:2], [*EVENTS, b"four"], [b"onE", b"two", b"three"]):
        assert event_root(events) != BATCH.root


def test_each_event_is_provable_alone() -> None:
    """log2(count) hashes prove one event under the signed root."""
    leaves = [leaf_hash(event) for event in EVENTS]
    for index, leaf in enumerate(leaves):
        assert verify_inclusion(leaf, index, BATCH.count, path(leaves, index), BATCH.root)


@given(
    names,
    names,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.lists(st.binary(min_size=1), min_size=1),
)
def test_batch_notes_round_trip(
    name: str, origin: str, stream: bytes, sequence: int, events: list[bytes]
) -> None:
    """A signed batch parses to its fields, encodes to itself, and verifies."""
    key = SigningKey(name, bytes(32))
    note = sign_batch(key, origin, stream, sequence, events)
    batch = parse_batch_note(note)
    assert (origin, stream, sequence, len(events), name) == (
        batch.origin,
        batch.stream,
        batch.sequence,
        batch.count,
        batch.name,
    )
    assert note == batch.encode()
    assert key.verifier_key.verify(batch.text(), batch.signature)


@given(st.binary(max_size=100), st.integers(0, len(NOTE)), st.integers(0, len(NOTE)))
def test_any_bytes_are_a_batch_note_or_a_format_error(noise: bytes, start: int, end: int) -> None:
    """Parsing raises nothing but FormatError, and what parses re-encodes to itself."""
    for data in (noise, NOTE[:start] + noise + NOTE[end:]):
        with suppress(FormatError):
            assert data == parse_batch_note(data).encode()


@given(st.text(max_size=20), st.integers(1, 5))
def test_any_field_is_itself_or_a_format_error(value: str, at: int) -> None:
    """A line of the text replaced by any other: one spelling, or refused."""
    lines = TEXT.decode().split("\n")
    data = "\n".join([*lines[:at], value, *lines[at + 1 :]]).encode() + NOTE[len(TEXT) :]
    with suppress(FormatError):
        assert data == parse_batch_note(data).encode()


STREAM_HEX = STREAM.hex().encode()


@pytest.mark.parametrize(
    ("was", "now", "reason"),
    [
        (b"assay/batch/v1", b"assay/batch/v2", "BAD_BATCH_NOTE"),
        (b"assay/batch/v1\n", b"", "BAD_BATCH_NOTE"),
        (b"\n9\n3\n", b"\n9\n3\n\n", "BAD_BATCH_NOTE"),
        (ORIGIN.encode(), b"a b", "BAD_NAME"),
        (ORIGIN.encode(), b"a+b", "BAD_NAME"),
        (ORIGIN.encode(), b"x" * 129, "BAD_NAME"),
        (b"author.test/a", b"x" * 129, "BAD_NAME"),
        (b"author.test/a", "schlüssel".encode(), "BAD_NAME"),
        (STREAM_HEX, STREAM_HEX.upper(), "BAD_BATCH_NOTE"),
        (STREAM_HEX, STREAM_HEX[2:], "BAD_BATCH_NOTE"),
        (STREAM_HEX, STREAM_HEX[1:], "BAD_BATCH_NOTE"),
        (STREAM_HEX, STREAM_HEX[:2] + b" " + STREAM_HEX[2:], "BAD_BATCH_NOTE"),
        (b"\n9\n", b"\n09\n", "BAD_BATCH_NOTE"),
        (b"\n9\n", b"\n+9\n", "BAD_BATCH_NOTE"),
        (b"\n9\n", b"\n 9\n", "BAD_BATCH_NOTE"),
        (b"\n9\n", b"\n9_0\n", "BAD_BATCH_NOTE"),
        (b"\n9\n", "\n٩\n".encode(), "BAD_BATCH_NOTE"),
        (b"\n9\n", b"\n0x9\n", "BAD_BATCH_NOTE"),
        (b"\n9\n", b"\n" + b"9" * 5000 + b"\n", "BAD_BATCH_NOTE"),
        (b"\n9\n", b"\n-1\n", "BAD_SEQUENCE"),
        (b"\n9\n", b"\n18446744073709551616\n", "BAD_SEQUENCE"),
        (b"\n3\n", b"\n0\n", "EMPTY_BATCH"),
        (b"\n3\n", b"\n-1\n", "EMPTY_BATCH"),
        (b"\n3\n", b"\n4097\n", "TOO_MANY_EVENTS"),
        (b"\n3\n", b"\n03\n", "BAD_BATCH_NOTE"),
        (b"=\n\n", b"\n\n", "BAD_BASE64"),
        (TEXT[-45:], b"AAAA\n", "BAD_BATCH_NOTE"),
    ],
)
def test_a_batch_note_has_one_spelling(was: bytes, now: bytes, reason: str) -> None:
    """Every other spelling of a field, and every field out of its bounds, is refused with its reason."""
    assert 1 == NOTE.count(was)
    assert reason == refusal(parse_batch_note, NOTE.replace(was, now))


def test_one_author_signs_a_batch() -> None:
    """Two signature lines, or a payload that is no 64-byte signature, make no batch note."""
    two = sign_note(TEXT, KEY, SigningKey("other", bytes(32)))
    line = NOTE.removeprefix(TEXT + b"\n")
    short = TEXT + b"\n" + line[:-5] + b"\n"
    for data in (two, short):
        assert "BAD_BATCH_NOTE" == refusal(parse_batch_note, data)


@pytest.mark.parametrize(
    ("events", "reason", "got"),
    [
        ([], "EMPTY_BATCH", "got 0x0"),
        ([b"x"] * (MAX_BATCH_EVENTS + 1), "TOO_MANY_EVENTS", "got 0x1001"),
        ([b"x", b""], "EVENT_SIZE", "got 0 in event 1"),
        ([bytes(MAX_EVENT_BYTES + 1)], "EVENT_SIZE", "got 60001 in event 0"),
        ([bytes(MAX_EVENT_BYTES)] * 52 + [bytes(25_729)], "OVER_SIZE", "got 3145729"),
    ],
)
def test_the_shape_of_a_batch(events: list[bytes], reason: str, got: str) -> None:
    """Each limit is refused one beyond it, by the check and by the signer, saying what it got."""
    for refuse in (check_batch_shape, lambda events: sign_batch(KEY, ORIGIN, STREAM, 0, events)):
        with pytest.raises(FormatError) as error:
            refuse(events)
        assert (reason, True) == (error.value.reason, got in error.value.message)


def test_the_limits_themselves_fit() -> None:
    """4096 events, an event of 60,000 bytes, 3 MiB in all: accepted."""
    check_batch_shape([b"x"] * MAX_BATCH_EVENTS)
    largest = [bytes(MAX_EVENT_BYTES)] * 52 + [bytes(25_728)]
    assert MAX_BATCH_BYTES == sum(map(len, largest))
    check_batch_shape(largest)
    assert MAX_BATCH_EVENTS == parse_batch_note(sign_batch(KEY, ORIGIN, STREAM, 0, [b"x"] * 4096)).count


@pytest.mark.parametrize(
    ("origin", "stream", "sequence"),
    [("a b", STREAM, 0), ("a", b"", 0), ("a", STREAM, -1), ("a", STREAM, 2**64)],
)
def test_only_what_parses_is_signed(origin: str, stream: bytes, sequence: int) -> None:
    """An author cannot sign fields that the ledger would refuse."""
    with pytest.raises(FormatError):
        sign_batch(KEY, origin, stream, sequence, EVENTS)
