"""Signals to real processes: nothing is left behind, and nothing that hangs keeps a process from its end."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: exit 130, its folder with the private keys gone."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "clients.cli", "demo"]
    demo = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    os.close(theirs)
    assert os.read(ours, 1), "the bar stands there once the demo goes on"
    said = b""
    while b"ledger and gate" not in said:
        said += os.read(ours, 4096)
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    demo.send_signal(number)
    assert demo.wait() == 130
    os.close(ours)
    assert [] == list(tmp_path.iterdir())
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_a_gate_whose_ledger_hangs_obeys(run: Run, tmp_path: Path) -> None:
    """A ledger that takes a connection and says nothing keeps no gate from ending on SIGTERM."""
    assert run("init", tmp_path / "home", "--dev").code == 0
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        ledger = f"127.0.0.1:{hanging.getsockname()[1]}"
        command = [sys.executable, "-m", "gate", "--home", str(tmp_path / "home"), "--ledger", ledger]
        gate = subprocess.Popen(command)
        with hanging.accept()[0]:
            gate.send_signal(signal.SIGTERM)
            assert gate.wait() == 0
