"""`assay health`: the probe for whatever starts services and restarts them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from clients.cli.app import READERS, JsonFlag, session_of, wait_for

__all__ = ["health"]

_ASKERS: Final = (*READERS, "gate", "runner", "trainer", "root")


class Service(StrEnum):
    """Whom to ask."""

    LEDGER = "ledger"
    GATE = "gate"


def health(
    context: typer.Context,
    service: Annotated[Service, typer.Argument(help="Whom to ask.", show_default=False)],
    address: Annotated[
        str | None, typer.Option("--address", help="host:port.", show_default="as the home says")
    ] = None,
    seconds: Annotated[float, typer.Option("--deadline", min=0.1, help="Seconds to wait.")] = 3.0,
    as_json: JsonFlag = False,
) -> None:
    """Whether a service says that it serves (if not: exit code 7). Needs a certificate and no signing key."""
    from clients.cli.show import emit, lines
    from clients.health import GATE_SERVICE, LEDGER_SERVICE, check_health, probe_credentials
    from clients.home import load_home

    session = session_of(context)
    home, name = load_home(session.home), session.principal(*_ASKERS)
    target, asked = (home.ledger, LEDGER_SERVICE) if service is Service.LEDGER else (home.gate, GATE_SERVICE)
    target = address or target
    wait_for(check_health(target, probe_credentials(session.home, name), asked, seconds))
    document = {"service": asked, "address": target, "serves": True}
    emit(document, as_json, lambda: lines(f"{asked} on {target} serves"))
