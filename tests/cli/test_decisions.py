"""Decisions that go wrong: what is refused before it is written, what does not count, and what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from clients.cli.desk import now
from clients.demo.document import Candidate
from ledger.v1 import approver_pb2, options_pb2
from tests.cli.office import RESOURCE, SCOPE, Office
from tests.events import minimal_event
from tests.fixtures.imports import tau_file, tau_run

FIRST, SECOND = ("--as", "approver-1"), ("--as", "approver-2")
CANARY, DEFAULT = ("--step", "canary"), ("--step", "default")


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


def _named(office: Office, name: str, **evaluation: Any) -> Candidate:
    """Candidate A under another name, evaluated otherwise."""
    model = office.candidate("A")
    told = model.evaluation.model_copy(update=evaluation)
    return model.model_copy(update={"name": name, "evaluation": told})


def _until_rehearsed(office: Office, candidate: Candidate) -> str:
    update = office.scenario.update_id(candidate)
    office.propose(update)
    office.train(candidate)
    office.import_scores(candidate)
    office.rehearse(candidate)
    return update


def _approve(office: Office, who: tuple[str, str], update: str, step: tuple[str, str], *more: object) -> Any:
    shown = office.run("evaluate", update, *step, "--json").document
    return office.json(*who, "approve", update, *step, "--digest", shown["evidence_digest"][:8], *more)


def _waits_for(office: Office, update: str) -> list[str]:
    rows = office.json("updates", "--waiting")["updates"]
    lacks: list[str] = next(row["waits_for"] for row in rows if row["update"] == update)
    return lacks


def _size(office: Office) -> int:
    size: int = office.json("status")["size"]
    return size


def test_only_who_is_named_approves(office: Office) -> None:
    """An approver whom the freeze does not name is refused with the names, and nothing is written."""
    update = _until_rehearsed(office, _named(office, "named"))
    size, held = _size(office), office.json("evaluate", update, *CANARY, code=1)
    digest = held["evidence_digest"]
    other = office.run(*SECOND, "approve", update, *CANARY, "--digest", digest[:8])
    assert other.code == 5
    assert "APPROVER_NOT_NAMED" in other.err
    assert "expected approver-1, named for step canary by the freeze at index" in other.err
    assert "assay --as approver-1" in other.err
    assert size == _size(office)
    lacks = [
        "canary: rollback_and_authority MISSING APPROVAL_NONE",
        f"an approval by approver-1 (assay --as approver-1 approve {update} --step canary)",
    ]
    assert lacks == _waits_for(office, update)

    # One that another client wrote fails check 7, and is no hindrance to the approver who is named.
    granted = approver_pb2.ApprovalGranted(
        update=update,
        approval="approval-unnamed",
        step=options_pb2.STEP_CANARY,
        evidence_digest=bytes.fromhex(digest),
        policy_digest=bytes.fromhex(held["policy_digest"]),
        expires_at=now() + 3_600_000_000,
    )
    office.write("approver-2", [granted])
    failed = office.json("evaluate", update, *CANARY, code=1)["findings"][6]
    assert ("FAIL", ["APPROVER_NOT_NAMED"]) == (failed["state"], failed["reasons"])
    assert _approve(office, FIRST, update, CANARY)["by"] == "approver-1"
    assert office.json("evaluate", update, *CANARY)["verdict"] == "PROMOTE_TO_BOUNDED_CANARY"


def test_an_approval_that_expired_on_a_quiet_log(office: Office) -> None:
    """By the real clock it expired: HOLD, exit 1, when, and approve again; a verdict cannot be recorded."""
    update = _until_rehearsed(office, _named(office, "quiet"))
    given = _approve(office, FIRST, update, CANARY, "--valid-for", "1s")
    while not (judged := office.run("evaluate", update, *CANARY, "--json").document)["expired"]:
        assert now() < given["expires_at"] + 60_000_000
    assert judged["verdict"] == "HOLD"
    shown = office.run("evaluate", update, *CANARY)
    assert shown.code == 1
    assert "HOLD" in shown.out
    again = f"approve again: assay --as approver-1 approve {update} --step canary"
    said = shown.out.splitlines()
    held, row = (next(line for line in said if word in line) for word in ("HOLD", "7  roll"))
    assert held.startswith("HOLD: the approval expired at 20")
    assert " — the approval expired at 20" in row
    assert again in shown.out
    refused = office.run("evaluate", update, *CANARY, "--record")
    assert refused.code == 5
    assert "APPROVAL_EXPIRED" in refused.err
    assert [1, 1] == [refused.err.count("approve again"), refused.err.count(again)]
    assert str(given["expires_at"])[:8] not in refused.err
    said, again = _waits_for(office, update)
    assert said.startswith(f"approval {given['approval']} by approver-1 expired at 20")
    assert said.endswith(" UTC")
    assert f"assay --as approver-1 approve {update} --step canary" in again
    assert str(given["expires_at"]) not in office.run("updates", "--waiting").out
    assert _approve(office, FIRST, update, CANARY)["by"] == "approver-1"
    assert office.json("evaluate", update, *CANARY, "--record")["verdict"] == "PROMOTE_TO_BOUNDED_CANARY"


def test_what_does_not_count_is_named(office: Office) -> None:
    """A LIVE window on a HOLD is accepted, counts for nothing, and explain says why; receipt has words."""
    candidate = _named(office, "uncounted")
    update = _until_rehearsed(office, candidate)
    hold = office.json("evaluate", update, *CANARY, "--record", code=1)
    office.go_live(candidate, hold["index"], now() + 3_600_000_000)
    told = office.json("explain", update, *DEFAULT, code=1)
    window = f"window live-{candidate.name}"
    voids = [item for item in told["does_not_count"] if item["what"] == window]
    assert [("LIVE_WINDOW_VOID", f"it rests on the HOLD at index {hold['index']}")] == [
        (item["code"], item["why"]) for item in voids
    ]
    text = office.run("explain", update, *DEFAULT).out
    assert f"{window}: LIVE_WINDOW_VOID, it rests on the HOLD at index {hold['index']}" in text
    receipt = office.run("receipt", update).out
    assert "LIVE_WINDOW_VOID (the verdict that it rests on did not stand when it started)" in receipt
    assert "step canary: HOLD\n" in receipt
    assert "STEP_" not in receipt + office.run("tail").out
    assert "expected a PROMOTE" not in receipt


def test_erased_content_is_shown_and_changes_nothing(office: Office) -> None:
    """explain and receipt say ERASED and by which entry; the evidence digest is the one of before."""
    candidate = _named(office, "erased")
    update = _until_rehearsed(office, candidate)
    digest, rollout = bytes(range(32)), office.scenario.rollout_id(candidate, 0)
    blob = options_pb2.Blob(digest=digest, size=9)
    office.send("runner-1", [minimal_event("span_recorded", rollout=rollout, blob=blob)])
    before = office.json("explain", update, code=1)
    erased = office.json("blob", "erase", digest.hex(), "--reason", "asked for")
    after = office.json("explain", update, code=1)
    shown = [{"rollout": rollout, "digest": digest.hex(), "erased": erased["index"]}]
    assert [[], shown] == [told["erased_content"] for told in (before, after)]
    assert before["evidence_digest"] == after["evidence_digest"]
    line = f"  {rollout}: content {digest.hex()} ERASED by the entry at index {erased['index']}\n"
    for command in ("explain", "receipt"):
        assert line in office.run(command, update).out


def test_protected_cases_that_fell_are_named(office: Office) -> None:
    """explain lists family and case with both means."""
    update = _until_rehearsed(office, _named(office, "fell", protected_regressions=1, gain=Decimal("0.2")))
    told = office.json("explain", update, code=1)
    assert [("refunds", "refunds-01", "1", "0")] == [
        tuple(case[key] for key in ("family", "case", "parent_mean", "candidate_mean"))
        for case in told["protected_cases_fallen"]
    ]
    assert "refunds refunds-01: 1 → 0" in office.run("explain", update).out


def test_promoting_on_a_hold_and_promoting_twice(office: Office) -> None:
    """A HOLD is named as one, the way on is said, and a second promotion says where the first one stands."""
    candidate = _named(office, "twice")
    update = _until_rehearsed(office, candidate)
    _approve(office, FIRST, update, CANARY)
    recorded = office.json("evaluate", update, *CANARY, "--record")
    office.go_live(candidate, recorded["index"], recorded["not_after"])
    hold = office.json("evaluate", update, *DEFAULT, "--record", code=1)
    refused = office.run("promote", update)
    assert refused.code == 5
    assert (
        f"VERDICT_HOLDS: expected a recorded PROMOTE_TO_DEFAULT, got the HOLD at index {hold['index']}"
        in refused.err
    )
    assert "rollback_and_authority MISSING" in refused.err
    assert "changed meanwhile" not in refused.err
    assert "default: rollback_and_authority MISSING APPROVAL_NONE" == _waits_for(office, update)[0]

    _approve(office, SECOND, update, DEFAULT)
    assert [f"nothing but a command (assay evaluate {update} --step default --record)"] == _waits_for(
        office, update
    )
    office.json("evaluate", update, *DEFAULT, "--record")
    assert [f"nothing but a command (assay promote {update})"] == _waits_for(office, update)
    first = office.json("promote", update)
    size = _size(office)
    second = office.json("promote", update)
    assert (False, True, first["index"]) == (first["already"], second["already"], second["index"])
    assert f"already promoted at index {first['index']}" in office.run("promote", update).out
    assert size == _size(office)
    candidate_says = office.run("candidate", RESOURCE, SCOPE).out
    assert "no authority" in candidate_says
    assert f"the approved default, by the entry at index {first['index']}" in candidate_says
    assert office.json("rollback", RESOURCE, SCOPE, "--reason", "done")["update"] == update


def test_what_nothing_asks_for_is_refused(office: Office) -> None:
    """Resuming what is not paused and freezing what is frozen are refused, and say what stands."""
    update = "update-frozen"
    office.propose(update)
    size = _size(office)
    again = office.run("update", "freeze", update)
    assert again.code == 5
    assert (
        f"ALREADY_FROZEN: expected an update not frozen yet, got {update}, frozen at {size - 1}" in again.err
    )
    assert f"assay update refreeze {update}" in again.err
    resumed = office.run("update", "resume", update, "--reason", "x")
    assert resumed.code == 5
    assert "NOT_PAUSED" in resumed.err
    assert office.run("update", "resume", "update-none", "--reason", "x").code == 6
    assert size == _size(office)


def test_a_refused_freeze_is_not_to_be_tried_again(office: Office) -> None:
    """An update whose freeze the gate refused waits for nothing that freezing again would give."""
    proposed = (
        *("update", "propose", "update-orphan", RESOURCE, SCOPE, "--kind", "model.lora", "--code", "4f1c0de"),
        *("--parent", "ab" * 32, "--training-snapshot", f"@{office.train_file()}"),
        *("--config", office.pin("grpo"), "--workflow-version", 1),
        *("--harness", office.pin("environment/6/1"), "--tokenizer", office.pin("environment/7/1")),
    )
    office.json(*proposed)
    assert office.run("update", "freeze", "update-orphan").code == 5
    waits = _waits_for(office, "update-orphan")
    assert ["freeze refused"] == [line.partition(" at ")[0] for line in waits]
    assert "PARENT_NOT_DEFAULT" in waits[0]


def test_what_would_mislead_is_not_published(office: Office) -> None:
    """Other content under a declared version, unknown principals, budgets as wide as a family are refused."""
    size, contract = _size(office), office.pin("tool-contract/1")
    declare = ("publish", "workflow", "sql-agent", "--version", 1, "--tool-contract", contract)
    budget = ("--expected-retries", 1, "--infrastructure-retries", 2, "--destination", "reports")
    other = office.run(*declare, *budget, "--family", "llm.call=9")
    assert other.code == 5
    assert "VERSION_EXISTS" in other.err
    assert "got other span_families; declare the next version" in other.err
    families = [f"--family={n}={least}" for n, least in office.document.workflow.span_families.items()]
    same = office.json(*declare, *budget, *families)
    assert (0, size) == (same["events"], _size(office))

    policy = json.loads(office.document.policy_bytes)
    policy["principals"] |= {"judges": ["trainer-1"], "canary_approvers": ["approver-9"]}
    file = office.file(json.dumps(policy))
    unknown = office.run("publish", "policy", SCOPE, file)
    assert unknown.code == 5
    assert "judges: expected role judge, got trainer-1, role trainer" in unknown.err
    assert "canary_approvers: expected role approver, got approver-9, unknown to this log" in unknown.err
    wide = ("publish", "protected-set", SCOPE, office.cases_file(), "--snapshot", f"@{office.cases_file()}")
    whole = office.run(*wide, "--protect", "refunds=5")
    assert whole.code == 5
    assert "BUDGET_TOO_WIDE: expected a budget below 5, the cases of refunds, got 5" in whole.err
    assert size == _size(office)
    elsewhere = office.json("publish", "policy", "sql-agent/elsewhere", file, "--anyway")
    assert elsewhere["index"] == size
    missing = office.json("status")["missing"]
    assert {} == missing[SCOPE]
    assert "publish evaluator sql-agent/elsewhere …" == missing["sql-agent/elsewhere"]["evaluator"]
    assert "assay publish evaluator sql-agent/elsewhere …" in office.run("status").out


def test_a_baseline_is_adopted_once(office: Office) -> None:
    """A second baseline is refused, and the answer says what moves the default from then on."""
    size = _size(office)
    again = (RESOURCE, SCOPE, office.pin(f"{RESOURCE}/baseline"))
    twice = office.run("publish", "baseline", *again, "--reason", "again")
    assert twice.code == 5
    assert "BASELINE_EXISTS" in twice.err
    assert "only a promotion moves its default" in twice.err
    assert size == _size(office)


def test_an_export_overwrites_what_a_broken_one_left(office: Office, tmp_path: Path) -> None:
    """The half-written files of an export that was killed are no hindrance, and are gone afterwards."""
    file = tmp_path / "log.export"
    for left in (".log.export.unverified", "..log.export.unverified.partial"):
        (tmp_path / left).write_bytes(b"half")
    office.json("export", file)
    assert [file] == list(tmp_path.iterdir())


def test_an_export_of_tiles_goes_on_where_it_was(office: Office, tmp_path: Path) -> None:
    """A folder verifies and replays as a file does, and the next export extends it."""
    folder, trust = tmp_path / "site", ("--trust", office.home / "trust.txt", "--forget")
    for _ in range(2):
        exported = office.json("export", "--tiles", folder)
        verified = office.json("verify", folder, *trust)
        assert (exported["size"], exported["root"]) == (verified["size"], verified["root"])
        assert office.json("replay", folder, *trust)["root"] == exported["root"]
        assert {"checkpoint", "tile"} == {path.name for path in folder.iterdir()}
        office.send("runner-1", [minimal_event("rollout_enqueued")])
    for usage in (("export",), ("export", tmp_path / "log.export", "--tiles", folder)):
        assert office.run(*usage).code == 2
    next(path for path in (folder / "tile" / "0").rglob("*") if path.is_file()).write_bytes(b"short")
    damaged = office.run("verify", folder, *trust)
    assert damaged.code == 3
    assert damaged.err.startswith("assay: V5: BAD_TILE: ")


def test_an_import_that_will_not_count_says_so(office: Office, tmp_path: Path) -> None:
    """An undeclared workflow and rollouts of no update are imported with a warning each."""
    file = tmp_path / "runs.json"
    file.write_bytes(tau_file(tau_run(0, 0)))
    frame = ("--workflow", "airline", "--workflow-version", 1, "--judge-version", "tau-1")
    sent = office.json("import", "trajectories", file, *frame)
    assert ["airline version 1 is not declared", "no --update"] == [
        warning.partition(" in this log")[0].partition(":")[0] for warning in sent["warnings"]
    ]
    assert "WARNING: no --update" in office.run("import", "trajectories", file, *frame).out


def test_serving_twice_and_a_gate_alone(office: Office, tmp_path: Path) -> None:
    """A second server on a taken address is refused; a gate without its ledger is exit 7 and says so."""
    for service in ("ledger", "gate"):
        twice = office.run("serve", service)
        assert twice.code == 5
        assert "ADDRESS_IN_USE" in twice.err
    alone = Office(tmp_path)
    ran = alone.run("serve", "gate")
    assert ran.code == 7
    assert "start it first: assay serve ledger" in ran.err


def test_a_policy_makes_everything_stale_and_says_what_to_do(office: Office) -> None:
    """Seven checks that are stale alike are one line, and the way on is the operator's."""
    update = _until_rehearsed(office, _named(office, "stale"))
    changed = json.loads(office.document.policy_bytes) | {"version": "2"}
    office.json("publish", "policy", SCOPE, office.file(json.dumps(changed)))
    assert [
        "canary: all seven checks STALE STALE_POLICY",
        f"an operator to freeze it again (assay update refreeze {update})",
    ] == _waits_for(office, update)
    frozen = office.run("update", "refreeze", update)
    assert frozen.code == 0
    for shown in (
        "revision 2",
        "model.lora",
        f"scope              {SCOPE}",
        "workflow version   1",
        "retry budget",
    ):
        assert shown in frozen.out
    assert "RESOURCE_KIND" not in frozen.out
    office.json("publish", "environment", SCOPE, "harness", office.pin("another harness"))
    assert "a new update: this one cannot be frozen again to any use" in _waits_for(office, update)
