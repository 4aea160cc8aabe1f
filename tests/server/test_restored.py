"""Databases dumped and restored beside a ledger's folder: what is behind, or another log, is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from clients.home import ledger_config
from tests.lab import Lab
from tests.ports import free_port
from tests.postgres import database
from tests.server.people import batch, enqueued
from tests.server.test_standby import standby


@pytest.fixture
def restored_url(postgres_server: str) -> Iterator[str]:
    """An empty database for a dump to be restored in."""
    if shutil.which("pg_dump") is None or shutil.which("pg_restore") is None:
        pytest.skip("pg_dump and pg_restore are not installed")
    with database(postgres_server) as url:
        yield url


async def _run(*command: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert 0 == process.returncode, said.decode()


async def _dump(url: str, file: Path) -> Path:
    await _run("pg_dump", "--format=custom", f"--dbname={url}", f"--file={file}")
    return file


async def _restore(file: Path, url: str) -> None:
    await _run("pg_restore", "--exit-on-error", f"--dbname={url}", file)


async def _refused(lab: Lab, url: str, *arguments: str, **config: Any) -> tuple[int, str]:
    """Starts the lab's ledger on another database; it must not get ready: exit code, and its last words."""
    document: Mapping[str, Any] = ledger_config(lab.home) | {"store": url} | config
    path = lab.path / "elsewhere.json"
    path.write_text(json.dumps(document))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ledger.server", "--config", str(path), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert b"" == out
    assert process.returncode is not None
    return process.returncode, said.decode().splitlines()[-1]


def _kept(data: Path) -> dict[str, bytes]:
    """What the folder remembers, and what it published."""
    return {name: (data / name).read_bytes() for name in ("released", "tiles/checkpoint")}


async def test_law_06_an_older_dump_beside_a_newer_folder_is_refused(
    postgres_url: str, restored_url: str, tmp_path: Path
) -> None:
    """By a ledger and by a standby; the folder stays as it was, and serves the newer database again."""
    async with Lab(subprocess=True, store_url=postgres_url) as lab:
        await lab.of_role("runner").append([enqueued(lab, "ro-1")])
        dump = await _dump(postgres_url, tmp_path / "older")  # while it serves
        newer = batch(lab.identity("runner-1"), [enqueued(lab, "ro-2")])
        placed = await lab.of_role("runner").append_signed(newer)
        await lab.stop()
        await _restore(dump, restored_url)
        before = _kept(lab.path / "ledger" / "data")
        for arguments in ((), ("--standby",)):
            code, said = await _refused(lab, restored_url, *arguments)
            assert 3 == code
            assert "BEHIND_RELEASED" in said
        assert before == _kept(lab.path / "ledger" / "data")
        await lab.start()
        assert placed.first_index == (await lab.of_role("runner").append_signed(newer)).first_index


async def test_law_06_a_newer_dump_beside_a_standbys_older_folder_serves(
    postgres_url: str, restored_url: str, tmp_path: Path
) -> None:
    """The folder has tiles and views of a while ago, when the standby served; what it knew is in the log."""
    settings = {"listen": f"127.0.0.1:{free_port()}"}
    async with Lab(subprocess=True, settings=settings, store_url=postgres_url) as lab:
        handed = tmp_path / "handed-in"
        handed.write_bytes((await lab.check()).checkpoint)
        arguments = ("--released", str(handed))
        async with standby(lab, *arguments, url=postgres_url, data="ledger/second") as second:
            await second.says("standing by")
            await lab.kill()
            await second.ready()
            await lab.of_role("runner").append([enqueued(lab, "ro-1")])
            second.process.send_signal(signal.SIGTERM)
            assert 0 == await second.ended()
        await lab.start()
        newer = batch(lab.identity("runner-1"), [enqueued(lab, "ro-2")])
        placed = await lab.of_role("runner").append_signed(newer)
        whole = await lab.export()
        await lab.stop()
        await _restore(await _dump(postgres_url, tmp_path / "newer"), restored_url)
        async with standby(lab, url=restored_url, data="ledger/second") as second:
            ready = await second.ready()
            assert placed.first_index + 1 == ready["size"]
            assert await lab.export() == whole
            again = await lab.of_role("runner").append_signed(newer)
            assert placed.first_index == again.first_index
            after = await lab.of_role("runner").append([enqueued(lab, "ro-3")])
            assert placed.first_index + 1 == after.first_index
            assert after.first_index + 1 == (await lab.check()).size
            second.process.send_signal(signal.SIGTERM)
            assert 0 == await second.ended()


async def test_law_06_a_dump_of_another_log_is_refused(
    postgres_url: str, restored_url: str, tmp_path: Path
) -> None:
    """Its database under this log's configuration, and under its own beside this log's folder."""
    async with Lab(subprocess=True, store_url=postgres_url) as other:
        await other.of_role("runner").append([enqueued(other)])
        await _restore(await _dump(postgres_url, tmp_path / "others"), restored_url)
        async with Lab(subprocess=True) as lab:
            await lab.stop()
            data = lab.path / "ledger" / "data"
            before = _kept(data)
            for arguments in ((), ("--standby",)):
                code, said = await _refused(lab, restored_url, *arguments)
                assert 3 == code
                assert "BEHIND_RELEASED" in said
                code, said = await _refused(other, restored_url, *arguments, data=str(data))
                assert 3 == code
                assert "BAD_RELEASED" in said
            assert before == _kept(data)
            await lab.start()
