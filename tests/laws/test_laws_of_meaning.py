"""Laws 7 to 17, 19 and 20, as receipts, checks and pointers keep them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clients.demo.scenario import digest
from gate.judge import RulesJudge
from gate.reasons import REASONS
from gate.report import receipt_document, sentence
from ledger.admission import admit
from ledger.errors import FormatError, RefusedError
from ledger.trust import WRITER, Authority
from ledger.v1 import gate_pb2, operator_pb2, options_pb2
from tests.forge import Forge
from tests.gate_tests.editing import change, copied, drop, event_of
from tests.gate_tests.rows import Row, candidate_a, play
from tests.memory import (
    CANARY,
    DEFAULT,
    HOLD,
    HUMAN,
    PRINCIPALS,
    TO_CANARY,
    Story,
    demo_document,
    fold,
    principal,
    small,
    states,
    why,
)

U = "update-A"


@pytest.fixture
def story() -> Story:
    """A log with the operator's publications of the small document."""
    made = Story(demo_document(small))
    made.setup()
    return made


JUDGMENT = {
    "reward_recorded", "evaluation_recorded", "evaluation_closed", "canary_started", "canary_task_recorded",
    "canary_ended", "rollback_rehearsed", "approval_granted", "approval_withdrawn", "update_frozen",
    "verdict_issued", "default_promoted", "default_rolled_back", "training_paused", "training_resumed",
    "policy_published", "evaluator_published", "snapshot_published", "protected_set_published",
    "baseline_adopted", "key_granted", "key_revoked",
}  # fmt: skip


@pytest.mark.parametrize("body", sorted(JUDGMENT))
def test_law_07_the_learners_key_cannot_write_judgment(body: str) -> None:
    """Neither trainer nor runner may write what judges, approves, freezes or moves."""
    authority = Authority.initial(Forge().trust)
    for name in ("trainer-1", "runner-1"):
        with pytest.raises(RefusedError) as caught:
            authority.check_writer(PRINCIPALS[name], body)
        assert "ROLE_MAY_NOT_WRITE" == caught.value.reason


def test_law_07_what_a_trainer_writes_moves_no_pointer(story: Story) -> None:
    """Everything that a trainer may write, written: the default is where it was."""
    before = story.default()
    candidate, s = story.candidate("A"), story.scenario
    for phase in (s.proposal, s.training_started, s.training_ended):
        story.write(phase(candidate))
    written = {name for name, role in WRITER.items() if role == options_pb2.ROLE_TRAINER}
    assert {
        "update_proposed", "training_started", "training_progressed", "training_ended", "candidate_registered"
    } == written  # fmt: skip
    assert story.default() == before


@pytest.mark.parametrize("one", ["trainer-1", "runner-1", "judge-1", "canary-1", "gate-1"])
@pytest.mark.parametrize("other", ["judge-1", "canary-1", "gate-1"])
def test_law_08_no_one_judges_its_own_work(one: str, other: str) -> None:
    """Two powers under one controller fail check 1, whichever two they are."""
    if one == other:
        approver = principal(
            "approver-1", options_pb2.ROLE_APPROVER, PRINCIPALS[one].controller, approver_kind=HUMAN
        )
        _, judgement = play(Row("", {}, principals={"approver-1": approver}))
        assert {7: "FAIL APPROVER_NOT_INDEPENDENT"} == why(judgement)
        return
    shared = principal(one, PRINCIPALS[one].role, PRINCIPALS[other].controller)
    _, judgement = play(Row("", {}, principals={one: shared}))
    assert {1: "FAIL SHARED_CONTROLLER"} == why(judgement)


ABSENT: dict[str, tuple[str, Any]] = {
    "a task's harm": ("canary_task_recorded", lambda b: b.ClearField("harm_count")),
    "a task's cost": ("canary_task_recorded", lambda b: b.use.ClearField("micro_usd")),
    "a task's tools": ("canary_task_recorded", lambda b: b.use.ClearField("tools")),
    "a bound": ("canary_started", lambda b: b.bounds.ClearField("micro_usd")),
    "a case's score": ("evaluation_recorded", lambda b: b.scores.pop()),
    "a retry's reason": ("attempt_started", lambda b: b.ClearField("reason")),
    "a failure's reason": ("attempt_ended", lambda b: b.ClearField("reason")),
    "the retry budget": ("update_frozen", lambda b: b.ClearField("retry_budget")),
}


@pytest.mark.parametrize("what", ABSENT)
def test_law_09_absence_is_absence(what: str) -> None:
    """What is not there becomes neither 0 nor false nor healthy: the update is held."""
    name, edit = ABSENT[what]
    _, judgement = play(Row("", {}, change(name, edit, None if name == "attempt_started" else 0)))
    assert judgement.verdict == HOLD
    assert set(states(judgement).values()) <= {"MISSING", "FAIL"}


NEEDED = (
    "rollout_enqueued", "attempt_started", "span_recorded", "attempt_ended", "rollout_ended",
    "evaluation_recorded", "evaluation_closed", "training_started", "training_ended", "update_frozen",
    "candidate_registered", "canary_started", "canary_task_recorded", "canary_ended", "rollback_rehearsed",
)  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_law_09_no_kind_of_evidence_can_be_left_out(name: str) -> None:
    """Left out altogether, a kind of event never turns into a pass by its absence."""
    _, judgement = play(Row("", {}, drop(name, None)))
    assert judgement.verdict == HOLD


HELD: dict[str, tuple[Row, str]] = {
    "FAIL": (Row("", {}, document=candidate_a(evaluation={"gain": "0"})), "FAIL"),
    "ERROR": (Row("", {}, document=candidate_a(canary={"tasks": 2, "verified": 1, "errors": 1})), "ERROR"),
    "MISSING": (Row("", {}, drop("rollback_rehearsed")), "MISSING"),
}


@pytest.mark.parametrize("state", HELD)
def test_law_10_only_pass_counts(state: str) -> None:
    """One check that is not PASS holds the update, whichever state it is in."""
    row, expected = HELD[state]
    _, judgement = play(row)
    assert (judgement.verdict, set(states(judgement).values())) == (HOLD, {expected})


def test_law_10_stale_holds(story: Story) -> None:
    """STALE comes first, whatever else the check found."""
    story.until_canary_verdict(story.candidate("A"))
    target = options_pb2.ENVIRONMENT_TARGET_MODEL_SERVER
    story.say(operator_pb2.EnvironmentChanged(scope=story.scope, target=target, new_digest=digest("new")))
    assert {6: "STALE", 7: "STALE"} == states(story.judged(U))
    assert story.judged(U).verdict == HOLD


def test_law_11_a_refreeze_changes_the_operators_pins_only(story: Story) -> None:
    """The trainer's choices are the first freeze's for ever, the operator's are what is in force."""
    candidate = story.candidate("A")
    story.until_evidence(candidate)
    story.say(
        operator_pb2.EvaluatorPublished(
            scope=story.scope,
            name="stricter",
            digest=digest("stricter"),
            direction=operator_pb2.DIRECTION_HIGHER_IS_BETTER,
        )
    )
    story.freeze(U, by="operator-1")
    first, second = (fact.body for fact in story.record(candidate).of("update_frozen"))
    assert (second.revision, second.evaluator_digest) == (2, digest("stricter"))
    same = copied(first, revision=2, requested_by="operator-1", evaluator_digest=second.evaluator_digest)
    assert same == second
    assert "MISSING" == states(story.judged(U))[4]


@pytest.mark.parametrize("pin", [b"", b"latest", b"sql-writer:prod", bytes(31), bytes(33)])
def test_law_12_a_pin_is_a_digest(story: Story, pin: bytes) -> None:
    """No name, no mutable id and no cut digest is a pin, a parent, or a way back."""
    (proposal,) = story.scenario.proposal(story.candidate("A"))
    baseline = operator_pb2.BaselineAdopted(
        resource="r", scope=story.scope, manifest_digest=pin, reason="now"
    )
    bodies = [
        copied(proposal.update_proposed, parent_digest=pin),
        copied(proposal.update_proposed, training_snapshot_digest=pin),
        gate_pb2.UpdateFrozen(
            update=U, revision=1, requested_by="trainer-1", scope=story.scope, holdout_digest=pin
        ),
        gate_pb2.DefaultRolledBack(resource="r", scope=story.scope, update=U, to_digest=pin),
        baseline,
    ]
    for body in bodies:
        with pytest.raises(FormatError):
            admit(event_of(body).SerializeToString())


def test_law_13_two_pointers(story: Story) -> None:
    """The latest candidate moves with every candidate, the approved default with none of them."""
    key = (story.document.resource, story.scope.workflow, story.scope.segment)
    seen = []
    for name in ("A", "B", "C"):
        candidate = story.candidate(name)
        story.until_evidence(candidate)
        latest, default = story.log.receipts.latest_candidate[key], story.default()
        assert default is not None
        seen.append((latest.body.manifest_digest, default.digest))
        assert latest.body.manifest_digest == story.scenario.candidate_digest(candidate)
    assert {default for _, default in seen} == {story.scenario.baseline}
    assert 3 == len({latest for latest, _ in seen})


def test_law_13_no_default_is_none_and_never_a_candidate() -> None:
    """Asking for a default where there is none yields none, however many candidates there are."""
    story = Story(demo_document(small))
    story.setup(drop("baseline_adopted"))
    candidate, s = story.candidate("A"), story.scenario
    story.write(s.proposal(candidate))
    with pytest.raises(RefusedError, match="PARENT_NOT_DEFAULT"):
        story.freeze(U)
    story.write(s.training_started(candidate))
    story.write(s.training_ended(candidate))
    assert story.log.receipts.latest_candidate != {}
    assert story.default() is None


def test_law_14_nothing_slips_in_between(story: Story) -> None:
    """A pointer moves only if what its verdict rests on is unchanged since the size it was made at."""
    verdict = story.until_default_verdict(story.candidate("A"))
    story.evaluate_again(story.candidate("A"))
    index = story.promote(verdict)
    default = story.default()
    assert default is not None
    assert (story.voids(), default.update) == ([("R1", index)], None)


def test_law_15_a_verdict_is_a_pure_function_of_its_prefix(story: Story) -> None:
    """What comes after a prefix changes nothing in what was concluded from it."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate)
    size, then = story.log.size, story.judged(U)
    story.live(candidate, story.verdict(U))
    story.log.revoke("judge-1", suspect_from=0)
    assert story.judged(U, CANARY, size) == then
    assert RulesJudge().evaluate(fold(story.log.entries[:size]).receipts, U, CANARY, size) == then
    assert (then.verdict, story.judged(U).verdict) == (TO_CANARY, HOLD)


def test_law_15_the_only_clock_is_the_prefixs(story: Story) -> None:
    """A judgement of an old prefix does not expire: its time is its last entry's."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate)
    size = story.log.size
    story.log.tick(1 << 50)
    story.say(operator_pb2.BlobErased(digest=digest("x"), reason="much later"))
    assert {} == why(story.judged(U, CANARY, size))
    assert {7: "MISSING APPROVAL_EXPIRED"} == why(story.judged(U))


def test_law_15_erasing_a_blob_changes_no_verdict_and_no_evidence_digest(story: Story) -> None:
    """Every span and input of A stands in a blob, and each is erased before it may become default: it does.

    The receipt shows what is gone, from the entry on that says so; at earlier sizes nothing is.
    """
    candidate = story.candidate("A")
    blobs = [options_pb2.Blob(digest=digest(f"content {number}"), size=9) for number in range(2)]
    spans = change("span_recorded", lambda body: body.blob.CopyFrom(blobs[0]), None)
    inputs = change("rollout_enqueued", lambda body: body.input_blob.CopyFrom(blobs[1]), None)
    story.until_approval(candidate, lambda phase, events: inputs(phase, list(spans(phase, events))))
    story.approve(candidate)
    size, then, shown = (
        story.log.size,
        story.judged(U),
        receipt_document(story.log.receipts, U, story.log.size),
    )
    verdict = story.verdict(U)
    gone = [story.say(operator_pb2.BlobErased(digest=blob.digest, reason="asked for")) for blob in blobs]
    now = story.judged(U)
    assert (then, TO_CANARY) == (now, now.verdict)
    story.live(candidate, verdict)
    story.approve(candidate, DEFAULT, by="approver-2")
    story.promote(story.verdict(U, DEFAULT))
    default = story.default()
    assert default is not None
    assert story.scenario.candidate_digest(candidate) == default.digest
    assert [] == story.log.replay.faults
    assert (2, 2) == (story.log.replay.result().verdicts, story.log.replay.result().moves)
    assert shown == receipt_document(story.log.receipts, U, size)
    assert [] == shown["during"]["erased_content"]
    receipt = receipt_document(story.log.receipts, U, story.log.size)
    rollouts = [story.scenario.rollout_id(candidate, position) for position in range(6)]
    expected = {
        (rollout, blob.digest.hex(), index)
        for rollout in rollouts
        for blob, index in zip(blobs, gone, strict=True)
    }
    erased = receipt["during"]["erased_content"]
    assert expected == {(item["rollout"], item["digest"], item["erased"]) for item in erased}
    assert len(expected) == len(erased)


@pytest.mark.parametrize(
    ("field", "value", "lacks"),
    [
        ("update", "update-B", "APPROVAL_NONE"),
        ("step", DEFAULT, "APPROVAL_NONE"),
        ("evidence_digest", digest("x"), "APPROVAL_OTHER_DIGEST"),
        ("policy_digest", digest("x"), "APPROVAL_OTHER_DIGEST"),
        ("expires_at", 1, "APPROVAL_EXPIRED"),
    ],
)
def test_law_16_what_an_approval_covers(story: Story, field: str, value: Any, lacks: str) -> None:
    """One update, one step, one evidence digest, one policy digest, until its expiry."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate, edit=lambda body: setattr(body, field, value))
    assert why(story.judged(U)) == {7: f"MISSING {lacks}"}


def test_law_17_staleness_is_folded_never_announced(story: Story) -> None:
    """A publication alone makes stale what rests on it; no event of any type says "stale"."""
    assert [] == [name for name in WRITER if "stale" in name]
    story.until_canary_verdict(story.candidate("A"))
    story.say(operator_pb2.ToolContractPublished(scope=story.scope, digest=digest("new")))
    assert why(story.judged(U)) == dict.fromkeys((2, 4, 5, 6), "STALE STALE_TOOL_CONTRACT")


def test_law_19_every_verdict_is_scoped(story: Story) -> None:
    """A verdict names resource, scope and step; its receipt the cut-off, evaluator, parent and window."""
    verdict = story.until_canary_verdict(story.candidate("A"))[1]
    assert (verdict.resource, verdict.scope, verdict.step) == (story.document.resource, story.scope, CANARY)
    receipt = receipt_document(story.log.receipts, U, story.log.size)
    ended = story.record(story.candidate("A")).of("training_ended")[0].index
    assert receipt["during"]["data_cut_off"] == ended
    claim = receipt["before"]["freezes"][-1]["claim"]
    assert claim["evaluator_digest"] == story.scenario.evaluator_digest.hex()
    assert claim["parent_digest"] == story.scenario.baseline.hex()
    assert ["window-A"] == [window["started"]["claim"]["window"] for window in receipt["after"]["windows"]]


def test_law_19_nothing_prints_safe(story: Story) -> None:
    """Neither receipt nor finding nor reason ever says "safe"."""
    story.until_promoted(story.candidate("A"))
    texts = [json.dumps(receipt_document(story.log.receipts, U, story.log.size))]
    texts += [sentence(finding) for finding in story.judged(U, DEFAULT).findings]
    texts += [said for _, said in REASONS.values()]
    assert [] == [text for text in texts if "safe" in text.lower()]


@pytest.mark.parametrize("value", [0.0, 1.0, -1e9, None])
def test_law_20_a_reward_is_evidence_never_a_verdict(value: float | None) -> None:
    """Whatever the rewards say, or if there are none, no check's state changes."""

    def edit(body: Any) -> None:
        if value is not None:
            body.value = value

    mutate = drop("reward_recorded", None) if value is None else change("reward_recorded", edit, None)
    _, judgement = play(Row("", {}, mutate))
    assert (judgement.verdict, why(judgement)) == (TO_CANARY, {})
    _, plain = play(Row("", {}))
    assert judgement.evidence_digest != plain.evidence_digest
