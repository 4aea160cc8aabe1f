"""A verdict as a table of checks, with the frame that it holds in (law 19). Nothing here is judged.

The frame (resource, scope, step, data cut-off, evaluator, parent, canary windows) comes from the receipt; the
findings come from whoever judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clients.cli.show import counted, lines, pairs, table
from gate.reasons import CHECKS, REASONS
from gate.report import sentence, state_name, verdict_name
from ledger.v1 import gate_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["blockers", "finding_documents", "show_findings", "show_frame", "why"]

# What check 7 says where nobody who may has approved exactly this: the right approval mends all of it.
_APPROVAL = frozenset(
    {
        "APPROVAL_NONE",
        "APPROVAL_OTHER_DIGEST",
        "APPROVAL_EXPIRED",
        "APPROVAL_WITHDRAWN",
        "APPROVER_NOT_NAMED",
        "APPROVER_NOT_INDEPENDENT",
    }
)


def show_frame(frame: Mapping[str, Any]) -> None:
    """The frame in two columns; what is not there is said to be MISSING."""

    def said(name: str) -> str:
        return "MISSING" if frame[name] is None else str(frame[name])

    windows = ", ".join(frame["canary_windows"]) or "MISSING"
    pairs(
        (
            ("resource", said("resource")),
            ("scope", said("scope")),
            ("step", frame["step"]),
            ("candidate", said("candidate")),
            ("parent", said("parent")),
            ("evaluator", said("evaluator")),
            ("data cut-off", said("data_cut_off")),
            ("canary windows", windows),
            ("judged at size", frame["log_size"]),
        )
    )


def why(finding: gate_pb2.Finding) -> str:
    """The reasons of a finding in words; empty where it passes."""
    return "; ".join(REASONS[code][1] if code in REASONS else code for code in finding.reasons)


def show_findings(
    verdict: int, findings: Sequence[gate_pb2.Finding], *, details: bool = False, expired: str | None = None
) -> None:
    """The verdict and its seven checks; `details` adds counts and the cited entries.

    `expired` says that approvals did since the log's last entry: check 7 passes by the log's clock alone.
    """
    lines(verdict_name(verdict) if expired is None else f"{verdict_name(verdict)}: {expired}")
    rows = [
        (
            number,
            finding.check,
            state_name(finding.state),
            sentence(finding) + (f" — {expired}" if expired and finding.check == CHECKS[6] else ""),
        )
        for number, finding in enumerate(findings, start=1)
    ]
    table(("", "check", "state", "what was found"), rows)
    for finding in findings if details else ():
        lines("", f"{state_name(finding.state)} {finding.check}")
        pairs(
            (
                ("reasons", ", ".join(finding.reasons) or None),
                ("in words", why(finding) or None),
                ("counts", ", ".join(f"{c.name}={c.value}" for c in finding.counts) or "none"),
                ("rests on", counted(finding.cited, "entry", "entries")),
                (
                    "these" if finding.cited == len(finding.cited_indexes) else "such as",
                    ", ".join(map(str, finding.cited_indexes)) or None,
                ),
            )
        )


def finding_documents(findings: Iterable[gate_pb2.Finding]) -> list[dict[str, Any]]:
    """Findings as JSON types."""
    return [
        {
            "number": CHECKS.index(finding.check) + 1 if finding.check in CHECKS else None,
            "check": finding.check,
            "state": state_name(finding.state),
            "reasons": list(finding.reasons),
            "sentence": sentence(finding),
            "counts": {count.name: count.value for count in finding.counts},
            "cited": finding.cited,
            "cited_root": finding.cited_root.hex(),
            "cited_indexes": list(finding.cited_indexes),
        }
        for finding in findings
    ]


def blockers(findings: Iterable[gate_pb2.Finding]) -> list[gate_pb2.Finding]:
    """Findings that no approval can mend: all that do not pass, but check 7 for want of a right approval."""
    return [
        finding
        for finding in findings
        if finding.state != gate_pb2.STATE_PASS
        and not (
            finding.check == CHECKS[6]
            and finding.state != gate_pb2.STATE_STALE
            and _APPROVAL.issuperset(finding.reasons)
        )
    ]
