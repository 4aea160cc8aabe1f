"""A judgement by the gate, with the frame that it holds in: what explain, evaluate and approve share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clients.cli.desk import Desk, now
from clients.cli.findings import finding_documents, show_findings, show_frame
from clients.cli.show import lines, moment
from gate.judge import STEPS
from gate.report import frame_of, verdict_name
from gate.v1 import gate_pb2 as service_pb2
from ledger.v1 import gate_pb2, options_pb2

__all__ = [
    "Judged",
    "approval_command",
    "expiries",
    "in_force",
    "judge",
    "lapsed",
    "next_step",
    "pinned_approvers",
    "step_word",
]


def step_word(name: str) -> str:
    """`canary` for STEP_CANARY, as receipts spell it."""
    return name.removeprefix("STEP_").lower()


def lapsed(verdict: Mapping[str, Any], at: int) -> str | None:
    """When a receipt's verdict expired, in words, where it did before `at` (microseconds)."""
    not_after = verdict["not_after"]
    return None if not_after is None or not_after >= at else f"expired at {moment(not_after)}"


def in_force(verdict: Mapping[str, Any], at: int) -> bool:
    """Whether a receipt's verdict stands and did not expire before `at` (microseconds)."""
    return bool(verdict["stands"]) and lapsed(verdict, at) is None


def pinned_approvers(receipt: Mapping[str, Any], step: str) -> list[str]:
    """Principals that the governing freeze pins as approvers of a step; none before a freeze."""
    freezes = receipt["before"]["freezes"]
    pins: list[str] = freezes[-1]["claim"].get(f"{step}_approvers", []) if freezes else []
    return pins


def approval_command(approvers: Sequence[str], update: str, step: str) -> str:
    """How one of those whom the freeze names approves."""
    return f"assay --as {approvers[0] if approvers else 'APPROVER'} approve {update} --step {step}"


def expiries(receipt: Mapping[str, Any], step: str, now: int) -> list[str]:
    """Approvals of a step that expired before `now` (microseconds), in words."""
    return [
        f"approval {item['claim']['approval']} by {item['by']} expired at "
        f"{moment(item['claim']['expires_at'])}"
        for item in receipt["after"]["approvals"]
        if step_word(item["claim"]["step"]) == step
        and not item["withdrawn"]
        and item["claim"]["expires_at"] < now
    ]


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
    def step(self) -> str:
        """`canary` or `default`."""
        return STEPS[self.verdict.step]

    @property
    def holds(self) -> bool:
        """Whether it is HOLD, or a PROMOTE whose approvals expired since the log's last entry."""
        return self.verdict.verdict == gate_pb2.VERDICT_HOLD or self.answer.expired

    @property
    def expired(self) -> str | None:
        """What to do where approvals expired since the log's last entry; None where none did."""
        if not self.answer.expired:
            return None
        again = approval_command(self.approvers, self.verdict.update, self.step)
        return f"the approval expired at {moment(self.verdict.not_after)}; approve again: {again}"

    @property
    def shown_verdict(self) -> gate_pb2.Verdict.ValueType:
        """What people act on: HOLD where it holds."""
        return gate_pb2.VERDICT_HOLD if self.holds else self.verdict.verdict

    @property
    def frame(self) -> dict[str, Any]:
        """The frame, as of the size that the gate judged at."""
        return frame_of(self.receipt, self.step) | {"log_size": self.verdict.log_size}

    @property
    def approvers(self) -> list[str]:
        """Principals that the governing freeze pins as approvers of this step."""
        return pinned_approvers(self.receipt, self.step)

    @property
    def frozen_at(self) -> int | None:
        """Index of the governing freeze."""
        freezes = self.receipt["before"]["freezes"]
        index: int | None = freezes[-1]["index"] if freezes else None
        return index

    def document(self) -> dict[str, Any]:
        """As JSON types."""
        verdict = self.verdict
        return self.frame | {
            "verdict": verdict_name(self.shown_verdict),
            "expired": self.answer.expired,
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
        expired = f"the approval expired at {moment(verdict.not_after)}" if self.answer.expired else None
        show_findings(self.shown_verdict, verdict.findings, details=details, expired=expired)
        lines(f"evidence digest {verdict.evidence_digest.hex()}")
        if self.expired is not None:
            lines(self.expired)
        elif verdict.HasField("not_after"):
            lines(f"holds until {moment(verdict.not_after)} at most")
        if self.answer.HasField("index"):
            lines(f"recorded at index {self.answer.index}")


async def judge(desk: Desk, update: str, step: options_pb2.Step.ValueType, *, record: bool = False) -> Judged:
    """Asks the gate, then for the receipt. Raises AssayError as both do."""
    receipt = await desk.receipts.get_update(update)
    return Judged(receipt, await desk.gate.evaluate(update, step, record=record))


def next_step(receipt: Mapping[str, Any]) -> options_pb2.Step.ValueType:
    """The step that an update has before it: `default` once a PROMOTE is in force or a LIVE window counts."""
    after, at = receipt["after"], now()
    beyond = any(in_force(verdict, at) for verdict in after["verdicts"]) or any(
        window["live"] for window in after["windows"]
    )
    return options_pb2.STEP_DEFAULT if beyond else options_pb2.STEP_CANARY
