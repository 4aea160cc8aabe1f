"""BlobService: content by digest, for who may have it.

Rules kept here:

- Who may put: the roles whose events name blobs, as the proto files say. Who may get: who reads all; runner
  and trainer what a rollout names that their update may read, and only if every rollout that names it may be
  read by some update's people. What a holdout or canary rollout names too is judged against the learner, and
  who may not read is not told whether there is anything to read.
- All of it is received before anything is told, whether it is there already, was erased, or neither, and what
  one did not put takes room meanwhile: an answer proves possession and gives none away.
- Whole or not at all: a call that ends early, content that is not what its digest covers, and a full disk
  leave nothing. None of them stops the ledger.
- Erased is for good: from the index of the BlobErased on nothing is given out, put again is refused, and the
  store's file is removed, at the next start if this one did not come to it.
- What is held of a call is a message, whatever the content's size.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import grpc.aio
from google.protobuf.descriptor import Descriptor

from ledger.errors import AssayError, FormatError, NotFoundError, OverloadedError, RefusedError
from ledger.server.access import Access, reads_all
from ledger.server.blob_index import BlobIndex
from ledger.server.blobs import SALT_BYTES, Contents, Stored, Upload
from ledger.server.metrics import Metrics
from ledger.server.recovery import Recovered
from ledger.server.room import Streams
from ledger.server.sequencer import Sequencer
from ledger.server.waiters import happens
from ledger.trust import WRITER, role_name
from ledger.v1 import blob_pb2, blob_pb2_grpc, event_pb2, options_pb2
from ledger.wire import GO_ON

__all__ = ["WRITERS", "BlobLimits", "BlobService"]

_DIGEST: Final = 32
_CHUNK: Final = 2**18  # bytes of a message
_THREADS: Final = 8
_RECEIVING: Final = 30.0  # seconds for the next message
_RETRY: Final = 5.0  # seconds
_EVERY: Final = 600.0  # seconds between two collections
_AGAIN: Final = 30.0  # seconds after a failed one

_log = logging.getLogger("ledger.server.blobs")
_Context = grpc.aio.ServicerContext[Any, Any]
_T = TypeVar("_T")


def _names_blobs(message: Descriptor) -> bool:
    return any(
        field.message_type is options_pb2.Blob.DESCRIPTOR or _names_blobs(field.message_type)
        for field in message.fields
        if field.message_type is not None
    )


#: The roles whose events name blobs.
WRITERS: Final = frozenset(
    WRITER[field.name]
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None and _names_blobs(field.message_type)
)


@dataclass(frozen=True, slots=True)
class BlobLimits:
    """How much content is kept. Bytes count content without salts."""

    blob_bytes: int = 64 * 2**20  # of one blob
    total_bytes: int = 64 * 2**30
    orphans: int = 4096  # that a principal may have put and no event names
    orphan_bytes: int = 2**30  # and their bytes
    orphan_age: int = 86_400_000_000  # microseconds after which an orphan is collected


class BlobService(blob_pb2_grpc.BlobServiceServicer):
    """Serves the content of one log. Owned by the event loop, but for what the store's threads do."""

    def __init__(
        self,
        contents: Contents,
        index: BlobIndex,
        recovered: Recovered,
        sequencer: Sequencer,
        access: Access,
        clock: Callable[[], int],
        limits: BlobLimits,
        metrics: Metrics,
    ) -> None:
        self._contents = contents
        self._index = index
        self._folds = recovered.runner
        self._updates = recovered.index
        self._sequencer = sequencer
        self._access = access
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(_THREADS, "ledger-blobs")
        self._streams = Streams()
        self._coming: Counter[str] = Counter()  # puts under way, by principal
        self._coming_bytes: Counter[str] = Counter()
        self._turns: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._collecting: asyncio.Task[None] | None = None

    # --- put ------------------------------------------------------------------------------------------------

    async def Put(
        self, request_iterator: AsyncIterator[blob_pb2.PutRequest], context: _Context
    ) -> blob_pb2.PutResponse:
        """Keeps content."""
        with self._metrics.about_blobs():
            name, role = self._access.role(context, self._sequencer.state.authority)
            if role not in WRITERS:
                may = " or ".join(sorted(role_name(writer) for writer in WRITERS))
                raise RefusedError(
                    "MAY_NOT_CALL", f"expected a role whose events name blobs ({may}), got {role_name(role)}"
                )
            with self._streams.open(name):
                header = await self._header(request_iterator)
                blob = header.blob
                await self._folds.caught_up(self._index, self._sequencer.size)
                # What is there is looked at only once the content is: see the rules.
                with self._room(name, blob):
                    await context.send_initial_metadata((GO_ON,))
                    await self._take(request_iterator, header, name)
            return blob_pb2.PutResponse(blob=blob)

    async def _header(self, requests: AsyncIterator[blob_pb2.PutRequest]) -> blob_pb2.BlobHeader:
        first = await _next(requests)
        if first is None or first.WhichOneof("part") != "header":
            raise FormatError("NO_HEADER", "expected a header first, got none")
        header, blob = first.header, first.header.blob
        _check_digest(blob.digest)
        salt = SALT_BYTES if blob.salted else 0
        if len(header.salt) != salt:
            raise FormatError(
                "BAD_SALT",
                f"salt: expected {salt} bytes of a blob that is "
                f"{'salted' if blob.salted else 'not salted'}, got {len(header.salt)}",
            )
        if blob.size > self._limits.blob_bytes:
            raise RefusedError(
                "BLOB_TOO_LARGE",
                f"expected at most {self._limits.blob_bytes} bytes of a blob, got {blob.size}; split the "
                "content, or have the ledger's operator raise blob_bytes",
            )
        return header

    async def _take(
        self, requests: AsyncIterator[blob_pb2.PutRequest], header: blob_pb2.BlobHeader, name: str
    ) -> None:
        upload = self._contents.begin()
        try:
            await _receive(requests, header, upload, self._in_thread)
            await self._keep(header, upload, name)
        except OSError as error:
            _log.error("a blob of %d bytes was not stored: %s", header.blob.size, error)
            await _let_pass(requests, header.blob.size)
            raise OverloadedError(
                "BLOB_NOT_STORED",
                f"expected a store that takes {header.blob.size} bytes, got {error.strerror or 'a failure'}; "
                "nothing was kept: send it again once the operator has made room",
                _RETRY,
            ) from error
        finally:
            await self._in_thread(upload.discard)

    async def _keep(self, header: blob_pb2.BlobHeader, upload: Upload, name: str) -> None:
        """Makes received content the blob of its digest, unless it is that or was erased meanwhile."""
        blob = header.blob
        async with self._turn(blob.digest):
            self._check_not_erased(blob.digest)
            there = await self._stored(blob.digest)
            if there is not None:
                _check_same(blob, there)
            else:
                await self._in_thread(upload.publish, blob.digest, blob.salted)
            self._index.add(blob.digest, Stored(blob.size, blob.salted), name, self._clock())

    @contextmanager
    def _room(self, name: str, blob: options_pb2.Blob) -> Iterator[None]:
        """Counts content that comes against the limits, but not what `name` put before.

        Raises RefusedError ORPHANS_FULL, BLOBS_FULL.
        """
        if self._index.put_by(blob.digest, name):
            yield
            return
        size = blob.size
        limits, (orphans, orphan_bytes) = self._limits, self._index.orphans(name)
        orphans += self._coming[name]
        orphan_bytes += self._coming_bytes[name]
        if orphans >= limits.orphans or orphan_bytes + size > limits.orphan_bytes:
            raise RefusedError(
                "ORPHANS_FULL",
                f"expected at most {limits.orphans} blobs and {limits.orphan_bytes} bytes of {name} that no "
                f"event names, got {orphans} and {orphan_bytes} and {size} bytes more; append the events "
                "that name them first",
            )
        total = self._index.total + self._coming_bytes.total()
        if total + size > limits.total_bytes:
            raise RefusedError(
                "BLOBS_FULL",
                f"expected at most {limits.total_bytes} bytes of content in all, got {total} and {size} "
                "more; the ledger's operator may raise blobs_bytes or erase content",
            )
        self._coming[name] += 1
        self._coming_bytes[name] += size
        try:
            yield
        finally:
            self._coming[name] -= 1
            self._coming_bytes[name] -= size

    # --- get ------------------------------------------------------------------------------------------------

    async def Get(
        self, request: blob_pb2.GetRequest, context: _Context
    ) -> AsyncIterator[blob_pb2.GetResponse]:
        """Gives content out."""
        with self._metrics.about_blobs():
            digest = _check_digest(request.digest)
            name = await self._check_reader(digest, context)
            self._check_not_erased(digest)
            stored = await self._stored(digest)
            if stored is None:
                raise _no_such(digest)
            with self._streams.open(name):
                file = await self._in_thread(self._contents.open, digest, stored.salted)
                try:
                    header = blob_pb2.BlobHeader(
                        blob=_blob(digest, stored),
                        salt=await self._in_thread(file.read, SALT_BYTES) if stored.salted else None,
                    )
                    yield blob_pb2.GetResponse(header=header)
                    while chunk := await self._in_thread(file.read, _CHUNK):
                        self._check_not_erased(digest)
                        yield blob_pb2.GetResponse(chunk=chunk)
                finally:
                    await self._in_thread(file.close)

    async def Stat(self, request: blob_pb2.StatRequest, context: _Context) -> blob_pb2.StatResponse:
        """Where content stands."""
        with self._metrics.about_blobs():
            digest = _check_digest(request.digest)
            await self._check_reader(digest, context)
            named = self._index.named(digest)
            if (erased := self._index.erased(digest)) is not None:
                state = blob_pb2.BLOB_STATE_ERASED
                return blob_pb2.StatResponse(state=state, erased_index=erased, named=named)
            stored = await self._stored(digest)
            if stored is None:
                raise _no_such(digest)
            state = blob_pb2.BLOB_STATE_STORED
            return blob_pb2.StatResponse(state=state, blob=_blob(digest, stored), named=named)

    async def _check_reader(self, digest: bytes, context: _Context) -> str:
        """The peer's name. Raises RefusedError MAY_NOT_READ, and what `Access.role` raises."""
        await self._folds.caught_up(self._index, self._sequencer.size)
        await self._folds.caught_up(self._updates, self._sequencer.size)
        name, role = self._access.role(context, self._sequencer.state.authority)
        if reads_all(role):
            return name
        own, rollouts = False, self._index.rollouts(digest)
        while rollouts:
            for rollout in rollouts:
                update, visible = self._updates.visibility(rollout)
                if update is None or not visible:
                    raise _may_not_read(name)
                own = own or self._updates.is_own(update, name, role)
            await asyncio.sleep(0)
            rollouts = self._index.rollouts(digest, rollouts[-1])
        if not own:
            raise _may_not_read(name)
        return name

    # --- what is there --------------------------------------------------------------------------------------

    async def _stored(self, digest: bytes) -> Stored | None:
        """What is there under the digest. The store is asked; its word is believed where it was counted."""
        counted = self._index.stored(digest)
        there = await self._in_thread(self._contents.find, digest)
        if there is None:
            if counted is not None:
                _log.error("the content of %s is gone from its store", digest.hex())
                self._index.drop(digest)
            return None
        if counted is None:
            if not await self._in_thread(self._contents.whole, digest, there.salted):
                return None
            self._index.add(digest, there, "", self._clock())
        return there

    def _turn(self, digest: bytes) -> asyncio.Lock:
        """Held by who changes what is there under a digest."""
        return self._turns.setdefault(digest, asyncio.Lock())

    def _check_not_erased(self, digest: bytes) -> None:
        if (index := self._index.erased(digest)) is not None:
            raise RefusedError(
                "ERASED",
                f"expected content that was not erased, got {digest.hex()}, erased by the entry "
                f"at index {index}",
            )

    async def _in_thread(self, work: Callable[..., _T], *values: Any) -> _T:
        """Runs what blocks. A cancelled caller waits until the thread is done: it may hold what he ends."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, *values)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with suppress(Exception):  # the cancellation is what is told
                await future
            raise

    # --- what has to go -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to remove what was erased and old orphans, until `stop`."""
        self._collecting = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends that, the threads and the rows; no call is under way any more."""
        if self._collecting is not None:
            self._collecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._collecting
        self._threads.shutdown()
        self._index.close()

    async def _run(self) -> None:
        counted = await self._tried(self._count_all)
        while True:
            self._index.more.clear()
            collected = await self._tried(self.collect)
            await happens(self._index.more, _EVERY if collected and counted else _AGAIN)
            counted = counted or await self._tried(self._count_all)

    async def _tried(self, work: Callable[[], Any]) -> bool:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - whatever a store raises, the ledger goes on and tries again
            _log.error("the store of blobs failed; trying again later: %s", error, exc_info=error)
            return False
        return True

    async def _count_all(self) -> None:
        """Finds content that nothing counts, and removes what is not whole."""
        for digest in await self._in_thread(lambda: list(self._contents.digests())):
            if self._index.stored(digest) is None:
                async with self._turn(digest):
                    if await self._stored(digest) is None:
                        await self._in_thread(self._contents.remove, digest)

    async def collect(self) -> None:
        """Removes what was erased, and orphans that are too old. Raises what the store raises."""
        await self._folds.through()
        for digest in self._index.erased_but_stored():
            await self._remove(digest, lambda digest: self._index.erased(digest) is not None)
        before = self._clock() - self._limits.orphan_age
        for digest in self._index.orphans_before(before):
            await self._remove(digest, lambda digest: digest in self._index.orphans_before(before))

    async def _remove(self, digest: bytes, still: Callable[[bytes], bool]) -> None:
        async with self._turn(digest):
            if still(digest):
                await self._in_thread(self._contents.remove, digest)
                self._index.drop(digest)


async def _next(requests: AsyncIterator[blob_pb2.PutRequest]) -> blob_pb2.PutRequest | None:
    try:
        async with asyncio.timeout(_RECEIVING):
            return await anext(requests, None)
    except TimeoutError as error:
        raise OverloadedError(
            "TOO_SLOW", f"expected a message within {_RECEIVING:.0f} s of the one before, got none", _RETRY
        ) from error


async def _let_pass(requests: AsyncIterator[blob_pb2.PutRequest], size: int) -> None:
    """Takes at most `size` bytes that are still on their way: a refusal that meets them would be lost."""
    with suppress(OverloadedError):  # a peer that stalls is refused for the first reason
        while size >= 0 and (request := await _next(requests)) is not None:
            size -= len(request.chunk)


async def _receive(
    requests: AsyncIterator[blob_pb2.PutRequest],
    header: blob_pb2.BlobHeader,
    upload: Upload,
    in_thread: Callable[..., Any],
) -> None:
    """Takes all chunks into `upload`. Raises FormatError BLOB_SIZE, BLOB_DIGEST."""
    blob, size, covered = header.blob, 0, sha256(header.salt)
    await in_thread(upload.write, header.salt)
    while (request := await _next(requests)) is not None:
        if request.WhichOneof("part") != "chunk":
            raise FormatError("NO_CHUNK", "expected chunks after the header, got something else")
        size += len(request.chunk)
        if size > blob.size:
            break
        covered.update(request.chunk)
        await in_thread(upload.write, request.chunk)
    if size != blob.size:
        more = " or more" if size > blob.size else ""
        raise FormatError("BLOB_SIZE", f"expected {blob.size} bytes as announced, got {size}{more}")
    if covered.digest() != blob.digest:
        raise FormatError(
            "BLOB_DIGEST", f"expected content of digest {blob.digest.hex()}, got {covered.hexdigest()}"
        )


def _check_digest(digest: bytes) -> bytes:
    if len(digest) != _DIGEST:
        raise FormatError("BAD_DIGEST", f"digest: expected {_DIGEST} bytes, got {len(digest)}")
    return digest


def _check_same(blob: options_pb2.Blob, stored: Stored) -> None:
    if (blob.size, blob.salted) != (stored.size, stored.salted):
        raise RefusedError(
            "BLOB_DIFFERS",
            f"expected the blob that is stored under this digest, {stored.size} bytes, "
            f"{'salted' if stored.salted else 'not salted'}, got {blob.size} bytes, "
            f"{'salted' if blob.salted else 'not salted'}",
        )


def _blob(digest: bytes, stored: Stored) -> options_pb2.Blob:
    return options_pb2.Blob(digest=digest, size=stored.size, salted=stored.salted)


def _no_such(digest: bytes) -> AssayError:
    return NotFoundError(
        "NO_SUCH_BLOB",
        f"expected content of digest {digest.hex()} in this store, got none: it was never put, or no event "
        "named it in time; whoever has it may put it again",
    )


def _may_not_read(name: str) -> RefusedError:
    return RefusedError(
        "MAY_NOT_READ",
        f"expected content that only rollouts of mode train or val name, one of them of {name}'s own update, "
        "got other content or none",
    )
