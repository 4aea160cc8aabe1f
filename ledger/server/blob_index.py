"""Which content the log names, which it had erased, and what is stored: rows beside the log.

Rules kept here:

- What the log says (`names`, `erased`) is a fold over it, and made again where the rows are not this log's.
- What is stored is the store's to say; a row here counts it, for limits, and says who put it. A row that was
  lost is made again when somebody asks for the content, or at the next start, without a name to it.
- An orphan is stored content that no event names. Who put it answers for it until an event does.
- Rows are committed without a flush of their own: what a power cut takes is folded or found again.
- A file that is no database of these rows is removed and made again; one that turns out to be damaged while
  the ledger runs is removed, and made again at the next start.
- Names are looked up while they are folded, so memory does not grow with the log.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ledger.content import named_blob
from ledger.entry import decode_entry, iter_run
from ledger.errors import FatalError
from ledger.fold import read_event
from ledger.merkle import leaf_hash
from ledger.server.blobs import Stored
from ledger.server.store import Store
from ledger.server.views import SQLITE_SUFFIXES
from ledger.trust import Grant
from ledger.v1 import event_pb2

__all__ = ["BLOB_INDEX", "BlobIndex"]

BLOB_INDEX: Final = "blobs.sqlite"  # below the ledger's `data`
_log = logging.getLogger("ledger.server.blobs")
_VERSION: Final = 1
_MANY: Final = 4096  # entries between two commits
_PAGE: Final = 256  # rows
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS log (origin TEXT, version INTEGER, size INTEGER, leaf BLOB);
CREATE TABLE IF NOT EXISTS names (digest BLOB, rollout TEXT, PRIMARY KEY (digest, rollout)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS erased (digest BLOB PRIMARY KEY, position INTEGER) WITHOUT ROWID;
-- put_at: microseconds since 1970
CREATE TABLE IF NOT EXISTS stored (
    digest BLOB PRIMARY KEY, size INTEGER, salted INTEGER, owner TEXT, put_at INTEGER, named INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS orphans ON stored (owner, put_at) WHERE named = 0;
"""
#: Gives nothing, and fails on a file whose tables are others.
_SHAPE: Final = """
SELECT n.digest, n.rollout, e.digest, e.position, s.digest, s.size, s.salted, s.owner, s.put_at, s.named
FROM names n, erased e, stored s LIMIT 0
"""


class BlobIndex:
    """A fold, and the count of what is stored. Owned by the event loop."""

    def __init__(self, path: Path, origin: str, leaf: Callable[[int], bytes], size: int) -> None:
        """Opens the rows; those of another log or of none are made again by `catch_up`.

        `leaf` gives the log's leaf hash at an index below `size`. Raises FatalError VIEWS_UNREADABLE.
        """
        self._path = path
        self._origin = origin
        self._leaf = b""
        self._pending = 0
        self.more = asyncio.Event()  # something was erased
        self.size = 0
        self.dropped: str | None = None  # why what was there does not count
        # What is stored, its bytes, the orphans of it, and digests that were erased.
        self.count = self.total = self.orphan_count = self.erased_count = 0
        try:
            self._open()
            self._go_on(leaf, size)
        except (sqlite3.Error, FatalError, TypeError) as error:  # rows may hold anything
            if isinstance(error, FatalError) and error.reason != "VIEWS_UNREADABLE":
                raise  # of the tree
            self._drop(f"expected rows that can be read, got {error}")

    def _open(self) -> None:
        self._rows = sqlite3.connect(self._path, check_same_thread=False)
        self._rows.execute("PRAGMA journal_mode=WAL")
        self._rows.execute("PRAGMA synchronous=NORMAL")
        self._rows.executescript(_SCHEMA)

    def _go_on(self, leaf: Callable[[int], bytes], size: int) -> None:
        """Takes what the rows hold, if they are this log's."""
        found = self._select(
            "SELECT size, leaf FROM log WHERE (origin, version) = (?, ?)", (self._origin, _VERSION)
        )
        if found and 0 < found[0][0] <= size and leaf(found[0][0] - 1) == found[0][1]:
            self.size, self._leaf = found[0]
        else:
            for statement in ("DELETE FROM names", "DELETE FROM erased", "UPDATE stored SET named = 0"):
                self._write(statement)
        self._select(_SHAPE)
        self.count, self.total = self._select("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM stored")[0]
        self.orphan_count = self._select("SELECT COUNT(*) FROM stored WHERE named = 0")[0][0]
        self.erased_count = self._select("SELECT COUNT(position) FROM erased")[0][0]

    def _drop(self, why: str) -> None:
        """Begins from nothing."""
        _log.warning("the rows in %s are made again: %s", self._path, why)
        if hasattr(self, "_rows"):
            self._rows.close()
        self._unlink()
        self.size, self._leaf, self._pending, self.dropped = 0, b"", 0, why
        self.count = self.total = self.orphan_count = self.erased_count = 0
        try:
            self._open()
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _unlink(self) -> None:
        for suffix in SQLITE_SUFFIXES:
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def catch_up(self, store: Store, size: int) -> None:
        """Takes what the store holds beyond `self.size`, up to `size`. Blocks."""
        try:
            self._catch_up(store, size)
        except FatalError as error:
            if error.reason != "VIEWS_UNREADABLE" or self.dropped is not None:
                raise
            self._drop(f"expected rows that can be written, got {error}")
            self._catch_up(store, size)

    def _catch_up(self, store: Store, size: int) -> None:
        if self.size == size:
            return
        for first_index, run in store.runs(self.size):
            for index, data in enumerate(iter_run(run), first_index):
                if self.size == index < size:
                    event, _ = read_event(decode_entry(data).event)
                    self._take(index, leaf_hash(data), event)
        self.commit()

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes one entry."""
        self._take(index, leaf, event)

    def _take(self, index: int, leaf: bytes, event: event_pb2.Event) -> None:
        if (named := named_blob(event)) is not None:
            rollout, digest = named[0], named[1].digest
            self._write("INSERT OR IGNORE INTO names VALUES (?, ?)", (digest, rollout))
            found = self._write("UPDATE stored SET named = 1 WHERE digest = ? AND named = 0", (digest,))
            self.orphan_count -= found
        elif event.WhichOneof("body") == "blob_erased":
            row = (event.blob_erased.digest, index)
            self.erased_count += self._write("INSERT OR IGNORE INTO erased VALUES (?, ?)", row)
            self.more.set()
        self.size, self._leaf = index + 1, leaf
        self._pending += 1
        if self._pending >= _MANY:
            self.commit()

    # --- what the log says ----------------------------------------------------------------------------------

    def erased(self, digest: bytes) -> int | None:
        """Index of the first BlobErased of a digest."""
        found = self._select("SELECT position FROM erased WHERE digest = ?", (digest,))
        return found[0][0] if found else None

    def named(self, digest: bytes) -> bool:
        """Whether an event names the digest."""
        return bool(self._select("SELECT 1 FROM names WHERE digest = ? LIMIT 1", (digest,)))

    def rollouts(self, digest: bytes, after: str = "") -> list[str]:
        """The next rollouts, in the order of their ids, whose events name the digest; empty at the end."""
        found = self._select(
            "SELECT rollout FROM names WHERE digest = ? AND rollout > ? ORDER BY rollout LIMIT ?",
            (digest, after, _PAGE),
        )
        return [rollout for (rollout,) in found]

    # --- what is stored -------------------------------------------------------------------------------------

    def stored(self, digest: bytes) -> Stored | None:
        """What is counted as stored under the digest."""
        found = self._select("SELECT size, salted FROM stored WHERE digest = ?", (digest,))
        return Stored(found[0][0], bool(found[0][1])) if found else None

    def put_by(self, digest: bytes, owner: str) -> bool:
        """Whether what is counted as stored under the digest was put by a principal."""
        return bool(self._select("SELECT 1 FROM stored WHERE (digest, owner) = (?, ?)", (digest, owner)))

    def add(self, digest: bytes, stored: Stored, owner: str, now: int) -> None:
        """Counts content; what is counted already is put anew by whom it was put."""
        if self.stored(digest) is None:
            named = self.named(digest)
            row = (digest, stored.size, stored.salted, owner, now, named)
            self._write("INSERT INTO stored VALUES (?, ?, ?, ?, ?, ?)", row)
            self.count += 1
            self.total += stored.size
            self.orphan_count += not named
        else:
            self._write("UPDATE stored SET put_at = ? WHERE digest = ?", (now, digest))
        self.commit()

    def drop(self, digest: bytes) -> None:
        """Content is gone."""
        found = self._select("SELECT size, named FROM stored WHERE digest = ?", (digest,))
        if found:
            size, named = found[0]
            self.count -= 1
            self.total -= size
            self.orphan_count -= not named
            self._write("DELETE FROM stored WHERE digest = ?", (digest,))
            self.commit()

    def orphans(self, owner: str) -> tuple[int, int]:
        """How many orphans a principal put, and their bytes."""
        statement = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM stored WHERE owner = ? AND named = 0"
        count, size = self._select(statement, (owner,))[0]
        return count, size

    def orphans_before(self, time: int) -> list[bytes]:
        """Orphans put before `time`."""
        found = self._select("SELECT digest FROM stored WHERE named = 0 AND put_at < ?", (time,))
        return [digest for (digest,) in found]

    def erased_but_stored(self) -> list[bytes]:
        """Content that has to go."""
        return [digest for (digest,) in self._select("SELECT digest FROM erased JOIN stored USING (digest)")]

    # --- rows -----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Writes what was taken, with the size that it was taken up to."""
        self._write("DELETE FROM log")
        self._write("INSERT INTO log VALUES (?, ?, ?, ?)", (self._origin, _VERSION, self.size, self._leaf))
        try:
            self._rows.commit()
        except sqlite3.Error as error:
            raise self._broken(error) from error
        self._pending = 0

    def close(self) -> None:
        """Writes and closes. What cannot be written is made again at the next start."""
        try:
            self.commit()
        except FatalError as error:
            _log.error("rows of blobs stay as they were written last: %s", error)
        self._rows.close()

    def _select(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._rows.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _write(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows were changed."""
        try:
            return self._rows.execute(statement, values).rowcount
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _broken(self, error: sqlite3.Error) -> FatalError:
        if type(error) is sqlite3.DatabaseError:  # damaged: no other kind of error says so
            self._unlink()
        return FatalError("VIEWS_UNREADABLE", f"expected to use {self._path}, got {error}")
