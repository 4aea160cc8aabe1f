"""A store in PostgreSQL, which other machines may reach: one writer, and a standby that can take its place.

Rules kept here:

- The session that commits holds the log's advisory lock. So whoever has lost the lock has lost the session
  too and cannot commit; and whoever has the lock again knows that nothing of an earlier session is still on
  its way: PostgreSQL gives the lock back after that session's transaction has ended, one way or the other.
- Nothing is acknowledged before it is on disk: fsync, full_page_writes and synchronous_commit are checked
  whenever a session begins, and so is the trigger that keeps rows as they are (`postgres.sql`).
- A commit is one transaction: COPY in binary, several times as fast as the library's own insert. The library
  would also try an insert again after a lost connection; here it is tried once.
- Several logs may share a database, each with its own lock and its own originators, authors' streams
  included: one author who writes to two of them meets himself in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.resources import files
from time import monotonic, sleep
from typing import Any, Final, Unpack
from uuid import UUID

import psycopg
from eventsourcing.persistence import OperationalError, PersistenceError, StoredEvent
from eventsourcing.postgres import ConnectionPool, PostgresAggregateRecorder, PostgresDatastore
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format
from psycopg.rows import DictRow, dict_row

from ledger.errors import FatalError
from ledger.server.durable import Folder
from ledger.server.recorded import RecordedStore, Which

__all__ = ["PostgresStore"]

_TABLE: Final = "stored_events"
_COPY: Final = f"COPY {_TABLE} (originator_id, originator_version, topic, state) FROM STDIN (FORMAT BINARY)"
_TYPES: Final = ("uuid", "int8", "text", "bytea")
_READERS: Final = 4  # connections
_READER_TIMEOUT: Final = 2.0  # seconds until a reader has a connection; the library tries ten times
_PATIENCE: Final = 15.0  # seconds in which a writer that lost its session may get another one
_PAUSE: Final = 0.1  # seconds between two tries

#: What makes a commit durable, here and on what replicates synchronously, and the values that do.
_DURABLE: Final = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "remote_apply"),
}
#: A peer that is gone without a word is found out by either side within 15 seconds.
_CLIENT: Final[dict[str, str | int]] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "target_session_attrs": "read-write",
    "application_name": "assay-ledger",
}
_SERVER: Final = "".join(
    f"SET {name} = {value};"
    for name, value in (
        ("tcp_keepalives_idle", 5),
        ("tcp_keepalives_interval", 3),
        ("tcp_keepalives_count", 3),
        ("tcp_user_timeout", 15_000),
        ("idle_session_timeout", 0),
    )
)


class _BinaryCursor(psycopg.Cursor[DictRow]):
    """The library's cursors would have bytes come as text, twice as long."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.format = Format.BINARY


class _Datastore(PostgresDatastore):
    def __init__(self, conninfo: str) -> None:
        # The library's own pool knows five parameters of a connection and is never opened.
        super().__init__("", "", "", "", "")
        self.pool = ConnectionPool(
            conninfo,
            connection_class=psycopg.Connection[DictRow],
            kwargs={"row_factory": dict_row, "cursor_factory": _BinaryCursor},
            min_size=0,
            max_size=_READERS,
            open=False,
            configure=self.after_connect_func(),
            timeout=_READER_TIMEOUT,
        )


class _Database:
    """The rows of one log. Its errors are the library's. `_writer` is owned by whoever commits."""

    def __init__(self, url: str, origin: str) -> None:
        with _librarys_errors():
            given = conninfo_to_dict(url)
            wanted = {name: value for name, value in _CLIENT.items() if name not in given}
            self._conninfo = make_conninfo(url, **wanted)
        self._origin = origin.encode()
        self._lock = int.from_bytes(sha256(b"assay/lock/v1\n" + self._origin).digest()[:8], signed=True)
        self._writer: psycopg.Connection[tuple[Any, ...]] | None = None
        self._backend = 0  # process id of the last session that held the lock
        try:
            with _librarys_errors(), self._connect() as connection:
                _check_table(connection)
        except OperationalError as error:
            raise _away(error) from error
        self._datastore = _Datastore(self._conninfo)
        self._recorder = PostgresAggregateRecorder(self._datastore, events_table_name=_TABLE)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._conninfo, autocommit=True)

    def hold(self) -> None:
        """Has the lock in a session that lives. Raises FatalError ALREADY_RUNNING, LOCK_LOST, STORE_AWAY,
        NOT_DURABLE."""
        if self._writer is not None:
            try:
                self._writer.execute("SELECT 1")
                return
            except psycopg.Error:
                self._drop_writer()
        deadline = monotonic() + (_PATIENCE if self._backend else 0.0)
        while True:
            try:
                if self._take():
                    return
            except OperationalError as error:  # The database may be on its way back.
                if monotonic() >= deadline:
                    raise _away(error) from error
            else:
                if monotonic() >= deadline:
                    raise FatalError(
                        "LOCK_LOST",
                        "expected to get the log's lock in the database again, got it still held by this "
                        f"ledger's own lost session {self._backend}: start again once that has ended",
                    )
            sleep(_PAUSE)

    def _take(self) -> bool:
        """Whether a new session has the lock; False while a lost one of this process still has it."""
        with _librarys_errors():
            connection = self._connect()
            taken = False
            try:
                taken = self._locked(connection)
            finally:
                if not taken:
                    connection.close()
        if taken:
            self._writer, self._backend = connection, connection.info.backend_pid
        return taken

    def _locked(self, connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
        _check_durable(connection)
        connection.execute(_SERVER)
        if connection.execute("SELECT pg_try_advisory_lock(%s)", [self._lock]).fetchone() == (True,):
            return True
        holders = connection.execute(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND (classid::bigint << 32) | objid::bigint = %s",
            [self._lock],
        ).fetchall()
        # None: it was given back this moment.
        for (holder,) in holders:
            if holder != self._backend:
                raise FatalError(
                    "ALREADY_RUNNING",
                    f"expected to be the one process on this log, got its lock held by session {holder} of "
                    "the database: stop that ledger first (one with --standby waits for it)",
                )
        return False

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def insert(self, rows: Sequence[StoredEvent]) -> None:
        """All rows or none, durable on return; tried once."""
        if self._writer is None:
            self.hold()
        writer = self._writer
        if writer is None:
            raise PersistenceError("expected a session that holds the lock, got none")
        with _librarys_errors(), writer.transaction(), writer.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(_TYPES)
            for row in rows:
                copy.write_row((self._own(row.originator_id), row.originator_version, row.topic, row.state))

    def _own(self, originator: UUID | str) -> UUID:
        if not isinstance(originator, UUID):
            raise TypeError(f"expected a UUID, got {originator!r}")
        return UUID(bytes=sha256(self._origin + b"\n" + originator.bytes).digest()[:16])

    def select(self, originator: UUID, **which: Unpack[Which]) -> Sequence[StoredEvent]:
        """The committed rows of an originator by version."""
        try:
            found: Sequence[StoredEvent] = self._recorder.select_events(self._own(originator), **which)
        except OperationalError as error:
            raise _away(error) from error
        return found

    def close(self) -> None:
        """Gives the lock back and closes every connection."""
        if self._writer is not None:
            # Said, not left to the session's end, which comes a moment after this returns. A session that is
            # lost has nothing to give back.
            with suppress(psycopg.Error):
                self._writer.execute("SELECT pg_advisory_unlock(%s)", [self._lock])
        self._drop_writer()
        self._datastore.close()


def _check_table(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Makes the table where it is missing and may be made. Raises FatalError NOT_APPEND_ONLY."""
    if connection.execute("SELECT to_regclass(%s)", [_TABLE]).fetchone() == (None,):
        with connection.transaction():
            # Two that start at once make it one after the other.
            connection.execute("SELECT pg_advisory_xact_lock(0)")
            connection.execute(files(__package__).joinpath("postgres.sql").read_bytes())
    found = connection.execute(
        "SELECT tgenabled::text FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname = %s",
        [_TABLE, f"{_TABLE}_append_only"],
    ).fetchone()
    if found != ("A",):
        raise FatalError(
            "NOT_APPEND_ONLY",
            f"expected the trigger {_TABLE}_append_only on {_TABLE}, enabled always, got {found}: find out "
            "who changed it and what else, then run postgres.sql as the table's owner",
        )


def _check_durable(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Raises FatalError NOT_DURABLE."""
    for name, values in _DURABLE.items():
        got = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
        if got is None or got[0] not in values:
            raise FatalError(
                "NOT_DURABLE",
                f"expected PostgreSQL's {name} to be {' or '.join(values)}, got {got and got[0]}: set it for "
                "the server, or for the ledger's role and database",
            )


def _away(error: OperationalError) -> FatalError:
    return FatalError("STORE_AWAY", f"expected a PostgreSQL that answers and takes writes, got {error}")


@contextmanager
def _librarys_errors() -> Iterator[None]:
    """What comes from psycopg as it is becomes the library's PersistenceError, as the library does it."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise OperationalError(str(error)) from error
    except psycopg.Error as error:
        raise PersistenceError(f"{type(error).__name__}: {error}") from error


class PostgresStore(RecordedStore):
    """A `Store` in a database, with `released` and `lock` in a folder of this machine."""

    def __init__(self, url: str, folder: Folder, origin: str) -> None:
        """Opens or makes the store of the log `origin`; closes the folder if it cannot. Raises FatalError.

        Others may have the log open; `hold` makes this process its writer.
        """
        super().__init__(lambda: _Database(url, origin), folder, origin)
