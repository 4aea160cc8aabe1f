"""The whole log, verified and folded here: what no served view answers, such as what is published.

Rules:
1. Every entry passes the offline verifier's steps on its way; the ledger is believed nothing.
2. It costs a pass over the log, so a command says what it reads it for and shows how far it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from clients.cli.desk import Desk
from clients.cli.show import progress
from gate.log import GateLog
from ledger.trust import Grant
from ledger.v1 import event_pb2, options_pb2

__all__ = ["WholeLog", "fold_log"]

_SCOPED: Final = frozenset(
    {
        "policy_published",
        "evaluator_published",
        "snapshot_published",
        "protected_set_published",
        "tool_contract_published",
        "environment_changed",
        "baseline_adopted",
        "update_proposed",
    }
)


class WholeLog(GateLog):
    """The gate's view of the log, and the scopes that somebody published for or proposed in."""

    scopes: dict[tuple[str, str], None]

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes an entry from the verifier."""
        super().apply(index, recorded_at, leaf, grant, event, alone)
        name = event.WhichOneof("body")
        if name in _SCOPED:
            scope: options_pb2.Scope = getattr(event, name).scope
            if scope.segment != "*":
                self.scopes[(scope.workflow, scope.segment)] = None

    def roles(self) -> dict[str, int]:
        """Principals with a key in force, and their roles."""
        grants = self.authority.grants.values()
        return {grant.name: grant.role for grant in grants if grant.revocation is None}


async def fold_log(desk: Desk, what: str) -> WholeLog:
    """Reads, verifies and folds the log as it is now; `what` names the progress bar.

    Raises VerificationError, CannotTellError, AssayError as the ledger's client does.
    """
    log = WholeLog(desk.identity.trust)
    log.scopes = {}
    size = (await desk.ledger.get_checkpoint()).size
    with progress(what, size) as advance:

        async def entries(start: int) -> AsyncIterator[tuple[int, bytes]]:
            async for item in desk.ledger.follow(start):
                advance(1)
                yield item

        following: asyncio.Task[Any] = asyncio.create_task(log.run(entries))
        try:
            await log.reached(size)
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
    return log
