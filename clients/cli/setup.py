"""`assay demo`, `assay init`, `assay serve`: a home for one machine, and the two processes in it."""

from __future__ import annotations

import os
import secrets
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from clients.cli.app import JsonFlag, group, session_of
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clients.home import NewHome

__all__ = ["demo", "init", "serve"]


class Logs(StrEnum):
    """How a service's stderr reads."""

    TEXT = "text"
    JSON = "json"


serve = group("Run a service of a home in the foreground, until SIGTERM or Ctrl-C.")


def demo(
    candidates: Annotated[
        Path | None,
        typer.Option(
            "--candidates",
            exists=True,
            dir_okay=False,
            help="Candidates file to edit and try.",
            show_default="the four of the demo",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", file_okay=False, help="Folder to keep home and export in, new or empty."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """The whole path once, from an empty folder to a replayed verdict: four candidates, one promotion."""
    from clients.cli.show import console, stages
    from clients.demo.run import as_json as demo_json
    from clients.demo.run import run_demo
    from clients.demo.show import show_result

    document = None if candidates is None else candidates.read_bytes()
    with stages() as tell:
        result = run_demo(document, keep, tell)
    if as_json:
        typer.echo(demo_json(result))
    else:
        show_result(console(), result)
    if result.failures:
        raise typer.Exit(Exit.NOT_TRUE)


def init(
    context: typer.Context,
    path: Annotated[
        Path | None, typer.Argument(metavar="HOME", help="New or empty folder.", show_default="as --home")
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
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt", help="Encrypt the signing keys: ASSAY_PASSPHRASE, or asked for at the terminal."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a home: certificates, a key for each principal, the log's first batches, a trust document."""
    from clients.cli.show import emit, lines
    from clients.home import create_home
    from clients.keyfile import new_passphrase
    from ledger.keyfile import PASSPHRASE_VARIABLE

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
        passphrase=new_passphrase(PASSPHRASE_VARIABLE) if encrypt else None,
        random=secrets.token_bytes,
        now=time.time_ns() // 1000,
    )
    emit(_home_document(made), as_json, lambda: lines(*_home_lines(made)))


def _home_document(made: NewHome) -> dict[str, Any]:
    shown = f"assay --home {made.path}"
    return {
        "home": str(made.path),
        "origin": made.home.origin,
        "trust": str(made.path / "trust.txt"),
        "configuration": str(made.path / "ledger.json"),
        "ledger": made.home.ledger,
        "gate": made.home.gate,
        "principals": made.home.principals,
        "notice": made.notice,
        "next": [f"{shown} serve ledger", f"{shown} serve gate", f"{shown} status"],
    }


def _home_lines(made: NewHome) -> Iterator[str]:
    document = _home_document(made)
    yield f"made {document['home']}"
    yield f"  origin      {document['origin']}"
    yield f"  trust       {document['trust']}"
    yield f"  ledger      will listen on {document['ledger']}"
    yield f"  settings    {document['configuration']}: its store, metrics and limits, for you to edit"
    yield f"  gate        will listen on {document['gate']}"
    yield f"  principals  {', '.join(f'{who} ({role})' for who, role in made.home.principals.items())}"
    yield ""
    yield made.notice
    yield ""
    yield "next:"
    yield from (f"  {step}" for step in document["next"])


@serve.command("ledger")
def serve_ledger(
    context: typer.Context,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Where Prometheus reads numbers, without a certificate: keep it on loopback.",
            show_default="as in ledger.json",
        ),
    ] = None,
    logs: Annotated[
        Logs | None, typer.Option("--logs", help="How stderr reads.", show_default="as in ledger.json")
    ] = None,
    witnesses: Annotated[
        list[str] | None,
        typer.Option(
            "--witness",
            metavar="NAME=URL",
            help="Where a witness of the trust document takes checkpoints; once for each.",
            show_default="as in ledger.json",
        ),
    ] = None,
) -> None:
    """Run the ledger. Says so in one line of JSON once it serves.

    It is configured by ledger.json of the home, which is yours to edit; what is given here is kept there.
    Once it runs, its exit codes are: 0 stopped as asked, 2 configuration, 3 the log must not go on from here,
    75 the store was away or in doubt: start it again.
    """
    from clients.home import load_home
    from clients.servers import check_free, ledger_command

    home = session_of(context).home.absolute()
    document = load_home(home)
    check_free(document.ledger, "ledger")
    settings: dict[str, Any] = {}
    if metrics is not None:
        settings["metrics"] = metrics
    if logs is not None:
        settings["logs"] = str(logs)
    if witnesses:
        settings["witnesses"] = _witnesses(witnesses)
    _become(ledger_command(home, document, **settings))


def _witnesses(texts: list[str]) -> dict[str, str]:
    urls: dict[str, str] = {}
    for text in texts:
        name, equals, url = text.partition("=")
        if not equals or not name or not url or name in urls:
            raise typer.BadParameter(f"--witness: expected each name once as NAME=URL, got {text!r}")
        urls[name] = url
    return urls


@serve.command("gate")
def serve_gate(
    context: typer.Context,
    logs: Annotated[Logs, typer.Option("--logs", help="How stderr reads.")] = Logs.TEXT,
) -> None:
    """Run the gate. The ledger must serve already; if it does not: exit code 7.

    Once it runs, its exit codes are: 0 stopped as asked, 2 configuration, 3 the log does not verify.
    """
    from clients.home import load_home
    from clients.servers import check_free, check_serves, gate_command

    session = session_of(context)
    document, name = load_home(session.home), session.principal("gate")
    check_free(document.gate, "gate")
    check_serves(document.ledger)
    _become([*gate_command(session.home, name), "--logs", logs])


def _become(command: list[str]) -> NoReturn:
    """Turns this process into the service, so that signals and the exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)  # noqa: S606 - no shell is the point
