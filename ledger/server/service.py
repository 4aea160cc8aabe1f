"""LedgerService on grpc.aio: append, read, prove.

Rules kept here:

- Messages exist only here; errors leave as AssayError and the catch-all makes a status of them.
- What goes out is released: nothing above the last released size is ever shown (law 3, law 6).
- A reader pulls what is stored; a slow one holds a message or two here, and one that falls too far behind
  after it had caught up is told so and ended.
- What streams hold is bounded by how many a principal may have open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from ledger.bundle import Bundle, Citation, encode_bundle, make_claim
from ledger.entry import decode_entry
from ledger.errors import FatalError, FormatError, NotFoundError, OverloadedError, RefusedError
from ledger.server.access import Access, reads_all
from ledger.server.appending import Appender
from ledger.server.metrics import Metrics
from ledger.server.reader import Reader
from ledger.server.recovery import Recovered
from ledger.server.room import Room, Streams
from ledger.server.sequencer import Head, Sequencer
from ledger.server.witnesses import Witnesses
from ledger.v1 import ledger_pb2, ledger_pb2_grpc

__all__ = ["LedgerService"]

_MAX_LAG: Final = 1_000_000  # entries behind the head, for a follower that had reached it
_LAG_RETRY: Final = 1.0  # seconds

_Context = grpc.aio.ServicerContext[Any, Any]


class LedgerService(ledger_pb2_grpc.LedgerServiceServicer):
    """Serves one log."""

    def __init__(
        self,
        sequencer: Sequencer,
        reader: Reader,
        access: Access,
        room: Room,
        recovered: Recovered,
        metrics: Metrics,
        witnesses: Witnesses,
    ) -> None:
        self._sequencer = sequencer
        self._reader = reader
        self._access = access
        self._tree = recovered.tree
        self._folds = recovered.runner
        self._updates = recovered.index
        self._witnesses = witnesses
        self._origin = sequencer.state.authority.trust.origin
        self._streams = Streams()
        self._metrics = metrics
        self._appender = Appender(sequencer, access, room, metrics, self._origin)

    # --- append ---------------------------------------------------------------------------------------------

    async def Append(self, request: ledger_pb2.AppendRequest, context: _Context) -> ledger_pb2.AppendResponse:
        """Places one batch."""
        return await self._appender.append(request, context)

    async def AppendStream(
        self, request_iterator: AsyncIterator[ledger_pb2.AppendStreamRequest], context: _Context
    ) -> AsyncIterator[ledger_pb2.AppendStreamResponse]:
        """Places batches as they come."""
        with self._streams.open(self._access.peer(context)), self._metrics.streaming("AppendStream"):
            async for response in self._appender.append_stream(request_iterator, context):
                yield response

    # --- read -----------------------------------------------------------------------------------------------

    async def Read(
        self, request: ledger_pb2.ReadRequest, context: _Context
    ) -> AsyncIterator[ledger_pb2.ReadResponse]:
        """Entries [start, end) as they are stored, then a checkpoint that covers them."""
        self._access.check_reads_all(context, self._sequencer.state.authority)
        head = self._sequencer.head
        end = request.end if request.HasField("end") else head.size
        if not request.start <= end <= head.size:
            raise FormatError(
                "OUT_OF_RANGE", f"expected start ≤ end ≤ {head.size}, got {request.start}, {end}"
            )
        with self._streams.open(self._access.peer(context)), self._metrics.streaming("Read"):
            async for first_index, run in self._reader.pieces(request.start, end):
                yield ledger_pb2.ReadResponse(first_index=first_index, run=run)
        yield ledger_pb2.ReadResponse(first_index=end, checkpoint=head.checkpoint)

    async def Follow(
        self, request: ledger_pb2.FollowRequest, context: _Context
    ) -> AsyncIterator[ledger_pb2.FollowResponse]:
        """Entries from `start` on, and on with every commit; a checkpoint whenever the head is reached."""
        with self._streams.open(self._access.peer(context)), self._metrics.streaming("Follow"):
            async for response in self._follow(request, context):
                yield response

    async def _follow(
        self, request: ledger_pb2.FollowRequest, context: _Context
    ) -> AsyncIterator[ledger_pb2.FollowResponse]:
        position, caught_up = request.start, False
        while True:
            self._access.check_reads_all(context, self._sequencer.state.authority)
            head = self._sequencer.head
            if caught_up and head.size - position > _MAX_LAG:
                raise _fell_behind(head, position)
            if position > head.size:
                raise FormatError("OUT_OF_RANGE", f"expected a start of at most {head.size}, got {position}")
            async for first_index, run in self._reader.pieces(position, head.size):
                yield ledger_pb2.FollowResponse(first_index=first_index, run=run)
            position = head.size
            if position == self._sequencer.size:
                yield ledger_pb2.FollowResponse(first_index=position, checkpoint=head.checkpoint)
                caught_up = True
            await self._sequencer.beyond(position)

    async def FollowUpdate(
        self, request: ledger_pb2.FollowUpdateRequest, context: _Context
    ) -> AsyncIterator[ledger_pb2.FollowUpdateResponse]:
        """The train and val events of one update, and on with every commit."""
        with self._streams.open(self._access.peer(context)), self._metrics.streaming("FollowUpdate"):
            async for response in self._follow_update(request, context):
                yield response

    async def _follow_update(
        self, request: ledger_pb2.FollowUpdateRequest, context: _Context
    ) -> AsyncIterator[ledger_pb2.FollowUpdateResponse]:
        start, size = request.start, 0
        while True:
            await self._folds.caught_up(self._updates, self._sequencer.size)
            name, role = self._access.role(context, self._sequencer.state.authority)
            if not reads_all(role) and not self._updates.is_own(request.update, name, role):
                raise RefusedError(
                    "MAY_NOT_READ", f"expected an update of {name}'s own, got {request.update}"
                )
            size = self._folds.size
            # Not beyond: of a batch that is being folded some entries are there already, and come again.
            wanted = self._updates.entries(request.update, start, size)
            async for index, entry, author in self._reader.entries(wanted):
                yield ledger_pb2.FollowUpdateResponse(index=index, entry=entry, author=author)
            start = max(start, size)
            yield ledger_pb2.FollowUpdateResponse(caught_up_size=size)
            await self._sequencer.beyond(size)

    # --- prove ----------------------------------------------------------------------------------------------

    async def GetCheckpoint(
        self, request: ledger_pb2.GetCheckpointRequest, context: _Context
    ) -> ledger_pb2.GetCheckpointResponse:
        """The latest released checkpoint, or the latest that a quorum cosigned."""
        self._access.role(context, self._sequencer.state.authority)
        head = self._sequencer.head
        size, note = head.size, head.checkpoint
        response = ledger_pb2.GetCheckpointResponse()
        if request.cosigned and self._sequencer.state.authority.trust.policy.quorum != "none":
            size, note = self._cosigned()
        else:
            response.consistency.extend(self._sequencer.consistency(request.known_size, size))
        response.checkpoint = note
        if request.with_rotation and (rotation := await self._rotation(size, note)) is not None:
            response.rotation = rotation
        return response

    def _cosigned(self) -> tuple[int, bytes]:
        """Size and note of the latest cosigned checkpoint. Raises NotFoundError NO_QUORUM."""
        if (cosigned := self._witnesses.cosigned) is None:
            quorum = self._sequencer.state.authority.trust.policy.quorum
            raise NotFoundError(
                "NO_QUORUM",
                f"expected a checkpoint cosigned by the quorum {quorum}, got none yet: the ledger says in "
                "what it logs which witness did not answer",
            )
        return cosigned[0].size, cosigned[1]

    async def _rotation(self, size: int, note: bytes) -> bytes | None:
        """A bundle under the checkpoint of `size` that cites every rotation of the ledger key before it."""
        indexes = [at for at in self._sequencer.state.authority.rotated_at if at < size]
        if not indexes:
            return None
        citations = []
        for index in indexes:
            first = index - decode_entry(await self._reader.entry(index)).offset
            opening = (await self._reader.opening(first)).opening
            if opening is None:
                raise FatalError("STORE_BROKEN", f"expected an opening at index {first}, got none")
            indexes_of_batch = range(first, first + opening.count)
            entries = {at: data async for at, data, _ in self._reader.entries(indexes_of_batch)}
            claim = make_claim(index, entries.__getitem__, lambda at: self._sequencer.inclusion(at, size))
            citations.append(Citation(claim, None))
        return encode_bundle(Bundle(note, tuple(citations)))

    async def ProveInclusion(
        self, request: ledger_pb2.ProveInclusionRequest, context: _Context
    ) -> ledger_pb2.ProveInclusionResponse:
        """The inclusion proof of one entry."""
        self._access.role(context, self._sequencer.state.authority)
        head = self._sequencer.head
        size = request.size if request.HasField("size") else head.size
        await self._tree.bring(request.index, self._reader.aside)
        return ledger_pb2.ProveInclusionResponse(
            inclusion=self._sequencer.inclusion(request.index, size),
            leaf_hash=self._tree.leaf(request.index),
            checkpoint=None if request.HasField("size") else head.checkpoint,
        )

    async def ProveConsistency(
        self, request: ledger_pb2.ProveConsistencyRequest, context: _Context
    ) -> ledger_pb2.ProveConsistencyResponse:
        """The consistency proof between two sizes."""
        self._access.role(context, self._sequencer.state.authority)
        head = self._sequencer.head
        new = request.new_size if request.HasField("new_size") else head.size
        return ledger_pb2.ProveConsistencyResponse(
            consistency=self._sequencer.consistency(request.old_size, new),
            checkpoint=None if request.HasField("new_size") else head.checkpoint,
        )


def _fell_behind(head: Head, position: int) -> OverloadedError:
    return OverloadedError(
        "FELL_BEHIND", f"expected to be within {_MAX_LAG} entries of {head.size}, got {position}", _LAG_RETRY
    )
