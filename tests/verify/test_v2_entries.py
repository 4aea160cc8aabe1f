"""V2: lengths, version, count, name, event size, index, link, time. Every clause, and their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ledger.entry import ENTRY_HEADER, MAX_RECORDED_AT, Entry
from tests.forge import START, Forge, numbered, refused

OPENING_COUNT = ENTRY_HEADER.size
NAME = OPENING_COUNT + 3


def _log(offset: int, mangle: Callable[[bytes], bytes]) -> Forge:
    """Indexes 0, 1 open and grant; 2 to 4 are a batch of three, mangled at `offset`; 5 another batch."""
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(3)), mangles={offset: mangle})
    forge.add("runner", numbered(3))
    return forge


def _edited(offset: int, edit: Callable[[Entry], Entry]) -> Forge:
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(3)), edits={offset: edit})
    forge.add("runner", numbered(3))
    return forge


def test_v2_a_true_log_passes() -> None:
    """The log that every test here bends passes unbent."""
    verified = _edited(0, lambda entry: entry).verify()
    assert (6, {"root": 2, "runner": 4}, 4) == (verified.size, verified.authors, verified.batches)
    assert (START, START + 3_000_000) == (verified.first_recorded_at, verified.last_recorded_at)


@pytest.mark.parametrize("lost", [1, 40, 200])
def test_v2_lengths_a_file_that_ends_within_an_entry(lost: int) -> None:
    """A run cut within its last entry is cut short there, wherever the cut is."""
    forge = _edited(0, lambda entry: entry)
    refused(forge, "V2", "CUT_SHORT", 5, export=forge.export()[:-lost])


def test_v2_lengths_a_file_that_ends_within_a_length() -> None:
    """One byte after the last entry is half a length."""
    forge = _edited(0, lambda entry: entry)
    refused(forge, "V2", "CUT_SHORT", 6, export=forge.export() + b"\x00")


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("kept", [0, 1, ENTRY_HEADER.size - 1])
def test_v2_lengths_an_entry_shorter_than_its_header(offset: int, kept: int) -> None:
    """An entry without room for its fixed fields is refused at its place."""
    refused(_log(offset, lambda data: data[:kept]), "V2", "BAD_LENGTH", 2 + offset)


@pytest.mark.parametrize("kept", [OPENING_COUNT, NAME, NAME + 6, NAME + 6 + 91])
def test_v2_lengths_an_opening_cut_short(kept: int) -> None:
    """An opening without room for its fields is refused."""
    refused(_log(0, lambda data: data[:kept]), "V2", "BAD_LENGTH", 2)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("version", [0, 2, 255])
def test_v2_version(offset: int, version: int) -> None:
    """There is one version."""
    refused(_log(offset, lambda data: bytes([version]) + data[1:]), "V2", "BAD_VERSION", 2 + offset)


@pytest.mark.parametrize("count", [0, 4097, 65535])
def test_v2_count(count: int) -> None:
    """A batch has 1 to 4096 events."""
    forge = _log(0, lambda data: data[:OPENING_COUNT] + count.to_bytes(2, "big") + data[OPENING_COUNT + 2 :])
    refused(forge, "V2", "BAD_COUNT", 2)


@pytest.mark.parametrize("letter", [b"+", b" ", b"\x7f", b"\xc3", b"\n"])
def test_v2_name_letters(letter: bytes) -> None:
    """A name is ASCII 0x21 to 0x7E without the plus sign."""
    refused(_log(0, lambda data: data[:NAME] + letter + data[NAME + 1 :]), "V2", "BAD_NAME", 2)


@pytest.mark.parametrize("length", [0, 129])
def test_v2_name_length(length: int) -> None:
    """A name has 1 to 128 characters."""

    def mangle(data: bytes) -> bytes:
        return data[: NAME - 1] + bytes([length]) + b"n" * length + data[NAME + 6 :]

    refused(_log(0, mangle), "V2", "BAD_NAME", 2)


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 60_001])
def test_v2_event_size(offset: int, size: int) -> None:
    """An event has 1 to 60,000 bytes."""
    event = len(numbered(0).SerializeToString())
    forge = _log(offset, lambda data: data[:-event] + bytes(size))
    refused(forge, "V2", "EVENT_SIZE", 2 + offset)


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("step", [-1, 1, 2**40])
def test_v2_index(offset: int, step: int) -> None:
    """An entry says its own place."""
    forge = _edited(offset, lambda entry: replace(entry, index=entry.index + step))
    refused(forge, "V2", "BAD_INDEX", 2 + offset)


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_v2_link(offset: int) -> None:
    """An entry links to the leaf hash of the entry before."""
    forge = _edited(offset, lambda entry: replace(entry, previous=bytes(32)))
    refused(forge, "V2", "BAD_LINK", 2 + offset)


def test_v2_link_of_entry_0() -> None:
    """Entry 0 links to zeros."""
    forge = Forge()
    forge.add("root", numbered(0), edits={0: lambda entry: replace(entry, previous=b"\x01" * 32)})
    refused(forge, "V2", "BAD_LINK", 0)


def test_v2_time_never_smaller() -> None:
    """A clock that went back one microsecond is refused, at an opening as within a batch."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), recorded_at=START + 5_000_000)
    forge.add("runner", numbered(1), recorded_at=START + 4_999_999)
    refused(forge, "V2", "BAD_TIME", 3)


def test_v2_time_may_stand_still_between_batches() -> None:
    """Two batches may have one recorded_at."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), recorded_at=START + 5_000_000)
    forge.add("runner", numbered(1), recorded_at=START + 5_000_000)
    assert START + 5_000_000 == forge.verify().last_recorded_at


@pytest.mark.parametrize("step", [-1, 1])
def test_v2_time_equal_within_a_batch(step: int) -> None:
    """A batch has one recorded_at; a later one within it is refused as an earlier one is."""
    forge = _edited(1, lambda entry: replace(entry, recorded_at=entry.recorded_at + step))
    refused(forge, "V2", "BAD_TIME", 3)


@pytest.mark.parametrize("time", [MAX_RECORDED_AT, 2**64 - 1])
@pytest.mark.parametrize("offset", [0, 1])
def test_v2_time_before_the_year_10000(offset: int, time: int) -> None:
    """recorded_at ends before the year 10000."""
    refused(
        _log(offset, lambda data: data[:9] + time.to_bytes(8, "big") + data[17:]),
        "V2",
        "BAD_TIME",
        2 + offset,
    )


# --- precedence within V2 ----------------------------------------------------------------------------------

_FAULTS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("BAD_VERSION", lambda data: b"\x09" + data[1:]),
    ("BAD_COUNT", lambda data: data[:OPENING_COUNT] + b"\xff\xff" + data[OPENING_COUNT + 2 :]),
    ("BAD_NAME", lambda data: data[:NAME] + b"+" + data[NAME + 1 :]),
    ("EVENT_SIZE", lambda data: data + bytes(60_000)),
    ("BAD_INDEX", lambda data: data[:8] + b"\x63" + data[9:]),
    ("BAD_LINK", lambda data: data[:17] + bytes(32) + data[49:]),
    ("BAD_TIME", lambda data: data[:9] + b"\xff" * 8 + data[17:]),
]


@pytest.mark.parametrize("first", range(len(_FAULTS) - 1))
def test_v2_of_all_faults_of_an_opening_the_first_by_order_is_reported(first: int) -> None:
    """With several faults in one entry the finding is the one that stands first in V2, whichever follow."""

    def mangle(data: bytes) -> bytes:
        for _, fault in _FAULTS[first:]:
            data = fault(data)
        return data

    refused(_log(0, mangle), "V2", _FAULTS[first][0], 2)


@pytest.mark.parametrize("reason", ["BAD_INDEX", "BAD_LINK", "BAD_TIME"])
def test_v2_comes_before_v3(reason: str) -> None:
    """A wrong offset beside a fault of V2 is refused by V2, also where no batch can have the offset."""
    fault = dict(_FAULTS)[reason]
    refused(_log(1, lambda data: fault(data[:49] + b"\xff\xff" + data[51:])), "V2", reason, 3)


def test_v2_comes_before_v4() -> None:
    """An opening with a wrong index by an unknown key is refused by V2."""
    forge = Forge.opened()
    forge.add("stranger", numbered(0), edits={0: lambda entry: replace(entry, index=9)})
    refused(forge, "V2", "BAD_INDEX", 1)
