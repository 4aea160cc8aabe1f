"""Whether a service answers, and what it says of itself: the standard gRPC health check over mTLS.

A certificate is enough to ask; a key that signs events is not needed, so a probe need not hold one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types

from ledger.errors import NotFoundError, OverloadedError
from ledger.wire import error_of

__all__ = ["GATE_SERVICE", "LEDGER_SERVICE", "check_health", "probe_credentials"]

LEDGER_SERVICE: Final = "ledger.v1.LedgerService"
GATE_SERVICE: Final = "gate.v1.GateService"
_AGAIN: Final = 1.0  # seconds


def probe_credentials(home: Path, name: str) -> grpc.ChannelCredentials:
    """mTLS as the principal `name` of a home. Raises NotFoundError CERTIFICATE_ABSENT."""
    folder = home / "principals" / name
    files = (home / "ca.crt", folder / "client.key", folder / "client.crt")
    for file in files:
        if not file.is_file():
            raise NotFoundError("CERTIFICATE_ABSENT", f"expected {file} to ask with, got no such file")
    return grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))


async def check_health(
    target: str, credentials: grpc.ChannelCredentials, service: str, deadline: float
) -> None:
    """Returns if the service on host:port says within `deadline` seconds that it serves.

    Raises OverloadedError: NOT_SERVING, or UNAVAILABLE and DEADLINE_EXCEEDED where nobody answers.
    """
    async with grpc.aio.secure_channel(target, credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=deadline)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        said = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        raise OverloadedError("NOT_SERVING", f"expected {service} on {target} to serve, got {said}", _AGAIN)
