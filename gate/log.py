"""The gate's own view of the log: followed, verified and folded, trusting the ledger with nothing.

Rules:
1. Every entry passes the offline verifier's steps before it is folded; a fault stops the gate for good.
2. The gate judges at sizes that it has verified, and never beyond.
3. A ledger that goes away is waited for; what was verified before stays verified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from gate.view import LogView
from ledger.entry import encode_run
from ledger.errors import FatalError, OverloadedError
from ledger.trust import TrustDocument
from ledger.verify import Verifier

__all__ = ["GateLog"]

_log = logging.getLogger("gate")

_AGAIN: Final = 0.5  # seconds before a ledger that went away is asked again


class GateLog(LogView):
    """The view that the gate judges from. `run` alone moves it."""

    def __init__(self, trust: TrustDocument) -> None:
        super().__init__(trust)
        self._verifier = Verifier(trust, fold=self)
        self._grown = asyncio.Condition()
        self._fault: Exception | None = None

    async def run(self, follow: Callable[[int], AsyncIterator[tuple[int, bytes]]]) -> None:
        """Verifies and folds entries as they come, until cancelled; `follow(index)` gives them from there on.

        A ledger that is away is followed again from where it ended. Raises every other error, for good.
        """
        away = False
        while True:
            try:
                async for _, entry in follow(self._verifier.size):
                    if away:
                        _log.warning("the ledger is back, at size %d", self.size)
                        away = False
                    await self._take(entry)
            except OverloadedError as error:
                if not away:
                    _log.warning("the ledger is away, at size %d: %s", self.size, error)
                away = True
                await asyncio.sleep(max(error.retry_after, _AGAIN))
            except Exception as error:
                # Whatever ended it, nobody may wait for a log that is not read any more.
                self._fault = error
                async with self._grown:
                    self._grown.notify_all()
                raise

    async def _take(self, entry: bytes) -> None:
        before = self.size
        self._verifier.feed(encode_run([entry]))
        if self.size != before:
            async with self._grown:
                self._grown.notify_all()

    async def reached(self, size: int) -> None:
        """Waits until the log was verified up to `size`. Raises FatalError(LOG_NOT_VERIFIED)."""
        async with self._grown:
            await self._grown.wait_for(lambda: self.size >= size or self._fault is not None)
        if self._fault is not None:
            raise FatalError(
                "LOG_NOT_VERIFIED", f"expected a log that verifies, got {type(self._fault).__name__}"
            ) from self._fault
