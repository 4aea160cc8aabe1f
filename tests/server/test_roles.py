"""Who may write and who may read, judged by the running server (design section 5)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest

from clients.acknowledgement import sign
from clients.home import ROOT
from clients.ledger import LedgerClient
from clients.memory import Memory
from ledger.entry import decode_entry
from ledger.errors import AssayError, OverloadedError, RefusedError
from ledger.trust import WRITER, role_name
from ledger.v1 import ledger_pb2, options_pb2, runner_pb2
from ledger.wire import error_of
from tests.events import BODIES
from tests.lab import Lab
from tests.server.people import batch, body, enqueued, reason_of

ROLES = ("root", "operator", "runner", "judge", "trainer", "canary", "approver", "gate", "auditor")
GATE_EVENTS = tuple(name for name in BODIES if WRITER[name] == options_pb2.ROLE_GATE)


async def _code_and_reason(lab: Lab, client: LedgerClient, name: str) -> tuple[str, str] | None:
    identity = client.identity
    signed = sign(
        identity.key, identity.trust.origin, name.encode().ljust(16)[:16], 0, [body(lab, name)], None
    )
    try:
        await client.stub.Append(signed.request(0), timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error_of(error).reason
    return None


async def test_law_07_no_role_writes_what_is_not_its_own() -> None:
    """Every event type by every role that may not write it: PERMISSION_DENIED, ROLE_MAY_NOT_WRITE."""
    async with Lab() as lab:
        size = (await lab.of_role("auditor").get_checkpoint()).size
        wrong = {}
        for role in ROLES:
            client = lab.of_role(role)
            for name in BODIES:
                if role_name(WRITER[name]) == role:
                    continue
                found = await _code_and_reason(lab, client, name)
                if found != ("PERMISSION_DENIED", "ROLE_MAY_NOT_WRITE"):
                    wrong[role, name] = found
        assert {} == wrong
        assert size == (await lab.of_role("auditor").get_checkpoint()).size


async def test_law_07_the_trainer_cannot_write_judgment() -> None:
    """No event of the gate's file is placed under the learner's key."""
    async with Lab() as lab:
        trainer = lab.of_role("trainer")
        found = {name: await _code_and_reason(lab, trainer, name) for name in GATE_EVENTS}
        assert dict.fromkeys(GATE_EVENTS, ("PERMISSION_DENIED", "ROLE_MAY_NOT_WRITE")) == found


async def test_a_batch_under_another_principals_certificate_is_refused() -> None:
    """The judge's batch, well signed, over the trainer's connection."""
    async with Lab() as lab:
        signed = batch(lab.identity("judge-1"), [body(lab, "reward_recorded")])
        client = lab.of_role("trainer")
        assert "PRINCIPAL_MISMATCH" == await reason_of(client.append_signed(signed), RefusedError)


async def test_a_signature_by_another_key_is_refused() -> None:
    """The right name and key id, signed by somebody else's key."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        signed = batch(identity, [enqueued(lab)])
        forged = replace(signed.note, signature=lab.identity("trainer-1").key.sign(signed.note.text()))
        wrong = replace(signed, note=forged, data=forged.encode())
        client = lab.of_role("runner")
        assert "BAD_BATCH_SIGNATURE" == await reason_of(client.append_signed(wrong), RefusedError)


async def test_a_key_that_was_never_granted_is_refused() -> None:
    """The principal's name with another key."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        key = type(identity.key)(identity.name, bytes(range(32)))
        signed = batch(replace(identity, key=key), [enqueued(lab)])
        client = lab.of_role("runner")
        assert "KEY_UNKNOWN" == await reason_of(client.append_signed(signed), RefusedError)


async def test_without_a_client_certificate_there_is_no_connection() -> None:
    """TLS without a client certificate ends in the handshake."""
    async with Lab() as lab:
        credentials = grpc.ssl_channel_credentials((lab.path / "ca.crt").read_bytes())
        async with grpc.aio.secure_channel(lab.address, credentials) as channel:
            call = channel.unary_unary("/ledger.v1.LedgerService/GetCheckpoint")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=5)
        assert grpc.StatusCode.UNAVAILABLE == caught.value.code()


async def test_a_certificate_of_no_principal_is_unauthenticated() -> None:
    """The ledger's own server certificate carries a name that root never granted."""
    async with Lab() as lab:
        ledger = lab.path / "ledger"
        stranger = replace(
            lab.identity("runner-1"),
            certificate=(ledger / "server.crt").read_bytes(),
            private_key=(ledger / "server.key").read_bytes(),
        )
        async with LedgerClient(stranger, memory=Memory(stranger.trust, None), attempts=1) as client:
            with pytest.raises(AssayError) as caught:
                await client.get_checkpoint()
        # A server certificate is not good for a client: the handshake or the server refuses it.
        assert caught.value.reason in {"PEER_UNKNOWN", "UNAVAILABLE"}


@pytest.mark.parametrize("role", ROLES)
async def test_who_reads_the_log(role: str) -> None:
    """Runner and trainer may not Read or Follow; everybody may have checkpoints and proofs."""
    async with Lab() as lab:
        client = lab.of_role(role)
        await client.get_checkpoint()
        await client.prove_inclusion(0)
        expected = {"MAY_NOT_READ"} if role in ("runner", "trainer") else set()
        found = set()
        read = client.stub.Read(ledger_pb2.ReadRequest(), timeout=5)
        follow = client.stub.Follow(ledger_pb2.FollowRequest(), timeout=5)
        for call in (read, follow):
            try:
                async for _ in client.messages(call):
                    break
            except RefusedError as error:
                found.add(error.reason)
            finally:
                call.cancel()
        assert expected == found


async def test_a_revoked_reader_reads_nothing() -> None:
    """After KeyRevoked the auditor's certificate opens no log."""
    async with Lab() as lab:
        auditor = lab.of_role("auditor")
        await auditor.get_checkpoint()
        vkey = str(lab.identity("auditor-1").key.verifier_key)
        await lab.client(ROOT).append([body(lab, "key_revoked", vkey=vkey)])
        assert "KEY_REVOKED" == await reason_of(auditor.get_checkpoint(), RefusedError)
        entries = [entry async for _, entry in lab.of_role("judge").read()]
        assert 11 == len(entries)
        await lab.stop()


async def _own_update(lab: Lab) -> list[bytes]:
    """An update with a train and a holdout rollout; what its trainer may read of it, in order."""
    trainer, runner, judge = lab.of_role("trainer"), lab.of_role("runner"), lab.of_role("judge")
    proposed = body(lab, "update_proposed", update="up-1")
    train = enqueued(lab, "ro-train", update="up-1", mode=runner_pb2.MODE_TRAIN)
    holdout = enqueued(lab, "ro-holdout", update="up-1", mode=runner_pb2.MODE_HOLDOUT)
    seen = body(lab, "span_recorded", rollout="ro-train")
    hidden = body(lab, "span_recorded", rollout="ro-holdout")
    reward = body(lab, "reward_recorded", rollout="ro-train", value=0.5)
    await trainer.append([proposed])
    await runner.append([train, holdout, seen, hidden])
    await judge.append([reward, body(lab, "reward_recorded", rollout="ro-holdout", value=1.0)])
    await judge.append([body(lab, "evaluation_closed", update="up-1")])
    return [proposed, train, seen, reward]


async def _follow(client: LedgerClient, update: str) -> list[bytes]:
    found = []
    async for message in client.follow_update(update):
        if message.HasField("caught_up_size"):
            break
        found.append(decode_entry(message.entry).event)
    return found


async def test_the_trainer_follows_its_own_update_and_nothing_of_the_holdout() -> None:
    """FollowUpdate gives the update's train events and rewards; holdout content and scores stay hidden."""
    async with Lab() as lab:
        expected = await _own_update(lab)
        assert expected == await _follow(lab.of_role("trainer"), "up-1")
        assert expected == await _follow(lab.of_role("runner"), "up-1")


async def test_another_update_is_not_the_trainers_to_follow() -> None:
    """Neither an update of somebody else nor one that does not exist."""
    async with Lab() as lab:
        await _own_update(lab)
        assert "MAY_NOT_READ" == await reason_of(_follow(lab.of_role("trainer"), "up-2"), RefusedError)


async def test_follow_update_goes_on_with_new_entries() -> None:
    """A follower that has caught up gets what is placed afterwards."""
    async with Lab() as lab:
        await _own_update(lab)
        trainer = lab.of_role("trainer")
        caught_up = asyncio.Event()
        later: list[bytes] = []
        started = body(lab, "training_started", update="up-1")

        async def follow() -> None:
            async for message in trainer.follow_update("up-1"):
                if message.HasField("caught_up_size"):
                    caught_up.set()
                elif caught_up.is_set():
                    later.append(decode_entry(message.entry).event)
                    return

        following = asyncio.create_task(follow())
        await caught_up.wait()
        await lab.of_role("trainer").append([started])
        await following
        assert [started] == later


async def test_a_stream_that_follows_is_told_when_the_ledger_stops() -> None:
    """A graceful stop ends followers with a typed error that says to come back."""
    async with Lab() as lab:
        auditor = lab.of_role("auditor")
        reached = asyncio.Event()

        async def follow() -> None:
            async for _ in auditor.follow():
                reached.set()

        following = asyncio.create_task(follow())
        await reached.wait()
        assert lab.host is not None
        host, lab.host = lab.host, None
        await host.stop()
        with pytest.raises(OverloadedError):
            await following
