"""Folds: views fed with every committed entry, in order, after the authors have been answered.

Rules kept here:

- A fold sees each entry once, by index, and only what is committed.
- Folds run in slices between other work of the loop, so that appends stay quick; what waits is bounded, and a
  sequencer that is too far ahead waits for them.
- A batch is folded whole before anything is kept of it: `between` batches every fold is at `size`.
- A fold may build on those before it: they have seen the same entries and the one at hand, and no more.
- A fold that raises is dropped and says so to whoever reads it: a broken view never stops the log, and is
  never served as if it were whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ledger.errors import FatalError
from ledger.fold import Fold
from ledger.server.waiters import Waiters
from ledger.trust import Grant
from ledger.v1 import event_pb2

__all__ = ["FoldRunner", "Folded"]

_SLICE: Final = 128  # entries folded before other work may run
_MAX_WAITING: Final = 65_536  # entries
_MAX_UNWRITTEN: Final = 262_144  # entries

_Ahead: TypeAlias = Callable[[Sequence[event_pb2.Event]], Awaitable[None]]

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

    def __init__(self, folds: Iterable[Fold], size: int = 0) -> None:
        """`folds` have all entries below `size`, and what they changed is written."""
        self._whole = list(folds)
        self._broken: dict[int, str] = {}
        self._waiting: deque[Folded] = deque()
        self._entries = 0
        self._waiters = Waiters()
        self._more = asyncio.Event()
        self._ahead: _Ahead | None = None
        self._between = True
        self._kept: int | None = size  # what folds changed below it is written; None: it cannot be
        self.size = size

    def apply(self, batch: Folded) -> None:
        """Folds a batch at once: start-up's way, before anything is served."""
        self._feed(batch, 0, len(batch.events))
        self.size = batch.first_index + len(batch.events)

    def add(self, fold: Fold) -> None:
        """Feeds one more, which has all entries below `size`; before `run`."""
        self._whole.append(fold)

    def read_ahead(self, ahead: _Ahead) -> None:
        """Lets `run` await this before it folds a batch: reads what that will ask for; before `run`."""
        self._ahead = ahead

    def give(self, batch: Folded) -> None:
        """Hands a committed batch over; returns at once."""
        self._waiting.append(batch)
        self._entries += len(batch.events)
        self._more.set()

    async def room(self) -> None:
        """Waits until what the folds still owe is within its bound."""
        await self._waiters.until(
            lambda: (
                self._entries <= _MAX_WAITING
                and (self._kept is None or self.size - self._kept <= _MAX_UNWRITTEN)
            )
        )

    def keep(self, size: int | None) -> None:
        """What the folds changed below `size` is written; None: it cannot be, and nobody waits for it."""
        self._kept = size
        self.wake()

    async def kept_up(self, size: int) -> None:
        """Waits until all below `size` is written. Raises FatalError(VIEW_BROKEN) where it cannot be."""
        await self._waiters.until(lambda: self._kept is None or self._kept >= size or bool(self._broken))
        if self._kept is None or self._kept < size:
            raise FatalError(
                "VIEW_BROKEN", "expected views that are written, got a disk or a fold that stopped"
            )

    async def between(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition` holds between two batches."""
        await self._waiters.until(lambda: self._between and condition())

    async def through(self) -> None:
        """Waits until everything that was handed over is folded."""
        await self.between(lambda: not self._waiting)

    def broken(self, fold: Fold) -> bool:
        """Whether a fold was dropped."""
        return id(fold) in self._broken

    def wake(self) -> None:
        """Lets those who wait look again."""
        self._waiters.wake()

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
            await asyncio.sleep(0)  # the authors' answers go first
            while self._waiting:
                batch = self._waiting.popleft()
                await self._look_ahead(batch)
                self._between = False
                for start in range(0, len(batch.events), _SLICE):
                    if start:
                        await asyncio.sleep(0)
                    self._feed(batch, start, start + _SLICE)
                self._entries -= len(batch.events)
                self.size = batch.first_index + len(batch.events)
                self._between = True
                self._waiters.wake()
                await asyncio.sleep(0)  # who waits for this goes before the next batch

    async def _look_ahead(self, batch: Folded) -> None:
        if self._ahead is None:
            return
        try:
            await self._ahead(batch.events)
        except Exception as error:  # noqa: BLE001 - a fold that needs what cannot be read meets it itself
            _log.warning("nothing is read ahead for the batch at %d: %r", batch.first_index, error)

    def _feed(self, batch: Folded, start: int, end: int) -> None:
        """Gives the entries at offsets [start, end) to every whole fold: each one to all before the next."""
        alone = len(batch.events) == 1
        entries = zip(batch.leaves[start:end], batch.events[start:end], strict=True)
        for index, (leaf, event) in enumerate(entries, batch.first_index + start):
            for fold in self._whole:
                try:
                    fold.apply(index, batch.recorded_at, leaf, batch.grant, event, alone)
                except Exception as error:  # noqa: BLE001 - whatever a view raises, the log goes on
                    _log.critical("fold %s broke at index %d", type(fold).__name__, index, exc_info=error)
                    self._broken[id(fold)] = f"{type(error).__name__} at index {index}"
                    self._whole = [whole for whole in self._whole if whole is not fold]
