"""PostgreSQL keeps the contract; and what only a database that others reach can do to a ledger."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest

from clients import doctor_storage
from ledger.errors import FatalError, OverloadedError
from ledger.server import postgres
from ledger.server.durable import Folder
from ledger.server.postgres import PostgresStore
from ledger.server.store import Marker, Store
from tests.cli.manual import ROOT, blocks
from tests.contract.contract import ORIGIN, STREAM, StoreContract, a_commit
from tests.contract.proxy import proxied
from tests.postgres import programs as postgres_programs

_OTHER_ORIGIN = "ledger-fedcba9876543210"


class _Place:
    """A database, and a folder for each process."""

    changes = (
        "UPDATE stored_events SET state = '\\x00'",
        "DELETE FROM stored_events",
        "TRUNCATE stored_events",
        "SET session_replication_role = replica; DELETE FROM stored_events",
        "DELETE FROM stored_events WHERE false",
    )

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self._path = path

    def store(self) -> Store:
        """A process on this machine."""
        return PostgresStore(self.url, Folder(self._path / "one"), ORIGIN)

    def other_store(self) -> Store:
        """A process on another machine: its folder is its own."""
        return PostgresStore(self.url, Folder(self._path / "two"), ORIGIN)

    def execute(self, statement: str) -> None:
        """As the table's owner."""
        execute(self.url, statement)


def execute(url: str, statement: str) -> None:
    """Runs SQL in a session of its own."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(statement)


def end_sessions(url: str) -> None:
    """Ends every session of the database but the one that does it, and waits until they are gone."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
        assert ended
        assert all(row == (True,) for row in ended)


class TestPostgres(StoreContract):
    """The contract."""

    @pytest.fixture
    def place(self, postgres_url: str, tmp_path: Path) -> _Place:
        """A fresh database."""
        return _Place(postgres_url, tmp_path)


@pytest.fixture
def place(postgres_url: str, tmp_path: Path) -> _Place:
    """A fresh database."""
    return _Place(postgres_url, tmp_path)


@contextmanager
def held(store: Store) -> Iterator[Store]:
    """A store whose one writer is this process."""
    with closing(store):
        store.hold()
        yield store


# --- several logs ------------------------------------------------------------------------------------------


def test_several_logs_share_a_database(place: _Place, tmp_path: Path) -> None:
    """Each has its writer, its positions and its streams: one author's stream in both meets in neither."""
    with ExitStack() as stack:
        one = stack.enter_context(held(place.store()))
        two = stack.enter_context(held(PostgresStore(place.url, Folder(tmp_path / "log"), _OTHER_ORIGIN)))
        one.commit(a_commit(0, salt=b"one"))
        two.commit(a_commit(0, 5, salt=b"two"))
        assert [(0, b"run 0 one")] == list(one.runs(0))
        assert [(0, b"run 0 two")] == list(two.runs(0))
        assert [(1, b"checkpoint 1"), (5, b"checkpoint 5")] == [one.head(), two.head()]
        assert Marker(STREAM, 0, bytes(32), 0) == two.marker(STREAM, 0)


def test_two_that_make_the_table_at_once_both_have_it(place: _Place, tmp_path: Path) -> None:
    """Two logs start on an empty database in the same moment."""
    start = threading.Barrier(4)

    def open_one(number: int) -> None:
        start.wait()
        with held(PostgresStore(place.url, Folder(tmp_path / str(number)), f"ledger-{number:016x}")) as store:
            store.commit(a_commit(0))

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(open_one, number) for number in range(4)]:
            done.result()
    for number in range(4):
        with held(PostgresStore(place.url, Folder(tmp_path / str(number)), f"ledger-{number:016x}")) as store:
            assert 1 == (store.head() or (0, b""))[0]


# --- what a commit rests on --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
def test_law_03_a_database_that_acknowledges_too_early_is_refused(place: _Place, value: str) -> None:
    """Checked whenever a session begins, like SQLite's pragmas."""
    store = PostgresStore(
        f"{place.url}?options=-csynchronous_commit%3D{value}", Folder(_folder(place)), ORIGIN
    )
    with closing(store), pytest.raises(FatalError, match="synchronous_commit to be on") as caught:
        store.hold()
    assert "NOT_DURABLE" == caught.value.reason


@pytest.mark.skipif("ASSAY_TEST_POSTGRES" in os.environ, reason="changes settings of the whole server")
@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_law_03_a_server_that_may_lose_a_commit_is_refused(place: _Place, name: str) -> None:
    """Not even where a test would be faster without."""
    with closing(place.store()) as store:
        execute(place.url, f"ALTER SYSTEM SET {name} = off")
        try:
            execute(place.url, "SELECT pg_reload_conf()")
            with pytest.raises(FatalError, match=f"{name} to be on, got off") as caught:
                until_refused(store)
            assert "NOT_DURABLE" == caught.value.reason
        finally:
            execute(place.url, f"ALTER SYSTEM RESET {name}")
            execute(place.url, "SELECT pg_reload_conf()")
    # The server takes a new value over when it gets round to it.
    with closing(psycopg.connect(place.url, autocommit=True)) as connection:
        while connection.execute("SELECT current_setting(%s)", [name]).fetchone() != ("on",):
            pass


def test_the_doctor_asks_for_what_the_ledger_demands() -> None:
    """Clients may not import the server, so the settings that make a commit durable stand in both."""
    assert postgres._DURABLE == doctor_storage._DURABLE


def until_refused(store: Store) -> None:
    """Holds in new sessions until the server has taken its new setting over."""
    assert isinstance(store, PostgresStore)
    while True:
        store.hold()
        store._database._drop_writer()  # type: ignore[attr-defined]  # as if the session had been lost


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER stored_events_append_only ON stored_events",
        "ALTER TABLE stored_events DISABLE TRIGGER stored_events_append_only",
        "ALTER TABLE stored_events ENABLE TRIGGER stored_events_append_only",
    ],
)
def test_law_06_a_table_that_lets_rows_be_changed_is_refused(place: _Place, change: str) -> None:
    """Its trigger is gone or weakened: somebody may have changed rows."""
    place.store().close()
    place.execute(change)
    with pytest.raises(FatalError) as caught:
        place.store()
    assert "NOT_APPEND_ONLY" == caught.value.reason
    place_folder_is_free(place)


def place_folder_is_free(place: _Place) -> None:
    """Nothing keeps the folder's lock."""
    Folder(_folder(place)).close()


def _folder(place: _Place) -> Path:
    return place._path / "one"


def test_a_database_out_of_reach_is_fatal_and_shows_no_password(place: _Place) -> None:
    """STORE_AWAY; the folder is free again."""
    with pytest.raises(FatalError) as caught:
        PostgresStore("postgresql://assay:s3cret@127.0.0.1:1/assay", Folder(_folder(place)), ORIGIN)
    assert "STORE_AWAY" == caught.value.reason
    assert "s3cret" not in str(caught.value)
    place_folder_is_free(place)


@pytest.mark.skipif("ASSAY_TEST_POSTGRES" in os.environ, reason="makes roles of the whole server")
def test_law_06_a_ledger_set_up_as_the_page_says_may_only_read_and_add(
    postgres_server: str, tmp_path: Path
) -> None:
    """What docs/stores.md has the operator type; then the ledger's role tries all it must not."""
    typed = blocks((ROOT / "docs" / "stores.md").read_text())[0].text
    server = urlsplit(postgres_server)
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{postgres_programs()}:{os.environ['PATH']}",
        "PGHOST": str(server.hostname),
        "PGPORT": str(server.port),
        "PGUSER": str(server.username),
        "PYTHONPATH": str(ROOT),
    }
    try:
        for line in typed.splitlines():
            assert line.startswith(("psql ", "sql="))
        subprocess.run(
            ["sh", "-ec", typed.replace("psql ", "psql -v ON_ERROR_STOP=1 ")], env=environment, check=True
        )
        url = server._replace(netloc=f"assay_ledger@{server.hostname}:{server.port}", path="/assay").geturl()
        with held(PostgresStore(url, Folder(tmp_path / "data"), ORIGIN)) as store:
            store.commit(a_commit(0))
            for statement in (
                *_Place.changes,
                "ALTER TABLE stored_events DISABLE TRIGGER ALL",
                "DROP TRIGGER stored_events_append_only ON stored_events",
                "DROP TABLE stored_events",
                "CREATE OR REPLACE FUNCTION stored_events_append_only() RETURNS trigger AS '' LANGUAGE sql",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    execute(url, statement)
            assert (1, b"checkpoint 1") == store.head()
    finally:
        for statement in ("DATABASE assay WITH (FORCE)", "ROLE assay_ledger", "ROLE assay_owner"):
            execute(postgres_server, f"DROP {statement}")


# --- a lost session ----------------------------------------------------------------------------------------


def test_a_writer_whose_session_was_ended_gets_another_one(place: _Place) -> None:
    """Idle, then asked: it holds the lock again. In a commit: that one failed, the next goes through."""
    with held(place.store()) as store:
        store.commit(a_commit(0))
        end_sessions(place.url)
        store.hold()
        store.commit(a_commit(1))
        end_sessions(place.url)
        with pytest.raises(OverloadedError) as caught:
            store.commit(a_commit(2))
        assert "COMMIT_FAILED" == caught.value.reason
        store.commit(a_commit(2))
        assert (3, b"checkpoint 3") == store.head()


def test_a_writer_whose_place_was_taken_stops(place: _Place) -> None:
    """Session lost, another process became the writer: ALREADY_RUNNING on asking and on committing."""
    with held(place.store()) as store:
        store.commit(a_commit(0))
        end_sessions(place.url)
        with held(place.other_store()) as other:
            other.commit(a_commit(1, salt=b"other"))
            for call in (store.hold, lambda: store.commit(a_commit(1))):
                with pytest.raises(FatalError) as caught:
                    call()
                assert "ALREADY_RUNNING" == caught.value.reason
        assert [b"run 0 ", b"run 1 other"] == [run for _, run in store.runs(0)]


def test_the_last_fence_is_the_place_itself(place: _Place) -> None:
    """Another wrote and has ended; whoever holds the lock again still cannot write over it."""
    with held(place.store()) as store:
        store.commit(a_commit(0))
        end_sessions(place.url)
        with held(place.other_store()) as other:
            other.commit(a_commit(1, salt=b"other"))
        store.hold()
        with pytest.raises(FatalError) as caught:
            store.commit(a_commit(1))
        assert "HEAD_MOVED" == caught.value.reason


def test_a_connection_cut_before_the_commit_fails_that_commit(place: _Place, tmp_path: Path) -> None:
    """The server never saw COMMIT: nothing is there, and the same again goes through."""
    with proxied(place.url) as (proxy, url), held(PostgresStore(url, Folder(tmp_path), ORIGIN)) as store:
        store.commit(a_commit(0))
        proxy.cut("before")
        with pytest.raises(OverloadedError) as caught:
            store.commit(a_commit(1))
        assert "COMMIT_FAILED" == caught.value.reason
        assert (1, b"checkpoint 1") == store.head()
        store.commit(a_commit(1))
        assert (2, b"checkpoint 2") == store.head()


def test_law_03_a_connection_cut_after_the_commit_is_a_commit(place: _Place, tmp_path: Path) -> None:
    """The answer was lost: read back, equal, committed."""
    with proxied(place.url) as (proxy, url), held(PostgresStore(url, Folder(tmp_path), ORIGIN)) as store:
        store.commit(a_commit(0))
        proxy.cut("after")
        store.commit(a_commit(1))
        assert (2, b"checkpoint 2") == store.head()
        store.commit(a_commit(2))


def test_law_03_a_commit_that_lands_late_is_waited_for(
    place: _Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is cut off, the server's session commits a while later: never reported as failed.

    It still has the lock, so nothing is judged before it has ended.
    """
    tries = []

    def pause(_: float) -> None:
        tries.append(1)
        if len(tries) == 3:
            proxy.let_through.set()

    monkeypatch.setattr(postgres, "sleep", pause)
    with proxied(place.url) as (proxy, url), held(PostgresStore(url, Folder(tmp_path), ORIGIN)) as store:
        store.commit(a_commit(0))
        proxy.cut("late")
        store.commit(a_commit(1))
        assert len(tries) >= 3
        assert (2, b"checkpoint 2") == store.head()
        store.commit(a_commit(2))


def test_a_lost_session_that_never_ends_is_waited_for_in_vain(
    place: _Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its transaction will land cannot be told: the ledger stops."""
    with proxied(place.url) as (proxy, url), held(PostgresStore(url, Folder(tmp_path), ORIGIN)) as store:
        monkeypatch.setattr(postgres, "_PATIENCE", 0.0)
        store.commit(a_commit(0))
        proxy.cut("late")
        with pytest.raises(FatalError) as caught:
            store.commit(a_commit(1))
        assert "STORE_DOUBTFUL" == caught.value.reason


def test_readers_go_on_after_their_connections_were_ended(place: _Place) -> None:
    """Reading is tried again on a new connection."""
    with held(place.store()) as store:
        store.commit(a_commit(0))
        assert store.head() is not None
        end_sessions(place.url)
        assert (1, b"checkpoint 1") == store.head()
        assert store.marker(UUID(int=99), 0) is None
