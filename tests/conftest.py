"""What the tests share that read other people's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of other people's files, which are not ours to distribute; skips the test without it."""
    folder = os.environ.get("ASSAY_SAMPLE_DATA")
    if not folder:
        pytest.skip("ASSAY_SAMPLE_DATA is unset: it names the folder with the published sample files")
    return Path(folder)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL whose role may create databases; see tests.postgres for where it comes from."""
    from tests.postgres import NoPostgresError, cluster  # noqa: PLC0415 - needs an extra

    try:
        with cluster() as url:
            yield url
    except NoPostgresError as absent:
        if os.environ.get("ASSAY_REQUIRE_POSTGRES") == "1":
            raise
        pytest.skip(str(absent))


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty database."""
    from tests.postgres import database  # noqa: PLC0415 - needs an extra

    with database(postgres_server) as url:
        yield url
