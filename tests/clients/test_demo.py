"""The demonstration's file and what it leaves behind: nothing is clamped, nothing claimed that was not so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from clients.demo.document import check_approvers, parse_document, solved_by, solved_by_parent
from clients.demo.run import run_demo, shipped_candidates
from clients.demo.show import show_result
from clients.home import load_home
from clients.servers import ServerProcess, ledger_command
from ledger.errors import FormatError, RefusedError
from tests.memory import small

APPROVERS = ("approver-1", "approver-2")


def _ignore(_what: str, _so_far: int, _total: int) -> None:
    """Nobody watches."""


def _edited(change: Callable[[dict[str, Any]], object]) -> bytes:
    raw = json.loads(shipped_candidates())
    change(raw)
    return json.dumps(raw).encode()


def _evaluation(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda raw: raw["candidates"][0]["evaluation"].update(fields)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_evaluation(gain="2"), "A.evaluation.gain: expected -0.48 to 0.32"),
        (_evaluation(gain="0.33"), "A.evaluation.gain: expected -0.48 to 0.32"),
        (_evaluation(gain="0.31", protected_regressions=2), "A.evaluation.gain: expected -0.5 to 0.3"),
        (_evaluation(gain="0.001"), "a multiple of 1/100"),
        (_evaluation(protected_regressions=13), "expected at most 12"),
        (_evaluation(unscored_cases=101), "expected at most 100"),
        (lambda raw: raw["candidates"][0]["rollback"].update(resolved="yes"), "resolved"),
        (lambda raw: raw["candidates"][0]["candidate"].update(second=1), "second"),
        (lambda raw: raw["candidates"][1].update(name="A"), "different names"),
        (lambda raw: raw.update(more=1), "more"),
        (lambda raw: raw["candidates"][1]["training"].update(rollouts=2001), "B.training.rollouts: "),
        (lambda raw: raw["candidates"][1].pop("training"), "B.training: Field required"),
    ],
)
def test_what_cannot_be_is_refused(change: Callable[[dict[str, Any]], object], expected: str) -> None:
    """An impossible value is refused with what would be possible; none runs as something else."""
    data = _edited(lambda raw: (raw["candidates"][0].setdefault("candidate", {}), change(raw)))
    with pytest.raises(FormatError, match="BAD_CANDIDATES") as caught:
        parse_document(data)
    assert expected in caught.value.message
    assert "{" not in caught.value.message, "an object is not shown"


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[]", b""])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    """Broken JSON is a malformed file, whatever breaks it."""
    with pytest.raises(FormatError, match="BAD_CANDIDATES"):
        parse_document(data)


@pytest.mark.parametrize(("gain", "regressions"), [("0.32", 0), ("-0.48", 0), ("0.2", 12), ("-0.6", 12)])
def test_what_can_be_reached_is_reached(gain: str, regressions: int) -> None:
    """At both ends of what is possible the solved cases give exactly the gain that the file says."""
    document = parse_document(_edited(_evaluation(gain=gain, protected_regressions=regressions)))

    spec, holdout = document.candidates[0].evaluation, document.holdout
    before, after = solved_by_parent(holdout), solved_by(holdout, spec)
    protected = set(holdout.cases(holdout.protected))
    assert int(spec.gain * 100) == len(after) - len(before)
    assert regressions == len((before - after) & protected)


def test_who_may_approve_is_said() -> None:
    """A trainer or an unknown name as approver is refused with what is possible, and null is possible."""
    for by in ("trainer-1", "nobody", "gate-1"):
        document = parse_document(_edited(lambda raw, by=by: raw["candidates"][2]["approval"].update(by=by)))
        with pytest.raises(FormatError, match="expected approver-1 or approver-2, or null for nobody, got"):
            check_approvers(document, APPROVERS)
    nobody = parse_document(_edited(lambda raw: raw["candidates"][2]["approval"].update(by=None)))
    check_approvers(nobody, APPROVERS)


def test_a_policy_names_the_demos_principals() -> None:
    """A judge that the demo's home lacks, or who has another role there, is refused before anything runs."""
    for name, got in (("judge-9", "judge-9, whom the demo's home lacks"), ("gate-1", "gate-1, gate")):
        data = _edited(lambda raw, name=name: raw["policy"]["principals"].update(judges=[name]))
        with pytest.raises(FormatError, match=f"policy.principals.judges: expected judge-1, .*{got}"):
            run_demo(data, None, _ignore)


def test_a_file_of_ones_own_is_shown_not_judged(tmp_path: Path) -> None:
    """Nobody approves A: MISSING and HOLD. The end says what was promoted, and what is kept can be served."""

    def nobody_approves(raw: dict[str, Any]) -> None:
        small(raw)
        raw["candidates"] = raw["candidates"][:1]
        raw["candidates"][0]["approval"]["by"] = None

    kept = tmp_path / "kept"
    kept.mkdir()
    result = run_demo(_edited(nobody_approves), kept, _ignore)
    shown = result.candidates[0]
    assert ("HOLD", ["APPROVAL_NONE"]) == (shown["verdict"], shown["reasons"]["rollback_and_authority"])
    assert ([], False, 0, kept) == (result.failures, result.shipped, result.promoted, result.kept)
    text = StringIO()
    show_result(Console(file=text, width=200), result)
    assert "All as it should be" not in text.getvalue()
    assert "0 of 1 promoted; export verified and replayed" in text.getvalue()
    assert f"assay --home {kept / 'home'} serve ledger" in text.getvalue()


async def test_what_is_kept_serves_again(tmp_path: Path) -> None:
    """The kept home names the address that it was served on, and its ledger serves there again."""

    def one(raw: dict[str, Any]) -> None:
        small(raw)
        raw["candidates"] = raw["candidates"][:1]

    home = tmp_path / "kept" / "home"
    await _in_thread(lambda: run_demo(_edited(one), tmp_path / "kept", _ignore))
    document = load_home(home)
    assert not document.ledger.endswith(":0")
    async with ServerProcess(ledger_command(home, document), tmp_path / "servers.log") as ledger:
        assert document.ledger == ledger.address


async def _in_thread(work: Callable[[], object]) -> object:

    return await asyncio.to_thread(work)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    """--keep on a folder with something in it, or on a file, is refused before anything runs."""
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(RefusedError, match="FOLDER_EXISTS"):
            run_demo(None, place, _ignore)
    assert ["notes.txt"] == [item.name for item in tmp_path.iterdir()]
