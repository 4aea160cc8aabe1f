"""The ledger's client for code without an event loop: the same calls, answered before they return.

Rules:
1. A loop in a thread of its own runs one `LedgerClient`; nothing is done here that it does not do.
2. Calls from several threads are safe; they take turns on the client's stream.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from clients.acknowledgement import Placed
from clients.identity import Identity
from clients.ledger import LedgerClient
from ledger.checkpoint import Checkpoint
from ledger.touches import Condition

__all__ = ["SyncLedgerClient"]

_T = TypeVar("_T")


class SyncLedgerClient:
    """A context manager; options as `LedgerClient`'s. Errors are the same AssayError."""

    def __init__(self, identity: Identity, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ledger-client", daemon=True)
        self._thread.start()

        async def make() -> LedgerClient:
            return LedgerClient(identity, **options)

        self._client = self._run(make())

    def __enter__(self) -> SyncLedgerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends the thread."""
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def append(self, events: Sequence[bytes], condition: Condition | None = None) -> Placed:
        """As `LedgerClient.append`."""
        return self._run(self._client.append(events, condition))

    def append_stream(self, batches: Iterable[Sequence[bytes]], *, window: int = 16) -> Iterator[Placed]:
        """As `LedgerClient.append_stream`."""
        return self._walk(self._client.append_stream(batches, window=window))

    def get_checkpoint(self) -> Checkpoint:
        """As `LedgerClient.get_checkpoint`."""
        return self._run(self._client.get_checkpoint())

    def checkpoint_note(self) -> bytes:
        """As `LedgerClient.checkpoint_note`."""
        return self._run(self._client.checkpoint_note())

    def read(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """As `LedgerClient.read`."""
        return self._walk(self._client.read(start, end))

    def prove_inclusion(self, index: int) -> tuple[bytes, list[bytes], Checkpoint]:
        """As `LedgerClient.prove_inclusion`."""
        return self._run(self._client.prove_inclusion(index))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _walk(self, source: AsyncIterator[_T]) -> Iterator[_T]:
        end = object()

        async def step() -> Any:
            return await anext(source, end)

        while (item := self._run(step())) is not end:
            yield item
