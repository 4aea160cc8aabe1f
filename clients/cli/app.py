"""What all commands share: the group that turns errors into exit codes, the session, the common options.

Rules:
1. An error of the family is one line on stderr and an exit code (clients.cli.exits); `--debug` shows more.
2. With --json an error is JSON on stdout too, so that a script never has to read a sentence.
3. Nothing here imports a network library.
"""

from __future__ import annotations

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

    def invoke(self, ctx: Any) -> Any:
        """As TyperGroup, with errors as exit codes."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            raise typer.Exit(Exit.INTERRUPTED) from None
        except AssayError as error:
            _report(ctx.obj, line_of(error), error)
            raise typer.Exit(code_of(error)) from None
        except BrokenPipeError:
            # Whoever read our answer has gone; nothing may be flushed to it at the end either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.INTERRUPTED) from None
        except OSError as error:
            _report(ctx.obj, f"{error.filename or 'the system'}: {error.strerror or error}", error)
            raise typer.Exit(Exit.USAGE) from None
        except (typer.Exit, SystemExit):
            raise
        except Exception as error:
            if type(error).__module__.startswith(("click.", "typer.")):
                raise  # usage, which the framework itself reports
            _report(ctx.obj, f"expected no fault of this command, got {type(error).__name__}: {error}", error)
            raise typer.Exit(Exit.FAULT) from None


def _report(session: object, line: str, error: BaseException) -> None:
    shown = session if isinstance(session, Session) else None
    if shown is not None and shown.debug:
        traceback.print_exception(error)
    if shown is not None and shown.as_json:
        document: dict[str, Any] = {"error": line}
        if isinstance(error, AssayError):
            document |= {"reason": error.reason, "message": error.message}
            document |= {key: getattr(error, key) for key in ("step", "index") if hasattr(error, key)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    typer.secho(f"assay: {line}", err=True, fg=typer.colors.RED)


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
