"""Reading what is committed: runs, cut to message size, and entries found again.

Rules kept here:

- Bytes go out as they are stored; a run is cut between entries and never re-encoded (law 2).
- The store is read in one thread of its own, so that a reader never stands before a commit.
- The newest runs are kept in memory, bounded: followers at the head do not touch the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from uuid import UUID

from ledger.entry import Entry, decode_entry, iter_run
from ledger.errors import FatalError, NotFoundError
from ledger.server.store import Marker, Store

__all__ = ["Reader", "cut_run"]

_CHUNK: Final = 2**20  # bytes of a message's run, beyond which no entry is added
_TAIL: Final = 16 * 2**20  # bytes of runs kept in memory
_TAIL_RUNS: Final = 4096

_T = TypeVar("_T")


def cut_run(first_index: int, run: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The entries [start, end) of a run as (first index, run) pieces of about 1 MiB."""
    index, position = first_index, 0
    piece_index, piece_start = start, 0
    while position < len(run) and index < end:
        if index == start:
            piece_start = position
        position += 2 + int.from_bytes(run[position : position + 2], "big")
        index += 1
        if index > start and position - piece_start >= _CHUNK:
            yield piece_index, run[piece_start:position]
            piece_index, piece_start = index, position
    if piece_index < index:
        yield piece_index, run[piece_start:position]


def _about_a_chunk(runs: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The first of the runs, up to and with the one that fills a chunk."""
    size = 0
    for first_index, run in runs:
        yield first_index, run
        size += len(run)
        if size >= _CHUNK:
            return


def _count(run: bytes) -> int:
    position = count = 0
    while position < len(run):
        position += 2 + int.from_bytes(run[position : position + 2], "big")
        count += 1
    return count


class Reader:
    """Serves committed bytes. The tail is owned by the event loop, which alone touches it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "ledger-reader")
        self._tail: deque[tuple[int, bytes]] = deque()
        self._tail_bytes = 0

    def keep(self, first_index: int, run: bytes) -> None:
        """Adds a committed run to the tail."""
        self._tail.append((first_index, run))
        self._tail_bytes += len(run)
        while len(self._tail) > 1 and (self._tail_bytes > _TAIL or len(self._tail) > _TAIL_RUNS):
            self._tail_bytes -= len(self._tail.popleft()[1])

    async def pieces(self, start: int, end: int) -> AsyncIterator[tuple[int, bytes]]:
        """The committed entries [start, end) as (first index, run) pieces of about 1 MiB.

        Small runs are put together, so that a log of many small commits is not sent in many small messages.
        """
        waiting: list[bytes] = []
        waiting_index, waiting_bytes = start, 0
        while start < end:
            for first_index, run in await self._runs(start):
                for index, piece in cut_run(first_index, run, start, end):
                    if not waiting:
                        waiting_index = index
                    waiting.append(piece)
                    waiting_bytes += len(piece)
                    if waiting_bytes >= _CHUNK:
                        yield waiting_index, b"".join(waiting)
                        waiting, waiting_bytes = [], 0
                start = first_index + _count(run)
                if start >= end:
                    break
        if waiting:
            yield waiting_index, b"".join(waiting)

    async def entries(self, indexes: Iterable[int]) -> AsyncIterator[tuple[int, bytes, str]]:
        """(index, entry, its author's name) of ascending indexes. Raises NotFoundError."""
        first_index, run = 0, list[bytes]()
        opening, author = -1, ""
        for index in indexes:
            if not first_index <= index < first_index + len(run):
                first_index, data = (await self._runs(index))[0]
                run = list(iter_run(data))
                if index >= first_index + len(run):
                    raise NotFoundError("NO_SUCH_ENTRY", f"expected an entry at index {index}, got none")
            data = run[index - first_index]
            # Batches lie whole in one run, so the opening is in it too.
            begins = index - decode_entry(data).offset
            if begins != opening:
                opening, author = begins, _opened_by(run[begins - first_index])
            yield index, data, author

    async def entry(self, index: int) -> bytes:
        """The entry at `index`, as stored. Raises NotFoundError."""
        return await anext(entry async for _, entry, _ in self.entries([index]))

    async def opening(self, index: int) -> Entry:
        """The decoded entry that opens the batch at `index`."""
        return decode_entry(await self.entry(index))

    async def marker(self, originator: UUID, sequence: int) -> Marker | None:
        """The marker of a placed batch."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._store.marker, originator, sequence)

    async def next_sequences(self, streams: Mapping[bytes, UUID]) -> dict[bytes, int]:
        """The next sequence of each stream, by its markers."""

        def ask() -> dict[bytes, int]:
            return {stream: self._store.next_sequence(marker) for stream, marker in streams.items()}

        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)

    async def aside(self, read: Callable[[], _T]) -> _T:
        """What a blocking `read` gives, in the reading thread. It must touch nothing of the event loop's."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    async def _runs(self, start: int) -> list[tuple[int, bytes]]:
        """Some runs, about 1 MiB of them, the first of which holds the entry at `start`."""
        if self._tail and self._tail[0][0] <= start:
            kept: list[tuple[int, bytes]] = []
            for item in reversed(self._tail):
                kept.append(item)
                if item[0] <= start:
                    break
            # No more than a slow reader may keep from being freed while he takes his time.
            return list(_about_a_chunk(reversed(kept)))
        runs = await asyncio.get_running_loop().run_in_executor(self._thread, self._stored, start)
        if not runs:
            raise NotFoundError("NO_SUCH_ENTRY", f"expected an entry at index {start}, got none")
        return runs

    def _stored(self, start: int) -> list[tuple[int, bytes]]:
        return list(_about_a_chunk(self._store.runs(start)))

    def close(self) -> None:
        """Ends the reading thread."""
        self._thread.shutdown()


def _opened_by(data: bytes) -> str:
    opening = decode_entry(data).opening
    if opening is None:
        raise FatalError("STORE_BROKEN", "expected whole batches in a run, got one without its opening")
    return opening.name
