"""A pipelined AppendStream: batches under way, sent again in order when a connection fails.

Rules:
1. Answers come in the order of the batches. The first unanswered batch is what the next answer is for.
2. After a failure everything unanswered is sent again as it was signed, in order, before anything new.
3. Attempts are counted between two answers, not over the whole stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio

from clients.acknowledgement import Placed, SignedBatch, check_placed
from ledger.checkpoint import Checkpoint
from ledger.errors import AssayError, InputError, OverloadedError
from ledger.v1 import ledger_pb2
from ledger.wire import error_of

if TYPE_CHECKING:
    from clients.ledger import LedgerClient

__all__ = ["Batches", "Pipeline"]

Batches: TypeAlias = Iterable[Sequence[bytes]] | AsyncIterable[Sequence[bytes]]

_END: Final = object()
_CALL_FAILURES: Final = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
_RETRY_AFTER: Final = 0.2  # seconds


class Pipeline:
    """One run of `Stream.append_stream`."""

    def __init__(
        self,
        client: LedgerClient,
        batches: Batches,
        sign: Callable[[int, Sequence[bytes]], SignedBatch],
        sequence: int,
        window: int,
    ) -> None:
        self._client = client
        self._source = aiter(batches) if isinstance(batches, AsyncIterable) else _walk(batches)
        self._sign = sign
        self._sequence = sequence
        self._window = window
        self._unanswered: deque[SignedBatch] = deque()
        self._room = asyncio.Event()
        self._pulled: asyncio.Future[Any] | None = None
        self._exhausted = False
        self._refused = False

    @property
    def unsettled(self) -> SignedBatch | None:
        """The first batch that may stand although no answer said so."""
        return self._unanswered[0] if self._unanswered and not self._refused else None

    async def run(self) -> AsyncIterator[Placed]:
        """Yields where each batch stands. Raises AssayError."""
        failures = 0
        while not self._exhausted or self._unanswered:
            try:
                async for placed in self._one_call():
                    failures = 0
                    yield placed
            except AssayError as error:
                failures += 1
                if failures >= self._client.attempts:
                    raise
                await asyncio.sleep(self._client.delay(error, failures))

    async def close(self) -> None:
        """Lets go of the source."""
        if self._pulled is not None:
            self._pulled.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await self._pulled

    async def _one_call(self) -> AsyncIterator[Placed]:
        known = self._client.checkpoint
        call = self._client.stub.AppendStream()
        writing = asyncio.create_task(self._write(call, 0 if known is None else known.size))
        try:
            while (response := await self._read(call, writing)) is not grpc.aio.EOF:
                placed, known = await self._answered(response, known)
                yield placed
            await writing
        finally:
            writing.cancel()
            call.cancel()
            with suppress(asyncio.CancelledError, *_CALL_FAILURES):
                await writing

    async def _read(self, call: Any, writing: asyncio.Task[None]) -> Any:
        """The next answer, or EOF. What the source of batches raises comes out here too."""
        reading = asyncio.ensure_future(call.read())
        try:
            while not reading.done():
                _check_source(writing)
                waited = {reading} if writing.done() else {reading, writing}
                due = bool(self._unanswered)
                done, _ = await asyncio.wait(
                    waited, timeout=self._client.deadline, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and due:
                    raise OverloadedError(
                        "DEADLINE_EXCEEDED", f"expected an answer in {self._client.deadline} s", _RETRY_AFTER
                    )
            _check_source(writing)
            return await reading
        except grpc.aio.AioRpcError as error:
            raise self._client.judged(error) from error
        finally:
            reading.cancel()

    async def _answered(
        self, response: ledger_pb2.AppendStreamResponse, known: Checkpoint | None
    ) -> tuple[Placed, Checkpoint]:
        if response.WhichOneof("result") != "placed":
            error = error_of(response.refused)
            self._refused = isinstance(error, InputError)
            raise error
        answer = response.placed
        # The first answer is proven from what was remembered, each later one from the one before.
        checkpoint = await self._client.believe(known, answer.checkpoint, list(answer.consistency))
        placed = check_placed(self._unanswered[0], answer, checkpoint)
        self._unanswered.popleft()
        self._room.set()
        return placed, checkpoint

    async def _write(self, call: Any, known_size: int) -> None:
        for batch in list(self._unanswered):
            await call.write(ledger_pb2.AppendStreamRequest(append=batch.request(known_size)))
            known_size = 0
        while (batch_ := await self._next()) is not None:
            await call.write(ledger_pb2.AppendStreamRequest(append=batch_.request(known_size)))
            known_size = 0
        await call.done_writing()

    async def _next(self) -> SignedBatch | None:
        """The next batch of the source, signed, when there is room; None at its end."""
        while len(self._unanswered) >= self._window:
            self._room.clear()
            await self._room.wait()
        if self._exhausted:
            return None
        # Kept across calls: a source that is waited for must not be cancelled by a failing connection.
        if self._pulled is None:
            self._pulled = asyncio.ensure_future(anext(self._source, _END))
        await asyncio.wait({self._pulled})
        events, self._pulled = self._pulled.result(), None
        if events is _END:
            self._exhausted = True
            return None
        batch = self._sign(self._sequence, events)
        self._sequence += 1
        self._unanswered.append(batch)
        return batch


def _check_source(writing: asyncio.Task[None]) -> None:
    """Raises what ended the writing early. What the call itself raised, the answer will say."""
    failed = writing.exception() if writing.done() else None
    if failed is not None and not isinstance(failed, _CALL_FAILURES):
        raise failed


async def _walk(batches: Iterable[Sequence[bytes]]) -> AsyncIterator[Sequence[bytes]]:
    for batch in batches:
        yield batch
