"""What is derived from the log and kept beside it, compared with what the log says it must be.

Rules kept here:

- Only what a publication covers is compared: what lies beyond it was cut short and is made again anyway.
- For tiles memory is bounded: 256 hashes a level, and 256 entries.
- Views are taken on to the log's end in a copy, and made again from nothing beside it: what differs is wrong.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ledger.entry import iter_run
from ledger.merkle import leaf_hash, root
from ledger.server.blob_index import BLOB_INDEX, BlobIndex
from ledger.server.recovery import VIEWS, recover
from ledger.server.store import Store
from ledger.server.views import SQLITE_SUFFIXES
from ledger.tile import ENTRIES, TILE_WIDTH, Tile
from ledger.trust import TrustDocument

__all__ = ["TileCheck", "check_blob_index", "check_views"]

_MOST: Final = 100  # faults that are told one by one


class TileCheck:
    """Walks along the log, looks at each tile once it is full, and at the partial ones at the end."""

    def __init__(self, folder: Path, size: int) -> None:
        """`size` is that of the checkpoint in the folder."""
        self.folder = folder
        self.size = size
        self.faults: list[tuple[int, str]] = []  # (index of the first entry under the tile, what)
        self.count = 0
        self._taken = 0
        self._bundle: list[bytes] = []
        self._levels: list[list[bytes]] = [[]]  # of each level the hashes of the tile that is not full yet

    def take(self, entry: bytes, leaf: bytes) -> None:
        """The log's next entry and its leaf hash."""
        if self._taken == self.size:
            return
        self._taken += 1
        self._bundle.append(len(entry).to_bytes(2, "big") + entry)
        self._levels[0].append(leaf)
        index = self._taken // TILE_WIDTH - 1
        level = 0
        if len(self._bundle) == TILE_WIDTH:
            self._compare(Tile(ENTRIES, index), self._bundle)
            self._bundle = []
        while len(hashes := self._levels[level]) == TILE_WIDTH:
            self._compare(Tile(level, index), hashes)
            self._levels[level] = []
            level, index = level + 1, (index + 1) // TILE_WIDTH - 1
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(root(hashes))
        if self._taken == self.size:
            self._finish()

    def _finish(self) -> None:
        rest = self.size
        if self._bundle:
            self._compare(Tile(ENTRIES, rest // TILE_WIDTH, len(self._bundle)), self._bundle)
        for level, hashes in enumerate(self._levels):
            rest //= TILE_WIDTH
            if hashes:
                self._compare(Tile(level, rest, len(hashes)), hashes)

    def _compare(self, tile: Tile, parts: list[bytes]) -> None:
        file = self.folder / tile.path
        try:
            same = file.read_bytes() == b"".join(parts)
            found = "other bytes"
        except FileNotFoundError:
            same, found = False, "no such file"
        if same:
            return
        self.count += 1
        if self.count <= _MOST:
            first = tile.index * TILE_WIDTH ** (max(tile.level, 0) + 1)
            self.faults.append((first, f"expected {tile.path} to hold what the log says, got {found}"))


def check_views(store: Store, trust: TrustDocument, data: Path) -> Iterator[str]:
    """What is wrong with the persisted views in `data`; nothing where there are none. They are not touched.

    Raises FatalError: what `recover` raises.
    """
    if not (data / VIEWS).exists():
        return
    with _copied(data, VIEWS) as (copy, fresh):
        dropped, stored = _rows(store, trust, copy)
        if dropped is not None:
            yield dropped
            return
        _, expected = _rows(store, trust, fresh)
    for table in sorted({table for table, _ in stored | expected}):
        wrong = {row for t, row in stored if t == table} ^ {row for t, row in expected if t == table}
        if wrong:
            yield f"expected the rows of {table} as the log gives them, got {len(wrong)} others"


@contextmanager
def _copied(data: Path, name: str) -> Iterator[tuple[Path, Path]]:
    """Two folders for a while: one with a copy of the SQLite file `name` of `data`, and an empty one."""
    with tempfile.TemporaryDirectory(prefix="assay-fsck-") as folder:
        copy, fresh = Path(folder) / "copy", Path(folder) / "fresh"
        for made in (copy, fresh):
            made.mkdir()
        for suffix in SQLITE_SUFFIXES:
            if (file := data / f"{name}{suffix}").exists():
                shutil.copy(file, copy)
        yield copy, fresh


def _rows(store: Store, trust: TrustDocument, data: Path) -> tuple[str | None, set[tuple[str, bytes]]]:
    """Why the views in `data` do not count; and what they are at the log's end: (table, digest of a row)."""
    recovered = recover(store, trust, data)
    views = recovered.views
    try:
        if recovered.state.size > views.size:
            views.write(recovered.take_changes())
        return views.dropped, {(table, sha256(repr(row).encode()).digest()) for table, row in views.dump()}
    finally:
        views.close()


def check_blob_index(store: Store, origin: str, size: int, data: Path) -> Iterator[str]:
    """What is wrong with the index in `data` of the blobs that a log of `size` entries names or erased."""
    if not (data / BLOB_INDEX).exists():
        return
    with _copied(data, BLOB_INDEX) as (copy, fresh):
        dropped, stored = _blob_rows(store, origin, size, copy / BLOB_INDEX)
        if dropped is not None:
            yield dropped
            return
        _, expected = _blob_rows(store, origin, size, fresh / BLOB_INDEX)
    for table, rows in expected.items():
        if wrong := rows ^ stored[table]:
            yield f"expected the rows of {table} as the log gives them, got {len(wrong)} others"


def _blob_rows(
    store: Store, origin: str, size: int, path: Path
) -> tuple[str | None, dict[str, set[tuple[Any, ...]]]]:
    """Why the index at `path` does not count; and what it says of the log, taken on to its end."""
    index = BlobIndex(path, origin, lambda position: _leaf(store, position), size)
    index.catch_up(store, size)
    index.close()
    with closing(sqlite3.connect(path)) as rows:
        return index.dropped, {
            "names": set(rows.execute("SELECT digest, rollout FROM names")),
            "erased": set(rows.execute("SELECT digest, position FROM erased")),
        }


def _leaf(store: Store, position: int) -> bytes:
    """The leaf hash of a stored entry."""
    first_index, run = next(store.runs(position))
    return leaf_hash(list(iter_run(run))[position - first_index])
