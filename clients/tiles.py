"""A log as a folder of static tiles (C2SP tlog-tiles), written and read without trusting the folder.

Rules:
1. A folder holds one log. It is extended only where its own checkpoint's tree is the beginning of the log.
2. The checkpoint comes last, after everything under it was verified; a tile that is there is never changed.
3. Read as a log, a folder is its checkpoint and the entries of its bundles, in the order and with the bytes
   of an export file: the same verifier judges both. Its hash tiles must have the checkpoint's root too.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ledger.checkpoint import Checkpoint, parse_checkpoint_text
from ledger.entry import MAX_ENTRY_BYTES, encode_run
from ledger.errors import FormatError, RefusedError, VerificationError
from ledger.export import MAX_CHECKPOINT_BYTES, encode_export_header
from ledger.merkle import HASH_BYTES, leaf_hash
from ledger.note import parse_note
from ledger.tile import (
    ENTRIES,
    TILE_WIDTH,
    Tile,
    TileTree,
    decode_bundle,
    partial_tiles,
    tiles_of,
)

if TYPE_CHECKING:
    from clients.ledger import LedgerClient  # reading a folder takes no network

__all__ = ["check_hash_tiles", "log_bytes", "open_log", "publish_tiles", "write_tiles"]

_CHECKPOINT: Final = "checkpoint"
_UNVERIFIED: Final = ".unverified"
_MOST_HASHES: Final = TILE_WIDTH * HASH_BYTES
_MOST_ENTRIES: Final = TILE_WIDTH * (2 + MAX_ENTRY_BYTES)
_FLUSH: Final = 64 * TILE_WIDTH  # entries held before their tiles are written


# --- writing ----------------------------------------------------------------------------------------------


async def write_tiles(
    client: LedgerClient, folder: Path, progress: Callable[[int], None] | None = None
) -> Path:
    """Writes the tiles of the log as it is now, each entry proven on its way.

    `progress` is told entries as they come. Gives a folder to verify, the tiles under the new checkpoint; the
    folder's own checkpoint stays what it was until `publish_tiles`.
    Raises RefusedError OTHER_LOG, OTHER_TILE; VerificationError V7 where the folder's checkpoint is not in
    the log; FormatError for a damaged folder; AssayError as the client does.
    """
    note = await client.cosigned_note()
    target = parse_checkpoint_text(parse_note(note).text)
    tree = _begun(folder, target)
    begun = tree.size
    bundle: list[bytes] = []
    # From the beginning of the last bundle, which goes on.
    async for index, entry in client.read(begun // TILE_WIDTH * TILE_WIDTH, target.size):
        leaf = leaf_hash(entry)
        if index < begun:
            if tree.leaf(index) != leaf:
                raise _forked(folder, f"entry {index}")
        else:
            tree.extend([leaf])
        bundle.append(entry)
        if len(bundle) == TILE_WIDTH or index + 1 == target.size:
            tile = Tile(ENTRIES, index // TILE_WIDTH, len(bundle))
            _put(folder, tile, encode_run(bundle))
            bundle = []
            if tree.size - tree.stored >= _FLUSH:
                _store(folder, tree)
        if progress is not None:
            progress(1)
    if tree.root() != target.root:
        raise _forked(folder, f"root {tree.root().hex()} at size {target.size}")
    _store(folder, tree)
    for tile in tiles_of(target.size, begun):
        if tile.level != ENTRIES and tile.width < TILE_WIDTH:
            _put(folder, tile, tree.hashes(tile))
    return _draft(folder, note)


def publish_tiles(folder: Path) -> None:
    """Puts the new checkpoint over the tiles, once they are verified; partial tiles that are full now go."""
    draft = folder / _UNVERIFIED
    old, new = _checkpoint(folder), _checkpoint(draft)
    if new is None:
        raise _no_checkpoint(draft)
    (draft / _CHECKPOINT).replace(folder / _CHECKPOINT)
    shutil.rmtree(draft)
    if old is not None:
        for tile in partial_tiles(old.size, outgrown_by=new.size):
            if (partial := (folder / tile.path).parent).exists():
                shutil.rmtree(partial)


def _draft(folder: Path, note: bytes) -> Path:
    """A folder with the same tiles and another checkpoint."""
    draft = folder / _UNVERIFIED
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir()
    (draft / "tile").symlink_to(Path("..") / "tile")
    (draft / _CHECKPOINT).write_bytes(note)
    return draft


def _begun(folder: Path, target: Checkpoint) -> TileTree:
    """The tree that the folder has; empty where there is none."""
    tree = _tree(folder)
    if (checkpoint := _checkpoint(folder)) is not None:
        if checkpoint.origin != target.origin:
            raise RefusedError(
                "OTHER_LOG",
                f"expected a new folder or tiles of {target.origin}, got tiles of {checkpoint.origin} in "
                f"{folder}",
            )
        if checkpoint.size > target.size:
            raise VerificationError(
                "V7",
                "ROLLED_BACK",
                f"expected a log of {checkpoint.size} entries or more, as in {folder}, got {target.size}",
            )
        tree.load(checkpoint.size, checkpoint.root)
    return tree


def _forked(folder: Path, got: str) -> VerificationError:
    return VerificationError(
        "V7", "FORKED", f"expected the log to continue what is in {folder}, got {got}: keep both checkpoints"
    )


def _store(folder: Path, tree: TileTree) -> None:
    """Writes the hash tiles that are full since the last time."""
    for tile in tiles_of(tree.size, tree.stored):
        if tile.level != ENTRIES and tile.width == TILE_WIDTH:
            _put(folder, tile, tree.hashes(tile))
    tree.forget(tree.size)


def _put(folder: Path, tile: Tile, data: bytes) -> None:
    path = folder / tile.path
    if path.exists():
        if path.read_bytes() != data:
            raise RefusedError(
                "OTHER_TILE", f"expected {tile.path} in {folder} to hold what the log says, got other bytes"
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = folder / ".tile"
    draft.write_bytes(data)
    draft.replace(path)


# --- reading ----------------------------------------------------------------------------------------------


def open_log(path: Path) -> BinaryIO:
    """An export file, or a folder of tiles as if it were one. Reading raises VerificationError, OSError."""
    if path.is_dir():
        return io.BufferedReader(_Stream(_read(path)), TILE_WIDTH * 1024)
    return path.open("rb")


def log_bytes(path: Path) -> int:
    """About how long `open_log` is, for showing how far one is."""
    if not path.is_dir():
        return path.stat().st_size
    bundles = (file.stat().st_size for file in (path / "tile" / "entries").rglob("*") if file.is_file())
    return sum(bundles)


def check_hash_tiles(folder: Path, size: int, root: bytes) -> None:
    """That every hash tile is of the tree of a checkpoint that was verified. Raises VerificationError V5."""
    tree = _tree(folder)
    try:
        tree.load(size, root)
        # A leaf is given from a tile only after that tile folded to the one above it.
        for index in range(0, size, TILE_WIDTH):
            tree.leaf(index)
    except FormatError as error:
        raise VerificationError("V5", error.reason, error.message) from error


class _Stream(io.RawIOBase):
    """Parts, read as one file."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as BufferedReader calls it
        while not self._rest:
            if (part := next(self._parts, None)) is None:
                return 0
            self._rest = memoryview(part)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _read(folder: Path) -> Iterator[bytes]:
    """The header and the run of an export, bundle by bundle."""
    try:
        note = _read_file(folder / _CHECKPOINT, MAX_CHECKPOINT_BYTES)
        size = parse_checkpoint_text(parse_note(note).text).size
    except FileNotFoundError:
        raise _no_checkpoint(folder) from None
    except FormatError as error:
        raise VerificationError("V5", error.reason, error.message) from error
    yield encode_export_header(note)
    for tile in tiles_of(size):
        if tile.level != ENTRIES:
            return
        try:
            data, width = _find(folder, tile)
            entries = decode_bundle(data, width)
        except FormatError as error:
            first = tile.index * TILE_WIDTH
            raise VerificationError(
                "V2", error.reason, f"{tile.path}: {error.message}", index=first
            ) from error
        yield data if width == tile.width else encode_run(entries[: tile.width])


def _find(folder: Path, tile: Tile) -> tuple[bytes, int]:
    """A tile's bytes and width: where a partial one is gone the full one stands for it."""
    most = _MOST_ENTRIES if tile.level == ENTRIES else _MOST_HASHES
    for at in dict.fromkeys((tile, Tile(tile.level, tile.index))):
        try:
            return _read_file(folder / at.path, most), at.width
        except FileNotFoundError:
            continue
    raise FormatError("TILE_MISSING", f"expected {tile.path} in {folder}, got no such file")


def _read_file(path: Path, most: int) -> bytes:
    """The bytes of a file. Raises FormatError BAD_FILE for what is none or holds more; OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FormatError("BAD_FILE", f"expected a file at {path}, got something else")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise FormatError("BAD_FILE", f"expected at most {most} bytes in {path}, got more")
    return data


def _tree(folder: Path) -> TileTree:
    def read(level: int, index: int, width: int) -> bytes:
        data, found = _find(folder, Tile(level, index, width))
        return data if found == width else data[: width * HASH_BYTES]

    return TileTree(read)


def _checkpoint(folder: Path) -> Checkpoint | None:
    """What the folder's checkpoint says; its signature is the verifier's to judge."""
    try:
        note = _read_file(folder / _CHECKPOINT, MAX_CHECKPOINT_BYTES)
        return parse_checkpoint_text(parse_note(note).text)
    except FileNotFoundError:
        return None


def _no_checkpoint(folder: Path) -> VerificationError:
    return VerificationError(
        "V5", "NO_CHECKPOINT", f"expected a folder of tiles with its checkpoint, got none in {folder}"
    )
