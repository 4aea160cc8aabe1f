"""ReceiptService: receipts and pointers, folded at start and with every commit.

Rules kept here:

- The fold is the auditor's own (ledger.receipt under the gate's rules).
- A listing comes from persisted rows, all else from entries that are the tree's.
- Asking for the default never yields a candidate; no default is NOT_FOUND (law 13).
- An answer is given at a size that the fold has reached, and says which.
- Runner and trainer read neither receipts nor rollouts: they hold what was measured on the holdout.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final

import grpc.aio

from gate.report import at_risk, digests_as_hex, receipt_document
from ledger.content import named_blob
from ledger.entry import decode_entry
from ledger.errors import FormatError, NotFoundError, RefusedError
from ledger.fold import read_event
from ledger.receipt import Receipts
from ledger.server.access import Access
from ledger.server.keeper import Keeper
from ledger.server.listing import summaries
from ledger.server.reader import Reader
from ledger.server.recovery import Recovered
from ledger.server.sequencer import Sequencer
from ledger.v1 import receipt_pb2, receipt_pb2_grpc
from ledger.wire import MAX_MESSAGE_BYTES

__all__ = ["ReceiptService"]

_MAX_PAGE: Final = 1000
_PAGE: Final = 100
_SLICE: Final = 64  # claims after which other work may run
_FRAMING: Final = 64  # bytes of a message beside the document
_PAGE_TOKEN: Final = re.compile(r"[0-9]{0,18}").fullmatch

_Context = grpc.aio.ServicerContext[Any, Any]


class ReceiptService(receipt_pb2_grpc.ReceiptServiceServicer):
    """Serves the views of one log."""

    def __init__(
        self,
        recovered: Recovered,
        keeper: Keeper,
        sequencer: Sequencer,
        reader: Reader,
        access: Access,
    ) -> None:
        self._tree = recovered.tree
        self._views = recovered.views
        self._index = recovered.index
        self._view = recovered.view
        self._folds = recovered.runner
        self._keeper = keeper
        self._sequencer = sequencer
        self._reader = reader
        self._access = access

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
        await self._view.prepare(request.update, self._reader.aside)
        document = receipt_document(receipts, request.update, receipts.size)
        return receipt_pb2.GetUpdateResponse(receipt_json=_fitting(document), log_size=receipts.size)

    async def ListUpdates(
        self, request: receipt_pb2.ListUpdatesRequest, context: _Context
    ) -> receipt_pb2.ListUpdatesResponse:
        """Updates in the order of their first claims."""
        self._check_reads_all(context)
        start, size = _page(request)
        await self._keeper.reached(self._sequencer.size)
        updates = list(summaries(self._views, self._view, start, size + 1))
        return receipt_pb2.ListUpdatesResponse(
            updates=updates[:size],
            next_page_token=str(start + size) if len(updates) > size else "",
            log_size=self._views.size,
        )

    async def GetRollout(
        self, request: receipt_pb2.GetRolloutRequest, context: _Context
    ) -> receipt_pb2.GetRolloutResponse:
        """Every claim about one rollout, in order."""
        self._check_reads_all(context)
        receipts = await self._caught_up()
        indexes = self._index.of_rollout(request.rollout)
        if not indexes:
            raise NotFoundError("NO_SUCH_ROLLOUT", f"expected a rollout in this log, got {request.rollout!r}")
        claims: list[dict[str, Any]] = []
        inline: list[dict[str, Any]] = []
        under_blob = False
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
                if (named := named_blob(event)) is not None:
                    # The claim stands and its content is gone: not the same as a claim that was never made.
                    claims[-1]["content_erased"] = receipts.erased.get(named[1].digest)
                elif name == "span_recorded":
                    inline.append(claims[-1])
                if name == "rollout_enqueued":
                    under_blob = under_blob or self._view.content.asked_by(event.rollout_enqueued) is not None
        if under_blob:
            # From before the rollout was enqueued or the workflow declared, or taken by an older release.
            for claim in inline:
                claim["inline_against_rule"] = True
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
        if move.update is not None:
            await self._view.prepare(move.update, self._reader.aside)
        await self._tree.bring(move.index, self._reader.aside)
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
