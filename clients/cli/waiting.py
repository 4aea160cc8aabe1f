"""What an update waits for, in words that name the next command: `assay updates --waiting`.

Rules:
1. The gate is asked once there is a candidate; before that the log says what is missing.
2. A refusal is said as it stands in the log, never turned into "freeze again".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from clients.cli.desk import Desk, now
from clients.cli.findings import blockers
from clients.cli.judging import Judged, approval_command, expiries, in_force, next_step
from gate.reasons import CHECKS
from gate.report import state_name
from ledger.v1 import gate_pb2, options_pb2, receipt_pb2

__all__ = ["Waiting", "ended_by_rollback"]

# Stale for good: nothing that an operator freezes again can mend it (checks.md section 4).
_NEEDS_NEW_UPDATE: Final = frozenset({"STALE_PARENT", "STALE_SPAN_FAMILIES", "STALE_RETRY_BUDGETS"})
_OF_TRAINING: Final = frozenset(CHECKS[:3])


class Waiting:
    """Answers at one desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def of(self, summary: receipt_pb2.UpdateSummary, requests: Sequence[int] = ()) -> list[str]:
        """What an update lacks. Raises AssayError.

        `requests`: indexes of open rollback requests on the pointer that it wants to move; no verdict from
        before them can move it.
        """
        update = summary.update
        if not summary.resource:
            return ["a proposal (the trainer's)"]
        if not summary.frozen:
            refused = _refusals(await self._desk.receipts.get_update(update))
            return refused or [f"its freeze (assay update freeze {update})"]
        if not summary.training_ended:
            return ["the end of its training"]
        if not summary.HasField("candidate_digest"):
            return ["a candidate (the trainer's)"]
        receipt = await self._desk.receipts.get_update(update)
        judged = Judged(receipt, await self._desk.gate.evaluate(update, next_step(receipt)))
        if judged.holds:
            return [*_lacks(judged), *_advice(judged)]
        at, voided = now(), max(requests, default=-1)
        promotes = any(
            in_force(verdict, at) and verdict["step"] == "default" and verdict["index"] > voided
            for verdict in receipt["after"]["verdicts"]
        )
        act = f"promote {update}" if promotes else f"evaluate {update} --step {judged.step} --record"
        return [f"nothing but a command (assay {act})"]


async def ended_by_rollback(desk: Desk, summary: receipt_pb2.UpdateSummary) -> tuple[int | None, bool]:
    """Index of the rollback that undid its last promotion, and whether nobody took it up again since."""
    if not summary.HasField("verdict") or summary.verdict_step != options_pb2.STEP_DEFAULT:
        return None, False  # never promoted, or judged for a canary again
    receipt = await desk.receipts.get_update(summary.update)
    before, after = receipt["before"], receipt["after"]
    if not after["rolled_back"]:
        return None, False
    at: int = max(after["rolled_back"])
    since = [
        *(fact["index"] for fact in (*before["freezes"], *after["approvals"], *after["verdicts"])),
        *(window["started"]["index"] for window in after["windows"]),
    ]
    return at, max(since, default=-1) < at


def _refusals(receipt: dict[str, Any]) -> list[str]:
    """The gate's refusals to freeze it, as they stand in the log."""
    claims = ((fact["index"], fact["claim"]) for fact in receipt["before"]["refusals"])
    return [f"freeze refused at index {at}: {claim['reason']}: {claim['message']}" for at, claim in claims]


def _lacks(judged: Judged) -> Iterable[str]:
    """Each check that does not pass; all seven in one line where they fail alike."""
    failing = [f for f in judged.verdict.findings if f.state != gate_pb2.STATE_PASS]
    said = {(state_name(f.state), " ".join(f.reasons)) for f in failing}
    if len(failing) == len(CHECKS) and len(said) == 1:
        state, reasons = said.pop()
        return [f"{judged.step}: all seven checks {state} {reasons}"]
    return [f"{judged.step}: {f.check} {state_name(f.state)} {' '.join(f.reasons)}" for f in failing]


def _advice(judged: Judged) -> Iterable[str]:
    """What people do about it, where it can be said."""
    update, findings = judged.verdict.update, judged.verdict.findings
    stale = {(f.check, reason) for f in findings if f.state == gate_pb2.STATE_STALE for reason in f.reasons}
    if any(_is_final(check, reason) for check, reason in stale):
        return ["a new update: this one cannot be frozen again to any use"]
    if stale:
        return [f"an operator to freeze it again (assay update refreeze {update})"]
    if blockers(findings):
        return []
    # Nothing but the approval of somebody who may.
    act = approval_command(judged.approvers, update, judged.step)
    expired = expiries(judged.receipt, judged.step, now())
    return [*expired, f"an approval by {' or '.join(judged.approvers) or 'somebody named'} ({act})"]


def _is_final(check: str, reason: str) -> bool:
    training = check in _OF_TRAINING and reason not in ("STALE_POLICY",)
    return reason in _NEEDS_NEW_UPDATE or training
