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
            raise _why_not(await desk.receipts.get_update(update), verdict, error) from error
        return moved, moved.index < size


def _why_not(receipt: Mapping[str, Any], index: int | None, error: RefusedError) -> RefusedError:
    """What the verdict lacks, where it is the verdict; otherwise what the gate said."""
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

    Needs no fresh evidence: it is for bad days. Promoting again needs new evidence.
    """
    from clients.cli.parse import parse_scope
    from clients.cli.show import emit, lines, pairs

    request, undone = wait_for(_roll_back(session_of(context), resource, parse_scope(scope), reason))
    body = undone.rolled_back
    document = {
        "resource": resource,
        "scope": scope,
        "update": body.update,
        "promotion_index": body.promotion_index,
        "request_index": request,
        "to": body.to_digest.hex(),
        "index": undone.index,
    }

    def show() -> None:
        lines(f"ROLLED BACK {resource} in {scope} at index {undone.index}")
        pairs(
            (
                ("undone", f"promotion of {body.update} at index {body.promotion_index}"),
                ("default now", body.to_digest.hex()),
                ("request", f"index {request}"),
            )
        )

    emit(document, as_json, show)


async def _roll_back(
    session: Session, resource: str, scope: options_pb2.Scope, reason: str
) -> tuple[int, service_pb2.RollBackResponse]:
    from clients.cli.desk import event, open_desk
    from clients.home import load_home
    from ledger.errors import RefusedError
    from ledger.v1 import approver_pb2, operator_pb2, receipt_pb2

    async with open_desk(session, "operator", "approver") as desk:
        found = await desk.receipts.resolve_default(resource, scope)
        if found.origin != receipt_pb2.DEFAULT_ORIGIN_PROMOTED:
            raise RefusedError("NOTHING_TO_UNDO", "expected a promoted default, got the baseline")
        role = load_home(session.home).principals[desk.identity.name]
        kind = (
            approver_pb2.ApproverRollbackRequested if role == "approver" else operator_pb2.RollbackRequested
        )
        request = kind(resource=resource, scope=scope, promotion_index=found.index, reason=reason)
        index = (await desk.ledger.append([event(request)])).first_index
        return index, await desk.gate.roll_back(resource, scope, index)
