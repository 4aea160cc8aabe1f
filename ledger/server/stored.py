"""Entries found again in the store, and the facts that folds made of them.

Rules kept here:

- A fact made again equals the one that was folded: its grant is the one in force when it was written.
- An entry of which a fact is made is the tree's, and so is the one that names its author: their leaf hashes
  are compared.
- Reading, hashing and parsing touch nothing that the event loop owns, so that any thread may do them; what is
  compared and taken, is by the tree's owner.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ledger.entry import ENTRY_HEADER, Opening, decode_opening
from ledger.errors import FatalError, FormatError
from ledger.fact import Fact
from ledger.fold import read_event
from ledger.merkle import leaf_hash
from ledger.server.store import Store
from ledger.tile import TileTree
from ledger.trust import Authority, Grant

__all__ = ["Facts", "Parsed", "Stored", "entries_at"]

_AT_ONCE: Final = 1024  # entries that are read before the first of them is taken


@dataclass(frozen=True, slots=True)
class Parsed:
    """Entries as the store has them, parsed, and tiles as the disk has them. None is compared yet."""

    entries: list[tuple[Stored, str, Any]]  # with the name of the body, and the body
    tiles: dict[int, list[bytes]]  # of level 0, by index: as `TileTree.fetch` gave them


class Facts:
    """Facts as folds had them, made again from stored entries that are the tree's."""

    def __init__(self, store: Store, authority: Callable[[], Authority], tree: TileTree) -> None:
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
        """The facts at ascending positions. Blocks. Raises FatalError: what `read` and `take` raise."""
        for start in range(0, len(positions), _AT_ONCE):
            some = positions[start : start + _AT_ONCE]
            yield from self.take(self.read(some, self.absent(some)))

    def absent(self, positions: Iterable[int]) -> list[int]:
        """Which tiles are to be read for the entries at these positions."""
        return self._tree.absent(positions)

    def read(self, positions: Iterable[int], tiles: Iterable[int]) -> Parsed:
        """Reads the entries at ascending positions and the tiles that `absent` named. Blocks; any thread.

        Raises FatalError STORE_BROKEN, STORE_UNREADABLE, TILE_DAMAGED.
        """
        entries: list[tuple[Stored, str, Any]] = []
        for stored in entries_at(self._store, positions):
            event, name = read_event(stored.event)
            if name is None:
                raise FatalError("STORE_BROKEN", f"expected a known event at {stored.position}, got another")
            entries.append((stored, name, getattr(event, name)))
        return Parsed(entries, {index: self._tree.fetch(0, index) for index in tiles})

    def take(self, parsed: Parsed) -> list[Fact]:
        """The facts of entries that were read. Raises FatalError STORE_BROKEN, TILE_DAMAGED."""
        tree = self._tree
        for index, fetched in parsed.tiles.items():
            tree.keep(0, index, fetched)
        entries = parsed.entries
        _compare(tree, {stored.position: stored.leaf for stored, _, _ in entries})
        _compare(tree, dict(stored.opened for stored, _, _ in entries))
        facts: list[Fact] = []
        for (position, recorded_at, _, opening, leaf, _), name, body in entries:
            grant = self.grant(opening.name, opening.key_id)
            facts.append(Fact(position, recorded_at, leaf, grant, name, body))
        return facts

    def recorded_at(self, index: int) -> int:
        """recorded_at of an entry, in microseconds. Raises FatalError STORE_BROKEN, TILE_DAMAGED."""
        stored = next(entries_at(self._store, [index]))
        _compare(self._tree, {index: stored.leaf})  # approvals lapse by it
        return stored.recorded_at


def _compare(tree: TileTree, found: Mapping[int, bytes]) -> None:
    """Leaf hashes by position, ascending."""
    expected = tree.leaves(list(found))
    if expected != list(found.values()):
        wrong = next(index for index, leaf in zip(found, expected, strict=True) if found[index] != leaf)
        raise FatalError("STORE_BROKEN", f"expected the tree's entry at {wrong}, got another")


class Stored(NamedTuple):
    """An entry as it is stored, with the opening of its batch."""

    position: int
    recorded_at: int  # microseconds since 1970
    event: bytes
    opening: Opening
    leaf: bytes
    opened: tuple[int, bytes]  # position and leaf of the entry that the opening is from


def entries_at(store: Store, positions: Iterable[int]) -> Iterator[Stored]:
    """The entries at ascending positions. Whether they are the tree's is to be compared by their leaves.

    Raises FatalError STORE_BROKEN.
    """
    first, run, offsets = 0, b"", list[int]()
    opening: Opening | None = None
    opened, start = (-1, b""), 0
    for position in positions:
        if not 0 <= position - first < len(offsets):
            first, run = next(store.runs(position), (0, b""))
            offsets = _offsets(run)
            if not 0 <= position - first < len(offsets):
                raise FatalError("STORE_BROKEN", f"expected an entry at index {position}, got none")
        data = _entry(run, offsets[position - first])
        leaf = leaf_hash(data)
        try:
            _, index, recorded_at, _, part = ENTRY_HEADER.unpack_from(data)
            if index != position:
                raise FatalError("STORE_BROKEN", f"expected the entry at index {position}, got {index}")
            begins = position - part
            if opening is None or begins != opened[0]:
                # Batches lie whole in one run.
                head = data if not part else _entry(run, offsets[max(begins - first, 0)])
                _, opens, _, _, own_part = ENTRY_HEADER.unpack_from(head)
                if opens != begins or own_part:
                    raise FatalError("STORE_BROKEN", f"expected an opening at index {begins}, got none")
                opening, start = decode_opening(head)
                opened = (begins, leaf if not part else leaf_hash(head))
        except (FormatError, struct.error) as error:
            raise FatalError(
                "STORE_BROKEN", f"expected an entry and its opening at index {position}, got {error}"
            ) from error
        event = data[ENTRY_HEADER.size if part else start :]
        yield Stored(position, recorded_at, event, opening, leaf, opened)


def _offsets(run: bytes) -> list[int]:
    """Where each entry of a run begins: its length, then itself. Raises FatalError STORE_BROKEN."""
    found, offset, end = [], 0, len(run)
    while offset + 2 <= end:
        found.append(offset)
        offset += 2 + (run[offset] << 8 | run[offset + 1])
    if offset != end:
        raise FatalError("STORE_BROKEN", f"expected a run of {offset} bytes, got {end}")
    return found


def _entry(run: bytes, offset: int) -> bytes:
    start = offset + 2
    return run[start : start + (run[offset] << 8 | run[offset + 1])]
