"""A finding under construction, and the digest over findings (checks.md section 2)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from gate.reasons import REASONS
from ledger import merkle
from ledger.fact import Fact, SpanFact
from ledger.v1 import gate_pb2

__all__ = ["MAX_CITED_INDEXES", "Notes", "findings_digest", "leaves_root"]

MAX_CITED_INDEXES: Final = 32
_MOST: Final = 2**63 - 1  # a count beyond it is shown as it: scores have no bound

# The first that applies.
_ORDER: Final = (gate_pb2.STATE_STALE, gate_pb2.STATE_FAIL, gate_pb2.STATE_ERROR, gate_pb2.STATE_MISSING)


def leaves_root(leaves: dict[int, bytes]) -> bytes:
    """RFC 6962 root with the log's leaf hashes as level-0 nodes, in index order."""
    return merkle.root([leaves[index] for index in sorted(leaves)])


class Notes:
    """What a check notes while it reads: codes, counts, citations. Turned into one Finding at the end."""

    def __init__(self, check: str) -> None:
        self.check = check
        self.counts: dict[str, int] = {}
        self._codes: dict[int, set[str]] = {}
        self._cited: dict[int, bytes] = {}
        self._at_fault: set[int] = set()

    def add(self, code: str, *at_fault: Fact | SpanFact) -> None:
        """Notes a reason code, and the entries that show it."""
        self._codes.setdefault(REASONS[code][0], set()).add(code)
        self._at_fault.update(fact.index for fact in at_fault)
        self.cite(at_fault)

    def add_if(self, condition: bool, code: str, *at_fault: Fact | SpanFact) -> None:
        """`add` where the condition holds."""
        if condition:
            self.add(code, *at_fault)

    def cite(self, facts: Iterable[Fact | SpanFact | None]) -> None:
        """Cites entries that the check rests on; an absent fact cites nothing."""
        for fact in facts:
            if fact is not None:
                self._cited[fact.index] = fact.leaf

    def finding(self) -> gate_pb2.Finding:
        """The finding: the first state that applies, with all reason codes of that state."""
        state = next((state for state in _ORDER if self._codes.get(state)), gate_pb2.STATE_PASS)
        shown = sorted(self._at_fault)[:MAX_CITED_INDEXES]
        rest = (index for index in sorted(self._cited) if index not in self._at_fault)
        for index in rest:
            if len(shown) == MAX_CITED_INDEXES:
                break
            shown.append(index)
        return gate_pb2.Finding(
            check=self.check,
            state=state,
            reasons=sorted(self._codes.get(state, ())),
            counts=[
                gate_pb2.Finding.Count(name=name, value=max(-_MOST, min(_MOST, self.counts[name])))
                for name in sorted(self.counts)
            ],
            cited=len(self._cited),
            cited_root=leaves_root(self._cited),
            cited_indexes=sorted(shown),
        )


def findings_digest(findings: Sequence[gate_pb2.Finding]) -> bytes:
    """SHA-256 over one line a check; sentences and shown indexes stand outside."""
    lines = ["assay/findings/v1"]
    for finding in findings:
        state = gate_pb2.State.Name(finding.state).removeprefix("STATE_")
        words = [finding.check, state, ",".join(finding.reasons) or "-"]
        words += [f"{count.name}={count.value}" for count in finding.counts]
        words += [f"cited={finding.cited}", f"root={base64.b64encode(finding.cited_root).decode()}"]
        lines.append(" ".join(words))
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).digest()
