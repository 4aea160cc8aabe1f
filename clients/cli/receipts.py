"""`assay receipt`, `assay default`, `assay candidate`: what is known of an update, and the two pointers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from clients.cli.app import (
    READERS,
    JsonFlag,
    ResourceArgument,
    ScopeArgument,
    UpdateArgument,
    session_of,
    wait_for,
)

if TYPE_CHECKING:
    from ledger.v1 import receipt_pb2

__all__ = ["at_risk_of", "candidate", "default", "origin_of", "receipt"]

_MANY: Final = 10  # rollouts and anomalies shown to people; JSON has them all


def receipt(context: typer.Context, update: UpdateArgument, as_json: JsonFlag = False) -> None:
    """Everything that counts of an update: before, during and after training, and what is odd.

    Beside it stands what each kind of record does not show.
    """
    from clients.cli.desk import open_desk
    from clients.cli.show import emit, lines

    session = session_of(context)

    async def ask() -> dict[str, Any]:
        async with open_desk(session, *READERS) as desk:
            return await desk.receipts.get_update(update)

    document = wait_for(ask())
    emit(document, as_json, lambda: lines(*_receipt_lines(document)))


def _receipt_lines(document: Mapping[str, Any]) -> Iterator[str]:
    from clients.cli.oddities import erased_lines, words_of

    yield f"receipt of {document['update']} as of {document['as_of']['size']} entries"
    yield from _before_lines(document["before"])
    yield from _during_lines(document["during"])
    yield from erased_lines(document)
    yield from _after_lines(document["after"])
    anomalies = document["anomalies"]
    yield f"anomalies, which do not count: {len(anomalies)}"
    yield f"entries by suspect keys, which do not count: {document['suspect_entries']}"
    yield from (f"  index {item['index']}: {words_of(item['code'])}" for item in anomalies[:_MANY])
    if (more := len(anomalies) - _MANY) > 0:
        yield f"  … {more} more (--json)"
    yield "not shown by"
    yield from (f"  {kind.replace('_', ' ')}: {what}" for kind, what in document["not_shown"].items())


def _at(fact: Mapping[str, Any] | None) -> str:
    return "MISSING" if fact is None else f"index {fact['index']} by {fact['by']} for {fact['controller']}"


def _before_lines(before: Mapping[str, Any]) -> Iterator[str]:
    yield "before training"
    yield f"  proposed: {_at(before['proposed'])}"
    for number, freeze in enumerate(before["freezes"], start=1):
        yield f"  freeze {number}: {_at(freeze)}"
    if not before["freezes"]:
        yield "  freeze: MISSING"
    for pause in before["pauses"]:
        yield f"  paused at index {pause['paused']}: {pause['cause']}, resumed: {pause['resumed'] or 'no'}"


def _during_lines(during: Mapping[str, Any]) -> Iterator[str]:
    standing = ", ".join(f"{count} {name}" for name, count in during["rollouts_by_standing"].items())
    covered = during["completed_with_all_spans"]
    yield "during training"
    yield f"  started: {_at(during['started'])}"
    yield f"  ended (data cut-off): {_at(during['ended'])}"
    yield f"  rollouts: {during['rollouts']} ({standing or 'none'}), rewards: {during['rewards']}"
    yield f"  completed with all declared spans: {'MISSING' if covered is None else covered}"
    for family, count in during["rollouts_lacking_family"].items():
        yield f"  lacking {family}: {count} rollouts"
    for rollout in during["notable_rollouts"][:_MANY]:
        attempts = ", ".join(f"{a['number']} {a['outcome'] or 'MISSING'}" for a in rollout["attempts"])
        yield f"  {rollout['rollout']}: {rollout['standing']}; attempts: {attempts or 'none'}"
    if (more := during["notable_rollouts_in_all"] - _MANY) > 0:
        yield f"  and {more} more with retries, gaps or conflicts"


def _after_lines(after: Mapping[str, Any]) -> Iterator[str]:
    from clients.cli.show import counted

    yield "after training"
    for made in after["candidates"]:
        yield f"  candidate {made['claim']['manifest_digest']}: {_at(made)}"
    if not after["candidates"]:
        yield "  candidate: MISSING"
    for subject, evaluation in after["evaluations"].items():
        closed = evaluation["closed"]
        parts = counted(len(evaluation["parts"]), "part")
        yield f"  {subject} evaluated in {parts}, closed: {'MISSING' if closed is None else closed}"
    yield f"  gain over the parent: {after['gain'] or 'MISSING'}"
    for window in after["windows"]:
        kind = "LIVE" if window["live"] else "REHEARSAL"
        tasks = ", ".join(f"{count} {name}" for name, count in window["tasks_by_outcome"].items())
        ended, way = window["ended"], window["rehearsal"]
        yield (
            f"  window {window['started']['claim']['window']} ({kind}): {tasks or 'no task'}; "
            f"closed: {'MISSING' if ended is None else ended['index']}; "
            f"way back: {'MISSING' if way is None else way['index']}"
        )
    yield from _decision_lines(after)
    for index in after["rolled_back"]:
        yield f"  rolled back at index {index}"


def _decision_lines(after: Mapping[str, Any]) -> Iterator[str]:
    """Approvals and verdicts: who answers for what, and what still stands."""
    from clients.cli.desk import now
    from clients.cli.judging import lapsed, step_word
    from clients.cli.show import moment, with_moments

    at = now()

    for approval in after["approvals"]:
        claim = approval["claim"]
        until = f"until {moment(claim['expires_at'])}"
        withdrawn = ", withdrawn" if approval["withdrawn"] else ""
        step = step_word(claim["step"])
        yield f"  approval {claim['approval']} for {step}: {_at(approval)}, {until}{withdrawn}"
    for verdict in after["verdicts"]:
        line = f"  verdict at {verdict['index']}, step {verdict['step']}: {verdict['verdict']}"
        if verdict["void"] is not None:
            line += f"; void: {with_moments(verdict['void'])}"
        elif verdict["verdict"] != "HOLD":  # a HOLD moves nothing, so it has nothing to stand for
            expired, fallen = lapsed(verdict, at), verdict["stands_not_because"]
            if expired:
                line += f"; {expired}; to act on it now, approve again"
            if fallen is not None:
                line += f"; {with_moments(fallen)}"
            elif not expired:
                line += "; stands"
        yield line


def default(
    context: typer.Context, resource: ResourceArgument, scope: ScopeArgument, as_json: JsonFlag = False
) -> None:
    """The approved default of a resource in a scope: its manifest digest and how it came to be.

    Never a candidate: where there is no default the answer is NOT FOUND, exit code 6.
    """
    from clients.cli.desk import open_desk
    from clients.cli.parse import parse_scope
    from clients.cli.show import emit, lines, pairs

    session, place = session_of(context), parse_scope(scope)

    async def ask() -> receipt_pb2.ResolveDefaultResponse:
        async with open_desk(session, *READERS, "runner", "trainer") as desk:
            return await desk.receipts.resolve_default(resource, place)

    found = wait_for(ask())
    origin = origin_of(found)
    document = {
        "resource": resource,
        "scope": scope,
        "manifest_digest": found.manifest_digest.hex(),
        "origin": origin,
        "index": found.index,
        "moved_index": found.moved_index,
        "at_risk": list(found.at_risk),
    }

    def show() -> None:
        lines(found.manifest_digest.hex())
        pairs(
            (
                ("how", origin),
                ("rests on", f"index {found.index}, proven to be in the log"),
                ("moved last", f"index {found.moved_index}"),
                ("AT RISK", at_risk_of(found.at_risk, resource, scope)),
            )
        )

    emit(document, as_json, show)


def at_risk_of(codes: Sequence[str], resource: str, scope: str) -> str | None:
    """What a promotion rested on and no longer holds, and what can be done; None where it holds."""
    if not codes:
        return None
    return f"{', '.join(codes)}: serves all the same until assay rollback {resource} {scope} --reason …"


def origin_of(found: receipt_pb2.ResolveDefaultResponse) -> str:
    """How a default came to be, in words."""
    from ledger.v1 import receipt_pb2

    baseline = found.origin == receipt_pb2.DEFAULT_ORIGIN_BASELINE
    return "BASELINE (ungated)" if baseline else "promoted by the gate"


def candidate(
    context: typer.Context, resource: ResourceArgument, scope: ScopeArgument, as_json: JsonFlag = False
) -> None:
    """The latest candidate of a resource in a scope. It has no authority; nothing should serve it by this."""
    from clients.cli.desk import open_desk
    from clients.cli.parse import parse_scope
    from clients.cli.show import emit, lines, pairs

    session, place = session_of(context), parse_scope(scope)

    async def ask() -> tuple[receipt_pb2.LatestCandidateResponse, int | None]:
        from ledger.errors import NotFoundError

        async with open_desk(session, *READERS, "runner", "trainer") as desk:
            found = await desk.receipts.latest_candidate(resource, place)
            try:
                now = await desk.receipts.resolve_default(resource, place)
            except NotFoundError:
                return found, None
            return found, now.index if now.manifest_digest == found.manifest_digest else None

    found, default_index = wait_for(ask())
    document = {
        "resource": resource,
        "scope": scope,
        "update": found.update,
        "manifest_digest": found.manifest_digest.hex(),
        "index": found.index,
        "authority": "none",
        "is_default": default_index is not None,
    }
    also = None if default_index is None else f"the approved default, by the entry at index {default_index}"

    def show() -> None:
        lines(found.manifest_digest.hex(), "is a CANDIDATE and as such has no authority")
        pairs(
            (
                ("update", found.update),
                ("index", found.index),
                ("also", also),
                ("next", f"assay explain {found.update}"),
            )
        )

    emit(document, as_json, show)
