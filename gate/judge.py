"""Rules version 1, as the judge that receipts ask: evidence -> seven findings -> verdict.

Rules:
1. A verdict is a pure function of (log prefix, step) (law 15): everything it reads is in the prefix.
2. All seven PASS, or HOLD. Stale comes first, whatever else a check found (law 10).
3. An older version of the rules stays callable; a newer one is CannotTellError, never PASS.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from gate import canary_checks, checks, score_checks
from gate.evidence import Evidence
from gate.finding import Notes, findings_digest, leaves_root
from gate.gather import gather
from gate.policy import Policy, parse_policy
from gate.reasons import CHECKS, RULES
from gate.staleness import stale_reasons
from ledger.claims import Judgement
from ledger.errors import RefusedError
from ledger.fact import Fact
from ledger.receipt import Receipts
from ledger.v1 import gate_pb2, options_pb2, trainer_pb2

__all__ = ["STEPS", "RulesJudge", "evidence_digest", "pinned_policy", "verdict_of"]

STEPS: Final[Mapping[int, str]] = {options_pb2.STEP_CANARY: "canary", options_pb2.STEP_DEFAULT: "default"}
_PROMOTES: Final[Mapping[int, int]] = {
    options_pb2.STEP_CANARY: gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY,
    options_pb2.STEP_DEFAULT: gate_pb2.VERDICT_PROMOTE_TO_DEFAULT,
}
_FIRST_SIX: Final[tuple[Callable[[checks.Input], Notes], ...]] = (
    checks.identity_pinned,
    checks.span_coverage,
    checks.retry_debt,
    score_checks.beats_parent,
    score_checks.protected_cases,
    canary_checks.canary_verified,
)


def evidence_digest(evidence: Evidence) -> bytes:
    """SHA-256 of `assay/evidence/v1`, update, step, count and root of all that counts, a line each."""
    leaves = evidence.leaves()
    root = base64.b64encode(leaves_root(leaves)).decode()
    text = f"assay/evidence/v1\n{evidence.update}\n{STEPS[evidence.step]}\n{len(leaves)}\n{root}\n"
    return hashlib.sha256(text.encode()).digest()


def pinned_policy(receipts: Receipts, evidence: Evidence) -> Policy | None:
    """The policy of the governing freeze; None where none is pinned or its digest is not in the log.

    Raises FormatError(BAD_POLICY), CannotTellError(RULES_UNKNOWN).
    """
    pins = evidence.pins
    if pins is None or not pins.HasField("policy_digest"):
        return None
    published = receipts.registry.by_digest("policy", pins.policy_digest, evidence.size)
    return None if published is None else parse_policy(published.body.document)


def verdict_of(
    judgement: Judgement,
    proposal: trainer_pb2.UpdateProposed,
    step: options_pb2.Step.ValueType,
    size: int,
    root: bytes,
) -> gate_pb2.VerdictIssued:
    """The verdict to write for a judgement made at log `size` and its 32-byte `root`.

    A PROMOTE ends with the first of the approvals that it used (checks.md section 5).
    """
    verdict = gate_pb2.VerdictIssued(
        update=proposal.update,
        step=step,
        verdict=judgement.verdict,  # type: ignore[arg-type]  # a Verdict, kept as int in the core
        resource=proposal.resource,
        scope=proposal.scope,
        log_size=size,
        log_root=root,
        evidence_digest=judgement.evidence_digest,
        policy_digest=judgement.policy_digest,
        rules=judgement.rules,
        findings=judgement.findings,
        findings_digest=judgement.findings_digest,
    )
    if judgement.verdict != gate_pb2.VERDICT_HOLD:
        verdict.not_after = min(approval.body.expires_at for approval in judgement.approvals)
    return verdict


def _makers(given: checks.Input, approvals: tuple[Fact, ...]) -> frozenset[str]:
    """Controllers of everybody but the gate whose entries count, and of who approved."""
    groups = checks.makers(given)
    made = groups["producer"] | groups["judge"] | groups["canary"]
    return frozenset(made | {approval.grant.controller for approval in approvals})


class RulesJudge:
    """The judge of rules version 1. Keeps nothing."""

    def evaluate(self, receipts: Receipts, update: str, step: int, size: int) -> Judgement:
        """Judges an update for a step on the prefix of `size` entries.

        Raises RefusedError(BAD_STEP), FormatError(BAD_POLICY), CannotTellError(RULES_UNKNOWN).
        """
        if step not in STEPS:
            raise RefusedError("BAD_STEP", f"expected STEP_CANARY or STEP_DEFAULT, got {step}")
        return self.judge(receipts, gather(receipts, update, step, size))

    def judge(self, receipts: Receipts, evidence: Evidence) -> Judgement:
        """As `evaluate`, from evidence that was gathered already."""
        given = checks.Input(receipts, evidence, pinned_policy(receipts, evidence))
        digest = evidence_digest(evidence)
        notes = [check(given) for check in _FIRST_SIX]
        last, approvals = canary_checks.rollback_and_authority(given, digest)
        notes.append(last)
        stale = stale_reasons(receipts, evidence)
        for note in notes:
            for reason in stale.get(note.check, ()):
                note.add(reason)
        findings = tuple(note.finding() for note in notes)
        passed = len(findings) == len(CHECKS) and all(f.state == gate_pb2.STATE_PASS for f in findings)
        return Judgement(
            verdict=_PROMOTES[evidence.step] if passed else gate_pb2.VERDICT_HOLD,
            findings=findings,
            findings_digest=findings_digest(findings),
            evidence_digest=digest,
            policy_digest=evidence.pins.policy_digest if evidence.pins is not None else b"",
            rules=RULES,
            candidate_digest=evidence.candidates[0].body.manifest_digest if evidence.candidates else None,
            approvals=approvals,
            makers=_makers(given, approvals),
        )

    def stale(self, receipts: Receipts, update: str, step: int, size: int) -> frozenset[str]:
        """STALE reason codes of all checks, as of `size`."""
        found = stale_reasons(receipts, gather(receipts, update, step, size))
        return frozenset(reason for reasons in found.values() for reason in reasons)
