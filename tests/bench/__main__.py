"""`python -m tests.bench [NAME …] [--seconds S] [--json]`: speed beside this machine's own ceilings.

Each module here with a `run(seconds)` is a bench by its name; it returns name -> figure. Figures are rates
per second, ratios or milliseconds, as their names say. Nothing passes or fails: machines are noisy.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Final

_BENCHES: Final = ("append", "verify")
_SECONDS: Final = 20.0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(_BENCHES)}; all where none is given"
    )
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="about, for each bench")
    parser.add_argument("--json", action="store_true", help="one JSON object to stdout")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(_BENCHES)
    if unknown:
        parser.error(f"expected names of {', '.join(_BENCHES)}, got {', '.join(sorted(unknown))}")
    figures: dict[str, dict[str, float]] = {}
    for name in arguments.names or _BENCHES:
        figures[name] = importlib.import_module(f"tests.bench.{name}").run(arguments.seconds)
        if not arguments.json:
            print(name)
            for what, figure in figures[name].items():
                print(f"  {what:<70} {figure:>14,.2f}")
    if arguments.json:
        print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
