"""The door as bad input meets it: what is sent is raw, and nothing of it may change the log."""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio
import pytest

from clients.ledger import LedgerClient
from ledger.errors import AssayError
from ledger.note import signature_line
from ledger.trust import WRITER, role_name
from ledger.v1 import ledger_pb2
from ledger.wire import error_of
from tests.lab import Lab
from tests.server.people import batch

__all__ = ["Door", "Doors"]


class Door:
    """One connection of one principal. Nothing that it sends may change the log."""

    def __init__(self, client: LedgerClient) -> None:
        self.client = client
        self.identity = client.identity
        self._raw = client.channel.unary_unary("/ledger.v1.LedgerService/Append")

    async def refused(self, request: bytes | ledger_pb2.AppendRequest) -> AssayError:
        """The error that the request gets; the log is as it was, as the same connection can see."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        before = await self.client.get_checkpoint()

        async def once() -> None:
            try:
                await self._raw(data, timeout=20)
            except grpc.aio.AioRpcError as error:
                raise error_of(error) from error

        with pytest.raises(AssayError) as caught:
            await self.client.retry(once)  # as every client does where it is told to come back later
        assert before == await self.client.get_checkpoint()
        return caught.value

    async def events_refused(self, *events: bytes) -> AssayError:
        """What a well-signed batch of these events gets."""
        return await self.refused(batch(self.identity, events).request(0))

    def note(self, text: bytes, events: Sequence[bytes]) -> ledger_pb2.AppendRequest:
        """A request whose note text is signed as it is."""
        line = signature_line(
            self.identity.name, self.identity.key.verifier_key.key_id, self.identity.key.sign(text)
        )
        return ledger_pb2.AppendRequest(note=text + b"\n" + line, events=events)


class Doors:
    """A door of each role, opened when it is asked for and then kept: connections outlive what they sent."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._open: dict[str, Door] = {}

    def __getitem__(self, role: str) -> Door:
        if role not in self._open:
            self._open[role] = Door(self.lab.of_role(role))
        return self._open[role]

    def writing(self, body: str) -> Door:
        """That of the role which writes events of this type."""
        return self[role_name(WRITER[body])]
