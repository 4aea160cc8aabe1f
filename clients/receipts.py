"""The client of ReceiptService: views that the ledger serves. Only what is proven is proven.

`resolve_default` checks that the event behind a default is in the log; that the gate was right to write it is
for `assay replay`. Nothing here ever answers with a candidate where a default was asked for (law 13).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from clients.ledger import LedgerClient
from clients.proven import check_inclusion
from ledger.entry import decode_entry
from ledger.errors import VerificationError
from ledger.merkle import leaf_hash
from ledger.v1 import options_pb2, receipt_pb2, receipt_pb2_grpc

__all__ = ["ReceiptsClient"]

_PAGE = 100


class ReceiptsClient:
    """Asks over the connection of a LedgerClient."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._stub = receipt_pb2_grpc.ReceiptServiceStub(client.channel)

    async def get_update(self, update: str) -> dict[str, Any]:
        """The receipt of an update (docs: receipts). Raises NotFoundError(NO_SUCH_UPDATE)."""
        response = await self._client.call(self._stub.GetUpdate, receipt_pb2.GetUpdateRequest(update=update))
        receipt: dict[str, Any] = json.loads(response.receipt_json)
        return receipt

    async def list_updates(self) -> AsyncIterator[receipt_pb2.UpdateSummary]:
        """Every update, oldest first."""
        token = ""
        while True:
            request = receipt_pb2.ListUpdatesRequest(page_size=_PAGE, page_token=token)
            response = await self._client.call(self._stub.ListUpdates, request)
            for summary in response.updates:
                yield summary
            token = response.next_page_token
            if not token:
                return

    async def get_rollout(self, rollout: str) -> dict[str, Any]:
        """Every claim about one rollout, in index order. Raises NotFoundError(NO_SUCH_ROLLOUT)."""
        request = receipt_pb2.GetRolloutRequest(rollout=rollout)
        response = await self._client.call(self._stub.GetRollout, request)
        document: dict[str, Any] = json.loads(response.rollout_json)
        return document

    async def resolve_default(
        self, resource: str, scope: options_pb2.Scope
    ) -> receipt_pb2.ResolveDefaultResponse:
        """The approved default, its event proven to be in the log.

        Raises NotFoundError(NO_DEFAULT), VerificationError.
        """
        request = receipt_pb2.ResolveDefaultRequest(resource=resource, scope=scope)
        response: receipt_pb2.ResolveDefaultResponse = await self._client.call(
            self._stub.ResolveDefault, request
        )
        checkpoint = await self._client.believe(None, response.checkpoint, [])
        if (index := decode_entry(response.entry).index) != response.index:
            raise VerificationError(
                "V2", "BAD_INDEX", f"expected index {response.index}, got {index}", index=response.index
            )
        check_inclusion(response.index, leaf_hash(response.entry), list(response.inclusion), checkpoint)
        return response

    async def latest_candidate(
        self, resource: str, scope: options_pb2.Scope
    ) -> receipt_pb2.LatestCandidateResponse:
        """The latest candidate, which has no authority. Raises NotFoundError(NO_CANDIDATE)."""
        request = receipt_pb2.LatestCandidateRequest(resource=resource, scope=scope)
        response: receipt_pb2.LatestCandidateResponse = await self._client.call(
            self._stub.LatestCandidate, request
        )
        return response
