"""The gate over the wire: freeze, evaluate, promote, roll back, and who may ask for what."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from clients.receipts import ReceiptsClient
from gate.service import GateService
from gate.v1 import gate_pb2 as gate_service_pb2
from ledger.errors import AssayError, NotFoundError, OverloadedError, RefusedError
from ledger.v1 import approver_pb2, gate_pb2, operator_pb2, receipt_pb2
from tests.gate_lab import CANARY, DEFAULT, GateLab, Wire


async def test_the_whole_way_to_the_default_and_back() -> None:
    """A goes rehearsal, canary verdict, live window, default verdict, promotion, rollback; it all replays."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        candidate = wire.candidate()
        s, resource = wire.scenario, wire.document.resource
        receipts = ReceiptsClient(wire.client("auditor-1"))
        before = await receipts.resolve_default(resource, s.scope)
        assert (before.manifest_digest, before.origin) == (s.baseline, receipt_pb2.DEFAULT_ORIGIN_BASELINE)
        update, verdict_index = await wire.until_default_verdict(candidate)
        held = await receipts.resolve_default(resource, s.scope)
        assert held.manifest_digest == s.baseline  # a verdict moves no pointer
        promoted = await wire.gate("operator-1").promote(update)
        assert promoted.promoted.verdict_index == verdict_index
        after = await receipts.resolve_default(resource, s.scope)
        assert (after.manifest_digest, after.origin, after.index, list(after.at_risk)) == (
            s.candidate_digest(candidate),
            receipt_pb2.DEFAULT_ORIGIN_PROMOTED,
            promoted.index,
            [],
        )
        request = await wire.write(
            "approver-2",
            [
                approver_pb2.ApproverRollbackRequested(
                    resource=resource,
                    scope=s.scope,
                    promotion_index=promoted.index,
                    reason="wrong answers today",
                )
            ],
        )
        asked = await receipts.resolve_default(resource, s.scope)
        assert [request] == list(asked.open_rollback_requests)
        back = await wire.gate("approver-2").roll_back(resource, s.scope, request)
        assert back.rolled_back.to_digest == s.baseline
        now = await receipts.resolve_default(resource, s.scope)
        assert [] == list(now.open_rollback_requests)
        assert (now.manifest_digest, now.moved_index) == (s.baseline, back.index)
        audited = await lab.audit()
        assert (2, 3, 1) == (audited.verdicts, audited.moves, audited.freezes)


async def test_promoting_again_after_a_rollback_needs_something_new() -> None:
    """After a rollback the old verdict does not stand, and a new evaluation lacks window and approval."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        candidate, s = wire.candidate(), wire.scenario
        update, _ = await wire.until_default_verdict(candidate)
        promoted = await wire.gate("operator-1").promote(update)
        request = await wire.write(
            "operator-1",
            [
                operator_pb2.RollbackRequested(
                    resource=wire.document.resource,
                    scope=s.scope,
                    promotion_index=promoted.index,
                    reason="bad day",
                )
            ],
        )
        await wire.gate("operator-1").roll_back(wire.document.resource, s.scope, request)
        with pytest.raises(RefusedError) as refused:
            await wire.gate("operator-1").promote(update)
        assert "CONDITION_FAILED" == refused.value.reason
        again = await wire.gate("operator-1").evaluate(update, DEFAULT)
        reasons = {f.check: list(f.reasons) for f in again.verdict.findings if f.reasons}
        assert {
            "canary_verified": ["WINDOW_ABSENT"],
            "rollback_and_authority": ["APPROVAL_NONE"],
        } == reasons


async def test_a_landed_promotion_is_answered_with_its_first_place() -> None:
    """Promoting twice moves once: the second answer is the first one's index."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        update, _ = await wire.until_default_verdict(wire.candidate())
        first = await wire.gate("operator-1").promote(update)
        size = (await wire.client("auditor-1").get_checkpoint()).size
        second = await wire.gate("approver-2").promote(update)
        assert (second.index, second.promoted) == (first.index, first.promoted)
        assert (await wire.client("auditor-1").get_checkpoint()).size == size


async def test_who_may_call_the_gate() -> None:
    """Freeze is the proposing trainer's, Evaluate the others', moves the operator's and the approver's."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        candidate, s = wire.candidate(), wire.scenario
        await wire.send("trainer-1", s.proposal(candidate))
        update = s.update_id(candidate)
        for name in ("runner-1", "judge-1", "canary-1", "approver-1", "auditor-1", "gate-1"):
            with pytest.raises(RefusedError, match="MAY_NOT_CALL"):
                await wire.gate(name).freeze(update)
        with pytest.raises(RefusedError, match="NOT_THE_PROPOSER"):
            await wire.gate("operator-1").freeze(update)
        await wire.gate("trainer-1").freeze(update)
        with pytest.raises(RefusedError, match="NOT_AN_OPERATOR"):
            await wire.gate("trainer-1").freeze(update)
        with pytest.raises(RefusedError, match="MAY_NOT_CALL"):
            await wire.gate("trainer-1").evaluate(update, CANARY)
        for name in ("trainer-1", "runner-1", "judge-1", "canary-1", "auditor-1", "gate-1"):
            with pytest.raises(RefusedError, match="MAY_NOT_CALL"):
                await wire.gate(name).promote(update)
            with pytest.raises(RefusedError, match="MAY_NOT_CALL"):
                await wire.gate(name).roll_back("x", s.scope, 1)
        with pytest.raises(NotFoundError, match="NO_VERDICT"):
            await wire.gate("operator-1").promote(update)


async def test_evaluating_prints_and_recording_is_explicit() -> None:
    """Evaluate leaves the log alone unless it is asked to record."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        update = await wire.until_approval(wire.candidate())
        size = (await wire.client("auditor-1").get_checkpoint()).size
        shown = await wire.gate("auditor-1").evaluate(update, CANARY)
        states = {f.check: f.state for f in shown.verdict.findings if f.state != gate_pb2.STATE_PASS}
        assert states == {"rollback_and_authority": gate_pb2.STATE_MISSING}
        assert ["APPROVAL_NONE"] == list(shown.verdict.findings[6].reasons)
        assert not shown.HasField("index")
        assert (await wire.client("auditor-1").get_checkpoint()).size == size
        recorded = await wire.gate("operator-1").evaluate(update, CANARY, record=True)
        assert (recorded.index, recorded.verdict.verdict) == (size, gate_pb2.VERDICT_HOLD)


async def test_a_refused_freeze_is_recorded_once() -> None:
    """A proposal on a parent that is not the default is refused, and release owners find it in the log."""
    async with GateLab() as lab:
        wire = Wire(lab)
        candidate, s = wire.candidate(), wire.scenario
        await wire.send("trainer-1", s.proposal(candidate))
        for _ in range(2):
            with pytest.raises(RefusedError, match="PARENT_NOT_DEFAULT"):
                await wire.gate("trainer-1").freeze(s.update_id(candidate))
        refused = lab.gate_log.receipts.update(s.update_id(candidate)).of("update_refused")
        assert ["PARENT_NOT_DEFAULT"] == [fact.body.reason for fact in refused]


async def test_who_may_not_call_waits_for_no_turn_and_one_caller_may_not_take_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a turn lasts: the trainer is refused at once, and an operator's calls beyond 16 are too many."""
    async with GateLab() as lab:
        gate, trainer, size = lab.gate("operator-1"), lab.gate("trainer-1"), lab.gate_log.size
        turn = asyncio.Event()

        async def latest(service: GateService) -> int:
            await turn.wait()
            return size

        monkeypatch.setattr(GateService, "_latest", latest)
        calls = [asyncio.create_task(gate.evaluate("up-1", CANARY)) for _ in range(20)]
        done: set[asyncio.Task[gate_service_pb2.EvaluateResponse]] = set()
        waiting = set(calls)
        while len(done) < 4:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= ended
        with pytest.raises(RefusedError, match="MAY_NOT_CALL"):
            await trainer.evaluate("up-1", CANARY)
        turn.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        reasons = [each.reason for each in outcomes if isinstance(each, AssayError)]
        assert {"QUOTA_EXCEEDED": 4, "NOT_PROPOSED": 16} == Counter(reasons)


async def test_a_ledger_that_is_away_is_said_without_its_address() -> None:
    """LEDGER_AWAY: nothing of what the gate's own connection reports."""
    async with GateLab() as lab:
        assert lab.host is not None
        gate = lab.gate("operator-1")
        host, lab.host = lab.host, None
        await host.stop()
        with pytest.raises(OverloadedError) as caught:
            await gate.evaluate("up-1", CANARY)
        assert ("LEDGER_AWAY", False) == (caught.value.reason, lab.address in caught.value.message)
