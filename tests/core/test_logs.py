"""JSON Lines of a service's process log."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import FatalError, VerificationError
from ledger.logs import JsonFormatter, formatter


def _record(message: str, *args: object, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord(
        "ledger.server", logging.ERROR, __file__, 1, message, args, more.pop("exc_info", None)
    )
    vars(record).update(more)
    return record


def test_the_fields_of_an_event() -> None:
    """Time in UTC with microseconds, level, logger, message, and what the caller gave beside it."""
    record = _record("serving at size %d", 7, size=7)
    record.created = 1_767_225_600.25
    assert {
        "time": "2026-01-01T00:00:00.250000+00:00",
        "level": "ERROR",
        "logger": "ledger.server",
        "message": "serving at size 7",
        "size": 7,
    } == json.loads(JsonFormatter().format(record))


def test_an_error_of_the_family_gives_its_reason_and_place() -> None:
    """Whether it is an argument or was raised; a place that it does not have is absent."""
    told = json.loads(JsonFormatter().format(_record("%s", FatalError("FORKED", "expected x, got y"))))
    assert ["FORKED", "FORKED: expected x, got y"] == [told["reason"], told["message"]]
    assert {"index", "step", "exception"}.isdisjoint(told)
    try:
        raise VerificationError("V3", "BAD_SIGNATURE", "expected x, got y", index=9)
    except VerificationError:
        raised = json.loads(JsonFormatter().format(_record("it broke", exc_info=sys.exc_info())))
    assert ["BAD_SIGNATURE", "V3", 9] == [raised["reason"], raised["step"], raised["index"]]
    assert "Traceback" in raised["exception"]


@given(st.text(), st.text())
def test_an_event_is_one_line(message: str, detail: str) -> None:
    """Line ends, control characters and lone surrogates are escaped."""
    line = JsonFormatter().format(_record("%s", message, detail=detail))
    assert [line] == line.splitlines()
    assert [message, detail] == [json.loads(line)["message"], json.loads(line)["detail"]]


def test_text_is_for_people() -> None:
    """Time, level, logger, message."""
    assert formatter("text").format(_record("stopping")).endswith(" ERROR ledger.server: stopping")
