"""`assay doctor`: what is wrong with an installation, and what to do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from clients.cli.app import READERS, ConfigOption, JsonFlag, session_of, wait_for
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.doctor import Check, Ledger
    from clients.identity import Identity

__all__ = ["doctor"]

_DEADLINE: Final = 3.0  # seconds for each question
_AHEAD: Final = 1_000_000  # microseconds by which the ledger's clock may be ahead of this one
_REMOTE: Final = ("ledger", "gate", "checkpoint", "clock", "witnesses")
_STALE: Final = 3 * 3_600  # seconds: a log at rest is cosigned again every hour
_AWAY: Final = "the ledger does not answer"


def doctor(
    context: typer.Context,
    config: ConfigOption = None,
    as_json: JsonFlag = False,
) -> None:
    """What is wrong with this installation and what to do: files, keys, certificates, disk, services.

    Nothing is changed, but a checkpoint that was found consistent is remembered. Exit code 3 where something
    is wrong, else 4 where something could not be looked at, else 0.
    """
    from clients.cli.show import emit, lines, table
    from clients.doctor import State

    checks = wait_for(_all(session_of(context), config))
    document = {
        "checks": [
            {"name": c.name, "state": str(c.state), "found": c.found, "advice": c.advice} for c in checks
        ]
    }

    def show() -> None:
        table(("check", "state", "found"), [(c.name, c.state, c.found) for c in checks])
        advised = [c for c in checks if c.advice and c.state is not State.OK]
        lines(*([""] if advised else []), *(f"{c.name}: {c.advice}" for c in advised))

    emit(document, as_json, show)
    states = {check.state for check in checks}
    if State.WRONG in states:
        raise typer.Exit(Exit.NOT_TRUE)
    if State.UNKNOWN in states:
        raise typer.Exit(Exit.CANNOT_TELL)


async def _all(session: Session, config: Path | None) -> list[Check]:
    from datetime import UTC, datetime

    from clients.doctor import Check, Ledger, State, check_installation
    from clients.doctor_storage import check_storage
    from ledger.errors import FormatError

    checks: list[Check] = []
    ledger: Ledger | None = None
    try:
        ledger = Ledger.of(session.home, config)
    except (FormatError, OSError) as error:
        checks.append(Check("configuration", State.WRONG, str(error), "compare it with docs/operations.md"))
    checks.extend(check_installation(session.home, datetime.now(UTC)))
    checks.extend(check_storage(ledger))
    checks.extend([check async for check in _services(session)])
    checks.append(_metrics(ledger, checks))
    return checks


async def _services(session: Session) -> AsyncIterator[Check]:
    """What only the services themselves can tell."""
    from clients.doctor import Check, State
    from clients.home import load_home
    from clients.identity import load_identity
    from ledger.errors import AssayError

    try:
        home = load_home(session.home)
        identity = load_identity(session.home, session.principal(*READERS))
    except (AssayError, OSError) as error:
        for name in _REMOTE:
            yield Check(name, State.UNKNOWN, f"nobody to ask as: {error}")
        return
    answers = True
    for service, target in (("ledger", home.ledger), ("gate", home.gate)):
        check = await _answers(identity, service, target)
        answers = answers and (service != "ledger" or check.state is State.OK)
        yield check
    if not answers:
        for name in _REMOTE[2:]:
            yield Check(name, State.UNKNOWN, _AWAY)
        return
    for check in await _log(identity):
        yield check
    yield await _witnesses(identity)


async def _answers(identity: Identity, service: str, target: str) -> Check:
    from clients.doctor import Check, State
    from clients.health import GATE_SERVICE, LEDGER_SERVICE, check_health
    from ledger.errors import AssayError

    asked = LEDGER_SERVICE if service == "ledger" else GATE_SERVICE
    try:
        await check_health(target, identity.channel_credentials(), asked, _DEADLINE)
    except AssayError as error:
        found = f"{target}: {error.reason}: {error.message}"
        return Check(
            service, State.WRONG, found, f"start it: assay serve {service}; its log says what ended it"
        )
    return Check(service, State.OK, f"serves on {target}")


async def _log(identity: Identity) -> Sequence[Check]:
    """The checkpoint against the remembered one, and this machine's clock against the last entry."""
    from clients.cli.show import moment
    from clients.doctor import Check, State
    from clients.ledger import LedgerClient
    from clients.memory import Memory
    from ledger.entry import decode_entry
    from ledger.errors import AssayError, VerificationError

    try:
        memory = Memory(identity.trust, identity.memory, identity.name)
        before = memory.size
        async with LedgerClient(identity, memory=memory, deadline=_DEADLINE) as client:
            size = (await client.get_checkpoint()).size
            recorded_at = [decode_entry(entry).recorded_at async for _, entry in client.read(size - 1, size)]
    except AssayError as error:
        wrong = isinstance(error, VerificationError)
        state = State.WRONG if wrong else State.UNKNOWN
        advice = "keep the files under memory/ and show them to the ledger's operator" if wrong else None
        return (
            Check("checkpoint", state, str(error), advice),
            Check("clock", State.UNKNOWN, "the last entry could not be read"),
        )
    if before:
        agrees = Check("checkpoint", State.OK, f"size {size} continues size {before}, remembered here")
    else:
        found = f"size {size}, remembered from now on: a rollback from before cannot be told"
        agrees = Check("checkpoint", State.NOTE, found)
    now = time.time_ns() // 1000
    said = f"the last entry is of {moment(recorded_at[0])}, here it is {moment(now)}"
    if recorded_at[0] > now + _AHEAD:
        return agrees, Check("clock", State.WRONG, said, "set the clock of this machine, or of the ledger's")
    return agrees, Check("clock", State.OK, f"not behind the log: {said}")


async def _witnesses(identity: Identity) -> Check:
    """Whether a quorum cosigned lately."""
    from clients.cli.show import moment
    from clients.doctor import Check, State
    from clients.ledger import LedgerClient
    from ledger.checkpoint import open_note, verify_cosignatures
    from ledger.errors import AssayError, NotFoundError, VerificationError

    policy = identity.trust.policy
    if policy.quorum == "none":
        return Check("witnesses", State.NOTE, "none are asked for: the trust document has no quorum")
    try:
        async with LedgerClient(identity, deadline=_DEADLINE) as client:
            note, checkpoint = open_note(await client.cosigned_note(), identity.trust.origin)
            times = verify_cosignatures(note, policy.witnesses.values())
    except AssayError as error:
        state = State.WRONG if isinstance(error, NotFoundError | VerificationError) else State.UNKNOWN
        return Check("witnesses", state, str(error), "the ledger's log says which witness does not answer")
    oldest = min(times.values())
    found = f"size {checkpoint.size}, cosigned by {len(times)} since {moment(oldest * 1_000_000)}"
    if time.time() - oldest > _STALE:
        return Check("witnesses", State.WRONG, found, "it is stale: the ledger's log says which one is away")
    return Check("witnesses", State.OK, found)


def _metrics(ledger: Ledger | None, checks: Sequence[Check]) -> Check:
    from clients.doctor import Check, State

    if ledger is None:
        return Check("metrics", State.UNKNOWN, "the configuration could not be read")
    if ledger.metrics is None:
        return Check("metrics", State.NOTE, "none: the configuration names no address for them")
    if not all(check.state is State.OK for check in checks if check.name == "ledger"):
        return Check("metrics", State.UNKNOWN, _AWAY)
    return _scraped(ledger.metrics)


def _scraped(address: str) -> Check:
    import urllib.request

    from clients.doctor import Check, State

    advice = "does the ledger that serves have this configuration?"
    try:
        # An operator's own configuration names it, and http:// is all that stands before it.
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_DEADLINE) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, ValueError) as error:
        return Check("metrics", State.WRONG, f"{address}: {error}", advice)
    size = next((line for line in lines if line.startswith("assay_released_size ")), None)
    if size is None:
        return Check("metrics", State.WRONG, f"{address} answers, and not with a ledger's numbers", advice)
    return Check("metrics", State.OK, f"{address}: {size}")
