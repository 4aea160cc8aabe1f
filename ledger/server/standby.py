"""A ledger that waits for another one to end, and reads along meanwhile.

Rules kept here:

- Waiting writes nothing to the store. Who waits becomes the writer only by the store's own lock. A database
  that is out of reach, on its way from one machine to the next perhaps, is waited for as well.
- What the writer stores is read, and its checkpoints are checked against it: each tree grows out of the one
  before. The last checkpoint is remembered in this process's own folder, so that a database set back while
  nobody serves is refused at the take-over (law 6), as it is by the one who served.
- A folder that remembers nothing cannot tell whether a log that is there is the newest: refused, unless the
  operator hands in a checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ledger.checkpoint import Checkpoint, open_checkpoint
from ledger.entry import iter_run
from ledger.errors import FatalError, VerificationError
from ledger.merkle import Frontier, leaf_hash
from ledger.note import VerifierKey
from ledger.server.released import check_reaches, check_root
from ledger.server.store import Store
from ledger.server.waiters import happens

__all__ = ["Watch", "remember", "until_free"]

_EVERY: Final = 1.0  # seconds between two looks
_AT_ONCE: Final = 32 * 2**20  # bytes read in one look

#: What a standby does not end with, and what it says once.
_WAITED_FOR: Final = {
    "ALREADY_RUNNING": "standing by until the ledger that serves has ended",
    "STORE_AWAY": "standing by until the store can be reached",
}

_log = logging.getLogger("ledger.server")
_T = TypeVar("_T")


async def until_free(take: Callable[[], _T], asked: asyncio.Event, watch: Watch | None = None) -> _T | None:
    """What `take` gives once it no longer raises ALREADY_RUNNING; None if `asked` to stop before.

    `watch` looks after every try. Both are called in a thread, one after the other. Raises FatalError.
    """
    told = ""
    while not asked.is_set():
        reason = ""
        try:
            return await asyncio.to_thread(take)
        except FatalError as error:
            reason = error.reason
            if reason not in _WAITED_FOR:
                raise
            if reason != told:
                _log.warning("%s", _WAITED_FOR[reason])
            told = reason
        if watch is not None and reason == "ALREADY_RUNNING" and await _more(watch):
            continue
        await happens(asked, _EVERY)
    return None


async def _more(watch: Watch) -> bool:
    try:
        return await asyncio.to_thread(watch.look)
    except FatalError as error:
        if error.reason != "STORE_AWAY":
            raise
        return False  # The next try says so.


class Watch:
    """Follows a log that another process writes, and remembers its last checkpoint. Called in one thread."""

    def __init__(self, store: Store, keys: Sequence[VerifierKey]) -> None:
        """`keys` are the ledger's: what this process trusts, and what it holds.

        Raises FatalError: RELEASED_MISSING, BAD_RELEASED, STORE_AWAY.
        """
        self._store = store
        self._keys = keys
        self._frontier = Frontier()
        released = store.released()
        self._remembered = None if released is None else _opened(released, keys)
        if released is None and (head := store.head()) is not None:
            raise FatalError(
                "RELEASED_MISSING",
                f"expected a released checkpoint beside a store of {head[0]} entries, got none: whether this "
                "store is the newest cannot be told; hand in its last checkpoint with --released",
            )

    def look(self) -> bool:
        """Reads what is new; True if there is more.

        Raises FatalError: BEHIND_RELEASED, FORKED, BAD_RELEASED, STORE_BROKEN, STORE_AWAY.
        """
        head = self._store.head()
        size = 0 if head is None else head[0]
        if self._remembered is not None:
            check_reaches(size, self._remembered, "as seen before")
        if head is None or size == self._frontier.size:
            return False
        read = 0
        for first_index, run in self._store.runs(self._frontier.size):
            self._take(first_index, run)
            read += len(run)
            if self._frontier.size >= size:
                break
            if read >= _AT_ONCE:
                return True
        checkpoint = _opened(head[1], self._keys)
        if (checkpoint.size, checkpoint.root) != (self._frontier.size, self._frontier.root()):
            raise FatalError(
                "STORE_BROKEN",
                f"expected size {self._frontier.size}, root {self._frontier.root().hex()}, got size "
                f"{checkpoint.size}, root {checkpoint.root.hex()}",
            )
        self._store.release(head[1])
        self._remembered = checkpoint
        return False

    def _take(self, first_index: int, run: bytes) -> None:
        if first_index != self._frontier.size:
            raise FatalError(
                "STORE_BROKEN", f"expected a run at index {self._frontier.size}, got {first_index}"
            )
        self._frontier.extend(leaf_hash(entry) for entry in iter_run(run))
        known = self._remembered
        # Checkpoints stand where commits end, and a commit is one run: who goes past it is another log.
        if known is None or not first_index < known.size <= self._frontier.size:
            return
        root_then = self._frontier.root() if self._frontier.size == known.size else b""
        check_root(root_then, known, "as seen before")


def remember(store: Store, note: bytes, keys: Sequence[VerifierKey]) -> None:
    """Takes a checkpoint that the operator hands in, unless one at least as large is remembered.

    Raises FatalError: BAD_RELEASED where it is none of this ledger's, FORKED beside another of its size.
    """
    checkpoint = _opened(note, keys)
    released = store.released()
    known = None if released is None else _opened(released, keys)
    if known is None or known.size < checkpoint.size:
        store.release(note)
    elif known.size == checkpoint.size and known.root != checkpoint.root:
        raise FatalError(
            "FORKED",
            f"expected root {known.root.hex()} at size {known.size}, as remembered, got another in the "
            f"checkpoint handed in, {checkpoint.root.hex()}: keep both, they prove a fork",
        )


def _opened(note: bytes, keys: Sequence[VerifierKey]) -> Checkpoint:
    try:
        return open_checkpoint(note, *keys)
    except VerificationError as error:
        raise FatalError(
            "BAD_RELEASED",
            f"expected a checkpoint by a key of this ledger, got {error}; note_keys must name every key that "
            "may sign",
        ) from error
