"""What an attacker tried: each attempt by name, and what came of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clients.demo.scenario import digest
from gate.gather import gather
from gate.policy import parse_policy
from ledger.claims import UNREPLAYABLE
from ledger.errors import CannotTellError, FormatError
from ledger.receipt import Receipts
from ledger.v1 import gate_pb2, judge_pb2, operator_pb2, options_pb2, root_pb2, runner_pb2, trainer_pb2
from tests.gate_tests.editing import change, copied
from tests.memory import CANARY, DEFAULT, SECOND, Story, counts, principal, reasons, states

U = "update-A"


def told(story: Story) -> Story:
    """A's story up to the point where somebody may approve."""
    story.until_approval(story.candidate("A"))
    return story


def test_many_candidates_do_not_stall_the_fold(story: Story) -> None:
    """A trainer that registers candidate after candidate under a standing verdict costs linear time."""
    told(story)
    story.approve(story.candidate("A"))
    story.verdict(U)
    second = trainer_pb2.CandidateRegistered(update=U, parent_digest=story.scenario.baseline)
    spent: list[float] = []
    for number in range(600):
        body = copied(second, manifest_digest=digest(f"another/{number}"))
        started = time.process_time()
        story.log.write("trainer-1", body)
        spent.append(time.process_time() - started)
    assert sum(spent[-100:]) < 4 * sum(spent[:100]) + 0.05
    assert "FAIL" == states(story.judged(U))[1]


@pytest.mark.parametrize("score", [1e300, -1e300, 5e-324])
def test_an_extreme_score_is_counted_and_not_fatal(story: Story, score: float) -> None:
    """Scores have no bound: the gain is compared exactly, and its count is shown as the greatest number."""

    def extreme(body: Any) -> None:
        if body.subject == judge_pb2.SUBJECT_CANDIDATE:
            body.scores[0].score = score

    story.until_approval(story.candidate("A"), change("evaluation_recorded", extreme, None))
    gain = counts(story.judged(U), 4)["gain_millionths"]
    assert -(2**63) < gain < 2**63


def test_a_part_number_of_billions_is_missing_parts_and_no_memory(story: Story) -> None:
    """Parts are counted, never laid out."""

    def many(body: Any) -> None:
        body.part.of = 2**32 - 1

    story.until_approval(story.candidate("A"), change("evaluation_recorded", many, None))
    assert ["PART_MISSING"] == reasons(story.judged(U), 4)


def test_a_close_that_names_fewer_parts_than_they_do_hides_nothing(story: Story) -> None:
    """Parts say 1 of 3, the close says 1: PART_MISSING."""

    def of_three(body: Any) -> None:
        body.part.of = 3

    story.until_approval(story.candidate("A"), change("evaluation_recorded", of_three, None))
    assert ("MISSING", ["PART_MISSING"]) == (states(story.judged(U))[4], reasons(story.judged(U), 4))


def test_a_rollout_id_claimed_first_by_somebody_else_is_a_conflict(story: Story) -> None:
    """A failing rollout does not vanish because another runner claimed its id before."""
    candidate, s = story.candidate("A"), story.scenario
    story.write(s.proposal(candidate))
    story.freeze(U)
    failing = next(s.rollouts(candidate))[0].rollout_enqueued
    before = runner_pb2.RolloutEnqueued(
        rollout=failing.rollout, workflow=failing.workflow, workflow_version=1, mode=runner_pb2.MODE_VAL
    )
    story.log.principals["runner-2"] = principal("runner-2", options_pb2.ROLE_RUNNER)
    story.say(before, by="runner-2")
    story.say(failing)
    judged = story.judged(U)
    assert (
        1,
        "ERROR",
        ["CONFLICT"],
    ) == (counts(judged, 2)["rollouts"], states(judged)[2], reasons(judged, 3))
    index = story.log.receipts.update(U).rollouts[failing.rollout].enqueued[0].index
    assert (index, "CONFLICT") in gather(story.log.receipts, U, CANARY, story.log.size).anomalies


def test_a_verdict_that_names_another_pointer_is_void_and_not_unreplayable(story: Story) -> None:
    """A gate cannot hide later false moves behind rules of another scope that nobody here knows."""
    told(story)
    judgement = story.judged(U)
    body = gate_pb2.VerdictIssued(
        update="update-of-nobody",
        step=CANARY,
        verdict=gate_pb2.VERDICT_HOLD,
        resource=story.document.resource,
        scope=story.scope,
        log_size=story.log.size,
        log_root=story.log.tree.root(),
        evidence_digest=judgement.evidence_digest,
        policy_digest=judgement.policy_digest,
        rules=1,
        findings=judgement.findings,
        findings_digest=judgement.findings_digest,
    )
    index = story.say(body)
    assert [(void.index, void.reason != UNREPLAYABLE) for void in story.log.receipts.voids] == [(index, True)]
    assert not story.log.receipts.unknown_pointers


def test_another_trainer_does_not_take_an_update_over(story: Story) -> None:
    """When the proposer's key becomes suspect, a later proposal by somebody else takes nobody's place."""
    told(story)
    proposal = story.scenario.proposal(story.candidate("A"))[0].update_proposed
    story.say(copied(proposal, algorithm_config_digest=digest("mine")), by="trainer-2")
    manifest = digest("trainer-2's")
    story.say(
        trainer_pb2.CandidateRegistered(
            update=U, manifest_digest=manifest, parent_digest=story.scenario.baseline
        ),
        by="trainer-2",
    )
    story.log.revoke("trainer-1", suspect_from=1)
    judged = story.judged(U)
    assert judged.candidate_digest is None
    assert ["NO_CANDIDATE", "TRAINING_OPEN"] == reasons(judged, 1)


def test_a_freeze_that_repeats_the_trainers_choices_differently_is_a_conflict(story: Story) -> None:
    """Pins are the proposal's: one fact claimed twice, differently."""

    def other(body: Any) -> None:
        body.algorithm_config_digest = digest("another configuration")

    story.until_approval(story.candidate("A"), change("update_frozen", other, None))
    assert ("ERROR", ["CONFLICT"]) == (states(story.judged(U))[1], reasons(story.judged(U), 1))


def test_training_told_before_the_freeze_is_frozen_late(story: Story) -> None:
    """TrainingProgressed before the first freeze is training before the identity was fixed."""
    candidate = story.candidate("A")
    story.write(story.scenario.proposal(candidate))
    story.say(trainer_pb2.TrainingProgressed(update=U, step=1))
    story.freeze(U)
    assert "FROZEN_LATE" in reasons(story.judged(U), 1)


def test_a_gate_of_the_trainers_controller_issues_no_verdict(story: Story) -> None:
    """Law 8: who made evidence does not judge it, whatever key it uses."""
    told(story)
    trainer = story.log.principals["trainer-1"]
    story.log.principals["gate-2"] = principal("gate-2", options_pb2.ROLE_GATE, trainer.controller)
    judgement = story.judged(U)
    _, body = story.verdict(U)
    again = copied(body, log_size=story.log.size, log_root=story.log.tree.root())
    index = story.say(again, by="gate-2")
    void = story.log.receipts.voids[-1]
    assert (void.index, "made none of the evidence" in void.message) == (index, True)
    assert judgement.verdict == gate_pb2.VERDICT_HOLD


def test_who_is_no_operator_any_more_asks_for_no_freeze(story: Story) -> None:
    """R3: a re-freeze on request of an operator whose key was revoked before."""
    told(story)
    pins = story.log.receipts.update(U).of("update_frozen")[-1].body
    story.say(root_pb2.KeyRevoked(vkey=str(story.log.principals["operator-1"].key), reason="left"))
    index = story.say(copied(pins, revision=2, requested_by="operator-1"))
    assert [(void.step, void.index) for void in story.log.replay.all_faults()] == [("R3", index)]


def test_a_live_window_falls_with_the_key_of_its_verdict(story: Story) -> None:
    """A canary verdict by a gate key that became suspect from before it carries no LIVE window."""
    candidate = story.candidate("A")
    story.until_default_verdict(candidate)
    assert 1 == counts(story.judged(U, DEFAULT), 6)["live_windows"]
    verdict = story.log.receipts.update(U).verdicts[0]
    story.log.revoke("gate-1", suspect_from=verdict.fact.index)
    assert 0 == counts(story.judged(U, DEFAULT), 6)["live_windows"]


@pytest.mark.parametrize("outcome", [0, 99])
def test_an_outcome_that_nobody_knows_is_an_error(story: Story, outcome: int) -> None:
    """A log that skipped the door, or a newer release's word: TASK_ERROR, never VERIFIED."""
    told(story)
    window = story.log.receipts.update(U).of("canary_task_recorded")[0]
    window.body.outcome = outcome
    assert ("ERROR", ["TASK_ERROR"]) == (states(story.judged(U))[6], reasons(story.judged(U), 6))


@pytest.mark.parametrize("status", [0, 99, -1])
def test_a_status_that_nobody_knows_is_lost(story: Story, status: int) -> None:
    """A log that skipped the door does not stop the fold."""
    told(story)
    rollout = next(iter(story.log.receipts.update(U).rollouts.values()))
    rollout.ended[0].body.status = status
    assert 1 == counts(story.judged(U), 2)["lost"]


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_unscorable(story: Story, score: float) -> None:
    """A log that skipped the door: UNSCORABLE, for the bare comparison with NaN is never true or false."""
    told(story)
    evaluation = story.log.receipts.update(U).of("evaluation_recorded")[0]
    evaluation.body.scores[0].score = score
    assert "UNSCORABLE" in reasons(story.judged(U), 4)


def test_a_wrong_approver_is_forgotten_once_the_approval_lapses(story: Story) -> None:
    """APPROVER_NOT_NAMED fails while the approval is in force; lapsed or for other evidence it is missing."""
    candidate = story.candidate("A")
    told(story)
    story.approve(candidate, by="approver-2")
    assert ("FAIL", ["APPROVER_NOT_NAMED"]) == (states(story.judged(U))[7], reasons(story.judged(U), 7))
    story.log.tick(candidate.approval.valid_for_seconds * SECOND + 1)
    story.say(
        runner_pb2.RolloutEnqueued(rollout="r", workflow="w", workflow_version=1, mode=runner_pb2.MODE_VAL)
    )
    assert ("MISSING", ["APPROVAL_EXPIRED"]) == (states(story.judged(U))[7], reasons(story.judged(U), 7))


@pytest.mark.parametrize("margin", ["1e-99999999999999999999", "1e99999999999999999999"])
def test_a_margin_out_of_range_is_a_bad_policy(story: Story, margin: str) -> None:
    """No arithmetic error leaves the parser."""
    text = story.document.policy_bytes.replace(b'"margin": "0"', f'"margin": {margin}'.encode())
    assert text != story.document.policy_bytes
    with pytest.raises((FormatError, CannotTellError)):
        parse_policy(text)


def test_parts_of_another_number_of_parts_block_no_publication(story: Story) -> None:
    """A stray part `1 of 9` of a digest does not keep its real two parts from being published."""

    def part(number: int, of: int) -> operator_pb2.SnapshotPublished:
        return operator_pb2.SnapshotPublished(
            scope=story.scope,
            digest=digest("in parts"),
            purpose=operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT,
            part=options_pb2.Part(number=number, of=of),
            cases=[operator_pb2.Case(id=f"case-{number}-{of}")],
        )

    for number, of in ((1, 9), (1, 2), (2, 2)):
        story.say(part(number, of))
    receipts: Receipts = story.log.receipts
    found = receipts.registry.in_force("holdout", story.scope, receipts.size)
    assert found is not None
    assert ["case-1-2", "case-2-2"] == [case.id for fact in found.facts for case in fact.body.cases]
