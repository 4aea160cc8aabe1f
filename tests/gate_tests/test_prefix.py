"""A verdict is a pure function of its prefix (law 15), and folds take any order of events (law 1)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clients.demo.scenario import digest, wrap
from gate.gather import gather
from gate.judge import RulesJudge
from gate.report import at_risk, receipt_document
from ledger.admission import admit
from ledger.errors import AssayError, FormatError, VerificationError
from ledger.merkle import leaf_hash
from ledger.trust import WRITER, role_name
from ledger.v1 import event_pb2, gate_pb2, operator_pb2, options_pb2, root_pb2
from tests.memory import (
    BY_ROLE,
    CANARY,
    DEFAULT,
    PRINCIPALS,
    TO_DEFAULT,
    MemoryLog,
    Story,
    demo_document,
    fold,
    small,
)

UPDATES = ("update-A", "update-B")
STEPS = (CANARY, DEFAULT)
JUDGE = RulesJudge()
FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def tiny(raw: dict[str, Any]) -> None:
    """Three rollouts a candidate, one of them retried."""
    small(raw)
    raw["policy"]["span_coverage"]["min_completed"] = 3
    for candidate in raw["candidates"]:
        candidate["training"] = {"rollouts": 3, "covered": 3, "expected_retries": 1}


def told() -> list[tuple[str, event_pb2.Event]]:
    """An eventful log: A promoted and rolled back, B judged, changes, withdrawals, pauses, a revocation."""
    story = Story(demo_document(tiny))
    story.setup()
    a, b = story.candidate("A"), story.candidate("B")
    story.until_approval(b)
    promoted = story.until_promoted(a)
    story.approve(b)
    story.say(gate_pb2.TrainingPaused(update="update-B", cause="COVERAGE", message="late"))
    request = story.say(operator_pb2.ResumeRequested(update="update-B", reason="fine"))
    story.say(gate_pb2.TrainingResumed(update="update-B", request_index=request))
    story.roll_back(promoted)
    target = options_pb2.ENVIRONMENT_TARGET_PERMISSIONS
    story.say(operator_pb2.EnvironmentChanged(scope=story.scope, target=target, new_digest=digest("new")))
    story.freeze("update-B", by="operator-1")
    story.window(b, "window-again")
    story.evaluate_again(a)
    story.log.revoke("canary-1", suspect_from=story.log.size - 3)
    return [(grant.name, event) for _, _, _, grant, event, _ in story.log.entries if grant.role]


TOLD = told()
GRANTED = sum(event.WhichOneof("body") == "key_granted" for _, event in TOLD)


@st.composite
def retold(draw: st.DrawFn) -> Story:
    """The same claims with some swapped, left out or said twice; fresh verdicts and moves in between."""
    items = TOLD[GRANTED:]
    places = st.integers(0, len(items) - 1)
    for a, b in draw(st.lists(st.tuples(places, places), max_size=6)):
        items[a], items[b] = items[b], items[a]
    gone = draw(st.sets(places, max_size=4))
    twice = draw(st.sets(places, max_size=4))
    judging = draw(
        st.dictionaries(places, st.sampled_from([(u, s) for u in UPDATES for s in STEPS]), max_size=6)
    )
    story = Story(demo_document(tiny))
    for at, (author, event) in enumerate(items):
        if at in judging:
            judge(story, *judging[at])
        for _ in range((at not in gone) + (at in twice)):
            story.log.tick(at % 3)
            story.log.append(author, [event])
    return story


def judge(story: Story, update: str, step: options_pb2.Step.ValueType) -> None:
    """The gate records a verdict and acts on it, if there is anything to judge."""
    proposal = story.log.receipts.proposal(update)
    if proposal is None or not story.log.receipts.update(update).of("update_frozen"):
        return
    verdict = story.verdict(update, step)
    if verdict[1].verdict == TO_DEFAULT:
        story.promote(verdict)


@FEW
@given(story=retold(), where=st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_the_full_fold_judges_a_prefix_as_the_prefix_does(story: Story, where: list[float]) -> None:
    """States, reasons, counts and digests as of a size are those of a log that ends there."""
    full = story.log.receipts
    for share in where:
        size = max(1, round(share * story.log.size))
        prefix = fold(story.log.entries[:size]).receipts
        for update in UPDATES:
            for step in STEPS:
                ours, theirs = (JUDGE.evaluate(r, update, step, size) for r in (full, prefix))
                assert ours == theirs
                assert JUDGE.stale(full, update, step, size) == JUDGE.stale(prefix, update, step, size)
                assert gather(full, update, step, size) == gather(prefix, update, step, size)
        resource, scope = story.document.resource, story.scope
        assert full.pointers.default(resource, scope, size) == prefix.pointers.default(resource, scope)


@FEW
@given(story=retold())
def test_replaying_any_order_gives_the_same(story: Story) -> None:
    """Two folds of the same entries void the same verdicts and moves, at the same places."""
    again = fold(story.log.entries)
    assert again.receipts.voids == story.log.receipts.voids
    assert again.faults == story.log.replay.faults
    assert again.receipts.pointers.all() == story.log.receipts.pointers.all()


# --- nonsense ----------------------------------------------------------------------------------------------

POLICY = demo_document(tiny).policy_bytes
NAMES = ["update-A", "update-B", "x", "*", "task-01"]
DIGESTS = [digest("a"), digest("b"), hashlib.sha256(POLICY).digest()]


def nonsense(draw: random.Random, descriptor: Descriptor, message: Any) -> Any:
    """A message of small ids and few digests, so that claims meet."""
    for oneof in descriptor.oneofs:
        if len(oneof.fields) > 1:
            put(draw, message, draw.choice(oneof.fields))
    for field in descriptor.fields:
        among = field.containing_oneof
        if among is not None and len(among.fields) > 1:
            continue
        if field.is_repeated:
            for _ in range(draw.randrange(3)):
                put(draw, message, field)
        elif not field.has_presence or draw.random() < 0.8:
            put(draw, message, field)
    return message


def put(draw: random.Random, message: Any, field: FieldDescriptor) -> None:
    """One value for a field, or one more item."""
    if field.message_type is not None:
        target = getattr(message, field.name)
        inner = target.add() if field.is_repeated else target
        if not field.is_repeated:
            inner.SetInParent()
        nonsense(draw, field.message_type, inner)
        return
    value = scalar(draw, field)
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def scalar(draw: random.Random, field: FieldDescriptor) -> Any:
    """A value that the door lets through, most of the time."""
    if field.enum_type is not None:
        return draw.choice(field.enum_type.values[1:] or field.enum_type.values).number
    if field.name in ("vkey", "ledger_vkey"):
        return str(draw.choice(list(PRINCIPALS.values())).key)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return {"document": POLICY, "trace_id": b"t" * 16, "span_id": b"s" * 8}.get(
                field.name, draw.choice(DIGESTS)
            )
        case FieldDescriptor.CPPTYPE_STRING:
            return draw.choice(NAMES)
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return draw.choice([0.0, 1.0, -0.5])
        case FieldDescriptor.CPPTYPE_BOOL:
            return draw.random() < 0.5
    return draw.choice([1, 1, 2, 3, 40])


def wild(seed: int, count: int) -> Iterator[tuple[str, event_pb2.Event]]:
    """Admissible events of all types, each by a principal whose role may write it."""
    draw = random.Random(seed)
    fields = event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
    while count:
        field = draw.choice(fields)
        event = event_pb2.Event(event_id=bytes(6) + b"\x70\x00\x80" + draw.randbytes(7))
        assert field.message_type is not None
        nonsense(draw, field.message_type, getattr(event, field.name))
        getattr(event, field.name).SetInParent()
        try:
            admit(event.SerializeToString())
        except FormatError:
            continue
        count -= 1
        yield BY_ROLE[role_name(WRITER[field.name])], event


@FEW
@given(seed=st.integers(0, 1 << 30))
def test_folds_never_raise(seed: int) -> None:
    """Whatever the door lets in is folded, judged, shown and replayed, however little sense it makes."""
    log = MemoryLog()
    for author, event in wild(seed, 120):
        log.append(author, [event], alone=len(event.event_id) % 2 == 0 or event.event_id[-1] % 5 != 0)
    for update in list(log.receipts.updates):
        for step in STEPS:
            size = random.Random(seed).randrange(1, log.size + 1)
            try:
                JUDGE.evaluate(log.receipts, update, step, size)
                receipt_document(log.receipts, update, size)
            except AssayError as error:
                assert error.reason in ("BAD_POLICY", "RULES_UNKNOWN")
    for move in log.receipts.pointers.all().values():
        assert move.update is None
        assert [] == at_risk(log.receipts, move)
    try:
        log.replay.result()
    except VerificationError as error:
        assert error.step in ("R1", "R2", "R3")


def test_every_body_type_can_be_nonsense() -> None:
    """The generator reaches every type of event."""
    seen = {event.WhichOneof("body") for _, event in wild(1, 1500)}
    assert seen == set(WRITER)


# --- the evidence digest -----------------------------------------------------------------------------------

COUNTS = {
    "update_proposed", "update_frozen", "training_started", "training_progressed", "training_ended",
    "candidate_registered", "rollout_enqueued", "attempt_started", "span_recorded", "attempt_ended",
    "rollout_ended", "reward_recorded", "evaluation_recorded", "evaluation_closed", "canary_started",
    "canary_task_recorded", "canary_ended", "rollback_rehearsed",
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_the_evidence_digest_covers_exactly_what_counts(step: int) -> None:
    """Another leaf of any entry that counts is another digest; of any other entry it is the same one."""
    story = Story(demo_document(tiny))
    story.setup()
    a, b = story.candidate("A"), story.candidate("B")
    verdict = story.until_canary_verdict(a)
    story.live(a, verdict)
    late = story.log.size
    story.approve(a, DEFAULT, by="approver-2")
    story.evaluate_again(a)
    story.write(story.scenario.rewards(a))
    story.say(gate_pb2.TrainingPaused(update="update-A", cause="COVERAGE", message="late"))
    story.write(story.scenario.proposal(b))
    live_from = next(iter(story.record(a).live))
    honest = JUDGE.evaluate(story.log.receipts, "update-A", step, story.log.size).evidence_digest

    # The canary verdict, on which the LIVE window rests, names the root of all leaves before it.
    since = verdict[0] if step == DEFAULT else 0
    counted, changed = set(), set()
    for entry in story.log.entries[since:]:
        index, _, _, grant, event, _ = entry
        name = event.WhichOneof("body")
        live = index >= live_from and name in COUNTS
        if name in COUNTS and index < late and (step == DEFAULT or not live):
            counted.add(index)
        if grant.role != options_pb2.ROLE_ROOT:
            entries = list(story.log.entries)
            entries[index] = other_leaf(entry)
            got = JUDGE.evaluate(fold(entries).receipts, "update-A", step, story.log.size).evidence_digest
            if got != honest:
                changed.add(index)
    assert counted == changed


def other_leaf(entry: Any) -> Any:
    """The same claim under another event id: nothing but its leaf is another."""
    index, recorded_at, _, grant, event, alone = entry
    again = wrap(getattr(event, event.WhichOneof("body")), bytes(6) + b"\x70\x00\x80" + bytes(7), recorded_at)
    leaf = leaf_hash(index.to_bytes(8, "big") + again.SerializeToString())
    return index, recorded_at, leaf, grant, again, alone


def test_the_evidence_digest_names_update_and_step(story: Story) -> None:
    """Two steps of one update, and two updates, never share an evidence digest."""
    for name in ("A", "B"):
        story.until_approval(story.candidate(name))
    digests = {
        JUDGE.evaluate(story.log.receipts, update, step, story.log.size).evidence_digest
        for update in UPDATES
        for step in STEPS
    }
    assert 4 == len(digests)
    assert isinstance(story.log.entries[0][4].key_granted, root_pb2.KeyGranted)
