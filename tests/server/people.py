"""What the server's tests share: serialized events, batches signed by hand, refusals by reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from clients.acknowledgement import SignedBatch, sign
from clients.identity import Identity
from ledger.errors import AssayError
from tests.events import minimal_event
from tests.lab import Lab

__all__ = ["STREAM", "batch", "body", "enqueued", "reason_of", "until"]

STREAM = bytes(range(16))


def enqueued(lab: Lab, rollout: str = "ro-1", **fields: Any) -> bytes:
    """A RolloutEnqueued, serialized."""
    return lab.event(minimal_event("rollout_enqueued", rollout=rollout, **fields))


def body(lab: Lab, name: str, **fields: Any) -> bytes:
    """A minimal event of the type, serialized."""
    return lab.event(minimal_event(name, **fields))


def batch(
    identity: Identity, events: Sequence[bytes], sequence: int = 0, stream: bytes = STREAM
) -> SignedBatch:
    """A batch signed by hand."""
    return sign(identity.key, identity.trust.origin, stream, sequence, events, None)


async def reason_of(call: Awaitable[object], kind: type[AssayError] = AssayError) -> str:
    """The reason with which `call` is refused."""
    with pytest.raises(kind) as caught:
        await call
    return caught.value.reason


async def until(holds: Callable[[], bool], every: float = 0.0) -> None:
    """Gives way until `holds`, asked again `every` so many seconds: some, where another process must act.

    Raises TimeoutError after a minute in vain.
    """
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(every)
