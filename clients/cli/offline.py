"""`assay verify`, `assay replay`: what an auditor does with a file and a trust document, and no network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clients.cli.app import JsonFlag
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from gate.replay import Replayed
    from ledger.head import Freshness
    from ledger.receipt import Receipts
    from ledger.verify import Verified

__all__ = ["replay", "verify"]

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        exists=True,
        help="Export file or folder of tiles (assay export).",
        show_default=False,
    ),
]
TrustOption = Annotated[
    Path,
    typer.Option(
        "--trust",
        exists=True,
        dir_okay=False,
        help="Trust document. Get it by another way than the file.",
        show_default=False,
    ),
]
MemoryOption = Annotated[
    Path | None,
    typer.Option(
        "--memory",
        file_okay=False,
        help="Folder of remembered checkpoints; they are what makes a rollback visible.",
        show_default="~/.local/state/assay/checkpoints",
    ),
]
MaxAgeOption = Annotated[
    str | None,
    typer.Option(
        "--max-age",
        metavar="DURATION",
        help="Refuse cosignatures of witnesses older than this, such as 24h, by this machine's clock.",
        show_default="any age",
    ),
]
ForgetOption = Annotated[bool, typer.Option("--forget", help="Neither use nor keep a remembered checkpoint.")]


def _memory(memory: Path | None, forget: bool) -> Path | None:
    from clients.cli.audit import default_memory

    if forget and memory is not None:
        raise typer.BadParameter("expected --memory or --forget, got both")
    return None if forget else memory or default_memory()


def _fresh(max_age: str | None) -> Freshness | None:
    from clients.cli.parse import parse_seconds
    from ledger.head import Freshness

    return None if max_age is None else Freshness(int(time.time()), parse_seconds(max_age))


def verify(
    file: FileArgument,
    trust: TrustOption,
    memory: MemoryOption = None,
    forget: ForgetOption = False,
    max_age: MaxAgeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Check a whole log: every signature, link, sequence, right to write, the checkpoint (V1 to V7).

    The first fault is named by index, step, expected and got.
    A pass is remembered, so that the next file of this log must continue this one.
    A partial bundle shows that its entries stand in the log and no more: CANNOT TELL, exit code 4.
    """
    from clients.cli.audit import Audit
    from clients.cli.show import counted, emit, lines, moment, pairs

    by = Audit.of(trust, _memory(memory, forget), _fresh(max_age))
    verified = by.verify(file)
    document = _document(verified, by.memory)
    entries = counted(verified.size, "entry", "entries")

    def show() -> None:
        lines(f"VERIFIED {file}")
        pairs(
            (
                ("origin", verified.origin),
                ("size", f"{entries} in {counted(verified.batches, 'batch', 'batches')}"),
                ("root", verified.root.hex()),
                ("recorded", f"{moment(verified.first_recorded_at)} to {moment(verified.last_recorded_at)}"),
                ("authors", ", ".join(f"{name} {count}" for name, count in sorted(verified.authors.items()))),
                ("witnesses", ", ".join(verified.witnesses) or "none: a split view cannot be excluded"),
                ("history", document["history"]),
                ("remembered in", by.memory),
            )
        )

    emit(document, as_json, show)


def _history(verified: Verified, memory: Path | None) -> str:
    if verified.remembered_size is not None:
        return f"continues the checkpoint of size {verified.remembered_size} that was remembered"
    if memory is None:
        return "rollback cannot be detected: nothing is remembered (--forget)"
    return "rollback cannot be detected yet: this is the first checkpoint remembered of this log"


def _document(verified: Verified, memory: Path | None) -> dict[str, Any]:
    return {
        "verified": True,
        "origin": verified.origin,
        "size": verified.size,
        "root": verified.root.hex(),
        "batches": verified.batches,
        "authors": dict(sorted(verified.authors.items())),
        "first_recorded_at": verified.first_recorded_at,
        "last_recorded_at": verified.last_recorded_at,
        "witnesses": list(verified.witnesses),
        "remembered_size": verified.remembered_size,
        "history": _history(verified, memory),
    }


def replay(
    file: FileArgument,
    trust: TrustOption,
    memory: MemoryOption = None,
    forget: ForgetOption = False,
    max_age: MaxAgeOption = None,
    update: Annotated[
        str | None, typer.Option("--update", help="Judge this update again at the file's end.")
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="canary|default", help="With --update: for which step.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the conduct of everybody with a power: re-derive every verdict, pointer move and freeze.

    Verifies (V1 to V7), then replays: R1 pointer moves, R2 verdicts, R3 freezes, pauses, resumes.
    With --update it prints the table of checks as of the file's last entry; a HOLD is exit code 1.
    """
    from clients.cli.audit import Audit
    from clients.cli.parse import parse_step
    from clients.cli.show import counted, emit, lines

    if (update is None) != (step is None):
        raise typer.BadParameter("expected --update and --step together")
    number = None if step is None else parse_step(step)
    by = Audit.of(trust, _memory(memory, forget), _fresh(max_age))
    verified, replayed, receipts = by.replay(file)
    document = _document(verified, by.memory) | _replayed(replayed)
    judged = None if update is None or number is None else _Judged.at_end(receipts, update, number)
    if judged is not None:
        document["judged"] = judged.document()

    def show() -> None:
        lines(
            f"REPLAYED {file}: {counted(verified.size, 'entry', 'entries')} of {verified.origin}",
            f"  {counted(replayed.verdicts, 'verdict')}, {counted(replayed.moves, 'pointer move')}, "
            f"{counted(replayed.freezes, 'freeze')}: each follows from what stands before it",
            f"  {document['history']}",
        )
        for void in replayed.unreplayable:
            lines(f"  cannot tell: index {void.index}: {void.message}")
        if judged is not None:
            judged.show()

    emit(document, as_json, show)
    if replayed.unreplayable:
        raise typer.Exit(Exit.CANNOT_TELL)
    if judged is not None and judged.holds:
        raise typer.Exit(Exit.HOLD)


def _replayed(replayed: Replayed) -> dict[str, Any]:
    return {
        "verdicts": replayed.verdicts,
        "moves": replayed.moves,
        "freezes": replayed.freezes,
        "unreplayable": [{"index": void.index, "message": void.message} for void in replayed.unreplayable],
    }


class _Judged:
    """One update, judged anew by the gate's own rules from the file alone."""

    def __init__(self, receipts: Receipts, update: str, step: int) -> None:
        from gate.judge import STEPS, RulesJudge
        from gate.report import frame_of, receipt_document

        self._judgement = RulesJudge().evaluate(receipts, update, step, receipts.size)
        self._receipt = receipt_document(receipts, update, receipts.size)
        self._frame = frame_of(self._receipt, STEPS[step])

    @classmethod
    def at_end(cls, receipts: Receipts, update: str, step: int) -> _Judged:
        """Raises NotFoundError NO_SUCH_UPDATE, CannotTellError RULES_UNKNOWN."""
        from ledger.errors import NotFoundError

        if update not in receipts.updates:
            known = ", ".join(list(receipts.updates)[:10]) or "none"
            raise NotFoundError(
                "NO_SUCH_UPDATE", f"expected an update of this log (such as {known}), got {update!r}"
            )
        return cls(receipts, update, step)

    @property
    def holds(self) -> bool:
        """Whether the verdict is HOLD."""
        from ledger.v1 import gate_pb2

        return self._judgement.verdict == gate_pb2.VERDICT_HOLD

    def document(self) -> dict[str, Any]:
        """As JSON types."""
        from clients.cli.findings import finding_documents
        from gate.report import verdict_name

        return self._frame | {
            "verdict": verdict_name(self._judgement.verdict),
            "findings": finding_documents(self._judgement.findings),
            "evidence_digest": self._judgement.evidence_digest.hex(),
            "findings_digest": self._judgement.findings_digest.hex(),
            "erased_content": self._receipt["during"]["erased_content"],
        }

    def show(self) -> None:
        """As a table."""
        from clients.cli.findings import show_findings, show_frame
        from clients.cli.oddities import erased_lines
        from clients.cli.show import lines

        lines("", f"update {self._frame['update']}")
        show_frame(self._frame)
        show_findings(self._judgement.verdict, self._judgement.findings)
        lines(f"evidence digest {self._judgement.evidence_digest.hex()}", *erased_lines(self._receipt))
