"""Bad days: a server is away, a rollback stays half done, a verdict expires while nobody writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.cli.desk import now
from ledger.v1 import operator_pb2
from tests.cli.office import RESOURCE, SCOPE, Office

FIRST, SECOND = ("--as", "approver-1"), ("--as", "approver-2")
CANARY, DEFAULT = ("--step", "canary"), ("--step", "default")
ROLLBACK = ("rollback", RESOURCE, SCOPE, "--reason", "complaints")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A served office where nothing is published."""
    office = Office(tmp_path_factory.mktemp("office"))
    office.serve()
    try:
        yield office
    finally:
        assert [0, 0] == office.stop()


def _row(office: Office, update: str, *options: str) -> Any:
    rows = office.json("updates", *options)["updates"]
    return next((row for row in rows if row["update"] == update), None)


def _approve(office: Office, who: tuple[str, str], update: str, step: tuple[str, str], *more: object) -> Any:
    shown = office.run("evaluate", update, *step, "--json").document
    return office.json(*who, "approve", update, *step, "--digest", shown["evidence_digest"][:8], *more)


def test_a_baseline_needs_a_frame_and_a_reason(office: Office) -> None:
    """Where nothing at all is published the scope may be misspelt; a baseline has nothing but its reason."""
    baseline = ("publish", "baseline", RESOURCE, "sql-agent/en-internl", office.pin(f"{RESOURCE}/baseline"))
    refused = office.run(*baseline, "--reason", "in use before")
    assert (5, True) == (refused.code, "NO_FRAME: expected something published for" in refused.err)
    for reason in ("", "  "):
        silent = office.run(*baseline, "--reason", reason, "--anyway")
        assert (2, True) == (silent.code, "NO_REASON" in silent.err)
    adopted = office.json(*baseline, "--reason", "in use before", "--anyway")
    pointer = next(p for p in office.json("status")["pointers"] if p["scope"] == "sql-agent/en-internl")
    assert (RESOURCE, "BASELINE (ungated)") == (pointer["resource"], pointer["origin"])
    assert adopted["index"] == office.json("default", RESOURCE, "sql-agent/en-internl")["index"]


def test_a_frame_that_is_complete_says_what_comes_next(office: Office) -> None:
    """Its pointers are shown at once, though no update names them, and the next command is proposing."""
    office.publish()
    status = office.json("status")
    assert [SCOPE] == status["ready"]
    assert SCOPE in {pointer["scope"] for pointer in status["pointers"]}
    assert f"nothing is missing in {SCOPE}; next: assay update propose" in office.run("status").out


def test_a_rollback_without_a_gate(office: Office) -> None:
    """Nothing is recorded without a gate; an open request is named everywhere and carried out by a retry."""
    candidate = office.candidate("A")
    update = office.scenario.update_id(candidate)
    office.propose(update)
    office.train(candidate)
    office.import_scores(candidate)
    office.rehearse(candidate)
    shown = office.json("evaluate", update, *CANARY, code=1)
    assert "no approval" in shown["findings"][6]["sentence"]
    _approve(office, FIRST, update, CANARY)
    canary = office.json("evaluate", update, *CANARY, "--record")
    office.go_live(candidate, canary["index"], canary["not_after"])
    _approve(office, SECOND, update, DEFAULT)
    office.json("evaluate", update, *DEFAULT, "--record")
    promoted = office.json("promote", update)

    size = office.json("status")["size"]
    assert 0 == office.stop_last()
    away = office.run(*ROLLBACK)
    assert (7, True) == (away.code, "nothing was recorded" in away.err)
    assert "start it: assay serve gate" in away.err
    explained = office.run("explain", update)
    assert (7, 1) == (explained.code, explained.err.count("assay serve"))
    assert "GATE_AWAY: expected an answer, got none from the gate on 127.0.0.1:" in explained.err
    status = office.json("status", code=7)
    assert (True, False, size) == (status["ledger_answers"], status["gate_answers"], status["size"])
    office.serve("gate")

    # A request that somebody recorded, and that no gate carried out.
    asked = operator_pb2.RollbackRequested(
        resource=RESOURCE, scope=office.scenario.scope, promotion_index=promoted["index"], reason="by night"
    )
    request = office.write("operator-1", [asked])
    assert f"a rollback at index {request}, not carried out" in office.run("status").out
    waiting = _row(office, update, "--waiting")["waits_for"]
    carry = f"assay rollback {RESOURCE} {SCOPE} --reason … carries it out"
    assert [f"the rollback that was asked for at index {request} ({carry})"] == waiting
    undone = office.json(*ROLLBACK)
    assert (request, True, request + 1) == tuple(
        undone[key] for key in ("request_index", "request_reused", "index")
    )

    # It was the default; nobody waits for it until somebody takes it up again.
    assert undone["index"] == _row(office, update)["rolled_back"]
    assert f"was           rolled back at index {undone['index']}" in office.run("updates").out
    assert _row(office, update, "--waiting") is None
    assert 0 == office.json("status")["waiting"]


def test_a_verdict_that_expired_on_a_quiet_log(office: Office) -> None:
    """By the real clock it expired: updates, receipt and the next step say so, while the log is quiet."""
    candidate = office.candidate("A").model_copy(update={"name": "lapse"})
    update = office.scenario.update_id(candidate)
    office.propose(update)
    office.train(candidate)
    office.import_scores(candidate)
    office.rehearse(candidate)
    _approve(office, FIRST, update, CANARY, "--valid-for", "4s")
    recorded = office.json("evaluate", update, *CANARY, "--record")
    while not (row := _row(office, update))["expired"]:
        assert now() < recorded["not_after"] + 60_000_000
    assert (True, recorded["not_after"]) == (row["stands"], row["not_after"])
    text = office.run("updates").out
    assert "PROMOTE_TO_BOUNDED_CANARY (canary), expired at 20" in text
    assert "UTC; approve again" in text
    assert "; expired at 20" in office.run("receipt", update).out
    assert "; stands" not in office.run("receipt", update).out
    assert "canary" == office.json("explain", update, code=1)["step"]
    lacks = _row(office, update, "--waiting")["waits_for"]
    assert f"(assay --as approver-1 approve {update} --step canary)" in lacks[-1]


def test_approving_is_for_approvers(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the role that may; without a digest --json says so; Ctrl-C approves nothing."""
    update = office.scenario.update_id(office.candidate("A").model_copy(update={"name": "lapse"}))
    other = office.run("--as", "trainer-1", "approve", update, *CANARY)
    assert (5, True) == (other.code, "OTHER_ROLE: expected approver for this, got trainer-1" in other.err)
    unseen = office.json(*FIRST, "approve", update, *CANARY, code=2)
    assert "DIGEST_ABSENT" == unseen["reason"]

    def broken_off(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("clients.cli.approve._read_line", broken_off)
    stopped = office.run(*FIRST, "approve", update, *CANARY)
    assert (130, True) == (stopped.code, "nothing was approved" in stopped.err)


def test_a_ledger_that_is_away_is_named(tmp_path: Path) -> None:
    """Without any server both are named, and `status` answers with exit code 7."""
    office = Office(tmp_path)
    ran = office.run("updates")
    assert 7 == ran.code
    assert "got none from the ledger on 127.0.0.1:" in ran.err
    assert "and the gate on 127.0.0.1:" in ran.err
    assert "UNREACHABLE (UNAVAILABLE; assay serve ledger)" in office.run("status").out
