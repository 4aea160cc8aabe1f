"""A standby waits, reads along, and takes over without a gap or a fork: on both databases, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from clients.home import ledger_config
from ledger.checkpoint import open_note
from ledger.entry import encode_run
from ledger.errors import FatalError, FormatError
from ledger.server.config import load_config
from ledger.server.durable import Folder
from ledger.server.postgres import PostgresStore
from ledger.server.standby import Watch, remember, until_free
from ledger.server.store import Commit, Store
from tests.faults import FaultStore
from tests.lab import Lab
from tests.ports import free_port
from tests.server.people import batch, enqueued, reason_of, until


class Standby:
    """`python -m ledger.server --standby` for a lab's log. What it says on stderr is read line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdout, self._stderr = process.stdout, process.stderr
        self.said: list[str] = []

    async def says(self, what: str) -> None:
        """Waits until a line of stderr holds `what`."""
        while line := (await self._stderr.readline()).decode():
            self.said.append(line)
            if what in line:
                return
        raise AssertionError(f"expected {what!r}, got {self.said}")

    async def ready(self) -> dict[str, Any]:
        """Waits for the ready line."""
        ready: dict[str, Any] = json.loads(await self._stdout.readline())
        return ready

    async def ended(self) -> int:
        """Waits for its end; the exit code."""
        self.said += (await self._stderr.read()).decode().splitlines()
        return await self.process.wait()


@asynccontextmanager
async def standby(lab: Lab, *arguments: str, url: str | None, data: str) -> AsyncIterator[Standby]:
    """A standby of the lab's log, its own folder `data` in the home; killed afterwards if it still runs."""
    config = lab.path / f"{data.replace('/', '-')}.json"
    store = {} if url is None else {"store": url}
    config.write_text(json.dumps(ledger_config(lab.home) | lab._settings | {"data": data} | store))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ledger.server", "--config", str(config), "--standby", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Standby(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where a log is stored: None for SQLite, a fresh database for PostgreSQL."""
    if request.param == "sqlite":
        return None
    made: str = request.getfixturevalue("postgres_url")
    return made


def lab_on(url: str | None) -> Lab:
    """A ledger in a process of its own, on a port that its successor can take."""
    return Lab(subprocess=True, settings={"listen": f"127.0.0.1:{free_port()}"}, store_url=url)


def data_of(url: str | None) -> str:
    """SQLite's standby waits for the same folder, PostgreSQL's has its own, as on another machine."""
    return "ledger/data" if url is None else "ledger/other"


async def test_append_resend_restart_verify(url: str | None) -> None:
    """The whole story of a log on either database; the lab verifies all of it at the end."""
    async with lab_on(url) as lab:
        client = lab.of_role("runner")
        first = await client.append([enqueued(lab, "ro-1"), enqueued(lab, "ro-2")])
        signed = batch(lab.identity("runner-1"), [enqueued(lab, "ro-3")])
        second = await client.append_signed(signed)
        assert second.first_index == first.first_index + 2
        assert 0 == await lab.stop()
        await lab.start()
        again = await lab.of_role("runner").append_signed(signed)
        assert (second.first_index, second.recorded_at) == (again.first_index, again.recorded_at)
        await lab.kill()
        await lab.start()
        third = await lab.of_role("runner").append([enqueued(lab, "ro-4")])
        assert third.first_index == second.first_index + 1
        assert third.first_index + 1 == (await lab.check()).size


async def test_laws_03_05_06_a_standby_takes_over_without_gap_or_fork(url: str | None) -> None:
    """The first is killed in the middle of its work; authors send again to the same address and go on."""
    async with lab_on(url) as lab:
        before = await lab.check()
        async with standby(
            lab, *_released(lab, before.checkpoint, url), url=url, data=data_of(url)
        ) as second:
            await second.says("standing by")
            signed = batch(lab.identity("runner-1"), [enqueued(lab, "ro-1")])
            client = lab.of_role("runner", attempts=64)
            placed = await client.append_signed(signed)
            sending = [
                asyncio.create_task(lab.of_role("runner", attempts=64).append([enqueued(lab, f"ro-{n}")]))
                for n in range(2, 12)
            ]
            await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
            await lab.kill()
            ready = await second.ready()
            assert lab.address == ready["address"]
            assert ready["size"] >= placed.first_index + 1
            assert 1 == len([line for line in second.said if "standing by" in line])
            positions = {(await task).first_index for task in sending}
            assert len(positions) == 10
            again = await client.append_signed(signed)
            assert placed.first_index == again.first_index
            after = await lab.check()
            assert {placed.first_index, *positions} <= set(range(before.size, after.size))
            assert after.size == before.size + 11
            # The first comes back and finds its place taken.
            assert 3 == await _exit_of(lab)
            second.process.send_signal(signal.SIGTERM)
            assert 0 == await second.ended()


def _released(lab: Lab, note: bytes, url: str | None) -> tuple[str, ...]:
    """What hands a checkpoint to a standby whose folder is empty."""
    if url is None:
        return ()
    path = lab.root / "checkpoint.txt"
    path.write_bytes(note)
    return ("--released", str(path))


async def _exit_of(lab: Lab) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ledger.server", "--config", str(lab.path / "server.json")),
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


async def test_a_standby_that_is_told_to_stop_exits_with_0(url: str | None) -> None:
    """SIGTERM while it waits; the one that serves goes on."""
    async with lab_on(url) as lab:
        note = (await lab.check()).checkpoint
        async with standby(lab, *_released(lab, note, url), url=url, data=data_of(url)) as second:
            await second.says("standing by")
            second.process.send_signal(signal.SIGTERM)
            assert 0 == await second.ended()
        assert 1 == (await lab.of_role("runner").append([enqueued(lab)])).count


async def test_a_ledger_whose_place_was_taken_stops_by_itself(postgres_url: str) -> None:
    """Its session is ended while it has nothing to do, the standby gets the lock: the first exits with 3."""
    async with lab_on(postgres_url) as lab:
        lab._settings["listen"] = "127.0.0.1:0"  # the first still has its port
        note = (await lab.check()).checkpoint
        arguments = _released(lab, note, postgres_url)
        async with standby(lab, *arguments, url=postgres_url, data="ledger/other") as second:
            await second.says("standing by")
            # The first is stopped for as long as the take-over lasts: two that race is another test.
            assert lab._process is not None
            os.kill(lab._process.pid, signal.SIGSTOP)
            _end_holders(postgres_url)
            ready = await second.ready()
            os.kill(lab._process.pid, signal.SIGCONT)
            assert 3 == await lab.died()
            lab.address = ready["address"]
            assert 1 == (await lab.of_role("runner").append([enqueued(lab)])).count
            await lab.check()


async def test_a_ledger_beside_another_writer_shows_nothing_of_his_and_stops(postgres_url: str) -> None:
    """A writer without the lock, as only a fault can make one: readers get what was released here, and then
    HEAD_MOVED ends the ledger, though nobody writes."""
    async with stores_on(postgres_url) as (lab, store):
        client = lab.of_role("auditor")
        size = (await client.get_checkpoint()).size
        database: Any = store._database
        database._writer = database._connect()
        run = encode_run([b"not an entry of this ledger"])
        store.commit(Commit(size, run, (), size + 1, b"not a checkpoint of this ledger"))
        assert size == (await client.get_checkpoint()).size
        assert list(range(size)) == [index async for index, _ in client.read(0, size)]
        assert "OUT_OF_RANGE" == await reason_of(anext(aiter(client.read(0, size + 1))))
        assert lab.host is not None
        host, lab.host = lab.host, None
        for end in (host.serve, host.stop):
            with pytest.raises(FatalError) as caught:
                await end()
            assert "HEAD_MOVED" == caught.value.reason


async def test_a_database_out_of_reach_ends_the_command_with_75() -> None:
    """The service manager may start it again: nothing is wrong with the log."""
    async with Lab() as lab:
        await lab.stop()
        config = ledger_config(lab.home) | {"store": f"postgresql://assay@127.0.0.1:{free_port()}/assay"}
        (lab.path / "server.json").write_text(json.dumps(config))
        assert 75 == await _exit_of(lab)
        await lab.start()


async def test_a_password_in_the_configuration_is_refused_and_not_shown() -> None:
    """In the authority or in the query; another scheme is refused as well."""
    async with Lab() as lab:
        path = lab.path / "server.json"
        for url in (
            "postgresql://assay:s3cret@db/assay",
            "postgresql://assay@db/assay?password=s3cret",
            "mysql://s3cret/assay",
        ):
            path.write_text(json.dumps(ledger_config(lab.home) | {"store": url}))
            with pytest.raises(FormatError) as caught:
                load_config(path)
            assert "BAD_CONFIG" == caught.value.reason
            assert "s3cret" not in str(caught.value)


def _end_holders(url: str) -> None:
    """Ends the sessions that hold an advisory lock, and waits until they are gone."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        ).fetchall()
    assert [(True,)] == ended


# --- law 6 for a folder of its own -------------------------------------------------------------------------


@asynccontextmanager
async def stores_on(url: str) -> AsyncIterator[tuple[Lab, PostgresStore]]:
    """A ledger in this process, and its store as a process on another machine sees it."""
    async with Lab(store_url=url) as lab:
        other = PostgresStore(url, Folder(lab.root / "other"), lab.home.origin)
        with closing(other):
            yield lab, other


async def test_law_06_a_standby_that_remembers_nothing_is_refused(postgres_url: str) -> None:
    """RELEASED_MISSING while the log has entries, until a checkpoint is handed in."""
    async with stores_on(postgres_url) as (lab, store):
        keys = [lab.trust.log]
        with pytest.raises(FatalError, match="--released") as caught:
            Watch(store, keys)
        assert "RELEASED_MISSING" == caught.value.reason
        note = (await lab.check()).checkpoint
        remember(store, note, keys)
        assert note == store.released()
        Watch(store, keys)


async def test_law_06_a_standby_remembers_the_last_checkpoint_it_saw(postgres_url: str) -> None:
    """In its own folder, each look; a smaller one handed in later changes nothing."""
    async with stores_on(postgres_url) as (lab, store):
        keys = [lab.trust.log]
        first = (await lab.check()).checkpoint
        remember(store, first, keys)
        watch = Watch(store, keys)
        for number in range(3):
            await lab.of_role("runner").append([enqueued(lab, f"ro-{number}")])
            assert not watch.look()
            assert store.released() == (await lab.check()).checkpoint
        last = store.released()
        remember(store, first, keys)
        assert last == store.released()


async def test_law_06_a_database_set_back_while_a_standby_waits_is_refused(
    postgres_url: str, tmp_path: Path
) -> None:
    """A dump of an hour ago, restored: the standby saw more, and says so."""
    async with stores_on(postgres_url) as (lab, store):
        keys = [lab.trust.log]
        remember(store, (await lab.check()).checkpoint, keys)
        watch = Watch(store, keys)
        await lab.of_role("runner").append([enqueued(lab)])
        watch.look()
        await lab.stop()
        _set_back(postgres_url)
        with pytest.raises(FatalError) as caught:
            watch.look()
        assert "BEHIND_RELEASED" == caught.value.reason


def _set_back(url: str) -> None:
    """What a restored backup looks like: the last commit is not in it. A superuser can do that."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("ALTER TABLE stored_events DISABLE TRIGGER ALL")
        # The last commit's run and checkpoint, and the markers of its batches: they point at its entries.
        last = connection.execute(
            "SELECT max(originator_version) FROM stored_events WHERE topic = 'assay/run/v1'"
        ).fetchone()
        assert last is not None
        connection.execute(
            "DELETE FROM stored_events WHERE topic <> 'assay/marker/v1' AND originator_version >= %s"
            " OR topic = 'assay/marker/v1' AND substring(state from 33) >= int8send(%s)",
            [last[0], last[0] - 1],
        )
        connection.execute("ALTER TABLE stored_events ENABLE ALWAYS TRIGGER stored_events_append_only")


async def test_law_06_a_standby_exits_with_3_when_the_database_is_set_back(postgres_url: str) -> None:
    """The command: it remembered more than is there now."""
    async with stores_on(postgres_url) as (lab, store):
        note = (await lab.check()).checkpoint
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await lab.stop()
        with closing(store):
            store.hold()  # the one that serves, as far as the standby can see
            arguments = _released(lab, note, postgres_url)
            async with standby(lab, *arguments, url=postgres_url, data="ledger/second") as second:
                await second.says("standing by")
                await _until_remembered(lab.path / "ledger" / "second", placed.checkpoint_size)
                _set_back(postgres_url)
                assert 3 == await second.ended()
                assert "BEHIND_RELEASED" in second.said[-1]


async def _until_remembered(data: Path, size: int) -> None:
    """Waits until another process has written a checkpoint of `size` into its released file."""
    await until(lambda: b"\n%d\n" % size in (data / "released").read_bytes(), every=0.01)


async def test_law_06_a_ledger_refuses_a_database_set_back_or_a_folder_that_forgot(postgres_url: str) -> None:
    """As on SQLite, after any restart."""
    async with Lab(store_url=postgres_url) as lab:
        await lab.of_role("runner").append([enqueued(lab)])
        await lab.stop()
        data = lab.path / "ledger" / "data"
        data.rename(lab.root / "kept")
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "RELEASED_MISSING" == caught.value.reason
        shutil.rmtree(data)
        (lab.root / "kept").rename(data)
        _set_back(postgres_url)
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "BEHIND_RELEASED" == caught.value.reason


async def test_law_06_another_tree_at_the_remembered_size_is_a_fork(postgres_url: str) -> None:
    """The database was set back and grew again, otherwise, before the standby looked."""
    async with stores_on(postgres_url) as (lab, store):
        keys = [lab.trust.log]
        await lab.of_role("runner").append([enqueued(lab, "ro-1")])
        forked = (await lab.check()).checkpoint
        data = lab.path / "ledger" / "data"
        await lab.stop()
        _set_back(postgres_url)
        # Who sets the database back takes away what the ledger remembers as well.
        shutil.rmtree(data)
        with closing(lab.store()) as emptied:
            head = emptied.head()
            assert head is not None
            emptied.release(head[1])
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab, "ro-2")])
        remember(store, forked, keys)
        with pytest.raises(FatalError) as caught:
            Watch(store, keys).look()
        assert "FORKED" == caught.value.reason
        size = open_note(forked, lab.home.origin)[1].size
        assert size == (await lab.check()).size


async def test_a_checkpoint_by_another_key_is_refused(postgres_url: str) -> None:
    """What is handed in, and what the store says, must be signed by a key of this ledger."""
    async with stores_on(postgres_url) as (lab, store), Lab() as elsewhere:
        with pytest.raises(FatalError) as caught:
            remember(store, (await elsewhere.check()).checkpoint, [lab.trust.log])
        assert "BAD_RELEASED" == caught.value.reason
        remember(store, (await lab.check()).checkpoint, [lab.trust.log])
        with pytest.raises(FatalError) as caught:
            Watch(store, [elsewhere.trust.log])
        assert "BAD_RELEASED" == caught.value.reason


async def test_waiting_ends_with_the_error_that_is_not_another_writer() -> None:
    """Only ALREADY_RUNNING is waited for."""
    async with Lab() as lab:
        await lab.stop()
        store: Store = FaultStore(lab.store())
        with closing(store):
            assert isinstance(store, FaultStore)
            store.arm("hold", "not done", FatalError("NOT_DURABLE", "expected on, got off"))
            with pytest.raises(FatalError) as caught:
                await until_free(store.hold, asyncio.Event())
            assert "NOT_DURABLE" == caught.value.reason
        await lab.start()
