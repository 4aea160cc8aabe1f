"""One-fact mutations of a story: what is dropped, changed, added or moved between two principals' writes."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from clients.demo.scenario import Events, wrap
from clients.ids import uuid8
from ledger.v1 import event_pb2
from tests.memory import Authored, Mutation

_positions = itertools.count()


def event_of(body: Any) -> event_pb2.Event:
    """An event around a body that no scenario makes."""
    source = hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
    return wrap(body, uuid8(source, str(next(_positions))), 0)


def copied(body: Any, **changes: Any) -> Any:
    """A copy of a message with other values in some scalar fields."""
    other = type(body)()
    other.CopyFrom(body)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def _event(item: Authored) -> event_pb2.Event:
    return item if isinstance(item, event_pb2.Event) else item[1]


def _named(items: Iterable[Authored], name: str) -> list[int]:
    return [at for at, item in enumerate(items) if _event(item).WhichOneof("body") == name]


def _chosen(items: list[Authored], name: str, nth: int | None, where: Callable[[Any], bool]) -> list[int]:
    places = [at for at in _named(items, name) if where(getattr(_event(items[at]), name))]
    if nth is None:
        return places
    return [places[nth]] if places else []


def _always(body: Any) -> bool:
    return True


def drop(name: str, nth: int | None = 0, where: Callable[[Any], bool] = _always) -> Mutation:
    """Leaves out the nth event of a type (None: all of them) among those where `where` holds."""

    def mutate(phase: str, events: Events) -> Iterable[Authored]:
        items: list[Authored] = list(events)
        gone = _chosen(items, name, nth, where)
        return [item for at, item in enumerate(items) if at not in gone]

    return mutate


def change(
    name: str, edit: Callable[[Any], object], nth: int | None = 0, where: Callable[[Any], bool] = _always
) -> Mutation:
    """Edits the nth event of a type in place (None: all of them)."""

    def mutate(phase: str, events: Events) -> Iterable[Authored]:
        items: list[Authored] = list(events)
        for at in _chosen(items, name, nth, where):
            edit(getattr(_event(items[at]), name))
        return items

    return mutate


def insert(
    name: str,
    make: Callable[[Any], Any],
    nth: int = 0,
    *,
    by: str | None = None,
    before: bool = False,
    where: Callable[[Any], bool] = _always,
) -> Mutation:
    """Adds one event after (or before) the nth of a type; `make` gives its body from that one's."""

    def mutate(phase: str, events: Events) -> Iterable[Authored]:
        items: list[Authored] = list(events)
        for at in _chosen(items, name, nth, where):
            extra = event_of(make(getattr(_event(items[at]), name)))
            items.insert(at if before else at + 1, extra if by is None else (by, extra))
        return items

    return mutate


def first(phase: str, *bodies: Any, by: str | None = None) -> Mutation:
    """Adds events at the beginning of a phase."""

    def mutate(now: str, events: Events) -> Iterable[Authored]:
        extra = [event_of(body) for body in bodies] if now == phase else []
        return [*(extra if by is None else [(by, event) for event in extra]), *events]

    return mutate


def last(phase: str, *bodies: Any, by: str | None = None) -> Mutation:
    """Adds events at the end of a phase."""

    def mutate(now: str, events: Events) -> Iterable[Authored]:
        extra = [event_of(body) for body in bodies] if now == phase else []
        return [*events, *(extra if by is None else [(by, event) for event in extra])]

    return mutate


def moved(name: str, to: str, *, at_end: bool = False) -> Mutation:
    """Takes all events of a type out of their phase and writes them at the start (or end) of another.

    Events that come from a later phase than `to` must be given by `early` instead.
    """
    held: list[event_pb2.Event] = []

    def mutate(phase: str, events: Events) -> Iterable[Authored]:
        kept = [event for event in events if event.WhichOneof("body") != name]
        held.extend(event for event in events if event.WhichOneof("body") == name)
        if phase != to:
            return kept
        late, held[:] = list(held), []
        return [*kept, *late] if at_end else [*late, *kept]

    return mutate


def authored(name: str, by: str) -> Mutation:
    """Lets another principal write all events of a type."""

    def mutate(phase: str, events: Events) -> Iterable[Authored]:
        return [(by, event) if event.WhichOneof("body") == name else event for event in events]

    return mutate


def both(*mutations: Mutation) -> Mutation:
    """One mutation after the other. Only the last may name authors."""

    def mutate(phase: str, events: Events) -> Iterable[Authored]:
        items: Any = events
        for one in mutations:
            items = list(one(phase, items))
        return list[Authored](items)

    return mutate
