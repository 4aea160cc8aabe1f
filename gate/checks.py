"""Checks 1 to 3, rules version 1 (checks.md section 3): who it is, and whether its training is accounted for.

Rules:
1. A check is a pure function of evidence, policy and receipts, as of the evidence's size; it knows no clock
   but the prefix's.
2. Absence is MISSING, never a smaller denominator; zero cases, tasks or rollouts never pass (laws 9 and 10).
3. Every code noted is listed in `gate.reasons`; the state is the first that applies.

Checks 4 and 5 stand in `gate.score_checks`, 6 and 7 in `gate.canary_checks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gate.evidence import (
    Attempt,
    Evidence,
    RolloutEvidence,
    attempt_facts,
    evaluation_facts,
    pinned_environment,
)
from gate.finding import Notes
from gate.policy import Policy
from gate.reasons import COUNTS
from ledger.fact import Fact
from ledger.receipt import Receipts
from ledger.v1 import gate_pb2, options_pb2, runner_pb2

__all__ = [
    "Input",
    "absent_pins",
    "deciding_attempt",
    "declared_families",
    "identity_pinned",
    "makers",
    "missing_families",
    "retry_debt",
    "rollout_standing",
    "span_coverage",
]


@dataclass(frozen=True, slots=True)
class Input:
    """What every check is given. `policy` is None where none is pinned or registered."""

    receipts: Receipts
    evidence: Evidence
    policy: Policy | None

    @property
    def pins(self) -> gate_pb2.UpdateFrozen | None:
        """The governing freeze."""
        return self.evidence.pins


# --- 1 identity_pinned -------------------------------------------------------------------------------------

_PINS: Final = (
    "resource",
    "kind",
    "parent_digest",
    "training_snapshot_digest",
    "algorithm_config_digest",
    "code_revision",
    "workflow_version",
    "evaluator_digest",
    "holdout_digest",
    "protected_set_digest",
    "policy_digest",
    "tool_contract_digest",
    "retry_budget",
)
_PRINCIPALS: Final = ("judges", "canaries", "canary_approvers", "default_approvers")


def absent_pins(pins: gate_pb2.UpdateFrozen | None) -> list[str]:
    """Names of the pins that a freeze lacks; all of them where there is no freeze."""
    targets = [name for name, number in options_pb2.EnvironmentTarget.items() if number]
    if pins is None:
        return [*_PINS, *_PRINCIPALS, *targets]
    absent = [name for name in _PINS if not pins.HasField(name)]
    absent += [name for name in _PRINCIPALS if not getattr(pins, name)]
    environment = pinned_environment(pins)
    return absent + [name for name in targets if options_pb2.EnvironmentTarget.Value(name) not in environment]


def identity_pinned(given: Input) -> Notes:
    """Check 1: who and what this update is was fixed before training, and one candidate came of it."""
    notes, evidence = Notes("identity_pinned"), given.evidence
    absent = absent_pins(given.pins)
    notes.add_if(bool(absent), "PIN_ABSENT", *evidence.freezes[-1:])
    started, ended = evidence.training_started, evidence.training_ended
    # What ended before it started is not an end of it.
    notes.add_if(started is None or ended is None or ended.index < started.index, "TRAINING_OPEN")
    if evidence.freezes:
        first = evidence.freezes[0]
        early = [f for f in (started, *evidence.progressed) if f is not None and f.index < first.index]
        notes.add_if(bool(early), "FROZEN_LATE", first, *early)
    _candidate(notes, evidence)
    if evidence.conflicts:
        notes.add("CONFLICT")
    notes.add_if(_shared_controller(given), "SHARED_CONTROLLER")
    trained = [f for f in (started, *evidence.progressed, *evidence.candidates) if f is not None]
    for pause, resume in evidence.pauses:
        until = evidence.size if resume is None else resume.index
        for fact in trained:
            notes.add_if(pause.index < fact.index < until, "TRAINED_WHILE_PAUSED", fact)
    notes.cite(
        (evidence.proposal, *evidence.freezes, started, *evidence.progressed, ended, *evidence.candidates)
    )
    notes.counts = {
        "candidates": len(evidence.candidates),
        "freezes": len(evidence.freezes),
        "pins_absent": len(absent),
    }
    return notes


def _candidate(notes: Notes, evidence: Evidence) -> None:
    candidates, ended, pins = evidence.candidates, evidence.training_ended, evidence.pins
    notes.add_if(not candidates, "NO_CANDIDATE")
    notes.add_if(len(candidates) > 1, "SECOND_CANDIDATE", *candidates[1:])
    if candidates and ended is not None:
        notes.add_if(candidates[0].index < ended.index, "CANDIDATE_EARLY", candidates[0])
    if candidates and pins is not None and pins.HasField("parent_digest"):
        notes.add_if(candidates[0].body.parent_digest != pins.parent_digest, "PARENT_MISMATCH", candidates[0])


def makers(given: Input) -> dict[str, set[str]]:
    """Group -> controllers of those whose entries count: producer, judge, canary, gate."""
    evidence = given.evidence
    groups: dict[str, set[str]] = {"producer": set(), "judge": set(), "canary": set(), "gate": set()}

    def take(group: str, facts: Iterable[Fact | None]) -> None:
        groups[group].update(fact.grant.controller for fact in facts if fact is not None)

    take(
        "producer",
        (
            evidence.proposal,
            evidence.training_started,
            *evidence.progressed,
            evidence.training_ended,
            *evidence.candidates,
        ),
    )
    take("gate", evidence.freezes)
    for rollout in evidence.rollouts:
        take("producer", (rollout.enqueued, rollout.ended))
        for attempt in rollout.attempts.values():
            take("producer", (attempt.started, attempt.ended))
            groups["producer"].update(span.grant.controller for span in attempt.spans.values())
        take("judge", rollout.rewards)
    for evaluations in evidence.evaluations.values():
        for evaluation in evaluations.values():
            take("judge", evaluation_facts(evaluation))
    for window in evidence.windows:
        take("canary", (window.started, *window.tasks.values(), window.ended, window.rehearsal))
    return groups


def _shared_controller(given: Input) -> bool:
    groups = list(makers(given).values())
    return sum(len(group) for group in groups) != len(set().union(*groups))


# --- 2 span_coverage ---------------------------------------------------------------------------------------

_COMPLETED_ATTEMPT: Final = (runner_pb2.ATTEMPT_OUTCOME_SUCCEEDED, runner_pb2.ATTEMPT_OUTCOME_FAILED)
_NOT_COMPLETED: Final[dict[int, str]] = {
    runner_pb2.ROLLOUT_STATUS_CANCELLED: "cancelled",
    runner_pb2.ROLLOUT_STATUS_TIMEOUT: "timeout",
}
_COMPLETED_ROLLOUT: Final = (runner_pb2.ROLLOUT_STATUS_SUCCEEDED, runner_pb2.ROLLOUT_STATUS_FAILED)


def deciding_attempt(rollout: RolloutEvidence) -> Attempt | None:
    """The highest-numbered completed attempt."""
    completed = [
        a for a in rollout.attempts.values() if a.ended and a.ended.body.outcome in _COMPLETED_ATTEMPT
    ]
    return completed[-1] if completed else None


def missing_families(attempt: Attempt, families: dict[str, int]) -> dict[str, int]:
    """Declared family -> distinct spans that the attempt lacks."""
    seen: dict[str, int] = {}
    for span in attempt.spans.values():
        seen[span.family] = seen.get(span.family, 0) + 1
    return {name: least - seen.get(name, 0) for name, least in families.items() if seen.get(name, 0) < least}


def declared_families(given: Input) -> dict[str, int] | None:
    """Span family -> minimum, of the frozen workflow version; None where it was never declared."""
    pins = given.pins
    if pins is None or not pins.HasField("workflow_version"):
        return None
    declared = given.receipts.registry.workflow(
        pins.scope.workflow, pins.workflow_version, given.evidence.size
    )
    return (
        None if declared is None else {family.name: family.minimum for family in declared.body.span_families}
    )


def rollout_standing(rollout: RolloutEvidence) -> str:
    """`completed`, or how it is not: open, cancelled, timeout, lost, without_completed_attempt."""
    if rollout.ended is None:
        return "open"
    if rollout.ended.body.status in _COMPLETED_ROLLOUT:
        return "completed" if deciding_attempt(rollout) else "without_completed_attempt"
    return _NOT_COMPLETED.get(rollout.ended.body.status, "lost")  # what nobody can name is lost


def span_coverage(given: Input) -> Notes:
    """Check 2: every completed rollout shows the spans that its workflow declared."""
    notes, rollouts = Notes("span_coverage"), given.evidence.rollouts
    counts = dict.fromkeys(COUNTS["span_coverage"], 0) | {"rollouts": len(rollouts)}
    families = declared_families(given)
    notes.add_if(not rollouts, "WINDOW_EMPTY")
    notes.add_if(not families or given.policy is None, "PIN_ABSENT")  # no family: nothing that must be shown
    for rollout in rollouts:
        standing = rollout_standing(rollout)
        counts[standing] += 1
        notes.cite((rollout.enqueued, rollout.ended))
        notes.add_if(standing == "open", "ROLLOUT_OPEN", rollout.enqueued)
        notes.add_if(rollout.conflict, "CONFLICT", rollout.enqueued)
        deciding = deciding_attempt(rollout) if standing == "completed" else None
        if deciding is None:
            continue
        notes.cite(attempt_facts(deciding))
        notes.add_if(deciding.span_conflict, "CONFLICT", deciding.started)
        if families is not None and not missing_families(deciding, families):
            counts["covered"] += 1
        elif families is not None:
            notes.add("COVERAGE_SHORT", deciding.started)
    if (
        rollouts
        and not counts["open"]
        and given.policy is not None
        and given.evidence.training_ended is not None
    ):
        notes.add_if(counts["completed"] < given.policy.span_coverage.min_completed, "TOO_FEW_COMPLETED")
    notes.counts = counts
    return notes


# --- 3 retry_debt ------------------------------------------------------------------------------------------


def retry_debt(given: Input) -> Notes:
    """Check 3: retries kept to what was frozen, and no attempt vanished without a word."""
    notes, rollouts = Notes("retry_debt"), given.evidence.rollouts
    counts = dict.fromkeys(COUNTS["retry_debt"], 0)
    budget = (
        given.pins.retry_budget if given.pins is not None and given.pins.HasField("retry_budget") else None
    )
    notes.add_if(not rollouts, "WINDOW_EMPTY")
    notes.add_if(budget is None, "BUDGET_ABSENT")
    notes.add_if(given.policy is None, "PIN_ABSENT")
    unexpected: list[Fact] = []
    silent: list[Fact] = []
    for rollout in rollouts:
        notes.cite((rollout.enqueued, rollout.ended))
        notes.add_if(rollout.conflict, "CONFLICT", rollout.enqueued)
        attempts = list(rollout.attempts.values())
        notes.cite(fact for attempt in attempts for fact in (attempt.started, attempt.ended))
        if _has_gap(attempts) or (not attempts and _said_completed(rollout)):
            counts["number_gaps"] += 1
            notes.add("NUMBER_GAP", rollout.enqueued)
        _count_retries(attempts, budget, counts, unexpected)
        silent += [attempt.started for attempt in attempts if _is_silent(attempt, rollout)]
        deciding = deciding_attempt(rollout)
        if rollout.ended and rollout.ended.body.status == runner_pb2.ROLLOUT_STATUS_SUCCEEDED and deciding:
            counts["succeeded_after_retry"] += deciding.number > 1
    counts["unexpected"], counts["silent"] = len(unexpected), len(silent)
    if given.policy is not None:
        bounds = given.policy.retry_debt
        notes.add_if(len(unexpected) > bounds.max_unexpected, "UNEXPECTED_RETRY", *unexpected)
        notes.add_if(len(silent) > bounds.max_silent, "SILENT_FAILURE", *silent)
    notes.counts = counts
    return notes


def _said_completed(rollout: RolloutEvidence) -> bool:
    return rollout.ended is not None and rollout.ended.body.status in _COMPLETED_ROLLOUT


def _has_gap(attempts: list[Attempt]) -> bool:
    numbers = [attempt.number for attempt in attempts]
    if numbers != list(range(1, len(numbers) + 1)):
        return True
    return bool(attempts) and attempts[0].started.body.reason != runner_pb2.ATTEMPT_REASON_FIRST


def _count_retries(
    attempts: list[Attempt],
    budget: options_pb2.RetryBudget | None,
    counts: dict[str, int],
    unexpected: list[Fact],
) -> None:
    used = {"expected": 0, "infrastructure": 0}
    kinds = {
        runner_pb2.ATTEMPT_REASON_EXPECTED_RETRY: "expected",
        runner_pb2.ATTEMPT_REASON_INFRASTRUCTURE_RETRY: "infrastructure",
    }
    for attempt in attempts:
        counts["attempts"] += 1
        if attempt.number < 2:
            continue
        counts["retries"] += 1
        kind = kinds.get(attempt.started.body.reason)
        if kind is None:
            unexpected.append(attempt.started)
            continue
        used[kind] += 1
        counts[kind] += 1
        if budget is not None and used[kind] > getattr(budget, kind):
            unexpected.append(attempt.started)


def _is_silent(attempt: Attempt, rollout: RolloutEvidence) -> bool:
    if attempt.ended is None:
        return rollout.ended is not None
    if attempt.ended.body.outcome == runner_pb2.ATTEMPT_OUTCOME_SUCCEEDED:
        return False
    return not attempt.ended.body.reason.strip()
