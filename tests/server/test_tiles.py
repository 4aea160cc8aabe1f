"""The tile writer: what a folder holds at any moment, and what a start makes of what it finds there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from clients.tiles import open_log
from ledger.checkpoint import Checkpoint, parse_checkpoint_text, sign_checkpoint
from ledger.entry import encode_run
from ledger.errors import FatalError
from ledger.export import read_export
from ledger.merkle import Tree, leaf_hash, verify_consistency, verify_inclusion
from ledger.note import parse_note
from ledger.tile import tiles_of
from tests.lab import Lab
from tests.server.people import enqueued, until
from tests.server.site import KEY, STRANGER, Log, check_site, entry, leaves


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """An empty log."""
    made = Log(tmp_path / "data")
    yield made
    made.close()


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
    whole = Tree(leaves(70_000))
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
