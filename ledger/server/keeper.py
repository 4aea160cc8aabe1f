"""The keeper: writes what folds changed to the persisted views, behind them and in a thread of its own.

Rules kept here:

- Nothing waits for it but who asks for rows of a size. What it owes is bounded, so that memory is; a disk
  that refuses stops no append: the keeper says so and tries again, and a start folds what was not written.
- Changes are taken between two batches, so that the rows are those of a size that the log had.
- Many entries a transaction: a quarter of a second's, or as many as there may be.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ledger.errors import FatalError
from ledger.server.recovery import Recovered
from ledger.server.views import Changes
from ledger.server.waiters import happens

__all__ = ["Keeper"]

_EVERY: Final = 0.25  # seconds
_MANY: Final = 16_384  # entries, for which it does not wait so long
_RETRY: Final = 5.0  # seconds after a failed write

_log = logging.getLogger("ledger.server.views")


class Keeper:
    """Owned by the event loop."""

    def __init__(self, recovered: Recovered) -> None:
        """Writes what the recovered folds change."""
        self._recovered = recovered
        self._views = recovered.views
        self._index = recovered.index
        self._view = recovered.view
        self._folds = recovered.runner
        self._thread = ThreadPoolExecutor(1, "ledger-views")
        self._now = asyncio.Event()  # somebody waits
        self._changes: Changes | None = None  # taken, and not written yet
        self._stopping = False
        self.failures = 0

    @property
    def size(self) -> int:
        """What the rows hold."""
        return self._views.size

    async def reached(self, size: int) -> None:
        """Waits until the rows hold all entries below `size`. Raises FatalError VIEW_BROKEN."""
        await self._folds.caught_up(self._index, size)
        await self._folds.caught_up(self._view, size)
        if self._views.size < size:
            self._now.set()
            await self._folds.kept_up(size)

    async def run(self) -> None:
        """Writes until `stop`."""
        while not self._stopping:
            await self._folds.between(lambda: self._stopping or self._behind())
            written = await self._write()
            if not written or self._folds.size - self._views.size < _MANY:
                await happens(self._now, _EVERY if written else _RETRY)
            self._now.clear()

    def _behind(self) -> bool:
        whole = not self._folds.broken(self._index) and not self._folds.broken(self._view)
        return whole and self._folds.size > self._views.size

    async def _write(self) -> bool:
        """Writes what was changed up to a batch's end; False where the disk refused."""
        if self._changes is None:
            if not self._behind():
                return True
            self._changes = self._recovered.take_changes()
        changes = self._changes
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._views.write, changes)
        except FatalError as error:
            if not self.failures:
                _log.error("views stay at size %d, while the log goes on: %s", self._views.size, error)
            self.failures += 1
            self._folds.keep(None)
            return False
        self._changes = None
        self._recovered.written(changes)
        return True

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Ends `running`, which is `run`, then writes the rest. The folds ended before, between batches."""
        self._stopping = True
        self._now.set()
        self._folds.wake()
        await running
        if await self._write():  # what was taken before and not written comes first
            await self._write()
        self._thread.shutdown()
        self._views.close()
