"""One ledger for the bad input of a whole file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.hardening.door import Doors
from tests.lab import Lab


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def doors() -> AsyncIterator[Doors]:
    """Doors of one lab; the whole log is verified at the end."""
    async with Lab() as lab:
        yield Doors(lab)
