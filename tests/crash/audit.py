"""What must hold after every crash: nothing acknowledged is lost or doubled, and nothing ever seen is forked.

The whole log is read over the wire by an auditor and verified offline; then it is compared with what authors
were promised. Nothing here asks the server for its opinion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO

from ledger.entry import decode_entry, iter_run
from ledger.export import read_export
from ledger.merkle import Tree, leaf_hash
from ledger.verify import Verified, verify_export
from tests.crash.load import Promises
from tests.lab import Lab

__all__ = ["Audit", "Found"]


@dataclass(frozen=True, slots=True)
class Found:
    """Counts of one audit; all but `entries`, `acknowledged` and `checkpoints` must be 0."""

    entries: int
    acknowledged: int
    checkpoints: int
    lost: int
    doubled: int
    moved: int
    forked: int

    def check(self) -> None:
        """Raises AssertionError with every count where one is not what it must be."""
        if self.lost or self.doubled or self.moved or self.forked:
            raise AssertionError(f"expected nothing lost, doubled, moved or forked, got {self}")


class Audit:
    """An auditor who remembers the checkpoint of the last time (V7)."""

    def __init__(self, lab: Lab, promises: Promises) -> None:
        self._lab = lab
        self._promises = promises
        self._remembered: bytes | None = None

    async def run(self) -> Found:
        """Verifies everything there is now. Raises VerificationError, AssertionError."""
        acknowledged = dict(self._promises.acknowledged)
        checkpoints = set(self._promises.checkpoints)
        data = await self._lab.export()
        verified = verify_export(BytesIO(data), self._lab.trust, remembered=self._remembered)
        found = _compare(data, verified, acknowledged, {(c.size, c.root) for c in checkpoints})
        found.check()
        self._remembered = verified.checkpoint
        return found


def _compare(
    data: bytes, verified: Verified, acknowledged: Mapping[bytes, int], checkpoints: set[tuple[int, bytes]]
) -> Found:
    _, chunks = read_export(BytesIO(data))
    entries = list(iter_run(b"".join(chunks)))
    tree = Tree(leaf_hash(entry) for entry in entries)
    at: dict[bytes, int] = {}
    seen: Counter[bytes] = Counter()
    for index, entry in enumerate(entries):
        event = decode_entry(entry).event
        seen[event] += 1
        at.setdefault(event, index)
    return Found(
        entries=verified.size,
        acknowledged=len(acknowledged),
        checkpoints=len(checkpoints),
        lost=sum(event not in at for event in acknowledged),
        doubled=sum(count > 1 for count in seen.values()),
        moved=sum(at.get(event, index) != index for event, index in acknowledged.items()),
        forked=sum(size > tree.size or tree.root(size) != root for size, root in checkpoints),
    )
