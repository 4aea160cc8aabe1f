"""One fault at one step of a real ledger's way to the disk, under load; then everything is audited.

`faults.c` is preloaded into the server: the n-th write, sync, rename, truncate or unlink of a file fails,
lies, is cut short, finds the disk full, or is the last thing that the process does.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ledger.errors import FatalError, OverloadedError
from tests.crash.audit import Audit, Found
from tests.crash.load import Load, Promises
from tests.lab import Lab
from tests.ports import free_port
from tests.server.people import until

__all__ = ["ACTIONS", "Fault", "Outcome", "build_shim", "strike", "trace"]

#: What a fault does: see faults.c.
ACTIONS: Final = ("fail", "lie", "full", "short", "before", "after")

_SOURCE: Final = Path(__file__).with_name("faults.c")
_WARM: Final = 60  # acknowledged events before the fault
_AFTER: Final = 60  # and after it, where the ledger goes on
_POLL: Final = 0.005  # seconds


@dataclass(frozen=True, slots=True)
class Fault:
    """The `number`-th `call` on a path that holds `path` does `action`."""

    action: str
    call: str
    path: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.action} {self.call} {self.path} {self.number}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the ledger: exit codes of processes that ended by themselves, and what was audited."""

    codes: tuple[int, ...]
    found: Found


def build_shim(folder: Path) -> Path:
    """Compiles faults.c. Raises FileNotFoundError where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise FileNotFoundError("expected gcc or cc in PATH, got neither")
    library = folder / "faults.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def _lab(shim: Path, control: Path, options: dict[str, Any]) -> Lab:
    lab = Lab(subprocess=True, settings={"listen": f"127.0.0.1:{free_port()}"}, **options)
    lab.environment = {"LD_PRELOAD": str(shim), "ASSAY_FAULT": str(control)}
    return lab


async def trace(shim: Path, folder: Path, **options: Any) -> list[str]:
    """`<call> <path>` of each call between a first acknowledgement and the last of some more."""
    control = folder / "control"
    async with _lab(shim, control, options) as lab:
        promises = Promises()
        load = Load(lab, promises, 0)
        load.start()
        await promises.until(_WARM)
        control.write_text("trace any / 1")
        await promises.until(len(promises.acknowledged) + 10 * _AFTER)
        control.unlink()
        await load.stop()
    return control.with_name("control.trace").read_text().splitlines()


async def strike(shim: Path, folder: Path, fault: Fault, *, seed: int = 0, **options: Any) -> Outcome:
    """Lets the fault happen and audits what came of it. Raises AssertionError, VerificationError."""
    control = folder / "control"
    hit = control.with_name("control.hit")
    async with _lab(shim, control, options) as lab:
        promises = Promises()
        load = Load(lab, promises, seed)
        load.start()
        codes: list[int] = []
        keeper = asyncio.create_task(_keep(lab, codes))
        try:
            await promises.until(_WARM)
            control.write_text(str(fault))
            await until(hit.exists, every=_POLL)
            control.unlink()
            await promises.until(len(promises.acknowledged) + _AFTER)
            for error in load.failed():
                raise error
            await load.stop()
            found = await _audited(lab, promises)
        except BaseException:
            await load.abandon()
            raise
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        return Outcome(tuple(codes), found)


async def _keep(lab: Lab, codes: list[int]) -> None:
    """Starts the ledger again whenever it ended by itself, as its service manager would."""
    while True:
        codes.append(await lab.died())
        await lab.start()


async def _audited(lab: Lab, promises: Promises) -> Found:
    """The audit; again where the ledger ended in its middle."""
    while True:
        try:
            return await Audit(lab, promises).run()
        except (OverloadedError, FatalError):
            await asyncio.sleep(_POLL)
