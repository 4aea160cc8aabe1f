"""Taking the whole log home as one file that verifies without anybody's help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clients.ledger import LedgerClient
from ledger.checkpoint import parse_checkpoint_text
from ledger.entry import encode_run
from ledger.export import encode_export_header
from ledger.note import parse_note

__all__ = ["export_log"]


async def export_log(
    client: LedgerClient, path: Path, progress: Callable[[int, int], None] | None = None
) -> int:
    """Writes an export of the log as it is now, each entry proven on its way; returns its size.

    Where the trust document demands a quorum of witnesses: as it was when they last cosigned it.
    The file appears whole or not at all. `progress` is told entries so far and in all. Raises AssayError.
    """
    note = await client.cosigned_note()
    checkpoint = parse_checkpoint_text(parse_note(note).text)
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
