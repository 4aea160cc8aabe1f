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
from ledger.trust import role_name

__all__ = ["Sent", "send"]

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
