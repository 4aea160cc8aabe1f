"""Events for tests, made from the proto files alone: what they need is there, and nothing else."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ledger.v1 import event_pb2, options_pb2

__all__ = ["BODIES", "body_name", "minimal_event", "otlp_span"]

#: Every type of event, by the name of its field in `Event.body`.
BODIES: Final[tuple[str, ...]] = tuple(
    field.name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
)

_VALUES: Final[dict[int, Any]] = {
    options_pb2.FORMAT_ID: "id-1",
    options_pb2.FORMAT_NAME: "name-1",
    options_pb2.FORMAT_PART: "part-1",
    options_pb2.FORMAT_DIGEST: bytes(range(32)),
    options_pb2.FORMAT_UUID: bytes(6) + b"\x70\x00\x80" + bytes(7),
    options_pb2.FORMAT_TEXT: "text",
    options_pb2.FORMAT_COUNTING: 1,
    options_pb2.FORMAT_TRACE_ID: bytes(15) + b"\x01",
    options_pb2.FORMAT_SPAN_ID: bytes(7) + b"\x01",
    options_pb2.FORMAT_TIME: 1_767_225_600_000_000,
}


def body_name(event: event_pb2.Event) -> str:
    """The event's body field, such as `rollout_enqueued`."""
    name = event.WhichOneof("body")
    assert name is not None
    return name


def minimal_event(body: str, /, **overrides: Any) -> event_pb2.Event:
    """An admissible event of the type, with as little in it as the proto file allows.

    `overrides` set fields of the body: a message, a scalar, or a list for a repeated field.
    """
    event = event_pb2.Event(event_id=_VALUES[options_pb2.FORMAT_UUID])
    message = getattr(event, body)
    message.SetInParent()
    _fill(message)
    if body == "span_recorded":
        message.otlp_span = otlp_span()
    for name, value in overrides.items():
        message.ClearField(name)
        if isinstance(value, Message):
            getattr(message, name).CopyFrom(value)
        elif isinstance(value, (list, tuple)):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return event


def otlp_span(size: int = 0, trace_id: bytes | None = None, span_id: bytes | None = None) -> bytes:
    """The bytes of an OpenTelemetry Span, padded to about `size`, with the ids of a minimal event."""
    span = Span(
        trace_id=trace_id or _VALUES[options_pb2.FORMAT_TRACE_ID],
        span_id=span_id or _VALUES[options_pb2.FORMAT_SPAN_ID],
    )
    span.name = "x" * max(0, size - span.ByteSize() - 3)
    return span.SerializeToString()


def _fill(message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        if _is_needed(field):
            _set(message, field)


def _is_needed(field: FieldDescriptor) -> bool:
    oneof = field.containing_oneof
    if oneof is not None and len(oneof.fields) > 1:
        return oneof.fields[0] is field and oneof.GetOptions().Extensions[options_pb2.needed]
    if field.GetOptions().Extensions[options_pb2.required]:
        return True
    return not field.is_repeated and not field.has_presence


def _set(message: Any, field: FieldDescriptor) -> None:
    if field.message_type is not None:
        target = getattr(message, field.name)
        inner = target.add() if field.is_repeated else target
        if not field.is_repeated:
            inner.SetInParent()
        _fill(inner)
    elif field.is_repeated:
        getattr(message, field.name).append(_value(field))
    else:
        setattr(message, field.name, _value(field))


def _value(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[1].number
    declared = field.GetOptions().Extensions[options_pb2.format]
    return _VALUES[declared] if declared else field.default_value
