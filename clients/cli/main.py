"""The entry point: the root command, and every group below it in the order of the manual."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clients.cli import approve, decide, explain, look, move, offline, receipts, setup, tail
from clients.cli.app import AssayGroup, Session
from clients.cli.blob import blob
from clients.cli.doctor import doctor
from clients.cli.exits import EXIT_HELP
from clients.cli.export import export
from clients.cli.fsck import fsck
from clients.cli.health import health
from clients.cli.imports import imports
from clients.cli.keys import keys
from clients.cli.publish import publish
from clients.cli.update import update

__all__ = ["app", "main"]

_HELP = """An assay office for reinforcement-learning updates of agents.

The trainer proposes, the ledger remembers, the gate decides, and anyone can check all three offline.

A new model or prompt stays a candidate until evidence says otherwise that the learner cannot write.
Only seven PASSes promote; HOLD says what is missing. Asking for the default never yields a candidate.

First steps: assay demo · assay init --dev · assay serve ledger · assay serve gate · assay status

Tonight's decision: assay updates --waiting · assay explain UPDATE
assay --as approver-1 approve UPDATE --step canary

Without trusting anyone: assay export log.export · assay verify log.export --trust trust.txt · assay replay …
"""

app = typer.Typer(
    name="assay",
    cls=AssayGroup,
    help=_HELP,
    epilog=EXIT_HELP,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_DECIDE = "Decide"
_LOOK = "Look"
_AUDIT = "Check, offline"
_OPERATE = "Set up and operate"


@app.callback()
def root(
    context: typer.Context,
    home: Annotated[
        Path, typer.Option("--home", envvar="ASSAY_HOME", help="Home folder (assay init).")
    ] = Path("assay-home"),
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Principal to act as.",
            show_default="the only one of the role needed",
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Keeps what stands before the command's name."""
    context.obj = Session(home, name, debug)


for _panel, _command in (
    (_DECIDE, explain.explain),
    (_DECIDE, decide.evaluate),
    (_DECIDE, approve.approve),
    (_DECIDE, approve.withdraw),
    (_DECIDE, move.promote),
    (_DECIDE, move.rollback),
    (_LOOK, look.status),
    (_LOOK, look.updates),
    (_LOOK, receipts.receipt),
    (_LOOK, receipts.default),
    (_LOOK, receipts.candidate),
    (_LOOK, tail.tail),
    (_AUDIT, offline.verify),
    (_AUDIT, offline.replay),
    (_OPERATE, setup.demo),
    (_OPERATE, setup.init),
    (_OPERATE, doctor),
    (_OPERATE, fsck),
    (_OPERATE, health),
    (_OPERATE, export),
):
    app.command(rich_help_panel=_panel)(_command)
app.add_typer(setup.serve, name="serve", rich_help_panel=_OPERATE)
app.add_typer(publish, name="publish", rich_help_panel=_OPERATE)
app.add_typer(update, name="update", rich_help_panel=_OPERATE)
app.add_typer(imports, name="import", rich_help_panel=_OPERATE)
app.add_typer(keys, name="key", rich_help_panel=_OPERATE)
app.add_typer(blob, name="blob", rich_help_panel=_OPERATE)


def main() -> None:
    """The command `assay`."""
    app()
