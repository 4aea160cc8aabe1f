"""Verdicts and LIVE windows: when they hold and stand, and every way in which they do not.

Source: checks.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clients.demo.scenario import digest, wrap
from ledger.standing import why_fallen
from ledger.v1 import approver_pb2, canary_pb2, gate_pb2, judge_pb2, operator_pb2, options_pb2
from tests.gate_tests.editing import copied
from tests.memory import (
    CANARY,
    DEFAULT,
    HOLD,
    SECOND,
    TO_CANARY,
    TO_DEFAULT,
    Story,
    counts,
    principal,
    states,
    why,
)

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
    assert {6: "MISSING", 7: "MISSING"} == states(story.judged(U, DEFAULT))
    story.live(candidate, canary)
    assert {7: "MISSING APPROVAL_NONE"} == why(story.judged(U, DEFAULT))
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
    assert [] == story.voids()
    replayed = story.log.replay.result()
    assert (2, 2, 1) == (replayed.verdicts, replayed.moves, replayed.freezes)
    assert receipts.pointers.moved_at(story.document.resource, story.scope) == promoted


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
    assert ([], False) == (story.voids(), story.standing(verdict))
    assert ["APPROVAL_NONE"] == list(verdict[1].findings[6].reasons)


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
    assert why_fallen(story.log.receipts, record, story.log.clock) is not None
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
    assert [] == story.voids()


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
    assert [True] == live_voids(story)
    assert "WINDOW_ABSENT" in why(story.judged(U, DEFAULT))[6] or why_it_falls == "the permissions changed"


def test_live_after_a_new_freeze(story: Story) -> None:
    """LIVE on a verdict from before another freeze is void."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    story.freeze(U, by="operator-1")
    story.live(candidate, verdict)
    assert [True] == live_voids(story)


def test_live_after_the_approval_expired(story: Story) -> None:
    """LIVE may start at not_after and no microsecond later."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    story.log.tick(HOUR)
    story.live(candidate, verdict, "live-1")
    story.log.tick(1)
    story.live(candidate, verdict, "live-2")
    assert [False, True] == live_voids(story)


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
    assert [True] == live_voids(story)


def test_live_on_a_hold(story: Story) -> None:
    """A HOLD opens no LIVE window."""
    story.until_approval(story.candidate("A"))
    story.live(story.candidate("A"), story.verdict(U))
    assert [True] == live_voids(story)


def test_live_when_something_slipped_in(story: Story) -> None:
    """Between the size at which the verdict was seen to stand and the window nothing may have changed."""
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    seen = story.live_authority(verdict)
    story.evaluate_again(candidate)
    edited_live(story, verdict, lambda b: b.live.CopyFrom(seen))
    assert [True] == live_voids(story)


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
    assert "FAIL ENVIRONMENT_MISMATCH" == why(story.judged(U, DEFAULT))[6]
    assert {} == states(story.judged(U, CANARY))


# --- suspect ---------------------------------------------------------------------------------------------


def test_suspect_entries_stop_counting(story: Story) -> None:
    """From `suspect_from` on nothing of a revoked key counts; before it everything does."""
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    closed = story.record(candidate).of("evaluation_closed")[-1].index
    story.log.revoke("judge-1", suspect_from=closed)
    assert "MISSING EVALUATION_OPEN" == why(story.judged(U))[4]
    assert 10 == counts(story.judged(U), 4)["scored"]


def test_a_suspect_enqueueing_lends_its_rollout_to_nobody(story: Story) -> None:
    """A rollout id that two claim is a CONFLICT for both, for the second also when the first is suspect."""
    a, b, s = story.candidate("A"), story.candidate("B"), story.scenario
    for candidate in (a, b):
        story.write(s.proposal(candidate))
        story.freeze(s.update_id(candidate))
    enqueued = next(s.rollouts(a))[0].rollout_enqueued
    story.log.principals["runner-2"] = principal("runner-2", options_pb2.ROLE_RUNNER)
    at = story.say(enqueued, by="runner-2")
    story.say(copied(enqueued, update="update-B"))
    assert [1, 1] == [counts(story.judged(u), 2)["rollouts"] for u in (U, "update-B")]
    assert ["ERROR", "ERROR"] == [states(story.judged(u))[2] for u in (U, "update-B")]
    story.log.revoke("runner-2", suspect_from=at)
    assert [0, 1] == [counts(story.judged(u), 2)["rollouts"] for u in (U, "update-B")]
    assert "ERROR" == states(story.judged("update-B"))[2]


def test_a_score_is_a_claim_like_any_other(story: Story) -> None:
    """A judge's event wrapped twice is one fact: what is folded is what it says."""
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    (first, *_) = story.record(candidate).of("evaluation_recorded")
    assert isinstance(first.body, judge_pb2.EvaluationRecorded)
    story.write([wrap(copied(first.body), story.log.new_id(), story.log.clock)])
    assert {} == why(story.judged(U))
