"""The store's duties, and what the ledger does when a store does not keep them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from eventsourcing.persistence import OperationalError

from ledger.errors import FatalError, OverloadedError
from ledger.server.durable import Folder, Released
from ledger.server.store import Commit, Marker, SQLiteStore, Store
from tests.lab import Lab
from tests.server.people import batch, enqueued, reason_of

ORIGIN = "ledger-0123456789abcdef"


def _commit(first: int, count: int = 1, salt: bytes = b"") -> Commit:
    marker = Marker(UUID(int=7), first, bytes(32), first)
    return Commit(
        first, b"run %d " % first + salt, (marker,), first + count, b"checkpoint %d" % (first + count)
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    """An empty store."""
    made = SQLiteStore(Folder(tmp_path), ORIGIN)
    yield made
    made.close()


def test_a_commit_is_there_after_closing(tmp_path: Path) -> None:
    """Run, marker, checkpoint and released checkpoint survive."""
    first = SQLiteStore(Folder(tmp_path), ORIGIN)
    first.commit(_commit(0, 3))
    first.release(b"checkpoint 3")
    first.close()
    again = SQLiteStore(Folder(tmp_path), ORIGIN)
    assert (3, b"checkpoint 3") == again.head()
    assert [(0, b"run 0 ")] == list(again.runs(0))
    assert Marker(UUID(int=7), 0, bytes(32), 0) == again.marker(UUID(int=7), 0)
    assert b"checkpoint 3" == again.released()
    again.close()


def test_runs_begin_with_the_one_that_holds_the_index(store: SQLiteStore) -> None:
    """Entry 4 lies in the run that begins at 3."""
    for first, count in ((0, 3), (3, 2), (5, 1)):
        store.commit(_commit(first, count))
    assert [3, 5] == [first for first, _ in store.runs(4)]


def test_rows_cannot_be_changed_or_removed(tmp_path: Path, store: SQLiteStore) -> None:
    """Triggers refuse UPDATE and DELETE, whoever asks."""
    store.commit(_commit(0))
    connection = sqlite3.connect(tmp_path / "ledger.sqlite")
    for statement in ("UPDATE stored_events SET state = x'00'", "DELETE FROM stored_events"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def test_two_processes_cannot_have_one_log(tmp_path: Path, store: SQLiteStore) -> None:
    """The second gets ALREADY_RUNNING."""
    with pytest.raises(FatalError) as caught:
        Folder(tmp_path)
    assert "ALREADY_RUNNING" == caught.value.reason


def test_the_same_commit_again_is_committed(store: SQLiteStore) -> None:
    """An IntegrityError over equal bytes is an acknowledgement that was lost."""
    store.commit(_commit(0))
    store.commit(_commit(0))
    assert (1, b"checkpoint 1") == store.head()


def test_another_commit_at_the_same_place_is_fatal(store: SQLiteStore) -> None:
    """A second writer moved the head."""
    store.commit(_commit(0))
    with pytest.raises(FatalError) as caught:
        store.commit(_commit(0, salt=b"other"))
    assert "HEAD_MOVED" == caught.value.reason


class _Failing:
    """Stands before the recorder's insert: fails once, before or after the rows are stored."""

    def __init__(self, store: SQLiteStore, *, persisted: bool) -> None:
        self._insert = store._recorder.insert_events
        self._persisted = persisted
        self.failures = 1

    def __call__(self, rows: object) -> object:
        if not self.failures:
            return self._insert(rows)  # type: ignore[arg-type]  # passed through
        self.failures -= 1
        if self._persisted:
            self._insert(rows)  # type: ignore[arg-type]  # passed through
        raise OperationalError("disk I/O error")


def test_an_error_after_the_rows_were_stored_is_a_commit(store: SQLiteStore) -> None:
    """Failed and persisted: read back, equal, committed."""
    store._recorder.insert_events = _Failing(store, persisted=True)  # type: ignore[method-assign, assignment]
    store.commit(_commit(0))
    assert (1, b"checkpoint 1") == store.head()


def test_an_error_before_the_rows_were_stored_fails_that_commit(store: SQLiteStore) -> None:
    """Failed and not persisted: OverloadedError, and the next try goes through."""
    store._recorder.insert_events = _Failing(store, persisted=False)  # type: ignore[method-assign, assignment]
    with pytest.raises(OverloadedError) as caught:
        store.commit(_commit(0))
    assert "COMMIT_FAILED" == caught.value.reason
    store.commit(_commit(0))
    assert (1, b"checkpoint 1") == store.head()


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


class _Faulty:
    """A real store whose next commit fails, persisted or not."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.fault: str | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def commit(self, commit: Commit) -> None:
        """As told."""
        fault, self.fault = self.fault, None
        if fault == "lost":
            raise OverloadedError("COMMIT_FAILED", "expected the commit to be stored, got a fault", 0.0)
        self._inner.commit(commit)
        if fault == "doubtful":
            raise FatalError("STORE_DOUBTFUL", "expected to read the commit back, got a fault")


async def test_law_04_a_commit_that_fails_moves_nothing_and_may_be_sent_again() -> None:
    """The author is told to come back; the very same batch then gets the place that was free."""
    stores: list[_Faulty] = []

    def wrap(store: Store) -> Store:
        stores.append(_Faulty(store))
        return stores[-1]  # type: ignore[return-value]  # a Store by its methods

    async with Lab(wrap_store=wrap) as lab:
        client = lab.of_role("runner", attempts=1)
        size = (await client.get_checkpoint()).size
        signed = batch(lab.identity("runner-1"), [enqueued(lab)] * 5)
        stores[-1].fault = "lost"
        assert "COMMIT_FAILED" == await reason_of(client.append_signed(signed), OverloadedError)
        assert size == (await client.get_checkpoint()).size
        assert size == (await client.append_signed(signed)).first_index


async def test_a_store_in_doubt_stops_the_ledger_and_a_restart_settles_it() -> None:
    """The batch was stored although nobody could tell: after the restart it has its place."""
    stores: list[_Faulty] = []

    def wrap(store: Store) -> Store:
        stores.append(_Faulty(store))
        return stores[-1]  # type: ignore[return-value]  # a Store by its methods

    async with Lab(wrap_store=wrap) as lab:
        assert lab.host is not None
        client = lab.of_role("runner", attempts=1)
        size = (await client.get_checkpoint()).size
        signed = batch(lab.identity("runner-1"), [enqueued(lab)])
        stores[-1].fault = "doubtful"
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
        for name in ("ledger.sqlite", "released"):
            shutil.copy(data / name, lab.root / name)
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab, "ro-1")])
        await lab.stop()
        shutil.copy(data / "released", lab.root / "newer")
        for name in ("ledger.sqlite", "released"):
            shutil.copy(lab.root / name, data / name)
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


def test_a_database_that_is_none_is_fatal_and_the_folder_is_free_again(tmp_path: Path) -> None:
    """STORE_UNREADABLE, not the library's own error; nothing keeps the lock."""
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(FatalError) as caught:
        SQLiteStore(Folder(tmp_path), "log-0123456789abcdef")
    assert "STORE_UNREADABLE" == caught.value.reason
    Folder(tmp_path).close()
