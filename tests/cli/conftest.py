"""What the tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.testing import CliRunner

from clients.cli.main import app
from tests.cli.signed import SignedLog, promoted_story
from tests.memory import Story


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The answer to --json."""
        return json.loads(self.out)


Run: TypeAlias = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `assay` in this process; state and home lie in the test's folder unless named."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))

    def call(*arguments: object, typed: str | None = None) -> Ran:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=typed)
        return Ran(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture(scope="module")
def promoted() -> tuple[Story, SignedLog]:
    """A signed log in which A was promoted. Read only."""
    return promoted_story()
