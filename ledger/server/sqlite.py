"""A store in a folder: SQLite, one writer.

Rules kept here:

- Nothing is acknowledged before it is on disk: WAL and synchronous=FULL, both set and checked.
- Rows are appended; triggers refuse UPDATE and DELETE.
- The folder's lock keeps a second process out. It cannot be lost while this process lives.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Unpack
from uuid import UUID

from eventsourcing.persistence import PersistenceError, StoredEvent
from eventsourcing.sqlite import (
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
)

from ledger.errors import FatalError
from ledger.server.durable import Folder
from ledger.server.recorded import RecordedStore, Which

__all__ = ["SQLITE", "SQLiteStore"]

SQLITE: Final = "ledger.sqlite"  # below the ledger's `data`
_TABLE: Final = "stored_events"


class _Connection(SQLiteConnection):
    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[SQLiteCursor]:
        # The library begins deferred, which fails at once when another process committed in between.
        if not commit:
            with super().transaction(commit=False) as cursor:
                yield cursor
            return
        cursor = self.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
            self.commit()
        except BaseException:
            self.rollback()
            raise


class _Pool(SQLiteConnectionPool):
    def _create_connection(self) -> SQLiteConnection:
        plain = super()._create_connection()
        cursor = plain.cursor()
        # Pages of 16 KiB suit runs of some 100 KiB; the WAL goes back to the database every 64 MiB.
        for pragma in ("synchronous=FULL", "wal_autocheckpoint=4096", "cache_size=-16384"):
            cursor.execute(f"PRAGMA {pragma}")
        for pragma, expected in (("journal_mode", "wal"), ("synchronous", 2)):
            cursor.execute(f"PRAGMA {pragma}")
            got = cursor.fetchone()[0]
            if got != expected:
                raise FatalError("NOT_DURABLE", f"expected SQLite's {pragma} to be {expected}, got {got}")
        return _Connection(plain._sqlite_conn, max_age=None)  # noqa: SLF001 - the library has no hook for this


class _Datastore(SQLiteDatastore):
    def __init__(self, db_name: str) -> None:
        super().__init__(db_name)
        self.pool = _Pool(db_name=db_name)


class _Recorder(SQLiteApplicationRecorder):
    def construct_create_table_statements(self) -> list[str]:
        return [
            *super().construct_create_table_statements(),
            *(
                f"CREATE TRIGGER IF NOT EXISTS {_TABLE}_no_{verb.lower()} BEFORE {verb} ON {_TABLE} "
                "BEGIN SELECT RAISE(ABORT, 'rows are append-only'); END"
                for verb in ("UPDATE", "DELETE")
            ),
        ]


class _Database:
    """One file. Its errors are the library's."""

    def __init__(self, path: Path) -> None:
        with _librarys_errors():
            if not path.exists():
                # The page size is fixed by the first write, which the library would do with its own.
                with sqlite3.connect(path) as connection:
                    connection.execute("PRAGMA page_size=16384")
                    connection.execute("VACUUM")
                connection.close()
            self._datastore = _Datastore(str(path))
            self._recorder = _Recorder(self._datastore, _TABLE)
            self._recorder.create_table()

    def hold(self) -> None:
        """Nothing to do: the folder's lock lasts as long as this process, and what failed is over."""

    def insert(self, rows: Sequence[StoredEvent]) -> None:
        """All rows or none, durable on return."""
        with _librarys_errors():
            self._recorder.insert_events(rows)

    def select(self, originator: UUID, **which: Unpack[Which]) -> Sequence[StoredEvent]:
        """The committed rows of an originator by version."""
        with _librarys_errors():
            return self._recorder.select_events(originator, **which)

    def close(self) -> None:
        """Closes the file."""
        self._datastore.close()


@contextmanager
def _librarys_errors() -> Iterator[None]:
    """What the library lets through as it comes from sqlite3 becomes its PersistenceError, too."""
    try:
        yield
    except sqlite3.Error as error:
        raise PersistenceError(str(error)) from error


class SQLiteStore(RecordedStore):
    """A `Store` in a folder: `ledger.sqlite`, `released`, `lock`."""

    def __init__(self, folder: Folder, origin: str) -> None:
        """Opens or makes the store of the log `origin`; closes the folder if it cannot. Raises FatalError."""
        super().__init__(lambda: _Database(folder.path / SQLITE), folder, origin)
