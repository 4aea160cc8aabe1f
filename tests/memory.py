"""Stories for tests of meaning: the demo's principals and a gate with the real rules, on a log in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from clients.demo.document import Candidate, DemoDocument, parse_document
from clients.demo.scenario import Events, Scenario, wrap
from gate.freeze import derive_freeze
from gate.judge import RulesJudge, verdict_of
from ledger.claims import Judgement, Move, Update
from ledger.environment import environment_digest
from ledger.standing import why_fallen
from ledger.trust import WRITER, role_name
from ledger.v1 import canary_pb2, event_pb2, gate_pb2, operator_pb2, options_pb2
from tests.events import body_name
from tests.memory_log import (
    BY_ROLE,
    HUMAN,
    PRINCIPALS,
    RELEASE_ACTOR,
    SECOND,
    START,
    MemoryLog,
    fold,
    principal,
)

__all__ = [
    "BY_ROLE",
    "CANARY",
    "DEFAULT",
    "HOLD",
    "HUMAN",
    "PRINCIPALS",
    "RELEASE_ACTOR",
    "SECOND",
    "START",
    "TO_CANARY",
    "TO_DEFAULT",
    "Authored",
    "MemoryLog",
    "Mutation",
    "Story",
    "body_name",
    "counts",
    "demo_document",
    "fold",
    "principal",
    "reasons",
    "small",
    "states",
    "unchanged",
    "why",
]

CANARY, DEFAULT = options_pb2.STEP_CANARY, options_pb2.STEP_DEFAULT
HOLD = gate_pb2.VERDICT_HOLD
TO_CANARY, TO_DEFAULT = gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY, gate_pb2.VERDICT_PROMOTE_TO_DEFAULT

_CANDIDATES: Final = Path(__file__).parents[1] / "clients" / "demo" / "candidates.json"
_DESTINATION: Final = options_pb2.ENVIRONMENT_TARGET_DESTINATION

Authored: TypeAlias = (
    event_pb2.Event | tuple[str, event_pb2.Event]
)  # by the role's first principal, or by name
Mutation: TypeAlias = Callable[[str, Events], Iterable[Authored]]


# --- documents ---------------------------------------------------------------------------------------------


def demo_document(change: Callable[[dict[str, Any]], None] | None = None) -> DemoDocument:
    """The demo's candidates file, after `change` to its JSON."""
    raw = json.loads(_CANDIDATES.read_bytes())
    if change is not None:
        change(raw)
    return parse_document(json.dumps(raw).encode())


def small(raw: dict[str, Any]) -> None:
    """Candidates of six rollouts, ten cases and two canary tasks: the same meaning in fewer entries."""
    raw["holdout"] |= {"families": ["refunds", "joins"], "cases_per_family": 5, "protected": ["refunds"]}
    raw["policy"]["span_coverage"]["min_completed"] = 5
    raw["policy"]["canary_verified"]["min_tasks"] = 2
    raw["candidates"] = [
        {
            "name": name,
            "story": "small",
            "training": {"rollouts": 6, "covered": 6, "expected_retries": 1},
            "evaluation": {"gain": "0.2"},
            "canary": {"tasks": 2, "verified": 2},
            "rollback": {"resolved": True, "loaded": True, "served": True, "routed_back": True},
            "approval": {"by": "approver-1"},
        }
        for name in ("A", "B", "C")
    ]


# --- stories -----------------------------------------------------------------------------------------------


def unchanged(phase: str, events: Events) -> Iterable[Authored]:
    """No mutation."""
    return events


class Story:
    """One document on one log: what each principal writes, in the order in which it happens."""

    def __init__(self, document: DemoDocument, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog()
        self.scenario = Scenario(document, self.log.new_id, lambda: self.log.clock)
        self.document = document
        self.judge = RulesJudge()

    def candidate(self, name: str) -> Candidate:
        """A candidate of the document."""
        return next(c for c in self.document.candidates if c.name == name)

    @property
    def scope(self) -> options_pb2.Scope:
        """The scope of all candidates."""
        return self.scenario.scope

    def write(self, events: Iterable[Authored], author: str | None = None) -> None:
        """Appends events one by one: by the author that one comes with, or `author`, or its role's first."""
        for item in events:
            by, event = (author, item) if isinstance(item, event_pb2.Event) else item
            self.log.append(by or BY_ROLE[role_name(WRITER[body_name(event)])], [event])

    def say(self, body: Any, by: str | None = None) -> int:
        """Appends one body, by its role's first principal unless told otherwise; returns the index."""
        event = wrap(body, self.log.new_id(), self.log.clock)
        return self.log.append(by or BY_ROLE[role_name(WRITER[body_name(event)])], [event])

    def setup(self, mutate: Mutation = unchanged) -> None:
        """The operator's publications."""
        self.write(mutate("publications", self.scenario.publications()))

    # --- before, during and after training ---

    def freeze(self, update: str, by: str = "trainer-1", redo: Sequence[int] = ()) -> int:
        """The gate freezes, on request of `by`."""
        operator = self.log.principals[by].role == options_pb2.ROLE_OPERATOR
        frozen = derive_freeze(
            self.log.receipts, update, by, is_operator=operator, redo=redo, size=self.log.size
        )
        return self.log.write("gate-1", frozen)

    def until_evidence(self, candidate: Candidate, mutate: Mutation = unchanged) -> None:
        """Everything that happens to a candidate until training and the judge are done."""
        s, update = self.scenario, self.scenario.update_id(candidate)
        self.write(mutate("proposal", s.proposal(candidate)))
        frozen = derive_freeze(
            self.log.receipts, update, "trainer-1", is_operator=False, redo=(), size=self.log.size
        )
        self.write(mutate("freeze", [wrap(frozen, self.log.new_id(), self.log.clock)]))
        self.write(mutate("training_started", s.training_started(candidate)))
        runner = [event for rollout in s.rollouts(candidate) for event in rollout]
        self.write(mutate("rollouts", runner))
        self.write(mutate("rewards", s.rewards(candidate)))
        self.write(mutate("training_ended", s.training_ended(candidate)))
        self.write(mutate("evaluations", s.evaluations(candidate)))

    def until_approval(self, candidate: Candidate, mutate: Mutation = unchanged) -> None:
        """Everything that happens to a candidate before somebody approves, each phase through `mutate`."""
        self.until_evidence(candidate, mutate)
        self.write(mutate("canary", self.scenario.canary(candidate)))

    def until_canary_verdict(self, candidate: Candidate) -> tuple[int, gate_pb2.VerdictIssued]:
        """Everything up to a recorded canary verdict."""
        self.until_approval(candidate)
        self.approve(candidate)
        return self.verdict(self.scenario.update_id(candidate))

    def until_default_verdict(self, candidate: Candidate) -> tuple[int, gate_pb2.VerdictIssued]:
        """Everything up to a recorded verdict for step default."""
        self.live(candidate, self.until_canary_verdict(candidate))
        self.approve(candidate, DEFAULT, by="approver-2")
        return self.verdict(self.scenario.update_id(candidate), DEFAULT)

    def until_promoted(self, candidate: Candidate) -> int:
        """Everything up to the promotion; returns its index."""
        return self.promote(self.until_default_verdict(candidate))

    def evaluate_again(self, candidate: Candidate, suffix: str = "again") -> None:
        """The judge evaluates both subjects once more, under other evaluation ids."""
        events = self.scenario.evaluations(candidate)
        for event in events:
            body = getattr(event, body_name(event))
            body.evaluation += f"-{suffix}"
            if body_name(event) == "evaluation_recorded":
                self._pin_evaluation(body)
        self.write(events)

    def _pin_evaluation(self, body: Any) -> None:
        pins = self.log.receipts.update(body.update).of("update_frozen")[-1].body
        body.evaluator_digest, body.snapshot_digest = pins.evaluator_digest, pins.holdout_digest
        parts = {part.target: part.digest for part in pins.environment}
        body.harness_digest = parts[options_pb2.ENVIRONMENT_TARGET_HARNESS]

    def window(
        self,
        candidate: Candidate,
        name: str,
        edit: Callable[[canary_pb2.CanaryStarted], None] = lambda _: None,
        mutate: Mutation = unchanged,
    ) -> None:
        """One more canary window under the pins of the last freeze, the way back rehearsed in it."""
        events = self.scenario.canary(candidate)
        update = self.scenario.update_id(candidate)
        pins = self.log.receipts.update(update).of("update_frozen")[-1].body
        pinned = {part.target: part.digest for part in pins.environment}
        environment = b""
        for event in events:
            body = getattr(event, body_name(event))
            body.window = name
            if body_name(event) == "canary_started":
                body.tool_contract_digest = pins.tool_contract_digest
                for part in body.environment:
                    if part.target != _DESTINATION:
                        part.digest = pinned[part.target]
                edit(body)
                for part in body.environment:
                    if part.target == _DESTINATION and body.kind == canary_pb2.WINDOW_KIND_LIVE:
                        part.digest = pinned[part.target]
                environment = environment_digest(body.environment, body.tool_contract_digest, body.bounds)
                body.environment_digest = environment
            elif body_name(event) == "rollback_rehearsed":
                body.environment_digest = environment
        self.write(mutate("canary", events))

    def live(
        self,
        candidate: Candidate,
        verdict: tuple[int, gate_pb2.VerdictIssued],
        name: str = "live-1",
        mutate: Mutation = unchanged,
    ) -> None:
        """A LIVE window that names the canary verdict, seen to stand at the present size."""

        def edit(started: canary_pb2.CanaryStarted) -> None:
            started.kind = canary_pb2.WINDOW_KIND_LIVE
            started.live.CopyFrom(self.live_authority(verdict))

        self.window(candidate, name, edit, mutate)

    def live_authority(self, verdict: tuple[int, gate_pb2.VerdictIssued]) -> canary_pb2.LiveAuthority:
        """What a LIVE window rests on, as seen now."""
        index, body = verdict
        return canary_pb2.LiveAuthority(
            resource=body.resource,
            scope=body.scope,
            verdict_index=index,
            seen_size=self.log.size,
            not_after=body.not_after,
        )

    # --- judging ---

    def judged(self, update: str, step: int = CANARY, size: int | None = None) -> Judgement:
        """The judgement at a size, the present one unless told."""
        return self.judge.evaluate(self.log.receipts, update, step, self.log.size if size is None else size)

    def approve(
        self,
        candidate: Candidate,
        step: options_pb2.Step.ValueType = CANARY,
        by: str | None = None,
        edit: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """The approver approves exactly the present evidence, unless `edit` changes what it says."""
        judgement = self.judged(self.scenario.update_id(candidate), step)
        verdict = gate_pb2.VerdictIssued(
            evidence_digest=judgement.evidence_digest, policy_digest=judgement.policy_digest or bytes(32)
        )
        events = self.scenario.approval(candidate, step, verdict)
        for event in events:
            edit(event.approval_granted)
        self.write(events, by or candidate.approval.by)

    def verdict_body(
        self, update: str, step: options_pb2.Step.ValueType = CANARY, size: int | None = None
    ) -> gate_pb2.VerdictIssued:
        """The verdict that the gate would record, from the prefix of `size` entries or the present one."""
        size = self.log.size if size is None else size
        judgement = self.judged(update, step, size)
        proposal = self.log.receipts.proposal(update)
        assert proposal is not None
        return verdict_of(judgement, proposal.body, step, size, self.log.tree.root(size))

    def verdict(
        self, update: str, step: options_pb2.Step.ValueType = CANARY
    ) -> tuple[int, gate_pb2.VerdictIssued]:
        """The gate judges and records; returns index and verdict."""
        body = self.verdict_body(update, step)
        return self.log.write("gate-1", body), body

    # --- pointers ---

    def default(self) -> Move | None:
        """The approved default of the document's resource."""
        return self.log.receipts.pointers.default(self.document.resource, self.scope)

    def promotion(self, verdict: tuple[int, gate_pb2.VerdictIssued]) -> gate_pb2.DefaultPromoted:
        """The promotion that rests on a verdict."""
        index, body = verdict
        default, record = self.default(), self.log.receipts.update(body.update)
        assert default is not None
        return gate_pb2.DefaultPromoted(
            update=body.update,
            resource=body.resource,
            scope=body.scope,
            from_digest=default.digest,
            to_digest=record.of("candidate_registered")[0].body.manifest_digest,
            verdict_index=index,
            not_after=body.not_after,
        )

    def promote(self, verdict: tuple[int, gate_pb2.VerdictIssued]) -> int:
        """The gate moves the pointer; returns the index."""
        return self.log.write("gate-1", self.promotion(verdict))

    def ask_rollback(self, promotion: int) -> int:
        """The operator asks that a promotion be undone; returns the index."""
        return self.say(
            operator_pb2.RollbackRequested(
                resource=self.document.resource,
                scope=self.scope,
                promotion_index=promotion,
                reason="bad day",
            )
        )

    def rollback(self, request: int) -> gate_pb2.DefaultRolledBack:
        """The rollback of the top promotion that a request would allow."""
        stack = self.log.receipts.pointers.stack(self.document.resource, self.scope)
        top = stack[-1]
        assert top.update is not None
        return gate_pb2.DefaultRolledBack(
            resource=self.document.resource,
            scope=self.scope,
            promotion_index=top.index,
            request_index=request,
            update=top.update,
            to_digest=stack[-2].digest,
        )

    def roll_back(self, promotion: int) -> int:
        """Asked for and done; returns the index."""
        return self.log.write("gate-1", self.rollback(self.ask_rollback(promotion)))

    # --- looking ---

    def record(self, candidate: Candidate) -> Update:
        """The fold's record of the candidate's update."""
        return self.log.receipts.updates[self.scenario.update_id(candidate)]

    def standing(self, verdict: tuple[int, gate_pb2.VerdictIssued]) -> bool:
        """Whether a recorded verdict stands now."""
        record = self.log.receipts.updates[verdict[1].update]
        found = next(v for v in record.verdicts if v.fact.index == verdict[0])
        return why_fallen(self.log.receipts, found, self.log.clock) is None

    def voids(self) -> list[tuple[str, int]]:
        """Step and index of everything that does not hold."""
        return [(void.step, void.index) for void in self.log.receipts.voids]


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


def why(judgement: Judgement) -> dict[int, str]:
    """Check number -> state and reasons, `FAIL HARM,NOT_VERIFIED`, without those that pass."""
    return {
        number: f"{state} {','.join(reasons(judgement, number))}"
        for number, state in states(judgement).items()
    }


def counts(judgement: Judgement, check: int) -> dict[str, int]:
    """Counts of a check."""
    return {count.name: count.value for count in judgement.findings[check - 1].counts}
