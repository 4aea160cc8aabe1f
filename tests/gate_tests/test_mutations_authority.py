"""One-fact mutations of candidate A's approval, that check 7 reads. Source: checks.md section 3."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from clients.demo.document import Candidate
from clients.demo.scenario import digest
from ledger.trust import Grant
from ledger.v1 import approver_pb2, canary_pb2, operator_pb2, options_pb2
from tests.gate_tests.editing import copied
from tests.gate_tests.rows import Row, check, each, play
from tests.memory import (
    DEFAULT,
    HUMAN,
    PRINCIPALS,
    RELEASE_ACTOR,
    SECOND,
    MemoryLog,
    Story,
    counts,
    demo_document,
    principal,
    small,
    why,
)

U = "update-A"
HOUR = 3600 * SECOND
After = Callable[[Story, Candidate], None]


def nobody(story: Story, candidate: Candidate) -> None:
    """Nobody approves."""


def by(name: str) -> After:
    """Approved by this approver."""
    return lambda story, candidate: story.approve(candidate, by=name)


def for_(**changes: Any) -> After:
    """Approved, but for something else."""

    def approve(story: Story, candidate: Candidate) -> None:
        def edit(body: Any) -> None:
            for name, value in changes.items():
                setattr(body, name, value)

        story.approve(candidate, edit=edit)

    return approve


def then(*bodies: tuple[str | None, Any]) -> After:
    """Approved; then somebody writes something."""

    def approve(story: Story, candidate: Candidate) -> None:
        story.approve(candidate)
        for author, body in bodies:
            story.say(body, author)

    return approve


def both(*steps: After) -> After:
    """One after the other."""

    def approve(story: Story, candidate: Candidate) -> None:
        for step in steps:
            step(story, candidate)

    return approve


def after(microseconds: int) -> After:
    """Approved; then time passes until somebody writes something of no concern."""

    def approve(story: Story, candidate: Candidate) -> None:
        story.approve(candidate)
        story.log.tick(microseconds)
        story.say(operator_pb2.BlobErased(digest=digest("blob"), reason="asked for"))

    return approve


def changed_evidence(story: Story, candidate: Candidate) -> None:
    """The way back is rehearsed once more: the last one decides, so the evidence is another."""
    (rehearsed,) = story.record(candidate).of("rollback_rehearsed")
    story.say(copied(rehearsed.body))


def owner(name: str, controller_of: str) -> dict[str, Grant]:
    """The approver belongs to the controller of another principal."""
    return {
        name: principal(
            name,
            options_pb2.ROLE_APPROVER,
            PRINCIPALS[controller_of].controller,
            approver_kind=HUMAN,
        )
    }


WITHDRAWN = approver_pb2.ApprovalWithdrawn(update=U, approval="approval-A-canary")
NOT_NAMED, DEPENDENT = "FAIL APPROVER_NOT_NAMED", "FAIL APPROVER_NOT_INDEPENDENT"

APPROVAL = (
    Row("nobody approved", {7: "MISSING APPROVAL_NONE"}, approve=nobody),
    Row("an approver who is not named", {7: NOT_NAMED}, approve=by("approver-3")),
    Row("the approver of the other step", {7: NOT_NAMED}, approve=by("approver-2")),
    Row("a named and an unnamed approver", {}, approve=both(by("approver-3"), by("approver-1"))),
    *(
        Row(
            f"the approver belongs to the controller of {name}",
            {7: DEPENDENT},
            principals=owner("approver-1", name),
        )
        for name in ("runner-1", "trainer-1", "judge-1", "canary-1", "gate-1")
    ),
    *(
        Row(f"the approver belongs to the controller of {name}", {}, principals=owner("approver-1", name))
        for name in ("operator-1", "approver-2", "judge-2")
    ),
    Row(
        "approved for other evidence",
        {7: "MISSING APPROVAL_OTHER_DIGEST"},
        approve=for_(evidence_digest=digest("x")),
    ),
    Row(
        "approved for another policy",
        {7: "MISSING APPROVAL_OTHER_DIGEST"},
        approve=for_(policy_digest=digest("x")),
    ),
    Row("approved for the other step", {7: "MISSING APPROVAL_NONE"}, approve=for_(step=DEFAULT)),
    Row(
        "the evidence changed afterwards",
        {7: "MISSING APPROVAL_OTHER_DIGEST"},
        approve=both(by("approver-1"), changed_evidence),
    ),
    Row(
        "the evidence changed and was approved again, under the same id",
        {},
        approve=both(by("approver-1"), changed_evidence, by("approver-1")),
    ),
    Row("at the last moment of its expiry", {}, approve=after(HOUR)),
    Row("a microsecond after its expiry", {7: "MISSING APPROVAL_EXPIRED"}, approve=after(HOUR + 1)),
    Row("withdrawn", {7: "MISSING APPROVAL_WITHDRAWN"}, approve=then((None, WITHDRAWN))),
    Row(
        "withdrawn, then approved again under the same id",
        {7: "MISSING APPROVAL_WITHDRAWN"},
        approve=both(then((None, WITHDRAWN)), by("approver-1")),
    ),
    Row(
        "withdrawn, then approved under another id",
        {},
        approve=both(then((None, WITHDRAWN)), for_(approval="approval-2")),
    ),
    Row("another approver withdraws it", {}, approve=then(("approver-2", WITHDRAWN))),
    Row("something else is withdrawn", {}, approve=then((None, copied(WITHDRAWN, approval="approval-0")))),
    Row(
        "each approval lacks something else",
        {7: "MISSING APPROVAL_EXPIRED,APPROVAL_OTHER_DIGEST"},
        approve=both(for_(evidence_digest=digest("x"), expires_at=1 << 50), for_(expires_at=1)),
    ),
)


@each(APPROVAL)
def test_approval(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


@pytest.mark.parametrize(("bound_to_it", "expected"), [(True, {}), (False, {7: NOT_NAMED})])
def test_release_actor(*, bound_to_it: bool, expected: dict[int, str]) -> None:
    """A release actor approves under the one policy that its key was granted for, and under no other."""

    def named(raw: dict[str, Any]) -> None:
        small(raw)
        raw["policy"]["principals"]["canary_approvers"] = ["actor-1"]

    document = demo_document(named)
    policy_digest = (
        hashlib.sha256(document.policy_bytes).digest() if bound_to_it else digest("another policy")
    )
    actor = principal(
        "actor-1", options_pb2.ROLE_APPROVER, approver_kind=RELEASE_ACTOR, policy_digest=policy_digest
    )
    story = Story(document, MemoryLog({**PRINCIPALS, "actor-1": actor}))
    story.setup()
    story.until_approval(story.candidate("A"))
    story.approve(story.candidate("A"), by="actor-1")
    assert expected == why(story.judged(U))


def test_an_approval_is_counted_with_what_it_lacks() -> None:
    """Counts show how many approvals there are and how many fulfil everything."""
    _, judgement = play(Row("", {}, approve=both(by("approver-3"), by("approver-1"))))
    shown = counts(judgement, 7)
    assert (2, 1) == (shown["approvals"], shown["fulfilling"])


def test_evidence_of_no_other_step_is_approved() -> None:
    """A LIVE window changes the evidence of step default, and leaves that of step canary as it was."""
    story = Story(demo_document(small))
    story.setup()
    candidate = story.candidate("A")
    verdict = story.until_canary_verdict(candidate)
    before = {step: story.judged(U, step).evidence_digest for step in (1, 2)}
    story.live(candidate, verdict)
    now = {step: story.judged(U, step).evidence_digest for step in (1, 2)}
    assert before[options_pb2.STEP_CANARY] == now[options_pb2.STEP_CANARY]
    assert before[DEFAULT] != now[DEFAULT]
    (live,) = [
        f for f in story.record(candidate).of("canary_started") if f.body.kind == canary_pb2.WINDOW_KIND_LIVE
    ]
    assert story.record(candidate).live == {live.index: None}
