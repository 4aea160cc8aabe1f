"""Nothing slips in between (law 14): what changes after a verdict aborts the promotion that rests on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from clients.demo.scenario import digest, wrap
from ledger.errors import RefusedError
from ledger.v1 import approver_pb2, gate_pb2, operator_pb2, options_pb2, root_pb2
from tests.gate_lab import CANARY, DEFAULT, GateLab, Wire


async def _promotion(wire: Wire, update: str, verdict_index: int) -> bytes:
    """The DefaultPromoted that a gate would send, made before the race."""
    verdict = next(
        v.fact.body
        for v in wire.lab.gate_log.receipts.updates[update].verdicts
        if v.fact.index == verdict_index
    )
    body = gate_pb2.DefaultPromoted(
        update=update,
        resource=verdict.resource,
        scope=verdict.scope,
        from_digest=wire.scenario.baseline,
        to_digest=wire.scenario.candidate_digest(wire.candidate()),
        verdict_index=verdict_index,
        not_after=verdict.not_after,
    )
    return wrap(body, wire.new_id(), wire.lab.clock.now).SerializeToString()


async def _evaluator(wire: Wire) -> None:
    body = operator_pb2.EvaluatorPublished(
        scope=wire.scenario.scope,
        name="execution-match",
        digest=digest("evaluator/execution-match/2"),
        direction=operator_pb2.DIRECTION_HIGHER_IS_BETTER,
    )
    await wire.write("operator-1", [body])


async def _evaluator_of_the_workflow(wire: Wire) -> None:
    body = operator_pb2.EvaluatorPublished(
        scope=options_pb2.Scope(workflow=wire.scenario.scope.workflow, segment="*"),
        name="another",
        digest=digest("evaluator/another"),
        direction=operator_pb2.DIRECTION_HIGHER_IS_BETTER,
    )
    await wire.write("operator-1", [body])


async def _withdrawn(wire: Wire) -> None:
    body = approver_pb2.ApprovalWithdrawn(update="update-A", approval="approval-A-default")
    await wire.write("approver-2", [body])


async def _revoked(wire: Wire) -> None:
    key = wire.lab.identity("judge-1").key.verifier_key
    body = root_pb2.KeyRevoked(vkey=str(key), reason="stolen", suspect_from=1)
    await wire.write("root-1", [body])


async def _another_proposal(wire: Wire) -> None:
    """Touches its own update only: the control of this experiment."""
    await wire.send("trainer-1", wire.scenario.proposal(wire.candidate("B")))


RACES: dict[str, Callable[[Wire], Awaitable[None]]] = {
    "evaluator published": _evaluator,
    "evaluator published for the workflow": _evaluator_of_the_workflow,
    "approval withdrawn": _withdrawn,
    "key revoked": _revoked,
}


@pytest.mark.parametrize("race", RACES)
async def test_law_14_a_promotion_aborts_when_something_slipped_in(race: str) -> None:
    """Between verdict and promotion: ABORTED by the ledger for the gate's own key, and by the gate itself."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        update, verdict_index = await wire.until_default_verdict(wire.candidate())
        promotion = await _promotion(wire, update, verdict_index)
        await RACES[race](wire)
        with pytest.raises(RefusedError) as by_ledger:
            await wire.client("gate-1").append([promotion])
        assert "CONDITION_FAILED" == by_ledger.value.reason
        with pytest.raises(RefusedError) as by_gate:
            await wire.gate("operator-1").promote(update)
        assert "CONDITION_FAILED" == by_gate.value.reason
        default = lab.gate_log.receipts.pointers.default(wire.document.resource, wire.scenario.scope)
        assert default is not None
        assert default.digest == wire.scenario.baseline


async def test_law_14_what_touches_nothing_aborts_nothing() -> None:
    """Another update's proposal and a late runner event stand in nobody's way."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        update, verdict_index = await wire.until_default_verdict(wire.candidate())
        await _another_proposal(wire)
        late = next(iter(wire.scenario.rollouts(wire.candidate())))
        await wire.send("runner-1", late)
        promoted = await wire.gate("operator-1").promote(update)
        assert promoted.promoted.verdict_index == verdict_index


async def test_law_14_of_two_promoters_one_gets_aborted() -> None:
    """Two promotions on one verdict, sent at once by two streams of the gate's key: one moves the pointer."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        update, verdict_index = await wire.until_default_verdict(wire.candidate())
        promotions = [await _promotion(wire, update, verdict_index) for _ in range(2)]
        gate = wire.client("gate-1")
        results = await asyncio.gather(
            *(gate.open_stream().append([promotion]) for promotion in promotions), return_exceptions=True
        )
        failed = [r for r in results if isinstance(r, RefusedError)]
        assert ["CONDITION_FAILED"] == [error.reason for error in failed]
        assert 1 == len(results) - len(failed)


async def test_a_resent_promotion_returns_its_first_position() -> None:
    """The same signed batch again, after the pointer moved: its first place, nothing new (law 5)."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        update, verdict_index = await wire.until_default_verdict(wire.candidate())
        promotion = await _promotion(wire, update, verdict_index)
        stream = bytes(range(16))
        first = await lab.client("gate-1", stream=stream).append([promotion])
        second = await lab.client("gate-1", stream=stream).append([promotion])
        assert second.first_index == first.first_index


async def test_a_promotion_counts_up_to_its_last_moment_and_not_after() -> None:
    """recorded_at <= not_after, inclusive: the last microsecond is good, the next one aborts."""
    for late, expected in ((0, None), (1, "CONDITION_FAILED")):
        async with GateLab() as lab:
            wire = Wire(lab)
            await wire.setup()
            update, verdict_index = await wire.until_default_verdict(wire.candidate())
            verdict = lab.gate_log.receipts.updates[update].verdicts[-1].fact.body
            promotion = await _promotion(wire, update, verdict_index)
            lab.clock.now = verdict.not_after + late
            if expected is None:
                await wire.client("gate-1").append([promotion])
            else:
                with pytest.raises(RefusedError, match=expected):
                    await wire.client("gate-1").append([promotion])


@pytest.mark.parametrize("change", ["permissions", "approval", "freeze"])
async def test_a_live_window_needs_a_canary_verdict_that_stands(change: str) -> None:
    """LIVE on a verdict whose permissions, approval or freeze changed is aborted."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        candidate = wire.candidate()
        update = await wire.until_approval(candidate)
        await wire.approve(candidate)
        canary = await wire.gate("operator-1").evaluate(update, CANARY, record=True)
        seen = (await wire.client("canary-1").get_checkpoint()).size
        if change == "permissions":
            body = operator_pb2.EnvironmentChanged(
                scope=wire.scenario.scope,
                target=options_pb2.ENVIRONMENT_TARGET_PERMISSIONS,
                new_digest=digest("permissions/2"),
            )
            await wire.write("operator-1", [body])
        elif change == "approval":
            withdrawn = approver_pb2.ApprovalWithdrawn(update=update, approval="approval-A-canary")
            await wire.write("approver-1", [withdrawn])
        else:
            await wire.gate("operator-1").freeze(update)
        with pytest.raises(RefusedError) as refused:
            await wire.live_window(candidate, canary.index, seen_size=seen)
        assert "CONDITION_FAILED" == refused.value.reason


async def test_a_canary_that_claims_to_have_seen_later_gains_nothing() -> None:
    """A LIVE window that names a size after the change is placed, and does not count."""
    async with GateLab() as lab:
        wire = Wire(lab)
        await wire.setup()
        candidate = wire.candidate()
        update = await wire.until_approval(candidate)
        await wire.approve(candidate)
        canary = await wire.gate("operator-1").evaluate(update, CANARY, record=True)
        body = operator_pb2.EnvironmentChanged(
            scope=wire.scenario.scope,
            target=options_pb2.ENVIRONMENT_TARGET_PERMISSIONS,
            new_digest=digest("permissions/2"),
        )
        await wire.write("operator-1", [body])
        index = await wire.live_window(candidate, canary.index)
        shown = await wire.gate("auditor-1").evaluate(update, DEFAULT)
        counts = {c.name: c.value for c in shown.verdict.findings[5].counts}
        assert 0 == counts["live_windows"]
        void = lab.gate_log.receipts.updates[update].live[index]
        assert void is not None
        assert "STALE_PERMISSIONS" in void
