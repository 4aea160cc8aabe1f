"""Append and AppendStream: from a request to an acknowledgement that proves itself.

Rules kept here:

- Room is taken before anything is parsed. A unary call without room is refused; a stream waits.
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

import grpc.aio

from ledger.batch import BatchNote, parse_batch_note
from ledger.errors import AssayError, RefusedError
from ledger.server.access import Access
from ledger.server.room import Room
from ledger.server.sequencer import Position, Sequencer
from ledger.server.state import prepare
from ledger.server.waiters import Waiters
from ledger.touches import Condition
from ledger.v1 import ledger_pb2
from ledger.wire import status_of

__all__ = ["Appender"]

_IN_FLIGHT: Final = 32  # batches of one stream

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A batch that has its place in the queue, and room of `size` bytes."""

    answer: asyncio.Future[Position]
    known_size: int
    size: int


_Outcome: TypeAlias = AssayError | _Submitted


class Appender:
    """The appending half of the service."""

    def __init__(self, sequencer: Sequencer, access: Access, room: Room, origin: str) -> None:
        self._sequencer = sequencer
        self._access = access
        self._room = room
        self._origin = origin

    async def append(self, request: ledger_pb2.AppendRequest, context: _Context) -> ledger_pb2.AppendResponse:
        """One batch. Raises AssayError."""
        peer = self._access.peer(context)
        size = request.ByteSize()
        self._room.take(peer, size)
        try:
            answer = self._submit(request, peer)
            return self._acknowledge(await answer, request.known_size)
        finally:
            self._room.give(peer, size)

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
                    placed = await self._answer(outcome, peer, answered)
                    response.placed.CopyFrom(placed)
                    answered = self._sequencer.size
                except AssayError as error:
                    response.refused = status_of(error).SerializeToString()
                yield response
            await reading
        finally:
            reading.cancel()
            for outcome in taken:
                if not isinstance(outcome, AssayError):
                    outcome.answer.cancel()
                    self._room.give(peer, outcome.size)

    async def _answer(self, outcome: _Outcome, peer: str, answered: int) -> ledger_pb2.AppendResponse:
        if isinstance(outcome, AssayError):
            raise outcome
        try:
            return self._acknowledge(await outcome.answer, outcome.known_size or answered)
        finally:
            self._room.give(peer, outcome.size)

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
            # No await from here on: room that is taken always has an owner in `taken`.
            try:
                answer = self._submit(message.append, peer)
                taken.append(_Submitted(answer, message.append.known_size, size))
            except AssayError as error:
                self._room.give(peer, size)
                taken.append(error)
            changed.wake()

    def _submit(self, request: ledger_pb2.AppendRequest, peer: str) -> asyncio.Future[Position]:
        if request.known_size > self._sequencer.size:
            raise RefusedError(
                "AHEAD_OF_LOG",
                f"expected a known size of at most {self._sequencer.size}, got {request.known_size}",
            )
        note: BatchNote = parse_batch_note(request.note)
        if note.name != peer:
            raise RefusedError("PRINCIPAL_MISMATCH", f"expected a batch by {peer}, got one by {note.name}")
        condition = None
        if request.HasField("condition"):
            asked = request.condition
            not_after = asked.not_after if asked.HasField("not_after") else None
            condition = Condition(tuple(asked.keys), asked.since_size, not_after)
        batch = prepare(note, list(request.events), self._origin)
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
