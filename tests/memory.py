"""A log in memory for tests of meaning: real events, real leaves and roots, no signatures, no server.

It keeps the rules that folds rely on: the index grows by one, the clock never runs backwards, authors hold
grants. `Story` adds the demo's principals and a gate that uses the real rules.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clients.demo.document import Candidate, DemoDocument
from clients.demo.scenario import Events, Scenario, wrap
from clients.ids import uuid7
from gate.freeze import derive_freeze
from gate.judge import RulesJudge
from gate.replay import Replay
from ledger.admission import admit
from ledger.merkle import Tree, leaf_hash
from ledger.note import SigningKey
from ledger.receipt import Judgement, Receipts
from ledger.trust import WRITER, Grant, role_name
from ledger.v1 import event_pb2, gate_pb2, options_pb2, root_pb2

START = 1_767_225_600_000_000
SECOND = 1_000_000


def principal(name: str, role: int, controller: str | None = None, **more: Any) -> Grant:
    """A grant with a key made from the name."""
    seed = hashlib.sha256(f"test key of {name}".encode()).digest()
    return Grant(SigningKey(name, seed).verifier_key, role, controller or f"owner-of-{name}", 0, **more)


HUMAN = root_pb2.APPROVER_KIND_HUMAN
PRINCIPALS = {
    grant.name: grant
    for grant in (
        principal("operator-1", options_pb2.ROLE_OPERATOR),
        principal("runner-1", options_pb2.ROLE_RUNNER),
        principal("trainer-1", options_pb2.ROLE_TRAINER),
        principal("trainer-2", options_pb2.ROLE_TRAINER),
        principal("judge-1", options_pb2.ROLE_JUDGE),
        principal("canary-1", options_pb2.ROLE_CANARY),
        principal("approver-1", options_pb2.ROLE_APPROVER, approver_kind=HUMAN),
        principal("approver-2", options_pb2.ROLE_APPROVER, approver_kind=HUMAN),
        principal("gate-1", options_pb2.ROLE_GATE),
        principal("root-1", options_pb2.ROLE_ROOT),
    )
}
BY_ROLE = {role_name(grant.role): name for name, grant in reversed(PRINCIPALS.items())}


class MemoryLog:
    """Appends events and folds them through replay, entry by entry."""

    def __init__(self, principals: dict[str, Grant] | None = None) -> None:
        self.principals = dict(PRINCIPALS if principals is None else principals)
        self.tree = Tree()
        self.entries: list[tuple[int, int, bytes, Grant, event_pb2.Event, bool]] = []
        self.clock = START
        self._ids = itertools.count()
        self.replay = Replay(self.tree.root)
        for name, grant in self.principals.items():
            if grant.role not in (options_pb2.ROLE_ROOT,):
                granted = root_pb2.KeyGranted(vkey=str(grant.key), role=grant.role, controller=grant.controller)
                if grant.approver_kind is not None:
                    granted.approver_kind = grant.approver_kind
                self.write("root-1", granted)
            del name

    @property
    def receipts(self) -> Receipts:
        """The fold's receipts."""
        return self.replay.receipts

    @property
    def size(self) -> int:
        """Entries so far."""
        return len(self.entries)

    def new_id(self) -> bytes:
        """A UUIDv7 that is new in this log."""
        return uuid7(self.clock, next(self._ids).to_bytes(10, "big"))

    def tick(self, microseconds: int = SECOND) -> None:
        """Lets time pass."""
        self.clock += microseconds

    def write(self, author: str, body: Any, *, alone: bool = True) -> int:
        """Appends one body by an author and returns its index."""
        return self.append(author, [wrap(body, self.new_id(), self.clock)], alone=alone)

    def append(self, author: str, events: Sequence[event_pb2.Event], *, alone: bool | None = None) -> int:
        """Appends a batch at one recorded_at; returns the first index. Every event must be admissible."""
        first = self.size
        single = len(events) == 1 if alone is None else alone
        for event in events:
            data = event.SerializeToString()
            admit(data)
            index = self.size
            leaf = leaf_hash(index.to_bytes(8, "big") + self.clock.to_bytes(8, "big") + data)
            self.tree.extend([leaf])
            entry = (index, self.clock, leaf, self.principals[author], event, single)
            self.entries.append(entry)
            self.replay.apply(*entry)
        return first


Mutation = Callable[[str, Events], Iterable[event_pb2.Event]]


def unchanged(phase: str, events: Events) -> Iterable[event_pb2.Event]:
    """No mutation."""
    del phase
    return events


class Story:
    """One document on one log: what each principal writes, in the order in which it happens."""

    def __init__(self, document: DemoDocument, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog()
        self.scenario = Scenario(document, self.log.new_id, lambda: self.log.clock)
        self.document = document
        self.judge = RulesJudge()

    def author_of(self, event: event_pb2.Event) -> str:
        """The principal of the role that may write the event."""
        return BY_ROLE[role_name(WRITER[event.WhichOneof("body")])]

    def write(self, events: Iterable[event_pb2.Event], author: str | None = None) -> None:
        """Appends events one by one, each by the principal whose role writes it, or by `author`."""
        for event in events:
            self.log.append(author or self.author_of(event), [event])

    def setup(self) -> None:
        """The operator's publications."""
        self.write(self.scenario.publications())

    def freeze(self, update: str, by: str = "trainer-1", redo: Sequence[int] = ()) -> int:
        """The gate freezes, on request of `by`."""
        operator = self.log.principals[by].role == options_pb2.ROLE_OPERATOR
        frozen = derive_freeze(
            self.log.receipts, update, by, is_operator=operator, redo=redo, size=self.log.size
        )
        return self.log.write("gate-1", frozen)

    def until_approval(self, candidate: Candidate, mutate: Mutation = unchanged) -> None:
        """Everything that happens to a candidate before somebody approves, each phase through `mutate`."""
        s = self.scenario
        self.write(mutate("proposal", s.proposal(candidate)))
        frozen = derive_freeze(
            self.log.receipts,
            s.update_id(candidate),
            "trainer-1",
            is_operator=False,
            redo=(),
            size=self.log.size,
        )
        freeze = [wrap(frozen, self.log.new_id(), self.log.clock)]
        self.write(mutate("freeze", freeze))
        self.write(mutate("training_started", s.training_started(candidate)))
        runner = [event for rollout in s.rollouts(candidate) for event in rollout]
        self.write(mutate("rollouts", runner))
        self.write(mutate("rewards", s.rewards(candidate)))
        self.write(mutate("training_ended", s.training_ended(candidate)))
        self.write(mutate("evaluations", s.evaluations(candidate)))
        self.write(mutate("canary", s.canary(candidate)))

    def judged(self, update: str, step: int = options_pb2.STEP_CANARY) -> Judgement:
        """The judgement at the present size."""
        return self.judge.evaluate(self.log.receipts, update, step, self.log.size)

    def approve(self, candidate: Candidate, step: int = options_pb2.STEP_CANARY, by: str | None = None) -> None:
        """The approver approves exactly the present evidence."""
        judgement = self.judged(self.scenario.update_id(candidate), step)
        verdict = gate_pb2.VerdictIssued(
            evidence_digest=judgement.evidence_digest, policy_digest=judgement.policy_digest
        )
        self.write(self.scenario.approval(candidate, step, verdict), by or candidate.approval.by)

    def verdict(self, update: str, step: int = options_pb2.STEP_CANARY) -> tuple[int, gate_pb2.VerdictIssued]:
        """The gate judges and records; returns index and verdict."""
        judgement = self.judged(update, step)
        proposal = self.log.receipts.proposal(update)
        assert proposal is not None
        body = gate_pb2.VerdictIssued(
            update=update,
            step=step,
            verdict=judgement.verdict,
            resource=proposal.body.resource,
            scope=proposal.body.scope,
            log_size=self.log.size,
            log_root=self.log.tree.root(),
            evidence_digest=judgement.evidence_digest,
            policy_digest=judgement.policy_digest,
            rules=judgement.rules,
            findings=judgement.findings,
            findings_digest=judgement.findings_digest,
        )
        if judgement.verdict != gate_pb2.VERDICT_HOLD:
            body.not_after = min(approval.body.expires_at for approval in judgement.approvals)
        return self.log.write("gate-1", body), body


def states(judgement: Judgement) -> dict[int, str]:
    """Check number -> state, without those that pass."""
    return {
        number: gate_pb2.State.Name(finding.state).removeprefix("STATE_")
        for number, finding in enumerate(judgement.findings, start=1)
        if finding.state != gate_pb2.STATE_PASS
    }


def reasons(judgement: Judgement, check: int) -> list[str]:
    """Reason codes of a check."""
    return list(judgement.findings[check - 1].reasons)


def counts(judgement: Judgement, check: int) -> dict[str, int]:
    """Counts of a check."""
    return {count.name: count.value for count in judgement.findings[check - 1].counts}
