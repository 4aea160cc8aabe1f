"""Case files: JSON Lines with a case and perhaps its family on each line, as `publish` reads them.

Rules:
1. An evaluation file is one too: a case may stand on many lines, but in one family.
2. A file's digest is SHA-256 of its bytes; what is derived from it has a digest over what it says.
3. A protected set lies within its holdout as the log holds it, or it is refused before it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

from clients.importers.evaluations import Rows, Score
from clients.importers.source import canonical_json
from clients.strict_json import parse_json
from ledger.entry import decode_entry
from ledger.errors import FormatError, RefusedError
from ledger.fold import read_event
from ledger.v1 import event_pb2, judge_pb2

__all__ = ["check_within", "protected_digest", "published_cases", "read_cases"]

_ID: Final = re.compile(r"[!-~]{1,128}")
_NAME: Final = re.compile(r"[!-*,-~]{1,128}")


def read_cases(data: bytes, case: str, family: str | None) -> Rows:
    """The cases of a file; `case` and `family` name the columns. As scores, without a score.

    Raises FormatError, naming the line: BAD_JSON, BAD_LINE, TWO_FAMILIES; EMPTY_SOURCE.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("BAD_JSON", f"expected UTF-8, got byte {data[error.start]:#04x}") from error
    families: dict[str, tuple[str | None, int]] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        where = f"line {number}"
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise FormatError("BAD_LINE", f"{where}: expected an object, got {type(row).__name__}")
        name = _string(row, case, where, _ID)
        of = None if family is None else _string(row, family, where, _NAME)
        known, first = families.setdefault(name, (of, number))
        if known != of:
            raise FormatError(
                "TWO_FAMILIES", f"{where}: expected family {known} as in line {first}, got {of}"
            )
    if not families:
        raise FormatError("EMPTY_SOURCE", "expected one line or more, got none")
    return Rows(
        sha256(data).digest(),
        tuple(
            Score(number, name, of, judge_pb2.SUBJECT_PARENT, 0, None)
            for name, (of, number) in families.items()
        ),
    )


def _string(row: Mapping[str, Any], column: str, where: str, form: re.Pattern[str]) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise FormatError(
            "BAD_LINE", f"{where}: expected {column} of the form {form.pattern}, got {value!r}"[:300]
        )
    return value


def protected_digest(rows: Rows, snapshot_digest: bytes, budgets: Mapping[str, int]) -> bytes:
    """SHA-256 of the RFC 8785 text of the set: its holdout, and cases and budget of each family."""
    families = rows.families()
    document = {
        "snapshot": snapshot_digest.hex(),
        "families": {
            name: {
                "regression_budget": budget,
                "cases": sorted(c for c, of in families.items() if of == name),
            }
            for name, budget in budgets.items()
        },
    }
    return sha256(canonical_json(document, "protected set")).digest()


def published_cases(entries: Iterable[bytes], digest: bytes) -> set[str]:
    """The cases of a snapshot, from the log's entries; empty where none of them publishes it."""
    found: set[str] = set()
    for data in entries:
        if digest in data:  # rules most entries out before they are parsed
            event, name = read_event(decode_entry(data).event)
            if name == "snapshot_published" and event.snapshot_published.digest == digest:
                found.update(item.id for item in event.snapshot_published.cases)
    return found


def check_within(events: Iterable[event_pb2.Event], cases: set[str], digest: bytes) -> None:
    """Raises RefusedError PROTECTED_OUTSIDE_HOLDOUT unless all protected cases are among `cases`."""
    if not cases:
        raise RefusedError(
            "PROTECTED_OUTSIDE_HOLDOUT", f"expected a published snapshot {digest.hex()}, got none in this log"
        )
    named = {
        case
        for item in events
        for family in item.protected_set_published.families
        for case in family.case_ids
    }
    if outside := sorted(named - cases):
        raise RefusedError(
            "PROTECTED_OUTSIDE_HOLDOUT",
            f"expected cases of the holdout {digest.hex()}, got {len(outside)} outside it, "
            f"such as {outside[0]}",
        )
