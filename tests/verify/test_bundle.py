"""Partial bundles: presence is proven and every byte counts; completeness is never claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.bundle import (
    Bundle,
    Citation,
    Claim,
    decode_bundle,
    encode_bundle,
    make_claim,
    prove_presence,
    verify_bundle,
)
from ledger.errors import CannotTellError, FormatError, VerificationError
from ledger.merkle import Tree
from tests.events import minimal_event
from tests.forge import ROLES, ROOT, Forge, granted, make_key, numbered


def small_log() -> Forge:
    """Index 0 opens, 1 and 2 grant, 3 to 5 runner, 6 trainer."""
    forge = Forge.opened("runner", "trainer")
    forge.add("runner", *map(numbered, range(3)))
    forge.add("trainer", minimal_event("training_progressed"))
    return forge


def _claim(forge: Forge, index: int) -> Claim:
    tree = Tree(forge.leaves)
    return make_claim(index, forge.entries.__getitem__, lambda at: tree.inclusion(at, tree.size))


def bundle_of(forge: Forge, *cited: tuple[int, int | None]) -> Bundle:
    citations = (
        Citation(_claim(forge, index), None if grant is None else _claim(forge, grant))
        for index, grant in cited
    )
    return Bundle(forge.checkpoint(), tuple(citations))


LOG = small_log()
BUNDLE = bundle_of(LOG, (4, 1), (6, 2), (0, None), (2, None))


def _refused(forge: Forge, bundle: Bundle | bytes, step: str, reason: str) -> None:
    data = bundle if isinstance(bundle, bytes) else encode_bundle(bundle)
    with pytest.raises(VerificationError) as caught:
        verify_bundle(data, forge.trust)
    assert (step, reason) == (caught.value.step, caught.value.reason), str(caught.value)


def test_a_bundle_proves_presence_and_says_what_it_does_not() -> None:
    """All that was cited is found, and the answer is still that completeness is not proven."""
    present = prove_presence(encode_bundle(BUNDLE), LOG.trust)
    assert [4, 6, 0, 2] == [entry.index for entry in present]
    assert ["runner", "trainer", "root", "root"] == [entry.grant.name for entry in present]
    bodies = ["rollout_enqueued", "training_progressed", "ledger_opened", "key_granted"]
    assert bodies == [entry.body for entry in present]
    with pytest.raises(CannotTellError, match="COMPLETENESS NOT PROVEN") as caught:
        verify_bundle(encode_bundle(BUNDLE), LOG.trust)
    assert "COMPLETENESS_NOT_PROVEN" == caught.value.reason


def test_a_bundle_has_one_spelling() -> None:
    """What decodes re-encodes to its own bytes; a byte more or less is refused."""
    data = encode_bundle(BUNDLE)
    assert BUNDLE == decode_bundle(data)
    for other in (data + b"\x00", data[:-1]):
        with pytest.raises(FormatError):
            decode_bundle(other)


def test_every_byte_of_a_bundle_counts() -> None:
    """Any one flipped byte refuses the bundle: with a finding, never with a crash."""
    data = encode_bundle(bundle_of(LOG, (4, 1)))
    told = []
    for position in range(len(data)):
        tampered = bytearray(data)
        tampered[position] ^= 0x01
        try:
            verify_bundle(bytes(tampered), LOG.trust)
        except VerificationError:
            continue
        except CannotTellError:
            told.append(position)
    assert [] == told


def test_a_bundle_cut_anywhere_is_refused() -> None:
    """However many bytes lack, the finding is of V2."""
    data = encode_bundle(bundle_of(LOG, (4, 1)))
    for length in range(len(data)):
        with pytest.raises(VerificationError) as caught:
            verify_bundle(data[:length], LOG.trust)
        assert "V2" == caught.value.step


def test_a_citation_without_its_author_s_grant() -> None:
    """Nobody but root is known without a grant."""
    _refused(LOG, bundle_of(LOG, (4, None)), "V4", "KEY_UNKNOWN")


def test_a_citation_with_another_s_grant() -> None:
    """The grant must be of the key that signed."""
    _refused(LOG, bundle_of(LOG, (4, 2)), "V4", "KEY_UNKNOWN")


def test_a_citation_with_something_else_in_place_of_a_grant() -> None:
    """LedgerOpened grants nothing."""
    _refused(LOG, bundle_of(LOG, (4, 0)), "V4", "KEY_UNKNOWN")


def test_a_grant_for_root() -> None:
    """Root stands in the trust document; a grant beside it would be a second spelling."""
    forge = Forge.opened("runner")
    forge.add(ROOT, granted(make_key("judge"), ROLES["judge"]))
    _refused(forge, bundle_of(forge, (2, 1)), "V4", "BAD_BUNDLE")


def test_a_grant_that_came_later() -> None:
    """A grant acts after its batch: it carries nothing that was placed before."""
    forge = Forge.opened()
    forge.add("runner", numbered(0))
    forge.add(ROOT, granted(make_key("runner"), ROLES["runner"]))
    _refused(forge, bundle_of(forge, (1, 2)), "V4", "KEY_UNKNOWN")


def test_a_grant_by_someone_else_than_root() -> None:
    """A runner grants nobody, whatever it signs."""
    forge = Forge.opened("runner")
    forge.add("runner", granted(make_key("judge"), ROLES["judge"]))
    forge.add("judge", minimal_event("reward_recorded"))
    _refused(forge, bundle_of(forge, (3, 2)), "V4", "KEY_UNKNOWN")


def test_law_07_a_misplaced_event_in_a_bundle() -> None:
    """The learner's key cannot write judgment, in a bundle either."""
    forge = Forge.opened("trainer")
    forge.add("trainer", minimal_event("verdict_issued"))
    _refused(forge, bundle_of(forge, (2, 1)), "V4", "ROLE_MAY_NOT_WRITE")


def test_a_batch_signed_by_another() -> None:
    """A place in the log is no signature."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), numbered(1), signer=ROOT)
    _refused(forge, bundle_of(forge, (3, 1)), "V3", "BAD_BATCH_SIGNATURE")


def test_an_opening_of_another_batch() -> None:
    """The opening is the one at index minus offset, and no other."""
    bundle = bundle_of(LOG, (4, 1))
    citation = bundle.citations[0]
    other = replace(citation.claim, opening=_claim(LOG, 6).placed)
    _refused(LOG, replace(bundle, citations=(replace(citation, claim=other),)), "V3", "NO_OPENING")
    none = replace(citation.claim, opening=None)
    _refused(LOG, replace(bundle, citations=(replace(citation, claim=none),)), "V3", "NO_OPENING")


def test_a_checkpoint_within_a_batch() -> None:
    """No batch is open at a checkpoint: a ledger that signs one within a batch signs no log."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(0), numbered(1))
    size, tree = 3, Tree(forge.leaves)
    claims = [
        make_claim(index, forge.entries.__getitem__, lambda place: tree.inclusion(place, size))
        for index in (2, 1)
    ]
    bundle = Bundle(forge.checkpoint(size), (Citation(*claims),))
    _refused(forge, bundle, "V3", "OPEN_BATCH")


def test_a_path_of_another_event() -> None:
    """The author's path is that of this event at this offset."""
    bundle = bundle_of(LOG, (4, 1))
    citation = bundle.citations[0]
    other = replace(citation.claim, author_path=_claim(LOG, 3).author_path)
    _refused(LOG, replace(bundle, citations=(replace(citation, claim=other),)), "V3", "NOT_IN_BATCH")


def test_a_checkpoint_of_another_size() -> None:
    """Proofs are for the checkpoint's size."""
    bundle = replace(bundle_of(LOG, (4, 1)), checkpoint=LOG.checkpoint(6))
    _refused(LOG, bundle, "V5", "NOT_INCLUDED")


def test_a_checkpoint_by_another_key() -> None:
    """The trust document's ledger key signs a bundle's checkpoint."""
    bundle = replace(bundle_of(LOG, (4, 1)), checkpoint=LOG.checkpoint(key=make_key(LOG.origin, "2")))
    _refused(LOG, bundle, "V6", "NO_KNOWN_SIGNATURE")


def test_a_bundle_of_nothing() -> None:
    """A bundle cites something."""
    with pytest.raises(FormatError):
        encode_bundle(Bundle(LOG.checkpoint(), ()))
    empty = encode_bundle(BUNDLE)[: 20 + len(LOG.checkpoint())] + b"\x00\x00"
    _refused(LOG, empty, "V2", "BAD_BUNDLE")
