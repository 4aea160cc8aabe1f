"""Appending: what an acknowledgement is worth, and what sending again does."""

from __future__ import annotations

import asyncio

import pytest

from clients.acknowledgement import Placed
from clients.home import ROOT
from ledger.entry import decode_entry
from ledger.errors import FormatError, RefusedError
from ledger.server.state import known_grant, prepare
from ledger.server.turns import Turns
from ledger.touches import Condition
from ledger.v1 import event_pb2, options_pb2
from tests.events import minimal_event
from tests.lab import START, Lab
from tests.server.people import STREAM, batch, body, enqueued, reason_of, until


async def test_law_03_an_acknowledgement_proves_inclusion_and_survives_a_crash() -> None:
    """What was acknowledged, with proof, is there after SIGKILL."""
    async with Lab(subprocess=True) as lab:
        client = lab.of_role("runner")
        events = [enqueued(lab, f"ro-{number}") for number in range(300)]
        placed = await client.append(events)
        assert placed.checkpoint_size == placed.first_index + 300
        await lab.kill()
        await lab.start()
        auditor = lab.of_role("auditor")
        found = [decode_entry(entry).event async for _, entry in auditor.read(placed.first_index)]
        assert events == found


async def test_law_02_the_bytes_sent_are_the_bytes_stored_and_read() -> None:
    """Field order is the author's: a body before the event id stays where it is."""
    async with Lab() as lab:
        whole = minimal_event("rollout_ended")
        head = event_pb2.Event(event_id=whole.event_id).SerializeToString()
        rest = whole.SerializeToString()[len(head) :]
        odd = rest + head
        placed = await lab.of_role("runner").append([odd])
        entries = [entry async for _, entry in lab.of_role("auditor").read(placed.first_index)]
        assert [odd] == [decode_entry(entry).event for entry in entries]


async def test_law_01_oddities_are_recorded_not_refused() -> None:
    """A second end, an orphan attempt, a repeated fact: all are placed."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        ended = body(lab, "rollout_ended", rollout="ro-9")
        orphan = body(lab, "attempt_started", rollout="never-enqueued")
        first = await client.append([ended, ended, orphan])
        second = await client.append([ended])
        assert (3, 1) == (first.count, second.count)


async def test_law_04_a_batch_with_one_bad_event_leaves_nothing() -> None:
    """The last of three events is refused; none of them is in the log, and the sequence is free."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        size = (await client.get_checkpoint()).size
        bad = minimal_event("attempt_started", number=0).SerializeToString()
        assert "BAD_FIELD" == await reason_of(client.append([enqueued(lab), enqueued(lab), bad]), FormatError)
        assert size == (await client.get_checkpoint()).size
        assert size == (await client.append([enqueued(lab)])).first_index


async def test_law_05_sent_again_after_a_restart_gives_the_first_position() -> None:
    """The same batch, before and after a restart and other people's entries, stands where it stood."""
    async with Lab() as lab:
        signed = batch(lab.identity("runner-1"), [enqueued(lab), enqueued(lab)])
        first = await lab.of_role("runner").append_signed(signed)
        again = await lab.of_role("runner").append_signed(signed)
        await lab.of_role("trainer").append([body(lab, "update_proposed")])
        await lab.restart()
        later = await lab.of_role("runner").append_signed(signed)
        assert [first.first_index] * 2 == [again.first_index, later.first_index]
        assert [first.recorded_at] * 2 == [again.recorded_at, later.recorded_at]
        assert first.first_index + 3 == later.checkpoint_size


async def test_law_05_sent_again_after_the_key_was_revoked_gives_the_first_position() -> None:
    """A revoked key writes nothing new, and still learns where its batch stands."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        signed = batch(identity, [enqueued(lab)])
        client = lab.of_role("runner")
        first = await client.append_signed(signed)
        revoked = body(lab, "key_revoked", vkey=str(identity.key.verifier_key))
        await lab.client(ROOT).append([revoked])
        again = await lab.of_role("runner").append_signed(signed)
        assert first.first_index == again.first_index
        fresh = batch(identity, [enqueued(lab)], sequence=1)
        assert "KEY_REVOKED" == await reason_of(client.append_signed(fresh), RefusedError)


async def test_law_05_the_same_batch_twice_at_once_is_placed_once() -> None:
    """Two copies that meet in one commit get one position."""
    async with Lab() as lab:
        signed = batch(lab.identity("runner-1"), [enqueued(lab)])
        client = lab.of_role("runner")
        placed = await asyncio.gather(*(client.append_signed(signed) for _ in range(8)))
        assert {placed[0].first_index} == {each.first_index for each in placed}
        assert placed[0].first_index + 1 == (await client.get_checkpoint()).size


async def test_a_sequence_gap_is_refused() -> None:
    """Sequence 1 before 0 is refused, and says so."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        signed = batch(lab.identity("runner-1"), [enqueued(lab)], sequence=1)
        assert "SEQUENCE_GAP" == await reason_of(client.append_signed(signed), RefusedError)


async def test_another_text_for_the_same_sequence_is_equivocation() -> None:
    """Key, stream and sequence of a placed batch with other events are refused."""
    async with Lab() as lab:
        identity, client = lab.identity("runner-1"), lab.of_role("runner")
        await client.append_signed(batch(identity, [enqueued(lab, "ro-1")]))
        other = batch(identity, [enqueued(lab, "ro-2")])
        assert "EQUIVOCATION" == await reason_of(client.append_signed(other), RefusedError)


async def test_two_streams_of_one_key_do_not_wait_for_each_other() -> None:
    """Sequences are counted within key and stream."""
    async with Lab() as lab:
        identity, client = lab.identity("runner-1"), lab.of_role("runner")
        await client.append_signed(batch(identity, [enqueued(lab)]))
        placed = await client.append_signed(batch(identity, [enqueued(lab)], stream=STREAM[::-1]))
        assert 1 == placed.count


async def test_a_condition_that_no_longer_holds_is_refused() -> None:
    """A key touched since the named size aborts the append; the same condition from now on does not."""
    async with Lab() as lab:
        trainer = lab.of_role("trainer")
        size = (await trainer.get_checkpoint()).size
        await trainer.append([body(lab, "update_proposed", update="up-1")])
        stale = Condition(("update/up-1",), size, None)
        fresh = Condition(("update/up-1",), size + 1, None)
        event = body(lab, "training_started", update="up-2")
        assert "CONDITION_FAILED" == await reason_of(trainer.append([event], stale), RefusedError)
        assert (await trainer.append([event], fresh)).first_index == size + 1


async def test_a_condition_of_many_keys_is_refused_and_charged() -> None:
    """A million keys in a batch that stands would hold the loop each time, and cost nothing."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        await client.append([enqueued(lab)], Condition(tuple(map(str, range(64))), 0, None))
        many = Condition(("key",) * 300_000, 0, None)
        assert "TOO_MANY_KEYS" == await reason_of(client.append([enqueued(lab)], many), FormatError)
        assert lab.host is not None
        assert 0 < lab.host.room._owed("runner-1")


async def test_a_condition_on_time_is_judged_by_the_ledgers_clock() -> None:
    """recorded_at may equal not_after, and may not pass it."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        condition = Condition((), 0, START)
        await client.append([enqueued(lab)], condition)
        lab.clock.advance(1)
        assert "CONDITION_FAILED" == await reason_of(client.append([enqueued(lab)], condition), RefusedError)


async def test_law_14_a_verdict_rests_on_its_keys_although_no_condition_was_sent() -> None:
    """A verdict made at a size before its update was touched is refused; made after, it is placed."""
    async with Lab() as lab:
        gate, trainer = lab.of_role("gate"), lab.of_role("trainer")
        size = (await gate.get_checkpoint()).size
        await trainer.append([body(lab, "training_started", update="up-1")])
        stale = body(lab, "verdict_issued", update="up-1", log_size=size)
        fresh = body(lab, "verdict_issued", update="up-1", log_size=size + 1)
        ahead = body(lab, "verdict_issued", update="up-1", log_size=size + 9)
        assert "CONDITION_FAILED" == await reason_of(gate.append([stale]), RefusedError)
        assert "CONDITION_FAILED" == await reason_of(gate.append([ahead]), RefusedError)
        assert (await gate.append([fresh])).first_index == size + 1


async def test_judgments_stand_alone_in_their_batch() -> None:
    """A verdict beside another event is refused."""
    async with Lab() as lab:
        gate = lab.of_role("gate")
        size = (await gate.get_checkpoint()).size
        verdict = body(lab, "verdict_issued", log_size=size)
        refused = body(lab, "update_refused", update="other")
        assert "MUST_STAND_ALONE" == await reason_of(gate.append([refused, verdict]), RefusedError)


async def test_key_events_act_after_their_batch() -> None:
    """A runner granted in one batch writes in the next."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        client = lab.of_role("runner")
        await client.append([enqueued(lab)])
        revoked = body(lab, "key_revoked", vkey=str(identity.key.verifier_key))
        await lab.client(ROOT).append([revoked])
        assert "KEY_REVOKED" == await reason_of(client.append([enqueued(lab)]), RefusedError)


async def test_a_ledger_key_that_is_not_held_cannot_come_into_force() -> None:
    """A rotation to a key that this server could not sign with is refused; the log goes on."""
    async with Lab() as lab:
        root = lab.client(ROOT)
        other = lab.identity("runner-1").key
        key = type(other)(lab.home.origin, bytes(range(32)))
        rotated = body(lab, "ledger_key_rotated", ledger_vkey=str(key.verifier_key))
        assert "LEDGER_KEY_NOT_HELD" == await reason_of(root.append([rotated]), RefusedError)
        assert 1 == (await lab.of_role("runner").append([enqueued(lab)])).count


async def test_law_18_recorded_time_never_runs_backwards() -> None:
    """A clock set back does not take the log's time with it, nor after a restart."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        first = await client.append([enqueued(lab)])
        lab.clock.advance(-5_000_000)
        second = await client.append([enqueued(lab)])
        await lab.restart()
        third = await lab.of_role("runner").append([enqueued(lab)])
        assert [first.recorded_at] * 2 == [second.recorded_at, third.recorded_at]


async def test_two_writers_at_once_get_different_places() -> None:
    """Forty appends of four authors fill forty places without a hole."""
    async with Lab() as lab:
        size = (await lab.of_role("auditor").get_checkpoint()).size
        writers = [(lab.of_role("runner"), "rollout_ended"), (lab.of_role("trainer"), "training_started")]
        writers += [(lab.of_role("judge"), "reward_recorded"), (lab.of_role("canary"), "canary_ended")]
        jobs = [client.append([body(lab, name)]) for client, name in writers for _ in range(10)]
        placed: list[Placed] = await asyncio.gather(*jobs)
        assert list(range(size, size + 40)) == sorted(each.first_index for each in placed)


@pytest.mark.parametrize(("count", "commits"), [(1, {1}), (5, {1}), (60, {2, 3, 4})])
async def test_a_commit_takes_what_turns_of_the_loop_bring(count: int, commits: set[int]) -> None:
    """Batches that come turn after turn share a commit; a flood of them does not hold it back."""
    async with Lab() as lab:
        assert lab.host is not None
        sequencer, author = lab.host.services.sequencer, lab.identity("runner-1")
        prepared = []
        for sequence in range(count):
            signed = batch(author, [enqueued(lab, f"ro-{sequence}")], sequence=sequence)
            grant = known_grant(sequencer.state.authority, signed.note)
            turn = Turns().of(author.name)
            prepared.append(await prepare(signed.note, signed.events, lab.home.origin, grant, turn))
        size, answers = sequencer.size, []
        for one in prepared:
            answers.append(sequencer.submit(one, None))
            await asyncio.sleep(0)
        positions = await asyncio.gather(*answers)
        assert [*range(size, size + count)] == [position.first_index for position in positions]
        assert len([*lab.host.store.runs(size)]) in commits


async def test_an_author_who_goes_away_changes_nothing() -> None:
    """A call cancelled after its batch was taken: the batch is committed all the same."""
    async with Lab() as lab:
        assert lab.host is not None
        signed = batch(lab.identity("runner-1"), [enqueued(lab)])
        client = lab.of_role("runner")
        size = (await client.get_checkpoint()).size
        sequencer = lab.host.services.sequencer
        taken = asyncio.Event()
        submit = sequencer.submit

        def noticing(*arguments: object) -> object:
            taken.set()
            return submit(*arguments)  # type: ignore[arg-type]  # passed through

        sequencer.submit = noticing  # type: ignore[method-assign, assignment]  # a spy
        call = asyncio.create_task(client.append_signed(signed))
        await taken.wait()
        call.cancel()
        await until(lambda: sequencer.size == size + 1)
        sequencer.submit = submit  # type: ignore[method-assign]  # the spy goes
        assert size == (await client.append_signed(signed)).first_index


async def test_stop_answers_what_was_taken() -> None:
    """Appends that were taken before the stop are acknowledged, and are there afterwards."""
    async with Lab() as lab:
        assert lab.host is not None
        client = lab.of_role("runner")
        start = (await client.get_checkpoint()).size
        streams = [client.open_stream() for _ in range(20)]
        calls = [asyncio.create_task(stream.append([enqueued(lab)])) for stream in streams]
        sequencer = lab.host.services.sequencer
        await until(lambda: sequencer.size > start)
        host, lab.host = lab.host, None
        stopping = asyncio.create_task(host.stop())
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await stopping
        await lab.stop()
        await lab.start()
        size = (await lab.of_role("auditor").get_checkpoint()).size
        acknowledged = [each for each in outcomes if isinstance(each, Placed)]
        assert acknowledged
        assert all(each.first_index < size for each in acknowledged)


async def test_a_role_that_root_may_not_grant_is_refused() -> None:
    """Root stands in the trust document alone."""
    async with Lab() as lab:
        key = lab.identity("runner-1").key
        other = type(key)("root-9", bytes(32))
        granted = body(lab, "key_granted", vkey=str(other.verifier_key), role=options_pb2.ROLE_ROOT)
        assert "ROOT_NOT_GRANTABLE" == await reason_of(lab.client(ROOT).append([granted]), RefusedError)
