"""A store on rows of a database: all that SQLite and PostgreSQL have in common.

Rules kept here:

- Rows are `eventsourcing` StoredEvents: originator, version, topic, state. Position comes from the log alone:
  the version of a run's row is its first index + 1, a marker's its sequence + 1, a checkpoint's its size; the
  database's unique constraint keeps a second writer from the same place. Notification ids are never used.
- One transaction per commit; nothing is tried twice unseen.
- A doubtful outcome is judged only once this process is surely the one writer, so that nothing of its own can
  land later. Then it is read back and compared byte for byte: equal is committed; a head that moved is fatal;
  anything else fails that commit.
- The last released checkpoint is kept outside the database, so that a database set back in time shows
  (law 6).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import Final, Protocol, TypedDict, Unpack
from uuid import UUID

from eventsourcing.persistence import PersistenceError, StoredEvent

from ledger.errors import FatalError, OverloadedError
from ledger.server.durable import Folder, Released
from ledger.server.store import Commit, Marker

__all__ = ["Database", "RecordedStore", "Which"]

_RUN: Final = "assay/run/v1"
_MARKER: Final = "assay/marker/v1"
_CHECKPOINT: Final = "assay/checkpoint/v1"
_MARKER_STATE: Final = struct.Struct(">32sQ")  # root, first index
_RETRY_AFTER: Final = 0.5  # seconds
_SMALL: Final = 65_536  # bytes of a run
_MANY: Final = 32
_MANY_NOTES: Final = 1024


class Which(TypedDict, total=False):
    """Which rows of an originator: versions greater than `gt`, at most `lte`; the library's names."""

    gt: int
    lte: int
    desc: bool
    limit: int


class Database(Protocol):
    """Rows of one log. Every method but `close` raises PersistenceError where the database fails."""

    def hold(self) -> None:
        """As `Store.hold`. When it returns, nothing that an earlier `insert` began is still on its way."""
        ...

    def insert(self, rows: Sequence[StoredEvent]) -> None:
        """All rows or none, durable on return. Never tries again by itself."""
        ...

    def select(self, originator: UUID, **which: Unpack[Which]) -> Sequence[StoredEvent]:
        """The committed rows of an originator by version."""
        ...

    def close(self) -> None:
        """Lets go of connections and of what keeps other writers out."""
        ...


def _originator(kind: str, origin: str) -> UUID:
    return UUID(bytes=sha256(f"{kind}\n{origin}".encode()).digest()[:16])


class RecordedStore:
    """A `Store` of a database, and of a folder with the released checkpoint."""

    def __init__(self, connect: Callable[[], Database], folder: Folder, origin: str) -> None:
        """Takes over what `connect` opens and the folder, to close them; here too where it raises.

        Raises FatalError: STORE_UNREADABLE, and what `connect` and `Released` raise.
        """
        with ExitStack() as opened:
            opened.callback(folder.close)
            try:
                self._database = connect()
            except PersistenceError as error:
                raise FatalError("STORE_UNREADABLE", f"expected to open the store, got {error}") from error
            opened.callback(self._database.close)
            self._released = Released(folder)
            opened.pop_all()
        self._folder = folder
        self._log = _originator(_RUN, origin)
        self._checkpoints = _originator(_CHECKPOINT, origin)

    def hold(self) -> None:
        """Makes this process the log's one writer, or sees that it still is. Raises FatalError."""
        try:
            self._database.hold()
        except PersistenceError as error:
            raise FatalError("STORE_UNREADABLE", f"expected to reach the store, got {error}") from error

    def _select(self, originator: UUID, **which: Unpack[Which]) -> Sequence[StoredEvent]:
        """Rows of one originator. Raises FatalError STORE_UNREADABLE."""
        try:
            return self._database.select(originator, **which)
        except PersistenceError as error:
            raise FatalError("STORE_UNREADABLE", f"expected to read the store, got {error}") from error

    def head(self) -> tuple[int, bytes] | None:
        """Size and signed checkpoint of the last commit; None for an empty log."""
        rows = self._select(self._checkpoints, desc=True, limit=1)
        return (rows[0].originator_version, rows[0].state) if rows else None

    def runs(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(first index, run) in order, beginning with the run that holds the entry at `start`."""
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

    def next_sequence(self, originator: UUID) -> int:
        """The sequence after the last placed batch of a stream; 0 where none is placed."""
        rows = self._select(originator, desc=True, limit=1)
        return rows[0].originator_version if rows else 0

    def checkpoints(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(size, signed note) of every commit in order, from the first one whose size is beyond `start`."""
        while rows := self._select(self._checkpoints, gt=start, limit=_MANY_NOTES):
            for row in rows:
                yield row.originator_version, row.state
            start = rows[-1].originator_version

    def commit(self, commit: Commit) -> None:
        """Stores a commit in one transaction; reads back where the outcome is doubtful."""
        rows = self._rows(commit)
        try:
            self._database.insert(rows)
        except PersistenceError as error:
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

    def _judge_doubtful(self, commit: Commit, rows: list[StoredEvent], error: PersistenceError) -> None:
        """Returns if the commit is there, byte for byte; raises if it is not, or if the head is another's."""
        try:
            self._database.hold()
            found = [self._stored(row) for row in rows]
            head = self.head()
        except (PersistenceError, FatalError) as again:
            if isinstance(again, FatalError) and again.reason == "ALREADY_RUNNING":
                raise
            raise FatalError("STORE_DOUBTFUL", f"expected to read the commit back, got {again}") from error
        if all(state == row.state for state, row in zip(found, rows, strict=True)):
            return
        size = 0 if head is None else head[0]
        if size != commit.first_index or any(state is not None for state in found):
            raise FatalError(
                "HEAD_MOVED",
                f"expected the stored log to end at {commit.first_index}, got {size}: another writer; "
                "find out which before this one is started again",
            ) from error
        raise OverloadedError(
            "COMMIT_FAILED", f"expected the commit to be stored, got {type(error).__name__}", _RETRY_AFTER
        ) from error

    def _stored(self, row: StoredEvent) -> bytes | None:
        if not isinstance(row.originator_id, UUID):
            raise TypeError(f"expected an originator of this store, got {row.originator_id!r}")
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
        self._database.close()
        self._released.close()
        self._folder.close()
