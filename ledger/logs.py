"""How a service's process log reads: text for people, or JSON Lines for programs (`logs: json`).

Rules kept here:

- As JSON an event is one line, whatever its message or traceback holds.
- Fields have the same names everywhere: `time` (UTC, RFC 3339, microseconds), `level`, `logger`, `message`;
  of an error of the family its `reason`, `step`, `index`; `exception` where there is a traceback; and what
  the caller gave as `extra`. A field that an event does not have is absent.
- The errors of the family hold no secrets, and nothing else is looked into.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ledger.errors import AssayError

__all__ = ["JsonFormatter", "formatter"]

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def formatter(logs: Literal["text", "json"]) -> logging.Formatter:
    """The formatter that a service's `logs` setting names."""
    return JsonFormatter() if logs == "json" else logging.Formatter(_TEXT)


class JsonFormatter(logging.Formatter):
    """One JSON object a record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for error in _errors(record):
            fields["reason"] = error.reason
            fields |= {
                name: value for name in ("step", "index") if (value := getattr(error, name, None)) is not None
            }
        fields |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _errors(record: logging.LogRecord) -> Iterable[AssayError]:
    """The errors of the family that a record tells of, the one named last being the one that counts."""
    args = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    return [error for error in (raised, *args) if isinstance(error, AssayError)]
