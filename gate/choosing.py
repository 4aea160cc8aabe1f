"""How a claim is chosen as evidence, whatever its type (checks.md section 1).

Rules:
1. Chosen, never edited: a claim counts or it does not, and what does not is an anomaly with its reason.
2. Nothing at or above the size is seen, nor what a suspect key wrote; how much of that there is, is counted.
3. By natural key the first by index counts. An equal repeat is an anomaly; a different one a CONFLICT.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from gate.evidence import Evidence
from ledger.claims import Update
from ledger.fact import Fact, SpanFact
from ledger.receipt import Receipts

__all__ = ["Choosing"]


class Choosing:
    """One choice among the claims of an update. Owns `out` until it is handed out."""

    def __init__(self, receipts: Receipts, record: Update, step: int, size: int) -> None:
        self.receipts = receipts
        self.record = record
        self.size = size
        self.out = Evidence(record.id, step, size, receipts.now(size))
        self._suspect: set[int] = set()

    def _seen(self, facts: Iterable[Any]) -> list[Any]:
        """Facts of the prefix whose keys are not suspect."""
        suspects = self.receipts.suspects
        kept = []
        for fact in facts:
            if fact.index < self.size:
                if suspects.hold(fact, self.size):
                    self._suspect.add(fact.index)
                else:
                    kept.append(fact)
        return kept

    def _odd(self, fact: Fact | SpanFact, code: str) -> None:
        self.out.anomalies.append((fact.index, code))

    def _by(self, facts: Iterable[Fact], names: Iterable[str], code: str) -> list[Fact]:
        """Facts of these principals; the others' are anomalies."""
        allowed = frozenset(names)
        kept = []
        for fact in facts:
            if fact.grant.name in allowed:
                kept.append(fact)
            else:
                self._odd(fact, code)
        return kept

    def _firsts(
        self, facts: Iterable[Fact], key: Callable[[Fact], Hashable]
    ) -> tuple[dict[Any, Fact], set[Any]]:
        """The first fact of each natural key, and the keys that were claimed again, differently."""
        first: dict[Any, Fact] = {}
        conflicts: set[Any] = set()
        for fact in facts:
            natural = key(fact)
            if natural not in first:
                first[natural] = fact
            elif first[natural].body == fact.body:
                self._odd(fact, "REPEATED")
            else:
                conflicts.add(natural)
                self._odd(fact, "CONFLICT")
        return first, conflicts
