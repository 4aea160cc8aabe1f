"""Fixtures of the tests of meaning."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.memory import Story, demo_document, small


@pytest.fixture
def story() -> Story:
    """A log with the operator's publications of the small document."""
    made = Story(demo_document(small))
    made.setup()
    return made


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of other people's data files, named by ASSAY_SAMPLE_DATA."""
    folder = os.environ.get("ASSAY_SAMPLE_DATA")
    if not folder:
        pytest.skip("ASSAY_SAMPLE_DATA names no folder with the public data files")
    return Path(folder)
