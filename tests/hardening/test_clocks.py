"""Clocks that are wrong: recorded time is never set back, and never taken from a clock that jumped."""

from __future__ import annotations

import pytest

from ledger.errors import OverloadedError
from ledger.server.clock import SteadyClock
from tests.lab import START, Lab
from tests.server.people import batch, enqueued, reason_of


async def test_law_18_a_clock_set_far_back_refuses_and_recovers_by_itself() -> None:
    """CLOCK_BEHIND beyond five minutes, nothing recorded; resends are answered; the right clock ends it."""
    async with Lab() as lab:
        runner = lab.of_role("runner", attempts=1)
        signed = batch(runner.identity, [enqueued(lab)])
        first = await runner.append_signed(signed)
        lab.clock.advance(-300_000_000)
        within = await runner.append([enqueued(lab)])
        assert first.recorded_at == within.recorded_at
        lab.clock.advance(-1)
        before = await runner.get_checkpoint()
        with pytest.raises(OverloadedError) as caught:
            await runner.append([enqueued(lab)])
        assert ("CLOCK_BEHIND", before) == (caught.value.reason, await runner.get_checkpoint())
        assert first.first_index == (await runner.append_signed(signed)).first_index
        await lab.restart()
        again = lab.of_role("runner", attempts=1)
        assert "CLOCK_BEHIND" == await reason_of(again.append([enqueued(lab)]), OverloadedError)
        lab.clock.now = START + 1
        assert START + 1 == (await again.append([enqueued(lab)])).recorded_at


async def test_law_18_a_clock_that_jumps_ahead_refuses_and_recovers_by_itself() -> None:
    """CLOCK_JUMPED: time went on by a second and the clock by an hour. The right clock ends it."""
    wall, elapsed = [START], [0]
    clock = SteadyClock(lambda: wall[0], lambda: elapsed[0])
    async with Lab(settings={"clock": clock}) as lab:
        runner = lab.of_role("runner", attempts=1)
        elapsed[0] += 1_000_000
        wall[0] += 3_600_000_000
        before = await runner.get_checkpoint()
        with pytest.raises(OverloadedError) as caught:
            await runner.append([enqueued(lab)])
        assert ("CLOCK_JUMPED", before) == (caught.value.reason, await runner.get_checkpoint())
        wall[0] = START + elapsed[0]
        assert START + 1_000_000 == (await runner.append([enqueued(lab)])).recorded_at
        # A night's pause is none: the time since boot says the same.
        wall[0] += 86_400_000_000
        elapsed[0] += 86_400_000_000
        assert wall[0] == (await runner.append([enqueued(lab)])).recorded_at
        wall[0] += 300_000_000  # within what a clock is set by
        assert wall[0] == (await runner.append([enqueued(lab)])).recorded_at
