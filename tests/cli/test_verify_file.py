"""What `assay verify` makes of files that are no small whole log: a partial bundle, a log worth all cores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clients.cli.main import app
from ledger.bundle import encode_bundle
from tests.events import minimal_event
from tests.forge import Forge, event_id
from tests.verify.test_bundle import bundle_of, small_log

RUN = CliRunner()


def _verify(file: Path, forge: Forge, command: str = "verify") -> tuple[int, dict[str, object]]:
    (file.parent / "trust.txt").write_text(forge.trust_text)
    trust = str(file.parent / "trust.txt")
    result = RUN.invoke(app, [command, str(file), "--trust", trust, "--forget", "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_a_partial_bundle_cannot_be_told(tmp_path: Path) -> None:
    """Presence holds, completeness is not proven: exit code 4, and never a word of verified."""
    forge = small_log()
    file = tmp_path / "part.assay"
    file.write_bytes(encode_bundle(bundle_of(forge, (4, 1))))
    for command in ("verify", "replay"):
        code, said = _verify(file, forge, command)
        assert (4, "COMPLETENESS_NOT_PROVEN") == (code, said["reason"])


def test_a_partial_bundle_with_a_fault_is_not_true(tmp_path: Path) -> None:
    """One changed bit of a proof: exit code 3."""
    forge = small_log()
    data = bytearray(encode_bundle(bundle_of(forge, (4, 1))))
    data[-1] ^= 1
    file = tmp_path / "part.assay"
    file.write_bytes(bytes(data))
    assert 3 == _verify(file, forge)[0]


def test_a_large_log_is_verified_on_all_cores_with_the_same_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In worker processes: the same answer for a whole file, the same fault for a changed one."""
    monkeypatch.setattr("clients.cli.audit._WORTH_ALL_CORES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    forge = Forge.opened("runner")
    for start in range(0, 2_000, 100):
        batch = [minimal_event("span_recorded", rollout="r") for _ in range(100)]
        for number, event in enumerate(batch, start):
            event.event_id = event_id(number)
        forge.add("runner", *batch)
    file = tmp_path / "log.assay"
    whole = forge.export()
    file.write_bytes(whole)
    code, said = _verify(file, forge)
    assert (0, forge.size) == (code, said["size"])
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    file.write_bytes(bytes(changed))
    many = _verify(file, forge)
    monkeypatch.setattr("clients.cli.audit._WORTH_ALL_CORES", len(whole) + 1)
    assert 3 == many[0]
    assert many == _verify(file, forge)
