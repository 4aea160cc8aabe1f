"""`assay status`, `assay updates`: what runs, what is missing, where the pointers stand, what waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clients.cli.app import READERS, JsonFlag, session_of, wait_for
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.desk import Desk
    from ledger.v1 import options_pb2, receipt_pb2

__all__ = ["status", "updates"]

_READ: Final = 20_000  # entries that `status` reads unasked, to say what no update could be frozen without
_UNREAD: Final = {"missing": None, "missing_untold": "not looked at in a log of this length (--frame does)"}


def status(
    context: typer.Context,
    frame: Annotated[
        bool,
        typer.Option("--frame", help="Read a long log too, to say what a freeze would find missing."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Whether ledger and gate answer (if not: exit code 7), what is missing, the pointers, what waits."""
    from clients.cli.show import emit

    document = wait_for(_status(session_of(context), frame))
    emit(document, as_json, lambda: _show_status(document))
    if not (document["ledger_answers"] and document["gate_answers"]):
        raise typer.Exit(Exit.UNREACHABLE)


def _show_status(document: Mapping[str, Any]) -> None:
    from clients.cli.receipts import at_risk_of
    from clients.cli.show import counted, lines, pairs

    pairs(
        (
            ("origin", document["origin"]),
            ("ledger", f"{document['ledger']}: {document['ledger_says']}"),
            ("root", document["root"]),
            ("gate", f"{document['gate']}: {document['gate_says']}"),
        )
    )
    for pointer in document["pointers"]:
        lines("", f"{pointer['resource']} in {pointer['scope']}")
        pairs(
            (
                ("approved default", pointer["default"] or "none"),
                ("how", pointer["origin"]),
                ("latest candidate", pointer["candidate"] or "none"),
                ("AT RISK", at_risk_of(pointer["at_risk"], pointer["resource"], pointer["scope"])),
                ("asked for", _asked_for(pointer)),
            )
        )
    if document["missing"] is not None:
        _show_missing(document["missing"])
        for scope in document["ready"]:
            lines(
                "", f"nothing is missing in {scope}; next: assay update propose (assay update propose --help)"
            )
    elif document["ledger_answers"]:
        lines("", f"what is not published yet: {document['missing_untold']}")
    if document["updates"] is not None:
        waiting = f"{document['waiting']} waiting (assay updates --waiting)"
        lines("", f"{counted(document['updates'], 'update')}, {waiting}")


def _asked_for(pointer: Mapping[str, Any]) -> str | None:
    """The rollback that was asked for and not carried out."""
    if not pointer["open_rollback_requests"]:
        return None
    at = ", ".join(map(str, pointer["open_rollback_requests"]))
    return (
        f"a rollback at index {at}, not carried out (assay rollback {pointer['resource']} {pointer['scope']} "
        "--reason … does)"
    )


def _show_missing(missing: Mapping[str, Mapping[str, str]]) -> None:
    from clients.cli.show import lines, pairs

    if not missing:
        lines("", "nothing is published yet: an operator publishes the frame (assay publish --help)")
    for scope, pins in missing.items():
        if pins:
            lines("", f"missing in {scope}: nothing can be frozen there before an operator says")
            pairs((what, f"assay {command}") for what, command in pins.items())


async def _status(session: Session, frame: bool) -> dict[str, Any]:
    from clients.cli.desk import first_checkpoint, gate_answers, open_desk
    from clients.cli.waiting import ended_by_rollback
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
            **_UNREAD,
            "ready": [],
            "updates": None,
            "waiting": None,
        }
        document["gate_says"] = "serves" if document["gate_answers"] else "UNREACHABLE (assay serve gate)"
        try:
            checkpoint = await first_checkpoint(desk)
        except OverloadedError as error:
            document["ledger_says"] = f"UNREACHABLE ({error.reason}; assay serve ledger)"
            return document
        summaries = [summary async for summary in desk.receipts.list_updates()]
        known = await _published(desk) if frame or checkpoint.size <= _READ else _Published(_UNREAD, [])
        defaults = await _defaults(desk, summaries, known.keys)
        waiting = [
            summary
            for summary in summaries
            if not _is_default(summary, defaults) and not (await ended_by_rollback(desk, summary))[1]
        ]
        proposed = {_Key.of(summary).scope_name for summary in summaries}
        missing = known.document["missing"] or {}
        return document | {
            "ledger_answers": True,
            "ledger_says": f"serves {checkpoint.size} entries",
            "size": checkpoint.size,
            "root": checkpoint.root.hex(),
            "pointers": [await _pointer(desk, key, found) for key, found in defaults.items()],
            "updates": len(summaries),
            "waiting": len(waiting),
            **known.document,
            "ready": [scope for scope, pins in missing.items() if not pins and scope not in proposed],
        }


@dataclass(frozen=True, slots=True)
class _Published:
    """`document["missing"]`: scope -> what a freeze would find missing there, with the command for it.

    Where this release cannot tell, `missing` is None and `missing_untold` says why. `keys`: every pointer.
    """

    document: Mapping[str, Any]
    keys: Sequence[_Key]


async def _published(desk: Desk) -> _Published:
    from clients.cli.frame import missing_pins
    from clients.cli.whole import fold_log
    from ledger.errors import CannotTellError

    try:
        log = await fold_log(desk, "read what is published")
    except CannotTellError as error:
        return _Published({"missing": None, "missing_untold": str(error)}, [])
    missing = {f"{flow}/{part}": missing_pins(log.receipts, flow, part) for flow, part in log.scopes}
    keys = [_Key(*key) for key in log.receipts.pointers.all()]
    return _Published({"missing": missing, "missing_untold": None}, keys)


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

    @property
    def scope_name(self) -> str:
        """As people write it."""
        return f"{self.workflow}/{self.segment}"

    @classmethod
    def of(cls, summary: receipt_pb2.UpdateSummary) -> _Key:
        """The pointer that an update wants to move."""
        return cls(summary.resource, summary.scope.workflow, summary.scope.segment)


_Defaults = dict[_Key, "receipt_pb2.ResolveDefaultResponse | None"]


async def _defaults(
    desk: Desk, summaries: list[receipt_pb2.UpdateSummary], known: Sequence[_Key] = ()
) -> _Defaults:
    """The default of every pointer that an update names, and of those `known`; None where there is none."""
    from ledger.errors import NotFoundError

    found: _Defaults = {}
    named = [_Key.of(summary) for summary in summaries if summary.resource]
    for key in dict.fromkeys([*named, *known]):
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
        "open_rollback_requests": [] if found is None else list(found.open_rollback_requests),
    }


def updates(
    context: typer.Context,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only those that are not the default, and what each waits for.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """The updates of this log, oldest first; with --waiting what each of them waits for.

    One whose promotion was rolled back waits for nothing until somebody takes it up again.
    """
    from clients.cli.show import emit, lines

    rows = wait_for(_updates(session_of(context), waiting))

    def show() -> None:
        if not rows:
            lines("no update is waiting" if waiting else "no update yet")
        for row in rows:
            _show_update(row)

    emit({"updates": rows}, as_json, show)


def _show_update(row: Mapping[str, Any]) -> None:
    from clients.cli.show import lines, moment, pairs

    where = "" if row["resource"] is None else f": {row['resource']} in {row['scope']}"
    lines(f"{row['update']}{where}")
    stands = f", {'stands' if row['stands'] else 'does not stand'}"
    if row["verdict"] is not None and row["verdict"].startswith("HOLD"):
        stands = ""
    elif row["expired"]:
        stands = f", expired at {moment(row['not_after'])}" + ("" if row["is_default"] else "; approve again")
    pairs(
        (
            ("candidate", row["candidate"]),
            ("last verdict", None if row["verdict"] is None else f"{row['verdict']}{stands}"),
            ("is", "the approved default" if row["is_default"] else None),
            ("was", None if row["rolled_back"] is None else f"rolled back at index {row['rolled_back']}"),
            *(("waits for", lack) for lack in row.get("waits_for", ())),
        )
    )


async def _updates(session: Session, waiting: bool) -> list[dict[str, Any]]:
    from clients.cli.desk import open_desk
    from clients.cli.waiting import Waiting, ended_by_rollback

    rows: list[dict[str, Any]] = []
    async with open_desk(session, *READERS) as desk:
        summaries = [summary async for summary in desk.receipts.list_updates()]
        defaults = await _defaults(desk, summaries)
        lacks = Waiting(desk)
        for summary in summaries:
            done = _is_default(summary, defaults)
            found = defaults.get(_Key.of(summary))
            asked = [] if found is None else list(found.open_rollback_requests)
            rolled_back, over = (None, False) if done else await ended_by_rollback(desk, summary)
            if waiting and (over or (done and not asked)):
                continue
            row = _row(summary) | {"rolled_back": rolled_back, "is_default": done}
            if waiting and done:
                carry = f"assay rollback {row['resource']} {row['scope']} --reason …"
                at = ", ".join(map(str, asked))
                row["waits_for"] = [f"the rollback that was asked for at index {at} ({carry} carries it out)"]
            elif waiting:
                row["waits_for"] = await lacks.of(summary, asked)
            rows.append(row)
    return rows


def _row(summary: receipt_pb2.UpdateSummary) -> dict[str, Any]:
    from clients.cli.desk import now
    from gate.judge import STEPS
    from gate.report import verdict_name

    judged, ends = summary.HasField("verdict"), summary.HasField("not_after")
    return {
        "update": summary.update,
        "resource": summary.resource or None,
        "scope": _Key.of(summary).scope_name if summary.resource else None,
        "proposed_by": summary.proposed_by or None,
        "candidate": summary.candidate_digest.hex() or None,
        "verdict": f"{verdict_name(summary.verdict)} ({STEPS[summary.verdict_step]})" if judged else None,
        "verdict_index": summary.verdict_index if judged else None,
        "stands": summary.stands if judged else None,
        "not_after": summary.not_after if ends else None,
        "expired": ends and summary.not_after < now(),
    }
