"""The lab with a gate: ledger and gate over mTLS in this process, on one clock, and the demo's people.

`Wire` tells a candidate's story over the wire, step by step, each principal with its own client.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from clients.demo.document import Candidate, DemoDocument, parse_document
from clients.demo.run import shipped_candidates
from clients.demo.scenario import Scenario, digest, wrap
from clients.gate import GateClient
from clients.ids import RANDOM_BYTES, uuid7
from clients.ledger import LedgerClient
from gate.log import GateLog
from gate.replay import Replayed, replay_export
from gate.service import GateService
from gate.v1 import gate_pb2_grpc
from ledger.environment import environment_digest
from ledger.v1 import canary_pb2, gate_pb2, options_pb2
from ledger.wire import CatchAll
from tests.lab import Lab

CANARY, DEFAULT = options_pb2.STEP_CANARY, options_pb2.STEP_DEFAULT


class GateLab(Lab):
    """A lab whose gate serves too. `audit` verifies and replays the whole log."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._gates: list[GateClient] = []
        self._gate_server: grpc.aio.Server | None = None
        self._following: asyncio.Task[None] | None = None
        self.gate_log: GateLog
        self.gate_address = ""

    async def start(self) -> None:
        """Starts ledger and gate."""
        await super().start()
        client = self.client("gate-1")
        self.gate_log = GateLog(self.trust)
        self._following = asyncio.create_task(self.gate_log.run(client.follow))
        await self.gate_log.reached((await client.get_checkpoint()).size)
        self._gate_server = grpc.aio.server(interceptors=[CatchAll(logging.getLogger("gate"))])
        service = GateService(
            self.gate_log, client, self.home.trust_domain, now=self.clock, random=os.urandom
        )
        gate_pb2_grpc.add_GateServiceServicer_to_server(service, self._gate_server)
        port = self._gate_server.add_secure_port("127.0.0.1:0", self.server_credentials("gate"))
        self.gate_address = f"127.0.0.1:{port}"
        await self._gate_server.start()

    async def stop(self) -> int:
        """Stops gate and ledger in order."""
        for gate in self._gates:
            await gate.__aexit__(None, None, None)
        self._gates.clear()
        if self._gate_server is not None:
            await self._gate_server.stop(None)
            self._gate_server = None
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
            self._following = None
        return await super().stop()

    def gate(self, name: str) -> GateClient:
        """A gate client for a principal, closed with the lab."""
        client = GateClient(self.identity(name), self.gate_address)
        self._gates.append(client)
        return client

    async def audit(self) -> Replayed:
        """Verifies the whole log and replays every power that was used in it."""
        data = await self.export()
        _, replay = replay_export(lambda: BytesIO(data), self.trust)
        return replay.result()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.running:
            await self.audit()
        await super().__aexit__(kind, error, trace)


class Wire:
    """One document on one lab."""

    def __init__(self, lab: GateLab, document: DemoDocument | None = None) -> None:
        self.lab = lab
        self.document = document or parse_document(shipped_candidates())
        self.scenario = Scenario(self.document, self.new_id, lab.clock)
        self._clients: dict[str, LedgerClient] = {}
        self._gates: dict[str, GateClient] = {}

    def new_id(self) -> bytes:
        """A fresh UUIDv7."""
        return uuid7(self.lab.clock.now, os.urandom(RANDOM_BYTES))

    def client(self, name: str) -> LedgerClient:
        """The principal's one ledger client."""
        if name not in self._clients:
            self._clients[name] = self.lab.client(name)
        return self._clients[name]

    def gate(self, name: str) -> GateClient:
        """The principal's one gate client."""
        if name not in self._gates:
            self._gates[name] = self.lab.gate(name)
        return self._gates[name]

    async def write(self, author: str, bodies: Sequence[Any]) -> int:
        """One batch of bodies; its first index."""
        events = [wrap(body, self.new_id(), self.lab.clock.now).SerializeToString() for body in bodies]
        return (await self.client(author).append(events)).first_index

    async def send(self, author: str, events: Sequence[Any]) -> int:
        """One batch of events; its first index."""
        return (await self.client(author).append([e.SerializeToString() for e in events])).first_index

    async def setup(self) -> None:
        """The operator's publications."""
        await self.send("operator-1", self.scenario.publications())

    def candidate(self, name: str = "A") -> Candidate:
        """A candidate of the document by name."""
        return next(c for c in self.document.candidates if c.name == name)

    async def until_approval(self, candidate: Candidate) -> str:
        """Everything before somebody approves; the update's id."""
        s, update = self.scenario, self.scenario.update_id(candidate)
        await self.send("trainer-1", s.proposal(candidate))
        await self.gate("trainer-1").freeze(update)
        await self.send("trainer-1", s.training_started(candidate))
        await self.send("runner-1", [event for rollout in s.rollouts(candidate) for event in rollout])
        await self.send("judge-1", s.rewards(candidate))
        await self.send("trainer-1", s.training_ended(candidate))
        await self.send("judge-1", s.evaluations(candidate))
        await self.send("canary-1", s.canary(candidate))
        return update

    async def approve(self, candidate: Candidate, step: int = CANARY, by: str | None = None) -> int:
        """The approver approves what the gate shows now; the approval's index."""
        name = by or ("approver-1" if step == CANARY else "approver-2")
        shown = await self.gate(name).evaluate(self.scenario.update_id(candidate), step)
        return await self.send(name, self.scenario.approval(candidate, step, shown.verdict))

    async def live_window(self, candidate: Candidate, verdict_index: int, **changes: Any) -> int:
        """The canary runs a LIVE window on a standing canary verdict; the index of its start."""
        s, update = self.scenario, self.scenario.update_id(candidate)
        started, *rest = s.canary(candidate)
        start = canary_pb2.CanaryStarted()
        start.CopyFrom(started.canary_started)
        start.kind = canary_pb2.WINDOW_KIND_LIVE
        start.window = f"live-{candidate.name}"
        for part in start.environment:
            if part.target == options_pb2.ENVIRONMENT_TARGET_DESTINATION:
                part.digest = digest(f"environment/{part.target}/1")
        start.environment_digest = environment_digest(
            start.environment, start.tool_contract_digest, start.bounds
        )
        verdict = next(
            v for v in self.lab.gate_log.receipts.updates[update].verdicts if v.fact.index == verdict_index
        )
        checkpoint = await self.client("canary-1").get_checkpoint()
        start.live.CopyFrom(
            canary_pb2.LiveAuthority(
                resource=self.document.resource,
                scope=s.scope,
                verdict_index=verdict_index,
                seen_size=checkpoint.size,
                not_after=verdict.fact.body.not_after,
            )
        )
        for name, value in changes.items():
            setattr(start.live, name, value)
        bodies: list[Any] = [start]
        for event in rest:
            body = getattr(event, event.WhichOneof("body"))
            body.window = start.window
            if event.WhichOneof("body") == "rollback_rehearsed":
                body.environment_digest = start.environment_digest
            bodies.append(body)
        index = await self.write("canary-1", bodies[:1])
        await self.write("canary-1", bodies[1:])
        return index

    async def until_default_verdict(self, candidate: Candidate) -> tuple[str, int]:
        """The whole way to a recorded PROMOTE_TO_DEFAULT; the update and the verdict's index."""
        update = await self.until_approval(candidate)
        await self.approve(candidate)
        canary = await self.gate("operator-1").evaluate(update, CANARY, record=True)
        assert canary.verdict.verdict == gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY
        await self.live_window(candidate, canary.index)
        await self.approve(candidate, DEFAULT)
        final = await self.gate("operator-1").evaluate(update, DEFAULT, record=True)
        assert final.verdict.verdict == gate_pb2.VERDICT_PROMOTE_TO_DEFAULT
        return update, final.index
