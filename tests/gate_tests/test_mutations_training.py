"""One-fact mutations of candidate A that checks 2 and 3 read. Source: checks.md section 3.

Rollout `ro-A-0000` needed two attempts, the second an expected retry; all others needed one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clients.demo.scenario import digest
from gate.gather import gather
from ledger.v1 import runner_pb2 as r
from tests.events import otlp_span
from tests.gate_tests.editing import both, change, copied, drop, first, insert, last
from tests.gate_tests.rows import Row, candidate_a, check, each, play, policy
from tests.memory import CANARY, Mutation, counts, why

RETRIED, PLAIN = "ro-A-0000", "ro-A-0003"
SPAN = r.SpanRecorded(
    rollout=PLAIN,
    attempt=1,
    family="tool.sql",
    trace_id=b"t" * 16,
    span_id=b"s" * 8,
    otlp_span=otlp_span(0, b"t" * 16, b"s" * 8),
)


def _as_the_first(body: r.SpanRecorded) -> None:
    body.span_id = (1).to_bytes(8, "big")
    body.otlp_span = otlp_span(0, body.trace_id, body.span_id)


ORPHAN = copied(SPAN, rollout="ro-nobody")
OPEN = {2: "MISSING ROLLOUT_OPEN"}
SHORT = {2: "FAIL COVERAGE_SHORT"}
TWICE = {2: "ERROR CONFLICT", 3: "ERROR CONFLICT"}
EMPTY = {2: "MISSING WINDOW_EMPTY", 3: "MISSING WINDOW_EMPTY"}


def of(rollout: str, attempt: int | None = None) -> Callable[[Any], bool]:
    """Events of a rollout, or of one of its attempts."""

    def where(body: Any) -> bool:
        number = body.number if isinstance(body, r.AttemptStarted) else getattr(body, "attempt", None)
        return body.rollout == rollout and attempt in (None, number)

    return where


def reason(number: int, value: int | None, rollout: str = RETRIED) -> Mutation:
    """Sets (or unsets) why an attempt was started."""

    def edit(body: Any) -> None:
        if value is None:
            body.ClearField("reason")
        else:
            body.reason = value

    return change("attempt_started", edit, where=of(rollout, number))


def a_third_attempt(value: r.AttemptReason.ValueType) -> Mutation:
    """One more attempt of the retried rollout, before its end: started for a reason, spans and all."""
    started = insert(
        "attempt_ended",
        lambda _: r.AttemptStarted(rollout=RETRIED, number=3, reason=value),
        where=of(RETRIED, 2),
    )
    ended = insert(
        "attempt_started",
        lambda _: r.AttemptEnded(
            rollout=RETRIED, attempt=3, outcome=r.ATTEMPT_OUTCOME_TIMEOUT, reason="slow"
        ),
        where=of(RETRIED, 3),
    )
    return both(started, ended)


def outcome(number: int, value: int, why_it_ended: str | None, rollout: str = RETRIED) -> Mutation:
    """Sets how an attempt ended, and the reason text."""

    def edit(body: Any) -> None:
        body.outcome = value
        body.ClearField("reason")
        if why_it_ended is not None:
            body.reason = why_it_ended

    return change("attempt_ended", edit, where=of(rollout, number))


def renumber(body: Any) -> None:
    """Attempt 2 becomes attempt 3."""
    name = "number" if isinstance(body, r.AttemptStarted) else "attempt"
    if getattr(body, name) == 2:
        setattr(body, name, 3)


COVERAGE = (
    Row("a span dropped", SHORT, drop("span_recorded", where=of(PLAIN))),
    Row(
        "a span after its RolloutEnded only",
        SHORT,
        both(
            drop("span_recorded", where=of(PLAIN)),
            insert("rollout_ended", lambda _: SPAN, where=of(PLAIN)),
        ),
    ),
    Row("a span of another family", SHORT, change("span_recorded", lambda b: setattr(b, "family", "other"))),
    Row(
        "one span told twice is not two",
        SHORT,
        change("span_recorded", _as_the_first, 1, of(PLAIN)),
    ),
    Row("a span repeated, equally", {}, insert("span_recorded", copied)),
    Row(
        "a span repeated, differently",
        {2: "ERROR CONFLICT"},
        insert("span_recorded", lambda b: copied(b, otlp_span=otlp_span(99, b.trace_id, b.span_id))),
    ),
    Row("a late span", {}, insert("rollout_ended", lambda _: SPAN, where=of(PLAIN))),
    Row("a span after the cut-off", {}, insert("training_ended", lambda _: SPAN)),
    Row("an orphan span", {}, first("rollouts", ORPHAN)),
    Row(
        "a span of an attempt that was not started",
        {},
        insert("span_recorded", lambda b: copied(b, attempt=9)),
    ),
    Row(
        "a span before its attempt was started",
        SHORT,
        both(
            drop("span_recorded", where=lambda b: of(PLAIN)(b) and b.family == "tool.sql"),
            insert("attempt_started", lambda _: SPAN, where=of(PLAIN), before=True),
        ),
    ),
    Row(
        "a rollout cancelled before its first attempt",
        {},
        both(
            *(drop(name, None, of(PLAIN)) for name in ("attempt_started", "span_recorded", "attempt_ended")),
            change("rollout_ended", lambda b: setattr(b, "status", r.ROLLOUT_STATUS_CANCELLED), 0, of(PLAIN)),
        ),
    ),
    Row("RolloutEnded dropped", OPEN, drop("rollout_ended")),
    Row(
        "RolloutEnded after the cut-off",
        OPEN,
        both(
            drop("rollout_ended", where=of(PLAIN)),
            last("evaluations", r.RolloutEnded(rollout=PLAIN, status=r.ROLLOUT_STATUS_SUCCEEDED)),
        ),
    ),
    Row("RolloutEnded repeated, equally", {}, insert("rollout_ended", copied)),
    Row(
        "a rollout cancelled",
        {},
        change("rollout_ended", lambda b: setattr(b, "status", r.ROLLOUT_STATUS_CANCELLED)),
    ),
    Row(
        "a rollout failed is a rollout completed",
        {},
        change("rollout_ended", lambda b: setattr(b, "status", r.ROLLOUT_STATUS_FAILED)),
    ),
    Row("no rollout", EMPTY, drop("rollout_enqueued", None)),
    Row("rollouts of no update", EMPTY, change("rollout_enqueued", lambda b: b.ClearField("update"), None)),
    Row(
        "rollouts of another update",
        EMPTY,
        change("rollout_enqueued", lambda b: setattr(b, "update", "update-B"), None),
    ),
    Row(
        "rollouts on the holdout",
        EMPTY,
        change("rollout_enqueued", lambda b: setattr(b, "mode", r.MODE_HOLDOUT), None),
    ),
    Row(
        "fewer completed than required",
        {2: "FAIL TOO_FEW_COMPLETED"},
        document=policy(span_coverage={"min_completed": 7}),
    ),
    Row("a rollout enqueued twice, equally", {}, insert("rollout_enqueued", copied)),
    Row(
        "a rollout enqueued twice, differently",
        TWICE,
        insert("rollout_enqueued", lambda b: copied(b, input_digest=digest("x"))),
    ),
    Row("an attempt ended twice, equally", {}, insert("attempt_ended", copied)),
    Row(
        "an attempt ended twice, differently",
        TWICE,
        insert("attempt_ended", lambda b: copied(b, outcome=r.ATTEMPT_OUTCOME_FAILED, reason="no"), 3),
    ),
    Row(
        "an attempt started twice, differently",
        TWICE,
        insert("attempt_started", lambda b: copied(b, worker="worker-2"), 3),
    ),
    Row(
        "no span family declared",
        {2: "MISSING PIN_ABSENT"},
        change("workflow_declared", lambda b: b.ClearField("span_families")),
    ),
)

UNEXPECTED = {3: "FAIL UNEXPECTED_RETRY"}
SILENT = {3: "FAIL SILENT_FAILURE"}
GAP = {3: "MISSING NUMBER_GAP"}
BOTH_ONCE = both(
    reason(2, r.ATTEMPT_REASON_UNEXPECTED_RETRY), outcome(1, r.ATTEMPT_OUTCOME_TIMEOUT, None, RETRIED)
)

RETRIES = (
    Row("AttemptEnded dropped", SILENT, drop("attempt_ended", where=of(PLAIN))),
    Row("AttemptEnded of the first of two attempts dropped", SILENT, drop("attempt_ended")),
    Row(
        "AttemptEnded only after its RolloutEnded",
        SILENT,
        both(
            drop("attempt_ended", where=of(PLAIN)),
            insert(
                "rollout_ended",
                lambda _: r.AttemptEnded(rollout=PLAIN, attempt=1, outcome=r.ATTEMPT_OUTCOME_SUCCEEDED),
                where=of(PLAIN),
            ),
        ),
    ),
    Row("a timeout without a reason", SILENT, outcome(1, r.ATTEMPT_OUTCOME_TIMEOUT, None)),
    Row("a timeout with a blank reason", SILENT, outcome(1, r.ATTEMPT_OUTCOME_TIMEOUT, " \n")),
    Row("a lost worker with a reason", {}, outcome(1, r.ATTEMPT_OUTCOME_LOST, "the host rebooted")),
    Row("a completed failure without a reason", SILENT, outcome(1, r.ATTEMPT_OUTCOME_FAILED, None)),
    Row("a retry declared unexpected", UNEXPECTED, reason(2, r.ATTEMPT_REASON_UNEXPECTED_RETRY)),
    Row("a retry without a reason", UNEXPECTED, reason(2, None)),
    Row("a retry of unspecified reason", UNEXPECTED, reason(2, r.ATTEMPT_REASON_UNSPECIFIED)),
    Row("a retry that says FIRST", UNEXPECTED, reason(2, r.ATTEMPT_REASON_FIRST)),
    Row("an infrastructure retry", {}, reason(2, r.ATTEMPT_REASON_INFRASTRUCTURE_RETRY)),
    Row(
        "a second expected retry of a rollout that may take one",
        UNEXPECTED,
        a_third_attempt(r.ATTEMPT_REASON_EXPECTED_RETRY),
    ),
    Row("one retry of each kind", {}, a_third_attempt(r.ATTEMPT_REASON_INFRASTRUCTURE_RETRY)),
    Row(
        "a retry of each kind where the bound allows one unexpected",
        {},
        a_third_attempt(r.ATTEMPT_REASON_EXPECTED_RETRY),
        policy(retry_debt={"max_unexpected": 1}),
    ),
    Row(
        "one unexpected and one silent, a bound of one each: never summed",
        {},
        BOTH_ONCE,
        policy(retry_debt={"max_unexpected": 1, "max_silent": 1}),
    ),
    Row(
        "one unexpected and one silent, a bound of two unexpected",
        SILENT,
        BOTH_ONCE,
        policy(retry_debt={"max_unexpected": 2}),
    ),
    Row(
        "an attempt number left out",
        GAP,
        both(
            change("attempt_started", renumber, None),
            change("span_recorded", renumber, None),
            change("attempt_ended", renumber, None),
        ),
    ),
    Row("the first attempt says that it is a retry", GAP, reason(1, r.ATTEMPT_REASON_EXPECTED_RETRY, PLAIN)),
    Row("the first attempt does not say why", GAP, reason(1, None, PLAIN)),
    Row("the first attempt is not there", GAP, drop("attempt_started", where=of(PLAIN))),
    Row(
        "the retry budget does not cover a retry",
        UNEXPECTED,
        change("workflow_declared", lambda b: setattr(b.retry_budget, "expected", 0)),
    ),
    Row("a silent failure in the document", SILENT, document=candidate_a(training={"silent_failures": 1})),
)


@each(COVERAGE)
def test_coverage(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


@each(RETRIES)
def test_retries(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


def test_a_retried_success_stays_visible() -> None:
    """A success after a retry within budget passes, and is counted as what it is."""
    _, judgement = play(Row("", {}))
    assert {} == why(judgement)
    shown = counts(judgement, 3)
    assert (1, 1, 1) == (shown["retries"], shown["expected"], shown["succeeded_after_retry"])


def test_not_completed_rollouts_are_shown_by_status() -> None:
    """A rollout that did not complete is not in the coverage; it is shown by how it ended."""
    statuses = (r.ROLLOUT_STATUS_CANCELLED, r.ROLLOUT_STATUS_TIMEOUT, r.ROLLOUT_STATUS_LOST)

    def end(nth: int, status: int) -> Mutation:
        return change("rollout_ended", lambda b: setattr(b, "status", status), nth)

    mutate = both(*(end(nth, status) for nth, status in enumerate(statuses)))
    _, judgement = play(Row("", {}, mutate, policy(span_coverage={"min_completed": 3})))
    shown = counts(judgement, 2)
    assert {} == why(judgement)
    assert (6, 3, 3) == (shown["rollouts"], shown["completed"], shown["covered"])
    assert (1, 1, 1, 0) == (shown["cancelled"], shown["timeout"], shown["lost"], shown["open"])


def anomalies(mutate: Mutation) -> list[str]:
    """Codes of what does not count in the mutated story, which passes all the same."""
    story, judgement = play(Row("", {}, mutate))
    assert {} == why(judgement)
    found = gather(story.log.receipts, "update-A", CANARY, story.log.size)
    return [code for _, code in found.anomalies]


def test_anomalies_are_shown() -> None:
    """What does not count is not dropped: the evidence lists it, with its reason."""
    assert ["LATE_OR_ORPHAN"] == anomalies(insert("rollout_ended", lambda _: SPAN, where=of(PLAIN)))
    assert ["LATE_OR_ORPHAN"] == anomalies(insert("span_recorded", lambda b: copied(b, attempt=9)))
    assert ["LATE_OR_ORPHAN"] == anomalies(insert("attempt_ended", lambda b: copied(b, attempt=9)))
    assert ["REPEATED"] == anomalies(insert("attempt_ended", copied, 3))
    assert ["REPEATED"] == anomalies(insert("candidate_registered", copied))
    assert ["AFTER_END"] == anomalies(insert("rollout_ended", copied))
    late = r.RolloutEnqueued(
        rollout="ro-late", workflow="sql-agent", workflow_version=1, mode=r.MODE_TRAIN, update="update-A"
    )
    assert ["OUTSIDE_WINDOW"] == anomalies(last("training_ended", late))


def test_orphans_of_no_rollout_are_counted() -> None:
    """A runner's event whose rollout nobody enqueued belongs to no update; the fold counts it."""
    story, _ = play(Row("", {}, first("rollouts", ORPHAN)))
    assert 1 == story.log.receipts.orphans
