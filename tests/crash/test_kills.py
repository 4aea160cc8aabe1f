"""SIGKILL at random moments under load. `make torture` does the same for longer."""

from __future__ import annotations

from tests.crash.torture import torture

_KILLS = 20


async def test_laws_03_04_05_06_twenty_kills_lose_double_and_fork_nothing() -> None:
    """After each of them the whole log is verified and compared with every promise; see tests.crash.audit."""
    report = await torture(_KILLS, seed=20)
    assert report.kills == report.audits - report.logs == _KILLS
    assert report.acknowledged > 0 and report.checkpoints > 0
