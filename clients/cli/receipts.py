"""`assay receipt`, `assay explain`, `assay default`, `assay candidate`: what is known, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

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
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.judging import Judged
    from ledger.v1 import receipt_pb2

__all__ = ["candidate", "default", "explain", "receipt"]

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
    yield f"receipt of {document['update']} as of {document['as_of']['size']} entries"
    yield from _before_lines(document["before"])
    yield from _during_lines(document["during"])
    yield from _after_lines(document["after"])
    anomalies = document["anomalies"]
    yield f"anomalies: {len(anomalies)}; entries by suspect keys: {document['suspect_entries']}"
    yield from (f"  index {item['index']}: {item['code']}" for item in anomalies[:_MANY])
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
    yield "after training"
    for made in after["candidates"]:
        yield f"  candidate {made['claim']['manifest_digest']}: {_at(made)}"
    if not after["candidates"]:
        yield "  candidate: MISSING"
    for subject, evaluation in after["evaluations"].items():
        closed = evaluation["closed"]
        parts = len(evaluation["parts"])
        yield f"  {subject} evaluated in {parts} parts, closed: {'MISSING' if closed is None else closed}"
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
    for approval in after["approvals"]:
        claim = approval["claim"]
        withdrawn = ", withdrawn" if approval["withdrawn"] else ""
        yield f"  approval {claim['approval']} for {claim['step']}: {_at(approval)}{withdrawn}"
    for verdict in after["verdicts"]:
        stands = "stands" if verdict["stands"] else verdict["stands_not_because"]
        yield f"  verdict at {verdict['index']}, step {verdict['step']}: {verdict['verdict']}; {stands}"
    for index in after["rolled_back"]:
        yield f"  rolled back at index {index}"


def explain(
    context: typer.Context,
    update: UpdateArgument,
    step: Annotated[
        str | None,
        typer.Option(
            "--step", metavar="canary|default", help="Which step.", show_default="the one before the update"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Why an update may or may not go on: each check, its reasons in words, its counts, the entries it cites.

    The gate judges at the log's present size and writes nothing. HOLD is exit code 1.
    """
    from clients.cli.parse import parse_step
    from clients.cli.show import emit

    session = session_of(context)
    judged = wait_for(_explained(session, update, None if step is None else parse_step(step)))
    emit(judged.document(), as_json, lambda: judged.show(details=True))
    if judged.holds:
        raise typer.Exit(Exit.HOLD)


async def _explained(session: Session, update: str, step: Any) -> Judged:
    from clients.cli.desk import open_desk
    from clients.cli.judging import judge, next_step

    async with open_desk(session, *READERS) as desk:
        chosen = next_step(await desk.summary(update)) if step is None else step
        return await judge(desk, update, chosen)


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
                ("AT RISK", ", ".join(found.at_risk) or None),
            )
        )

    emit(document, as_json, show)


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

    async def ask() -> receipt_pb2.LatestCandidateResponse:
        async with open_desk(session, *READERS, "runner", "trainer") as desk:
            return await desk.receipts.latest_candidate(resource, place)

    found = wait_for(ask())
    document = {
        "resource": resource,
        "scope": scope,
        "update": found.update,
        "manifest_digest": found.manifest_digest.hex(),
        "index": found.index,
        "authority": "none",
    }

    def show() -> None:
        lines(f"{found.manifest_digest.hex()} is a CANDIDATE and has no authority")
        pairs((("update", found.update), ("index", found.index), ("next", f"assay explain {found.update}")))

    emit(document, as_json, show)
