"""Waiting for a change that one owner makes: cheaper than asyncio.Condition, and waking is never awaited.

Rules kept here:

- `wake` is synchronous, so that it works in a `finally` of a call that is being cancelled.
- Everybody who waits is woken and looks for himself; a waiter that went away costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Waiters", "happens"]


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event so long and no longer; whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Waiters:
    """Owned by one event loop."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns as soon as `holds()`, which is asked now and after every `wake`."""
        while not holds():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._futures.append(future)
            await future

    def wake(self) -> None:
        """Something changed."""
        if self._futures:
            futures, self._futures = self._futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)
