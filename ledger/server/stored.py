"""Entries found again in the store, and the facts that folds made of them.

Rules kept here:

- A fact made again equals the one that was folded: its grant is the one in force when it was written.
- An entry of which a fact is made is the tree's: its leaf hash is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ledger.entry import ENTRY_HEADER, Opening, decode_entry
from ledger.errors import FatalError
from ledger.fact import Fact
from ledger.fold import read_event
from ledger.merkle import Tree, leaf_hash
from ledger.server.store import Store
from ledger.trust import Authority, Grant

__all__ = ["Facts", "Stored", "entries_at"]


class Facts:
    """Facts as folds had them, made again from stored entries that are the tree's."""

    def __init__(self, store: Store, authority: Callable[[], Authority], tree: Tree) -> None:
        """`authority` gives any that came after the entries: grants stay."""
        self._store = store
        self._authority = authority
        self._tree = tree
        self._grants: dict[tuple[str, bytes], Grant] = {}

    def grant(self, name: str, key_id: bytes) -> Grant:
        """The grant as it was when its holder wrote: in force."""
        found = self._grants.get((name, key_id))
        if found is None:
            held = self._authority().grants[(name, key_id)]
            found = self._grants[(name, key_id)] = replace(held, revocation=None)
        return found

    def at(self, positions: Sequence[int]) -> Iterator[Fact]:
        """The facts at ascending positions. Raises FatalError STORE_BROKEN."""
        leaf_of = self._tree.leaf
        for entry in entries_at(self._store, positions):
            event, name = read_event(entry.event)
            index, leaf = entry.position, entry.leaf
            if name is None or leaf != leaf_of(index):
                raise FatalError("STORE_BROKEN", f"expected the tree's entry at {index}, got another")
            grant = self.grant(entry.opening.name, entry.opening.key_id)
            yield Fact(index, entry.recorded_at, leaf, grant, name, getattr(event, name))

    def recorded_at(self, index: int) -> int:
        """recorded_at of an entry, in microseconds."""
        return next(entries_at(self._store, [index])).recorded_at


class Stored(NamedTuple):
    """An entry as it is stored, with the opening of its batch."""

    position: int
    recorded_at: int  # microseconds since 1970
    event: bytes
    opening: Opening
    leaf: bytes


def entries_at(store: Store, positions: Iterable[int]) -> Iterator[Stored]:
    """The entries at ascending positions. Whether they are the tree's is to be compared by their leaves.

    Raises FatalError STORE_BROKEN.
    """
    run, place = b"", (0, 0, 0)
    opened, opening = -1, None
    for position in positions:
        if (found := _walk(run, place, position)) is None:
            first, run = next(store.runs(position), (0, b""))
            opened = -1
            if (found := _walk(run, (first, 0, 0), position)) is None:
                raise FatalError("STORE_BROKEN", f"expected an entry at index {position}, got none")
        _, offset, begins = place = found
        data = _entry(run, offset)
        _, index, recorded_at, _, part = ENTRY_HEADER.unpack_from(data)
        if opening is None or begins != opened:
            batch = decode_entry(_entry(run, begins))
            opened, opening = begins, batch.opening
            if batch.index != position - part:
                opening = None
        if index != position or opening is None:
            raise FatalError(
                "STORE_BROKEN", f"expected the entry at index {position} and its batch's opening"
            )
        event = data[ENTRY_HEADER.size :] if part else decode_entry(data).event
        yield Stored(position, recorded_at, event, opening, leaf_hash(data))


_PART: Final = 2 + ENTRY_HEADER.size - 2  # of an entry's own offset in its batch, after its length


def _walk(run: bytes, place: tuple[int, int, int], position: int) -> tuple[int, int, int] | None:
    """From (index, where that entry begins, where its batch begins) to `position`, if the run has it."""
    here, offset, begins = place
    end = len(run)
    if position < here:
        return None
    while offset < end:
        if not run[offset + _PART] and not run[offset + _PART + 1]:
            begins = offset
        if here == position:
            return here, offset, begins
        offset += 2 + (run[offset] << 8 | run[offset + 1])
        here += 1
    return None


def _entry(run: bytes, offset: int) -> bytes:
    return run[offset + 2 : offset + 2 + (run[offset] << 8 | run[offset + 1])]
