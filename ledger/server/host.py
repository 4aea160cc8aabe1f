"""Putting the ledger together, and taking it apart in order.

Start: lock → recover → place the genesis if the log is empty → serve. Stop: health says so → no new calls →
what waits is committed → the store is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types
from grpc_reflection.v1alpha.reflection import (  # type: ignore[import-untyped]  # ships no types
    SERVICE_NAME as REFLECTION,
)
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from ledger.batch import parse_batch_note
from ledger.errors import FatalError
from ledger.fold import Fold
from ledger.note import Signer
from ledger.server.access import Access
from ledger.server.blob_index import BLOB_INDEX, BlobIndex
from ledger.server.blob_service import BlobLimits, BlobService
from ledger.server.blobs import contents_of
from ledger.server.folds import FoldRunner
from ledger.server.keeper import Keeper
from ledger.server.metrics import Listener, Metrics
from ledger.server.reader import Reader
from ledger.server.receipt_service import ReceiptService
from ledger.server.recovery import Recovered, recover
from ledger.server.room import Calls, Room
from ledger.server.sequencer import Sequencer
from ledger.server.service import LedgerService
from ledger.server.state import KeyRing, known_grant, prepare
from ledger.server.store import Store
from ledger.server.tiles import TileWriter
from ledger.server.turns import Turns
from ledger.server.witnesses import Witness, Witnesses
from ledger.trust import TrustDocument
from ledger.v1 import (
    blob_pb2,
    blob_pb2_grpc,
    ledger_pb2,
    ledger_pb2_grpc,
    receipt_pb2,
    receipt_pb2_grpc,
)
from ledger.wire import MAX_MESSAGE_BYTES, CatchAll, Enter

__all__ = ["Host", "Services", "Settings", "build_server"]

_GRPC_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share
    # A connection that never ends its handshake holds a descriptor; the default is two minutes of that.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A connection is for so many calls at once; a principal has as many streams in all.
    ("grpc.max_concurrent_streams", 128),
    # Who calls nothing for ten minutes connects again when it does; followers are calls.
    ("grpc.max_connection_idle_ms", 600_000),
    # A peer that is gone without a word is found out after 80 s, and gives back what it held.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_metadata_size", 16_384),
    # An idle follower pings every 30 s; the default would call that too many and cut it off.
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
)
_APPEND: Final = "/ledger.v1.LedgerService/Append"
_GRACE: Final = 5.0  # seconds
_SERVICES: Final = tuple(
    service.full_name
    for file in (ledger_pb2, receipt_pb2, blob_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)

_log = logging.getLogger("ledger.server")


@dataclass(frozen=True, slots=True)
class Settings:
    """Values that a host is made of; no paths, nothing is read here."""

    trust: TrustDocument
    trust_domain: str
    keys: Sequence[Signer]
    clock: Callable[[], int]  # microseconds since 1970
    genesis: Sequence[tuple[bytes, Sequence[bytes]]] = ()
    queue_requests: int = 1024
    queue_bytes: int = 64 * 2**20
    metrics: str | None = None  # host:port of the HTTP listener
    witnesses: Sequence[Witness] = ()
    blobs: str | None = None  # where content is kept, as fsspec names it; None: a folder in `data`
    blob_limits: BlobLimits = field(default_factory=BlobLimits)


@dataclass(frozen=True, slots=True)
class Services:
    """What another service on this server may build on."""

    sequencer: Sequencer
    reader: Reader
    access: Access
    folds: FoldRunner
    blobs: BlobService


@dataclass(slots=True)
class Host:
    """A ledger that serves. Made by `build_server`; `start`, then `serve` until `stop`."""

    server: grpc.aio.Server
    port: int
    services: Services
    room: Room
    metrics: Metrics
    store: Store
    tiles: TileWriter
    keeper: Keeper
    witnesses: Witnesses
    health: health.aio.HealthServicer
    origin: str
    genesis: Sequence[tuple[bytes, Sequence[bytes]]]
    listener: Listener | None  # of the metrics
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Places the genesis if there is need, then serves. Raises AssayError."""
        sequencer = self.services.sequencer
        running = (
            sequencer.run(),
            self.services.folds.run(),
            self.tiles.run(),
            self.keeper.run(),
            self.witnesses.run(),
        )
        self._tasks = [asyncio.create_task(task) for task in running]
        if sequencer.size == 0:
            for note, events in self.genesis:
                parsed = parse_batch_note(note)
                grant = known_grant(sequencer.state.authority, parsed)
                batch = await prepare(parsed, events, self.origin, grant, Turns().of(parsed.name))
                await sequencer.submit(batch, None)
        self.services.blobs.start()
        await self.server.start()
        for name in ("", *_SERVICES):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def serve(self) -> None:
        """Until stopped; raises what ended one of the tasks, without which appends would hang in the end."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in self._tasks:
            if task.done() and not task.cancelled():
                await task

    async def stop(self) -> None:
        """Answers what was taken, then closes everything. Raises what ended sequencer or tiles."""
        sequencing, folding, tiling, keeping, witnessing = self._tasks
        await self.health.enter_graceful_shutdown()
        # Calls that wait for the log to grow end now; appends in the queue are committed and answered.
        self.services.sequencer.stop()
        try:
            try:
                await sequencing
            finally:
                await self.tiles.stop(tiling)
        finally:
            await self.server.stop(_GRACE)
            await self.services.folds.through()
            await self.services.blobs.stop()
            folding.cancel()
            with suppress(asyncio.CancelledError):
                await folding
            await self.keeper.stop(keeping)
            await self.witnesses.stop(witnessing)
            if self.listener is not None:
                self.listener.close()
            self.services.reader.close()
            self.store.close()


def build_server(
    settings: Settings,
    store: Store,
    listen: str,
    credentials: grpc.ServerCredentials,
    *,
    data: Path,
    folds: Sequence[Fold] = (),
) -> Host:
    """Recovers the log in `store` and builds the server around it. Call it inside the loop that will serve.

    `data`: the folder of what is made of the log (tiles and views). `folds` see every entry beside the
    server's own, from the first, which makes a long log start slowly. The host closes `store`; where this
    raises, its owner does. Raises FatalError: what `recover` and `TileWriter` raise, NOT_LISTENING.
    """
    store.hold()
    keys = KeyRing(settings.keys)
    recovered = recover(store, settings.trust, data, folds, keys)
    runner = recovered.runner
    keeper = Keeper(recovered)
    reader, metrics = Reader(store), Metrics()
    runner.read_ahead(partial(recovered.view.prepare_for, aside=reader.aside))
    sequencer = Sequencer(recovered.state, store, keys, settings.clock, runner, reader, metrics)
    tiles = TileWriter(recovered.tree, store, sequencer)
    witnesses = Witnesses(settings.witnesses, settings.trust, sequencer, data)
    access = Access(settings.trust_domain)
    index = _blob_index(recovered, store, data)
    contents = contents_of(settings.blobs, data)
    blobs = BlobService(
        contents, index, recovered, sequencer, access, settings.clock, settings.blob_limits, metrics
    )
    services = Services(sequencer, reader, access, runner, blobs)
    room = Room(settings.queue_requests, settings.queue_bytes)
    server = grpc.aio.server(interceptors=[CatchAll(_log, _door(access, room))], options=_GRPC_OPTIONS)
    service = LedgerService(sequencer, reader, access, room, recovered, metrics, witnesses)
    ledger_pb2_grpc.add_LedgerServiceServicer_to_server(service, server)
    receipts = ReceiptService(recovered, keeper, sequencer, reader, access)
    receipt_pb2_grpc.add_ReceiptServiceServicer_to_server(receipts, server)
    blob_pb2_grpc.add_BlobServiceServicer_to_server(blobs, server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    enable_server_reflection((*_SERVICES, health.SERVICE_NAME, REFLECTION), server)
    _read_numbers(metrics, sequencer, room, runner, tiles, keeper, witnesses)
    _read_blobs(metrics, index)
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise FatalError("NOT_LISTENING", f"expected to listen on {listen}, got {error}") from error
    listener = None if settings.metrics is None else metrics.listen(settings.metrics)
    origin, genesis = settings.trust.origin, settings.genesis
    return Host(
        server,
        port,
        services,
        room,
        metrics,
        store,
        tiles,
        keeper,
        witnesses,
        servicer,
        origin,
        genesis,
        listener,
    )


def _blob_index(recovered: Recovered, store: Store, data: Path) -> BlobIndex:
    """Which content the log names, up to the log's end and on with it."""
    state = recovered.state
    index = BlobIndex(data / BLOB_INDEX, state.authority.trust.origin, state.tree.leaf, state.size)
    index.catch_up(store, state.size)
    recovered.runner.add(index)
    return index


def _door(access: Access, room: Room) -> Enter:
    """What a call has to pass before anything is received of it."""
    calls = Calls()

    def enter(method: str, context: grpc.aio.ServicerContext[Any, Any]) -> AbstractContextManager[None]:
        peer = access.peer(context)
        if method == _APPEND:
            room.check(peer)
        return calls.open(peer)

    return enter


def _read_numbers(
    metrics: Metrics,
    sequencer: Sequencer,
    room: Room,
    folds: FoldRunner,
    tiles: TileWriter,
    keeper: Keeper,
    witnesses: Witnesses,
) -> None:
    """What is read whenever somebody asks for the numbers."""
    metrics.read("assay_released_size", "Entries under the released checkpoint.", lambda: sequencer.size)
    metrics.read("assay_queue_requests", "Batches that wait or are being committed.", lambda: room.requests)
    metrics.read("assay_queue_bytes", "Their bytes.", lambda: room.size)
    metrics.read(
        "assay_folds_lag",
        "Released entries that the served views do not have yet.",
        lambda: max(0, sequencer.size - folds.size),
    )
    metrics.read(
        "assay_views_lag",
        "Entries that the persisted views do not have yet; a start folds them again.",
        lambda: max(0, sequencer.size - keeper.size),
    )
    metrics.read(
        "assay_views_failures",
        "Writes of persisted views that the disk refused since the start.",
        lambda: keeper.failures,
    )
    metrics.read(
        "assay_tiles_lag",
        "Released entries that the static tiles do not have yet.",
        lambda: max(0, sequencer.size - tiles.published),
    )
    metrics.read(
        "assay_tiles_failures",
        "Publications of tiles that the disk refused since the start.",
        lambda: tiles.failures,
    )
    metrics.read("assay_cosigned_size", "Entries that a quorum cosigned.", lambda: witnesses.cosigned_size)
    metrics.read(
        "assay_cosigned_time_seconds",
        "When they did, by the oldest cosignature.",
        lambda: witnesses.cosigned_at,
    )
    metrics.read("assay_witnesses_away", "Witnesses that failed when last asked.", lambda: witnesses.away)


def _read_blobs(metrics: Metrics, index: BlobIndex) -> None:
    """As `_read_numbers`, of content."""
    metrics.read("assay_blobs", "Blobs that are stored.", lambda: index.count)
    metrics.read("assay_blobs_bytes", "Their bytes, without salts.", lambda: index.total)
    metrics.read("assay_blobs_orphans", "Those that no event names.", lambda: index.orphan_count)
    metrics.read(
        "assay_blobs_erased", "Digests whose content an operator had erased.", lambda: index.erased_count
    )
