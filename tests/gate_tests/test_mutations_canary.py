"""One-fact mutations of candidate A that checks 6 and 7 read: the window and the way back.

Source: checks.md section 3. One rehearsal window of two declared tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clients.demo.scenario import digest
from ledger.environment import environment_digest
from ledger.v1 import canary_pb2 as c
from ledger.v1 import options_pb2
from tests.gate_tests.editing import authored, both, change, copied, drop, insert, last
from tests.gate_tests.rows import Row, candidate_a, check, each, play, policy
from tests.memory import Mutation, counts, why

STARTED, TASK, ENDED, BACK = "canary_started", "canary_task_recorded", "canary_ended", "rollback_rehearsed"
FAIL, ERROR, MISSING = "FAIL ", "ERROR ", "MISSING "
JUDGE, FILE = c.VERIFICATION_METHOD_JUDGE, c.VERIFICATION_METHOD_READ_BACK_FILE


def window(edit: Callable[[Any], object]) -> Mutation:
    """Edits CanaryStarted; its environment digest, and the rehearsal's, follow."""
    made: list[bytes] = []

    def start(body: Any) -> None:
        edit(body)
        body.environment_digest = environment_digest(body.environment, body.tool_contract_digest, body.bounds)
        made.append(body.environment_digest)

    return both(change(STARTED, start), change(BACK, lambda b: setattr(b, "environment_digest", made[-1])))


def task(edit: Callable[[Any], object], nth: int | None = 0) -> Mutation:
    """Edits a task's record."""
    return change(TASK, edit, nth)


def put(field: str, value: Any) -> Callable[[Any], None]:
    """Sets a scalar field."""
    return lambda body: setattr(body, field, value)


def part(target: int, value: bytes) -> Callable[[Any], None]:
    """Sets an environment part."""

    def edit(body: Any) -> None:
        for item in body.environment:
            if item.target == target:
                item.digest = value

    return edit


def by_judge(body: Any) -> None:
    """Verified by a judge, with its uncertainty."""
    body.method, body.uncertainty = JUDGE, 0.05


def second_window(outcome: int) -> Mutation:
    """One more rehearsal window of the same two tasks, rehearsed and ended."""
    bodies: list[Any] = []

    def start(body: Any) -> Any:
        other = copied(body, window="window-2")
        bodies[:] = [other.environment_digest]
        return other

    def record(body: Any) -> Any:
        return copied(body, window="window-2", outcome=outcome)

    return both(
        insert(BACK, lambda b: copied(b, window="window-2")),
        insert(ENDED, lambda b: copied(b, window="window-2")),
        insert(TASK, record, 1),
        insert(TASK, record, 0),
        insert(STARTED, start),
    )


PERMISSIONS = options_pb2.ENVIRONMENT_TARGET_PERMISSIONS
DESTINATION = options_pb2.ENVIRONMENT_TARGET_DESTINATION
LATE_HARM = c.CanaryTaskRecorded(
    update="update-A",
    window="window-A",
    task="task-01",
    outcome=c.TASK_OUTCOME_VERIFIED,
    method=FILE,
    harm_count=1,
)

CANARY = (
    Row("no window", {6: MISSING + "WINDOW_ABSENT", 7: MISSING + "REHEARSAL_ABSENT"}, drop(STARTED)),
    Row("the window is open", {6: MISSING + "WINDOW_OPEN"}, drop(ENDED)),
    Row("a declared task has no record", {6: MISSING + "TASK_ABSENT"}, drop(TASK)),
    Row(
        "the totals tell of more tasks than there are",
        {6: MISSING + "TASK_ABSENT"},
        change(ENDED, put("tasks", 3)),
    ),
    Row(
        "an effect was not found",
        {6: FAIL + "NOT_VERIFIED"},
        task(put("outcome", c.TASK_OUTCOME_NOT_VERIFIED)),
    ),
    Row(
        "the check of an effect failed", {6: ERROR + "TASK_ERROR"}, task(put("outcome", c.TASK_OUTCOME_ERROR))
    ),
    Row("harm", {6: FAIL + "HARM"}, task(put("harm_count", 1))),
    Row(
        "nobody looked for harm", {6: MISSING + "HARM_UNOBSERVED"}, task(lambda b: b.ClearField("harm_count"))
    ),
    Row(
        "harm told after the window's end, of a task told before",
        {6: ERROR + "CONFLICT"},
        last("canary", LATE_HARM),
    ),
    Row("a task told twice, equally", {}, insert(TASK, copied)),
    Row(
        "a task told twice, differently",
        {6: ERROR + "CONFLICT"},
        insert(TASK, lambda b: copied(b, reason="again")),
    ),
    Row(
        "a window ended twice, differently",
        {6: ERROR + "CONFLICT"},
        insert(ENDED, lambda b: copied(b, reason="again")),
    ),
    Row(
        "a window started twice, differently",
        {6: ERROR + "CONFLICT"},
        insert(STARTED, lambda b: copied(b, kind=c.WINDOW_KIND_LIVE)),
    ),
    Row(
        "a task that was not declared",
        {6: FAIL + "BOUND_EXCEEDED,UNDECLARED_TASK"},
        both(insert(TASK, lambda b: copied(b, task="task-99")), change(ENDED, put("tasks", 3))),
        policy(
            canary_verified={
                "bounds": {
                    "tasks": 2,
                    "wall_time_us": 600000000,
                    "tools": ["sql.query", "file.write"],
                    "micro_usd": 2000000,
                    "side_effects": ["report.file"],
                }
            }
        ),
    ),
    Row(
        "a task that was not declared, within the bound",
        {6: FAIL + "UNDECLARED_TASK"},
        both(insert(TASK, lambda b: copied(b, task="task-99")), change(ENDED, put("tasks", 3))),
    ),
    Row(
        "fewer tasks than the policy wants",
        {6: FAIL + "TOO_FEW_TASKS"},
        document=candidate_a(canary={"tasks": 1, "verified": 1}),
    ),
    Row("verified by a judge where only read-backs count", {6: FAIL + "METHOD_NOT_ALLOWED"}, task(by_judge)),
    Row(
        "verified by a judge where the policy allows it",
        {},
        task(by_judge),
        policy(canary_verified={"methods": ["JUDGE", "READ_BACK_FILE"]}),
    ),
    Row(
        "verified by a judge without uncertainty",
        {6: MISSING + "UNCERTAINTY_ABSENT"},
        task(put("method", JUDGE)),
        policy(canary_verified={"methods": ["JUDGE", "READ_BACK_FILE"]}),
    ),
    Row(
        "verified by a human without uncertainty",
        {6: MISSING + "UNCERTAINTY_ABSENT"},
        task(put("method", c.VERIFICATION_METHOD_HUMAN)),
        policy(canary_verified={"methods": ["HUMAN", "READ_BACK_FILE"]}),
    ),
    Row("other permissions", {6: FAIL + "ENVIRONMENT_MISMATCH"}, window(part(PERMISSIONS, digest("x")))),
    Row("another destination: a rehearsal's is sandboxed", {}, window(part(DESTINATION, digest("x")))),
    Row(
        "another tool contract",
        {6: FAIL + "ENVIRONMENT_MISMATCH"},
        window(put("tool_contract_digest", digest("x"))),
    ),
    Row(
        "a part said twice",
        {6: FAIL + "ENVIRONMENT_MISMATCH"},
        window(lambda b: b.environment.add(target=PERMISSIONS, digest=b.environment[1].digest)),
    ),
    Row("a part left out", {6: FAIL + "ENVIRONMENT_MISMATCH"}, window(lambda b: b.environment.pop(0))),
    Row(
        "an environment digest that is not that of its parts",
        {6: FAIL + "ENVIRONMENT_MISMATCH", 7: MISSING + "REHEARSAL_ABSENT"},
        change(STARTED, put("environment_digest", digest("x"))),
    ),
    Row(
        "run by a canary who is not pinned",
        {6: MISSING + "WINDOW_ABSENT", 7: MISSING + "REHEARSAL_ABSENT"},
        authored(STARTED, "canary-2"),
    ),
    Row(
        "a canary who is not pinned tells of harm",
        {},
        insert(TASK, lambda b: copied(b, task="task-09", harm_count=1), by="canary-2"),
    ),
    Row(
        "another subject than the candidate",
        {6: MISSING + "WINDOW_ABSENT", 7: MISSING + "REHEARSAL_ABSENT"},
        window(put("subject_digest", digest("x"))),
    ),
    Row("a second window as good", {}, second_window(c.TASK_OUTCOME_VERIFIED)),
    Row("a second, worse window", {6: FAIL + "NOT_VERIFIED"}, second_window(c.TASK_OUTCOME_NOT_VERIFIED)),
    Row(
        "a second, kinder window",
        {6: FAIL + "NOT_VERIFIED"},
        both(task(put("outcome", c.TASK_OUTCOME_NOT_VERIFIED)), second_window(c.TASK_OUTCOME_VERIFIED)),
    ),
)


def bound(field: str, value: int) -> Callable[[Any], None]:
    """Declares a bound, or measures the use of one."""
    return lambda body: setattr(body.bounds if isinstance(body, c.CanaryStarted) else body.use, field, value)


def named(field: str) -> Callable[[Any], None]:
    """Declares one more name in a bound, or uses it."""

    def edit(body: Any) -> None:
        place = body.bounds if isinstance(body, c.CanaryStarted) else body.use
        getattr(place, field).names.append("mail")

    return edit


def cleared(field: str) -> Callable[[Any], None]:
    """Neither declares nor measures a bound."""

    def edit(body: Any) -> None:
        place: Any = body.bounds if isinstance(body, c.CanaryStarted) else body.use
        place.ClearField(field)

    return edit


UNDECLARED, UNMEASURED = {6: MISSING + "BOUND_UNDECLARED"}, {6: MISSING + "BOUND_UNMEASURED"}
TOO_WIDE, EXCEEDED = {6: FAIL + "BOUND_TOO_WIDE"}, {6: FAIL + "BOUND_EXCEEDED"}

BOUNDS = (
    *(
        Row(f"bound undeclared: {name}", UNDECLARED, window(cleared(name)))
        for name in ("tasks", "wall_time_us", "tools", "micro_usd", "side_effects")
    ),
    *(
        Row(f"use unmeasured: {name}", UNMEASURED, task(cleared(name)))
        for name in ("wall_time_us", "tools", "micro_usd", "side_effects")
    ),
    *(
        Row(f"bound too wide: {name}", TOO_WIDE, window(bound(name, value)))
        for name, value in (("tasks", 21), ("wall_time_us", 600_000_001), ("micro_usd", 2_000_001))
    ),
    *(Row(f"bound too wide: {name}", TOO_WIDE, window(named(name))) for name in ("tools", "side_effects")),
    *(
        Row(f"bound exceeded by the sum: {name}", EXCEEDED, task(bound(name, value), None))
        for name, value in (("wall_time_us", 300_000_001), ("micro_usd", 1_000_001))
    ),
    *(
        Row(f"bound reached by the sum: {name}", {}, task(bound(name, value), None))
        for name, value in (("wall_time_us", 300_000_000), ("micro_usd", 1_000_000))
    ),
    *(Row(f"bound exceeded: {name}", EXCEEDED, task(named(name))) for name in ("tools", "side_effects")),
    Row("more tasks than the window's own bound", EXCEEDED, window(bound("tasks", 1))),
    Row("no bounds at all", UNDECLARED, window(lambda b: b.ClearField("bounds"))),
    Row("no use at all", UNMEASURED, task(lambda b: b.ClearField("use"))),
)

WAY_BACK = (
    Row("not rehearsed", {7: MISSING + "REHEARSAL_ABSENT"}, drop(BACK)),
    Row(
        "rehearsed with another parent",
        {7: MISSING + "REHEARSAL_ABSENT"},
        change(BACK, put("parent_digest", digest("x"))),
    ),
    Row(
        "rehearsed in another environment",
        {7: MISSING + "REHEARSAL_ABSENT"},
        change(BACK, put("environment_digest", digest("x"))),
    ),
    Row(
        "rehearsed in another window",
        {7: MISSING + "REHEARSAL_ABSENT"},
        change(BACK, put("window", "window-0")),
    ),
    Row(
        "rehearsed by a canary who is not pinned",
        {7: MISSING + "REHEARSAL_ABSENT"},
        authored(BACK, "canary-2"),
    ),
    *(
        Row(f"the parent was not {leg}", {7: FAIL + code}, change(BACK, put(leg, False)))
        for leg, code in (
            ("resolved", "NOT_RESOLVED"),
            ("loaded", "NOT_LOADED"),
            ("served", "NOT_SERVED"),
            ("routed_back", "NOT_ROUTED_BACK"),
        )
    ),
    Row(
        "the last rehearsal decides: it failed",
        {7: FAIL + "NOT_SERVED"},
        insert(BACK, lambda b: copied(b, served=False)),
    ),
    Row(
        "the last rehearsal decides: it worked",
        {},
        insert(BACK, lambda b: copied(b, served=False), before=True),
    ),
    Row(
        "the last rehearsal decides: it was of another parent",
        {7: MISSING + "REHEARSAL_ABSENT"},
        insert(BACK, lambda b: copied(b, parent_digest=digest("x"))),
    ),
    Row(
        "one of two windows was not rehearsed",
        {7: MISSING + "REHEARSAL_ABSENT"},
        both(second_window(c.TASK_OUTCOME_VERIFIED), drop(BACK, 1)),
    ),
)


@each(CANARY)
def test_canary(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


@each(BOUNDS)
def test_bounds(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


@each(WAY_BACK)
def test_way_back(row: Row) -> None:
    """Exactly the checks that rest on the changed fact leave PASS."""
    check(row)


@pytest.mark.parametrize("verified", [0, 1])
def test_unverified_tasks_stay_in_the_denominator(verified: int) -> None:
    """Tasks that were not verified, or whose check failed, are counted as tasks and not as verified."""
    row = Row("", {}, document=candidate_a(canary={"tasks": 2, "verified": verified, "errors": 1}))
    _, judgement = play(row)
    shown = counts(judgement, 6)
    assert (shown["tasks"], shown["verified"]) == (2, verified)
    assert why(judgement)[6] == (ERROR + "TASK_ERROR" if verified else FAIL + "NOT_VERIFIED")
