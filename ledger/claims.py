"""What receipts are made of: claims grouped by update, verdicts, pointer values, and what a judge says.

Rules:
1. Values only. What is mutable here is owned by the fold that made it; everybody else reads.
"""

from __future__ import annotations

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
    makers: frozenset[str]  # controllers of who produced, judged, ran canaries, and approved


class Judge(Protocol):
    """The gate's rules, handed in: receipts know claims, not thresholds."""

    def evaluate(self, receipts: Receipts, update: str, step: int, size: int) -> Judgement:
        """Judges the prefix of `size` entries. Raises CannotTellError for rules unknown here."""
        ...

    def stale(self, receipts: Receipts, update: str, step: int, size: int) -> frozenset[str]:
        """STALE reason codes of all checks of that step, as of `size`."""
        ...
