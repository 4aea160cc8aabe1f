"""The command as a whole: its help, its speed, its exit codes, its one line an error."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from clients.cli import app as shared
from clients.cli import decide, explain
from clients.cli.exits import EXIT_HELP, Exit, code_of, line_of
from clients.cli.main import app
from clients.cli.show import clean
from ledger import errors
from ledger.errors import (
    AssayError,
    CannotTellError,
    FatalError,
    FormatError,
    NotFoundError,
    OverloadedError,
    RefusedError,
    VerificationError,
)
from tests.cli.conftest import Run

_SECONDS = 1.0


def _commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    root = get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]  # a group
        below = getattr(command, "commands", None)
        found += [(name,)] if below is None else [(name, inner) for inner in below]
    return found


def test_help_is_quick() -> None:
    """`assay --help` takes less than a second of CPU, the interpreter's start included, and loads no gRPC.

    The best of three runs counts, in CPU time: other work on the machine is not the command's.
    """
    program = (
        "import sys\nfrom clients.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'grpc', 'google.protobuf', 'cryptography'} & set(sys.modules)\n"
    )
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        assert b"First steps" in done.stdout
    assert min(taken) < _SECONDS


def test_help_is_a_short_manual(run: Run) -> None:
    """The root's help names every command, the way in, and every exit code."""
    shown = " ".join(run("--help").out.split())
    for words in ("First steps", "Tonight's decision", "Without trusting anyone"):
        assert words in shown
    for name in {command[0] for command in _commands()}:
        assert f" {name} " in shown
    for code in Exit:
        assert f" {code.value} " in f" {EXIT_HELP} "


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_every_command_explains_itself(run: Run, command: tuple[str, ...]) -> None:
    """Each command has help, and an answer for programs."""
    ran = run(*command, "--help")
    assert ran.code == 0
    assert ("--json" in ran.out) == (command[0] != "serve")


@pytest.mark.parametrize("command", _commands(), ids=" ".join)
def test_help_fits_a_small_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """At 80 columns no option is cut: each stands there in full."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = run(*command, "--help").out
    item = get_command(app)
    for word in command:
        item = item.commands[word]  # type: ignore[attr-defined]  # a group
    assert [] == [
        name for option in item.params for name in option.opts if name.startswith("--") and name not in shown
    ]


def _each_kind() -> list[tuple[AssayError, Exit]]:
    return [
        (FormatError("BAD", "x"), Exit.USAGE),
        (RefusedError("NO", "x"), Exit.REFUSED),
        (OverloadedError("BUSY", "x", 1.0), Exit.UNREACHABLE),
        (VerificationError("V2", "BAD", "x"), Exit.NOT_TRUE),
        (CannotTellError("NEWER", "x"), Exit.CANNOT_TELL),
        (NotFoundError("NONE", "x"), Exit.NOT_FOUND),
        (FatalError("BEHIND", "x"), Exit.UNREACHABLE),
    ]


def test_every_error_has_its_code() -> None:
    """All families are told apart, and none of them looks like a HOLD, a pass or a fault of the command."""
    kinds = {type(error) for error, _ in _each_kind()}
    assert {errors.AssayError, errors.InputError} == {
        getattr(errors, name) for name in errors.__all__
    } - kinds
    for error, expected in _each_kind():
        assert expected == code_of(error)


def test_an_error_is_one_line_with_what_to_do() -> None:
    """Reason, message and advice stand on one line, whatever the message holds."""
    line = line_of(OverloadedError("UNAVAILABLE", "failed to\nconnect", 1.0))
    assert line.startswith("UNAVAILABLE: failed to connect — start it with `assay serve ledger`")


def test_a_fault_of_the_command_is_no_hold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody meant exits 70 on one line; with --debug the traceback comes too."""

    def broken(session: object, *arguments: object) -> None:
        raise ZeroDivisionError("nobody meant this")

    monkeypatch.setattr(explain, "_explained", broken)
    ran = run("explain", "update-1")
    assert ran.code == 70
    assert ran.err.count("\n") == 1
    assert "ZeroDivisionError" in ran.err
    assert "Traceback" in run("--debug", "explain", "update-1").err


def test_breaking_off_is_no_hold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C exits 130."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decide, "ask_gate", interrupted)
    assert run("evaluate", "update-1", "--step", "canary").code == 130


def test_an_answer_that_cannot_be_written_is_no_hold(tmp_path: Path) -> None:
    """`assay … | head -0` and `assay … >/dev/full` exit 70 with one line, and never with HOLD's 1."""
    with Path("/dev/full").open("wb") as full:
        for command in (["--help"], ["init", str(tmp_path / "full"), "--dev"]):
            ran = subprocess.run(
                [sys.executable, "-m", "clients.cli", *command],
                stdout=full,
                stderr=subprocess.PIPE,
                check=False,
            )
            assert (70, 1) == (ran.returncode, ran.stderr.count(b"\n"))
    read = subprocess.Popen(
        [sys.executable, "-m", "clients.cli", "init", str(tmp_path / "home"), "--dev", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert read.stdout is not None
    assert read.stderr is not None
    read.stdout.close()
    said = read.stderr.read()
    read.stderr.close()
    assert read.wait() == 70
    assert said == b"assay: expected to write the answer, or a file, got Broken pipe\n"


def test_other_peoples_text_cannot_steer_the_terminal() -> None:
    """Control characters from a log are spelled out."""
    assert clean("\x1b[2Jgreen\nline\u202e") == "\\x1b[2Jgreen\\nline\\u202e"


def test_without_a_home(run: Run) -> None:
    """A command that needs a home says how to make one, and exits 6; in JSON too."""
    ran = run("status", "--json")
    assert ran.code == 6
    assert ran.document["reason"] == "HOME_ABSENT"
    assert "assay init" in ran.err


def test_nobody_answers(run: Run, tmp_path: Path) -> None:
    """With no server there is exit code 7, quickly, and what to start."""
    made = run("init", "--dev", "--ledger", "127.0.0.1:1", "--gate", "127.0.0.1:1")
    assert made.code == 0
    status = run("status", "--json")
    assert status.code == 7
    assert (False, False) == (status.document["ledger_answers"], status.document["gate_answers"])
    ran = run("default", "sql-writer", "sql-agent/en")
    assert ran.code == 7
    assert "assay serve ledger" in ran.err
    assert run("export", tmp_path / "log.assay").code == 7
    assert [] == list(tmp_path.glob("*.assay*")), "nothing half-written is left"


def test_several_of_a_role_must_be_named(run: Run, tmp_path: Path) -> None:
    """Where a home holds two approvers nobody is picked: the command says which to pass and how."""
    run("init", "--dev")
    session = shared.Session(tmp_path / "home", None, False)
    with pytest.raises(RefusedError, match="--as approver-1") as caught:
        session.principal("approver")
    assert caught.value.reason == "WHICH_PRINCIPAL"
    with pytest.raises(RefusedError, match="--as approver-2"):
        session.principal("approver", among=["approver-2"])
    assert session.principal(*shared.READERS) == "auditor-1"


def test_init_makes_a_home_once(run: Run, tmp_path: Path) -> None:
    """init needs --dev, prints notice and next commands, and never touches a home that exists."""
    refused = run("init")
    assert refused.code == 2
    assert not (tmp_path / "home").exists()
    made = run("init", "--dev", "--name", "office")
    assert made.code == 0
    for shown in ("office-", "development only", "serve ledger", "serve gate", "operator-1 (operator)"):
        assert shown in made.out
    again = run("init", "--dev", "--json")
    assert again.code == 5
    assert again.document["reason"] == "HOME_EXISTS"
    assert run("init", tmp_path / "other", "--dev", "--ledger", "nowhere").code == 2


def test_completion_comes_with_it() -> None:
    """The shell's completion is offered by the command itself."""
    options = {option for item in get_command(app).params for option in item.opts}
    assert {"--install-completion", "--show-completion"} <= options
    assert isinstance(app, typer.Typer)
