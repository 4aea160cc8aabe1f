"""`python -m tests.crash.torture [--kills N] [--store sqlite|postgres] [--seed S]`: SIGKILL under load.

A real ledger in a process of its own is killed at random moments, while it starts, waits and commits, with
authors of every kind sending. After each kill it is started again, the whole log is read and verified
offline, and compared with every acknowledgement and every checkpoint that anybody was given.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Final

from tests.crash.audit import Audit, Found
from tests.crash.load import Load, Promises
from tests.lab import Lab, ServerEndedError
from tests.ports import free_port

__all__ = ["Report", "torture"]

_KILLS_PER_LOG: Final = 25  # then a new log: every audit reads all of it
_EARLY: Final = 0.2  # share of kills before the ledger says that it is ready
_MOST_PROMISES: Final = 400  # acknowledged events before a kill
_MOST_EXTRA: Final = 0.05  # seconds of load after them


@dataclass(slots=True)
class Report:
    """Sums over all logs."""

    kills: int = 0
    early: int = 0  # of them before the ready line
    logs: int = 0
    entries: int = 0
    acknowledged: int = 0
    checkpoints: int = 0
    audits: int = 0
    lost: int = 0
    doubled: int = 0
    moved: int = 0
    forked: int = 0
    seconds: float = 0.0

    def add(self, found: Found) -> None:
        """Adds what the last audit of a log found."""
        self.logs += 1
        for name, value in asdict(found).items():
            setattr(self, name, getattr(self, name) + value)


async def torture(kills: int, *, seed: int = 0, **lab_options: Any) -> Report:
    """Kills `kills` times in all; `lab_options` go to the Lab. Raises what an audit raises."""
    report, began, chance = Report(), perf_counter(), random.Random(seed)
    while report.kills < kills:
        wanted = min(_KILLS_PER_LOG, kills - report.kills)
        settings = {"listen": f"127.0.0.1:{free_port()}"}
        async with Lab(subprocess=True, settings=settings, **lab_options) as lab:
            await _one_log(lab, wanted, chance, report)
    report.seconds = perf_counter() - began
    return report


async def _one_log(lab: Lab, kills: int, chance: random.Random, report: Report) -> None:
    promises = Promises()
    audit = Audit(lab, promises)
    load = Load(lab, promises, chance.randrange(2**32))
    load.start()
    try:
        for _ in range(kills):
            if chance.random() < _EARLY:
                await _kill_early(lab, chance)
                report.early += 1
            else:
                await _kill_under_load(lab, promises, chance)
            report.kills += 1
            await lab.start()
            await audit.run()
            report.audits += 1
            for error in load.failed():
                raise error
    except BaseException:
        await load.abandon()
        raise
    await load.stop()
    report.add(await audit.run())
    report.audits += 1


async def _kill_under_load(lab: Lab, promises: Promises, chance: random.Random) -> None:
    await promises.until(len(promises.acknowledged) + chance.randrange(_MOST_PROMISES))
    await asyncio.sleep(chance.random() * _MOST_EXTRA)  # not a wait: the moment is random on purpose
    await lab.kill()


async def _kill_early(lab: Lab, chance: random.Random) -> None:
    """Kills a ledger that is starting, anywhere between its first line of code and its first answer."""
    await lab.kill()
    starting = asyncio.ensure_future(lab.start())
    await asyncio.wait({starting}, timeout=0.3 + chance.random())
    if lab.running:
        await lab.kill()
    # Where it was not ready yet it ended before, as it should.
    with contextlib.suppress(ServerEndedError):
        await starting


@contextlib.asynccontextmanager
async def _store(kind: str) -> AsyncIterator[dict[str, Any]]:
    """The lab's options for a store."""
    if kind == "sqlite":
        yield {}
        return
    from tests.postgres import cluster  # noqa: PLC0415 - only where it is asked for

    with cluster() as url:
        yield {"store_url": url}


async def _main(kills: int, kind: str, seed: int) -> Report:
    async with _store(kind) as options:
        return await torture(kills, seed=seed, **options)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.torture")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", file=sys.stderr)
    report = asyncio.run(_main(arguments.kills, arguments.store, arguments.seed))
    print(json.dumps({"store": arguments.store, "seed": arguments.seed, **asdict(report)}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
