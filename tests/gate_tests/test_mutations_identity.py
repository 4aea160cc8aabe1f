"""One-fact mutations of candidate A that check 1 reads. Source: checks.md section 3."""

from __future__ import annotations

from typing import Any

import pytest

from clients.demo.scenario import Events, digest
from ledger.v1 import gate_pb2, operator_pb2, options_pb2, trainer_pb2
from tests.gate_tests.editing import (
    authored,
    both,
    change,
    copied,
    drop,
    event_of,
    first,
    insert,
    last,
    moved,
)
from tests.gate_tests.rows import Row, approved, check, each, play
from tests.memory import (
    PRINCIPALS,
    Authored,
    Mutation,
    Story,
    counts,
    demo_document,
    principal,
    small,
    why,
)

U = "update-A"
PAUSE = gate_pb2.TrainingPaused(update=U, cause="COVERAGE", message="coverage fell")
RESUME = operator_pb2.ResumeRequested(update=U, reason="looked into it")
STEP = trainer_pb2.TrainingProgressed(update=U, step=1)
NO_SUBJECT = {
    4: "MISSING EVALUATION_ABSENT",
    5: "MISSING EVALUATION_ABSENT",
    6: "MISSING WINDOW_ABSENT",
    7: "MISSING REHEARSAL_ABSENT",
}


def started_before_the_freeze(phase: str, events: Events) -> list[Authored]:
    """TrainingStarted one entry before UpdateFrozen."""
    if phase == "freeze":
        return [event_of(trainer_pb2.TrainingStarted(update=U)), *events]
    return [] if phase == "training_started" else list(events)


def frozen_after_two_rollouts() -> Mutation:
    """Two rollouts of the update are enqueued and ended before its first freeze."""
    freeze: Events = []

    def mutate(phase: str, events: Events) -> list[Authored]:
        if phase == "freeze":
            freeze.extend(events)
        if phase in ("freeze", "training_started"):
            return []
        if phase != "rollouts":
            return list(events)
        ends = [at for at, event in enumerate(events) if event.WhichOneof("body") == "rollout_ended"]
        started = event_of(trainer_pb2.TrainingStarted(update=U))
        return [*events[: ends[1] + 1], *freeze, started, *events[ends[1] + 1 :]]

    return mutate


def pinned(raw: dict[str, Any]) -> None:
    """The policy names two judges and two canaries."""
    raw["policy"]["principals"] |= {"judges": ["judge-1", "judge-2"], "canaries": ["canary-1", "canary-2"]}


def same_controller(name: str, other: str) -> dict[str, Any]:
    """`name` is accounted for by the controller of `other`."""
    grant = PRINCIPALS[name]
    more = {} if grant.approver_kind is None else {"approver_kind": grant.approver_kind}
    return {name: principal(name, grant.role, PRINCIPALS[other].controller, **more)}


ROWS = (
    Row("nothing changed", {}),
    Row("TrainingStarted absent", {1: "MISSING TRAINING_OPEN"}, drop("training_started")),
    Row("TrainingEnded absent", {1: "MISSING TRAINING_OPEN"}, drop("training_ended")),
    Row(
        "TrainingEnded before TrainingStarted",
        {1: "MISSING TRAINING_OPEN"},
        both(drop("training_started"), last("training_ended", trainer_pb2.TrainingStarted(update=U))),
    ),
    Row("candidate absent", {1: "MISSING NO_CANDIDATE"} | NO_SUBJECT, drop("candidate_registered")),
    Row(
        "second candidate",
        {1: "FAIL SECOND_CANDIDATE"},
        insert("candidate_registered", lambda b: copied(b, manifest_digest=digest("second"))),
    ),
    Row("candidate told twice, equally", {}, insert("candidate_registered", copied)),
    Row(
        "candidate before TrainingEnded",
        {1: "FAIL CANDIDATE_EARLY"},
        moved("training_ended", "training_ended", at_end=True),
    ),
    Row(
        "candidate of another parent",
        {1: "FAIL PARENT_MISMATCH"},
        change("candidate_registered", lambda b: setattr(b, "parent_digest", digest("other"))),
    ),
    Row("frozen after TrainingStarted", {1: "FAIL FROZEN_LATE"}, started_before_the_freeze),
    Row(
        "rollouts before the freeze are outside the window",
        {2: "FAIL TOO_FEW_COMPLETED"},
        frozen_after_two_rollouts(),
    ),
    Row(
        "TrainingStarted told twice, differently",
        {1: "ERROR CONFLICT"},
        insert("training_started", lambda b: copied(b, weights_version=7)),
    ),
    Row("TrainingStarted told twice, equally", {}, insert("training_started", copied)),
    Row(
        "TrainingEnded told twice, differently",
        {1: "ERROR CONFLICT"},
        insert("training_ended", lambda b: copied(b, steps=41)),
    ),
    Row(
        "proposed twice, differently",
        {1: "ERROR CONFLICT"},
        insert("update_proposed", lambda b: copied(b, code_revision="0000")),
    ),
    Row(
        "a step told twice after a restart, differently",
        {},
        last("training_started", STEP, trainer_pb2.TrainingProgressed(update=U, step=1, weights_version=2)),
    ),
    Row("paused before the candidate", {1: "FAIL TRAINED_WHILE_PAUSED"}, last("rollouts", PAUSE)),
    Row("trained while paused", {1: "FAIL TRAINED_WHILE_PAUSED"}, last("rollouts", STEP, PAUSE, STEP)),
    Row("paused after everything", {}, last("canary", PAUSE)),
    Row(
        "another trainer registers a candidate",
        {},
        insert("candidate_registered", lambda b: copied(b, manifest_digest=digest("x")), by="trainer-2"),
    ),
    Row(
        "another trainer registers a candidate first",
        {},
        insert(
            "candidate_registered",
            lambda b: copied(b, manifest_digest=digest("x")),
            by="trainer-2",
            before=True,
        ),
    ),
    Row(
        "another trainer ends the training",
        {},
        first("rollouts", trainer_pb2.TrainingEnded(update=U, steps=1), by="trainer-2"),
    ),
    Row(
        "only another trainer registers a candidate",
        {1: "MISSING NO_CANDIDATE"} | NO_SUBJECT,
        authored("candidate_registered", "trainer-2"),
    ),
    Row(
        "another trainer proposes the same update later",
        {},
        insert("update_proposed", lambda b: copied(b, code_revision="0000"), by="trainer-2"),
    ),
    Row(
        "judge and trainer share a controller",
        {1: "FAIL SHARED_CONTROLLER"},
        principals=same_controller("judge-1", "trainer-1"),
    ),
    Row(
        "judge and runner share a controller",
        {1: "FAIL SHARED_CONTROLLER"},
        principals=same_controller("judge-1", "runner-1"),
    ),
    Row(
        "canary and runner share a controller",
        {1: "FAIL SHARED_CONTROLLER"},
        principals=same_controller("canary-1", "runner-1"),
    ),
    Row(
        "canary and judge share a controller",
        {1: "FAIL SHARED_CONTROLLER"},
        principals=same_controller("canary-1", "judge-1"),
    ),
    Row(
        "gate and trainer share a controller",
        {1: "FAIL SHARED_CONTROLLER"},
        principals=same_controller("gate-1", "trainer-1"),
    ),
    Row(
        "gate and canary share a controller",
        {1: "FAIL SHARED_CONTROLLER"},
        principals=same_controller("gate-1", "canary-1"),
    ),
    Row(
        "runner and trainer share a controller: both are the producer",
        {},
        principals=same_controller("runner-1", "trainer-1"),
    ),
    *(
        Row(
            f"{name} is written by a second runner whose controller judges",
            {1: "FAIL SHARED_CONTROLLER"},
            authored(name, "runner-2"),
            principals={
                "runner-2": principal("runner-2", options_pb2.ROLE_RUNNER, PRINCIPALS["judge-1"].controller)
            },
        )
        for name in ("rollout_enqueued", "attempt_started", "span_recorded", "attempt_ended", "rollout_ended")
    ),
    *(
        Row(
            f"{name} is written by a second judge or canary whose controller trains",
            {1: "FAIL SHARED_CONTROLLER"},
            authored(name, by),
            pinned,
            {by: principal(by, PRINCIPALS[by].role, PRINCIPALS["trainer-1"].controller)},
        )
        for name, by in (
            ("reward_recorded", "judge-2"),
            ("evaluation_closed", "judge-2"),
            ("canary_task_recorded", "canary-2"),
            ("canary_ended", "canary-2"),
            ("rollback_rehearsed", "canary-2"),
        )
    ),
    Row(
        "a judge who wrote nothing shares a controller",
        {},
        principals=same_controller("judge-2", "trainer-1"),
    ),
)


@each(ROWS)
def test_identity(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


PINS: dict[str, dict[int, str]] = {
    "resource": {},
    "kind": {},
    "parent_digest": {
        4: "MISSING EVALUATION_ABSENT",
        5: "MISSING EVALUATION_ABSENT",
        7: "MISSING REHEARSAL_ABSENT",
    },
    "training_snapshot_digest": {},
    "algorithm_config_digest": {},
    "code_revision": {},
    "workflow_version": {2: "MISSING PIN_ABSENT"},
    "evaluator_digest": {
        4: "MISSING EVALUATION_ABSENT,PIN_ABSENT",
        5: "MISSING EVALUATION_ABSENT,PIN_ABSENT",
    },
    "holdout_digest": {
        4: "MISSING CASE_UNSCORED,EVALUATION_ABSENT,PIN_ABSENT",
        5: "MISSING EVALUATION_ABSENT",
    },
    "protected_set_digest": {5: "MISSING NO_PROTECTED_CASE,PIN_ABSENT"},
    "policy_digest": {
        2: "MISSING PIN_ABSENT",
        3: "MISSING PIN_ABSENT",
        4: "MISSING PIN_ABSENT",
        5: "MISSING PIN_ABSENT",
        6: "MISSING PIN_ABSENT",
        7: "MISSING APPROVAL_OTHER_DIGEST,PIN_ABSENT",
    },
    "tool_contract_digest": {6: "MISSING PIN_ABSENT"},
    "retry_budget": {3: "MISSING BUDGET_ABSENT"},
    "judges": {4: "MISSING EVALUATION_ABSENT", 5: "MISSING EVALUATION_ABSENT"},
    "canaries": {6: "MISSING WINDOW_ABSENT", 7: "MISSING REHEARSAL_ABSENT"},
    "canary_approvers": {7: "FAIL APPROVER_NOT_NAMED"},
    "default_approvers": {},
}


@pytest.mark.parametrize("pin", PINS)
def test_each_pin_absent(pin: str) -> None:
    """A freeze that lacks a pin: check 1 misses it, and so does every check that would have read it."""
    row = Row(
        pin, {1: "MISSING PIN_ABSENT"} | PINS[pin], change("update_frozen", lambda b: b.ClearField(pin))
    )
    story, judgement = play(row)
    assert row.expected == why(judgement)
    assert 1 == counts(judgement, 1)["pins_absent"]
    assert [("R3", "FREEZE_DIFFERS")] == [(void.step, void.reason) for void in story.log.replay.faults]


@pytest.mark.parametrize("target", [n for n in options_pb2.EnvironmentTarget.values() if n])
def test_each_environment_target_absent(target: int) -> None:
    """An environment target that is not pinned is missing to check 1, and to checks that would compare it."""

    def unpin(body: Any) -> None:
        kept = [part for part in body.environment if part.target != target]
        del body.environment[:]
        body.environment.extend(kept)

    expected = {1: "MISSING PIN_ABSENT"}
    if target != options_pb2.ENVIRONMENT_TARGET_DESTINATION:  # a rehearsal's destination is sandboxed
        expected[6] = "MISSING PIN_ABSENT"
    if target == options_pb2.ENVIRONMENT_TARGET_HARNESS:
        expected |= {4: "MISSING EVALUATION_ABSENT", 5: "MISSING EVALUATION_ABSENT"}
    check(Row("target", expected, change("update_frozen", unpin)))


def test_resumed_on_request() -> None:
    """A pause that ended on the operator's request before anything was trained fails nothing."""

    story, candidate = paused_story()
    request = story.say(RESUME)
    story.say(gate_pb2.TrainingResumed(update=U, request_index=request))
    finish(story, candidate)
    assert {} == why(story.judged(U))
    assert [] == story.log.replay.faults


def test_resumed_without_request() -> None:
    """A resume that names no ResumeRequested resumes nothing, and replay reports it (R3)."""
    story, candidate = paused_story()
    resumed_at = story.say(gate_pb2.TrainingResumed(update=U, request_index=story.log.size - 2))
    finish(story, candidate)
    assert {1: "FAIL TRAINED_WHILE_PAUSED"} == why(story.judged(U))
    faults = [(void.step, void.index, void.reason) for void in story.log.replay.faults]
    assert faults == [("R3", resumed_at, "RESUME_UNAUTHORISED")]


def test_a_false_resume_does_not_block_a_true_one() -> None:
    """After a resume that names no request, one that names it resumes."""
    story, candidate = paused_story()
    request = story.say(RESUME)
    other = story.say(gate_pb2.TrainingPaused(update=U, cause="AGAIN", message="said twice"))
    story.say(gate_pb2.TrainingResumed(update=U, request_index=other))
    story.say(gate_pb2.TrainingResumed(update=U, request_index=request))
    finish(story, candidate)
    assert {} == why(story.judged(U))


def test_a_request_from_before_the_pause_resumes_nothing() -> None:
    """What was asked before a pause cannot have been about it."""
    story, candidate = paused_story(RESUME)
    request = story.log.size - 2
    story.say(gate_pb2.TrainingResumed(update=U, request_index=request))
    finish(story, candidate)
    assert {1: "FAIL TRAINED_WHILE_PAUSED"} == why(story.judged(U))


def test_a_step_told_again_while_paused_was_trained_while_paused() -> None:
    """Telling a step's number a second time, with other weights, does not hide that training went on."""
    story, candidate = paused_story(STEP)
    story.say(trainer_pb2.TrainingProgressed(update=U, step=1, weights_version=2))
    request = story.say(RESUME)
    story.say(gate_pb2.TrainingResumed(update=U, request_index=request))
    finish(story, candidate)
    assert {1: "FAIL TRAINED_WHILE_PAUSED"} == why(story.judged(U))


def paused_story(*before_the_pause: Any) -> tuple[Story, Any]:
    """Candidate A until its rollouts are done, and then paused."""
    story = Story(demo_document(small))
    story.setup()
    candidate, s = story.candidate("A"), story.scenario
    story.write(s.proposal(candidate))
    story.freeze(U)
    story.write(s.training_started(candidate))
    for rollout in s.rollouts(candidate):
        story.write(rollout)
    for body in before_the_pause:
        story.say(body)
    story.say(PAUSE)
    return story, candidate


def finish(story: Story, candidate: Any) -> None:
    """The rest of candidate A's story."""
    s = story.scenario
    for phase in (s.rewards, s.training_ended, s.evaluations, s.canary):
        story.write(phase(candidate))
    approved(story, candidate)
