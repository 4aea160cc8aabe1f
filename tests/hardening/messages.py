"""Events with everything in them, walked by their descriptors: no field of a later proto is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from ledger.v1 import event_pb2, options_pb2
from tests.events import BODIES, minimal_event

__all__ = [
    "VARIANTS",
    "Place",
    "field_bytes",
    "full_event",
    "inside",
    "message_paths",
    "places",
    "said_again",
]

VARIANTS: Final = 2  # no oneof but the body has more members
_SCALARS: Final[dict[int, Any]] = {
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_BYTES: b"bytes",
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_DOUBLE: 0.5,
}


@dataclass(frozen=True)
class Place:
    """A field somewhere in an event: the messages on the way to it, and itself."""

    body: str
    variant: int  # of `full_event`
    path: tuple[str, ...]  # names of the messages below the event that hold it
    field: FieldDescriptor

    @property
    def name(self) -> str:
        """As an error message names it, but for positions in lists."""
        return ".".join((*self.path, self.field.name))

    def event(self) -> event_pb2.Event:
        """A full event that has the field."""
        return full_event(self.body, self.variant)

    def holder(self, event: event_pb2.Event) -> Any:
        """The message that holds the field, in an event made by `full_event`."""
        message: Any = event
        for name in self.path:
            inner = getattr(message, name)
            message = inner[0] if message.DESCRIPTOR.fields_by_name[name].is_repeated else inner
        return message

    def set(self, event: event_pb2.Event, value: Any) -> None:
        """Gives the field another value, in every item of a list."""
        holder = self.holder(event)
        if self.field.is_repeated:
            del getattr(holder, self.field.name)[:]
            getattr(holder, self.field.name).append(value)
        else:
            setattr(holder, self.field.name, value)


def full_event(body: str, variant: int = 0) -> event_pb2.Event:
    """An admissible event with every field set; of each oneof the first member, or that many further."""
    event = minimal_event(body)
    event.occurred_at = 1_767_225_600_000_000
    _fill(getattr(event, body), variant)
    return event


def _fill(message: Any, variant: int) -> None:
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and field is not oneof.fields[variant % len(oneof.fields)]:
            message.ClearField(field.name)
            continue
        if field.message_type is not None:
            target = getattr(message, field.name)
            if field.is_repeated:
                target = target[0] if target else target.add()
            else:
                target.SetInParent()
            _fill(target, variant)
        elif field.is_repeated:
            if not getattr(message, field.name):
                getattr(message, field.name).append(_value(field))
        elif not (message.HasField(field.name) if field.has_presence else getattr(message, field.name)):
            setattr(message, field.name, _value(field))


def _value(field: FieldDescriptor) -> Any:
    from tests.events import _VALUES  # noqa: PLC0415 - the one table of sample values

    declared = field.GetOptions().Extensions[options_pb2.format]
    if declared:
        return _VALUES[declared]
    if field.enum_type is not None:
        return field.enum_type.values[1].number
    return _SCALARS.get(field.type, 1)


def places(wanted: Callable[[FieldDescriptor], bool], bodies: tuple[str, ...] = BODIES) -> Iterator[Place]:
    """The fields that are set in full events and `wanted`, each once."""
    for body in bodies:
        seen: set[str] = set()
        for variant in range(VARIANTS):
            event = full_event(body, variant)
            for path, message in _messages(getattr(event, body), (body,)):
                for field in message.DESCRIPTOR.fields:
                    place = Place(body, variant, path, field)
                    is_set = getattr(message, field.name) if field.is_repeated else _is_set(message, field)
                    if is_set and wanted(field) and place.name not in seen:
                        seen.add(place.name)
                        yield place


def _is_set(message: Any, field: FieldDescriptor) -> bool:
    return bool(message.HasField(field.name) if field.has_presence else getattr(message, field.name))


def _messages(message: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, message
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            inner = getattr(message, field.name)
            if field.is_repeated and inner:
                yield from _messages(inner[0], (*path, field.name))
            elif not field.is_repeated and message.HasField(field.name):
                yield from _messages(inner, (*path, field.name))


def message_paths(event: event_pb2.Event) -> Iterator[tuple[str, ...]]:
    """The ways to every message in an event, the event itself included."""
    yield ()
    body = event.WhichOneof("body")
    assert body is not None
    for path, _ in _messages(getattr(event, body), (body,)):
        yield path


def inside(message: Any, path: tuple[str, ...], extra: bytes) -> bytes:
    """The message's bytes with `extra` at the end of the message that `path` leads to."""
    if not path:
        return bytes(message.SerializeToString()) + extra
    field = message.DESCRIPTOR.fields_by_name[path[0]]
    value = getattr(message, field.name)
    inner = inside(value[0] if field.is_repeated else value, path[1:], extra)
    rest = type(message)()
    rest.CopyFrom(message)
    rest.ClearField(field.name)
    return bytes(rest.SerializeToString()) + field_bytes(field.number, inner)


def said_again(message: Any, field: FieldDescriptor) -> bytes:
    """The bytes of one field of the message, to be said a second time."""
    alone = type(message)()
    if field.message_type is not None:
        getattr(alone, field.name).CopyFrom(getattr(message, field.name))
    else:
        setattr(alone, field.name, getattr(message, field.name))
    return bytes(alone.SerializeToString())


def field_bytes(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
