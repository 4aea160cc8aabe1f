"""The whole log, verified and folded here: what no served view answers, such as what is published.

Rules:
1. Every entry passes the offline verifier's steps on its way; the ledger is believed nothing.
2. It costs a pass over the log, so a command says what it reads it for and shows how far it is.
"""

from __future__ import annotations

from typing import Final

from clients.cli.desk import Desk
from clients.cli.show import progress
from gate.view import LogView
from ledger.entry import encode_run
from ledger.trust import Grant, TrustDocument
from ledger.v1 import event_pb2, options_pb2
from ledger.verify import Verifier

__all__ = ["WholeLog", "fold_log"]

_SCOPED: Final = frozenset(
    {
        "policy_published",
        "evaluator_published",
        "snapshot_published",
        "protected_set_published",
        "tool_contract_published",
        "environment_changed",
        "baseline_adopted",
        "update_proposed",
    }
)


class WholeLog(LogView):
    """A view that knows the scopes too that somebody published for."""

    def __init__(self, trust: TrustDocument) -> None:
        super().__init__(trust)
        self.scopes: dict[tuple[str, str], None] = {}  # workflow, segment; in order of their first mention

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes an entry from the verifier."""
        name = event.WhichOneof("body")
        if name in _SCOPED:
            scope: options_pb2.Scope = getattr(event, name).scope
            if scope.segment != "*":
                self.scopes[(scope.workflow, scope.segment)] = None
        super().apply(index, recorded_at, leaf, grant, event, alone)

    def roles(self) -> dict[str, int]:
        """Principals with a key in force, and their roles."""
        grants = self.authority.grants.values()
        return {grant.name: grant.role for grant in grants if grant.revocation is None}


async def fold_log(desk: Desk, what: str) -> WholeLog:
    """Reads, verifies and folds the log as it is now; `what` names the progress bar.

    Raises VerificationError, CannotTellError, AssayError as the ledger's client does.
    """
    log = WholeLog(desk.identity.trust)
    verifier = Verifier(desk.identity.trust, fold=log)
    size = (await desk.ledger.get_checkpoint()).size
    with progress(what, size) as advance:
        async for _, entry in desk.ledger.read(0, size):
            verifier.feed(encode_run([entry]))
            advance(1)
    return log
