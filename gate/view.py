"""A verified log folded: who may write what, the tree, the receipts under the gate's rules.

Rules:
1. A fold and nothing else: whoever feeds it has verified the entry before.
2. Each part is moved by `apply` alone; everybody else reads.
"""

from __future__ import annotations

from typing import Final

from gate.judge import RulesJudge
from ledger.merkle import Tree
from ledger.receipt import Receipts
from ledger.trust import KEY_EVENTS, Authority, Grant, TrustDocument
from ledger.v1 import event_pb2

__all__ = ["LogView"]

_MANY: Final = 2  # any batch size above one: key rules ask only whether an event is alone


class LogView:
    """The fold of a reader who judges: the gate, a command that must know what is published."""

    def __init__(self, trust: TrustDocument) -> None:
        self.authority = Authority.initial(trust)
        self.tree = Tree()
        self.receipts = Receipts(RulesJudge(), self.tree.root)

    @property
    def size(self) -> int:
        """Entries folded."""
        return self.receipts.size

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the next entry."""
        self.tree.extend([leaf])
        if event.WhichOneof("body") in KEY_EVENTS:
            self.authority = self.authority.with_key_event(index, event, 1 if alone else _MANY)
        self.receipts.apply(index, recorded_at, leaf, grant, event, alone)
