"""A principal at work: its connections to ledger and gate, and the events that it writes."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from clients.cli.app import Session
from clients.gate import GateClient
from clients.health import GATE_SERVICE, check_health
from clients.home import load_home
from clients.identity import Identity, load_identity
from clients.ids import RANDOM_BYTES, uuid7
from clients.ledger import LedgerClient
from clients.receipts import ReceiptsClient
from ledger.errors import AssayError, NotFoundError, OverloadedError
from ledger.v1 import event_pb2, receipt_pb2

if TYPE_CHECKING:
    from ledger.checkpoint import Checkpoint

__all__ = ["Desk", "event", "first_checkpoint", "gate_answers", "now", "open_desk"]

_FIELD_OF: Final = {
    field.message_type.full_name: field.name
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None
}
_FIRST_DEADLINE: Final = 3.0  # seconds, to learn whether a server answers at all


def now() -> int:
    """The time of this machine in microseconds since 1970."""
    return time.time_ns() // 1000


def event(body: Any) -> bytes:
    """The bytes of a new event around a body message."""
    at = now()
    envelope = event_pb2.Event(event_id=uuid7(at, secrets.token_bytes(RANDOM_BYTES)), occurred_at=at)
    getattr(envelope, _FIELD_OF[type(body).DESCRIPTOR.full_name]).CopyFrom(body)
    return envelope.SerializeToString()


@dataclass(frozen=True, slots=True)
class Desk:
    """One principal, connected."""

    identity: Identity
    ledger: LedgerClient
    receipts: ReceiptsClient
    gate: GateClient
    gate_target: str

    async def summary(self, update: str) -> receipt_pb2.UpdateSummary:
        """Where an update stands. Raises NotFoundError NO_SUCH_UPDATE."""
        async for summary in self.receipts.list_updates():
            if summary.update == update:
                return summary
        raise NotFoundError("NO_SUCH_UPDATE", f"expected an update of this log, got {update!r}")


@asynccontextmanager
async def open_desk(session: Session, *roles: str, among: Collection[str] = ()) -> AsyncIterator[Desk]:
    """The principal that the session names, or the only one of `roles`, connected until the block ends.

    Raises OverloadedError LEDGER_AWAY, GATE_AWAY or UNAVAILABLE for whoever does not answer the block.
    """
    document = load_home(session.home)
    identity = load_identity(session.home, session.principal(*roles, among=among))
    async with LedgerClient(identity) as ledger, GateClient(identity, document.gate) as gate:
        desk = Desk(identity, ledger, ReceiptsClient(ledger), gate, document.gate)
        try:
            yield desk
        except OverloadedError as error:
            if error.reason not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                raise
            raise await _silence(desk, error) from error


async def first_checkpoint(desk: Desk) -> Checkpoint:
    """The ledger's checkpoint, or OverloadedError within 3 s where it does not answer."""
    before, desk.ledger.deadline = desk.ledger.deadline, _FIRST_DEADLINE
    try:
        return await desk.ledger.get_checkpoint()
    finally:
        desk.ledger.deadline = before


async def _silence(desk: Desk, error: OverloadedError) -> OverloadedError:
    """Who does not answer; the error as it came where both do by now."""
    silent = []
    try:
        await first_checkpoint(desk)
    except OverloadedError:
        silent.append(("ledger", desk.identity.target))
    if not await gate_answers(desk):
        silent.append(("gate", desk.gate_target))
    if not silent:
        return error
    shown = " and ".join(f"the {service} on {target}" for service, target in silent)
    if len(silent) > 1:
        return OverloadedError("UNAVAILABLE", f"expected an answer, got none from {shown}", 1.0)
    service = silent[0][0]
    return OverloadedError(
        f"{service.upper()}_AWAY",
        f"expected an answer, got none from {shown}; start it: assay serve {service}",
        1.0,
    )


async def gate_answers(desk: Desk) -> bool:
    """Whether the gate says that it serves."""
    try:
        await check_health(
            desk.gate_target, desk.identity.channel_credentials(), GATE_SERVICE, _FIRST_DEADLINE
        )
    except AssayError:
        return False
    return True
