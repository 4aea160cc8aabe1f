"""`assay export`: the whole log, proven as it comes and verified before it gets its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clients.cli.app import READERS, JsonFlag, session_of, wait_for

if TYPE_CHECKING:
    from clients.identity import Identity
    from ledger.verify import Verified

__all__ = ["export"]


def export(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", dir_okay=False, help="File to write.", show_default=False)
    ] = None,
    tiles: Annotated[
        Path | None,
        typer.Option(
            "--tiles",
            metavar="DIR",
            file_okay=False,
            help="Write a folder of static tiles (tlog-tiles) instead, or extend one of the same log.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a FILE that exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the whole log and its checkpoint to FILE; anyone can verify it later, offline.

    Each entry is proven on its way, and the whole is verified (V2 to V7) before the file gets its name.
    With --tiles it becomes a folder of static files, which grows with the next export.
    """
    from clients.cli.show import emit, lines
    from clients.identity import load_identity

    session = session_of(context)
    path = file or tiles
    if path is None or None not in (file, tiles):
        raise typer.BadParameter("expected FILE or --tiles DIR, got both or none")
    identity = load_identity(session.home, session.principal(*READERS))
    document: dict[str, object]
    if path is file:
        verified = _to_file(identity, path, force)
        document = {"file": str(path), "bytes": path.stat().st_size}
    else:
        verified = _to_tiles(identity, path)
        document = {"tiles": str(path)}
    document |= {"origin": verified.origin, "size": verified.size, "root": verified.root.hex()}
    trust = session.home / "trust.txt"
    emit(
        document,
        as_json,
        lambda: lines(
            f"wrote {path}: {verified.size} entries of {verified.origin}, verified",
            f"next: assay verify {path} --trust {trust}",
        ),
    )


def _to_file(identity: Identity, file: Path, force: bool) -> Verified:
    from clients.cli.audit import Audit
    from ledger.errors import RefusedError

    if file.exists() and not force:
        raise RefusedError("FILE_EXISTS", f"expected a new file, got {file}; --force replaces it")
    draft = file.with_name(f".{file.name}.unverified")
    try:
        wait_for(_download(identity, draft))
        verified = Audit(identity.trust, None).verify(draft)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return verified


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


def _to_tiles(identity: Identity, folder: Path) -> Verified:
    from clients.cli.audit import Audit
    from clients.tiles import publish_tiles

    verified = Audit(identity.trust, None).verify(wait_for(_download_tiles(identity, folder)))
    publish_tiles(folder)
    return verified


async def _download_tiles(identity: Identity, folder: Path) -> Path:
    from clients.cli.show import progress
    from clients.ledger import LedgerClient
    from clients.tiles import write_tiles

    async with LedgerClient(identity) as client:
        with progress("export", (await client.get_checkpoint()).size) as advance:
            return await write_tiles(client, folder, advance)
