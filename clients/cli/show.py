"""How answers look: lines and tables for people, JSON for programs.

Rules:
1. Colour, progress bars and fitted widths on terminals only.
2. What came out of a log is other people's text: control characters are shown, never sent to the terminal.
3. JSON holds everything that the text shows, digests in hex, times in microseconds since 1970.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["clean", "console", "emit", "lines", "moment", "pairs", "progress", "stages", "table"]

_PIPE_WIDTH: Final = 200  # columns, where nobody's terminal sets a width
_STYLES: Final = {
    "PASS": "green",
    "FAIL": "red",
    "ERROR": "red",
    "STALE": "yellow",
    "MISSING": "yellow",
    "HOLD": "yellow",
    "VERIFIED": "green",
    "REPLAYED": "green",
}


def clean(text: object) -> str:
    """`text` with control characters spelled out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def moment(microseconds: int) -> str:
    """A time in UTC to the second, from microseconds since 1970."""
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def emit(document: Mapping[str, Any], as_json: bool, show: Callable[[], None]) -> None:
    """One answer: `document` as JSON, or whatever `show` prints."""
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True) + "\n")
        sys.stdout.flush()
    else:
        show()


def console() -> Any:
    """A console that fits the terminal, or a wide one where the answer goes elsewhere."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def lines(*texts: object) -> None:
    """Lines as they are; the first word is coloured where it is a state or a verdict."""
    from rich.text import Text

    drawn = console()
    for text in texts:
        shown = Text(clean(text))
        first = clean(text).partition(" ")[0]
        shown.stylize(_STYLES.get(first.rstrip(":"), ""), 0, len(first))
        drawn.print(shown, soft_wrap=True)


def pairs(items: Iterable[tuple[str, object]]) -> None:
    """Names and values in two columns; a value that is None is left out."""
    shown = [(name, value) for name, value in items if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    lines(*(f"  {name:<{width}}  {clean(value)}" for name, value in shown))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table without rules between rows; the column of a state is coloured."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        cells = [Text(clean(cell), style=_STYLES.get(str(cell), "")) for cell in row]
        drawn.add_row(*cells)
    console().print(drawn)


def _ignore(_: int) -> None:
    """Nobody watches."""


def _ignore_stage(_name: str, _so_far: int, _total: int) -> None:
    """Nobody watches."""


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, on a terminal only; call what it gives with each step's size."""
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda step: bar.advance(task, step)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage that is told (name, so far, in all), as `progress`'s."""
    if not sys.stderr.isatty():
        yield _ignore_stage
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    tasks: dict[str, Any] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:

        def tell(name: str, so_far: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=so_far, total=total)

        yield tell
