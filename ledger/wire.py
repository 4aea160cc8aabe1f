"""Errors on the wire: the one mapping between `AssayError` and `google.rpc.Status`, there and back.

Rules kept here:

- One table says which code an error has; the way back reads code, domain and reason, never message text.
- Details stay below 8 KiB, the limit of a metadata block; a message that is too long is cut, never dropped.
- Bytes that are no request are the caller's fault: MALFORMED_REQUEST, judged before a handler sees them.
- A call has to pass `enter` before its request is received, and sends a single request in half a minute: what
  is refused there costs the server a few hundred bytes, however much its caller meant to send.
- What is not an `AssayError` leaves no text: the caller gets INTERNAL, the operator gets the log line.
- A transport failure is nobody's judgment: it comes back as "send the same again". gRPC reports some of them
  as INTERNAL or UNKNOWN, so a server's own fault says so in our domain.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types

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

__all__ = [
    "DOMAIN",
    "GO_ON",
    "MAX_MESSAGE_BYTES",
    "CatchAll",
    "Enter",
    "abort",
    "error_of",
    "peer_name",
    "status_of",
]

DOMAIN: Final = "assay-ledger"
#: What both sides take in one message: a batch of 3 MiB with its note and framing fits.
MAX_MESSAGE_BYTES: Final = 4_718_592
#: Initial metadata by which BlobService.Put says that the header was taken. gRPC gives a refusal that meets a
#: message under way as INTERNAL: whoever sends much waits for this first.
GO_ON: Final = ("assay-go-on", "1")

_DETAILS_KEY: Final = "grpc-status-details-bin"
_MAX_MESSAGE: Final = 3072  # bytes; the message stands twice where a field is named
_TRANSPORT_RETRY: Final = 0.2  # seconds, where the peer could not say
_RECEIVING: Final = 30.0  # seconds
_SLOW_RETRY: Final = 1.0  # seconds

_Code = grpc.StatusCode

# The table. A RefusedError goes by its reason, every other family by its class.
_CODE_OF_CLASS: Final[dict[type[AssayError], grpc.StatusCode]] = {
    FormatError: _Code.INVALID_ARGUMENT,
    RefusedError: _Code.FAILED_PRECONDITION,
    OverloadedError: _Code.RESOURCE_EXHAUSTED,
    NotFoundError: _Code.NOT_FOUND,
    FatalError: _Code.UNAVAILABLE,
    VerificationError: _Code.DATA_LOSS,
    CannotTellError: _Code.UNIMPLEMENTED,
}
_CODE_OF_REFUSAL: Final[dict[str, grpc.StatusCode]] = {
    "PEER_UNKNOWN": _Code.UNAUTHENTICATED,
    "ROLE_MAY_NOT_WRITE": _Code.PERMISSION_DENIED,
    "KEY_REVOKED": _Code.PERMISSION_DENIED,
    "KEY_UNKNOWN": _Code.PERMISSION_DENIED,
    "BAD_BATCH_SIGNATURE": _Code.PERMISSION_DENIED,
    "PRINCIPAL_MISMATCH": _Code.PERMISSION_DENIED,
    "MAY_NOT_READ": _Code.PERMISSION_DENIED,
    "MAY_NOT_CALL": _Code.PERMISSION_DENIED,
    "CONDITION_FAILED": _Code.ABORTED,
    "EQUIVOCATION": _Code.ALREADY_EXISTS,
    "SEQUENCE_GAP": _Code.FAILED_PRECONDITION,
}
_CODES: Final = {code.value[0]: code for code in _Code}

# The way back, for statuses in our domain.
_CLASS_OF_CODE: Final[dict[grpc.StatusCode, type[AssayError]]] = {
    **{code: kind for kind, code in _CODE_OF_CLASS.items()},
    **dict.fromkeys(_CODE_OF_REFUSAL.values(), RefusedError),
}

_INDEX: Final = re.compile("[0-9]{1,20}").fullmatch
_FIELD: Final = re.compile(r"([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z0-9_]+(?:\[\d+\])?)*): expected ")


def status_of(error: AssayError) -> status_pb2.Status:
    """The status that carries `error`: ErrorInfo, and BadRequest and RetryInfo where they apply."""
    code = _CODE_OF_CLASS[type(error)]
    if isinstance(error, RefusedError):
        code = _CODE_OF_REFUSAL.get(error.reason, code)
    message = error.message.encode()[:_MAX_MESSAGE].decode(errors="ignore")
    status = status_pb2.Status(code=code.value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if isinstance(error, VerificationError):
        info.metadata["step"] = error.step
        if error.index is not None:
            info.metadata["index"] = str(error.index)
    status.details.add().Pack(info)
    if isinstance(error, FormatError) and (field := _FIELD.match(message)):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=field[1], description=message, reason=error.reason
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, OverloadedError):
        delay = duration_pb2.Duration()
        delay.FromMicroseconds(round(error.retry_after * 1_000_000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _internal() -> status_pb2.Status:
    """The status of a fault of the server's own: that it is one, and nothing else."""
    status = status_pb2.Status(
        code=_Code.INTERNAL.value[0], message="internal error; the server's log says more"
    )
    info = error_details_pb2.ErrorInfo(reason=_Code.INTERNAL.name, domain=DOMAIN)
    status.details.add().Pack(info)
    return status


_INTERNAL: Final = _internal()


def error_of(source: grpc.aio.AioRpcError | bytes) -> AssayError:
    """The error that a failed call, or a serialized status, carries."""
    if isinstance(source, bytes):
        return _from_status(_parse(source))
    details = (value for key, value in source.trailing_metadata() or () if key == _DETAILS_KEY)
    status = _parse(next(details, b""))
    # A status that is not in our domain says less than the call's own code.
    if _info(status) is None:
        code, message = source.code(), source.details() or ""
        # A connection that breaks under a call comes as either code, raised by the client's own end too.
        if code in (_Code.INTERNAL, _Code.UNKNOWN):
            return OverloadedError(code.name, message, _TRANSPORT_RETRY)
        return _from_transport(code, message)
    return _from_status(status)


def _parse(data: str | bytes) -> status_pb2.Status:
    status = status_pb2.Status()
    try:
        status.ParseFromString(data)
    except (DecodeError, TypeError):
        return status_pb2.Status(code=_Code.UNKNOWN.value[0])  # Another server's: judged by its code alone.
    return status


def _unpacks(detail: any_pb2.Any, message: Message) -> bool:
    """Whether the detail is such a message, which then holds it; the peer may have sent anything."""
    try:
        return bool(detail.Unpack(message))
    except DecodeError:
        return False


def _info(status: status_pb2.Status) -> error_details_pb2.ErrorInfo | None:
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if _unpacks(detail, info) and info.domain == DOMAIN:
            return info
    return None


def _from_status(status: status_pb2.Status) -> AssayError:
    code = _CODES.get(status.code, _Code.UNKNOWN)
    info = _info(status)
    kind = _CLASS_OF_CODE.get(code)
    if info is None or kind is None:
        return _from_transport(code, status.message)
    if kind is OverloadedError:
        return OverloadedError(info.reason, status.message, _retry_after(status))
    if kind is VerificationError:
        index = info.metadata.get("index", "")
        return VerificationError(
            info.metadata.get("step", ""),
            info.reason,
            status.message,
            index=int(index) if _INDEX(index) else None,
        )
    return kind(info.reason, status.message)


def _retry_after(status: status_pb2.Status) -> float:
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        if _unpacks(detail, retry):
            return float(retry.retry_delay.ToMicroseconds()) / 1_000_000
    return _TRANSPORT_RETRY


def _from_transport(code: grpc.StatusCode, message: str) -> AssayError:
    """What the transport itself reports, or another server than ours."""
    reason = code.name
    match code:
        case _Code.UNAVAILABLE | _Code.DEADLINE_EXCEEDED | _Code.CANCELLED | _Code.ABORTED:
            return OverloadedError(reason, message, _TRANSPORT_RETRY)
        case _Code.RESOURCE_EXHAUSTED:  # A message above the transport's limit: again would not help.
            return FormatError("OVER_SIZE", message)
        case _Code.INVALID_ARGUMENT | _Code.OUT_OF_RANGE:
            return FormatError(reason, message)
        case (
            _Code.UNAUTHENTICATED | _Code.PERMISSION_DENIED | _Code.FAILED_PRECONDITION | _Code.ALREADY_EXISTS
        ):
            return RefusedError(reason, message)
        case _Code.NOT_FOUND:
            return NotFoundError(reason, message)
        case _Code.UNIMPLEMENTED:
            return CannotTellError(reason, message)
        case _:
            return FatalError(reason, message)


def peer_name(context: grpc.aio.ServicerContext[Any, Any], trust_domain: str) -> str:
    """The connected principal: the one `spiffe://<trust domain>/<name>` of a certificate that TLS verified.

    Raises RefusedError(PEER_UNKNOWN).
    """
    prefix = f"spiffe://{trust_domain}/"
    identities = context.auth_context().get("peer_spiffe_id", ())
    names = [identity.decode("utf-8", "replace") for identity in identities]
    if len(names) != 1 or not names[0].startswith(prefix):
        raise RefusedError(
            "PEER_UNKNOWN", f"expected a certificate for one {prefix}<name>, got {names or 'none'}"
        )
    return names[0].removeprefix(prefix)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: AssayError) -> NoReturn:
    """Ends the call with the status of `error`."""
    status = status_of(error)
    trailing = ((_DETAILS_KEY, status.SerializeToString()),)
    await context.abort(_CODES[status.code], status.message, trailing)
    raise AssertionError("expected abort to raise")  # pragma: no cover - for the type checker


_HANDLERS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")

#: (method, context) -> held while the call lasts. Raises AssayError to refuse the call.
Enter: TypeAlias = Callable[[str, grpc.aio.ServicerContext[Any, Any]], AbstractContextManager[None]]


class _Malformed:
    """Stands where a request should: gRPC answers what a deserializer raises with the text of it."""


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _Malformed()

    return parse


def _well_formed(request: Any) -> Any:
    """A request or an iterator of requests, none of them malformed. Raises FormatError MALFORMED_REQUEST."""
    if isinstance(request, _Malformed):
        raise FormatError(
            "MALFORMED_REQUEST", "expected a request of this method, got bytes that do not parse"
        )
    return _each_well_formed(request) if isinstance(request, AsyncIterator) else request


async def _each_well_formed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _well_formed(request)


async def _one(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    """The request of a call that has one. Raises OverloadedError TOO_SLOW, FormatError MALFORMED_REQUEST."""
    try:
        async with asyncio.timeout(_RECEIVING):
            request = await context.read()
    except TimeoutError as error:
        raise OverloadedError(
            "TOO_SLOW", f"expected a request within {_RECEIVING:.0f} s of its call, got a part", _SLOW_RETRY
        ) from error
    if request is grpc.aio.EOF:
        raise FormatError("MALFORMED_REQUEST", "expected one request, got none")
    return request


class CatchAll(grpc.aio.ServerInterceptor):
    """Turns AssayError into its status, and anything else into INTERNAL without a word of its text."""

    def __init__(self, logger: logging.Logger, enter: Enter | None = None) -> None:
        """`enter` is asked before a call's request is received; without one every call may enter."""
        self._logger = logger
        self._enter = enter or (lambda _method, _context: nullcontext())
        self._wrapped: dict[str, Any] = {}  # method -> handler; as many as the server has methods

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps the handler of one call."""
        method = handler_call_details.method
        if (known := self._wrapped.get(method)) is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None:  # No such method: gRPC says so itself.
            return None
        self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]

    def _wrap(self, method: str, handler: Any) -> Any:
        # As far as gRPC knows every request comes in a stream: it would receive any other before it calls us.
        wrap, make = self._unary, grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            wrap, make = self._streaming, grpc.stream_stream_rpc_method_handler
        for kind in _HANDLERS:
            if (behavior := getattr(handler, kind)) is not None:
                wrapped = wrap(method, behavior, handler.request_streaming)
                parse = _tolerant(handler.request_deserializer)
                return make(wrapped, parse, handler.response_serializer)
        raise FatalError("NO_HANDLER", f"expected a behavior of {method}, got none")

    def _unary(self, method: str, behavior: Callable[..., Any], streamed: bool) -> Callable[..., Any]:
        async def call(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                with self._enter(method, context):
                    request = requests if streamed else await _one(context)
                    return await behavior(_well_formed(request), context)
            except Exception as error:  # noqa: BLE001 - the one place that catches all; see the rules
                await self._end(method, context, error)

        return call

    def _streaming(self, method: str, behavior: Callable[..., Any], streamed: bool) -> Callable[..., Any]:
        async def call(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            try:
                with self._enter(method, context):
                    request = requests if streamed else await _one(context)
                    answer = behavior(_well_formed(request), context)
                    if not isinstance(answer, AsyncIterator):  # The health service writes its answers itself.
                        await answer
                        return
                    async for response in answer:
                        yield response
            except Exception as error:  # noqa: BLE001 - the one place that catches all; see the rules
                await self._end(method, context, error)

        return call

    async def _end(
        self, method: str, context: grpc.aio.ServicerContext[Any, Any], error: Exception
    ) -> NoReturn:
        if isinstance(error, AssayError):
            if isinstance(error, FatalError):
                self._logger.critical("%s: %s", method, error)
            await abort(context, error)
        if isinstance(error, grpc.aio.AbortError):
            raise error
        self._logger.error("%s: internal error", method, exc_info=error)
        trailing = ((_DETAILS_KEY, _INTERNAL.SerializeToString()),)
        await context.abort(_Code.INTERNAL, _INTERNAL.message, trailing)
        raise AssertionError("expected abort to raise")  # pragma: no cover - for the type checker
