"""Tiles and the tree that is read from them, against the tree in memory and other people's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.checkpoint import open_checkpoint
from ledger.entry import encode_run
from ledger.errors import FormatError
from ledger.merkle import EMPTY_ROOT, Tree, leaf_hash, verify_consistency, verify_inclusion
from ledger.note import VerifierKey
from ledger.tile import (
    ENTRIES,
    TILE_WIDTH,
    Tile,
    TileTree,
    decode_bundle,
    parse_tile_path,
    partial_tiles,
    tiles_of,
)
from tests.core.refusal import refusal

MOST = 3 * 65_536 + 700  # a third level of tiles, and every kind of edge below it
LEAVES = [leaf_hash(n.to_bytes(3, "big")) for n in range(MOST)]
EDGES = (1, 2, 255, 256, 257, 511, 512, 65_535, 65_536, 65_537, 70_000, 131_072, MOST)

sizes = st.one_of(st.integers(1, 1100), st.sampled_from(EDGES), st.integers(1, MOST))


@pytest.fixture(scope="module")
def whole() -> Tree:
    """The tree in memory: what is right."""
    return Tree(LEAVES)


class Files:
    """Hash tiles by path, as a folder would hold them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.read_paths: list[str] = []

    def read(self, level: int, index: int, width: int) -> bytes:
        """The tile, or the first hashes of the full one, as tlog-tiles lets a reader do."""
        path = Tile(level, index, width).path
        self.read_paths.append(path)
        found = self.files.get(path)
        return self.files[Tile(level, index).path][: width * 32] if found is None else found

    def store(self, tree: TileTree, since: int = 0) -> None:
        """What `tree` has beyond `since`."""
        for tile in tiles_of(tree.size, since):
            if tile.level != ENTRIES:
                self.files[tile.path] = tree.hashes(tile)


def stored(size: int) -> tuple[Files, TileTree]:
    """The first leaves in tiles, and the tree that wrote them."""
    files = Files()
    tree = TileTree(files.read, LEAVES[:size])
    files.store(tree)
    tree.forget(size)
    return files, tree


# --- paths and widths --------------------------------------------------------------------------------------


def test_the_path_of_the_specification() -> None:
    """1234067 is x001/x234/067."""
    assert "tile/0/x001/x234/067" == Tile(0, 1_234_067).path
    assert "tile/entries/x001/x234/067.p/8" == Tile(ENTRIES, 1_234_067, 8).path


def test_size_70000_has_the_tiles_of_the_specification() -> None:
    """273 full and one of 112; one full and one of 17; one of 1; bundles as level 0."""
    tiles = list(tiles_of(70_000))
    by_level = {level: [tile for tile in tiles if tile.level == level] for level in (ENTRIES, 0, 1, 2)}
    for level in (ENTRIES, 0):
        assert [TILE_WIDTH] * 273 + [112] == [tile.width for tile in by_level[level]]
    assert [TILE_WIDTH, 17] == [tile.width for tile in by_level[1]]
    assert [Tile(2, 0, 1)] == by_level[2]
    assert len(tiles) == sum(map(len, by_level.values()))


@given(st.integers(ENTRIES, 63), st.integers(0, 2**56), st.integers(1, 256))
def test_a_path_parses_to_its_tile(level: int, index: int, width: int) -> None:
    """And back."""
    tile = Tile(level, index, width)
    assert tile == parse_tile_path(tile.path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "tile/0",
        "tile/0/1",
        "tile/00/001",
        "tile/64/001",
        "tile/-1/001",
        "tile/0/x000/001",
        "tile/0/001/002",
        "tile/0/x001/x002",
        "tile/0/001.p/0",
        "tile/0/001.p/01",
        "tile/0/001.p/256",
        "tile/0/001.p/",
        "tile/data/001",
        "tile/0/001\n",
        "/tile/0/001",
        "tile/0/../001",
    ],
)
def test_another_spelling_is_refused(path: str) -> None:
    """A path has one spelling."""
    assert "BAD_TILE_PATH" == refusal(parse_tile_path, path)


@given(sizes, sizes)
def test_what_is_new_and_what_was_there_is_all(one: int, other: int) -> None:
    """Full tiles since a size, and those it had, are those of the larger; partial ones are the edge."""
    old, new = sorted((one, other))
    had, adds = set(tiles_of(old)), list(tiles_of(new, old))
    full = {tile for tile in had if tile.width == TILE_WIDTH}
    assert full.isdisjoint(adds)
    assert len(adds) == len(set(adds))
    assert set(tiles_of(new)) == full | set(adds) | {t for t in had if t in set(partial_tiles(new))}
    assert set(partial_tiles(old)) == had - full


# --- the tree ----------------------------------------------------------------------------------------------


@given(sizes, st.data())
@settings(deadline=None)
def test_a_tree_in_tiles_is_the_tree_in_memory(whole: Tree, size: int, data: st.DataObject) -> None:
    """Roots, leaves and proofs, of one that wrote the tiles and of one that is opened from them."""
    files, writer = stored(size)
    opened = TileTree(files.read)
    opened.load(size, whole.root(size))
    at = data.draw(st.integers(1, size))
    index = data.draw(st.integers(0, at - 1))
    more = LEAVES[size : size + data.draw(st.integers(0, 600))]
    for tree in (writer, opened):
        assert size == tree.size == tree.stored
        for _ in range(2):
            assert whole.root(at) == tree.root(at)
            assert whole.leaf(index) == tree.leaf(index)
            assert whole.inclusion(index, at) == tree.inclusion(index, at)
            assert whole.consistency(at, size) == tree.consistency(at, size)
            tree.extend(more)
        assert size + 2 * len(more) == tree.size
        tree.truncate(size)
        assert whole.root(size) == tree.root()


@given(st.lists(st.integers(1, 700), min_size=1, max_size=6))
@settings(deadline=None)
def test_tiles_written_in_steps_are_those_written_at_once(steps: list[int]) -> None:
    """Each step stores what is new and forgets it; full tiles and the last edge are the same bytes."""
    files = Files()
    tree = TileTree(files.read)
    size = 0
    for step in steps:
        tree.extend(LEAVES[size : size + step])
        files.store(tree, size)
        size += step
        tree.forget(size)
    at_once, _ = stored(size)
    assert at_once.files == {path: files.files[path] for path in at_once.files}


def test_memory_is_an_edge(whole: Tree) -> None:
    """What is stored is not held: at most two rows of 256 hashes a tile level."""
    _, tree = stored(MOST)
    held = sum(map(len, tree._levels))
    assert held < 3 * 2 * 256 * 32
    assert whole.root(MOST) == tree.root()


def test_an_empty_tree() -> None:
    """It has no tiles and the empty root."""
    tree = TileTree(Files().read)
    tree.load(0, EMPTY_ROOT)
    assert (0, EMPTY_ROOT) == (tree.size, tree.root())
    assert [] == list(tiles_of(0))


def test_what_is_stored_stays() -> None:
    """A tree cannot be cut below its tiles, nor forget what it never had, nor give a tile that it has not."""
    _, tree = stored(300)
    assert "OUT_OF_RANGE" == refusal(tree.truncate, 299)
    assert "OUT_OF_RANGE" == refusal(tree.forget, 301)
    assert "OUT_OF_RANGE" == refusal(tree.hashes, Tile(0, 0))
    assert "OUT_OF_RANGE" == refusal(tree.hashes, Tile(0, 1, 45))
    assert "OUT_OF_RANGE" == refusal(tree.hashes, Tile(9, 0, 1))
    assert "BAD_HASH" == refusal(tree.extend, [b"short"])


# --- damage ------------------------------------------------------------------------------------------------


@given(st.data())
@settings(deadline=None)
def test_a_damaged_tile_is_an_error_and_never_a_wrong_proof(whole: Tree, data: st.DataObject) -> None:
    """One bit of one tile: either the proof does not need it and is right, or it is refused."""
    size = 70_000
    files, _ = stored(size)
    path = data.draw(st.sampled_from(sorted(files.files)))
    good = files.files[path]
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    damaged = bytearray(good)
    damaged[bit // 8] ^= 1 << bit % 8
    files.files[path] = bytes(damaged)
    tree = TileTree(files.read)
    try:
        tree.load(size, whole.root(size))
    except FormatError as error:
        assert "ROOT_MISMATCH" == error.reason
        assert parse_tile_path(path).width < TILE_WIDTH
        return
    hash_at = (parse_tile_path(path).index * 256 + bit // 256) * 256 ** parse_tile_path(path).level
    near = st.integers(max(hash_at - 300, 0), min(hash_at + 300, size - 1))
    index = data.draw(st.one_of(near, st.integers(0, size - 1)))
    try:
        assert whole.inclusion(index, size) == tree.inclusion(index, size)
        assert whole.consistency(index + 1, size) == tree.consistency(index + 1, size)
    except FormatError as error:
        assert "BAD_TILE" == error.reason
        assert path in error.message


@pytest.mark.parametrize("length", [0, 1, 8191, 8193, 255 * 32])
def test_a_tile_of_another_length_is_refused(whole: Tree, length: int) -> None:
    """Cut short or too long."""
    files, _ = stored(70_000)
    files.files["tile/0/003"] = (files.files["tile/0/003"] * 2)[:length]
    tree = TileTree(files.read)
    tree.load(70_000, whole.root(70_000))
    assert "BAD_TILE" == refusal(tree.leaf, 3 * 256)
    assert whole.leaf(4 * 256) == tree.leaf(4 * 256)


def test_a_tile_of_another_place_is_refused(whole: Tree) -> None:
    """Two full tiles changed for each other."""
    files, _ = stored(70_000)
    names = ("tile/0/003", "tile/0/004")
    files.files |= {names[0]: files.files[names[1]], names[1]: files.files[names[0]]}
    tree = TileTree(files.read)
    tree.load(70_000, whole.root(70_000))
    assert "BAD_TILE" == refusal(tree.inclusion, 3 * 256, 70_000)


def test_tiles_read_once_are_kept(whole: Tree) -> None:
    """Proofs of neighbours read each tile once."""
    files, tree = stored(70_000)
    for index in range(256):
        tree.inclusion(index, 70_000)
    assert len(files.read_paths) == len(set(files.read_paths))


# --- bundles -----------------------------------------------------------------------------------------------


def test_a_bundle_is_a_run() -> None:
    """The specification's three entries."""
    data = bytes.fromhex("00036f6e65000374776f00057468726565")
    assert [b"one", b"two", b"three"] == decode_bundle(data, 3)
    assert data == encode_run([b"one", b"two", b"three"])


@pytest.mark.parametrize(
    ("data", "width", "reason"),
    [
        (b"\x00\x03one", 2, "BAD_TILE"),
        (b"\x00\x03one\x00\x00", 1, "BAD_TILE"),
        (b"\x00\x03on", 1, "CUT_SHORT"),
        (b"\x00", 1, "CUT_SHORT"),
        (b"", 1, "BAD_TILE"),
    ],
)
def test_a_bundle_of_another_length_is_refused(data: bytes, width: int, reason: str) -> None:
    """Each length is checked."""
    assert reason == refusal(decode_bundle, data, width)


# --- other people's log ------------------------------------------------------------------------------------

_KEY = "example.com/log/testdata+33d7b496+AeHTu4Q3hEIMHNqc6fASMsq3rKNx280NI+oO5xCFkkSx"


@pytest.mark.parametrize("size", range(2, 16))
def test_the_golden_log_of_tessera(sample_data: Path, size: int) -> None:
    """Its tiles, bundles and signed checkpoints are those that we read and would write."""
    golden = sample_data / "tessera-log"

    def read(level: int, index: int, width: int) -> bytes:
        return (golden / Tile(level, index, width).path).read_bytes()

    checkpoint = open_checkpoint((golden / f"checkpoint.{size}").read_bytes(), VerifierKey.parse(_KEY))
    assert size == checkpoint.size
    tree = TileTree(read)
    tree.load(size, checkpoint.root)
    (bundle,) = (tile for tile in partial_tiles(size) if tile.level == ENTRIES)
    entries = decode_bundle((golden / bundle.path).read_bytes(), size)
    leaves = [leaf_hash(entry) for entry in entries]
    assert b"".join(leaves) == read(0, 0, size) == tree.hashes(Tile(0, 0, size))
    for index in range(size):
        assert verify_inclusion(leaves[index], index, size, tree.inclusion(index, size), checkpoint.root)
        then = tree.root(index + 1)
        proof = tree.consistency(index + 1, size)
        assert verify_consistency(index + 1, size, then, checkpoint.root, proof)
