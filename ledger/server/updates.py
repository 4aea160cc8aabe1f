"""Where the entries of each update and rollout stand, and who may read which of them.

Rules kept here:

- A fold over persisted rows: what was not written yet lies in memory beside them, what was written leaves
  memory when it is not asked for. Memory is bounded, whatever the log holds.
- A holdout or canary rollout is never visible to an update's trainer and runners, nor are evaluations,
  verdicts or whatever else carries what the learner must not see. What is visible is listed; what is not
  listed stays hidden.
- A rollout belongs to the update and the mode of its first RolloutEnqueued. A later one opens nothing; if it
  names a hidden mode or another update, nothing of the rollout is visible from then on: who claims a
  holdout's id first, as train, sees none of its content or scores.
- The update's own trainer is the author of its first UpdateProposed; its own runners are those who enqueued
  one of its train or val rollouts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.receipt import OF_A_ROLLOUT
from ledger.server.views import Views, pack, unpack
from ledger.trust import Grant
from ledger.v1 import event_pb2, options_pb2, runner_pb2

__all__ = ["TAKEN", "VISIBLE", "WITHDRAWS", "RolloutRow", "UpdateIndex", "UpdateRow", "flagged"]

_MOST_ROLLOUTS: Final = 32_768  # in memory, about 400 bytes each
_MOST_UPDATES: Final = 4096  # in memory, about 800 bytes each
#: Flags of a claim: the update's own people may read it, it enqueues a rollout that something else claimed
#: before, it withdraws an approval.
VISIBLE: Final = 1
TAKEN: Final = 2
WITHDRAWS: Final = 4
_BITS: Final = 3
_FLAGS: Final = VISIBLE | TAKEN | WITHDRAWS
_OWN_MODES: Final = frozenset({runner_pb2.MODE_TRAIN, runner_pb2.MODE_VAL})

# Claims that name an update: the identity, the stops and the trainer's own words are visible to its own; what
# was measured on a holdout is not.
_OWN_OF_UPDATE: Final = frozenset(
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
_OF_UPDATE: Final = _OWN_OF_UPDATE | {
    "evaluation_recorded",
    "evaluation_closed",
    "canary_started",
    "canary_task_recorded",
    "canary_ended",
    "rollback_rehearsed",
    "approval_granted",
    "approval_withdrawn",
    "verdict_issued",
}


def flagged(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Position and flags of claims."""
    return [(code >> _BITS, code & _FLAGS) for code in codes]


def _flags(name: str) -> int:
    if name == "approval_withdrawn":
        return WITHDRAWS
    return VISIBLE if name in _OWN_OF_UPDATE else 0


def _numbers() -> array[int]:
    return array("Q")


@dataclass(slots=True)
class RolloutRow:
    """A rollout: where it was enqueued first, by which update, and the positions of all claims about it."""

    first: int | None = None
    owner: str | None = None
    visible: bool = False
    fresh: array[int] = field(default_factory=_numbers)  # positions that wait to be written
    writing: array[int] = field(default_factory=_numbers)  # and those that are being written


@dataclass(slots=True)
class UpdateRow:
    """An update: its number in the order of first claims, its people, and where its claims stand."""

    number: int
    id: str
    first: int
    trainer: str | None = None
    last: int = -1  # position of the last claim
    written: int = -1  # and of the last one in the rows
    frozen: bool = False
    ended: bool = False
    candidate: bytes | None = None  # manifest digest of the first one
    runners: set[str] = field(default_factory=set)
    fresh: array[int] = field(default_factory=_numbers)  # position << 3 | flags
    writing: array[int] = field(default_factory=_numbers)


class UpdateIndex:
    """A fold: update → its claims, rollout → its claims. Owned by the event loop."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._rollouts: OrderedDict[str, RolloutRow] = OrderedDict()
        self._updates: OrderedDict[str, UpdateRow] = OrderedDict()
        self._dirty_rollouts: dict[str, RolloutRow] = {}
        self._dirty_updates: dict[str, UpdateRow] = {}
        self._writing: tuple[list[RolloutRow], list[UpdateRow]] = ([], [])
        self._runners: list[tuple[int, str]] = []
        self._proposals: list[tuple[Any, ...]] = []
        self.size = views.size
        self.count: int = views.select("SELECT COUNT(*) FROM updates")[0][0]  # updates that were ever named

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes one entry."""
        name = event.WhichOneof("body")
        if name in OF_A_ROLLOUT:
            rollout = getattr(event, name).rollout
            row = self._take(rollout, index)
            if row.owner is not None:
                self._claim(row.owner, index, VISIBLE if row.visible else 0)
        elif name == "rollout_enqueued":
            self._enqueued(index, grant, event.rollout_enqueued)
        elif name in _OF_UPDATE:
            body = getattr(event, name)
            update = self._claim(body.update, index, _flags(name))
            if name == "update_proposed":
                self._proposed(update, index, grant, body)
            elif name == "update_frozen":
                update.frozen = True
            elif name == "training_ended":
                update.ended = True
            elif name == "candidate_registered" and update.candidate is None:
                update.candidate = body.manifest_digest
        self.size = index + 1

    def _take(self, rollout: str, index: int) -> RolloutRow:
        row = self._rollout(rollout)
        row.fresh.append(index)
        self._dirty_rollouts[rollout] = row
        return row

    def _claim(self, update: str, index: int, flags: int) -> UpdateRow:
        row = self.update(update)
        if row is None:
            row = self._updates[update] = UpdateRow(self.count, update, index)
            self.count += 1
        row.last = index
        row.fresh.append(index << _BITS | flags)
        self._dirty_updates[update] = row
        return row

    def _enqueued(self, index: int, grant: Grant, body: runner_pb2.RolloutEnqueued) -> None:
        row = self._take(body.rollout, index)
        named = body.update if body.HasField("update") else None
        may_be_seen = named is not None and body.mode in _OWN_MODES
        if row.first is None:
            row.first, row.owner, row.visible = index, named, may_be_seen
        elif named != row.owner or not may_be_seen:
            row.visible = False
        if row.owner is not None:
            owner = self._claim(row.owner, index, VISIBLE if row.visible else 0)
            if row.first == index and row.visible and grant.name not in owner.runners:
                owner.runners.add(grant.name)
                self._runners.append((owner.number, grant.name))
        if named is not None and named != row.owner:
            self._claim(named, index, TAKEN)

    def _proposed(self, update: UpdateRow, index: int, grant: Grant, body: Any) -> None:
        update.trainer = update.trainer or grant.name
        key, scope = grant.key, body.scope
        self._proposals.append(
            (update.number, index, key.name, key.key_id, body.resource, scope.workflow, scope.segment)
        )

    # --- asking ---------------------------------------------------------------------------------------------

    def update(self, update: str) -> UpdateRow | None:
        """The row of an update; None for one that nobody named."""
        row = self._updates.get(update)
        if row is not None:
            self._updates.move_to_end(update)
            return row
        found = self._views.select(
            "SELECT number, id, first, trainer, last, last, frozen, ended, candidate FROM updates "
            "WHERE id = ?",
            (update,),
        )
        if not found:
            return None
        row = UpdateRow(*found[0])
        runners = self._views.select("SELECT name FROM runners WHERE number = ?", (row.number,))
        row.runners = {name for (name,) in runners}
        self._updates[update] = row
        _shrink(self._updates, _MOST_UPDATES)
        return row

    def ids(self) -> list[str]:
        """Every update, in the order of the first claims."""
        found: dict[int, str] = dict(self._views.select("SELECT number, id FROM updates"))
        found |= {row.number: row.id for row in (*self._writing[1], *self._dirty_updates.values())}
        return [found[number] for number in sorted(found)]

    def visibility(self, rollout: str) -> tuple[str | None, bool]:
        """The update that a rollout belongs to, and whether that update's own people may read of it."""
        row = self._rollout(rollout)
        return row.owner, row.visible

    def claimed(self, rollout: str) -> tuple[int, str | None] | None:
        """Position and update of the first RolloutEnqueued of a rollout."""
        row = self._rollout(rollout)
        return None if row.first is None else (row.first, row.owner)

    def _rollout(self, rollout: str) -> RolloutRow:
        row = self._rollouts.get(rollout)
        if row is not None:
            self._rollouts.move_to_end(rollout)
            return row
        found = self._views.select("SELECT first, owner, visible FROM rollouts WHERE id = ?", (rollout,))
        row = RolloutRow(found[0][0], found[0][1], bool(found[0][2])) if found else RolloutRow()
        self._rollouts[rollout] = row
        _shrink(self._rollouts, _MOST_ROLLOUTS)
        return row

    def of_rollout(self, rollout: str) -> array[int]:
        """Positions of all claims about a rollout, ascending, as of now."""
        row = self._rollout(rollout)
        found = self._views.select("SELECT packed FROM rollouts WHERE id = ?", (rollout,))
        return _joined([unpack(packed) for (packed,) in found], row.writing, row.fresh)

    def claims(self, row: UpdateRow, start: int, end: int) -> list[tuple[int, int]]:
        """Claims of an update at positions [start, end): position and flags."""
        return flagged(self.codes(row, start, end))

    def codes(self, row: UpdateRow, start: int, end: int) -> array[int]:
        """As `claims`, each as one number, for `flagged`."""
        chunks = []
        if start <= row.written:
            chunks = [
                unpack(packed)
                for (packed,) in self._views.select(
                    "SELECT packed FROM claims WHERE number = ?1 AND first < ?3 AND first >= "
                    "COALESCE((SELECT MAX(first) FROM claims WHERE number = ?1 AND first <= ?2), 0) "
                    "ORDER BY first",
                    (row.number, start, end),
                )
            ]
        codes = _joined(chunks, row.writing, row.fresh)
        return codes[bisect_left(codes, start << _BITS) : bisect_left(codes, end << _BITS)]

    def entries(self, update: str, start: int, end: int) -> list[int]:
        """Positions in [start, end) that the update's own trainer and runners may read, ascending."""
        row = self.update(update)
        if row is None:
            return []
        return [position for position, flags in self.claims(row, start, end) if flags & VISIBLE]

    def is_own(self, update: str, name: str, role: int) -> bool:
        """Whether the principal is the update's own trainer or one of its runners."""
        row = self.update(update)
        if row is None:
            return False
        if role == options_pb2.ROLE_TRAINER:
            return row.trainer == name
        return role == options_pb2.ROLE_RUNNER and name in row.runners

    def held(self) -> tuple[int, int]:
        """How many rows of rollouts and of updates are in memory."""
        return len(self._rollouts), len(self._updates)

    # --- writing --------------------------------------------------------------------------------------------

    def take_changes(self) -> dict[str, list[tuple[Any, ...]]]:
        """Rows to write, by table. They stay beside the rows until `written` says that they are there."""
        rollouts, updates = self._dirty_rollouts, self._dirty_updates
        self._dirty_rollouts, self._dirty_updates = {}, {}
        rows: dict[str, list[tuple[Any, ...]]] = {
            "rollouts": [
                (name, row.first, row.owner, row.visible, pack(row.fresh)) for name, row in rollouts.items()
            ],
            "claims": [
                (row.number, row.fresh[0] >> _BITS, pack(row.fresh)) for row in updates.values() if row.fresh
            ],
            "updates": [
                (row.number, row.id, row.trainer, row.first, row.last, row.frozen, row.ended, row.candidate)
                for row in updates.values()
            ],
            "runners": list(self._runners),
            "proposals": self._proposals,
        }
        self._runners, self._proposals = [], []
        self._writing = (list(rollouts.values()), list(updates.values()))
        for rollout in rollouts.values():
            rollout.writing, rollout.fresh = rollout.fresh, _numbers()
        for update in updates.values():
            update.writing, update.fresh = update.fresh, _numbers()
        return rows

    def written(self) -> None:
        """What `take_changes` gave is in the rows now."""
        rollouts, updates = self._writing
        for rollout in rollouts:
            rollout.writing = _numbers()
        for update in updates:
            update.written = update.writing[-1] >> _BITS
            update.writing = _numbers()
        self._writing = ([], [])
        _shrink(self._rollouts, _MOST_ROLLOUTS)
        _shrink(self._updates, _MOST_UPDATES)


def _joined(chunks: list[array[int]], *more: array[int]) -> array[int]:
    """Ascending numbers put together; what was being written may be in the rows already."""
    joined = _numbers()
    for chunk in (*chunks, *more):
        joined.extend(chunk if not joined else chunk[bisect_left(chunk, joined[-1] + 1) :])
    return joined


def _shrink(rows: OrderedDict[str, Any], most: int) -> None:
    """Forgets rows that were not asked for lately and are written."""
    for _ in range(len(rows) - most):
        name, row = next(iter(rows.items()))
        if row.fresh or row.writing:
            return  # the oldest one waits: its turn comes when that is written
        del rows[name]
