"""Entries as they are read, yielded only when they are proven.

Rules:
1. Each entry names the leaf hash of the one before; so the inclusion of the last one proves them all.
2. Where everything from index 0 on was read, the tree's root is compared too: chain and tree must agree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ledger.checkpoint import Checkpoint
from ledger.entry import FIRST_PREVIOUS, decode_entry, iter_run
from ledger.errors import FormatError, VerificationError
from ledger.merkle import Frontier, leaf_hash, verify_inclusion

__all__ = ["Chain", "check_inclusion"]


def check_inclusion(index: int, leaf: bytes, proof: list[bytes], checkpoint: Checkpoint) -> None:
    """Raises VerificationError V5 NOT_INCLUDED unless the leaf hash stands at `index` under `checkpoint`."""
    if not verify_inclusion(leaf, index, checkpoint.size, proof, checkpoint.root):
        raise VerificationError(
            "V5",
            "NOT_INCLUDED",
            f"expected a proof of entry {index} at size {checkpoint.size}, got another",
            index=index,
        )


class Chain:
    """Entries as they come: linked, and proven from the last one down."""

    def __init__(self, prove: Callable[[int, bytes, Checkpoint], Awaitable[None]], start: int) -> None:
        """`prove(index, leaf hash, checkpoint)` raises unless the entry is included; `start`: first index."""
        self.entries: list[tuple[int, bytes]] = []
        self.next = start
        self._prove = prove
        self._last: bytes | None = None if start else FIRST_PREVIOUS
        self._tree = None if start else Frontier()

    def take(self, run: bytes) -> None:
        """Raises VerificationError V2 where entries do not follow each other."""
        leaves: list[bytes] = []
        try:
            for data in iter_run(run):
                entry = decode_entry(data)
                if entry.index != self.next or (self._last is not None and entry.previous != self._last):
                    raise FormatError("BAD_LINK", f"expected entry {self.next} linked to the one before")
                self._last = leaf_hash(data)
                leaves.append(self._last)
                self.entries.append((entry.index, data))
                self.next += 1
        except FormatError as error:
            raise VerificationError("V2", error.reason, error.message, index=self.next) from error
        if self._tree is not None:
            self._tree.extend(leaves)

    async def prove(self, checkpoint: Checkpoint) -> list[tuple[int, bytes]]:
        """The entries so far, after their proof: the last one's inclusion; the root, where all were read."""
        if not self.entries or self._last is None:
            return []
        if self._tree is not None and self._tree.size == checkpoint.size:
            if self._tree.root() != checkpoint.root:
                raise VerificationError(
                    "V5", "WRONG_ROOT", f"expected root {checkpoint.root.hex()}, got another"
                )
        else:
            await self._prove(self.entries[-1][0], self._last, checkpoint)
        proven, self.entries = self.entries, []
        return proven
