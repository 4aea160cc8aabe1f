"""One-fact mutations of candidate A that checks 4 and 5 read. Source: checks.md section 3.

Ten cases: `refunds-01` … `refunds-05` protected, `joins-01` … `joins-05` not; the parent solves the first
six, the candidate two more, so that the gain is 1/5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clients.demo.scenario import digest
from ledger.v1 import judge_pb2, operator_pb2
from tests.gate_tests.editing import authored, both, change, copied, drop, insert, last
from tests.gate_tests.rows import Row, candidate_a, check, each, play, policy
from tests.memory import Mutation, Story, counts, demo_document, small, states, why

RECORDED, CLOSED = "evaluation_recorded", "evaluation_closed"
BOTH = (4, 5)


def missing(*codes: str, checks: tuple[int, ...] = BOTH) -> dict[int, str]:
    """These checks MISSING for these reasons."""
    return {number: f"MISSING {','.join(sorted(codes))}" for number in checks}


def of(subject: int) -> Callable[[Any], bool]:
    """Parts about a subject."""
    return lambda body: body.subject == subject


CANDIDATE, PARENT = of(judge_pb2.SUBJECT_CANDIDATE), of(judge_pb2.SUBJECT_PARENT)


def score_of(case: str, edit: Callable[[Any], object], where: Callable[[Any], bool] = CANDIDATE) -> Mutation:
    """Edits the candidate's (or parent's) score of a case."""
    return change(
        RECORDED, lambda body: [edit(score) for score in body.scores if score.case_id == case], 0, where
    )


def without(case: str, where: Callable[[Any], bool] = CANDIDATE) -> Mutation:
    """The candidate's (or parent's) score of a case is left out, and the totals say so."""

    def edit(body: Any) -> None:
        kept = [score for score in body.scores if score.case_id != case]
        del body.scores[:]
        body.scores.extend(kept)

    def fewer(body: Any) -> None:
        body.results -= 1

    name = "A-candidate" if where is CANDIDATE else "A-parent"
    return both(change(RECORDED, edit, 0, where), change(CLOSED, fewer, where=lambda b: b.evaluation == name))


def twice(case: str) -> Mutation:
    """The candidate's part is said again with another score for a case."""

    def make(body: Any) -> Any:
        other = copied(body)
        for score in other.scores:
            if score.case_id == case:
                score.score = 1.0 - score.score
        return other

    return insert(RECORDED, make, where=CANDIDATE)


def in_two_parts(*, with_second: bool) -> Mutation:
    """The candidate's evaluation in two parts, the second with the last unprotected case."""

    def cut(body: Any) -> None:
        body.part.of = 2
        del body.scores[-1]

    def second(body: Any) -> Any:
        part = copied(body)
        part.part.number = 2
        del part.scores[:]
        part.scores.add(case_id="joins-05", trial=0, score=0.0)
        return part

    steps = [change(RECORDED, cut, 0, CANDIDATE)]
    if with_second:
        steps.append(insert(RECORDED, second, where=CANDIDATE))
    steps.append(change(CLOSED, lambda b: setattr(b, "parts", 2), 1))
    return both(*steps)


def unscorable(score: Any) -> None:
    """No score, and why."""
    score.unscorable = "the judge timed out"


def all_scores(value: float) -> Callable[[Any], None]:
    """Every score of a part becomes the value."""

    def edit(body: Any) -> None:
        for score in body.scores:
            score.score = value

    return edit


def another_evaluation(value: float, *, before: bool, by: str | None = None) -> Mutation:
    """A second evaluation of the candidate in which every case has the score."""

    def recorded(body: Any) -> Any:
        other = copied(body, evaluation="another")
        all_scores(value)(other)
        return other

    close = judge_pb2.EvaluationClosed(update="update-A", evaluation="another", parts=1, results=10)
    return both(last("evaluations", close), insert(RECORDED, recorded, where=CANDIDATE, before=before, by=by))


def pinned(field: str) -> Mutation:
    """The candidate's evaluation names another digest than the frozen one."""
    return change(RECORDED, lambda body: setattr(body, field, digest("another")), 0, CANDIDATE)


EVALUATION = (
    Row("no evaluation of the candidate", missing("EVALUATION_ABSENT"), drop(RECORDED, 0, CANDIDATE)),
    Row("no evaluation of the parent", missing("EVALUATION_ABSENT"), drop(RECORDED, 0, PARENT)),
    Row("another subject digest", missing("EVALUATION_ABSENT"), pinned("subject_digest")),
    Row("another evaluator", missing("EVALUATION_ABSENT"), pinned("evaluator_digest")),
    Row("another harness", missing("EVALUATION_ABSENT"), pinned("harness_digest")),
    Row("another snapshot", missing("EVALUATION_ABSENT"), pinned("snapshot_digest")),
    Row("not closed", missing("EVALUATION_OPEN"), drop(CLOSED, 1)),
    Row("closed twice, equally", {}, insert(CLOSED, copied, 1)),
    Row(
        "closed twice, differently",
        {4: "ERROR CONFLICT", 5: "ERROR CONFLICT"},
        insert(CLOSED, lambda b: copied(b, results=9), 1),
    ),
    Row("two parts", {}, in_two_parts(with_second=True)),
    Row(
        "the second part is not there",
        {4: "MISSING CASE_UNSCORED,PART_MISSING", 5: "MISSING PART_MISSING"},
        in_two_parts(with_second=False),
    ),
    Row(
        "fewer scores than the totals say",
        missing("PART_MISSING"),
        change(CLOSED, lambda b: setattr(b, "results", 11), 1),
    ),
    Row("an unprotected case has no score", missing("CASE_UNSCORED", checks=(4,)), without("joins-05")),
    Row("a protected case has no score", missing("CASE_UNSCORED"), without("refunds-02")),
    Row(
        "the parent has no score of a protected case", missing("CASE_UNSCORED"), without("refunds-02", PARENT)
    ),
    Row(
        "an unprotected case is unscorable",
        missing("TOO_FEW_TRIALS", "UNSCORABLE", checks=(4,)),
        score_of("joins-05", unscorable),
    ),
    Row(
        "a protected case is unscorable",
        missing("TOO_FEW_TRIALS", "UNSCORABLE"),
        score_of("refunds-02", unscorable),
    ),
    Row(
        "fewer trials than required",
        missing("TOO_FEW_TRIALS"),
        document=policy(beats_parent={"min_trials": 2}),
    ),
    Row("an unprotected case scored twice, differently", {4: "ERROR CONFLICT"}, twice("joins-02")),
    Row(
        "a protected case scored twice, differently",
        {4: "ERROR CONFLICT", 5: "ERROR CONFLICT"},
        twice("refunds-02"),
    ),
    Row("a part said twice, equally", {}, insert(RECORDED, copied, where=CANDIDATE)),
    Row(
        "a score of a case outside the holdout",
        {},
        both(
            change(RECORDED, lambda b: b.scores.add(case_id="elsewhere", trial=0, score=-9.0), 0, CANDIDATE),
            change(CLOSED, lambda b: setattr(b, "results", 11), 1),
        ),
    ),
    Row(
        "evaluated by a judge who is not pinned", missing("EVALUATION_ABSENT"), authored(RECORDED, "judge-2")
    ),
    Row("closed by a judge who is not pinned", missing("EVALUATION_OPEN"), authored(CLOSED, "judge-2")),
    Row("a judge who is not pinned evaluates first", {}, another_evaluation(0.0, before=True, by="judge-2")),
    Row("a second, kinder evaluation", {}, another_evaluation(1.0, before=False)),
    Row("a second, worse evaluation", {}, another_evaluation(0.0, before=False)),
    Row(
        "a worse evaluation first",
        {4: "FAIL NO_GAIN", 5: "FAIL CASES_REGRESSED"},
        another_evaluation(0.0, before=True),
    ),
    Row("no gain", {4: "FAIL NO_GAIN"}, document=candidate_a(evaluation={"gain": "0"})),
    Row("a loss", {4: "FAIL NO_GAIN"}, document=candidate_a(evaluation={"gain": "-0.1"})),
    Row("a gain of exactly the margin", {4: "FAIL NO_GAIN"}, document=policy(beats_parent={"margin": "0.2"})),
    Row(
        "a gain just above the margin", {}, document=policy(beats_parent={"margin": "0.19999999999999999999"})
    ),
    Row(
        "a gain where lower is better",
        {4: "FAIL NO_GAIN"},
        change(
            "evaluator_published", lambda b: setattr(b, "direction", operator_pb2.DIRECTION_LOWER_IS_BETTER)
        ),
    ),
    Row(
        "a protected case regresses",
        {5: "FAIL CASES_REGRESSED"},
        document=candidate_a(evaluation={"protected_regressions": 1, "gain": "0.1"}),
    ),
    Row(
        "a protected case regresses within its family's budget",
        {},
        change("protected_set_published", lambda b: setattr(b.families[0], "regression_budget", 1)),
        candidate_a(evaluation={"protected_regressions": 1, "gain": "0.1"}),
    ),
    Row("an unprotected case regresses", {}, score_of("joins-01", lambda s: setattr(s, "score", 0.0))),
    Row(
        "no protected case",
        {5: "MISSING NO_PROTECTED_CASE"},
        document=lambda raw: raw["holdout"].update(protected=[]),
    ),
    Row(
        "a holdout without cases, none protected",
        {4: "MISSING CASE_UNSCORED", 5: "MISSING NO_PROTECTED_CASE"},
        both(
            change("snapshot_published", lambda b: b.ClearField("cases"), 1),
            change("protected_set_published", lambda b: b.ClearField("families")),
        ),
    ),
)


@each(EVALUATION)
def test_evaluation(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


def test_trials_are_averaged_per_case() -> None:
    """A case with more trials weighs as much as one with fewer: the mean of its scores, exactly."""

    def more(body: Any) -> None:
        for trial in (1, 2):
            body.scores.add(case_id="joins-05", trial=trial, score=1.0)

    mutate = both(
        change(RECORDED, more, 0, CANDIDATE), change(CLOSED, lambda b: setattr(b, "results", 12), 1)
    )
    _, judgement = play(Row("", {}, mutate))
    assert {} == why(judgement)
    assert 200_000 + 66_666 == counts(judgement, 4)["gain_millionths"]  # joins-05: 0 → 2/3, a tenth of it


def test_a_repeated_part_adds_no_case() -> None:
    """A part said again with one case more leaves that case unscored: what is not evidence scores nothing."""

    def longer(body: Any) -> Any:
        part = copied(body)
        part.scores.add(case_id="joins-05", trial=0, score=1.0)
        return part

    mutate = both(without("joins-05"), insert(RECORDED, longer, where=CANDIDATE))
    _, judgement = play(Row("", {}, mutate))
    assert why(judgement) == missing("CASE_UNSCORED", checks=(4,))


def test_a_case_said_twice_in_one_part(story: Story) -> None:
    """The same score of the same trial again is one score; the totals count what was said."""

    def again(body: Any) -> None:
        body.scores.append(body.scores[0])

    mutate = both(
        change(RECORDED, again, 0, CANDIDATE), change(CLOSED, lambda b: setattr(b, "results", 11), 1)
    )
    story.until_approval(story.candidate("A"), mutate)
    story.approve(story.candidate("A"))
    assert {} == why(story.judged("update-A"))


def test_the_holdout_wears_out() -> None:
    """Candidates judged on the holdout before are counted; beyond the policy's bound check 4 fails."""

    def one_before(raw: dict[str, Any]) -> None:
        small(raw)
        raw["policy"]["beats_parent"]["max_candidates_judged_before"] = 1

    story = Story(demo_document(one_before))
    story.setup()
    judged = []
    for name in ("A", "B", "C"):
        story.until_approval(story.candidate(name))
        story.approve(story.candidate(name))
        judgement = story.judged(f"update-{name}")
        judged.append((counts(judgement, 4)["judged_before"], why(judgement)))
    assert [(0, {}), (1, {}), (2, {4: "FAIL HOLDOUT_OVERUSED"})] == judged
    story.log.revoke("judge-1", suspect_from=0)
    assert "MISSING" == states(story.judged("update-C"))[4]
