"""`assay export`: the whole log in one file, verified while it comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clients.cli.app import READERS, JsonFlag, session_of

if TYPE_CHECKING:
    from clients.identity import Identity
    from ledger.verify import Verified

__all__ = ["export"]

_SLICE: Final = 1024  # entries verified and written together


def export(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", dir_okay=False, help="File to write.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the whole log and its checkpoint to FILE; anyone can verify it later, offline.

    Every entry passes steps V2 to V7 on its way. The file appears under its name only when all of it holds.
    """
    from clients.cli.show import emit, lines
    from clients.identity import load_identity
    from ledger.errors import RefusedError

    session = session_of(context)
    if file.exists() and not force:
        raise RefusedError("FILE_EXISTS", f"expected a new file, got {file}; --force replaces it")
    identity = load_identity(session.home, session.principal(*READERS))
    draft = file.with_name(f".{file.name}.part")
    try:
        verified = asyncio.run(_download(identity, draft))
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    trust = session.home / "trust.txt"
    document = {
        "file": str(file),
        "origin": verified.origin,
        "size": verified.size,
        "root": verified.root.hex(),
        "bytes": file.stat().st_size,
    }
    emit(
        document,
        as_json,
        lambda: lines(
            f"wrote {file}: {verified.size} entries of {verified.origin}, verified",
            f"next: assay verify {file} --trust {trust}",
        ),
    )


async def _download(identity: Identity, draft: Path) -> Verified:
    from clients.cli.show import progress
    from clients.ledger import LedgerClient
    from ledger.checkpoint import parse_checkpoint_text
    from ledger.entry import encode_run
    from ledger.export import encode_export_header
    from ledger.note import parse_note
    from ledger.verify import Verifier

    async with LedgerClient(identity) as client:
        note = await client.checkpoint_note()
        size = parse_checkpoint_text(parse_note(note).text).size
        verifier = Verifier(identity.trust)
        # Writing blocks the loop; nothing else runs in it.
        with draft.open("wb") as out, progress("export", size) as advance:  # noqa: ASYNC230
            out.write(encode_export_header(note))
            held: list[bytes] = []
            async for index, entry in client.read(0, size):
                held.append(entry)
                if len(held) == _SLICE or index == size - 1:
                    run = encode_run(held)
                    verifier.feed(run)
                    out.write(run)
                    advance(len(held))
                    held.clear()
        return verifier.finish(note)
