"""The door, as a client meets it: what is malformed or oversized never enters."""

from __future__ import annotations

import math

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from clients.acknowledgement import SignedBatch
from ledger.batch import MAX_EVENT_BYTES, batch_text, event_root
from ledger.errors import AssayError, FormatError, RefusedError
from ledger.note import sign_note
from ledger.v1 import ledger_pb2
from tests.events import minimal_event, otlp_span
from tests.lab import Lab
from tests.server.people import STREAM, batch, body, enqueued, reason_of


async def test_an_unknown_field_is_refused() -> None:
    """Field 999 with one byte, hidden at the end of a known event."""
    async with Lab() as lab:
        event = enqueued(lab) + b"\xb8\x3e\x01"
        assert "UNKNOWN_FIELD" == await reason_of(lab.of_role("runner").append([event]), FormatError)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_law_09_nan_and_infinities_are_refused(value: float) -> None:
    """A reward that is no number never becomes one."""
    async with Lab() as lab:
        event = body(lab, "reward_recorded", value=value)
        assert "NONFINITE_VALUE" == await reason_of(lab.of_role("judge").append([event]), FormatError)


async def test_law_09_a_missing_value_is_refused_not_filled_in() -> None:
    """An attempt without its number is not attempt 0."""
    async with Lab() as lab:
        event = body(lab, "attempt_started", number=0)
        assert "BAD_FIELD" == await reason_of(lab.of_role("runner").append([event]), FormatError)


async def test_an_oversized_event_is_refused() -> None:
    """60,001 bytes, signed all the same."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        events = [bytes(MAX_EVENT_BYTES + 1)]
        text = batch_text(identity.trust.origin, STREAM, 0, 1, event_root(events))
        signed = SignedBatch.of(sign_note(text, identity.key), events)
        assert "EVENT_SIZE" == await reason_of(lab.of_role("runner").append_signed(signed), FormatError)


async def test_a_batch_above_its_limit_is_refused_and_the_largest_is_placed() -> None:
    """3 MiB of events pass the transport and the door; more does not."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        event = body(lab, "span_recorded", otlp_span=otlp_span(50_000))
        fits = [event] * (3 * 2**20 // len(event))
        assert (await client.append(fits)).count == len(fits)
        identity = lab.identity("runner-1")
        events = [*fits, event]
        text = batch_text(identity.trust.origin, STREAM, 0, len(events), event_root(events))
        signed = SignedBatch.of(sign_note(text, identity.key), events)
        assert "OVER_SIZE" == await reason_of(client.append_signed(signed), FormatError)


async def test_a_message_above_the_transports_limit_is_not_tried_again() -> None:
    """gRPC's own limit comes back as OVER_SIZE, which sending again would not cure."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        request = ledger_pb2.AppendRequest(note=bytes(5 * 2**20))
        with pytest.raises(FormatError) as caught:
            await client.call(client.stub.Append, request)
        assert "OVER_SIZE" == caught.value.reason


async def test_a_batch_for_another_log_is_refused() -> None:
    """The origin stands inside what is signed."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        events = [enqueued(lab)]
        text = batch_text("other-0123456789abcdef", STREAM, 0, 1, event_root(events))
        signed = SignedBatch.of(sign_note(text, identity.key), events)
        assert "OTHER_ORIGIN" == await reason_of(lab.of_role("runner").append_signed(signed), RefusedError)


async def test_other_events_than_signed_are_refused() -> None:
    """The note of one batch over the events of another."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        signed = SignedBatch.of(batch(identity, [enqueued(lab)]).data, [enqueued(lab)])
        assert "ROOT_MISMATCH" == await reason_of(lab.of_role("runner").append_signed(signed), FormatError)


async def test_a_field_violation_names_event_and_field() -> None:
    """BadRequest says where, ErrorInfo says why."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        bad = body(lab, "attempt_started", number=0)
        signed = batch(lab.identity("runner-1"), [enqueued(lab), bad])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.Append(signed.request(0), timeout=5)
        metadata = dict(caught.value.trailing_metadata() or ())
        status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        assert status.details[0].Unpack(info)
        assert status.details[1].Unpack(request)
        assert ("BAD_FIELD", "assay-ledger") == (info.reason, info.domain)
        assert ["events[1].attempt_started.number"] == [each.field for each in request.field_violations]
        assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code()


async def test_a_note_that_is_no_note_is_refused() -> None:
    """Bytes where a signed note belongs."""
    async with Lab() as lab:
        client = lab.of_role("runner")
        request = ledger_pb2.AppendRequest(
            note=b"not a note", events=[minimal_event("rollout_ended").SerializeToString()]
        )
        with pytest.raises(AssayError) as caught:
            await client.call(client.stub.Append, request)
        assert (FormatError, "BAD_NOTE") == (type(caught.value), caught.value.reason)
