"""A ledger under attack, and what a well-behaved client sees of it: `python -m tests.hardening.hostile`.

The ledger is the command, in a process of its own; so are the attackers. The client appends one event after
the other over mTLS, each acknowledgement proven, before, during and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clients.home import DEVELOPMENT_PRINCIPALS, Principal
from clients.ledger import LedgerClient
from ledger.v1 import options_pb2
from tests.lab import Lab
from tests.server.people import body, until

__all__ = [
    "MIX",
    "PRINCIPALS",
    "Latency",
    "Siege",
    "attack",
    "crowd",
    "held",
    "measure",
    "server_pid",
    "settled",
]

#: Shares of a crowd of bad connections.
MIX: Final = {"tcp": 20, "tls": 20, "idle": 36, "unread": 6, "left": 6, "loris": 6, "cancelling": 6}
PRINCIPALS: Final = (
    *DEVELOPMENT_PRINCIPALS,
    *(Principal(f"runner-{n}", options_pb2.ROLE_RUNNER, f"owner-of-runner-{n}") for n in range(2, 32)),
)
_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Latency:
    """Of one append in a row of them, in milliseconds."""

    p50: float
    p99: float

    def __str__(self) -> str:
        return f"p50 {self.p50:7.1f} ms   p99 {self.p99:7.1f} ms"


async def measure(lab: Lab, client: LedgerClient, samples: int) -> Latency:
    """Appends one event after the other."""
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        await client.append([body(lab, "training_progressed")])
        times.append(1000 * (time.perf_counter() - start))
    times.sort()
    return Latency(times[len(times) // 2], times[len(times) * 99 // 100])


class Siege:
    """Attackers that stand."""

    def __init__(self, up: dict[str, Any]) -> None:
        self.up: dict[str, int] = up["up"]
        self.refused: dict[str, int] = up["refused"]
        self.left: dict[str, int] = {}


@asynccontextmanager
async def attack(module: str, *arguments: str) -> AsyncIterator[Siege]:
    """Runs `tests.hardening.<module>` until the block ends; begins when all of it stands."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", f"tests.hardening.{module}", *arguments),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    word, _, told = (await process.stdout.readline()).decode().partition(" ")
    assert "ready" == word, "expected attackers that stand; they said why not on stderr"
    siege = Siege(json.loads(told))
    try:
        yield siege
    finally:
        process.stdin.close()
        told = (await process.stdout.read()).decode().partition(" ")[2]
        await process.wait()
    siege.left = json.loads(told)["refused"]


def held(pid: int) -> tuple[int, float]:
    """Descriptors and resident MiB of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()), rss / 1024


async def settled(pid: int, descriptors: int) -> int:
    """Waits until the process holds no more than so many descriptors; how many it holds."""
    await until(lambda: held(pid)[0] <= descriptors, every=0.05)
    return held(pid)[0]


def server_pid(lab: Lab) -> int:
    """The ledger's process."""
    assert lab._process is not None
    return lab._process.pid


async def _one(name: str, lab: Lab, client: LedgerClient, samples: int, *command: str) -> None:
    pid = server_pid(lab)
    descriptors, rss = held(pid)
    before = await measure(lab, client, samples)
    async with attack(*command) as siege:
        under, most = held(pid)
        during = await measure(lab, client, samples)
        after_a_while = held(pid)
    descriptors_after = await settled(pid, descriptors + 5)
    after = await measure(lab, client, samples)
    print(f"\n{name}: {sum(siege.up.values())} stand {siege.up}, refused at once {siege.refused}")
    print(f"  answers and ends: {siege.left}")
    print(f"  before {before}\n  during {during}\n  after  {after}")
    print(f"  descriptors {descriptors} → {under} → {after_a_while[0]} → {descriptors_after}")
    print(f"  resident MiB {rss:.0f} → {most:.0f} → {after_a_while[1]:.0f} → {held(pid)[1]:.0f}", flush=True)


def crowd(connections: int) -> list[str]:
    """The mix as arguments for the attackers."""
    return [f"{kind}={connections * share // 100}" for kind, share in MIX.items()]


async def _main(connections: int, senders: int, samples: int, only: Sequence[str]) -> None:
    async with Lab(subprocess=True, principals=PRINCIPALS) as lab:
        client = lab.of_role("trainer")
        where = (str(lab.path), lab.address)
        if "rubbish" in only:
            await _one("one sender", lab, client, samples, "rubbish", *where, "runner-1", "1")
            name = f"{senders} senders of one principal"
            await _one(name, lab, client, samples, "rubbish", *where, "runner-1", str(senders))
            many = ",".join(f"runner-{n}" for n in range(1, 31))
            await _one(
                f"{senders} of 30 principals", lab, client, samples, "rubbish", *where, many, str(senders)
            )
        if "crowd" in only:
            await _one("a crowd", lab, client, samples, "attackers", *where, *crowd(connections))
        for kind in MIX:
            if kind in only:
                await _one(kind, lab, client, samples, "attackers", *where, f"{kind}={connections}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.hardening.hostile")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--senders", type=int, default=30)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("only", nargs="*", default=["rubbish", "crowd"], help="rubbish, crowd or a kind")
    given = parser.parse_args()
    asyncio.run(_main(given.connections, given.senders, given.samples, given.only))
