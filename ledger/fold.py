"""Folding over the log: how entries are handed on, in the server, the gate and the auditor alike.

Rules kept here:

- An event is parsed once, and what was judged is what is folded.
- Reading is not admission: what was admitted once stays readable when the rules of the door grow. An event of
  a type that a newer release wrote has no type name here; whoever reads it says that he cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from google.protobuf.unknown_fields import UnknownFieldSet

from ledger.admission import parse_event
from ledger.errors import FormatError
from ledger.trust import Grant
from ledger.v1 import event_pb2

__all__ = ["Fold", "Reader", "read_event"]

Reader: TypeAlias = Callable[[bytes], tuple[event_pb2.Event, str | None]]

# The numbers of our fields: bytes that misuse one are no body of a newer release.
_KNOWN: Final = frozenset(event_pb2.Event.DESCRIPTOR.fields_by_number)


class Fold(Protocol):
    """What is folded over the log, entry by entry, in order."""

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Take one entry: `recorded_at` in microseconds, its 32-byte leaf hash, its author's grant; `alone`
        says that it is the only one of its batch."""


def read_event(data: bytes) -> tuple[event_pb2.Event, str | None]:
    """An event and its type's name, None for a type of a newer release.

    Raises FormatError MALFORMED_EVENT: the bytes do not parse, or hold no body in any release.
    """
    event = parse_event(data)
    body = event.WhichOneof("body")
    if body is not None:
        return event, body
    unknown = UnknownFieldSet(event)
    if all(unknown[position].field_number in _KNOWN for position in range(len(unknown))):
        raise FormatError("MALFORMED_EVENT", "expected a body, got none")
    return event, None
