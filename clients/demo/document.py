"""The candidates file: what a user edits to see which check changes.

Rules:
1. Strict: unknown keys, impossible numbers and candidates named twice are refused, saying where.
2. What is left out is off: no candidate regresses, retries or loses anything that the file does not say.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gate.policy import parse_policy
from ledger.errors import FormatError

__all__ = ["Candidate", "DemoDocument", "parse_document"]

_Count = Annotated[int, Field(strict=True, ge=0)]
_Counting = Annotated[int, Field(strict=True, ge=1)]
_Part = Annotated[str, Field(pattern=r"^[!-*,-.0-~]{1,100}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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


class Training(_Strict):
    """What the rollouts of an update left behind."""

    rollouts: _Count
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
    """Who approves, and for how long."""

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


def parse_document(data: bytes) -> DemoDocument:
    """Parses a candidates file. Raises FormatError(BAD_CANDIDATES, BAD_POLICY)."""
    try:
        document = DemoDocument.model_validate(json.loads(data))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FormatError("BAD_CANDIDATES", f"expected JSON text, got: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise FormatError(
            "BAD_CANDIDATES", f"{where}: {first['msg']}, got {str(first['input'])[:80]!r}"
        ) from error
    names = [candidate.name for candidate in document.candidates]
    if len(set(names)) != len(names):
        raise FormatError("BAD_CANDIDATES", f"expected different names, got {', '.join(names)}")
    parse_policy(document.policy_bytes)
    _check_gains(document)
    return document


def _check_gains(document: DemoDocument) -> None:
    holdout = document.holdout
    cases = len(holdout.families) * holdout.cases_per_family
    for candidate in document.candidates:
        wanted = candidate.evaluation.gain * cases
        if not wanted.is_finite() or wanted != int(wanted):
            raise FormatError(
                "BAD_CANDIDATES",
                f"{candidate.name}.evaluation.gain: expected a multiple of 1/{cases}, "
                f"got {candidate.evaluation.gain}",
            )
