"""ReceiptService: receipts and pointers, folded at start and with every commit.

Rules kept here:

- The fold is the auditor's own (ledger.receipt under the gate's rules); what is served trusts no shortcut.
- Asking for the default never yields a candidate; no default is NOT_FOUND (law 13).
- An answer is given at a size that the fold has reached, and says which.
- Runner and trainer read neither receipts nor rollouts: they hold what was measured on the holdout.
"""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections.abc import Iterator
from typing import Any, Final

import grpc.aio

from gate.judge import RulesJudge
from gate.report import at_risk, digests_as_hex, receipt_document
from ledger.claims import Update
from ledger.entry import decode_entry
from ledger.errors import FormatError, NotFoundError, RefusedError
from ledger.fold import read_event
from ledger.merkle import Tree
from ledger.receipt import Receipts
from ledger.server.access import Access
from ledger.server.folds import FoldRunner
from ledger.server.reader import Reader
from ledger.server.sequencer import Sequencer
from ledger.standing import why_fallen
from ledger.trust import Grant
from ledger.v1 import event_pb2, receipt_pb2, receipt_pb2_grpc
from ledger.wire import MAX_MESSAGE_BYTES

__all__ = ["ReceiptService", "ReceiptView"]

_MAX_PAGE: Final = 1000
_PAGE: Final = 100
_SLICE: Final = 64  # claims after which other work may run
_FRAMING: Final = 64  # bytes of a message beside the document
_PAGE_TOKEN: Final = re.compile(r"[0-9]{0,18}").fullmatch

_OF_ROLLOUT: Final = frozenset(
    {
        "rollout_enqueued",
        "attempt_started",
        "span_recorded",
        "attempt_ended",
        "rollout_ended",
        "reward_recorded",
    }
)

_Context = grpc.aio.ServicerContext[Any, Any]


class ReceiptView:
    """The fold behind the service: receipts, and where the entries of each rollout stand."""

    def __init__(self, tree: Tree) -> None:
        self.receipts = Receipts(RulesJudge(), tree.root)
        self.rollouts: dict[str, array[int]] = {}

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes one entry."""
        self.receipts.apply(index, recorded_at, leaf, grant, event, alone)
        body = event.WhichOneof("body")
        if body in _OF_ROLLOUT:
            self.rollouts.setdefault(getattr(event, body).rollout, array("Q")).append(index)


class ReceiptService(receipt_pb2_grpc.ReceiptServiceServicer):
    """Serves the view of one log."""

    def __init__(
        self, view: ReceiptView, sequencer: Sequencer, reader: Reader, access: Access, folds: FoldRunner
    ) -> None:
        self._view = view
        self._sequencer = sequencer
        self._reader = reader
        self._access = access
        self._folds = folds

    async def _caught_up(self) -> Receipts:
        await self._folds.caught_up(self._view, self._sequencer.size)
        return self._view.receipts

    def _check_reads_all(self, context: _Context) -> None:
        self._access.check_reads_all(context, self._sequencer.state.authority)

    async def GetUpdate(
        self, request: receipt_pb2.GetUpdateRequest, context: _Context
    ) -> receipt_pb2.GetUpdateResponse:
        """The receipt of one update."""
        self._check_reads_all(context)
        receipts = await self._caught_up()
        if request.update not in receipts.updates:
            raise NotFoundError("NO_SUCH_UPDATE", f"expected an update in this log, got {request.update!r}")
        document = receipt_document(receipts, request.update, receipts.size)
        return receipt_pb2.GetUpdateResponse(receipt_json=_fitting(document), log_size=receipts.size)

    async def ListUpdates(
        self, request: receipt_pb2.ListUpdatesRequest, context: _Context
    ) -> receipt_pb2.ListUpdatesResponse:
        """Updates in the order of their first claims."""
        self._check_reads_all(context)
        receipts = await self._caught_up()
        start, size = _page(request)
        updates = list(receipts.updates.values())[start : start + size]
        more = start + size < len(receipts.updates)
        return receipt_pb2.ListUpdatesResponse(
            updates=list(_summaries(receipts, updates)),
            next_page_token=str(start + size) if more else "",
            log_size=receipts.size,
        )

    async def GetRollout(
        self, request: receipt_pb2.GetRolloutRequest, context: _Context
    ) -> receipt_pb2.GetRolloutResponse:
        """Every claim about one rollout, in order."""
        self._check_reads_all(context)
        receipts = await self._caught_up()
        indexes = self._view.rollouts.get(request.rollout)
        if indexes is None:
            raise NotFoundError("NO_SUCH_ROLLOUT", f"expected a rollout in this log, got {request.rollout!r}")
        claims: list[dict[str, Any]] = []
        size = 0
        async for index, data, _ in self._reader.entries(list(indexes)):
            size += len(data)
            if size > MAX_MESSAGE_BYTES:
                raise _too_large()
            if not len(claims) % _SLICE:
                await asyncio.sleep(0)  # a rollout of many claims is not one step of the loop
            entry = decode_entry(data)
            event, name = read_event(entry.event)
            if name is not None:
                claim = digests_as_hex(getattr(event, name))
                claims.append(
                    {"index": index, "recorded_at": entry.recorded_at, "type": name, "claim": claim}
                )
        document = {"rollout": request.rollout, "claims": claims}
        return receipt_pb2.GetRolloutResponse(rollout_json=_fitting(document), log_size=receipts.size)

    async def ResolveDefault(
        self, request: receipt_pb2.ResolveDefaultRequest, context: _Context
    ) -> receipt_pb2.ResolveDefaultResponse:
        """The approved default with the event behind it."""
        self._access.role(context, self._sequencer.state.authority)
        receipts = await self._caught_up()
        move = receipts.pointers.default(request.resource, request.scope)
        if move is None:
            raise NotFoundError(
                "NO_DEFAULT",
                f"expected an approved default of {request.resource} in "
                f"{request.scope.workflow}/{request.scope.segment}, got none; "
                "a candidate is never given instead",
            )
        head = self._sequencer.head
        promoted = move.update is not None
        return receipt_pb2.ResolveDefaultResponse(
            manifest_digest=move.digest,
            origin=receipt_pb2.DEFAULT_ORIGIN_PROMOTED if promoted else receipt_pb2.DEFAULT_ORIGIN_BASELINE,
            index=move.index,
            entry=await self._reader.entry(move.index),
            inclusion=self._sequencer.inclusion(move.index, head.size),
            checkpoint=head.checkpoint,
            at_risk=at_risk(receipts, move),
            moved_index=receipts.pointers.moved_at(request.resource, request.scope),
            open_rollback_requests=receipts.pointers.open_requests(request.resource, request.scope),
        )

    async def LatestCandidate(
        self, request: receipt_pb2.LatestCandidateRequest, context: _Context
    ) -> receipt_pb2.LatestCandidateResponse:
        """The latest candidate of a resource in a scope."""
        self._access.role(context, self._sequencer.state.authority)
        receipts = await self._caught_up()
        scope = request.scope
        fact = receipts.latest_candidate.get((request.resource, scope.workflow, scope.segment))
        if fact is None:
            raise NotFoundError("NO_CANDIDATE", f"expected a candidate of {request.resource}, got none")
        return receipt_pb2.LatestCandidateResponse(
            update=fact.body.update, manifest_digest=fact.body.manifest_digest, index=fact.index
        )


def _fitting(document: dict[str, Any]) -> bytes:
    """The document as JSON. Raises RefusedError(TOO_LARGE) for more than a message holds."""
    data = json.dumps(document).encode()
    if len(data) > MAX_MESSAGE_BYTES - _FRAMING:
        raise _too_large()
    return data


def _too_large() -> RefusedError:
    return RefusedError("TOO_LARGE", "expected what fits into one message, got more; Read serves the entries")


def _page(request: receipt_pb2.ListUpdatesRequest) -> tuple[int, int]:
    if not _PAGE_TOKEN(request.page_token):
        got = request.page_token[:80]
        raise FormatError("BAD_PAGE_TOKEN", f"expected a token of this service, got {got!r}")
    if request.page_size > _MAX_PAGE:
        raise FormatError("BAD_PAGE_SIZE", f"expected at most {_MAX_PAGE}, got {request.page_size}")
    return int(request.page_token or 0), request.page_size or _PAGE


def _summaries(receipts: Receipts, updates: list[Update]) -> Iterator[receipt_pb2.UpdateSummary]:
    now = receipts.now(receipts.size)
    for record in updates:
        proposal = receipts.proposal(record.id)
        candidates = record.of("candidate_registered")
        summary = receipt_pb2.UpdateSummary(
            update=record.id,
            frozen=bool(record.of("update_frozen")),
            training_ended=bool(record.of("training_ended")),
            candidate_digest=candidates[0].body.manifest_digest if candidates else None,
        )
        if proposal is not None:
            summary.resource = proposal.body.resource
            summary.scope.CopyFrom(proposal.body.scope)
            summary.proposed_by = proposal.grant.name
            summary.proposed_index = proposal.index
        valid = [verdict for verdict in record.verdicts if verdict.void is None]
        if valid:
            last = valid[-1]
            summary.verdict = last.fact.body.verdict
            summary.verdict_step = last.fact.body.step
            summary.verdict_index = last.fact.index
            if last.fact.body.HasField("not_after"):
                summary.not_after = last.fact.body.not_after
            summary.stands = why_fallen(receipts, last, now) is None
        yield summary
