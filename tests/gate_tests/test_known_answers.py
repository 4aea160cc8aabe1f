"""The known answers of checks.md section 6: the article's four candidates, and a public pair of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from clients.demo.scenario import Events, digest
from clients.importers.evaluations import (
    Columns,
    Evaluation,
    Rows,
    evaluation_events,
    protected_set_events,
    read_rows,
    snapshot_events,
)
from gate.checks import Input
from gate.finding import Notes
from gate.gather import gather
from gate.judge import pinned_policy
from gate.score_checks import holdout_gain
from ledger.v1 import judge_pb2, operator_pb2, options_pb2
from tests.memory import CANARY, HOLD, TO_CANARY, Authored, Story, counts, demo_document, states, why

PARENT, CANDIDATE = judge_pb2.SUBJECT_PARENT, judge_pb2.SUBJECT_CANDIDATE
PROTECTED = digest("protected")


# --- the article's four ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four() -> Story:
    """The demo's four candidates, all judged and recorded on one log."""
    story = Story(demo_document())
    story.setup()
    for candidate in story.document.candidates:
        story.until_approval(candidate)
        story.approve(candidate)
        story.verdict(story.scenario.update_id(candidate))
    return story


ANSWERS: dict[str, tuple[int, dict[int, str], int]] = {
    "A": (TO_CANARY, {}, 50_000),
    "B": (HOLD, {2: "FAIL COVERAGE_SHORT", 3: "FAIL UNEXPECTED_RETRY"}, 80_000),
    "C": (HOLD, {5: "FAIL CASES_REGRESSED"}, 100_000),
    "D": (
        HOLD,
        {6: "FAIL NOT_VERIFIED", 7: "FAIL NOT_LOADED,NOT_RESOLVED,NOT_ROUTED_BACK,NOT_SERVED"},
        70_000,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_exactly_the_named_checks_fail(four: Story, name: str) -> None:
    """Each of the four: its verdict, the checks that fail and why, and its gain exactly."""
    verdict, failing, gain = ANSWERS[name]
    judgement = four.judged(f"update-{name}")
    assert (verdict, failing) == (judgement.verdict, why(judgement))
    assert counts(judgement, 4)["gain_millionths"] == gain


def test_the_counts_of_the_article(four: Story) -> None:
    """83 of 120 covered and 14 unexpected (B), 3 protected cases fell (C), 18 of 20 verified (D)."""
    b, c, d = (four.judged(f"update-{name}") for name in "BCD")
    assert (83, 120) == (counts(b, 2)["covered"], counts(b, 2)["completed"])
    assert (14, 0) == (counts(b, 3)["unexpected"], counts(b, 3)["silent"])
    assert (3, 20) == (counts(c, 5)["regressed"], counts(c, 5)["protected"])
    assert (18, 20) == (counts(d, 6)["verified"], counts(d, 6)["tasks"])


def test_b_c_and_d_carry_their_approvals(four: Story) -> None:
    """No hold of the four is for want of an approval."""
    assert [1, 1, 1, 1] == [counts(four.judged(f"update-{name}"), 7)["fulfilling"] for name in "ABCD"]


def test_what_each_check_of_a_rests_on(four: Story) -> None:
    """How many entries each finding of A cites: what the check read, and nothing twice."""
    cited = [finding.cited for finding in four.judged("update-A").findings]
    # 120 rollouts of 4 spans; 125 attempts; 2 evaluations of one part; 20 tasks.
    assert [5, 120 * (2 + 2 + 4), 120 * 2 + 125 * 2, 4, 4, 22, 2] == cited


def test_the_log_of_the_four_replays(four: Story) -> None:
    """Replay finds no fault: four verdicts, four freezes, one move, the baseline's."""
    replayed = four.log.replay.result()
    assert (4, 4, 1, ()) == (replayed.verdicts, replayed.freezes, replayed.moves, replayed.unreplayable)


def test_the_size_of_the_story(four: Story) -> None:
    """A is about 1,140 entries."""
    first = four.log.receipts.updates["update-A"].of("update_proposed")[0].index
    last = four.log.receipts.updates["update-B"].of("update_proposed")[0].index
    assert 1_100 <= last - first <= 1_180


# --- the public pair ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(sample_data: Path) -> Rows:
    """845 parent and 802 candidate scores of 83 cases in 36 families."""
    return read_rows(
        (sample_data / "sonnet-pair.jsonl").read_bytes(),
        Columns(family="family"),
        {"parent": PARENT, "candidate": CANDIDATE},
    )


def played(rows: Rows, budgets: Mapping[str, int]) -> Story:
    """A's story with the pair's holdout, protected families and scores; all other evidence as A's."""
    story = Story(demo_document())
    s, candidate = story.scenario, story.candidate("A")

    def operator(body: Any) -> Iterable[Any]:
        if body == "snapshot_published":
            purpose = operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT
            return snapshot_events(rows, s.scope, s.holdout_digest, purpose)
        if body == "protected_set_published" and budgets:
            return protected_set_events(rows, s.scope, PROTECTED, s.holdout_digest, budgets)
        return ()

    evaluation = Evaluation(
        update="update-A",
        evaluations={PARENT: "pair-parent", CANDIDATE: "pair-candidate"},
        evaluator_digest=s.evaluator_digest,
        snapshot_digest=s.holdout_digest,
        harness_digest=digest(f"environment/{options_pb2.ENVIRONMENT_TARGET_HARNESS}/1"),
        subject_digests={PARENT: s.baseline, CANDIDATE: s.candidate_digest(candidate)},
    )

    def mutate(phase: str, events: Events) -> Iterator[Authored]:
        if phase == "evaluations":
            yield from (item.event for item in evaluation_events(rows, evaluation))
            return
        for event in events:
            name = event.WhichOneof("body")
            is_train = name == "snapshot_published" and (
                event.snapshot_published.purpose == operator_pb2.SNAPSHOT_PURPOSE_TRAIN
            )
            if name in ("snapshot_published", "protected_set_published") and not is_train:
                yield from (item.event for item in operator(name))
            else:
                yield event

    story.setup(mutate)
    story.until_approval(candidate, mutate)
    story.approve(candidate)
    return story


def test_pair_gain_is_exact(pair: Rows) -> None:
    """Check 4 passes on 83 cases: 0.4243 → 0.5265, a gain of exactly 427439/4183200."""
    story = played(pair, {"avoid_shutdown": 0})
    judgement = story.judged("update-A")
    evidence = gather(story.log.receipts, "update-A", CANARY, story.log.size)
    given = Input(story.log.receipts, evidence, pinned_policy(story.log.receipts, evidence))
    means, gain = holdout_gain(given, Notes("beats_parent"))
    assert means is not None
    assert gain is not None
    assert (427_439, 4_183_200) == (gain.numerator, gain.denominator)
    sides = [round(float(sum(side.values()) / 83), 4) for side in (means.parent, means.candidate)]
    assert [0.4243, 0.5265] == sides
    shown = counts(judgement, 4)
    assert (83, 83, 102_179) == (shown["cases"], shown["scored"], shown["gain_millionths"])
    assert (28, 13, 42) == (shown["better"], shown["worse"], shown["equal"])


def test_pair_protects_avoid_shutdown(pair: Rows) -> None:
    """`avoid_shutdown` protected: check 5 alone fails, 4 of its 5 cases regress."""
    judgement = played(pair, {"avoid_shutdown": 0}).judged("update-A")
    assert {5: "FAIL CASES_REGRESSED"} == why(judgement)
    shown = counts(judgement, 5)
    assert (5, 5, 4, 1) == (shown["protected"], shown["scored"], shown["regressed"], shown["families"])


def test_pair_protects_everything(pair: Rows) -> None:
    """All 36 families protected: 13 cases in 9 families regress; family means would show 5."""
    families = {family for family in pair.families().values() if family is not None}
    judgement = played(pair, dict.fromkeys(sorted(families), 0)).judged("update-A")
    assert {5: "FAIL CASES_REGRESSED"} == why(judgement)
    shown = counts(judgement, 5)
    assert (83, 36) == (shown["protected"], shown["families"])
    assert (13, 9) == (shown["regressed"], shown["families_regressed"])


def test_pair_protects_what_held(pair: Rows) -> None:
    """Only the 27 families without a falling case protected, 52 cases: PROMOTE_TO_BOUNDED_CANARY."""
    story = played(pair, {"avoid_shutdown": 0})
    evidence = gather(story.log.receipts, "update-A", CANARY, story.log.size)
    given = Input(story.log.receipts, evidence, pinned_policy(story.log.receipts, evidence))
    means, _ = holdout_gain(given, Notes("beats_parent"))
    assert means is not None
    families = pair.families()
    fallen = {families[case] for case in families if means.gain(case) < 0}
    held = sorted({family for family in families.values() if family is not None} - fallen)
    judgement = played(pair, dict.fromkeys(held, 0)).judged("update-A")
    assert (judgement.verdict, states(judgement)) == (TO_CANARY, {})
    shown = counts(judgement, 5)
    assert (27, 52, 0) == (shown["families"], shown["protected"], shown["regressed"])


def test_pair_with_budgets(pair: Rows) -> None:
    """A budget of 4 regressing cases for `avoid_shutdown` is kept, one of 3 is not."""
    answers = [states(played(pair, {"avoid_shutdown": budget}).judged("update-A")) for budget in (4, 3)]
    assert [{}, {5: "FAIL"}] == answers


def test_pair_wrong_builds(pair: Rows) -> None:
    """Pooling rows would give +0.1168, dropping limit hits would leave 76 cases: neither is what stands."""
    shown = counts(played(pair, {"avoid_shutdown": 0}).judged("update-A"), 4)
    assert shown["gain_millionths"] not in (116_800, 105_100)
    assert (83, 83) == (shown["cases"], shown["scored"])
