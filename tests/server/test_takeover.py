"""Who serves after a fault: one ledger, never two, whatever became of the others. Under load."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import psycopg
import pytest

from clients.ids import uuid7
from ledger.errors import AssayError, FatalError, InputError
from ledger.server import sequencer
from ledger.server.durable import Folder
from ledger.server.host import Settings, build_server
from ledger.server.postgres import PostgresStore
from ledger.server.recovery import recover
from ledger.server.standby import remember
from tests.crash.audit import Audit
from tests.crash.load import Load, Promises
from tests.faults import FaultStore
from tests.lab import Lab
from tests.ports import free_port
from tests.server.people import batch, enqueued
from tests.server.test_standby import Standby, standby

_SOME = 100  # acknowledged events between two faults
_ROUNDS = 8


class Name:
    """What clients are told: an address that leads to the ledger that serves, as a TCP proxy does it."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._target = ""
        self._open: set[asyncio.Task[None]] = set()
        self.address = ""

    async def start(self, target: str) -> None:
        """Leads to `target` from now on."""
        self._target = target
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def point(self, target: str) -> None:
        """Leads elsewhere; connections that are open end."""
        self._target = target
        for task in self._open:
            task.cancel()

    async def stop(self) -> None:
        """Ends what is open."""
        self.point("")
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        host, _, port = self._target.rpartition(":")
        try:
            with suppress(OSError):  # nobody serves there now
                there, away = await asyncio.open_connection(host, int(port))
                try:
                    await asyncio.gather(_pump(reader, away), _pump(there, writer))
                finally:
                    away.transport.abort()
        except asyncio.CancelledError:
            pass  # pointed elsewhere
        finally:
            writer.transport.abort()
            self._open.discard(task)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(2**16):
        sink.write(data)
        await sink.drain()
    sink.write_eof()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """Where a log is stored: None for SQLite, a fresh database for PostgreSQL."""
    if request.param == "sqlite":
        return None
    made: str = request.getfixturevalue("postgres_url")
    return made


async def _handed_in(lab: Lab) -> tuple[str, str]:
    """The log's checkpoint, for a folder that remembers nothing."""
    path = lab.root / "handed-in"
    path.write_bytes((await lab.check()).checkpoint)
    return ("--released", str(path))


@asynccontextmanager
async def _under_load(lab: Lab, seed: int) -> AsyncIterator[Promises]:
    """Authors at work; at the end each has its last answer, and all they were promised is audited."""
    promises = Promises()
    load = Load(lab, promises, seed)
    load.start()
    try:
        await promises.until(_SOME)
        yield promises
        await promises.until(len(promises.acknowledged) + _SOME)
        await load.stop()
    except BaseException:
        await load.abandon()
        raise
    await Audit(lab, promises).run()


async def _first_of(*standbys: Standby) -> tuple[Standby, Standby]:
    """Waits until one of two serves: that one, and the other."""
    readying = [asyncio.create_task(one.ready()) for one in standbys]
    done, _ = await asyncio.wait(readying, return_when=asyncio.FIRST_COMPLETED)
    for task in readying:
        task.cancel()
    await asyncio.gather(*readying, return_exceptions=True)
    assert 1 == len(done)
    served = [readying[0] in done, readying[1] in done].index(True)
    return standbys[served], standbys[1 - served]


async def test_laws_03_05_06_of_two_standbys_one_serves_and_the_other_waits(url: str | None) -> None:
    """The ledger is killed, then the one that took its place; authors go on through both."""
    settings = {"listen": f"127.0.0.1:{free_port()}"}
    async with Lab(subprocess=True, settings=settings, store_url=url) as lab:
        arguments = () if url is None else await _handed_in(lab)
        folders = ("ledger/data", "./ledger/data") if url is None else ("ledger/second", "ledger/third")
        async with (
            standby(lab, *arguments, url=url, data=folders[0]) as one,
            standby(lab, *arguments, url=url, data=folders[1]) as other,
        ):
            await one.says("standing by")
            await other.says("standing by")
            async with _under_load(lab, 1) as promises:
                await lab.kill()
                serving, waiting = await _first_of(one, other)
                await promises.until(len(promises.acknowledged) + _SOME)
                assert None is serving.process.returncode is waiting.process.returncode
                serving.process.kill()
                assert lab.address == (await waiting.ready())["address"]
            waiting.process.send_signal(signal.SIGTERM)
            assert 0 == await waiting.ended()
            assert [] == [line for line in waiting.said if "CRITICAL" in line or "ERROR" in line]
            await lab.start()  # For the lab's own audit.


_WRITER = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_EVERY = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'assay-ledger'"
)


def _terminate(url: str, which: str) -> int:
    """Ends sessions of the database and waits until they are gone; how many."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        return len(connection.execute(which).fetchall())


@pytest.mark.parametrize("which", [_WRITER, _EVERY], ids=["writer", "every session"])
async def test_laws_03_05_a_ledger_whose_sessions_end_goes_on_or_gives_way(
    postgres_url: str, which: str
) -> None:
    """Again and again under load, a standby waiting: whoever gets the lock serves, alone."""
    async with Lab(subprocess=True, store_url=postgres_url) as lab:
        arguments = await _handed_in(lab)
        first, name = lab.address, Name()
        await name.start(first)
        lab.address = name.address
        async with standby(lab, *arguments, url=postgres_url, data="ledger/second") as second:
            await second.says("standing by")
            ending, taking = asyncio.create_task(lab.died()), asyncio.create_task(second.ready())
            async with _under_load(lab, 2) as promises:
                for _ in range(_ROUNDS):
                    assert 1 <= await asyncio.to_thread(_terminate, postgres_url, which)
                    more = asyncio.create_task(promises.until(len(promises.acknowledged) + _SOME))
                    await asyncio.wait({ending, more}, return_when=asyncio.FIRST_COMPLETED)
                    if ending.done() and not taking.done():
                        assert ending.result() in (3, 75)
                        name.point((await taking)["address"])
                    await more
                assert ending.done() == taking.done()
            for task in (ending, taking):
                task.cancel()
            await asyncio.gather(ending, taking, return_exceptions=True)
            await name.stop()
            if lab.running:
                lab.address = first


async def test_laws_03_05_06_a_ledger_that_was_paused_gives_way_and_may_stand_by(postgres_url: str) -> None:
    """As a frozen machine: its place is taken, it wakes with calls at hand, adds nothing, and ends. What it
    kept on its disk serves it when it takes the place back."""
    async with Lab(subprocess=True, store_url=postgres_url) as lab:
        arguments = await _handed_in(lab)
        first, name = lab.address, Name()
        await name.start(first)
        lab.address = name.address
        async with standby(lab, *arguments, url=postgres_url, data="ledger/second") as second:
            await second.says("standing by")
            async with _under_load(lab, 3) as promises:
                os.kill(lab.pid, signal.SIGSTOP)
                assert 1 == await asyncio.to_thread(_terminate, postgres_url, _WRITER)
                name.point((await second.ready())["address"])
                await promises.until(len(promises.acknowledged) + _SOME)
                # Authors who still have the old address; their calls lie there when it wakes up.
                lab.address = first
                late = [lab.client("runner-1", attempts=1) for _ in range(8)]
                lab.address = name.address
                theirs = [enqueued(lab) for _ in late]
                calls = [
                    asyncio.create_task(author.append([event]))
                    for author, event in zip(late, theirs, strict=True)
                ]
                os.kill(lab.pid, signal.SIGCONT)
                assert 3 == await lab.died()
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(a, AssayError) and not isinstance(a, InputError) for a in answers)
                await promises.until(len(promises.acknowledged) + _SOME)
                async with standby(lab, url=postgres_url, data="ledger/data") as third:
                    await third.says("standing by")
                    second.process.kill()
                    name.point((await third.ready())["address"])
                    await promises.until(len(promises.acknowledged) + _SOME)
                    whole = await lab.export()
                    assert [] == [event for event in theirs if event in whole]
                    third.process.send_signal(signal.SIGTERM)
                    assert 0 == await third.ended()
                await lab.start()
                name.point(lab.address)
                lab.address = name.address
            await name.stop()
        await lab.restart()


async def test_law_05_a_batch_that_another_ledger_placed_is_neither_refused_nor_acknowledged(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old ledger finds the batch's marker in the store, beyond its own end, before it looks by itself."""
    monkeypatch.setattr(sequencer, "_IDLE", 3600.0)
    async with Lab(store_url=postgres_url) as lab:
        host = lab.host
        assert host is not None
        note = (await lab.check()).checkpoint
        old = lab.of_role("runner", attempts=1)
        signed = [
            batch(lab.identity("runner-1"), [enqueued(lab)], stream=uuid7(0, os.urandom(10)))
            for _ in range(2)
        ]
        # One batch of its own after the start, so that it looks no more for an hour.
        size = (await old.append([enqueued(lab)])).first_index + 1
        assert 1 == await asyncio.to_thread(_terminate, postgres_url, _WRITER)
        store = PostgresStore(postgres_url, Folder(lab.root / "other"), lab.home.origin)
        remember(store, note, [lab.trust.log])
        services = host.services
        settings = Settings(
            trust=lab.trust,
            trust_domain=lab.home.trust_domain,
            keys=list(services.sequencer._keys._keys.values()),
            clock=lab.clock,
        )
        credentials = lab.server_credentials("ledger")
        other = build_server(settings, store, "127.0.0.1:0", credentials, data=lab.root / "other")
        await other.start()
        first, lab.address = lab.address, f"127.0.0.1:{other.port}"
        new = lab.of_role("runner")
        placed = [await new.append_signed(one) for one in signed]
        assert [size, size + 1] == [one.first_index for one in placed]
        lab.host, lab.address = other, first
        with pytest.raises(FatalError) as caught:
            await old.append_signed(signed[0])
        assert "HEAD_MOVED" == caught.value.reason
        for end in (host.serve, host.stop):
            with pytest.raises(FatalError, match="another writer"):
                await end()
        lab.address = f"127.0.0.1:{other.port}"


async def test_a_ledger_looks_whether_it_is_alone_though_it_is_never_idle() -> None:
    """Batches that are sent again commit nothing, which would tell; they come without a pause."""
    async with Lab(wrap_store=FaultStore) as lab:
        host = lab.host
        assert host is not None
        store = host.store
        assert isinstance(store, FaultStore)
        client = lab.of_role("runner", attempts=1)
        signed = batch(lab.identity("runner-1"), [enqueued(lab)])
        await client.append_signed(signed)
        store.arm("hold", "not done", FatalError("ALREADY_RUNNING", "expected the lock, got it held"))
        with pytest.raises(AssayError) as caught:
            async with asyncio.timeout(60):
                while True:
                    await client.append_signed(signed)
        assert not isinstance(caught.value, InputError)
        lab.host = None
        for end in (host.serve, host.stop):
            with pytest.raises(FatalError, match="ALREADY_RUNNING"):
                await end()
        await lab.start()


async def test_a_store_that_grows_while_it_is_recovered_is_not_called_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock was lost after the head was read, and another ledger went on: the next start settles it."""
    async with Lab() as lab:
        await lab.stop()
        with closing(lab.store()) as store:
            before = store.head()
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab)])
        await lab.stop()
        with closing(lab.store()) as store:
            heads = [before, store.head()]
            monkeypatch.setattr(store, "head", lambda: heads.pop(0))
            with pytest.raises(FatalError) as caught:
                recover(store, lab.trust, lab.root)
            assert "LOCK_LOST" == caught.value.reason
            assert [] == heads
        await lab.start()
