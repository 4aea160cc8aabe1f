"""Persisted views: what is folded over rows is what is folded in memory, whatever left memory in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clients.demo.scenario import digest
from clients.ids import uuid7
from ledger.content import ContentRules
from ledger.fact import Fact
from ledger.server import records, updates
from ledger.server.stored import Parsed
from ledger.server.views import Views
from ledger.trust import WRITER, role_name
from ledger.v1 import approver_pb2, canary_pb2, gate_pb2, operator_pb2, options_pb2, runner_pb2, trainer_pb2
from tests.cold import ColdFold, Reference, concluded, listed
from tests.events import minimal_event
from tests.memory import DEFAULT, SECOND, Story, demo_document, fold, small
from tests.memory_log import MemoryLog

_HOUR: Final = 3600 * SECOND


# --- stories -----------------------------------------------------------------------------------------------


def _told() -> Story:
    story = Story(demo_document(small))
    story.setup()
    return story


def _change(story: Story, target: options_pb2.EnvironmentTarget.ValueType) -> operator_pb2.EnvironmentChanged:
    return operator_pb2.EnvironmentChanged(scope=story.scope, target=target, new_digest=digest("new"))


def promoted_and_rolled_back() -> MemoryLog:
    """A goes all the way and back; what rests on it later is void; B waits; C is proposed."""
    story = _told()
    a, b, c = (story.candidate(name) for name in "ABC")
    story.roll_back(story.until_promoted(a))
    verdict = story.until_canary_verdict(b)
    story.live(b, verdict, "live-b")
    story.promote(verdict)
    story.write(story.scenario.proposal(c))
    story.freeze(story.scenario.update_id(c))
    story.log.tick(2 * _HOUR)
    story.say(_change(story, options_pb2.ENVIRONMENT_TARGET_PERMISSIONS))
    return story.log


def fallen_and_suspect() -> MemoryLog:
    """Verdicts fall by a change and by a withdrawal, then keys become suspect; evidence comes late."""
    story = _told()
    a, b = story.candidate("A"), story.candidate("B")
    first = story.until_canary_verdict(a)
    story.until_canary_verdict(b)
    story.say(approver_pb2.ApprovalWithdrawn(update="update-A", approval="approval-A-canary"))
    story.live(a, first)
    story.say(_change(story, options_pb2.ENVIRONMENT_TARGET_MODEL_SERVER))
    story.freeze("update-B", by="operator-1")
    story.write(next(iter(story.scenario.rollouts(a)))[1:])
    story.evaluate_again(b)
    story.say(
        trainer_pb2.CandidateRegistered(
            update="update-B", manifest_digest=digest("x"), parent_digest=digest("y"), files=1
        ),
        by="trainer-2",
    )
    story.log.revoke("judge-1", suspect_from=story.log.size // 2)
    story.verdict("update-B")
    story.log.revoke("trainer-1", suspect_from=0)
    return story.log


def twice_promoted() -> MemoryLog:
    """A, then B on a verdict from before, then a verdict for A again."""
    story = _told()
    a, b = (story.until_default_verdict(story.candidate(name)) for name in "AB")
    story.promote(a)
    story.promote(b)
    story.verdict("update-A", DEFAULT)
    story.log.revoke("approver-2", suspect_from=story.log.size - 5)
    return story.log


STORIES: Final[Sequence[Callable[[], MemoryLog]]] = (
    promoted_and_rolled_back,
    fallen_and_suspect,
    twice_promoted,
)


def assert_same(log: MemoryLog, size: int, cold: ColdFold) -> None:
    """Rows and memory say the same of the prefix of `size` entries."""
    warm = fold(log.entries[:size]).receipts
    assert concluded(warm) == concluded(cold.view.receipts)
    assert listed(warm) == cold.listing()
    reference = Reference(log.entries[:size])
    rules = ContentRules()
    for entry in log.entries[:size]:
        rules.take([entry[4]])
    assert rules.rollouts == {
        rollout: (workflow, version)
        for rollout, workflow, version in cold.views.select("SELECT * FROM under_blob")
    }
    assert reference.rollouts == {name: list(cold.index.of_rollout(name)) for name in reference.rollouts}
    for update in warm.updates:
        visible = reference.visible.get(update, [])
        assert visible == cold.index.entries(update, 0, size)
        assert visible[2:] == cold.index.entries(update, visible[2] if visible[2:] else size, size)
    people = {(update, grant.name) for update in warm.updates for grant in log.principals.values()}
    for update, name in people:
        own = cold.index.is_own(update, name, log.principals[name].role)
        assert own == ((update, name) in reference.people)


def test_the_stories_hold_what_has_to_be_kept() -> None:
    """Voids, fallen and standing verdicts, LIVE windows that count and do not, rollbacks, suspect keys."""
    told_of = []
    kept: set[str] = set()
    for told in STORIES:
        receipts = told().receipts
        told_of += list(receipts.updates.values())
        kept |= {void.step for void in receipts.voids}
        kept |= {"standing"} if receipts.standing else set()
        facts = [f for record in receipts.updates.values() for kind in record.facts.values() for f in kind]
        kept |= {"suspect"} if any(receipts.suspects.hold(f, receipts.size) for f in facts) else set()
    assert {"R1", "standing", "suspect"} <= kept
    assert any(verdict.fell is not None for record in told_of for verdict in record.verdicts)
    assert {True, False} == {void is None for record in told_of for void in record.live.values()}
    assert any(record.rolled_back for record in told_of)


@pytest.mark.parametrize("told", STORIES)
@pytest.mark.parametrize("every", [2, 13, 40])
def test_rows_and_memory_find_the_same(tmp_path: Path, told: Callable[[], MemoryLog], every: int) -> None:
    """Every record leaves memory after every few entries, written or not: all that is concluded stays."""
    log = told()
    cold = ColdFold(tmp_path / "views.sqlite", log.entries, log.tree)
    for size in range(every, log.size + every, every):
        cold.fold(min(size, log.size))
        if size // every % 3 == 0:
            cold.write()
        cold.view.forget()
        if size // every % 5 == 0:
            cold.reopen()
    assert_same(log, log.size, cold)
    cold.reopen()
    assert_same(log, log.size, cold)


@pytest.mark.parametrize("told", STORIES)
def test_with_room_for_next_to_nothing_they_find_the_same(
    tmp_path: Path, told: Callable[[], MemoryLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rollouts, one update and nine claims stay in memory: bounds hold, and nothing is lost by them."""
    monkeypatch.setattr(updates, "_MOST_ROLLOUTS", 2)
    monkeypatch.setattr(updates, "_MOST_UPDATES", 1)
    monkeypatch.setattr(records, "_MOST_CLAIMS", 9)
    log = told()
    cold = ColdFold(tmp_path / "views.sqlite", log.entries, log.tree)
    for size in range(5, log.size + 5, 5):
        cold.fold(min(size, log.size))
        if size % 15 == 0:
            cold.write()
            assert cold.index.held() <= (2, 1)
    assert_same(log, log.size, cold)


@pytest.mark.parametrize("told", STORIES)
@pytest.mark.parametrize("every", [3, 17])
async def test_records_that_are_made_while_the_log_goes_on_find_the_same(
    tmp_path: Path, told: Callable[[], MemoryLog], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two slices entries are folded and rows written, and some records are made by the fold."""
    monkeypatch.setattr(records, "_SLICE", 4)
    log = told()
    cold = ColdFold(tmp_path / "views.sqlite", log.entries, log.tree)
    cold.fold(log.size // 3)
    cold.write()
    reads: list[int] = []

    async def aside(read: Callable[[], Parsed]) -> Parsed:
        parsed = read()
        reads.append(len(parsed.entries))
        cold.fold(min(cold.size + every, log.size))
        if len(reads) % 3 == 0:
            cold.write()
        return parsed

    while cold.size < log.size:
        cold.view.forget()
        for update in list(cold.view.receipts.updates):
            await cold.view.prepare(update, aside)
    assert 4 == max(reads)
    assert_same(log, log.size, cold)


@pytest.mark.parametrize("told", STORIES)
async def test_folding_what_was_read_ahead_reads_nothing(
    tmp_path: Path, told: Callable[[], MemoryLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a judgment, a move or a touch asks for was read before the event came to the fold."""
    log = told()
    cold = ColdFold(tmp_path / "views.sqlite", log.entries, log.tree)
    at = cold.facts.at
    read: list[int] = []

    async def aside(asked: Callable[[], Parsed]) -> Parsed:
        return asked()

    def blocks(positions: Sequence[int]) -> Iterator[Fact]:
        read.append(cold.size)
        return at(positions)

    monkeypatch.setattr(cold.facts, "at", blocks)
    for size in range(log.size):
        await cold.view.prepare_for([log.entries[size][4]], aside)
        cold.fold(size + 1)
        cold.write()
        cold.view.forget()
    assert [] == read
    assert_same(log, log.size, cold)
    assert read  # what was not foreseen is read all the same


@pytest.mark.parametrize("told", STORIES)
def test_rows_and_memory_agree_on_every_prefix(tmp_path: Path, told: Callable[[], MemoryLog]) -> None:
    """At forty sizes, each time after a start from the rows."""
    log = told()
    cold = ColdFold(tmp_path / "views.sqlite", log.entries, log.tree)
    chosen = sorted(random.Random(7).sample(range(1, log.size), 40))
    for size in chosen:
        cold.fold(size)
        cold.reopen()
        assert_same(log, size, cold)


@pytest.mark.parametrize("told", STORIES)
def test_rows_are_those_of_one_write(tmp_path: Path, told: Callable[[], MemoryLog]) -> None:
    """However often they were written and opened, rows equal those that one fold from nothing writes."""
    log = told()
    often = ColdFold(tmp_path / "often.sqlite", log.entries, log.tree)
    for size in range(11, log.size + 11, 11):
        often.fold(min(size, log.size))
        often.write()
        often.view.forget()
        if size % 5 == 0:
            often.reopen()
    once = ColdFold(tmp_path / "once.sqlite", log.entries, log.tree)
    once.fold(log.size)
    once.write()
    assert list(once.views.dump()) == list(often.views.dump())


# --- anything that may be claimed --------------------------------------------------------------------------

_UPDATES: Final = ("u1", "u2", "u3")
_ROLLOUTS: Final = ("r1", "r2", "r3", "r4")
_BODIES: Final = (
    "rollout_enqueued",
    "attempt_started",
    "span_recorded",
    "attempt_ended",
    "rollout_ended",
    "reward_recorded",
    "update_proposed",
    "update_frozen",
    "training_started",
    "training_ended",
    "candidate_registered",
    "evaluation_recorded",
    "evaluation_closed",
    "canary_started",
    "canary_task_recorded",
    "approval_granted",
    "approval_withdrawn",
    "verdict_issued",
    "default_promoted",
    "default_rolled_back",
    "rollback_requested",
    "environment_changed",
    "training_paused",
    "workflow_declared",
    "blob_erased",
)
_MODES: Final = (runner_pb2.MODE_TRAIN, runner_pb2.MODE_VAL, runner_pb2.MODE_HOLDOUT, runner_pb2.MODE_CANARY)
_Claim = tuple[str, str | None, str, int, int]

claims = st.lists(
    st.tuples(
        st.sampled_from(_BODIES) | st.sampled_from(_BODIES[:6]),
        st.sampled_from((*_UPDATES, None)),
        st.sampled_from(_ROLLOUTS),
        st.sampled_from(_MODES),
        st.integers(0, 20),
    ),
    max_size=60,
)


def _claim(log: MemoryLog, claim: _Claim, batch: int) -> None:
    name, update, rollout, mode, number = claim
    fields: dict[str, Any] = {}
    descriptor = minimal_event(name).DESCRIPTOR.fields_by_name[name].message_type
    assert descriptor is not None
    if name == "rollout_enqueued":
        fields = {"rollout": rollout, "mode": mode} | ({} if update is None else {"update": update})
    else:
        if "update" in descriptor.fields_by_name:
            fields["update"] = update or "u1"
        if "rollout" in descriptor.fields_by_name:
            fields["rollout"] = rollout
    blob = options_pb2.Blob(digest=bytes([number % 3]) * 32, size=1)
    if name == "rollout_enqueued":
        fields |= {"workflow": "w", "workflow_version": 1 + number % 2}
        fields |= {"input_blob": blob} if number % 5 == 0 else {}
    if name == "span_recorded" and number % 4 == 0:
        fields["blob"] = blob
    if name == "workflow_declared":
        fields |= {"workflow": "w", "version": 1 + number % 2, "content_rule": 1 + number % 3 % 2}
    if name == "blob_erased":
        fields["digest"] = blob.digest
    if name == "evaluation_recorded":
        fields["subject"] = 1 + number % 2
    if name == "canary_started" and number % 2:
        fields["kind"] = canary_pb2.WINDOW_KIND_LIVE
        fields["live"] = canary_pb2.LiveAuthority(
            resource="m",
            scope=options_pb2.Scope(workflow="w", segment="s"),
            verdict_index=number,
            seen_size=number + 1,
            not_after=log.clock,
        )
    if name == "verdict_issued":
        fields |= {"verdict": gate_pb2.VERDICT_HOLD, "log_size": max(1, log.size)}
    event = minimal_event(name, **fields)
    event.event_id = uuid7(log.clock, batch.to_bytes(10, "big"))
    role = role_name(WRITER[name])
    people = log.principals.items()
    held = sorted(n for n, p in people if role_name(p.role) == role and p.revocation is None)
    if held:
        log.append(held[number % len(held)], [event], alone=bool(number % 5))
        log.tick(number % 3)


@given(claims, st.integers(1, 9), st.integers(0, 70))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_claimed_rows_and_memory_find_the_same(
    tmp_path_factory: pytest.TempPathFactory, told: list[_Claim], every: int, revoked: int
) -> None:
    """Rollouts claimed twice, hidden later, of no update, orphans, moves of nothing, suspect keys."""
    log = MemoryLog()
    for number, claim in enumerate(told):
        _claim(log, claim, number)
        if number == revoked:
            log.revoke("judge-1", suspect_from=log.size // 2)
    cold = ColdFold(tmp_path_factory.mktemp("views") / "views.sqlite", log.entries, log.tree)
    for size in range(every, log.size + every, every):
        cold.fold(min(size, log.size))
        (cold.write, cold.reopen, cold.view.forget)[size % 3]()
    assert_same(log, log.size, cold)
    cold.reopen()
    assert_same(log, log.size, cold)


# --- the file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["rubbish", "another log", "another version", "empty"])
def test_rows_that_are_not_of_this_log_and_version_are_dropped(tmp_path: Path, how: str) -> None:
    """And the file is made anew; it says why."""
    log = promoted_and_rolled_back()
    path = tmp_path / "views.sqlite"
    cold = ColdFold(path, log.entries, log.tree)
    cold.fold(log.size)
    cold.write()
    cold.views.close()
    if how == "rubbish":
        path.write_bytes(b"this is no database" * 1000)
    elif how == "another version":
        views = Views(path, "test")
        views.close()
        import sqlite3  # noqa: PLC0415 - the one place that changes rows

        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE log SET version = version + 1")
        connection.close()
    elif how == "empty":
        path.unlink()
    views = Views(path, "another" if how == "another log" else "test")
    assert 0 == views.size
    assert (views.dropped is None) == (how == "empty")
    assert [] == list(views.dump())
    views.close()
