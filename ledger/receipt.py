"""Receipts: a pure fold over the log, entry by entry; the same code in the server, the gate and the auditor.

Rules:
1. The fold groups claims by update and natural key; it judges none of them (law 1). Which of them count is
   asked later, as of any log size, so that a verdict replays on its own prefix (law 15).
2. Verdicts and pointer moves are judged once, at their own index, by the judge that was handed in. What does
   not hold is void: skipped here, reported by replay.
3. `latest candidate` and `approved default` are two things (law 13). No default is None, never a candidate.
4. Memory grows with updates and their rollouts, not with the log: rollouts of no update leave only their id.
"""

# ruff: noqa: SLF001 - the dispatch table of Receipts stands below it

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from ledger import touches as keys
from ledger.errors import AssayError, CannotTellError
from ledger.fact import Fact, SpanFact, Suspects
from ledger.note import VerifierKey
from ledger.registry import Registry
from ledger.trust import Grant, Revocation
from ledger.v1 import canary_pb2, event_pb2, gate_pb2, judge_pb2, options_pb2

__all__ = [
    "UNREPLAYABLE",
    "Judge",
    "Judgement",
    "Move",
    "PointerKey",
    "Receipts",
    "Rollout",
    "Update",
    "VerdictRecord",
    "Void",
]

PointerKey: TypeAlias = tuple[str, str, str]  # resource, workflow, segment

UNREPLAYABLE: Final = "UNREPLAYABLE"  # a void's reason: neither true nor false to this release
PROMOTES: Final = (gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY, gate_pb2.VERDICT_PROMOTE_TO_DEFAULT)


@dataclass(slots=True)
class Rollout:
    """All claims about one rollout of an update, in index order, repeats and oddities included."""

    enqueued: list[Fact] = field(default_factory=list)
    started: list[Fact] = field(default_factory=list)
    spans: list[SpanFact] = field(default_factory=list)
    attempts_ended: list[Fact] = field(default_factory=list)
    ended: list[Fact] = field(default_factory=list)
    rewards: list[Fact] = field(default_factory=list)


@dataclass(slots=True)
class VerdictRecord:
    """A verdict in the log. `void` says why it does not hold; `fell` when a standing one ceased to stand."""

    fact: Fact
    void: str | None = None
    unreplayable: bool = False  # void here, because a newer release made it
    approvals: tuple[Fact, ...] = ()  # those that it used
    freeze: int | None = None  # index of the governing freeze
    fell: tuple[int, str] | None = None  # index and reason


@dataclass(slots=True)
class Update:
    """All claims that name one update, by body name, in index order."""

    id: str
    facts: dict[str, list[Fact]] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    verdicts: list[VerdictRecord] = field(default_factory=list)
    live: dict[int, str | None] = field(default_factory=dict)  # CanaryStarted LIVE index -> why it is void
    rolled_back: list[int] = field(default_factory=list)  # indexes of valid rollbacks of its promotions

    def of(self, name: str) -> list[Fact]:
        """Its claims of one body type."""
        return self.facts.get(name, [])


@dataclass(frozen=True, slots=True)
class Move:
    """A value of a pointer: adopted as baseline (`update` is None) or promoted by the gate."""

    index: int
    digest: bytes
    update: str | None
    from_digest: bytes | None
    verdict_index: int | None


@dataclass(frozen=True, slots=True)
class Void:
    """A verdict or move that does not hold: step R1 or R2 of replay, where, expected and got.

    `reason` is UNREPLAYABLE where newer rules would be needed to tell.
    """

    step: str
    index: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge concludes for an update and step from a log prefix."""

    verdict: int  # gate_pb2.Verdict
    findings: tuple[gate_pb2.Finding, ...]
    findings_digest: bytes
    evidence_digest: bytes
    policy_digest: bytes  # empty where no policy is pinned
    rules: int
    candidate_digest: bytes | None
    approvals: tuple[Fact, ...]  # those that fulfil everything


class Judge(Protocol):
    """The gate's rules, handed in: receipts know claims, not thresholds."""

    def evaluate(self, receipts: Receipts, update: str, step: int, size: int) -> Judgement:
        """Judges the prefix of `size` entries. Raises CannotTellError for rules unknown here."""
        ...

    def stale(self, receipts: Receipts, update: str, step: int, size: int) -> frozenset[str]:
        """STALE reason codes of all checks of that step, as of `size`."""
        ...


class Receipts:
    """The fold. `root_at(size)` gives the log's root at an earlier size; the tree is somebody else's."""

    def __init__(self, judge: Judge, root_at: Callable[[int], bytes]) -> None:
        self.judge = judge
        self.root_at = root_at
        self.size = 0
        self.suspects = Suspects()
        self.registry = Registry(self.suspects)
        self.updates: dict[str, Update] = {}
        self.voids: list[Void] = []
        self.unknown_pointers: set[PointerKey] = set()  # moved by a verdict that cannot be judged here
        self.orphans = 0  # runner events and rewards whose rollout nobody enqueued before
        self.latest_candidate: dict[PointerKey, Fact] = {}
        self.touched: dict[str, int] = {}  # key -> index of its last touch
        self._judged: dict[bytes, list[Fact]] = {}  # holdout -> evaluations of candidates on it
        self._pointers: dict[PointerKey, list[tuple[int, tuple[Move, ...]]]] = {}
        self._rollouts: dict[str, Rollout | None] = {}
        self._requests: dict[int, Fact] = {}  # rollback requests that were not used
        self._standing: list[VerdictRecord] = []
        self._clock: list[tuple[int, int]] = []  # (index from which it is the time, recorded_at)

    # --- folding ---

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the entry at `index`, which must be the next. `alone`: it is the only one of its batch."""
        if not self._clock or self._clock[-1][1] != recorded_at:
            self._clock.append((index, recorded_at))
        name = event.WhichOneof("body")
        if name is not None:
            fold = _FOLDS.get(name)
            if fold is not None:
                fold(self, Fact(index, recorded_at, leaf, grant, name, getattr(event, name)), alone)
            touched = keys.touches(event)
            for key in touched:
                self.touched[key] = index
            self.size = index + 1
            if touched and self._standing:
                self._let_fall(index, touched)
        self.size = index + 1

    def update(self, update: str) -> Update:
        """The update's record, made if this is the first claim that names it."""
        found = self.updates.get(update)
        if found is None:
            found = self.updates[update] = Update(update)
        return found

    def _keep(self, fact: Fact, alone: bool) -> None:
        self.update(fact.body.update).facts.setdefault(fact.name, []).append(fact)

    def _published(self, fact: Fact, alone: bool) -> None:
        digest = hashlib.sha256(fact.body.document).digest() if fact.name == "policy_published" else None
        self.registry.add(fact, digest)

    def _key_revoked(self, fact: Fact, alone: bool) -> None:
        key = VerifierKey.parse(fact.body.vkey)
        if fact.body.HasField("suspect_from"):
            self.suspects.revoke(key.name, key.key_id, Revocation(fact.index, fact.body.suspect_from))

    # runner events and rewards: the many

    def _enqueued(self, fact: Fact, alone: bool) -> None:
        body = fact.body
        if body.rollout in self._rollouts:
            known = self._rollouts[body.rollout]
            if known is not None:
                known.enqueued.append(fact)
        elif body.HasField("update"):
            rollout = self._rollouts[body.rollout] = Rollout([fact])
            self.update(body.update).rollouts[body.rollout] = rollout
        else:
            self._rollouts[body.rollout] = None

    def _of_rollout(self, fact: Fact) -> Rollout | None:
        rollout = self._rollouts.get(fact.body.rollout)
        if rollout is None and fact.body.rollout not in self._rollouts:
            self.orphans += 1
        return rollout

    def _span(self, fact: Fact, alone: bool) -> None:
        rollout = self._of_rollout(fact)
        if rollout is not None:
            body = fact.body
            digest = hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
            span = SpanFact(
                fact.index,
                fact.leaf,
                fact.grant,
                body.attempt,
                body.trace_id + body.span_id,
                body.family,
                digest,
            )
            rollout.spans.append(span)

    def _of_attempt(self, fact: Fact, alone: bool) -> None:
        rollout = self._of_rollout(fact)
        if rollout is not None:
            getattr(rollout, _ROLLOUT_LISTS[fact.name]).append(fact)

    # evaluations, candidates and windows

    def _evaluated(self, fact: Fact, alone: bool) -> None:
        self._keep(fact, alone)
        if fact.body.subject == judge_pb2.SUBJECT_CANDIDATE:
            self._judged.setdefault(fact.body.snapshot_digest, []).append(fact)

    def _candidate(self, fact: Fact, alone: bool) -> None:
        self._keep(fact, alone)
        proposals = self.update(fact.body.update).of("update_proposed")
        if proposals and proposals[0].grant.name == fact.grant.name:
            body = proposals[0].body
            self.latest_candidate[(body.resource, body.scope.workflow, body.scope.segment)] = fact

    def _window(self, fact: Fact, alone: bool) -> None:
        if fact.body.kind == canary_pb2.WINDOW_KIND_LIVE:
            self.update(fact.body.update).live[fact.index] = self._live_void(fact)
        self._keep(fact, alone)

    def _live_void(self, fact: Fact) -> str | None:
        live = fact.body.live
        record = self._verdict_at(fact.body.update, live.verdict_index)
        if record is None or record.void is not None:
            return f"expected a valid verdict at index {live.verdict_index}, got none"
        verdict = record.fact.body
        if verdict.verdict != gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY:
            return "expected PROMOTE_TO_BOUNDED_CANARY, got another verdict"
        if (verdict.resource, verdict.scope) != (live.resource, live.scope):
            return "expected the verdict's resource and scope, got others"
        if not live.verdict_index < live.seen_size <= fact.index:
            return f"expected the verdict to be seen at a size in its future, got {live.seen_size}"
        if live.not_after > verdict.not_after:
            return "expected not_after of at most the verdict's, got later"
        return self.why_fallen(record, fact.recorded_at) or self._slipped(
            keys.judgment_keys(fact.body.update, live.resource, live.scope),
            live.seen_size,
            live.not_after,
            fact,
        )

    # --- judgments ---

    def _slipped(self, watched: tuple[str, ...], since: int, not_after: int | None, fact: Fact) -> str | None:
        for key in watched:
            if self.touched.get(key, -1) >= since:
                return (
                    f"expected {key} untouched since size {since}, got a touch at index {self.touched[key]}"
                )
        if not_after is not None and fact.recorded_at > not_after:
            return f"expected recorded_at of at most {not_after}, got {fact.recorded_at}"
        return None

    def _verdict(self, fact: Fact, alone: bool) -> None:
        record = VerdictRecord(fact)
        try:
            record.void = self._verdict_void(record, alone)
        except CannotTellError as error:
            record.void, record.unreplayable = str(error), True
        self.update(fact.body.update).verdicts.append(record)
        if record.void is not None:
            self._void(fact, "R2", "VERDICT_VOID", record.void, unknown=record.unreplayable)
        elif fact.body.verdict in PROMOTES:
            record.freeze = self._governing_freeze(fact.body.update)
            self._standing.append(record)

    def _void(self, fact: Fact, step: str, reason: str, message: str, *, unknown: bool) -> None:
        """Keeps what does not hold. After a move that cannot be judged here, its pointer is unknown too."""
        key = (fact.body.resource, fact.body.scope.workflow, fact.body.scope.segment)
        if unknown and step == "R1":
            self.unknown_pointers.add(key)
        unknown = unknown or key in self.unknown_pointers
        self.voids.append(Void(step, fact.index, UNREPLAYABLE if unknown else reason, message))

    def _verdict_void(self, record: VerdictRecord, alone: bool) -> str | None:
        body, index = record.fact.body, record.fact.index
        if not alone:
            return "expected a verdict alone in its batch, got company"
        if not 1 <= body.log_size <= index:
            return f"expected a log size of 1 to {index}, got {body.log_size}"
        condition = keys.judgment_keys(body.update, body.resource, body.scope)
        not_after = body.not_after if body.HasField("not_after") else None
        if (slipped := self._slipped(condition, body.log_size, not_after, record.fact)) is not None:
            return slipped
        if (root := self.root_at(body.log_size)) != body.log_root:
            return f"expected root {root.hex()} at size {body.log_size}, got {body.log_root.hex()}"
        if (body.verdict in PROMOTES) != (not_after is not None):
            return "expected not_after on a PROMOTE and on nothing else"
        try:
            judgement = self.judge.evaluate(self, body.update, body.step, body.log_size)
        except CannotTellError:
            raise
        except AssayError as error:
            return f"expected evidence that can be judged, got {error}"
        record.approvals = judgement.approvals
        return _difference(self, judgement, body)

    def _verdict_at(self, update: str, index: int) -> VerdictRecord | None:
        record = self.updates.get(update)
        return next((v for v in record.verdicts if v.fact.index == index), None) if record else None

    def why_fallen(self, record: VerdictRecord, now: int) -> str | None:
        """Why a verdict does not stand at this size and time (microseconds); None if it does."""
        if record.void is not None:
            return record.void
        if record.fact.body.verdict not in PROMOTES:
            return "expected a PROMOTE, got HOLD"
        if record.fell is not None:
            return f"ceased to stand at index {record.fell[0]}: {record.fell[1]}"
        if self.suspects.hold(record.fact, self.size):
            return "expected a verdict by a key in good standing, got one whose key is suspect from before it"
        withdrawn = {
            (w.grant.name, w.body.approval)
            for w in self.update(record.fact.body.update).of("approval_withdrawn")
            if not self.suspects.hold(w, self.size)
        }
        for approval in record.approvals:
            alive = approval.body.expires_at >= now and not self.suspects.hold(approval, self.size)
            if alive and (approval.grant.name, approval.body.approval) not in withdrawn:
                return None
        return "expected an approval that it used in force, got all withdrawn or expired"

    def _governing_freeze(self, update: str) -> int | None:
        freezes = reversed(self.update(update).of("update_frozen"))
        return next((fact.index for fact in freezes if not self.suspects.hold(fact, self.size)), None)

    def _let_fall(self, index: int, touched: tuple[str, ...]) -> None:
        for record in list(self._standing):
            body = record.fact.body
            if record.fact.index == index or not set(touched) & set(
                keys.judgment_keys(body.update, body.resource, body.scope)
            ):
                continue
            if self._governing_freeze(body.update) != record.freeze:
                record.fell = (index, "the governing freeze is another")
            elif stale := self.judge.stale(self, body.update, body.step, self.size):
                record.fell = (index, ", ".join(sorted(stale)))
            if record.fell is not None:
                self._standing.remove(record)

    # --- pointers ---

    def _stack(self, key: PointerKey, size: int | None = None) -> tuple[Move, ...]:
        history = self._pointers.get(key, [])
        if size is None:
            return history[-1][1] if history else ()
        position = bisect_right(history, size - 1, key=lambda step: step[0])
        return history[position - 1][1] if position else ()

    def stack(self, resource: str, scope: options_pb2.Scope, size: int | None = None) -> tuple[Move, ...]:
        """The pointer's values, baseline first, the present one last; as of `size` or now."""
        return self._stack((resource, scope.workflow, scope.segment), size)

    def default(self, resource: str, scope: options_pb2.Scope, size: int | None = None) -> Move | None:
        """The approved default, as of `size` or now; None where there is none."""
        stack = self.stack(resource, scope, size)
        return stack[-1] if stack else None

    def holds_default(self, update: str, resource: str, scope: options_pb2.Scope, size: int) -> bool:
        """Whether the approved default is this update's own promotion."""
        default = self.default(resource, scope, size)
        return default is not None and default.update == update

    def request(self, index: int) -> Fact | None:
        """The unused rollback request at an index."""
        return self._requests.get(index)

    def promotion_of(self, verdict: gate_pb2.VerdictIssued, index: int) -> Move | None:
        """The move in the pointer's present value that rests on the verdict at `index`."""
        stack = self._stack((verdict.resource, verdict.scope.workflow, verdict.scope.segment))
        return next((move for move in stack if move.verdict_index == index), None)

    def pointers(self) -> dict[PointerKey, Move]:
        """Every pointer that has a default."""
        return {key: history[-1][1][-1] for key, history in self._pointers.items() if history[-1][1]}

    def moved_at(self, resource: str, scope: options_pb2.Scope) -> int:
        """Index of the pointer's last valid move. Only for pointers that have moved."""
        return self._pointers[(resource, scope.workflow, scope.segment)][-1][0]

    def _void_move(self, fact: Fact, message: str, *, unknown: bool = False) -> None:
        self._void(fact, "R1", "MOVE_VOID", message, unknown=unknown)

    def _baseline(self, fact: Fact, alone: bool) -> None:
        body = fact.body
        key = (body.resource, body.scope.workflow, body.scope.segment)
        if body.scope.segment == "*":
            self._void_move(fact, "expected one segment, got *")
        elif key in self._pointers:
            self._void_move(fact, "expected a resource and scope that never had a default, got one that has")
        else:
            move = Move(fact.index, body.manifest_digest, None, None, None)
            self._pointers[key] = [(fact.index, (move,))]

    def _promoted(self, fact: Fact, alone: bool) -> None:
        body = fact.body
        if (void := self.promotion_fault(fact, alone)) is not None:
            record = self._verdict_at(body.update, body.verdict_index)
            self._void_move(fact, void, unknown=record is not None and record.unreplayable)
            return
        key = (body.resource, body.scope.workflow, body.scope.segment)
        move = Move(fact.index, body.to_digest, body.update, body.from_digest, body.verdict_index)
        self._pointers[key].append((fact.index, (*self._stack(key), move)))

    def promotion_fault(self, fact: Fact, alone: bool) -> str | None:
        """Why a DefaultPromoted at this place does not hold, or would not if it is yet to be written."""
        body = fact.body
        if not alone:
            return "expected a pointer move alone in its batch, got company"
        record = self._verdict_at(body.update, body.verdict_index)
        if record is None:
            return f"expected a verdict for {body.update} at index {body.verdict_index}, got none"
        if (fallen := self.why_fallen(record, fact.recorded_at)) is not None:
            return fallen
        verdict = record.fact.body
        if verdict.verdict != gate_pb2.VERDICT_PROMOTE_TO_DEFAULT:
            return "expected PROMOTE_TO_DEFAULT, got another verdict"
        if (verdict.resource, verdict.scope) != (body.resource, body.scope):
            return "expected the verdict's resource and scope, got others"
        current = self.default(body.resource, body.scope)
        if current is None or current.digest != body.from_digest:
            return f"expected to move from the current default, got {body.from_digest.hex()}"
        if body.to_digest == body.from_digest:
            return "expected a move to another digest, got the current default again"
        if body.not_after > verdict.not_after:
            return "expected not_after of at most the verdict's, got later"
        watched = keys.judgment_keys(body.update, body.resource, body.scope)
        if (slipped := self._slipped(watched, body.verdict_index + 1, body.not_after, fact)) is not None:
            return slipped
        again = self.judge.evaluate(self, body.update, verdict.step, fact.index)
        if again.candidate_digest != body.to_digest:
            return "expected the update's candidate, got another digest"
        return _difference(self, again, verdict)

    def _requested(self, fact: Fact, alone: bool) -> None:
        self._requests[fact.index] = fact

    def _rolled_back(self, fact: Fact, alone: bool) -> None:
        body = fact.body
        key = (body.resource, body.scope.workflow, body.scope.segment)
        if (void := self.rollback_fault(fact, alone)) is not None:
            self._void_move(fact, void)
            return
        del self._requests[body.request_index]
        self.update(body.update).rolled_back.append(fact.index)
        self._pointers[key].append((fact.index, self._stack(key)[:-1]))

    def rollback_fault(self, fact: Fact, alone: bool) -> str | None:
        """Why a DefaultRolledBack at this place does not hold, or would not if it is yet to be written."""
        body = fact.body
        stack = self._stack((body.resource, body.scope.workflow, body.scope.segment))
        if not alone:
            return "expected a pointer move alone in its batch, got company"
        if not stack or stack[-1].update is None or stack[-1].index != body.promotion_index:
            return f"expected the top promotion of the pointer, got index {body.promotion_index}"
        request = self._requests.get(body.request_index)
        if request is None or self.suspects.hold(request, fact.index):
            return f"expected an unused rollback request at index {body.request_index}, got none"
        asked = request.body
        if (asked.promotion_index, asked.resource, asked.scope) != (
            body.promotion_index,
            body.resource,
            body.scope,
        ):
            return "expected the promotion that the request names, got another"
        if request.index < body.promotion_index:
            return "expected a request made after the promotion, got one from before"
        if (body.to_digest, body.update) != (stack[-2].digest, stack[-1].update):
            return "expected the way back to what was promoted from, got another digest or update"
        return None

    # --- asking ---

    def now(self, size: int) -> int:
        """recorded_at of the last entry of a prefix, in microseconds: the only clock of a verdict."""
        position = bisect_right(self._clock, size - 1, key=lambda step: step[0])
        return self._clock[position - 1][1] if position else 0

    def judged_on(self, holdout: bytes, until: int, size: int) -> set[str]:
        """Updates whose candidates were evaluated on a holdout at indexes below `until`, as of `size`."""
        judged = self._judged.get(holdout, [])
        return {f.body.update for f in judged if f.index < until and not self.suspects.hold(f, size)}

    def proposal(self, update: str) -> Fact | None:
        """The proposal that counts: the first one whose key is not suspect."""
        record = self.updates.get(update)
        facts = record.of("update_proposed") if record else []
        return next((f for f in facts if not self.suspects.hold(f, self.size)), None)


def _difference(receipts: Receipts, judgement: Judgement, verdict: Any) -> str | None:
    """Why a verdict is not what the judge says; None if they agree."""
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("verdict", judgement.verdict, verdict.verdict),
        ("evidence digest", judgement.evidence_digest, verdict.evidence_digest),
        ("policy digest", judgement.policy_digest, verdict.policy_digest),
        ("rules", judgement.rules, verdict.rules),
        ("findings digest", judgement.findings_digest, verdict.findings_digest),
        ("findings", list(judgement.findings), list(verdict.findings)),
    )
    for what, expected, got in pairs:
        if expected != got:
            shown = [v.hex() if isinstance(v, bytes) else v for v in (expected, got)]
            return f"{what}: expected {shown[0]}, got {shown[1]}"
    proposal = receipts.proposal(verdict.update)
    if proposal is None or (proposal.body.resource, proposal.body.scope) != (verdict.resource, verdict.scope):
        return "expected the update's resource and scope, got others"
    if verdict.verdict in PROMOTES and verdict.not_after > min(
        a.body.expires_at for a in judgement.approvals
    ):
        return "expected not_after of at most the earliest expiry of the approvals used, got later"
    return None


_Folding: TypeAlias = Callable[[Receipts, Fact, bool], None]

_ROLLOUT_LISTS: Final = {
    "attempt_started": "started",
    "attempt_ended": "attempts_ended",
    "rollout_ended": "ended",
    "reward_recorded": "rewards",
}

_FOLDS: Final[dict[str, _Folding]] = {
    "key_revoked": Receipts._key_revoked,
    "baseline_adopted": Receipts._baseline,
    "rollback_requested": Receipts._requested,
    "approver_rollback_requested": Receipts._requested,
    "rollout_enqueued": Receipts._enqueued,
    "span_recorded": Receipts._span,
    "evaluation_recorded": Receipts._evaluated,
    "candidate_registered": Receipts._candidate,
    "canary_started": Receipts._window,
    "verdict_issued": Receipts._verdict,
    "default_promoted": Receipts._promoted,
    "default_rolled_back": Receipts._rolled_back,
    **dict.fromkeys(_ROLLOUT_LISTS, Receipts._of_attempt),
    **dict.fromkeys(
        (
            "workflow_declared",
            "policy_published",
            "evaluator_published",
            "snapshot_published",
            "protected_set_published",
            "tool_contract_published",
            "environment_changed",
        ),
        Receipts._published,
    ),
    **dict.fromkeys(
        (
            "resume_requested",
            "evaluation_closed",
            "update_proposed",
            "training_started",
            "training_progressed",
            "training_ended",
            "canary_task_recorded",
            "canary_ended",
            "rollback_rehearsed",
            "approval_granted",
            "approval_withdrawn",
            "update_frozen",
            "update_refused",
            "training_paused",
            "training_resumed",
        ),
        Receipts._keep,
    ),
}
