"""Hostile and careless clients: what one principal does never stands in another's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from clients.acknowledgement import SignedBatch
from ledger.entry import decode_entry
from ledger.errors import FormatError, OverloadedError
from ledger.server.appending import Appender
from ledger.server.room import Room, Streams
from ledger.server.sequencer import Position
from ledger.server.state import known_grant, prepare
from ledger.server.turns import Turns
from ledger.v1 import event_pb2, ledger_pb2, receipt_pb2, receipt_pb2_grpc, runner_pb2
from ledger.wire import error_of
from tests.events import otlp_span
from tests.lab import Lab
from tests.server.people import batch, body, enqueued, until


class _Context:
    """What an Appender asks of a connection: who is at its other end."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_spiffe_id": [b"spiffe://lab.test/runner-1"]}


async def _sent(batches: list[SignedBatch]) -> AsyncIterator[ledger_pb2.AppendStreamRequest]:
    for signed in batches:
        yield ledger_pb2.AppendStreamRequest(append=signed.request(0))


def _appender(lab: Lab) -> tuple[Appender, Room]:
    assert lab.host is not None
    services = lab.host.services
    room, metrics = lab.host.room, lab.host.metrics
    return Appender(services.sequencer, services.access, room, metrics, lab.home.origin), room


async def test_an_author_who_never_reads_his_answers_keeps_no_room() -> None:
    """Twenty batches committed, one answer read: the room is everybody's again."""
    async with Lab() as lab:
        appender, room = _appender(lab)
        assert lab.host is not None
        sequencer = lab.host.services.sequencer
        size = sequencer.size
        batches = [batch(lab.identity("runner-1"), [enqueued(lab)], number) for number in range(20)]
        context: Any = _Context()
        answers = appender.append_stream(_sent(batches), context)
        assert "placed" == (await anext(answers)).WhichOneof("result")
        await until(lambda: sequencer.size == size + 20 and room._taken_requests == 0)
        await answers.aclose()  # type: ignore[attr-defined]  # an async generator


async def test_an_author_who_cancels_keeps_his_room_until_the_batch_is_done() -> None:
    """What waits in the queue is counted, whoever still wants to know of it."""
    async with Lab() as lab:
        appender, room = _appender(lab)
        assert lab.host is not None
        pending: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        lab.host.services.sequencer.submit = lambda *_: pending  # type: ignore[method-assign]  # a fault put in
        request = batch(lab.identity("runner-1"), [enqueued(lab)]).request(0)
        context: Any = _Context()
        call = asyncio.create_task(appender.append(request, context))
        await until(lambda: room._taken_requests == 1)
        for _ in range(10):
            await asyncio.sleep(0)  # the call waits for its answer now
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert 1 == room._taken_requests
        pending.set_result(Position(0, 1, 0, bytes(32)))
        await until(lambda: room._taken_requests == 0)
        await lab.stop()


def test_one_principal_may_not_take_all_requests() -> None:
    """As many as it leaves, however small; the other half is for others."""
    room = Room(6, 1000)
    for _ in range(3):
        room.take("a", 1)
    with pytest.raises(OverloadedError) as caught:
        room.take("a", 1)
    assert "QUOTA_EXCEEDED" == caught.value.reason
    room.take("b", 1)
    room.give("a", 1)
    with pytest.raises(OverloadedError):
        room.take("a", 1)
    room.take("b", 1)


def test_beside_many_greedy_principals_there_is_room_for_a_small_request() -> None:
    """Forty principals take all they get of 64 MiB, in batches of 3 MiB; another's kilobyte finds room."""
    room, size = Room(1024, 64 * 2**20), 3 * 2**20
    taken = 0
    for number in range(40):
        for _ in range(40):
            try:
                room.take(f"greedy-{number}", size)
            except OverloadedError as error:
                assert error.reason in ("QUEUE_FULL", "QUOTA_EXCEEDED")
                break
            taken += 1
    assert 64 * 2**20 // size - 2 <= taken < 40
    room.take("modest", 1024)


def test_one_principal_has_so_many_streams_and_no_more() -> None:
    """Those that ended do not count; another principal's do not either."""
    streams, held = Streams(), []
    for _ in range(64):
        held.append(streams.open("a"))
        held[-1].__enter__()
    with pytest.raises(OverloadedError) as caught, streams.open("a"):
        pass
    assert "TOO_MANY_STREAMS" == caught.value.reason
    with streams.open("b"):
        held.pop().__exit__(None, None, None)
        with streams.open("a"):
            pass


async def test_a_reader_who_goes_away_gives_his_stream_back() -> None:
    """Followers that are cancelled over and over never run out."""
    async with Lab() as lab:
        auditor = lab.of_role("auditor")
        for _ in range(80):
            call = auditor.stub.Follow(ledger_pb2.FollowRequest())
            first: Any = await call.read()
            assert 0 == first.first_index
            call.cancel()


async def test_others_have_their_turn_while_a_large_batch_is_parsed() -> None:
    """A batch of the largest size is not one step of the loop."""
    async with Lab() as lab:
        event = body(lab, "span_recorded", otlp_span=otlp_span(50_000))
        assert lab.host is not None
        signed = batch(lab.identity("runner-1"), [event] * 60)
        grant = known_grant(lab.host.services.sequencer.state.authority, signed.note)
        turn = Turns().of("runner-1")
        preparing = asyncio.create_task(prepare(signed.note, signed.events, lab.home.origin, grant, turn))
        turns = 0
        while not preparing.done():
            await asyncio.sleep(0)
            turns += 1
        assert 60 == len((await preparing).events)
        assert turns > 30


async def test_an_update_is_followed_without_a_gap_or_a_repetition() -> None:
    """Batches larger than the slices in which views are folded, placed while the follower reads."""
    async with Lab() as lab:
        runner, count = lab.of_role("runner"), 12 * 400
        fields = {"update": "up-1", "mode": runner_pb2.MODE_TRAIN}
        first = (await runner.append([enqueued(lab, "ro-0", **fields)])).first_index
        batches = [[enqueued(lab, f"ro-{n}-{k}", **fields) for k in range(400)] for n in range(12)]
        call = lab.of_role("runner").stub.FollowUpdate(ledger_pb2.FollowUpdateRequest(update="up-1"))

        async def place() -> None:
            async for _ in runner.append_stream(batches):
                pass

        placing = asyncio.create_task(place())
        found: list[int] = []
        while len(found) <= count:
            message: Any = await call.read()
            if message.entry:
                found.append(message.index)
        call.cancel()
        await placing
        assert list(range(first, first + count + 1)) == found


@pytest.mark.parametrize("token", ["9" * 5000, "-1", "²", "٣", "x"])
async def test_a_page_token_that_is_none_is_refused(token: str) -> None:
    """BAD_PAGE_TOKEN, never a fault of the server's own."""
    async with Lab() as lab:
        stub = receipt_pb2_grpc.ReceiptServiceStub(lab.of_role("auditor").channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListUpdates(receipt_pb2.ListUpdatesRequest(page_token=token))
        assert "BAD_PAGE_TOKEN" == error_of(caught.value).reason


async def test_a_proof_that_cannot_be_says_nothing_of_what_is_not_released() -> None:
    """A tree that runs ahead while a commit is on its way does not show in the refusal."""
    async with Lab() as lab:
        assert lab.host is not None
        sequencer = lab.host.services.sequencer
        size, tree = sequencer.size, sequencer.state.tree
        tree.extend([bytes(32)] * 1000)
        for ask, old, new in ((sequencer.inclusion, size, size), (sequencer.consistency, size, size - 1)):
            with pytest.raises(FormatError) as caught:
                ask(old, new)
            assert ("OUT_OF_RANGE", False) == (caught.value.reason, str(size + 1000) in caught.value.message)
        tree.truncate(size)


async def test_a_holdouts_id_claimed_first_as_train_opens_nothing_of_it() -> None:
    """What a runner says of a rollout in advance shows no trainer the holdout's spans and rewards."""
    async with Lab() as lab:
        trainer, runner, judge = lab.of_role("trainer"), lab.of_role("runner"), lab.of_role("judge")
        await trainer.append([body(lab, "update_proposed", update="up-1")])
        claimed = enqueued(lab, "ro-9", update="up-1", mode=runner_pb2.MODE_TRAIN)
        holdout = enqueued(lab, "ro-9", update="up-1", mode=runner_pb2.MODE_HOLDOUT)
        await runner.append([claimed])
        await runner.append([holdout, body(lab, "span_recorded", rollout="ro-9")])
        await judge.append([body(lab, "reward_recorded", rollout="ro-9", value=1.0)])
        await runner.append([claimed])
        seen = []
        async for message in trainer.follow_update("up-1"):
            if message.HasField("caught_up_size"):
                break
            event = event_pb2.Event.FromString(decode_entry(message.entry).event)
            seen.append(event.WhichOneof("body"))
        assert ["update_proposed", "rollout_enqueued"] == seen


async def test_a_rollout_larger_than_a_message_is_refused_by_name() -> None:
    """TOO_LARGE, said by the service and not by the transport; a rollout that fits is answered."""
    async with Lab() as lab:
        runner = lab.of_role("runner")
        spans = [body(lab, "span_recorded", rollout="ro-1", otlp_span=otlp_span(50_000))] * 50
        await runner.append([enqueued(lab, "ro-2")])
        for _ in range(2):
            await runner.append(spans)
        stub = receipt_pb2_grpc.ReceiptServiceStub(lab.of_role("auditor").channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetRollout(receipt_pb2.GetRolloutRequest(rollout="ro-1"))
        assert "TOO_LARGE" == error_of(caught.value).reason
        assert (await stub.GetRollout(receipt_pb2.GetRolloutRequest(rollout="ro-2"))).rollout_json
