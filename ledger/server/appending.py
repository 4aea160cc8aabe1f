"""Append and AppendStream: from a request to an acknowledgement that proves itself.

Rules kept here:

- Room is taken before anything is parsed. A unary call without room is refused; a stream waits.
- Answers come in the order of the requests. Later requests are read and prepared while earlier ones commit.
- An answer proves consistency with the size that its request knows; in a stream a request that names none is
  proven from the checkpoint of the answer before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from ledger.batch import BatchNote, parse_batch_note
from ledger.errors import AssayError, RefusedError
from ledger.server.access import Access
from ledger.server.room import Room
from ledger.server.sequencer import Position, Sequencer
from ledger.server.state import prepare
from ledger.touches import Condition
from ledger.v1 import ledger_pb2
from ledger.wire import status_of

__all__ = ["Appender"]

_IN_FLIGHT: Final = 32  # batches of one stream

_Context = grpc.aio.ServicerContext[Any, Any]
_Outcome = AssayError | tuple[asyncio.Future[Position], int, int]  # answer, known size, bytes of room


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
        outcomes: asyncio.Queue[_Outcome | None] = asyncio.Queue(_IN_FLIGHT)
        reading = asyncio.create_task(self._read(requests, peer, outcomes))
        answered = 0  # size of the checkpoint answered last
        try:
            while (outcome := await outcomes.get()) is not None:
                response = ledger_pb2.AppendStreamResponse()
                try:
                    if isinstance(outcome, AssayError):
                        raise outcome
                    answer, known, size = outcome
                    try:
                        placed = self._acknowledge(await answer, known or answered)
                    finally:
                        self._room.give(peer, size)
                    response.placed.CopyFrom(placed)
                    answered = self._sequencer.size
                except AssayError as error:
                    response.refused = status_of(error).SerializeToString()
                yield response
            await reading
        finally:
            reading.cancel()
            while not outcomes.empty():
                left = outcomes.get_nowait()
                if isinstance(left, tuple):
                    left[0].cancel()
                    self._room.give(peer, left[2])

    async def _read(
        self,
        requests: AsyncIterator[ledger_pb2.AppendStreamRequest],
        peer: str,
        outcomes: asyncio.Queue[_Outcome | None],
    ) -> None:
        async for message in requests:
            size = message.ByteSize()
            await self._room.wait(peer, size)
            try:
                outcome: _Outcome = (self._submit(message.append, peer), message.append.known_size, size)
            except AssayError as error:
                self._room.give(peer, size)
                outcome = error
            await outcomes.put(outcome)
        await outcomes.put(None)

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
