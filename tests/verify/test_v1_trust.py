"""V1, the trust document: any bytes give a document or a finding, and groups hold however deep they stand."""

from __future__ import annotations

import random

import pytest

from ledger.errors import VerificationError
from ledger.verify import read_trust
from tests.forge import Forge, witness_key

WITNESS = witness_key("w1").verifier_key
TEXT = Forge(policy=f"witness w1 {WITNESS}\ngroup g all w1\nquorum g\n").trust_text
# 64 KiB hold some 3,000 groups, one in the other.
DEPTH = 3000


@pytest.mark.parametrize("threshold", ["0", "-1", "01", "2", "1" + "0" * 5000, "١", "1.0", "none"])
def test_a_threshold_is_a_number_of_members(threshold: str) -> None:
    """Too many, too long for an integer, in other digits: refused alike."""
    with pytest.raises(VerificationError) as caught:
        read_trust(TEXT.replace("group g all", f"group g {threshold}").encode())
    assert ("V1", "BAD_TRUST_DOCUMENT") == (caught.value.step, caught.value.reason)


def test_groups_nested_as_deep_as_a_document_holds() -> None:
    """A quorum is found without a call for each level."""
    groups = "".join(f"group {n} any {n - 1 if n else 'w1'}\n" for n in range(DEPTH))
    trust = read_trust(
        Forge(policy=f"witness w1 {WITNESS}\n{groups}quorum {DEPTH - 1}\n").trust_text.encode()
    )
    assert trust.policy.satisfied_by(frozenset([WITNESS]))
    assert not trust.policy.satisfied_by(frozenset())


def test_any_bytes_give_a_document_or_a_finding() -> None:
    """Changed bytes never crash."""
    chance = random.Random(7)
    for _ in range(2000):
        changed = bytearray(TEXT.encode())
        for _ in range(chance.choice([1, 1, 2, 5])):
            at = chance.randrange(len(changed))
            changed[at : at + chance.choice([0, 1, 9])] = chance.randbytes(chance.choice([0, 1, 2]))
        try:
            read_trust(bytes(changed))
        except VerificationError as error:
            assert "V1" == error.step
