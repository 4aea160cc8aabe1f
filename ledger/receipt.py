"""Receipts: a pure fold over the log, entry by entry; the same code in the server, the gate and the auditor.

Rules:
1. The fold groups claims by update and natural key; it judges none of them (law 1). Which of them count is
   asked later, as of any log size, so that a verdict replays on its own prefix (law 15).
2. Verdicts and pointer moves are judged once, at their own index, by the judge that was handed in. What does
   not hold is void: skipped here, reported by replay.
3. `latest candidate` and `approved default` are two things (law 13). No default is None, never a candidate.
4. Memory grows with updates and their rollouts, not with the log: rollouts of no update leave only their id,
   a recorded_at 16 bytes.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final

from ledger import standing
from ledger.claims import PROMOTES, UNREPLAYABLE, Judge, PointerKey, Rollout, Update, VerdictRecord, Void
from ledger.errors import CannotTellError
from ledger.fact import Fact, SpanFact, Suspects
from ledger.note import VerifierKey
from ledger.pointers import Pointers, pointer_of
from ledger.registry import Registry
from ledger.touches import TOUCHES_NOTHING, judgment_keys, touches
from ledger.trust import Grant, Revocation
from ledger.v1 import canary_pb2, event_pb2, judge_pb2

__all__ = ["Receipts"]

_ROLLOUT_LISTS: Final = {
    "attempt_started": "started",
    "attempt_ended": "attempts_ended",
    "rollout_ended": "ended",
    "reward_recorded": "rewards",
}
_PUBLICATIONS: Final = frozenset(
    {
        "workflow_declared",
        "policy_published",
        "evaluator_published",
        "snapshot_published",
        "protected_set_published",
        "tool_contract_published",
        "environment_changed",
    }
)
# What can make evidence stale or change the governing freeze: nothing else is a reason to look again.
_MAY_FELL: Final = _PUBLICATIONS | {
    "baseline_adopted",
    "canary_task_recorded",  # one that was judged rests on the evaluator
    "default_promoted",
    "default_rolled_back",
    "key_revoked",
    "update_frozen",
}


class Receipts:
    """The fold. `root_at(size)` gives the log's root at an earlier size; the tree is somebody else's.

    Owned by whoever feeds `apply`; everybody else only asks.
    """

    def __init__(self, judge: Judge, root_at: Callable[[int], bytes]) -> None:
        self.judge = judge
        self.root_at = root_at
        self.size = 0
        self.suspects = Suspects()
        self.registry = Registry(self.suspects)
        self.pointers = Pointers(self.suspects)
        self.updates: dict[str, Update] = {}
        self.voids: list[Void] = []
        self.unknown_pointers: set[PointerKey] = set()  # moved by a verdict that cannot be judged here
        self.orphans = 0  # runner events and rewards whose rollout nobody enqueued before
        self.latest_candidate: dict[PointerKey, Fact] = {}
        self.touched: dict[str, int] = {}  # key -> index of its last touch
        self._judged: dict[bytes, list[Fact]] = {}  # holdout -> evaluations of candidates on it
        self._rollouts: dict[str, Rollout | None] = {}
        self._standing: list[VerdictRecord] = []
        self._times = array("q")  # each recorded_at that differs from the one before,
        self._times_from = array("q")  # and the index from which it holds

    # --- folding -------------------------------------------------------------------------------------------

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the entry at `index`, which must be the next. `alone`: it is the only one of its batch."""
        if not self._times or self._times[-1] != recorded_at:
            self._times.append(recorded_at)
            self._times_from.append(index)
        name = event.WhichOneof("body")
        if name is not None:
            fold = self._folds.get(name)
            if fold is not None:
                fold(self, Fact(index, recorded_at, leaf, grant, name, getattr(event, name)), alone)
            if name not in TOUCHES_NOTHING:
                self._touch(index, recorded_at, name, touches(event))
        self.size = index + 1

    def _touch(self, index: int, recorded_at: int, name: str, touched: tuple[str, ...]) -> None:
        for key in touched:
            self.touched[key] = index
        self.size = index + 1  # what looks again sees this entry
        if self._standing and name in _MAY_FELL:
            self._let_fall(index, recorded_at, touched)

    def update(self, update: str) -> Update:
        """The update's record, made if this is the first claim that names it."""
        found = self.updates.get(update)
        if found is None:
            found = self.updates[update] = Update(update)
        return found

    def _keep(self, fact: Fact, _alone: bool) -> None:
        self.update(fact.body.update).facts.setdefault(fact.name, []).append(fact)

    def _published(self, fact: Fact, _alone: bool) -> None:
        digest = hashlib.sha256(fact.body.document).digest() if fact.name == "policy_published" else None
        self.registry.add(fact, digest)

    def _key_revoked(self, fact: Fact, _alone: bool) -> None:
        key = VerifierKey.parse(fact.body.vkey)
        if fact.body.HasField("suspect_from"):
            self.suspects.revoke(key.name, key.key_id, Revocation(fact.index, fact.body.suspect_from))

    # --- runner events and rewards: the many ---------------------------------------------------------------

    def _enqueued(self, fact: Fact, _alone: bool) -> None:
        body = fact.body
        taken = body.rollout in self._rollouts
        known = self._rollouts.get(body.rollout)
        if known is not None:
            known.enqueued.append(fact)
        own = self.update(body.update).rollouts if body.HasField("update") else None
        if own is not None and body.rollout not in own:
            own[body.rollout] = Rollout([fact], taken)
        if not taken:
            self._rollouts[body.rollout] = None if own is None else own[body.rollout]

    def _of_rollout(self, fact: Fact) -> Rollout | None:
        rollout = self._rollouts.get(fact.body.rollout)
        if rollout is None and fact.body.rollout not in self._rollouts:
            self.orphans += 1
        return rollout

    def _span(self, fact: Fact, _alone: bool) -> None:
        rollout = self._of_rollout(fact)
        if rollout is not None:
            body = fact.body
            digest = hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
            ids = body.trace_id + body.span_id
            span = SpanFact(fact.index, fact.leaf, fact.grant, body.attempt, ids, body.family, digest)
            rollout.spans.append(span)

    def _of_attempt(self, fact: Fact, _alone: bool) -> None:
        rollout = self._of_rollout(fact)
        if rollout is not None:
            getattr(rollout, _ROLLOUT_LISTS[fact.name]).append(fact)

    # --- evaluations, candidates, windows ------------------------------------------------------------------

    def _evaluated(self, fact: Fact, alone: bool) -> None:
        self._keep(fact, alone)
        if fact.body.subject == judge_pb2.SUBJECT_CANDIDATE:
            self._judged.setdefault(fact.body.snapshot_digest, []).append(fact)

    def _candidate(self, fact: Fact, alone: bool) -> None:
        self._keep(fact, alone)
        proposals = self.update(fact.body.update).of("update_proposed")
        if proposals and proposals[0].grant.name == fact.grant.name:
            body = proposals[0].body
            self.latest_candidate[pointer_of(body.resource, body.scope)] = fact

    def _window(self, fact: Fact, alone: bool) -> None:
        if fact.body.kind == canary_pb2.WINDOW_KIND_LIVE:
            self.update(fact.body.update).live[fact.index] = standing.live_fault(self, fact)
        self._keep(fact, alone)

    # --- verdicts and moves --------------------------------------------------------------------------------

    def _verdict(self, fact: Fact, alone: bool) -> None:
        record = VerdictRecord(fact)
        try:
            record.void = standing.verdict_fault(self, record, alone)
        except CannotTellError as error:
            record.void, record.unreplayable = str(error), True
        self.update(fact.body.update).verdicts.append(record)
        if record.void is not None:
            self._void(fact, "R2", "VERDICT_VOID", record.void, unknown=record.unreplayable)
        elif fact.body.verdict in PROMOTES:
            record.freeze = self._governing_freeze(fact.body.update)
            self._standing.append(record)

    def _void(self, fact: Fact, step: str, reason: str, message: str, *, unknown: bool = False) -> None:
        """Keeps what does not hold. After a move that cannot be judged here, its pointer is unknown too."""
        key = pointer_of(fact.body.resource, fact.body.scope)
        if unknown and step == "R1":
            self.unknown_pointers.add(key)
        unknown = unknown or key in self.unknown_pointers
        self.voids.append(Void(step, fact.index, UNREPLAYABLE if unknown else reason, message))

    def _governing_freeze(self, update: str) -> int | None:
        freezes = reversed(self.update(update).of("update_frozen"))
        return next((fact.index for fact in freezes if not self.suspects.hold(fact, self.size)), None)

    def _let_fall(self, index: int, now: int, touched: tuple[str, ...]) -> None:
        """Looks again at the verdicts that rest on what was touched, once for each update and step."""
        stale: dict[tuple[str, int], frozenset[str]] = {}
        still: list[VerdictRecord] = []
        for record in self._standing:
            body = record.fact.body
            rests_on = judgment_keys(body.update, body.resource, body.scope)
            if now > body.not_after:
                record.fell = (index, "its time is over: nothing may rest on it any more")
            elif record.fact.index != index and not set(touched).isdisjoint(rests_on):
                asked = (body.update, body.step)
                if self._governing_freeze(body.update) != record.freeze:
                    record.fell = (index, "the governing freeze is another")
                else:
                    if asked not in stale:
                        stale[asked] = self.judge.stale(self, body.update, body.step, self.size)
                    if stale[asked]:
                        record.fell = (index, ", ".join(sorted(stale[asked])))
            if record.fell is None:
                still.append(record)
        self._standing = still

    def _baseline(self, fact: Fact, _alone: bool) -> None:
        if (fault := self.pointers.adopt(fact)) is not None:
            self._void(fact, "R1", "MOVE_VOID", fault)

    def _promoted(self, fact: Fact, alone: bool) -> None:
        if (fault := standing.promotion_fault(self, fact, alone)) is None:
            self.pointers.promote(fact)
            return
        record = standing.verdict_at(self, fact.body.update, fact.body.verdict_index)
        unknown = record is not None and record.unreplayable
        self._void(fact, "R1", "MOVE_VOID", fault, unknown=unknown)

    def _requested(self, fact: Fact, _alone: bool) -> None:
        self.pointers.ask(fact)

    def _rolled_back(self, fact: Fact, alone: bool) -> None:
        if (fault := self.pointers.rollback_fault(fact, alone)) is None:
            self.pointers.roll_back(fact)
            self.update(fact.body.update).rolled_back.append(fact.index)
        else:
            self._void(fact, "R1", "MOVE_VOID", fault)

    # --- asking --------------------------------------------------------------------------------------------

    def now(self, size: int) -> int:
        """recorded_at of the last entry of a prefix, in microseconds: a verdict's only clock; 0 at size 0."""
        position = bisect_right(self._times_from, size - 1)
        return self._times[position - 1] if position else 0

    def judged_on(self, holdout: bytes, until: int, size: int) -> set[str]:
        """Updates whose candidates were evaluated on a holdout at indexes below `until`, as of `size`."""
        judged = self._judged.get(holdout, [])
        return {f.body.update for f in judged if f.index < until and not self.suspects.hold(f, size)}

    def proposal(self, update: str) -> Fact | None:
        """The proposal that counts now: the first one of the principal that proposed first."""
        record = self.updates.get(update)
        facts = record.of("update_proposed") if record else []
        own = (fact for fact in facts if fact.grant.name == facts[0].grant.name)
        return next((fact for fact in own if not self.suspects.hold(fact, self.size)), None)

    # What is not here leaves no trace in receipts: grants, rotations, erased blobs.
    _folds: Final[dict[str, Callable[[Any, Fact, bool], None]]] = {
        "key_revoked": _key_revoked,
        "baseline_adopted": _baseline,
        "rollback_requested": _requested,
        "approver_rollback_requested": _requested,
        "rollout_enqueued": _enqueued,
        "span_recorded": _span,
        "evaluation_recorded": _evaluated,
        "candidate_registered": _candidate,
        "canary_started": _window,
        "verdict_issued": _verdict,
        "default_promoted": _promoted,
        "default_rolled_back": _rolled_back,
        **dict.fromkeys(_ROLLOUT_LISTS, _of_attempt),
        **dict.fromkeys(_PUBLICATIONS, _published),
        "resume_requested": _keep,
        "evaluation_closed": _keep,
        "update_proposed": _keep,
        "training_started": _keep,
        "training_progressed": _keep,
        "training_ended": _keep,
        "canary_task_recorded": _keep,
        "canary_ended": _keep,
        "rollback_rehearsed": _keep,
        "approval_granted": _keep,
        "approval_withdrawn": _keep,
        "update_frozen": _keep,
        "update_refused": _keep,
        "training_paused": _keep,
        "training_resumed": _keep,
    }
