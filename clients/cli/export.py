"""`assay export`: the whole log in one file, proven as it comes and verified before it gets its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clients.cli.app import READERS, JsonFlag, session_of, wait_for

if TYPE_CHECKING:
    from clients.identity import Identity

__all__ = ["export"]


def export(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", dir_okay=False, help="File to write.", show_default=False)
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the whole log and its checkpoint to FILE; anyone can verify it later, offline.

    Each entry is proven on its way, and the whole is verified (V2 to V7) before the file gets its name.
    """
    from clients.cli.audit import Audit
    from clients.cli.show import emit, lines
    from clients.identity import load_identity
    from ledger.errors import RefusedError

    session = session_of(context)
    if file.exists() and not force:
        raise RefusedError("FILE_EXISTS", f"expected a new file, got {file}; --force replaces it")
    identity = load_identity(session.home, session.principal(*READERS))
    draft = file.with_name(f".{file.name}.unverified")
    try:
        wait_for(_download(identity, draft))
        verified = Audit(identity.trust, None).verify(draft)
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


async def _download(identity: Identity, draft: Path) -> None:
    from clients.cli.show import progress
    from clients.export import export_log
    from clients.ledger import LedgerClient

    async with LedgerClient(identity) as client:
        with progress("export", (await client.get_checkpoint()).size) as advance:
            shown = 0

            def tell(so_far: int, _: int) -> None:
                nonlocal shown
                advance(so_far - shown)
                shown = so_far

            await export_log(client, draft, tell)
