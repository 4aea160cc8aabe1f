"""Commits alone, SQLite and PostgreSQL (where there is one: tests.postgres), beside their ceiling.

A commit is what the sequencer stores: a run of 256-event batches of 400-byte events, a marker a batch, a
checkpoint. The ceiling is SHA-256 of the same bytes and one durable insert of them as a blob into SQLite.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Final
from uuid import uuid4

from ledger.server.durable import Folder
from ledger.server.postgres import PostgresStore
from ledger.server.sqlite import SQLiteStore
from ledger.server.store import Commit, Marker, Store
from tests.bench.row import Row
from tests.postgres import NoPostgresError, cluster, database

__all__ = ["rows"]

_ORIGIN: Final = "bench-0123456789abcdef"
_EVENT: Final = 400
_HEADER: Final = 53 + 2  # of an entry in a run
_BATCH: Final = 256
_SIZES: Final = (1, 10, 20, 40, 80)  # batches a commit: 0.1 to 9 MB


def _commits(store: Store, batches: int) -> Callable[[int], None]:
    """Stores the n-th commit of so many batches."""
    events = batches * _BATCH
    runs = [os.urandom(events * (_EVENT + _HEADER)) for _ in range(2)]
    begin = (store.head() or (0, b""))[0]

    def commit(number: int) -> None:
        first = begin + number * events
        markers = tuple(Marker(uuid4(), 0, bytes(32), first + k * _BATCH) for k in range(batches))
        store.commit(Commit(first, runs[number % 2], markers, first + events, bytes(200)))

    return commit


def _blobs(folder: Path, batches: int) -> Callable[[int], None]:
    data = os.urandom(batches * _BATCH * (_EVENT + _HEADER))
    connection = sqlite3.connect(folder / f"{batches}.sqlite", isolation_level=None)
    for statement in (
        "PRAGMA page_size=16384",
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA wal_autocheckpoint=4096",
        "CREATE TABLE blobs (number INTEGER PRIMARY KEY, data BLOB)",
    ):
        connection.execute(statement)

    def insert(number: int) -> None:
        sha256(data).digest()
        connection.execute("INSERT INTO blobs VALUES (?, ?)", (number, data))

    return insert


def _rate(step: Callable[[int], None], batches: int, seconds: float) -> float:
    """Events a second, the first step not counted."""
    step(0)
    number, began = 1, perf_counter()
    while perf_counter() - began < seconds:
        step(number)
        number += 1
    return (number - 1) * batches * _BATCH / (perf_counter() - began)


def rows(seconds: float, entries: int) -> list[Row]:
    """By store and size of a commit, about `seconds` in all."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        stores: dict[str, Store] = {"SQLite": SQLiteStore(Folder(folder / "sqlite"), _ORIGIN)}
        with suppress(NoPostgresError):
            url = stack.enter_context(database(stack.enter_context(cluster())))
            stores["PostgreSQL"] = PostgresStore(url, Folder(folder / "postgres"), _ORIGIN)
        share = seconds / (1 + len(stores)) / len(_SIZES)
        measured: list[Row] = []
        for store in stores.values():
            stack.enter_context(closing(store))
            store.hold()
        for batches in _SIZES:
            rates = {kind: _rate(_commits(store, batches), batches, share) for kind, store in stores.items()}
            ceiling = _rate(_blobs(folder, batches), batches, share)
            measured += (
                Row(
                    f"{kind}, commits of {batches * _BATCH:,} events",
                    rate,
                    "events/s",
                    ceiling,
                    "SHA-256 and blob insert",
                )
                for kind, rate in rates.items()
            )
    return measured
