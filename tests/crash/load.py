"""Authors under load, and what they were promised: each acknowledgement, each checkpoint that they saw.

Rules:
1. An author's promise is written down when the client returns it, and never changed.
2. Authors go on through every fault: what is not acknowledged is sent again as it was signed.
3. Some go away in the middle and never ask again: what they sent may stand once, or not at all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from clients.ledger import LedgerClient, Placed, Stream
from clients.memory import Memory
from ledger.checkpoint import Checkpoint
from ledger.errors import FatalError, OverloadedError
from ledger.trust import TrustDocument
from ledger.v1 import event_pb2
from tests.events import minimal_event, otlp_span
from tests.lab import Lab

__all__ = ["Load", "Promises"]

_PADDING = (0, 40, 400, 4000)  # bytes of a span's content
_MANY = 64  # attempts before an author looks again whether it was told to stop
_DEADLINE = 20.0  # seconds


@dataclass(slots=True)
class Promises:
    """What the ledger acknowledged to anybody. The owner of the truth that an audit compares with."""

    #: Event bytes -> index at which they were acknowledged.
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    #: Every checkpoint that a client believed.
    checkpoints: set[Checkpoint] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, placed: Placed, events: Sequence[bytes]) -> None:
        """Writes an acknowledgement down."""
        for index, event in enumerate(events, placed.first_index):
            if self.acknowledged.setdefault(event, index) != index:
                raise AssertionError(f"two positions acknowledged: {self.acknowledged[event]}, {index}")
        self.changed.set()

    async def until(self, count: int) -> None:
        """Waits for `count` acknowledged events in all."""
        while len(self.acknowledged) < count:
            self.changed.clear()
            await self.changed.wait()


class _Watched(Memory):
    """A memory that tells what it believed."""

    def __init__(self, trust: TrustDocument, promises: Promises) -> None:
        super().__init__(trust, None)
        self._promises = promises

    def advance(self, note: bytes, checkpoint: Checkpoint) -> None:
        super().advance(note, checkpoint)
        self._promises.checkpoints.add(checkpoint)


class Load:
    """Authors of several kinds on one ledger. `stop` returns when each has its last answer."""

    def __init__(self, lab: Lab, promises: Promises, seed: int) -> None:
        self._lab = lab
        self._promises = promises
        self._random = random.Random(seed)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._number = 0

    def start(self) -> None:
        """Begins to write: streams of batches, single events, and authors who go away."""
        for name in ("runner-1", "runner-1", "judge-1", "operator-1"):
            self._tasks.append(asyncio.create_task(self._unary(name)))
        self._tasks.append(asyncio.create_task(self._streaming("runner-1")))
        self._tasks.append(asyncio.create_task(self._leaving("trainer-1")))

    async def stop(self) -> None:
        """Ends in order; raises what an author met that is not a server's restart."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def abandon(self) -> None:
        """Ends at once: what is under way stays unanswered."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def failed(self) -> list[BaseException]:
        """What ended authors before they were told to stop."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in done if (error := task.exception()) is not None]

    # --- authors --------------------------------------------------------------------------------------------

    def _client(self, name: str) -> LedgerClient:
        identity = self._lab.identity(name)
        memory = _Watched(identity.trust, self._promises)
        return LedgerClient(identity, memory=memory, attempts=_MANY, deadline=_DEADLINE)

    def _events(self, name: str) -> list[bytes]:
        """One batch of distinct events that `name` may write."""
        count = self._random.choice((1, 1, 2, 7, 40))
        return [
            self._lab.event(_body(name, self._next(), self._random.choice(_PADDING))) for _ in range(count)
        ]

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _unary(self, name: str) -> None:
        async with self._client(name) as client:
            stream = client.open_stream()
            while not self._stopping:
                await self._place(stream, self._events(name))

    async def _place(self, stream: Stream, events: list[bytes]) -> None:
        self._promises.take(await stream.append(events), events)

    async def _streaming(self, name: str) -> None:
        async with self._client(name) as client:
            sent: list[list[bytes]] = []

            def source() -> Iterator[list[bytes]]:
                while not self._stopping:
                    sent.append(self._events(name))
                    yield sent[-1]

            async for placed in client.append_stream(source()):
                self._promises.take(placed, sent.pop(0))

    async def _leaving(self, name: str) -> None:
        """Sends, goes away before the answer, and comes back as somebody new."""
        while not self._stopping:
            async with self._client(name) as client:
                with suppress(OverloadedError, FatalError):
                    await self._place(client.open_stream(), self._events(name))
                left = asyncio.ensure_future(client.open_stream().append(self._events(name)))
                await asyncio.wait({left}, timeout=self._random.random() / 100)
                left.cancel()
                with suppress(asyncio.CancelledError, OverloadedError, FatalError):
                    await left


def _body(name: str, number: int, padding: int) -> event_pb2.Event:
    match name.partition("-")[0]:
        case "runner":
            return minimal_event("span_recorded", rollout=f"ro-{number % 50}", otlp_span=otlp_span(padding))
        case "judge":
            return minimal_event("reward_recorded", rollout=f"ro-{number % 50}")
        case "operator":
            return minimal_event("evaluator_published")
        case _:
            return minimal_event("training_progressed", update=f"up-{number % 5}")
