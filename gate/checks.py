"""The seven checks, rules version 1 (checks.md section 3).

Rules:
1. A check is a pure function of evidence, policy and registry; it knows no clock but the prefix's.
2. Absence is MISSING, never a smaller denominator; zero cases, tasks or rollouts never pass (laws 9 and 10).
3. Every code noted is listed in `gate.reasons`; the state is the first that applies.
4. Scores are compared as exact rationals, never as rounded doubles.

Checks 6 and 7 stand in `gate.canary_checks`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gate.evidence import (
    Attempt,
    Evaluation,
    Evidence,
    RolloutEvidence,
    attempt_facts,
    evaluation_facts,
    pinned_environment,
)
from gate.finding import Notes
from gate.policy import Policy
from ledger.fact import Fact
from ledger.receipt import Receipts
from ledger.v1 import gate_pb2, judge_pb2, operator_pb2, options_pb2, runner_pb2

__all__ = [
    "Input",
    "Means",
    "beats_parent",
    "identity_pinned",
    "protected_cases",
    "retry_debt",
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
    if started is not None and evidence.freezes:
        notes.add_if(evidence.freezes[0].index > started.index, "FROZEN_LATE", evidence.freezes[0], started)
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
    evidence, groups = (
        given.evidence,
        {"producer": set[str](), "judge": set(), "canary": set(), "gate": set()},
    )

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
    return runner_pb2.RolloutStatus.Name(rollout.ended.body.status).removeprefix("ROLLOUT_STATUS_").lower()


def span_coverage(given: Input) -> Notes:
    """Check 2: every completed rollout shows the spans that its workflow declared."""
    notes, rollouts = Notes("span_coverage"), given.evidence.rollouts
    counts = dict.fromkeys(("open", "cancelled", "timeout", "lost", "without_completed_attempt"), 0)
    counts |= {"rollouts": len(rollouts), "completed": 0, "covered": 0}
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
    names = (
        "attempts",
        "expected",
        "infrastructure",
        "number_gaps",
        "retries",
        "silent",
        "succeeded_after_retry",
        "unexpected",
    )
    counts = dict.fromkeys(names, 0)
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


# --- 4 beats_parent, 5 protected_cases ---------------------------------------------------------------------

_SUBJECTS: Final = (judge_pb2.SUBJECT_PARENT, judge_pb2.SUBJECT_CANDIDATE)


@dataclass(frozen=True, slots=True)
class Means:
    """Exact case means of both subjects, for the cases that both have; better is greater (`sign`)."""

    parent: dict[str, Fraction]
    candidate: dict[str, Fraction]
    sign: int

    def gain(self, case: str) -> Fraction:
        """Candidate minus parent in the evaluator's direction."""
        return (self.candidate[case] - self.parent[case]) * self.sign


def _direction(given: Input) -> int | None:
    pins = given.pins
    if pins is None or not pins.HasField("evaluator_digest"):
        return None
    evaluator = given.receipts.registry.by_digest("evaluator", pins.evaluator_digest, given.evidence.size)
    if evaluator is None:
        return None
    return 1 if evaluator.body.direction == operator_pb2.DIRECTION_HIGHER_IS_BETTER else -1


def _complete(notes: Notes, evaluation: Evaluation | None) -> bool:
    if evaluation is None:
        notes.add("EVALUATION_ABSENT")
        return False
    notes.cite(evaluation_facts(evaluation))
    notes.add_if("" in evaluation.conflicts, "CONFLICT")
    notes.add_if(evaluation.closed is None, "EVALUATION_OPEN")
    of = {fact.body.part.of for fact in evaluation.parts.values()}
    expected = set(range(1, max(of) + 1))
    if evaluation.closed is not None:
        expected = set(range(1, evaluation.closed.body.parts + 1))
        results = sum(len(fact.body.scores) for fact in evaluation.parts.values())
        short = results != evaluation.closed.body.results
        notes.add_if(short and set(evaluation.parts) == expected, "PART_MISSING", evaluation.closed)
    notes.add_if(set(evaluation.parts) != expected, "PART_MISSING")
    return True


def _means(given: Input, notes: Notes, check: int, cases: Iterable[str]) -> Means | None:
    """Means of the cases, every gap noted; None where a pin, the policy or an evaluation is not there."""
    sign = _direction(given)
    notes.add_if(sign is None or given.policy is None, "PIN_ABSENT")
    evaluations = given.evidence.evaluations.get(check, {})
    there = [_complete(notes, evaluations.get(subject)) for subject in _SUBJECTS]
    if sign is None or given.policy is None or not all(there):
        return None
    per_subject: list[dict[str, Fraction]] = []
    wanted = list(cases)
    for subject in _SUBJECTS:
        evaluation, means = evaluations[subject], dict[str, Fraction]()
        for case in wanted:
            mean = _case_mean(notes, evaluation, case, given.policy.beats_parent.min_trials)
            if mean is not None:
                means[case] = mean
        per_subject.append(means)
    return Means(per_subject[0], per_subject[1], sign)


def _case_mean(notes: Notes, evaluation: Evaluation, case: str, min_trials: int) -> Fraction | None:
    results = evaluation.scores.get(case, {}).values()
    notes.add_if(case in evaluation.conflicts, "CONFLICT")
    notes.add_if(any(result.HasField("unscorable") for result in results), "UNSCORABLE")
    scores = [Fraction(result.score) for result in results if result.HasField("score")]
    if not results:
        notes.add("CASE_UNSCORED")
    elif len(scores) < min_trials:
        notes.add("TOO_FEW_TRIALS")
    return sum(scores, Fraction(0)) / len(scores) if scores else None


def holdout_cases(given: Input) -> list[str] | None:
    """Case ids of the frozen holdout, in order; None where it is not pinned or not registered."""
    pins = given.pins
    if pins is None or not pins.HasField("holdout_digest"):
        return None
    holdout = given.receipts.registry.by_digest("holdout", pins.holdout_digest, given.evidence.size)
    if holdout is None:
        return None
    return list(dict.fromkeys(case.id for fact in holdout.facts for case in fact.body.cases))


def holdout_gain(given: Input, notes: Notes) -> tuple[Means | None, Fraction | None]:
    """Means and exact gain over all holdout cases; the gain is None unless every case has both means."""
    cases = holdout_cases(given)
    notes.add_if(cases is None, "PIN_ABSENT")
    means = _means(given, notes, 4, cases or ())
    if means is None or not cases or not all(c in means.parent and c in means.candidate for c in cases):
        return means, None
    return means, sum((means.gain(case) for case in cases), Fraction(0)) / len(cases)


def beats_parent(given: Input) -> Notes:
    """Check 4: on the locked holdout the candidate beats its exact parent by more than the margin."""
    notes = Notes("beats_parent")
    means, gain = holdout_gain(given, notes)
    cases = holdout_cases(given) or []
    notes.add_if(not cases, "CASE_UNSCORED")
    scored = [c for c in cases if means is not None and c in means.parent and c in means.candidate]
    gains = [means.gain(case) for case in scored] if means is not None else []
    before = _judged_before(given)
    notes.counts = {
        "cases": len(cases),
        "scored": len(scored),
        "better": sum(g > 0 for g in gains),
        "worse": sum(g < 0 for g in gains),
        "equal": sum(g == 0 for g in gains),
        "judged_before": before,
    }
    if gain is not None and given.policy is not None:
        notes.counts["gain_millionths"] = gain.numerator * 1_000_000 // gain.denominator
        notes.add_if(gain <= given.policy.beats_parent.exact_margin, "NO_GAIN")
    limit = None if given.policy is None else given.policy.beats_parent.max_candidates_judged_before
    notes.add_if(limit is not None and before > limit, "HOLDOUT_OVERUSED")
    return notes


def _judged_before(given: Input) -> int:
    """Candidates of other updates judged on this holdout at lower indexes than this update's evaluation."""
    evaluation = given.evidence.evaluations.get(4, {}).get(judge_pb2.SUBJECT_CANDIDATE)
    pins = given.pins
    if evaluation is None or pins is None:
        return 0
    until = min(fact.index for fact in evaluation.parts.values())
    judged = given.receipts.judged_on(pins.holdout_digest, until, given.evidence.size)
    return len(judged - {given.evidence.update})


def protected_cases(given: Input) -> Notes:
    """Check 5: no protected family regressed beyond its budget; gains elsewhere offset nothing."""
    notes, pins = Notes("protected_cases"), given.pins
    published = None
    if pins is not None and pins.HasField("protected_set_digest"):
        published = given.receipts.registry.by_digest(
            "protected_set", pins.protected_set_digest, given.evidence.size
        )
    notes.add_if(published is None, "PIN_ABSENT")
    families: dict[str, tuple[dict[str, None], int]] = {}
    for fact in published.facts if published is not None else ():
        for family in fact.body.families:
            cases, budget = families.get(family.name, ({}, family.regression_budget))
            families[family.name] = (
                cases | dict.fromkeys(family.case_ids),
                min(budget, family.regression_budget),
            )
    protected = dict.fromkeys(case for cases, _ in families.values() for case in cases)
    notes.add_if(not protected, "NO_PROTECTED_CASE")
    means = _means(given, notes, 5, protected)
    both = [c for c in protected if means is not None and c in means.parent and c in means.candidate]
    fallen = {case for case in both if means is not None and means.gain(case) < 0}
    over = [name for name, (cases, budget) in families.items() if len(fallen & set(cases)) > budget]
    notes.add_if(bool(over), "CASES_REGRESSED")
    notes.counts = {
        "protected": len(protected),
        "scored": len(both),
        "families": len(families),
        "regressed": len(fallen),
        "families_regressed": len(over),
    }
    return notes
