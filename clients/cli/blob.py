"""`assay blob`: content that stands outside the log, by its digest."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from clients.cli.app import READERS, JsonFlag, group, session_of, wait_for

if TYPE_CHECKING:
    from clients.acknowledgement import Placed
    from ledger.v1 import blob_pb2, options_pb2

__all__ = ["blob"]

blob = group("Content that stands outside the log: the log holds its digest.")

_DigestArgument = Annotated[
    str, typer.Argument(metavar="DIGEST", help="64 hex digits, or @FILE for a file's.", show_default=False)
]
_ANY = (*READERS, "runner", "trainer")


@blob.command()
def put(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)],
    salted: Annotated[
        bool, typer.Option("--salted", help="Under a random salt: nobody can guess it once it is erased.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Keep a file's content (runner) and print its digest. The same content again is the same blob.

    Name it in an event soon: content that no event names is removed after a day.
    With --salted each run makes another blob.
    """
    from clients.blobs import BlobsClient, new_salt
    from clients.cli.desk import open_desk
    from clients.cli.show import emit, lines

    session = session_of(context)

    async def send() -> options_pb2.Blob:
        async with open_desk(session, "runner") as desk:
            with file.open("rb") as content:
                return await BlobsClient(desk.ledger).put(content, new_salt() if salted else None)

    kept = wait_for(send())
    document = {"digest": kept.digest.hex(), "size": kept.size, "salted": kept.salted}
    emit(document, as_json, lambda: lines(kept.digest.hex()))


@blob.command()
def get(
    context: typer.Context,
    digest: _DigestArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", dir_okay=False, help="File to write, or to replace.", show_default=False
        ),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Fetch content, compare it with its digest, and write it. The file appears once all of it is right."""
    import tempfile

    from clients.blobs import BlobsClient
    from clients.cli.desk import open_desk
    from clients.cli.parse import parse_digest
    from clients.cli.show import counted, emit, lines

    session, wanted = session_of(context), parse_digest(digest, "DIGEST")

    async def fetch(to: IO[bytes]) -> options_pb2.Blob:
        async with open_desk(session, *_ANY) as desk:
            return await BlobsClient(desk.ledger).fetch(wanted, to)

    with tempfile.NamedTemporaryFile(dir=output.parent, delete=False) as file:
        temp = Path(file.name)
        try:
            found = wait_for(fetch(file))
            file.close()
            temp.replace(output)
        finally:
            temp.unlink(missing_ok=True)
    document = {"digest": found.digest.hex(), "size": found.size, "file": str(output)}
    emit(document, as_json, lambda: lines(f"{output}: {counted(found.size, 'byte')}, as its digest says"))


@blob.command()
def stat(context: typer.Context, digest: _DigestArgument, as_json: JsonFlag = False) -> None:
    """Say where content stands: STORED, or ERASED and by which entry. By the ledger's word."""
    from clients.blobs import BlobsClient
    from clients.cli.desk import open_desk
    from clients.cli.parse import parse_digest
    from clients.cli.show import emit, pairs
    from ledger.v1 import blob_pb2

    session, wanted = session_of(context), parse_digest(digest, "DIGEST")

    async def ask() -> blob_pb2.StatResponse:
        async with open_desk(session, *_ANY) as desk:
            return await BlobsClient(desk.ledger).stat(wanted)

    found = wait_for(ask())
    stored = found.blob if found.HasField("blob") else None
    kept = "by an event" if found.named else "by no event yet: it will be removed"
    document = {
        "digest": wanted.hex(),
        "state": blob_pb2.BlobState.Name(found.state).removeprefix("BLOB_STATE_"),
        "size": None if stored is None else stored.size,
        "salted": None if stored is None else stored.salted,
        "erased_index": found.erased_index if found.HasField("erased_index") else None,
        "named": found.named,
    }
    emit(
        document,
        as_json,
        lambda: pairs(
            (
                ("state", document["state"]),
                ("bytes", document["size"]),
                ("salted", None if stored is None else "yes" if stored.salted else "no"),
                ("erased by", None if stored is not None else f"the entry at index {found.erased_index}"),
                ("named", None if stored is None else kept),
            )
        ),
    )


@blob.command()
def erase(
    context: typer.Context,
    digest: _DigestArgument,
    reason: Annotated[str, typer.Option("--reason", help="Stands in the log for good.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Have content removed for good (operator). What the log said of it stays; no verdict changes.

    Nothing brings it back, and the same content is never taken again.
    """
    from clients.cli.desk import event, open_desk
    from clients.cli.parse import parse_digest
    from clients.cli.show import emit, lines
    from ledger.v1 import operator_pb2

    session, wanted = session_of(context), parse_digest(digest, "DIGEST")

    async def write() -> Placed:
        async with open_desk(session, "operator") as desk:
            body = operator_pb2.BlobErased(digest=wanted, reason=reason)
            return await desk.ledger.append([event(body)])

    placed = wait_for(write())
    document = {"digest": wanted.hex(), "index": placed.first_index}
    emit(
        document, as_json, lambda: lines(f"erased {wanted.hex()} by the entry at index {placed.first_index}")
    )
