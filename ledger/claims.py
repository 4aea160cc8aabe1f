"""What receipts are made of: claims grouped by update, verdicts, pointer values, and what a judge says.

Rules:
1. Values, and where they are kept. What is mutable here is owned by the fold that made it; everybody else
   reads.
2. A record is what its claims make of it, in index order: whoever adds the same claims to an empty one gets
   an equal one, so a record may leave memory and be made again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from ledger.fact import Fact, SpanFact
from ledger.v1 import gate_pb2

if TYPE_CHECKING:
    from ledger.receipt import Receipts

__all__ = [
    "PROMOTES",
    "UNREPLAYABLE",
    "Judge",
    "Judgement",
    "Move",
    "PointerKey",
    "Records",
    "RecordsInMemory",
    "Rollout",
    "Update",
    "VerdictRecord",
    "Void",
]

PointerKey: TypeAlias = tuple[str, str, str]  # resource, workflow, segment

UNREPLAYABLE: Final = "UNREPLAYABLE"  # a void's reason: neither true nor false to this release
_ROLLOUT_LISTS: Final = {
    "attempt_started": "started",
    "attempt_ended": "attempts_ended",
    "rollout_ended": "ended",
    "reward_recorded": "rewards",
}
PROMOTES: Final = (gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY, gate_pb2.VERDICT_PROMOTE_TO_DEFAULT)


@dataclass(slots=True)
class Rollout:
    """All claims about one rollout of an update, in index order, repeats and oddities included."""

    enqueued: list[Fact] = field(default_factory=list)
    taken: bool = False  # the id was claimed before for something else: what follows belongs to that
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

    def enqueue(self, fact: Fact, *, taken: bool) -> None:
        """Takes a RolloutEnqueued of this update, or of a rollout that this update claimed first.

        `taken`: the rollout's id was claimed before for something else.
        """
        own = self.rollouts.get(fact.body.rollout)
        if own is None:
            self.rollouts[fact.body.rollout] = Rollout([fact], taken)
        elif not own.taken:
            own.enqueued.append(fact)

    def of_rollout(self, fact: Fact) -> None:
        """Takes a claim about a rollout of this update: of an attempt, an end, a reward, a span."""
        rollout = self.rollouts[fact.body.rollout]
        if fact.name != "span_recorded":
            getattr(rollout, _ROLLOUT_LISTS[fact.name]).append(fact)
            return
        body = fact.body
        digest = hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
        ids = body.trace_id + body.span_id
        blob = body.blob.digest if body.WhichOneof("content") == "blob" else None
        span = SpanFact(fact.index, fact.leaf, fact.grant, body.attempt, ids, body.family, digest, blob)
        rollout.spans.append(span)

    def keep(self, fact: Fact) -> None:
        """Takes any other claim that names this update."""
        self.facts.setdefault(fact.name, []).append(fact)


class Records(Protocol):
    """Where receipts keep what grows with the log."""

    size: int  # the fold's: claims at and above it are not told yet

    @property
    def updates(self) -> Mapping[str, Update]:
        """Every update that is named in the log, in the order of the first claims."""
        ...

    def whole(self, update: str) -> Update:
        """The update's record with all claims below `size`, made if there is none."""
        ...

    def at_hand(self, update: str) -> Update | None:
        """As `whole`; None where that record is not in memory: it will be made with the claim at `size`."""
        ...

    def claim(self, rollout: str, index: int, update: str | None) -> tuple[int, str | None]:
        """Index and update of the first RolloutEnqueued of a rollout: these ones if there was none before."""
        ...

    def claimed(self, rollout: str) -> tuple[int, str | None] | None:
        """As `claim` told; None for a rollout that nobody enqueued."""
        ...

    def withdrawals(self, update: str) -> list[Fact]:
        """The update's ApprovalWithdrawn below `size`."""
        ...

    def recorded_at(self, index: int) -> int | None:
        """recorded_at of an entry, in microseconds; None where receipts must remember it."""
        ...


class RecordsInMemory:
    """Keeps everything: what a gate and an auditor need who read the log once."""

    def __init__(self) -> None:
        self.size = 0
        self.updates: dict[str, Update] = {}
        self._claimed: dict[str, tuple[int, str | None]] = {}

    def whole(self, update: str) -> Update:
        """The update's record."""
        found = self.updates.get(update)
        if found is None:
            found = self.updates[update] = Update(update)
        return found

    at_hand = whole

    def claim(self, rollout: str, index: int, update: str | None) -> tuple[int, str | None]:
        """Whose rollout it is."""
        return self._claimed.setdefault(rollout, (index, update))

    def claimed(self, rollout: str) -> tuple[int, str | None] | None:
        """Whose rollout it is; None for one that nobody enqueued."""
        return self._claimed.get(rollout)

    def withdrawals(self, update: str) -> list[Fact]:
        """Those of its record."""
        return self.whole(update).of("approval_withdrawn")

    def recorded_at(self, _index: int) -> int | None:
        """Receipts remember."""
        return None


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
    pointer: PointerKey | None = None  # what it spoke of; None where no fold of receipts found it


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
    makers: frozenset[str]  # controllers of who produced, judged, ran canaries, and approved


class Judge(Protocol):
    """The gate's rules, handed in: receipts know claims, not thresholds."""

    def evaluate(self, receipts: Receipts, update: str, step: int, size: int) -> Judgement:
        """Judges the prefix of `size` entries. Raises CannotTellError for rules unknown here."""
        ...

    def stale(self, receipts: Receipts, update: str, step: int, size: int) -> frozenset[str]:
        """STALE reason codes of all checks of that step, as of `size`."""
        ...
