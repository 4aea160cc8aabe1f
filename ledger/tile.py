"""Tiles: a log as static files (C2SP tlog-tiles.md), and a tree that is read from them.

    tile/<L>/<N>            256 hashes of level 8·L, 32 bytes each: the N-th such row, from the left
    tile/<L>/<N>.p/<W>      the first W of them, 1 to 255, where the tree ends there
    tile/entries/<N>        256 entries as a run; tile/entries/<N>.p/<W> the first W

Rules kept here:

- N is written in groups of three digits, all but the last after an x: 1234067 is x001/x234/067. A path has
  one spelling.
- A full tile never changes: what it holds is fixed once the log is long enough. A partial one is named after
  its width, so it never changes either.
- Nothing that is read is trusted. A tile's 256 hashes must fold to the one hash that the tile above has of
  them; the tops are checked against the root at opening. So a damaged tile is an error and never a wrong
  proof.
- Every length is checked before it is used.

Where tiles lie is not known here: `read(level, index, width)` is handed in.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeAlias

from ledger.entry import iter_run
from ledger.errors import FormatError
from ledger.merkle import HASH_BYTES, NODE_PREFIX, Tree

__all__ = [
    "ENTRIES",
    "TILE_WIDTH",
    "Tile",
    "TileTree",
    "decode_bundle",
    "parse_tile_path",
    "partial_tiles",
    "tiles_of",
]

TILE_WIDTH: Final = 256
#: Levels of the tree in a tile: the hash over a full one stands in the tile above.
_HEIGHT: Final = 8
#: The level of a bundle of entries; it stands beside level 0.
ENTRIES: Final = -1
_ENTRIES_NAME: Final = "entries"
_MAX_LEVEL: Final = 63
_CACHED: Final = 256  # full tiles kept once read, 16 KiB each
_PATH: Final = re.compile(
    r"tile/(entries|0|[1-9][0-9]?)/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?"
).fullmatch

#: Gives the file of a tile, or the first `width` hashes of it where the file is wider.
_ReadTile: TypeAlias = Callable[[int, int, int], bytes]


@dataclass(frozen=True, slots=True)
class Tile:
    """One file: `level` (`ENTRIES` for a bundle), `index` from the left, `width` 1 to 256."""

    level: int
    index: int
    width: int = TILE_WIDTH

    @property
    def path(self) -> str:
        """Where it lies, from the log's prefix."""
        level = _ENTRIES_NAME if self.level == ENTRIES else str(self.level)
        groups = f"{self.index % 1000:03d}"
        rest = self.index // 1000
        while rest:
            groups = f"x{rest % 1000:03d}/{groups}"
            rest //= 1000
        partial = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{level}/{groups}{partial}"


def parse_tile_path(path: str) -> Tile:
    """The tile at `path`. FormatError BAD_TILE_PATH for any other spelling than `Tile.path`'s."""
    if (match := _PATH(path)) is not None:
        level, groups, width = match.groups()
        tile = Tile(
            ENTRIES if level == _ENTRIES_NAME else int(level),
            int(groups.replace("x", "").replace("/", "")),
            TILE_WIDTH if width is None else int(width),
        )
        if tile.level <= _MAX_LEVEL and tile.width <= TILE_WIDTH and tile.path == path:
            return tile
    raise FormatError(
        "BAD_TILE_PATH", f"expected tile/<level or entries>/<index>[.p/<width>], got {path[:200]!r}"
    )


def tiles_of(size: int, since: int = 0) -> Iterator[Tile]:
    """The tiles of a tree of `size` leaves that one of `since` has not, each level's from the left.

    Bundles come first, then level 0 and up; of each level full ones and then the partial one.
    """
    yield from _row(ENTRIES, size, since)
    level = 0
    while size:
        yield from _row(level, size, since)
        size, since, level = size // TILE_WIDTH, since // TILE_WIDTH, level + 1


def _row(level: int, size: int, since: int) -> Iterator[Tile]:
    if size == since:
        return
    for index in range(since // TILE_WIDTH, size // TILE_WIDTH):
        yield Tile(level, index)
    if width := size % TILE_WIDTH:
        yield Tile(level, size // TILE_WIDTH, width)


def partial_tiles(size: int, outgrown_by: int | None = None) -> Iterator[Tile]:
    """A tree's partial tiles; with `outgrown_by` those only that a tree of so many leaves has full."""
    level, rest, later = 0, size, outgrown_by
    while rest:
        (rest, width), later = divmod(rest, TILE_WIDTH), None if later is None else later // TILE_WIDTH
        if width and (later is None or later > rest):
            if not level:
                yield Tile(ENTRIES, rest, width)
            yield Tile(level, rest, width)
        level += 1


def decode_bundle(data: bytes, width: int) -> list[bytes]:
    """The entries of a bundle. FormatError BAD_TILE unless it holds exactly `width`, CUT_SHORT within one."""
    entries = list(iter_run(data))
    if len(entries) != width:
        raise FormatError("BAD_TILE", f"expected a bundle of {width} entries, got {len(entries)}")
    return entries


def _levels_of(hashes: bytes) -> list[bytes]:
    """The complete nodes over a row of hashes, row by row, that row first; of a full tile 9 rows."""
    rows = [hashes]
    while len(hashes) >= 2 * HASH_BYTES:
        pairs = range(0, len(hashes) - 2 * HASH_BYTES + 1, 2 * HASH_BYTES)
        hashes = b"".join([sha256(NODE_PREFIX + hashes[at : at + 2 * HASH_BYTES]).digest() for at in pairs])
        rows.append(hashes)
    return rows


class TileTree(Tree):
    """A tree that holds what is not in full tiles yet, and reads the rest from tiles.

    In memory: at most 255 hashes a tile level and the nodes over them, 64 bytes for each leaf after `stored`,
    and the tiles read last, 4 MiB of them at most. One thread owns it; where that must not wait for a disk,
    another one may `fetch` the tiles that are `absent`, for the owner to `keep`. What `Tree` raises, and
    FormatError BAD_TILE for a tile that is not the tree's, and what `read` raises.
    """

    __slots__ = ("_cache", "_read", "_stored")

    def __init__(self, read: _ReadTile, leaves: Iterable[bytes] = ()) -> None:
        """A tree of `leaves`, none of which is in a tile yet."""
        self._read = read
        self._stored = 0
        self._cache: OrderedDict[tuple[int, int], list[bytes]] = OrderedDict()
        super().__init__(leaves)

    def load(self, size: int, root: bytes) -> None:
        """Makes an empty tree that of the `size` leaves in the tiles; of each level the partial tile is read.

        Raises FormatError: BAD_TILE, ROOT_MISMATCH unless its root is `root`, and what `read` raises; such a
        tree is spent.
        """
        rest, level = size, 0
        while rest:
            rest, width = divmod(rest, TILE_WIDTH)
            data = self._read(level, rest, width) if width else b""
            _check_length(level, rest, width, data)
            rows = _levels_of(data)
            rows += [b""] * (_HEIGHT - len(rows))
            self._levels[level * _HEIGHT :] = map(bytearray, rows[:_HEIGHT])
            level += 1
        self._stored = size
        if (found := self.root()) != root:
            raise FormatError(
                "ROOT_MISMATCH", f"expected tiles of root {root.hex()} at size {size}, got {found.hex()}"
            )

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._gone(0) + len(self._levels[0]) // HASH_BYTES

    @property
    def stored(self) -> int:
        """The size up to which full tiles are read and not held."""
        return self._stored

    def forget(self, size: int) -> None:
        """Hold full tiles of the first `size` leaves no longer: from now on `read` gives them.

        Raises FormatError OUT_OF_RANGE unless stored ≤ size ≤ the tree's size.
        """
        self._check_held(size)
        gone = [self._gone(level) for level in range(len(self._levels))]
        self._stored = size
        for level, (before, row) in enumerate(zip(gone, self._levels, strict=True)):
            del row[: (self._gone(level) - before) * HASH_BYTES]

    def truncate(self, size: int) -> None:
        """Forget all but the first `size` leaves; FormatError OUT_OF_RANGE below `stored` or beyond them."""
        self._check_held(size)
        self._edges_of = (0, [b""])
        for level, row in enumerate(self._levels):
            del row[((size >> level) - self._gone(level)) * HASH_BYTES :]

    def _check_held(self, size: int) -> None:
        if not self._stored <= size <= self.size:
            raise FormatError(
                "OUT_OF_RANGE", f"expected a size from {self._stored} to {self.size}, got {size}"
            )

    def hashes(self, tile: Tile) -> bytes:
        """A hash tile's bytes, from memory. FormatError OUT_OF_RANGE where it is not held or not complete."""
        level = tile.level * _HEIGHT
        start = tile.index * TILE_WIDTH - self._gone(level)
        end = start + tile.width
        if start < 0 or level >= len(self._levels) or end * HASH_BYTES > len(self._levels[level]):
            raise FormatError("OUT_OF_RANGE", f"expected a tile that is held, got {tile.path}")
        return bytes(self._levels[level][start * HASH_BYTES : end * HASH_BYTES])

    def _gone(self, level: int) -> int:
        """How many nodes of a level are in full tiles and not held: an even number, as `extend` relies on."""
        tile_level, height = divmod(level, _HEIGHT)
        return self._stored >> _HEIGHT * (tile_level + 1) << _HEIGHT - height

    def _node(self, level: int, position: int) -> bytes:
        gone = self._gone(level)
        if position >= gone:
            start = (position - gone) * HASH_BYTES
            return bytes(self._levels[level][start : start + HASH_BYTES])
        tile_level, height = divmod(level, _HEIGHT)
        index, within = divmod(position, TILE_WIDTH >> height)
        start = within * HASH_BYTES
        return self._tile(tile_level, index)[height][start : start + HASH_BYTES]

    def leaves(self, indexes: Sequence[int]) -> list[bytes]:
        """The leaf hashes at ascending indexes; FormatError OUT_OF_RANGE as `leaf` raises it."""
        gone, found = self._gone(0), list[bytes]()
        tile, row = -1, b""
        for index in indexes:
            if not 0 <= index < gone:
                found.append(self.leaf(index))
                continue
            if index // TILE_WIDTH != tile:
                tile = index // TILE_WIDTH
                row = self._tile(0, tile)[0]
            start = index % TILE_WIDTH * HASH_BYTES
            found.append(row[start : start + HASH_BYTES])
        return found

    def absent(self, indexes: Iterable[int]) -> list[int]:
        """Which tiles of level 0, by index, are to be read for the leaves at these indexes."""
        gone = self._gone(0)
        tiles = dict.fromkeys(index // TILE_WIDTH for index in indexes if 0 <= index < gone)
        return [index for index in tiles if (0, index) not in self._cache]

    def fetch(self, level: int, index: int) -> list[bytes]:
        """Reads a full tile for `keep`, in any thread: the rows over it, the last one its one hash.

        Raises FormatError BAD_TILE for a file of another length, and what `read` raises.
        """
        data = self._read(level, index, TILE_WIDTH)
        _check_length(level, index, TILE_WIDTH, data)
        return _levels_of(data)

    def keep(self, level: int, index: int, fetched: list[bytes]) -> list[bytes]:
        """Remembers a tile, checked against the tile above it; its rows. Raises FormatError BAD_TILE."""
        *rows, root = fetched
        if root != self._node((level + 1) * _HEIGHT, index):
            path = Tile(level, index).path
            raise FormatError(
                "BAD_TILE", f"expected {path} to fold to what stands above it, got another tile"
            )
        self._cache[(level, index)] = rows
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return rows

    def _tile(self, level: int, index: int) -> list[bytes]:
        """The rows of a full tile."""
        if (rows := self._cache.get((level, index))) is None:
            return self.keep(level, index, self.fetch(level, index))
        self._cache.move_to_end((level, index))
        return rows


def _check_length(level: int, index: int, width: int, data: bytes) -> None:
    if len(data) != width * HASH_BYTES:
        path = Tile(level, index, width).path
        raise FormatError("BAD_TILE", f"expected {width * HASH_BYTES} bytes in {path}, got {len(data)}")
