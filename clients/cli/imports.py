"""`assay import`: evidence that other tools left in files, as events of the roles that may claim it.

Rules:
1. Twice is once (clients.cli.sending).
2. Nothing is made up and nothing dropped: the report says what was absent or odd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clients.cli.app import JsonFlag, group, session_of, wait_for
from ledger.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clients.cli.app import Session
    from clients.importers.evaluations import Evaluation, Rows
    from clients.importers.source import Imported
    from clients.importers.trajectories import Frame, Report

__all__ = ["imports"]

imports = group("Import evidence from files. Importing the same file again changes nothing.")

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, show_default=False)
]
_DIGEST = "64 hex digits, or @FILE for the SHA-256 of a file"
_MANY: Final = 20  # line numbers shown to people; JSON has them all
_MODES: Final = ("train", "val", "holdout", "canary")


@imports.command()
def trajectories(
    context: typer.Context,
    file: FileArgument,
    workflow: Annotated[str, typer.Option("--workflow", help="Declared workflow.", show_default=False)],
    version: Annotated[int, typer.Option("--workflow-version", min=1, show_default=False)],
    judge: Annotated[
        str,
        typer.Option(
            "--judge-version", help="Rule that gave the rewards, and its version.", show_default=False
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="Begins every rollout id.", show_default="the file's name without ending"
        ),
    ] = None,
    update: Annotated[
        str | None, typer.Option("--update", help="The update that the rollouts serve.")
    ] = None,
    mode: Annotated[str, typer.Option("--mode", metavar="|".join(_MODES))] = "train",
    dimension: Annotated[str, typer.Option("--dimension", help="What was rewarded.")] = "task_reward",
    resource: Annotated[
        str | None, typer.Option("--resource-digest", help=f"Manifest of what ran: {_DIGEST}.")
    ] = None,
    blobs: Annotated[
        Path | None,
        typer.Option("--blobs", file_okay=False, help="Folder for spans too long for the log, by digest."),
    ] = None,
    upload: Annotated[
        bool, typer.Option("--upload-blobs", help="Send such spans to the ledger's store of content.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Import a tau-bench result file: rollouts, attempts, spans (runner) and rewards (judge).

    The file holds no times and no cost of the agent; both stay absent.
    A run cut at the step limit is a TIMEOUT; its reward is taken as given.
    """
    from clients.cli.parse import parse_digest
    from clients.importers.trajectories import Frame
    from ledger.v1 import runner_pb2

    if mode not in _MODES:
        raise typer.BadParameter(f"--mode: expected one of {', '.join(_MODES)}, got {mode!r}")
    frame = Frame(
        name=name or file.name.partition(".")[0],
        workflow=workflow,
        workflow_version=version,
        mode=runner_pb2.Mode.Value(f"MODE_{mode.upper()}"),
        judge_version=judge,
        dimension=dimension,
        update=update,
        resource_digest=None if resource is None else parse_digest(resource, "--resource-digest"),
    )
    _import_trajectories(session_of(context), file.read_bytes(), frame, blobs, upload, as_json)


def _import_trajectories(
    session: Session, data: bytes, frame: Frame, blobs: Path | None, upload: bool, as_json: bool
) -> None:
    from hashlib import sha256

    from clients.cli.sending import send
    from clients.cli.show import emit, lines
    from clients.importers.trajectories import Report, read_trajectories

    frame, warnings = wait_for(_as_declared(session, frame))
    options = asdict(frame) | {"resource_digest": (frame.resource_digest or b"").hex()}
    if frame.inline:
        del options["inline"]  # what was imported before there was a choice is sent again as it was
    source, report = sha256(data).digest(), Report()
    total = sum(1 for _ in read_trajectories(data, frame, Report()))  # all of it is read before any is sent
    wait_for(_check_rollouts(session, read_trajectories(data, frame, Report())))
    items = _kept(read_trajectories(data, frame, report), blobs)
    sent = wait_for(send(session, ("runner", "judge"), items, source, options, total))
    if upload:
        wait_for(_upload(session, read_trajectories(data, frame, Report())))
    document = {
        "source": source.hex(),
        "sent": asdict(sent),
        "report": _report(report),
        "warnings": warnings,
    }
    warned = [f"WARNING: {warning}" for warning in warnings]
    emit(
        document,
        as_json,
        lambda: lines(sent.line(), *_report_lines(report, blobs, upload, frame.inline), *warned),
    )


async def _upload(session: Session, items: Iterable[Imported]) -> None:
    """Sends content that events name by digest, after the events: so none of it is ever an orphan."""
    from io import BytesIO

    from clients.blobs import BlobsClient
    from clients.cli.desk import open_desk

    async with open_desk(session, "runner") as desk:
        client = BlobsClient(desk.ledger)
        for item in items:
            if item.blob is not None:
                await client.put(BytesIO(item.blob))


async def _check_rollouts(session: Session, items: Iterable[Imported]) -> None:
    from clients.cli.desk import open_desk
    from clients.cli.sending import check_rollouts

    async with open_desk(session, "judge") as desk:
        await check_rollouts(desk.receipts, items)


async def _as_declared(session: Session, frame: Frame) -> tuple[Frame, list[str]]:
    """The frame with the content rule of its workflow, and why nothing of what is imported will count.

    As far as both can be told beforehand.
    """
    from clients.cli.desk import open_desk
    from clients.cli.whole import fold_log
    from ledger.errors import CannotTellError
    from ledger.v1 import operator_pb2

    workflow, version, update = frame.workflow, frame.workflow_version, frame.update

    async with open_desk(session, "judge") as desk:
        try:
            receipts = (await fold_log(desk, "read declarations")).receipts
        except CannotTellError as error:
            return frame, [f"whether these rollouts will count cannot be told by this release: {error}"]
    warnings = []
    declared = receipts.registry.workflow(workflow, version, receipts.size)
    if declared is not None and declared.body.content_rule == operator_pb2.CONTENT_RULE_BLOB:
        frame = replace(frame, inline=False)
    if declared is None:
        warnings.append(
            f"{workflow} version {version} is not declared in this log: nothing says what its rollouts must "
            "show"
        )
    if update is None:
        warnings.append("no --update: these rollouts stand in the log and count for no update")
    elif receipts.proposal(update) is None:
        warnings.append(f"nobody proposed {update}: these rollouts count for nothing")
    elif not receipts.update(update).of("update_frozen"):
        warnings.append(f"{update} is not frozen: rollouts from before the freeze do not count")
    return frame, warnings


def _kept(items: Iterable[Imported], folder: Path | None) -> Iterator[Imported]:
    """Passes items on; content that an event names by digest only goes into `folder`, if there is one."""
    from hashlib import sha256

    for item in items:
        if item.blob is not None and folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / sha256(item.blob).hexdigest()).write_bytes(item.blob)
        yield item


def _report(report: Report) -> dict[str, Any]:
    return {
        "runs": report.runs,
        "tasks": len(report.tasks),
        "attempts": report.attempts,
        "spans": dict(report.spans),
        "tool_calls": report.tool_call_ids.total(),
        "tool_call_ids": len(report.tool_call_ids),
        "tool_call_ids_repeated_in_run": report.repeated_in_run,
        "rewards": {repr(value): count for value, count in sorted(report.rewards.items())},
        "unscorable": report.unscorable,
        "absent_costs": report.absent_costs,
        "simulator_bills": report.simulator_bills,
        "cut_at_step_limit": [f"task {task} trial {trial}" for task, trial in report.cut],
        "blobs": report.blobs,
        "odd": dict(report.odd),
    }


def _report_lines(report: Report, blobs: Path | None, upload: bool, inline: bool) -> Iterator[str]:
    from clients.cli.show import counted

    said = _report(report)
    runs, tasks = counted(said["runs"], "run"), counted(said["tasks"], "task")
    yield f"  {runs} of {tasks}, {counted(said['attempts'], 'attempt')}"
    yield f"  spans: {', '.join(f'{count} {family}' for family, count in said['spans'].items()) or 'none'}"
    ids = counted(said["tool_call_ids"], "id")
    yield f"  {counted(said['tool_calls'], 'tool call')} with {ids}: one id stands for several calls"
    rewards = ", ".join(f"{count} × {value}" for value, count in said["rewards"].items())
    yield f"  rewards: {rewards or 'none'}"
    yield f"  cost: absent for {counted(said['absent_costs'], 'attempt')}, and left absent"
    if said["simulator_bills"]:
        yield f"  {said['simulator_bills']} bills of the user simulator: not the agent's cost, not imported"
    if said["cut_at_step_limit"]:
        yield f"  cut at the step limit, recorded as TIMEOUT: {', '.join(said['cut_at_step_limit'])}"
    if said["unscorable"]:
        yield f"  {counted(said['unscorable'], 'run')} without a reward, recorded as unscorable"
    if said["blobs"]:
        places = [*([] if blobs is None else [f"in {blobs}"]), *(["in the ledger's store"] if upload else [])]
        kept = " and ".join(places) or "not kept (--upload-blobs)"
        why = "too long for the log" if inline else "declared to stand outside the log"
        yield f"  {said['blobs']} spans {why}: it holds their digests; their content is {kept}"
    yield from (f"  odd: {count} × {what}" for what, count in said["odd"].items())


@imports.command()
def evaluations(
    context: typer.Context,
    file: FileArgument,
    update: Annotated[
        str, typer.Option("--update", help="The update that was evaluated.", show_default=False)
    ],
    evaluator: Annotated[
        str | None, typer.Option("--evaluator", help=_DIGEST, show_default="the update's pin")
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help=f"Holdout: {_DIGEST}", show_default="the update's pin")
    ] = None,
    harness: Annotated[
        str | None, typer.Option("--harness", help=_DIGEST, show_default="the update's pin")
    ] = None,
    parent: Annotated[
        str | None, typer.Option("--parent", help=f"Manifest: {_DIGEST}", show_default="the update's pin")
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", help=f"Manifest: {_DIGEST}", show_default="the update's candidate"),
    ] = None,
    case: Annotated[str, typer.Option("--case", help="Key of the case id.")] = "case",
    family: Annotated[str | None, typer.Option("--family", help="Key of the case's family.")] = None,
    subject: Annotated[str, typer.Option("--subject", help="Key of what was evaluated.")] = "subject",
    trial: Annotated[str, typer.Option("--trial", help="Key of the trial, from 0.")] = "trial",
    score: Annotated[str, typer.Option("--score", help="Key of the score.")] = "score",
    parent_is: Annotated[
        str, typer.Option("--parent-is", help="The parent in the subject column.")
    ] = "parent",
    candidate_is: Annotated[
        str, typer.Option("--candidate-is", help="The candidate in the subject column.")
    ] = "candidate",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Though cases are not of the holdout: they count for nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Import evaluation results (JSON Lines, a score a line) of parent and candidate, as the judge's claims.

    A score that is null or not there becomes unscorable, never 0.
    Only the first evaluation of each subject counts; a second one is an anomaly.
    """
    from clients.importers.evaluations import Columns, read_rows
    from ledger.v1 import judge_pb2

    columns = Columns(case=case, subject=subject, trial=trial, score=score, family=family)
    names = {parent_is: judge_pb2.SUBJECT_PARENT, candidate_is: judge_pb2.SUBJECT_CANDIDATE}
    if len(names) != len(judge_pb2.Subject.values()) - 1:
        raise typer.BadParameter(f"expected two different subjects, got {parent_is!r} twice")
    rows = read_rows(file.read_bytes(), columns, names)
    given = {
        "evaluator": evaluator,
        "snapshot": snapshot,
        "harness": harness,
        "parent": parent,
        "candidate": candidate,
    }
    options = {"update": update, "columns": asdict(columns), "subjects": [parent_is, candidate_is]}
    _import_evaluations(session_of(context), rows, update, given, options, anyway, as_json)


def _import_evaluations(
    session: Session,
    rows: Rows,
    update: str,
    given: Mapping[str, str | None],
    options: Mapping[str, Any],
    anyway: bool,
    as_json: bool,
) -> None:
    """Sends the rows; a pin that is not given is the update's own."""
    from clients.cli.parse import parse_digest
    from clients.cli.sending import send
    from clients.cli.show import emit, lines
    from clients.importers.evaluations import evaluation_events

    pins = {what: parse_digest(text, f"--{what}") for what, text in given.items() if text is not None}
    if missing := [what for what in given if what not in pins]:
        pins |= wait_for(_pins(session, update, missing))
    evaluation = _evaluation(rows, update, pins)
    items = list(evaluation_events(rows, evaluation))
    warnings = wait_for(_check_cases(session, rows, evaluation, anyway))
    shown = {what: pin.hex() for what, pin in sorted(pins.items())}
    sent = wait_for(send(session, ("judge",), items, rows.source, {**options, **shown}, len(items)))
    counts = _counts(rows)
    document = {"source": rows.source.hex(), "sent": asdict(sent), "report": counts, "pins": shown}
    document["warnings"] = warnings
    warned = [f"WARNING: {warning}" for warning in warnings]
    pinned = [f"  {what} {pin}" for what, pin in shown.items()]
    emit(document, as_json, lambda: lines(sent.line(), *_count_lines(counts), *pinned, *warned))


async def _check_cases(session: Session, rows: Rows, evaluation: Evaluation, anyway: bool) -> list[str]:
    """Warns where an evaluation was there before. Raises RefusedError OTHER_CASES unless `anyway`."""
    from clients.cli.desk import open_desk
    from clients.cli.whole import fold_log
    from ledger.v1 import judge_pb2

    async with open_desk(session, "judge") as desk:
        receipts = (await fold_log(desk, "read the holdout")).receipts
    holdout = receipts.registry.by_digest("holdout", evaluation.snapshot_digest, receipts.size)
    cases = {case.id for fact in holdout.facts for case in fact.body.cases} if holdout else set()
    if (others := [case for case in rows.families() if case not in cases]) and not anyway:
        raise RefusedError(
            "OTHER_CASES",
            f"expected cases of the holdout {evaluation.snapshot_digest.hex()[:16]}…, got {len(others)} of "
            f"{len(rows.families())} that are not, such as {others[0]!r}; name the key with --case, or say "
            "--anyway",
        )
    return [
        f"the {judge_pb2.Subject.Name(fact.body.subject).removeprefix('SUBJECT_').lower()} was evaluated "
        f"before, at index {fact.index}: only the first evaluation counts"
        for fact in receipts.update(evaluation.update).of("evaluation_recorded")
        if fact.body.part.number == 1
        and fact.body.evaluation != evaluation.evaluations.get(fact.body.subject)
        and fact.body.evaluator_digest == evaluation.evaluator_digest
        and fact.body.snapshot_digest == evaluation.snapshot_digest
    ]


def _evaluation(rows: Rows, update: str, pins: Mapping[str, bytes]) -> Evaluation:
    """One evaluation a subject, named after the source."""
    from clients.importers.evaluations import Evaluation
    from ledger.v1 import judge_pb2

    short = rows.source.hex()[:16]
    return Evaluation(
        update=update,
        evaluations={
            judge_pb2.SUBJECT_PARENT: f"import-{short}-parent",
            judge_pb2.SUBJECT_CANDIDATE: f"import-{short}-candidate",
        },
        evaluator_digest=pins["evaluator"],
        snapshot_digest=pins["snapshot"],
        harness_digest=pins["harness"],
        subject_digests={
            judge_pb2.SUBJECT_PARENT: pins["parent"],
            judge_pb2.SUBJECT_CANDIDATE: pins["candidate"],
        },
    )


def _counts(rows: Rows) -> dict[str, Any]:
    from ledger.v1 import judge_pb2

    return {
        "rows": len(rows.scores),
        "cases": len(rows.families()),
        "parent_scores": sum(row.subject == judge_pb2.SUBJECT_PARENT for row in rows.scores),
        "candidate_scores": sum(row.subject == judge_pb2.SUBJECT_CANDIDATE for row in rows.scores),
        "absent_scores_in_lines": [row.line for row in rows.scores if row.value is None],
    }


def _count_lines(counts: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {counts['rows']} scores of {counts['cases']} cases"
    yield f"  parent {counts['parent_scores']}, candidate {counts['candidate_scores']}"
    if absent := counts["absent_scores_in_lines"]:
        shown = ", ".join(map(str, absent[:_MANY]))
        yield f"  {len(absent)} scores absent, recorded as unscorable: lines {shown}"


async def _pins(session: Session, update: str, missing: list[str]) -> dict[str, bytes]:
    """What the update's governing freeze and its candidate say. Raises NotFoundError PIN_ABSENT."""
    from clients.cli.desk import open_desk
    from ledger.errors import NotFoundError

    async with open_desk(session, "judge") as desk:
        receipt = await desk.receipts.get_update(update)
    freezes, made = receipt["before"]["freezes"], receipt["after"]["candidates"]
    pins = freezes[-1]["claim"] if freezes else {}
    environment = {part["target"]: part["digest"] for part in pins.get("environment", [])}
    known = {
        "evaluator": pins.get("evaluator_digest"),
        "snapshot": pins.get("holdout_digest"),
        "harness": environment.get("ENVIRONMENT_TARGET_HARNESS"),
        "parent": pins.get("parent_digest"),
        "candidate": made[0]["claim"]["manifest_digest"] if made else None,
    }
    found: dict[str, bytes] = {}
    for what in missing:
        if (pin := known[what]) is None:
            raise NotFoundError("PIN_ABSENT", f"expected --{what}, since {update} pins none")
        found[what] = bytes.fromhex(pin)
    return found
