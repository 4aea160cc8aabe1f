"""Room in the queue: how much work may wait, in all and by principal.

Rules kept here:

- Room is taken before a batch is looked at and given back when it is judged or committed, so that nobody
  makes the server hold more than it said.
- A principal never holds more than it leaves free, neither of the bytes nor of the requests: alone it may
  have half of all, and beside many greedy ones there is still room for a small request of anybody.
- A refused batch costs its principal several times the work that it made, and a large one after another
  twice as much each time. Who owes more than an honest mistake is told to come back later, before anything of
  it is received.
- No room is a typed refusal that says when to come back; a stream waits instead, and its flow control holds
  the author.
- An open stream holds a message or two, whatever its other end does, and a call what it has received of its
  request: each principal has so many and no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

from ledger.errors import OverloadedError
from ledger.server.waiters import Waiters

__all__ = ["Calls", "Room", "Streams"]

_RETRY_AFTER: Final = 0.05  # seconds
_OPEN_RETRY: Final = 1.0  # seconds
_FINE: Final = 100e-9  # seconds for a byte of refused work: about eight times what it took
_LARGE: Final = 2**20  # bytes of refused work, from which on the fine doubles each time
_ALLOWANCE: Final = 0.25  # seconds that a principal may owe: thousands of small mistakes, or no large one
_MOST_OWED: Final = 10.0  # seconds


@dataclass(slots=True)
class _Debt:
    until: float  # loop time when it is paid
    fine: float  # the largest one, in seconds; it is forgotten after as long a quiet


class Room:
    """Counts requests and bytes that wait. Owned by the event loop."""

    def __init__(self, requests: int, size: int) -> None:
        """At most `requests` requests and `size` bytes in all."""
        self._requests = requests
        self._bytes = size
        self._taken_requests = 0
        self._taken_bytes = 0
        self._by_principal: Counter[str] = Counter()
        self._requests_by_principal: Counter[str] = Counter()
        self._debts: dict[str, _Debt] = {}
        self._waiters = Waiters()

    @property
    def requests(self) -> int:
        """Requests that wait."""
        return self._taken_requests

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._taken_bytes

    def check(self, principal: str) -> None:
        """Raises OverloadedError(BACK_OFF) for a principal that owes too much to send anything now."""
        if (owed := self._owed(principal)) > _ALLOWANCE:
            raise OverloadedError(
                "BACK_OFF",
                f"expected batches of {principal} that stand, got refused ones: {owed:.3f} s of back-off",
                owed - _ALLOWANCE,
            )

    def take(self, principal: str, size: int) -> None:
        """Raises OverloadedError(BACK_OFF, QUEUE_FULL, QUOTA_EXCEEDED) where `size` bytes find no room."""
        self.check(principal)
        own, requests = self._by_principal[principal] + size, self._requests_by_principal[principal] + 1
        free = self._bytes - self._taken_bytes - size
        free_requests = self._requests - self._taken_requests - 1
        # The first request always finds room, however large; a principal's first one takes the last place.
        if self._taken_requests and (own > free or requests > max(free_requests, 1) or free_requests < 0):
            if requests == 1 or free < 0 or free_requests < 0:
                raise OverloadedError(
                    "QUEUE_FULL",
                    f"expected up to {self._requests} requests and {self._bytes} bytes to wait, "
                    f"got {self._taken_requests} and {self._taken_bytes}",
                    _RETRY_AFTER,
                )
            raise OverloadedError(
                "QUOTA_EXCEEDED",
                f"expected {principal} to leave as much room as it takes, got {requests} requests and {own} "
                f"bytes of it beside {free_requests} and {free} free",
                _RETRY_AFTER,
            )
        self._taken_requests += 1
        self._taken_bytes += size
        self._by_principal[principal] = own
        self._requests_by_principal[principal] = requests

    async def wait(self, principal: str, size: int) -> None:
        """Takes room, as soon as there is some."""
        await self._waiters.until(lambda: self._took(principal, size))

    def _took(self, principal: str, size: int) -> bool:
        try:
            self.take(principal, size)
        except OverloadedError:
            return False
        return True

    def give(self, principal: str, size: int) -> None:
        """Gives back what was taken."""
        self._taken_requests -= 1
        self._taken_bytes -= size
        self._by_principal[principal] -= size
        self._requests_by_principal[principal] -= 1
        if not self._requests_by_principal[principal]:
            del self._by_principal[principal], self._requests_by_principal[principal]
        self._waiters.wake()

    def charge(self, principal: str, work: int) -> None:
        """Something of the principal was refused, after so much work: its bytes, and some for each event."""
        now = asyncio.get_running_loop().time()
        fine = work * _FINE
        debt = self._debts.get(principal)
        if debt is None:
            debt = self._debts[principal] = _Debt(now, fine)
            asyncio.get_running_loop().call_soon(self._collect, principal)
        elif work >= _LARGE:
            fine = max(fine, 2 * debt.fine)
        debt.until = min(max(now, debt.until) + fine, now + _MOST_OWED)
        debt.fine = min(max(fine, debt.fine), _MOST_OWED)

    def _owed(self, principal: str) -> float:
        """Seconds."""
        debt = self._debts.get(principal)
        return 0.0 if debt is None else debt.until - asyncio.get_running_loop().time()

    def _collect(self, principal: str) -> None:
        """Wakes who may go on, and forgets who was quiet long enough. One timer for each that owes."""
        owed, fine = self._owed(principal), self._debts[principal].fine
        if owed + fine <= 0:
            del self._debts[principal]
        else:
            delay = owed - _ALLOWANCE if owed > _ALLOWANCE else owed + fine
            asyncio.get_running_loop().call_later(delay, self._collect, principal)
        self._waiters.wake()


class _Open:
    """Counts what is open, by principal. Owned by the event loop."""

    most: ClassVar[int]
    reason: ClassVar[str]
    what: ClassVar[str]

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def open(self, principal: str) -> Iterator[None]:
        """Counts one more while it lasts. Raises OverloadedError with the class's reason."""
        if self._open[principal] >= self.most:
            raise OverloadedError(
                self.reason,
                f"expected up to {self.most} {self.what} of {principal}, got one more",
                _OPEN_RETRY,
            )
        self._open[principal] += 1
        try:
            yield
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]


class Streams(_Open):
    """Streams that last. They may be idle as long as they like."""

    most = 64
    reason = "TOO_MANY_STREAMS"
    what = "open streams"


class Calls(_Open):
    """Calls of any kind, from before their request is received until they are answered."""

    most = 256
    reason = "TOO_MANY_CALLS"
    what = "calls at once"
