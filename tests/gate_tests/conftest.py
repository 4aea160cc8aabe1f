"""Fixtures of the tests of meaning."""

from __future__ import annotations

import pytest

from tests.memory import Story, demo_document, small


@pytest.fixture
def story() -> Story:
    """A log with the operator's publications of the small document."""
    made = Story(demo_document(small))
    made.setup()
    return made
