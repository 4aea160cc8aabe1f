"""Taking the whole log home as one file that verifies without anybody's help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clients.ledger import LedgerClient
from ledger.entry import encode_run
from ledger.errors import VerificationError
from ledger.export import encode_export_header

__all__ = ["export_log"]


async def export_log(
    client: LedgerClient, path: Path, progress: Callable[[int, int], None] | None = None
) -> int:
    """Writes an export of the log as it is now, each entry proven on its way; returns its size.

    The file appears whole or not at all. `progress` is told entries so far and in all. Raises AssayError.
    """
    note = await client.checkpoint_note()
    checkpoint = client.checkpoint
    if checkpoint is None:
        raise VerificationError("V5", "EMPTY_LOG", "expected a checkpoint, got none")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(encode_export_header(note))
            async for index, entry in client.read(0, checkpoint.size):
                file.write(encode_run([entry]))
                if progress is not None and index % 1024 == 0:
                    progress(index, checkpoint.size)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return checkpoint.size
