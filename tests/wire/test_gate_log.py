"""The gate's own view of the log: verified as it comes, waited for when away, stopped by a lie."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from gate.log import GateLog
from ledger.errors import FatalError, OverloadedError, VerificationError
from tests.gate_lab import GateLab, Wire
from tests.lab import Lab


async def test_a_ledger_that_goes_away_is_followed_again_from_where_it_ended() -> None:
    """The stream breaks in the middle of a batch; the next one begins with the entry that was not read."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        client = wire.client("auditor-1")
        size = (await client.get_checkpoint()).size
        starts: list[int] = []

        async def follow(start: int) -> AsyncIterator[tuple[int, bytes]]:
            starts.append(start)
            async for index, entry in client.follow(start):
                if len(starts) == 1 and index == size - 3:
                    raise OverloadedError("UNAVAILABLE", "expected a ledger, got none", 0.0)
                yield index, entry

        log = GateLog(lab.trust)
        running = asyncio.create_task(log.run(follow))
        await log.reached(size)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert (log.size, starts) == (size, [0, size - 3])
        assert log.tree.root() == lab.gate_log.tree.root()


async def test_a_log_that_does_not_verify_stops_the_gate_for_good() -> None:
    """One changed bit: the follower raises, and whoever waits for the log is told."""
    async with Lab() as lab:
        client = lab.of_role("auditor")
        await client.get_checkpoint()

        async def follow(start: int) -> AsyncIterator[tuple[int, bytes]]:
            async for index, entry in client.follow(start):
                yield index, entry[:-1] + bytes([entry[-1] ^ 1]) if index == 3 else entry

        log = GateLog(lab.trust)
        running = asyncio.create_task(log.run(follow))
        with pytest.raises(FatalError, match="LOG_NOT_VERIFIED"):
            await log.reached(10)
        with pytest.raises(VerificationError):
            await running
