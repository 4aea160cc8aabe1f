"""Exit codes, and what an error says on its one line.

Rules:
1. A code tells a script who must act; `EXIT_HELP` prints the same table to people.
2. 1 is HOLD and nothing else: neither a fault of the command nor a broken-off one looks like a verdict.
3. A line says what was expected, what came, and what to do next. Programs read the reason, never the text.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from clients.cli.show import with_moments
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

__all__ = ["EXIT_HELP", "Exit", "code_of", "line_of"]


class Exit(IntEnum):
    """What the process answers."""

    OK = 0
    HOLD = 1
    USAGE = 2
    NOT_TRUE = 3
    CANNOT_TELL = 4
    REFUSED = 5
    NOT_FOUND = 6
    UNREACHABLE = 7
    FAULT = 70
    INTERRUPTED = 130


EXIT_HELP: Final = (
    "Exit codes: 0 verified, passed or done · 1 HOLD · 2 usage or malformed input · "
    "3 verification failed, a malformed trust document (V1) included · "
    "4 cannot tell (newer event types or rules, partial bundle) · 5 refused · 6 not found · "
    "7 unreachable, overloaded or stopped: the same again later · 70 a fault of this command · "
    "130 broken off"
)

_CODES: Final[tuple[tuple[type[AssayError], Exit], ...]] = (
    (FormatError, Exit.USAGE),
    (RefusedError, Exit.REFUSED),
    (VerificationError, Exit.NOT_TRUE),
    (CannotTellError, Exit.CANNOT_TELL),
    (NotFoundError, Exit.NOT_FOUND),
    (OverloadedError, Exit.UNREACHABLE),
    (FatalError, Exit.UNREACHABLE),
)

# What to do next, where the message does not say it itself.
_NEXT: Final = {
    "UNAVAILABLE": "start it with `assay serve ledger` and `assay serve gate`, or name another --home",
    "DEADLINE_EXCEEDED": "try again; `assay status` says what answers",
    "PRINCIPAL_ABSENT": "name one of them with --as",
    "ROLE_MAY_NOT_WRITE": "name a principal of another role with --as",
    "MAY_NOT_READ": "name a principal that reads all with --as, such as an auditor",
    "MAY_NOT_CALL": "name a principal that may with --as",
    "CONDITION_FAILED": "something that this rests on changed meanwhile; look at it again, then try again",
    "OTHER_DIGEST": "look at the findings again, then approve what they show",
    "ROLLED_BACK": "ask for a newer export; if there is none, the log was rolled back: keep this file",
    "FORKED": "show both checkpoints to the ledger's operator and to other auditors",
    "EQUIVOCATION": "this source was imported before and came out differently; import it under another name",
}


def code_of(error: AssayError) -> Exit:
    """The exit code of an error's family."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAULT)


def line_of(error: AssayError) -> str:
    """The error on one line, and what to do next."""
    line = with_moments(" ".join(str(error).split()))
    advice = _NEXT.get(error.reason)
    return line if advice is None else f"{line} — {advice}"
