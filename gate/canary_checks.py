"""Checks 6 and 7, rules version 1 (checks.md section 3): what the candidate did, who answers for the step.

Rules: those of `gate.checks`. Every window of the step is read: a second, kinder one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gate.checks import Input, makers
from gate.evidence import TARGETS, Window, pinned_environment, window_facts
from gate.finding import Notes
from gate.policy import CanaryBounds, Policy
from gate.reasons import COUNTS
from ledger.environment import environment_digest
from ledger.fact import Fact
from ledger.v1 import canary_pb2, gate_pb2, options_pb2, root_pb2

__all__ = ["canary_verified", "fulfilling_approvals", "rollback_and_authority"]

_SUMS: Final = ("wall_time_us", "micro_usd")  # bounds whose use is summed over a window's tasks
_LISTS: Final = ("tools", "side_effects")  # bounds whose use is a set of names
# Anything else, a newer release's word too, is an error of the check.
_OUTCOMES: Final = (canary_pb2.TASK_OUTCOME_VERIFIED, canary_pb2.TASK_OUTCOME_NOT_VERIFIED)
_WEAK: Final = (canary_pb2.VERIFICATION_METHOD_JUDGE, canary_pb2.VERIFICATION_METHOD_HUMAN)


# --- 6 canary_verified -------------------------------------------------------------------------------------


def canary_verified(given: Input) -> Notes:
    """Check 6: inside declared bounds every task left its effect at its destination, without harm."""
    notes, evidence = Notes("canary_verified"), given.evidence
    notes.counts = dict.fromkeys(COUNTS["canary_verified"], 0)
    live = [window for window in evidence.windows if window.live]
    needs_live = evidence.step == options_pb2.STEP_DEFAULT
    notes.add_if(not evidence.windows or (needs_live and not live), "WINDOW_ABSENT")
    notes.counts["windows"], notes.counts["live_windows"] = len(evidence.windows), len(live)
    if given.policy is None or given.pins is None:
        notes.add("PIN_ABSENT")
        return notes
    for window in evidence.windows:
        notes.cite(window_facts(window))
        notes.add_if(window.ended is None, "WINDOW_OPEN", window.started)
        notes.add_if(window.conflict, "CONFLICT", window.started)
        _environment(notes, window, given.pins)
        _bounds(notes, window, given.policy.canary_verified.bounds)
        _tasks(notes, window, given.policy)
    return notes


def _environment(notes: Notes, window: Window, pins: gate_pb2.UpdateFrozen) -> None:
    body, pinned = window.started.body, pinned_environment(pins)
    there = {part.target: part.digest for part in body.environment}
    same = len(there) == len(body.environment) and bool(
        body.environment_digest
        == environment_digest(body.environment, body.tool_contract_digest, body.bounds)
    )
    for target in TARGETS:
        if target == options_pb2.ENVIRONMENT_TARGET_DESTINATION and not window.live:
            continue  # a rehearsal's destinations are sandboxed
        notes.add_if(target not in pinned, "PIN_ABSENT")
        same = same and there.get(target) == pinned.get(target, there.get(target))
    notes.add_if(not pins.HasField("tool_contract_digest"), "PIN_ABSENT")
    if pins.HasField("tool_contract_digest"):
        same = same and body.tool_contract_digest == pins.tool_contract_digest
    notes.add_if(not same, "ENVIRONMENT_MISMATCH", window.started)


def _bounds(notes: Notes, window: Window, widest: CanaryBounds) -> None:
    bounds, started = window.started.body.bounds, window.started
    uses = [task.body.use for task in window.tasks.values()]
    for bound in ("tasks", *_SUMS):
        if not bounds.HasField(bound):
            notes.add("BOUND_UNDECLARED", started)
            continue
        limit = getattr(bounds, bound)
        notes.add_if(limit > getattr(widest, bound), "BOUND_TOO_WIDE", started)
        if bound == "tasks":
            notes.add_if(
                max(len(window.tasks), len(set(started.body.tasks))) > limit, "BOUND_EXCEEDED", started
            )
        else:
            used = sum(getattr(use, bound) for use in uses if use.HasField(bound))
            notes.add_if(used > limit, "BOUND_EXCEEDED", started)
    for bound in _LISTS:
        if not bounds.HasField(bound):
            notes.add("BOUND_UNDECLARED", started)
            continue
        allowed = set(getattr(bounds, bound).names)
        notes.add_if(not allowed <= set(getattr(widest, bound)), "BOUND_TOO_WIDE", started)
        used_names = {name for use in uses if use.HasField(bound) for name in getattr(use, bound).names}
        notes.add_if(not used_names <= allowed, "BOUND_EXCEEDED", started)
    for task in window.tasks.values():
        measured = all(task.body.use.HasField(bound) for bound in (*_SUMS, *_LISTS))
        notes.add_if(not measured, "BOUND_UNMEASURED", task)


def _tasks(notes: Notes, window: Window, policy: Policy) -> None:
    declared = set(window.started.body.tasks)
    notes.counts["tasks"] += len(declared)
    notes.add_if(len(declared) < policy.canary_verified.min_tasks, "TOO_FEW_TASKS", window.started)
    told = window.ended.body.tasks if window.ended is not None else 0
    absent = not declared <= set(window.tasks) or told > len(window.tasks)
    notes.add_if(absent, "TASK_ABSENT", window.started)
    allowed = {
        canary_pb2.VerificationMethod.Value(f"VERIFICATION_METHOD_{name}")
        for name in policy.canary_verified.methods
    }
    for name, task in window.tasks.items():
        body = task.body
        notes.add_if(name not in declared, "UNDECLARED_TASK", task)
        notes.counts["verified"] += body.outcome == canary_pb2.TASK_OUTCOME_VERIFIED and name in declared
        notes.add_if(body.outcome == canary_pb2.TASK_OUTCOME_NOT_VERIFIED, "NOT_VERIFIED", task)
        notes.add_if(body.outcome not in _OUTCOMES, "TASK_ERROR", task)
        notes.add_if(body.method not in allowed, "METHOD_NOT_ALLOWED", task)
        notes.add_if(body.method in _WEAK and not body.HasField("uncertainty"), "UNCERTAINTY_ABSENT", task)
        notes.add_if(not body.HasField("harm_count"), "HARM_UNOBSERVED", task)
        notes.add_if(body.harm_count > 0, "HARM", task)
        notes.counts["harm"] += body.harm_count
        notes.counts["harm_unobserved"] += not body.HasField("harm_count")


# --- 7 rollback_and_authority ------------------------------------------------------------------------------

_LEGS: Final = (
    ("resolved", "NOT_RESOLVED"),
    ("loaded", "NOT_LOADED"),
    ("served", "NOT_SERVED"),
    ("routed_back", "NOT_ROUTED_BACK"),
)


def rollback_and_authority(given: Input, evidence_digest: bytes) -> tuple[Notes, tuple[Fact, ...]]:
    """Check 7: the way back works, and somebody who may approves exactly this. With the approvals that do."""
    notes, evidence = Notes("rollback_and_authority"), given.evidence
    rehearsals = [window.rehearsal for window in evidence.windows if _is_rehearsal(window, given.pins)]
    notes.add_if(len(rehearsals) < max(1, len(evidence.windows)), "REHEARSAL_ABSENT")
    for rehearsal in rehearsals:
        if rehearsal is not None:
            for leg, code in _LEGS:
                notes.add_if(not getattr(rehearsal.body, leg), code, rehearsal)
    notes.cite(rehearsals)
    notes.add_if(given.policy is None, "PIN_ABSENT")
    fulfilling = tuple(fulfilling_approvals(notes, given, evidence_digest))
    notes.cite(fact for fact, _ in evidence.approvals)
    notes.counts = {
        "windows": len(evidence.windows),
        "rehearsals": len(rehearsals),
        "approvals": len(evidence.approvals),
        "fulfilling": len(fulfilling),
    }
    return notes, fulfilling


def _is_rehearsal(window: Window, pins: gate_pb2.UpdateFrozen | None) -> bool:
    """Whether the last rehearsal naming the window is of the pinned parent, in the window's environment."""
    return (
        window.rehearsal is not None
        and pins is not None
        and bool(window.rehearsal.body.parent_digest == pins.parent_digest)
        and bool(window.rehearsal.body.environment_digest == window.started.body.environment_digest)
    )


def fulfilling_approvals(notes: Notes, given: Input, evidence_digest: bytes) -> list[Fact]:
    """Approvals that fulfil everything; where there is none, notes why each of the others does not.

    One that lapsed (other evidence, expired, withdrawn) is missing, whoever gave it: only one in force for
    this very evidence can be the wrong person's.
    """
    evidence, pins = given.evidence, given.pins
    wanted = (evidence_digest, pins.policy_digest if pins is not None else b"")
    made_evidence = set().union(*makers(given).values())
    lacking: list[tuple[Fact, list[str]]] = []
    fulfilling: list[Fact] = []
    for approval, withdrawn in evidence.approvals:
        body = approval.body
        lapsed = {
            "APPROVAL_OTHER_DIGEST": (body.evidence_digest, body.policy_digest) != wanted,
            "APPROVAL_EXPIRED": body.expires_at < evidence.now,
            "APPROVAL_WITHDRAWN": withdrawn,
        }
        lacks = [code for code, holds in lapsed.items() if holds] or _wrong_person(
            approval, given, made_evidence
        )
        if lacks:
            lacking.append((approval, lacks))
        else:
            fulfilling.append(approval)
    if not fulfilling:
        notes.add_if(not evidence.approvals, "APPROVAL_NONE")
        for approval, lacks in lacking:
            for code in lacks:
                notes.add(code, approval)
    return fulfilling


def _wrong_person(approval: Fact, given: Input, made_evidence: set[str]) -> list[str]:
    pins, grant = given.pins, approval.grant
    named: Iterable[str] = ()
    if pins is not None:
        canary = given.evidence.step == options_pb2.STEP_CANARY
        named = pins.canary_approvers if canary else pins.default_approvers
    bound = grant.approver_kind == root_pb2.APPROVER_KIND_RELEASE_ACTOR
    codes = []
    if grant.name not in named or (bound and (pins is None or grant.policy_digest != pins.policy_digest)):
        codes.append("APPROVER_NOT_NAMED")
    if grant.controller in made_evidence:
        codes.append("APPROVER_NOT_INDEPENDENT")
    return codes
