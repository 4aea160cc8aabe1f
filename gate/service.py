"""GateService: the only author of promotion events.

Rules:
1. The gate answers from its own verified view, brought up to the ledger's latest checkpoint first.
2. What it writes rests on exactly the size it judged at; the ledger places it only if nothing slipped in
   between, and answers ABORTED otherwise (law 14).
3. Nothing void is written: a move is judged by the auditor's own function before it is sent.
4. Evaluating prints; recording a verdict is asked for explicitly.
5. Calls have their turn one after the other. Who may not call waits for none, and one principal may have so
   many waiting and no more: a rollback is for bad days.
6. What the ledger's connection reports is the operator's to read; callers learn that the ledger is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import grpc.aio

from clients.ids import RANDOM_BYTES, uuid7
from clients.ledger import LedgerClient
from gate.freeze import derive_freeze
from gate.judge import STEPS, RulesJudge, verdict_of
from gate.log import GateLog
from gate.report import sentence
from gate.v1 import gate_pb2 as service_pb2
from gate.v1 import gate_pb2_grpc
from ledger.claims import Judgement, VerdictRecord
from ledger.errors import FatalError, NotFoundError, OverloadedError, RefusedError
from ledger.fact import Fact
from ledger.standing import promotion_fault
from ledger.touches import Condition, judgment_keys, pointer_key
from ledger.trust import role_name
from ledger.v1 import event_pb2, gate_pb2, options_pb2
from ledger.wire import peer_name

__all__ = ["GateService"]

_log = logging.getLogger("gate")

_MAY_FREEZE: Final = frozenset({options_pb2.ROLE_TRAINER, options_pb2.ROLE_OPERATOR})
_MAY_EVALUATE: Final = frozenset(options_pb2.Role.values()) - {
    options_pb2.ROLE_UNSPECIFIED,
    options_pb2.ROLE_TRAINER,
}
_MAY_MOVE: Final = frozenset({options_pb2.ROLE_OPERATOR, options_pb2.ROLE_APPROVER})
_MAX_WAITING: Final = 16  # calls of one principal
_AGAIN: Final = 0.5  # seconds

_Context = grpc.aio.ServicerContext[Any, Any]

# Refusals of a first freeze that release owners should find in the log.
_RECORDED_REFUSALS: Final = frozenset(
    {"NOT_REGISTERED", "NOT_IN_FORCE", "PARENT_NOT_DEFAULT", "PROTECTED_OUTSIDE_HOLDOUT"}
)


class GateService(gate_pb2_grpc.GateServiceServicer):
    """Judges and writes under one gate principal. `_turn` keeps its own writes in order."""

    def __init__(
        self,
        log: GateLog,
        client: LedgerClient,
        trust_domain: str,
        *,
        now: Callable[[], int],
        random: Callable[[int], bytes],
    ) -> None:
        """`now` gives microseconds since 1970, `random(n)` n bytes."""
        self._log = log
        self._client = client
        self._domain = trust_domain
        self._now = now
        self._random = random
        self._judge = RulesJudge()
        self._turn = asyncio.Lock()
        self._waiting: Counter[str] = Counter()  # calls by principal

    # --- who asks, and at what size -----------------------------------------------------------------------

    def _caller(self, context: _Context, allowed: frozenset[int]) -> tuple[str, int]:
        """Name and role of the caller. Raises RefusedError(PEER_UNKNOWN, MAY_NOT_CALL)."""
        name = peer_name(context, self._domain)
        grants = [grant for (held, _), grant in self._log.authority.grants.items() if held == name]
        if not any(grant.revocation is None for grant in grants):
            raise RefusedError("PEER_UNKNOWN", f"expected a principal with a key in force, got {name}")
        role = grants[0].role
        if role not in allowed:
            words = ", ".join(sorted(role_name(number) for number in allowed))
            raise RefusedError(
                "MAY_NOT_CALL", f"expected a caller of role {words}, got {name}, {role_name(role)}"
            )
        return name, role

    async def _latest(self) -> None:
        """Verifies up to the ledger's latest checkpoint, at least."""
        checkpoint = await self._client.get_checkpoint()
        await self._log.reached(checkpoint.size)

    async def _write(self, body: Any, field: str, condition: Condition | None) -> int:
        event = event_pb2.Event(
            event_id=uuid7(self._now(), self._random(RANDOM_BYTES)), occurred_at=self._now(), **{field: body}
        )
        placed = await self._client.append([event.SerializeToString()], condition)
        await self._log.reached(placed.first_index + 1)
        return placed.first_index

    @asynccontextmanager
    async def _turn_of(self, context: _Context, allowed: frozenset[int]) -> AsyncIterator[tuple[str, int]]:
        """The turn of a caller of an allowed role, at the latest size; yields name and role."""
        name = peer_name(context, self._domain)
        try:
            if name not in self._log.authority.roles:  # granted just now, or never
                await self._latest()
            self._caller(context, allowed)
            if self._waiting[name] >= _MAX_WAITING:
                raise OverloadedError(
                    "QUOTA_EXCEEDED",
                    f"expected up to {_MAX_WAITING} calls of {name} to wait, got one more",
                    _AGAIN,
                )
            self._waiting[name] += 1
            try:
                async with self._turn:
                    await self._latest()
                    yield self._caller(context, allowed)
            finally:
                self._waiting[name] -= 1
                if not self._waiting[name]:
                    del self._waiting[name]
        except OverloadedError as error:
            if error.reason == "QUOTA_EXCEEDED":
                raise
            _log.warning("the ledger does not answer: %s", error)
            raise OverloadedError(
                "LEDGER_AWAY", "expected a ledger that answers, got none", _AGAIN
            ) from error

    # --- Freeze -------------------------------------------------------------------------------------------

    async def Freeze(
        self, request: service_pb2.FreezeRequest, context: _Context
    ) -> service_pb2.FreezeResponse:
        """Fixes the identity of a proposed update."""
        async with self._turn_of(context, _MAY_FREEZE) as (name, role):
            size = self._log.size
            try:
                frozen = derive_freeze(
                    self._log.receipts,
                    request.update,
                    name,
                    is_operator=role == options_pb2.ROLE_OPERATOR,
                    redo=request.redo_checks,
                    size=size,
                )
            except RefusedError as error:
                await self._record_refusal(request.update, error)
                raise
            keys = judgment_keys(request.update, frozen.resource, frozen.scope)
            index = await self._write(frozen, "update_frozen", Condition(keys, size, None))
            return service_pb2.FreezeResponse(index=index, frozen=frozen)

    async def _record_refusal(self, update: str, error: RefusedError) -> None:
        """Once per reason: asking again tells nobody anything new."""
        record = self._log.receipts.updates.get(update)
        said = record.of("update_refused") if record is not None else []
        if error.reason in _RECORDED_REFUSALS and not any(f.body.reason == error.reason for f in said):
            body = gate_pb2.UpdateRefused(update=update, reason=error.reason, message=error.message)
            await self._write(body, "update_refused", None)

    # --- Evaluate -----------------------------------------------------------------------------------------

    async def Evaluate(
        self, request: service_pb2.EvaluateRequest, context: _Context
    ) -> service_pb2.EvaluateResponse:
        """Judges an update at the latest size; records the verdict only if asked to."""
        async with self._turn_of(context, _MAY_EVALUATE):
            if request.step not in STEPS:
                raise RefusedError("BAD_STEP", f"expected STEP_CANARY or STEP_DEFAULT, got {request.step}")
            verdict = self._verdict(request.update, request.step)
            sentences = [sentence(finding) for finding in verdict.findings]
            expired = verdict.HasField("not_after") and verdict.not_after < self._now()
            response = service_pb2.EvaluateResponse(verdict=verdict, sentences=sentences, expired=expired)
            if request.record:
                if expired:
                    raise RefusedError(
                        "APPROVAL_EXPIRED",
                        f"expected an approval in force at {self._now()}, got one that expired at "
                        f"{verdict.not_after} (microseconds since 1970); approve again",
                    )
                response.index = await self._write(verdict, "verdict_issued", None)
            return response

    def _verdict(self, update: str, step: options_pb2.Step.ValueType) -> gate_pb2.VerdictIssued:
        receipts, size = self._log.receipts, self._log.size
        proposal = receipts.proposal(update)
        if proposal is None:
            raise NotFoundError("NOT_PROPOSED", f"expected UpdateProposed for {update}, got none")
        judgement: Judgement = self._judge.evaluate(receipts, update, step, size)
        if not judgement.policy_digest:
            raise RefusedError(
                "NOT_FROZEN", f"expected {update} frozen with a policy, got none; its trainer asks for Freeze"
            )
        key = self._client.identity.key.verifier_key
        controller = self._log.authority.find(key.name, key.key_id).controller
        if controller in judgement.makers:
            raise RefusedError(
                "GATE_NOT_INDEPENDENT",
                f"expected a gate that made none of the evidence, got one of {controller}",
            )
        return verdict_of(judgement, proposal.body, step, size, self._log.tree.root(size))

    # --- Promote ------------------------------------------------------------------------------------------

    async def Promote(
        self, request: service_pb2.PromoteRequest, context: _Context
    ) -> service_pb2.PromoteResponse:
        """Moves the approved default; a promotion that landed already is answered with its place."""
        async with self._turn_of(context, _MAY_MOVE) as (name, role):
            record = self._verdict_record(request)
            verdict: gate_pb2.VerdictIssued = record.fact.body
            if role == options_pb2.ROLE_APPROVER:
                self._check_pinned(request.update, name)
            landed = self._log.receipts.pointers.promotion_of(verdict, record.fact.index)
            if landed is not None:
                return service_pb2.PromoteResponse(
                    index=landed.index, promoted=self._promotion(verdict, record, landed.from_digest)
                )
            current = self._log.receipts.pointers.default(verdict.resource, verdict.scope)
            promoted = self._promotion(verdict, record, current.digest if current is not None else None)
            self._check_move(promoted, "default_promoted", partial(promotion_fault, self._log.receipts))
            index = await self._write(promoted, "default_promoted", None)
            return service_pb2.PromoteResponse(index=index, promoted=promoted)

    def _verdict_record(self, request: service_pb2.PromoteRequest) -> VerdictRecord:
        found = self._log.receipts.updates.get(request.update)
        records = [
            record
            for record in (found.verdicts if found is not None else [])
            if record.fact.body.step == options_pb2.STEP_DEFAULT
            and (not request.HasField("verdict_index") or record.fact.index == request.verdict_index)
        ]
        if not records:
            raise NotFoundError(
                "NO_VERDICT",
                f"expected a recorded verdict of step default for {request.update}, got none: assay evaluate "
                f"{request.update} --step default --record makes one",
            )
        return records[-1]

    def _check_pinned(self, update: str, name: str) -> None:
        freezes = self._log.receipts.update(update).of("update_frozen")
        if not freezes or name not in freezes[-1].body.default_approvers:
            raise RefusedError("MAY_NOT_CALL", f"expected an approver pinned for step default, got {name}")

    def _promotion(
        self, verdict: gate_pb2.VerdictIssued, record: VerdictRecord, from_digest: bytes | None
    ) -> gate_pb2.DefaultPromoted:
        judged = self._judge.evaluate(self._log.receipts, verdict.update, verdict.step, self._log.size)
        if from_digest is None or judged.candidate_digest is None:
            raise RefusedError(
                "CONDITION_FAILED", "expected a default to move from and a candidate, got none"
            )
        return gate_pb2.DefaultPromoted(
            update=verdict.update,
            resource=verdict.resource,
            scope=verdict.scope,
            from_digest=from_digest,
            to_digest=judged.candidate_digest,
            verdict_index=record.fact.index,
            not_after=verdict.not_after,
        )

    def _check_move(self, body: Any, name: str, fault_of: Callable[[Fact, bool], str | None]) -> None:
        """Judges a move as if it stood next in the log. Raises RefusedError(CONDITION_FAILED)."""
        key = self._client.identity.key.verifier_key
        grant = self._log.authority.find(key.name, key.key_id)
        fact = Fact(self._log.size, self._now(), b"", grant, name, body)
        if (fault := fault_of(fact, True)) is not None:
            raise RefusedError("CONDITION_FAILED", fault)

    # --- RollBack -----------------------------------------------------------------------------------------

    async def RollBack(
        self, request: service_pb2.RollBackRequest, context: _Context
    ) -> service_pb2.RollBackResponse:
        """Undoes the top promotion on a recorded request. Needs no fresh evidence: it is for bad days."""
        async with self._turn_of(context, _MAY_MOVE):
            receipts, size = self._log.receipts, self._log.size
            asked = receipts.pointers.request(request.request_index)
            stack = receipts.pointers.stack(request.resource, request.scope)
            if asked is None or len(stack) < 2:
                raise RefusedError(
                    "CONDITION_FAILED",
                    f"expected an unused rollback request at index {request.request_index} and a "
                    f"promotion to undo, got {'no request' if asked is None else 'no promotion'}",
                )
            top = stack[-1]
            if top.update is None:
                raise FatalError(
                    "STACK_BROKEN", "expected a promotion above the baseline, got another baseline"
                )
            body = gate_pb2.DefaultRolledBack(
                resource=request.resource,
                scope=request.scope,
                promotion_index=top.index,
                request_index=request.request_index,
                update=top.update,
                to_digest=stack[-2].digest,
            )
            self._check_move(body, "default_rolled_back", receipts.pointers.rollback_fault)
            condition = Condition((pointer_key(request.resource, request.scope),), size, None)
            index = await self._write(body, "default_rolled_back", condition)
            return service_pb2.RollBackResponse(index=index, rolled_back=body)
