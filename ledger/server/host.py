"""Putting the ledger together, and taking it apart in order.

Start: lock → recover → place the genesis if the log is empty → serve. Stop: health says so → no new calls →
what waits is committed → the store is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types

from ledger.batch import parse_batch_note
from ledger.errors import FatalError
from ledger.fold import Fold
from ledger.merkle import Tree
from ledger.note import SigningKey
from ledger.server.access import Access
from ledger.server.folds import FoldRunner
from ledger.server.reader import Reader
from ledger.server.receipt_service import ReceiptService, ReceiptView
from ledger.server.recovery import recover
from ledger.server.room import Room
from ledger.server.sequencer import Sequencer
from ledger.server.service import LedgerService
from ledger.server.state import KeyRing, prepare
from ledger.server.store import Store
from ledger.server.updates import UpdateIndex
from ledger.trust import TrustDocument
from ledger.v1 import ledger_pb2_grpc, receipt_pb2_grpc
from ledger.wire import MAX_MESSAGE_BYTES, CatchAll

__all__ = ["Host", "Services", "Settings", "build_server"]

_GRPC_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share
    # A connection that never ends its handshake holds a descriptor; the default is two minutes of that.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # An idle follower pings every 30 s; the default would call that too many and cut it off.
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
)
_GRACE: Final = 5.0  # seconds
_SERVICE: Final = "ledger.v1.LedgerService"

_log = logging.getLogger("ledger.server")


@dataclass(frozen=True, slots=True)
class Settings:
    """Values that a host is made of; no paths, nothing is read here."""

    trust: TrustDocument
    trust_domain: str
    keys: Sequence[SigningKey]
    clock: Callable[[], int]  # microseconds since 1970
    genesis: Sequence[tuple[bytes, Sequence[bytes]]] = ()
    queue_requests: int = 1024
    queue_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Services:
    """What another service on this server may build on."""

    sequencer: Sequencer
    reader: Reader
    access: Access
    folds: FoldRunner


@dataclass(slots=True)
class Host:
    """A ledger that serves. Made by `build_server`; `start`, then `serve` until `stop`."""

    server: grpc.aio.Server
    port: int
    services: Services
    room: Room
    store: Store
    health: health.aio.HealthServicer
    origin: str
    genesis: Sequence[tuple[bytes, Sequence[bytes]]]
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Places the genesis if there is need, then serves. Raises AssayError."""
        sequencer = self.services.sequencer
        self._tasks = [asyncio.create_task(sequencer.run()), asyncio.create_task(self.services.folds.run())]
        if sequencer.size == 0:
            for note, events in self.genesis:
                batch = await prepare(parse_batch_note(note), events, self.origin)
                await sequencer.submit(batch, None)
        await self.server.start()
        for name in ("", _SERVICE):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def serve(self) -> None:
        """Until stopped; raises FatalError if the sequencer had to stop."""
        await asyncio.shield(self._tasks[0])

    async def stop(self) -> None:
        """Answers what was taken, then closes everything. Raises what ended the sequencer, if it failed."""
        sequencing, folding = self._tasks
        await self.health.enter_graceful_shutdown()
        # Calls that wait for the log to grow end now; appends in the queue are committed and answered.
        self.services.sequencer.stop()
        try:
            await sequencing
        finally:
            await self.server.stop(_GRACE)
            folding.cancel()
            with suppress(asyncio.CancelledError):
                await folding
            self.services.reader.close()
            self.store.close()


def build_server(
    settings: Settings,
    store: Store,
    listen: str,
    credentials: grpc.ServerCredentials,
    *,
    folds: Sequence[Fold] = (),
) -> Host:
    """Recovers the log in `store` and builds the server around it. Call it inside the loop that will serve.

    `folds` see every entry beside the server's own. Raises FatalError: what `recover` raises, NOT_LISTENING.
    """
    tree = Tree()
    updates, view = UpdateIndex(), ReceiptView(tree)
    runner = FoldRunner([updates, view, *folds])
    state = recover(store, settings.trust, runner, tree)
    reader = Reader(store)
    sequencer = Sequencer(state, store, KeyRing(settings.keys), settings.clock, runner, reader)
    access = Access(settings.trust_domain)
    services = Services(sequencer, reader, access, runner)
    room = Room(settings.queue_requests, settings.queue_bytes)
    server = grpc.aio.server(interceptors=[CatchAll(_log)], options=_GRPC_OPTIONS)
    service = LedgerService(sequencer, reader, access, room, runner, updates)
    ledger_pb2_grpc.add_LedgerServiceServicer_to_server(service, server)
    receipts = ReceiptService(view, sequencer, reader, access, runner)
    receipt_pb2_grpc.add_ReceiptServiceServicer_to_server(receipts, server)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        store.close()
        raise FatalError("NOT_LISTENING", f"expected to listen on {listen}, got {error}") from error
    return Host(server, port, services, room, store, servicer, settings.trust.origin, settings.genesis)
