"""`assay fsck`: the stored log checked where it lies, by the ledger's own program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import typer

from clients.cli.app import ConfigOption, JsonFlag, session_of
from clients.cli.exits import Exit

__all__ = ["fsck"]


def fsck(
    context: typer.Context,
    config: ConfigOption = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair-derived", help="Remove what is derived and wrong: the next start makes it again."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check a stored log and everything beside it, with no ledger running on it (if one is: exit code 3).

    Every entry and signature is verified; markers, checkpoints, what was released and what is derived are
    compared with what the log says. Exit code 3 where something was found.
    """
    from clients.cli.show import counted, emit, lines, table
    from clients.doctor import Ledger
    from ledger.errors import NotFoundError

    home = session_of(context).home
    file, ledger = config or home / "ledger.json", Ledger.of(home, config)
    if not file.exists() or (ledger.store is None and not ledger.sqlite.exists()):
        raise NotFoundError(
            "NO_STORE", f"expected a ledger's database in {ledger.data}, got none: no ledger served there yet"
        )
    command = [sys.executable, "-m", "ledger.server", "--config", str(file), "--fsck"]
    ran = subprocess.run(
        [*command, *(["--repair-derived"] if repair else [])], stdout=subprocess.PIPE, check=False
    )
    if not ran.stdout:
        # stderr says why.
        code = Exit.UNREACHABLE if ran.returncode == os.EX_TEMPFAIL else ran.returncode
        raise typer.Exit(code if code in set(map(int, Exit)) else Exit.FAULT)
    document: dict[str, Any] = json.loads(ran.stdout)

    def show() -> None:
        findings = document["findings"]
        if not findings:
            lines(
                f"{document['origin']}: {counted(document['size'], 'entry', 'entries')}, all as it should be"
            )
            return
        table(("kind", "at", "found"), [(f["kind"], _at(f["position"]), f["found"]) for f in findings])
        more = sum(document["counts"].values()) - len(findings)
        lines(*([f"and {more} more"] if more else []), "")
        advice = dict.fromkeys((f["kind"], f["advice"]) for f in findings)
        lines(*(f"{kind}: {what}" for kind, what in advice))

    emit(document, as_json, show)
    if ran.returncode:
        raise typer.Exit(ran.returncode)


def _at(position: int | None) -> str:
    return "" if position is None else str(position)
