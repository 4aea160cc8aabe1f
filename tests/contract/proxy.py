"""A TCP proxy between a store and its PostgreSQL that cuts the connection around a COMMIT.

Rules:
1. Nothing is cut before a cut is armed; then the next COMMIT of any connection is where it happens, once.
2. "before": the server never sees the COMMIT. "after": it answers, and the answer is lost. "late": the client
   is cut off, the server's session lives on, and gets the COMMIT only when the test says so.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal
from urllib.parse import urlsplit

__all__ = ["Cut", "Proxy", "proxied"]

Cut = Literal["before", "after", "late"]
_CHUNK: Final = 2**16


class Proxy:
    """Listens on a port of the loopback; forwards to one server."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: Cut | None = None
        self._guard = threading.Lock()
        self.let_through = threading.Event()  # what "late" waits for
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, where: Cut) -> None:
        """Arms one cut."""
        with self._guard:
            self._cut = where

    def close(self) -> None:
        """Takes no more connections; those that are open end with their peers."""
        self.let_through.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
                threading.Thread(target=_pump, args=(server, client), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK):
                where = self._taken() if b"COMMIT" in data else None
                if where is None:
                    server.sendall(data)
                    continue
                if where == "after":
                    # Nothing of the answer passes: the way back is shut first.
                    client.shutdown(socket.SHUT_WR)
                    server.sendall(data)
                    server.shutdown(socket.SHUT_WR)
                    _drain(server)
                elif where == "late":
                    client.shutdown(socket.SHUT_RDWR)
                    self.let_through.wait()
                    server.sendall(data)
                    server.shutdown(socket.SHUT_WR)
                    _drain(server)
                break
        _shut(client)
        _shut(server)

    def _taken(self) -> Cut | None:
        with self._guard:
            where, self._cut = self._cut, None
            return where


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    _shut(target)


def _drain(server: socket.socket) -> None:
    """Until the server has ended the session."""
    with suppress(OSError):
        while server.recv(_CHUNK):
            pass


def _shut(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server of `url`, and the URL that goes through it."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"expected a host and a port in {url}")
    proxy = Proxy((parts.hostname, parts.port))
    user = f"{parts.username}@" if parts.username else ""
    try:
        yield (
            proxy,
            parts._replace(
                netloc=f"{user}127.0.0.1:{proxy.port}", query="sslmode=disable&gssencmode=disable"
            ).geturl(),
        )
    finally:
        proxy.close()
