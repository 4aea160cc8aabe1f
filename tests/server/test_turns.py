"""Turns: nobody's work keeps another's waiting for more than a slice, and nothing is kept of who is done."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ledger.server.room import Room
from ledger.server.turns import SLICE, FairQueue, Turns


async def test_a_small_batch_waits_for_one_slice_of_many_large_ones() -> None:
    """Thirty principals with a hundred slices each are at work; a newcomer has the slice after the next."""
    turns, order, busy = Turns(), list[str](), asyncio.Event()

    async def work(principal: str, slices: int) -> None:
        turn = turns.of(principal)
        for _ in range(slices):
            await turn(SLICE)
            order.append(principal)
            if len(order) == 90:
                busy.set()

    greedy = [asyncio.create_task(work(f"greedy-{n}", 100)) for n in range(30)]
    await busy.wait()
    before = len(order)
    await turns.of("modest")(600)
    order.append("modest")
    assert len(order) - before <= 3
    await asyncio.gather(*greedy)
    assert 30 * 100 + 1 == len(order)
    assert {} == turns._had


async def test_slices_are_shared_evenly_however_many_batches_a_principal_has() -> None:
    """One principal with ten batches and one with one have as many slices each, while both work."""
    turns, order = Turns(), list[str]()

    async def work(principal: str) -> None:
        turn = turns.of(principal)
        for _ in range(100):
            await turn(SLICE)
            order.append(principal)

    await asyncio.gather(*(work("many") for _ in range(10)), work("one"))
    last = len(order) - order[::-1].index("one")
    assert abs(order[:last].count("many") - 100) <= 12


async def test_a_turn_that_nobody_takes_is_not_lost() -> None:
    """Who is cancelled while he waits holds nobody up."""
    turns = Turns()
    await turns.of("a")(1)
    waiting = [asyncio.create_task(_await(turns, name)) for name in "abc"]
    await asyncio.sleep(0)
    waiting[1].cancel()
    done, _ = await asyncio.wait(waiting)
    assert [False, True, False] == [each.cancelled() for each in waiting]
    assert 3 == len(done)


async def _await(turns: Turns, name: str) -> None:
    await turns.of(name)(1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers()), max_size=60))
def test_the_queue_is_fair_between_principals_and_in_order_within_one(items: list[tuple[str, int]]) -> None:
    """Each gets its own in order, and nobody two before another, who waits, gets one."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for principal, item in items:
        queue.append(principal, (principal, item))
    left = {name: [item for item in items if item[0] == name] for name in "abcd"}
    since = dict.fromkeys("abcd", 0)
    while queue:
        first = queue.first
        taken = queue.pop()
        assert first == taken
        assert left[taken[0]].pop(0) == taken
        for name in "abcd":
            since[name] = 0 if name == taken[0] or not left[name] else since[name] + 1
            assert since[name] < 4
    assert not any(left.values())


async def test_refused_batches_make_a_principal_wait_longer_each_time_and_no_other() -> None:
    """3 MiB refused: a third of a second; again: twice that. Small mistakes are for nothing."""
    room = Room(1024, 64 * 2**20)
    for _ in range(200):
        room.charge("honest", 700)
    room.take("honest", 700)
    room.charge("bad", 3 * 2**20)
    first = room._owed("bad")
    room.charge("bad", 3 * 2**20)
    second = room._owed("bad") - first
    assert 0.25 < first < 0.35
    assert 0.55 < second < 0.7
    for _ in range(20):
        room.charge("bad", 3 * 2**20)
    assert 9.9 < room._owed("bad") <= 10.0
    room.take("honest", 700)
