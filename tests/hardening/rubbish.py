"""Senders of rubbish: the largest batches that are well signed and well shaped until their last event.

    python -m tests.hardening.rubbish HOME ADDRESS PRINCIPAL,… SENDERS

Every sender signs a batch of 4096 events of which the last one is refused, so that all were looked at in
vain, and sends it over and over, whatever it is told, until stdin ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import grpc.aio

from clients.acknowledgement import sign
from clients.identity import Identity, load_identity
from clients.ledger import LedgerClient
from clients.memory import Memory
from ledger.batch import MAX_BATCH_EVENTS
from ledger.v1 import ledger_pb2
from ledger.wire import error_of
from tests.events import minimal_event

_TEXT: Final = 600


def _events() -> list[bytes]:
    # A text of the runner's own fills the event; one control character at the very end spoils the last.
    event = minimal_event("attempt_ended", reason="x" * _TEXT)
    good = event.SerializeToString()
    event.attempt_ended.reason = "x" * (_TEXT - 1) + "\x07"
    return [good] * (MAX_BATCH_EVENTS - 1) + [event.SerializeToString()]


def spoiled_batch(identity: Identity) -> ledger_pb2.AppendRequest:
    """A batch of 4096 events, 3 MiB in all, refused at the last of them."""
    return sign(identity.key, identity.trust.origin, bytes(16), 0, _events(), None).request(0)


async def _send(home: Path, address: str, principal: str, answers: Counter[str]) -> None:
    identity = load_identity(home, principal, target=address)
    client = LedgerClient(identity, memory=Memory(identity.trust, None))
    request = spoiled_batch(identity)
    while True:
        try:
            await client.stub.Append(request, timeout=60)
        except grpc.aio.AioRpcError as error:
            answers[error_of(error).reason] += 1


async def _main(home: Path, address: str, principals: list[str], senders: int) -> None:
    answers: Counter[str] = Counter()
    jobs = [
        asyncio.create_task(_send(home, address, principals[number % len(principals)], answers))
        for number in range(senders)
    ]
    while not answers:
        await asyncio.wait(jobs, timeout=0.01, return_when=asyncio.FIRST_EXCEPTION)
        for job in jobs:
            if job.done():
                job.result()
    sys.stdout.write("ready " + json.dumps({"up": {"rubbish": senders}, "refused": {}}) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for job in jobs:
        job.cancel()
    sys.stdout.write("left " + json.dumps({"refused": answers}) + "\n")


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])))
