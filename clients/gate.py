"""The gate's client. Errors are AssayError, by code and reason; CONDITION_FAILED means: judge again."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

import grpc.aio

from clients.identity import Identity
from gate.v1 import gate_pb2, gate_pb2_grpc
from ledger.v1 import options_pb2
from ledger.wire import error_of

__all__ = ["GateClient"]

_DEADLINE: Final = 60.0  # seconds; judging a large receipt takes its time


class GateClient:
    """One connection of one principal to the gate. Use it as an async context manager."""

    def __init__(self, identity: Identity, target: str, *, deadline: float = _DEADLINE) -> None:
        """`target` is the gate's host:port; `deadline` in seconds for each call."""
        self._deadline = deadline
        self._channel = grpc.aio.secure_channel(target, identity.channel_credentials())
        self._stub = gate_pb2_grpc.GateServiceStub(self._channel)

    async def __aenter__(self) -> GateClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error

    async def freeze(self, update: str, redo_checks: Sequence[int] = ()) -> gate_pb2.FreezeResponse:
        """Fixes the identity of a proposed update."""
        request = gate_pb2.FreezeRequest(update=update, redo_checks=redo_checks)
        response: gate_pb2.FreezeResponse = await self._call(self._stub.Freeze, request)
        return response

    async def evaluate(
        self, update: str, step: options_pb2.Step.ValueType, *, record: bool = False
    ) -> gate_pb2.EvaluateResponse:
        """Judges an update at the latest log size; writes the verdict only with `record`."""
        request = gate_pb2.EvaluateRequest(update=update, step=step, record=record)
        response: gate_pb2.EvaluateResponse = await self._call(self._stub.Evaluate, request)
        return response

    async def promote(self, update: str, verdict_index: int | None = None) -> gate_pb2.PromoteResponse:
        """Moves the approved default on the update's last verdict of step default, or a named one."""
        request = gate_pb2.PromoteRequest(update=update, verdict_index=verdict_index)
        response: gate_pb2.PromoteResponse = await self._call(self._stub.Promote, request)
        return response

    async def roll_back(
        self, resource: str, scope: options_pb2.Scope, request_index: int
    ) -> gate_pb2.RollBackResponse:
        """Undoes the top promotion that the request at `request_index` names."""
        request = gate_pb2.RollBackRequest(resource=resource, scope=scope, request_index=request_index)
        response: gate_pb2.RollBackResponse = await self._call(self._stub.RollBack, request)
        return response
