"""What people type: digests, scopes, steps, durations.

A digest is 64 hex digits, or @FILE for the SHA-256 of a file's bytes. A name such as "latest" is never a pin.
"""

from __future__ import annotations

import re
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger.errors import FormatError

if TYPE_CHECKING:
    from ledger.v1 import options_pb2

__all__ = ["parse_counts", "parse_digest", "parse_scope", "parse_seconds", "parse_step"]

_HEX: Final = re.compile(r"[0-9a-fA-F]{64}")
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_digest(text: str, what: str) -> bytes:
    """32 bytes. Raises FormatError BAD_DIGEST; OSError for a file that cannot be read."""
    if text.startswith("@"):
        with Path(text[1:]).open("rb") as file:
            return file_digest(file, "sha256").digest()
    if not _HEX.fullmatch(text):
        raise FormatError(
            "BAD_DIGEST", f"{what}: expected 64 hex digits or @FILE (a pin is a digest), got {text[:80]!r}"
        )
    return bytes.fromhex(text)


def parse_scope(text: str, *, any_segment: bool = False) -> options_pb2.Scope:
    """`<workflow>/<segment>`. Raises FormatError BAD_SCOPE, for the segment `*` too unless `any_segment`."""
    from ledger.v1 import options_pb2

    workflow, slash, segment = text.partition("/")
    if not workflow or not slash or not segment or "/" in segment:
        raise FormatError("BAD_SCOPE", f"expected <workflow>/<segment>, got {text[:80]!r}")
    if segment == "*" and not any_segment:
        raise FormatError("BAD_SCOPE", f"expected one segment, got {text[:80]!r}")
    return options_pb2.Scope(workflow=workflow, segment=segment)


def parse_step(text: str) -> options_pb2.Step.ValueType:
    """`canary` or `default`. Raises FormatError BAD_STEP."""
    from ledger.v1 import options_pb2

    steps = {"canary": options_pb2.STEP_CANARY, "default": options_pb2.STEP_DEFAULT}
    if text not in steps:
        raise FormatError("BAD_STEP", f"expected canary or default, got {text[:80]!r}")
    return steps[text]


def parse_seconds(text: str) -> int:
    """`90m`, `12h`, `7d` in seconds. Raises FormatError BAD_DURATION."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise FormatError(
            "BAD_DURATION", f"expected a number and s, m, h or d such as 24h, got {text[:80]!r}"
        )
    return int(match[1]) * _UNITS[match[2]]


def parse_counts(texts: list[str], what: str, *, default: int | None) -> dict[str, int]:
    """`name=count` each, or `name` alone where there is a `default`. Raises FormatError BAD_COUNT."""
    counts: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals:
            name, number = text, "" if default is None else str(default)
        if not name or not number.isdecimal() or int(number) >= 2**32 or name in counts:
            raise FormatError(
                "BAD_COUNT", f"{what}: expected each name once as name=count, got {text[:80]!r}"
            )
        counts[name] = int(number)
    return counts
