"""Replay: R1, R2 and R3 each find the first false use of a power, and say when they cannot tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clients.demo.scenario import digest
from gate.judge import RulesJudge
from ledger.claims import UNREPLAYABLE
from ledger.errors import CannotTellError, VerificationError
from ledger.v1 import gate_pb2, operator_pb2, options_pb2
from tests.gate_tests.editing import change, copied
from tests.memory import CANARY, DEFAULT, SECOND, Story, demo_document, fold, small, unchanged

U = "update-A"


def first_fault(story: Story) -> tuple[str, int | None, str]:
    """Step, index and reason of what replay raises."""
    with pytest.raises(VerificationError) as caught:
        story.log.replay.result()
    return caught.value.step, caught.value.index, caught.value.reason


def test_an_honest_log_replays(story: Story) -> None:
    """Everything that the gate did was right: counts of what was replayed, no fault."""
    promoted = story.until_promoted(story.candidate("A"))
    story.roll_back(promoted)
    replayed = story.log.replay.result()
    assert (2, 3, 1, ()) == (replayed.verdicts, replayed.moves, replayed.freezes, replayed.unreplayable)


def test_r1_a_move_without_a_verdict(story: Story) -> None:
    """R1: a promotion that no valid verdict allows."""
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    default = story.default()
    assert default is not None
    forged = gate_pb2.DefaultPromoted(
        update=U,
        resource=story.document.resource,
        scope=story.scope,
        from_digest=default.digest,
        to_digest=story.scenario.candidate_digest(candidate),
        verdict_index=story.log.size - 1,
        not_after=story.log.clock + SECOND,
    )
    index = story.log.write("gate-1", forged)
    assert first_fault(story) == ("R1", index, "MOVE_VOID")


def test_r2_a_verdict_that_is_not_what_the_evidence_says(story: Story) -> None:
    """R2: a PROMOTE over evidence that lacks an approval."""
    story.until_approval(story.candidate("A"))
    honest = story.verdict_body(U)
    forged = copied(honest, verdict=gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY, not_after=story.log.clock)
    index = story.log.write("gate-1", forged)
    assert first_fault(story) == ("R2", index, "VERDICT_VOID")


def frozen(story: Story, **edits: Any) -> int:
    """Candidate A proposed and frozen by the gate with other pins than those in force; its index."""

    def forge(body: Any) -> None:
        for name, value in edits.items():
            setattr(body, name, value)

    story.until_approval(story.candidate("A"), change("update_frozen", forge))
    return story.record(story.candidate("A")).of("update_frozen")[0].index


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"evaluator_digest": digest("kinder")}, "FREEZE_DIFFERS"),
        ({"parent_digest": digest("weaker")}, "FREEZE_DIFFERS"),
        ({"revision": 2}, "FREEZE_DIFFERS"),
        ({"requested_by": "trainer-2"}, "FREEZE_UNAUTHORISED"),
        ({"requested_by": "operator-1"}, "FREEZE_UNAUTHORISED"),
        ({"update": "update-Z"}, "FREEZE_UNAUTHORISED"),
    ],
)
def test_r3_a_false_freeze(story: Story, edits: dict[str, Any], reason: str) -> None:
    """R3: pins that were not in force, or asked for by somebody who may not."""
    if "update" in edits:
        index = story.log.size + 1
        story.until_approval(
            story.candidate("A"), change("update_frozen", lambda b: setattr(b, "update", "update-Z"))
        )
    else:
        index = frozen(story, **edits)
    assert first_fault(story) == ("R3", index, reason)


def test_r3_a_freeze_after_training_started(story: Story) -> None:
    """R3: the first freeze precedes training."""
    candidate, s = story.candidate("A"), story.scenario
    story.write(s.proposal(candidate))
    honest = story.freeze(U)
    body = story.record(candidate).of("update_frozen")[0].body
    assert (honest, story.log.replay.faults) == (story.log.size - 1, [])
    other = Story(demo_document(small))
    other.setup()
    other.write(other.scenario.proposal(candidate))
    other.write(other.scenario.training_started(candidate))
    assert "FREEZE_UNAUTHORISED" == first_fault_after(other, body)


def first_fault_after(story: Story, body: Any) -> str:
    """The gate writes the body; replay's first fault is that."""
    index = story.log.write("gate-1", body)
    step, at, reason = first_fault(story)
    assert (step, at) == ("R3", index)
    return reason


def test_r3_pause_and_resume(story: Story) -> None:
    """R3: only an update in training is paused, and only on request resumed."""
    story.until_approval(story.candidate("A"))
    pause = gate_pb2.TrainingPaused(update=U, cause="COVERAGE", message="late")
    assert "PAUSE_UNAUTHORISED" == first_fault_after(story, pause)
    other = Story(demo_document(small))
    other.setup()
    resume = gate_pb2.TrainingResumed(update=U, request_index=0)
    assert "RESUME_UNAUTHORISED" == first_fault_after(other, resume)


def test_the_first_fault_is_named(story: Story) -> None:
    """Of several faults the one with the lowest index is raised."""
    index = frozen(story, evaluator_digest=digest("kinder"))
    story.log.write("gate-1", copied(story.verdict_body(U), findings_digest=digest("x")))
    assert first_fault(story) == ("R3", index, "FREEZE_DIFFERS")


def newer_rules(raw: dict[str, Any]) -> bytes:
    """The document's policy as a later release would write it."""
    return json.dumps(raw | {"rules": 2, "something": "new"}).encode()


def test_unknown_rules_cannot_be_told(story: Story) -> None:
    """A freeze, a verdict and a move under rules of a later release are neither true nor false here."""
    candidate = story.candidate("A")
    document = newer_rules(json.loads(story.document.policy_bytes))
    honest = Story(demo_document(small))
    honest.setup()
    honest.until_default_verdict(candidate)
    verdict = honest.record(candidate).verdicts[-1].fact.body
    pins = honest.record(candidate).of("update_frozen")[0].body

    published = story.say(operator_pb2.PolicyPublished(scope=story.scope, document=document))
    policy = story.log.receipts.registry.in_force("policy", story.scope, published + 1)
    assert policy is not None
    story.write(story.scenario.proposal(candidate))
    freeze = story.log.write("gate-1", copied(pins, policy_digest=policy.digest))
    finish(story)
    newer = copied(verdict, rules=2, log_size=story.log.size, log_root=story.log.tree.root())
    judged = story.log.write("gate-1", newer)
    moved = story.log.write("gate-1", story.promotion((judged, newer)))
    after = story.log.write("gate-1", rolled_back(story, moved))

    replayed = story.log.replay.result()
    told = [(void.step, void.index, void.reason) for void in replayed.unreplayable]
    assert told == [
        ("R3", freeze, UNREPLAYABLE),
        ("R2", judged, UNREPLAYABLE),
        ("R1", moved, UNREPLAYABLE),
        ("R1", after, UNREPLAYABLE),
    ]
    with pytest.raises(CannotTellError, match="RULES_UNKNOWN"):
        RulesJudge().evaluate(story.log.receipts, U, DEFAULT, story.log.size)
    default = story.default()
    assert default is not None
    assert default.digest == story.scenario.baseline


def finish(story: Story) -> None:
    """Candidate A's training, evaluation and rehearsal, after its freeze."""
    candidate, s = story.candidate("A"), story.scenario
    story.write(s.training_started(candidate))
    for rollout in s.rollouts(candidate):
        story.write(rollout)
    for phase in (s.training_ended, s.evaluations, s.canary):
        story.write(unchanged("", phase(candidate)))


def rolled_back(story: Story, promotion: int) -> gate_pb2.DefaultRolledBack:
    """The rollback of a move that cannot be judged here."""
    return gate_pb2.DefaultRolledBack(
        resource=story.document.resource,
        scope=story.scope,
        promotion_index=promotion,
        request_index=story.ask_rollback(promotion),
        update=U,
        to_digest=story.scenario.baseline,
    )


def test_a_fault_beside_what_cannot_be_told_still_comes_out(story: Story) -> None:
    """Unknown rules for one pointer hide no false move of another."""
    document = newer_rules(json.loads(story.document.policy_bytes))
    story.until_approval(story.candidate("B"))
    forged = copied(story.verdict_body("update-B"), findings_digest=digest("x"))
    story.say(operator_pb2.PolicyPublished(scope=story.scope, document=document))
    index = story.log.write("gate-1", forged)
    assert first_fault(story) == ("R2", index, "VERDICT_VOID")


def test_replaying_again_gives_the_same(story: Story) -> None:
    """The same entries give the same verdicts, pointers and faults, whoever folds them."""
    story.until_promoted(story.candidate("A"))
    again = fold(story.log.entries)
    assert again.result() == story.log.replay.result()
    assert again.receipts.pointers.all() == story.log.receipts.pointers.all()
    for step in (CANARY, DEFAULT):
        mine, theirs = (
            RulesJudge().evaluate(receipts, U, step, story.log.size)
            for receipts in (story.log.receipts, again.receipts)
        )
        assert mine == theirs


def test_a_redo_replays_and_is_bounded() -> None:
    """A redo that the policy allows, for a check in MISSING, replays; the next one does not (R3)."""

    def one_redo(raw: dict[str, Any]) -> None:
        small(raw)
        raw["policy"]["max_redos"] = 1

    story = Story(demo_document(one_redo))
    story.setup()
    candidate = story.candidate("A")
    story.until_approval(candidate, change("evaluation_closed", lambda b: setattr(b, "results", 11)))
    story.freeze(U, by="operator-1", redo=[4, 5])
    assert [] == story.log.replay.faults
    story.evaluate_again(candidate)
    story.approve(candidate)
    assert story.judged(U).verdict == gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY
    last = copied(story.record(candidate).of("update_frozen")[-1].body, revision=3)
    assert "FREEZE_UNAUTHORISED" == first_fault_after(story, last)


@pytest.mark.parametrize("redo", [[4], [1], [7, 8]])
def test_r3_a_redo_that_is_not_allowed(redo: list[int]) -> None:
    """R3: a FAIL is never redone, nor a PASS, nor checks 1 to 3."""

    def redoable(raw: dict[str, Any]) -> None:
        small(raw)
        raw["policy"]["max_redos"] = 9
        raw["candidates"][0]["evaluation"]["gain"] = "0"

    story = Story(demo_document(redoable))
    story.setup()
    candidate = story.candidate("A")
    story.until_approval(candidate)
    body = copied(story.record(candidate).of("update_frozen")[0].body, revision=2, requested_by="operator-1")
    body.redo_checks.extend(redo)
    assert "FREEZE_UNAUTHORISED" == first_fault_after(story, body)


def test_environment_targets_of_a_freeze_are_replayed(story: Story) -> None:
    """R3: one digest for each environment target, the one in force."""

    def forge(body: Any) -> None:
        for part in body.environment:
            if part.target == options_pb2.ENVIRONMENT_TARGET_MODEL_SERVER:
                part.digest = digest("faster")

    story.until_approval(story.candidate("A"), change("update_frozen", forge))
    (freeze,) = story.record(story.candidate("A")).of("update_frozen")
    assert first_fault(story) == ("R3", freeze.index, "FREEZE_DIFFERS")
