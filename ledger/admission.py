"""The door: what an event must be to enter the log (design sections 4 and 6).

Rules:
1. An event is 1 to 60,000 bytes that parse as `ledger.v1.Event` with a known body.
2. Nothing is hidden and nothing is said twice: without its unknown fields the event has the length received.
3. Every field keeps the format that its proto file declares; doubles are finite, spans are spans.
4. Needed fields are there. Absence is never filled in.

Judged at admission only. A verifier of stored entries never applies these rules: what was admitted once
stays readable when they grow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ledger.batch import MAX_EVENT_BYTES
from ledger.errors import FormatError
from ledger.v1 import event_pb2, options_pb2

__all__ = ["MAX_SCORES", "admit", "parse_event"]

MAX_SCORES: Final = 500  # of one EvaluationRecorded
_MAX_TEXT: Final = 4096  # bytes of UTF-8
_VARINT, _FIXED64, _LENGTH_DELIMITED = 0, 1, 2  # the wire types of our fields
_MAX_TIME: Final = 253_402_300_800_000_000  # microseconds; year 10000, exclusive

_ID = re.compile(r"[!-~]{1,128}").fullmatch
_NAME = re.compile(r"[!-*,-~]{1,128}").fullmatch
_PART = re.compile(r"[!-*,-.0-~]{1,128}").fullmatch
_TEXT = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*").fullmatch

_Check: TypeAlias = Callable[[Any], object]  # holds where true
_Rule: TypeAlias = Callable[[Message, str], None]


def _is_uuid(value: bytes) -> bool:
    return len(value) == 16 and value[6] >> 4 in (7, 8) and value[8] >> 6 == 0b10


# format -> (holds, what is expected, in words)
_FORMATS: Final[dict[int, tuple[_Check, str]]] = {
    options_pb2.FORMAT_ID: (_ID, "1 to 128 characters of ASCII 0x21 to 0x7E"),
    options_pb2.FORMAT_NAME: (
        _NAME,
        "1 to 128 characters of ASCII 0x21 to 0x7E without '+'",
    ),
    options_pb2.FORMAT_PART: (
        _PART,
        "1 to 128 characters of ASCII 0x21 to 0x7E without '+' and '/'",
    ),
    options_pb2.FORMAT_DIGEST: (lambda v: len(v) == 32, "32 bytes"),
    options_pb2.FORMAT_UUID: (_is_uuid, "16 bytes: a UUID of version 7 or 8"),
    options_pb2.FORMAT_TEXT: (
        lambda v: _TEXT(v) is not None and len(v.encode()) <= _MAX_TEXT,
        f"at most {_MAX_TEXT} bytes of text without control characters",
    ),
    options_pb2.FORMAT_COUNTING: (lambda v: v >= 1, "an integer of at least 1"),
    options_pb2.FORMAT_TRACE_ID: (lambda v: len(v) == 16 and any(v), "16 bytes, not all zero"),
    options_pb2.FORMAT_SPAN_ID: (lambda v: len(v) == 8 and any(v), "8 bytes, not all zero"),
    options_pb2.FORMAT_TIME: (lambda v: 0 <= v < _MAX_TIME, "microseconds since 1970, before the year 10000"),
}


def parse_event(data: bytes) -> event_pb2.Event:
    """Parses event bytes. Raises FormatError(MALFORMED_EVENT)."""
    try:
        return event_pb2.Event.FromString(data)
    except DecodeError as error:
        raise FormatError(
            "MALFORMED_EVENT", f"expected a ledger.v1.Event, got {len(data)} bytes that do not parse"
        ) from error


def admit(data: bytes) -> event_pb2.Event:
    """Parses and checks an event at the door.

    Raises FormatError: EVENT_SIZE, MALFORMED_EVENT, UNKNOWN_FIELD, BAD_FIELD, NONFINITE_VALUE; the last two
    with the field's path in the message.
    """
    if not 1 <= len(data) <= MAX_EVENT_BYTES:
        raise FormatError("EVENT_SIZE", f"expected 1 to {MAX_EVENT_BYTES} bytes, got {len(data)}")
    event = parse_event(data)
    event.DiscardUnknownFields()
    body = event.WhichOneof("body")
    if event.ByteSize() != len(data) or (body in _PACKING and not _is_packed(data, event.DESCRIPTOR)):
        raise FormatError(
            "UNKNOWN_FIELD",
            f"expected {event.ByteSize()} bytes of known fields, each said once, got {len(data)}: "
            "an unknown field or type, a repeated field or another spelling; use the published protos",
        )
    if body is None:
        raise FormatError("UNKNOWN_FIELD", "expected one body of a known type, got none")
    _ENVELOPE(event, "event")
    _BODIES[body](getattr(event, body), body)
    return event


# --- repeated numbers ------------------------------------------------------------------------------------


def _packs(field: FieldDescriptor) -> bool:
    """Whether the field's values are sent packed, in itself or in a message within it."""
    inner = field.message_type
    return bool(field.is_packed) if inner is None else any(_packs(within) for within in inner.fields)


_PACKING: Final = frozenset(
    field.name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields if _packs(field)
)


def _is_packed(data: bytes, descriptor: Descriptor) -> bool:
    """Whether every repeated number in a serialized message is sent packed, at any depth.

    One such number alone is a byte shorter unpacked than packed. Without this look that byte would pay, in
    the comparison of lengths, for one of an unknown or repeated field. Every other spelling is longer than
    protobuf's own.
    """
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        field, wire = descriptor.fields_by_number.get(tag >> 3), tag & 7
        if field is None or wire not in (_VARINT, _FIXED64, _LENGTH_DELIMITED):
            return False
        inner = field.message_type
        if (field.is_packed or inner is not None) and wire != _LENGTH_DELIMITED:
            return False
        length = 8 if wire == _FIXED64 else 0
        if wire != _FIXED64:
            value, position = _varint(data, position)
            length = value if wire == _LENGTH_DELIMITED else 0
        if inner is not None and not _is_packed(data[position : position + length], inner):
            return False
        position += length
    return True


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and where it ends. Only for data that protobuf has parsed."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7


# --- rules compiled from the descriptors, once -------------------------------------------------------------


def _fail(path: str, expected: str, got: Any, reason: str = "BAD_FIELD") -> NoReturn:
    shown = f"{len(got)} bytes" if isinstance(got, bytes) else repr(got)
    raise FormatError(reason, f"{path}: expected {expected}, got {shown[:200]}")


def _scalar(field: FieldDescriptor) -> tuple[_Check, str, str] | None:
    """(holds, expected, reason) of one value of the field; None where any value will do."""
    if field.enum_type is not None:
        numbers = frozenset(field.enum_type.values_by_number)
        allowed = numbers if field.has_presence else numbers - {0}
        return (
            allowed.__contains__,
            f"a value of {field.enum_type.name} other than unspecified",
            "BAD_FIELD",
        )
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return math.isfinite, "a finite number", "NONFINITE_VALUE"
    declared = field.GetOptions().Extensions[options_pb2.format]
    if declared:
        holds, expected = _FORMATS[declared]
        return holds, expected, "BAD_FIELD"
    return None


def _field_rule(field: FieldDescriptor) -> _Rule | None:
    name = field.name
    required = field.GetOptions().Extensions[options_pb2.required]
    inner = None if field.message_type is None else _message_rule(field.message_type)
    scalar = None if inner is not None else _scalar(field)

    def one(value: Any, path: str) -> None:
        if inner is not None:
            inner(value, path)
        elif scalar is not None and not scalar[0](value):
            _fail(path, scalar[1], value, scalar[2])

    if field.is_repeated:

        def rule(message: Message, path: str) -> None:
            values = getattr(message, name)
            if required and not values:
                _fail(f"{path}.{name}", "at least one item", "none")
            for position, value in enumerate(values):
                one(value, f"{path}.{name}[{position}]")

    elif field.has_presence:

        def rule(message: Message, path: str) -> None:
            if message.HasField(name):
                one(getattr(message, name), f"{path}.{name}")
            elif required:
                _fail(f"{path}.{name}", "a value", "none")

    else:

        def rule(message: Message, path: str) -> None:
            value = getattr(message, name)
            if scalar is not None and not scalar[0](value):
                one(value, f"{path}.{name}")

    return rule if inner is not None or scalar is not None or required else None


def _oneof_rule(oneof: OneofDescriptor) -> _Rule | None:
    if not oneof.GetOptions().Extensions[options_pb2.needed]:
        return None
    name = oneof.name
    members = ", ".join(field.name for field in oneof.fields)

    def rule(message: Message, path: str) -> None:
        if message.WhichOneof(name) is None:
            _fail(f"{path}.{name}", f"one of {members}", "none")

    return rule


def _part_rule(message: Any, path: str) -> None:
    if message.number > message.of:
        _fail(path, "a part number of at most `of`", message.number)


def _scores_rule(message: Any, path: str) -> None:
    if len(message.scores) > MAX_SCORES:
        _fail(f"{path}.scores", f"at most {MAX_SCORES} scores a part", f"{len(message.scores)}")


def _span_rule(message: Any, path: str) -> None:
    """The span's own bytes are a span, and the ids that checks read are the ones in it."""
    if message.WhichOneof("content") != "otlp_span":
        return
    try:
        span = Span.FromString(message.otlp_span)
    except DecodeError:
        _fail(f"{path}.otlp_span", "the bytes of an OpenTelemetry Span", message.otlp_span)
    if (span.trace_id, span.span_id) != (message.trace_id, message.span_id):
        _fail(
            f"{path}.otlp_span",
            f"the span {message.trace_id.hex()}/{message.span_id.hex()}",
            f"{span.trace_id.hex()}/{span.span_id.hex()}",
        )


def _one_segment_rule(message: Any, path: str) -> None:
    if message.scope.segment == "*":
        _fail(f"{path}.scope.segment", "one segment: only publications are for all", "*")


# Message -> what its fields cannot say one by one.
_EXTRA: Final[dict[str, _Rule]] = {
    "ledger.v1.SpanRecorded": _span_rule,
    "ledger.v1.BaselineAdopted": _one_segment_rule,
    "ledger.v1.UpdateProposed": _one_segment_rule,
    "ledger.v1.Part": _part_rule,
    "ledger.v1.EvaluationRecorded": _scores_rule,
}


def _message_rule(descriptor: Descriptor) -> _Rule:
    # Scalars that are always there are most of an event: one loop judges them, without a call for each.
    always = [f for f in descriptor.fields if not f.is_repeated and not f.has_presence]
    plain = tuple((field.name, *rule) for field in always if (rule := _scalar(field)) is not None)
    candidates = [_field_rule(field) for field in descriptor.fields if field not in always]
    candidates += [_oneof_rule(oneof) for oneof in descriptor.oneofs]
    candidates.append(_EXTRA.get(descriptor.full_name))
    rules = tuple(rule for rule in candidates if rule is not None)

    def check(message: Message, path: str) -> None:
        for name, holds, expected, reason in plain:
            if not holds(value := getattr(message, name)):
                _fail(f"{path}.{name}", expected, value, reason)
        for rule in rules:
            rule(message, path)

    return check


def _envelope_rule() -> _Rule:
    descriptor = event_pb2.Event.DESCRIPTOR
    rules = [_field_rule(descriptor.fields_by_name[name]) for name in ("event_id", "occurred_at")]

    def check(message: Message, path: str) -> None:
        for rule in rules:
            if rule is not None:
                rule(message, path)

    return check


_ENVELOPE: Final = _envelope_rule()
_BODIES: Final[dict[str, _Rule]] = {
    field.name: _message_rule(field.message_type)
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None
}
