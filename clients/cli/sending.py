"""Imported events on their way: the same source sent twice stands once.

Stream, sequence and every event come from the source and the options, so that the ledger answers the second
time with the first positions (law 5). Other bytes under the same stream are refused as EQUIVOCATION.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from clients.cli.app import Session
from clients.cli.show import counted, progress
from clients.identity import load_identity
from clients.importers.source import Imported, batches, canonical_json
from clients.ledger import LedgerClient, Stream
from clients.receipts import ReceiptsClient
from gate.report import digests_as_hex
from ledger.errors import NotFoundError, RefusedError
from ledger.trust import role_name

__all__ = ["Sent", "check_rollouts", "send"]

_STREAM_DOMAIN: Final = b"assay/import/stream/v1\n"


@dataclass(slots=True)
class Sent:
    """What an import did to the log."""

    events: int = 0
    already: int = 0
    batches: int = 0
    first_index: int | None = None
    last_index: int | None = None

    def note(self, first: int, count: int, known: int) -> None:
        """Takes a placed batch; one that stood below `known` entries was there before."""
        self.events += count
        self.already += count if first < known else 0
        self.batches += 1
        last = first + count - 1
        self.first_index = first if self.first_index is None else min(self.first_index, first)
        self.last_index = last if self.last_index is None else max(self.last_index, last)

    def line(self) -> str:
        """In words."""
        where = "" if self.first_index is None else f", indexes {self.first_index} to {self.last_index}"
        events, sent = counted(self.events, "event"), counted(self.batches, "batch", "batches")
        return f"{events} in {sent}{where}; {self.already} there already"


def _stream(source: bytes, options: Mapping[str, Any], role: str) -> bytes:
    """The stream of one role's batches: the same for the same source and options, and for no others."""
    said = canonical_json({"source": source.hex(), "options": dict(options), "role": role}, "import")
    return sha256(_STREAM_DOMAIN + said).digest()[:16]


async def check_rollouts(receipts: ReceiptsClient, items: Iterable[Imported]) -> None:
    """Raises RefusedError ROLLOUT_TAKEN where the first or last rollout of `items` is another's already.

    The same import again is no other: its enqueuing stands there, and its rewards if any do.
    """
    known: dict[str, list[Any]] = {}
    for item in items:
        name = item.event.WhichOneof("body")
        if name in ("rollout_enqueued", "reward_recorded"):
            body = getattr(item.event, name)
            known.setdefault(body.rollout, []).append((name, digests_as_hex(body)))
    for rollout in list(known)[:1] + list(known)[-1:]:
        try:
            there = [(c["type"], c["claim"]) for c in (await receipts.get_rollout(rollout))["claims"]]
        except NotFoundError:
            continue
        said = {name for name, _ in there}
        if any(name in said and (name, claim) not in there for name, claim in known[rollout]):
            raise RefusedError(
                "ROLLOUT_TAKEN",
                f"expected rollout ids that this log lacks, got {rollout}, taken by another import or "
                "by other options; give this one ids of its own: --name NAME",
            )


async def send(
    session: Session,
    roles: Sequence[str],
    items: Iterable[Imported],
    source: bytes,
    options: Mapping[str, Any],
    total: int,
) -> Sent:
    """Sends the items batch by batch, each by the home's principal of its role; `roles` are all that occur.

    Raises RefusedError WHICH_PRINCIPAL and its like before anything is sent, AssayError.
    """
    sent = Sent()
    names = {role: session.principal(role) for role in roles}
    async with AsyncExitStack() as stack:
        streams: dict[str, Stream] = {}
        known = 0
        for role, name in names.items():
            client = await stack.enter_async_context(LedgerClient(load_identity(session.home, name)))
            streams[role] = client.open_stream(_stream(source, options, role))
            known = known or (await client.get_checkpoint()).size
        with progress("import", total) as advance:
            for number, events in batches(items):
                placed = await streams[role_name(number)].append(events)
                sent.note(placed.first_index, placed.count, known)
                advance(len(events))
    return sent
