"""Every kind of bad input over the real wire: its reason, nothing recorded, and the connection goes on.

The fields are walked by the descriptors: what a later proto adds is covered when it is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from ledger.batch import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, MAX_EVENT_BYTES, batch_text, event_root
from ledger.errors import FormatError
from ledger.v1 import options_pb2
from ledger.wire import MAX_MESSAGE_BYTES
from tests.events import BODIES, minimal_event
from tests.hardening.door import Doors
from tests.hardening.messages import (
    VARIANTS,
    Place,
    field_bytes,
    full_event,
    inside,
    message_paths,
    places,
    said_again,
)
from tests.server.people import STREAM, enqueued

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKNOWN = field_bytes(15_000, b"hidden")
FORMATS = options_pb2.Format
CONTROLS = ("\x00", "\x07", "\x0b", "\x1b", "\x7f", "\x85")


def _format(*wanted: int) -> Callable[[FieldDescriptor], bool]:
    return lambda field: field.GetOptions().Extensions[options_pb2.format] in wanted


# --- what the walk stands on -------------------------------------------------------------------------------


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("variant", range(VARIANTS))
async def test_the_events_walked_are_admissible_before_they_are_spoiled(
    doors: Doors, body: str, variant: int
) -> None:
    """What the refusals below are for is what was spoiled.

    The door's word on shape and events comes before authority's: ROLE_MAY_NOT_WRITE says that they passed.
    """
    door = doors["auditor"]
    error = await door.events_refused(full_event(body, variant).SerializeToString())
    assert "ROLE_MAY_NOT_WRITE" == error.reason


async def test_every_member_of_every_oneof_is_walked() -> None:
    """As many variants as the largest oneof below the body has members; each string has a format."""
    for body in BODIES:
        for variant in range(VARIANTS):
            event = full_event(body, variant)
            for path in list(message_paths(event))[1:]:
                holder: Any = event
                for name in path:
                    inner = getattr(holder, name)
                    holder = inner[0] if holder.DESCRIPTOR.fields_by_name[name].is_repeated else inner
                assert all(len(oneof.fields) <= VARIANTS for oneof in holder.DESCRIPTOR.oneofs)
                for field in holder.DESCRIPTOR.fields:
                    if field.type == FieldDescriptor.TYPE_STRING:
                        assert field.GetOptions().Extensions[options_pb2.format], field.full_name


# --- hidden and repeated -----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", BODIES)
async def test_an_unknown_field_at_any_depth(doors: Doors, body: str) -> None:
    """UNKNOWN_FIELD, in the event and in every message within it."""
    door = doors.writing(body)
    for variant in range(VARIANTS):
        event = full_event(body, variant)
        for path in message_paths(event):
            error = await door.events_refused(inside(event, path, UNKNOWN))
            assert (path, FormatError, "UNKNOWN_FIELD") == (path, type(error), error.reason)


@pytest.mark.parametrize("body", BODIES)
async def test_a_singular_field_said_twice_at_any_depth(doors: Doors, body: str) -> None:
    """UNKNOWN_FIELD, for every singular field of every message; said with the same value even."""
    door = doors.writing(body)
    for place in places(lambda field: not field.is_repeated, (body,)):
        event = place.event()
        again = said_again(place.holder(event), place.field)
        error = await door.events_refused(inside(event, place.path, again))
        assert (place.name, "UNKNOWN_FIELD") == (place.name, error.reason)
    for name in ("event_id", "occurred_at", body):
        event = full_event(body)
        again = said_again(event, event.DESCRIPTOR.fields_by_name[name])
        assert "UNKNOWN_FIELD" == (await door.events_refused(event.SerializeToString() + again)).reason


@pytest.mark.parametrize(
    ("body", "path", "one", "other"),
    [
        ("reward_recorded", ("reward_recorded",), "value", "unscorable"),
        ("evaluation_recorded", ("evaluation_recorded", "scores"), "score", "unscorable"),
        ("span_recorded", ("span_recorded",), "otlp_span", "blob"),
        ("rollout_enqueued", ("rollout_enqueued",), "input_digest", "input_blob"),
    ],
)
async def test_two_members_of_a_oneof(
    doors: Doors, body: str, path: tuple[str, ...], one: str, other: str
) -> None:
    """UNKNOWN_FIELD: the last would silently win."""
    both: dict[str, bytes] = {}
    for variant in range(VARIANTS):
        event = full_event(body, variant)
        holder = Place(body, variant, path, event.DESCRIPTOR.fields_by_name[body]).holder(event)
        name = next(name for name in (one, other) if holder.HasField(name))
        both[name] = said_again(holder, holder.DESCRIPTOR.fields_by_name[name])
    assert {one, other} <= set(both)
    spoiled = inside(full_event(body), path, both[other])
    assert "UNKNOWN_FIELD" == (await doors.writing(body).events_refused(spoiled)).reason


async def test_two_bodies_in_one_event(doors: Doors) -> None:
    """UNKNOWN_FIELD: an event is one claim."""
    door = doors["runner"]
    ended = minimal_event("rollout_ended")
    second = said_again(ended, ended.DESCRIPTOR.fields_by_name["rollout_ended"])
    assert "UNKNOWN_FIELD" == (await door.events_refused(enqueued(doors.lab) + second)).reason


# --- values ------------------------------------------------------------------------------------------------


async def _spoil(doors: Doors, place: Place, values: Sequence[Any], reason: str) -> None:
    door = doors.writing(place.body)
    for value in values:
        event = place.event()
        place.set(event, value)
        error = await door.events_refused(event.SerializeToString())
        assert (place.name, value, FormatError, reason) == (place.name, value, type(error), error.reason)
        where = error.message.replace("[0]", "")
        assert where.startswith(f"events.{place.name}"), error.message


@pytest.mark.parametrize(
    "place",
    list(places(lambda field: field.type == FieldDescriptor.TYPE_DOUBLE)),
    ids=lambda place: place.name,
)
async def test_law_09_nan_and_infinity_in_every_double(doors: Doors, place: Place) -> None:
    """NONFINITE_VALUE."""
    await _spoil(doors, place, (math.nan, math.inf, -math.inf), "NONFINITE_VALUE")


@pytest.mark.parametrize("body", BODIES)
async def test_control_characters_in_every_text_and_name(doors: Doors, body: str) -> None:
    """BAD_FIELD for each control character in each field that people or programs read."""
    named = (FORMATS.FORMAT_ID, FORMATS.FORMAT_NAME, FORMATS.FORMAT_PART)
    for place in places(_format(*named), (body,)):
        await _spoil(doors, place, [f"a{c}b" for c in (*CONTROLS, "\n", " ", "é")], "BAD_FIELD")
    for place in places(_format(FORMATS.FORMAT_TEXT), (body,)):
        await _spoil(doors, place, [f"a{c}b" for c in CONTROLS], "BAD_FIELD")


@pytest.mark.parametrize("body", BODIES)
async def test_values_out_of_their_format(doors: Doors, body: str) -> None:
    """BAD_FIELD: names too long or empty, digests cut short, times out of range, unknown enum values."""
    wrong: dict[int, tuple[Any, ...]] = {
        FORMATS.FORMAT_ID: ("", "x" * 129),
        FORMATS.FORMAT_NAME: ("", "x" * 129, "a+b"),
        FORMATS.FORMAT_PART: ("", "x" * 129, "a+b", "a/b"),
        FORMATS.FORMAT_DIGEST: (b"", bytes(31), bytes(33)),
        FORMATS.FORMAT_UUID: (b"", bytes(16), bytes(15)),
        FORMATS.FORMAT_TEXT: ("x" * 4097, "é" * 2049),
        FORMATS.FORMAT_COUNTING: (0,),
        FORMATS.FORMAT_TRACE_ID: (b"", bytes(16), b"\x01" * 15),
        FORMATS.FORMAT_SPAN_ID: (b"", bytes(8), b"\x01" * 9),
    }
    for declared, values in wrong.items():
        for place in places(_format(declared), (body,)):
            await _spoil(doors, place, values, "BAD_FIELD")
    for place in places(_format(FORMATS.FORMAT_TIME), (body,)):
        largest = 2**63 - 1 if place.field.type == FieldDescriptor.TYPE_INT64 else 2**64 - 1
        below = (-1,) if place.field.type == FieldDescriptor.TYPE_INT64 else ()
        await _spoil(doors, place, (*below, 253_402_300_800_000_000, largest), "BAD_FIELD")
    for place in places(lambda field: field.enum_type is not None, (body,)):
        await _spoil(doors, place, (99,), "BAD_FIELD")


async def test_the_envelope(doors: Doors) -> None:
    """Event id and occurred_at are judged like any field."""
    door = doors["runner"]
    for name, value in (
        ("event_id", b""),
        ("event_id", bytes(16)),
        ("occurred_at", 253_402_300_800_000_000),
        ("occurred_at", -1),
    ):
        event = full_event("rollout_ended")
        setattr(event, name, value)
        error = await door.events_refused(event.SerializeToString())
        assert (name, "BAD_FIELD") == (name, error.reason)


@pytest.mark.parametrize("body", BODIES)
async def test_bytes_that_are_not_utf8_in_every_string(doors: Doors, body: str) -> None:
    """MALFORMED_EVENT: protobuf itself refuses them."""
    door = doors.writing(body)
    for place in places(lambda field: field.type == FieldDescriptor.TYPE_STRING, (body,)):
        event = place.event()
        spoiled = inside(event, place.path, field_bytes(place.field.number, b"\xff\xfe"))
        error = await door.events_refused(spoiled)
        assert (place.name, "MALFORMED_EVENT") == (place.name, error.reason)


# --- messages and sizes ------------------------------------------------------------------------------------

MALFORMED = {
    "no tag": b"\xff" * 9,
    "length beyond the end": b"\x0a\x7fx",
    "a group that never ends": b"\x0b" * 3,
    "a note that is not bytes": b"\x08\x01" + b"\x0a",
    "a condition key that is not UTF-8": field_bytes(3, field_bytes(1, b"\xff")),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_request_that_does_not_parse(doors: Doors, name: str) -> None:
    """MALFORMED_REQUEST."""
    error = await doors["runner"].refused(MALFORMED[name])
    assert (FormatError, "MALFORMED_REQUEST") == (type(error), error.reason)


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x0a\x7fx", b"\x0b", bytes(9)])
async def test_an_event_that_does_not_parse(doors: Doors, data: bytes) -> None:
    """MALFORMED_EVENT."""
    assert "MALFORMED_EVENT" == (await doors["runner"].events_refused(data)).reason


async def test_sizes(doors: Doors) -> None:
    """Each limit has its reason, one byte or one event above it."""
    door = doors["runner"]
    origin, event = doors.lab.home.origin, enqueued(doors.lab)
    large = bytes(MAX_EVENT_BYTES)
    many = [large] * (MAX_BATCH_BYTES // MAX_EVENT_BYTES) + [bytes(MAX_BATCH_BYTES % MAX_EVENT_BYTES + 1)]
    for events, reason in (
        ([bytes(MAX_EVENT_BYTES + 1)], "EVENT_SIZE"),
        ([b""], "EVENT_SIZE"),
        ([event, b"", event], "EVENT_SIZE"),
        (many, "OVER_SIZE"),
        ([event] * (MAX_BATCH_EVENTS + 1), "TOO_MANY_EVENTS"),
    ):
        text = batch_text(origin, STREAM, 0, min(len(events), MAX_BATCH_EVENTS), event_root(events))
        error = await door.refused(door.note(text, events))
        assert (len(events), reason) == (len(events), error.reason)
    error = await door.refused(bytes(MAX_MESSAGE_BYTES + 1))
    assert (FormatError, "OVER_SIZE") == (type(error), error.reason)


# --- the connection, after all of it -----------------------------------------------------------------------


async def test_after_all_of_it_the_log_verifies_and_takes_good_batches(doors: Doors) -> None:
    """Everybody above was refused on connections that still work; the whole log is as an auditor wants it."""
    runner = doors.lab.of_role("runner")
    size = (await runner.get_checkpoint()).size
    placed = await runner.append([enqueued(doors.lab)])
    assert size == placed.first_index
    assert size + 1 == (await doors.lab.check()).size
