"""What all commands share: the group that turns errors into exit codes, the session, the common options.

Rules:
1. An error of the family is one line on stderr and an exit code (clients.cli.exits); `--debug` shows more.
2. With --json an error is JSON on stdout too, so that a script never has to read a sentence.
3. Nothing here imports a network library.
4. An answer that could not be written is a fault (70): never HOLD's 1, which a closed pipe would end with.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from clients.cli.exits import Exit, code_of, line_of
from ledger.errors import AssayError, NotFoundError, RefusedError

__all__ = [
    "READERS",
    "AssayGroup",
    "ConfigOption",
    "JsonFlag",
    "ResourceArgument",
    "ScopeArgument",
    "Session",
    "StepOption",
    "UpdateArgument",
    "group",
    "session_of",
    "wait_for",
]

_T = TypeVar("_T")

#: Roles that read all, the one with the least power first.
READERS: Final = ("auditor", "operator", "approver", "judge", "canary")


# What a write fails with; where it opens a file, or an address is wrong, the error is another.
_UNWRITTEN: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


@dataclass(slots=True)
class Session:
    """What stands before the command's name: which home, as whom, and how to show errors."""

    home: Path
    name: str | None
    debug: bool
    as_json: bool = False

    def principal(self, *roles: str, among: Collection[str] = ()) -> str:
        """Who acts: `--as`, or the one principal of the first of `roles` that the home holds.

        Of several nobody is picked; `among` says whom of them the refusal proposes.
        Raises RefusedError WHICH_PRINCIPAL where there are several, OTHER_ROLE where `--as` has none of them;
        NotFoundError HOME_ABSENT, PRINCIPAL_ABSENT; FormatError.
        """
        from clients.home import load_home

        held = load_home(self.home).principals
        wanted = " or ".join(roles)
        if self.name is not None:
            role = held.get(self.name)
            if role is None:
                known = ", ".join(sorted(held))
                raise NotFoundError("PRINCIPAL_ABSENT", f"expected one of {known}, got {self.name!r}")
            if role not in roles:
                raise RefusedError("OTHER_ROLE", f"expected {wanted} for this, got {self.name}, {role}")
            return self.name
        for role in roles:
            names = sorted(name for name, its in held.items() if its == role)
            if len(names) == 1:
                return names[0]
            if names:
                proposed = next((name for name in names if name in among), names[0])
                raise RefusedError(
                    "WHICH_PRINCIPAL",
                    f"expected one {role} in {self.home}, got {', '.join(names)}: say who acts, such as "
                    f"`assay --as {proposed} …`",
                )
        raise NotFoundError("PRINCIPAL_ABSENT", f"expected a key of {wanted} in {self.home}, got none")


def session_of(context: typer.Context) -> Session:
    """The session that the root command made."""
    session = context.obj
    if not isinstance(session, Session):
        raise TypeError("expected a command below `assay`")
    return session


class AssayGroup(TyperGroup):
    """The root command: runs what was asked for and ends the process as `exits` says."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """As TyperGroup; where something stayed unwritten the process ends with FAULT."""
        try:
            return super().main(*args, **extra)
        except SystemExit as ended:
            # rich and click end with 1 where the reader has gone.
            broken = ended.__context__ if isinstance(ended.__context__, OSError) else _unflushed()
            if broken is None:
                raise
        except OSError as error:
            broken = error
        _drop_output()
        line = f"assay: expected to write the answer, or a file, got {broken.strerror or broken}"
        typer.secho(line, err=True, fg=typer.colors.RED)
        raise SystemExit(Exit.FAULT)

    def invoke(self, ctx: Any) -> Any:
        """As TyperGroup, with errors as exit codes."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            raise typer.Exit(Exit.INTERRUPTED) from None
        except AssayError as error:
            _report(ctx.obj, line_of(error), error)
            raise typer.Exit(code_of(error)) from None
        except OSError as error:
            if error.filename is None and error.errno in _UNWRITTEN:
                raise  # `main` says it
            _report(ctx.obj, f"{error.filename or 'the system'}: {error.strerror or error}", error)
            raise typer.Exit(Exit.USAGE) from None
        except (typer.Exit, SystemExit):
            raise
        except Exception as error:
            if type(error).__module__.startswith(("click.", "typer.")):
                raise  # usage, which the framework itself reports
            _report(ctx.obj, f"expected no fault of this command, got {type(error).__name__}: {error}", error)
            raise typer.Exit(Exit.FAULT) from None


def _unflushed() -> OSError | None:
    """Why stdout does not take what is left for it; None where it took all, or nobody wants it."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            return error
    return None


def _drop_output() -> None:
    """Nothing may be flushed to a stdout that failed, at the process's end either."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(session: object, line: str, error: BaseException) -> None:
    shown = session if isinstance(session, Session) else None
    if shown is not None and shown.debug:
        traceback.print_exception(error)
    document: dict[str, Any] | None = None
    if shown is not None and shown.as_json:
        document = {"error": line}
        if isinstance(error, AssayError):
            document |= {"reason": error.reason, "message": error.message}
            document |= {key: getattr(error, key) for key in ("step", "index") if hasattr(error, key)}
    typer.secho(f"assay: {line}", err=True, fg=typer.colors.RED)
    if document is not None:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")


def wait_for(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine to its end; what needs no network never loads an event loop."""
    import asyncio

    return asyncio.run(work)


def group(text: str) -> typer.Typer:
    """A group of commands with its help."""
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode="rich")


def _note_json(context: typer.Context, value: bool) -> bool:
    if value and isinstance(context.obj, Session):
        context.obj.as_json = True
    return value


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        exists=True,
        dir_okay=False,
        help="The ledger's configuration.",
        show_default="ledger.json of the home",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Answer in JSON.", callback=_note_json, is_eager=True)]
UpdateArgument = Annotated[
    str, typer.Argument(metavar="UPDATE", help="Id of the update.", show_default=False)
]
ResourceArgument = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Name of the resource.", show_default=False)
]
ScopeArgument = Annotated[
    str, typer.Argument(metavar="SCOPE", help="<workflow>/<segment>.", show_default=False)
]
StepOption = Annotated[
    str, typer.Option("--step", metavar="canary|default", help="Which step.", show_default=False)
]
