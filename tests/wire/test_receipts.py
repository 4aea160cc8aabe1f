"""What ReceiptService says of one rollout, asked for over the wire."""

from __future__ import annotations

from clients.receipts import ReceiptsClient
from ledger.errors import NotFoundError, RefusedError
from tests.events import BODIES, body_name, minimal_event
from tests.lab import Lab
from tests.server.people import reason_of

OF_ROLLOUT = {
    name for name in BODIES if "rollout" in getattr(minimal_event(name), name).DESCRIPTOR.fields_by_name
}


async def test_every_claim_about_a_rollout_is_shown_in_order() -> None:
    """Runner's and judge's claims about one rollout, by index, with their types; no other rollout's."""
    async with Lab() as lab:
        runner, judge = lab.of_role("runner"), lab.of_role("judge")
        told = [minimal_event(name) for name in BODIES if name in OF_ROLLOUT]
        for event in told:
            getattr(event, body_name(event)).rollout = "ro-1"
        first = await runner.append([lab.event(e) for e in told if body_name(e) != "reward_recorded"])
        await runner.append([lab.event(minimal_event("rollout_enqueued", rollout="ro-2"))])
        last = await judge.append([lab.event(e) for e in told if body_name(e) == "reward_recorded"])
        shown = await ReceiptsClient(lab.of_role("auditor")).get_rollout("ro-1")
        assert "ro-1" == shown["rollout"]
        assert OF_ROLLOUT == {claim["type"] for claim in shown["claims"]}
        indexes = [*range(first.first_index, first.first_index + first.count), last.first_index]
        assert indexes == [claim["index"] for claim in shown["claims"]]
        assert {"ro-1"} == {claim["claim"]["rollout"] for claim in shown["claims"]}


async def test_a_rollout_is_asked_for_by_who_may_read_all() -> None:
    """An unknown rollout is NOT_FOUND; runner and trainer may not ask, since it shows judges' scores."""
    async with Lab() as lab:
        asked = ReceiptsClient(lab.of_role("auditor")).get_rollout("ro-9")
        assert "NO_SUCH_ROLLOUT" == await reason_of(asked, NotFoundError)
        for role in ("runner", "trainer"):
            refused = ReceiptsClient(lab.of_role(role)).get_rollout("ro-1")
            assert "MAY_NOT_READ" == await reason_of(refused, RefusedError)
