"""The one family of errors. Families follow who must act.

AssayError
├── InputError          the caller: what was handed in is wrong; send something else
│   ├── FormatError     bytes or a document that are not what they claim to be
│   └── RefusedError    well-formed, but not allowed here or not now
├── OverloadedError     the caller: the same again, after `retry_after` seconds
├── VerificationError   the auditor: a log, proof or verdict is not true
├── CannotTellError     the auditor: this release cannot judge it (newer event type or rules, partial bundle)
├── NotFoundError       the caller: what was asked for does not exist (never a default in its place)
└── FatalError          the operator: the process must stop; its state is behind, broken or doubtful

Each error carries a `reason`: a code in UPPER_SNAKE_CASE that never changes its meaning. Programs
decide by class and reason, never by message text. Messages say expected and got.
"""

from __future__ import annotations

__all__ = [
    "AssayError",
    "CannotTellError",
    "FatalError",
    "FormatError",
    "InputError",
    "NotFoundError",
    "OverloadedError",
    "RefusedError",
    "VerificationError",
]


class AssayError(Exception):
    """Base of everything that Assay raises on purpose."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class InputError(AssayError):
    """What the caller handed in cannot be accepted."""


class FormatError(InputError):
    """Bytes or a document that do not parse as what they claim to be."""


class RefusedError(InputError):
    """A well-formed request that authority, sequence, condition or a limit rules out."""


class OverloadedError(AssayError):
    """Nothing is wrong with the request: send the same again after `retry_after` seconds."""

    def __init__(self, reason: str, message: str, retry_after: float) -> None:
        super().__init__(reason, message)
        self.retry_after = retry_after


class VerificationError(AssayError):
    """A log, proof or verdict that is not true.

    `step` is V1 to V7 or R1 to R3 (design section 9), `index` the entry at fault where there is one.
    """

    def __init__(self, step: str, reason: str, message: str, *, index: int | None = None) -> None:
        super().__init__(reason, message)
        self.step = step
        self.index = index

    def __str__(self) -> str:
        where = "" if self.index is None else f" at index {self.index}"
        return f"{self.step}{where}: {self.reason}: {self.message}"


class CannotTellError(AssayError):
    """Neither verified nor refuted: this release does not know the event type or the rules."""


class NotFoundError(AssayError):
    """What was asked for does not exist."""


class FatalError(AssayError):
    """The process must stop: going on could lose, double or fork."""
