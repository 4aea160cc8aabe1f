"""Evidence: the facts of an update that count, as of a log size (checks.md section 1).

Rules:
1. Values only: `gate.gather` chooses them, checks read them, nobody changes them after.
2. The evidence digest covers every fact in here that a check may pass on (`Evidence.leaves`). Approvals,
   pauses and candidates after the first stand outside: they can only hold an update, or name the digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ledger.fact import Fact, SpanFact
from ledger.v1 import canary_pb2, gate_pb2, judge_pb2, options_pb2

__all__ = [
    "FOREVER",
    "TARGETS",
    "Attempt",
    "Evaluation",
    "Evidence",
    "RolloutEvidence",
    "Window",
    "attempt_facts",
    "evaluation_facts",
    "pinned_environment",
    "rollout_facts",
    "window_facts",
]

FOREVER: Final = 1 << 62  # beyond every index

TARGETS: Final = tuple(n for n in options_pb2.EnvironmentTarget.values() if n)


def pinned_environment(frozen: gate_pb2.UpdateFrozen) -> dict[int, bytes]:
    """Environment target -> pinned digest."""
    return {part.target: part.digest for part in frozen.environment}


@dataclass(slots=True)
class Attempt:
    """An attempt that counts. `number` from 1."""

    number: int
    started: Fact
    ended: Fact | None = None
    spans: dict[bytes, SpanFact] = field(default_factory=dict)  # (trace, span) -> first
    span_conflict: bool = False


@dataclass(slots=True)
class RolloutEvidence:
    """A rollout of the window, with what counts of it."""

    id: str
    enqueued: Fact
    ended: Fact | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    rewards: list[Fact] = field(default_factory=list)
    conflict: bool = False


@dataclass(slots=True)
class Evaluation:
    """One subject's evaluation: the first that names the pins."""

    id: str
    parts: dict[int, Fact] = field(default_factory=dict)
    closed: Fact | None = None
    scores: dict[str, dict[int, judge_pb2.CaseScore]] = field(default_factory=dict)  # case -> trial -> score
    conflicts: set[str] = field(default_factory=set)  # cases; "" for the evaluation as a whole


@dataclass(slots=True)
class Window:
    """A canary window that counts."""

    started: Fact
    tasks: dict[str, Fact] = field(default_factory=dict)
    ended: Fact | None = None
    rehearsal: Fact | None = None
    conflict: bool = False

    @property
    def live(self) -> bool:
        """Whether consumers were routed."""
        return bool(self.started.body.kind == canary_pb2.WINDOW_KIND_LIVE)


@dataclass(slots=True)
class Evidence:
    """Everything that counts for an update and a step, as of `size`."""

    update: str
    step: int
    size: int
    now: int  # recorded_at of the prefix's last entry, microseconds
    proposal: Fact | None = None
    freezes: list[Fact] = field(default_factory=list)
    training_started: Fact | None = None
    progressed: list[Fact] = field(default_factory=list)
    training_ended: Fact | None = None
    candidates: list[Fact] = field(default_factory=list)  # different ones, in order
    pauses: list[tuple[Fact, Fact | None]] = field(default_factory=list)  # with the resume that ended it
    rollouts: list[RolloutEvidence] = field(default_factory=list)
    evaluations: dict[int, dict[int, Evaluation]] = field(default_factory=dict)  # check 4, 5 -> subject -> it
    windows: list[Window] = field(default_factory=list)
    approvals: list[tuple[Fact, bool]] = field(default_factory=list)  # with: it was withdrawn
    conflicts: set[str] = field(
        default_factory=set
    )  # body names of trainer events claimed twice, differently
    anomalies: list[tuple[int, str]] = field(default_factory=list)
    suspect: int = 0

    @property
    def pins(self) -> gate_pb2.UpdateFrozen | None:
        """The governing freeze."""
        return self.freezes[-1].body if self.freezes else None

    @property
    def cut_off(self) -> int:
        """The data cut-off: index of TrainingEnded, or beyond every index while training is open."""
        return self.training_ended.index if self.training_ended else FOREVER

    def leaves(self) -> dict[int, bytes]:
        """index -> leaf hash of every entry that holds a fact that counts for this step."""
        found: dict[int, bytes] = {}
        for fact in self._facts():
            found[fact.index] = fact.leaf
        return found

    def _facts(self) -> Iterable[Fact | SpanFact]:
        single = (self.proposal, self.training_started, self.training_ended)
        yield from (fact for fact in single if fact is not None)
        yield from self.freezes
        yield from self.progressed
        yield from self.candidates[:1]
        for rollout in self.rollouts:
            yield from rollout_facts(rollout)
        for evaluations in self.evaluations.values():
            for evaluation in evaluations.values():
                yield from evaluation_facts(evaluation)
        for window in self.windows:
            yield from window_facts(window)
            if window.rehearsal is not None:
                yield window.rehearsal


def rollout_facts(rollout: RolloutEvidence) -> Iterable[Fact | SpanFact]:
    """Every fact of a rollout that counts."""
    yield rollout.enqueued
    for attempt in rollout.attempts.values():
        yield from attempt_facts(attempt)
    yield from rollout.rewards
    if rollout.ended is not None:
        yield rollout.ended


def attempt_facts(attempt: Attempt) -> Iterable[Fact | SpanFact]:
    """Start, spans and end of an attempt."""
    yield attempt.started
    yield from attempt.spans.values()
    if attempt.ended is not None:
        yield attempt.ended


def evaluation_facts(evaluation: Evaluation) -> Iterable[Fact]:
    """Parts and close of an evaluation."""
    yield from evaluation.parts.values()
    if evaluation.closed is not None:
        yield evaluation.closed


def window_facts(window: Window) -> Iterable[Fact]:
    """Start, tasks and end of a window; its rehearsal stands apart."""
    yield window.started
    yield from window.tasks.values()
    if window.ended is not None:
        yield window.ended
