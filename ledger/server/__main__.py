"""`python -m ledger.server --config FILE`: serves one log until SIGTERM.

When it serves, one line of JSON goes to stdout: `{"address": …, "origin": …, "size": …}`. Logs go to stderr.
Exit codes: 0 stopped as asked, 2 usage or configuration, 3 the log must not go on from here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Final

import grpc

from ledger.errors import AssayError, FatalError, RefusedError
from ledger.genesis import decode_genesis
from ledger.keyfile import decode_key
from ledger.note import SigningKey
from ledger.server.config import Config, load_config
from ledger.server.durable import Folder
from ledger.server.host import Host, Settings, build_server
from ledger.server.store import SQLiteStore
from ledger.trust import parse_trust_document

_log = logging.getLogger("ledger.server")
_DESCRIPTORS: Final = 65_536


def _now() -> int:
    return time.time_ns() // 1000


def _take_descriptors() -> None:
    """A connection is a descriptor: as many as the system gives, not the shell's cautious default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _note_key(path: Path) -> SigningKey:
    if (mode := path.stat().st_mode & 0o777) & 0o077:
        raise RefusedError("KEY_EXPOSED", f"expected mode 0600 of {path}, got {mode:04o}")
    return decode_key(path.read_bytes())


def _build(config: Config) -> Host:
    trust = parse_trust_document(config.trust.read_bytes())
    settings = Settings(
        trust=trust,
        trust_domain=config.trust_domain,
        keys=[_note_key(path) for path in config.note_keys],
        clock=_now,
        genesis=() if config.genesis is None else decode_genesis(config.genesis.read_bytes()),
        queue_requests=config.queue_requests,
        queue_bytes=config.queue_bytes,
    )
    credentials = grpc.ssl_server_credentials(
        [(config.private_key.read_bytes(), config.certificate.read_bytes())],
        root_certificates=config.client_ca.read_bytes(),
        require_client_auth=True,
    )
    store = SQLiteStore(Folder(config.data), trust.origin)
    return build_server(settings, store, config.listen, credentials)


async def _serve(config: Config) -> None:
    host = _build(config)
    await host.start()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    address = f"{config.listen.rpartition(':')[0]}:{host.port}"
    ready = {"address": address, "origin": host.origin, "size": host.services.sequencer.size}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    serving = asyncio.create_task(host.serve())
    stop = asyncio.create_task(asked.wait())
    await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    await host.stop()
    await serving


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ledger.server", description="Serve one log.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file (ledger.server.config.Config)")
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = load_config(arguments.config)
        _take_descriptors()
        _run(config)
    except FatalError as error:
        _log.critical("%s", error)
        return 3
    except (AssayError, OSError) as error:
        _log.critical("%s", error)
        return 2
    return 0


def _run(config: Config) -> None:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        asyncio.run(_serve(config))
    else:
        uvloop.run(_serve(config))


if __name__ == "__main__":
    sys.exit(main())
