"""The listing of updates, from persisted rows: a page of it makes no record of an update.

Rules kept here:

- Rows say what was claimed first and what was concluded of verdicts. What may change with every entry,
  whether a key is suspect and whether a verdict stands, is asked of the fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ledger.receipt import Judged, Receipts
from ledger.server.receipt_view import ReceiptView
from ledger.server.views import Views
from ledger.standing import why_fallen
from ledger.v1 import options_pb2, receipt_pb2

__all__ = ["summaries"]


def summaries(views: Views, view: ReceiptView, start: int, count: int) -> Iterator[receipt_pb2.UpdateSummary]:
    """Of at most `count` updates, from number `start` on, in the order of their first claims."""
    page = (start, start + count)
    proposals: dict[int, list[tuple[Any, ...]]] = {}
    for number, *proposal in views.select(
        "SELECT number, position, author, key_id, resource, workflow, segment FROM proposals "
        "WHERE number >= ? AND number < ? ORDER BY number, position",
        page,
    ):
        proposals.setdefault(number, []).append(tuple(proposal))
    # The last one of each update that is not void.
    verdicts = {
        number: tuple(verdict)
        for number, *verdict in views.select(
            "SELECT number, position, verdict, step, not_after FROM verdicts "
            "WHERE number >= ? AND number < ? AND void IS NULL ORDER BY position",
            page,
        )
    }
    for number, update, frozen, ended, candidate in views.select(
        "SELECT number, id, frozen, ended, candidate FROM updates WHERE number >= ? AND number < ? "
        "ORDER BY number",
        page,
    ):
        summary = receipt_pb2.UpdateSummary(
            update=update, frozen=bool(frozen), training_ended=bool(ended), candidate_digest=candidate
        )
        _propose(summary, proposals.get(number, []), view)
        if (verdict := verdicts.get(number)) is not None:
            position, summary.verdict, summary.verdict_step, not_after = verdict
            summary.verdict_index = position
            if not_after is not None:
                summary.not_after = not_after
            summary.stands = _stands(view.receipts, position)
        yield summary


def _propose(summary: receipt_pb2.UpdateSummary, proposals: list[tuple[Any, ...]], view: ReceiptView) -> None:
    """The proposal that counts: the first one of whoever proposed first, unless that key is suspect."""
    receipts = view.receipts
    for position, author, key_id, resource, workflow, segment in proposals:
        written = Judged(position, view.facts.grant(author, key_id), summary.update)
        if author == proposals[0][1] and not receipts.suspects.hold(written, receipts.size):
            summary.resource, summary.proposed_by, summary.proposed_index = resource, author, position
            summary.scope.CopyFrom(options_pb2.Scope(workflow=workflow, segment=segment))
            return


def _stands(receipts: Receipts, position: int) -> bool:
    record = next((record for record in receipts.standing if record.fact.index == position), None)
    return record is not None and why_fallen(receipts, record, receipts.now(receipts.size)) is None
