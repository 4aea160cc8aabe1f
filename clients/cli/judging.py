"""A judgement by the gate, with the frame that it holds in: what explain, evaluate and approve share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clients.cli.desk import Desk
from clients.cli.findings import finding_documents, show_findings, show_frame
from clients.cli.show import lines, moment
from gate.judge import STEPS
from gate.report import frame_of, verdict_name
from gate.v1 import gate_pb2 as service_pb2
from ledger.v1 import gate_pb2, options_pb2, receipt_pb2

__all__ = ["Judged", "judge", "next_step"]


@dataclass(frozen=True, slots=True)
class Judged:
    """The gate's answer and the receipt that it was asked beside."""

    receipt: dict[str, Any]
    answer: service_pb2.EvaluateResponse

    @property
    def verdict(self) -> gate_pb2.VerdictIssued:
        """The verdict, recorded or not."""
        return self.answer.verdict

    @property
    def holds(self) -> bool:
        """Whether it is HOLD."""
        return self.verdict.verdict == gate_pb2.VERDICT_HOLD

    @property
    def frame(self) -> dict[str, Any]:
        """The frame, as of the size that the gate judged at."""
        return frame_of(self.receipt, STEPS[self.verdict.step]) | {"log_size": self.verdict.log_size}

    @property
    def approvers(self) -> list[str]:
        """Principals that the governing freeze pins as approvers of this step."""
        freezes = self.receipt["before"]["freezes"]
        pins: list[str] = (
            freezes[-1]["claim"].get(f"{STEPS[self.verdict.step]}_approvers", []) if freezes else []
        )
        return pins

    def document(self) -> dict[str, Any]:
        """As JSON types."""
        verdict = self.verdict
        return self.frame | {
            "verdict": verdict_name(verdict.verdict),
            "index": self.answer.index if self.answer.HasField("index") else None,
            "not_after": verdict.not_after if verdict.HasField("not_after") else None,
            "findings": finding_documents(verdict.findings),
            "evidence_digest": verdict.evidence_digest.hex(),
            "policy_digest": verdict.policy_digest.hex(),
            "findings_digest": verdict.findings_digest.hex(),
        }

    def show(self, *, details: bool = False) -> None:
        """As a table."""
        verdict = self.verdict
        lines(f"update {verdict.update}")
        show_frame(self.frame)
        show_findings(verdict.verdict, verdict.findings, details=details)
        lines(f"evidence digest {verdict.evidence_digest.hex()}")
        if verdict.HasField("not_after"):
            lines(f"holds until {moment(verdict.not_after)} at most")
        if self.answer.HasField("index"):
            lines(f"recorded at index {self.answer.index}")


async def judge(desk: Desk, update: str, step: options_pb2.Step.ValueType, *, record: bool = False) -> Judged:
    """Asks the gate, then for the receipt. Raises AssayError as both do."""
    receipt = await desk.receipts.get_update(update)
    return Judged(receipt, await desk.gate.evaluate(update, step, record=record))


def next_step(summary: receipt_pb2.UpdateSummary) -> options_pb2.Step.ValueType:
    """The step that an update has before it: `default` once a canary verdict stands, or beyond."""
    beyond = summary.stands and summary.verdict in (
        gate_pb2.VERDICT_PROMOTE_TO_BOUNDED_CANARY,
        gate_pb2.VERDICT_PROMOTE_TO_DEFAULT,
    )
    return options_pb2.STEP_DEFAULT if beyond else options_pb2.STEP_CANARY
