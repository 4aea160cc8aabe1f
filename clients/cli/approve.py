"""`assay approve`, `assay withdraw`: what a person answers for, and takes back.

Rules:
1. An approval names what was shown: update, step, evidence digest, policy digest. The human types how the
   digest begins, so that nobody approves what changed since it was shown.
2. No approval makes a failing check pass; approving such an update needs `--anyway`.
3. Nobody is picked for a person: where a home holds several approvers, `--as` says who acts.
4. What could never count is refused before it is written: an approver whom the freeze does not name.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clients.cli import decide
from clients.cli.app import READERS, JsonFlag, StepOption, UpdateArgument, session_of, wait_for

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.judging import Judged
    from ledger.v1 import approver_pb2

__all__ = ["approve", "withdraw"]

_TYPED: Final = 8  # hex digits of the evidence digest
_FORM: Final = re.compile(rf"[0-9a-f]{{{_TYPED}}}")
_US: Final = 1_000_000


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
    from clients.cli.show import emit
    from ledger.errors import FormatError

    session, seconds = session_of(context), parse_seconds(valid_for)
    if as_json and digest is None:
        raise FormatError(
            "DIGEST_ABSENT", "expected --digest with --json, got none: nobody is shown what would be approved"
        )
    if session.name is not None:  # before the gate is asked, which others may ask too
        session.principal("approver")
    if digest is not None:
        digest = _checked_form(digest)
    judged = wait_for(decide.ask_gate(session, update, parse_step(step)))
    approver = session.principal("approver", among=judged.approvers)
    _check_named(judged, approver)
    if not as_json:
        judged.show()
    if not anyway:
        _check_ready(judged)
    _check_typed(judged, digest or _typed(approver, valid_for))
    placed, granted = wait_for(_approve(session, judged, seconds * _US, comment))
    emit(
        {
            "update": update,
            "step": step,
            "approval": granted.approval,
            "by": approver,
            "evidence_digest": granted.evidence_digest.hex(),
            "policy_digest": granted.policy_digest.hex(),
            "expires_at": granted.expires_at,
            "index": placed,
        },
        as_json,
        lambda: _show_approved(approver, placed, granted, step),
    )


def _show_approved(approver: str, placed: int, granted: approver_pb2.ApprovalGranted, step: str) -> None:
    from clients.cli.show import lines, moment

    lines(
        f"approved as {approver} at index {placed}, until {moment(granted.expires_at)}",
        f"approval {granted.approval}",
        f"next: assay evaluate {granted.update} --step {step} --record",
    )


def _check_named(judged: Judged, approver: str) -> None:
    """Raises RefusedError APPROVER_NOT_NAMED: check 7 would fail for it, and nobody could take that back."""
    from ledger.errors import RefusedError

    if approver not in judged.approvers:
        named = judged.approvers
        proposed = f"; approve as `assay --as {named[0]} …`" if named else ""
        raise RefusedError(
            "APPROVER_NOT_NAMED",
            f"expected {' or '.join(named) or 'an approver'}, named for step {judged.step} by the freeze at "
            f"index {judged.frozen_at}, got {approver}{proposed}",
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


def _checked_form(text: str) -> str:
    """The digest's first digits. Raises FormatError BAD_DIGEST."""
    from ledger.errors import FormatError

    typed = text.strip().lower()
    if not _FORM.fullmatch(typed):
        raise FormatError(
            "BAD_DIGEST",
            f"expected the evidence digest's first {_TYPED} hex digits, got {text.strip()[:80]!r}",
        )
    return typed


def _typed(approver: str, valid_for: str) -> str:
    """What the human types. Raises FormatError NOBODY_TYPED at the end of input, BAD_DIGEST."""
    from ledger.errors import FormatError

    asked = f"To approve as {approver} for {valid_for}, type the evidence digest's first {_TYPED} digits: "
    typer.echo(asked, err=True, nl=False)
    try:
        line = _read_line()
    except KeyboardInterrupt:
        typer.echo("\nassay: broken off: nothing was approved", err=True)
        raise
    if not line:
        typer.echo("", err=True)
        raise FormatError(
            "NOBODY_TYPED",
            f"expected the evidence digest's first {_TYPED} digits, got the end of input: nothing was "
            "approved; a script says --digest",
        )
    return _checked_form(line)


def _read_line() -> str:
    return sys.stdin.readline()


def _check_typed(judged: Judged, digest: str) -> None:
    """Raises RefusedError OTHER_DIGEST, which does not tell the right one: that is for the human to read."""
    from ledger.errors import RefusedError

    if digest != judged.verdict.evidence_digest.hex()[:_TYPED]:
        raise RefusedError(
            "OTHER_DIGEST", f"expected how the evidence digest as it stands now begins, got {digest}"
        )


async def _approve(
    session: Session, judged: Judged, microseconds: int, comment: str | None
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
    async with open_desk(session, "approver") as desk:
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

    index, name = wait_for(_withdraw(session_of(context), update, approval, reason))
    emit(
        {"update": update, "approval": approval, "by": name, "index": index},
        as_json,
        lambda: lines(f"withdrew {approval} as {name} at index {index}"),
    )


async def _withdraw(session: Session, update: str, approval: str, reason: str | None) -> tuple[int, str]:
    from clients.cli.desk import event, open_desk
    from ledger.v1 import approver_pb2

    async with open_desk(session, *READERS) as desk:
        receipt = await desk.receipts.get_update(update)
    held = [item for item in receipt["after"]["approvals"] if item["claim"]["approval"] == approval]
    name = session.principal("approver", among=[item["by"] for item in held])
    _check_withdrawable(held, name, update, approval)
    body = approver_pb2.ApprovalWithdrawn(update=update, approval=approval, reason=reason)
    async with open_desk(session, "approver") as desk:
        return (await desk.ledger.append([event(body)])).first_index, name


def _check_withdrawable(held: list[dict[str, Any]], name: str, update: str, approval: str) -> None:
    """Raises NotFoundError NO_SUCH_APPROVAL; RefusedError NOT_THE_APPROVER, ALREADY_WITHDRAWN."""
    from ledger.errors import NotFoundError, RefusedError

    if not held:
        raise NotFoundError("NO_SUCH_APPROVAL", f"expected an approval of {update}, got {approval!r}")
    own = [item for item in held if item["by"] == name]
    if not own:
        givers = ", ".join(item["by"] for item in held)
        raise RefusedError(
            "NOT_THE_APPROVER",
            f"expected {givers}, who gave {approval}, got {name}: an approver takes back its own",
        )
    if all(item["withdrawn"] for item in own):
        raise RefusedError(
            "ALREADY_WITHDRAWN",
            f"expected an approval in force, got {approval}, which {name} withdrew already",
        )
