"""The released checkpoint on disk, and what the ledger does when a store fails, lags or lies.

A store's duties are tested in tests/contract.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ledger.errors import FatalError, OverloadedError
from ledger.server.durable import Folder, Released
from ledger.server.store import Store
from tests.faults import FaultStore
from tests.lab import Lab
from tests.server.people import batch, enqueued, reason_of


def test_a_released_value_that_was_cut_short_gives_the_one_before(tmp_path: Path) -> None:
    """Whatever prefix of the third write reached the disk, the second or the third value is read."""
    folder = Folder(tmp_path)
    released = Released(folder)
    for value in (b"one", b"two"):
        released.put(value)
    before = (tmp_path / "released").read_bytes()
    released.put(b"three")
    released.close()
    after = (tmp_path / "released").read_bytes()
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    for cut in range(changed[0], changed[-1] + 2):
        (tmp_path / "released").write_bytes(after[:cut] + before[cut:])
        again = Released(folder)
        assert again.get() == (b"three" if cut > changed[-1] else b"two")
        again.close()
    folder.close()


def test_two_spoiled_slots_are_not_an_empty_file(tmp_path: Path) -> None:
    """What was released and cannot be read is never taken for nothing."""
    folder = Folder(tmp_path)
    released = Released(folder)
    released.put(b"one")
    released.put(b"two")
    released.close()
    data = (tmp_path / "released").read_bytes()
    (tmp_path / "released").write_bytes(data.replace(b"one", b"ONE").replace(b"two", b"TWO"))
    with pytest.raises(FatalError) as caught:
        Released(folder)
    assert "BAD_RELEASED" == caught.value.reason
    folder.close()


# --- the ledger on such a store ----------------------------------------------------------------------------


async def test_law_04_a_commit_that_fails_moves_nothing_and_may_be_sent_again() -> None:
    """The author is told to come back; the very same batch then gets the place that was free."""
    stores: list[FaultStore] = []

    def wrap(store: Store) -> Store:
        stores.append(FaultStore(store))
        return stores[-1]

    async with Lab(wrap_store=wrap) as lab:
        client = lab.of_role("runner", attempts=1)
        size = (await client.get_checkpoint()).size
        signed = batch(lab.identity("runner-1"), [enqueued(lab)] * 5)
        lost = OverloadedError("COMMIT_FAILED", "expected the commit to be stored, got a fault", 0.0)
        stores[-1].arm("commit", "not done", lost)
        assert "COMMIT_FAILED" == await reason_of(client.append_signed(signed), OverloadedError)
        assert size == (await client.get_checkpoint()).size
        assert size == (await client.append_signed(signed)).first_index


async def test_a_store_in_doubt_stops_the_ledger_and_a_restart_settles_it() -> None:
    """The batch was stored although nobody could tell: after the restart it has its place."""
    stores: list[FaultStore] = []

    def wrap(store: Store) -> Store:
        stores.append(FaultStore(store))
        return stores[-1]

    async with Lab(wrap_store=wrap) as lab:
        assert lab.host is not None
        client = lab.of_role("runner", attempts=1)
        size = (await client.get_checkpoint()).size
        signed = batch(lab.identity("runner-1"), [enqueued(lab)])
        doubt = FatalError("STORE_DOUBTFUL", "expected to read the commit back, got a fault")
        stores[-1].arm("commit", "done", doubt)
        assert "STORE_DOUBTFUL" == await reason_of(client.append_signed(signed), FatalError)
        host, lab.host = lab.host, None
        with pytest.raises(FatalError):
            await host.serve()
        with pytest.raises(FatalError):
            await host.stop()
        await lab.start()
        assert size == (await lab.of_role("runner").append_signed(signed)).first_index


async def test_law_06_a_store_behind_the_released_checkpoint_refuses_to_start() -> None:
    """The database set back to an older copy, the released checkpoint not."""
    async with Lab() as lab:
        data = lab.path / "ledger" / "data"
        await lab.stop()
        shutil.copy(data / "ledger.sqlite", lab.root / "old.sqlite")
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab)])
        await lab.stop()
        shutil.copy(lab.root / "old.sqlite", data / "ledger.sqlite")
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "BEHIND_RELEASED" == caught.value.reason


async def test_law_06_another_tree_of_the_same_size_refuses_to_start() -> None:
    """The database set back and grown otherwise: the released root is not in it."""
    async with Lab() as lab:
        data = lab.path / "ledger" / "data"
        await lab.stop()
        shutil.copytree(data, lab.root / "old")
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab, "ro-1")])
        await lab.stop()
        shutil.copy(data / "released", lab.root / "newer")
        shutil.rmtree(data)
        shutil.copytree(lab.root / "old", data)
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab, "ro-2")])
        await lab.stop()
        shutil.copy(lab.root / "newer", data / "released")
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "FORKED" == caught.value.reason


async def test_a_spoiled_entry_in_the_store_refuses_to_start() -> None:
    """One byte of a stored run changed behind the ledger's back breaks a link or the root."""
    async with Lab() as lab:
        await lab.of_role("runner").append([enqueued(lab, "ro-spoiled")])
        await lab.stop()
        path = lab.path / "ledger" / "data" / "ledger.sqlite"
        path.write_bytes(path.read_bytes().replace(b"ro-spoiled", b"ro-spoiLed"))
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "STORE_BROKEN" == caught.value.reason


async def test_a_second_server_on_the_log_is_refused() -> None:
    """The lock of the folder."""
    async with Lab() as lab:
        with pytest.raises(FatalError) as caught:
            lab.store()
        assert "ALREADY_RUNNING" == caught.value.reason


async def test_law_06_a_store_without_its_released_checkpoint_refuses_to_start() -> None:
    """The file is gone: whether the store is the newest cannot be told, and missing is not healthy."""
    async with Lab() as lab:
        await lab.of_role("runner").append([enqueued(lab)])
        await lab.stop()
        (lab.path / "ledger" / "data" / "released").unlink()
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "RELEASED_MISSING" == caught.value.reason
