"""Which verdicts hold, which of them stand, and which moves and LIVE windows rest on one that does.

Rules:
1. A judgment that broke its condition, or that does not replay, is void (checks.md section 5).
2. A verdict stands while it is valid, a PROMOTE, never stale since, under the same governing freeze, and an
   approval that it used is in force.
3. These functions read a history and change nothing: a gate asks them before it writes, an auditor after.
4. The gate of an update made none of its evidence (law 8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.claims import PROMOTES, Judgement, VerdictRecord
from ledger.errors import AssayError, CannotTellError
from ledger.fact import Fact
from ledger.touches import judgment_keys
from ledger.v1 import gate_pb2

if TYPE_CHECKING:
    from ledger.receipt import Receipts

__all__ = ["live_fault", "promotion_fault", "verdict_at", "verdict_fault", "why_fallen"]

_COMPANY = "expected it alone in its batch, got company"


def verdict_at(history: Receipts, update: str, index: int) -> VerdictRecord | None:
    """The verdict of an update at an index."""
    record = history.updates.get(update)
    return next((v for v in record.verdicts if v.fact.index == index), None) if record else None


def _slipped(
    history: Receipts, watched: tuple[str, ...], since: int, not_after: int | None, fact: Fact
) -> str | None:
    for key in watched:
        last = history.touched.get(key, -1)
        if last >= since:
            return f"expected {key} untouched since size {since}, got a touch at index {last}"
    if not_after is not None and fact.recorded_at > not_after:
        return f"expected recorded_at of at most {not_after}, got {fact.recorded_at}"
    return None


def verdict_fault(history: Receipts, record: VerdictRecord, alone: bool) -> str | None:
    """Why a verdict at this place does not hold. Keeps the approvals that it used in the record.

    Raises CannotTellError where newer rules would be needed to tell.
    """
    body, index = record.fact.body, record.fact.index
    if not alone:
        return _COMPANY
    if not 1 <= body.log_size <= index:
        return f"expected a log size of 1 to {index}, got {body.log_size}"
    proposal = history.proposal(body.update)
    if proposal is None or (proposal.body.resource, proposal.body.scope) != (body.resource, body.scope):
        return "expected the update's resource and scope, got others"
    condition = judgment_keys(body.update, body.resource, body.scope)
    not_after = body.not_after if body.HasField("not_after") else None
    if (slipped := _slipped(history, condition, body.log_size, not_after, record.fact)) is not None:
        return slipped
    if (root := history.root_at(body.log_size)) != body.log_root:
        return f"expected root {root.hex()} at size {body.log_size}, got {body.log_root.hex()}"
    if (body.verdict in PROMOTES) != (not_after is not None):
        return "expected not_after on a PROMOTE and on nothing else"
    try:
        judgement = history.judge.evaluate(history, body.update, body.step, body.log_size)
    except CannotTellError:
        raise
    except AssayError as error:
        return f"expected evidence that can be judged, got {error}"
    record.approvals = judgement.approvals
    return _difference(judgement, body) or _dependent(judgement, record.fact)


def _difference(judgement: Judgement, verdict: Any) -> str | None:
    """Why a verdict is not what the judge says; None if they agree."""
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("verdict", judgement.verdict, verdict.verdict),
        ("evidence digest", judgement.evidence_digest, verdict.evidence_digest),
        ("policy digest", judgement.policy_digest, verdict.policy_digest),
        ("rules", judgement.rules, verdict.rules),
        ("findings digest", judgement.findings_digest, verdict.findings_digest),
        ("findings", list(judgement.findings), list(verdict.findings)),
    )
    for what, expected, got in pairs:
        if expected != got:
            shown = [v.hex() if isinstance(v, bytes) else v for v in (expected, got)]
            return f"{what}: expected {shown[0]}, got {shown[1]}"
    if verdict.verdict in PROMOTES and verdict.not_after > min(
        approval.body.expires_at for approval in judgement.approvals
    ):
        return "expected not_after of at most the earliest expiry of the approvals used, got later"
    return None


def _dependent(judgement: Judgement, fact: Fact) -> str | None:
    if fact.grant.controller in judgement.makers:
        gate = f"{fact.grant.name} of {fact.grant.controller}"
        return f"expected a gate that made none of the evidence, got {gate}"
    return None


def why_fallen(history: Receipts, record: VerdictRecord, now: int) -> str | None:
    """Why a verdict does not stand at this size and time (microseconds); None if it does."""
    if record.void is not None:
        return record.void
    if record.fact.body.verdict not in PROMOTES:
        return "a HOLD stands for nothing"
    if record.fell is not None:
        return f"ceased to stand at index {record.fell[0]}: {record.fell[1]}"
    if history.suspects.hold(record.fact, history.size):
        return "expected a verdict by a key in good standing, got one whose key is suspect from before it"
    alive = {
        (approval.grant.name, approval.body.approval)
        for approval in record.approvals
        if approval.body.expires_at >= now and not history.suspects.hold(approval, history.size)
    }
    if alive:
        alive -= {
            (w.grant.name, w.body.approval)
            for w in history.records.withdrawals(record.fact.body.update)
            if not history.suspects.hold(w, history.size)
        }
    if alive:
        return None
    return "expected an approval that it used in force, got all withdrawn or expired"


def promotion_fault(history: Receipts, fact: Fact, alone: bool) -> str | None:
    """Why a DefaultPromoted at this place does not hold, or would not if it is yet to be written."""
    body = fact.body
    if not alone:
        return _COMPANY
    record = verdict_at(history, body.update, body.verdict_index)
    if record is None:
        return f"expected a verdict for {body.update} at index {body.verdict_index}, got none"
    if (fallen := why_fallen(history, record, fact.recorded_at)) is not None:
        return fallen
    verdict = record.fact.body
    if verdict.verdict != gate_pb2.VERDICT_PROMOTE_TO_DEFAULT:
        return "expected PROMOTE_TO_DEFAULT, got another verdict"
    if (verdict.resource, verdict.scope) != (body.resource, body.scope):
        return "expected the verdict's resource and scope, got others"
    current = history.pointers.default(body.resource, body.scope)
    if current is None or current.digest != body.from_digest:
        return f"expected to move from the current default, got {body.from_digest.hex()}"
    if body.to_digest == body.from_digest:
        return "expected a move to another digest, got the current default again"
    if body.not_after > verdict.not_after:
        return "expected not_after of at most the verdict's, got later"
    watched = judgment_keys(body.update, body.resource, body.scope)
    if (slipped := _slipped(history, watched, body.verdict_index + 1, body.not_after, fact)) is not None:
        return slipped
    again = history.judge.evaluate(history, body.update, verdict.step, fact.index)
    if again.candidate_digest != body.to_digest:
        return "expected the update's candidate, got another digest"
    return _difference(again, verdict) or _dependent(again, fact)


def live_fault(history: Receipts, fact: Fact) -> str | None:
    """Why a LIVE window that starts at this place does not count; None if it does."""
    live = fact.body.live
    record = verdict_at(history, fact.body.update, live.verdict_index)
    if record is None or record.void is not None:
        return f"expected a valid verdict at index {live.verdict_index}, got none"
    verdict = record.fact.body
    if verdict.verdict != gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY:
        return "expected PROMOTE_TO_BOUNDED_CANARY, got another verdict"
    if (verdict.resource, verdict.scope) != (live.resource, live.scope):
        return "expected the verdict's resource and scope, got others"
    if not live.verdict_index < live.seen_size <= fact.index:
        return f"expected the verdict to be seen at a size in its future, got {live.seen_size}"
    if live.not_after > verdict.not_after:
        return "expected not_after of at most the verdict's, got later"
    watched = judgment_keys(fact.body.update, live.resource, live.scope)
    return why_fallen(history, record, fact.recorded_at) or _slipped(
        history, watched, live.seen_size, live.not_after, fact
    )
