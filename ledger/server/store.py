"""The store: committed runs, batch markers and checkpoints, and the last released checkpoint beside them.

Rules kept here:

- One transaction per commit, and nothing is acknowledged before it is on disk (WAL, synchronous=FULL, both
  set and checked).
- Rows are appended; triggers refuse UPDATE and DELETE.
- Position comes from the log alone: the version of a run's row is its first index + 1, and the database's
  unique constraint keeps a second writer from the same place. Notification ids are never used.
- A doubtful outcome is read back and compared byte for byte: equal is committed; a head that moved is
  fatal; anything else fails that commit.
- The last released checkpoint is kept outside the database, so that a database set back in time shows
  (law 6).

Rows are `eventsourcing` StoredEvents: originator, version, topic, state.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from eventsourcing.persistence import PersistenceError, StoredEvent
from eventsourcing.sqlite import (
    SQLiteApplicationRecorder,
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
)

from ledger.errors import FatalError, OverloadedError
from ledger.server.durable import Folder, Released

__all__ = ["Commit", "Marker", "SQLiteStore", "Store", "marker_originator"]

_RUN: Final = "assay/run/v1"
_MARKER: Final = "assay/marker/v1"
_CHECKPOINT: Final = "assay/checkpoint/v1"
_MARKER_STATE: Final = struct.Struct(">32sQ")  # root, first index
_TABLE: Final = "stored_events"
_RETRY_AFTER: Final = 0.5  # seconds
_SMALL: Final = 65_536  # bytes of a run
_MANY: Final = 32


@dataclass(frozen=True, slots=True)
class Marker:
    """That a batch is placed: the key under which a resend is found, and what it must equal."""

    originator: UUID
    sequence: int
    root: bytes
    first_index: int


@dataclass(frozen=True, slots=True)
class Commit:
    """What one transaction stores. `size` is the log's size after it; `checkpoint` the signed note for it."""

    first_index: int
    run: bytes
    markers: tuple[Marker, ...]
    size: int
    checkpoint: bytes


class Store(Protocol):
    """Where a log lies. Methods block; `commit` and `release` are called in one thread, the others in any.

    Duties of every implementation:

    1. `commit` returns only when run, markers and checkpoint are durable, all together; it raises
       OverloadedError(COMMIT_FAILED) only when none of them is there, and FatalError when it cannot tell or
       when another writer moved the head.
    2. A row is never changed or removed.
    3. Two processes on one log: the second gets FatalError ALREADY_RUNNING, or HEAD_MOVED when it commits.
    4. `released` gives back what the last `release` that returned was given, whatever became of the rest.
    """

    def head(self) -> tuple[int, bytes] | None:
        """Size and signed checkpoint of the last commit; None for an empty log."""
        ...

    def runs(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(first index, run) in order, beginning with the run that holds the entry at `start`."""
        ...

    def marker(self, originator: UUID, sequence: int) -> Marker | None:
        """The marker of a placed batch."""
        ...

    def commit(self, commit: Commit) -> None:
        """Stores a commit; see the duties."""
        ...

    def release(self, checkpoint: bytes) -> None:
        """Remembers, durably and outside the store, a checkpoint that is about to leave the process."""
        ...

    def released(self) -> bytes | None:
        """The last released checkpoint."""
        ...

    def close(self) -> None:
        """Lets go of files and locks."""
        ...


def marker_originator(public_key: bytes, stream: bytes) -> UUID:
    """The first 16 bytes of SHA-256(public key ‖ stream)."""
    return UUID(bytes=sha256(public_key + stream).digest()[:16])


def _originator(kind: str, origin: str) -> UUID:
    return UUID(bytes=sha256(f"{kind}\n{origin}".encode()).digest()[:16])


# --- SQLite, one writer ------------------------------------------------------------------------------------


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


class SQLiteStore:
    """A `Store` in a folder: `ledger.sqlite`, `released`, `lock`."""

    def __init__(self, folder: Folder, origin: str) -> None:
        """Opens or makes the store of the log `origin`. Raises FatalError."""
        self._folder = folder
        self._released = Released(folder)
        try:
            self._open(folder.path / "ledger.sqlite")
        except (PersistenceError, sqlite3.Error) as error:
            self._released.close()
            folder.close()
            raise FatalError("STORE_UNREADABLE", f"expected to open the store, got {error}") from error
        self._log = _originator(_RUN, origin)
        self._checkpoints = _originator(_CHECKPOINT, origin)

    def _open(self, path: Path) -> None:
        if not path.exists():
            # The page size is fixed by the first write, which the library would do with its own.
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA page_size=16384")
                connection.execute("VACUUM")
            connection.close()
        self._datastore = _Datastore(str(path))
        self._recorder = _Recorder(self._datastore, _TABLE)
        self._recorder.create_table()

    def _select(self, originator: UUID | str, **which: Any) -> Sequence[StoredEvent]:
        """Rows of one originator. Raises FatalError STORE_UNREADABLE."""
        try:
            return self._recorder.select_events(originator, **which)
        except (PersistenceError, sqlite3.Error) as error:
            raise FatalError("STORE_UNREADABLE", f"expected to read the store, got {error}") from error

    def head(self) -> tuple[int, bytes] | None:
        """Size and signed checkpoint of the last commit; None for an empty log."""
        rows = self._select(self._checkpoints, desc=True, limit=1)
        return (rows[0].originator_version, rows[0].state) if rows else None

    def runs(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(first index, run) in order, beginning with the run that holds the entry at `start`."""
        # A run's version is its first index + 1.
        rows = self._select(self._log, lte=start + 1, desc=True, limit=1)
        while rows:
            for row in rows:
                yield row.originator_version - 1, row.state
            # Small runs come many at a time, large ones alone: both ways a few MiB.
            limit = _MANY if len(rows[-1].state) < _SMALL else 1
            rows = self._select(self._log, gt=rows[-1].originator_version, limit=limit)

    def marker(self, originator: UUID, sequence: int) -> Marker | None:
        """The marker of a placed batch."""
        rows = self._select(originator, gt=sequence, lte=sequence + 1)
        if not rows:
            return None
        root, first_index = _MARKER_STATE.unpack(rows[0].state)
        return Marker(originator, sequence, root, first_index)

    def commit(self, commit: Commit) -> None:
        """Stores a commit in one transaction; reads back where the outcome is doubtful."""
        rows = self._rows(commit)
        try:
            self._recorder.insert_events(rows)
        except (PersistenceError, sqlite3.Error) as error:
            self._judge_doubtful(commit, rows, error)

    def _rows(self, commit: Commit) -> list[StoredEvent]:
        return [
            StoredEvent(self._log, commit.first_index + 1, _RUN, commit.run),
            *(
                StoredEvent(m.originator, m.sequence + 1, _MARKER, _MARKER_STATE.pack(m.root, m.first_index))
                for m in commit.markers
            ),
            StoredEvent(self._checkpoints, commit.size, _CHECKPOINT, commit.checkpoint),
        ]

    def _judge_doubtful(self, commit: Commit, rows: list[StoredEvent], error: Exception) -> None:
        """Returns if the commit is there, byte for byte; raises if it is not, or if the head is another's."""
        try:
            found = [self._stored(row) for row in rows]
            head = self.head()
        except FatalError as again:
            raise FatalError("STORE_DOUBTFUL", f"expected to read the commit back, got {again}") from error
        if all(state == row.state for state, row in zip(found, rows, strict=True)):
            return
        size = 0 if head is None else head[0]
        if size != commit.first_index or any(state is not None for state in found):
            raise FatalError(
                "HEAD_MOVED",
                f"expected the stored log to end at {commit.first_index}, got {size}: another writer",
            ) from error
        raise OverloadedError(
            "COMMIT_FAILED", f"expected the commit to be stored, got {type(error).__name__}", _RETRY_AFTER
        ) from error

    def _stored(self, row: StoredEvent) -> bytes | None:
        version = row.originator_version
        found = self._select(row.originator_id, gt=version - 1, lte=version)
        return found[0].state if found else None

    def release(self, checkpoint: bytes) -> None:
        """Remembers a checkpoint that is about to leave the process, outside the database."""
        self._released.put(checkpoint)

    def released(self) -> bytes | None:
        """The last released checkpoint."""
        return self._released.get()

    def close(self) -> None:
        """Closes the database and gives the folder's lock back."""
        self._datastore.close()
        self._released.close()
        self._folder.close()
