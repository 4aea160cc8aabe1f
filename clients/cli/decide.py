"""`assay evaluate`: the gate's judgement, recorded or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clients.cli.app import READERS, JsonFlag, StepOption, UpdateArgument, session_of, wait_for
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.judging import Judged
    from ledger.v1 import options_pb2

__all__ = ["ask_gate", "evaluate"]


def evaluate(
    context: typer.Context,
    update: UpdateArgument,
    step: StepOption,
    record: Annotated[bool, typer.Option("--record", help="Write the verdict to the log.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Let the gate judge an update at the log's present size. HOLD is exit code 1.

    Without --record nothing is written; a pointer can only move on a recorded PROMOTE.
    A PROMOTE whose approval expired meanwhile is shown as HOLD and cannot be recorded.
    """
    from clients.cli.parse import parse_step
    from clients.cli.show import emit

    judged = wait_for(ask_gate(session_of(context), update, parse_step(step), record))
    emit(judged.document(), as_json, judged.show)
    if judged.holds:
        raise typer.Exit(Exit.HOLD)


async def ask_gate(
    session: Session, update: str, step: options_pb2.Step.ValueType, record: bool = False
) -> Judged:
    """The gate's judgement beside the receipt. Raises AssayError."""
    from clients.cli.desk import open_desk
    from clients.cli.judging import judge
    from ledger.errors import RefusedError

    # A recorded verdict is the operator's wish; looking is anybody's.
    roles = ("operator", *READERS) if record else READERS
    async with open_desk(session, *roles) as desk:
        try:
            return await judge(desk, update, step, record=record)
        except RefusedError as error:
            if error.reason != "APPROVAL_EXPIRED":
                raise
            judged = await judge(desk, update, step)
            if judged.expired is None:
                raise
            raise RefusedError(
                "APPROVAL_EXPIRED", f"expected one in force, got none: {judged.expired}"
            ) from error
