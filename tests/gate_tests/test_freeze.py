"""Freezing: what is pinned and from where, who may ask, what is refused; and what is in force."""

from __future__ import annotations

from typing import Any

import pytest

from clients.demo.scenario import digest
from gate.freeze import derive_freeze
from ledger.errors import FormatError, NotFoundError, RefusedError
from ledger.v1 import gate_pb2, operator_pb2, options_pb2
from tests.gate_tests.editing import both, change, copied, drop
from tests.memory import Mutation, Story, demo_document, small, unchanged, why

U = "update-A"


CHOSEN = (
    "resource", "kind", "scope", "parent_digest", "training_snapshot_digest", "algorithm_config_digest",
    "code_revision", "workflow_version",
)  # fmt: skip


def proposed(publications: Mutation = unchanged, proposal: Mutation = unchanged) -> Story:
    """Candidate A proposed, after the operator's publications."""
    story = Story(demo_document(small))
    story.setup(publications)
    story.write(proposal("proposal", story.scenario.proposal(story.candidate("A"))))
    return story


def refused(story: Story, by: str = "trainer-1", redo: tuple[int, ...] = ()) -> str:
    """Why a freeze is refused."""
    with pytest.raises(RefusedError) as caught:
        story.freeze(U, by, redo)
    return caught.value.reason


def test_a_freeze_pins_what_was_proposed_and_what_is_in_force() -> None:
    """The trainer's choices from its proposal, all else from operators; nothing is left unpinned."""
    story = proposed()
    story.freeze(U)
    (fact,) = story.record(story.candidate("A")).of("update_frozen")
    (proposal,) = story.record(story.candidate("A")).of("update_proposed")
    pins: gate_pb2.UpdateFrozen = fact.body
    for name in CHOSEN:
        assert getattr(proposal.body, name) == getattr(pins, name)
    assert (1, "trainer-1") == (pins.revision, pins.requested_by)
    assert (["judge-1"], ["canary-1"]) == (list(pins.judges), list(pins.canaries))
    assert (["approver-1"], ["approver-2"]) == (list(pins.canary_approvers), list(pins.default_approvers))
    targets = sorted(part.target for part in pins.environment)
    assert targets == [number for number in options_pb2.EnvironmentTarget.values() if number]
    assert "PIN_ABSENT" not in why(story.judged(U))[1]


def test_who_may_ask() -> None:
    """The proposing trainer first, an operator from then on, and nobody for what was not proposed."""
    story = proposed()
    assert "NOT_THE_PROPOSER" == refused(story, "trainer-2")
    assert "NOT_THE_PROPOSER" == refused(story, "operator-1")
    story.freeze(U)
    assert "NOT_AN_OPERATOR" == refused(story, "trainer-1")
    with pytest.raises(NotFoundError, match="NOT_PROPOSED"):
        story.freeze("update-B", "trainer-1")


def test_not_after_training_started() -> None:
    """What was trained before its identity was fixed is not frozen any more."""
    story = proposed()
    story.write(story.scenario.training_started(story.candidate("A")))
    assert "TRAINING_STARTED" == refused(story)


UNPUBLISHED: dict[str, Mutation] = {
    "workflow": drop("workflow_declared"),
    "retry budget": change("workflow_declared", lambda b: b.ClearField("retry_budget")),
    "workflow version": change("workflow_declared", lambda b: setattr(b, "version", 2)),
    "training snapshot": drop("snapshot_published"),
    "holdout": drop("snapshot_published", 1),
    "a part of the holdout": change("snapshot_published", lambda b: setattr(b.part, "of", 2), 1),
    "evaluator": drop("evaluator_published"),
    "tool contract": drop("tool_contract_published"),
    "protected set": drop("protected_set_published"),
    "policy": drop("policy_published"),
    "permissions": drop("environment_changed", 1),
    "another segment only": change(
        "evaluator_published", lambda b: setattr(b.scope, "segment", "de-internal")
    ),
}


@pytest.mark.parametrize("what", UNPUBLISHED)
def test_nothing_is_pinned_that_is_not_registered(what: str) -> None:
    """Each thing that an operator must publish, unpublished: refused, never defaulted."""
    assert "NOT_REGISTERED" == refused(proposed(UNPUBLISHED[what]))


def test_the_parent_is_the_current_default() -> None:
    """Another parent than the approved default, or no default at all, is refused."""
    other = change("update_proposed", lambda b: setattr(b, "parent_digest", digest("latest")))
    assert "PARENT_NOT_DEFAULT" == refused(proposed(proposal=other))
    assert "PARENT_NOT_DEFAULT" == refused(proposed(drop("baseline_adopted")))


@pytest.mark.parametrize("own", ["harness_digest", "tokenizer_digest"])
def test_harness_and_tokenizer_are_those_in_force(own: str) -> None:
    """A trainer that trained with another harness or tokenizer is told so before, not after."""
    other = change("update_proposed", lambda b: setattr(b, own, digest("mine")))
    assert "NOT_IN_FORCE" == refused(proposed(proposal=other))


def test_harness_and_tokenizer_are_the_proposals_where_nobody_said() -> None:
    """Where no operator stated one, the pin is what the trainer proposed."""
    nobody = drop("environment_changed", None, lambda b: b.target in (6, 7))
    story = proposed(nobody)
    story.freeze(U)
    (fact,) = story.record(story.candidate("A")).of("update_frozen")
    (proposal,) = story.record(story.candidate("A")).of("update_proposed")
    pinned = {part.target: part.digest for part in fact.body.environment}
    assert (pinned[6], pinned[7]) == (proposal.body.harness_digest, proposal.body.tokenizer_digest)


@pytest.mark.parametrize(
    "edit",
    [
        lambda b: b.families[0].case_ids.append("elsewhere"),
        lambda b: setattr(b, "snapshot_digest", digest("another holdout")),
    ],
)
def test_protected_cases_lie_within_the_holdout(edit: Any) -> None:
    """A protected case outside the holdout would never be scored."""
    assert "PROTECTED_OUTSIDE_HOLDOUT" == refused(proposed(change("protected_set_published", edit)))


def test_a_policy_that_is_none_is_refused() -> None:
    """What operators published as policy must be one."""
    story = proposed(change("policy_published", lambda b: setattr(b, "document", b'{"rules": 1}')))
    with pytest.raises(FormatError, match="BAD_POLICY"):
        story.freeze(U)


REDOS: dict[str, tuple[tuple[int, ...], int, str | None]] = {
    "a check in MISSING": ((4,), 1, None),
    "two checks in MISSING": ((4, 5), 1, None),
    "a check that fails": ((6,), 1, "REDO_NOT_ALLOWED"),
    "one that fails beside one that is missing": ((4, 6), 1, "REDO_NOT_ALLOWED"),
    "a check of training": ((2,), 1, "REDO_NOT_ALLOWED"),
    "a check that there is not": ((4, 8), 1, "REDO_NOT_ALLOWED"),
    "more than the policy allows": ((4,), 0, "REDO_NOT_ALLOWED"),
}


@pytest.mark.parametrize("what", REDOS)
def test_redo(what: str) -> None:
    """Only checks among 4 to 7 in ERROR or MISSING, and as often as the policy allows."""
    redo, allowed, reason = REDOS[what]

    def policy(raw: dict[str, Any]) -> None:
        small(raw)
        raw["policy"]["max_redos"] = allowed

    story = Story(demo_document(policy))
    story.setup()
    unverified = change("canary_task_recorded", lambda b: setattr(b, "outcome", 2))
    story.until_approval(story.candidate("A"), both(drop("evaluation_closed", None), unverified))
    if reason is not None:
        assert refused(story, "operator-1", redo) == reason
        return
    story.freeze(U, "operator-1", redo)
    frozen = story.record(story.candidate("A")).of("update_frozen")[-1].body
    assert tuple(frozen.redo_checks) == redo
    assert "MISSING EVALUATION_ABSENT" == why(story.judged(U))[4]
    assert why(story.judged(U))[5].startswith("MISSING EVALUATION_")


def test_redone_evidence_counts_for_the_redone_check_only() -> None:
    """A redo of check 4 leaves the earlier evaluation to check 5."""

    story = redoable_story()

    def unscorable(body: Any) -> None:
        for score in body.scores:
            if score.case_id == "joins-05":
                score.unscorable = "timed out"

    story.until_approval(story.candidate("A"), change("evaluation_recorded", unscorable, 1))
    story.freeze(U, "operator-1", (4,))
    states = why(story.judged(U))
    assert ("MISSING EVALUATION_ABSENT", False) == (states[4], 5 in states)


def redoable_story() -> Story:
    """A story whose policy allows a redo."""

    def policy(raw: dict[str, Any]) -> None:
        small(raw)
        raw["policy"]["max_redos"] = 1

    story = Story(demo_document(policy))
    story.setup()
    return story


@pytest.mark.parametrize(
    ("redo", "expected"),
    [
        ((6,), {}),
        ((6, 7), {}),
        # The first window is still read: it stays in ERROR, and what was not rehearsed in it stays so.
        ((7,), {6: "ERROR TASK_ERROR", 7: "MISSING REHEARSAL_ABSENT"}),
    ],
)
def test_a_canary_in_error_is_redone(redo: tuple[int, ...], expected: dict[int, str]) -> None:
    """After a redo of check 6 the windows before it are not read, and a new one decides."""
    story = redoable_story()
    candidate = story.candidate("A")
    error = change("canary_task_recorded", lambda b: setattr(b, "outcome", 3))
    story.until_approval(candidate, both(error, drop("rollback_rehearsed")))
    story.freeze(U, "operator-1", redo)
    story.window(candidate, "window-again")
    story.approve(candidate)
    assert expected == why(story.judged(U))


def test_what_passes_is_not_redone() -> None:
    """A redo is for what could not be told, not for a better answer."""
    story = redoable_story()
    story.until_approval(story.candidate("A"))
    assert "REDO_NOT_ALLOWED" == refused(story, "operator-1", (4,))


def test_what_fails_for_one_step_is_not_redone_for_the_other() -> None:
    """Check 7 fails for step canary by its approver, and is missing for step default: it is not redone."""
    story = redoable_story()
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate, by="approver-3")
    assert {7: "FAIL APPROVER_NOT_NAMED"} == why(story.judged(U))
    assert "REDO_NOT_ALLOWED" == refused(story, "operator-1", (7,))


def test_a_redo_is_not_the_first_freeze() -> None:
    """There is nothing to redo before there was anything."""
    assert "REDO_NOT_ALLOWED" == refused(proposed(), "trainer-1", (4,))


# --- publications in parts ---------------------------------------------------------------------------------


def snapshot(story: Story, number: int, of: int, *cases: str) -> operator_pb2.SnapshotPublished:
    """A part of another holdout."""
    return operator_pb2.SnapshotPublished(
        scope=story.scope,
        digest=digest("parts"),
        purpose=operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT,
        part=options_pb2.Part(number=number, of=of),
        cases=[operator_pb2.Case(id=case) for case in cases],
    )


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_a_publication_in_parts_is_in_force_from_its_last_part(order: tuple[int, ...]) -> None:
    """Until every part stands, the snapshot before it is in force; then its cases come in order of parts."""
    story = proposed()
    registry = story.log.receipts.registry
    size = [story.say(snapshot(story, number, 3, f"case-{number}")) + 1 for number in order]
    for before in size[:-1]:
        found = registry.in_force("holdout", story.scope, before)
        assert found is not None
        assert found.digest == story.scenario.holdout_digest
    now = registry.in_force("holdout", story.scope, size[-1])
    assert now is not None
    assert ["case-1", "case-2", "case-3"] == [case.id for fact in now.facts for case in fact.body.cases]
    assert (now.index, now.digest) == (size[-1] - 1, digest("parts"))


def test_a_part_that_is_missing_or_said_twice_completes_nothing() -> None:
    """Two times part 1 of 2 are not two parts."""
    story = proposed()
    for _ in range(2):
        story.say(snapshot(story, 1, 2, "case-1"))
    found = story.log.receipts.registry.in_force("holdout", story.scope, story.log.size)
    assert found is not None
    assert found.digest == story.scenario.holdout_digest


def test_a_digests_content_is_its_first_publications(story: Story) -> None:
    """Publishing the same digest again with other content changes nothing for who pinned it."""
    candidate = story.candidate("A")
    story.until_approval(candidate)
    story.approve(candidate)
    published = next(
        event.evaluator_published
        for *_, event, _ in story.log.entries
        if event.WhichOneof("body") == "evaluator_published"
    )
    story.say(copied(published, direction=operator_pb2.DIRECTION_LOWER_IS_BETTER))
    assert {} == why(story.judged(U))


def test_a_suspect_publication_is_not_in_force(story: Story) -> None:
    """What a suspect key published stops being in force; what stood before is again."""
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    target = options_pb2.ENVIRONMENT_TARGET_PERMISSIONS
    at = story.say(operator_pb2.EnvironmentChanged(scope=story.scope, target=target, new_digest=digest("x")))
    assert {6, 7} == set(why(story.judged(U)))
    story.log.revoke("operator-1", suspect_from=at)
    assert {} == why(story.judged(U))


def test_a_freeze_is_derived_from_its_prefix(story: Story) -> None:
    """As of an earlier size, the freeze is that of the earlier publications."""
    story.write(story.scenario.proposal(story.candidate("A")))
    size = story.log.size

    def at(now: int) -> gate_pb2.UpdateFrozen:
        return derive_freeze(story.log.receipts, U, "trainer-1", is_operator=False, redo=(), size=now)

    before = at(size)
    story.say(operator_pb2.ToolContractPublished(scope=story.scope, digest=digest("new")))
    assert (at(size), at(story.log.size).tool_contract_digest) == (before, digest("new"))
