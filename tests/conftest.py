"""What the tests share that read other people's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of other people's files, which are not ours to distribute; skips the test without it."""
    folder = os.environ.get("ASSAY_SAMPLE_DATA")
    if not folder:
        pytest.skip("ASSAY_SAMPLE_DATA is unset: it names the folder with the published sample files")
    return Path(folder)
