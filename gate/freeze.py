"""What a freeze must say: pins derived from the log, the same for the gate that writes and the auditor that
replays (R3).

Rules:
1. The trainer's choices are repeated from its proposal; everything else comes from what operators published.
2. Nothing is pinned that is not registered in the log, and nothing is defaulted (law 12).
3. The first freeze is asked for by the proposing trainer, before training; each later one by an operator. A
   re-freeze never changes the trainer's choices.
4. A redo names checks among 4 to 7 that are in ERROR or MISSING now, within the policy's bound. A FAIL is
   never redone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gate.evidence import TARGETS, Evidence
from gate.gather import gather
from gate.judge import RulesJudge
from gate.policy import Policy, parse_policy
from ledger.errors import NotFoundError, RefusedError
from ledger.receipt import Receipts
from ledger.registry import Publication
from ledger.v1 import gate_pb2, options_pb2, trainer_pb2

__all__ = ["derive_freeze"]

_REDOABLE: Final = (4, 5, 6, 7)
_OWN: Final = {
    options_pb2.ENVIRONMENT_TARGET_HARNESS: "harness_digest",
    options_pb2.ENVIRONMENT_TARGET_TOKENIZER: "tokenizer_digest",
}


def derive_freeze(
    receipts: Receipts, update: str, requested_by: str, *, is_operator: bool, redo: Iterable[int], size: int
) -> gate_pb2.UpdateFrozen:
    """The next UpdateFrozen of an update, as of a log of `size` entries.

    Raises NotFoundError(NOT_PROPOSED); RefusedError(NOT_THE_PROPOSER, NOT_AN_OPERATOR, TRAINING_STARTED,
    NOT_REGISTERED, NOT_IN_FORCE, PARENT_NOT_DEFAULT, PROTECTED_OUTSIDE_HOLDOUT, REDO_NOT_ALLOWED);
    FormatError(BAD_POLICY); CannotTellError(RULES_UNKNOWN).
    """
    evidence = gather(receipts, update, options_pb2.STEP_CANARY, size)
    if evidence.proposal is None:
        raise NotFoundError("NOT_PROPOSED", f"expected UpdateProposed for {update}, got none")
    proposal: trainer_pb2.UpdateProposed = evidence.proposal.body
    _check_requester(evidence, requested_by, is_operator)
    frozen = gate_pb2.UpdateFrozen(
        update=update,
        revision=len(evidence.freezes) + 1,
        requested_by=requested_by,
        resource=proposal.resource,
        kind=proposal.kind,
        scope=proposal.scope,
        parent_digest=proposal.parent_digest,
        training_snapshot_digest=proposal.training_snapshot_digest,
        algorithm_config_digest=proposal.algorithm_config_digest,
        code_revision=proposal.code_revision,
        workflow_version=proposal.workflow_version,
    )
    _check_parent(receipts, evidence, proposal)
    _registered(receipts, "train", proposal.training_snapshot_digest, size)
    policy = _pin_published(receipts, proposal, frozen, size)
    _pin_environment(receipts, proposal, frozen, size)
    redo_checks = sorted(set(redo))
    if redo_checks:
        _check_redo(receipts, evidence, policy, redo_checks)
        frozen.redo_checks.extend(redo_checks)
    return frozen


def _check_requester(evidence: Evidence, requested_by: str, is_operator: bool) -> None:
    if evidence.freezes:
        if not is_operator:
            raise RefusedError("NOT_AN_OPERATOR", f"expected an operator to re-freeze, got {requested_by}")
        return
    proposer = evidence.proposal.grant.name if evidence.proposal is not None else None
    if requested_by != proposer:
        raise RefusedError("NOT_THE_PROPOSER", f"expected {proposer} to freeze first, got {requested_by}")
    if evidence.training_started is not None:
        raise RefusedError(
            "TRAINING_STARTED",
            f"expected the first freeze before training, got TrainingStarted at index "
            f"{evidence.training_started.index}; propose a new update",
        )


def _check_parent(receipts: Receipts, evidence: Evidence, proposal: trainer_pb2.UpdateProposed) -> None:
    if receipts.pointers.holds_default(evidence.update, proposal.resource, proposal.scope, evidence.size):
        return
    default = receipts.pointers.default(proposal.resource, proposal.scope, evidence.size)
    if default is None or default.digest != proposal.parent_digest:
        now = "no default" if default is None else default.digest.hex()
        raise RefusedError(
            "PARENT_NOT_DEFAULT",
            f"expected the current default as parent, {now}, got {proposal.parent_digest.hex()}",
        )


def _registered(receipts: Receipts, kind: str, digest: bytes, size: int) -> Publication:
    found = receipts.registry.by_digest(kind, digest, size)
    if found is None:
        raise RefusedError(
            "NOT_REGISTERED", f"expected a complete publication of {kind} {digest.hex()}, got none"
        )
    return found


def _in_force(receipts: Receipts, kind: str, scope: options_pb2.Scope, size: int) -> Publication:
    found = receipts.registry.in_force(kind, scope, size)
    if found is None:
        raise RefusedError(
            "NOT_REGISTERED",
            f"expected {kind} published for {scope.workflow}/{scope.segment} or {scope.workflow}/*, "
            "got none; an operator publishes it",
        )
    return found


def _pin_published(
    receipts: Receipts, proposal: trainer_pb2.UpdateProposed, frozen: gate_pb2.UpdateFrozen, size: int
) -> Policy:
    scope = proposal.scope
    workflow = receipts.registry.workflow(scope.workflow, proposal.workflow_version, size)
    if workflow is None or not workflow.body.HasField("retry_budget"):
        raise RefusedError(
            "NOT_REGISTERED",
            f"expected {scope.workflow} version {proposal.workflow_version} declared with a retry budget, "
            "got none",
        )
    frozen.retry_budget.CopyFrom(workflow.body.retry_budget)
    frozen.evaluator_digest = _in_force(receipts, "evaluator", scope, size).digest
    frozen.tool_contract_digest = _in_force(receipts, "tool_contract", scope, size).digest
    holdout = _in_force(receipts, "holdout", scope, size)
    frozen.holdout_digest = holdout.digest
    protected = _in_force(receipts, "protected_set", scope, size)
    cases = {case.id for fact in holdout.facts for case in fact.body.cases}
    named = {c for fact in protected.facts for family in fact.body.families for c in family.case_ids}
    if protected.body.snapshot_digest != holdout.digest or not named <= cases:
        raise RefusedError(
            "PROTECTED_OUTSIDE_HOLDOUT",
            f"expected protected cases of the holdout {holdout.digest.hex()}, "
            f"got {len(named - cases)} outside it",
        )
    frozen.protected_set_digest = protected.digest
    published = _in_force(receipts, "policy", scope, size)
    frozen.policy_digest = published.digest
    policy = parse_policy(published.body.document)
    frozen.judges.extend(policy.principals.judges)
    frozen.canaries.extend(policy.principals.canaries)
    frozen.canary_approvers.extend(policy.principals.canary_approvers)
    frozen.default_approvers.extend(policy.principals.default_approvers)
    return policy


def _pin_environment(
    receipts: Receipts, proposal: trainer_pb2.UpdateProposed, frozen: gate_pb2.UpdateFrozen, size: int
) -> None:
    for target in TARGETS:
        now = receipts.registry.environment_in_force(target, proposal.scope, size)
        name = options_pb2.EnvironmentTarget.Name(target).removeprefix("ENVIRONMENT_TARGET_").lower()
        own = getattr(proposal, _OWN[target]) if target in _OWN else None
        if now is None and own is None:
            raise RefusedError(
                "NOT_REGISTERED",
                f"expected EnvironmentChanged to state the {name}, got none; an operator states it",
            )
        if now is not None and own is not None and now != own:
            raise RefusedError("NOT_IN_FORCE", f"expected the {name} in force, {now.hex()}, got {own.hex()}")
        frozen.environment.add(target=target, digest=own if now is None else now)


def _check_redo(receipts: Receipts, evidence: Evidence, policy: Policy, redo: list[int]) -> None:
    if not evidence.freezes or not set(redo) <= set(_REDOABLE):
        raise RefusedError("REDO_NOT_ALLOWED", f"expected checks among 4 to 7 of a frozen update, got {redo}")
    done = sum(bool(freeze.body.redo_checks) for freeze in evidence.freezes)
    if done >= policy.max_redos:
        raise RefusedError("REDO_NOT_ALLOWED", f"expected at most {policy.max_redos} redos, got one more")
    judge = RulesJudge()
    redoable = {gate_pb2.STATE_ERROR, gate_pb2.STATE_MISSING}
    states: list[list[int]] = []  # of the named checks, a step each
    for step in (options_pb2.STEP_CANARY, options_pb2.STEP_DEFAULT):
        findings = judge.evaluate(receipts, evidence.update, step, evidence.size).findings
        states.append([findings[number - 1].state for number in redo])
    failed = any(gate_pb2.STATE_FAIL in of_step for of_step in states)
    if failed or not any(redoable.issuperset(of_step) for of_step in states):
        raise RefusedError(
            "REDO_NOT_ALLOWED",
            f"expected checks in ERROR or MISSING for a step, in FAIL for none, got {redo}",
        )
