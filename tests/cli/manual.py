"""The documentation as a script: what README and docs tell people to type, run in a folder of its own.

A fence says what it is: `sh` is typed, `json NAME` and `python NAME` are files, a nameless `python` is a
program of its own; everything else is shown. A comment that says "exit code N" is what the line must answer.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from clients.cli.main import app
from tests.ports import free_port

__all__ = ["ROOT", "Block", "Manual", "blocks", "spans"]

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_EXIT = re.compile(r"exit code (\d+)")
_COMMENT = re.compile(r"\s+# .*$", re.MULTILINE)
_SHELL = re.compile(r"[$;|<>]")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the file that it is (or ""), its text."""

    language: str
    name: str
    text: str


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a Markdown text, in order."""
    return [Block(*match) for match in _FENCE.findall(document)]


def spans(document: str) -> list[str]:
    """What stands between single backticks outside of fences."""
    return _SPAN.findall(_FENCE.sub("", document))


class Manual:
    """A reader who types what stands there. Owns its folder and the servers that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: dict[str, list[str]] = {}  # what each line answered, each time
        self._servers: list[subprocess.Popen[str]] = []
        programs = folder / "bin"
        programs.mkdir()
        # What an installed package puts on the path.
        for name, arguments in (("assay", "-m clients.cli "), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
            program.chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def stop(self) -> list[int]:
        """Stops gate, then ledger; their exit codes."""
        codes = []
        for server in reversed(self._servers):
            server.send_signal(signal.SIGTERM)
            codes.append(server.wait())
            if server.stdout is not None:
                server.stdout.close()
        self._servers.clear()
        return codes

    def follow(self, block: Block) -> None:
        """Does what a block says."""
        if block.name:
            (self.folder / block.name).write_text(block.text)
        elif block.language == "python":
            self._bash(f"python -c {shlex.quote(block.text)}", 0)
        elif block.language == "sh":
            for line in _commands(block.text):
                self.type(line)

    def type(self, line: str) -> None:
        """Types one line and asserts its exit code."""
        told = _EXIT.search(line)
        code = int(told[1]) if told else 0
        line = _COMMENT.sub("", line)
        words = shlex.split(line, comments=True)
        if words[:2] == ["assay", "serve"]:
            self._serve(words[1:])
        elif words[:1] == ["assay"] and not _SHELL.search(line):
            self.said.setdefault(line, []).append(self._assay(words[1:], code))
        else:
            self.said.setdefault(line, []).append(self._bash(line, code))

    def _assay(self, words: list[str], code: int) -> str:
        if words[0] == "init":
            words += ["--ledger", f"127.0.0.1:{free_port()}", "--gate", f"127.0.0.1:{free_port()}"]
        typed = f"{self._digest(words)[:8]}\n" if "approve" in words else None
        result = CliRunner().invoke(app, words, input=typed)
        assert code == result.exit_code, (words, result.stdout, result.stderr)
        return result.stdout

    def _digest(self, words: list[str]) -> str:
        """What a human reads off the screen before typing it."""
        at = words.index("approve")
        shown = CliRunner().invoke(app, ["evaluate", *words[at + 1 :], "--json"])
        digest: str = json.loads(shown.stdout)["evidence_digest"]
        return digest

    def _serve(self, words: list[str]) -> None:
        with (self.folder / "servers.log").open("a") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "clients.cli", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
                env=self._environment,
            )
        self._servers.append(server)
        assert server.stdout is not None
        assert "address" in json.loads(server.stdout.readline() or "{}"), (
            self.folder / "servers.log"
        ).read_text()

    def _bash(self, line: str, code: int) -> str:
        ran = subprocess.run(
            ["bash", "-euc", line],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert code == ran.returncode, (line, ran.stdout, ran.stderr)
        return ran.stdout


def _commands(text: str) -> Iterator[str]:
    """The lines of a block; a loop or a line that goes on is one."""
    whole = ""
    for line in text.splitlines():
        whole += line if not whole else f"\n{line}"
        opened = len(re.findall(r"\bdo\b", whole)) - len(re.findall(r"\bdone\b", whole))
        if whole.strip() and not opened and not whole.endswith("\\"):
            yield whole
            whole = ""
