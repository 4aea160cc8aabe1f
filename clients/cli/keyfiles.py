"""`assay key new` and `assay key passphrase`: key files themselves, with no ledger asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clients.cli.app import JsonFlag, session_of

__all__ = ["NameArgument", "new", "passphrase"]

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Principal.", show_default=False)]


def new(
    name: NameArgument,
    file: Annotated[
        Path, typer.Option("--file", dir_okay=False, help="Where to put it; must be new.", show_default=False)
    ],
    encrypt: Annotated[bool, typer.Option("--encrypt", help="Ask for a passphrase.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a key where it will be used, and print its public half for root to grant (--vkey)."""
    from clients.cli.show import emit, lines
    from clients.keyfile import new_key, new_passphrase, write_key
    from ledger.errors import RefusedError

    if file.exists():
        raise RefusedError("FILE_EXISTS", f"expected a new file, got {file}")
    data, made = new_key(name)
    write_key(file, data, new_passphrase() if encrypt else None)
    vkey = str(made.verifier_key)
    emit({"vkey": vkey, "file": str(file), "encrypted": encrypt}, as_json, lambda: lines(vkey))


def passphrase(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Principal, or `ledger`.", show_default=False)],
    remove: Annotated[bool, typer.Option("--remove", help="Leave the key in plain text.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Encrypt a key of this home under a new passphrase, or change that.

    The old passphrase is ASSAY_PASSPHRASE, the new one ASSAY_NEW_PASSPHRASE; what is not set is asked for.
    """
    from clients.cli.show import emit, lines
    from clients.keyfile import new_passphrase, read_plain, write_key
    from ledger.errors import NotFoundError

    home = session_of(context).home
    folder = home / "ledger" if name == "ledger" else home / "principals" / name
    files = sorted(folder.glob("note*.key"))
    if not files:
        raise NotFoundError("KEY_ABSENT", f"expected a key of {name} in {folder}, got none")
    plain = [(file, read_plain(file)) for file in files]
    secret = None if remove else new_passphrase()
    for file, data in plain:
        write_key(file, data, secret)
    shown = [str(file) for file in files]
    said = "in plain text" if remove else "encrypted"
    emit({"files": shown, "encrypted": not remove}, as_json, lambda: lines(*(f"{f}: {said}" for f in shown)))
