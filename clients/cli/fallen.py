"""Protected cases that fell, by family, with both means: what check 5 counted, named."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from gate.checks import Input, holdout_gain
from gate.evidence import gather
from gate.finding import Notes
from gate.judge import pinned_policy
from gate.reasons import CHECKS
from ledger.receipt import Receipts

__all__ = ["Fallen", "fallen_cases"]


@dataclass(frozen=True, slots=True)
class Fallen:
    """A protected case whose candidate mean is worse than its parent mean; means are exact."""

    family: str
    case: str
    parent: Fraction
    candidate: Fraction

    def line(self) -> str:
        """In words."""
        return f"{self.family} {self.case}: {_decimal(self.parent)} → {_decimal(self.candidate)}"

    def document(self) -> dict[str, Any]:
        """As JSON types; means as exact fractions."""
        means = {"parent_mean": str(self.parent), "candidate_mean": str(self.candidate)}
        return {"family": self.family, "case": self.case, **means}


def _decimal(value: Fraction) -> str:
    return f"{float(value):.4f}".rstrip("0").rstrip(".")


def fallen_cases(receipts: Receipts, update: str, step: int, size: int) -> list[Fallen]:
    """By family and case, as of `size`; empty where no mean or no protected set is there to compare."""
    evidence = gather(receipts, update, step, size)
    means, _ = holdout_gain(Input(receipts, evidence, pinned_policy(receipts, evidence)), Notes(CHECKS[3]))
    pins = evidence.pins
    published = None if pins is None else receipts.registry.by_digest("protected_set", pins.protected_set_digest, size)
    if means is None or published is None:
        return []
    named = {
        (family.name, case)
        for fact in published.facts
        for family in fact.body.families
        for case in family.case_ids
    }
    return [
        Fallen(family, case, means.parent[case], means.candidate[case])
        for family, case in sorted(named)
        if case in means.parent and case in means.candidate and means.gain(case) < 0
    ]
