"""What a compromised party can do, and what it cannot: every row of the table in docs/trust.md.

Where a row needs a bribed ledger, the log is forged whole, under real keys, as such a ledger would hand it
out: what refuses it then is the offline verifier, or the replay, and nobody's good will.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from clients.demo.scenario import digest
from gate.replay import Replayed, replay_export
from ledger.errors import RefusedError, VerificationError
from ledger.trust import Authority
from ledger.v1 import gate_pb2, operator_pb2, runner_pb2, trainer_pb2
from tests.cli.signed import SignedLog
from tests.events import minimal_event
from tests.forge import (
    LEDGER,
    ORIGIN,
    ROLES,
    ROOT,
    Forge,
    export_of,
    granted,
    make_key,
    numbered,
    refused,
    relink,
    rotated,
    verify,
    witness_key,
)
from tests.gate_tests.editing import change, copied, drop, insert
from tests.gate_tests.rows import Row, candidate_a, play
from tests.lab import Lab
from tests.memory import (
    HOLD,
    SECOND,
    TO_CANARY,
    Story,
    counts,
    demo_document,
    small,
    states,
)
from tests.server.people import enqueued, reason_of

U = "update-A"


@pytest.fixture
def signed() -> Story:
    """The small document's story on a signed log: whoever holds a key may sign anything."""
    made = Story(demo_document(small), SignedLog())
    made.setup()
    return made


def forged(story: Story) -> Forge:
    """The log as its ledger hands it out."""
    assert isinstance(story.log, SignedLog)
    return story.log.forge


def replayed(story: Story) -> Replayed:
    """Verified, then replayed, from the bytes alone."""
    forge = forged(story)
    export = forge.export()
    _, replay = replay_export(lambda: BytesIO(export), forge.trust)
    return replay.result()


def fault(story: Story) -> tuple[str, str, int | None]:
    """Step, reason and index with which the replay refuses the log."""
    with pytest.raises(VerificationError) as caught:
        replayed(story)
    return caught.value.step, caught.value.reason, caught.value.index


def _runners(*numbers: int) -> Forge:
    forge = Forge.opened("runner", "judge")
    for number in numbers:
        forge.add("runner", numbered(number))
    return forge


# --- powers that no other key has: the server bribed, the verifier not -----------------------------------

#: Row of the table -> what it cannot write.
CANNOT_WRITE = {
    "operator": ("evaluation_recorded", "reward_recorded", "canary_task_recorded", "update_frozen"),
    "runner": ("evaluation_recorded", "reward_recorded", "verdict_issued", "default_promoted"),
    "judge": ("canary_started", "canary_task_recorded", "canary_ended", "approval_granted"),
    "canary": ("evaluation_recorded", "evaluation_closed", "reward_recorded", "approval_granted"),
    "trainer": (
        "evaluation_recorded", "reward_recorded", "canary_task_recorded", "approval_granted",
        "verdict_issued", "update_frozen", "default_promoted", "default_rolled_back", "rollback_requested",
    ),
    "approver": ("evaluation_recorded", "canary_task_recorded", "verdict_issued", "default_promoted"),
    "gate": ("rollback_requested", "evaluation_recorded", "approval_granted", "canary_task_recorded"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("who", "body"), [(who, body) for who, all_ in CANNOT_WRITE.items() for body in all_]
)
def test_law_07_a_bribed_ledger_does_not_lend_a_power(who: str, body: str) -> None:
    """An event outside a role's file, placed all the same and rightly signed, refuses the log."""
    forge = Forge.opened(who)
    index = forge.add(who, minimal_event(body))
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", index)


# --- the ledger ------------------------------------------------------------------------------------------


def test_the_ledger_can_withhold_a_tail() -> None:
    """An older state verifies: only who remembers more, or lacks an acknowledgement, can tell."""
    forge = _runners(1, 2, 3)
    assert forge.size - 1 == verify(forge.export(size=forge.size - 1), forge.trust).size
    refused(
        forge,
        "V7",
        "ROLLED_BACK",
        None,
        export=forge.export(size=forge.size - 1),
        remembered=forge.checkpoint(),
    )


def test_the_ledger_can_order_between_authors() -> None:
    """Two authors' batches verify in either order."""
    forge = Forge.opened("runner", "trainer")
    forge.add("runner", numbered(1))
    forge.add("trainer", minimal_event("update_proposed"))
    *before, one, other = forge.entries
    assert forge.size == relink([*before, other, one]).verify().size == forge.verify().size


def test_the_ledger_can_split_the_view_where_no_witness_is_and_not_where_one_is() -> None:
    """Two logs under one key verify, each for who never saw the other; a quorum exists for one of them."""
    one, other = _runners(1), _runners(2)
    assert one.verify().size == other.verify().size
    witness = witness_key("w")
    policy = f"witness w {witness.verifier_key}\nquorum w\n"
    honest = Forge.opened("runner", policy=policy)
    split = Forge.opened("runner", policy=policy)
    honest.add("runner", numbered(1))
    split.add("runner", numbered(2))
    assert ("w",) == verify(honest.export(honest.checkpoint(witnesses=[witness])), honest.trust).witnesses
    refused(split, "V6", "NO_QUORUM", None)


def test_the_ledger_cannot_write_as_an_author() -> None:
    """Its own key signs no batch, and an author's signature covers no other event."""
    forge = _runners(1)
    index = forge.add("runner", numbered(2), signer=LEDGER)
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", index)
    as_itself = _runners(1)
    index = as_itself.add(LEDGER, numbered(2))
    refused(as_itself, "V4", "KEY_UNKNOWN", index)


def test_the_ledger_cannot_replay_an_author() -> None:
    """A batch placed again, or taken from another log of the same people, is refused."""
    forge = _runners(1)
    again = relink([*forge.entries, forge.entries[-1]])
    refused(again, "V3", "SEQUENCE_REPEATED", again.size - 1)
    elsewhere = _runners(1)
    index = elsewhere.add("runner", numbered(2), origin="ledger.test/assay-fedcba9876543210")
    refused(elsewhere, "V3", "BAD_BATCH_SIGNATURE", index)


def test_the_ledger_cannot_drop_a_batch_that_another_of_its_stream_follows() -> None:
    """The gap shows at the later batch."""
    forge = _runners(1, 2, 3)
    *before, _, last = forge.entries
    gap = relink([*before, last])
    refused(gap, "V3", "SEQUENCE_GAP", gap.size - 1)


def test_law_06_the_ledger_cannot_change_what_a_remembered_checkpoint_covers() -> None:
    """Not by another tail, nor by a log that has grown beyond it since."""
    seen, rewritten = _runners(1, 2), _runners(1, 3, 4, 5)
    refused(rewritten, "V7", "FORKED", None, remembered=seen.checkpoint())


def test_the_ledger_cannot_name_its_own_next_key() -> None:
    """A rotation is root's to write; one that the ledger writes, or signs in root's name, is refused."""
    later = make_key(ORIGIN, "later")
    forge = _runners(1)
    index = forge.add(ROOT, rotated(later), signer=LEDGER)
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", index, export=forge.export(forge.checkpoint(key=later)))


# --- root ------------------------------------------------------------------------------------------------


def test_root_can_grant_any_role_visibly() -> None:
    """Its new judge is believed from then on, and stands in the log for everybody to see."""
    forge = _runners(1)
    mole = make_key("mole")
    index = forge.add(ROOT, granted(mole, ROLES["judge"], controller="nobody-you-know"))
    forge.add(mole, minimal_event("reward_recorded"))
    keys = forge.verify().keys
    assert isinstance(keys, Authority)
    grant = keys.grants["mole", mole.verifier_key.key_id]
    assert (index, "nobody-you-know") == (grant.granted_at, grant.controller)


def test_root_cannot_rewrite() -> None:
    """What is remembered stays; nobody's key gets a second name; no author's batch gets another content."""
    seen = _runners(1)
    other = Forge.opened("runner", "judge")
    other.add(ROOT, granted(make_key("mole"), ROLES["trainer"]))
    refused(other, "V7", "FORKED", None, remembered=seen.checkpoint())
    twice = _runners(1)
    runner = make_key("runner").verifier_key
    renamed = granted(make_key("runner"), ROLES["judge"])
    renamed.key_granted.vkey = str(type(runner)("other", runner.type, runner.public_key))
    refused(twice, "V4", "KEY_TAKEN", twice.add(ROOT, renamed))
    in_its_name = _runners(1)
    refused(in_its_name, "V3", "BAD_BATCH_SIGNATURE", in_its_name.add("runner", numbered(2), signer=ROOT))


def test_root_cannot_sign_for_the_ledger() -> None:
    """A checkpoint under root's key is none."""
    forge = _runners(1)
    note = forge.checkpoint(key=make_key(ORIGIN, "root's own"))
    refused(forge, "V6", "NO_KNOWN_SIGNATURE", None, export=forge.export(note))


@pytest.mark.parametrize(
    "body", ["evaluation_recorded", "default_promoted", "approval_granted", "update_proposed"]
)
def test_root_cannot_act_in_a_role(body: str) -> None:
    """It must grant somebody the role first, where all can see it."""
    forge = _runners(1)
    refused(forge, "V4", "ROLE_MAY_NOT_WRITE", forge.add(ROOT, minimal_event(body)))


# --- the operator ----------------------------------------------------------------------------------------


def _kinder(story: Story) -> operator_pb2.EvaluatorPublished:
    return operator_pb2.EvaluatorPublished(
        scope=story.scope,
        name="kinder",
        digest=digest("kinder"),
        direction=operator_pb2.DIRECTION_HIGHER_IS_BETTER,
    )


def test_the_operator_can_choose_what_later_updates_are_judged_by_visibly(signed: Story) -> None:
    """A kinder evaluator is pinned by the next freeze, and stands in the log before it."""
    index = signed.say(_kinder(signed))
    signed.until_approval(signed.candidate("B"))
    pins = signed.record(signed.candidate("B")).of("update_frozen")[0]
    assert digest("kinder") == pins.body.evaluator_digest
    assert index < pins.index
    assert 1 == replayed(signed).freezes


def test_law_11_the_operator_cannot_touch_a_frozen_update(signed: Story) -> None:
    """What is published after a freeze changes no pin of it, and makes no check of it better."""
    candidate = signed.candidate("A")
    signed.until_approval(candidate)
    pins, before = (
        signed.record(candidate).of("update_frozen")[0].body.SerializeToString(),
        states(signed.judged(U)),
    )
    signed.say(_kinder(signed))
    after = signed.record(candidate).of("update_frozen")
    assert [pins] == [fact.body.SerializeToString() for fact in after]
    assert set(before) <= set(states(signed.judged(U)))
    assert HOLD == signed.judged(U).verdict


# --- the runner ------------------------------------------------------------------------------------------


def test_the_runner_can_invent_rollouts_and_they_are_counted(signed: Story) -> None:
    """What it enqueues during training counts in check 2, under its name, and replay agrees."""

    def invented(body: runner_pb2.RolloutEnqueued) -> runner_pb2.RolloutEnqueued:
        return copied(body, rollout="invented")

    _, honest = play(Row("", {}))
    signed.until_approval(signed.candidate("A"), insert("rollout_enqueued", invented))
    assert counts(honest, 2)["rollouts"] + 1 == counts(signed.judged(U), 2)["rollouts"]
    assert "runner-1" == signed.record(signed.candidate("A")).rollouts["invented"].enqueued[0].grant.name
    assert 1 == replayed(signed).freezes


@pytest.mark.parametrize("name", ["span_recorded", "attempt_ended", "rollout_ended", "attempt_started"])
def test_law_09_the_runner_can_omit_and_an_omission_never_passes(name: str) -> None:
    """What it leaves out is missing in check 2 or 3, and holds the update."""
    _, judgement = play(Row("", {}, drop(name, None)))
    assert HOLD == judgement.verdict
    assert {2, 3} & set(states(judgement))


# --- judge and canary ------------------------------------------------------------------------------------


def test_the_judge_can_invent_scores_and_nothing_but_checks_4_and_5_follow_it() -> None:
    """A worthless candidate with glowing scores passes 4 and 5; every other check stands as it did."""
    worthless = candidate_a(
        evaluation={"gain": "0"}, canary={"tasks": 2, "verified": 1, "errors": 1}, rollback={"served": False}
    )
    glowing = candidate_a(
        evaluation={"gain": "0.4"},
        canary={"tasks": 2, "verified": 1, "errors": 1},
        rollback={"served": False},
    )
    _, honest = play(Row("", {}, document=worthless))
    _, invented = play(Row("", {}, document=glowing))
    assert {4, 5} & set(states(honest))
    assert not {4, 5} & set(states(invented))
    assert {n: s for n, s in states(honest).items() if n not in (4, 5)} == states(invented)
    assert HOLD == invented.verdict


def test_the_canary_can_invent_outcomes_and_nothing_but_checks_6_and_7_follow_it() -> None:
    """A canary that claims success for a candidate that fails its evaluation helps it nowhere else."""
    failing = candidate_a(evaluation={"gain": "0"}, canary={"tasks": 2, "verified": 1, "errors": 1})
    claimed = candidate_a(evaluation={"gain": "0"}, canary={"tasks": 2, "verified": 2})
    _, honest = play(Row("", {}, document=failing))
    _, invented = play(Row("", {}, document=claimed))
    assert 6 in states(honest)
    assert 6 not in states(invented)
    assert {n: s for n, s in states(honest).items() if n not in (6, 7)} == {
        n: s for n, s in states(invented).items() if n not in (6, 7)
    }
    assert HOLD == invented.verdict


# --- the trainer -----------------------------------------------------------------------------------------


def test_the_trainer_can_lie_on_provenance_and_the_lie_stands_under_its_name(signed: Story) -> None:
    """Nobody can check how it trained; what it claims is its own signed claim, and moves no other check."""

    def edit(body: trainer_pb2.TrainingEnded) -> None:
        body.environment.device = "a machine that does not exist"

    candidate = signed.candidate("A")
    signed.until_approval(candidate, change("training_ended", edit))
    signed.approve(candidate)
    ended = signed.record(candidate).of("training_ended")[0]
    assert ("trainer-1", "a machine that does not exist") == (ended.grant.name, ended.body.environment.device)
    assert TO_CANARY == signed.judged(U).verdict


def test_the_trainer_can_try_often_and_each_try_is_counted(signed: Story) -> None:
    """Overfitting to a holdout by many proposals is possible; how many there were is said."""
    seen = []
    for name in ("A", "B", "C"):
        candidate = signed.candidate(name)
        signed.until_approval(candidate)
        seen.append(counts(signed.judged(signed.scenario.update_id(candidate)), 4)["judged_before"])
    assert [0, 1, 2] == seen


async def test_law_07_the_trainer_cannot_read_the_holdout() -> None:
    """The whole log is not its to read, and what it may follow is its own updates' train and val events."""
    async with Lab() as lab:
        await lab.of_role("runner").append([enqueued(lab)])
        trainer = lab.of_role("trainer")

        async def read() -> list[Any]:
            return [item async for item in trainer.read()]

        async def follow() -> Any:
            return await anext(aiter(trainer.follow_update("update-of-another")))

        assert ["MAY_NOT_READ", "MAY_NOT_READ"] == [
            await reason_of(read(), RefusedError),
            await reason_of(follow(), RefusedError),
        ]


def test_law_13_the_trainer_cannot_move_a_pointer(signed: Story) -> None:
    """Every event that it may write leaves the default where it was."""
    candidate = signed.candidate("A")
    default = signed.default()
    signed.until_evidence(candidate)
    assert default == signed.default()


# --- the approver ----------------------------------------------------------------------------------------


def test_the_approver_can_approve_blindly_and_a_failing_check_stays_failing() -> None:
    """An approval of the very evidence that fails changes no state but its own."""
    failing = candidate_a(evaluation={"gain": "0"})
    unapproved = Row("", {}, document=failing, approve=lambda *_: None)
    _, without = play(unapproved)
    _, with_it = play(Row("", {}, document=failing))
    assert {4, 7} == set(states(without))
    assert {4} == set(states(with_it))
    assert HOLD == with_it.verdict


# --- the gate --------------------------------------------------------------------------------------------


def test_the_gate_can_hold_everything(signed: Story) -> None:
    """It may issue nothing for an update that deserves it; anyone sees what it withholds."""
    candidate = signed.candidate("A")
    signed.until_approval(candidate)
    signed.approve(candidate)
    assert (0, 1) == (replayed(signed).verdicts, replayed(signed).moves)
    assert TO_CANARY == signed.judged(U).verdict


def test_law_15_the_gate_can_publish_a_false_verdict_until_someone_replays(signed: Story) -> None:
    """It verifies, since the gate signed it; the replay refuses it."""
    signed.until_approval(signed.candidate("A"))
    honest = signed.verdict_body(U)
    assert HOLD == honest.verdict
    lie = copied(honest, verdict=TO_CANARY, not_after=signed.log.clock)
    index = signed.say(lie)
    assert index + 1 == forged(signed).verify().size
    assert ("R2", "VERDICT_VOID", index) == fault(signed)


def test_law_13_the_gate_can_publish_a_false_move_until_someone_replays(signed: Story) -> None:
    """A promotion that no verdict allows moves nothing for whoever folds the log, and replay refuses it."""
    candidate = signed.candidate("A")
    signed.until_canary_verdict(candidate)
    default = signed.default()
    assert default is not None
    index = signed.say(
        gate_pb2.DefaultPromoted(
            update=U,
            resource=signed.document.resource,
            scope=signed.scope,
            from_digest=default.digest,
            to_digest=signed.scenario.candidate_digest(candidate),
            verdict_index=signed.log.size - 1,
            not_after=signed.log.clock + SECOND,
        )
    )
    assert index + 1 == forged(signed).verify().size
    assert default == signed.default()
    assert ("R1", "MOVE_VOID", index) == fault(signed)


def test_the_gate_cannot_roll_back_without_a_request(signed: Story) -> None:
    """A rollback that names no request of an operator or approver is void, and replay refuses it."""
    promoted = signed.until_promoted(signed.candidate("A"))
    default = signed.default()
    index = signed.say(signed.rollback(promoted))
    assert default == signed.default()
    assert ("R1", "MOVE_VOID", index) == fault(signed)


def test_law_11_the_gate_cannot_freeze_kinder_pins(signed: Story) -> None:
    """Pins that were not in force do not survive the replay."""
    candidate = signed.candidate("A")
    signed.until_approval(
        candidate, change("update_frozen", lambda body: setattr(body, "evaluator_digest", digest("kinder")))
    )
    index = signed.record(candidate).of("update_frozen")[0].index
    assert ("R3", "FREEZE_DIFFERS", index) == fault(signed)


def test_law_06_the_gate_cannot_take_a_verdict_back(signed: Story) -> None:
    """Whoever saw it remembers a checkpoint that covers it; a log without it is older, or another."""
    signed.until_approval(signed.candidate("A"))
    signed.verdict(U)
    forge = forged(signed)
    older = forge.export(size=forge.size - 1)
    refused(forge, "V7", "ROLLED_BACK", None, export=older, remembered=forge.checkpoint())
    seen = forge.checkpoint()
    signed.say(_kinder(signed))
    gone = [*forge.entries[:-2], forge.entries[-1]]
    with pytest.raises(VerificationError) as caught:
        verify(export_of(forge.checkpoint(), gone), forge.trust, remembered=seen)
    assert caught.value.step in {"V2", "V3"}


def test_the_table_and_these_tests_name_the_same_parties() -> None:
    """Each row of docs/trust.md has its tests here."""
    from tests.cli.manual import ROOT as PROJECT  # noqa: PLC0415 - of this test alone

    table = (PROJECT / "docs" / "trust.md").read_text().partition("| who | can | cannot |\n")[2]
    rows = [line.split("|")[1].strip() for line in table.partition("\n\n")[0].splitlines()[1:]]
    named = {name for name in globals() if name.startswith("test_")}
    for who in rows:
        assert any(f"_{who}_can_" in name for name in named), who
        assert any(f"_{who}_cannot_" in name for name in named) or who in CANNOT_WRITE, who
    assert ["ledger", "root", "operator", "runner", "judge", "canary", "trainer", "approver", "gate"] == rows
