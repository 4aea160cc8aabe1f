"""Event ids."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.ids import span_id, trace_id, uuid7, uuid8
from ledger.errors import FormatError

SOURCE = sha256(b"a source").digest()


def test_uuid7_is_the_example_of_rfc_9562() -> None:
    """RFC 9562 appendix A.6: its time, rand_a 0xCC3 and rand_b 0x18C4DC0C0C07398F give its UUID."""
    random = (0xCC3).to_bytes(2, "big") + (0x18C4DC0C0C07398F).to_bytes(8, "big")
    expected = UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F").bytes
    assert expected == uuid7(0x17F22E279B0 * 1000, random)


@given(st.integers(0, 2**48 * 1000 - 1), st.binary(min_size=10, max_size=10))
def test_uuid7_holds_version_variant_and_milliseconds(now: int, random: bytes) -> None:
    """Whatever the time and the random bytes, version is 7, variant RFC 9562's, and the time readable."""
    made = UUID(bytes=uuid7(now, random))
    assert (7, "specified in RFC 4122", now // 1000) == (made.version, made.variant, made.int >> 80)


def test_uuid7_sorts_by_time() -> None:
    """A later millisecond gives a greater id, whatever the random bytes."""
    assert uuid7(1_000, b"\xff" * 10) < uuid7(2_000, b"\x00" * 10)


@pytest.mark.parametrize(
    ("now", "random", "reason"),
    [(-1, bytes(10), "BAD_TIME"), (2**48 * 1000, bytes(10), "BAD_TIME"), (0, bytes(9), "BAD_RANDOM")],
)
def test_uuid7_refuses_what_does_not_fit(now: int, random: bytes, reason: str) -> None:
    """A time outside 48 bits of milliseconds, and too few random bytes, are refused."""
    with pytest.raises(FormatError) as caught:
        uuid7(now, random)
    assert reason == caught.value.reason


@given(st.text(), st.text())
def test_uuid8_is_made_of_source_and_position(one: str, other: str) -> None:
    """Equal positions give equal ids of version 8; different positions, or another source, different ones."""
    made = UUID(bytes=uuid8(SOURCE, one))
    assert (8, "specified in RFC 4122") == (made.version, made.variant)
    assert (one == other) == (uuid8(SOURCE, one) == uuid8(SOURCE, other))
    assert uuid8(sha256(b"another").digest(), one) != uuid8(SOURCE, one)


def test_ids_of_one_position_are_unrelated() -> None:
    """Event, trace and span id of the same position come from different domains."""
    ids = (uuid8(SOURCE, "0"), trace_id(SOURCE, "0"), span_id(SOURCE, "0"))
    assert [16, 16, 8] == [len(made) for made in ids]
    assert 3 == len({made[:6] for made in ids})


def test_a_source_is_named_by_a_whole_digest() -> None:
    """A source of other than 32 bytes is refused."""
    with pytest.raises(FormatError) as caught:
        uuid8(b"short", "0")
    assert "BAD_DIGEST" == caught.value.reason
