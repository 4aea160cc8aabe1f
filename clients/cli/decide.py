"""`assay evaluate`, `approve`, `withdraw`, `promote`, `rollback`: what release owners decide, and its record.

Rules:
1. An approval names what was shown: update, step, evidence digest, policy digest. The human types how the
   digest begins, so that nobody approves what changed since it was shown.
2. No approval makes a failing check pass; approving such an update needs `--anyway`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from clients.cli.app import (
    READERS,
    JsonFlag,
    ResourceArgument,
    ScopeArgument,
    StepOption,
    UpdateArgument,
    session_of,
    wait_for,
)
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.judging import Judged
    from gate.v1 import gate_pb2 as service_pb2
    from ledger.v1 import approver_pb2, options_pb2

__all__ = ["approve", "evaluate", "promote", "rollback", "withdraw"]

_TYPED: Final = 8  # hex digits of the evidence digest
_US: Final = 1_000_000


def evaluate(
    context: typer.Context,
    update: UpdateArgument,
    step: StepOption,
    record: Annotated[bool, typer.Option("--record", help="Write the verdict to the log.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Let the gate judge an update at the log's present size. HOLD is exit code 1.

    Without --record nothing is written; a pointer can only move on a recorded PROMOTE.
    """
    from clients.cli.parse import parse_step
    from clients.cli.show import emit

    judged = wait_for(_judged(session_of(context), update, parse_step(step), record))
    emit(judged.document(), as_json, judged.show)
    if judged.holds:
        raise typer.Exit(Exit.HOLD)


async def _judged(
    session: Session, update: str, step: options_pb2.Step.ValueType, record: bool = False
) -> Judged:
    from clients.cli.desk import open_desk
    from clients.cli.judging import judge

    # A recorded verdict is the operator's wish; looking is anybody's.
    roles = ("operator", *READERS) if record else READERS
    async with open_desk(session, *roles) as desk:
        return await judge(desk, update, step, record=record)


def approve(
    context: typer.Context,
    update: UpdateArgument,
    step: StepOption,
    digest: Annotated[
        str | None,
        typer.Option(
            "--digest", metavar="XXXXXXXX", help="First 8 digits of the evidence digest, for scripts."
        ),
    ] = None,
    valid_for: Annotated[
        str, typer.Option("--valid-for", metavar="DURATION", help="How long it counts, such as 90m, 24h, 7d.")
    ] = "24h",
    comment: Annotated[str | None, typer.Option("--comment", help="Kept in the log.")] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Though other checks do not pass.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Approve one step of one update, for exactly the evidence and the policy that are shown.

    Asks for the first 8 digits of the evidence digest.
    New evidence makes the approval void, and so does a new policy.
    """
    from clients.cli.parse import parse_seconds, parse_step
    from clients.cli.show import emit, lines, moment

    if as_json and digest is None:
        raise typer.BadParameter("expected --digest with --json: nobody is shown what would be approved")
    session, seconds = session_of(context), parse_seconds(valid_for)
    judged = wait_for(_judged(session, update, parse_step(step)))
    approver = session.principal("approver", among=judged.approvers)
    if not as_json:
        judged.show()
    if not anyway:
        _check_ready(judged)
    _check_typed(judged, digest, approver, valid_for)
    placed, granted = wait_for(_approve(session, judged, approver, seconds * _US, comment))
    document = {
        "update": update,
        "step": step,
        "approval": granted.approval,
        "by": approver,
        "evidence_digest": granted.evidence_digest.hex(),
        "policy_digest": granted.policy_digest.hex(),
        "expires_at": granted.expires_at,
        "index": placed,
    }
    emit(
        document,
        as_json,
        lambda: lines(
            f"approved as {approver} at index {placed}, until {moment(granted.expires_at)}",
            f"approval {granted.approval}",
            f"next: assay evaluate {update} --step {step} --record",
        ),
    )


def _check_ready(judged: Judged) -> None:
    """Raises RefusedError NOT_READY where something other than an approval is missing."""
    from clients.cli.findings import blockers
    from gate.report import state_name
    from ledger.errors import RefusedError

    if failing := blockers(judged.verdict.findings):
        shown = ", ".join(f"{finding.check} {state_name(finding.state)}" for finding in failing)
        raise RefusedError(
            "NOT_READY",
            f"expected PASS but for the approval, got {shown}: no approval mends these (--anyway)",
        )


def _check_typed(judged: Judged, digest: str | None, approver: str, valid_for: str) -> None:
    """Asks the human, unless a script gave the digest. Raises RefusedError OTHER_DIGEST."""
    from ledger.errors import RefusedError

    expected = judged.verdict.evidence_digest.hex()[:_TYPED]
    if digest is None:
        digest = typer.prompt(
            f"To approve as {approver} for {valid_for}, type the evidence digest's first {_TYPED} digits",
            err=True,
        )
    if digest.strip().lower() != expected:
        raise RefusedError(
            "OTHER_DIGEST", f"expected {expected}, the evidence as it stands now, got {digest[:80]!r}"
        )


async def _approve(
    session: Session, judged: Judged, approver: str, microseconds: int, comment: str | None
) -> tuple[int, approver_pb2.ApprovalGranted]:
    import secrets

    from clients.cli.desk import event, now, open_desk
    from ledger.v1 import approver_pb2

    granted = approver_pb2.ApprovalGranted(
        update=judged.verdict.update,
        approval=f"approval-{secrets.token_hex(8)}",
        step=judged.verdict.step,
        evidence_digest=judged.verdict.evidence_digest,
        policy_digest=judged.verdict.policy_digest,
        expires_at=now() + microseconds,
        comment=comment,
    )
    async with open_desk(session, "approver", among=(approver,)) as desk:
        placed = await desk.ledger.append([event(granted)])
    return placed.first_index, granted


def withdraw(
    context: typer.Context,
    update: UpdateArgument,
    approval: Annotated[str, typer.Argument(metavar="APPROVAL", help="Id of the approval.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Kept in the log.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Withdraw an approval of one's own. A verdict that rests on it stands no more; a moved pointer stays."""
    from clients.cli.show import emit, lines

    session = session_of(context)

    async def send() -> tuple[int, str]:
        from clients.cli.desk import event, open_desk
        from ledger.errors import NotFoundError
        from ledger.v1 import approver_pb2

        async with open_desk(session, *READERS) as desk:
            receipt = await desk.receipts.get_update(update)
        held = [item for item in receipt["after"]["approvals"] if item["claim"]["approval"] == approval]
        if not held:
            raise NotFoundError("NO_SUCH_APPROVAL", f"expected an approval of {update}, got {approval!r}")
        body = approver_pb2.ApprovalWithdrawn(update=update, approval=approval, reason=reason)
        async with open_desk(session, "approver", among=[item["by"] for item in held]) as desk:
            return (await desk.ledger.append([event(body)])).first_index, desk.identity.name

    index, name = wait_for(send())
    emit(
        {"update": update, "approval": approval, "by": name, "index": index},
        as_json,
        lambda: lines(f"withdrew {approval} as {name} at index {index}"),
    )


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
    """
    from clients.cli.show import emit, lines, pairs

    session = session_of(context)

    async def send() -> service_pb2.PromoteResponse:
        from clients.cli.desk import open_desk

        async with open_desk(session, "operator", "approver") as desk:
            return await desk.gate.promote(update, verdict)

    moved = wait_for(send())
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
    }

    def show() -> None:
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
