"""From a candidate to what trainer, runner and judge write until there is a candidate.

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

from clients.demo.document import Candidate, Training
from clients.demo.frame import Frame, digest
from ledger.v1 import judge_pb2, options_pb2, runner_pb2, trainer_pb2

__all__ = ["proposal", "rewards", "rollouts", "training_ended"]

_SEC: Final = 1_000_000
_NANOSECONDS: Final = 1000  # in a microsecond: OpenTelemetry counts in these


def proposal(frame: Frame, candidate: Candidate) -> trainer_pb2.UpdateProposed:
    """By the trainer."""
    return trainer_pb2.UpdateProposed(
        update=frame.update(candidate),
        resource=frame.document.resource,
        kind=options_pb2.RESOURCE_KIND_MODEL_LORA,
        scope=frame.scope,
        parent_digest=frame.baseline,
        training_snapshot_digest=frame.training_snapshot,
        algorithm_config_digest=digest(f"grpo/{candidate.name}"),
        code_revision="4f1c0de",
        harness_digest=frame.environment(options_pb2.ENVIRONMENT_TARGET_HARNESS),
        tokenizer_digest=frame.environment(options_pb2.ENVIRONMENT_TARGET_TOKENIZER),
        workflow_version=1,
    )


def rollouts(frame: Frame, candidate: Candidate, now: Callable[[], int]) -> Iterator[list[Any]]:
    """By the runner: one list a rollout. `now()` gives microseconds since 1970."""
    spec = candidate.training
    reasons = _retries(spec)
    for position in range(spec.rollouts):
        kind = _Kind(
            retry=reasons[position] if position < len(reasons) else None,
            silent=len(reasons) <= position < len(reasons) + spec.silent_failures,
            covered=position >= spec.rollouts - spec.covered,
            left_open=position >= spec.rollouts - spec.left_open,
        )
        yield _rollout(frame, candidate, position, kind, now)


def _retries(spec: Training) -> list[runner_pb2.AttemptReason.ValueType]:
    """Why the first rollouts are tried again, one reason each."""
    return [
        *[runner_pb2.ATTEMPT_REASON_UNEXPECTED_RETRY] * spec.unexpected_retries,
        *[runner_pb2.ATTEMPT_REASON_EXPECTED_RETRY] * spec.expected_retries,
        *[runner_pb2.ATTEMPT_REASON_INFRASTRUCTURE_RETRY] * spec.infrastructure_retries,
    ]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is special about one rollout."""

    retry: runner_pb2.AttemptReason.ValueType | None
    silent: bool  # its first attempt ended without a reason
    covered: bool  # all declared spans are there
    left_open: bool


def _rollout(
    frame: Frame, candidate: Candidate, position: int, kind: _Kind, now: Callable[[], int]
) -> list[Any]:
    rollout = frame.rollout(candidate, position)
    bodies: list[Any] = [
        runner_pb2.RolloutEnqueued(
            rollout=rollout,
            workflow=frame.document.workflow.name,
            workflow_version=1,
            mode=runner_pb2.MODE_VAL if position % 6 == 5 else runner_pb2.MODE_TRAIN,
            update=frame.update(candidate),
            input_digest=digest(f"task/{position}"),
        )
    ]
    number = 1
    reason = runner_pb2.ATTEMPT_REASON_FIRST
    if kind.retry is not None or kind.silent:
        bodies += _failed_attempt(rollout, None if kind.silent else "the answer did not parse")
        number = 2
        reason = kind.retry if kind.retry is not None else runner_pb2.ATTEMPT_REASON_EXPECTED_RETRY
    bodies.append(_started(rollout, number, reason))
    bodies += _spans(frame, rollout, number, covered=kind.covered, now=now)
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
    if not kind.left_open:
        bodies.append(runner_pb2.RolloutEnded(rollout=rollout, status=runner_pb2.ROLLOUT_STATUS_SUCCEEDED))
    return bodies


def _failed_attempt(rollout: str, reason: str | None) -> list[Any]:
    return [
        _started(rollout, 1, runner_pb2.ATTEMPT_REASON_FIRST),
        runner_pb2.AttemptEnded(
            rollout=rollout, attempt=1, outcome=runner_pb2.ATTEMPT_OUTCOME_TIMEOUT, reason=reason
        ),
    ]


def _started(
    rollout: str, number: int, reason: runner_pb2.AttemptReason.ValueType
) -> runner_pb2.AttemptStarted:
    return runner_pb2.AttemptStarted(
        rollout=rollout,
        number=number,
        reason=reason,
        worker="worker-1",
        model_server="server-1",
        weights_version=0,
    )


def _spans(
    frame: Frame, rollout: str, attempt: int, *, covered: bool, now: Callable[[], int]
) -> list[runner_pb2.SpanRecorded]:
    families = frame.document.workflow.span_families
    wanted = [name for name, least in families.items() for _ in range(least)]
    if not covered:
        wanted = wanted[:-1]
    trace = hashlib.sha256(f"{rollout}/{attempt}".encode()).digest()[:16]
    spans = []
    for position, family in enumerate(wanted, start=1):
        span_id = position.to_bytes(8, "big")
        start = now() * _NANOSECONDS + position
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


def rewards(frame: Frame, candidate: Candidate) -> list[Any]:
    """By the judge: one reward a rollout, for its deciding attempt."""
    spec = candidate.training
    retried = len(_retries(spec)) + spec.silent_failures
    return [
        judge_pb2.RewardRecorded(
            rollout=frame.rollout(candidate, position),
            attempt=2 if position < retried else 1,
            judge_version="execution-match-1",
            dimension="correctness",
            value=float(position % 4 != 0),
        )
        for position in range(spec.rollouts)
    ]


def training_ended(frame: Frame, candidate: Candidate) -> list[Any]:
    """By the trainer: the data cut-off, then what training produced."""
    update, spec = frame.update(candidate), candidate.candidate
    ended = trainer_pb2.TrainingEnded(
        update=update,
        steps=40,
        weights_version=40,
        counts=[trainer_pb2.Count(name="used", value=candidate.training.rollouts)],
        greatest_logprob_mismatch=0.00002,
    )
    parent = frame.baseline if spec.names_pinned_parent else digest("another parent")
    made = [frame.candidate(candidate)] * spec.registered
    made += [digest(f"{candidate.name}/second")] * spec.second
    return [
        ended,
        *(
            trainer_pb2.CandidateRegistered(
                update=update, manifest_digest=manifest, parent_digest=parent, files=3
            )
            for manifest in made
        ),
    ]
