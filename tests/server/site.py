"""A log whose tiles are published, and what a static log of its entries must be, made from the definition."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from ledger.checkpoint import Checkpoint, parse_checkpoint_text, sign_checkpoint
from ledger.entry import encode_run, iter_run
from ledger.merkle import Tree, leaf_hash
from ledger.note import SigningKey, parse_note
from ledger.server.durable import Folder
from ledger.server.sequencer import Head
from ledger.server.sqlite import SQLiteStore
from ledger.server.store import Commit
from ledger.server.tiles import TiledTree, TileWriter
from ledger.tile import ENTRIES, TILE_WIDTH, Tile, parse_tile_path, tiles_of

__all__ = ["KEY", "STRANGER", "Log", "check_site", "entry", "leaves"]

KEY = SigningKey("log-0123456789abcdef", bytes(range(32)))
STRANGER = SigningKey("log-0123456789abcdef", bytes(32))


def entry(index: int) -> bytes:
    """An entry's bytes: of many lengths, none and 65,535 among them."""
    if index == 3:
        return b""
    return b"%d " % index * (index % 50) if index != 300 else bytes(65_535)


# --- the reference: what a static log of some entries is, made from its definition -------------------------


def _row(level: int, size: int) -> list[bytes]:
    """The complete nodes of a level, 8 levels of the tree a step."""
    if level == 0:
        return leaves(size)
    below = _row(level - 1, size)
    return [Tree(below[n : n + 256]).root() for n in range(0, len(below) - 255, 256)]


@functools.cache
def _leaf(index: int) -> bytes:
    return leaf_hash(entry(index))


def leaves(size: int) -> list[bytes]:
    """The leaf hashes of the first `size` entries."""
    return [_leaf(index) for index in range(size)]


def _expected(tile: Tile, size: int) -> bytes:
    """A tile's bytes."""
    start = tile.index * TILE_WIDTH
    if tile.level == ENTRIES:
        return encode_run(map(entry, range(start, start + tile.width)))
    return b"".join(_row(tile.level, size)[start : start + tile.width])


class Log:
    """A real store and a real tree; stands for the sequencer before a `TileWriter`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tiles = folder / "tiles"
        self.open()

    def open(self) -> None:
        """As a server starts: the tree from the tiles, the rest from the store."""
        self.store = SQLiteStore(Folder(self.folder), KEY.verifier_key.name)
        head = self.store.head()
        size = 0 if head is None else head[0]
        tree = TiledTree.open(self.tiles, [KEY.verifier_key])
        self.tree = TiledTree(self.tiles) if tree is None or tree.size > size else tree
        self.begun = self.tree.size
        for first_index, run in self.store.runs(self.begun):
            entries = list(iter_run(run))[max(0, self.begun - first_index) :]
            self.tree.extend(map(leaf_hash, entries))
        self.size = size
        if head is not None:
            self.head = Head(size, self.tree.root(), head[1])
            assert Tree(leaves(size)).root() == self.tree.root()

    def close(self) -> None:
        """Lets go of the store."""
        self.store.close()

    @property
    def state(self) -> Any:
        """What the writer asks of the sequencer's state."""
        return self

    authority = property(lambda self: self)
    checkpoint_keys = (KEY.verifier_key,)

    def grow(self, count: int) -> None:
        """A commit of `count` entries."""
        entries = [entry(index) for index in range(self.size, self.size + count)]
        self.tree.extend(map(leaf_hash, entries))
        size = self.size + count
        note = self.note(size)
        self.store.commit(Commit(self.size, encode_run(entries), (), size, note))
        self.size = size
        self.head = Head(size, self.tree.root(), note)

    def note(self, size: int, key: SigningKey = KEY) -> bytes:
        """The signed checkpoint of a size."""
        return sign_checkpoint(Checkpoint(key.verifier_key.name, size, self.tree.root(size)), key)

    def writer(self) -> TileWriter:
        """The writer of a server that starts."""
        return TileWriter(self.tree, self.store, self)  # type: ignore[arg-type]  # stands for the sequencer


def check_site(folder: Path, size: int | None = None) -> int:
    """That everything the folder's checkpoint calls for is there and right, and nothing else is wrong.

    Gives the size, which must be `size` where that is given; 0 without a checkpoint.
    """
    published = 0
    if (folder / "checkpoint").exists():
        checkpoint = parse_checkpoint_text(parse_note((folder / "checkpoint").read_bytes()).text)
        published = checkpoint.size
        assert Tree(leaves(published)).root() == checkpoint.root
        for tile in tiles_of(published):
            whole = folder / Tile(tile.level, tile.index).path
            path = folder / tile.path if (folder / tile.path).exists() else whole
            assert path.exists(), tile
    for path in (folder / "tile").rglob("*"):
        if path.is_file():
            tile = parse_tile_path(str(path.relative_to(folder)))
            end = (tile.index * 256 + tile.width) * 256 ** max(tile.level, 0)
            assert _expected(tile, end) == path.read_bytes(), tile
    if size is not None:
        assert size == published
        assert not (folder / ".temp").exists() or not list((folder / ".temp").iterdir())
    return published
