"""From a candidates file to the events that each principal would write. Pure: clock and ids are handed in.

Rules:
1. Real events in real order: what a workflow's services would stream, nothing that only a demo could know.
2. One function a phase, and each says who writes: no principal speaks for another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from clients.demo.document import Candidate, DemoDocument
from ledger.environment import environment_digest
from ledger.v1 import (
    approver_pb2,
    canary_pb2,
    event_pb2,
    gate_pb2,
    judge_pb2,
    operator_pb2,
    options_pb2,
    runner_pb2,
    trainer_pb2,
)

__all__ = ["Events", "Scenario", "digest", "wrap"]

Events = list[event_pb2.Event]

_SEC: Final = 1_000_000
_MAX_SCORES: Final = 500


def digest(label: str) -> bytes:
    """SHA-256 of a label: stands for the digest of something that a demo does not build."""
    return hashlib.sha256(label.encode()).digest()


def wrap(body: Any, event_id: bytes, occurred_at: int) -> event_pb2.Event:
    """The event around a body message; the field is found by the message's type."""
    name = _FIELD_OF[type(body).DESCRIPTOR.full_name]
    return event_pb2.Event(event_id=event_id, occurred_at=occurred_at, **{name: body})


_FIELD_OF: Final = {
    field.message_type.full_name: field.name
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None
}


@dataclass(slots=True)
class Scenario:
    """Makes the events of a document. `new_id()` gives a UUIDv7, `now()` microseconds since 1970."""

    document: DemoDocument
    new_id: Callable[[], bytes]
    now: Callable[[], int]

    # --- what everything rests on ---

    @property
    def scope(self) -> options_pb2.Scope:
        """Where the updates may act."""
        return options_pb2.Scope(workflow=self.document.workflow.name, segment=self.document.workflow.segment)

    @property
    def baseline(self) -> bytes:
        """Manifest digest of the first default, the parent of every candidate."""
        return digest(f"{self.document.resource}/baseline")

    @property
    def holdout_digest(self) -> bytes:
        """Digest of the holdout snapshot."""
        return digest("holdout/" + ",".join(self._cases()))

    @property
    def evaluator_digest(self) -> bytes:
        """Digest of the evaluator."""
        return digest("evaluator/execution-match/1")

    def candidate_digest(self, candidate: Candidate) -> bytes:
        """Manifest digest of what an update produced."""
        return digest(f"{self.document.resource}/{candidate.name}")

    def update_id(self, candidate: Candidate) -> str:
        """The update's id."""
        return f"update-{candidate.name}"

    def _event(self, body: Any) -> event_pb2.Event:
        return wrap(body, self.new_id(), self.now())

    def _cases(self, families: tuple[str, ...] | None = None) -> list[str]:
        holdout = self.document.holdout
        chosen = holdout.families if families is None else families
        return [f"{family}-{n:02d}" for family in chosen for n in range(1, holdout.cases_per_family + 1)]

    def publications(self) -> Events:
        """By the operator, once: the frame in which updates are judged, and the ungated baseline."""
        spec, scope = self.document.workflow, self.scope
        one = options_pb2.Part(number=1, of=1)
        contract = digest("tool-contract/1")
        cases = [
            operator_pb2.Case(id=case, family=case.rpartition("-")[0], salted_digest=digest(f"salt/{case}"))
            for case in self._cases()
        ]
        protected = [
            operator_pb2.ProtectedFamily(name=family, case_ids=self._cases((family,)))
            for family in self.document.holdout.protected
        ]
        bodies: list[Any] = [
            operator_pb2.WorkflowDeclared(
                workflow=spec.name,
                version=1,
                span_families=[
                    operator_pb2.SpanFamily(name=name, minimum=least)
                    for name, least in spec.span_families.items()
                ],
                retry_budget=options_pb2.RetryBudget(
                    expected=spec.expected_retries, infrastructure=spec.infrastructure_retries
                ),
                destinations=["reports"],
                tool_contract_digest=contract,
                content_rule=operator_pb2.CONTENT_RULE_INLINE,
            ),
            operator_pb2.ToolContractPublished(scope=scope, digest=contract),
            operator_pb2.EvaluatorPublished(
                scope=scope,
                name="execution-match",
                digest=self.evaluator_digest,
                direction=operator_pb2.DIRECTION_HIGHER_IS_BETTER,
            ),
            operator_pb2.SnapshotPublished(
                scope=scope,
                digest=digest("train-snapshot/1"),
                purpose=operator_pb2.SNAPSHOT_PURPOSE_TRAIN,
                part=one,
                cases=[operator_pb2.Case(id=f"train-{n:03d}") for n in range(1, 121)],
            ),
            operator_pb2.SnapshotPublished(
                scope=scope,
                digest=self.holdout_digest,
                purpose=operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT,
                part=one,
                cases=cases,
            ),
            operator_pb2.ProtectedSetPublished(
                scope=scope,
                digest=digest("protected/" + ",".join(self.document.holdout.protected)),
                snapshot_digest=self.holdout_digest,
                part=one,
                families=protected,
            ),
            operator_pb2.PolicyPublished(scope=scope, document=self.document.policy_bytes),
        ]
        bodies += [
            operator_pb2.EnvironmentChanged(scope=scope, target=target, new_digest=self._environment(target))
            for target in options_pb2.EnvironmentTarget.values()
            if target != options_pb2.ENVIRONMENT_TARGET_UNSPECIFIED
        ]
        bodies.append(
            operator_pb2.BaselineAdopted(
                resource=self.document.resource,
                scope=scope,
                manifest_digest=self.baseline,
                reason="in use before the ledger was opened",
            )
        )
        return [self._event(body) for body in bodies]

    def _environment(self, target: int) -> bytes:
        return digest(f"environment/{target}/1")

    # --- before and during training ---

    def proposal(self, candidate: Candidate) -> Events:
        """By the trainer."""
        body = trainer_pb2.UpdateProposed(
            update=self.update_id(candidate),
            resource=self.document.resource,
            kind=options_pb2.RESOURCE_KIND_MODEL_LORA,
            scope=self.scope,
            parent_digest=self.baseline,
            training_snapshot_digest=digest("train-snapshot/1"),
            algorithm_config_digest=digest(f"grpo/{candidate.name}"),
            code_revision="4f1c0de",
            harness_digest=self._environment(options_pb2.ENVIRONMENT_TARGET_HARNESS),
            tokenizer_digest=self._environment(options_pb2.ENVIRONMENT_TARGET_TOKENIZER),
            workflow_version=1,
        )
        return [self._event(body)]

    def training_started(self, candidate: Candidate) -> Events:
        """By the trainer, after the freeze."""
        return [self._event(trainer_pb2.TrainingStarted(update=self.update_id(candidate), weights_version=0))]

    def rollouts(self, candidate: Candidate) -> Iterator[Events]:
        """By the runner: one list a rollout."""
        spec = candidate.training
        reasons = [
            *[runner_pb2.ATTEMPT_REASON_UNEXPECTED_RETRY] * spec.unexpected_retries,
            *[runner_pb2.ATTEMPT_REASON_EXPECTED_RETRY] * spec.expected_retries,
            *[runner_pb2.ATTEMPT_REASON_INFRASTRUCTURE_RETRY] * spec.infrastructure_retries,
        ]
        for position in range(spec.rollouts):
            retry = reasons[position] if position < len(reasons) else None
            silent = len(reasons) <= position < len(reasons) + spec.silent_failures
            yield self._rollout(
                candidate,
                position,
                retry=retry,
                silent=silent,
                covered=position >= spec.rollouts - spec.covered,
                left_open=position >= spec.rollouts - spec.left_open,
            )

    def rollout_id(self, candidate: Candidate, position: int) -> str:
        """Id of the rollout at a position from 0."""
        return f"ro-{candidate.name}-{position:04d}"

    def _rollout(
        self,
        candidate: Candidate,
        position: int,
        *,
        retry: runner_pb2.AttemptReason.ValueType | None,
        silent: bool,
        covered: bool,
        left_open: bool,
    ) -> Events:
        rollout = self.rollout_id(candidate, position)
        bodies: list[Any] = [
            runner_pb2.RolloutEnqueued(
                rollout=rollout,
                workflow=self.document.workflow.name,
                workflow_version=1,
                mode=runner_pb2.MODE_VAL if position % 6 == 5 else runner_pb2.MODE_TRAIN,
                update=self.update_id(candidate),
                input_digest=digest(f"task/{position}"),
            )
        ]
        number = 1
        if retry is not None or silent:
            bodies.append(self._started(rollout, number, runner_pb2.ATTEMPT_REASON_FIRST))
            reason = None if silent else "the answer did not parse"
            bodies.append(
                runner_pb2.AttemptEnded(
                    rollout=rollout, attempt=number, outcome=runner_pb2.ATTEMPT_OUTCOME_TIMEOUT, reason=reason
                )
            )
            number = 2
        first = runner_pb2.ATTEMPT_REASON_FIRST
        again = retry if retry is not None else runner_pb2.ATTEMPT_REASON_EXPECTED_RETRY
        bodies.append(self._started(rollout, number, first if number == 1 else again))
        bodies += self._spans(rollout, number, covered)
        bodies.append(
            runner_pb2.AttemptEnded(
                rollout=rollout,
                attempt=number,
                outcome=runner_pb2.ATTEMPT_OUTCOME_SUCCEEDED,
                cost=options_pb2.Cost(
                    tokens_in=900 + position,
                    tokens_out=120,
                    micro_usd=450,
                    wall_time_us=2 * _SEC,
                    tool_calls=1,
                ),
            )
        )
        if not left_open:
            bodies.append(
                runner_pb2.RolloutEnded(rollout=rollout, status=runner_pb2.ROLLOUT_STATUS_SUCCEEDED)
            )
        return [self._event(body) for body in bodies]

    def _started(
        self, rollout: str, number: int, reason: runner_pb2.AttemptReason.ValueType
    ) -> runner_pb2.AttemptStarted:
        return runner_pb2.AttemptStarted(
            rollout=rollout,
            number=number,
            reason=reason,
            worker="worker-1",
            model_server="server-1",
            weights_version=0,
        )

    def _spans(self, rollout: str, attempt: int, covered: bool) -> list[runner_pb2.SpanRecorded]:
        families = self.document.workflow.span_families
        wanted = [name for name, least in families.items() for _ in range(least)]
        if not covered:
            wanted = wanted[:-1]
        trace = hashlib.sha256(f"{rollout}/{attempt}".encode()).digest()[:16]
        spans = []
        for position, family in enumerate(wanted, start=1):
            span_id = position.to_bytes(8, "big")
            start = self.now() * 1000 + position
            otlp = Span(
                trace_id=trace,
                span_id=span_id,
                name=family,
                start_time_unix_nano=start,
                end_time_unix_nano=start + 1,
            )
            spans.append(
                runner_pb2.SpanRecorded(
                    rollout=rollout,
                    attempt=attempt,
                    family=family,
                    trace_id=trace,
                    span_id=span_id,
                    otlp_span=otlp.SerializeToString(),
                )
            )
        return spans

    def rewards(self, candidate: Candidate) -> Events:
        """By the judge: one reward a rollout, for its deciding attempt."""
        spec = candidate.training
        retried = (
            spec.unexpected_retries
            + spec.expected_retries
            + spec.infrastructure_retries
            + spec.silent_failures
        )
        return [
            self._event(
                judge_pb2.RewardRecorded(
                    rollout=self.rollout_id(candidate, position),
                    attempt=2 if position < retried else 1,
                    judge_version="execution-match-1",
                    dimension="correctness",
                    value=float(position % 4 != 0),
                )
            )
            for position in range(spec.rollouts)
        ]

    def training_ended(self, candidate: Candidate) -> Events:
        """By the trainer: the data cut-off, then what training produced."""
        update, spec = self.update_id(candidate), candidate.candidate
        bodies: list[Any] = [
            trainer_pb2.TrainingEnded(
                update=update,
                steps=40,
                weights_version=40,
                counts=[trainer_pb2.Count(name="used", value=candidate.training.rollouts)],
                greatest_logprob_mismatch=0.00002,
            )
        ]
        parent = self.baseline if spec.names_pinned_parent else digest("another parent")
        made = [self.candidate_digest(candidate)] * spec.registered
        made += [digest(f"{candidate.name}/second")] * spec.second
        bodies += [
            trainer_pb2.CandidateRegistered(
                update=update, manifest_digest=manifest, parent_digest=parent, files=3
            )
            for manifest in made
        ]
        return [self._event(body) for body in bodies]

    # --- after training ---

    def evaluations(self, candidate: Candidate) -> Events:
        """By the judge: parent and candidate on the locked holdout."""
        events: Events = []
        solved = self._solved_by_parent()
        subjects = (
            (judge_pb2.SUBJECT_PARENT, self.baseline, solved),
            (
                judge_pb2.SUBJECT_CANDIDATE,
                self.candidate_digest(candidate),
                self._solved_by(candidate, solved),
            ),
        )
        for subject, subject_digest, right in subjects:
            cases = self._cases()
            if subject == judge_pb2.SUBJECT_CANDIDATE and candidate.evaluation.unscored_cases:
                cases = cases[: -candidate.evaluation.unscored_cases]
            events += self._evaluation(candidate, subject, subject_digest, cases, right)
        return events

    def _evaluation(
        self,
        candidate: Candidate,
        subject: judge_pb2.Subject.ValueType,
        subject_digest: bytes,
        cases: list[str],
        right: set[str],
    ) -> Events:
        name = f"{candidate.name}-{judge_pb2.Subject.Name(subject).removeprefix('SUBJECT_').lower()}"
        parts = [cases[start : start + _MAX_SCORES] for start in range(0, len(cases), _MAX_SCORES)]
        bodies: list[Any] = [
            judge_pb2.EvaluationRecorded(
                update=self.update_id(candidate),
                evaluation=name,
                evaluator_digest=self.evaluator_digest,
                snapshot_digest=self.holdout_digest,
                harness_digest=self._environment(options_pb2.ENVIRONMENT_TARGET_HARNESS),
                subject=subject,
                subject_digest=subject_digest,
                part=options_pb2.Part(number=number, of=len(parts)),
                scores=[
                    judge_pb2.CaseScore(case_id=case, trial=0, score=float(case in right)) for case in part
                ],
            )
            for number, part in enumerate(parts, start=1)
        ]
        if candidate.evaluation.closed:
            bodies.append(
                judge_pb2.EvaluationClosed(
                    update=self.update_id(candidate), evaluation=name, parts=len(parts), results=len(cases)
                )
            )
        return [self._event(body) for body in bodies]

    def _solved_by_parent(self) -> set[str]:
        return {case for position, case in enumerate(self._cases()) if position % 10 < 6}

    def _solved_by(self, candidate: Candidate, parent: set[str]) -> set[str]:
        holdout, spec = self.document.holdout, candidate.evaluation
        protected = self._cases(holdout.protected)
        others = [case for case in self._cases() if case not in set(protected)]
        lost = [case for case in protected if case in parent][: spec.protected_regressions]
        net = int(spec.gain * len(self._cases())) + len(lost)
        won = [case for case in others if case not in parent][: max(net, 0)]
        fallen = [case for case in others if case in parent][: max(-net, 0)]
        return (parent - set(lost) - set(fallen)) | set(won)

    def canary(self, candidate: Candidate) -> Events:
        """By the canary: a rehearsal window inside declared bounds, and the way back."""
        update, spec = self.update_id(candidate), candidate.canary
        window = f"window-{candidate.name}"
        bounds = self._bounds()
        parts = [
            options_pb2.EnvironmentPart(
                target=target,
                digest=self._environment(target) if spec.pinned_environment else digest(f"other/{target}"),
            )
            for target in options_pb2.EnvironmentTarget.values()
            if target not in (0, options_pb2.ENVIRONMENT_TARGET_DESTINATION)
        ]
        parts.append(
            options_pb2.EnvironmentPart(
                target=options_pb2.ENVIRONMENT_TARGET_DESTINATION, digest=digest("sandboxed destination")
            )
        )
        contract = digest("tool-contract/1")
        environment = environment_digest(parts, contract, bounds)
        tasks = [f"task-{n:02d}" for n in range(1, spec.tasks + 1)]
        bodies: list[Any] = [
            canary_pb2.CanaryStarted(
                update=update,
                window=window,
                kind=canary_pb2.WINDOW_KIND_REHEARSAL,
                subject_digest=self.candidate_digest(candidate),
                environment_digest=environment,
                environment=parts,
                tool_contract_digest=contract,
                bounds=bounds,
                tasks=tasks,
            )
        ]
        bodies += [self._task(candidate, window, task, position) for position, task in enumerate(tasks)]
        bodies.append(
            canary_pb2.CanaryEnded(
                update=update, window=window, end=canary_pb2.WINDOW_END_COMPLETED, tasks=len(tasks)
            )
        )
        way = candidate.rollback
        if way.rehearsed:
            bodies.append(
                canary_pb2.RollbackRehearsed(
                    update=update,
                    window=window,
                    parent_digest=self.baseline,
                    environment_digest=environment,
                    resolved=way.resolved,
                    loaded=way.loaded,
                    served=way.served,
                    routed_back=way.routed_back,
                )
            )
        return [self._event(body) for body in bodies]

    def _bounds(self) -> canary_pb2.Bounds:
        widest = self.document.policy["canary_verified"]["bounds"]
        return canary_pb2.Bounds(
            tasks=widest["tasks"],
            wall_time_us=widest["wall_time_us"],
            tools=options_pb2.NameList(names=widest["tools"]),
            micro_usd=widest["micro_usd"],
            side_effects=options_pb2.NameList(names=widest["side_effects"]),
        )

    def _task(
        self, candidate: Candidate, window: str, task: str, position: int
    ) -> canary_pb2.CanaryTaskRecorded:
        spec = candidate.canary
        outcome = canary_pb2.TASK_OUTCOME_NOT_VERIFIED
        if position < spec.verified:
            outcome = canary_pb2.TASK_OUTCOME_VERIFIED
        elif position < spec.verified + spec.errors:
            outcome = canary_pb2.TASK_OUTCOME_ERROR
        body = canary_pb2.CanaryTaskRecorded(
            update=self.update_id(candidate),
            window=window,
            task=task,
            outcome=outcome,
            method=canary_pb2.VERIFICATION_METHOD_READ_BACK_FILE,
            evidence_digest=digest(f"found/{window}/{task}"),
        )
        if position >= spec.harm_unobserved:
            body.harm_count = int(position >= spec.tasks - spec.harm)
        if position >= spec.unmeasured:
            body.use.CopyFrom(
                canary_pb2.Use(
                    wall_time_us=3 * _SEC,
                    tools=options_pb2.NameList(names=["sql.query", "file.write"]),
                    micro_usd=600,
                    side_effects=options_pb2.NameList(names=["report.file"]),
                )
            )
        return body

    def approval(
        self, candidate: Candidate, step: options_pb2.Step.ValueType, verdict: gate_pb2.VerdictIssued
    ) -> Events:
        """By the approver: for exactly the evidence and the policy that the gate showed."""
        step_name = options_pb2.Step.Name(step).removeprefix("STEP_").lower()
        body = approver_pb2.ApprovalGranted(
            update=self.update_id(candidate),
            approval=f"approval-{candidate.name}-{step_name}",
            step=step,
            evidence_digest=verdict.evidence_digest,
            policy_digest=verdict.policy_digest,
            expires_at=self.now() + candidate.approval.valid_for_seconds * _SEC,
        )
        return [self._event(body)]
