"""A log taken home as a folder of tiles: extended, verified, and refused where it is not the log's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clients.cli.audit import Audit
from clients.tiles import publish_tiles, write_tiles
from ledger.errors import AssayError, FormatError, RefusedError, VerificationError
from ledger.tile import ENTRIES, Tile, tiles_of
from ledger.verify import Verified
from tests.lab import Lab
from tests.server.people import enqueued


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    """A ledger of some three hundred entries."""
    async with Lab() as made:
        await grow(made, 300)
        yield made


async def grow(lab: Lab, count: int) -> None:
    """Appends a batch of rollouts."""
    author = lab.of_role("runner").open_stream()
    await author.append([enqueued(lab, f"ro-{lab.clock.now}-{number}") for number in range(count)])


async def export(lab: Lab, folder: Path) -> Verified:
    """What `assay export --tiles` does."""
    async with lab.of_role("auditor") as client:
        draft = await write_tiles(client, folder)
    verified = audit(lab, draft)
    publish_tiles(folder)
    return verified


def audit(lab: Lab, folder: Path) -> Verified:
    """What `assay verify` does."""
    return Audit(lab.trust, None).verify(folder)


def reason_of(error: pytest.ExceptionInfo[AssayError]) -> str:
    """The reason code."""
    return error.value.reason


async def test_a_folder_is_the_ledgers_own(lab: Lab, tmp_path: Path) -> None:
    """The same files, byte for byte, as the ledger publishes; and both verify as the log does."""
    verified = await export(lab, tmp_path / "tiles")
    assert await lab.check() == verified
    await lab.stop()
    own = lab.path / "ledger/data/tiles"
    for path in ("checkpoint", *(tile.path for tile in tiles_of(verified.size))):
        assert (own / path).read_bytes() == (tmp_path / "tiles" / path).read_bytes()
    assert verified == audit(lab, own) == audit(lab, tmp_path / "tiles")


async def test_a_folder_is_extended(lab: Lab, tmp_path: Path) -> None:
    """The next export continues it; what was full stays, a partial tile that is full now goes."""
    folder = tmp_path / "tiles"
    sizes = [(await export(lab, folder)).size]
    full = (folder / "tile/0/000").stat()
    for count in (1, 200, 0, 700):
        if count:
            await grow(lab, count)
        sizes.append((await export(lab, folder)).size)
        assert sizes[-2] + count == sizes[-1] == audit(lab, folder).size
    assert full == (folder / "tile/0/000").stat()
    assert not (folder / "tile/0/001.p").exists()
    assert {"checkpoint", "tile"} == {path.name for path in folder.iterdir()}


async def test_a_long_way_is_written_in_pieces(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full tiles as they come, partial ones of every level at the end."""
    monkeypatch.setattr("clients.tiles._FLUSH", 512)
    await grow(lab, 900)
    verified = await export(lab, tmp_path / "tiles")
    for path in (tile.path for tile in tiles_of(verified.size)):
        assert (tmp_path / "tiles" / path).exists(), path


async def test_a_killed_export_is_taken_up(lab: Lab, tmp_path: Path) -> None:
    """Tiles without a checkpoint, or under an older one, are compared and kept."""
    folder = tmp_path / "tiles"
    for count in (0, 400):
        if count:
            await grow(lab, count)
        async with lab.of_role("auditor") as client:
            await write_tiles(client, folder)  # and nothing more
        (folder / ".tile").write_bytes(b"half")
        assert (await export(lab, folder)).size == audit(lab, folder).size


async def test_another_logs_folder_is_refused(lab: Lab, tmp_path: Path) -> None:
    """Nothing of it is touched."""
    folder = tmp_path / "tiles"
    async with Lab() as other:
        await export(other, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RefusedError) as error:
        await export(lab, folder)
    assert "OTHER_LOG" == reason_of(error)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_law_06_a_folder_that_is_not_the_logs_beginning_is_refused(lab: Lab, tmp_path: Path) -> None:
    """Another entry in the last bundle's place, in the hashes: the folder and the log are a fork."""
    folder = tmp_path / "tiles"
    size = (await export(lab, folder)).size
    await grow(lab, 5)
    (partial,) = (t for t in tiles_of(size) if t.level == 0 and t.width < 256)
    path = folder / partial.path
    path.write_bytes(bytes(32) + path.read_bytes()[32:])
    with pytest.raises(FormatError) as error:
        await export(lab, folder)
    assert "ROOT_MISMATCH" == reason_of(error)


async def test_each_damage_is_found(lab: Lab, tmp_path: Path) -> None:
    """A bundle or hash tile that is gone, cut, longer, or changed in one bit; a checkpoint that is none."""
    folder = tmp_path / "tiles"
    size = (await export(lab, folder)).size
    audit(lab, folder)
    for tile in tiles_of(size):
        path = folder / tile.path
        good = path.read_bytes()
        for bad in (good[:-1], good + b"\x00", good[:-1] + bytes([good[-1] ^ 1]), b"", None):
            if bad is None:
                path.unlink()
            else:
                path.write_bytes(bad)
            with pytest.raises(VerificationError):
                audit(lab, folder)
            path.write_bytes(good)
    audit(lab, folder)
    for content, reason in ((b"no note", "BAD_NOTE"), (None, "NO_CHECKPOINT")):
        (folder / "checkpoint").unlink()
        if content is not None:
            (folder / "checkpoint").write_bytes(content)
        with pytest.raises(VerificationError) as error:
            audit(lab, folder)
        assert ("V5", reason) == (error.value.step, reason_of(error))


async def test_a_bundle_that_another_reader_would_cut_elsewhere_is_refused(lab: Lab, tmp_path: Path) -> None:
    """An entry moved from one bundle to the next leaves the run as it was, which is no static log."""
    folder = tmp_path / "tiles"
    size = (await export(lab, folder)).size
    first, second = (folder / Tile(ENTRIES, n, w).path for n, w in ((0, 256), (1, size - 256)))
    data = second.read_bytes()
    cut = 2 + int.from_bytes(data[:2], "big")
    first.write_bytes(first.read_bytes() + data[:cut])
    second.write_bytes(data[cut:])
    with pytest.raises(VerificationError) as error:
        audit(lab, folder)
    assert "BAD_TILE" == reason_of(error)
