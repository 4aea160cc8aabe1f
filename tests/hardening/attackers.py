"""Clients as nobody should write them: thousands of connections, spoken to in hand-made HTTP/2.

    python -m tests.hardening.attackers HOME ADDRESS KIND=COUNT…

prints `ready` and what is up once all stand, attacks until stdin ends, and then goes away without a word. All
of them are the principal runner-1, or nobody yet: what is attacked is what comes before a batch is judged.
"""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

__all__ = ["KINDS", "Attackers"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _WINDOW = 0, 1, 3, 4, 8
_END_HEADERS, _ACK = 4, 1
_CANCEL: Final = (8).to_bytes(4, "big")
_AT_ONCE: Final = 50  # handshakes under way
_TICK: Final = 0.25  # seconds between two moves of one connection


def _frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: str, value: str) -> bytes:
    # HPACK, RFC 7541 section 6.2.2: without indexing, new name, no Huffman code.
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _call(stream: int, method: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "https",
        ":path": f"/ledger.v1.LedgerService/{method}",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(_literal(*header) for header in headers.items())
    return _frame(_HEADERS, stream, block, _END_HEADERS)


def _message(stream: int, data: bytes, length: int | None = None, *, end: bool = False) -> bytes:
    prefix = b"\x00" + (len(data) if length is None else length).to_bytes(4, "big")
    return _frame(_DATA, stream, prefix + data, 1 if end else 0)


class Attackers:
    """Connections to one server. What the server ends, and says, is counted and not mended."""

    def __init__(self, home: Path, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        runner = home / "principals" / "runner-1"
        self._tls = ssl.create_default_context(cafile=str(home / "ca.crt"))
        self._tls.check_hostname = False
        self._tls.load_cert_chain(runner / "client.crt", runner / "client.key")
        self._tls.set_alpn_protocols(["h2"])
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._writers: list[asyncio.StreamWriter] = []
        self._going: list[asyncio.Task[None]] = []
        self.up: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    async def start(self, kinds: dict[str, int]) -> None:
        """Returns when every connection stands, or was refused."""
        jobs = [self._begin(kind) for kind, count in kinds.items() for _ in range(count)]
        await asyncio.gather(*jobs)

    async def _begin(self, kind: str) -> None:
        async with self._gate:
            try:
                move = await KINDS[kind](self)
            except (OSError, ssl.SSLError, asyncio.IncompleteReadError) as error:
                self.refused[f"{kind}: {type(error).__name__}"] += 1
                return
        self.up[kind] += 1
        if move is not None:
            self._going.append(asyncio.create_task(self._go_on(kind, move)))

    async def _go_on(self, kind: str, move: Callable[[int], Awaitable[None]]) -> None:
        number = 0
        while True:
            await asyncio.sleep(_TICK)
            number += 1
            try:
                await move(number)
            except (OSError, ssl.SSLError):
                self.refused[f"{kind}: ended"] += 1
                return

    async def plain(self) -> asyncio.StreamWriter:
        """A TCP connection."""
        _, writer = await asyncio.open_connection(self._host, self._port)
        self._writers.append(writer)
        return writer

    async def secure(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TLS connection."""
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        self._writers.append(writer)
        return reader, writer

    async def http(self, *, window: int = 65_535) -> asyncio.StreamWriter:
        """An HTTP/2 connection whose settings both sides know; `window` is what a stream may be sent."""
        reader, writer = await self.secure()
        initial = (4).to_bytes(2, "big") + window.to_bytes(4, "big")
        writer.write(_PREFACE + _frame(_SETTINGS, 0, initial))
        await writer.drain()
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        writer.write(_frame(_SETTINGS, 0, flags=_ACK))
        await writer.drain()
        return writer

    def leave(self) -> None:
        """Goes away without a word."""
        for task in self._going:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()


async def _tcp(attackers: Attackers) -> None:
    """Connects and says nothing."""
    await attackers.plain()


async def _tls(attackers: Attackers) -> None:
    """Ends the handshake and says nothing."""
    await attackers.secure()


async def _idle(attackers: Attackers) -> None:
    """Speaks HTTP/2 and calls nothing."""
    await attackers.http()


async def _unread(attackers: Attackers) -> None:
    """Follows the log, and leaves no room for an answer."""
    writer = await attackers.http(window=0)
    writer.write(_call(1, "Follow") + _message(1, b"", end=True))
    await writer.drain()


async def _left(attackers: Attackers) -> None:
    """Opens streams of batches and leaves them."""
    writer = await attackers.http()
    writer.write(b"".join(_call(number, "AppendStream") for number in (1, 3, 5)))
    await writer.drain()


async def _loris(attackers: Attackers) -> Callable[[int], Awaitable[None]]:
    """Says that 3 MiB are coming, and sends them byte by byte."""
    writer = await attackers.http()
    writer.write(_call(1, "Append") + _message(1, b"", 3 * 2**20))
    await writer.drain()

    async def move(_: int) -> None:
        writer.write(_frame(_DATA, 1, b"\x0a"))
        await writer.drain()

    return move


async def _cancelling(attackers: Attackers) -> Callable[[int], Awaitable[None]]:
    """Calls, and cancels before there is an answer, again and again."""
    writer = await attackers.http()

    async def move(number: int) -> None:
        stream = 2 * number - 1
        method = "Follow" if number % 2 else "Append"
        writer.write(_call(stream, method) + _message(stream, b"", end=True) + _frame(_RST, stream, _CANCEL))
        await writer.drain()

    return move


KINDS: Final[dict[str, Callable[[Attackers], Awaitable[Callable[[int], Awaitable[None]] | None]]]] = {
    "tcp": _tcp,
    "tls": _tls,
    "idle": _idle,
    "unread": _unread,
    "left": _left,
    "loris": _loris,
    "cancelling": _cancelling,
}


async def _main(home: Path, address: str, kinds: dict[str, int]) -> None:
    attackers = Attackers(home, address)
    await attackers.start(kinds)
    sys.stdout.write("ready " + json.dumps({"up": attackers.up, "refused": attackers.refused}) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    sys.stdout.write("left " + json.dumps({"refused": attackers.refused}) + "\n")
    attackers.leave()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asked = dict(word.split("=") for word in sys.argv[3:])
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2], {kind: int(count) for kind, count in asked.items()}))
