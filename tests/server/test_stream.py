"""Streams: pipelined appends, reading, following, and limits on what may wait."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest

from clients.ledger import LedgerClient
from clients.memory import Memory
from clients.sync import SyncLedgerClient
from ledger.entry import decode_entry, iter_run
from ledger.errors import FormatError, OverloadedError, RefusedError, VerificationError
from ledger.server.reader import cut_run
from ledger.server.room import Room
from ledger.v1 import ledger_pb2, runner_pb2
from ledger.wire import error_of
from tests.events import otlp_span
from tests.lab import Lab
from tests.server.people import batch, body, enqueued, reason_of, until


async def test_a_pipelined_stream_places_in_order() -> None:
    """Fifty batches, sixteen under way: each begins where the one before ends."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        batches = [[enqueued(lab, f"ro-{n}-{k}") for k in range(n % 7 + 1)] for n in range(50)]
        placed = [each async for each in client.append_stream(batches)]
        assert [len(each) for each in batches] == [each.count for each in placed]
        ends = [each.first_index + each.count for each in placed]
        assert ends[:-1] == [each.first_index for each in placed[1:]]


async def test_a_refused_batch_does_not_end_the_stream() -> None:
    """On the wire: refused, then placed under the same sequence."""
    async with Lab() as lab:
        client, identity = lab.of_role("runner"), lab.identity("runner-1")
        bad = batch(identity, [body(lab, "attempt_started", number=0)])
        good = batch(identity, [enqueued(lab)])
        call = client.stub.AppendStream()
        for signed in (bad, good):
            await call.write(ledger_pb2.AppendStreamRequest(append=signed.request(0)))
        await call.done_writing()
        answers = [answer async for answer in client.messages(call)]
        assert ["refused", "placed"] == [answer.WhichOneof("result") for answer in answers]
        assert "BAD_FIELD" == error_of(answers[0].refused).reason


async def test_the_clients_stream_ends_with_the_first_refusal_and_can_go_on() -> None:
    """Nothing after the refused batch is placed; the next append takes its sequence."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        batches = [[enqueued(lab)], [body(lab, "attempt_started", number=0)], [enqueued(lab)]]
        placed = []
        with pytest.raises(FormatError):
            async for each in client.append_stream(batches):
                placed.append(each)  # noqa: PERF401 - what came before the error counts
        assert 1 == len(placed)
        assert placed[0].first_index + 1 == (await client.append([enqueued(lab)])).first_index


async def test_a_stream_goes_on_over_a_restart() -> None:
    """Batches under way when the ledger is killed are sent again, and each is placed once."""
    async with Lab(subprocess=True, settings={"listen": "127.0.0.1:0"}) as lab:
        port = lab.address.rpartition(":")[2]
        lab._settings["listen"] = f"127.0.0.1:{port}"
        client = lab.of_role("runner", attempts=40)
        size = (await client.get_checkpoint()).size
        restarted = asyncio.Event()

        async def source() -> AsyncIterator[list[bytes]]:
            for number in range(30):
                if number == 15:
                    await lab.kill()
                    await lab.start()
                    restarted.set()
                yield [enqueued(lab, f"ro-{number}")]

        placed = [each async for each in client.append_stream(source(), window=4)]
        assert restarted.is_set()
        assert list(range(size, size + 30)) == [each.first_index for each in placed]


async def test_what_a_source_raises_comes_out_of_the_stream() -> None:
    """A fault of the author's own is neither swallowed nor retried."""
    async with Lab() as lab:

        async def source() -> AsyncIterator[list[bytes]]:
            yield [enqueued(lab)]
            raise LookupError("the source is gone")

        with pytest.raises(LookupError, match="the source is gone"):
            async for _ in lab.of_role("runner").append_stream(source()):
                pass


async def test_what_a_source_raises_between_two_answers_comes_out_too() -> None:
    """The source fails while its reader is busy with an answer, and no other answer is due."""
    async with Lab() as lab:
        answered, raised = asyncio.Event(), asyncio.Event()

        async def source() -> AsyncIterator[list[bytes]]:
            yield [enqueued(lab)]
            await answered.wait()
            raised.set()
            raise LookupError("the source is gone")

        with pytest.raises(LookupError, match="the source is gone"):
            async with asyncio.timeout(10) as limit:
                async for _ in lab.of_role("runner").append_stream(source()):
                    answered.set()
                    await raised.wait()
                    for _turn in range(10):
                        await asyncio.sleep(0)
        assert not limit.expired()


async def test_read_gives_any_range_and_proves_it() -> None:
    """Ranges across runs and slices, the empty one included."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        sent = [[enqueued(lab, f"ro-{n}-{k}") for k in range(500)] for n in range(12)]
        placed = [each async for each in client.append_stream(sent)]
        first = placed[0].first_index
        events = [event for each in sent for event in each]
        auditor = lab.of_role("auditor")
        for start, end in ((0, 0), (0, 6000), (1, 4500), (499, 501), (5999, 6000)):
            found = [item async for item in auditor.read(first + start, first + end)]
            assert events[start:end] == [decode_entry(entry).event for _, entry in found]
            assert list(range(first + start, first + end)) == [index for index, _ in found]


async def test_read_beyond_the_log_is_refused() -> None:
    """What is not there is not an empty answer."""
    async with Lab() as lab:
        assert "OUT_OF_RANGE" == await reason_of(anext(lab.of_role("auditor").read(0, 10**6)), FormatError)


async def test_follow_goes_on_with_every_commit() -> None:
    """From the first entry to one that is placed while following."""
    async with Lab() as lab:
        auditor, found = lab.of_role("auditor"), []
        size = (await auditor.get_checkpoint()).size
        last = enqueued(lab)
        caught_up = asyncio.Event()

        async def follow() -> None:
            async for index, entry in auditor.follow():
                found.append(decode_entry(entry).event)
                if index == size - 1:
                    caught_up.set()
                if index == size:
                    return

        following = asyncio.create_task(follow())
        await caught_up.wait()
        await lab.of_role("runner").append([last])
        await following
        assert (size + 1, last) == (len(found), found[-1])


def test_a_run_is_cut_between_entries_and_nothing_is_lost() -> None:
    """All ranges of a run of unequal entries."""
    entries = [bytes([n]) * (n * 70_000 % 65_000 + 1) for n in range(40)]
    run = b"".join(len(each).to_bytes(2, "big") + each for each in entries)
    for start in range(100, 140):
        for end in range(start, 141):
            pieces = list(cut_run(100, run, start, end))
            expected = b"".join(len(e).to_bytes(2, "big") + e for e in entries[start - 100 : end - 100])
            assert expected == b"".join(piece for _, piece in pieces)
            assert all(len(piece) < 2**20 + 2**16 for _, piece in pieces)


# --- what may wait -----------------------------------------------------------------------------------------


async def test_a_full_queue_is_resource_exhausted_and_says_when_to_come_back() -> None:
    """With room for one request, of many at once some are told QUEUE_FULL; with retries all are placed."""
    async with Lab(settings={"queue_requests": 1}) as lab:
        impatient = lab.of_role("runner", attempts=1)
        calls = [impatient.open_stream().append([enqueued(lab)]) for _ in range(40)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, OverloadedError)]
        assert {"QUEUE_FULL"} == {each.reason for each in refused}
        assert all(each.retry_after > 0 for each in refused)
        assert len(refused) < len(outcomes)


async def test_room_is_counted_by_request_byte_and_principal() -> None:
    """The first request always finds room; one principal may not take all."""
    room = Room(2, 100)
    room.take("a", 500)
    with pytest.raises(OverloadedError):
        room.take("b", 1)
    room.give("a", 500)
    room.take("a", 50)
    with pytest.raises(OverloadedError) as caught:
        room.take("a", 1)
    assert "QUOTA_EXCEEDED" == caught.value.reason
    room.take("b", 25)
    with pytest.raises(OverloadedError) as caught:
        room.take("c", 0)
    assert "QUEUE_FULL" == caught.value.reason
    waiting = asyncio.create_task(room.wait("c", 25))
    room.give("b", 25)
    await waiting


# --- what a client remembers -------------------------------------------------------------------------------


async def test_law_06_a_client_that_remembers_detects_a_rollback() -> None:
    """Store and released checkpoint both set back: the ledger starts, the client does not believe it."""
    async with Lab() as lab:
        data, old = lab.path / "ledger" / "data", lab.root / "old"
        await lab.stop()
        shutil.copytree(data, old)
        await lab.start()
        identity = lab.identity("runner-1")
        async with LedgerClient(identity) as client:
            await client.append([enqueued(lab)])
        await lab.stop()
        shutil.rmtree(data)
        shutil.copytree(old, data)
        await lab.start()
        async with LedgerClient(lab.identity("runner-1")) as client:
            with pytest.raises(VerificationError) as caught:
                await client.get_checkpoint()
        assert ("V7", "ROLLED_BACK") == (caught.value.step, caught.value.reason)


async def test_law_06_a_client_that_remembers_detects_a_fork_and_keeps_both_notes() -> None:
    """Set back and grown again beyond what was remembered: another beginning, with both notes as evidence."""
    async with Lab() as lab:
        data, old = lab.path / "ledger" / "data", lab.root / "old"
        await lab.stop()
        shutil.copytree(data, old)
        await lab.start()
        async with LedgerClient(lab.identity("runner-1")) as client:
            await client.append([enqueued(lab, "ro-1")])
        await lab.stop()
        shutil.rmtree(data)
        shutil.copytree(old, data)
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab, "ro-2"), enqueued(lab, "ro-3")])
        async with LedgerClient(lab.identity("runner-1")) as client:
            with pytest.raises(VerificationError) as caught:
                await client.get_checkpoint()
        assert ("V7", "FORKED") == (caught.value.step, caught.value.reason)
        kept = sorted(path.suffix.partition("-")[0] for path in (lab.path / "memory").iterdir())
        assert [".checkpoint", ".fork"] == kept


async def test_many_streams_of_one_client_believe_one_log() -> None:
    """Answers that overtake each other are linked: the memory ends at the newest, and nothing is refused."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        streams = [client.open_stream() for _ in range(16)]

        async def write(number: int) -> None:
            for _ in range(5):
                await streams[number].append([enqueued(lab)])

        await asyncio.gather(*(write(number) for number in range(16)))
        assert client.checkpoint is not None
        assert client.checkpoint == await client.get_checkpoint()


async def test_an_unsettled_batch_is_settled_before_the_next() -> None:
    """A ledger that was away when the batch was sent: the next append places both, in order."""
    async with Lab() as lab:
        client = LedgerClient(lab.identity("runner-1"), attempts=1, memory=Memory(lab.trust, None))
        size = (await client.get_checkpoint()).size
        lab._settings["listen"] = lab.address
        await lab.stop()
        with pytest.raises(OverloadedError):
            await client.append([enqueued(lab, "ro-1")])
        await lab.start()
        client.attempts = 8
        placed = await client.append([enqueued(lab, "ro-2")])
        await client.close()
        assert size + 1 == placed.first_index


async def test_the_synchronous_face_does_the_same() -> None:
    """Append, stream, read and prove from a thread without a loop."""
    async with Lab() as lab:
        identity, events = lab.identity("operator-1"), [body(lab, "blob_erased")]

        def work() -> tuple[int, int, int]:
            with SyncLedgerClient(identity, memory=Memory(identity.trust, None)) as client:
                placed = client.append(events)
                last = list(client.append_stream([events] * 3))[-1]
                leaf, _, checkpoint = client.prove_inclusion(placed.first_index)
                assert 32 == len(leaf)
                return placed.first_index, last.first_index, len(list(client.read(0, checkpoint.size)))

        first, last, read = await asyncio.to_thread(work)
        assert (first + 3, first + 4) == (last, read)


async def test_a_role_that_may_not_read_is_told_so_by_read() -> None:
    """The typed error of a streaming call."""
    async with Lab() as lab:
        assert "MAY_NOT_READ" == await reason_of(anext(lab.of_role("trainer").read()), RefusedError)


async def test_many_small_commits_are_read_in_few_messages_and_whole() -> None:
    """A hundred commits of one event, read from the store after a restart, and again from memory."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        fields = {"update": "up-1", "mode": runner_pb2.MODE_TRAIN}
        events = [enqueued(lab, f"ro-{number}", **fields) for number in range(100)]
        first = (await client.append([events[0]])).first_index
        for event in events[1:]:
            await client.append([event])
        for _ in range(2):
            auditor = lab.of_role("auditor")
            call = auditor.stub.Read(ledger_pb2.ReadRequest(start=first))
            messages = [message async for message in auditor.messages(call)]
            assert [first, first + 100] == [message.first_index for message in messages]
            assert events == [decode_entry(entry).event for entry in iter_run(messages[0].run)]
            update = lab.of_role("runner").stub.FollowUpdate(
                ledger_pb2.FollowUpdateRequest(update="up-1", start=first + 90)
            )
            followed = [await update.read() for _ in range(11)]
            update.cancel()
            assert ["runner-1"] * 10 == [message.author for message in followed[:10]]
            assert events[90:] == [decode_entry(message.entry).event for message in followed[:10]]
            assert first + 100 == followed[10].caught_up_size
            await lab.restart()


async def test_a_stream_that_goes_away_gives_its_room_back() -> None:
    """Half-way through, with batches taken and unanswered: nothing of the queue's room stays taken."""
    async with Lab() as lab:
        assert lab.host is not None
        client, identity = lab.of_role("runner"), lab.identity("runner-1")
        call = client.stub.AppendStream()
        for number in range(40):
            signed = batch(identity, [enqueued(lab)] * 50, sequence=number)
            await call.write(ledger_pb2.AppendStreamRequest(append=signed.request(0)))
        await call.read()
        call.cancel()
        room = lab.host.room
        await until(lambda: (room._taken_requests, room._taken_bytes) == (0, 0))
        assert {} == dict(room._by_principal)


async def test_a_follower_that_falls_too_far_behind_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caught up once, then read nothing while 30 MiB were placed: FELL_BEHIND, with a time to return."""
    monkeypatch.setattr("ledger.server.service._MAX_LAG", 10)
    async with Lab() as lab:
        auditor, client = lab.of_role("auditor"), lab.of_role("runner")
        call = auditor.stub.Follow(ledger_pb2.FollowRequest())
        while not (await call.read()).HasField("checkpoint"):
            pass
        large = [body(lab, "span_recorded", otlp_span=otlp_span(50_000)) for _ in range(60)]
        for _ in range(10):
            await client.append(large)
        with pytest.raises(OverloadedError) as caught:
            async for _ in auditor.messages(call):
                pass
        assert ("FELL_BEHIND", True) == (caught.value.reason, caught.value.retry_after > 0)
