"""Append and AppendStream: from a request to an acknowledgement that proves itself.

Rules kept here:

- Room is taken before anything is parsed. A unary call without room is refused; a stream waits.
- Room is given back when the sequencer is done with the batch: an author who cancels keeps it until then, and
  one who never reads his answers keeps none.
- A principal that root never granted anything costs no parsing, and any other prepares one batch at a time,
  in turn with the others: whatever it sends, the loop is everybody's.
- A refused batch is charged to its sender, wherever it was refused.
- Answers come in the order of the requests. Later requests are read and prepared while earlier ones commit.
- An answer proves consistency with the size that its request knows; in a stream a request that names none is
  proven from the checkpoint of the answer before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

import grpc.aio

from ledger.batch import BatchNote, parse_batch_note
from ledger.errors import AssayError, FormatError, InputError, OverloadedError, RefusedError
from ledger.server.access import Access, check_author
from ledger.server.metrics import Metrics
from ledger.server.room import Room
from ledger.server.sequencer import Position, Sequencer
from ledger.server.state import EVENT_WORK, known_grant, prepare
from ledger.server.turns import Turns
from ledger.server.waiters import Waiters
from ledger.touches import Condition
from ledger.v1 import ledger_pb2
from ledger.wire import status_of

__all__ = ["Appender"]

_IN_FLIGHT: Final = 32  # batches of one stream
_MOST_KEYS: Final = 64  # of a condition; a judgment rests on five

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A batch that has its place in the queue."""

    answer: asyncio.Future[Position]
    known_size: int


_Outcome: TypeAlias = AssayError | _Submitted


class Appender:
    """The appending half of the service."""

    def __init__(
        self, sequencer: Sequencer, access: Access, room: Room, metrics: Metrics, origin: str
    ) -> None:
        self._sequencer = sequencer
        self._access = access
        self._room = room
        self._metrics = metrics
        self._origin = origin
        self._turns = Turns()
        # Of those who prepare now; a lock that nobody holds or waits for goes away.
        self._preparing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def append(self, request: ledger_pb2.AppendRequest, context: _Context) -> ledger_pb2.AppendResponse:
        """One batch. Raises AssayError."""
        peer = self._access.peer(context)
        size = request.ByteSize()
        try:
            self._room.take(peer, size)
        except OverloadedError as error:
            self._room.charge(peer, size)  # it was received in vain
            self._metrics.not_placed(error)
            raise
        answer = await self._queue(request, peer, size)
        return self._acknowledge(await asyncio.shield(answer), request.known_size)

    async def append_stream(
        self, requests: AsyncIterator[ledger_pb2.AppendStreamRequest], context: _Context
    ) -> AsyncIterator[ledger_pb2.AppendStreamResponse]:
        """Batches as they come; a refused one is answered by its status and does not end the stream."""
        peer = self._access.peer(context)
        taken: deque[_Outcome] = deque()
        changed = Waiters()
        reading = asyncio.create_task(self._read(requests, peer, taken, changed))
        reading.add_done_callback(lambda _: changed.wake())
        answered = 0  # size of the checkpoint answered last
        try:
            while True:
                await changed.until(lambda: bool(taken) or reading.done())
                if not taken:
                    break
                outcome = taken.popleft()
                changed.wake()
                response = ledger_pb2.AppendStreamResponse()
                try:
                    placed = await self._answer(outcome, answered)
                    response.placed.CopyFrom(placed)
                    answered = self._sequencer.size
                except AssayError as error:
                    response.refused = status_of(error).SerializeToString()
                yield response
            await reading
        finally:
            reading.cancel()

    async def _answer(self, outcome: _Outcome, answered: int) -> ledger_pb2.AppendResponse:
        if isinstance(outcome, AssayError):
            raise outcome
        position = await asyncio.shield(outcome.answer)
        return self._acknowledge(position, outcome.known_size or answered)

    async def _read(
        self,
        requests: AsyncIterator[ledger_pb2.AppendStreamRequest],
        peer: str,
        taken: deque[_Outcome],
        changed: Waiters,
    ) -> None:
        """Takes requests, at most `_IN_FLIGHT` ahead of their answers."""
        async for message in requests:
            await changed.until(lambda: len(taken) < _IN_FLIGHT)
            size = message.ByteSize()
            await self._room.wait(peer, size)
            try:
                answer = await self._queue(message.append, peer, size)
                taken.append(_Submitted(answer, message.append.known_size))
            except AssayError as error:
                taken.append(error)
            changed.wake()

    async def _queue(
        self, request: ledger_pb2.AppendRequest, peer: str, size: int
    ) -> asyncio.Future[Position]:
        """Queues a batch that has room of `size` bytes; who cancels its future gives that back too early."""

        def refused(error: BaseException | None) -> None:
            if isinstance(error, InputError):
                self._room.charge(peer, size + EVENT_WORK * len(request.events))

        def done(answer: asyncio.Future[Position]) -> None:
            error = answer.exception()  # seen, although its author may have gone away
            refused(error)
            self._room.give(peer, size)
            if error is None:
                self._metrics.acknowledged()
            else:
                self._metrics.not_placed(error)

        try:
            answer = await self._submit(request, peer)
        except BaseException as error:
            refused(error)
            self._room.give(peer, size)
            if isinstance(error, Exception):  # a call that was broken off is answered by nobody
                self._metrics.not_placed(error)
            raise
        answer.add_done_callback(done)
        return answer

    async def _submit(self, request: ledger_pb2.AppendRequest, peer: str) -> asyncio.Future[Position]:
        if request.known_size > self._sequencer.size:
            raise RefusedError(
                "AHEAD_OF_LOG",
                f"expected a known size of at most {self._sequencer.size}, got {request.known_size}",
            )
        note: BatchNote = parse_batch_note(request.note)
        check_author(peer, note.name)
        grant = known_grant(self._sequencer.state.authority, note)
        condition = None
        if request.HasField("condition"):
            asked = request.condition
            # Each is looked up in one go of the loop, at the batch's place.
            if len(asked.keys) > _MOST_KEYS:
                raise FormatError(
                    "TOO_MANY_KEYS",
                    f"condition.keys: expected at most {_MOST_KEYS}, got {len(asked.keys)}; name what the "
                    "batch rests on",
                )
            not_after = asked.not_after if asked.HasField("not_after") else None
            condition = Condition(tuple(asked.keys), asked.since_size, not_after)
        async with self._preparing.setdefault(peer, asyncio.Lock()):
            batch = await prepare(note, list(request.events), self._origin, grant, self._turns.of(peer))
        return self._sequencer.submit(batch, condition)

    def _acknowledge(self, position: Position, known_size: int) -> ledger_pb2.AppendResponse:
        head = self._sequencer.head
        last = position.first_index + position.count - 1
        return ledger_pb2.AppendResponse(
            first_index=position.first_index,
            count=position.count,
            recorded_at=position.recorded_at,
            previous=position.previous,
            inclusion=self._sequencer.inclusion(last, head.size),
            checkpoint=head.checkpoint,
            consistency=self._sequencer.consistency(known_size, head.size),
        )
