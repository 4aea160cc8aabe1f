"""Who can write the ledger's derived files, and does not hold its key, changes rows while it is down.

What the ledger judges by (which keys are in force, which keys of conditions were touched, what is void) is
sealed by the ledger's own signature: rows that are not are dropped, and the log is folded again.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from clients.keyfile import read_key
from ledger.errors import RefusedError
from ledger.note import SigningKey
from ledger.server.recovery import VIEWS
from ledger.touches import Condition, update_key
from ledger.v1 import root_pb2
from tests.gate_lab import GateLab, Wire
from tests.lab import Lab
from tests.memory import demo_document, small
from tests.server.people import body, enqueued, reason_of


def _change(lab: Lab, statement: str, *values: Any) -> None:
    """Changes one row, or some, behind the ledger's back."""
    connection = sqlite3.connect(_path(lab))
    with connection:
        assert connection.execute(statement, values).rowcount >= 1
    connection.close()


def _path(lab: Lab) -> Path:
    return lab.path / "ledger" / "data" / VIEWS


async def test_law_07_a_row_that_forgets_a_revocation_gives_the_key_nothing_back() -> None:
    """Whatever the derived files say, what the offline verifier would refuse is not placed."""
    async with Lab() as lab:
        vkey = str(lab.identity("runner-1").key.verifier_key)
        await lab.client("root-1").append([body(lab, "key_revoked", vkey=vkey)])
        await lab.stop()
        _change(lab, "DELETE FROM spine WHERE name = 'key_revoked'")
        await lab.start()
        author = lab.client("runner-1")
        assert "KEY_REVOKED" == await reason_of(author.append([enqueued(lab)]), RefusedError)


async def test_law_14_a_row_that_forgets_a_touch_lets_nothing_slip_in() -> None:
    """An update was touched since the size of a condition: refused before the start, and after it."""
    async with Lab() as lab:
        trainer = lab.client("trainer-1")
        placed = await trainer.append([body(lab, "update_proposed", update="up-1")])
        condition = Condition((update_key("up-1"),), placed.first_index, None)
        await lab.stop()
        _change(lab, "DELETE FROM touched WHERE key = ?", update_key("up-1"))
        await lab.start()
        late = lab.client("trainer-1").append([body(lab, "training_started", update="up-1")], condition)
        assert "CONDITION_FAILED" == await reason_of(late, RefusedError)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE verdicts SET void = 'R2'",
        "DELETE FROM verdicts",
        "UPDATE touched SET position = position - 1",
        "INSERT INTO voids VALUES (3, 'R1', 'WRONG', 'a lie', NULL, NULL, NULL)",
        "DELETE FROM candidates",
        "UPDATE spine SET name = 'policy_published' WHERE name = 'key_granted'",
        "UPDATE log SET seal = x''",
        "UPDATE log SET orphans = orphans + 1",
    ],
)
async def test_law_13_rows_that_lie_are_dropped(statement: str, caplog: pytest.LogCaptureFixture) -> None:
    """What was concluded is sealed too: the server says that it builds the rows again, as they were."""
    async with GateLab() as lab:
        wire = Wire(lab, demo_document(small))
        await wire.setup()
        await wire.until_default_verdict(wire.candidate("A"))
        await lab.stop()
        before = _dump(lab)
        _change(lab, statement)
        with caplog.at_level(logging.WARNING):
            await Lab.start(lab)  # the ledger alone: the gate has no part in this
        assert any("are built again" in record.getMessage() for record in caplog.records)
        await lab.stop()
        assert before == _dump(lab)
        await Lab.start(lab)


async def test_rows_of_an_earlier_size_keep_their_seal(caplog: pytest.LogCaptureFixture) -> None:
    """Older views beside a newer store are no lie: the rest is folded, nothing is built again."""
    async with Lab() as lab:
        await lab.client("trainer-1").append([body(lab, "update_proposed", update="up-1")])
        await lab.stop()
        kept = lab.root / "kept"
        shutil.copy(_path(lab), kept)
        await lab.start()
        await lab.client("trainer-1").append([body(lab, "training_started", update="up-1")])
        await lab.stop()
        newest = _dump(lab)
        shutil.copy(kept, _path(lab))
        with caplog.at_level(logging.WARNING):
            await lab.start()
        await lab.stop()
        assert newest == _dump(lab)
        assert not any("are built again" in record.getMessage() for record in caplog.records)
        await lab.start()


async def test_law_06_a_seal_is_of_the_ledger_key_in_force(caplog: pytest.LogCaptureFixture) -> None:
    """Across a rotation of the ledger's key the rows hold; a row that forgets the rotation does not."""
    async with _TwoKeys() as lab:
        rotated = root_pb2.LedgerKeyRotated(ledger_vkey=str(lab.next.verifier_key), reason="yearly")
        await lab.client("root-1").append([body(lab, "ledger_key_rotated", ledger_vkey=rotated.ledger_vkey)])
        await lab.stop()
        with caplog.at_level(logging.WARNING):
            await lab.start()
        assert not any("are built again" in record.getMessage() for record in caplog.records)
        await lab.stop()
        _change(lab, "DELETE FROM spine WHERE name = 'ledger_key_rotated'")
        with caplog.at_level(logging.WARNING):
            await lab.start()
        assert any("are built again" in record.getMessage() for record in caplog.records)
        assert lab.next.verifier_key == (await lab.check()).ledger_key


class _TwoKeys(Lab):
    """Whose ledger holds the key that will be next, too."""

    async def start(self) -> None:
        if "keys" not in self._settings:
            self.next = SigningKey(self.home.origin, os.urandom(32))
            self._settings["keys"] = [read_key(self.path / "ledger" / "note.key"), self.next]
        await super().start()


def _dump(lab: Lab) -> list[Any]:
    """The rows that are sealed; the ledger must not run."""
    connection = sqlite3.connect(_path(lab))
    tables = ("spine", "touched", "verdicts", "voids", "judged", "candidates")
    try:
        return [sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in tables]
    finally:
        connection.close()
