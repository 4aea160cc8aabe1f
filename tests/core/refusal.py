"""One way to say that a call is refused, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ledger.errors import FormatError

__all__ = ["refusal"]


def refusal(call: Callable[..., object], *arguments: object) -> str:
    """The reason of the FormatError that the call must raise."""
    with pytest.raises(FormatError) as error:
        call(*arguments)
    return error.value.reason
