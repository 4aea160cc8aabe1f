"""Which entries belong to an update's own train and val events: what its trainer and runners may read.

Rules kept here:

- A holdout or canary rollout never enters, nor do evaluations, verdicts or whatever else carries what the
  learner must not see. What enters is listed; what is not listed stays out.
- A rollout belongs to the update and the mode of its first RolloutEnqueued. A later one opens nothing; if it
  names a hidden mode or another update, nothing of the rollout enters from then on: who claims a holdout's id
  first, as train, sees none of its content or scores.
- The update's own trainer is the author of its first UpdateProposed; its own runners are those who enqueued
  one of its train or val rollouts.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from ledger.trust import Grant
from ledger.v1 import event_pb2, options_pb2, runner_pb2

__all__ = ["UpdateIndex", "visible_to_update"]

_VISIBLE_MODES: Final = frozenset({runner_pb2.MODE_TRAIN, runner_pb2.MODE_VAL})

# The identity, the stops and the trainer's own words; nothing that was measured on a holdout.
_OF_UPDATE: Final = frozenset(
    {
        "update_proposed",
        "update_frozen",
        "update_refused",
        "training_started",
        "training_progressed",
        "training_ended",
        "training_paused",
        "training_resumed",
        "resume_requested",
        "candidate_registered",
    }
)
_OF_ROLLOUT: Final = frozenset(
    {"attempt_started", "span_recorded", "attempt_ended", "rollout_ended", "reward_recorded"}
)


def visible_to_update(name: str | None, body: Any, rollouts: dict[str, str]) -> str | None:
    """The update whose own trainer and runners may read an event of type `name`; None if there is none.

    `rollouts` maps train and val rollouts to their update.
    """
    if name in _OF_ROLLOUT:
        return rollouts.get(body.rollout)
    if name == "rollout_enqueued":
        own = rollouts.get(body.rollout)
        return own if own is not None and own == body.update and body.mode in _VISIBLE_MODES else None
    if name in _OF_UPDATE:
        update: str = body.update
        return update
    return None


class UpdateIndex:
    """A fold: update → indexes of the entries that it may read, in order."""

    def __init__(self) -> None:
        self._rollouts: dict[str, str] = {}
        self._seen_rollouts: set[str] = set()  # of no update, of hidden modes or contested: they stay out
        self._entries: dict[str, array[int]] = {}
        self._trainers: dict[str, str] = {}
        self._runners: dict[str, set[str]] = {}

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes one entry."""
        name = event.WhichOneof("body")
        body: Any = None if name is None else getattr(event, name)
        if name == "rollout_enqueued":
            self._enqueued(grant, body)
        elif name == "update_proposed":
            self._trainers.setdefault(body.update, grant.name)
        if (update := visible_to_update(name, body, self._rollouts)) is not None:
            self._entries.setdefault(update, array("Q")).append(index)

    def _enqueued(self, grant: Grant, body: runner_pb2.RolloutEnqueued) -> None:
        if (update := self._rollouts.get(body.rollout)) is not None:
            if body.mode not in _VISIBLE_MODES or body.update != update:
                del self._rollouts[body.rollout]
                self._seen_rollouts.add(body.rollout)
            return
        if body.rollout in self._seen_rollouts:
            return
        if body.mode in _VISIBLE_MODES and body.HasField("update"):
            self._rollouts[body.rollout] = body.update
            self._runners.setdefault(body.update, set()).add(grant.name)
        else:
            self._seen_rollouts.add(body.rollout)

    def is_own(self, update: str, name: str, role: int) -> bool:
        """Whether the principal is the update's own trainer or one of its runners."""
        if role == options_pb2.ROLE_TRAINER:
            return self._trainers.get(update) == name
        return role == options_pb2.ROLE_RUNNER and name in self._runners.get(update, ())

    def entries(self, update: str) -> array[int]:
        """Indexes, ascending, as of now. Empty for an update that is unknown."""
        return self._entries.get(update, array("Q"))
