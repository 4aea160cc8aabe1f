"""Stores and databases that fail on demand, in both forms: not done or done, and reported failed either way.

Rules:
1. A fault is armed by the test, strikes once, and then everything works again.
2. What is underneath is real: what was done is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar
from uuid import UUID

from eventsourcing.persistence import OperationalError, StoredEvent

from ledger.errors import AssayError
from ledger.server.recorded import Database, RecordedStore
from ledger.server.store import Commit, Marker, Store

__all__ = ["FaultStore", "FaultyDatabase", "Form", "fail_database"]

Form = Literal["not done", "done"]
_T = TypeVar("_T")


class _Fuse:
    """At most one armed fault."""

    def __init__(self) -> None:
        self._armed: tuple[str, Form, Exception] | None = None
        self.steps: list[str] = []  # what was called, in order

    def arm(self, step: str, form: Form, error: Exception) -> None:
        self._armed = (step, form, error)

    def run(self, step: str, call: Callable[[], _T]) -> _T:
        self.steps.append(step)
        if self._armed is None or self._armed[0] != step:
            return call()
        (_, form, error), self._armed = self._armed, None
        if form == "done":
            call()
        raise error


class FaultStore:
    """A `Store` before another one: the next call of a step fails, done or not."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._fuse = _Fuse()

    @property
    def steps(self) -> Sequence[str]:
        """The calls so far: names of the methods that write."""
        return tuple(self._fuse.steps)

    def arm(self, step: Literal["hold", "commit", "release"], form: Form, error: AssayError) -> None:
        """The next `step` raises `error`, having done what it should or nothing of it."""
        self._fuse.arm(step, form, error)

    def hold(self) -> None:
        """As the inner store, or as armed."""
        self._fuse.run("hold", self._inner.hold)

    def commit(self, commit: Commit) -> None:
        """As the inner store, or as armed."""
        self._fuse.run("commit", lambda: self._inner.commit(commit))

    def release(self, checkpoint: bytes) -> None:
        """As the inner store, or as armed."""
        self._fuse.run("release", lambda: self._inner.release(checkpoint))

    def head(self) -> tuple[int, bytes] | None:
        """The inner store's."""
        return self._inner.head()

    def checkpoints(self, start: int) -> Any:
        """The inner store's."""
        return self._inner.checkpoints(start)

    def runs(self, start: int) -> Any:
        """The inner store's."""
        return self._inner.runs(start)

    def marker(self, originator: UUID, sequence: int) -> Marker | None:
        """The inner store's."""
        return self._inner.marker(originator, sequence)

    def next_sequence(self, originator: UUID) -> int:
        """The inner store's."""
        return self._inner.next_sequence(originator)

    def released(self) -> bytes | None:
        """The inner store's."""
        return self._inner.released()

    def close(self) -> None:
        """Closes the inner store."""
        self._inner.close()


class FaultyDatabase:
    """A `Database` before a real one: the next call of a step fails below what judges doubtful outcomes."""

    def __init__(self, inner: Database) -> None:
        self._inner = inner
        self._fuse = _Fuse()

    def arm(
        self, step: Literal["hold", "insert", "select"], form: Form, error: Exception | None = None
    ) -> None:
        """The next `step` raises `error`, by default the library's for a lost connection."""
        self._fuse.arm(step, form, error or OperationalError("server closed the connection unexpectedly"))

    def hold(self) -> None:
        """As the inner database, or as armed."""
        self._fuse.run("hold", self._inner.hold)

    def insert(self, rows: Sequence[StoredEvent]) -> None:
        """As the inner database, or as armed."""
        self._fuse.run("insert", lambda: self._inner.insert(rows))

    def select(self, originator: UUID, **which: Any) -> Sequence[StoredEvent]:
        """As the inner database, or as armed."""
        return self._fuse.run("select", lambda: self._inner.select(originator, **which))

    def close(self) -> None:
        """Closes the inner database."""
        self._inner.close()


def fail_database(store: Store) -> FaultyDatabase:
    """Puts a faulty database under a store of rows, or under the one behind a fault store."""
    if isinstance(store, FaultStore):
        store = store._inner
    if not isinstance(store, RecordedStore):
        raise TypeError(f"expected a RecordedStore, got {store!r}")
    store._database = faulty = FaultyDatabase(store._database)
    return faulty
