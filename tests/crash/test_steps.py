"""A fault at each step of what goes to the disk, commits and tiles: failed, or said to be; killed; disk full.

After each: what the ledger acknowledged is there exactly once, where it said; every checkpoint that anybody
saw is one of this log's; the whole log verifies.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.steps import Fault, build_shim, strike, trace

_WAL = "ledger.sqlite-wal"
_RELEASED = "/released"
_KILLS = ("before", "after")

#: Of a commit: the write-ahead log is written and flushed, then the released checkpoint is.
_STEPS = (("write", _WAL), ("sync", _WAL), ("write", _RELEASED), ("sync", _RELEASED))
_ACTIONS = {"write": ("fail", "lie", "full", "short", *_KILLS), "sync": ("fail", "lie", *_KILLS)}


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled faults."""
    try:
        return build_shim(tmp_path_factory.mktemp("shim"))
    except FileNotFoundError as absent:
        pytest.skip(str(absent))


async def test_these_are_the_steps_of_a_commit(shim: Path, tmp_path: Path) -> None:
    """What the server does between two acknowledgements, as traced: each kind of call below is there."""
    seen = {tuple(line.split(" ", 1)) for line in await trace(shim, tmp_path)}
    for call, path in _STEPS:
        assert any(call == done and path in where for done, where in seen), (call, path, seen)


@pytest.mark.parametrize(
    "fault",
    [Fault(action, call, path, 3) for call, path in _STEPS for action in _ACTIONS[call]],
    ids=str,
)
async def test_law_03_a_fault_at_each_step_loses_and_doubles_nothing(
    shim: Path, tmp_path: Path, fault: Fault
) -> None:
    """A killed ledger starts again; one that cannot write its released checkpoint ends with 3; one whose
    commit failed goes on, and its authors send again."""
    outcome = await strike(shim, tmp_path, fault)
    if fault.action in _KILLS:
        assert outcome.codes == (-9,)
    elif fault.path == _RELEASED:
        assert outcome.codes == (3,)
    else:
        assert outcome.codes == ()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(action, call, path)
        for call, path, actions in (
            ("write", "/tiles/.temp/", ("fail", "full", "short", "before", "after")),
            ("sync", "/tiles/.temp/", ("fail", "lie", "before", "after")),
            ("rename", "/tiles/tile/", ("fail", "lie", "before", "after")),
            ("sync", "/tiles/tile/", ("fail", "lie", "before", "after")),
            ("rename", "/tiles/checkpoint", ("fail", "lie", "before", "after")),
        )
        for action in actions
    ],
    ids=str,
)
async def test_law_03_a_fault_at_a_tile_loses_no_append(shim: Path, tmp_path: Path, fault: Fault) -> None:
    """Only a killed ledger ends, and everything acknowledged stands."""
    outcome = await strike(shim, tmp_path, fault)
    assert outcome.codes == ((-9,) if fault.action in {"before", "after"} else ())
