"""`assay status`, `assay updates`, `assay tail`: what runs, what waits, what is being written."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clients.cli.app import READERS, JsonFlag, session_of, wait_for
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.desk import Desk
    from ledger.v1 import options_pb2, receipt_pb2

__all__ = ["status", "tail", "updates"]

_LAST: Final = 20  # entries that `tail` shows without --from


def status(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Whether ledger and gate answer (if not: exit code 7), where each pointer stands, and what waits."""
    from clients.cli.show import emit, lines, pairs, table

    document = wait_for(_status(session_of(context)))

    def show() -> None:
        pairs(
            (
                ("origin", document["origin"]),
                ("ledger", f"{document['ledger']}: {document['ledger_says']}"),
                ("gate", f"{document['gate']}: {document['gate_says']}"),
            )
        )
        if document["pointers"]:
            heads = ("resource", "scope", "approved default", "how", "latest candidate", "AT RISK")
            keys = ("resource", "scope", "default", "origin", "candidate", "at_risk")
            table(heads, [[_short(pointer[key]) for key in keys] for pointer in document["pointers"]])
        if document["updates"] is not None:
            lines(f"{document['updates']} updates, {document['waiting']} waiting (assay updates --waiting)")

    emit(document, as_json, show)
    if not (document["ledger_answers"] and document["gate_answers"]):
        raise typer.Exit(Exit.UNREACHABLE)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)


async def _status(session: Session) -> dict[str, Any]:
    from clients.cli.desk import gate_answers, open_desk
    from ledger.errors import OverloadedError

    async with open_desk(session, *READERS) as desk:
        document: dict[str, Any] = {
            "origin": desk.identity.trust.origin,
            "ledger": desk.identity.target,
            "gate": desk.gate_target,
            "gate_answers": await gate_answers(desk),
            "ledger_answers": False,
            "size": None,
            "root": None,
            "pointers": [],
            "updates": None,
            "waiting": None,
        }
        document["gate_says"] = "serves" if document["gate_answers"] else "UNREACHABLE (assay serve gate)"
        try:
            checkpoint = await desk.ledger.get_checkpoint()
        except OverloadedError as error:
            document["ledger_says"] = f"UNREACHABLE ({error.reason}; assay serve ledger)"
            return document
        summaries = [summary async for summary in desk.receipts.list_updates()]
        defaults = await _defaults(desk, summaries)
        waiting = [summary for summary in summaries if not _is_default(summary, defaults)]
        return document | {
            "ledger_answers": True,
            "ledger_says": f"serves {checkpoint.size} entries, root {checkpoint.root.hex()}",
            "size": checkpoint.size,
            "root": checkpoint.root.hex(),
            "pointers": [await _pointer(desk, key, found) for key, found in defaults.items()],
            "updates": len(summaries),
            "waiting": len(waiting),
        }


@dataclass(frozen=True, slots=True)
class _Key:
    """A pointer's place."""

    resource: str
    workflow: str
    segment: str

    @property
    def scope(self) -> options_pb2.Scope:
        """As a message."""
        from ledger.v1 import options_pb2

        return options_pb2.Scope(workflow=self.workflow, segment=self.segment)

    @classmethod
    def of(cls, summary: receipt_pb2.UpdateSummary) -> _Key:
        """The pointer that an update wants to move."""
        return cls(summary.resource, summary.scope.workflow, summary.scope.segment)


_Defaults = dict[_Key, "receipt_pb2.ResolveDefaultResponse | None"]


async def _defaults(desk: Desk, summaries: list[receipt_pb2.UpdateSummary]) -> _Defaults:
    """The default of every pointer that an update names; None where there is none."""
    from ledger.errors import NotFoundError

    found: _Defaults = {}
    for key in dict.fromkeys(_Key.of(summary) for summary in summaries if summary.resource):
        try:
            found[key] = await desk.receipts.resolve_default(key.resource, key.scope)
        except NotFoundError:
            found[key] = None
    return found


def _is_default(summary: receipt_pb2.UpdateSummary, defaults: _Defaults) -> bool:
    now = defaults.get(_Key.of(summary))
    return (
        now is not None
        and summary.HasField("candidate_digest")
        and now.manifest_digest == summary.candidate_digest
    )


async def _pointer(desk: Desk, key: _Key, found: receipt_pb2.ResolveDefaultResponse | None) -> dict[str, Any]:
    from clients.cli.receipts import origin_of
    from ledger.errors import NotFoundError

    try:
        latest = (await desk.receipts.latest_candidate(key.resource, key.scope)).manifest_digest.hex()
    except NotFoundError:
        latest = None
    return {
        "resource": key.resource,
        "scope": f"{key.workflow}/{key.segment}",
        "default": None if found is None else found.manifest_digest.hex(),
        "origin": None if found is None else origin_of(found),
        "candidate": latest,
        "at_risk": [] if found is None else list(found.at_risk),
    }


def updates(
    context: typer.Context,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only those that are not the default, and what each waits for.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """The updates of this log, oldest first; with --waiting what each of them waits for."""
    from clients.cli.show import emit, lines, table

    rows = wait_for(_updates(session_of(context), waiting))

    def show() -> None:
        if not rows:
            lines("no update is waiting" if waiting else "no update yet")
            return
        heads = ("update", "resource", "scope", "last verdict", "waits for" if waiting else "stands")
        keys = ("update", "resource", "scope", "verdict", "waits_for" if waiting else "stands")
        table(heads, [[_short(row[key]) for key in keys] for row in rows])

    emit({"updates": rows}, as_json, show)


async def _updates(session: Session, waiting: bool) -> list[dict[str, Any]]:
    from clients.cli.desk import open_desk
    from gate.judge import STEPS
    from gate.report import verdict_name

    rows: list[dict[str, Any]] = []
    async with open_desk(session, *READERS) as desk:
        summaries = [summary async for summary in desk.receipts.list_updates()]
        defaults = await _defaults(desk, summaries)
        for summary in summaries:
            done = _is_default(summary, defaults)
            if waiting and done:
                continue
            judged = summary.HasField("verdict")
            row: dict[str, Any] = {
                "update": summary.update,
                "resource": summary.resource or None,
                "scope": f"{summary.scope.workflow}/{summary.scope.segment}" if summary.resource else None,
                "proposed_by": summary.proposed_by or None,
                "candidate": summary.candidate_digest.hex() or None,
                "verdict": f"{verdict_name(summary.verdict)} ({STEPS[summary.verdict_step]})"
                if judged
                else None,
                "verdict_index": summary.verdict_index if judged else None,
                "stands": summary.stands,
                "is_default": done,
            }
            if waiting:
                row["waits_for"] = await _waits_for(desk, summary)
            rows.append(row)
    return rows


async def _waits_for(desk: Desk, summary: receipt_pb2.UpdateSummary) -> list[str]:
    """What an update lacks, in words; the gate is asked once there is a candidate."""
    from clients.cli.judging import next_step
    from gate.judge import STEPS
    from gate.report import state_name
    from ledger.v1 import gate_pb2

    if not summary.resource:
        return ["a proposal (the trainer's)"]
    if not summary.frozen:
        return [f"its freeze (assay update freeze {summary.update})"]
    if not summary.training_ended:
        return ["the end of its training"]
    if not summary.HasField("candidate_digest"):
        return ["a candidate (the trainer's)"]
    step = next_step(summary)
    verdict = (await desk.gate.evaluate(summary.update, step)).verdict
    if verdict.verdict != gate_pb2.VERDICT_HOLD:
        recorded = summary.stands and summary.verdict == gate_pb2.VERDICT_PROMOTE_TO_DEFAULT
        act = (
            f"promote {summary.update}"
            if recorded
            else f"evaluate {summary.update} --step {STEPS[step]} --record"
        )
        return [f"nothing but a command (assay {act})"]
    return [
        f"{STEPS[step]}: {finding.check} {state_name(finding.state)} {' '.join(finding.reasons)}"
        for finding in verdict.findings
        if finding.state != gate_pb2.STATE_PASS
    ]


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


def _line(shown: dict[str, Any]) -> str:
    from clients.cli.show import moment

    claim = shown["claim"] or {}
    about = " ".join(f"{key}={claim[key]}" for key in _ABOUT if key in claim)
    when = moment(shown["recorded_at"])
    return f"{shown['index']:>8}  {when}  {shown['author']:<12}  {shown['type']}  {about}".rstrip()
