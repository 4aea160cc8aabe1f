"""Whose turn it is: what one principal sends takes time from itself before it takes time from others.

Rules kept here:

- The loop is everybody's. Work on batches is done in slices, one of them a turn of the loop, and the next
  slice is the one that brings its principal the least of all it had of late (start-time fair queueing, by
  finish tag): a small batch goes before every large one.
- What waits to be committed is taken from each principal in turn, in the order of its own.
- Nobody's turn is lost to one who went away, and nothing is kept of a principal that is done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, TypeAlias, TypeVar

__all__ = ["SLICE", "FairQueue", "Slice", "Turns"]

SLICE: Final = 2**15  # work of one slice, in bytes of a large event: about a millisecond

#: Waits for the next slice, of so much work.
Slice: TypeAlias = Callable[[int], Awaitable[None]]

_T = TypeVar("_T")


class Turns:
    """Slices of the loop's time. Owned by the event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []  # a heap: end, number, start
        self._numbers = count()
        self._had: dict[str, int] = {}  # principal -> where its next slice starts, in work
        self._now = 0  # start of the slice given last
        self._given = False  # a slice, in this turn of the loop

    def of(self, principal: str) -> Slice:
        """What a principal's work awaits before each of its slices."""
        return lambda work: self._slice(principal, work)

    async def _slice(self, principal: str, work: int) -> None:
        start = max(self._now, self._had.get(principal, 0))
        self._had[principal] = start + work
        loop = asyncio.get_running_loop()
        if not self._given:
            self._now, self._given = start, True
            loop.call_soon(self._next)
            return
        future: asyncio.Future[None] = loop.create_future()
        heappush(self._waiting, (start + work, next(self._numbers), start, future))
        await future

    def _next(self) -> None:
        while self._waiting:
            _, _, start, future = heappop(self._waiting)
            if not future.done():  # done: its principal went away
                self._now = start
                future.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._given = False
        self._had.clear()


class FairQueue(Generic[_T]):
    """What waits, by principal: first come, first served within one, in turn between them."""

    def __init__(self) -> None:
        self._of: dict[str, deque[_T]] = {}  # never empty ones; the first has its turn

    def __bool__(self) -> bool:
        return bool(self._of)

    def append(self, principal: str, item: _T) -> None:
        """Adds an item behind the principal's others."""
        self._of.setdefault(principal, deque()).append(item)

    def put_back(self, principal: str, item: _T) -> None:
        """Puts an item before the principal's others."""
        self._of.setdefault(principal, deque()).appendleft(item)

    @property
    def first(self) -> _T:
        """What `pop` would take. The queue is not empty."""
        return next(iter(self._of.values()))[0]

    def pop(self) -> _T:
        """Takes the first item; its principal goes behind the others. The queue is not empty."""
        principal, own = next(iter(self._of.items()))
        del self._of[principal]
        item = own.popleft()
        if own:
            self._of[principal] = own
        return item
