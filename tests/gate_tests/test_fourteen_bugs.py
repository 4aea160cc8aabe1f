"""Fourteen bugs that others shipped; ours must not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from clients.demo.scenario import digest
from ledger.admission import admit
from ledger.errors import FormatError, VerificationError
from ledger.touches import rests_on
from ledger.v1 import canary_pb2, judge_pb2, operator_pb2, options_pb2, runner_pb2
from tests.forge import ROOT, Forge, numbered, opened, verify
from tests.gate_tests.editing import both, change, copied, drop, event_of
from tests.gate_tests.rows import Row, approved, candidate_a, check, play
from tests.memory import (
    DEFAULT,
    HOLD,
    HUMAN,
    PRINCIPALS,
    SECOND,
    MemoryLog,
    Story,
    counts,
    demo_document,
    principal,
    small,
    states,
    why,
)

U = "update-A"


def test_bug_01_two_defaults(story: Story) -> None:
    """A second version also ends as "production": a pointer has one value, and a promotion replaces it."""
    story.until_promoted(story.candidate("A"))
    story.say(
        operator_pb2.BaselineAdopted(
            resource=story.document.resource, scope=story.scope, manifest_digest=digest("x"), reason="too"
        )
    )
    pointers = story.log.receipts.pointers.all()
    assert [(key[0], move.update) for key, move in pointers.items()] == [(story.document.resource, U)]
    assert 1 == len(story.voids())


def test_bug_02_two_promoters(story: Story) -> None:
    """Two promoters with the same expectation: their conditions meet, and the second one is void."""
    verdict = story.until_default_verdict(story.candidate("A"))
    bodies = [story.promotion(verdict), story.promotion(verdict)]
    conditions = [rests_on(event_of(body)) for body in bodies]
    assert conditions[0] is not None
    assert conditions[0] == conditions[1]
    first, second = (story.log.write("gate-1", body) for body in bodies)
    touched = {key: story.log.receipts.touched.get(key, -1) for key in conditions[0].keys}
    assert max(touched.values()) == second
    assert first >= conditions[0].since
    default = story.default()
    assert default is not None
    assert (default.index, story.voids()) == (first, [("R1", second)])


def test_bug_03_old_analysis_reused(story: Story) -> None:
    """A new promotion reuses the old analysis run: evidence and verdicts serve the update they name."""
    a, b = story.candidate("A"), story.candidate("B")
    verdict = story.until_default_verdict(a)
    story.until_evidence(b, drop("evaluation_recorded", None))
    assert "MISSING" == states(story.judged("update-B"))[4]
    body = copied(story.promotion(verdict), update="update-B", to_digest=story.scenario.candidate_digest(b))
    index = story.log.write("gate-1", body)
    assert story.voids() == [("R1", index)]


def test_bug_04_failed_reverification(story: Story) -> None:
    """A failed re-verification stays verified: the window that failed is read with the others, and holds."""
    candidate = story.candidate("A")
    verdict = story.until_default_verdict(candidate)

    def failed(phase: str, events: Any) -> Any:
        return change(
            "canary_task_recorded", lambda b: setattr(b, "outcome", canary_pb2.TASK_OUTCOME_NOT_VERIFIED)
        )(phase, events)

    story.window(candidate, "window-again", mutate=failed)
    assert "FAIL NOT_VERIFIED" == why(story.judged(U, DEFAULT))[6]
    index = story.promote(verdict)
    assert story.voids() == [("R1", index)]


def test_bug_05_results_of_another_model() -> None:
    """Cached results of another model count: scores and windows name the digest of their subject."""
    check(
        Row(
            "",
            {4: "MISSING EVALUATION_ABSENT", 5: "MISSING EVALUATION_ABSENT"},
            change(
                "evaluation_recorded",
                lambda b: setattr(b, "subject_digest", digest("last week's candidate")),
                where=lambda b: b.subject == judge_pb2.SUBJECT_CANDIDATE,
            ),
        )
    )


def test_bug_06_all_errors() -> None:
    """All measurements Error, phase Successful: an error is ERROR, and holds."""
    _, judgement = play(Row("", {}, document=candidate_a(canary={"tasks": 2, "verified": 0, "errors": 2})))
    assert (judgement.verdict, why(judgement)) == (HOLD, {6: "ERROR TASK_ERROR"})
    assert 0 == counts(judgement, 6)["verified"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bug_07_nan_passes(value: float) -> None:
    """NaN passes a relative threshold: no number that is not finite enters the log."""
    score = judge_pb2.CaseScore(case_id="joins-01", trial=0, score=value)
    story = Story(demo_document(small))
    body = story.scenario.evaluations(story.candidate("A"))[0].evaluation_recorded
    body.scores.append(score)
    with pytest.raises(FormatError) as caught:
        admit(event_of(body).SerializeToString())
    assert "NONFINITE_VALUE" == caught.value.reason


def test_bug_07_nulls_pass() -> None:
    """A gate fed nulls answers pass: a score that is not there is MISSING, and never a pass."""

    def nulls(body: Any) -> None:
        for score in body.scores:
            score.unscorable = "null"

    _, judgement = play(Row("", {}, change("evaluation_recorded", nulls, None)))
    assert judgement.verdict == HOLD
    assert {4: "MISSING", 5: "MISSING"} == states(judgement)


def test_bug_08_errors_leave_the_denominator() -> None:
    """1 success + 119 errors = 100 %: what did not complete is shown by its end and never makes a quorum."""
    lost = both(
        *(
            change("rollout_ended", lambda b: setattr(b, "status", runner_pb2.ROLLOUT_STATUS_LOST), nth)
            for nth in range(1, 6)
        )
    )
    _, judgement = play(Row("", {}, lost))
    assert {2: "FAIL TOO_FEW_COMPLETED"} == why(judgement)
    shown = counts(judgement, 2)
    assert (6, 1, 5) == (shown["rollouts"], shown["completed"], shown["lost"])


def test_bug_09_parent_deleted(story: Story) -> None:
    """The parent artifact was deleted under the registered model: the last rehearsal says so, and holds."""
    candidate = story.candidate("A")
    verdict = story.until_default_verdict(candidate)
    (*_, back) = story.record(candidate).of("rollback_rehearsed")
    story.say(copied(back.body, resolved=False, loaded=False, served=False))
    assert "FAIL NOT_LOADED,NOT_RESOLVED,NOT_SERVED" == why(story.judged(U, DEFAULT))[7]
    index = story.promote(verdict)
    assert story.voids() == [("R1", index)]


def test_bug_10_second_identity() -> None:
    """A reviewer clears its own work through a second identity: independence is judged by controller."""
    owner = PRINCIPALS["trainer-1"].controller
    second = principal("approver-1", options_pb2.ROLE_APPROVER, owner, approver_kind=HUMAN)
    check(Row("", {7: "FAIL APPROVER_NOT_INDEPENDENT"}, principals={"approver-1": second}))


def test_bug_11_approval_for_another_plan(story: Story) -> None:
    """An approval given for one plan is used for another: it names the evidence that it was given for."""
    a, b = story.candidate("A"), story.candidate("B")
    story.until_approval(a)
    story.until_approval(b)
    story.approve(a, edit=lambda body: setattr(body, "update", "update-B"))
    assert {7: "MISSING APPROVAL_OTHER_DIGEST"} == why(story.judged("update-B"))
    assert {7: "MISSING APPROVAL_NONE"} == why(story.judged(U))


EMPTY: dict[str, tuple[Any, dict[int, str]]] = {
    "no rollout": (drop("rollout_enqueued", None), {2: "MISSING WINDOW_EMPTY", 3: "MISSING WINDOW_EMPTY"}),
    "no span family": (
        change("workflow_declared", lambda b: b.ClearField("span_families")),
        {2: "MISSING PIN_ABSENT"},
    ),
    "no protected case": (
        change("protected_set_published", lambda b: b.ClearField("families")),
        {5: "MISSING NO_PROTECTED_CASE"},
    ),
    "no canary task": (
        both(
            drop("canary_task_recorded", None),
            change("canary_started", lambda b: b.ClearField("tasks")),
            change("canary_ended", lambda b: b.ClearField("tasks")),
        ),
        {6: "FAIL TOO_FEW_TASKS"},
    ),
}


@pytest.mark.parametrize("what", EMPTY)
def test_bug_12_empty_objectives(what: str) -> None:
    """Empty objectives score 100: nothing to look at is never a pass."""
    mutate, expected = EMPTY[what]
    check(Row(what, expected, mutate))


@pytest.mark.parametrize("occurred", [0, 253_402_300_799_999_999])
def test_bug_13_clock_skew(occurred: int) -> None:
    """An author's clock decides nothing: not order, not freshness, not expiry."""
    story = Story(demo_document(small), MemoryLog())

    def skewed(phase: str, events: Any) -> Any:
        for event in events:
            event.occurred_at = occurred
        return events

    story.setup(skewed)
    candidate = story.candidate("A")
    story.until_approval(candidate, skewed)
    approved(story, candidate)
    assert {} == why(story.judged(U))
    story.log.tick(3600 * SECOND + 1)
    story.write([event_of(operator_pb2.BlobErased(digest=digest("x"), reason="skewed"))])
    assert {7: "MISSING APPROVAL_EXPIRED"} == why(story.judged(U))


@pytest.mark.parametrize("recorded_at", [0, 253_402_300_799_000_000])
def test_bug_13_verification_knows_no_clock(recorded_at: int) -> None:
    """A log recorded in another age verifies, now and then."""
    forge = Forge()
    forge.add(ROOT, opened(), recorded_at=recorded_at)
    assert 1 == forge.verify().size


def test_bug_14_tail_cut() -> None:
    """An audit log verifies after its tail was cut: its checkpoint, or a remembered one, detects it."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(1))
    forge.add("runner", numbered(2))
    remembered = forge.checkpoint()
    cut = forge.export()[: -len(forge.entries[-1]) - 2]
    for export, memory in ((cut, None), (forge.export(size=3), remembered)):
        with pytest.raises(VerificationError) as caught:
            verify(export, forge.trust, remembered=memory)
        assert caught.value.step in ("V5", "V7")


def test_bug_14_a_verdict_names_its_prefix(story: Story) -> None:
    """A verdict names size and root of the log it was made from: made from a log cut or grown, it is void."""
    story.until_approval(story.candidate("A"))
    story.approve(story.candidate("A"))
    body = story.verdict_body(U)
    body.log_root = story.log.tree.root(story.log.size - 1)
    index = story.log.write("gate-1", body)
    assert story.voids() == [("R2", index)]
