"""How answers look: lines and tables for people, JSON for programs.

Rules:
1. Colour, progress bars and fitted widths on terminals only.
2. What came out of a log is other people's text: control characters are shown, never sent to the terminal.
3. JSON holds everything that the text shows, digests in hex, times in microseconds since 1970.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

__all__ = [
    "clean",
    "console",
    "counted",
    "emit",
    "lines",
    "moment",
    "pairs",
    "progress",
    "stages",
    "table",
    "with_moments",
]

_MICROSECONDS: Final = re.compile(r"\b1[0-9]{15}\b")  # a time from 2001 to 2033
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\b.*")
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
    "OK": "green",
    "WRONG": "red",
    "UNKNOWN": "yellow",
}


def clean(text: object) -> str:
    """`text` with control characters spelled out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def moment(microseconds: int) -> str:
    """A time in UTC to the second, from microseconds since 1970."""
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def with_moments(text: str) -> str:
    """`text` with microseconds since 1970 as times."""
    shown = _MICROSECONDS.sub(lambda found: moment(int(found[0])), text)
    return shown if shown == text else shown.replace(" (microseconds since 1970)", "")


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 batch`, `2 batches`; `many` where it is not `one` and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


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
    """Names and values in two columns; a value that is None is left out.

    A digest that the terminal would break stands on a line of its own.
    """
    shown = [(name, clean(value)) for name, value in items if value is not None]
    width, room = max((len(name) for name, _ in shown), default=0), console().width
    for name, value in shown:
        line = f"  {name:<{width}}  {value}"
        if len(line) > room and _DIGEST.fullmatch(value):
            lines(f"  {name}", f"    {value}")
        else:
            lines(line)


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
    """One bar, as `progress`'s, under the name of the stage that was told last: (name, so far, in all)."""
    if not sys.stderr.isatty():
        yield _ignore_stage
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(name: str, so_far: int, total: int) -> None:
            bar.update(task, description=name, completed=so_far, total=total)

        yield tell
