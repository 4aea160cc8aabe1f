"""docs/operations.md, line by line: backups that work, and restores that may not pass unseen (law 6)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clients.cli.main import app
from clients.home import ledger_config
from clients.identity import load_identity
from clients.sync import SyncLedgerClient
from tests.cli.manual import ROOT, Manual, blocks
from tests.events import minimal_event
from tests.lab import Lab
from tests.ports import free_port
from tests.server.people import enqueued

GUIDE = (ROOT / "docs" / "operations.md").read_text()
BLOCKS = {block.name: block for block in blocks(GUIDE)}


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manual]:
    """An operator in a folder with a home whose ledger serves."""
    if shutil.which("sqlite3") is None:
        pytest.skip("sqlite3 is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ASSAY_HOME", raising=False)
    reader = Manual(tmp_path)
    reader.type("assay init --dev")
    reader.type("assay serve ledger")
    try:
        yield reader
    finally:
        codes = reader.stop()
    assert {0} >= set(codes)


def _follow(manual: Manual, name: str) -> None:
    """Types the block of this name in the guide."""
    for line in BLOCKS[name].text.splitlines():
        manual.type(line)


def _append(count: int = 1) -> int:
    """Appends as the runner; the log's size then."""
    with SyncLedgerClient(load_identity(Path("assay-home"), "runner-1")) as client:
        events = []
        for number in range(count):
            event = minimal_event("rollout_enqueued", rollout=f"ro-{number}")
            event.event_id = os.urandom(6) + b"\x70" + os.urandom(1) + b"\x80" + os.urandom(7)
            events.append(event.SerializeToString())
        placed = client.append(events)
        return placed.first_index + placed.count


def _looks(manual: Manual) -> tuple[int, str]:
    """What an auditor who remembers finds: exit code of `assay export`, and what it says."""
    result = CliRunner().invoke(app, ["export", "log.export"])
    Path("log.export").unlink(missing_ok=True)
    return result.exit_code, result.stderr


def _refused() -> str:
    """Starts the ledger, which must end with 3; what its log says."""
    command = [sys.executable, "-m", "ledger.server", "--config", "assay-home/ledger.json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert (3, "") == (ran.returncode, ran.stdout)
    return ran.stderr


def test_the_doctor_and_the_numbers_answer_as_the_guide_says(manual: Manual) -> None:
    """An installation that serves is well, and gives numbers where it was told to."""
    manual.type("assay serve gate")
    _follow(manual, "doctor")
    assert [0, 0] == manual.stop()
    (line,) = BLOCKS["metrics"].text.splitlines()
    address = f"127.0.0.1:{free_port()}"
    manual.type(line.replace("127.0.0.1:9401", address))
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        given = {
            line.partition("{")[0].split()[0]
            for line in answer.read().decode().splitlines()
            if line[0] != "#"
        }
    told = set(re.findall(r"`(assay_\w+)", GUIDE))
    own = {name for name in given if name.startswith("assay_") and not name.endswith("_created")}
    assert set() == {name for name in own if not name.startswith(tuple(told))}
    # Nothing failed yet, and no witness is asked: absent, not 0.
    absent = {"assay_store_errors_total", "assay_blob_refusals_total", "assay_witnesses_away"}
    absent |= {"assay_cosigned_size", "assay_cosigned_time_seconds"}
    assert absent == told - own - {"assay_commit_seconds", "assay_commit_bytes"}


def test_the_guide_knows_every_reason_for_which_a_ledger_stops() -> None:
    """Each reason of a FatalError that the server raises stands in the table, with what to do."""
    raised = {
        reason
        for file in (ROOT / "ledger" / "server").glob("*.py")
        for reason in re.findall(r'FatalError\(\s*"([A-Z_]+)"', file.read_text())
    }
    table = GUIDE.partition("### When the ledger ends with 3")[2].partition("**Never")[0]
    assert {"BEHIND_RELEASED", "NOT_DURABLE"} <= raised
    assert set() == raised - set(re.findall(r"`([A-Z_]+)`", table))


def test_a_backup_taken_while_authors_write_is_whole(manual: Manual) -> None:
    """Whatever is committed meanwhile: one moment of the log, and it passes the check."""
    over = threading.Event()
    sizes = [_append(200)]

    def write() -> None:
        while not over.is_set():
            sizes.append(_append(3))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        _follow(manual, "backup")
    finally:
        over.set()
        writer.join()
    checked = json.loads(manual._assay(["fsck", "--config", "backup/ledger.json", "--json"], 0))
    assert [] == checked["findings"]
    assert sizes[0] <= checked["size"] <= sizes[-1]


def test_the_newest_backup_is_restored_and_the_log_goes_on(manual: Manual) -> None:
    """Nothing was written after it: the guide's restore passes, and authors and auditors see no break."""
    size = _append(5)
    assert 0 == _looks(manual)[0]
    _follow(manual, "backup")
    assert [0] == manual.stop()
    _follow(manual, "restore")
    manual.type("assay serve ledger")
    assert size + 1 == _append()
    assert 0 == _looks(manual)[0]
    assert [0] == manual.stop()
    _follow(manual, "check")


def test_law_06_an_old_backup_beside_the_newer_released_file_refuses_to_start(manual: Manual) -> None:
    """What was acknowledged after the backup is missing: the check says so, and the ledger ends with 3."""
    _append(5)
    _follow(manual, "backup")
    size = _append(2)
    assert [0] == manual.stop()
    for line in BLOCKS["restore"].text.splitlines():
        manual.type(f"{line}  # exit code 3" if line == "assay fsck" else line)
    assert "released" in manual.said["assay fsck"][-1]
    said = _refused()
    assert "BEHIND_RELEASED" in said
    assert f"at least {size} entries" in said


def test_law_06_database_and_released_set_back_together_are_refused_by_who_remembers(manual: Manual) -> None:
    """The known limit: the ledger alone cannot tell. An auditor's checkpoint, handed in, refuses it."""
    _append(5)
    _follow(manual, "backup")
    _append(2)
    assert 0 == _looks(manual)[0]  # the auditor remembers
    assert [0] == manual.stop()
    _follow(manual, "remembered")
    assert "BEHIND_RELEASED" in _refused()  # it remembers what it was given


def test_law_06_without_a_checkpoint_handed_in_the_first_client_that_remembers_refuses(
    manual: Manual,
) -> None:
    """Set back together, it starts silently; the auditor then gets an error and not a shorter log."""
    _append(5)
    _follow(manual, "backup")
    _append(2)
    assert 0 == _looks(manual)[0]
    assert [0] == manual.stop()
    for line in BLOCKS["remembered"].text.splitlines()[:-1]:
        manual.type(line)
    manual.type("assay serve ledger")
    code, said = _looks(manual)
    assert 3 == code, said
    result = CliRunner().invoke(app, ["doctor", "--json"])
    states = {check["name"]: check["state"] for check in json.loads(result.stdout)["checks"]}
    assert [3, "WRONG"] == [result.exit_code, states["checkpoint"]]


async def test_a_dump_of_postgresql_restores_to_a_log_that_is_whole(
    postgres_server: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken while the ledger serves; the copy passes the check, and its rows are append-only there too."""
    from tests.postgres import NoPostgresError, database, programs  # noqa: PLC0415 - needs an extra

    try:
        monkeypatch.setenv("PATH", f"{programs()}:{os.environ['PATH']}")
    except NoPostgresError as absent:
        pytest.skip(f"{absent}: the guide dumps with PostgreSQL's own programs")
    async with Lab(store_url=postgres_url) as lab:
        await lab.of_role("runner").append([enqueued(lab)] * 5)
        with database(postgres_server) as copy:
            monkeypatch.setenv("LEDGER_URL", postgres_url)
            monkeypatch.setenv("CHECKED_URL", copy)
            (lab.root / "assay-home").symlink_to(lab.path)
            typed = ["bash", "-euc", BLOCKS["postgresql"].text]
            await asyncio.to_thread(subprocess.run, typed, cwd=lab.root, check=True)
            config = lab.root / "backup" / "ledger.json"
            document = ledger_config(lab.home) | {"store": copy, "trust": str(lab.path / "trust.txt")}
            config.write_text(json.dumps(document))
            command = [sys.executable, "-m", "ledger.server", "--config", str(config), "--fsck"]
            ran = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False
            )
            assert 0 == ran.returncode, ran.stderr
            assert 15 == json.loads(ran.stdout)["size"]
