"""`assay explain`: why an update may or may not go on, down to the entries; what does not count, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clients.cli.app import READERS, JsonFlag, UpdateArgument, session_of, wait_for
from clients.cli.exits import Exit

if TYPE_CHECKING:
    from clients.cli.app import Session
    from clients.cli.judging import Judged
    from clients.cli.oddities import Uncounted

__all__ = ["explain"]

_MANY: Final = 20  # fallen cases shown to people; JSON has them all


def explain(
    context: typer.Context,
    update: UpdateArgument,
    step: Annotated[
        str | None,
        typer.Option(
            "--step", metavar="canary|default", help="Which step.", show_default="the one before the update"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Why an update may or may not go on: each check, its reasons in words, its counts, the entries it cites.

    Windows, evaluations and other claims that do not count are named with the reason.
    The gate judges at the log's present size and writes nothing. HOLD is exit code 1.
    """
    from clients.cli.parse import parse_step
    from clients.cli.show import emit

    session = session_of(context)
    told = wait_for(_explained(session, update, None if step is None else parse_step(step)))
    emit(told.document(), as_json, told.show)
    if told.judged.holds:
        raise typer.Exit(Exit.HOLD)


@dataclass(frozen=True, slots=True)
class _Explained:
    judged: Judged
    uncounted: list[Uncounted]

    @property
    def fallen(self) -> list[dict[str, Any]]:
        """Protected cases that are worse than the parent's, by family, with both exact means."""
        cases: list[dict[str, Any]] = self.judged.receipt["after"]["protected_cases_fallen"]
        return cases

    def document(self) -> dict[str, Any]:
        """As JSON types."""
        return self.judged.document() | {
            "does_not_count": [item.document() for item in self.uncounted],
            "anomalies": self.judged.receipt["anomalies"],
            "protected_cases_fallen": self.fallen,
            "erased_content": self.judged.receipt["during"]["erased_content"],
        }

    def show(self) -> None:
        """As text."""
        from clients.cli.oddities import erased_lines, uncounted_lines
        from clients.cli.show import lines

        self.judged.show(details=True)
        if self.fallen:
            lines("", "protected cases that fell, parent → candidate")
            lines(*map(_fallen_line, self.fallen[:_MANY]))
            if (more := len(self.fallen) - _MANY) > 0:
                lines(f"  … {more} more (--json)")
        anomalies = self.judged.receipt["anomalies"]
        if anomalies:
            lines("", "does not count")
            lines(*uncounted_lines(self.uncounted, anomalies, self.judged.verdict.update))
        if erased := list(erased_lines(self.judged.receipt)):
            lines("", "erased, which changes no check", *erased)


async def _explained(session: Session, update: str, step: Any) -> _Explained:
    from clients.cli.desk import open_desk
    from clients.cli.judging import judge, next_step
    from clients.cli.oddities import find_uncounted

    async with open_desk(session, *READERS) as desk:
        chosen = next_step(await desk.receipts.get_update(update)) if step is None else step
        judged = await judge(desk, update, chosen)
        return _Explained(judged, await find_uncounted(desk, judged.receipt))


def _fallen_line(case: Mapping[str, Any]) -> str:
    before, now = (_decimal(case[mean]) for mean in ("parent_mean", "candidate_mean"))
    return f"  {case['family']} {case['case']}: {before} → {now}"


def _decimal(mean: str) -> str:
    """An exact mean to four places, `0.5` for `1/2`."""
    return f"{float(Fraction(mean)):.4f}".rstrip("0").rstrip(".")
