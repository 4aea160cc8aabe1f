"""The candidates file: what a user edits to see which check changes.

Rules:
1. Strict: unknown keys, "yes" for true, impossible numbers and candidates named twice are refused, saying
   where and what would be possible. Nothing is clamped.
2. What is left out is off: no candidate regresses, retries or loses anything that the file does not say.
3. `"approval": {"by": null}` says that nobody approves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gate.policy import parse_policy
from ledger.errors import FormatError

__all__ = [
    "Candidate",
    "DemoDocument",
    "Training",
    "check_approvers",
    "check_principals",
    "parse_document",
    "solved_by",
    "solved_by_parent",
]

_Count = Annotated[int, Field(strict=True, ge=0)]
_Counting = Annotated[int, Field(strict=True, ge=1)]
_Rollouts = Annotated[int, Field(strict=True, ge=0, le=2000)]  # of one candidate: what a demo waits for
_Part = Annotated[str, Field(pattern=r"^[!-*,-.0-~]{1,100}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Workflow(_Strict):
    """What the workflow declares before results are seen."""

    name: _Part
    segment: _Part
    span_families: Annotated[dict[_Part, _Counting], Field(min_length=1)]
    expected_retries: _Count
    infrastructure_retries: _Count


class Holdout(_Strict):
    """The locked holdout: families of equally many cases, of which the parent solves six in ten."""

    families: Annotated[tuple[_Part, ...], Field(min_length=1)]
    cases_per_family: _Counting
    protected: tuple[_Part, ...]

    @model_validator(mode="after")
    def _families_are_different(self) -> Holdout:
        if len(set(self.families)) != len(self.families) or not set(self.protected) <= set(self.families):
            raise ValueError("expected different families, and protected ones among them")
        return self

    def cases(self, families: Collection[str] | None = None) -> list[str]:
        """Case ids, family by family; of `families` only, where they are given."""
        chosen = self.families if families is None else families
        return [f"{family}-{n:02d}" for family in chosen for n in range(1, self.cases_per_family + 1)]


class Training(_Strict):
    """What the rollouts of an update left behind."""

    rollouts: _Rollouts
    covered: _Count
    expected_retries: _Count = 0
    infrastructure_retries: _Count = 0
    unexpected_retries: _Count = 0
    silent_failures: _Count = 0
    left_open: _Count = 0

    @model_validator(mode="after")
    def _fits(self) -> Training:
        retried = self.expected_retries + self.infrastructure_retries + self.unexpected_retries
        if self.covered > self.rollouts or retried + self.silent_failures + self.left_open > self.rollouts:
            raise ValueError(
                f"expected covered, and retries + silent + open, of at most {self.rollouts} rollouts"
            )
        return self


class Registration(_Strict):
    """What the trainer registered."""

    registered: bool = True
    names_pinned_parent: bool = True
    second: bool = False


class EvaluationSpec(_Strict):
    """What the judge found. `gain` is candidate minus parent, as a share of the cases."""

    gain: Decimal
    protected_regressions: _Count = 0
    unscored_cases: _Count = 0
    closed: bool = True


class Canary(_Strict):
    """What the rehearsal window showed. Tasks beyond `verified` were not found at their destination."""

    tasks: _Counting
    verified: _Count
    errors: _Count = 0
    harm: _Count = 0
    harm_unobserved: _Count = 0
    unmeasured: _Count = 0
    pinned_environment: bool = True

    @model_validator(mode="after")
    def _fits(self) -> Canary:
        if self.verified + self.errors > self.tasks:
            raise ValueError(f"expected verified + errors of at most {self.tasks} tasks")
        if self.harm > self.tasks or self.harm_unobserved > self.tasks or self.unmeasured > self.tasks:
            raise ValueError(f"expected harm, harm_unobserved and unmeasured of at most {self.tasks} tasks")
        return self


class Rollback(_Strict):
    """What the rehearsal of the way back showed."""

    rehearsed: bool = True
    resolved: bool
    loaded: bool
    served: bool
    routed_back: bool


class Approval(_Strict):
    """Who approves, and for how long. `by` null: nobody does."""

    by: str | None
    valid_for_seconds: _Counting = 3600


class Candidate(_Strict):
    """One update and everything that is recorded of it."""

    name: _Part
    story: str
    training: Training
    candidate: Registration = Registration()
    evaluation: EvaluationSpec
    canary: Canary
    rollback: Rollback
    approval: Approval


class DemoDocument(_Strict):
    """The whole file."""

    workflow: Workflow
    resource: _Part
    holdout: Holdout
    policy: dict[str, Any]
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=1)]

    @property
    def policy_bytes(self) -> bytes:
        """The exact policy text that is published."""
        return json.dumps(self.policy, sort_keys=True, indent=1).encode()


def solved_by_parent(holdout: Holdout) -> set[str]:
    """The cases that the parent solves: six in ten."""
    return {case for position, case in enumerate(holdout.cases()) if position % 10 < 6}


def solved_by(holdout: Holdout, spec: EvaluationSpec, parent: set[str] | None = None) -> set[str]:
    """The cases that a candidate solves whose evaluation is told so; `parent`: what its parent solves."""
    before = solved_by_parent(holdout) if parent is None else parent
    protected = holdout.cases(holdout.protected)
    others = [case for case in holdout.cases() if case not in set(protected)]
    lost = [case for case in protected if case in before][: spec.protected_regressions]
    net = int(spec.gain * len(holdout.cases())) + len(lost)
    won = [case for case in others if case not in before][: max(net, 0)]
    fallen = [case for case in others if case in before][: max(-net, 0)]
    return (before - set(lost) - set(fallen)) | set(won)


def parse_document(data: bytes) -> DemoDocument:
    """Parses a candidates file. Raises FormatError(BAD_CANDIDATES, BAD_POLICY)."""
    try:
        document = DemoDocument.model_validate_json(data)
    except ValidationError as error:
        raise FormatError("BAD_CANDIDATES", _said(error, data)) from error
    names = [candidate.name for candidate in document.candidates]
    if len(set(names)) != len(names):
        raise FormatError("BAD_CANDIDATES", f"expected different names, got {', '.join(names)}")
    parse_policy(document.policy_bytes)
    for candidate in document.candidates:
        _check_evaluation(document.holdout, candidate)
    return document


def _said(error: ValidationError, data: bytes) -> str:
    """The first fault in words: where, by the candidate's name, what was expected, what came."""
    first = error.errors()[0]
    path = list(first["loc"])
    if path[:1] == ["candidates"] and len(path) > 1:
        path[:2] = [_name_of(data, int(path[1]))]
    where = ".".join(str(part) for part in path) or "file"
    got, message = first["input"], first["msg"].removeprefix("Value error, ")
    if isinstance(got, str | int | float | None):  # a whole object would hide what is wrong with it
        message += f", got {json.dumps(got)[:200]}"
    return f"{where}: {message}"


def _name_of(data: bytes, position: int) -> str:
    """The candidate's name as the file says it, or its place where that is none."""
    candidate = json.loads(data)["candidates"][position]
    name = candidate.get("name") if isinstance(candidate, dict) else None
    return name if isinstance(name, str) else f"candidates.{position}"


def check_approvers(document: DemoDocument, approvers: Collection[str]) -> None:
    """Raises FormatError(BAD_CANDIDATES) unless each approval is by one of `approvers`, or by nobody."""
    for candidate in document.candidates:
        by = candidate.approval.by
        if by is not None and by not in approvers:
            raise FormatError(
                "BAD_CANDIDATES",
                f"{candidate.name}.approval.by: expected {' or '.join(approvers)}, or null for nobody, "
                f"got {by!r}",
            )


def check_principals(document: DemoDocument, roles: Mapping[str, str]) -> None:
    """Raises FormatError(BAD_CANDIDATES) where the policy names principals that `roles` does not know so."""
    who = parse_policy(document.policy_bytes).principals
    for field, names, role in (
        ("judges", who.judges, "judge"),
        ("canaries", who.canaries, "canary"),
        ("canary_approvers", who.canary_approvers, "approver"),
        ("default_approvers", who.default_approvers, "approver"),
    ):
        for name in names:
            if roles.get(name) != role:
                known = " or ".join(sorted(known for known, its in roles.items() if its == role))
                got = f"{name}, {roles[name]}" if name in roles else f"{name}, whom the demo's home lacks"
                raise FormatError(
                    "BAD_CANDIDATES", f"policy.principals.{field}: expected {known}, the demo's, got {got}"
                )


def _check_evaluation(holdout: Holdout, candidate: Candidate) -> None:
    """Refuses what no evaluation on this holdout can show."""
    spec, cases = candidate.evaluation, holdout.cases()
    wanted = spec.gain * len(cases)
    if not wanted.is_finite() or wanted != int(wanted):
        _refuse(candidate, "gain", f"a multiple of 1/{len(cases)}", spec.gain)
    if spec.unscored_cases > len(cases):
        _refuse(candidate, "unscored_cases", f"at most {len(cases)}, all cases", spec.unscored_cases)
    solved, protected = solved_by_parent(holdout), set(holdout.cases(holdout.protected))
    can_fall = len(protected & solved)
    if spec.protected_regressions > can_fall:
        what = f"at most {can_fall}, the protected cases that the parent solves"
        _refuse(candidate, "protected_regressions", what, spec.protected_regressions)
    others, lost = set(cases) - protected, spec.protected_regressions
    most, least = len(others - solved) - lost, -len(others & solved) - lost
    if not least <= int(wanted) <= most:
        what = (
            f"{Decimal(least) / len(cases)} to {Decimal(most) / len(cases)}, since of {len(cases)} cases "
            f"{len(others - solved)} unprotected ones can be won and {lost} protected ones are lost"
        )
        _refuse(candidate, "gain", what, spec.gain)


def _refuse(candidate: Candidate, field: str, expected: str, got: object) -> None:
    raise FormatError(
        "BAD_CANDIDATES", f"{candidate.name}.evaluation.{field}: expected {expected}, got {got}"
    )
