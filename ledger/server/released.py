"""Law 6 at a start: what left this ledger before, whoever kept it, is in the log that it goes on with."""

from __future__ import annotations

from ledger.checkpoint import Checkpoint
from ledger.errors import FatalError

__all__ = ["check_reaches", "check_root"]


def check_reaches(size: int, checkpoint: Checkpoint, kept: str) -> None:
    """That a store of `size` entries is as long as a checkpoint, `kept` as the message says.

    Raises FatalError BEHIND_RELEASED.
    """
    if size < checkpoint.size:
        raise FatalError(
            "BEHIND_RELEASED",
            f"expected a store of at least {checkpoint.size} entries, {kept}, got {size}; restore the newer "
            "store: this log must not go on from here",
        )


def check_root(root: bytes, checkpoint: Checkpoint, kept: str) -> None:
    """That the store's `root` at a checkpoint's size is the checkpoint's. Raises FatalError FORKED."""
    if root != checkpoint.root:
        raise FatalError(
            "FORKED",
            f"expected root {checkpoint.root.hex()} at size {checkpoint.size}, {kept}, got another tree in "
            "the store: keep both, they are the evidence",
        )
