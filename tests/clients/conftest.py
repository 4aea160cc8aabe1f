"""What the tests of the clients share."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import pytest

#: 2026-01-02T03:04:05.678901Z in microseconds since 1970.
NOW = 1_767_323_045_678_901


@pytest.fixture
def now() -> int:
    """A moment, in microseconds since 1970."""
    return NOW


@pytest.fixture
def random() -> Callable[[int], bytes]:
    """Bytes that look random and are the same in every run."""
    drawn = 0

    def draw(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        blocks = (sha256(b"%d %d" % (drawn, block)).digest() for block in range(count // 32 + 1))
        return b"".join(blocks)[:count]

    return draw
