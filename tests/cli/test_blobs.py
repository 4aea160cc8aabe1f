"""`assay blob`: content by digest, from the command line, on a real ledger."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from clients.importers.trajectories import MAX_INLINE_BYTES
from tests.cli.office import Office
from tests.fixtures.imports import tau_file, tau_run


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """A home whose ledger serves."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Office(tmp_path)
    try:
        made.serve("ledger")
        yield made
    finally:
        made.stop()


def test_put_get_stat_erase(office: Office, tmp_path: Path) -> None:
    """What was put comes back; what was erased says so, and is no file."""
    content = tmp_path / "span.bin"
    content.write_bytes(b"long" * 300_000)
    digest = sha256(content.read_bytes()).hexdigest()
    put = office.run("blob", "put", content)
    assert (0, digest + "\n") == (put.code, put.out)
    salted = office.run("blob", "put", content, "--salted", "--json").document
    assert (True, 1_200_000) == (salted["salted"], salted["size"])
    assert salted["digest"] != digest
    for name in (digest, salted["digest"]):
        copy = tmp_path / f"copy-{name}"
        got = office.run("--as", "auditor-1", "blob", "get", name, "-o", copy)
        assert (0, content.read_bytes()) == (got.code, copy.read_bytes())
    stat = office.run("--as", "judge-1", "blob", "stat", digest, "--json").document
    assert ("STORED", 1_200_000, False) == (stat["state"], stat["size"], stat["named"])
    erased = office.run("blob", "erase", digest, "--reason", "asked for", "--json").document
    stat = office.run("--as", "judge-1", "blob", "stat", digest, "--json").document
    assert ("ERASED", erased["index"], None) == (stat["state"], stat["erased_index"], stat["size"])
    gone = tmp_path / "gone"
    refused = office.run("--as", "auditor-1", "blob", "get", digest, "-o", gone)
    assert "ERASED" in refused.err
    assert refused.code != 0
    assert not gone.exists()
    assert "ERASED" in office.run("blob", "put", content).err
    denied = office.run("--as", "trainer-1", "blob", "get", salted["digest"], "-o", gone)
    assert "MAY_NOT_READ" in denied.err
    assert sorted(path.name for path in tmp_path.glob("tmp*")) == []


def test_a_workflow_for_blobs_gets_every_imported_span_as_one(office: Office, tmp_path: Path) -> None:
    """The import asks what was declared; what it sends is taken, and the content of each span can be had."""
    declared = ("--family", "message.user=1", "--expected-retries", 0, "--infrastructure-retries", 0)
    workflow = ("publish", "workflow", "airline", "--version", 2, *declared, "--tool-contract", "ab" * 32)
    assert 0 == office.run(*workflow, "--blobs").code
    file = tmp_path / "gpt.json"
    file.write_bytes(tau_file(tau_run(0, 0)))
    frame = ("--workflow", "airline", "--workflow-version", 2, "--judge-version", "tau/1")
    for _ in range(2):
        ran = office.run("import", "trajectories", file, *frame, "--upload-blobs")
        assert ran.code == 0, ran.err
        assert "spans declared to stand outside the log: it holds their digests" in ran.out
    kept = [path for path in (office.home / "ledger" / "data" / "blobs").rglob("*") if path.is_file()]
    assert 7 == len(kept)  # six messages and a tool call
    assert all(b"assay.source.json" in path.read_bytes() for path in kept)


def test_imported_spans_that_are_too_long_go_into_the_store(office: Office, tmp_path: Path) -> None:
    """Sent after the events that name them, so none is an orphan; twice is once."""
    long = [{"role": "user", "content": "x" * MAX_INLINE_BYTES}]
    file = tmp_path / "gpt.json"
    file.write_bytes(tau_file(tau_run(0, 0, traj=long)))
    frame = ("--workflow", "airline", "--workflow-version", 1, "--judge-version", "tau/1", "--upload-blobs")
    for _ in range(2):
        ran = office.run("import", "trajectories", file, *frame)
        assert ran.code == 0, ran.err
        assert "their content is in the ledger's store" in ran.out
    folder = office.home / "ledger" / "data" / "blobs"
    (kept,) = (path for path in folder.rglob("*") if path.is_file())
    stat = office.run("--as", "judge-1", "blob", "stat", kept.name, "--json").document
    assert ("STORED", True) == (stat["state"], stat["named"])
