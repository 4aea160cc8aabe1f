"""From a candidate to what judge, canary and approver write once there is one.

Rules: those of `clients.demo.training`.
"""

from __future__ import annotations

from typing import Any, Final

from clients.demo.document import Candidate
from clients.demo.frame import Frame, digest
from ledger.environment import environment_digest
from ledger.v1 import approver_pb2, canary_pb2, gate_pb2, judge_pb2, options_pb2

__all__ = ["approval", "canary", "evaluations"]

_SEC: Final = 1_000_000
_MAX_SCORES: Final = 500


def evaluations(frame: Frame, candidate: Candidate) -> list[Any]:
    """By the judge: parent and candidate on the locked holdout."""
    cases = frame.document.holdout.cases()
    scored = cases[: len(cases) - candidate.evaluation.unscored_cases]
    parent, made = judge_pb2.SUBJECT_PARENT, judge_pb2.SUBJECT_CANDIDATE
    return [
        *_evaluation(frame, candidate, parent, cases, frame.solved(None)),
        *_evaluation(frame, candidate, made, scored, frame.solved(candidate)),
    ]


def _evaluation(
    frame: Frame,
    candidate: Candidate,
    subject: judge_pb2.Subject.ValueType,
    cases: list[str],
    right: set[str],
) -> list[Any]:
    word = judge_pb2.Subject.Name(subject).removeprefix("SUBJECT_").lower()
    name = f"{candidate.name}-{word}"
    judged = frame.baseline if subject == judge_pb2.SUBJECT_PARENT else frame.candidate(candidate)
    parts = [cases[start : start + _MAX_SCORES] for start in range(0, len(cases), _MAX_SCORES)]
    bodies: list[Any] = [
        judge_pb2.EvaluationRecorded(
            update=frame.update(candidate),
            evaluation=name,
            evaluator_digest=frame.evaluator,
            snapshot_digest=frame.holdout,
            harness_digest=frame.environment(options_pb2.ENVIRONMENT_TARGET_HARNESS),
            subject=subject,
            subject_digest=judged,
            part=options_pb2.Part(number=number, of=len(parts)),
            scores=[judge_pb2.CaseScore(case_id=case, trial=0, score=float(case in right)) for case in part],
        )
        for number, part in enumerate(parts, start=1)
    ]
    if candidate.evaluation.closed:
        bodies.append(
            judge_pb2.EvaluationClosed(
                update=frame.update(candidate), evaluation=name, parts=len(parts), results=len(cases)
            )
        )
    return bodies


def canary(frame: Frame, candidate: Candidate) -> list[Any]:
    """By the canary: a rehearsal window inside declared bounds, and the way back."""
    started = _window(frame, candidate)
    bodies: list[Any] = [started]
    bodies += [_task(candidate, started, task, position) for position, task in enumerate(started.tasks)]
    bodies.append(
        canary_pb2.CanaryEnded(
            update=started.update,
            window=started.window,
            end=canary_pb2.WINDOW_END_COMPLETED,
            tasks=len(started.tasks),
        )
    )
    way = candidate.rollback
    if way.rehearsed:
        bodies.append(
            canary_pb2.RollbackRehearsed(
                update=started.update,
                window=started.window,
                parent_digest=frame.baseline,
                environment_digest=started.environment_digest,
                resolved=way.resolved,
                loaded=way.loaded,
                served=way.served,
                routed_back=way.routed_back,
            )
        )
    return bodies


def _window(frame: Frame, candidate: Candidate) -> canary_pb2.CanaryStarted:
    spec, bounds = candidate.canary, frame.bounds()
    parts = [
        options_pb2.EnvironmentPart(
            target=target,
            digest=frame.environment(target) if spec.pinned_environment else digest(f"other/{target}"),
        )
        for target in options_pb2.EnvironmentTarget.values()
        if target not in (0, options_pb2.ENVIRONMENT_TARGET_DESTINATION)
    ]
    parts.append(
        options_pb2.EnvironmentPart(
            target=options_pb2.ENVIRONMENT_TARGET_DESTINATION, digest=digest("sandboxed destination")
        )
    )
    return canary_pb2.CanaryStarted(
        update=frame.update(candidate),
        window=f"window-{candidate.name}",
        kind=canary_pb2.WINDOW_KIND_REHEARSAL,
        subject_digest=frame.candidate(candidate),
        environment_digest=environment_digest(parts, frame.tool_contract, bounds),
        environment=parts,
        tool_contract_digest=frame.tool_contract,
        bounds=bounds,
        tasks=[f"task-{n:02d}" for n in range(1, spec.tasks + 1)],
    )


def _task(
    candidate: Candidate, started: canary_pb2.CanaryStarted, task: str, position: int
) -> canary_pb2.CanaryTaskRecorded:
    spec = candidate.canary
    outcome = canary_pb2.TASK_OUTCOME_NOT_VERIFIED
    if position < spec.verified:
        outcome = canary_pb2.TASK_OUTCOME_VERIFIED
    elif position < spec.verified + spec.errors:
        outcome = canary_pb2.TASK_OUTCOME_ERROR
    body = canary_pb2.CanaryTaskRecorded(
        update=started.update,
        window=started.window,
        task=task,
        outcome=outcome,
        method=canary_pb2.VERIFICATION_METHOD_READ_BACK_FILE,
        evidence_digest=digest(f"found/{started.window}/{task}"),
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
    frame: Frame,
    candidate: Candidate,
    step: options_pb2.Step.ValueType,
    verdict: gate_pb2.VerdictIssued,
    now: int,
) -> approver_pb2.ApprovalGranted:
    """By the approver: for exactly the evidence and policy that the gate showed. `now` in microseconds."""
    step_name = options_pb2.Step.Name(step).removeprefix("STEP_").lower()
    return approver_pb2.ApprovalGranted(
        update=frame.update(candidate),
        approval=f"approval-{candidate.name}-{step_name}",
        step=step,
        evidence_digest=verdict.evidence_digest,
        policy_digest=verdict.policy_digest,
        expires_at=now + candidate.approval.valid_for_seconds * _SEC,
    )
