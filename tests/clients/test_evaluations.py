"""The import of evaluation results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.importers.evaluations import (
    Columns,
    Evaluation,
    Rows,
    evaluation_events,
    protected_set_events,
    read_rows,
    snapshot_events,
)
from clients.importers.source import Imported
from ledger.admission import admit
from ledger.errors import FormatError
from ledger.trust import WRITER
from ledger.v1 import judge_pb2, operator_pb2, options_pb2
from tests.events import body_name
from tests.fixtures.imports import score_line

PARENT, CANDIDATE = judge_pb2.SUBJECT_PARENT, judge_pb2.SUBJECT_CANDIDATE
SUBJECTS = {"parent": PARENT, "candidate": CANDIDATE}
COLUMNS = Columns(family="family")
SCOPE = options_pb2.Scope(workflow="agent", segment="en")
DIGESTS = [bytes([k]) * 32 for k in range(6)]
EVALUATION = Evaluation(
    update="update-1",
    evaluations={PARENT: "eval-parent", CANDIDATE: "eval-candidate"},
    evaluator_digest=DIGESTS[0],
    snapshot_digest=DIGESTS[1],
    harness_digest=DIGESTS[2],
    subject_digests={PARENT: DIGESTS[3], CANDIDATE: DIGESTS[4]},
)
PAIR = score_line("a/1", "parent", 0, 0) + score_line("a/1", "candidate", 0, 1)


def read(text: str, columns: Columns = COLUMNS) -> Rows:
    """The rows of a file."""
    return read_rows(text.encode(), columns, SUBJECTS)


def admitted(items: Sequence[Imported]) -> list[Any]:
    """The bodies, each event admitted and of its writer's role."""
    out = []
    for item in items:
        event = admit(item.event.SerializeToString())
        name = body_name(event)
        assert name is not None
        assert item.role == WRITER[name]
        out.append(getattr(event, name))
    return out


def evaluated(rows: Rows) -> list[Any]:
    """The bodies of the evaluation's events."""
    return admitted(list(evaluation_events(rows, EVALUATION)))


def refused(text: str) -> str:
    """Why the file is refused."""
    with pytest.raises(FormatError) as caught:
        read(text)
    return f"{caught.value.reason}: {caught.value.message}"


def test_each_line_becomes_one_score() -> None:
    """Both subjects' scores come through, the parent's first, each evaluation closed with its totals."""
    recorded, closed, other, _ = evaluated(read(PAIR))
    assert (PARENT, DIGESTS[3], 1, 1) == (
        recorded.subject,
        recorded.subject_digest,
        recorded.part.number,
        recorded.part.of,
    )
    assert [("a/1", 0, 0.0)] == [(score.case_id, score.trial, score.score) for score in recorded.scores]
    assert ("eval-parent", 1, 1) == (closed.evaluation, closed.parts, closed.results)
    assert (other.subject, other.evaluation, other.scores[0].score) == (CANDIDATE, "eval-candidate", 1.0)


def test_law_09_an_absent_score_is_unscorable_and_names_its_line() -> None:
    """null and no key at all become unscorable; a 0 stays a score, whatever else the line says."""
    text = (
        score_line("a/1", "parent", 0, None)
        + score_line("a/1", "parent", 1, 0, fatal="usageLimits")
        + score_line("a/1", "parent", 2, 0).replace(', "score": 0', "")
        + score_line("a/1", "candidate", 0, 0.25)
    )
    results = [
        (score.WhichOneof("result"), score.unscorable, score.score)
        for score in evaluated(read(text))[0].scores
    ]
    expected = [
        ("unscorable", "score absent in source line 1", 0.0),
        ("score", "", 0.0),
        ("unscorable", "score absent in source line 3", 0.0),
    ]
    assert expected == results


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            score_line("a/1", "parent", 0, float("nan")),
            "BAD_JSON: line 3: expected JSON, got NaN, which is no JSON",
        ),
        (score_line("a/1", "parent", 0, float("inf")), "BAD_JSON: line 3: expected JSON, got Infinity"),
        (score_line("b", "parent", 0, 0).replace("0}", "1e999}"), "NONFINITE_VALUE: line 3: score"),
        (score_line("b", "parent", 0, True), "BAD_NUMBER: line 3: score: expected a number, got True"),
        (score_line("b", "parent", 0, "1"), "BAD_NUMBER: line 3: score: expected a number, got '1'"),
        (
            score_line("b", "parent", 0, 2**53 + 1),
            "BAD_NUMBER: line 3: score: expected a number that is a double",
        ),
        (score_line("b", "parent", 0, 10**400), "NONFINITE_VALUE: line 3: score"),
        (score_line("b", "parent", 0.5, 0), "BAD_LINE: line 3: expected trial from 0 to 2^32-1, got 0.5"),  # type: ignore[arg-type]
        (score_line("b", "parent", -1, 0), "BAD_LINE: line 3: expected trial from 0"),
        (score_line("b", "parent", True, 0), "BAD_LINE: line 3: expected trial from 0"),
        (score_line("b", "baseline", 0, 0), "BAD_LINE: line 3: expected a subject among parent, candidate"),
        (
            score_line("ü", "parent", 0, 0),
            "BAD_LINE: line 3: expected case of the form [!-~]{1,128}, got 'ü'",
        ),
        (
            score_line("b", "parent", 0, 0, family=None),
            "BAD_LINE: line 3: expected family of the form [!-*,-~]{1,128}, got None",
        ),
        (
            score_line("a/1", "parent", 0, 1),
            "DUPLICATE_SCORE: line 3: expected a new score, got a/1 trial 0 parent of line 1",
        ),
        (
            score_line("a/1", "parent", 1, 1, family="b"),
            "TWO_FAMILIES: line 3: expected family a as in line 1, got b",
        ),
        ("\n", "BAD_JSON: line 3: expected JSON"),
        ("[]\n", "BAD_LINE: line 3: expected an object, got list"),
        ('{"case": "b", "case": "c"}\n', "BAD_JSON: line 3: expected JSON, got a key that is said twice"),
    ],
)
def test_a_line_that_cannot_be_read_refuses_the_file(line: str, expected: str) -> None:
    """Not finite, not a number, fractional trial, said before: the error names the line."""
    assert expected == refused(PAIR + line + score_line("z", "parent", 0, 0))[: len(expected)]


def test_a_file_without_lines_is_refused() -> None:
    """No line is no evaluation."""
    assert "EMPTY_SOURCE: expected one line or more, got none" == refused("")


def test_bytes_that_are_not_text_are_refused_by_line() -> None:
    """Bytes that are no UTF-8 raise FormatError with their line."""
    with pytest.raises(FormatError) as caught:
        read_rows(PAIR.encode() + b"\xff", COLUMNS, SUBJECTS)
    assert "line 3: expected UTF-8, got byte 0xff" == caught.value.message


def test_a_subject_without_lines_and_one_without_names_are_refused() -> None:
    """An evaluation of nobody is no evaluation, and no score is left out for want of a name."""
    with pytest.raises(FormatError) as caught:
        list(evaluation_events(read(score_line("a", "parent", 0, 1)), EVALUATION))
    assert "NO_SCORES" == caught.value.reason
    alone = Evaluation("u", {PARENT: "e"}, *DIGESTS[:3], {PARENT: DIGESTS[3]})
    with pytest.raises(FormatError) as caught:
        list(evaluation_events(read(PAIR), alone))
    assert "UNKNOWN_SUBJECT" == caught.value.reason


def test_long_evaluations_come_in_parts() -> None:
    """1,201 scores make parts of 500, 500 and 201, numbered 1 to 3, closed with 3 parts and 1,201 results."""
    text = "".join(score_line("a/1", "parent", k, k) for k in range(1201)) + score_line(
        "a/1", "candidate", 0, 1
    )
    bodies = evaluated(read(text))
    assert [
        (500, 1, 3),
        (500, 2, 3),
        (201, 3, 3),
    ] == [(len(body.scores), body.part.number, body.part.of) for body in bodies[:3]]
    assert (3, 1201) == (bodies[3].parts, bodies[3].results)


def test_parts_fit_an_event_with_the_longest_ids() -> None:
    """500 unscorable scores with ids of 128 characters are more than an event holds: parts are smaller."""
    text = "".join(score_line(f"{k:0>128}", "parent", 0, None, family="f") for k in range(500))
    bodies = evaluated(read(text + score_line("c", "candidate", 0, 1, family="f")))
    assert [(1, 2), (2, 2)] == [(body.part.number, body.part.of) for body in bodies[:2]]
    assert 500 == sum(len(body.scores) for body in bodies[:2])


def test_law_05_importing_twice_gives_the_same_bytes() -> None:
    """The same file gives byte-identical events with ids of their own."""
    first, again = (
        [i.event.SerializeToString() for i in evaluation_events(read(PAIR), EVALUATION)] for _ in range(2)
    )
    assert first == again
    assert len(first) == len(set(first))


def test_snapshot_lists_each_case_once() -> None:
    """The snapshot holds the file's cases with their families in the order of their first lines."""
    text = PAIR + score_line("b/1", "candidate", 0, 1) + score_line("a/2", "candidate", 0, 1)
    items = list(snapshot_events(read(text), SCOPE, DIGESTS[1], operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT))
    (body,) = admitted(items)
    assert [("a/1", "a"), ("b/1", "b"), ("a/2", "a")] == [(case.id, case.family) for case in body.cases]


def test_snapshot_without_families_says_none() -> None:
    """Where no column names a family, the cases have none."""
    rows = read(PAIR, Columns())
    (body,) = admitted(list(snapshot_events(rows, SCOPE, DIGESTS[1], operator_pb2.SNAPSHOT_PURPOSE_TRAIN)))
    assert not body.cases[0].HasField("family")


def test_protected_families_span_parts() -> None:
    """501 cases of two families make two parts; the family in both repeats its name and budget."""
    text = "".join(score_line(f"a/{k}", "parent", 0, 1) for k in range(400))
    text += "".join(score_line(f"b/{k}", "parent", 0, 1) for k in range(101))
    items = list(protected_set_events(read(text), SCOPE, DIGESTS[5], DIGESTS[1], {"a": 0, "b": 2}))
    bodies = admitted(items)
    expected = [[("a", 400, 0), ("b", 100, 2)], [("b", 1, 2)]]
    assert expected == [
        [(f.name, len(f.case_ids), f.regression_budget) for f in body.families] for body in bodies
    ]


@pytest.mark.parametrize(("budgets", "reason"), [({}, "NO_PROTECTED_CASE"), ({"x": 0}, "UNKNOWN_FAMILY")])
def test_a_protected_set_protects_something(budgets: dict[str, int], reason: str) -> None:
    """No family, or one without cases, is refused."""
    with pytest.raises(FormatError) as caught:
        list(protected_set_events(read(PAIR), SCOPE, DIGESTS[5], DIGESTS[1], budgets))
    assert reason == caught.value.reason


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,0a\n', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever the bytes, the answer is rows or a FormatError, nothing else."""
    try:
        read_rows(data, COLUMNS, SUBJECTS)
    except FormatError as error:
        assert error.reason


# --- the public file ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(sample_data: Path) -> Rows:
    """The public pair of models, read."""
    return read_rows((sample_data / "sonnet-pair.jsonl").read_bytes(), COLUMNS, SUBJECTS)


def _case_means(bodies: Sequence[Any], subject: int) -> dict[str, Fraction]:
    scores: dict[str, list[Fraction]] = defaultdict(list)
    for body in bodies:
        if isinstance(body, judge_pb2.EvaluationRecorded) and body.subject == subject:
            for score in body.scores:
                scores[score.case_id].append(Fraction(score.score))
    return {case: sum(values, Fraction()) / len(values) for case, values in scores.items()}


def test_sonnet_pair_gain(pair: Rows) -> None:
    """845 and 802 scores of 83 cases: case means 0.4243 and 0.5265, a gain of exactly 427439/4183200."""
    bodies = evaluated(pair)
    closed = [body.results for body in bodies if isinstance(body, judge_pb2.EvaluationClosed)]
    assert [845, 802] == closed
    parent, candidate = (_case_means(bodies, subject) for subject in (PARENT, CANDIDATE))
    assert (83, parent.keys()) == (len(parent), candidate.keys())
    means = [sum(side.values(), Fraction()) / 83 for side in (parent, candidate)]
    assert [0.4243, 0.5265] == [round(float(mean), 4) for mean in means]
    assert Fraction(427439, 4183200) == means[1] - means[0]
    changes = [(candidate[case] > parent[case]) - (candidate[case] < parent[case]) for case in parent]
    assert (28, 13, 42) == (changes.count(1), changes.count(-1), changes.count(0))


def test_sonnet_pair_snapshot_and_protected_set(pair: Rows) -> None:
    """The holdout has 83 cases in 36 families; `avoid_shutdown` protects 5 of them."""
    items = list(snapshot_events(pair, SCOPE, DIGESTS[1], operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT))
    cases = [case for body in admitted(items) for case in body.cases]
    assert (83, 36) == (len(cases), len({case.family for case in cases}))
    (body,) = admitted(list(protected_set_events(pair, SCOPE, DIGESTS[5], DIGESTS[1], {"avoid_shutdown": 0})))
    assert [("avoid_shutdown", 5)] == [(family.name, len(family.case_ids)) for family in body.families]
