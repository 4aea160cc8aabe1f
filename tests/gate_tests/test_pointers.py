"""Pointers: promotions, baselines and rollbacks, when they hold and every way in which they do not.

Source: checks.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clients.demo.scenario import digest
from gate.report import at_risk
from ledger.v1 import approver_pb2, gate_pb2, operator_pb2, options_pb2
from tests.gate_tests.editing import copied
from tests.memory import DEFAULT, HOLD, SECOND, TO_DEFAULT, Story, why

U = "update-A"
HOUR = 3600 * SECOND


def permissions(story: Story) -> Any:
    """Other permissions."""
    return operator_pb2.EnvironmentChanged(
        scope=story.scope, target=options_pb2.ENVIRONMENT_TARGET_PERMISSIONS, new_digest=digest("new")
    )


def withdrawal(step: str) -> approver_pb2.ApprovalWithdrawn:
    """The approval of a step is withdrawn."""
    return approver_pb2.ApprovalWithdrawn(update=U, approval=f"approval-A-{step}")


# --- promotions --------------------------------------------------------------------------------------------


def promoted_with(story: Story, edit: Callable[[gate_pb2.DefaultPromoted], object]) -> int:
    """A promotion that would hold, but for the edit."""
    body = story.promotion(story.until_default_verdict(story.candidate("A")))
    edit(body)
    return story.log.write("gate-1", body)


MOVES: dict[str, Callable[[gate_pb2.DefaultPromoted], object]] = {
    "from another digest": lambda b: setattr(b, "from_digest", digest("x")),
    "to another digest": lambda b: setattr(b, "to_digest", digest("x")),
    "to what is default already": lambda b: setattr(b, "to_digest", b.from_digest),
    "on another verdict": lambda b: setattr(b, "verdict_index", b.verdict_index - 1),
    "on a verdict of the future": lambda b: setattr(b, "verdict_index", b.verdict_index + 9),
    "for another update": lambda b: setattr(b, "update", "update-B"),
    "of another resource": lambda b: setattr(b, "resource", "sql-reader"),
    "in another scope": lambda b: setattr(b.scope, "segment", "de-internal"),
    "for longer than the verdict": lambda b: setattr(b, "not_after", b.not_after + 1),
    "after its own time": lambda b: setattr(b, "not_after", 1),
}


@pytest.mark.parametrize("fault", MOVES)
def test_a_false_move_is_void(story: Story, fault: str) -> None:
    """An invalid move is skipped by folds and reported by replay."""
    index = promoted_with(story, MOVES[fault])
    default = story.default()
    assert default is not None
    assert default.digest == story.scenario.baseline
    assert story.voids() == [("R1", index)]


def test_a_move_with_company_is_void(story: Story) -> None:
    """Pointer moves stand alone in their batch."""
    body = story.promotion(story.until_default_verdict(story.candidate("A")))
    index = story.log.write("gate-1", body, alone=False)
    assert story.voids() == [("R1", index)]


@pytest.mark.parametrize(("late", "void"), [(HOUR, False), (HOUR + 1, True)])
def test_promotion_one_tick_after_expiry(story: Story, *, late: int, void: bool) -> None:
    """A promotion at the approval's last moment holds; one microsecond later it does not."""
    verdict = story.until_default_verdict(story.candidate("A"))
    story.log.tick(late)
    index = story.promote(verdict)
    assert story.voids() == ([("R1", index)] if void else [])


SLIPPED: dict[str, Callable[[Story], Any]] = {
    "permissions": permissions,
    "approval withdrawn": lambda _: withdrawal("default"),
    "another evaluation": lambda s: copied(s.record(s.candidate("A")).of("evaluation_closed")[0].body),
    "another baseline claim": lambda s: operator_pb2.BaselineAdopted(
        resource=s.document.resource, scope=s.scope, manifest_digest=digest("x"), reason="again"
    ),
}


@pytest.mark.parametrize("what", SLIPPED)
def test_nothing_slips_in_before_a_promotion(story: Story, what: str) -> None:
    """Whatever touched what the verdict rests on since it was placed makes the promotion void."""
    verdict = story.until_default_verdict(story.candidate("A"))
    story.say(SLIPPED[what](story))
    index = story.promote(verdict)
    assert ("R1", index) in story.voids()
    default = story.default()
    assert default is not None
    assert default.digest == story.scenario.baseline


def test_a_promotion_whose_evidence_became_suspect_is_void(story: Story) -> None:
    """Evidence that stopped counting before the move is no evidence for it."""
    verdict = story.until_default_verdict(story.candidate("A"))
    story.log.revoke("judge-1", suspect_from=0)
    index = story.promote(verdict)
    assert story.voids() == [("R1", index)]


def test_the_default_is_not_promoted_onto_itself(story: Story) -> None:
    """What is default already cannot be promoted again: one rollback leads back to the parent."""
    candidate = story.candidate("A")
    story.until_promoted(candidate)
    again = story.verdict(U, DEFAULT)
    assert again[1].verdict == TO_DEFAULT
    index = story.promote(again)
    assert story.voids() == [("R1", index)]
    default = story.default()
    assert default is not None
    assert default.verdict_index != again[0]


# --- baseline and rollback ---------------------------------------------------------------------------------


def test_a_baseline_is_adopted_once(story: Story) -> None:
    """Once per resource and scope; a second one is void."""
    again = operator_pb2.BaselineAdopted(
        resource=story.document.resource, scope=story.scope, manifest_digest=digest("x"), reason="again"
    )
    voids = [("R1", story.say(again))]
    default = story.default()
    assert default is not None
    assert (default.update, default.digest) == (None, story.scenario.baseline)
    assert story.voids() == voids
    assert story.log.receipts.pointers.default("another", story.scope) is None


def test_a_baseline_is_not_adopted_again_after_a_rollback(story: Story) -> None:
    """A rollback leads back to the baseline; it does not make room for another."""
    promoted = story.until_promoted(story.candidate("A"))
    story.roll_back(promoted)
    index = story.say(SLIPPED["another baseline claim"](story))
    assert story.voids() == [("R1", index)]


def test_rollback_leads_back_and_needs_no_fresh_evidence(story: Story) -> None:
    """It pops to what the promotion came from, even long after everything expired or became stale."""
    promoted = story.until_promoted(story.candidate("A"))
    story.log.tick(100 * HOUR)
    story.say(permissions(story))
    index = story.roll_back(promoted)
    default = story.default()
    assert default is not None
    assert (default.digest, default.update) == (story.scenario.baseline, None)
    assert story.log.receipts.pointers.moved_at(story.document.resource, story.scope) == index
    assert ([], 3) == (story.voids(), story.log.replay.result().moves)


def test_an_approver_may_ask_for_a_rollback(story: Story) -> None:
    """The approver's own message is as good as the operator's."""
    promoted = story.until_promoted(story.candidate("A"))
    asked = story.say(
        approver_pb2.ApproverRollbackRequested(
            resource=story.document.resource, scope=story.scope, promotion_index=promoted, reason="harm"
        )
    )
    story.log.write("gate-1", story.rollback(asked))
    assert [] == story.voids()
    default = story.default()
    assert default is not None
    assert default.digest == story.scenario.baseline


ROLLBACKS: dict[str, Callable[[gate_pb2.DefaultRolledBack], object]] = {
    "without a request": lambda b: setattr(b, "request_index", 0),
    "of another promotion": lambda b: setattr(b, "promotion_index", b.promotion_index - 1),
    "to another digest": lambda b: setattr(b, "to_digest", digest("x")),
    "of another update": lambda b: setattr(b, "update", "update-B"),
    "of another resource": lambda b: setattr(b, "resource", "sql-reader"),
    "in another scope": lambda b: setattr(b.scope, "segment", "de-internal"),
}


@pytest.mark.parametrize("fault", ROLLBACKS)
def test_a_false_rollback_is_void(story: Story, fault: str) -> None:
    """A rollback undoes the top promotion that an unused request names, and nothing else."""
    promoted = story.until_promoted(story.candidate("A"))
    body = story.rollback(story.ask_rollback(promoted))
    ROLLBACKS[fault](body)
    index = story.log.write("gate-1", body)
    assert story.voids() == [("R1", index)]
    default = story.default()
    assert default is not None
    assert default.update == U


def test_a_request_is_used_once_and_for_its_promotion(story: Story) -> None:
    """A request from before the promotion, or used already, rolls nothing back."""
    early = story.ask_rollback(story.log.size + 400)
    promoted = story.until_promoted(story.candidate("A"))
    voids = [("R1", story.log.write("gate-1", story.rollback(early)))]
    asked = story.ask_rollback(promoted)
    body = story.rollback(asked)
    story.log.write("gate-1", body)
    voids.append(("R1", story.log.write("gate-1", body)))
    assert story.voids() == voids
    default = story.default()
    assert default is not None
    assert default.update is None


def test_a_rollback_with_company_is_void(story: Story) -> None:
    """Pointer moves stand alone in their batch."""
    promoted = story.until_promoted(story.candidate("A"))
    body = story.rollback(story.ask_rollback(promoted))
    assert [] == story.voids()
    index = story.log.write("gate-1", body, alone=False)
    assert story.voids() == [("R1", index)]


def test_promoting_again_after_a_rollback_with_nothing_new(story: Story) -> None:
    """After a rollback the old verdict is void, and approval and LIVE window from before no longer count."""
    candidate = story.candidate("A")
    verdict = story.until_default_verdict(candidate)
    story.roll_back(story.promote(verdict))
    index = story.promote(verdict)
    assert story.voids() == [("R1", index)]
    assert {6: "MISSING WINDOW_ABSENT", 7: "MISSING APPROVAL_NONE"} == why(story.judged(U, DEFAULT))
    assert story.verdict(U, DEFAULT)[1].verdict == HOLD


def test_promoting_again_after_a_rollback_with_new_evidence(story: Story) -> None:
    """A new LIVE window and a new approval may promote the update once more."""
    candidate = story.candidate("A")
    canary = story.until_canary_verdict(candidate)
    story.live(candidate, canary)
    story.approve(candidate, DEFAULT, by="approver-2")
    story.roll_back(story.promote(story.verdict(U, DEFAULT)))
    story.live(candidate, canary, "live-2")
    story.approve(candidate, DEFAULT, by="approver-2")
    promoted = story.promote(story.verdict(U, DEFAULT))
    default = story.default()
    assert default is not None
    assert (default.index, story.voids()) == (promoted, [])


# --- at risk -----------------------------------------------------------------------------------------------


def risk(story: Story) -> list[str]:
    """What puts the default at risk."""
    default = story.default()
    assert default is not None
    return at_risk(story.log.receipts, default)


def test_a_default_at_risk_stays_and_says_so(story: Story) -> None:
    """Moves are judged once and stay; what they rest on and lost since shows."""
    assert [] == risk(story)
    story.until_promoted(story.candidate("A"))
    assert [] == risk(story)
    story.say(permissions(story))
    assert ["STALE_PERMISSIONS"] == risk(story)
    story.log.revoke("judge-1", suspect_from=0)
    assert ["STALE_PERMISSIONS", "SUSPECT"] == risk(story)
    default = story.default()
    assert default is not None
    assert (default.update, story.voids()) == (U, [])


def test_a_default_is_at_risk_with_its_gates_key(story: Story) -> None:
    """A suspect verdict puts the default that rests on it at risk, and moves nothing by itself."""
    verdict = story.until_default_verdict(story.candidate("A"))
    story.promote(verdict)
    story.log.revoke("gate-1", suspect_from=verdict[0])
    assert ["SUSPECT"] == risk(story)
