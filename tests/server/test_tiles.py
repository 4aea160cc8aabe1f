"""The tile writer: what a folder holds at any moment, and what becomes of it when disk or process fails."""

from __future__ import annotations

import errno
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from clients.tiles import open_log
from ledger.checkpoint import Checkpoint, parse_checkpoint_text, sign_checkpoint
from ledger.entry import encode_run, iter_run
from ledger.errors import FatalError
from ledger.export import read_export
from ledger.merkle import Tree, leaf_hash, verify_consistency, verify_inclusion
from ledger.note import SigningKey, parse_note
from ledger.server import durable
from ledger.server.durable import Files, Folder
from ledger.server.sequencer import Head
from ledger.server.sqlite import SQLiteStore
from ledger.server.store import Commit
from ledger.server.tiles import TiledTree, TileWriter
from ledger.tile import ENTRIES, TILE_WIDTH, Tile, parse_tile_path, tiles_of
from tests.crash.steps import Fault, build_shim, strike
from tests.lab import Lab
from tests.server.people import enqueued, until

KEY = SigningKey("log-0123456789abcdef", bytes(range(32)))
STRANGER = SigningKey("log-0123456789abcdef", bytes(32))


def entry(index: int) -> bytes:
    """An entry's bytes: of many lengths, none and 65,535 among them."""
    if index == 3:
        return b""
    return b"%d " % index * (index % 50) if index != 300 else bytes(65_535)


# --- the reference: what a static log of some entries is, made from its definition -------------------------


def row(level: int, size: int) -> list[bytes]:
    """The complete nodes of a level, 8 levels of the tree a step."""
    if level == 0:
        return _leaves(size)
    below = row(level - 1, size)
    return [Tree(below[n : n + 256]).root() for n in range(0, len(below) - 255, 256)]


@functools.cache
def _leaf(index: int) -> bytes:
    return leaf_hash(entry(index))


def _leaves(size: int) -> list[bytes]:
    return [_leaf(index) for index in range(size)]


def expected(tile: Tile, size: int) -> bytes:
    """A tile's bytes."""
    start = tile.index * TILE_WIDTH
    if tile.level == ENTRIES:
        return encode_run(map(entry, range(start, start + tile.width)))
    return b"".join(row(tile.level, size)[start : start + tile.width])


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
            assert Tree(_leaves(size)).root() == self.tree.root()

    def close(self) -> None:
        """Lets go of the store."""
        self.store.close()

    @property
    def state(self) -> Any:
        """What the writer asks of the sequencer's state."""
        return self

    authority = trust = property(lambda self: self)
    ledger_keys = (KEY.verifier_key,)
    log = KEY.verifier_key

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


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """An empty log."""
    made = Log(tmp_path / "data")
    yield made
    made.close()


def check_site(folder: Path, size: int | None = None) -> int:
    """That everything the folder's checkpoint calls for is there and right, and nothing else is wrong.

    Gives the size, which must be `size` where that is given; 0 without a checkpoint.
    """
    published = 0
    if (folder / "checkpoint").exists():
        checkpoint = parse_checkpoint_text(parse_note((folder / "checkpoint").read_bytes()).text)
        published = checkpoint.size
        assert Tree(_leaves(published)).root() == checkpoint.root
        for tile in tiles_of(published):
            whole = folder / Tile(tile.level, tile.index).path
            path = folder / tile.path if (folder / tile.path).exists() else whole
            assert path.exists(), tile
    for path in (folder / "tile").rglob("*"):
        if path.is_file():
            tile = parse_tile_path(str(path.relative_to(folder)))
            end = (tile.index * 256 + tile.width) * 256 ** max(tile.level, 0)
            assert expected(tile, end) == path.read_bytes(), tile
    if size is not None:
        assert size == published
        assert not (folder / ".temp").exists() or not list((folder / ".temp").iterdir())
    return published


# --- what is written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [256, 512, 2**17])
async def test_a_folder_is_a_static_log(log: Log, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """After each publication, made in one go or in several, every tile and the checkpoint are as their
    definitions say."""
    monkeypatch.setattr("ledger.server.tiles._AT_ONCE", at_once)
    writer = log.writer()
    for count in (1, 1, 253, 1, 1, 255, 700, 4):
        log.grow(count)
        assert await writer._publish()
        check_site(log.tiles, log.size)
        assert log.head.checkpoint == (log.tiles / "checkpoint").read_bytes()
        assert log.size == writer.published == log.tree.stored


async def test_a_third_level_and_a_long_way(log: Log) -> None:
    """70,000 entries at once: proofs that are read from the tiles are those of a tree in memory."""
    for _ in range(7):
        log.grow(10_000)
    writer = log.writer()
    assert await writer._publish()
    check_site(log.tiles, 70_000)
    whole = Tree(_leaves(70_000))
    for index, size in ((0, 1), (255, 256), (256, 69_999), (65_535, 65_536), (12_345, 70_000)):
        assert whole.inclusion(index, size) == log.tree.inclusion(index, size)
        assert whole.consistency(index + 1, size) == log.tree.consistency(index + 1, size)


async def test_partial_tiles_go_when_the_full_one_is_there(log: Log) -> None:
    """As long as a tile grows its earlier widths stay: somebody may hold an older checkpoint."""
    writer = log.writer()
    for count in (100, 100, 100):
        log.grow(count)
        await writer._publish()
        names = {str(path.relative_to(log.tiles)) for path in log.tiles.glob("tile/0/000*/*")}
        assert names == (
            {f"tile/0/000.p/{n}" for n in (100, 200) if n <= log.size} if log.size < 256 else set()
        )
    assert (log.tiles / "tile/0/000").exists()


async def test_a_folder_reads_as_the_log(log: Log) -> None:
    """The stream that a verifier reads is the export file's, byte for byte."""
    writer = log.writer()
    log.grow(600)
    await writer._publish()
    with open_log(log.tiles) as stream:
        note, run = read_export(BytesIO(stream.read()))
    assert log.head.checkpoint == note
    assert encode_run(map(entry, range(600))) == b"".join(run)


async def test_nobody_else_may_look_in(log: Log) -> None:
    """The folder is its owner's alone until he publishes it."""
    writer = log.writer()
    log.grow(1)
    await writer._publish()
    assert 0o700 == log.tiles.stat().st_mode & 0o777


async def test_an_empty_log_publishes_nothing(tmp_path: Path) -> None:
    """There is no checkpoint of nothing."""
    async with Lab(settings={"genesis": ()}) as lab:
        assert lab.host is not None
        assert await lab.host.tiles._publish()
        assert not (lab.path / "ledger/data/tiles/checkpoint").exists()
        await lab.stop()


async def test_a_stop_does_not_wait_for_a_long_way(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is far behind is left to the next start; what is near is published."""
    monkeypatch.setattr("ledger.server.tiles._AT_ONCE", 512)
    log.grow(1000)
    writer = log.writer()
    writer._stopping.set()
    assert await writer._publish()
    assert 0 == check_site(log.tiles) == writer.published
    writer = log.writer()
    assert await writer._publish()
    check_site(log.tiles, 1000)
    log.grow(512)
    writer._stopping.set()
    assert await writer._publish()
    check_site(log.tiles, 1512)


# --- starting again ----------------------------------------------------------------------------------------


async def test_a_start_goes_on_from_the_tiles(log: Log) -> None:
    """The tree is opened at the published size, and what came after is taken from the store."""
    writer = log.writer()
    log.grow(1000)
    await writer._publish()
    log.grow(30)
    log.close()
    log.open()
    assert 1000 == log.begun
    writer = log.writer()
    assert 1000 == writer.published
    await writer._publish()
    check_site(log.tiles, 1030)


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "no checkpoint", "stranger"])
async def test_a_damaged_edge_is_built_again(log: Log, damage: str) -> None:
    """Tiles that do not have the checkpoint's root, and a checkpoint that is not ours, count for nothing."""
    log.grow(700)
    await log.writer()._publish()
    edge, checkpoint = log.tiles / "tile/0/002.p/188", log.tiles / "checkpoint"
    if damage == "missing":
        edge.unlink()
    elif damage == "cut":
        edge.write_bytes(edge.read_bytes()[:-1])
    elif damage == "changed":
        edge.write_bytes(bytes(32) + edge.read_bytes()[32:])
    elif damage == "no checkpoint":
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(log.note(700, STRANGER))
    log.close()
    log.open()
    assert 0 == log.begun
    writer = log.writer()
    assert 0 == writer.published
    await writer._publish()
    check_site(log.tiles, 700)


async def test_a_lost_folder_is_built_again(log: Log) -> None:
    """The same bytes as before."""
    for count in (300, 300, 300):
        log.grow(count)
        await log.writer()._publish()
    before = {tile.path: (log.tiles / tile.path).read_bytes() for tile in tiles_of(900)}
    shutil.rmtree(log.tiles)
    log.close()
    log.open()
    await log.writer()._publish()
    check_site(log.tiles, 900)
    assert before == {tile.path: (log.tiles / tile.path).read_bytes() for tile in tiles_of(900)}


async def test_a_damaged_tile_is_an_error_when_a_proof_needs_it(log: Log) -> None:
    """And every other proof is served; no proof is ever wrong."""
    log.grow(1000)
    await log.writer()._publish()
    log.close()
    log.open()
    tile = log.tiles / "tile/0/001"
    tile.write_bytes(tile.read_bytes()[:-1] + b"\x00")
    with pytest.raises(FatalError) as caught:
        log.tree.inclusion(300, 1000)
    assert "TILE_DAMAGED" == caught.value.reason
    assert "tile/0/001" in caught.value.message
    root, leaf = log.head.root, leaf_hash(entry(600))
    assert verify_inclusion(leaf, 600, 1000, log.tree.inclusion(600, 1000), root)
    assert verify_consistency(999, 1000, log.tree.root(999), root, log.tree.consistency(999, 1000))
    tile.unlink()
    with pytest.raises(FatalError):
        log.tree.leaf(300)


# --- law 6 -------------------------------------------------------------------------------------------------


async def test_law_06_tiles_that_are_ahead_of_the_store_refuse_to_start(log: Log, tmp_path: Path) -> None:
    """A store set back together with its released checkpoint shows, since the tiles were not."""
    log.grow(100)
    old = tmp_path / "old"
    log.close()
    shutil.copytree(log.folder, old)
    log.open()
    log.grow(100)
    await log.writer()._publish()
    log.close()
    shutil.copytree(log.tiles, old / "tiles", dirs_exist_ok=True)
    set_back = Log(old)
    try:
        with pytest.raises(FatalError) as caught:
            set_back.writer()
        assert "BEHIND_RELEASED" == caught.value.reason
    finally:
        set_back.close()
        log.open()


async def test_law_06_tiles_of_another_history_refuse_to_start(log: Log) -> None:
    """This ledger's signature under another tree of a size that the store has."""
    log.grow(100)
    await log.writer()._publish()
    other = sign_checkpoint(Checkpoint(KEY.verifier_key.name, 50, bytes(32)), KEY)
    (log.tiles / "checkpoint").write_bytes(other)
    with pytest.raises(FatalError) as caught:
        log.writer()
    assert "FORKED" == caught.value.reason


async def test_law_06_a_full_tile_is_never_written_over(log: Log) -> None:
    """Other bytes in a tile that is about to be written stop the ledger."""
    log.grow(100)
    writer = log.writer()
    await writer._publish()
    log.grow(400)
    path = log.tiles / "tile/0/000"
    path.write_bytes(bytes(8192))
    with pytest.raises(FatalError) as caught:
        await writer._publish()
    assert "TILE_CONFLICT" == caught.value.reason
    assert bytes(8192) == path.read_bytes()
    assert 100 == parse_checkpoint_text(parse_note((log.tiles / "checkpoint").read_bytes()).text).size


# --- faults ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Steps:
    """Counts the writer's steps on the disk, and lets one of them fail in one of the ways."""

    at: int
    action: str
    #: Files are written side by side.
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`real`, with the fault."""

        def step(*arguments: Any, **named: Any) -> Any:
            now = next(self.numbers) == self.at
            if now and self.action == "before":
                raise Killed
            if now and self.action in {"fail", "full"}:
                raise OSError(errno.ENOSPC if self.action == "full" else errno.EIO, "injected")
            try:
                return real(*arguments, **named)
            finally:  # also where it found out by itself that nothing is there
                if now and self.action == "after":
                    raise Killed
                if now and self.action == "lie":
                    raise OSError(errno.EIO, "injected")

        return step


def _inject(steps: Steps, patch: pytest.MonkeyPatch) -> None:
    """Opening a temporary file, its flush, its rename, new folders, and removing old tiles are the steps."""
    for owner, name in (
        (durable.os, "fsync"),
        (Path, "open"),
        (Path, "mkdir"),
        (Path, "replace"),
        (shutil, "rmtree"),
    ):
        patch.setattr(owner, name, steps.around(getattr(owner, name)))


async def _grown(folder: Path) -> tuple[Log, TileWriter]:
    """A log whose next publication fills a tile, begins another, and makes new folders."""
    log = Log(folder)
    writer = log.writer()
    log.grow(200)
    assert await writer._publish()
    log.grow(100)
    return log, writer


async def _steps(folder: Path) -> int:
    log, writer = await _grown(folder)
    steps = Steps(0, "none")
    with pytest.MonkeyPatch.context() as patch:
        _inject(steps, patch)
        assert await writer._publish()
    log.close()
    check_site(log.tiles, 300)
    return next(steps.numbers) - 1


@pytest.mark.parametrize("action", ["before", "after", "fail", "lie", "full"])
async def test_law_03_each_step_may_fail(tmp_path: Path, action: str) -> None:
    """Killed before or after a step, or told that it failed, done or not: what the checkpoint calls for is
    there, and the next publication, of this process or of one that starts again, completes it."""
    count = await _steps(tmp_path / "count")
    assert count > 20
    for number in range(1, count + 1):
        log, writer = await _grown(tmp_path / f"{number}")
        with pytest.MonkeyPatch.context() as patch:
            _inject(Steps(number, action), patch)
            if action in {"before", "after"}:
                with pytest.raises(Killed):
                    await writer._publish()
            else:
                assert not await writer._publish()
                assert 1 == writer.failures
        assert check_site(log.tiles) in {200, 300}
        if action in {"before", "after"}:
            log.close()
            log.open()
            writer = log.writer()
        log.grow(3)
        assert await writer._publish()
        check_site(log.tiles, 303)
        log.close()


def test_files_appear_whole(tmp_path: Path) -> None:
    """What a killed writer left goes at the next start."""
    files = Files(tmp_path / "made")
    files.write([("a/b", b"1"), ("c", b"2")])
    assert (b"1", b"2") == ((tmp_path / "made/a/b").read_bytes(), (tmp_path / "made/c").read_bytes())
    (tmp_path / "made/.temp/0").write_bytes(b"half")
    Files(tmp_path / "made")
    assert [] == list((tmp_path / "made/.temp").iterdir())


# --- a whole ledger ----------------------------------------------------------------------------------------


async def test_a_ledger_publishes_beside_its_appends() -> None:
    """Stopped, it has published all it acknowledged; started again, it goes on from there."""
    async with Lab() as lab:
        runner = lab.of_role("runner").open_stream()
        for number in range(3):
            await runner.append([enqueued(lab, f"ro-{number}-{k}") for k in range(150)])
        size = (await lab.of_role("auditor").get_checkpoint()).size
        await lab.stop()
        tiles = lab.path / "ledger/data/tiles"
        with open_log(tiles) as stream:
            published = stream.read()
        await lab.start()
        assert lab.host is not None
        assert size == lab.host.tiles.published == lab.host.services.sequencer.state.tree.stored
        assert published == await lab.export()
        auditor = lab.of_role("auditor")
        for index in (0, 100, size - 1):
            await auditor.prove_inclusion(index)
        again = lab.of_role("runner").open_stream()
        await again.append([enqueued(lab, "ro-last")])


async def test_a_full_disk_stops_no_append(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log goes on; the operator is told once, and again when tiles are written."""
    monkeypatch.setattr("ledger.server.tiles._EVERY", 0)
    monkeypatch.setattr("ledger.server.tiles._RETRY", 0)

    def full(files: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with Lab() as lab:
        assert lab.host is not None
        tiles, sequencer = lab.host.tiles, lab.host.services.sequencer
        await until(lambda: tiles.published == sequencer.size)
        before = tiles.published
        with monkeypatch.context() as patch:
            patch.setattr(tiles._files, "write", full)
            runner = lab.of_role("runner").open_stream()
            for number in range(3):
                await runner.append([enqueued(lab, f"ro-{number}")])
                await until(lambda: tiles.failures > number)  # noqa: B023 - awaited here
            assert before == tiles.published
        await until(lambda: tiles.published == sequencer.size)
        assert before + 3 == tiles.published
        told = [record for record in caplog.records if record.name == "ledger.server.tiles"]
        assert ["ERROR", "WARNING"] == [record.levelname for record in told]
        assert "No space left on device" in told[0].message


async def test_law_06_a_tile_of_another_log_ends_the_ledger() -> None:
    """Exit code 3; what was acknowledged is in the store."""
    async with Lab(subprocess=True) as lab:
        path = lab.path / "ledger/data/tiles/tile/0/000"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(8192))
        await lab.of_role("runner").open_stream().append([enqueued(lab, f"ro-{k}") for k in range(300)])
        assert 3 == await lab.died()
        assert bytes(8192) == path.read_bytes()
        shutil.move(lab.path / "ledger/data/tiles", lab.root / "evidence")
        await lab.start()
        assert 300 < (await lab.check()).size


# --- a real process, struck in the system call -------------------------------------------------------------


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled faults."""
    try:
        return build_shim(tmp_path_factory.mktemp("shim"))
    except FileNotFoundError as absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(action, call, path)
        for call, path, actions in (
            ("write", "/tiles/.temp/", ("fail", "full", "short", "before", "after")),
            ("sync", "/tiles/.temp/", ("fail", "lie", "before", "after")),
            ("rename", "/tiles/tile/", ("fail", "lie", "before", "after")),
            ("sync", "/tiles/tile/", ("fail", "lie", "before", "after")),
            ("rename", "/tiles/checkpoint", ("fail", "lie", "before", "after")),
        )
        for action in actions
    ],
    ids=str,
)
async def test_law_03_a_fault_at_a_tile_loses_no_append(shim: Path, tmp_path: Path, fault: Fault) -> None:
    """Only a killed ledger ends, and everything acknowledged stands."""
    outcome = await strike(shim, tmp_path, fault)
    assert outcome.codes == ((-9,) if fault.action in {"before", "after"} else ())
