"""The whole path through real processes, by the command line: from an empty folder to a replayed rollback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clients.cli.main import app
from clients.demo.scenario import digest
from tests.cli.office import RESOURCE, SCOPE, Office
from tests.fixtures.imports import tau_file, tau_run

FIRST, SECOND = ("--as", "approver-1"), ("--as", "approver-2")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A served office with its frame published."""
    office = Office(tmp_path_factory.mktemp("office"))
    office.serve()
    try:
        office.publish()
        yield office
    finally:
        assert [0, 0] == office.stop()


def test_from_proposal_to_rollback(office: Office, tmp_path: Path) -> None:
    """An update is proposed, judged, approved, promoted, rolled back; an auditor follows it offline."""
    candidate = office.candidate("A")
    update = office.scenario.update_id(candidate)
    baseline, made = digest(f"{RESOURCE}/baseline").hex(), office.scenario.candidate_digest(candidate).hex()

    # Nothing yet, and it says so.
    assert office.json("default", RESOURCE, SCOPE)["origin"] == "BASELINE (ungated)"
    assert office.run("candidate", RESOURCE, SCOPE).code == 6
    missing = office.run("default", RESOURCE, "sql-agent/elsewhere")
    assert missing.code == 6
    assert "NO_DEFAULT" in missing.err
    assert office.run("explain", update).code == 6

    office.propose(update)
    assert ["the end of its training"] == _waits_for(office, update)
    office.train(candidate)
    sent = office.import_scores(candidate)
    assert sent["sent"]["events"] == 4
    again = office.import_scores(candidate)
    assert (4, sent["sent"]["first_index"]) == (again["sent"]["already"], again["sent"]["first_index"])
    assert [] == again["warnings"], "the same import is no second evaluation"
    scores = office.scores_file(candidate)
    named = ("--update", update, "--subject", "model", "--trial", "run", "--score", "points")
    named = (*named, "--parent-is", "old", "--candidate-is", "new")
    others = tmp_path / "others.jsonl"
    others.write_text(scores.read_text().replace('"task": "', '"task": "other-'))
    refused = office.run("import", "evaluations", others, *named, "--case", "task")
    assert refused.code == 5
    assert "OTHER_CASES" in refused.err
    lacks = [
        "canary: canary_verified MISSING WINDOW_ABSENT",
        "canary: rollback_and_authority MISSING APPROVAL_NONE REHEARSAL_ABSENT",
    ]
    assert lacks == _waits_for(office, update)
    unseen = office.run("approve", update, "--step", "canary", "--json")
    assert unseen.code == 2, "nobody approves what nobody shows"
    unnamed = office.run("approve", update, "--step", "canary", "--digest", "00000000")
    assert unnamed.code == 5
    assert "assay --as approver-1" in unnamed.err, "nobody is picked for a person"
    refused = office.run(*FIRST, "approve", update, "--step", "canary", "--digest", "00000000")
    assert refused.code == 5
    assert "NOT_READY" in refused.err
    assert "canary_verified MISSING" in refused.err
    office.rehearse(candidate)

    # Only the approval is missing: HOLD, exit 1, and the reason in words.
    explained = office.run("explain", update)
    assert explained.code == 1
    assert "nobody approved" in explained.out
    held = office.json("evaluate", update, "--step", "canary", code=1)
    assert ["rollback_and_authority"] == [f["check"] for f in held["findings"] if f["state"] != "PASS"]
    assert held["index"] is None

    # Approving takes the digest that is shown.
    approve = (*FIRST, "approve", update, "--step", "canary")
    first8 = held["evidence_digest"][:8]
    wrong = office.run(*approve, typed="deadbeef\n")
    assert wrong.code == 5
    assert "OTHER_DIGEST" in wrong.err
    assert first8 not in wrong.err, "the right digest is for the human to read"
    silent = office.run(*approve, typed="")
    assert silent.code == 2, "no answer is no approval, and no HOLD"
    assert "NOBODY_TYPED" in silent.err
    for malformed in ("ce0", "zzzzzzzz", ""):
        short = office.run(*approve, "--digest", malformed)
        assert short.code == 2
        assert "BAD_DIGEST" in short.err
    approved = office.run(*approve, typed=f"{first8}\n")
    assert approved.code == 0, approved.err
    assert "approved as approver-1" in approved.out

    recorded = office.json("evaluate", update, "--step", "canary", "--record")
    assert recorded["verdict"] == "PROMOTE_TO_BOUNDED_CANARY"
    early = office.run("promote", update)
    assert early.code == 6, "a canary verdict moves no pointer"
    office.go_live(candidate, recorded["index"], recorded["not_after"])

    final = office.json("explain", update, code=1)
    assert final["step"] == "default"
    given = office.json(
        *SECOND, "approve", update, "--step", "default", "--digest", final["evidence_digest"][:8]
    )
    assert given["by"] == "approver-2"
    assert office.json("evaluate", update, "--step", "default", "--record")["verdict"] == "PROMOTE_TO_DEFAULT"
    assert [f"nothing but a command (assay promote {update})"] == _waits_for(office, update)
    assert office.json("candidate", RESOURCE, SCOPE)["manifest_digest"] == made
    assert office.json("default", RESOURCE, SCOPE)["manifest_digest"] == baseline, "two pointers, never one"

    moved = office.json("promote", update)
    assert (baseline, made) == (moved["from"], moved["to"])
    shown = office.json("default", RESOURCE, SCOPE)
    assert (made, "promoted by the gate") == (shown["manifest_digest"], shown["origin"])
    assert [] == [row for row in office.json("updates", "--waiting")["updates"] if row["update"] == update]
    pointer = office.json("status")["pointers"][0]
    assert (made, made, []) == (pointer["default"], pointer["candidate"], pointer["at_risk"])

    # A change puts the promotion at risk, and says so.
    office.json("publish", "environment", SCOPE, "permissions", office.pin("wider permissions"))
    assert ["STALE_PERMISSIONS"] == office.json("default", RESOURCE, SCOPE)["at_risk"]
    risk = f"STALE_PERMISSIONS: serves all the same until assay rollback {RESOURCE} {SCOPE} --reason"
    for command in (("status",), ("default", RESOURCE, SCOPE)):
        assert risk in office.run(*command).out

    undone = office.json("rollback", RESOURCE, SCOPE, "--reason", "complaints")
    assert (baseline, update) == (undone["to"], undone["update"])
    assert office.json("default", RESOURCE, SCOPE)["manifest_digest"] == baseline
    nothing = office.run("rollback", RESOURCE, SCOPE, "--reason", "again")
    assert nothing.code == 5
    assert "NOTHING_TO_UNDO" in nothing.err

    _audited(office, tmp_path, update)


def _waits_for(office: Office, update: str) -> list[str]:
    rows = office.json("updates", "--waiting")["updates"]
    return next(row["waits_for"] for row in rows if row["update"] == update)


def _audited(office: Office, folder: Path, update: str) -> None:
    file, trust = folder / "log.assay", ("--trust", office.home / "trust.txt", "--forget")
    exported = office.json("export", file)
    assert office.run("export", file).code == 5, "an export never replaces a file unasked"
    assert exported["root"] == office.json("verify", file, *trust)["root"]
    replayed = office.json("replay", file, *trust)
    assert (2, 3, 1) == (replayed["verdicts"], replayed["moves"], replayed["freezes"])
    assert office.run("replay", file, *trust, "--update", update, "--step", "default").code == 1
    receipt = office.run("receipt", update)
    assert receipt.code == 0
    assert "whether it may become default" in receipt.out
    assert office.json("receipt", update)["after"]["rolled_back"]


def test_withdrawing_ends_an_approval(office: Office) -> None:
    """An approver takes its approval back: the update holds again, and the reason is in words."""
    candidate = office.candidate("B")
    update = office.scenario.update_id(candidate)
    office.propose(update)
    office.train(candidate)
    office.import_scores(candidate)
    office.rehearse(candidate)
    shown = office.json("evaluate", update, "--step", "canary", code=1)["evidence_digest"]
    # The window ran under other permissions than are pinned by now, so approving it needs --anyway.
    given = office.json(*FIRST, "approve", update, "--step", "canary", "--digest", shown[:8], "--anyway")
    for who, reason in (((), "WHICH_PRINCIPAL"), (SECOND, "NOT_THE_APPROVER")):
        other = office.run(*who, "withdraw", update, given["approval"])
        assert other.code == 5
        assert reason in other.err
    taken = office.json(*FIRST, "withdraw", update, given["approval"], "--reason", "seen too late")
    assert taken["by"] == "approver-1"
    twice = office.run(*FIRST, "withdraw", update, given["approval"])
    assert twice.code == 5
    assert "ALREADY_WITHDRAWN" in twice.err
    explained = office.json("explain", update, "--step", "canary", code=1)
    assert "APPROVAL_WITHDRAWN" in explained["findings"][6]["reasons"]
    assert office.run(*FIRST, "withdraw", update, "approval-none").code == 6


def test_trajectories_twice_are_once(office: Office, tmp_path: Path) -> None:
    """Importing a file again changes nothing, and a file that cannot be read imports nothing."""
    file = tmp_path / "airline.json"
    file.write_bytes(tau_file(tau_run(0, 0), tau_run(0, 1, 0.0), tau_run(1, 0, None)))
    frame = ("--workflow", "sql-agent", "--workflow-version", 1, "--judge-version", "tau-1")
    first = office.json("import", "trajectories", file, *frame)
    size = office.json("status")["size"]
    again = office.json("import", "trajectories", file, *frame)
    assert size == office.json("status")["size"]
    assert (0, first["sent"]["events"]) == (first["sent"]["already"], again["sent"]["already"])
    assert first["report"] == again["report"]
    assert (3, 3, 1) == tuple(first["report"][key] for key in ("runs", "absent_costs", "unscorable"))
    for other in ((*frame, "--update", "update-x"), (*frame[:-1], "tau-2")):
        taken = office.run("import", "trajectories", file, *other)
        assert taken.code == 5
        assert "ROLLOUT_TAKEN" in taken.err
        assert "--name" in taken.err
    assert size == office.json("status")["size"]
    text = office.run("import", "trajectories", file, *frame).out
    assert "cost: absent for 3 attempts, and left absent" in text
    file.write_bytes(tau_file(tau_run(5, 0), tau_run(5, 0)))
    broken = office.run("import", "trajectories", file, *frame)
    assert broken.code == 2
    assert "DUPLICATE_RUN" in broken.err
    assert size == office.json("status")["size"]


def test_what_the_operator_may_not_publish(office: Office) -> None:
    """A policy is linted and a protected set held against its holdout before anything is sent."""
    size = office.json("status")["size"]
    bad = office.run("publish", "policy", SCOPE, office.file('{"rules": 1}'))
    assert bad.code == 2
    assert "BAD_POLICY" in bad.err
    outside = office.file('{"case": "elsewhere-01", "family": "elsewhere"}\n')
    holdout = f"@{office.cases_file()}"
    for snapshot in (holdout, "00" * 32):
        ran = office.run(
            "publish", "protected-set", SCOPE, outside, "--snapshot", snapshot, "--protect", "elsewhere"
        )
        assert ran.code == 5
        assert "PROTECTED_OUTSIDE_HOLDOUT" in ran.err
    assert office.run("publish", "baseline", RESOURCE, SCOPE, "latest", "--reason", "x").code == 2
    assert size == office.json("status")["size"]


def test_who_may_act(office: Office) -> None:
    """--as names the principal; one of another role is refused before anything is sent."""
    other = office.run("--as", "trainer-1", "approve", "update-A", "--step", "canary")
    assert other.code == 5
    assert "OTHER_ROLE" in other.err
    nobody = office.run("--as", "nobody", "status")
    assert nobody.code == 6
    assert nobody.err.count("\n") == 1


def test_tail_names_authors_of_batches(office: Office) -> None:
    """An entry in the middle of a batch is shown with the author that its batch's first entry names."""
    lines = office.run("tail", "--from", 5).out.splitlines()
    assert "root-1" in lines[0]
    assert "key_granted" in lines[0]
    assert len(lines) == office.json("status")["size"] - 5
    assert office.run("tail").out.count("\n") == 20
    assert office.run("tail", "--from", 10**9).code == 2


def test_the_demo_runs(tmp_path: Path) -> None:
    """`assay demo` ends well, and keeps its log where it was told to: an auditor can replay that."""
    kept = tmp_path / "kept"
    ran = CliRunner().invoke(app, ["demo", "--json", "--keep", str(kept)])
    assert ran.exit_code == 0, ran.stderr
    assert {"A", "B", "C", "D"} == {shown["candidate"] for shown in json.loads(ran.stdout)["candidates"]}
    trust = ["--trust", str(kept / "home" / "trust.txt"), "--forget"]
    held = ["--update", "update-B", "--step", "canary"]
    assert CliRunner().invoke(app, ["replay", str(kept / "log.export"), *trust, *held]).exit_code == 1
