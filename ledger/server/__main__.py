"""`python -m ledger.server --config FILE [--standby] [--released NOTE]`: serves one log until SIGTERM.
`python -m ledger.server --config FILE --fsck`: checks what is stored, with no ledger running.

A standby waits until the ledger that serves has ended, and takes its place. When it serves, one line of JSON
goes to stdout: `{"address": …, "origin": …, "size": …}`. Logs go to stderr.
Exit codes: 0 stopped as asked, 2 usage or configuration, 3 the log must not go on from here, or the check
found something, 4 the check cannot tell, 75 the store was away or in doubt, which the next start settles.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import grpc

from ledger.errors import AssayError, CannotTellError, FatalError, FormatError, NotFoundError, RefusedError
from ledger.genesis import decode_genesis
from ledger.keyfile import LEDGER_KEY_VARIABLE, PASSPHRASE_VARIABLE, decode_key
from ledger.logs import formatter
from ledger.note import SigningKey
from ledger.server.blobs import BLOBS, contents_of
from ledger.server.clock import system_clock
from ledger.server.config import Config, load_config
from ledger.server.durable import Folder
from ledger.server.fsck import check_store
from ledger.server.host import Settings, build_server
from ledger.server.sqlite import SQLITE, SQLiteStore
from ledger.server.standby import Watch, remember, until_free
from ledger.server.store import Store
from ledger.server.witnesses import parse_witnesses
from ledger.trust import parse_trust_document

_log = logging.getLogger("ledger.server")
_NEXT_START_SETTLES: Final = frozenset({"STORE_AWAY", "STORE_DOUBTFUL", "LOCK_LOST"})
_DESCRIPTORS: Final = 65_536
_LONG_PAUSE: Final = 86_400.0  # seconds


def _take_descriptors() -> None:
    """A connection is a descriptor: as many as the system gives, not the shell's cautious default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _tell_pause(recorded_at: int, now: int) -> None:
    """A long pause and a clock that is wrong look the same at the start: who reads this can tell."""
    if recorded_at and (pause := (now - recorded_at) / 1_000_000) > _LONG_PAUSE:
        _log.warning("the last entry was recorded %.0f s ago by this machine's clock", pause)


def _note_keys(config: Config) -> list[SigningKey]:
    """The keys of the files, and the one that the environment hands in. Raises AssayError, OSError."""
    texts = []
    for path in config.note_keys:
        if (mode := path.stat().st_mode & 0o777) & 0o077:
            raise RefusedError("KEY_EXPOSED", f"expected mode 0600 of {path}, got {mode:04o}")
        texts.append(path.read_bytes())
    if handed := os.environ.get(LEDGER_KEY_VARIABLE):
        texts.append(handed.rstrip("\n").encode() + b"\n")
    if not texts:
        raise FormatError("BAD_CONFIG", f"expected note_keys, or {LEDGER_KEY_VARIABLE} set, got neither")
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    return [decode_key(text, passphrase) for text in texts]


def _settings(config: Config) -> Settings:
    trust = parse_trust_document(config.trust.read_bytes())
    return Settings(
        trust=trust,
        trust_domain=config.trust_domain,
        keys=_note_keys(config),
        clock=system_clock(),
        genesis=() if config.genesis is None else decode_genesis(config.genesis.read_bytes()),
        queue_requests=config.queue_requests,
        queue_bytes=config.queue_bytes,
        metrics=config.metrics,
        blobs=config.blobs,
        blob_limits=config.blob_limits,
        witnesses=parse_witnesses(config.witnesses, trust),
    )


def _credentials(config: Config) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(config.private_key.read_bytes(), config.certificate.read_bytes())],
        root_certificates=config.client_ca.read_bytes(),
        require_client_auth=True,
    )


def _open(url: str | None, folder: Folder, origin: str) -> Store:
    if url is None:
        return SQLiteStore(folder, origin)
    try:
        from ledger.server.postgres import PostgresStore  # noqa: PLC0415 - an extra
    except ImportError as error:
        folder.close()
        raise FormatError(
            "BAD_CONFIG", f"expected assay-ledger[postgres] installed for a store in PostgreSQL, got {error}"
        ) from error
    return PostgresStore(url, folder, origin)


async def _take_store(
    config: Config, settings: Settings, standby: bool, released: bytes | None, asked: asyncio.Event
) -> Store | None:
    """The store, this process its one writer; None if a standby was `asked` to stop before it was that."""
    keys = [settings.trust.log, *(key.verifier_key for key in settings.keys)]
    folder = await until_free(lambda: Folder(config.data), asked) if standby else Folder(config.data)
    if folder is None:
        return None
    store = _open(config.store, folder, settings.trust.origin)
    try:
        if released is not None:
            remember(store, released, keys)
        if not standby:
            store.hold()
        elif await until_free(lambda: _held(store), asked, Watch(store, keys)) is None:
            store.close()
            return None
    except BaseException:
        store.close()
        raise
    return store


def _held(store: Store) -> Store:
    store.hold()
    return store


def _stop_when(told: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)


async def _serve(config: Config, standby: bool, released: bytes | None) -> None:
    settings, credentials = _settings(config), _credentials(config)
    asked = asyncio.Event()
    if standby:
        _stop_when(asked.set)
    store = await _take_store(config, settings, standby, released, asked)
    if store is None:
        return
    try:
        host = build_server(settings, store, config.listen, credentials, data=config.data)
    except BaseException:
        store.close()
        raise
    await host.start()
    _spare_collections()
    _stop_when(asked.set)
    _tell_pause(host.services.sequencer.state.recorded_at, system_clock()())
    address = f"{config.listen.rpartition(':')[0]}:{host.port}"
    ready: dict[str, Any] = {
        "address": address,
        "origin": host.origin,
        "size": host.services.sequencer.size,
    }
    if config.metrics is not None and host.listener is not None:
        ready["metrics"] = f"{config.metrics.rpartition(':')[0]}:{host.listener.port}"
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    _log.info("serving %(origin)s on %(address)s at size %(size)d", ready, extra=ready)
    serving = asyncio.create_task(host.serve())
    stop = asyncio.create_task(asked.wait())
    await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    _log.info("stopping at size %d", size := host.services.sequencer.size, extra={"size": size})
    await host.stop()
    await serving


def _spare_collections() -> None:
    """What was recovered stays: no collection of garbage need stop the loop to walk through it."""
    gc.collect()
    gc.freeze()
    # A receipt makes thousands of objects that stay; Python would look at them again every 700.
    gc.set_threshold(50_000, 20, 20)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ledger.server", description="Serve one log.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file (ledger.server.config.Config)")
    parser.add_argument("--standby", action="store_true", help="wait until the ledger that serves has ended")
    parser.add_argument("--fsck", action="store_true", help="check what is stored, and end; JSON on stdout")
    parser.add_argument("--repair-derived", action="store_true", help="remove what is derived and wrong")
    parser.add_argument(
        "--released", type=Path, help="a checkpoint of the log (signed note) that the store must contain"
    )
    arguments = parser.parse_args()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter("text"))  # until the configuration says otherwise
    logging.basicConfig(handlers=[handler])
    logging.getLogger("ledger").setLevel(logging.INFO)
    sys.excepthook = _tell_fault
    try:
        config = load_config(arguments.config)
        handler.setFormatter(formatter(config.logs))
        if arguments.fsck:
            return _fsck(config, arguments.repair_derived)
        _take_descriptors()
        released = None if arguments.released is None else arguments.released.read_bytes()
        _run(_serve(config, arguments.standby, released))
    except FatalError as error:
        _log.critical("%s", error)
        return os.EX_TEMPFAIL if error.reason in _NEXT_START_SETTLES else 3
    except CannotTellError as error:
        _log.critical("%s", error)
        return 4
    except (AssayError, OSError) as error:
        _log.critical("%s", error)
        return 2
    return 0


def _tell_fault(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What nobody expected goes to the log too, so that it reads as everything else there."""
    _log.critical("expected no fault of this program, got %r", error, exc_info=(kind, error, trace))


def _fsck(config: Config, repair: bool) -> int:
    """0 where nothing was found, or nothing is left; 3 where something is. Raises AssayError, OSError."""
    if config.store is None and not (config.data / SQLITE).exists():
        raise NotFoundError("NO_STORE", f"expected a ledger's database in {config.data}, got none")
    trust = parse_trust_document(config.trust.read_bytes())
    store = _open(config.store, Folder(config.data), trust.origin)
    try:
        store.hold()
        kept = config.blobs is not None or (config.data / BLOBS).exists()
        contents = contents_of(config.blobs, config.data) if kept else None
        report = check_store(store, trust, config.data, contents)
        removed = report.remove_derived(config.data) if repair else []
    finally:
        store.close()
    document = {"origin": trust.origin, **report.document(), "removed": removed}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 3 if set(report.counts) - set(removed) else 0


def _run(serving: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


if __name__ == "__main__":
    sys.exit(main())
