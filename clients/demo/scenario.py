"""From a candidates file to the events that each principal would write. Pure: clock and ids are handed in.

What they say stands in `clients.demo.frame` (the operator), `training` (trainer, runner, judge) and `proof`
(judge, canary, approver); here it becomes events, one method a phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from clients.demo import proof, training
from clients.demo.document import Candidate, DemoDocument, solved_by, solved_by_parent
from clients.demo.frame import Frame, digest, publications
from ledger.v1 import event_pb2, gate_pb2, options_pb2, trainer_pb2

__all__ = ["Events", "Scenario", "digest", "wrap"]

Events = list[event_pb2.Event]

_FIELD_OF: Final = {
    field.message_type.full_name: field.name
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None
}


def wrap(body: Any, event_id: bytes, occurred_at: int) -> event_pb2.Event:
    """The event around a body message; the field is found by the message's type."""
    name = _FIELD_OF[type(body).DESCRIPTOR.full_name]
    return event_pb2.Event(event_id=event_id, occurred_at=occurred_at, **{name: body})


@dataclass(slots=True)
class Scenario:
    """Makes the events of a document. `new_id()` gives a UUIDv7, `now()` microseconds since 1970."""

    document: DemoDocument
    new_id: Callable[[], bytes]
    now: Callable[[], int]

    # --- what everything rests on ---

    @property
    def frame(self) -> Frame:
        """Names and digests of the document."""
        return Frame(self.document)

    @property
    def scope(self) -> options_pb2.Scope:
        """Where the updates may act."""
        return self.frame.scope

    @property
    def baseline(self) -> bytes:
        """Manifest digest of the first default, the parent of every candidate."""
        return self.frame.baseline

    @property
    def holdout_digest(self) -> bytes:
        """Digest of the holdout snapshot."""
        return self.frame.holdout

    @property
    def evaluator_digest(self) -> bytes:
        """Digest of the evaluator."""
        return self.frame.evaluator

    def candidate_digest(self, candidate: Candidate) -> bytes:
        """Manifest digest of what an update produced."""
        return self.frame.candidate(candidate)

    def update_id(self, candidate: Candidate) -> str:
        """The update's id."""
        return self.frame.update(candidate)

    def rollout_id(self, candidate: Candidate, position: int) -> str:
        """Id of the rollout at a position from 0."""
        return self.frame.rollout(candidate, position)

    def _events(self, bodies: Iterable[Any]) -> Events:
        return [wrap(body, self.new_id(), self.now()) for body in bodies]

    def _cases(self, families: tuple[str, ...] | None = None) -> list[str]:
        return self.document.holdout.cases(families)

    def _solved_by_parent(self) -> set[str]:
        return solved_by_parent(self.document.holdout)

    def _solved_by(self, candidate: Candidate, parent: set[str]) -> set[str]:
        return solved_by(self.document.holdout, candidate.evaluation, parent)

    # --- by whom, in order ---

    def publications(self) -> Events:
        """By the operator, once: the frame in which updates are judged, and the ungated baseline."""
        return self._events(publications(self.frame))

    def proposal(self, candidate: Candidate) -> Events:
        """By the trainer."""
        return self._events([training.proposal(self.frame, candidate)])

    def training_started(self, candidate: Candidate) -> Events:
        """By the trainer, after the freeze."""
        return self._events(
            [trainer_pb2.TrainingStarted(update=self.update_id(candidate), weights_version=0)]
        )

    def rollouts(self, candidate: Candidate) -> Iterator[Events]:
        """By the runner: one list a rollout."""
        for bodies in training.rollouts(self.frame, candidate, self.now):
            yield self._events(bodies)

    def rewards(self, candidate: Candidate) -> Events:
        """By the judge: one reward a rollout, for its deciding attempt."""
        return self._events(training.rewards(self.frame, candidate))

    def training_ended(self, candidate: Candidate) -> Events:
        """By the trainer: the data cut-off, then what training produced."""
        return self._events(training.training_ended(self.frame, candidate))

    def evaluations(self, candidate: Candidate) -> Events:
        """By the judge: parent and candidate on the locked holdout."""
        return self._events(proof.evaluations(self.frame, candidate))

    def canary(self, candidate: Candidate) -> Events:
        """By the canary: a rehearsal window inside declared bounds, and the way back."""
        return self._events(proof.canary(self.frame, candidate))

    def approval(
        self, candidate: Candidate, step: options_pb2.Step.ValueType, verdict: gate_pb2.VerdictIssued
    ) -> Events:
        """By the approver: for exactly the evidence and the policy that the gate showed."""
        return self._events([proof.approval(self.frame, candidate, step, verdict, self.now())])
