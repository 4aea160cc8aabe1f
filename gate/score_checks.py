"""Checks 4 and 5, rules version 1 (checks.md section 3): candidate against its exact parent.

Rules: those of `gate.checks`, and
1. Scores are compared as exact rationals, never as rounded doubles: per case the mean of its trials, then the
   mean over cases, weight 1 each.
2. A case without both means is MISSING; it never leaves the denominator. A zero on a run that hit its limit
   is a score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gate.checks import Input
from gate.evidence import Evaluation, evaluation_facts
from gate.finding import Notes
from ledger.v1 import judge_pb2, operator_pb2

__all__ = [
    "Means",
    "beats_parent",
    "exact_mean",
    "exact_total",
    "holdout_gain",
    "protected_cases",
    "protected_families",
    "regressions",
]

_SIGNS: Final[dict[int, int]] = {
    operator_pb2.DIRECTION_HIGHER_IS_BETTER: 1,
    operator_pb2.DIRECTION_LOWER_IS_BETTER: -1,
}
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
    return None if evaluator is None else _SIGNS.get(evaluator.body.direction)


def _complete(notes: Notes, evaluation: Evaluation | None) -> bool:
    if evaluation is None:
        notes.add("EVALUATION_ABSENT")
        return False
    notes.cite(evaluation_facts(evaluation))
    notes.add_if("" in evaluation.conflicts, "CONFLICT")
    notes.add_if(evaluation.closed is None, "EVALUATION_OPEN")
    closed, numbers = evaluation.closed, evaluation.parts
    told = {fact.body.part.of for fact in numbers.values()}
    if closed is not None:
        told.add(closed.body.parts)
    whole = told == {len(numbers)} and max(numbers) == len(numbers)
    results = sum(len(fact.body.scores) for fact in numbers.values())
    short = closed is not None and results != closed.body.results
    notes.add_if(not whole or short, "PART_MISSING", *(() if closed is None else (closed,)))
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
    scores = [result.score for result in results if result.HasField("score") and math.isfinite(result.score)]
    notes.add_if(len(scores) < len(results), "UNSCORABLE")
    if not results:
        notes.add("CASE_UNSCORED")
    elif len(scores) < min_trials:
        notes.add("TOO_FEW_TRIALS")
    return exact_mean(scores) if scores else None


def exact_mean(scores: list[float]) -> Fraction:
    """The exact mean of finite scores; at least one."""
    # Denominators of floats are powers of 2, so the largest is a multiple of all.
    ratios = [score.as_integer_ratio() for score in scores]
    common = max(denominator for _, denominator in ratios)
    total = sum(numerator * (common // denominator) for numerator, denominator in ratios)
    return Fraction(total, common * len(scores))


def exact_total(values: Iterable[Fraction]) -> Fraction:
    """The exact sum. Few denominators occur among means, so numerators over the same one are added first."""
    numerators: dict[int, int] = {}
    for value in values:
        numerators[value.denominator] = numerators.get(value.denominator, 0) + value.numerator
    return sum((Fraction(total, under) for under, total in numerators.items()), Fraction(0))


def _holdout_cases(given: Input) -> list[str] | None:
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
    cases = _holdout_cases(given)
    notes.add_if(cases is None, "PIN_ABSENT")
    means = _means(given, notes, 4, cases or ())
    if means is None or not cases or not all(c in means.parent and c in means.candidate for c in cases):
        return means, None
    better = exact_total(means.candidate[case] for case in cases) - exact_total(
        means.parent[case] for case in cases
    )
    return means, better * means.sign / len(cases)


def beats_parent(given: Input) -> Notes:
    """Check 4: on the locked holdout the candidate beats its exact parent by more than the margin."""
    notes = Notes("beats_parent")
    means, gain = holdout_gain(given, notes)
    cases = _holdout_cases(given) or []
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
    }
    if before is not None:
        notes.counts["judged_before"] = before
    if gain is not None and given.policy is not None:
        notes.counts["gain_millionths"] = gain.numerator * 1_000_000 // gain.denominator
        notes.add_if(gain <= given.policy.beats_parent.exact_margin, "NO_GAIN")
    limit = None if given.policy is None else given.policy.beats_parent.max_candidates_judged_before
    notes.add_if(limit is not None and before is not None and before > limit, "HOLDOUT_OVERUSED")
    return notes


def _judged_before(given: Input) -> int | None:
    """Candidates of other updates judged on this holdout at lower indexes than this update's evaluation."""
    evaluation = given.evidence.evaluations.get(4, {}).get(judge_pb2.SUBJECT_CANDIDATE)
    pins = given.pins
    if evaluation is None or pins is None:
        return None
    until = min(fact.index for fact in evaluation.parts.values())
    judged = given.receipts.judged_on(pins.holdout_digest, until, given.evidence.size)
    return len(judged - {given.evidence.update})


def protected_families(given: Input) -> dict[str, tuple[list[str], int]] | None:
    """Family -> (case ids, budget) of the frozen protected set; None where there is none in the log."""
    pins = given.pins
    if pins is None or not pins.HasField("protected_set_digest"):
        return None
    registry, size = given.receipts.registry, given.evidence.size
    published = registry.by_digest("protected_set", pins.protected_set_digest, size)
    if published is None:
        return None
    families: dict[str, tuple[list[str], int]] = {}
    for fact in published.facts:
        for family in fact.body.families:
            cases, budget = families.get(family.name, ([], family.regression_budget))
            merged = list(dict.fromkeys([*cases, *family.case_ids]))
            families[family.name] = (merged, min(budget, family.regression_budget))
    return families


def regressions(given: Input, notes: Notes) -> tuple[Means | None, list[str]]:
    """Means of the protected cases, and those that are worse than the parent's."""
    families = protected_families(given) or {}
    protected = list(dict.fromkeys(case for cases, _ in families.values() for case in cases))
    means = _means(given, notes, 5, protected)
    if means is None:
        return None, []
    both = [case for case in protected if case in means.parent and case in means.candidate]
    return means, [case for case in both if means.gain(case) < 0]


def protected_cases(given: Input) -> Notes:
    """Check 5: no protected family regressed beyond its budget; gains elsewhere offset nothing."""
    notes = Notes("protected_cases")
    families = protected_families(given)
    notes.add_if(families is None, "PIN_ABSENT")
    protected = {case for cases, _ in (families or {}).values() for case in cases}
    notes.add_if(not protected, "NO_PROTECTED_CASE")
    means, fallen = regressions(given, notes)
    over = [n for n, (cases, budget) in (families or {}).items() if len(set(fallen) & set(cases)) > budget]
    notes.add_if(bool(over), "CASES_REGRESSED")
    notes.counts = {
        "protected": len(protected),
        "scored": 0 if means is None else len(set(means.parent) & set(means.candidate)),
        "families": len(families or {}),
    }
    if notes.counts["scored"]:
        notes.counts |= {"regressed": len(fallen), "families_regressed": len(over)}
    return notes
