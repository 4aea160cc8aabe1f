"""Receipts: a pure fold over the log, entry by entry; the same code in the server, the gate and the auditor.

Rules:
1. The fold groups claims by update and natural key; it judges none of them (law 1). Which of them count is
   asked later, as of any log size, so that a verdict replays on its own prefix (law 15).
2. Verdicts and pointer moves are judged once, at their own index, by the judge that was handed in. What does
   not hold is void: skipped here, reported by replay.
3. `latest candidate` and `approved default` are two things (law 13). No default is None, never a candidate.
4. What grows with the log is kept by `Records`: all of it in memory, or what is not asked for elsewhere. What
   the fold finds is the same.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger import standing
from ledger.claims import (
    PROMOTES,
    UNREPLAYABLE,
    Judge,
    PointerKey,
    Records,
    RecordsInMemory,
    Update,
    VerdictRecord,
    Void,
)
from ledger.errors import CannotTellError, FatalError
from ledger.fact import Fact, Suspects
from ledger.note import VerifierKey
from ledger.pointers import Pointers, pointer_of
from ledger.registry import Registry
from ledger.touches import TOUCHES_NOTHING, judgment_keys, touches
from ledger.trust import Grant, Revocation
from ledger.v1 import canary_pb2, event_pb2, judge_pb2

__all__ = ["MAY_FELL", "OF_A_ROLLOUT", "SPINE", "Judged", "Known", "Receipts"]

#: Claims about a rollout, beside its RolloutEnqueued.
OF_A_ROLLOUT: Final = frozenset(
    {"attempt_started", "span_recorded", "attempt_ended", "rollout_ended", "reward_recorded"}
)
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
#: What can make evidence stale or change the governing freeze: nothing else is a reason to look again.
MAY_FELL: Final = _PUBLICATIONS | {
    "baseline_adopted",
    "canary_task_recorded",  # one that was judged rests on the evaluator
    "default_promoted",
    "default_rolled_back",
    "key_revoked",
    "update_frozen",
}
#: What is folded again whenever a fold goes on from what another one knew: what keys and operators decide,
#: and what moves pointers.
SPINE: Final = _PUBLICATIONS | {
    "ledger_opened",
    "key_granted",
    "key_revoked",
    "ledger_key_rotated",
    "baseline_adopted",
    "default_promoted",
    "default_rolled_back",
    "rollback_requested",
    "approver_rollback_requested",
}
_TIMES: Final = 4096  # changes of recorded_at that are remembered where records know the others


@dataclass(frozen=True, slots=True)
class Judged:
    """That a candidate was evaluated on a holdout: the first time by this judge's key."""

    index: int
    grant: Grant
    update: str


@dataclass(frozen=True, slots=True)
class Known:
    """What a fold of a prefix knew beside its records: enough to go on from there."""

    size: int
    recorded_at: int  # of the last entry
    facts: Iterable[Fact]  # in order: publications, revocations, pointer moves (void ones too) and requests
    candidates: Iterable[tuple[PointerKey, Fact]]
    judged: Iterable[tuple[bytes, Judged]]  # by holdout
    standing: Iterable[VerdictRecord]
    voids: Iterable[Void]
    touched: Mapping[str, int]
    erased: Mapping[bytes, int]
    orphans: int


class Receipts:
    """The fold. `root_at(size)` gives the log's root at an earlier size; the tree is somebody else's.

    Owned by whoever feeds `apply`; everybody else only asks.
    """

    def __init__(self, judge: Judge, root_at: Callable[[int], bytes], records: Records | None = None) -> None:
        """`records` keeps what grows with the log; in memory where it is not given."""
        self.records: Records = RecordsInMemory() if records is None else records
        self.judge = judge
        self.root_at = root_at
        self.size = 0
        self.suspects = Suspects()
        self.registry = Registry(self.suspects)
        self.pointers = Pointers(self.suspects)
        self.voids: list[Void] = []
        self.unknown_pointers: set[PointerKey] = set()  # moved by a verdict that cannot be judged here
        self.erased: dict[bytes, int] = {}  # digest of a blob -> index of its first BlobErased
        self.orphans = 0  # runner events and rewards whose rollout nobody enqueued before
        self.latest_candidate: dict[PointerKey, Fact] = {}
        self.touched: dict[str, int] = {}  # key -> index of its last touch
        self.standing: list[VerdictRecord] = []  # verdicts that did not cease to stand yet
        # By holdout, then by update and key of the judge.
        self._judged: dict[bytes, dict[tuple[str, VerifierKey], Judged]] = {}
        self._times = array("q")  # each recorded_at that differs from the one before,
        self._times_from = array("q")  # and the index from which it holds

    @classmethod
    def going_on(
        cls, judge: Judge, root_at: Callable[[int], bytes], records: Records, known: Known
    ) -> Receipts:
        """The fold of a prefix, from what another fold of it knew and its records."""
        self = cls(judge, root_at, records)
        self.size = records.size = known.size
        self.orphans = known.orphans
        self._times.append(known.recorded_at)
        self._times_from.append(known.size - 1)
        self.voids.extend(known.voids)
        self.unknown_pointers.update(
            void.pointer
            for void in self.voids
            if void.step == "R1" and void.reason == UNREPLAYABLE and void.pointer is not None
        )
        self.touched.update(known.touched)
        self.erased.update(known.erased)
        void_at = {void.index for void in self.voids}
        for fact in known.facts:
            if fact.index not in void_at and fact.name in self._again:
                self._again[fact.name](self, fact)
        self.latest_candidate.update(known.candidates)
        for holdout, judged in known.judged:
            self._add_judged(holdout, judged)
        self.standing.extend(known.standing)
        return self

    # --- folding -------------------------------------------------------------------------------------------

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the entry at `index`, which must be the next. `alone`: it is the only one of its batch."""
        if not self._times or self._times[-1] != recorded_at:
            self._times.append(recorded_at)
            self._times_from.append(index)
            if len(self._times) == 2 * _TIMES and self.records.recorded_at(index - 1) is not None:
                del self._times[:_TIMES], self._times_from[:_TIMES]
        self.records.size = index
        name = event.WhichOneof("body")
        if name is not None:
            fold = self._folds.get(name)
            if fold is not None:
                fold(self, Fact(index, recorded_at, leaf, grant, name, getattr(event, name)), alone)
            if name not in TOUCHES_NOTHING:
                self._touch(index, recorded_at, name, touches(event))
        self.size = self.records.size = index + 1

    def _touch(self, index: int, recorded_at: int, name: str, touched: tuple[str, ...]) -> None:
        for key in touched:
            self.touched[key] = index
        self.size = self.records.size = index + 1  # what looks again sees this entry
        if self.standing and name in MAY_FELL:
            self._let_fall(index, recorded_at, touched)

    @property
    def updates(self) -> Mapping[str, Update]:
        """Every update that is named in the log, in the order of the first claims."""
        return self.records.updates

    def update(self, update: str) -> Update:
        """The update's record, made if this is the first claim that names it."""
        return self.records.whole(update)

    def _keep(self, fact: Fact, _alone: bool) -> None:
        record = self.records.at_hand(fact.body.update)
        if record is not None:
            record.keep(fact)

    def _published(self, fact: Fact, _alone: bool) -> None:
        digest = hashlib.sha256(fact.body.document).digest() if fact.name == "policy_published" else None
        self.registry.add(fact, digest)

    def _blob_erased(self, fact: Fact, _alone: bool) -> None:
        # For people to see: no check reads a blob, so no judgment reads this (law 15).
        self.erased.setdefault(fact.body.digest, fact.index)

    def _key_revoked(self, fact: Fact, _alone: bool) -> None:
        key = VerifierKey.parse(fact.body.vkey)
        if fact.body.HasField("suspect_from"):
            self.suspects.revoke(key.name, key.key_id, Revocation(fact.index, fact.body.suspect_from))

    # --- runner events and rewards: the many ---------------------------------------------------------------

    def _enqueued(self, fact: Fact, _alone: bool) -> None:
        body = fact.body
        named = body.update if body.HasField("update") else None
        first, owner = self.records.claim(body.rollout, fact.index, named)
        if named is not None:
            record = self.records.at_hand(named)
            if record is not None:
                record.enqueue(fact, taken=owner != named)
        if owner is not None and owner != named and first != fact.index:
            record = self.records.at_hand(owner)
            if record is not None:
                record.enqueue(fact, taken=False)

    def _of_rollout(self, fact: Fact, _alone: bool) -> None:
        claimed = self.records.claimed(fact.body.rollout)
        if claimed is None:
            self.orphans += 1
        elif claimed[1] is not None:
            record = self.records.at_hand(claimed[1])
            if record is not None:
                record.of_rollout(fact)

    # --- evaluations, candidates, windows ------------------------------------------------------------------

    def _evaluated(self, fact: Fact, alone: bool) -> None:
        self._keep(fact, alone)
        if fact.body.subject == judge_pb2.SUBJECT_CANDIDATE:
            judged = Judged(fact.index, fact.grant, fact.body.update)
            self._add_judged(fact.body.snapshot_digest, judged)

    def _add_judged(self, holdout: bytes, judged: Judged) -> None:
        # Whatever makes a later one by the same key count makes the first one count too.
        self._judged.setdefault(holdout, {}).setdefault((judged.update, judged.grant.key), judged)

    def _candidate(self, fact: Fact, _alone: bool) -> None:
        record = self.update(fact.body.update)
        record.keep(fact)
        proposals = record.of("update_proposed")
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
            self.standing.append(record)

    def _void(self, fact: Fact, step: str, reason: str, message: str, *, unknown: bool = False) -> None:
        """Keeps what does not hold. After a move that cannot be judged here, its pointer is unknown too."""
        key = pointer_of(fact.body.resource, fact.body.scope)
        if unknown and step == "R1":
            self.unknown_pointers.add(key)
        unknown = unknown or key in self.unknown_pointers
        self.voids.append(Void(step, fact.index, UNREPLAYABLE if unknown else reason, message, key))

    def _governing_freeze(self, update: str) -> int | None:
        freezes = reversed(self.update(update).of("update_frozen"))
        return next((fact.index for fact in freezes if not self.suspects.hold(fact, self.size)), None)

    def resting_on(self, touched: Collection[str]) -> set[str]:
        """The updates of standing verdicts that would be looked at again if these keys were touched."""
        keys, bodies = set(touched), (record.fact.body for record in self.standing)
        return {
            body.update
            for body in bodies
            if not keys.isdisjoint(judgment_keys(body.update, body.resource, body.scope))
        }

    def _let_fall(self, index: int, now: int, touched: tuple[str, ...]) -> None:
        """Looks again at the verdicts that rest on what was touched, once for each update and step."""
        stale: dict[tuple[str, int], frozenset[str]] = {}
        still: list[VerdictRecord] = []
        for record in self.standing:
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
        self.standing[:] = still

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
        """recorded_at of the last entry of a prefix, in microseconds: a verdict's only clock; 0 at size 0.

        Raises FatalError VIEW_BROKEN: without a time nothing would ever lapse.
        """
        position = bisect_right(self._times_from, size - 1)
        if position or not size:
            return self._times[position - 1] if position else 0
        recorded_at = self.records.recorded_at(size - 1)
        if recorded_at is None:
            raise FatalError("VIEW_BROKEN", f"expected the time of the entry at {size - 1}, got none")
        return recorded_at

    def judged_on(self, holdout: bytes, until: int, size: int) -> set[str]:
        """Updates whose candidates were evaluated on a holdout at indexes below `until`, as of `size`."""
        judged = self._judged.get(holdout, {}).values()
        return {j.update for j in judged if j.index < until and not self.suspects.hold(j, size)}

    def proposal(self, update: str) -> Fact | None:
        """The proposal that counts now: the first one of the principal that proposed first."""
        record = self.updates.get(update)
        facts = record.of("update_proposed") if record else []
        own = (fact for fact in facts if fact.grant.name == facts[0].grant.name)
        return next((fact for fact in own if not self.suspects.hold(fact, self.size)), None)

    # What moves more than records, once it was judged to hold.
    _again: Final[dict[str, Callable[[Any, Fact], None]]] = {
        "key_revoked": lambda self, fact: self._key_revoked(fact, True),
        "rollback_requested": lambda self, fact: self.pointers.ask(fact),
        "approver_rollback_requested": lambda self, fact: self.pointers.ask(fact),
        "baseline_adopted": lambda self, fact: self.pointers.adopt(fact),
        "default_promoted": lambda self, fact: self.pointers.promote(fact),
        "default_rolled_back": lambda self, fact: self.pointers.roll_back(fact),
        **dict.fromkeys(_PUBLICATIONS, lambda self, fact: self._published(fact, True)),
    }
    # What is not here leaves no trace in receipts: grants and rotations.
    _folds: Final[dict[str, Callable[[Any, Fact, bool], None]]] = {
        "key_revoked": _key_revoked,
        "blob_erased": _blob_erased,
        "baseline_adopted": _baseline,
        "rollback_requested": _requested,
        "approver_rollback_requested": _requested,
        "rollout_enqueued": _enqueued,
        "evaluation_recorded": _evaluated,
        "candidate_registered": _candidate,
        "canary_started": _window,
        "verdict_issued": _verdict,
        "default_promoted": _promoted,
        "default_rolled_back": _rolled_back,
        **dict.fromkeys(OF_A_ROLLOUT, _of_rollout),
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
