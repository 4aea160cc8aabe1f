"""The ledger's process log: one JSON object a line where it is asked for, and never a secret."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clients.home import ledger_config
from ledger.errors import FormatError
from ledger.server.config import load_config
from tests.lab import Lab


async def _served(config: Path) -> tuple[dict[str, Any], str, int]:
    """A ledger from its ready line to SIGTERM: the ready line, all of stderr, the exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ledger.server", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    if line:
        process.send_signal(signal.SIGTERM)
    _, said = await process.communicate()
    return json.loads(line or b"{}"), said.decode(), process.returncode or 0


async def test_json_lines_from_start_to_stop_and_for_what_stops_a_start() -> None:
    """Each line is an object with the same fields; a fault has its reason."""
    async with Lab() as lab:
        config = lab.path / "json.json"
        config.write_text(json.dumps(ledger_config(lab.home) | {"logs": "json", "metrics": "127.0.0.1:0"}))
        _, taken, code = await _served(config)
        assert [3, "ALREADY_RUNNING"] == [code, json.loads(taken)["reason"]]
        await lab.stop()
        ready, said, code = await _served(config)
        lines = [json.loads(line) for line in said.splitlines()]
        assert 0 == code
        started, stopped = (line for line in lines if line["level"] == "INFO")
        assert ready == {name: started[name] for name in ready}
        assert ready["size"] == stopped["size"]
        assert ready["metrics"].startswith("127.0.0.1:")
        for secret in lab.path.rglob("*.key"):
            assert not [part for part in secret.read_text().split() if len(part) > 20 and part in said]


def test_a_configuration_that_is_refused_is_not_repeated(tmp_path: Path) -> None:
    """What stands under a misspelt name may be a password."""
    config = tmp_path / "server.json"
    config.write_text(json.dumps({"stroe": "postgresql://ledger:hunter2@db/assay", "listen": "127.0.0.1:0"}))
    with pytest.raises(FormatError) as caught:
        load_config(config)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__!r}"
    assert "stroe: Extra inputs are not permitted" in caught.value.message


def test_what_nobody_expected_is_one_line_too(capfd: pytest.CaptureFixture[str]) -> None:
    """A fault of the program itself, with its traceback, as the process would say it on its way out."""
    code = """
import logging, sys
import ledger.server.__main__ as program
from ledger.logs import formatter
handler = logging.StreamHandler(sys.stderr)
handler.setFormatter(formatter("json"))
logging.basicConfig(handlers=[handler])
sys.excepthook = program._tell_fault
raise ZeroDivisionError("nobody expected this")
"""
    assert 1 == subprocess.run([sys.executable, "-c", code], check=False).returncode
    (line,) = capfd.readouterr().err.splitlines()
    told = json.loads(line)
    assert ["CRITICAL", "ledger.server"] == [told["level"], told["logger"]]
    assert "ZeroDivisionError: nobody expected this" in told["exception"]
