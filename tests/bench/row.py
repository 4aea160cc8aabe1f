"""One figure beside its ceiling and what the design asks of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "Skipped", "cores", "processor_seconds"]


class Skipped(Exception):  # noqa: N818 - no fault: the bench has nothing to measure here
    """The machine lacks what a bench needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of one run. `ceiling` is of the same run and in the figure's unit; None: there is none."""

    what: str
    figure: float
    unit: str
    ceiling: float | None = None
    of: str = ""  # what the ceiling is
    least: float | None = None  # the figure that is wanted, or more
    most: float | None = None  # or less

    @property
    def met(self) -> bool | None:
        """None where nothing is wanted."""
        if self.least is None and self.most is None:
            return None
        return (self.least is None or self.figure >= self.least) and (
            self.most is None or self.figure <= self.most
        )

    def document(self) -> dict[str, Any]:
        """As JSON; what there is none of is absent."""
        row = {
            "what": self.what,
            "figure": self.figure,
            "unit": self.unit,
            "ceiling": self.ceiling,
            "ceiling_of": self.of or None,
            "ratio": None if self.ceiling is None else self.figure / self.ceiling,
            "at_least": self.least,
            "at_most": self.most,
            "met": self.met,
        }
        return {name: value for name, value in row.items() if value is not None}

    def cells(self) -> tuple[str, ...]:
        """As text: what, figure, unit, ceiling, ratio, wanted, met."""
        wanted = "" if self.least is None else f">= {_number(self.least)}"
        if self.most is not None:
            wanted = f"<= {_number(self.most)}"
        ceiling = "" if self.ceiling is None else f"{_number(self.ceiling)} ({self.of})"
        ratio = "" if self.ceiling is None else f"{self.figure / self.ceiling:.2f}"
        met = "" if self.met is None else ("yes" if self.met else "NO")
        return self.what, _number(self.figure), self.unit, ceiling, ratio, wanted, met


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def processor_seconds(pid: int) -> float:
    """Processor time of a running process, of threads that ended as well; in ticks, mostly of 10 ms."""
    # The second field, a name in parentheses, may hold anything; user and system time are the 14th and 15th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cores() -> int:
    """Of the machine."""
    return os.cpu_count() or 1
