"""Errors on the wire, there and back, and what never crosses it."""

from __future__ import annotations

import logging

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ledger.errors import (
    AssayError,
    CannotTellError,
    FatalError,
    FormatError,
    NotFoundError,
    OverloadedError,
    RefusedError,
    VerificationError,
)
from ledger.v1 import ledger_pb2
from ledger.wire import error_of, status_of
from tests.lab import Lab

CASES = (
    (FormatError("BAD_FIELD", "events[0].x: expected 1, got 0"), "INVALID_ARGUMENT"),
    (RefusedError("PEER_UNKNOWN", "m"), "UNAUTHENTICATED"),
    (RefusedError("ROLE_MAY_NOT_WRITE", "m"), "PERMISSION_DENIED"),
    (RefusedError("KEY_REVOKED", "m"), "PERMISSION_DENIED"),
    (RefusedError("KEY_UNKNOWN", "m"), "PERMISSION_DENIED"),
    (RefusedError("BAD_BATCH_SIGNATURE", "m"), "PERMISSION_DENIED"),
    (RefusedError("PRINCIPAL_MISMATCH", "m"), "PERMISSION_DENIED"),
    (RefusedError("MAY_NOT_READ", "m"), "PERMISSION_DENIED"),
    (RefusedError("CONDITION_FAILED", "m"), "ABORTED"),
    (RefusedError("EQUIVOCATION", "m"), "ALREADY_EXISTS"),
    (RefusedError("SEQUENCE_GAP", "m"), "FAILED_PRECONDITION"),
    (RefusedError("MUST_STAND_ALONE", "m"), "FAILED_PRECONDITION"),
    (OverloadedError("QUEUE_FULL", "m", 0.25), "RESOURCE_EXHAUSTED"),
    (NotFoundError("EMPTY_LOG", "m"), "NOT_FOUND"),
    (FatalError("HEAD_MOVED", "m"), "UNAVAILABLE"),
    (VerificationError("V7", "FORKED", "m", index=12), "DATA_LOSS"),
    (VerificationError("V5", "WRONG_ROOT", "m"), "DATA_LOSS"),
    (CannotTellError("NEWER_EVENT_TYPE", "m"), "UNIMPLEMENTED"),
)


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: getattr(value, "reason", value))
def test_every_error_crosses_the_wire_whole(error: AssayError, code: str) -> None:
    """Class, reason, message and what else the class carries come back; the code is the table's."""
    status = status_of(error)
    assert grpc.StatusCode[code].value[0] == status.code
    back = error_of(status.SerializeToString())
    assert (type(error), vars(error)) == (type(back), vars(back))


def test_details_stay_small() -> None:
    """A message of 100 kB leaves details of less than 8 KiB."""
    status = status_of(FormatError("BAD_FIELD", "events[0].x: expected 1, got " + "é" * 100_000))
    assert len(status.SerializeToString()) < 8192


def test_a_status_of_another_domain_is_judged_by_its_code() -> None:
    """No reason of ours is believed from elsewhere."""
    status = status_pb2.Status(code=grpc.StatusCode.PERMISSION_DENIED.value[0], message="no")
    back = error_of(status.SerializeToString())
    assert (RefusedError, "PERMISSION_DENIED") == (type(back), back.reason)


def test_bytes_that_are_no_status_are_an_unknown_fault() -> None:
    """Garbage in the details never raises anything else."""
    assert FatalError is type(error_of(b"\xff\xff\xff"))


async def test_an_internal_exception_leaves_no_text(caplog: pytest.LogCaptureFixture) -> None:
    """The caller learns that it was internal; the log has the rest."""

    def leak(index: int, size: int) -> list[bytes]:
        raise KeyError("secret of the inside")

    async with Lab() as lab:
        assert lab.host is not None
        lab.host.services.sequencer.inclusion = leak  # type: ignore[method-assign]  # a fault put in
        stub = lab.of_role("auditor").stub
        with caplog.at_level(logging.ERROR), pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ProveInclusion(ledger_pb2.ProveInclusionRequest(index=0))
        await lab.stop()
    assert grpc.StatusCode.INTERNAL == caught.value.code()
    assert "secret" not in str(caught.value.details())
    assert any("secret of the inside" in str(record.exc_info) for record in caplog.records)


async def test_a_fault_of_the_server_is_not_taken_for_the_connections() -> None:
    """INTERNAL in our domain ends a client's attempts; INTERNAL or UNKNOWN from the transport does not."""

    def broken(index: int, size: int) -> list[bytes]:
        raise KeyError(index)

    async with Lab() as lab:
        assert lab.host is not None
        lab.host.services.sequencer.inclusion = broken  # type: ignore[method-assign]  # a fault put in
        client = lab.of_role("auditor")
        with pytest.raises(FatalError) as caught:
            await client.call(client.stub.ProveInclusion, ledger_pb2.ProveInclusionRequest(index=0))
        await lab.stop()
    assert "INTERNAL" == caught.value.reason
    for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "Stream removed")
        assert (OverloadedError, code.name) == (type(error_of(error)), error_of(error).reason)


@pytest.mark.parametrize("method", ["Append", "AppendStream", "Read", "FollowUpdate", "ProveInclusion"])
async def test_bytes_that_are_no_request_are_the_callers_fault(method: str) -> None:
    """MALFORMED_REQUEST, INVALID_ARGUMENT, for every kind of call; no text of a parser."""
    async with Lab() as lab:
        channel, path = lab.of_role("auditor").channel, f"/ledger.v1.LedgerService/{method}"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if method == "AppendStream":
                stream = channel.stream_stream(path)()
                await stream.write(b"\xff" * 9)
                await stream.read()
            elif method in ("Read", "FollowUpdate"):
                await channel.unary_stream(path)(b"\xff" * 9).read()
            else:
                await channel.unary_unary(path)(b"\xff" * 9)
    assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code()
    assert "MALFORMED_REQUEST" == error_of(caught.value).reason
    assert "DecodeError" not in str(caught.value.details())


async def test_health_says_serving() -> None:
    """The standard health service, over the same mTLS."""
    async with Lab() as lab:
        stub = health_pb2_grpc.HealthStub(lab.of_role("auditor").channel)
        for name in ("", "ledger.v1.LedgerService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert health_pb2.HealthCheckResponse.SERVING == answer.status


async def test_health_can_be_watched() -> None:
    """The service writes its answers itself; the catch-all lets it."""
    async with Lab() as lab:
        stub = health_pb2_grpc.HealthStub(lab.of_role("auditor").channel)
        call = stub.Watch(health_pb2.HealthCheckRequest(service="ledger.v1.LedgerService"))
        assert health_pb2.HealthCheckResponse.SERVING == (await call.read()).status
        call.cancel()


async def test_a_call_that_sends_nothing_is_the_callers_fault() -> None:
    """A unary call whose end comes before its request: MALFORMED_REQUEST."""
    async with Lab() as lab:
        call = lab.of_role("auditor").channel.stream_unary("/ledger.v1.LedgerService/GetCheckpoint")()
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert "MALFORMED_REQUEST" == error_of(caught.value).reason
