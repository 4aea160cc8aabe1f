"""Fuzz one parser for long: `python -m tests.fuzz NAME --seconds N`, or `all` for each in turn.

With the package atheris the input is guided by coverage; without it valid samples are changed at random, from
`--seed`. What is a bug ends the run, and the input lies in `--crash`. An input that takes longer than
`--limit` seconds is one, and so is a process that grew by more than 512 MiB.
"""

from __future__ import annotations

import argparse
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Final

try:
    import atheris
except ImportError:  # the package is optional, and has no build for some machines
    from tests.fuzz.targets import TARGETS, run_one
else:
    # What is imported here is compiled anew, so that its branches are seen.
    with atheris.instrument_imports(include=["ledger", "gate", "clients"]):
        from tests.fuzz.targets import TARGETS, run_one
from tests.fuzz.mutate import mutated

_MOST_GROWN: Final = 512 * 1024  # KiB


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise AssertionError("expected an answer within the limit, got none")


def _guarded(name: str, limit: float, crash: Path) -> Callable[[bytes], bool]:
    target = TARGETS[name]
    signal.signal(signal.SIGALRM, _too_slow)
    before = _peak()

    def one(data: bytes) -> bool:
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            accepted = run_one(target, data)
            if _peak() - before > _MOST_GROWN:
                raise AssertionError("expected bounded memory, got a process that grew")
        except BaseException:
            crash.write_bytes(data)
            print(f"{name}: {len(data)} bytes in {crash}", file=sys.stderr)
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return accepted

    return one


def _at_random(name: str, seconds: float, one: Callable[[bytes], bool], seed: int) -> None:
    chance, samples = Random(seed), list(TARGETS[name].samples())
    for sample in samples:
        one(sample)
    end, runs, accepted = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        accepted += one(mutated(chance, samples))
        runs += 1
    print(f"{name}: {runs} inputs, {accepted} of them accepted, peak {_peak() // 1024} MiB", flush=True)


def _guided(name: str, seconds: float, one: Callable[[bytes], bool], seed: int) -> None:
    samples = list(TARGETS[name].samples())

    def mutate(data: bytes, most: int, number: int) -> bytes:
        return mutated(Random(number), [data, *samples])[:most]

    flags = [sys.argv[0], f"-max_total_time={seconds:.0f}", f"-seed={seed}", "-max_len=65536", "-verbosity=0"]
    flags += ["-print_final_stats=1", "-rss_limit_mb=4096"]
    atheris.Setup(flags, lambda data: one(bytes(data)) and None, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("name", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--crash", type=Path, default=Path("crash.bin"))
    given = parser.parse_args()
    if given.name == "all":
        rest = ["--seconds", str(given.seconds), "--seed", str(given.seed), "--limit", str(given.limit)]
        codes = [subprocess.call([sys.executable, "-m", "tests.fuzz", name, *rest]) for name in TARGETS]
        return int(any(codes))
    one = _guarded(given.name, given.limit, given.crash)
    run = _guided if "atheris" in sys.modules else _at_random
    run(given.name, given.seconds, one, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
