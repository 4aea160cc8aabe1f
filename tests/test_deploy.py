"""What deploy/ holds is true: units that systemd takes, commands that run, files that exist.

No container engine and no service manager runs here: units are verified by `systemd-analyze` where it is
installed, the image's instructions are checked one by one, and the commands of both are run.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from clients.cli.main import app
from tests.cli.manual import blocks
from tests.cli.office import Office
from tests.ports import free_port

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))
_ANALYZE = shutil.which("systemd-analyze")
_MOST_EXPOSED = 2.0  # of 10, as `systemd-analyze security` counts


def _settings(unit: str) -> dict[str, list[str]]:
    """`Section.Key` -> its values, in order."""
    settings: dict[str, list[str]] = {}
    section = ""
    for line in (DEPLOY / unit).read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings.setdefault(f"{section}.{key}", []).append(value)
    return settings


def _command(unit: str, root: Path) -> list[str]:
    """What the unit starts, with this environment's interpreter and below another root."""
    (line,) = _settings(unit)["Service.ExecStart"]
    assert line.startswith("/opt/assay/bin/python -I -m ")
    words = [sys.executable, *shlex.split(line)[1:]]
    return [word.replace("/var/lib/", f"{root}/var/lib/private/") for word in words]


@contextmanager
def _started(command: list[str]) -> Iterator[dict[str, Any]]:
    """The ready line of a service, which must end with 0 on SIGTERM."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        pytest.fail(f"exit code {server.wait()}: {server.communicate()[1]}")
    try:
        yield json.loads(line)
    finally:
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate()
    assert 0 == server.returncode, said


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folders that the README's commands make, below a root of their own."""
    office = Office(tmp_path)
    office.home.rename(tmp_path / "assay-home")
    root = tmp_path / "root"
    for folder in ("var/lib/private", "etc/systemd/system"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (block,) = (block for block in blocks((DEPLOY / "README.md").read_text()) if block.language == "sh")
    script = re.sub(r"(?<= )/(var|etc)/", rf"{root}/\1/", block.text)
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True)
    config = root / "var/lib/private/assay-ledger/ledger.json"
    ledger = json.loads((tmp_path / "assay-home/assay.json").read_text())["ledger"]
    document = json.loads(config.read_text())
    document |= {"listen": ledger, "metrics": f"127.0.0.1:{free_port()}"}
    config.write_text(json.dumps(document))
    return root


def test_the_units_commands_serve_from_the_folders_that_the_guide_makes(root: Path) -> None:
    """Ledger and gate start with what the table gives them and no more, and write into their folders only."""
    ledger, gate = (root / "var/lib/private" / name for name in ("assay-ledger", "assay-gate"))
    with _started(_command("assay-ledger.service", root)) as first:
        assert 10 == first["size"]
        with _started(_command("assay-gate.service", root)) as second:
            assert [first["origin"], first["size"]] == [second["origin"], second["size"]]
    assert not list(ledger.rglob("client.key"))
    assert ["principals/gate-1/note.key"] == [str(k.relative_to(gate)) for k in gate.rglob("note.key")]
    assert (ledger / "data" / "ledger.sqlite").exists()
    assert set(UNITS) == {path.name for path in (root / "etc/systemd/system").iterdir()}


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_restarts_what_may_be_restarted(unit: str) -> None:
    """On failure, but not where the log must not go on (3); and with room for connections."""
    settings = _settings(unit)
    assert ["on-failure"] == settings["Service.Restart"]
    assert "3" in settings["Service.RestartPreventExitStatus"][0].split()
    assert [["yes"], ["strict"], ["yes"], ["65536"]] == [
        settings[f"Service.{key}"]
        for key in ("DynamicUser", "ProtectSystem", "NoNewPrivileges", "LimitNOFILE")
    ]
    folder = settings["Service.StateDirectory"][0]
    assert f"/var/lib/{folder}" in settings["Service.ExecStart"][0]


@pytest.mark.skipif(_ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_unit(unit: str, tmp_path: Path) -> None:
    """No unknown key, no bad value; and what the unit may reach is little."""
    text = (DEPLOY / unit).read_text().replace("/opt/assay/bin/python", sys.executable)
    copy = tmp_path / unit
    copy.write_text(text)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    complaints = [line for line in ran.stderr.splitlines() if unit in line]
    assert (0, []) == (ran.returncode, complaints), ran.stderr
    ran = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    exposure = re.search(r"Overall exposure level for \S+: (\d+\.\d+)", ran.stdout)
    assert exposure is not None, ran.stderr
    assert float(exposure[1]) <= _MOST_EXPOSED


# --- the image ----------------------------------------------------------------------------------------------


def _instructions() -> list[tuple[str, str]]:
    """Instruction and arguments, continued lines joined."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def _of(name: str) -> list[str]:
    return [rest for each, rest in _instructions() if each == name]


def test_what_the_image_copies_exists_and_is_what_the_package_is_made_of() -> None:
    """Each source of a COPY, and each thing that the build backend reads."""
    copied = {
        source for rest in _of("COPY") if not rest.startswith("--from=") for source in shlex.split(rest)[:-1]
    }
    assert [] == [source for source in copied if not (ROOT / source).exists()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    read = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], *built}
    assert read <= copied


def test_the_extras_that_are_installed_exist() -> None:
    """In the image and in the guide for systemd."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (DEPLOY / "Containerfile").read_text() + (DEPLOY / "README.md").read_text()
    named = {
        extra for group in re.findall(r"[\"'](?:/src|\.)\[([\w,]+)\]", text) for extra in group.split(",")
    }
    assert {"speed", "postgres"} <= named <= set(extras)


def test_the_image_runs_as_nobody_in_particular() -> None:
    """A number, so that the engine can tell that it is not root; nothing is installed after it."""
    (user,) = _of("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    names = [name for name, _ in _instructions()]
    assert "RUN" not in names[names.index("USER") :]


def test_the_images_probe_and_command_exist(root: Path) -> None:
    """The health check is a command of ours, and the command serves."""
    (check,) = _of("HEALTHCHECK")
    probe = json.loads(check.partition("CMD ")[2])
    command: Any = get_command(app)
    assert probe[0] == "assay"
    assert probe[1] in command.commands
    (line,) = _of("CMD")
    words = json.loads(line)
    volume = root / "var/lib/private/assay-ledger"
    command = [sys.executable, *(word.replace("/var/lib/assay", str(volume)) for word in words[1:])]
    with _started(command) as ready:
        # What the health check needs beside the ledger's own files.
        home = root.parent / "assay-home"
        shutil.copy(home / "assay.json", volume)
        for name in ("client.crt", "client.key"):
            (volume / "principals" / "auditor-1").mkdir(parents=True, exist_ok=True)
            shutil.copy(home / "principals" / "auditor-1" / name, volume / "principals" / "auditor-1")
        words = [sys.executable, "-m", "clients.cli", "--home", str(volume), *probe[1:]]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert 0 == ran.returncode, ran.stderr
        assert ready["address"] in ran.stdout
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert 7 == ran.returncode
