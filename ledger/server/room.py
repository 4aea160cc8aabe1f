"""Room in the queue: how much work may wait, in all and by principal.

Rules kept here:

- Room is taken before a batch is looked at and given back when it is judged or committed, so that nobody
  makes the server hold more than it said.
- One principal may not take all of it, neither of the bytes nor of the requests.
- No room is a typed refusal that says when to come back; a stream waits instead, and its flow control holds
  the author.
- An open stream holds a message or two, whatever its other end does: each principal has so many and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ledger.errors import OverloadedError
from ledger.server.waiters import Waiters

__all__ = ["Room", "Streams"]

_RETRY_AFTER: Final = 0.05  # seconds
_MAX_STREAMS: Final = 64  # open at once, of one principal
_STREAM_RETRY: Final = 1.0  # seconds


class Room:
    """Counts requests and bytes that wait. Owned by the event loop."""

    def __init__(self, requests: int, size: int) -> None:
        """At most `requests` requests and `size` bytes in all, of which one principal may take half."""
        self._requests = requests
        self._bytes = size
        self._share = size // 2
        self._requests_share = max(1, requests // 2)
        self._taken_requests = 0
        self._taken_bytes = 0
        self._by_principal: Counter[str] = Counter()
        self._requests_by_principal: Counter[str] = Counter()
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
        if self._requests_by_principal[principal] >= self._requests_share:
            raise OverloadedError(
                "QUOTA_EXCEEDED",
                f"expected up to {self._requests_share} requests of {principal} to wait, got as many",
                _RETRY_AFTER,
            )
        self._taken_requests += 1
        self._taken_bytes += size
        self._by_principal[principal] += size
        self._requests_by_principal[principal] += 1

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


class Streams:
    """Counts open streams by principal. Owned by the event loop."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    @contextmanager
    def open(self, principal: str) -> Iterator[None]:
        """Counts a stream while it lasts. Raises OverloadedError(TOO_MANY_STREAMS)."""
        if self._open[principal] >= _MAX_STREAMS:
            raise OverloadedError(
                "TOO_MANY_STREAMS",
                f"expected up to {_MAX_STREAMS} open streams of {principal}, got one more",
                _STREAM_RETRY,
            )
        self._open[principal] += 1
        try:
            yield
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]
