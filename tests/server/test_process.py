"""The command: ready line, exit codes, genesis."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from ledger.errors import FormatError
from ledger.genesis import decode_genesis, encode_genesis
from ledger.server.config import load_config
from tests.lab import Lab
from tests.server.people import enqueued


async def _exit_of(config: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ledger.server", "--config", str(config), stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def test_a_graceful_stop_exits_with_0_and_keeps_the_log() -> None:
    """SIGTERM, then the same log again with everything in it."""
    async with Lab(subprocess=True) as lab:
        placed = await lab.of_role("runner").append([enqueued(lab)])
        assert 0 == await lab.stop()
        await lab.start()
        assert placed.checkpoint_size == (await lab.of_role("auditor").get_checkpoint()).size


async def test_a_second_process_on_the_log_exits_with_3() -> None:
    """ALREADY_RUNNING is the operator's to see; the first process goes on."""
    async with Lab(subprocess=True) as lab:
        assert 3 == await _exit_of(lab.path / "server.json")
        assert 1 == (await lab.of_role("runner").append([enqueued(lab)])).count


async def test_a_configuration_that_is_none_exits_with_2(tmp_path: Path) -> None:
    """An unknown field is a fault, not a default."""
    config = tmp_path / "server.json"
    config.write_text(json.dumps({"listen": "127.0.0.1:0", "colour": "blue"}))
    assert 2 == await _exit_of(config)
    with pytest.raises(FormatError):
        load_config(config)


def test_genesis_reads_back_what_was_written() -> None:
    """Notes and events in their order."""
    batches = [(b"note one", [b"a", b"bc"]), (b"note two", [b"\x00" * 60_000])]
    assert batches == decode_genesis(encode_genesis(batches))


def test_a_genesis_cut_anywhere_is_refused_or_shorter_by_whole_batches() -> None:
    """A cut inside a batch is CUT_SHORT; a cut between two gives the batches before."""
    whole = encode_genesis([(b"note one", [b"a"]), (b"note two", [b"b"])])
    border = len(encode_genesis([(b"note one", [b"a"])]))
    for cut in range(len(whole)):
        if cut in (0, border):
            assert cut // border == len(decode_genesis(whole[:cut]))
            continue
        with pytest.raises(FormatError) as caught:
            decode_genesis(whole[:cut])
        assert "CUT_SHORT" == caught.value.reason


@pytest.mark.parametrize("part", ["keeper", "folds"])
async def test_a_part_that_breaks_ends_the_ledger(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it appends would hang in the end: whoever serves learns of it at once."""

    async def broken(self: object) -> None:
        raise RuntimeError("broken")

    owner = {"keeper": "ledger.server.keeper.Keeper", "folds": "ledger.server.folds.FoldRunner"}[part]
    async with Lab() as lab:
        await lab.stop()
        with monkeypatch.context() as patch:
            patch.setattr(f"{owner}.run", broken)
            host = lab.build()
            await host.start()
            with pytest.raises(RuntimeError, match="broken"):
                await host.serve()
            for task in host._tasks:
                task.cancel()
            await asyncio.gather(*host._tasks, return_exceptions=True)
            await host.server.stop(None)
            host.services.reader.close()
            host.store.close()
        await lab.start()
