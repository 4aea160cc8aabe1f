"""Crowds of bad connections: others see about what they saw before, and nothing is left of the crowd.

The bounds are generous, since other work may share the machine; `make hostile` measures at full size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import grpc.aio
import pytest

from ledger import wire
from ledger.errors import FormatError, OverloadedError
from ledger.server import host as hosting
from ledger.v1 import ledger_pb2
from ledger.wire import error_of
from tests.hardening.attackers import KINDS, Attackers
from tests.hardening.hostile import PRINCIPALS, attack, crowd, held, measure, server_pid, settled
from tests.hardening.rubbish import spoiled_batch
from tests.lab import Lab
from tests.server.people import enqueued, reason_of, until

_FLOOR = 5.0  # ms: below it a ratio says more about the machine than about us


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits less than a second for handshakes and requests."""
    options = dict(hosting._GRPC_OPTIONS) | {"grpc.server_handshake_timeout_ms": 500}
    monkeypatch.setattr(hosting, "_GRPC_OPTIONS", tuple(options.items()))
    monkeypatch.setattr(wire, "_RECEIVING", 0.3)


async def test_a_crowd_changes_little_for_others_and_leaves_nothing() -> None:
    """300 connections of every bad kind, twice: latency within a bound, descriptors and memory given back."""
    async with Lab(subprocess=True) as lab:
        client, pid = lab.of_role("trainer"), server_pid(lab)
        before = await measure(lab, client, 60)
        descriptors, memory = held(pid)[0], list[float]()
        for _ in range(2):
            async with attack("attackers", str(lab.path), lab.address, *crowd(300)) as siege:
                assert siege.up.keys() == KINDS.keys()
                assert {} == siege.refused
                during = await measure(lab, client, 60)
            assert descriptors + 5 >= await settled(pid, descriptors + 5)
            memory.append(held(pid)[1])
        after = await measure(lab, client, 60)
        assert during.p50 <= 10 * max(before.p50, _FLOOR)
        assert during.p99 <= 100 * max(before.p50, _FLOOR)
        assert after.p50 <= 10 * max(before.p50, _FLOOR)
        assert memory[1] - memory[0] < 64


async def test_senders_of_rubbish_do_not_stop_others() -> None:
    """Six principals send 3 MiB batches that are refused at their last event: others are still answered."""
    names = ",".join(f"runner-{n}" for n in range(1, 7))
    async with Lab(subprocess=True, principals=PRINCIPALS) as lab:
        client = lab.of_role("trainer")
        before = await measure(lab, client, 40)
        async with attack("rubbish", str(lab.path), lab.address, names, "6") as siege:
            during = await measure(lab, client, 40)
        assert {"BAD_FIELD", "BACK_OFF"} <= siege.left.keys() <= {"BAD_FIELD", "BACK_OFF", "QUEUE_FULL"}
        assert during.p50 <= 40 * max(before.p50, _FLOOR)


@pytest.mark.parametrize("kind", ["unread", "left", "loris", "cancelling", "idle"])
async def test_no_task_outlives_its_connection(kind: str) -> None:
    """Within the server's own loop: connections that go away without a word leave no task behind."""
    async with Lab() as lab:
        client = lab.of_role("auditor")
        await client.get_checkpoint()
        before = len(asyncio.all_tasks())
        attackers = Attackers(lab.path, lab.address)
        await attackers.start({kind: 20})
        assert {kind: 20} == attackers.up
        await client.get_checkpoint()
        attackers.leave()
        await until(lambda: len(asyncio.all_tasks()) <= before)
        follow = [client.stub.Follow(ledger_pb2.FollowRequest()) for _ in range(60)]
        for call in follow:  # of 64 streams none is still counted
            assert 0 == (await call.read()).first_index  # type: ignore[union-attr]  # not the end
            call.cancel()


@pytest.mark.parametrize("kind", ["tcp", "tls"])
async def test_a_handshake_that_never_ends_is_ended(kind: str, short_patience: None) -> None:
    """TCP alone, and TLS without HTTP/2: the server closes both."""
    async with Lab() as lab:
        attackers = Attackers(lab.path, lab.address)
        if kind == "tcp":
            reader, _ = await asyncio.open_connection(*lab.address.split(":"))
        else:
            reader, _ = await attackers.secure()
        async with asyncio.timeout(60):
            while await reader.read(4096):
                pass
        assert reader.at_eof()
        attackers.leave()


async def test_a_request_that_comes_byte_by_byte_is_ended(short_patience: None) -> None:
    """A slow upload holds its call for half a minute and no longer; the connection still stands."""
    async with Lab() as lab:
        client = lab.of_role("auditor")
        await client.get_checkpoint()
        before = len(asyncio.all_tasks())
        attackers = Attackers(lab.path, lab.address)
        writer = await attackers.http()
        await KINDS["loris"](attackers)
        await until(lambda: len(asyncio.all_tasks()) > before)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert not writer.is_closing()
        attackers.leave()


async def test_one_principal_has_so_many_calls_and_no_more() -> None:
    """Of 300 calls that send nothing 44 are refused by TOO_MANY_CALLS; another principal is answered."""
    async with Lab() as lab:
        runner = lab.of_role("runner")
        channels = [lab.of_role("runner").channel for _ in range(3)]
        start = [channel.stream_unary("/ledger.v1.LedgerService/Append") for channel in channels]
        calls = [start[number % 3]() for number in range(300)]
        refused = []
        for call in asyncio.as_completed([_outcome(call) for call in calls]):
            refused.append(await call)
            if len(refused) == 44:
                break
        assert {"TOO_MANY_CALLS"} == set(refused)
        assert "TOO_MANY_CALLS" == await reason_of(
            runner.call(runner.stub.GetCheckpoint, _NOTHING), OverloadedError
        )
        assert (await lab.of_role("auditor").get_checkpoint()).size
        for call in calls:
            call.cancel()
        await runner.retry(runner.get_checkpoint)


async def test_who_sends_rubbish_is_told_to_come_back_before_he_has_sent_it() -> None:
    """BACK_OFF with a delay; others are not told so; after the delay he is heard again."""
    async with Lab() as lab:
        runner = lab.of_role("runner", attempts=1)
        request = spoiled_batch(runner.identity)
        assert "BAD_FIELD" == await reason_of(runner.call(runner.stub.Append, request), FormatError)
        with pytest.raises(OverloadedError) as caught:
            await runner.call(runner.stub.Append, request)
        assert "BACK_OFF" == caught.value.reason
        assert 0 < caught.value.retry_after < 10
        assert (await lab.of_role("auditor").get_checkpoint()).size
        assert 1 == (await lab.of_role("runner").append([enqueued(lab)])).count  # waits as it is told


_NOTHING = ledger_pb2.GetCheckpointRequest()


async def _outcome(call: Awaitable[object]) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error_of(error).reason
    return "answered"
