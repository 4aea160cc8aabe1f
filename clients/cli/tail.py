"""`assay tail`: entries as they come, each proven to be in the log before it is printed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clients.cli.app import READERS, JsonFlag, session_of, wait_for

if TYPE_CHECKING:
    from clients.cli.app import Session

__all__ = ["tail"]

_LAST: Final = 20  # entries that `tail` shows without --from


def tail(
    context: typer.Context,
    start: Annotated[
        int | None,
        typer.Option("--from", min=0, help="First index.", show_default="the last 20 entries"),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as entries come.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print entries: index, time, author, type, what it is about. With --json one object a line.

    Each entry is proven to be in the log before it is printed.
    """
    wait_for(_tail(session_of(context), start, follow, as_json))


async def _tail(session: Session, start: int | None, follow: bool, as_json: bool) -> None:
    from clients.cli.desk import open_desk
    from clients.cli.show import clean
    from ledger.entry import decode_entry
    from ledger.errors import FormatError

    async with open_desk(session, *READERS) as desk:
        size = (await desk.ledger.get_checkpoint()).size
        first = max(size - _LAST, 0) if start is None else start
        if first > size or (first == size and not follow):
            raise FormatError("OUT_OF_RANGE", f"expected --from below {size}, the present size, got {first}")
        # Only a batch's first entry names its author.
        opening = first
        if first < size:
            async for index, data in desk.ledger.read(first, first + 1):
                opening = index - decode_entry(data).offset
        source = desk.ledger.follow(opening) if follow else desk.ledger.read(opening, size)
        author = ""
        async for index, data in source:
            entry = decode_entry(data)
            author = author if entry.opening is None else entry.opening.name
            if index >= first:
                shown = _entry(index, entry.recorded_at, author, entry.event)
                line = json.dumps(shown) if as_json else clean(_line(shown))
                sys.stdout.write(line + "\n")
                sys.stdout.flush()


def _entry(index: int, recorded_at: int, author: str, data: bytes) -> dict[str, Any]:
    from gate.report import digests_as_hex
    from ledger.fold import read_event

    event, name = read_event(data)
    return {
        "index": index,
        "recorded_at": recorded_at,
        "author": author,
        "type": name or "of a newer release",
        "claim": digests_as_hex(getattr(event, name)) if name else None,
    }


_ABOUT: Final = (
    "update",
    "rollout",
    "attempt",
    "family",
    "step",
    "verdict",
    "resource",
    "window",
    "task",
    "outcome",
    "status",
    "digest",
    "vkey",
)


# How an enum's values begin in the protos.
_ENUMS: Final = {
    "step": ("STEP_",),
    "verdict": ("VERDICT_",),
    "status": ("ROLLOUT_STATUS_",),
    "outcome": ("ATTEMPT_OUTCOME_", "TASK_OUTCOME_"),
}


def _line(shown: dict[str, Any]) -> str:
    from clients.cli.show import moment

    claim = shown["claim"] or {}
    about = " ".join(f"{key}={_word(key, claim[key])}" for key in _ABOUT if key in claim)
    when = moment(shown["recorded_at"])
    return f"{shown['index']:>8}  {when}  {shown['author']:<12}  {shown['type']}  {about}".rstrip()


def _word(key: str, value: Any) -> str:
    """A value as people say it: `canary` for STEP_CANARY, `HOLD` for VERDICT_HOLD."""
    said = str(value)
    for start in _ENUMS.get(key, ()):
        said = said.removeprefix(start)
    return said.lower() if key == "step" else said
