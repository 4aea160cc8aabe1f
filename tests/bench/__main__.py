"""`python -m tests.bench [NAME …] [--seconds S] [--entries N] [--json]`: speed beside the machine's ceilings.

Each module here with a `rows(seconds, entries)` is a bench by its name; it gives rows: a figure, the ceiling
that was measured in the same run, what is wanted, and whether that is met. The exit code says nothing of
that: machines are noisy.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import Any, Final

from tests.bench.row import Row, Skipped

_BENCHES: Final = ("append", "postgres", "stores", "verify", "memory", "start")
_SECONDS: Final = 30.0
_ENTRIES: Final = 1_000_000
_HEAD: Final = ("what", "figure", "unit", "ceiling in the same run", "ratio", "wanted", "met")


def _print(rows: list[Row]) -> None:
    table = [_HEAD, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(_BENCHES)}; all where none is given"
    )
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="about, for each bench")
    parser.add_argument("--entries", type=int, default=_ENTRIES, help="of the large logs (memory, start)")
    parser.add_argument("--json", action="store_true", help="one JSON object to stdout")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(_BENCHES)
    if unknown:
        parser.error(f"expected names of {', '.join(_BENCHES)}, got {', '.join(sorted(unknown))}")
    document: dict[str, Any] = {}
    for name in arguments.names or _BENCHES:
        load = os.getloadavg()[0]
        bench = importlib.import_module(f"tests.bench.{name}")
        try:
            rows: list[Row] = bench.rows(arguments.seconds, arguments.entries)
        except Skipped as why:
            document[name] = {"skipped": str(why)}
            if not arguments.json:
                print(f"\n{name}: skipped: {why}")
            continue
        document[name] = {"load_before": load, "rows": [row.document() for row in rows]}
        if not arguments.json:
            print(f"\n{name} (load before it: {load:.1f} on {os.cpu_count()} cores)")
            _print(rows)
    if arguments.json:
        print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
