"""What the verifier holds and hands on: memory by streams, folds after the signature, any bytes, any cut."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.batch import batch_text, event_root
from ledger.entry import MAX_ENTRY_BYTES, Opening, encode_run, place_batch
from ledger.errors import CannotTellError, VerificationError
from ledger.trust import Grant
from ledger.v1 import event_pb2
from ledger.verify import Verifier
from tests.events import minimal_event
from tests.forge import START, Forge, make_key, numbered, refused, verify

RUNNER = make_key("runner")


class Seen:
    """A fold that keeps what it is handed."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, bytes, Grant, event_pb2.Event]] = []
        self.alone: list[bool] = []

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        self.entries.append((index, recorded_at, leaf, grant, event))
        self.alone.append(alone)


def _batches(forge: Forge, count: int, size: int, *, new_streams: bool = False) -> Iterator[bytes]:
    """`count` more batches of `size` events, made one at a time and not kept."""
    index, leaf, known = forge.size, forge.leaves[-1], RUNNER.verifier_key
    events = [numbered(number).SerializeToString() for number in range(size)]
    events_root = event_root(events)
    for number in range(count):
        stream = number.to_bytes(16, "big") if new_streams else bytes(16)
        sequence = 0 if new_streams else number
        signature = RUNNER.sign(batch_text(forge.origin, stream, sequence, size, events_root))
        opening = Opening(size, known.name, known.key_id, stream, sequence, signature)
        entries, leaves = place_batch(index, START + 10_000_000, leaf, opening, events)
        index, leaf = index + size, leaves[-1]
        yield encode_run(entries)


def _growth(*, batches: int, size: int, new_streams: bool) -> int:
    """Bytes that the verifier holds more after `batches` batches than after a tenth of them."""
    forge = Forge.opened("runner")
    verifier = Verifier(forge.trust)
    verifier.feed(encode_run(forge.entries))
    held = []
    tracemalloc.start()
    try:
        for number, run in enumerate(_batches(forge, batches, size, new_streams=new_streams), 1):
            verifier.feed(run)
            if number in (batches // 10, batches):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert forge.size + batches * size == verifier.size
    return held[1] - held[0]


def test_memory_does_not_grow_with_entries() -> None:
    """18,000 entries more in one stream are held in less than a byte each: the tree's edge and no more."""
    assert _growth(batches=100, size=200, new_streams=False) < 9_000


def test_memory_grows_by_about_160_bytes_a_stream() -> None:
    """A stream costs its 16 bytes, a number and a place in a table."""
    assert _growth(batches=1_000, size=1, new_streams=True) / 900 < 200


@pytest.mark.parametrize("size", [1, 2, 300])
def test_a_fold_sees_every_entry_in_order(size: int) -> None:
    """Index, time, leaf hash, author's grant, event, and whether it stood alone in its batch, as placed."""
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(size)))
    seen = Seen()
    verify(forge.export(), forge.trust, fold=seen)
    assert list(range(2 + size)) == [index for index, *_ in seen.entries]
    assert forge.leaves == [leaf for _, _, leaf, _, _ in seen.entries]
    assert ["root", "root", *["runner"] * size] == [grant.name for *_, grant, _ in seen.entries]
    assert [numbered(number) for number in range(size)] == [event for *_, event in seen.entries[2:]]
    times = [START, START + 1_000_000, *[START + 2_000_000] * size]
    assert times == [recorded_at for _, recorded_at, *_ in seen.entries]
    assert [True, True, *[size == 1] * size] == seen.alone


def test_a_fold_sees_nothing_that_was_not_signed() -> None:
    """Of a batch whose signature does not hold not one entry is handed on."""
    forge = Forge.opened("runner", "judge")
    forge.add("runner", numbered(0), numbered(1), signer=make_key("judge"))
    seen = Seen()
    with pytest.raises(VerificationError):
        verify(forge.export(), forge.trust, fold=seen)
    assert [0, 1, 2] == [index for index, *_ in seen.entries]


def test_what_a_fold_raises_reaches_the_caller() -> None:
    """A fold that fails is not taken for a fault of the log, nor passed over."""

    class Failing(Seen):
        def apply(
            self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
        ) -> None:
            raise RuntimeError(f"at {index}")

    with pytest.raises(RuntimeError, match="at 0"):
        verify(Forge.opened().export(), Forge.opened().trust, fold=Failing())


def test_law_18_order_is_by_index() -> None:
    """Authors' clocks count for nothing: events are folded by index, however occurred_at runs."""
    forge = Forge.opened("runner")
    for number in (5, 3, 4):
        event = numbered(number)
        event.occurred_at = START - number
        forge.add("runner", event)
    seen = Seen()
    verify(forge.export(), forge.trust, fold=seen)
    assert [START - 5, START - 3, START - 4] == [event.occurred_at for *_, event in seen.entries[2:]]


def test_law_18_recorded_time_never_runs_backwards() -> None:
    """A ledger whose clock went back is refused at the first entry that shows it."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), recorded_at=START)
    refused(forge, "V2", "BAD_TIME", 2)


def test_law_04_no_part_of_a_batch_stands_alone() -> None:
    """Every proper part of a batch at the log's end is refused, under a true checkpoint of that size."""
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(5)))
    for size in range(3, 7):
        refused(forge, "V3", "OPEN_BATCH", 2, export=forge.export(size=size))


def test_law_01_what_was_admitted_stays_readable() -> None:
    """The rules of the door are not applied again: an event that it would refuse today verifies."""
    forge = Forge.opened("runner")
    odd = numbered(0)
    odd.rollout_enqueued.rollout = "with spaces, and\nlines"
    forge.add("runner", odd)
    assert 3 == forge.verify().size


def test_law_20_a_reward_is_just_another_claim() -> None:
    """The verifier judges who wrote a reward, never what it says."""
    forge = Forge.opened("judge")
    forge.add("judge", minimal_event("reward_recorded"))
    assert {"root": 2, "judge": 1} == forge.verify().authors


LOG = Forge.opened("runner", "trainer")
LOG.add("runner", *map(numbered, range(3)))
RUN = encode_run(LOG.entries)


@given(st.lists(st.integers(0, len(RUN)), max_size=12).map(sorted))
def test_a_run_may_be_cut_anywhere(cuts: list[int]) -> None:
    """Chunks carry no meaning: however the run is cut, empty chunks too, the result is the same."""
    verifier = Verifier(LOG.trust)
    for start, stop in zip([0, *cuts], [*cuts, len(RUN)], strict=True):
        verifier.feed(RUN[start:stop])
    assert LOG.verify() == verifier.finish(LOG.checkpoint())


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_way(run: bytes, checkpoint: bytes) -> None:
    """Whatever is handed in as run and checkpoint, the answer is a VerificationError."""
    verifier = Verifier(LOG.trust)
    with pytest.raises(VerificationError):
        verifier.feed(run)
        verifier.finish(checkpoint)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=300))
def test_any_event_bytes_in_a_perfect_batch(data: bytes) -> None:
    """Whatever a granted author signs, the answer is a finding, "cannot tell" or a pass: never a crash."""
    forge = Forge.opened("runner")
    forge.add("runner", data)
    try:
        reached = forge.verify().size
    except VerificationError as error:
        assert ("V4", 2) == (error.step, error.index)
    except CannotTellError as error:
        assert "NEWER_EVENT_TYPE" == error.reason
    else:
        assert 3 == reached


def test_the_greatest_entry() -> None:
    """A log of entries as long as they may be verifies, a batch at a time."""
    forge = Forge.opened("runner")
    empty = len(minimal_event("span_recorded", otlp_span=b"x" * 20_000).SerializeToString()) - 20_000
    event = minimal_event("span_recorded", otlp_span=b"x" * (60_000 - empty))
    forge.add("runner", event, event)
    assert 60_000 == len(event.SerializeToString())
    assert max(map(len, forge.entries)) <= MAX_ENTRY_BYTES
    assert 4 == forge.verify().size
