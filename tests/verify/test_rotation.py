"""The ledger key in force, learnt from a partial bundle: what makes a client go on, and what does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clients.memory import Memory
from ledger.bundle import Bundle, Citation, encode_bundle, make_claim, verify_bundle
from ledger.errors import CannotTellError, VerificationError
from ledger.merkle import Tree
from ledger.note import SigningKey
from tests.forge import LEDGER, ORIGIN, ROOT, Forge, make_key, numbered, rotated, verify

SECOND, THIRD = make_key(ORIGIN, "2"), make_key(ORIGIN, "3")


def _log(*keys: SigningKey, signer: SigningKey | None = None) -> tuple[Forge, list[int]]:
    """A log in which root rotates to each of `keys`; the indexes of the events. `signer`: instead of root."""
    forge = Forge.opened("runner")
    at = []
    for key in keys:
        forge.add("runner", numbered(forge.size))
        at.append(forge.add(ROOT, rotated(key), signer=signer))
    forge.add("runner", numbered(forge.size))
    return forge, at


def _bundle(forge: Forge, indexes: Sequence[int], key: SigningKey, size: int | None = None) -> bytes:
    """What a ledger answers that cites `indexes` under a checkpoint by `key`."""
    size = forge.size if size is None else size
    tree = Tree()
    tree.extend(forge.leaves[:size])
    claims = [
        make_claim(index, forge.entries.__getitem__, lambda at: tree.inclusion(at, size)) for index in indexes
    ]
    note = forge.checkpoint(size, key=key)
    return encode_bundle(Bundle(note, tuple(Citation(claim, None) for claim in claims)))


def _refused(memory: Memory, note: bytes) -> str:
    with pytest.raises(VerificationError) as caught:
        memory.open(note)
    return caught.value.reason


def test_law_06_a_client_goes_on_across_rotations() -> None:
    """Each checkpoint is held to the key in force at its size, in whatever order they come."""
    forge, at = _log(SECOND, THIRD)
    memory = Memory(forge.trust, None)
    assert "NO_KNOWN_SIGNATURE" == _refused(memory, forge.checkpoint(key=THIRD))
    memory.learn(_bundle(forge, at, THIRD))
    for size, key in ((at[0], LEDGER), (at[0] + 1, SECOND), (at[1], SECOND), (forge.size, THIRD)):
        assert size == memory.open(forge.checkpoint(size, key=key)).size
    for size, key in ((at[0] + 1, LEDGER), (at[0], SECOND), (forge.size, SECOND), (forge.size, LEDGER)):
        assert "NO_KNOWN_SIGNATURE" == _refused(memory, forge.checkpoint(size, key=key))


def test_v4_who_is_not_root_rotates_nothing() -> None:
    """A rotation that the ledger's own or a stolen author's key signed teaches a client nothing."""
    for signer in (LEDGER, make_key("runner")):
        forge, at = _log(SECOND, signer=signer)
        with pytest.raises(VerificationError) as caught:
            Memory(forge.trust, None).learn(_bundle(forge, at, SECOND))
        assert ("V3", "BAD_BATCH_SIGNATURE") == (caught.value.step, caught.value.reason)


def test_v6_the_new_key_itself_must_sign() -> None:
    """Who quotes a rotation under a checkpoint of the old key, or of none, shows nothing."""
    forge, at = _log(SECOND)
    for key in (LEDGER, THIRD):
        with pytest.raises(VerificationError) as caught:
            Memory(forge.trust, None).learn(_bundle(forge, at, key))
        assert ("V6", "NO_KNOWN_SIGNATURE") == (caught.value.step, caught.value.reason)


def test_v5_a_rotation_of_another_log_is_refused() -> None:
    """The event must stand under the checkpoint that is shown."""
    forge, at = _log(SECOND)
    other = Forge.opened("runner")
    while other.size < forge.size:
        other.add("runner", numbered(other.size))
    tree = Tree()
    tree.extend(forge.leaves)
    claim = make_claim(at[0], forge.entries.__getitem__, lambda index: tree.inclusion(index, forge.size))
    data = encode_bundle(Bundle(other.checkpoint(key=SECOND), (Citation(claim, None),)))
    with pytest.raises(VerificationError) as caught:
        Memory(forge.trust, None).learn(data)
    assert ("V5", "NOT_INCLUDED") == (caught.value.step, caught.value.reason)


def test_law_06_a_rotation_that_was_learnt_is_never_forgotten() -> None:
    """A ledger under a stolen old key cannot make a client take the rotation back."""
    forge, at = _log(SECOND, THIRD)
    memory = Memory(forge.trust, None)
    memory.learn(_bundle(forge, at, THIRD))
    memory.learn(_bundle(forge, at[:1], SECOND, size=at[1]))
    for key in (LEDGER, SECOND):
        assert "NO_KNOWN_SIGNATURE" == _refused(memory, forge.checkpoint(key=key))
    assert forge.size == memory.open(forge.checkpoint(key=THIRD)).size


def test_law_06_two_histories_of_rotations_are_a_fork() -> None:
    """Root signed two different rotations at one place: one of the logs is not this one."""
    (forge, at), (other, elsewhere) = _log(SECOND), _log(THIRD)
    memory = Memory(forge.trust, None)
    memory.learn(_bundle(forge, at, SECOND))
    with pytest.raises(VerificationError) as caught:
        memory.learn(_bundle(other, elsewhere, THIRD))
    assert ("V7", "FORKED") == (caught.value.step, caught.value.reason)


def test_v4_another_event_is_no_rotation() -> None:
    """A bundle that proves something else of root's does not pass for one."""
    forge, at = _log(SECOND)
    with pytest.raises(VerificationError) as caught:
        Memory(forge.trust, None).learn(_bundle(forge, [0, *at], SECOND))
    assert ("V4", "NOT_A_ROTATION") == (caught.value.step, caught.value.reason)


def test_a_partial_bundle_of_after_a_rotation_is_judged_with_the_rotation_in_it() -> None:
    """Anybody's bundle may cite the rotation; without it the checkpoint's key is unknown."""
    forge, at = _log(SECOND)
    with pytest.raises(CannotTellError):
        verify_bundle(_bundle(forge, [0, *at], SECOND), forge.trust)
    with pytest.raises(VerificationError):
        verify_bundle(_bundle(forge, [0], SECOND), forge.trust)
    whole = verify(forge.export(forge.checkpoint(key=SECOND)), forge.trust)
    assert SECOND.verifier_key == whole.ledger_key
