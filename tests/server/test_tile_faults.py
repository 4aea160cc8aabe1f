"""The tile writer when the disk fails or the process ends at any of its steps."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ledger.server import durable
from ledger.server.durable import Files
from ledger.server.tiles import TileWriter
from tests.server.site import Log, check_site


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Steps:
    """Counts the writer's steps on the disk, and lets one of them fail in one of the ways."""

    at: int
    action: str
    #: Files are written side by side.
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`real`, with the fault."""

        def step(*arguments: Any, **named: Any) -> Any:
            now = next(self.numbers) == self.at
            if now and self.action == "before":
                raise Killed
            if now and self.action in {"fail", "full"}:
                raise OSError(errno.ENOSPC if self.action == "full" else errno.EIO, "injected")
            try:
                return real(*arguments, **named)
            finally:  # also where it found out by itself that nothing is there
                if now and self.action == "after":
                    raise Killed
                if now and self.action == "lie":
                    raise OSError(errno.EIO, "injected")

        return step


def _inject(steps: Steps, patch: pytest.MonkeyPatch) -> None:
    """Opening a temporary file, its flush, its rename, new folders, and removing old tiles are the steps."""
    for owner, name in (
        (durable.os, "fsync"),
        (Path, "open"),
        (Path, "mkdir"),
        (Path, "replace"),
        (shutil, "rmtree"),
    ):
        patch.setattr(owner, name, steps.around(getattr(owner, name)))


async def _grown(folder: Path) -> tuple[Log, TileWriter]:
    """A log whose next publication fills a tile, begins another, and makes new folders."""
    log = Log(folder)
    writer = log.writer()
    log.grow(200)
    assert await writer._publish()
    log.grow(100)
    return log, writer


async def _steps(folder: Path) -> int:
    log, writer = await _grown(folder)
    steps = Steps(0, "none")
    with pytest.MonkeyPatch.context() as patch:
        _inject(steps, patch)
        assert await writer._publish()
    log.close()
    check_site(log.tiles, 300)
    return next(steps.numbers) - 1


@pytest.mark.parametrize("action", ["before", "after", "fail", "lie", "full"])
async def test_law_03_each_step_may_fail(tmp_path: Path, action: str) -> None:
    """Killed before or after a step, or told that it failed, done or not: what the checkpoint calls for is
    there, and the next publication, of this process or of one that starts again, completes it."""
    count = await _steps(tmp_path / "count")
    assert count > 20
    for number in range(1, count + 1):
        log, writer = await _grown(tmp_path / f"{number}")
        with pytest.MonkeyPatch.context() as patch:
            _inject(Steps(number, action), patch)
            if action in {"before", "after"}:
                with pytest.raises(Killed):
                    await writer._publish()
            else:
                assert not await writer._publish()
                assert 1 == writer.failures
        assert check_site(log.tiles) in {200, 300}
        if action in {"before", "after"}:
            log.close()
            log.open()
            writer = log.writer()
        log.grow(3)
        assert await writer._publish()
        check_site(log.tiles, 303)
        log.close()


def test_files_appear_whole(tmp_path: Path) -> None:
    """What a killed writer left goes at the next start."""
    files = Files(tmp_path / "made")
    files.write([("a/b", b"1"), ("c", b"2")])
    assert (b"1", b"2") == ((tmp_path / "made/a/b").read_bytes(), (tmp_path / "made/c").read_bytes())
    (tmp_path / "made/.temp/0").write_bytes(b"half")
    Files(tmp_path / "made")
    assert [] == list((tmp_path / "made/.temp").iterdir())
