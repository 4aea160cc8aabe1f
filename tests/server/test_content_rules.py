"""Content rule BLOB, by a ledger that runs: what must be able to go one day never lands in the log."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from contextlib import closing
from io import BytesIO
from typing import Any

import pytest

from clients.blobs import BlobsClient
from clients.home import DEVELOPMENT_PRINCIPALS, Principal
from clients.receipts import ReceiptsClient
from ledger.errors import RefusedError
from ledger.server.derived import check_views
from ledger.server.sequencer import Position
from ledger.server.state import known_grant, prepare
from ledger.server.turns import Turns
from ledger.v1 import operator_pb2, options_pb2
from tests.lab import Lab
from tests.server.people import batch, body, enqueued, reason_of

ALL = (*DEVELOPMENT_PRINCIPALS, Principal("runner-2", options_pb2.ROLE_RUNNER, "person-2"))
INLINE, BLOB = operator_pb2.CONTENT_RULE_INLINE, operator_pb2.CONTENT_RULE_BLOB


async def declare(lab: Lab, version: int, rule: int, workflow: str = "wf") -> None:
    """A version of a workflow and its content rule."""
    declared = body(lab, "workflow_declared", workflow=workflow, version=version, content_rule=rule)
    await lab.of_role("operator").append([declared])


def under(lab: Lab, rollout: str, version: int, workflow: str = "wf", **fields: Any) -> bytes:
    """A RolloutEnqueued under a version of a workflow."""
    return enqueued(lab, rollout, workflow=workflow, workflow_version=version, **fields)


def span(lab: Lab, rollout: str) -> bytes:
    """A span that carries its content."""
    return body(lab, "span_recorded", rollout=rollout)


async def size_of(lab: Lab) -> int:
    """Entries in the log."""
    return (await lab.of_role("auditor").get_checkpoint()).size


async def test_inline_content_is_refused_and_the_refusal_says_what_to_do() -> None:
    """Beside its RolloutEnqueued, before it or in a later batch; nothing of the batch lands, a blob does."""
    async with Lab() as lab:
        await declare(lab, 1, BLOB)
        runner, before = lab.of_role("runner"), await size_of(lab)
        together = [under(lab, "ro-1", 1), span(lab, "ro-1")]
        for events in (together, together[::-1]):
            assert "INLINE_NOT_ALLOWED" == await reason_of(runner.append(events), RefusedError)
        assert before == await size_of(lab)
        await runner.append([under(lab, "ro-1", 1)])
        with pytest.raises(RefusedError) as caught:
            await runner.append([body(lab, "rollout_ended", rollout="ro-1"), span(lab, "ro-1")])
        assert (
            "INLINE_NOT_ALLOWED: events[1].span_recorded: expected a blob, as workflow wf version 1 "
            "declares, got 28 bytes inline; put it with `assay blob put` and name its digest"
        ) == str(caught.value)
        blob = await BlobsClient(runner).put(BytesIO(b"content"))
        await runner.append([body(lab, "span_recorded", rollout="ro-1", blob=blob)])
        assert before + 2 == await size_of(lab)


async def test_who_declares_nothing_or_inline_is_asked_for_nothing() -> None:
    """Rollouts of other workflows and other versions, beside one that is under the rule."""
    async with Lab() as lab:
        await declare(lab, 1, INLINE)
        await declare(lab, 2, BLOB)
        await declare(lab, 1, BLOB, "other")
        runner = lab.of_role("runner")
        free = [under(lab, "ro-1", 1), under(lab, "ro-3", 3), under(lab, "ro-4", 1, "undeclared")]
        await runner.append([*free, under(lab, "ro-2", 2)])
        await runner.append([span(lab, f"ro-{number}") for number in (1, 3, 4)])
        assert "INLINE_NOT_ALLOWED" == await reason_of(runner.append([span(lab, "ro-2")]))


async def test_of_a_version_the_first_declaration_counts() -> None:
    """Declared again another way, it stays what it was, in both directions."""
    async with Lab() as lab:
        for version, rules in ((1, (INLINE, BLOB)), (2, (BLOB, INLINE))):
            for rule in rules:
                await declare(lab, version, rule)
        runner = lab.of_role("runner")
        await runner.append([under(lab, "ro-1", 1), span(lab, "ro-1"), under(lab, "ro-2", 2)])
        assert "INLINE_NOT_ALLOWED" == await reason_of(runner.append([span(lab, "ro-2")]))


async def test_nobody_opens_a_rollout_by_claiming_it_for_another_workflow() -> None:
    """The id was enqueued under INLINE first; from the claim under BLOB on, nothing of it comes inline."""
    async with Lab(principals=ALL) as lab:
        await declare(lab, 1, INLINE)
        await declare(lab, 2, BLOB)
        thief, runner = lab.client("runner-2"), lab.client("runner-1")
        await thief.append([under(lab, "ro-1", 1)])
        await runner.append([under(lab, "ro-1", 2)])
        for client in (thief, runner):
            assert "INLINE_NOT_ALLOWED" == await reason_of(client.append([span(lab, "ro-1")]))


async def test_law_01_what_no_rule_holds_for_yet_is_recorded_and_shown() -> None:
    """A span before its RolloutEnqueued, and a rollout from before the declaration: GetRollout marks both."""
    async with Lab() as lab:
        runner, reads = lab.of_role("runner"), ReceiptsClient(lab.client("judge-1"))
        await runner.append([under(lab, "ro-early", 1), span(lab, "ro-early")])
        await declare(lab, 1, BLOB)
        await runner.append([span(lab, "ro-early")])
        await runner.append([span(lab, "ro-orphan")])
        blob = await BlobsClient(runner).put(BytesIO(b"content"))
        named = body(lab, "span_recorded", rollout="ro-orphan", blob=blob)
        await runner.append([under(lab, "ro-orphan", 1), named])
        marks = {
            rollout: [
                claim.get("inline_against_rule") for claim in (await reads.get_rollout(rollout))["claims"]
            ]
            for rollout in ("ro-early", "ro-orphan")
        }
        assert {"ro-early": [None, True, True], "ro-orphan": [True, None, None]} == marks


async def test_law_05_what_was_placed_before_the_rule_is_answered_as_before() -> None:
    """The same batch again, after its workflow was declared for blobs: its first position."""
    async with Lab() as lab:
        sent = batch(lab.identity("runner-1"), [under(lab, "ro-1", 1), span(lab, "ro-1")])
        client = lab.of_role("runner")
        first = await client.append_signed(sent)
        await declare(lab, 1, BLOB)
        assert first.first_index == (await client.append_signed(sent)).first_index
        again = [under(lab, "ro-2", 1), span(lab, "ro-2")]
        assert "INLINE_NOT_ALLOWED" == await reason_of(lab.of_role("runner").append(again))


@pytest.mark.parametrize("lost", ["", "views.sqlite*", "tiles"])
async def test_a_restart_forgets_no_rollout(lost: str) -> None:
    """Between RolloutEnqueued and span; from rows, and from the log where the rows are gone."""
    async with Lab() as lab:
        await declare(lab, 1, BLOB)
        await declare(lab, 2, INLINE)
        await lab.of_role("runner").append([under(lab, "ro-1", 1), under(lab, "ro-2", 2)])
        for number in itertools.count(3):
            await lab.stop()
            data = lab.path / "ledger" / "data"
            for left in data.glob(lost) if lost else ():
                if left.is_dir():
                    left.rename(data / f"gone-{number}")
                else:
                    left.unlink()
            with closing(lab.store()) as store:
                assert [] == list(check_views(store, lab.trust, data))
            await lab.start()
            runner = lab.of_role("runner")
            assert "INLINE_NOT_ALLOWED" == await reason_of(runner.append([span(lab, "ro-1")]))
            await runner.append([span(lab, "ro-2"), under(lab, f"ro-{number}", 1)])
            assert "INLINE_NOT_ALLOWED" == await reason_of(runner.append([span(lab, f"ro-{number}")]))
            if number == 4:
                break


async def test_rows_that_name_no_version_for_blobs_are_made_again() -> None:
    """A row under a version that was declared otherwise, or never, is none of this log's."""
    for version in (2, 3):
        async with Lab() as lab:
            await declare(lab, 1, BLOB)
            await declare(lab, 2, INLINE)
            await lab.of_role("runner").append([under(lab, "ro-1", 1), under(lab, "ro-2", 2)])
            await lab.stop()
            with closing(sqlite3.connect(lab.path / "ledger" / "data" / "views.sqlite")) as rows:
                rows.execute("INSERT INTO under_blob VALUES ('ro-2', 'wf', ?)", (version,))
                rows.commit()
            await lab.start()
            runner = lab.of_role("runner")
            await runner.append([span(lab, "ro-2")])
            assert "INLINE_NOT_ALLOWED" == await reason_of(runner.append([span(lab, "ro-1")]))


async def test_a_commit_of_several_batches_holds_the_rule() -> None:
    """Declaration, RolloutEnqueued and span of three authors, judged for one commit: the span is refused."""
    async with Lab(principals=ALL) as lab:
        assert lab.host is not None
        sequencer = lab.host.services.sequencer
        declared = body(lab, "workflow_declared", workflow="wf", version=1, content_rule=BLOB)
        sent = [
            batch(lab.identity("operator-1"), [declared]),
            batch(lab.identity("runner-1"), [under(lab, "ro-1", 1)]),
            batch(lab.identity("runner-2"), [span(lab, "ro-1")]),
            batch(lab.identity("runner-1"), [under(lab, "ro-2", 1)], sequence=1),
        ]
        prepared = []
        for signed in sent:
            note = signed.note
            grant = known_grant(sequencer.state.authority, note)
            turn = Turns().of(note.name)
            prepared.append(await prepare(note, signed.events, lab.home.origin, grant, turn))
        size = sequencer.size
        answers = await asyncio.gather(
            *[sequencer.submit(one, None) for one in prepared], return_exceptions=True
        )
        told = [answer.reason if isinstance(answer, RefusedError) else type(answer) for answer in answers]
        assert [Position, Position, "INLINE_NOT_ALLOWED", Position] == told
        stored = [run[0] for run in lab.host.store.runs(size)]
        assert [[size], size + 3] == [stored, sequencer.size]
