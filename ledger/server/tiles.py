"""Static tiles of the log, for proofs and for publishing (C2SP tlog-tiles): `tile/…` and `checkpoint`.

Rules kept here:

- Tiles follow the log: they are written after a commit was acknowledged, in a thread of their own, from what
  the store and the tree hold. All of them can be made again from the store.
- A publication is all tiles up to the released head, then its checkpoint; one a second at most. So whatever a
  reader finds, each tile that the checkpoint calls for is there.
- Files appear whole and durably. One thread writes, and a publication is of a larger size than the one
  before, so nothing older comes over something newer. A full tile is compared before it is written again;
  other bytes are fatal.
- A partial tile goes once the full one is durable; who asks for it then takes the full one, as readers do.
- What the disk refuses (full, broken) stops no append: the log goes on, says so, and tries again.
- What is read back is not trusted: see `ledger.tile`. A ledger key's signature under the folder's checkpoint
  is believed: a log that does not contain it does not start (law 6).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from ledger.checkpoint import Checkpoint, open_checkpoint
from ledger.errors import FatalError, FormatError, NotFoundError, OverloadedError, VerificationError
from ledger.note import VerifierKey
from ledger.server.durable import Files
from ledger.server.released import check_reaches, check_root
from ledger.server.sequencer import Head, Sequencer
from ledger.server.store import Store
from ledger.server.waiters import happens
from ledger.tile import ENTRIES, TILE_WIDTH, Tile, TileTree, partial_tiles, tiles_of

__all__ = ["CHECKPOINT", "TileWriter", "TiledTree"]

CHECKPOINT: Final = "checkpoint"
_EVERY: Final = 1.0  # seconds between two publications
_RETRY: Final = 5.0  # seconds after a failed one
_AT_ONCE: Final = 2**17  # entries whose tiles are made in one go
_BATCH_FILES: Final = 128
_BATCH_BYTES: Final = 8 * 2**20

_log = logging.getLogger("ledger.server.tiles")


class TiledTree(TileTree):
    """The log's tree; full tiles lie in a folder. Owned by the event loop.

    Reading an old proof reads a tile or three from disk, 8 KiB each. Beside what `merkle.Tree` raises:
    FatalError TILE_DAMAGED.
    """

    def __init__(self, folder: Path) -> None:
        """An empty tree; nothing on disk is read or changed."""
        self.folder = folder
        super().__init__(self._read_tile)

    @classmethod
    def open(cls, folder: Path, keys: Sequence[VerifierKey]) -> TiledTree | None:
        """The tree at the size of the folder's checkpoint, which one of `keys` must have signed.

        None where there is no such checkpoint, or where tiles do not have its root: build the tree from the
        store, in `TiledTree(folder)`. Whoever opens one extends it by what the store holds beyond `size`, and
        compares the root with the store's own head. Nothing on disk is changed.
        """
        checkpoint = _published(folder, keys)
        if checkpoint is None:
            return None
        tree = cls(folder)
        try:
            tree.load(checkpoint.size, checkpoint.root)
        except (FormatError, OSError) as error:
            _log.warning("the tiles of %s are built again: %s", folder, error)
            return None
        return tree

    def _read_tile(self, level: int, index: int, width: int) -> bytes:
        partial, full = Tile(level, index, width), Tile(level, index)
        with suppress(FileNotFoundError):
            return (self.folder / partial.path).read_bytes()
        return (self.folder / full.path).read_bytes()[: width * 32]

    def fetch(self, level: int, index: int) -> list[bytes]:
        """As `TileTree.fetch`. Raises FatalError TILE_DAMAGED."""
        with _damage(level, index):
            return super().fetch(level, index)

    def keep(self, level: int, index: int, fetched: list[bytes]) -> list[bytes]:
        """As `TileTree.keep`. Raises FatalError TILE_DAMAGED."""
        with _damage(level, index):
            return super().keep(level, index, fetched)

    async def bring(
        self, index: int, aside: Callable[[Callable[[], list[bytes]]], Awaitable[list[bytes]]]
    ) -> None:
        """Has `aside` read the tile that a proof of an old leaf begins in, so that the loop need not.

        Those above it stay near: one for 65,536 entries.
        """
        for tile in self.absent([index]):
            self.keep(0, tile, await aside(partial(self.fetch, 0, tile)))


@contextmanager
def _damage(level: int, index: int) -> Iterator[None]:
    """A tile that is not the log's, or cannot be read, becomes FatalError TILE_DAMAGED."""
    try:
        yield
    except (FormatError, OSError) as error:
        # Readers learn of this: the folder's place is not theirs to know.
        got = error.strerror if isinstance(error, OSError) else error
        raise FatalError(
            "TILE_DAMAGED",
            f"expected tile {index} of level {level} to be the log's, got {got}: stop the ledger, move its "
            "folder of tiles away and start again; it is built from the store",
        ) from error


def _published(folder: Path, keys: Sequence[VerifierKey]) -> Checkpoint | None:
    """The folder's checkpoint, if one of `keys` signed it."""
    try:
        note = (folder / CHECKPOINT).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return open_checkpoint(note, *keys)
    except VerificationError as error:
        _log.warning("expected a checkpoint by this ledger in %s, got %s", folder, error)
        return None


class TileWriter:
    """Publishes the log's tiles. Owned by the event loop; what blocks runs in a thread of its own."""

    def __init__(self, tree: TiledTree, store: Store, sequencer: Sequencer) -> None:
        """Takes the folder of `tree` as it is, or empties it where its tiles are not this log's.

        Raises FatalError: BEHIND_RELEASED, FORKED where this ledger has published another log or more of it,
        TILES_UNWRITABLE.
        """
        self._tree = tree
        self._folder = tree.folder
        self._store = store
        self._sequencer = sequencer
        self._thread = ThreadPoolExecutor(1, "ledger-tiles")
        self._stopping = asyncio.Event()
        self._failing = False
        self.failures = 0  # publications that the disk refused
        try:
            self._files = Files(self._folder)
            self._published = self._begin()
        except OSError as error:
            raise FatalError(
                "TILES_UNWRITABLE", f"expected a folder for tiles at {self._folder}, got {error}"
            ) from error
        self._written = self._published

    @property
    def published(self) -> int:
        """The size under the folder's checkpoint."""
        return self._published

    async def run(self) -> None:
        """Publishes until `stop`. Raises FatalError."""
        with suppress(OverloadedError):  # the ledger stops
            while not self._stopping.is_set():
                await self._sequencer.beyond(self._published)
                pause = _EVERY if await self._publish() else _RETRY
                await happens(self._stopping, pause)

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Ends `running`, which is `run`, then publishes the last head. Raises FatalError."""
        self._stopping.set()
        try:
            await running
            await self._publish()
        finally:
            self._thread.shutdown()

    def _begin(self) -> int:
        """The size at which the folder stands: what its checkpoint says, or 0 after it was emptied."""
        keys, tree = self._sequencer.state.authority.checkpoint_keys, self._tree
        checkpoint = _published(self._folder, keys)
        if checkpoint is not None:
            kept = f"as published in {self._folder}"
            check_reaches(tree.size, checkpoint, kept)
            check_root(tree.root(checkpoint.size), checkpoint, kept)
            if tree.stored == checkpoint.size:
                return checkpoint.size
            if TiledTree.open(self._folder, keys) is not None:
                tree.forget(checkpoint.size)
                return checkpoint.size
        # The checkpoint goes first: it never stands over tiles that are missing.
        (self._folder / CHECKPOINT).unlink(missing_ok=True)
        if (tiles := self._folder / "tile").exists():
            shutil.rmtree(tiles)
        return 0

    async def _publish(self) -> bool:
        """Publishes the released head; False, and told once in the log, where the disk refused."""
        try:
            head = self._sequencer.head
        except NotFoundError:
            return True  # an empty log has nothing to publish
        try:
            await self._publish_head(head)
        except OSError as error:
            self.failures += 1
            if not self._failing:
                _log.error(
                    "tiles stay at size %d, while the log goes on; tried again every %g s: %s",
                    self._published,
                    _RETRY,
                    error,
                    extra={"size": self._published},
                )
            self._failing = True
            return False
        if self._failing:
            _log.warning("tiles are at size %d again", self._published, extra={"size": self._published})
        self._failing = False
        return True

    async def _publish_head(self, head: Head) -> None:
        loop, tree = asyncio.get_running_loop(), self._tree
        while self._written < head.size:
            if self._stopping.is_set() and head.size - self._written > _AT_ONCE:
                return  # too far to be waited for; the next start goes on
            far = (self._written + _AT_ONCE) // TILE_WIDTH * TILE_WIDTH
            size = min(far, head.size)
            tiles = [tile for tile in tiles_of(size, self._written) if tile.width == TILE_WIDTH]
            if size == head.size:
                # Of a long way partial tiles are made at its end only: all that the last publication had not.
                tiles += (tile for tile in tiles_of(size, self._published) if tile.width < TILE_WIDTH)
            hashes = [(tile, tree.hashes(tile)) for tile in tiles if tile.level != ENTRIES]
            bundles = [tile for tile in tiles if tile.level == ENTRIES]
            await loop.run_in_executor(self._thread, self._write, hashes, bundles)
            tree.forget(size)
            self._written = size
        if self._published < head.size:
            await loop.run_in_executor(self._thread, self._finish, self._published, head)
            self._published = head.size

    # --- in the thread -------------------------------------------------------------------------------------

    def _write(self, hashes: Iterable[tuple[Tile, bytes]], bundles: Sequence[Tile]) -> None:
        batch: list[tuple[str, bytes]] = []
        size = 0
        for tile, data in chain(hashes, _bundles(self._store, bundles)):
            self._compare(tile, data)
            batch.append((tile.path, data))
            size += len(data)
            if len(batch) == _BATCH_FILES or size >= _BATCH_BYTES:
                self._files.write(batch)
                batch, size = [], 0
        self._files.write(batch)

    def _compare(self, tile: Tile, data: bytes) -> None:
        """What is there already, from a try that was cut short, is written again: it may not be durable."""
        with suppress(FileNotFoundError):
            if (self._folder / tile.path).read_bytes() != data:
                raise FatalError(
                    "TILE_CONFLICT",
                    f"expected {tile.path} in {self._folder} to hold what the log says, got other bytes: "
                    "keep the folder as evidence, and start with another",
                )

    def _finish(self, published: int, head: Head) -> None:
        for tile in partial_tiles(published, outgrown_by=head.size):
            if (old := (self._folder / tile.path).parent).exists():
                shutil.rmtree(old)
        self._files.write([(CHECKPOINT, head.checkpoint)])


def _bundles(store: Store, tiles: Sequence[Tile]) -> Iterator[tuple[Tile, bytes]]:
    """Each tile and its entries, as they are stored; `tiles` are neighbours, from the left."""
    if not tiles:
        return
    waiting = iter(tiles)
    tile = next(waiting)
    start = tile.index * TILE_WIDTH
    end = start + tile.width
    held: list[bytes] = []
    for first_index, run in store.runs(start):
        index, position, begin = first_index, 0, 0
        while position < len(run):
            if index == start:
                begin = position
            position += 2 + (run[position] << 8 | run[position + 1])
            index += 1
            if index == end:
                yield tile, b"".join((*held, run[begin:position]))
                if (after := next(waiting, None)) is None:
                    return
                tile, end, begin = after, after.index * TILE_WIDTH + after.width, position
                held.clear()
        held.append(run[begin:])
    raise FatalError("STORE_BROKEN", f"expected entries up to {end}, as released, got fewer in the store")
