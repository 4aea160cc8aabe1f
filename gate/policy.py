"""Policies: the gate's thresholds, as people write them and as checks read them.

Rules:
1. A policy is JSON text; its digest is SHA-256 of exactly these bytes.
2. Strict: unknown or repeated keys, NaN, empty lists where something must stand, contradictory thresholds are
   refused. There is no expression language: absent, null and NaN mean too many things in those (law 10).
3. Numbers with a fraction are read as decimal text, exactly; no double is involved.
4. A default is either strictest or absent. What must be chosen (`min_completed`, `min_tasks`, the bounds, the
   principals) has none.
"""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gate.reasons import RULES
from ledger.errors import CannotTellError, FormatError

__all__ = [
    "BeatsParent",
    "CanaryBounds",
    "CanaryVerified",
    "Policy",
    "Principals",
    "RetryDebt",
    "SpanCoverage",
    "parse_policy",
    "policy_digest",
]

_MAX_BYTES: Final = 32_768
_MAX_MAGNITUDE: Final = 30  # of a margin, as a power of ten

_Name = Annotated[str, Field(pattern=r"^[!-*,-~]{1,128}$")]
_Names = Annotated[tuple[_Name, ...], Field(min_length=1)]
_Count = Annotated[int, Field(strict=True, ge=0)]
_Counting = Annotated[int, Field(strict=True, ge=1)]

_Method = Literal["READ_BACK_FILE", "READ_BACK_HTTP", "READ_BACK_SQL", "JUDGE", "HUMAN"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Principals(_Strict):
    """Who may judge, run canaries, approve each step: principals by name."""

    judges: _Names
    canaries: _Names
    canary_approvers: _Names
    default_approvers: _Names


class SpanCoverage(_Strict):
    """Check 2."""

    min_completed: _Counting


class RetryDebt(_Strict):
    """Check 3. Two bounds, never summed."""

    max_unexpected: _Count = 0
    max_silent: _Count = 0


class BeatsParent(_Strict):
    """Check 4. `margin` in units of the score."""

    margin: Decimal = Decimal(0)
    min_trials: _Counting = 1
    max_candidates_judged_before: _Count | None = None

    @property
    def exact_margin(self) -> Fraction:
        """The margin as an exact rational."""
        return Fraction(self.margin)

    @model_validator(mode="after")
    def _margin_is_a_bound(self) -> BeatsParent:
        if not self.margin.is_finite() or self.margin < 0:
            raise ValueError("margin: expected a finite number of at least 0")
        # As an exact rational 1e999999999 would not fit a machine.
        if self.margin and not -_MAX_MAGNITUDE <= self.margin.adjusted() <= _MAX_MAGNITUDE:
            raise ValueError(f"margin: expected a power of ten of at most {_MAX_MAGNITUDE} in size")
        return self


class CanaryBounds(_Strict):
    """The widest bounds that a window may declare."""

    tasks: _Counting
    wall_time_us: _Counting
    tools: tuple[_Name, ...]
    micro_usd: _Count
    side_effects: tuple[_Name, ...]


class CanaryVerified(_Strict):
    """Check 6."""

    min_tasks: _Counting
    methods: Annotated[tuple[_Method, ...], Field(min_length=1)] = (
        "READ_BACK_FILE",
        "READ_BACK_HTTP",
        "READ_BACK_SQL",
    )
    bounds: CanaryBounds

    @model_validator(mode="after")
    def _tasks_fit(self) -> CanaryVerified:
        if self.min_tasks > self.bounds.tasks:
            raise ValueError(
                f"min_tasks: expected at most bounds.tasks ({self.bounds.tasks}), got {self.min_tasks}"
            )
        return self


class Policy(_Strict):
    """A policy of rules version 1. Source: checks.md section 3."""

    rules: Annotated[int, Field(strict=True, ge=RULES, le=RULES)]  # Literal[1] would take true and 1.0
    name: _Name
    version: _Name
    principals: Principals
    span_coverage: SpanCoverage
    retry_debt: RetryDebt = RetryDebt()
    beats_parent: BeatsParent = BeatsParent()
    canary_verified: CanaryVerified
    max_redos: _Count = 0


def policy_digest(document: bytes) -> bytes:
    """SHA-256 of the exact text."""
    return hashlib.sha256(document).digest()


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise FormatError("BAD_POLICY", f"expected each key once, got {key[:80]!r} again")
        document[key] = value
    return document


def _no_constant(text: str) -> Any:
    raise FormatError("BAD_POLICY", f"expected finite numbers, got {text}")


@lru_cache(maxsize=256)
def parse_policy(document: bytes) -> Policy:
    """Parses a policy. Raises FormatError(BAD_POLICY); CannotTellError(RULES_UNKNOWN) for newer rules."""
    if len(document) > _MAX_BYTES:
        raise FormatError("BAD_POLICY", f"expected at most {_MAX_BYTES} bytes, got {len(document)}")
    try:
        raw = json.loads(
            document.decode("utf-8"),
            parse_float=Decimal,
            parse_constant=_no_constant,
            object_pairs_hook=_no_repeats,
        )
    except (ValueError, RecursionError, ArithmeticError) as error:  # no UTF-8, no JSON, no number in range
        raise FormatError("BAD_POLICY", f"expected JSON text, got: {error}") from error
    if not isinstance(raw, dict):
        raise FormatError("BAD_POLICY", f"expected a JSON object, got {type(raw).__name__}")
    rules = raw.get("rules")
    if isinstance(rules, int) and not isinstance(rules, bool) and rules > RULES:
        raise CannotTellError("RULES_UNKNOWN", f"expected rules of at most version {RULES}, got {rules}")
    try:
        return Policy.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "policy"
        got = first["input"]
        # A whole object or list would hide what is wrong with it.
        shown = "" if isinstance(got, dict | list | tuple) else f", got {str(got)[:80]!r}"
        raise FormatError("BAD_POLICY", f"{where}: {first['msg']}{shown}") from error
