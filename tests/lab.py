"""The lab: a real home with real keys and certificates, a real ledger, clients by role, and an auditor.

Rules:
1. What runs is what ships: `clients.home` makes the home, `ledger.server` serves over mTLS, `ledger.verify`
   re-verifies the whole log in `check`.
2. In this process by default, with a clock that a test moves; `Lab(subprocess=True)` starts the command.
3. Nothing sleeps: what a test waits for is a condition.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import grpc

from clients.home import DEVELOPMENT_PRINCIPALS, ROOT, Home, Principal, create_home, ledger_config
from clients.identity import Identity, load_identity
from clients.ids import RANDOM_BYTES, uuid7
from clients.keyfile import read_key
from clients.ledger import LedgerClient
from clients.memory import Memory
from ledger.entry import encode_run
from ledger.export import encode_export_header
from ledger.fold import Fold
from ledger.genesis import decode_genesis
from ledger.server.durable import Folder
from ledger.server.host import Host, Settings, build_server
from ledger.server.sqlite import SQLiteStore
from ledger.server.store import Store
from ledger.trust import TrustDocument, parse_trust_document
from ledger.v1 import event_pb2
from ledger.verify import Verified, verify_export

__all__ = ["START", "Clock", "Lab", "ServerEndedError"]

#: What the lab's clock shows at first, in microseconds since 1970.
START: Final = 1_767_225_600_000_000


class Clock:
    """Microseconds since 1970, moved by the test alone."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, microseconds: int) -> None:
        """Moves the clock on."""
        self.now += microseconds


class ServerEndedError(RuntimeError):
    """The server's process ended, with exit code `code`, before it was ready."""

    def __init__(self, code: int) -> None:
        super().__init__(f"expected a ready line, got exit {code}")
        self.code = code


class Lab:
    """A ledger and everybody around it, in a temporary folder. An async context manager."""

    def __init__(
        self,
        *,
        subprocess: bool = False,
        principals: Sequence[Principal] = DEVELOPMENT_PRINCIPALS,
        folds: Callable[[], Sequence[Fold]] = tuple,
        settings: Mapping[str, Any] | None = None,
        wrap_store: Callable[[Store], Store] | None = None,
        store_url: str | None = None,
    ) -> None:
        """`folds` is called at every start, `settings` override the server's, `wrap_store` goes between;
        `store_url` names a PostgreSQL instead of SQLite."""
        self.root = Path(tempfile.mkdtemp(prefix="assay-lab-"))
        self.path = self.root / "home"
        self.clock = Clock()
        self._subprocess = subprocess
        self._principals = principals
        self._folds = folds
        self._settings = dict(settings or {})
        self._wrap_store = wrap_store
        self._store_url = store_url
        self._clients: list[LedgerClient] = []
        self.environment: dict[str, str] = {}  # beside this process's own, of the server in subprocess mode
        self._process: asyncio.subprocess.Process | None = None
        self.host: Host | None = None
        self.address = ""
        self.home: Home

    # --- life -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Lab:
        made = create_home(
            self.path,
            origin_name="lab",
            ledger="127.0.0.1:0",
            gate="127.0.0.1:0",
            trust_domain="lab.test",
            principals=self._principals,
            random=os.urandom,
            now=time.time_ns() // 1000,  # certificates are judged by the real clock
        )
        self.home = made.home
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.running:
                await self.check()
            await self.stop()
        finally:
            shutil.rmtree(self.root)

    @property
    def running(self) -> bool:
        """Whether the ledger serves."""
        return self.host is not None or self._process is not None

    @property
    def pid(self) -> int:
        """Of the server's process. Subprocess mode only."""
        if self._process is None:
            raise RuntimeError("expected a subprocess")
        return self._process.pid

    async def start(self) -> None:
        """Starts the ledger on what the store holds."""
        if self._subprocess:
            await self._start_process()
            return
        self.host = self.build()
        await self.host.start()
        self.address = f"127.0.0.1:{self.host.port}"

    def store(self) -> Store:
        """The store, opened; the ledger must not run."""
        folder, origin = Folder(self.path / "ledger" / "data"), self.home.origin
        store: Store
        if self._store_url is None:
            store = SQLiteStore(folder, origin)
        else:
            from ledger.server.postgres import PostgresStore  # noqa: PLC0415 - an extra

            store = PostgresStore(self._store_url, folder, origin)
        return store if self._wrap_store is None else self._wrap_store(store)

    def server_credentials(self, service: str) -> grpc.ServerCredentials:
        """mTLS for `ledger` or `gate`, from the home's own files."""
        folder = self.path / service
        return grpc.ssl_server_credentials(
            [((folder / "server.key").read_bytes(), (folder / "server.crt").read_bytes())],
            root_certificates=(self.path / "ca.crt").read_bytes(),
            require_client_auth=True,
        )

    def build(self) -> Host:
        """A server on the store, not started."""
        ledger = self.path / "ledger"
        settings: dict[str, Any] = {
            "trust": self.trust,
            "trust_domain": self.home.trust_domain,
            "keys": [read_key(ledger / "note.key")],
            "clock": self.clock,
            "genesis": decode_genesis((self.path / "genesis.bin").read_bytes()),
        }
        settings.update(self._settings)
        listen = settings.pop("listen", "127.0.0.1:0")
        store = self.store()
        try:
            return build_server(
                Settings(**settings),
                store,
                listen,
                self.server_credentials("ledger"),
                data=ledger / "data",
                folds=self._folds(),
            )
        except BaseException:
            store.close()
            raise

    async def _start_process(self) -> None:
        config = self.path / "server.json"
        store = {} if self._store_url is None else {"store": self._store_url}
        config.write_text(json.dumps(ledger_config(self.home) | store | self._settings))
        command = [sys.executable, "-m", "ledger.server", "--config", str(config)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=os.environ | self.environment
        )
        self._process = process
        if process.stdout is None:
            raise RuntimeError("expected a pipe")
        line = await process.stdout.readline()
        if not line:
            code, self._process = await process.wait(), None
            raise ServerEndedError(code)
        self.address = json.loads(line)["address"]

    async def stop(self) -> int:
        """Stops clients and ledger in order; the exit code, 0 in this process."""
        for client in self._clients:
            await client.close()
        self._clients.clear()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            return await self._ended()
        if self.host is not None:
            host, self.host = self.host, None
            await host.stop()
        return 0

    async def kill(self) -> None:
        """SIGKILL: what a crash leaves. Subprocess mode only."""
        if self._process is None:
            raise RuntimeError("expected a subprocess")
        self._process.kill()
        await self._ended()

    async def died(self) -> int:
        """Waits for the process to end by itself; its exit code. Subprocess mode only."""
        if self._process is None:
            raise RuntimeError("expected a subprocess")
        code = await self._process.wait()
        self._process = None
        return code

    async def _ended(self) -> int:
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("expected a subprocess")
        return await process.wait()

    async def restart(self) -> None:
        """Stops and starts again on the same store."""
        await self.stop()
        await self.start()

    # --- people ---------------------------------------------------------------------------------------------

    @property
    def trust(self) -> TrustDocument:
        """What an auditor trusts."""
        return parse_trust_document((self.path / "trust.txt").read_bytes())

    def identity(self, name: str) -> Identity:
        """A principal of the home, by name; `root-1` is root."""
        return load_identity(self.path, name, target=self.address)

    def client(self, name: str, **options: Any) -> LedgerClient:
        """A client for `name`, closed with the lab. Its memory is its own unless handed in."""
        identity = self.identity(name)
        options.setdefault("memory", Memory(identity.trust, None))
        client = LedgerClient(identity, **options)
        self._clients.append(client)
        return client

    def of_role(self, role: str, **options: Any) -> LedgerClient:
        """A client for the first principal of a role, by the role's name such as `trainer`."""
        if role == "root":
            return self.client(ROOT, **options)
        return self.client(next(n for n, held in self.home.principals.items() if held == role), **options)

    def event(self, event: event_pb2.Event) -> bytes:
        """The event's bytes, under a fresh id."""
        event.event_id = uuid7(self.clock.now, os.urandom(RANDOM_BYTES))
        return event.SerializeToString()

    # --- audit ----------------------------------------------------------------------------------------------

    async def export(self) -> bytes:
        """The whole log as an export file, read by the auditor."""
        client = self.of_role("auditor")
        note = await client.checkpoint_note()
        size = client.checkpoint.size if client.checkpoint is not None else 0
        entries = [entry async for _, entry in client.read(0, size)]
        await client.close()
        self._clients.remove(client)
        return encode_export_header(note) + encode_run(entries)

    async def check(self, fold: Fold | None = None) -> Verified:
        """Reads the whole log and verifies it offline, V2 to V7."""
        return verify_export(BytesIO(await self.export()), self.trust, fold=fold)
