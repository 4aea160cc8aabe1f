"""The gate and everybody's clients go on when the ledger's own key is rotated under them."""

from __future__ import annotations

import os

from clients.keyfile import read_key
from ledger.note import SigningKey
from ledger.v1 import root_pb2
from tests.gate_lab import CANARY, GateLab, Wire


class TwoKeys(GateLab):
    """A lab whose ledger holds the key that will be next, too."""

    async def start(self) -> None:
        """Starts it."""
        first = read_key(self.path / "ledger" / "note.key")
        self.next = SigningKey(self.home.origin, os.urandom(32))
        self._settings["keys"] = [first, self.next]
        await super().start()


async def test_law_06_a_decision_goes_on_across_a_rotation_of_the_ledger_s_key() -> None:
    """Evidence before, judgment after: clients that have been connected all along learn the new key."""
    async with TwoKeys() as lab:
        wire = Wire(lab)
        await wire.setup()
        candidate = wire.candidate("A")
        update = await wire.until_approval(candidate)
        rotated = root_pb2.LedgerKeyRotated(ledger_vkey=str(lab.next.verifier_key), reason="yearly")
        await wire.write("root-1", [rotated])
        await wire.approve(candidate)
        said = await wire.gate("operator-1").evaluate(update, CANARY, record=True)
        assert said.index > 0
        assert lab.next.verifier_key == (await lab.check()).ledger_key
