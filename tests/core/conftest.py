"""What the tests of the core formats share: our golden vectors, and other people's data where it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.vectors.regenerate import FILE, read

# A deadline is a timed test: it fails on a busy machine.
settings.register_profile("core", deadline=None)
settings.load_profile("core")


@pytest.fixture(scope="session")
def vectors() -> dict[str, str]:
    """The lines of assay-1.txt by name, as they stand."""
    return read(FILE.read_text())


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of other people's files; they are not ours to distribute."""
    folder = os.environ.get("ASSAY_SAMPLE_DATA")
    if not folder:
        pytest.skip(
            "ASSAY_SAMPLE_DATA is unset: it names the folder with merkle-vectors, tessera-log and notes"
        )
    return Path(folder)
