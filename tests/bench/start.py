"""The start of a ledger on a large log, and receipts of single updates out of it (tests.bench.biglog).

The server is the command that ships, on a home of its own. Its first start makes what is derived from the
entries (views, tiles); the later ones are what a restart costs. A receipt is asked for as any auditor does,
over mTLS, first of an update whose record is not in memory, then again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

from clients.home import Home, load_home
from clients.identity import load_identity
from clients.ledger import LedgerClient
from clients.memory import Memory
from clients.receipts import ReceiptsClient
from clients.servers import ServerProcess, ledger_command
from tests.bench.append import within_loop
from tests.bench.biglog import make_big_log
from tests.bench.row import Row

__all__ = ["rows"]

_STARTS: Final = 3
_RECEIPTS: Final = 20


def rows(seconds: float, entries: int) -> list[Row]:
    """On a log of `entries` entries, which takes a minute a million to make."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        path = Path(folder) / "home"
        size = make_big_log(path, entries)
        return within_loop(_rows(path, load_home(path), size))


async def _rows(path: Path, home: Home, size: int) -> list[Row]:
    took: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    for _ in range(1 + _STARTS):
        began = perf_counter()
        async with ServerProcess(ledger_command(path, home), path / "log.txt") as server:
            took.append(perf_counter() - began)
            if len(took) > 1:
                await _receipts(path, server.address, len(took), cold, warm)
    what = f"{size:,} entries"
    return [
        Row(f"first start on {what}, which derives the views", took[0], "s"),
        Row(f"start on {what}", median(took[1:]), "s", most=3),
        Row(f"receipt of one update among {what}, not in memory", median(cold), "ms", most=10),
        Row(f"receipt of one update among {what}, asked again", median(warm), "ms", most=10),
    ]


async def _receipts(path: Path, address: str, start: int, cold: list[float], warm: list[float]) -> None:
    identity = load_identity(path, "auditor-1", target=address)
    async with LedgerClient(identity, memory=Memory(identity.trust, None)) as ledger:
        client = ReceiptsClient(ledger)
        updates = [summary.update async for summary in client.list_updates()]
        await client.get_update(updates[0])  # the first of a process also makes what all need
        step = max(1, len(updates) // _RECEIPTS)
        for update in updates[start::step]:
            for took in (cold, warm):
                began = perf_counter()
                await client.get_update(update)
                took.append((perf_counter() - began) * 1000)
