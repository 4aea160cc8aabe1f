"""Verdicts, LIVE windows and pointers: when they hold, and every way in which they do not.

Source: checks.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clients.demo.scenario import digest, wrap
from gate.report import at_risk
from ledger.v1 import approver_pb2, canary_pb2, gate_pb2, judge_pb2, operator_pb2, options_pb2
from tests.gate_tests.editing import copied
from tests.memory import CANARY, DEFAULT, HOLD, SECOND, TO_CANARY, TO_DEFAULT, Story, counts, states, why

U = "update-A"
HOUR = 3600 * SECOND
Verdict = tuple[int, gate_pb2.VerdictIssued]


def noise() -> Any:
    """Something that concerns nobody."""
    return operator_pb2.BlobErased(digest=digest("blob"), reason="asked for")


def permissions(story: Story) -> Any:
    """Other permissions."""
    return operator_pb2.EnvironmentChanged(
        scope=story.scope, target=options_pb2.ENVIRONMENT_TARGET_PERMISSIONS, new_digest=digest("new")
    )


def withdrawal(step: str) -> approver_pb2.ApprovalWithdrawn:
    """The approval of a step is withdrawn."""
    return approver_pb2.ApprovalWithdrawn(update=U, approval=f"approval-A-{step}")


def test_default_step_from_end_to_end(story: Story) -> None:
    """Rehearsal, canary verdict, LIVE window, approval, verdict, promotion: then it is the default."""
    candidate, receipts = story.candidate("A"), story.log.receipts
    canary = story.until_canary_verdict(candidate)
    assert (canary[1].verdict, story.standing(canary)) == (TO_CANARY, True)
    assert states(story.judged(U, DEFAULT)) == {6: "MISSING", 7: "MISSING"}
    story.live(candidate, canary)
    assert why(story.judged(U, DEFAULT)) == {7: "MISSING APPROVAL_NONE"}
    story.approve(candidate, DEFAULT, by="approver-2")
    verdict = story.verdict(U, DEFAULT)
    assert (verdict[1].verdict, story.standing(verdict)) == (TO_DEFAULT, True)
    before = story.default()
    assert before is not None
    assert before.digest == story.scenario.baseline
    promoted = story.promote(verdict)
    default = story.default()
    assert default is not None
    assert (default.index, default.digest) == (promoted, story.scenario.candidate_digest(candidate))
    assert (default.update, default.from_digest, default.verdict_index) == (U, before.digest, verdict[0])
    assert story.voids() == []
    replayed = story.log.replay.result()
    assert (replayed.verdicts, replayed.moves, replayed.freezes) == (2, 2, 1)
    assert receipts.moved_at(story.document.resource, story.scope) == promoted


def test_a_canary_verdict_moves_no_pointer(story: Story) -> None:
    """PROMOTE_TO_BOUNDED_CANARY leaves the default where it was, and cannot be promoted."""
    verdict = story.until_canary_verdict(story.candidate("A"))
    at = story.promote(verdict)
    default = story.default()
    assert default is not None
    assert default.digest == story.scenario.baseline
    assert story.voids() == [("R1", at)]


def test_hold_names_its_reasons_and_does_not_stand(story: Story) -> None:
    """A HOLD is valid and recorded, has no not_after, and stands for nothing."""
    story.until_approval(story.candidate("A"))
    verdict = story.verdict(U)
    assert (verdict[1].verdict, verdict[1].HasField("not_after")) == (HOLD, False)
    assert (story.voids(), story.standing(verdict)) == ([], False)
    assert list(verdict[1].findings[6].reasons) == ["APPROVAL_NONE"]


# --- a verdict is void -------------------------------------------------------------------------------------


def flip(field: str, value: Any) -> Callable[[Story, Verdict], None]:
    """Sets a scalar field of the verdict."""
    return lambda _, verdict: setattr(verdict[1], field, value)


def drop_finding(story: Story, verdict: Verdict) -> None:
    """The last finding is left out."""
    del verdict[1].findings[-1]


def add_count(story: Story, verdict: Verdict) -> None:
    """A count is one higher."""
    verdict[1].findings[1].counts[0].value += 1


def other_reason(story: Story, verdict: Verdict) -> None:
    """A reason that the check did not give."""
    verdict[1].findings[0].reasons.append("HARM")


def one_later(story: Story, verdict: Verdict) -> None:
    """One microsecond beyond the approval's expiry."""
    verdict[1].not_after += 1


def in_the_future(story: Story, verdict: Verdict) -> None:
    """From a log that is longer than this one."""
    verdict[1].log_size = story.log.size + 1


def another_scope(story: Story, verdict: Verdict) -> None:
    """For another segment."""
    verdict[1].scope.segment = "de-internal"


def slipped(body: Callable[[Story], Any]) -> Callable[[Story, Verdict], None]:
    """Somebody writes something between the judging and the recording."""

    def edit(story: Story, verdict: Verdict) -> None:
        story.say(body(story))

    return edit


VERDICTS: dict[str, Callable[[Story, Verdict], None]] = {
    "other findings digest": flip("findings_digest", digest("x")),
    "other evidence digest": flip("evidence_digest", digest("x")),
    "other policy digest": flip("policy_digest", digest("x")),
    "other root": flip("log_root", digest("x")),
    "other verdict": flip("verdict", TO_DEFAULT),
    "a HOLD with not_after": flip("verdict", HOLD),
    "other rules": flip("rules", 2),
    "other step": flip("step", DEFAULT),
    "other resource": flip("resource", "sql-reader"),
    "other update": flip("update", "update-Z"),
    "other scope": another_scope,
    "another size": flip("log_size", 3),
    "size zero": flip("log_size", 0),
    "a size of the future": in_the_future,
    "a finding left out": drop_finding,
    "a count changed": add_count,
    "a reason added": other_reason,
    "later than the approval": one_later,
    "the permissions changed since": slipped(permissions),
    "the approval withdrawn since": slipped(lambda _: withdrawal("canary")),
    "another proposal of the update since": slipped(
        lambda s: copied(s.record(s.candidate("A")).of("update_proposed")[0].body)
    ),
}


@pytest.mark.parametrize("fault", VERDICTS)
def test_a_false_verdict_is_void(story: Story, fault: str) -> None:
    """A verdict that does not replay, or before which something slipped in, is void and powerless."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate)
    verdict = (0, story.verdict_body(U))
    VERDICTS[fault](story, verdict)
    index = story.log.write("gate-1", verdict[1])
    assert story.voids() == [("R2", index)]
    update = verdict[1].update
    (record,) = story.log.receipts.updates[update].verdicts
    assert story.log.receipts.why_fallen(record, story.log.clock) is not None
    story.live(candidate, (index, verdict[1]))
    (live,) = story.record(candidate).live.values()
    assert live is not None


def test_a_verdict_with_company_is_void(story: Story) -> None:
    """A verdict and its cause in one batch: verdicts stand alone, whatever they say."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate)
    index = story.log.write("gate-1", story.verdict_body(U), alone=False)
    assert story.voids() == [("R2", index)]


@pytest.mark.parametrize(("late", "void"), [(HOUR, False), (HOUR + 1, True)])
def test_a_verdict_is_recorded_in_time(story: Story, *, late: int, void: bool) -> None:
    """recorded_at of at most not_after, inclusive to the microsecond."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate)
    body = story.verdict_body(U)
    story.log.tick(late)
    index = story.log.write("gate-1", body)
    assert story.voids() == ([("R2", index)] if void else [])


def test_runner_events_never_slip_in(story: Story) -> None:
    """However many rollouts of others stream in, a verdict that was judged before them holds."""
    story.until_approval(story.candidate("A"))
    story.approve(story.candidate("A"))
    body = story.verdict_body(U)
    for rollout in story.scenario.rollouts(story.candidate("B")):
        story.write(rollout)
    for reward in story.scenario.rewards(story.candidate("A")):
        story.write([reward])
    story.log.write("gate-1", body)
    assert story.voids() == []


# --- a verdict stands --------------------------------------------------------------------------------------

FALLS: dict[str, Callable[[Story], Any]] = {
    "the permissions changed": permissions,
    "its approval was withdrawn": lambda _: withdrawal("canary"),
}


@pytest.mark.parametrize("why_it_falls", FALLS)
def test_a_verdict_stands_until(story: Story, why_it_falls: str) -> None:
    """A change of what it rests on ends it, and what does not concern it does not."""
    verdict = story.until_canary_verdict(story.candidate("A"))
    story.say(noise())
    assert story.standing(verdict)
    story.say(FALLS[why_it_falls](story))
    assert not story.standing(verdict)


def test_a_verdict_falls_with_a_new_freeze(story: Story) -> None:
    """Another governing freeze ends it, even one with the same pins."""
    verdict = story.until_canary_verdict(story.candidate("A"))
    story.freeze(U, by="operator-1")
    assert not story.standing(verdict)


def test_a_verdict_falls_with_time(story: Story) -> None:
    """At the approval's last moment it stands; a microsecond later it does not."""
    verdict = story.until_canary_verdict(story.candidate("A"))
    story.log.tick(HOUR)
    assert story.standing(verdict)
    story.log.tick(1)
    assert not story.standing(verdict)


def test_one_of_two_approvals_keeps_it_standing(story: Story) -> None:
    """Two approvals were used; one of them withdrawn leaves the verdict standing."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate)
    story.approve(candidate, edit=lambda b: setattr(b, "approval", "second"))
    verdict = story.verdict(U)
    story.say(withdrawal("canary"))
    assert story.standing(verdict)


def test_a_verdict_falls_with_its_gates_key(story: Story) -> None:
    """A verdict whose key is suspect from before it stands for nothing."""
    verdict = story.until_canary_verdict(story.candidate("A"))
    story.log.revoke("gate-1", suspect_from=verdict[0])
    assert not story.standing(verdict)


# --- LIVE windows ------------------------------------------------------------------------------------------


def live_voids(story: Story) -> list[bool]:
    """Whether each LIVE window of A is void, in order."""
    return [void is not None for void in story.record(story.candidate("A")).live.values()]


@pytest.mark.parametrize("why_it_falls", FALLS)
def test_live_on_a_fallen_verdict(story: Story, why_it_falls: str) -> None:
    """LIVE on a verdict whose permissions or approval changed is void and does not count."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    story.say(FALLS[why_it_falls](story))
    story.live(candidate, verdict)
    assert live_voids(story) == [True]
    assert "WINDOW_ABSENT" in why(story.judged(U, DEFAULT))[6] or why_it_falls == "the permissions changed"


def test_live_after_a_new_freeze(story: Story) -> None:
    """LIVE on a verdict from before another freeze is void."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    story.freeze(U, by="operator-1")
    story.live(candidate, verdict)
    assert live_voids(story) == [True]


def test_live_after_the_approval_expired(story: Story) -> None:
    """LIVE may start at not_after and no microsecond later."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    story.log.tick(HOUR)
    story.live(candidate, verdict, "live-1")
    story.log.tick(1)
    story.live(candidate, verdict, "live-2")
    assert live_voids(story) == [False, True]


def edited_live(story: Story, verdict: Verdict, edit: Callable[[canary_pb2.CanaryStarted], None]) -> None:
    """A LIVE window with something else in what it says it rests on."""

    def start(started: canary_pb2.CanaryStarted) -> None:
        started.kind = canary_pb2.WINDOW_KIND_LIVE
        started.live.CopyFrom(story.live_authority(verdict))
        edit(started)

    story.window(story.candidate("A"), "live-1", start)


LIVES: dict[str, Callable[[canary_pb2.CanaryStarted], None]] = {
    "no authority at all": lambda b: b.ClearField("live"),
    "another verdict index": lambda b: setattr(b.live, "verdict_index", b.live.verdict_index - 1),
    "seen before the verdict": lambda b: setattr(b.live, "seen_size", b.live.verdict_index),
    "seen in the future": lambda b: setattr(b.live, "seen_size", b.live.seen_size + 1),
    "longer than the verdict": lambda b: setattr(b.live, "not_after", b.live.not_after + 1),
    "another resource": lambda b: setattr(b.live, "resource", "sql-reader"),
    "another scope": lambda b: setattr(b.live.scope, "segment", "de-internal"),
}


@pytest.mark.parametrize("fault", LIVES)
def test_live_without_authority(story: Story, fault: str) -> None:
    """A LIVE window names a verdict that stood, as it stood, or it is void."""
    edited_live(story, story.until_canary_verdict(story.candidate("A")), LIVES[fault])
    assert live_voids(story) == [True]


def test_live_on_a_hold(story: Story) -> None:
    """A HOLD opens no LIVE window."""
    story.until_approval(story.candidate("A"))
    story.live(story.candidate("A"), story.verdict(U))
    assert live_voids(story) == [True]


def test_live_when_something_slipped_in(story: Story) -> None:
    """Between the size at which the verdict was seen to stand and the window nothing may have changed."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    seen = story.live_authority(verdict)
    story.evaluate_again(candidate)
    edited_live(story, verdict, lambda b: b.live.CopyFrom(seen))
    assert live_voids(story) == [True]


def test_live_at_another_destination(story: Story) -> None:
    """A LIVE window runs at the pinned destination; a rehearsal's may be another."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)

    def elsewhere(phase: str, events: Any) -> Any:
        for event in events:
            if event.WhichOneof("body") == "canary_started":
                for part in event.canary_started.environment:
                    if part.target == options_pb2.ENVIRONMENT_TARGET_DESTINATION:
                        part.digest = digest("elsewhere")
        return events

    story.live(candidate, verdict, mutate=elsewhere)
    assert why(story.judged(U, DEFAULT))[6] == "FAIL ENVIRONMENT_MISMATCH"
    assert states(story.judged(U, CANARY)) == {}


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
    """Once per resource and scope, for one segment; a second one and one for `*` are void."""
    again = operator_pb2.BaselineAdopted(
        resource=story.document.resource, scope=story.scope, manifest_digest=digest("x"), reason="again"
    )
    everywhere = copied(again)
    everywhere.resource, everywhere.scope.segment = "another", "*"
    voids = [("R1", story.say(again)), ("R1", story.say(everywhere))]
    default = story.default()
    assert default is not None
    assert (default.update, default.digest) == (None, story.scenario.baseline)
    assert story.voids() == voids
    assert story.log.receipts.default("another", story.scope) is None


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
    assert story.log.receipts.moved_at(story.document.resource, story.scope) == index
    assert (story.voids(), story.log.replay.result().moves) == ([], 3)


def test_an_approver_may_ask_for_a_rollback(story: Story) -> None:
    """The approver's own message is as good as the operator's."""
    promoted = story.until_promoted(story.candidate("A"))
    asked = story.say(
        approver_pb2.ApproverRollbackRequested(
            resource=story.document.resource, scope=story.scope, promotion_index=promoted, reason="harm"
        )
    )
    story.log.write("gate-1", story.rollback(asked))
    assert story.voids() == []
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
    assert story.voids() == []
    index = story.log.write("gate-1", body, alone=False)
    assert story.voids() == [("R1", index)]


def test_promoting_again_after_a_rollback_with_nothing_new(story: Story) -> None:
    """After a rollback the old verdict is void, and approval and LIVE window from before no longer count."""
    candidate = story.candidate("A")
    verdict = story.until_default_verdict(candidate)
    story.roll_back(story.promote(verdict))
    index = story.promote(verdict)
    assert story.voids() == [("R1", index)]
    assert why(story.judged(U, DEFAULT)) == {6: "MISSING WINDOW_ABSENT", 7: "MISSING APPROVAL_NONE"}
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
    assert risk(story) == []
    story.until_promoted(story.candidate("A"))
    assert risk(story) == []
    story.say(permissions(story))
    assert risk(story) == ["STALE_PERMISSIONS"]
    story.log.revoke("judge-1", suspect_from=0)
    assert risk(story) == ["STALE_PERMISSIONS", "SUSPECT"]
    default = story.default()
    assert default is not None
    assert (default.update, story.voids()) == (U, [])


def test_a_default_is_at_risk_with_its_gates_key(story: Story) -> None:
    """A suspect verdict puts the default that rests on it at risk, and moves nothing by itself."""
    verdict = story.until_default_verdict(story.candidate("A"))
    story.promote(verdict)
    story.log.revoke("gate-1", suspect_from=verdict[0])
    assert risk(story) == ["SUSPECT"]


# --- suspect ---------------------------------------------------------------------------------------------


def test_suspect_entries_stop_counting(story: Story) -> None:
    """From `suspect_from` on nothing of a revoked key counts; before it everything does."""
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    closed = story.record(candidate).of("evaluation_closed")[-1].index
    story.log.revoke("judge-1", suspect_from=closed)
    assert why(story.judged(U))[4] == "MISSING EVALUATION_OPEN"
    assert counts(story.judged(U), 4)["scored"] == 10


def test_a_score_is_a_claim_like_any_other(story: Story) -> None:
    """A judge's event wrapped twice is one fact: what is folded is what it says."""
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    (first, *_) = story.record(candidate).of("evaluation_recorded")
    assert isinstance(first.body, judge_pb2.EvaluationRecorded)
    story.write([wrap(copied(first.body), story.log.new_id(), story.log.clock)])
    assert why(story.judged(U)) == {}
