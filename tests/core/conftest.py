"""What the tests of the core formats share: our golden vectors."""

from __future__ import annotations

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
