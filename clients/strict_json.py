"""JSON as it is written: nothing is guessed about what a text may have meant.

Rules:
1. No NaN, no infinity, no key said twice, nothing between or after the values.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ledger.errors import FormatError

__all__ = ["decoder", "parse_json"]


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    said = dict(pairs)
    if len(said) != len(pairs):
        raise ValueError("a key that is said twice")
    return said


def _no_constant(word: str) -> float:
    raise ValueError(f"{word}, which is no JSON")


#: Raises ValueError (or RecursionError, where values nest too deep for the interpreter).
decoder: Final = json.JSONDecoder(object_pairs_hook=_said_once, parse_constant=_no_constant)


def parse_json(text: str, where: str) -> Any:
    """The value that `text` holds. Raises FormatError BAD_JSON, naming `where`."""
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise FormatError("BAD_JSON", f"{where}: expected JSON, got {error}") from error
