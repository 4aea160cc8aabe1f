"""Ledger and gate of a home as processes of their own: what `assay serve` and the demonstration start.

Rules:
1. A server is the command that ships, `python -m ledger.server` or `python -m gate`; nothing is imported.
2. It is ready when it says so on stdout, never because time passed.
3. A process that was started here is stopped here, whatever happens in between.
   An end before it is ready, a cancelled wait included, ends it too.
4. What would end a server at once is said before it is started, with what to do: an address that is taken, a
   gate without its ledger.
"""

from __future__ import annotations

import asyncio
import errno
import json
import signal
import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from clients.home import Home, ledger_config
from ledger.errors import FatalError, FormatError, OverloadedError, RefusedError

__all__ = [
    "ServerProcess",
    "check_free",
    "check_serves",
    "gate_command",
    "ledger_command",
]

_KEYS: Final = Path("ledger")  # where a home has the ledger's note keys
_STOPPING: Final = 10.0  # seconds for a graceful stop
_CONNECTING: Final = 5.0  # seconds for a ledger to take a connection


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_free(address: str, service: str) -> None:
    """Raises RefusedError ADDRESS_IN_USE where somebody listens on host:port already."""
    host, port = _endpoint(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise RefusedError(
                "ADDRESS_IN_USE",
                f"expected {address} free for the {service}, got it in use: one may serve already "
                "(assay status)",
            ) from error


def check_serves(address: str) -> None:
    """Raises OverloadedError LEDGER_AWAY where no ledger takes connections on host:port."""
    try:
        socket.create_connection(_endpoint(address), timeout=_CONNECTING).close()
    except OSError as error:
        raise OverloadedError(
            "LEDGER_AWAY",
            f"expected a ledger on {address}, got none ({error.strerror or error}); start it first: "
            "assay serve ledger",
            1.0,
        ) from error


def ledger_command(path: Path, home: Home, **settings: Any) -> list[str]:
    """The command that serves the ledger of the home at `path` as its `ledger.json` says.

    `settings` are written into that file, and the note keys that lie in the home; the rest of it stays.
    Raises FormatError BAD_CONFIG where the file holds no JSON object, OSError.
    """
    config = path / "ledger.json"
    document = _configured(config) or ledger_config(home)
    elsewhere = [key for key in document.get("note_keys", []) if Path(key).parent != _KEYS]
    lying = sorted(str(file.relative_to(path)) for file in (path / _KEYS).glob("note*.key"))
    document |= {"note_keys": lying + elsewhere} | settings
    draft = path / ".ledger.json.draft"
    draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    draft.replace(config)
    return [sys.executable, "-m", "ledger.server", "--config", str(config)]


def _configured(config: Path) -> dict[str, Any] | None:
    """What stands in a ledger's configuration; None where there is none yet."""
    if not config.exists():
        return None
    try:
        document = json.loads(config.read_bytes())
    except ValueError as error:
        raise FormatError("BAD_CONFIG", f"expected JSON in {config}, got {error}") from error
    if not isinstance(document, dict):
        raise FormatError("BAD_CONFIG", f"expected a JSON object in {config}, got another value")
    return document


def gate_command(path: Path, principal: str, ledger: str | None = None) -> list[str]:
    """The command that serves the gate; `ledger` where the ledger listens elsewhere than the home says."""
    command = [sys.executable, "-m", "gate", "--home", str(path), "--as", principal]
    return command if ledger is None else [*command, "--ledger", ledger]


class ServerProcess:
    """A server of its own, from its ready line to its end. An async context manager."""

    def __init__(self, command: list[str], log: Path) -> None:
        """`log` takes what the server says on stderr."""
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""  # host:port, known once it is ready

    async def __aenter__(self) -> ServerProcess:
        with self._log.open("ab") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=asyncio.subprocess.PIPE, stderr=stderr
            )
        try:
            await self._ready(self._process)
        except BaseException:  # whatever it was: without an entered block nobody else ends the process
            await self._stop()
            raise
        return self

    async def _ready(self, process: asyncio.subprocess.Process) -> None:
        line = await process.stdout.readline() if process.stdout is not None else b""
        if not line:
            code = await process.wait()
            said = self._log.read_text(encoding="utf-8").strip().rpartition("\n")[2]
            raise FatalError("SERVER_ENDED", f"expected a server that is ready, got exit code {code}: {said}")
        self.address = json.loads(line)["address"]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOPPING)
        except TimeoutError:
            process.kill()
            await process.wait()
