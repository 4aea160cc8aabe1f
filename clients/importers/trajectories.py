"""tau-bench result files as events: what agents did, and the reward that the environment gave.

A file is a JSON list of runs {task_id, trial, reward, info, traj}. Each becomes a rollout with one attempt:
RolloutEnqueued, AttemptStarted, a SpanRecorded for each message and each tool call, AttemptEnded and
RolloutEnded by a runner, RewardRecorded by a judge.

Rules:
1. Nothing is dropped and nothing stands twice: a message is a span of family `message.<role>` with its JSON,
   a tool call one of family `tool.call` with its own, taken out of the message that holds it.
2. Ids come from the source's digest and the position in it. The source's tool-call ids repeat, inside one run
   even; they are carried as attributes and never used as ids.
3. Absence is absence (law 9). The file has no times: `occurred_at` and the spans' times are unset. It does
   not say what the agent cost: `info.user_cost` is the user simulator's bill, so the attempt has no cost.
4. An attempt SUCCEEDED when its conversation came to its own end, whatever the reward: that is the judge's to
   say, not the runner's. A run without `reward_info` was stopped by the step limit before its end. It is a
   TIMEOUT with a reason text, and no completed attempt; the limit counts steps, and this is the outcome for
   "a budget ran out".
5. The reward is recorded as given, a stopped run's 0.0 too. Where there is none, the reward says so.
6. `info` itself is not imported: it holds the expected answer. The rollout's input digest commits to
   `info.task` (RFC 8785). What else is odd in the file is counted in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Any, Final, TypeVar

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from clients.ids import span_id, trace_id, uuid8
from clients.importers.source import Imported, canonical_json, read_number
from clients.strict_json import decoder
from ledger.errors import FormatError
from ledger.v1 import event_pb2, judge_pb2, options_pb2, runner_pb2

__all__ = ["MAX_INLINE_BYTES", "SPAN_FAMILIES", "Frame", "Report", "read_trajectories"]

#: A longer span goes into a blob; an event has room for the rest of its fields.
MAX_INLINE_BYTES: Final = 58_000

_ROLES: Final = ("system", "user", "assistant", "tool")
SPAN_FAMILIES: Final = (*(f"message.{role}" for role in _ROLES), "tool.call")

_BLANKS: Final = frozenset(" \t\n\r")
_SOURCE: Final = "assay.source.json"
# OpenTelemetry's names (semantic conventions for generative AI).
_TOOL_NAME: Final = "gen_ai.tool.name"
_CALL_ID: Final = "gen_ai.tool.call.id"
_CUT: Final = "stopped by the step limit after {} messages: the source has no reward_info for this run"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Frame:
    """What the file does not say. `name` begins every id: a file imported for two updates needs two names."""

    name: str
    workflow: str
    workflow_version: int
    mode: runner_pb2.Mode.ValueType
    #: Name and version of the rule that gave the rewards.
    judge_version: str
    dimension: str = "task_reward"
    update: str | None = None
    #: Manifest of what ran, 32 bytes.
    resource_digest: bytes | None = None
    #: Spans that fit stand in the log; not where the workflow's version was declared for blobs.
    inline: bool = True


@dataclass(slots=True)
class Report:
    """Counts of what was read. Filled by `read_trajectories`, complete when that is exhausted."""

    runs: int = 0
    #: Runs by task id.
    tasks: Counter[int] = field(default_factory=Counter)
    attempts: int = 0
    #: Attempts whose cost the source does not say.
    absent_costs: int = 0
    #: Runs with a bill of the user simulator, which is nobody's cost here.
    simulator_bills: int = 0
    #: Runs that the step limit stopped, as (task, trial).
    cut: list[tuple[int, int]] = field(default_factory=list)
    #: Spans by family.
    spans: Counter[str] = field(default_factory=Counter)
    #: Tool calls by the source's id.
    tool_call_ids: Counter[str] = field(default_factory=Counter)
    #: Tool calls whose id the same run had used before.
    repeated_in_run: int = 0
    #: Rewards by value.
    rewards: Counter[float] = field(default_factory=Counter)
    #: Runs without a reward.
    unscorable: int = 0
    #: Spans that do not stand in the log, most often because they are too long.
    blobs: int = 0
    #: Anything else worth a look, by what it is.
    odd: Counter[str] = field(default_factory=Counter)


def read_trajectories(data: bytes, frame: Frame, report: Report) -> Iterator[Imported]:
    """The events of a result file, run by run, in the order in which they can be appended.

    Raises FormatError when it meets what it cannot read: BAD_JSON, BAD_RUN, BAD_NUMBER, NONFINITE_VALUE,
    DUPLICATE_RUN (a task and trial that stood before), naming the run by its position in the list.
    """
    source = sha256(data).digest()
    seen: set[tuple[int, int]] = set()
    for position, run in enumerate(_runs(data)):
        reader = _Run(source, frame, report, f"run {position}", run)
        if reader.key in seen:
            task, trial = reader.key
            raise FormatError(
                "DUPLICATE_RUN", f"run {position}: expected a new run, got task {task} trial {trial}"
            )
        seen.add(reader.key)
        yield from reader.events()


def _runs(data: bytes) -> Iterator[dict[str, Any]]:
    """The list's items, one parsed at a time."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("BAD_JSON", f"expected UTF-8, got byte {data[error.start]:#04x}") from error
    mark, at = _mark(text, 0)
    if mark != "[":
        raise FormatError("BAD_JSON", f"expected a list of runs, got {text[:40]!r}")
    if text[at : at + 1] == "]":
        mark, at = _mark(text, at)
    for position in count():
        if mark == "]":
            break
        where = f"run {position}"
        try:
            run, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise FormatError("BAD_JSON", f"{where}: expected JSON, got {error}") from error
        yield _typed(run, dict, where)
        mark, at = _mark(text, at)
        if mark not in (",", "]"):
            raise FormatError("BAD_JSON", f"after {where}: expected ',' or ']', got {mark!r}")
    if at != len(text):
        raise FormatError("BAD_JSON", f"expected the end after the list, got {text[at : at + 40]!r}")


def _mark(text: str, at: int) -> tuple[str, int]:
    """The next character that is not blank ("" at the end), and where the next such one after it stands."""
    start = _skip(text, at)
    return text[start : start + 1], _skip(text, start + 1)


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in _BLANKS:
        at += 1
    return at


def _typed(value: object, kind: type[_T], where: str) -> _T:
    if type(value) is not kind:  # a bool is no int
        raise FormatError("BAD_RUN", f"{where}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _attribute(key: str, value: str, where: str) -> KeyValue:
    try:
        return KeyValue(key=key, value=AnyValue(string_value=value))
    except UnicodeEncodeError as error:  # JSON may spell half a surrogate pair
        raise FormatError("BAD_JSON", f"{where}: expected Unicode text, got half a surrogate pair") from error


class _Run:
    """One run of the file. Owns what it knows of tool calls; the report is the reader's."""

    def __init__(self, source: bytes, frame: Frame, report: Report, where: str, run: dict[str, Any]) -> None:
        self._source = source
        self._frame = frame
        self._report = report
        self._where = where
        task, trial = (_typed(run.get(key), int, f"{where}.{key}") for key in ("task_id", "trial"))
        self.key = (task, trial)
        self._rollout = f"{frame.name}/task-{task}/trial-{trial}"
        self._trace = trace_id(source, self._rollout)
        self._info = _typed(run.get("info"), dict, f"{where}.info")
        self._messages = _typed(run.get("traj"), list, f"{where}.traj")
        self._reward = run.get("reward")
        self._called_before: set[str] = set()
        self._waiting: dict[str, bytes] = {}  # tool-call id -> span id, of calls without an answer so far

    def events(self) -> Iterator[Imported]:
        """The run's events, counted in the report as they are given out."""
        self._report.runs += 1
        self._report.tasks[self.key[0]] += 1
        self._report.attempts += 1
        yield self._runner("enqueued", rollout_enqueued=self._enqueued())
        started = runner_pb2.AttemptStarted(
            rollout=self._rollout, number=1, reason=runner_pb2.ATTEMPT_REASON_FIRST
        )
        yield self._runner("started", attempt_started=started)
        yield from self._spans()
        ended, closed = self._ends()
        yield self._runner("ended", attempt_ended=ended)
        yield self._runner("closed", rollout_ended=closed)
        rewarded = event_pb2.Event(event_id=self._event_id("reward"), reward_recorded=self._rewarded())
        yield Imported(options_pb2.ROLE_JUDGE, rewarded)

    def _enqueued(self) -> runner_pb2.RolloutEnqueued:
        frame = self._frame
        task, trial = self.key
        given = canonical_json(self._info.get("task"), f"{self._where}.info.task")
        return runner_pb2.RolloutEnqueued(
            rollout=self._rollout,
            workflow=frame.workflow,
            workflow_version=frame.workflow_version,
            mode=frame.mode,
            update=frame.update,
            resource_digest=frame.resource_digest,
            input_digest=sha256(given).digest(),
            external_ref=options_pb2.ExternalRef(system="tau-bench", id=f"{task}/{trial}"),
        )

    def _ends(self) -> tuple[runner_pb2.AttemptEnded, runner_pb2.RolloutEnded]:
        report = self._report
        billed = self._info.get("user_cost") is not None
        report.absent_costs += 1
        report.simulator_bills += billed
        if self._info.get("reward_info") is not None:
            return (
                runner_pb2.AttemptEnded(
                    rollout=self._rollout, attempt=1, outcome=runner_pb2.ATTEMPT_OUTCOME_SUCCEEDED
                ),
                runner_pb2.RolloutEnded(rollout=self._rollout, status=runner_pb2.ROLLOUT_STATUS_SUCCEEDED),
            )
        report.cut.append(self.key)
        if billed:
            report.odd["stopped run with a simulator's bill"] += 1
        return (
            runner_pb2.AttemptEnded(
                rollout=self._rollout,
                attempt=1,
                outcome=runner_pb2.ATTEMPT_OUTCOME_TIMEOUT,
                reason=_CUT.format(len(self._messages)),
            ),
            runner_pb2.RolloutEnded(rollout=self._rollout, status=runner_pb2.ROLLOUT_STATUS_TIMEOUT),
        )

    def _rewarded(self) -> judge_pb2.RewardRecorded:
        report, frame = self._report, self._frame
        reward = judge_pb2.RewardRecorded(
            rollout=self._rollout, attempt=1, judge_version=frame.judge_version, dimension=frame.dimension
        )
        if self._reward is None:
            report.unscorable += 1
            reward.unscorable = f"reward absent in source, {self._where}"
            return reward
        reward.value = read_number(self._reward, f"{self._where}.reward")
        report.rewards[reward.value] += 1
        detail = self._info.get("reward_info")
        if isinstance(detail, dict) and detail.get("reward") != self._reward:
            report.odd["reward_info with another reward"] += 1
        return reward

    def _spans(self) -> Iterator[Imported]:
        for position, item in enumerate(self._messages):
            where = f"{self._where}.traj[{position}]"
            message = _typed(item, dict, where)
            role = message.get("role")
            if role not in _ROLES:
                raise FormatError("BAD_RUN", f"{where}.role: expected one of {_ROLES}, got {role!r}"[:300])
            calls = _typed(message.get("tool_calls") or [], list, f"{where}.tool_calls")
            # An empty or null list of calls has no span of its own, so it stays where it is.
            said = {key: value for key, value in message.items() if key != "tool_calls" or not calls}
            parent = self._answered(message, where) if role == "tool" else b""
            at = f"message/{position}"
            span = self._span(at, f"message.{role}", said, where, parent=parent)
            yield self._recorded(at, span)
            if calls:
                self._give_up_waiting()
            for number, call in enumerate(calls):
                yield self._called(f"{at}/call/{number}", call, f"{where}.tool_calls[{number}]", span.span_id)
        self._give_up_waiting()

    def _called(self, at: str, item: object, where: str, parent: bytes) -> Imported:
        call = _typed(item, dict, where)
        call_id = _typed(call.get("id"), str, f"{where}.id")
        function = _typed(call.get("function"), dict, f"{where}.function")
        name = _typed(function.get("name"), str, f"{where}.function.name")
        span = self._span(at, "tool.call", call, where, parent=parent)
        span.attributes.extend((_attribute(_TOOL_NAME, name, where), _attribute(_CALL_ID, call_id, where)))
        self._report.tool_call_ids[call_id] += 1
        self._report.repeated_in_run += call_id in self._called_before
        self._called_before.add(call_id)
        self._waiting[call_id] = span.span_id
        return self._recorded(at, span)

    def _answered(self, message: dict[str, Any], where: str) -> bytes:
        """The span id of the call that a tool message answers; empty where no call waits for it."""
        call_id = _typed(message.get("tool_call_id"), str, f"{where}.tool_call_id")
        if call_id not in self._waiting:
            self._report.odd["tool message without a call"] += 1
        return self._waiting.pop(call_id, b"")

    def _give_up_waiting(self) -> None:
        if self._waiting:
            self._report.odd["tool call without an answer"] += len(self._waiting)
        self._waiting.clear()

    def _span(self, at: str, family: str, said: dict[str, Any], where: str, *, parent: bytes) -> Span:
        return Span(
            trace_id=self._trace,
            span_id=span_id(self._source, f"{self._rollout}/{at}"),
            parent_span_id=parent,
            name=family,
            kind=Span.SPAN_KIND_INTERNAL,
            attributes=[_attribute(_SOURCE, canonical_json(said, where).decode(), where)],
        )

    def _recorded(self, at: str, span: Span) -> Imported:
        self._report.spans[span.name] += 1
        recorded = runner_pb2.SpanRecorded(
            rollout=self._rollout, attempt=1, family=span.name, trace_id=span.trace_id, span_id=span.span_id
        )
        data = span.SerializeToString()
        if self._frame.inline and len(data) <= MAX_INLINE_BYTES:
            recorded.otlp_span = data
            return self._runner(at, span_recorded=recorded)
        self._report.blobs += 1
        recorded.blob.digest = sha256(data).digest()
        recorded.blob.size = len(data)
        return self._runner(at, blob=data, span_recorded=recorded)

    def _runner(self, at: str, *, blob: bytes | None = None, **body: Any) -> Imported:
        event = event_pb2.Event(event_id=self._event_id(at), **body)
        return Imported(options_pb2.ROLE_RUNNER, event, blob)

    def _event_id(self, at: str) -> bytes:
        return uuid8(self._source, f"{self._rollout}/{at}")
