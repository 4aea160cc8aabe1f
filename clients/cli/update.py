"""`assay update`: an update from its proposal to its frozen identity, and on again after a pause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clients.cli.app import (
    JsonFlag,
    ResourceArgument,
    ScopeArgument,
    UpdateArgument,
    group,
    session_of,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clients.cli.app import Session
    from gate.v1 import gate_pb2 as service_pb2

__all__ = ["update"]

update = group("Propose an update (trainer), have its identity frozen, and change it (operator).")

_DIGEST = "64 hex digits, or @FILE for the SHA-256 of a file."
_KINDS: Final = {
    "model.full": "RESOURCE_KIND_MODEL_FULL",
    "model.lora": "RESOURCE_KIND_MODEL_LORA",
    "prompt_template": "RESOURCE_KIND_PROMPT_TEMPLATE",
}


def _digest_option(flag: str, text: str) -> Any:
    return typer.Option(flag, help=f"{text}: {_DIGEST}", show_default=False)


@update.command()
def propose(
    context: typer.Context,
    update: UpdateArgument,
    resource: ResourceArgument,
    scope: ScopeArgument,
    kind: Annotated[str, typer.Option("--kind", metavar="|".join(_KINDS), show_default=False)],
    parent: Annotated[str, _digest_option("--parent", "Manifest that training starts from")],
    snapshot: Annotated[str, _digest_option("--training-snapshot", "Training tasks")],
    config: Annotated[str, _digest_option("--config", "Algorithm configuration")],
    harness: Annotated[str, _digest_option("--harness", "Harness")],
    tokenizer: Annotated[str, _digest_option("--tokenizer", "Tokenizer")],
    code: Annotated[str, typer.Option("--code", help="Revision of the training code.", show_default=False)],
    version: Annotated[int, typer.Option("--workflow-version", min=1, show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Propose to replace the approved default of a resource in a scope (trainer). Pins are digests."""
    from clients.cli.parse import parse_digest, parse_scope
    from clients.cli.show import emit, lines
    from ledger.v1 import options_pb2, trainer_pb2

    if kind not in _KINDS:
        raise typer.BadParameter(f"--kind: expected one of {', '.join(_KINDS)}, got {kind!r}")
    body = trainer_pb2.UpdateProposed(
        update=update,
        resource=resource,
        kind=options_pb2.ResourceKind.Value(_KINDS[kind]),
        scope=parse_scope(scope),
        parent_digest=parse_digest(parent, "--parent"),
        training_snapshot_digest=parse_digest(snapshot, "--training-snapshot"),
        algorithm_config_digest=parse_digest(config, "--config"),
        code_revision=code,
        harness_digest=parse_digest(harness, "--harness"),
        tokenizer_digest=parse_digest(tokenizer, "--tokenizer"),
        workflow_version=version,
    )
    index, name = wait_for(_append(session_of(context), "trainer", body))
    emit(
        {"update": update, "by": name, "index": index},
        as_json,
        lambda: lines(f"proposed {update} as {name} at index {index}", f"next: assay update freeze {update}"),
    )


async def _append(session: Session, role: str, body: Any) -> tuple[int, str]:
    from clients.cli.desk import event, open_desk

    async with open_desk(session, role) as desk:
        placed = await desk.ledger.append([event(body)])
        return placed.first_index, desk.identity.name


@update.command()
def freeze(context: typer.Context, update: UpdateArgument, as_json: JsonFlag = False) -> None:
    """Have the gate fix an update's identity, before training starts (the proposing trainer)."""
    from ledger.errors import RefusedError

    session = session_of(context)
    try:
        answer = wait_for(_freeze(session, "trainer", update, []))
    except RefusedError as error:
        if error.reason != "NOT_AN_OPERATOR":
            raise
        at = wait_for(_frozen_at(session, update))
        raise RefusedError(
            "ALREADY_FROZEN",
            f"expected an update not frozen yet, got {update}, frozen at {at}; an operator may freeze "
            f"it again: assay update refreeze {update}",
        ) from error
    _frozen(update, answer, as_json)


async def _frozen_at(session: Session, update: str) -> int | None:
    """Index of the first freeze, from the entries that the trainer may read."""
    from clients.cli.desk import open_desk
    from ledger.entry import decode_entry
    from ledger.fold import read_event

    async with open_desk(session, "trainer") as desk:
        async for message in desk.ledger.follow_update(update):
            if not message.entry:
                return None
            if read_event(decode_entry(message.entry).event)[1] == "update_frozen":
                return message.index
    return None


@update.command()
def refreeze(
    context: typer.Context,
    update: UpdateArgument,
    redo: Annotated[
        list[int] | None,
        typer.Option(
            "--redo", min=4, max=7, help="A check in ERROR or MISSING whose evidence is to be made again."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Have the gate take what is in force now into an update's identity (operator).

    Only evidence made after that counts for what changed; approvals lapse.
    """
    _frozen(update, wait_for(_freeze(session_of(context), "operator", update, redo or [])), as_json)


async def _freeze(session: Session, role: str, update: str, redo: list[int]) -> service_pb2.FreezeResponse:
    from clients.cli.desk import open_desk

    async with open_desk(session, role) as desk:
        return await desk.gate.freeze(update, redo)


def _frozen(update: str, answer: service_pb2.FreezeResponse, as_json: bool) -> None:
    from clients.cli.show import emit, lines, pairs
    from gate.report import digests_as_hex

    frozen = answer.frozen
    pins = digests_as_hex(frozen)

    def show() -> None:
        lines(f"froze {update}, revision {frozen.revision}, at index {answer.index}")
        pairs(_pin_rows(pins))

    emit({"update": update, "index": answer.index, "frozen": pins}, as_json, show)


def _pin_rows(pins: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Every pin in one column, in the order of the proposal, then what the learner must not choose."""
    kinds = {name: word for word, name in _KINDS.items()}
    budget = pins.get("retry_budget", {})
    yield "resource", pins.get("resource")
    yield "kind", kinds.get(pins.get("kind", ""), pins.get("kind"))
    yield "scope", f"{pins['scope']['workflow']}/{pins['scope']['segment']}"
    yield "workflow version", pins.get("workflow_version")
    yield "requested by", pins.get("requested_by")
    for name, pin in pins.items():
        if name.endswith("_digest"):
            yield name.removesuffix("_digest").replace("_", " "), pin
    yield "code revision", pins.get("code_revision")
    for part in pins.get("environment", []):
        word = part["target"].removeprefix("ENVIRONMENT_TARGET_").lower().replace("_", " ")
        yield word, part["digest"]
    yield (
        "retry budget",
        f"{budget.get('expected', 0)} expected, {budget.get('infrastructure', 0)} infrastructure a rollout",
    )
    for who in ("judges", "canaries", "canary_approvers", "default_approvers"):
        yield who.replace("_", " "), ", ".join(pins.get(who, [])) or "MISSING"
    if pins.get("redo_checks"):
        yield "made again", f"evidence of checks {', '.join(map(str, pins['redo_checks']))}"


@update.command()
def resume(
    context: typer.Context,
    update: UpdateArgument,
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Ask that the paused training of an update may go on (operator). The gate resumes it."""
    from clients.cli.show import emit, lines
    from ledger.v1 import operator_pb2

    session = session_of(context)
    wait_for(_check_paused(session, update))
    body = operator_pb2.ResumeRequested(update=update, reason=reason)
    index, name = wait_for(_append(session, "operator", body))
    emit(
        {"update": update, "by": name, "index": index},
        as_json,
        lambda: lines(f"asked as {name} at index {index}"),
    )


async def _check_paused(session: Session, update: str) -> None:
    """Raises RefusedError NOT_PAUSED, NotFoundError NO_SUCH_UPDATE."""
    from clients.cli.desk import open_desk
    from ledger.errors import RefusedError

    async with open_desk(session, "operator") as desk:
        before = (await desk.receipts.get_update(update))["before"]
    if not before["freezes"]:
        raise RefusedError(
            "NOT_PAUSED", f"expected an update whose training is paused, got {update}, not frozen yet"
        )
    if all(pause["resumed"] is not None for pause in before["pauses"]):
        raise RefusedError(
            "NOT_PAUSED", f"expected an update whose training is paused, got {update}, which is not"
        )
