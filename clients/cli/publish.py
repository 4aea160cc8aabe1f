"""`assay publish`: the operator's frame, in which updates are judged. What is published is visible for ever.

Rules:
1. A publication says for which scope it is, so that everybody can tell what it makes stale.
2. What could only mislead is refused before it is sent: see `clients.cli.frame`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clients.cli.app import JsonFlag, ResourceArgument, ScopeArgument, group, session_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clients.cli.app import Session
    from gate.policy import Policy
    from ledger.v1 import operator_pb2, options_pb2

__all__ = ["publish"]

publish = group(
    "Publish the frame that updates are judged in (operator): policy, evaluator, holdout and the rest."
)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)
]
CaseOption = Annotated[str, typer.Option("--case", help="Key under which a line holds the case id.")]
FamilyOption = Annotated[
    str | None, typer.Option("--family", help="Key under which a line holds the case's family.")
]
_DIGEST = "64 hex digits, or @FILE for the SHA-256 of a file."


def _send(context: typer.Context, bodies: Sequence[Any], as_json: bool, **said: Any) -> None:
    """Appends events by the operator as one batch, and says where they stand and what was published."""
    from clients.cli.show import emit, lines, pairs

    index, name = wait_for(_append(session_of(context), bodies))
    document = {**said, "by": name, "index": index, "events": len(bodies)}

    def show() -> None:
        lines(f"published by {name} at index {index}")
        pairs(said.items())

    emit(document, as_json, show)


async def _append(session: Session, bodies: Sequence[Any]) -> tuple[int, str]:
    from clients.cli.desk import event, open_desk
    from ledger.v1 import event_pb2

    async with open_desk(session, "operator") as desk:
        events = [
            body.SerializeToString() if isinstance(body, event_pb2.Event) else event(body) for body in bodies
        ]
        placed = await desk.ledger.append(events)
        return placed.first_index, desk.identity.name


@publish.command()
def workflow(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="WORKFLOW", show_default=False)],
    version: Annotated[int, typer.Option("--version", min=1, metavar="N", show_default=False)],
    families: Annotated[
        list[str],
        typer.Option(
            "--family",
            metavar="NAME=N",
            help="Spans that a deciding attempt needs.",
            show_default=False,
        ),
    ],
    expected: Annotated[
        int,
        typer.Option("--expected-retries", min=0, metavar="N", help="Budget a rollout.", show_default=False),
    ],
    infrastructure: Annotated[
        int,
        typer.Option(
            "--infrastructure-retries", min=0, metavar="N", help="Budget a rollout.", show_default=False
        ),
    ],
    tool_contract: Annotated[
        str, typer.Option("--tool-contract", metavar="DIGEST", help=_DIGEST, show_default=False)
    ],
    destinations: Annotated[
        list[str] | None, typer.Option("--destination", metavar="NAME", help="Where effects are to be found.")
    ] = None,
    blobs: Annotated[
        bool, typer.Option("--blobs", help="Spans stand in blobs; the log refuses them inline.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Declare what a workflow's rollouts must show, before results are seen. A version is declared once."""
    from clients.cli.parse import parse_counts, parse_digest
    from clients.cli.show import emit, lines
    from ledger.v1 import operator_pb2, options_pb2

    minima = parse_counts(families, "--family", default=None)
    body = operator_pb2.WorkflowDeclared(
        workflow=name,
        version=version,
        span_families=[operator_pb2.SpanFamily(name=n, minimum=least) for n, least in minima.items()],
        retry_budget=options_pb2.RetryBudget(expected=expected, infrastructure=infrastructure),
        destinations=destinations or [],
        tool_contract_digest=parse_digest(tool_contract, "--tool-contract"),
        content_rule=operator_pb2.CONTENT_RULE_BLOB if blobs else operator_pb2.CONTENT_RULE_INLINE,
    )
    standing = wait_for(_declared(session_of(context), body))
    if standing is not None:
        document = {"workflow": name, "version": version, "index": standing, "events": 0}
        emit(document, as_json, lambda: lines(f"declared already at index {standing}; nothing was changed"))
        return
    _send(context, [body], as_json, workflow=name, version=version)


async def _declared(session: Session, body: operator_pb2.WorkflowDeclared) -> int | None:
    """Index of an equal declaration. Raises RefusedError VERSION_EXISTS."""
    from clients.cli.desk import open_desk
    from clients.cli.frame import check_version
    from clients.cli.whole import fold_log

    async with open_desk(session, "operator") as desk:
        return check_version((await fold_log(desk, "read declarations")).receipts, body)


@publish.command()
def policy(
    context: typer.Context,
    scope: ScopeArgument,
    file: FileArgument,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Though it names principals that this log does not know so.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Publish the gate's thresholds (JSON). Linted first; the text is published byte for byte.

    Whoever it names must hold a key of that role in this log.
    """
    from clients.cli.parse import parse_scope
    from gate.policy import parse_policy, policy_digest
    from ledger.v1 import operator_pb2

    document = file.read_bytes()
    parsed = parse_policy(document)
    if not anyway:
        wait_for(_check_principals(session_of(context), parsed))
    body = operator_pb2.PolicyPublished(scope=parse_scope(scope, any_segment=True), document=document)
    said = {"policy": f"{parsed.name} {parsed.version}", "digest": policy_digest(document).hex()}
    _send(context, [body], as_json, scope=scope, **said)


async def _check_principals(session: Session, parsed: Policy) -> None:
    from clients.cli.desk import open_desk
    from clients.cli.frame import check_principals
    from clients.cli.whole import fold_log

    async with open_desk(session, "operator") as desk:
        check_principals(parsed, (await fold_log(desk, "read grants")).roles())


@publish.command()
def evaluator(
    context: typer.Context,
    scope: ScopeArgument,
    name: Annotated[str, typer.Option("--name", show_default=False)],
    digest: Annotated[str, typer.Option("--digest", help=_DIGEST, show_default=False)],
    better: Annotated[
        str,
        typer.Option("--better", metavar="higher|lower", help="Which scores are better.", show_default=False),
    ],
    as_json: JsonFlag = False,
) -> None:
    """Publish the evaluator in force: its code, prompts, judge model and configuration under one digest."""
    from clients.cli.parse import parse_digest, parse_scope
    from ledger.v1 import operator_pb2

    directions = {
        "higher": operator_pb2.DIRECTION_HIGHER_IS_BETTER,
        "lower": operator_pb2.DIRECTION_LOWER_IS_BETTER,
    }
    if better not in directions:
        raise typer.BadParameter(f"--better: expected higher or lower, got {better!r}")
    pin = parse_digest(digest, "--digest")
    body = operator_pb2.EvaluatorPublished(
        scope=parse_scope(scope, any_segment=True), name=name, digest=pin, direction=directions[better]
    )
    _send(context, [body], as_json, scope=scope, evaluator=name, digest=pin.hex())


@publish.command("tool-contract")
def tool_contract(
    context: typer.Context,
    scope: ScopeArgument,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help=_DIGEST, show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Publish which tools agents in this scope may call, and how."""
    from clients.cli.parse import parse_digest, parse_scope
    from ledger.v1 import operator_pb2

    pin = parse_digest(digest, "DIGEST")
    body = operator_pb2.ToolContractPublished(scope=parse_scope(scope, any_segment=True), digest=pin)
    _send(context, [body], as_json, scope=scope, digest=pin.hex())


@publish.command()
def environment(
    context: typer.Context,
    scope: ScopeArgument,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="task-distribution, permissions, destination, model-server, retry-policy, harness or "
            "tokenizer.",
            show_default=False,
        ),
    ],
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help=_DIGEST, show_default=False)],
    old: Annotated[
        str | None, typer.Option("--old", help="What stood there before; left out for the first statement.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """State what evidence is made in, or that it is now something else."""
    from clients.cli.parse import parse_digest, parse_scope
    from ledger.v1 import operator_pb2, options_pb2

    name = f"ENVIRONMENT_TARGET_{target.replace('-', '_').upper()}"
    known = [word for word, number in options_pb2.EnvironmentTarget.items() if number]
    if name not in known:
        shown = ", ".join(n.removeprefix("ENVIRONMENT_TARGET_").lower().replace("_", "-") for n in known)
        raise typer.BadParameter(f"TARGET: expected one of {shown}, got {target!r}")
    pin = parse_digest(digest, "DIGEST")
    body = operator_pb2.EnvironmentChanged(
        scope=parse_scope(scope, any_segment=True),
        target=options_pb2.EnvironmentTarget.Value(name),
        old_digest=None if old is None else parse_digest(old, "--old"),
        new_digest=pin,
    )
    _send(context, [body], as_json, scope=scope, target=target, digest=pin.hex())


@publish.command()
def snapshot(
    context: typer.Context,
    scope: ScopeArgument,
    file: FileArgument,
    purpose: Annotated[
        str, typer.Option("--purpose", metavar="holdout|train", help="What it is for.", show_default=False)
    ],
    case: CaseOption = "case",
    family: FamilyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Publish a set of cases from a JSON Lines file: ids and families, never content.

    Its digest is SHA-256 of the file. Case ids are seen by everybody who reads the log.
    """
    from clients.cli.cases import read_cases
    from clients.cli.parse import parse_scope
    from clients.importers.evaluations import snapshot_events
    from ledger.v1 import operator_pb2

    purposes = {
        "holdout": operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT,
        "train": operator_pb2.SNAPSHOT_PURPOSE_TRAIN,
    }
    if purpose not in purposes:
        raise typer.BadParameter(f"--purpose: expected holdout or train, got {purpose!r}")
    rows = read_cases(file.read_bytes(), case, family)
    place = parse_scope(scope, any_segment=True)
    events = [item.event for item in snapshot_events(rows, place, rows.source, purposes[purpose])]
    said = {"purpose": purpose, "cases": len(rows.scores), "digest": rows.source.hex()}
    _send(context, events, as_json, scope=scope, **said)


@publish.command("protected-set")
def protected_set(
    context: typer.Context,
    scope: ScopeArgument,
    file: FileArgument,
    snapshot: Annotated[
        str, typer.Option("--snapshot", help="Digest of the holdout it lies within.", show_default=False)
    ],
    protect: Annotated[
        list[str],
        typer.Option(
            "--protect",
            metavar="FAMILY[=BUDGET]",
            help="A family, and how many of its cases may regress (0 unless said; never all).",
            show_default=False,
        ),
    ],
    case: CaseOption = "case",
    family: FamilyOption = "family",
    as_json: JsonFlag = False,
) -> None:
    """Publish the cases that must not regress; refused unless they lie within the published holdout."""
    from clients.cli.cases import protected_digest, read_cases
    from clients.cli.frame import check_budgets
    from clients.cli.parse import parse_counts, parse_digest, parse_scope
    from clients.importers.evaluations import protected_set_events

    budgets = parse_counts(protect, "--protect", default=0)
    rows = read_cases(file.read_bytes(), case, family)
    check_budgets(rows, budgets)
    pin = parse_digest(snapshot, "--snapshot")
    digest = protected_digest(rows, pin, budgets)
    place = parse_scope(scope, any_segment=True)
    events = [item.event for item in protected_set_events(rows, place, digest, pin, budgets)]
    wait_for(_check_protected(session_of(context), events, pin))
    said = {"families": ", ".join(budgets), "snapshot": pin.hex(), "digest": digest.hex()}
    _send(context, events, as_json, scope=scope, **said)


async def _check_protected(session: Session, events: Sequence[Any], pin: bytes) -> None:
    from clients.cli.cases import check_within, published_cases
    from clients.cli.desk import open_desk
    from clients.cli.show import progress

    cases: set[str] = set()
    async with open_desk(session, "operator") as desk:
        size = (await desk.ledger.get_checkpoint()).size
        with progress("read the holdout", size) as advance:
            async for _, entry in desk.ledger.read(0, size):
                cases |= published_cases([entry], pin)
                advance(1)
    check_within(events, cases, pin)


@publish.command()
def baseline(
    context: typer.Context,
    resource: ResourceArgument,
    scope: ScopeArgument,
    digest: Annotated[str, typer.Argument(metavar="DIGEST", help=f"Manifest: {_DIGEST}", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Kept in the log.", show_default=False)],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Though nothing is published for this scope.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Adopt the first default of a resource in a scope: once, visibly, and shown as BASELINE (ungated)."""
    from clients.cli.parse import parse_digest, parse_scope
    from ledger.errors import FormatError, RefusedError
    from ledger.v1 import operator_pb2

    pin = parse_digest(digest, "DIGEST")
    if not reason.strip():
        raise FormatError("NO_REASON", "expected a --reason, got an empty one: it is all that a baseline has")
    if not anyway:
        wait_for(_check_framed(session_of(context), parse_scope(scope)))
    body = operator_pb2.BaselineAdopted(
        resource=resource, scope=parse_scope(scope), manifest_digest=pin, reason=reason
    )
    try:
        _send(context, [body], as_json, resource=resource, scope=scope, baseline=f"{pin.hex()} (ungated)")
    except RefusedError as error:
        if error.reason != "CONDITION_FAILED":
            raise
        raise RefusedError(
            "BASELINE_EXISTS",
            f"expected {resource} in {scope} without a baseline, got one with; only a promotion moves its "
            f"default from now on: assay default {resource} {scope}",
        ) from error


async def _check_framed(session: Session, scope: options_pb2.Scope) -> None:
    from clients.cli.desk import open_desk
    from clients.cli.frame import check_framed
    from clients.cli.whole import fold_log

    async with open_desk(session, "operator") as desk:
        check_framed((await fold_log(desk, "read what is published")).receipts, scope.workflow, scope.segment)
