"""`make breaking`: who speaks the last release's protocol is not broken unseen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "proto"

pytestmark = pytest.mark.skipif(shutil.which("buf") is None, reason="buf is not on the path")


def _command() -> list[str]:
    """The line that the Makefile runs."""
    recipe = re.search(r"^breaking:.*\n\t(buf .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return recipe[1].split()


def _breaking(folder: Path) -> tuple[int, str]:
    ran = subprocess.run(_command(), cwd=folder, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the command reads."""
    shutil.copytree(PROTO, tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert 1 == len(re.findall(old, text, re.MULTILINE)), (file.name, old)
    file.write_text(re.sub(old, new, text, flags=re.MULTILINE))


def test_what_stands_there_breaks_nobody(tree: Path) -> None:
    """proto/ as it is, and with one field more."""
    assert (0, "") == _breaking(tree)
    _edit(
        tree / "proto/ledger/v1/event.proto", r"^message Event \{", "message Event {\n  string extra = 900;"
    )
    assert (0, "") == _breaking(tree)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r"^  bytes event_id = 1.*;\n", "", "Previously present field"),
        (r"event_id = 1\b", "event_id = 901", "Previously present field"),
        (r"^  bytes event_id = 1\b", "  string event_id = 1", "changed type"),
        (r"event_id = 1\b", "event_ident = 1", "changed name"),
    ],
)
def test_a_field_removed_renumbered_retyped_or_renamed_is_refused(
    tree: Path, old: str, new: str, said: str
) -> None:
    """Whoever holds a log of the last release could not read it, or would read something else."""
    _edit(tree / "proto/ledger/v1/event.proto", old, new)
    code, output = _breaking(tree)
    assert 100 == code, output
    assert said in output


def test_a_file_that_is_gone_is_refused(tree: Path) -> None:
    """A role's power cannot vanish."""
    (tree / "proto/gate/v1/gate.proto").unlink()
    code, output = _breaking(tree)
    assert 100 == code, output
    assert "gate.proto" in output
