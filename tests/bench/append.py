"""Durable appends over mTLS to a ledger of its own process, SQLite FULL, beside their ceilings.

Events of about 400 bytes are made before anything is measured; the client signs every batch and verifies
every acknowledgement, beside the server on the same machine. Everything is measured in short rounds, one
after the other, and the median of the rounds counts: what else the machine does then meets all alike.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import grpc.aio

from clients.ledger import Stream
from tests.bench.echo import METHOD
from tests.bench.row import Row, processor_seconds
from tests.events import minimal_event, otlp_span
from tests.lab import Lab

__all__ = ["rows", "stream_rows", "within_loop"]

_BATCH: Final = 256
_BATCHES: Final = 64  # different ones, sent over and over: the log does not mind
_CONCURRENT: Final = 64
_PADDING: Final = 330
_ROUNDS: Final = 7
_PAGE: Final = 4096


def within_loop(run: Coroutine[Any, Any, list[Row]]) -> list[Row]:
    """Runs to the end, on uvloop where it is installed: as the server does."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run(run)
    return uvloop.run(run)


def rows(seconds: float, entries: int) -> list[Row]:
    """Measures for about `seconds` in all."""
    return within_loop(_rows(seconds))


async def stream_rows(lab: Lab, store: str, least: float, seconds: float) -> list[Row]:
    """One stream of 256-event batches beside hash and insert of the same bytes."""
    batches = [[_event(lab) for _ in range(_BATCH)] for _ in range(_BATCHES)]
    share = seconds / 2 / _ROUNDS
    async with _Ceilings() as ceilings:
        rates: list[float] = []
        for _ in range(_ROUNDS):
            rates.append(await _stream(lab, batches, share))
            ceilings.hash_and_insert(batches, share)
    return [
        Row(
            f"stream of 256-event batches, {store}",
            median(rates),
            "events/s",
            median(ceilings.hashed),
            "SHA-256 and blob insert of the same bytes",
            least=least,
        )
    ]


async def _rows(seconds: float) -> list[Row]:
    share = seconds / 7 / _ROUNDS
    async with Lab(subprocess=True) as lab, _Ceilings() as ceilings, _echo(lab) as (echo, echo_pid):
        streamed = await stream_rows(lab, "SQLite FULL, mTLS", 40_000, seconds * 2 / 7)
        event, client = _event(lab), lab.of_role("runner")

        async def append(stream: Stream) -> None:
            await stream.append([event])

        async def echoed() -> None:
            assert await echo(event) == event

        appends = [_bound(append, client.open_stream()) for _ in range(_CONCURRENT)]
        together, alone = _Calls(appends, lab.pid), _Calls(appends[:1], lab.pid)
        echo_together, echo_alone = _Calls([echoed] * _CONCURRENT, echo_pid), _Calls([echoed], echo_pid)
        for _ in range(_ROUNDS):
            for calls in (together, echo_together, alone, echo_alone):
                await calls.run(share)
            ceilings.flush(share)
    flush = median(ceilings.flushes)
    floor = flush + median(echo_alone.medians)
    return [
        *streamed,
        Row("fsync: pwrite and fdatasync of 4 KiB, p50", flush, "ms"),
        Row(
            "64 concurrent unary appends of one event",
            median(together.rates),
            "/s",
            median(echo_together.rates),
            "grpc.aio echo, 64 at once",
            least=1300,
        ),
        Row(
            "the same, as a part of echo",
            median(together.rates) / median(echo_together.rates),
            "",
            least=0.8,
        ),
        Row("one unary append, p50", median(alone.medians), "ms", floor, "fsync and echo", most=2 * floor),
        *(
            Row(
                f"processor time of the {side} for each of {what}",
                1e6 * median(getattr(calls, side)),
                "us",
                1e6 * median(getattr(echoes, side)),
                "echo",
            )
            for what, calls, echoes in (
                ("64 concurrent appends", together, echo_together),
                ("unary appends one by one", alone, echo_alone),
            )
            for side in ("server", "client")
        ),
    ]


def _event(lab: Lab) -> bytes:
    span = minimal_event("span_recorded", otlp_span=otlp_span(_PADDING))
    return lab.event(span)


async def _stream(lab: Lab, batches: Sequence[Sequence[bytes]], seconds: float) -> float:
    client = lab.of_role("runner")
    end = perf_counter() + seconds

    async def source() -> AsyncIterator[Sequence[bytes]]:
        for number in count():
            if perf_counter() >= end:
                return
            yield batches[number % len(batches)]

    start, placed_events = perf_counter(), 0
    async for placed in client.append_stream(source()):
        placed_events += placed.count
    return placed_events / (perf_counter() - start)


def _bound(call: Callable[[Stream], Awaitable[None]], stream: Stream) -> Callable[[], Awaitable[object]]:
    return lambda: call(stream)


class _Calls:
    """Calls side by side, each again when it is answered. A value a round: what the names say."""

    def __init__(self, calls: Sequence[Callable[[], Awaitable[object]]], server: int) -> None:
        self._calls = calls
        self._server = server
        self.rates: list[float] = []  # a second
        self.medians: list[float] = []  # milliseconds
        self.server: list[float] = []  # processor seconds a call
        self.client: list[float] = []

    async def run(self, seconds: float) -> None:
        """One round."""
        for call in self._calls:
            await call()
        took: list[float] = []
        server, client, start = processor_seconds(self._server), time.process_time(), perf_counter()

        async def repeat(call: Callable[[], Awaitable[object]]) -> None:
            while (began := perf_counter()) < start + seconds:
                await call()
                took.append(perf_counter() - began)

        await asyncio.gather(*(repeat(call) for call in self._calls))
        self.rates.append(len(took) / (perf_counter() - start))
        self.medians.append(median(took) * 1000)
        self.server.append((processor_seconds(self._server) - server) / len(took))
        self.client.append((time.process_time() - client) / len(took))


@asynccontextmanager
async def _echo(lab: Lab) -> AsyncIterator[tuple[Callable[[bytes], Awaitable[bytes]], int]]:
    """The call of an echo server in a process of its own, and its process id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.echo", str(lab.path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        credentials = lab.identity("runner-1").channel_credentials()
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            yield channel.unary_unary(METHOD), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


class _Ceilings:
    """What the disk and the hash can do, in a folder of their own. A value a round."""

    def __init__(self) -> None:
        self.hashed: list[float] = []  # events a second
        self.flushes: list[float] = []  # milliseconds
        self._numbers = count()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> _Ceilings:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._database = sqlite3.connect(folder / "ceiling.sqlite", isolation_level=None)
        self._stack.callback(self._database.close)
        for pragma in ("page_size=16384", "journal_mode=WAL", "synchronous=FULL"):
            self._database.execute(f"PRAGMA {pragma}")
        self._database.execute("CREATE TABLE run (position INTEGER PRIMARY KEY, state BLOB)")
        self._file = os.open(folder / "ceiling", os.O_CREAT | os.O_RDWR, 0o600)
        self._stack.callback(os.close, self._file)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def hash_and_insert(self, batches: Sequence[Sequence[bytes]], seconds: float) -> None:
        """Every event hashed, every batch inserted in a transaction of its own."""
        start, events = perf_counter(), 0
        while perf_counter() < start + seconds:
            number = next(self._numbers)
            batch = batches[number % len(batches)]
            for event in batch:
                sha256(event).digest()
            self._database.execute("INSERT INTO run VALUES (?, ?)", (number, b"".join(batch)))
            events += len(batch)
        self.hashed.append(events / (perf_counter() - start))

    def flush(self, seconds: float) -> None:
        """Writes of a page in place, each flushed."""
        page, took, start = bytes(_PAGE), list[float](), perf_counter()
        while perf_counter() < start + seconds:
            began = perf_counter()
            os.pwrite(self._file, page, 0)
            os.fdatasync(self._file)
            took.append(perf_counter() - began)
        self.flushes.append(median(took) * 1000)
