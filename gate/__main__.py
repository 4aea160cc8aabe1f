"""`python -m gate --home HOME`: serves the gate until SIGTERM, which it obeys while its ledger hangs too.

When it serves, one line of JSON goes to stdout: `{"address": …, "origin": …, "size": …}`. Logs go to stderr.
Exit codes: 0 stopped as asked, 2 usage or configuration, 3 the log does not verify or the ledger is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types
from grpc_reflection.v1alpha.reflection import (  # type: ignore[import-untyped]  # ships no types
    SERVICE_NAME as REFLECTION,
)
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from clients.home import load_home
from clients.identity import Identity, load_identity
from clients.ledger import LedgerClient
from gate.log import GateLog
from gate.service import GateService
from gate.v1 import gate_pb2, gate_pb2_grpc
from ledger.errors import AssayError, FatalError, VerificationError
from ledger.logs import formatter
from ledger.wire import CatchAll

_log = logging.getLogger("gate")
_GRACE = 5.0  # seconds
_SERVICE = gate_pb2.DESCRIPTOR.services_by_name["GateService"].full_name
_GRPC_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second gate on the port must fail, not share
    # A connection that never ends its handshake holds a descriptor; the default is two minutes of that.
    ("grpc.server_handshake_timeout_ms", 10_000),
)


def _now() -> int:
    return time.time_ns() // 1000


def _credentials(home: Path) -> grpc.ServerCredentials:
    folder = home / "gate"
    return grpc.ssl_server_credentials(
        [((folder / "server.key").read_bytes(), (folder / "server.crt").read_bytes())],
        root_certificates=(home / "ca.crt").read_bytes(),
        require_client_auth=True,
    )


async def _caught_up(client: LedgerClient, log: GateLog, asked: asyncio.Event) -> bool:
    """Whether the log is verified up to now; False where the gate was asked to stop before, say by SIGTERM
    while the ledger hangs. Raises AssayError.
    """

    async def catch_up() -> None:
        await log.reached((await client.get_checkpoint()).size)

    catching, stop = asyncio.create_task(catch_up()), asyncio.create_task(asked.wait())
    await asyncio.wait({catching, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if catching.done():
        await catching  # raises what ended it
        return not asked.is_set()
    catching.cancel()
    with suppress(asyncio.CancelledError):
        await catching
    return False


async def _serve(home: Path, identity: Identity, trust_domain: str, listen: str) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    async with LedgerClient(identity) as client:
        log = GateLog(identity.trust)
        following = asyncio.create_task(log.run(client.follow))
        if not await _caught_up(client, log, asked):
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            return
        server = grpc.aio.server(interceptors=[CatchAll(_log)], options=_GRPC_OPTIONS)
        service = GateService(log, client, trust_domain, now=_now, random=secrets.token_bytes)
        gate_pb2_grpc.add_GateServiceServicer_to_server(service, server)
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        enable_server_reflection((_SERVICE, health.SERVICE_NAME, REFLECTION), server)
        try:
            port = server.add_secure_port(listen, _credentials(home))
        except RuntimeError as error:
            raise FatalError("NOT_LISTENING", f"expected to listen on {listen}, got {error}") from error
        await server.start()
        for name in ("", _SERVICE):
            await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        ready = {
            "address": f"{listen.rpartition(':')[0]}:{port}",
            "origin": identity.trust.origin,
            "size": log.size,
        }
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        _log.info("serving %(origin)s on %(address)s at size %(size)d", ready, extra=ready)
        stop = asyncio.create_task(asked.wait())
        await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        _log.info("stopping at size %d", log.size, extra={"size": log.size})
        await servicer.enter_graceful_shutdown()
        await server.stop(_GRACE)
        if following.done():
            await following  # raises what ended it
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m gate", description="Serve the gate.")
    parser.add_argument("--home", type=Path, required=True, help="folder made by `assay init`")
    parser.add_argument("--as", dest="principal", default="gate-1", help="the gate's principal")
    parser.add_argument("--listen", help="host:port; absent: as the home says")
    parser.add_argument("--ledger", help="host:port of the ledger; absent: as the home says")
    parser.add_argument("--logs", choices=("text", "json"), default="text", help="how stderr reads")
    arguments = parser.parse_args()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(arguments.logs))
    logging.basicConfig(handlers=[handler])
    _log.setLevel(logging.INFO)
    try:
        document = load_home(arguments.home)
        identity = load_identity(arguments.home, arguments.principal, target=arguments.ledger)
        asyncio.run(
            _serve(arguments.home, identity, document.trust_domain, arguments.listen or document.gate)
        )
    except (FatalError, VerificationError) as error:
        _log.critical("%s", error)
        return 3
    except (AssayError, OSError) as error:
        _log.critical("%s", error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
