"""Room in the queue: how much work may wait, in all and by principal.

Rules kept here:

- Room is taken before a batch is looked at and given back when it is answered, so that nobody makes the
  server hold more than it said.
- One principal may not take all of it.
- No room is a typed refusal that says when to come back; a stream waits instead, and its flow control holds
  the author.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from ledger.errors import OverloadedError
from ledger.server.waiters import Waiters

__all__ = ["Room"]

_RETRY_AFTER: Final = 0.05  # seconds


class Room:
    """Counts requests and bytes that wait. Owned by the event loop."""

    def __init__(self, requests: int, size: int, share: float = 0.5) -> None:
        """At most `requests` requests and `size` bytes in all, of which one principal may take `share`."""
        self._requests = requests
        self._bytes = size
        self._share = round(size * share)
        self._taken_requests = 0
        self._taken_bytes = 0
        self._by_principal: Counter[str] = Counter()
        self._waiters = Waiters()

    def take(self, principal: str, size: int) -> None:
        """Raises OverloadedError(QUEUE_FULL, QUOTA_EXCEEDED) where `size` bytes find no room."""
        # The first request always finds room, however large.
        if self._taken_requests and (
            self._taken_requests >= self._requests or self._taken_bytes + size > self._bytes
        ):
            raise OverloadedError(
                "QUEUE_FULL",
                f"expected up to {self._requests} requests and {self._bytes} bytes to wait, "
                f"got {self._taken_requests} and {self._taken_bytes}",
                _RETRY_AFTER,
            )
        own = self._by_principal[principal]
        if own and own + size > self._share:
            raise OverloadedError(
                "QUOTA_EXCEEDED",
                f"expected up to {self._share} bytes of {principal} to wait, got {own}",
                _RETRY_AFTER,
            )
        self._taken_requests += 1
        self._taken_bytes += size
        self._by_principal[principal] += size

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
        if self._by_principal[principal] <= 0:
            del self._by_principal[principal]
        self._waiters.wake()
