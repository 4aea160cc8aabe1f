"""One stream of 256-event batches into a ledger on PostgreSQL, all durable as it comes, beside its ceiling.

The server is a private one where PostgreSQL is installed, or the one that `ASSAY_TEST_POSTGRES` names.
"""

from __future__ import annotations

from contextlib import ExitStack

from tests.bench.append import stream_rows, within_loop
from tests.bench.row import Row, Skipped
from tests.lab import Lab
from tests.postgres import NoPostgresError, cluster, database

__all__ = ["rows"]


def rows(seconds: float, entries: int) -> list[Row]:
    """Measures for about `seconds`. Raises Skipped."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(database(stack.enter_context(cluster())))
        except NoPostgresError as error:
            raise Skipped(str(error)) from error
        return within_loop(_rows(url, seconds))


async def _rows(url: str, seconds: float) -> list[Row]:
    async with Lab(subprocess=True, store_url=url) as lab:
        return await stream_rows(lab, "PostgreSQL, mTLS", 30_000, seconds)
