"""What a candidates file says that everything else rests on: digests, cases, and who solves which.

Rules:
1. Pure functions of the file: the same file gives the same digests and the same solved cases.
2. Nothing is clamped: `clients.demo.document` refuses what cannot be reached before anything is derived here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from clients.demo.document import Candidate, DemoDocument, solved_by, solved_by_parent
from ledger.v1 import canary_pb2, operator_pb2, options_pb2

__all__ = ["Frame", "digest", "publications"]

_TRAINING_TASKS = 120
_CONTRACT = "tool-contract/1"


def digest(label: str) -> bytes:
    """SHA-256 of a label: stands for the digest of something that a demo does not build."""
    return hashlib.sha256(label.encode()).digest()


@dataclass(frozen=True, slots=True)
class Frame:
    """The names and digests of one document."""

    document: DemoDocument

    @property
    def scope(self) -> options_pb2.Scope:
        """Where the updates may act."""
        return options_pb2.Scope(workflow=self.document.workflow.name, segment=self.document.workflow.segment)

    @property
    def baseline(self) -> bytes:
        """Manifest digest of the first default, the parent of every candidate."""
        return digest(f"{self.document.resource}/baseline")

    @property
    def holdout(self) -> bytes:
        """Digest of the holdout snapshot."""
        return digest("holdout/" + ",".join(self.document.holdout.cases()))

    @property
    def training_snapshot(self) -> bytes:
        """Digest of the training tasks."""
        return digest("train-snapshot/1")

    @property
    def evaluator(self) -> bytes:
        """Digest of the evaluator."""
        return digest("evaluator/execution-match/1")

    @property
    def tool_contract(self) -> bytes:
        """Digest of the tool contract."""
        return digest(_CONTRACT)

    def environment(self, target: int) -> bytes:
        """What is pinned for an environment target."""
        return digest(f"environment/{target}/1")

    def candidate(self, candidate: Candidate) -> bytes:
        """Manifest digest of what an update produced."""
        return digest(f"{self.document.resource}/{candidate.name}")

    def update(self, candidate: Candidate) -> str:
        """The update's id."""
        return f"update-{candidate.name}"

    def rollout(self, candidate: Candidate, position: int) -> str:
        """Id of the rollout at a position from 0."""
        return f"ro-{candidate.name}-{position:04d}"

    def solved(self, candidate: Candidate | None) -> set[str]:
        """Cases that the candidate solves; the parent where there is none."""
        holdout = self.document.holdout
        return solved_by_parent(holdout) if candidate is None else solved_by(holdout, candidate.evaluation)

    def bounds(self) -> canary_pb2.Bounds:
        """The bounds that every window declares: the policy's own."""
        widest = self.document.policy["canary_verified"]["bounds"]
        return canary_pb2.Bounds(
            tasks=widest["tasks"],
            wall_time_us=widest["wall_time_us"],
            tools=options_pb2.NameList(names=widest["tools"]),
            micro_usd=widest["micro_usd"],
            side_effects=options_pb2.NameList(names=widest["side_effects"]),
        )


def publications(frame: Frame) -> list[Any]:
    """By the operator, once: the frame in which updates are judged, and the ungated baseline."""
    document, scope = frame.document, frame.scope
    bodies: list[Any] = [
        _workflow(frame),
        operator_pb2.ToolContractPublished(scope=scope, digest=frame.tool_contract),
        operator_pb2.EvaluatorPublished(
            scope=scope,
            name="execution-match",
            digest=frame.evaluator,
            direction=operator_pb2.DIRECTION_HIGHER_IS_BETTER,
        ),
        *_snapshots(frame),
        operator_pb2.PolicyPublished(scope=scope, document=document.policy_bytes),
    ]
    bodies += [
        operator_pb2.EnvironmentChanged(scope=scope, target=target, new_digest=frame.environment(target))
        for target in options_pb2.EnvironmentTarget.values()
        if target != options_pb2.ENVIRONMENT_TARGET_UNSPECIFIED
    ]
    bodies.append(
        operator_pb2.BaselineAdopted(
            resource=document.resource,
            scope=scope,
            manifest_digest=frame.baseline,
            reason="in use before the ledger was opened",
        )
    )
    return bodies


def _workflow(frame: Frame) -> operator_pb2.WorkflowDeclared:
    spec = frame.document.workflow
    return operator_pb2.WorkflowDeclared(
        workflow=spec.name,
        version=1,
        span_families=[
            operator_pb2.SpanFamily(name=name, minimum=least) for name, least in spec.span_families.items()
        ],
        retry_budget=options_pb2.RetryBudget(
            expected=spec.expected_retries, infrastructure=spec.infrastructure_retries
        ),
        destinations=["reports"],
        tool_contract_digest=frame.tool_contract,
        content_rule=operator_pb2.CONTENT_RULE_INLINE,
    )


def _snapshots(frame: Frame) -> list[Any]:
    """Training tasks, holdout, and the protected cases of the holdout."""
    holdout, one = frame.document.holdout, options_pb2.Part(number=1, of=1)
    return [
        operator_pb2.SnapshotPublished(
            scope=frame.scope,
            digest=frame.training_snapshot,
            purpose=operator_pb2.SNAPSHOT_PURPOSE_TRAIN,
            part=one,
            cases=[operator_pb2.Case(id=f"train-{n:03d}") for n in range(1, _TRAINING_TASKS + 1)],
        ),
        operator_pb2.SnapshotPublished(
            scope=frame.scope,
            digest=frame.holdout,
            purpose=operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT,
            part=one,
            cases=[
                operator_pb2.Case(
                    id=case, family=case.rpartition("-")[0], salted_digest=digest(f"salt/{case}")
                )
                for case in holdout.cases()
            ],
        ),
        operator_pb2.ProtectedSetPublished(
            scope=frame.scope,
            digest=digest("protected/" + ",".join(holdout.protected)),
            snapshot_digest=frame.holdout,
            part=one,
            families=[
                operator_pb2.ProtectedFamily(name=family, case_ids=holdout.cases((family,)))
                for family in holdout.protected
            ],
        ),
    ]
