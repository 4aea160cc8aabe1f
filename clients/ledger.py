"""The ledger's client: it signs, sends until it is answered, and believes nothing that is not proven.

Rules:
1. Every acknowledgement is verified (clients.acknowledgement), and every checkpoint against the remembered
   one (clients.memory): a rollback or a fork raises VerificationError V7. Under a ledger key that is not yet
   known the client asks for root's rotation to it, proven, and goes on where that holds.
2. A batch that may have arrived is sent again as it was signed, up to `attempts` times; sending again is safe
   (law 5). When they are used up the stream keeps it and settles it before it signs another.
3. Every call has a deadline. Errors are AssayError, by code and reason (ledger.wire).
4. What is read is yielded once it is proven: links down from an entry whose inclusion was proven.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any, Final, TypeVar

import grpc.aio

from clients.acknowledgement import Placed, SignedBatch, check_placed, sign
from clients.identity import Identity
from clients.memory import Memory
from clients.pipeline import Batches, Pipeline
from clients.proven import Chain, check_inclusion
from ledger.batch import STREAM_BYTES
from ledger.checkpoint import Checkpoint
from ledger.errors import (
    AssayError,
    FatalError,
    FormatError,
    InputError,
    OverloadedError,
    RefusedError,
    VerificationError,
)
from ledger.merkle import leaf_hash
from ledger.touches import Condition
from ledger.v1 import ledger_pb2, ledger_pb2_grpc
from ledger.wire import MAX_MESSAGE_BYTES, error_of

__all__ = ["Condition", "LedgerClient", "Placed", "Stream"]

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
_DEADLINE: Final = 30.0  # seconds
_ATTEMPTS: Final = 8
_MAX_DELAY: Final = 2.0  # seconds between two attempts
_RESTART: Final = 0.5  # seconds
_NO_HELP: Final = frozenset({"INTERNAL", "UNKNOWN"})  # faults of a server, not its end
_NOTES_KEPT: Final = 64
_SLICE: Final = 4096  # entries proven together when reading

_T = TypeVar("_T")


class LedgerClient:
    """One connection of one principal. Use it as an async context manager, in one event loop."""

    def __init__(
        self,
        identity: Identity,
        *,
        stream: bytes | None = None,
        deadline: float = _DEADLINE,
        attempts: int = _ATTEMPTS,
        memory: Memory | None = None,
    ) -> None:
        """`stream`: 16 bytes never used before under this key; random when absent.

        `deadline` in seconds for each call, `attempts` for each batch.
        """
        self.identity = identity
        self.deadline = deadline
        self.attempts = attempts
        self._memory = memory or Memory(identity.trust, identity.memory, identity.name)
        self._opened: dict[bytes, Checkpoint] = {}  # the latest notes whose signature held
        self._unlinked: dict[bytes, Checkpoint] = {}  # those not yet proven to continue what is remembered
        self._linking = asyncio.Lock()
        self._channel = grpc.aio.secure_channel(
            identity.target, identity.channel_credentials(), options=_OPTIONS
        )
        self.stub = ledger_pb2_grpc.LedgerServiceStub(self._channel)
        self._stream = Stream(self, stream)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel, for other services of the same server."""
        return self._channel

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The remembered checkpoint."""
        return self._memory.checkpoint

    async def __aenter__(self) -> LedgerClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    # --- append ---------------------------------------------------------------------------------------------

    def open_stream(self, stream: bytes | None = None) -> Stream:
        """Another stream of batches; batches of different streams do not wait for each other."""
        return Stream(self, stream)

    async def append(self, events: Sequence[bytes], condition: Condition | None = None) -> Placed:
        """Places serialized events as one batch of the client's own stream; see `Stream.append`."""
        return await self._stream.append(events, condition)

    def append_stream(self, batches: Batches, *, window: int = 16) -> AsyncIterator[Placed]:
        """Places batches one after the other without waiting for each; see `Stream.append_stream`."""
        return self._stream.append_stream(batches, window=window)

    async def append_signed(self, batch: SignedBatch) -> Placed:
        """Sends a batch that was signed before, until it is answered. Raises AssayError."""

        async def once() -> Placed:
            known = self._memory.checkpoint
            response = await self.call(self.stub.Append, batch.request(self._memory.size))
            checkpoint = await self.believe(known, response.checkpoint, list(response.consistency))
            return check_placed(batch, response, checkpoint)

        return await self.retry(once)

    async def retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Runs `attempt` again while another may help, `attempts` times in all."""
        for number in range(1, self.attempts):
            try:
                return await attempt()
            except AssayError as error:
                await asyncio.sleep(self.delay(error, number))
        return await attempt()

    def delay(self, error: AssayError, failures: int) -> float:
        """Seconds to wait after that many failures in a row. Raises `error` where that is no help."""
        if isinstance(error, OverloadedError):
            first = error.retry_after
        elif isinstance(error, FatalError) and error.reason not in _NO_HELP:
            first = _RESTART  # The ledger stops, and may come back.
        else:
            raise error
        return min(_MAX_DELAY, first * float(1 << failures - 1))

    # --- read -----------------------------------------------------------------------------------------------

    async def get_checkpoint(self) -> Checkpoint:
        """The latest checkpoint, verified and remembered."""
        known = self._memory.checkpoint
        request = ledger_pb2.GetCheckpointRequest(known_size=self._memory.size)
        response = await self.call(self.stub.GetCheckpoint, request)
        return await self.believe(known, response.checkpoint, list(response.consistency))

    async def checkpoint_note(self) -> bytes:
        """The signed note of the latest checkpoint, verified and remembered."""
        await self.get_checkpoint()
        if self._memory.note is None:
            raise VerificationError("V5", "EMPTY_LOG", "expected a checkpoint, got none")
        return self._memory.note

    async def cosigned_note(self) -> bytes:
        """The signed note of the latest checkpoint that satisfies the trust document's quorum of witnesses.

        Without a quorum that is the latest checkpoint. It is proven to be of the remembered log, which may be
        larger. Raises NotFoundError NO_QUORUM while there is none, VerificationError.
        """
        if self.identity.trust.policy.quorum == "none":
            return await self.checkpoint_note()
        response = await self.call(self.stub.GetCheckpoint, ledger_pb2.GetCheckpointRequest(cosigned=True))
        note = bytes(response.checkpoint)
        opened = await self._open(note)
        self._memory.check_quorum(note, opened.size)
        latest = await self.get_checkpoint()
        if opened.size > latest.size:
            raise VerificationError(
                "V7", "ROLLED_BACK", f"expected size {opened.size} or more, as cosigned, got {latest.size}"
            )
        self._memory.check(opened, self._memory.note or note, latest, await self._consistency(opened, latest))
        return note

    async def read(self, start: int = 0, end: int | None = None) -> AsyncIterator[tuple[int, bytes]]:
        """(index, entry) of [start, end), each proven before it is yielded; `end` None: the present size.

        Raises VerificationError where entries are not what the checkpoint covers, AssayError.
        """
        checkpoint = await self.get_checkpoint()
        end = checkpoint.size if end is None else end
        if not 0 <= start <= end <= checkpoint.size:
            raise FormatError("OUT_OF_RANGE", f"expected start ≤ end ≤ {checkpoint.size}, got {start}, {end}")
        proven = Chain(self.prove, start)
        call = self.stub.Read(ledger_pb2.ReadRequest(start=start, end=end))
        try:
            async for message in self.messages(call):
                proven.take(message.run)
                if len(proven.entries) >= _SLICE or proven.next == end:
                    for item in await proven.prove(checkpoint):
                        yield item
        finally:
            call.cancel()
        if proven.next != end:
            raise VerificationError("V2", "CUT_SHORT", f"expected entries up to {end}, got {proven.next}")

    async def follow(self, start: int = 0) -> AsyncIterator[tuple[int, bytes]]:
        """(index, entry) from `start` on, for ever, each proven before it is yielded."""
        present = (await self.get_checkpoint()).size
        async for item in self.read(min(start, present), present):
            if item[0] >= start:
                yield item
        position = max(start, present)
        chain = Chain(self.prove, position)
        call = self.stub.Follow(ledger_pb2.FollowRequest(start=position))
        try:
            async for message in self.messages(call, idle=True):
                chain.take(message.run)
                if message.HasField("checkpoint") and chain.entries:
                    for item in await chain.prove(await self.believe(None, message.checkpoint, [])):
                        yield item
        finally:
            call.cancel()

    async def follow_update(
        self, update: str, start: int = 0
    ) -> AsyncIterator[ledger_pb2.FollowUpdateResponse]:
        """The update's own train and val events as the server sends them; each entry proven to be in the log.

        A message without an entry says up to which size everything was sent.
        """
        call = self.stub.FollowUpdate(ledger_pb2.FollowUpdateRequest(update=update, start=start))
        try:
            async for message in self.messages(call, idle=True):
                if message.entry:
                    await self.prove(
                        message.index, leaf_hash(message.entry), await self._covering(message.index)
                    )
                yield message
        finally:
            call.cancel()

    async def prove_inclusion(self, index: int) -> tuple[bytes, list[bytes], Checkpoint]:
        """(leaf hash, proof, checkpoint) of an entry, verified."""
        request = ledger_pb2.ProveInclusionRequest(index=index)
        response = await self.call(self.stub.ProveInclusion, request)
        checkpoint = await self.believe(None, response.checkpoint, [])
        proof = list(response.inclusion)
        check_inclusion(index, response.leaf_hash, proof, checkpoint)
        return response.leaf_hash, proof, checkpoint

    async def _covering(self, index: int) -> Checkpoint:
        known = self._memory.checkpoint
        return known if known is not None and index < known.size else await self.get_checkpoint()

    async def prove(self, index: int, leaf: bytes, checkpoint: Checkpoint) -> None:
        """That `leaf` stands at `index` under `checkpoint`. Raises VerificationError NOT_INCLUDED."""
        request = ledger_pb2.ProveInclusionRequest(index=index, size=checkpoint.size)
        response = await self.call(self.stub.ProveInclusion, request)
        check_inclusion(index, leaf, list(response.inclusion), checkpoint)

    # --- calls and checkpoints ------------------------------------------------------------------------------

    async def believe(self, known: Checkpoint | None, note: bytes, proof: list[bytes]) -> Checkpoint:
        """A checkpoint that continues what is remembered, and is remembered from now on.

        `proof` is from `known`. Where something else was remembered meanwhile a proof is asked for, once for
        all answers that wait. Raises VerificationError V5, V6, V7.
        """
        memory = self._memory
        if (opened := self._opened.get(note)) is None:  # Answers of one commit share their checkpoint.
            opened = self._opened[note] = await self._open(note)
            while len(self._opened) > _NOTES_KEPT:
                del self._opened[next(iter(self._opened))]
        if opened == memory.checkpoint:
            return opened
        memory.check(known, note, opened, proof)
        if not self._linking.locked() and known == memory.checkpoint:
            memory.advance(note, opened)
            return opened
        self._unlinked[note] = opened
        async with self._linking:
            if self._unlinked.get(note) is not None:  # Nobody linked it while this answer waited.
                await self._link()
        return opened

    async def _open(self, note: bytes) -> Checkpoint:
        """V5 and V6 of a checkpoint; under a key that is unknown, after asking for the rotation to it."""
        try:
            return self._memory.open(note)
        except VerificationError as error:
            if error.reason != "NO_KNOWN_SIGNATURE":
                raise
            request = ledger_pb2.GetCheckpointRequest(with_rotation=True)
            response = await self.call(self.stub.GetCheckpoint, request)
            if not response.HasField("rotation"):
                raise
            self._memory.learn(response.rotation)
        return self._memory.open(note)

    async def _link(self) -> None:
        """Proves the checkpoints that wait and the remembered one to be of one log, in a row."""
        memory, notes = self._memory, dict(self._unlinked)
        if memory.checkpoint is not None and memory.note is not None:
            notes[memory.note] = memory.checkpoint
        row = sorted(notes.items(), key=lambda item: item[1].size)
        proofs = await asyncio.gather(*(self._consistency(a, b) for (_, a), (_, b) in pairwise(row)))
        for ((_, before), (note, after)), proof in zip(pairwise(row), proofs, strict=True):
            memory.check(before, note, after, proof)
        note, newest = row[-1]
        if newest != memory.checkpoint:
            memory.advance(note, newest)
        # Only now: where a proof failed, or did not come, every answer that waits has to find out itself.
        for note in notes:
            self._unlinked.pop(note, None)

    async def _consistency(self, old: Checkpoint, new: Checkpoint) -> list[bytes]:
        if old.size == new.size:
            return []
        request = ledger_pb2.ProveConsistencyRequest(old_size=old.size, new_size=new.size)
        return list((await self.call(self.stub.ProveConsistency, request)).consistency)

    async def call(self, method: Any, request: Any) -> Any:
        """One unary call under the client's deadline. Raises AssayError."""
        try:
            return await method(request, timeout=self.deadline)
        except grpc.aio.AioRpcError as error:
            raise self.judged(error) from error

    async def messages(self, call: Any, *, idle: bool = False) -> AsyncIterator[Any]:
        """The messages of a streaming call, each within the deadline unless the stream may be `idle`."""
        try:
            while True:
                message = await asyncio.wait_for(call.read(), None if idle else self.deadline)
                if message is grpc.aio.EOF:
                    return
                yield message
        except grpc.aio.AioRpcError as error:
            raise self.judged(error) from error
        except TimeoutError as error:
            call.cancel()
            raise OverloadedError(
                "DEADLINE_EXCEEDED", f"expected a message in {self.deadline} s", 0.2
            ) from error

    def judged(self, error: grpc.aio.AioRpcError) -> Exception:
        """The error of a failed call. A log that knows less than this client remembers was rolled back."""
        judged = error_of(error)
        if isinstance(judged, RefusedError) and judged.reason == "AHEAD_OF_LOG":
            return VerificationError("V7", "ROLLED_BACK", judged.message)
        return judged


class Stream:
    """A stream of batches under the client's key: sequence 0, 1, 2 … One append at a time."""

    def __init__(self, client: LedgerClient, stream: bytes | None = None) -> None:
        self.id = secrets.token_bytes(STREAM_BYTES) if stream is None else stream
        self._client = client
        self._sequence = 0
        self._unsettled: SignedBatch | None = None
        self._turn = asyncio.Lock()

    async def append(self, events: Sequence[bytes], condition: Condition | None = None) -> Placed:
        """Places events as one batch; returns when it is durable and proven.

        Raises InputError where the ledger refuses: nothing was placed, the sequence is free. Raises
        OverloadedError when the attempts are used up: the batch may stand, and is settled before the next.
        """
        async with self._turn:
            await self._settle()
            return await self._send(self._sign(events, condition))

    async def append_stream(self, batches: Batches, *, window: int = 16) -> AsyncIterator[Placed]:
        """Places batches in order, up to `window` of them under way, and yields where each stands.

        The first refusal ends it, with nothing placed after; errors as `append`'s.
        """
        async with self._turn:
            await self._settle()
            pipeline = Pipeline(self._client, batches, self._sign_at, self._sequence, window)
            try:
                async for placed in pipeline.run():
                    self._sequence += 1
                    yield placed
            finally:
                # The later ones under way cannot stand without the first: their sequences have a gap.
                self._unsettled = pipeline.unsettled
                await pipeline.close()

    def _sign_at(self, sequence: int, events: Sequence[bytes]) -> SignedBatch:
        identity = self._client.identity
        return sign(identity.key, identity.trust.origin, self.id, sequence, events, None)

    def _sign(self, events: Sequence[bytes], condition: Condition | None) -> SignedBatch:
        identity = self._client.identity
        return sign(identity.key, identity.trust.origin, self.id, self._sequence, events, condition)

    async def _send(self, batch: SignedBatch) -> Placed:
        self._unsettled = batch
        try:
            placed = await self._client.append_signed(batch)
        except InputError:
            self._unsettled = None
            raise
        self._unsettled = None
        self._sequence += 1
        return placed

    async def _settle(self) -> None:
        if (batch := self._unsettled) is not None:
            await self._send(batch)
