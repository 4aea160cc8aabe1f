"""Every reason code and count name of rules version 1. A name here never changes its meaning.

Codes stand in findings, findings stand in the log: what is listed here can be added to, never edited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.v1 import gate_pb2

__all__ = ["CHECKS", "COUNTS", "REASONS", "RULES"]

RULES: Final = 1

# In order of their numbers, 1 to 7.
CHECKS: Final = (
    "identity_pinned",
    "span_coverage",
    "retry_debt",
    "beats_parent",
    "protected_cases",
    "canary_verified",
    "rollback_and_authority",
)

_STALE: Final = (
    "STALE_EVALUATOR",
    "STALE_PROTECTED_SET",
    "STALE_POLICY",
    "STALE_HOLDOUT",
    "STALE_TASK_DISTRIBUTION",
    "STALE_PERMISSIONS",
    "STALE_DESTINATION",
    "STALE_MODEL_SERVER",
    "STALE_TOOL_CONTRACT",
    "STALE_HARNESS",
    "STALE_TOKENIZER",
    "STALE_RETRY_POLICY",
    "STALE_SPAN_FAMILIES",
    "STALE_RETRY_BUDGETS",
    "STALE_PARENT",
)

# reason code -> (state, what it says)
REASONS: Final[Mapping[str, tuple[int, str]]] = {
    **{
        code: (gate_pb2.STATE_STALE, code.removeprefix("STALE_").replace("_", " ").lower() + " changed since")
        for code in _STALE
    },
    # any check
    "CONFLICT": (gate_pb2.STATE_ERROR, "one fact was claimed twice, differently"),
    "PIN_ABSENT": (gate_pb2.STATE_MISSING, "something that must be frozen is not"),
    # 1 identity_pinned
    "TRAINING_OPEN": (gate_pb2.STATE_MISSING, "training did not start, or did not end"),
    "NO_CANDIDATE": (gate_pb2.STATE_MISSING, "no candidate was registered"),
    "FROZEN_LATE": (gate_pb2.STATE_FAIL, "training started before the identity was frozen"),
    "SECOND_CANDIDATE": (gate_pb2.STATE_FAIL, "more than one candidate was registered"),
    "CANDIDATE_EARLY": (gate_pb2.STATE_FAIL, "the candidate was registered before training ended"),
    "PARENT_MISMATCH": (gate_pb2.STATE_FAIL, "the candidate names another parent than the frozen one"),
    "SHARED_CONTROLLER": (gate_pb2.STATE_FAIL, "producer, judge, canary and gate are not independent"),
    "TRAINED_WHILE_PAUSED": (gate_pb2.STATE_FAIL, "something was trained or registered while paused"),
    # 2 span_coverage, 3 retry_debt
    "WINDOW_EMPTY": (gate_pb2.STATE_MISSING, "no rollout in the window"),
    "ROLLOUT_OPEN": (gate_pb2.STATE_MISSING, "a rollout has no end"),
    "COVERAGE_SHORT": (gate_pb2.STATE_FAIL, "a deciding attempt lacks spans of a declared family"),
    "TOO_FEW_COMPLETED": (gate_pb2.STATE_FAIL, "fewer completed rollouts than the policy requires"),
    "UNEXPECTED_RETRY": (gate_pb2.STATE_FAIL, "more unexpected retries than the policy allows"),
    "SILENT_FAILURE": (gate_pb2.STATE_FAIL, "an attempt ended without an end or a reason"),
    "NUMBER_GAP": (gate_pb2.STATE_MISSING, "an attempt is not there, or the first is not declared FIRST"),
    "BUDGET_ABSENT": (gate_pb2.STATE_MISSING, "no retry budget was frozen"),
    # 4 beats_parent, 5 protected_cases
    "NO_GAIN": (gate_pb2.STATE_FAIL, "the gain does not exceed the margin"),
    "HOLDOUT_OVERUSED": (gate_pb2.STATE_FAIL, "too many candidates were judged on this holdout before"),
    "EVALUATION_ABSENT": (gate_pb2.STATE_MISSING, "a subject was not evaluated"),
    "EVALUATION_OPEN": (gate_pb2.STATE_MISSING, "an evaluation was not closed"),
    "PART_MISSING": (gate_pb2.STATE_MISSING, "a part of an evaluation is not there"),
    "CASE_UNSCORED": (gate_pb2.STATE_MISSING, "a case has no score"),
    "UNSCORABLE": (gate_pb2.STATE_MISSING, "a trial could not be scored"),
    "TOO_FEW_TRIALS": (gate_pb2.STATE_MISSING, "a case has fewer trials than the policy requires"),
    "CASES_REGRESSED": (gate_pb2.STATE_FAIL, "a protected family regressed beyond its budget"),
    "NO_PROTECTED_CASE": (gate_pb2.STATE_MISSING, "no protected case"),
    # 6 canary_verified
    "NOT_VERIFIED": (gate_pb2.STATE_FAIL, "an effect was not found at its destination"),
    "HARM": (gate_pb2.STATE_FAIL, "harm was observed"),
    "BOUND_EXCEEDED": (gate_pb2.STATE_FAIL, "a window used more than its bounds"),
    "BOUND_TOO_WIDE": (gate_pb2.STATE_FAIL, "a window's bounds are wider than the policy's"),
    "METHOD_NOT_ALLOWED": (
        gate_pb2.STATE_FAIL,
        "an effect was verified by a method that the policy does not allow",
    ),
    "UNDECLARED_TASK": (gate_pb2.STATE_FAIL, "a task was recorded that the window did not declare"),
    "TOO_FEW_TASKS": (gate_pb2.STATE_FAIL, "a window declared fewer tasks than the policy requires"),
    "ENVIRONMENT_MISMATCH": (gate_pb2.STATE_FAIL, "a window ran in another environment than the frozen one"),
    "TASK_ERROR": (gate_pb2.STATE_ERROR, "the check of an effect itself failed"),
    "WINDOW_ABSENT": (gate_pb2.STATE_MISSING, "no canary window of the kind that this step needs"),
    "WINDOW_OPEN": (gate_pb2.STATE_MISSING, "a window was not closed"),
    "TASK_ABSENT": (gate_pb2.STATE_MISSING, "a declared task has no record"),
    "HARM_UNOBSERVED": (gate_pb2.STATE_MISSING, "nobody looked for harm"),
    "BOUND_UNDECLARED": (gate_pb2.STATE_MISSING, "a window did not declare a bound"),
    "BOUND_UNMEASURED": (gate_pb2.STATE_MISSING, "the use of a bound was not measured"),
    "UNCERTAINTY_ABSENT": (gate_pb2.STATE_MISSING, "a judge's or human's uncertainty is not there"),
    # 7 rollback_and_authority
    "NOT_RESOLVED": (gate_pb2.STATE_FAIL, "the parent could not be resolved"),
    "NOT_LOADED": (gate_pb2.STATE_FAIL, "the parent could not be loaded"),
    "NOT_SERVED": (gate_pb2.STATE_FAIL, "the parent did not answer"),
    "NOT_ROUTED_BACK": (gate_pb2.STATE_FAIL, "the route did not come back"),
    "APPROVER_NOT_NAMED": (gate_pb2.STATE_FAIL, "approved by somebody who is not named for this step"),
    "APPROVER_NOT_INDEPENDENT": (gate_pb2.STATE_FAIL, "approved by somebody who made evidence"),
    "REHEARSAL_ABSENT": (gate_pb2.STATE_MISSING, "the way back to the parent was not rehearsed in a window"),
    "APPROVAL_NONE": (gate_pb2.STATE_MISSING, "nobody approved"),
    "APPROVAL_OTHER_DIGEST": (gate_pb2.STATE_MISSING, "approved for other evidence or another policy"),
    "APPROVAL_EXPIRED": (gate_pb2.STATE_MISSING, "the approval expired"),
    "APPROVAL_WITHDRAWN": (gate_pb2.STATE_MISSING, "the approval was withdrawn"),
}

# check -> its counts. Rates are never stored: numerator and denominator are.
COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "identity_pinned": ("candidates", "freezes", "pins_absent"),
    "span_coverage": (
        "cancelled",
        "completed",
        "covered",
        "lost",
        "open",
        "rollouts",
        "timeout",
        "without_completed_attempt",
    ),
    "retry_debt": (
        "attempts",
        "expected",
        "infrastructure",
        "number_gaps",
        "retries",
        "silent",
        "succeeded_after_retry",
        "unexpected",
    ),
    # A count of what was not measured is absent: gain_millionths (the exact gain in units of 10^-6, rounded
    # down) where a mean is missing, judged_before without an evaluation, regressed where nothing was scored.
    "beats_parent": ("better", "cases", "equal", "gain_millionths", "judged_before", "scored", "worse"),
    "protected_cases": ("families", "families_regressed", "protected", "regressed", "scored"),
    "canary_verified": ("harm", "harm_unobserved", "live_windows", "tasks", "verified", "windows"),
    "rollback_and_authority": ("approvals", "fulfilling", "rehearsals", "windows"),
}
