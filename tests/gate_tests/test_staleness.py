"""The table of checks.md section 4: what a change makes stale, exactly, and how an update recovers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from clients.demo.scenario import digest
from gate.report import at_risk
from ledger.errors import RefusedError
from ledger.v1 import canary_pb2, options_pb2
from ledger.v1 import operator_pb2 as o
from tests.gate_tests.editing import change
from tests.memory import CANARY, DEFAULT, Story, demo_document, small, states, why

U = "update-A"
NEW = digest("new")
ONE = options_pb2.Part(number=1, of=1)
T = options_pb2.EnvironmentTarget


def stale(code: str, *checks: int) -> dict[int, str]:
    """These checks STALE for this reason alone."""
    return dict.fromkeys(checks, f"STALE STALE_{code}")


def environment(target: T.ValueType) -> Callable[[options_pb2.Scope], Any]:
    """An environment target is now something else."""
    return lambda scope: o.EnvironmentChanged(scope=scope, target=target, new_digest=NEW)


def evaluator(scope: options_pb2.Scope) -> Any:
    """Another evaluator."""
    return o.EvaluatorPublished(
        scope=scope, name="stricter", digest=NEW, direction=o.DIRECTION_HIGHER_IS_BETTER
    )


def policy(scope: options_pb2.Scope) -> Any:
    """The same thresholds under another version."""
    document = json.loads(demo_document(small).policy_bytes) | {"version": "2"}
    return o.PolicyPublished(scope=scope, document=json.dumps(document).encode())


def holdout(scope: options_pb2.Scope) -> Any:
    """The same cases under another digest."""
    return o.SnapshotPublished(
        scope=scope, digest=NEW, purpose=o.SNAPSHOT_PURPOSE_HOLDOUT, part=ONE, cases=CASES
    )


CASES = [o.Case(id=f"{family}-{n:02d}") for family in ("refunds", "joins") for n in range(1, 6)]


def protected(snapshot: bytes | None) -> Callable[[options_pb2.Scope], Any]:
    """The first two protected cases, of the present holdout or of another."""

    def make(scope: options_pb2.Scope) -> Any:
        own = Story(demo_document(small)).scenario.holdout_digest
        family = o.ProtectedFamily(name="refunds", case_ids=["refunds-01", "refunds-02"])
        return o.ProtectedSetPublished(
            scope=scope,
            digest=digest("protected again"),
            snapshot_digest=snapshot or own,
            part=ONE,
            families=[family],
        )

    return make


def tool_contract(scope: options_pb2.Scope) -> Any:
    """Another tool contract."""
    return o.ToolContractPublished(scope=scope, digest=NEW)


def workflow(families: dict[str, int], expected: int) -> Callable[[options_pb2.Scope], Any]:
    """The workflow's next version."""
    return lambda scope: o.WorkflowDeclared(
        workflow=scope.workflow,
        version=2,
        span_families=[o.SpanFamily(name=name, minimum=least) for name, least in families.items()],
        retry_budget=options_pb2.RetryBudget(expected=expected, infrastructure=2),
        tool_contract_digest=digest("tool-contract/1"),
        content_rule=o.CONTENT_RULE_INLINE,
    )


FAMILIES = {"llm.call": 2, "tool.sql": 1, "answer.written": 1}
ALL = (1, 2, 3, 4, 5, 6, 7)
PERMISSIONS, DESTINATION = T.ENVIRONMENT_TARGET_PERMISSIONS, T.ENVIRONMENT_TARGET_DESTINATION
MODEL_SERVER, RETRY_POLICY = T.ENVIRONMENT_TARGET_MODEL_SERVER, T.ENVIRONMENT_TARGET_RETRY_POLICY
HARNESS, TOKENIZER = T.ENVIRONMENT_TARGET_HARNESS, T.ENVIRONMENT_TARGET_TOKENIZER
TASKS = T.ENVIRONMENT_TARGET_TASK_DISTRIBUTION

TABLE: dict[str, tuple[Callable[[options_pb2.Scope], Any], dict[int, str]]] = {
    "evaluator": (evaluator, stale("EVALUATOR", 4, 5)),
    "protected set": (protected(None), stale("PROTECTED_SET", 5)),
    "policy": (policy, stale("POLICY", *ALL)),
    "holdout": (holdout, stale("HOLDOUT", 4, 5, 6)),
    "task distribution": (environment(TASKS), stale("TASK_DISTRIBUTION", 4, 5, 6)),
    "permissions": (environment(PERMISSIONS), stale("PERMISSIONS", 6, 7)),
    "destination": (environment(DESTINATION), stale("DESTINATION", 6, 7)),
    "model server": (environment(MODEL_SERVER), stale("MODEL_SERVER", 6, 7)),
    "tool contract": (tool_contract, stale("TOOL_CONTRACT", 2, 4, 5, 6)),
    "harness": (environment(HARNESS), stale("HARNESS", 2, 4, 5, 6, 7)),
    "tokenizer": (environment(TOKENIZER), stale("TOKENIZER", 2, 4, 5, 6, 7)),
    "retry policy": (environment(RETRY_POLICY), stale("RETRY_POLICY", 3, 6, 7)),
    "span families": (workflow(FAMILIES | {"tool.sql": 2}, 1), stale("SPAN_FAMILIES", 2)),
    "retry budgets": (workflow(FAMILIES, 0), stale("RETRY_BUDGETS", 3)),
    "the same families and budgets again": (workflow(FAMILIES, 1), {}),
}


@pytest.mark.parametrize("what", TABLE)
def test_a_change_makes_stale_exactly_what_rests_on_it(story: Story, what: str) -> None:
    """Each row: the stale checks with their reason, no others; and a standing verdict falls."""
    make, expected = TABLE[what]
    verdict = story.until_canary_verdict(story.candidate("A"))
    assert story.standing(verdict)
    story.say(make(story.scope))
    assert expected == why(story.judged(U))
    assert story.standing(verdict) is not bool(expected)


@pytest.mark.parametrize("what", TABLE)
def test_a_change_elsewhere_makes_nothing_stale(story: Story, what: str) -> None:
    """What is published for another segment, or for `*` where the segment has its own, is no concern."""
    verdict = story.until_canary_verdict(story.candidate("A"))
    for scope in (
        options_pb2.Scope(workflow=story.scope.workflow, segment="de-internal"),
        options_pb2.Scope(workflow="other-agent", segment=story.scope.segment),
        options_pb2.Scope(workflow=story.scope.workflow, segment="*"),
    ):
        body = TABLE[what][0](scope)
        if not (isinstance(body, o.WorkflowDeclared) and body.workflow == story.scope.workflow):
            story.say(body)
    assert {} == why(story.judged(U))
    assert story.standing(verdict)


def test_the_star_is_in_force_where_the_segment_has_nothing() -> None:
    """A publication for `*` counts until the segment has its own, whichever came later."""
    story = Story(demo_document(small))
    star = change("evaluator_published", lambda b: setattr(b.scope, "segment", "*"))
    story.setup(star)
    story.until_canary_verdict(story.candidate("A"))
    story.say(evaluator(options_pb2.Scope(workflow=story.scope.workflow, segment="*")))
    assert why(story.judged(U)) == stale("EVALUATOR", 4, 5)
    own = evaluator(story.scope)
    own.digest = story.scenario.evaluator_digest
    story.say(own)
    assert {} == why(story.judged(U))


def test_changed_back_is_not_stale_but_a_verdict_stays_fallen(story: Story) -> None:
    """Stale is a difference between what was used and what is in force; a verdict falls at the first."""
    verdict = story.until_canary_verdict(story.candidate("A"))
    before = next(
        p.digest
        for p in story.record(story.candidate("A")).of("update_frozen")[0].body.environment
        if p.target == PERMISSIONS
    )
    story.say(environment(PERMISSIONS)(story.scope))
    story.say(o.EnvironmentChanged(scope=story.scope, target=PERMISSIONS, old_digest=NEW, new_digest=before))
    assert {} == why(story.judged(U))
    assert not story.standing(verdict)


def test_an_evaluator_concerns_the_canary_where_it_judged(story: Story) -> None:
    """Check 6 rests on the evaluator if it judged a canary task, and on no evaluator otherwise."""
    candidate = story.candidate("A")
    used = story.scenario.evaluator_digest
    judged = change("canary_task_recorded", lambda b: setattr(b, "evaluator_digest", used))
    story.until_approval(candidate, judged)
    story.approve(candidate)
    assert {} == why(story.judged(U))
    story.say(evaluator(story.scope))
    assert why(story.judged(U)) == stale("EVALUATOR", 4, 5, 6)


def test_a_canary_judged_by_another_evaluator_than_the_one_in_force(story: Story) -> None:
    """What a canary task was judged by is compared with what is in force, not only the pin."""
    candidate = story.candidate("A")
    story.until_approval(
        candidate, change("canary_task_recorded", lambda b: setattr(b, "evaluator_digest", NEW))
    )
    story.approve(candidate)
    assert why(story.judged(U)) == stale("EVALUATOR", 6)


def test_parent(story: Story) -> None:
    """When another update became default, checks 1, 4, 5 and 7 are stale, and no re-freeze helps."""
    a, b = story.candidate("A"), story.candidate("B")
    fallen = story.until_canary_verdict(a)
    story.until_promoted(b)
    assert why(story.judged(U)) == stale("PARENT", 1, 4, 5, 7)
    assert not story.standing(fallen)
    with pytest.raises(RefusedError, match="PARENT_NOT_DEFAULT"):
        story.freeze(U, by="operator-1")


def test_own_promotion_stales_nothing(story: Story) -> None:
    """The default is now the candidate and not the parent any more: that is what was wanted."""
    candidate = story.candidate("A")
    story.until_promoted(candidate)
    default = story.default()
    assert default is not None
    assert [{}, {}] == [why(story.judged(U, step)) for step in (CANARY, DEFAULT)]
    assert [] == at_risk(story.log.receipts, default)


def test_a_superseded_promotion_is_stale(story: Story) -> None:
    """When another update replaced U's promotion, the default is neither U's parent nor U's own."""
    a, c = story.candidate("A"), story.candidate("C")
    story.until_promoted(a)
    promoted = story.scenario.candidate_digest(a)
    next_parent = change("update_proposed", lambda b: setattr(b, "parent_digest", promoted))
    promote_on_top(story, c, next_parent, promoted)
    assert why(story.judged(U, DEFAULT)) == stale("PARENT", 1, 4, 5, 7)


def promote_on_top(story: Story, candidate: Any, proposal: Any, parent: bytes) -> int:
    """Candidate's whole story with another parent than the baseline; returns the promotion's index."""

    def mutate(phase: str, events: Any) -> Any:
        for event in proposal(phase, events):
            body = getattr(event, event.WhichOneof("body"))
            if hasattr(body, "parent_digest"):
                body.parent_digest = parent
            if event.WhichOneof("body") == "evaluation_recorded" and body.subject == 1:
                body.subject_digest = parent
            yield event

    story.until_approval(candidate, mutate)
    story.approve(candidate)
    verdict = story.verdict(story.scenario.update_id(candidate))
    story.live(candidate, verdict, mutate=mutate)
    story.approve(candidate, DEFAULT, by="approver-2")
    return story.promote(story.verdict(story.scenario.update_id(candidate), DEFAULT))


# --- recovery ----------------------------------------------------------------------------------------------

NEW_EVALUATION = {4: "MISSING EVALUATION_ABSENT", 5: "MISSING EVALUATION_ABSENT"}
NEW_WINDOW = {6: "MISSING WINDOW_ABSENT", 7: "MISSING APPROVAL_OTHER_DIGEST,REHEARSAL_ABSENT"}
LAPSED = {7: "MISSING APPROVAL_OTHER_DIGEST"}

# what -> (after the re-freeze, does it need new evaluations, new windows, what stays stale)
RECOVERY: dict[str, tuple[dict[int, str], bool, bool, dict[int, str]]] = {
    "evaluator": (NEW_EVALUATION | LAPSED, True, False, {}),
    "protected set": (LAPSED, False, False, {}),
    "policy": (LAPSED, False, False, {}),
    "holdout": (NEW_EVALUATION | NEW_WINDOW, True, True, {}),
    "task distribution": (NEW_EVALUATION | NEW_WINDOW, True, True, {}),
    "permissions": (NEW_WINDOW, False, True, {}),
    "destination": (NEW_WINDOW, False, True, {}),
    "model server": (NEW_WINDOW, False, True, {}),
    "tool contract": (
        NEW_EVALUATION | NEW_WINDOW | stale("TOOL_CONTRACT", 2),
        True,
        True,
        stale("TOOL_CONTRACT", 2),
    ),
    "retry policy": (NEW_WINDOW | stale("RETRY_POLICY", 3), False, True, stale("RETRY_POLICY", 3)),
    "span families": (LAPSED | stale("SPAN_FAMILIES", 2), False, False, stale("SPAN_FAMILIES", 2)),
    "retry budgets": (LAPSED | stale("RETRY_BUDGETS", 3), False, False, stale("RETRY_BUDGETS", 3)),
}


@pytest.mark.parametrize("what", RECOVERY)
def test_recovery(story: Story, what: str) -> None:
    """A re-freeze by the operator, then exactly the evidence made again that rests on what changed."""
    after, evaluations, windows, stays = RECOVERY[what]
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    story.say(TABLE[what][0](story.scope))
    if what == "holdout":  # the protected set must lie within it
        story.say(protected(NEW)(story.scope))
    story.freeze(U, by="operator-1")
    assert after == why(story.judged(U))
    if evaluations:
        story.evaluate_again(candidate)
    if windows:
        story.window(candidate, "window-again")
    story.approve(candidate, edit=lambda b: setattr(b, "approval", "again"))
    assert stays == why(story.judged(U))
    assert [] == story.log.replay.faults


@pytest.mark.parametrize("target", [HARNESS, TOKENIZER])
def test_harness_and_tokenizer_are_the_trainers_choice(story: Story, target: T.ValueType) -> None:
    """What the proposal chose cannot be re-frozen to something else: a new update is needed."""
    story.until_canary_verdict(story.candidate("A"))
    story.say(environment(target)(story.scope))
    with pytest.raises(RefusedError, match="NOT_IN_FORCE"):
        story.freeze(U, by="operator-1")


def test_a_new_update_recovers_what_a_refreeze_cannot(story: Story) -> None:
    """After the tool contract changed, an update trained under the new one passes."""
    story.until_canary_verdict(story.candidate("A"))
    story.say(tool_contract(story.scope))
    story.until_evidence(story.candidate("B"))
    story.window(story.candidate("B"), "window-B")
    story.approve(story.candidate("B"))
    assert {} == why(story.judged("update-B"))


def test_evidence_made_between_change_and_refreeze_does_not_count(story: Story) -> None:
    """Only evidence made after the re-freeze counts for what changed (law 11)."""
    candidate = story.candidate("A")
    story.until_canary_verdict(candidate)
    story.say(environment(PERMISSIONS)(story.scope))

    def under_the_new(started: canary_pb2.CanaryStarted) -> None:
        for part in started.environment:
            if part.target == PERMISSIONS:
                part.digest = NEW

    story.window(candidate, "window-too-early", under_the_new)
    story.freeze(U, by="operator-1")
    assert "MISSING" == states(story.judged(U))[6]


def test_a_refreeze_needs_an_operator(story: Story) -> None:
    """The trainer freezes first; every later freeze is the operator's."""
    story.until_evidence(story.candidate("A"))
    with pytest.raises(RefusedError, match="NOT_AN_OPERATOR"):
        story.freeze(U)
    story.freeze(U, by="operator-1")
    assert [] == story.log.replay.faults
