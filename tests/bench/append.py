"""Durable appends over mTLS to a ledger of its own process, SQLite FULL, beside their ceilings.

Events of about 400 bytes are made before anything is measured; the client signs every batch and verifies
every acknowledgement, beside the server on the same machine.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import grpc.aio

from clients.ledger import Stream
from tests.bench.echo import METHOD
from tests.events import minimal_event, otlp_span
from tests.lab import Lab

__all__ = ["run"]

_BATCH: Final = 256
_BATCHES: Final = 64  # different ones, sent over and over: the log does not mind
_CONCURRENT: Final = 64
_PADDING: Final = 330


def run(seconds: float) -> dict[str, float]:
    """Measures for about `seconds` in all; rates are events a second."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.run(_run(seconds))
    return uvloop.run(_run(seconds))


async def _run(seconds: float) -> dict[str, float]:
    share = seconds / 6
    async with Lab(subprocess=True) as lab:
        batches = [[_event(lab) for _ in range(_BATCH)] for _ in range(_BATCHES)]
        streamed = await _stream(lab, batches, share)
        alone = await _unary(lab, batches[0][0], share, 1)
        together = await _unary(lab, batches[0][0], share, _CONCURRENT)
        echo_alone, echo_together = await _echo(lab, batches[0][0], share)
        ceiling, fsync = _hash_and_insert(batches, share)
    return {
        "event, bytes": float(len(batches[0][0])),
        "stream of 256-event batches, events/s": streamed,
        "ceiling: SHA-256 and blob insert of the same bytes, events/s": ceiling,
        "ratio to that ceiling": streamed / ceiling,
        "64 concurrent unary appends of one event, /s": together[0],
        "ceiling: 64 concurrent echoes, /s": echo_together[0],
        "ratio of concurrent appends to echo": together[0] / echo_together[0],
        "one unary append, p50, ms": alone[1],
        "ceiling: one echo, p50, ms": echo_alone[1],
        "ceiling: one durable insert of that event, p50, ms": fsync,
        "ratio of one append to echo and insert together": alone[1] / (echo_alone[1] + fsync),
    }


def _event(lab: Lab) -> bytes:
    span = minimal_event("span_recorded", otlp_span=otlp_span(_PADDING))
    return lab.event(span)


async def _stream(lab: Lab, batches: Sequence[Sequence[bytes]], seconds: float) -> float:
    client = lab.of_role("runner")
    end = perf_counter() + seconds

    async def source() -> AsyncIterator[Sequence[bytes]]:
        number = 0
        while perf_counter() < end:
            yield batches[number % len(batches)]
            number += 1

    start, count = perf_counter(), 0
    async for placed in client.append_stream(source()):
        count += placed.count
    return count / (perf_counter() - start)


async def _unary(lab: Lab, event: bytes, seconds: float, concurrent: int) -> tuple[float, float]:
    client = lab.of_role("runner")

    async def append(stream: Stream) -> None:
        await stream.append([event])

    return await _calls([_bound(append, client.open_stream()) for _ in range(concurrent)], seconds)


def _bound(call: Callable[[Stream], Awaitable[None]], stream: Stream) -> Callable[[], Awaitable[object]]:
    return lambda: call(stream)


async def _echo(lab: Lab, event: bytes, seconds: float) -> tuple[tuple[float, float], tuple[float, float]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.echo", str(lab.path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    credentials = lab.identity("runner-1").channel_credentials()
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            echo = channel.unary_unary(METHOD)

            async def call() -> None:
                assert await echo(event) == event

            return await _calls([call], seconds), await _calls([call] * _CONCURRENT, seconds)
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def _calls(calls: Sequence[Callable[[], Awaitable[object]]], seconds: float) -> tuple[float, float]:
    """(calls a second, median milliseconds of one)."""
    for call in calls:
        await call()
    took: list[float] = []
    start = perf_counter()

    async def repeat(call: Callable[[], Awaitable[object]]) -> None:
        while (began := perf_counter()) < start + seconds:
            await call()
            took.append(perf_counter() - began)

    await asyncio.gather(*(repeat(call) for call in calls))
    return len(took) / (perf_counter() - start), median(took) * 1000


def _hash_and_insert(batches: Sequence[Sequence[bytes]], seconds: float) -> tuple[float, float]:
    """(events a second, median milliseconds of a transaction with one event)."""
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "ceiling.sqlite", isolation_level=None)
        for pragma in ("page_size=16384", "journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE run (position INTEGER PRIMARY KEY, state BLOB)")
        start, count, number = perf_counter(), 0, 0
        while perf_counter() < start + seconds:
            batch = batches[number % len(batches)]
            for event in batch:
                sha256(event).digest()
            connection.execute("INSERT INTO run VALUES (?, ?)", (number, b"".join(batch)))
            count, number = count + len(batch), number + 1
        rate = count / (perf_counter() - start)
        took: list[float] = []
        while perf_counter() < start + 1.5 * seconds:
            began = perf_counter()
            connection.execute("INSERT INTO run VALUES (?, ?)", (number, batches[0][0]))
            took.append(perf_counter() - began)
            number += 1
        connection.close()
    return rate, median(took) * 1000
