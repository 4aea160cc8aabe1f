"""Folds: views fed with every committed entry, in order, after the authors have been answered.

Rules kept here:

- A fold sees each entry once, by index, and only what is committed.
- Folds run in slices between other work of the loop, so that appends stay quick; what waits is bounded, and a
  sequencer that is too far ahead waits for them.
- A fold that raises is dropped and says so to whoever reads it: a broken view never stops the log, and is
  never served as if it were whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.errors import FatalError
from ledger.fold import Fold
from ledger.server.waiters import Waiters
from ledger.trust import Grant
from ledger.v1 import event_pb2

__all__ = ["FoldRunner", "Folded"]

_SLICE: Final = 128  # entries folded before other work may run
_MAX_WAITING: Final = 65_536  # entries

_log = logging.getLogger("ledger.server.folds")


@dataclass(frozen=True, slots=True)
class Folded:
    """One batch for the folds."""

    first_index: int
    recorded_at: int
    grant: Grant
    leaves: Sequence[bytes]
    events: Sequence[event_pb2.Event]


class FoldRunner:
    """Feeds the folds. `size` is `run`'s, at start-up `apply`'s: all below it is in every whole fold."""

    def __init__(self, folds: Iterable[Fold]) -> None:
        self._folds = list(folds)
        self._broken: dict[int, str] = {}
        self._waiting: deque[Folded] = deque()
        self._entries = 0
        self._waiters = Waiters()
        self._more = asyncio.Event()
        self.size = 0

    def apply(self, batch: Folded) -> None:
        """Folds a batch at once: start-up's way, before anything is served."""
        self._feed(batch, 0, len(batch.events))
        self.size = batch.first_index + len(batch.events)

    def give(self, batch: Folded) -> None:
        """Hands a committed batch over; returns at once."""
        self._waiting.append(batch)
        self._entries += len(batch.events)
        self._more.set()

    async def room(self) -> None:
        """Waits until what the folds still owe is within its bound."""
        await self._waiters.until(lambda: self._entries <= _MAX_WAITING)

    async def caught_up(self, fold: Fold, size: int) -> None:
        """Waits until `fold` has all entries below `size`. Raises FatalError(VIEW_BROKEN)."""
        await self._waiters.until(lambda: self.size >= size)
        if (why := self._broken.get(id(fold))) is not None:
            raise FatalError("VIEW_BROKEN", f"expected a whole view, got one that stopped: {why}")

    async def run(self) -> None:
        """Folds until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                batch = self._waiting.popleft()
                for start in range(0, len(batch.events), _SLICE):
                    self._feed(batch, start, start + _SLICE)
                    await asyncio.sleep(0)
                self._entries -= len(batch.events)
                self.size = batch.first_index + len(batch.events)
                self._waiters.wake()

    def _feed(self, batch: Folded, start: int, end: int) -> None:
        """Gives the entries at offsets [start, end) to every whole fold."""
        leaves, events, alone = batch.leaves, batch.events, len(batch.events) == 1
        for fold in self._folds:
            if id(fold) in self._broken:
                continue
            apply, index = fold.apply, batch.first_index + start
            try:
                for offset in range(start, min(end, len(events))):
                    index = batch.first_index + offset
                    apply(index, batch.recorded_at, leaves[offset], batch.grant, events[offset], alone)
            except Exception as error:  # noqa: BLE001 - whatever a view raises, the log goes on
                _log.critical("fold %s broke at index %d", type(fold).__name__, index, exc_info=error)
                self._broken[id(fold)] = f"{type(error).__name__} at index {index}"
