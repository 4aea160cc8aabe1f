"""The store: committed runs, batch markers and checkpoints, and the last released checkpoint beside them.

Here are its duties and what it takes and gives. `recorded` keeps them on rows of a database, `sqlite` and
`postgres` are the databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol
from uuid import UUID

__all__ = ["Commit", "Marker", "Store", "marker_originator"]


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
    """Where a log lies. Methods block; `hold`, `commit` and `release` are called one after the other, the
    others in any thread.

    Duties of every implementation:

    1. `commit` returns only when run, markers and checkpoint are durable, all together; it raises
       OverloadedError(COMMIT_FAILED) only when none of them is there, and FatalError when it cannot tell or
       when another writer moved the head.
    2. A row is never changed or removed.
    3. Two processes on one log: the second gets FatalError ALREADY_RUNNING, or HEAD_MOVED when it commits.
       What another process stores is never changed by this one, whatever this one believes.
    4. `released` gives back what the last `release` that returned was given, whatever became of the rest.
    """

    def hold(self) -> None:
        """Makes this process the log's one writer, or sees that it still is; called before the first commit
        and whenever a while passed without one. Raises FatalError ALREADY_RUNNING if another process is."""
        ...

    def head(self) -> tuple[int, bytes] | None:
        """Size and signed checkpoint of the last commit; None for an empty log."""
        ...

    def runs(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(first index, run) in order, beginning with the run that holds the entry at `start`."""
        ...

    def marker(self, originator: UUID, sequence: int) -> Marker | None:
        """The marker of a placed batch."""
        ...

    def next_sequence(self, originator: UUID) -> int:
        """The sequence after the last placed batch of a stream; 0 where none is placed."""
        ...

    def checkpoints(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(size, signed note) of every commit in order, from the first one whose size is beyond `start`."""
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
