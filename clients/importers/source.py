"""What importers share: strict reading of other people's JSON, and the events that come out.

Rules:
1. A source is named by the SHA-256 of its bytes, a thing in it by its position: both go into every id, so
   that the same source gives the same events each time.
2. JSON is read as written (clients.strict_json).
3. Each event goes to the author whose role may write it. Batches keep the order within a role, and what a
   role wrote never overtakes what it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import rfc8785

from ledger.batch import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, MAX_EVENT_BYTES
from ledger.errors import FormatError
from ledger.v1 import event_pb2, options_pb2

__all__ = ["Imported", "batches", "canonical_json", "read_number"]


@dataclass(frozen=True, slots=True)
class Imported:
    """An event and the role that may write it; `blob` is the content that the event names by digest only."""

    role: options_pb2.Role.ValueType
    event: event_pb2.Event
    blob: bytes | None = None


def batches(items: Iterable[Imported]) -> Iterator[tuple[options_pb2.Role.ValueType, list[bytes]]]:
    """Cuts `items` into batches of event bytes, each of one role and within the limits of a batch.

    A role rests on the roles that appeared before it, never the other way: a batch is given out after all
    that was read of those. One batch a role is held at a time. Raises FormatError EVENT_SIZE.
    """
    open_batches: dict[options_pb2.Role.ValueType, list[bytes]] = {}
    sizes: dict[options_pb2.Role.ValueType, int] = {}
    for item in items:
        data = item.event.SerializeToString()
        if len(data) > MAX_EVENT_BYTES:
            raise FormatError("EVENT_SIZE", f"expected at most {MAX_EVENT_BYTES} bytes, got {len(data)}")
        batch = open_batches.setdefault(item.role, [])
        size = sizes.get(item.role, 0)
        if len(batch) == MAX_BATCH_EVENTS or size + len(data) > MAX_BATCH_BYTES:
            for role, held in open_batches.items():
                if held:
                    yield role, held
                    open_batches[role], sizes[role] = [], 0
                if role == item.role:
                    break
            batch, size = open_batches[item.role], 0
        batch.append(data)
        sizes[item.role] = size + len(data)
    for role, held in open_batches.items():
        if held:
            yield role, held


def canonical_json(value: object, where: str) -> bytes:
    """The RFC 8785 text of a parsed value.

    Raises FormatError BAD_JSON for what that cannot say: integers of 2^53 or more, infinities, half a
    surrogate pair.
    """
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]  # it checks the types itself
    except (ValueError, RecursionError) as error:
        raise FormatError("BAD_JSON", f"{where}: expected what RFC 8785 can say, got {error}") from error


def read_number(value: object, where: str) -> float:
    """A parsed JSON number as a double.

    Raises FormatError: BAD_NUMBER for any other type and for an integer that no double equals,
    NONFINITE_VALUE for a number beyond the doubles.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError("BAD_NUMBER", f"{where}: expected a number, got {value!r}"[:300])
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormatError("NONFINITE_VALUE", f"{where}: expected a finite number, got {value!r}"[:300])
    if number != value:
        raise FormatError("BAD_NUMBER", f"{where}: expected a number that is a double, got {value!r}"[:300])
    return number
