"""Reading what is committed: runs, cut to message size, and batches found again.

Rules kept here:

- Bytes go out as they are stored; a run is cut between entries and never re-encoded (law 2).
- The store is read in one thread of its own, so that a reader never stands before a commit.
- The newest runs are kept in memory, bounded: followers at the head do not touch the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final
from uuid import UUID

from ledger.entry import Entry, decode_entry, iter_run
from ledger.errors import FatalError, NotFoundError
from ledger.server.store import Marker, Store

__all__ = ["Reader", "cut_run"]

_CHUNK: Final = 2**20  # bytes of a message's run, beyond which no entry is added
_TAIL: Final = 16 * 2**20  # bytes of runs kept in memory


def cut_run(first_index: int, run: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The entries [start, end) of a run as (first index, run) pieces of about 1 MiB."""
    index, position, piece_index, piece_start = first_index, 0, start, 0
    while position < len(run) and index < end:
        length = 2 + int.from_bytes(run[position : position + 2], "big")
        if index == start:
            piece_index, piece_start = index, position
        position += length
        index += 1
        if index > start and position - piece_start >= _CHUNK:
            yield piece_index, run[piece_start:position]
            piece_index, piece_start = index, position
    if index > start and position > piece_start and piece_index < index:
        yield piece_index, run[piece_start:position]


class Reader:
    """Serves committed bytes. `tail` is owned by the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "ledger-reader")
        self._tail: deque[tuple[int, bytes]] = deque()
        self._tail_bytes = 0

    def keep(self, first_index: int, run: bytes) -> None:
        """Adds a committed run to the tail."""
        self._tail.append((first_index, run))
        self._tail_bytes += len(run)
        while self._tail_bytes > _TAIL and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft()[1])

    async def pieces(self, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        """The committed entries [start, end) as (first index, run) pieces of about 1 MiB."""
        while start < end:
            for first_index, run in await self._runs(start):
                for index, piece in cut_run(first_index, run, max(start, first_index), end):
                    yield index, piece
                start = first_index + sum(1 for _ in _lengths(run))
                if start >= end:
                    return

    async def entry(self, index: int) -> bytes:
        """The entry at `index`, as stored. Raises NotFoundError."""
        async for _, run in self.pieces(index, index + 1):
            return next(iter_run(run))
        raise NotFoundError("NO_SUCH_ENTRY", f"expected an entry at index {index}, got none")

    async def opening(self, index: int) -> Entry:
        """The decoded entry that opens the batch at `index`."""
        entry = decode_entry(await self.entry(index))
        if entry.opening is None:
            raise FatalError(
                "STORE_BROKEN", f"expected a batch to begin at {index}, got offset {entry.offset}"
            )
        return entry

    async def marker(self, originator: UUID, sequence: int) -> Marker | None:
        """The marker of a placed batch."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._store.marker, originator, sequence)

    async def _runs(self, start: int) -> list[tuple[int, bytes]]:
        """Some runs, the first of which holds the entry at `start`."""
        if self._tail and self._tail[0][0] <= start:
            kept = list(self._tail)
            while len(kept) > 1 and kept[1][0] <= start:
                kept.pop(0)
            return kept
        loop = asyncio.get_running_loop()
        runs = await loop.run_in_executor(self._thread, lambda: list(islice(self._store.runs(start), 4)))
        if not runs:
            raise NotFoundError("NO_SUCH_ENTRY", f"expected an entry at index {start}, got none")
        return runs

    def close(self) -> None:
        """Ends the reading thread."""
        self._thread.shutdown()


def _lengths(run: bytes) -> Iterator[int]:
    position = 0
    while position < len(run):
        length = 2 + int.from_bytes(run[position : position + 2], "big")
        position += length
        yield length
