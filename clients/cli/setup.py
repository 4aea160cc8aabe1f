"""`assay init`, `assay serve`: a home for one machine, and the two processes that live in it."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from clients.cli.app import JsonFlag, group, session_of

__all__ = ["init", "serve"]

serve = group("Run a service of a home in the foreground, until SIGTERM or Ctrl-C.")


def init(
    context: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="[HOME]", help="New or empty folder.", show_default="as --home")
    ] = None,
    dev: Annotated[
        bool, typer.Option("--dev", help="Make a development home: all keys on this disk. Required.")
    ] = False,
    name: Annotated[
        str, typer.Option("--name", help="First part of the log's origin; 16 random digits follow.")
    ] = "assay",
    ledger: Annotated[str, typer.Option("--ledger", help="Where the ledger will listen.")] = "127.0.0.1:7401",
    gate: Annotated[str, typer.Option("--gate", help="Where the gate will listen.")] = "127.0.0.1:7402",
    trust_domain: Annotated[
        str, typer.Option("--trust-domain", help="Of the certificates: spiffe://<trust domain>/<name>.")
    ] = "assay.local",
    as_json: JsonFlag = False,
) -> None:
    """Make a home: a certificate authority, a key per principal, the log's first two batches, a trust document."""
    from clients.cli.show import emit, lines, pairs
    from clients.home import create_home

    if not dev:
        raise typer.BadParameter(
            "expected --dev: a home keeps all private keys on one disk, which is for development only. In "
            "production each key is made where it is used"
        )
    home = path or session_of(context).home
    made = create_home(
        home,
        origin_name=name,
        ledger=ledger,
        gate=gate,
        trust_domain=trust_domain,
        random=secrets.token_bytes,
        now=time.time_ns() // 1000,
    )
    shown = f"assay --home {home}"
    steps = [f"{shown} serve ledger", f"{shown} serve gate", f"{shown} status"]
    document = {
        "home": str(made.path),
        "origin": made.home.origin,
        "trust": str(made.path / "trust.txt"),
        "ledger": made.home.ledger,
        "gate": made.home.gate,
        "principals": made.home.principals,
        "notice": made.notice,
        "next": steps,
    }

    def show() -> None:
        lines(f"made {made.path}")
        pairs(
            (
                ("origin", made.home.origin),
                ("trust", document["trust"]),
                ("ledger", f"will listen on {made.home.ledger}"),
                ("gate", f"will listen on {made.home.gate}"),
                ("principals", ", ".join(f"{who} ({role})" for who, role in made.home.principals.items())),
            )
        )
        lines("", made.notice, "", "next:", *(f"  {step}" for step in steps))

    emit(document, as_json, show)


@serve.command("ledger")
def serve_ledger(context: typer.Context) -> None:
    """Run the ledger. Says so in one line of JSON once it serves."""
    home = session_of(context).home
    _become("ledger.server", "--config", str(_ledger_config(home)))


@serve.command("gate")
def serve_gate(context: typer.Context) -> None:
    """Run the gate. The ledger must serve already."""
    session = session_of(context)
    _become("gate", "--home", str(session.home), "--as", session.principal("gate"))


_CONFIG: Final = "server.json"


def _ledger_config(home: Path) -> Path:
    """The ledger's configuration, written anew from the home each time: the home is what people edit."""
    from clients.home import load_home

    document = load_home(home)
    config = {
        "listen": document.ledger,
        "data": "data",
        "trust": "../trust.txt",
        "trust_domain": document.trust_domain,
        "note_keys": ["note.key"],
        "certificate": "server.crt",
        "private_key": "server.key",
        "client_ca": "../ca.crt",
        "genesis": "../genesis.bin",
    }
    file = home / "ledger" / _CONFIG
    draft = file.with_suffix(".tmp")
    draft.write_text(json.dumps(config, indent=2) + "\n")
    draft.replace(file)
    return file.absolute()


def _become(module: str, *arguments: str) -> NoReturn:
    """Turns this process into the service, so that signals and the exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell is the point
