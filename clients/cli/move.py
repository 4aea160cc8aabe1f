"""`assay promote`, `assay rollback`: the pointer's two moves. The gate makes them; here one asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clients.cli.app import (
    JsonFlag,
    ResourceArgument,
    ScopeArgument,
    UpdateArgument,
    session_of,
    wait_for,
)

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.desk import Desk
    from gate.v1 import gate_pb2 as service_pb2
    from ledger.errors import RefusedError
    from ledger.v1 import options_pb2

__all__ = ["promote", "rollback"]


def promote(
    context: typer.Context,
    update: UpdateArgument,
    verdict: Annotated[
        int | None,
        typer.Option("--verdict", min=0, help="Index of the verdict to act on.", show_default="the last one"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make an update's candidate the approved default, on a recorded PROMOTE_TO_DEFAULT that stands.

    Nothing may have changed since that verdict; if something did, the answer says what, and nothing moves.
    Promoting again changes nothing and says where the promotion stands.
    """
    from clients.cli.show import emit, lines, pairs

    moved, already = wait_for(_promote(session_of(context), update, verdict))
    body = moved.promoted
    scope = f"{body.scope.workflow}/{body.scope.segment}"
    document = {
        "update": update,
        "resource": body.resource,
        "scope": scope,
        "from": body.from_digest.hex(),
        "to": body.to_digest.hex(),
        "verdict_index": body.verdict_index,
        "index": moved.index,
        "already": already,
    }

    def show() -> None:
        if already:
            lines(f"already promoted at index {moved.index}; nothing was changed")
        else:
            lines(f"PROMOTED {body.resource} in {scope} at index {moved.index}")
        pairs(
            (
                ("from", body.from_digest.hex()),
                ("to", body.to_digest.hex()),
                ("verdict", f"index {body.verdict_index}"),
                ("way back", f"assay rollback {body.resource} {scope} --reason …"),
            )
        )

    emit(document, as_json, show)


async def _promote(
    session: Session, update: str, verdict: int | None
) -> tuple[service_pb2.PromoteResponse, bool]:
    """The gate's answer, and whether the promotion stood there before it was asked for."""
    from clients.cli.desk import open_desk
    from ledger.errors import RefusedError

    async with open_desk(session, "operator", "approver") as desk:
        size = (await desk.ledger.get_checkpoint()).size
        try:
            moved = await desk.gate.promote(update, verdict)
        except RefusedError as error:
            if error.reason != "CONDITION_FAILED":
                raise
            refused = _why_not(await desk.receipts.get_update(update), verdict, error)
            raise await _beside_requests(desk, update, refused) from error
        return moved, moved.index < size


async def _beside_requests(desk: Desk, update: str, error: RefusedError) -> RefusedError:
    """The error, with the rollback requests that are not carried out: each of them voids older verdicts."""
    from ledger.errors import NotFoundError, RefusedError

    summary = await desk.summary(update)
    try:
        found = await desk.receipts.resolve_default(summary.resource, summary.scope)
    except NotFoundError:
        return error
    if not found.open_rollback_requests:
        return error
    at = ", ".join(map(str, found.open_rollback_requests))
    return RefusedError(
        error.reason,
        f"{error.message}; a rollback was asked for at index {at} and is not carried out: `assay rollback "
        f"{summary.resource} {summary.scope.workflow}/{summary.scope.segment} --reason …` does; to promote "
        f"all the same, judge again: assay evaluate {update} --step default --record",
    )


def _why_not(receipt: Mapping[str, Any], index: int | None, error: RefusedError) -> RefusedError:
    """What the verdict lacks, where it is the verdict; otherwise what the gate said."""
    from clients.cli.desk import now
    from clients.cli.judging import approval_command, lapsed, pinned_approvers
    from clients.cli.show import with_moments
    from ledger.errors import RefusedError

    update = receipt["update"]
    of_step = [
        verdict
        for verdict in receipt["after"]["verdicts"]
        if verdict["step"] == "default" and index in (None, verdict["index"])
    ]
    if not of_step:
        return error
    last = of_step[-1]
    explain = f"assay explain {update} --step default"
    if last["verdict"] == "HOLD":
        failing = ", ".join(f"{check} {state}" for check, state in last["states"].items() if state != "PASS")
        return RefusedError(
            "VERDICT_HOLDS",
            f"expected a recorded PROMOTE_TO_DEFAULT, got the HOLD at index {last['index']}: {failing}; "
            f"{explain}",
        )
    if last["void"] is None and (expired := lapsed(last, now())) is not None:
        again = approval_command(pinned_approvers(receipt, "default"), update, "default")
        return RefusedError(
            "VERDICT_EXPIRED",
            f"expected a verdict in force, got the one at index {last['index']}, which {expired}; approve "
            f"again: {again}",
        )
    if not last["stands"]:
        return RefusedError(
            "VERDICT_FELL",
            f"expected a verdict that stands, got the one at index {last['index']}: "
            f"{with_moments(last['stands_not_because'])}; {explain}",
        )
    return error


def rollback(
    context: typer.Context,
    resource: ResourceArgument,
    scope: ScopeArgument,
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Undo the last promotion: record the request, and let the gate move the pointer back.

    A request that was recorded before and not carried out is carried out, and no other recorded.
    Needs no fresh evidence: it is for bad days. Promoting again needs new evidence.
    """
    from clients.cli.parse import parse_scope
    from clients.cli.show import emit, lines, pairs

    request, again, undone = wait_for(_roll_back(session_of(context), resource, parse_scope(scope), reason))
    body = undone.rolled_back
    document = {
        "resource": resource,
        "scope": scope,
        "update": body.update,
        "promotion_index": body.promotion_index,
        "request_index": request,
        "request_reused": again,
        "to": body.to_digest.hex(),
        "index": undone.index,
    }

    def show() -> None:
        lines(f"ROLLED BACK {resource} in {scope} at index {undone.index}")
        pairs(
            (
                ("undone", f"promotion of {body.update} at index {body.promotion_index}"),
                ("default now", body.to_digest.hex()),
                ("request", f"index {request}{', recorded before, with its own reason' if again else ''}"),
            )
        )

    emit(document, as_json, show)


async def _roll_back(
    session: Session, resource: str, scope: options_pb2.Scope, reason: str
) -> tuple[int, bool, service_pb2.RollBackResponse]:
    """Index of the request, whether it stood there before, the gate's answer."""
    from clients.cli.desk import gate_answers, open_desk
    from ledger.errors import OverloadedError, RefusedError
    from ledger.v1 import receipt_pb2

    async with open_desk(session, "operator", "approver") as desk:
        found = await desk.receipts.resolve_default(resource, scope)
        if found.origin != receipt_pb2.DEFAULT_ORIGIN_PROMOTED:
            raise RefusedError("NOTHING_TO_UNDO", "expected a promoted default, got the baseline")
        if not await gate_answers(desk):
            raise OverloadedError(
                "GATE_AWAY",
                f"expected the gate on {desk.gate_target}, got no answer: nothing was recorded, nothing "
                "moved; start it: assay serve gate",
                1.0,
            )
        for index in reversed(found.open_rollback_requests):
            try:
                return index, True, await desk.gate.roll_back(resource, scope, index)
            except RefusedError as error:
                if error.reason != "CONDITION_FAILED":
                    raise  # one by a key that became suspect is of no use: the next, or a new one
        index = await _request(session, desk, resource, scope, found.index, reason)
        return index, False, await _carried_out(desk, resource, scope, index)


async def _request(
    session: Session, desk: Desk, resource: str, scope: options_pb2.Scope, promotion: int, reason: str
) -> int:
    """Records a request to undo the promotion at an index; its own index."""
    from clients.cli.desk import event
    from clients.home import load_home
    from ledger.v1 import approver_pb2, operator_pb2

    role = load_home(session.home).principals[desk.identity.name]
    kind = approver_pb2.ApproverRollbackRequested if role == "approver" else operator_pb2.RollbackRequested
    request = kind(resource=resource, scope=scope, promotion_index=promotion, reason=reason)
    return (await desk.ledger.append([event(request)])).first_index


async def _carried_out(
    desk: Desk, resource: str, scope: options_pb2.Scope, index: int
) -> service_pb2.RollBackResponse:
    """The gate's answer to a request that was recorded just now. Raises AssayError that says where it is."""
    from ledger.errors import OverloadedError, RefusedError

    said = (
        f"the request is recorded at index {index} and not carried out: `assay rollback` again carries it out"
    )
    try:
        return await desk.gate.roll_back(resource, scope, index)
    except OverloadedError as error:
        raise OverloadedError("NOT_CARRIED_OUT", f"{error}; {said}", error.retry_after) from error
    except RefusedError as error:
        raise RefusedError(error.reason, f"{error.message}; {said}") from error
