"""The import of tau-bench result files."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from clients.importers.source import Imported, batches
from clients.importers.trajectories import MAX_INLINE_BYTES, SPAN_FAMILIES, Frame, Report, read_trajectories
from ledger.admission import admit
from ledger.batch import check_batch_shape
from ledger.errors import FormatError
from ledger.trust import WRITER
from ledger.v1 import event_pb2, options_pb2, runner_pb2
from tests.events import body_name
from tests.fixtures.imports import call, tau_file, tau_run, tool

FRAME = Frame(
    name="airline",
    workflow="airline-agent",
    workflow_version=1,
    mode=runner_pb2.MODE_VAL,
    judge_version="tau-bench/airline",
    update="update-1",
    resource_digest=bytes(range(32)),
)


def read(data: bytes, frame: Frame = FRAME) -> tuple[list[Imported], Report]:
    """All events, each one admitted, and the report."""
    report = Report()
    items = list(read_trajectories(data, frame, report))
    for item in items:
        admitted = admit(item.event.SerializeToString())
        assert item.role == WRITER[body_name(admitted)]
    return items, report


def bodies(items: list[Imported], name: str) -> list[Any]:
    """The bodies of one type, in order."""
    return [getattr(item.event, name) for item in items if body_name(item.event) == name]


def spans(items: list[Imported]) -> list[Span]:
    """The spans that stand inline."""
    return [Span.FromString(body.otlp_span) for body in bodies(items, "span_recorded")]


def refused(data: bytes) -> str:
    """Why the file is refused."""
    with pytest.raises(FormatError) as caught:
        read(data)
    return f"{caught.value.reason}: {caught.value.message}"


def attributes(span: Span) -> dict[str, str]:
    """A span's attributes."""
    return {item.key: item.value.string_value for item in span.attributes}


# --- self-made files ---------------------------------------------------------------------------------------


def test_a_run_is_a_rollout_with_one_attempt() -> None:
    """A run gives its events in the order in which a log can take them: opened, seen, ended, rewarded."""
    items, _ = read(tau_file(tau_run(7, 2)))
    expected = [
        ("rollout_enqueued", 1),
        ("attempt_started", 1),
        ("span_recorded", 7),
        ("attempt_ended", 1),
        ("rollout_ended", 1),
        ("reward_recorded", 1),
    ]
    assert expected == [(name, len([*group])) for name, group in groupby(body_name(i.event) for i in items)]
    enqueued = bodies(items, "rollout_enqueued")[0]
    assert ("airline/task-7/trial-2", "update-1", "7/2") == (
        enqueued.rollout,
        enqueued.update,
        enqueued.external_ref.id,
    )
    assert not any(item.event.HasField("occurred_at") for item in items)


def test_nothing_is_dropped_and_nothing_stands_twice() -> None:
    """The spans' JSON, put together again, is the run's list of messages."""
    run = tau_run(0, 0)
    items, report = read(tau_file(run))
    messages: list[dict[str, Any]] = []
    for span in spans(items):
        said = json.loads(attributes(span)["assay.source.json"])
        if span.name == "tool.call":
            messages[-1].setdefault("tool_calls", []).append(said)
        else:
            messages.append(said)
    assert run["traj"] == messages
    expected = {
        "message.system": 1,
        "message.user": 2,
        "message.assistant": 2,
        "message.tool": 1,
        "tool.call": 1,
    }
    assert expected == report.spans
    assert set(SPAN_FAMILIES) == set(report.spans)


def test_a_tool_message_hangs_below_its_call() -> None:
    """A call's parent is the message that made it, an answer's the call; call ids are attributes only."""
    items, _ = read(tau_file(tau_run(0, 0)))
    _, _, asked, called, answered, *_ = spans(items)
    assert (asked.span_id, called.span_id) == (called.parent_span_id, answered.parent_span_id)
    assert ("search", "call_1") == (
        attributes(called)["gen_ai.tool.name"],
        attributes(called)["gen_ai.tool.call.id"],
    )


def test_repeated_tool_call_ids_give_different_spans() -> None:
    """Two calls with one id in one run are two spans, each with its own answer below it."""
    messages = [call("x", "a"), tool("x", "a", "1"), call("x", "a"), tool("x", "a", "2")]
    items, report = read(tau_file(tau_run(0, 0, traj=messages)))
    made = spans(items)
    assert 6 == len({span.span_id for span in made})
    assert [made[1].span_id, made[4].span_id] == [made[2].parent_span_id, made[5].parent_span_id]
    assert (2, 1, {}) == (report.tool_call_ids["x"], report.repeated_in_run, report.odd)


def test_a_stopped_run_is_a_timeout_with_a_reason() -> None:
    """A run without reward_info did not come to its end; its reward is recorded as given."""
    stopped = tau_run(3, 1, 0.0, info={"reward_info": None, "user_cost": None})
    items, report = read(tau_file(stopped))
    ended = bodies(items, "attempt_ended")[0]
    assert ended.outcome == runner_pb2.ATTEMPT_OUTCOME_TIMEOUT
    stopped_at = "stopped by the step limit after 6 messages: the source has no reward_info for this run"
    assert stopped_at == ended.reason
    assert bodies(items, "rollout_ended")[0].status == runner_pb2.ROLLOUT_STATUS_TIMEOUT
    assert ("value", 0.0) == (
        bodies(items, "reward_recorded")[0].WhichOneof("result"),
        bodies(items, "reward_recorded")[0].value,
    )
    assert ([(3, 1)], 0, 1) == (report.cut, report.simulator_bills, report.absent_costs)


def test_a_run_that_ended_succeeded_whatever_its_reward() -> None:
    """The runner says that the conversation ended; whether it was any good is the judge's to say."""
    items, report = read(tau_file(tau_run(0, 0, 0.0), tau_run(0, 1, 1.0)))
    expected = [runner_pb2.ATTEMPT_OUTCOME_SUCCEEDED] * 2
    assert expected == [body.outcome for body in bodies(items, "attempt_ended")]
    assert {0.0: 1, 1.0: 1} == report.rewards


def test_law_09_absent_cost_and_absent_reward_stay_absent() -> None:
    """The simulator's bill is nobody's cost, and a reward that is not there says so; neither becomes 0."""
    run = tau_run(0, 0)
    del run["reward"]
    items, report = read(tau_file(run))
    assert not bodies(items, "attempt_ended")[0].HasField("cost")
    assert "reward absent in source, run 0" == bodies(items, "reward_recorded")[0].unscorable
    assert (1, 1, 1, {}) == (report.unscorable, report.absent_costs, report.simulator_bills, report.rewards)


def test_the_expected_answer_is_not_imported() -> None:
    """What `info.task` holds shows in the input digest alone: a learner reads its own rollouts."""
    secret = {"actions": [{"name": "the-expected-answer"}]}
    items, _ = read(tau_file(tau_run(0, 0, info={"task": secret})))
    assert not any(b"the-expected-answer" in item.event.SerializeToString() for item in items)
    other, _ = read(tau_file(tau_run(0, 0)))
    assert (
        bodies(items, "rollout_enqueued")[0].input_digest != bodies(other, "rollout_enqueued")[0].input_digest
    )


def test_odd_things_are_recorded_and_counted() -> None:
    """A call without answer, an answer without call, a reward that its detail contradicts are imported."""
    messages = [tool("y", "a", "?"), call("x", "a"), {"role": "user", "content": ""}]
    odd = tau_run(0, 0, 1.0, traj=messages, info={"reward_info": {"reward": 0.5}})
    items, report = read(tau_file(odd))
    assert 4 == len(spans(items))
    expected = {
        "tool call without an answer": 1,
        "tool message without a call": 1,
        "reward_info with another reward": 1,
    }
    assert expected == report.odd


def test_a_span_too_long_for_the_log_goes_into_a_blob() -> None:
    """A message of more than an event holds is named by digest, and its bytes are handed out beside it."""
    long = [{"role": "user", "content": "x" * MAX_INLINE_BYTES}]
    items, report = read(tau_file(tau_run(0, 0, traj=long)))
    item = next(item for item in items if item.blob is not None)
    assert item.blob is not None
    assert (1, len(item.blob)) == (report.blobs, item.event.span_recorded.blob.size)
    assert "x" * MAX_INLINE_BYTES in attributes(Span.FromString(item.blob))["assay.source.json"]


def test_law_05_importing_twice_gives_the_same_bytes() -> None:
    """The same file under the same name gives byte-identical events; under another name, other ids."""
    data = tau_file(tau_run(0, 0), tau_run(0, 1, 0.0))
    first, again = ([item.event.SerializeToString() for item in read(data)[0]] for _ in range(2))
    assert first == again
    other = Frame("other", "airline-agent", 1, runner_pb2.MODE_VAL, "tau-bench/airline")
    ids = {item.event.event_id for item in read(data)[0]}
    assert len(first) == len(ids)
    assert set() == ids & {item.event.event_id for item in read(data, other)[0]}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "BAD_JSON: expected a list of runs, got ''"),
        (b"{}", "BAD_JSON: expected a list of runs, got '{}'"),
        (b"\xff", "BAD_JSON: expected UTF-8, got byte 0xff"),
        (b"[", "BAD_JSON: run 0: expected JSON"),
        (b"[1]", "BAD_RUN: run 0: expected dict, got int"),
        (tau_file(tau_run(0, 0)) + b" 1", "BAD_JSON: expected the end after the list, got '1'"),
        (tau_file(tau_run(0, 0))[:-1] + b",]", "BAD_JSON: run 1: expected JSON"),
        (
            tau_file(tau_run(0, 0), tau_run(0, 0)),
            "DUPLICATE_RUN: run 1: expected a new run, got task 0 trial 0",
        ),
        (tau_file(tau_run(0, 0, float("nan"))), "BAD_JSON: run 0: expected JSON, got NaN, which is no JSON"),
        (
            tau_file(tau_run(0, 0)).replace(b'"reward": 1.0', b'"reward": 1e999'),
            "NONFINITE_VALUE: run 0.reward",
        ),
        (tau_file(tau_run(0, 0, True)), "BAD_NUMBER: run 0.reward: expected a number, got True"),
        (tau_file(tau_run(True, 0)), "BAD_RUN: run 0.task_id: expected int, got bool"),
        (b'[{"trial": 0, "trial": 0}]', "BAD_JSON: run 0: expected JSON, got a key that is said twice"),
        (tau_file(tau_run(0, 0, traj=[{"role": "critic"}])), "BAD_RUN: run 0.traj[0].role: expected one of"),
        (tau_file(tau_run(0, 0, traj=[{"role": "user", "content": "\ud800"}])), "BAD_JSON: run 0.traj[0]"),
        (tau_file(tau_run(0, 0, traj=[call("\ud800", "a")])), "BAD_JSON: run 0.traj[0].tool_calls[0]"),
        (b"[" * 100_000, "BAD_JSON: run 0: expected JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(data: bytes, expected: str) -> None:
    """A file that is not what it claims raises FormatError with the run's position, expected and got."""
    assert expected == refused(data)[: len(expected)]


def test_an_empty_list_has_no_runs() -> None:
    """An empty file of runs gives no event and a report that says 0."""
    assert ([], 0) == (read(b" [ ] ")[0], read(b"[]")[1].runs)


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:0 ', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever the bytes, the answer is events or a FormatError, nothing else."""
    try:
        read(data)
    except FormatError as error:
        assert error.reason


# --- batches -----------------------------------------------------------------------------------------------


def _item(role: options_pb2.Role.ValueType, number: int, size: int) -> Imported:
    event = event_pb2.Event(event_id=number.to_bytes(16, "big"))
    event.span_recorded.otlp_span = bytes(size)
    return Imported(role, event)


def test_batches_keep_the_limits_and_the_order() -> None:
    """Batches cut by count and by bytes lose nothing, keep each role's order and fit the batch limits."""
    roles = (options_pb2.ROLE_RUNNER, options_pb2.ROLE_JUDGE)
    items = [_item(roles[k % 3 == 2], k, 2_000 if k < 3_000 else 0) for k in range(16_000)]
    cut = list(batches(items))
    for role in roles:
        expected = [item.event.SerializeToString() for item in items if item.role == role]
        assert expected == [data for at, batch in cut if at == role for data in batch]
    for _, batch in cut:
        check_batch_shape(batch)
    assert 4096 == max(len(batch) for _, batch in cut)


def test_a_batch_follows_what_it_rests_on() -> None:
    """A judge's batch that fills up first waits for the runner's events that were read before it."""
    items = [_item(options_pb2.ROLE_RUNNER, 0, 0)]
    items += [_item(options_pb2.ROLE_JUDGE, 1 + k, 0) for k in range(4097)]
    expected = [(options_pb2.ROLE_RUNNER, 1), (options_pb2.ROLE_JUDGE, 4096), (options_pb2.ROLE_JUDGE, 1)]
    assert expected == [(role, len(batch)) for role, batch in batches(items)]


def test_an_event_too_long_for_any_batch_is_refused() -> None:
    """An event of more than 60,000 bytes raises FormatError before a batch is given out."""
    with pytest.raises(FormatError) as caught:
        list(batches([_item(options_pb2.ROLE_RUNNER, 0, 60_000)]))
    assert "EVENT_SIZE" == caught.value.reason


# --- the public file ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def airline(sample_data: Path) -> tuple[list[Imported], Report]:
    """The public airline file, imported."""
    return read((sample_data / "gpt-4o-airline.json").read_bytes())


def test_airline_counts(airline: tuple[list[Imported], Report]) -> None:
    """200 runs of 50 tasks, 5,308 messages and 1,164 tool calls with 134 ids come through, each once."""
    items, report = airline
    assert (200, 200, 50, {4}) == (
        report.runs,
        report.attempts,
        len(report.tasks),
        set(report.tasks.values()),
    )
    expected = {
        "message.assistant": 2454,
        "message.user": 1490,
        "message.tool": 1164,
        "message.system": 200,
        "tool.call": 1164,
    }
    assert expected == report.spans
    assert (134, 31, 73) == (
        len(report.tool_call_ids),
        max(report.tool_call_ids.values()),
        report.repeated_in_run,
    )
    assert 5308 + 1164 == len({(body.trace_id, body.span_id) for body in bodies(items, "span_recorded")})
    counts = Counter(body_name(item.event) for item in items)
    once = ("rollout_enqueued", "attempt_started", "attempt_ended", "rollout_ended", "reward_recorded")
    assert dict.fromkeys(once, 200) | {"span_recorded": 6472} == counts
    assert {} == report.odd


def test_airline_rewards(airline: tuple[list[Imported], Report]) -> None:
    """84 rewards of 1 and 116 of 0: by trial 21, 22, 20 and 21 were solved."""
    items, report = airline
    assert {1.0: 84, 0.0: 116} == report.rewards
    by_trial: Counter[str] = Counter()
    for body in bodies(items, "reward_recorded"):
        by_trial[body.rollout[-1]] += int(body.value)
    assert {"0": 21, "1": 22, "2": 20, "3": 21} == by_trial


def test_airline_stopped_runs(airline: tuple[list[Imported], Report]) -> None:
    """The 5 runs that the step limit cut at 62 messages are timeouts with a reason; the others ended."""
    items, report = airline
    assert [(33, 0), (2, 1), (9, 2), (9, 3), (46, 3)] == report.cut
    reasons = [body.reason for body in bodies(items, "attempt_ended") if body.HasField("reason")]
    assert [
        "stopped by the step limit after 62 messages: the source has no reward_info for this run"
    ] * 5 == reasons


def test_airline_has_no_cost(airline: tuple[list[Imported], Report]) -> None:
    """195 bills of the user simulator are not the agent's: all 200 attempts are without cost."""
    items, report = airline
    assert (195, 200) == (report.simulator_bills, report.absent_costs)
    assert not any(body.HasField("cost") for body in bodies(items, "attempt_ended"))


def test_airline_twice_is_the_same(airline: tuple[list[Imported], Report], sample_data: Path) -> None:
    """Importing the file again gives byte-identical events, in batches that fit."""
    again = read_trajectories((sample_data / "gpt-4o-airline.json").read_bytes(), FRAME, Report())
    first, second = list(batches(airline[0])), list(batches(again))
    assert first == second
    for _, batch in first:
        check_batch_shape(batch)
