"""Persisted views: rows that folds derived from the log, so that a start need not read all of it.

Rules kept here:

- Changes, the next index and the log's root at it are written in one transaction: the rows are those of
  exactly one prefix.
- Rows hold positions and what was concluded, never entries: what is shown or judged is read from the log.
- Everything can be made again: a file that is missing, unreadable, of another log, of another version, ahead
  of the log or of another tree is dropped, and the log is folded from its beginning.
- What the ledger judges by (key events, touched keys, what is void, stands or fell) is sealed: the ledger's
  key signs size, root and a digest of those rows, as it signs the store's checkpoint. Rows without its seal
  are dropped. The other rows grow with the log, and are trusted as the disk is: one that lies can make an
  answer without a proof lie, or show a learner a rollout; it makes no entry, proof, checkpoint or judgment.
- One thread writes; reading is done by the event loop alone, over a connection of its own.

The file belongs to the `eventsourcing` library's tracking recorder; `tracking` holds the next index.
"""

from __future__ import annotations

import sqlite3
import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256, shake_128
from pathlib import Path
from typing import Any, Final

from eventsourcing.persistence import PersistenceError, Tracking
from eventsourcing.sqlite import (
    SQLiteConnection,
    SQLiteConnectionPool,
    SQLiteCursor,
    SQLiteDatastore,
    SQLiteTrackingRecorder,
)

from ledger.errors import FatalError, VerificationError
from ledger.note import Signer, VerifierKey, parse_note, sign_note

__all__ = ["SQLITE_SUFFIXES", "Changes", "Views", "pack", "unpack"]

SQLITE_SUFFIXES: Final = ("", "-wal", "-shm")  # of the files that a database is made of
_VERSION: Final = 2  # of rows and of what folds conclude: another release's are dropped
_ALL: Final = "assay/views/v1"
_PACKED: Final = "Q"

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS log (origin TEXT, version INTEGER, root BLOB, orphans INTEGER, seal BLOB);
-- number: in the order of the first claims, from 0. first and last: positions of claims
CREATE TABLE IF NOT EXISTS updates (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE, trainer TEXT, first INTEGER, last INTEGER,
    frozen INTEGER, ended INTEGER, candidate BLOB);
CREATE TABLE IF NOT EXISTS runners (number INTEGER, name TEXT, PRIMARY KEY (number, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS proposals (
    number INTEGER, position INTEGER, author TEXT, key_id BLOB, resource TEXT, workflow TEXT, segment TEXT,
    PRIMARY KEY (number, position)) WITHOUT ROWID;
-- packed: position << 3 | flags, ascending. first: the position of the first of them
CREATE TABLE IF NOT EXISTS claims (
    number INTEGER, first INTEGER, packed BLOB, PRIMARY KEY (number, first)) WITHOUT ROWID;
-- first: position of the first RolloutEnqueued. owner: the update that it named. packed: positions
CREATE TABLE IF NOT EXISTS rollouts (
    id TEXT PRIMARY KEY, first INTEGER, owner TEXT, visible INTEGER, packed BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS touched (key TEXT PRIMARY KEY, position INTEGER) WITHOUT ROWID;
-- what is folded again at every start
CREATE TABLE IF NOT EXISTS spine (position INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE IF NOT EXISTS verdicts (
    position INTEGER PRIMARY KEY, number INTEGER, verdict INTEGER, step INTEGER, not_after INTEGER, void TEXT,
    unreplayable INTEGER, approvals BLOB, freeze INTEGER, fell INTEGER, fell_because TEXT);
CREATE INDEX IF NOT EXISTS verdicts_number ON verdicts (number);
CREATE INDEX IF NOT EXISTS verdicts_standing ON verdicts (position)
    WHERE void IS NULL AND fell IS NULL AND not_after IS NOT NULL;
-- LIVE windows, and why one does not count
CREATE TABLE IF NOT EXISTS live (
    number INTEGER, position INTEGER, void TEXT, PRIMARY KEY (number, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rolled_back (
    number INTEGER, position INTEGER, PRIMARY KEY (number, position)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS voids (
    position INTEGER, step TEXT, reason TEXT, message TEXT, resource TEXT, workflow TEXT, segment TEXT,
    PRIMARY KEY (position, step)) WITHOUT ROWID;
-- position: of the first evaluation of this update's candidate on the holdout by this key
CREATE TABLE IF NOT EXISTS judged (
    holdout BLOB, id TEXT, author TEXT, key_id BLOB, position INTEGER,
    PRIMARY KEY (holdout, id, author, key_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS candidates (
    resource TEXT, workflow TEXT, segment TEXT, position INTEGER,
    PRIMARY KEY (resource, workflow, segment)) WITHOUT ROWID;
-- rollouts of which no content may stand in the log, and the first version that says so
CREATE TABLE IF NOT EXISTS under_blob (
    rollout TEXT PRIMARY KEY, workflow TEXT, version INTEGER) WITHOUT ROWID;
-- position: of the first BlobErased of the digest
CREATE TABLE IF NOT EXISTS erased (digest BLOB PRIMARY KEY, position INTEGER) WITHOUT ROWID;
"""
#: Table -> the statement that writes a row of it.
_WRITES: Final = {
    "updates": "INSERT OR REPLACE INTO updates VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "runners": "INSERT OR IGNORE INTO runners VALUES (?, ?)",
    "proposals": "INSERT INTO proposals VALUES (?, ?, ?, ?, ?, ?, ?)",
    "claims": "INSERT INTO claims VALUES (?, ?, ?)",
    "rollouts": "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
    "first = excluded.first, owner = excluded.owner, visible = excluded.visible, "
    "packed = CAST(packed || excluded.packed AS BLOB)",
    "touched": "INSERT OR REPLACE INTO touched VALUES (?, ?)",
    "spine": "INSERT INTO spine VALUES (?, ?)",
    "verdicts": "INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "live": "INSERT INTO live VALUES (?, ?, ?)",
    "rolled_back": "INSERT INTO rolled_back VALUES (?, ?)",
    "voids": "INSERT INTO voids VALUES (?, ?, ?, ?, ?, ?, ?)",
    "judged": "INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?, ?)",
    "candidates": "INSERT OR REPLACE INTO candidates VALUES (?, ?, ?, ?)",
    "under_blob": "INSERT OR IGNORE INTO under_blob VALUES (?, ?, ?)",
    "erased": "INSERT OR IGNORE INTO erased VALUES (?, ?)",
}
#: Table that is sealed -> the columns that name a row of it, its first ones. A start reads all of these.
_SEALED: Final = {
    "touched": ("key",),
    "spine": ("position",),
    "verdicts": ("position",),
    "live": ("number", "position"),
    "rolled_back": ("number", "position"),
    "voids": ("position", "step"),
    "judged": ("holdout", "id", "author", "key_id"),
    "candidates": ("resource", "workflow", "segment"),
}
_SEAL: Final = "assay/views/v1"
_SUM_BYTES: Final = 512


def pack(values: array[int]) -> bytes:
    """Unsigned 64-bit numbers, little-endian."""
    if sys.byteorder == "big":
        values = array(_PACKED, values)
        values.byteswap()
    return values.tobytes()


def unpack(data: bytes) -> array[int]:
    """What `pack` packed."""
    values = array(_PACKED)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


@dataclass(slots=True)
class Changes:
    """What folding up to `size` changed: rows by table."""

    size: int
    root: bytes
    orphans: int
    signer: Signer | None = None  # of the ledger key in force at `size`; None: a start will not take the rows
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)


class _Pool(SQLiteConnectionPool):
    def _create_connection(self) -> SQLiteConnection:
        connection = super()._create_connection()
        # What a power cut takes from the end is folded again: no fsync for each transaction.
        connection.cursor().execute("PRAGMA synchronous=NORMAL")
        return connection


class _Datastore(SQLiteDatastore):
    def __init__(self, db_name: str) -> None:
        super().__init__(db_name)
        self.pool = _Pool(db_name=db_name)


class _Recorder(SQLiteTrackingRecorder):
    def construct_create_table_statements(self) -> list[str]:
        return [*super().construct_create_table_statements(), *_SCHEMA.split(";")[:-1]]

    def write(self, origin: str, changes: Changes, sealed: int) -> int:
        """One transaction: all or nothing. `sealed` is the sum of the sealed rows; the sum after it."""
        with self.datastore.transaction(commit=True) as cursor:
            return self._write(cursor, origin, changes, sealed)

    def _write(self, cursor: SQLiteCursor, origin: str, changes: Changes, sealed: int) -> int:
        self._insert_tracking(cursor, Tracking(_ALL, changes.size))
        for table, rows in changes.rows.items():
            if table not in _SEALED:
                cursor.executemany(_WRITES[table], rows)
                continue
            for row in rows:
                sealed -= _sum(table, self._named(cursor, table, row))
                cursor.execute(_WRITES[table], row)
                sealed += _sum(table, self._named(cursor, table, row))
        sealed %= 1 << 8 * _SUM_BYTES
        seal = b""
        if changes.signer is not None:
            text = _seal_text(origin, changes.size, changes.root, changes.orphans, sealed)
            seal = sign_note(text, changes.signer)
        cursor.execute("DELETE FROM log")
        cursor.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
            (origin, _VERSION, changes.root, changes.orphans, seal),
        )
        return sealed

    @staticmethod
    def _named(cursor: SQLiteCursor, table: str, row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The row that is there under the name of `row`, if one is."""
        where = " AND ".join(f"{column} = ?" for column in _SEALED[table])
        statement = f"SELECT * FROM {table} WHERE {where}"  # noqa: S608 - names of ours
        cursor.execute(statement, row[: len(_SEALED[table])])
        return [tuple(found) for found in cursor.fetchall()]


def _sum(table: str, rows: Iterable[tuple[Any, ...]]) -> int:
    """Of a set of rows a number that changes with each of them, whatever their order: the sum of hashes.

    As wide as that, no other set of rows is found that has it (Bellare and Micciancio 1997, AdHASH; Wagner
    2002).
    """
    return sum(
        int.from_bytes(shake_128(f"{table} {row!r}".encode()).digest(_SUM_BYTES), "big") for row in rows
    )


def _seal_text(origin: str, size: int, root: bytes, orphans: int, sealed: int) -> bytes:
    """What the ledger signs. No checkpoint begins with this line, since no origin is it."""
    digest = sha256(sealed.to_bytes(_SUM_BYTES, "big")).digest()
    lines = (_SEAL, origin, str(size), b64encode(root).decode(), str(orphans), b64encode(digest).decode())
    return "".join(f"{line}\n" for line in lines).encode()


class Views:
    """The rows of one log. `size` is what they hold, `root` the log's root at it."""

    def __init__(self, path: Path, origin: str) -> None:
        """Opens or makes the file. Raises FatalError VIEWS_UNREADABLE."""
        self.path = path
        self._origin = origin
        self.size = 0
        self.root = b""
        self.orphans = 0
        self._seal = b""
        self._sealed: int | None = None  # the sum of the sealed rows; None until it is asked for
        self.dropped: str | None = None  # why what was there does not count
        try:
            self._open()
        except (PersistenceError, sqlite3.Error, FatalError) as error:  # older rows have other columns
            self.drop(f"expected rows that can be read, got {error}")

    def _open(self) -> None:
        self._datastore = _Datastore(str(self.path))
        self._recorder = _Recorder(self._datastore)
        self._recorder.create_table()
        self._reader = sqlite3.connect(self.path, check_same_thread=False)
        self.size = self._recorder.max_tracking_id(_ALL) or 0
        rows = self.select("SELECT origin, version, root, orphans, seal FROM log")
        if not self.size and not rows:
            return
        if len(rows) != 1 or rows[0][:2] != (self._origin, _VERSION):
            got = rows[0][:2] if rows else "nothing"
            self.drop(f"expected rows of {self._origin}, version {_VERSION}, got {got}")
            return
        self.root, self.orphans, self._seal = rows[0][2:]

    def check_seal(self, key: VerifierKey) -> None:
        """That a ledger key sealed these rows at their size. Raises VerificationError, FormatError."""
        note = parse_note(bytes(self._seal))
        note.verify([key])
        if note.text != _seal_text(self._origin, self.size, self.root, self.orphans, self._sum()):
            raise VerificationError("V6", "BAD_SEAL", f"expected the rows that {key} sealed, got others")

    def _sum(self) -> int:
        """The sum of the sealed rows, as they are."""
        if self._sealed is None:
            tables = [(table, self.select(f"SELECT * FROM {table}")) for table in _SEALED]  # noqa: S608 - names of ours
            self._sealed = sum(_sum(table, rows) for table, rows in tables) % (1 << 8 * _SUM_BYTES)
        return self._sealed

    def drop(self, why: str) -> None:
        """Begins from nothing; `dropped` then says why."""
        self.close()
        for suffix in SQLITE_SUFFIXES:
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)
        self.size, self.root, self.orphans, self.dropped = 0, b"", 0, why
        self._seal, self._sealed = b"", None
        try:
            self._open()
        except (PersistenceError, sqlite3.Error) as error:
            raise FatalError("VIEWS_UNREADABLE", f"expected to make {self.path}, got {error}") from error

    def write(self, changes: Changes) -> None:
        """Writes changes. Blocks. Raises FatalError VIEWS_UNREADABLE, and nothing is written."""
        try:
            self._sealed = self._recorder.write(self._origin, changes, self._sum())
        except (PersistenceError, sqlite3.Error) as error:
            raise FatalError("VIEWS_UNREADABLE", f"expected to write {self.path}, got {error}") from error

    def select(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows as they are written. Raises FatalError VIEWS_UNREADABLE."""
        try:
            return self._reader.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise FatalError("VIEWS_UNREADABLE", f"expected to read {self.path}, got {error}") from error

    def dump(self) -> Iterable[tuple[str, tuple[Any, ...]]]:
        """(table, row) of everything that is derived, chunks joined: equal for equal prefixes."""
        for table in _WRITES:
            if table == "claims":
                joined: dict[int, bytes] = {}
                for number, _, packed in self.select("SELECT * FROM claims ORDER BY number, first"):
                    joined[number] = joined.get(number, b"") + packed
                yield from ((table, row) for row in joined.items())
            else:
                yield from ((table, row) for row in sorted(self.select(f"SELECT * FROM {table}"), key=repr))  # noqa: S608 - a name of ours

    def close(self) -> None:
        """Closes the file."""
        if hasattr(self, "_reader"):
            self._reader.close()
        self._datastore.close()
