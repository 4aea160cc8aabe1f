"""What evidence used against what is in force (checks.md section 4).

Rules:
1. Folded from the log, never announced (law 17): stale is a difference between a pin and what stands now.
   A pin that is absent is MISSING to the checks that need it, not stale.
2. Each row of the table names exactly the checks that rest on it.
3. An update's own promotion stales nothing of its own.
4. Rollouts cannot be made again after training: for checks 2 and 3 every freeze under which a rollout of the
   window was enqueued counts, not only the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gate.evidence import Evidence, pinned_environment
from gate.reasons import CHECKS
from ledger.receipt import Receipts
from ledger.v1 import gate_pb2, operator_pb2, options_pb2

__all__ = ["stale_reasons"]

_T = options_pb2

# environment target -> (reason, checks that rest on it)
_TARGETS: Final[Mapping[int, tuple[str, tuple[int, ...]]]] = {
    _T.ENVIRONMENT_TARGET_TASK_DISTRIBUTION: ("STALE_TASK_DISTRIBUTION", (4, 5, 6)),
    _T.ENVIRONMENT_TARGET_PERMISSIONS: ("STALE_PERMISSIONS", (6, 7)),
    _T.ENVIRONMENT_TARGET_DESTINATION: ("STALE_DESTINATION", (6, 7)),
    _T.ENVIRONMENT_TARGET_MODEL_SERVER: ("STALE_MODEL_SERVER", (6, 7)),
    _T.ENVIRONMENT_TARGET_RETRY_POLICY: ("STALE_RETRY_POLICY", (3, 6, 7)),
    _T.ENVIRONMENT_TARGET_HARNESS: ("STALE_HARNESS", (2, 4, 5, 6, 7)),
    _T.ENVIRONMENT_TARGET_TOKENIZER: ("STALE_TOKENIZER", (2, 4, 5, 6, 7)),
}
# pin -> (kind in the registry, reason, checks that rest on it)
_PINS: Final[Mapping[str, tuple[str, str, tuple[int, ...]]]] = {
    "evaluator_digest": ("evaluator", "STALE_EVALUATOR", (4, 5)),
    "holdout_digest": ("holdout", "STALE_HOLDOUT", (4, 5, 6)),
    "protected_set_digest": ("protected_set", "STALE_PROTECTED_SET", (5,)),
    "policy_digest": ("policy", "STALE_POLICY", (1, 2, 3, 4, 5, 6, 7)),
    "tool_contract_digest": ("tool_contract", "STALE_TOOL_CONTRACT", (2, 4, 5, 6)),
}
_DURING_TRAINING: Final = (2, 3)


def stale_reasons(receipts: Receipts, evidence: Evidence) -> dict[str, set[str]]:
    """Check name -> STALE reason codes, as of the evidence's size; checks that are not stale are left out."""
    found: dict[str, set[str]] = {}
    pins = evidence.pins
    if pins is None:
        return found

    def add(reason: str, checks: tuple[int, ...]) -> None:
        for number in checks:
            found.setdefault(CHECKS[number - 1], set()).add(reason)

    used_in_training = _freezes_of_rollouts(evidence)
    for pin, (kind, reason, checks) in _PINS.items():
        publication = receipts.registry.in_force(kind, pins.scope, evidence.size)
        if publication is None or not pins.HasField(pin):  # type: ignore[arg-type]  # names from the proto
            continue
        if getattr(pins, pin) != publication.digest:
            add(reason, checks)
        elif pin == "tool_contract_digest" and any(
            getattr(f, pin) != publication.digest for f in used_in_training
        ):
            add(reason, (2,))
    for target, (reason, checks) in _TARGETS.items():
        now = receipts.registry.environment_in_force(target, pins.scope, evidence.size)
        pinned = pinned_environment(pins).get(target)
        if now is None or pinned is None:
            continue
        if pinned != now:
            add(reason, checks)
        elif any(pinned_environment(freeze).get(target) != now for freeze in used_in_training):
            add(reason, tuple(number for number in checks if number in _DURING_TRAINING))
    if _other_evaluator_judged(receipts, evidence, pins):
        add("STALE_EVALUATOR", (6,))
    _workflow(receipts, evidence, add_to=found)
    _parent(receipts, evidence, add_to=found)
    return found


def _other_evaluator_judged(receipts: Receipts, evidence: Evidence, pins: gate_pb2.UpdateFrozen) -> bool:
    """Whether a canary task was judged by another evaluator than the one in force."""
    publication = receipts.registry.in_force("evaluator", pins.scope, evidence.size)
    now = pins.evaluator_digest if publication is None else publication.digest
    return any(
        task.body.HasField("evaluator_digest") and task.body.evaluator_digest != now
        for window in evidence.windows
        for task in window.tasks.values()
    )


def _freezes_of_rollouts(evidence: Evidence) -> list[gate_pb2.UpdateFrozen]:
    """The freezes under which the window's rollouts were enqueued."""
    starts = [fact.index for fact in evidence.freezes]
    used: list[gate_pb2.UpdateFrozen] = []
    for position, fact in enumerate(evidence.freezes):
        until = starts[position + 1] if position + 1 < len(starts) else evidence.cut_off
        if any(fact.index < rollout.enqueued.index < until for rollout in evidence.rollouts):
            used.append(fact.body)
    return used


def _workflow(receipts: Receipts, evidence: Evidence, add_to: dict[str, set[str]]) -> None:
    pins = evidence.pins
    if pins is None:
        return
    now = receipts.registry.workflow_in_force(pins.scope.workflow, evidence.size)
    used = receipts.registry.workflow(pins.scope.workflow, pins.workflow_version, evidence.size)
    if now is None or used is None:
        return
    if _families(now.body) != _families(used.body):
        add_to.setdefault(CHECKS[1], set()).add("STALE_SPAN_FAMILIES")
    if now.body.retry_budget != used.body.retry_budget:
        add_to.setdefault(CHECKS[2], set()).add("STALE_RETRY_BUDGETS")


def _families(body: operator_pb2.WorkflowDeclared) -> dict[str, int]:
    return {family.name: family.minimum for family in body.span_families}


def _parent(receipts: Receipts, evidence: Evidence, add_to: dict[str, set[str]]) -> None:
    pins = evidence.pins
    if pins is None or not pins.HasField("parent_digest") or not pins.HasField("resource"):
        return
    if receipts.pointers.holds_default(evidence.update, pins.resource, pins.scope, evidence.size):
        return
    default = receipts.pointers.default(pins.resource, pins.scope, evidence.size)
    if default is None or default.digest != pins.parent_digest:
        for number in (1, 4, 5, 7):
            add_to.setdefault(CHECKS[number - 1], set()).add("STALE_PARENT")
