"""The database's machine is lost, a synchronous replica takes its place, and nothing acknowledged is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.crash.audit import Audit
from tests.crash.load import Load, Promises
from tests.lab import Lab
from tests.ports import free_port
from tests.postgres import Cluster, NoPostgresError
from tests.server.test_standby import standby

_SOME = 100  # acknowledged events before the loss, and after it


@pytest.fixture
def pair(postgres_server: str) -> Iterator[tuple[Cluster, Cluster]]:
    """A primary that acknowledges nothing before its replica has it, and that replica."""
    try:
        primary, replica = Cluster(), Cluster()
    except NoPostgresError as absent:  # A server that is named cannot be taken down.
        pytest.skip(str(absent))
    try:
        primary.make()
        primary.start()
        replica.copy(primary)
        replica.start()
        with closing(psycopg.connect(primary.url, autocommit=True)) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute("SELECT sync_state FROM pg_stat_replication").fetchone() != ("sync",):
                pass
        yield primary, replica
    finally:
        replica.remove()
        primary.remove()


def _both(pair: tuple[Cluster, Cluster]) -> str:
    primary, replica = pair
    return f"postgresql://assay@127.0.0.1:{primary.port},127.0.0.1:{replica.port}/postgres"


async def test_law_03_a_ledger_goes_on_with_the_replica(pair: tuple[Cluster, Cluster]) -> None:
    """The same process: its session is lost, it takes the lock again where writes are taken, and goes on."""
    async with Lab(
        subprocess=True, settings={"listen": f"127.0.0.1:{free_port()}"}, store_url=_both(pair)
    ) as lab:
        promises = Promises()
        load = Load(lab, promises, 1)
        load.start()
        try:
            await promises.until(_SOME)
            await asyncio.to_thread(_lose, pair)
            await promises.until(len(promises.acknowledged) + _SOME)
            await load.stop()
        except BaseException:
            await load.abandon()
            raise
        await Audit(lab, promises).run()


async def test_laws_03_05_06_a_standby_goes_on_where_both_machines_were_lost(
    pair: tuple[Cluster, Cluster],
) -> None:
    """Ledger and database at once; the standby waits for a database that takes writes, then serves."""
    url = _both(pair)
    async with Lab(subprocess=True, settings={"listen": f"127.0.0.1:{free_port()}"}, store_url=url) as lab:
        checkpoint = lab.root / "checkpoint"
        checkpoint.write_bytes((await lab.check()).checkpoint)
        arguments = ("--released", str(checkpoint))
        async with standby(lab, *arguments, url=url, data="ledger/other") as second:
            await second.says("standing by until the ledger")
            promises = Promises()
            load = Load(lab, promises, 2)
            load.start()
            try:
                await promises.until(_SOME)
                pair[0].crash()
                await lab.kill()
                await second.says("standing by until the store")
                await asyncio.to_thread(pair[1].promote)
                await second.ready()
                await promises.until(len(promises.acknowledged) + _SOME)
                await load.stop()
            except BaseException:
                await load.abandon()
                raise
            await Audit(lab, promises).run()


def _lose(pair: tuple[Cluster, Cluster]) -> None:
    primary, replica = pair
    primary.crash()
    replica.promote()
