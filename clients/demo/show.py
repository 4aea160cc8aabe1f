"""The demonstration's result for people: one table, then what else was shown."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clients.demo.run import DemoResult
from gate.reasons import CHECKS

__all__ = ["show_result"]

_COLOURS = {"PASS": "green", "FAIL": "red", "MISSING": "yellow", "ERROR": "magenta", "STALE": "blue"}


def _verdict(text: str) -> Text:
    return Text(text, style="bold red" if text == "HOLD" else "bold green")


def _gain(gain: float | None) -> str:
    return "MISSING" if gain is None else f"{gain:+.2f}"


def _frame(frame: dict[str, Any]) -> str:
    """What the verdict is about and up to when: a verdict says nothing beyond it (law 19)."""

    def short(name: str) -> str:
        return "MISSING" if frame[name] is None else f"{frame[name][:12]}…"

    windows = ", ".join(frame["canary_windows"]) or "no window"
    cut_off = "MISSING" if frame["data_cut_off"] is None else f"entry {frame['data_cut_off']}"
    return (
        f"{frame['resource']} in {frame['scope']}, step {frame['step']}; data cut-off {cut_off}; "
        f"evaluator {short('evaluator')}; parent {short('parent')}; {windows}"
    )


def show_result(console: Console, result: DemoResult) -> None:
    """Prints candidates × checks with verdicts and reasons, the refusal, the pointers, the audit, the end."""
    _show_table(console, result)
    for shown in result.candidates:
        console.print(Text(f"\n{shown['candidate']}  {shown['verdict']}", style="bold"), f" {shown['story']}")
        console.print(f"   covers {_frame(shown['covers'])}", highlight=False, style="dim")
        for number, check in enumerate(CHECKS, start=1):
            if shown["states"][check] != "PASS":
                codes = ", ".join(shown["reasons"][check])
                console.print(f"   {number} {check}: {codes}", highlight=False)
                console.print(f"     {shown['sentences'][check]}", highlight=False, style="dim")
    _show_learner(console, result)
    _show_audit(console, result)
    _show_kept(console, result)
    _show_end(console, result)


def _show_table(console: Console, result: DemoResult) -> None:
    table = Table(title="candidate × check, step canary", title_justify="left")
    table.add_column("check")
    for shown in result.candidates:
        table.add_column(shown["candidate"], justify="center")
    for number, check in enumerate(CHECKS, start=1):
        states = [shown["states"][check] for shown in result.candidates]
        table.add_row(f"{number} {check}", *(Text(state, style=_COLOURS[state]) for state in states))
    table.add_section()
    table.add_row("holdout gain", *(_gain(shown["gain_decimal"]) for shown in result.candidates))
    table.add_row(
        "verdict", *(_verdict(shown["verdict"].replace("_TO_", "\nTO_")) for shown in result.candidates)
    )
    console.print(table)


def _show_learner(console: Console, result: DemoResult) -> None:
    learner, pointers = result.learner, result.pointers
    console.print("\nThe learner wrote itself a verdict, with its own valid key:", style="bold")
    said = f"refused, {learner['reason']}: {learner['message']}" if learner["refused"] else "ACCEPTED"
    console.print(f"   {said}", highlight=False)
    console.print(f"\nTwo pointers of {pointers['resource']} in {pointers['scope']}:", style="bold")
    console.print(
        f"   approved default  {pointers['approved_default'][:16]}…  {pointers['approved_default_origin']}, "
        f"entry {pointers['approved_default_index']}",
        highlight=False,
    )
    if pointers["latest_candidate"] is None:
        console.print("   latest candidate  none was registered", highlight=False)
    else:
        console.print(
            f"   latest candidate  {pointers['latest_candidate'][:16]}…  "
            f"{pointers['latest_candidate_update']}, entry {pointers['latest_candidate_index']}: "
            "no authority",
            highlight=False,
        )


def _show_audit(console: Console, result: DemoResult) -> None:
    audit = result.audit
    moves = f"{audit['moves_replayed']} pointer move{'' if audit['moves_replayed'] == 1 else 's'}"
    console.print("\nOffline, from one file and a trust document:", style="bold")
    console.print(
        f"   verified  {audit['size']} entries, {audit['batches']} batches, every signature, "
        f"root {audit['root'][:16]}…\n"
        f"   replayed  {audit['verdicts_replayed']} verdicts, {audit['freezes_replayed']} freezes, {moves}",
        highlight=False,
    )
    flipped = audit["flipped_bit"]
    console.print(
        f"   one bit flipped at byte {flipped['byte']}: {flipped.get('says', 'NOT FOUND')}", highlight=False
    )


def _show_kept(console: Console, result: DemoResult) -> None:
    if result.kept is None:
        return
    home, export = result.kept / "home", result.kept / "log.export"
    console.print(f"\nKept in {result.kept}:", style="bold")
    console.print(
        f"   assay verify {export} --trust {home / 'trust.txt'}\n"
        f"   assay --home {home} serve ledger   (then `serve gate`, then `status`)",
        highlight=False,
        soft_wrap=True,
    )


def _show_end(console: Console, result: DemoResult) -> None:
    if result.failures:
        console.print("\nNot as it should be:", style="bold red")
        for failure in result.failures:
            console.print(f"   {failure}", style="red", highlight=False)
    elif result.shipped:
        console.print(f"\nAll as it should be, in {result.seconds:.1f} s.", style="bold green")
    else:
        console.print(
            f"\n{result.promoted} of {len(result.candidates)} promoted; export verified and replayed, "
            f"in {result.seconds:.1f} s.",
            style="bold",
        )
