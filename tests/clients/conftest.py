"""What the tests of the clients share."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

#: 2026-01-02T03:04:05.678901Z in microseconds since 1970.
NOW = 1_767_323_045_678_901


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of other people's data files, named by ASSAY_SAMPLE_DATA."""
    folder = os.environ.get("ASSAY_SAMPLE_DATA")
    if not folder:
        pytest.skip("ASSAY_SAMPLE_DATA names no folder with the public data files")
    return Path(folder)


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
