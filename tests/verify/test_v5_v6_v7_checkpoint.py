"""V5 to V7: the checkpoint's text, origin, size and root; its signatures; what the auditor remembers."""

from __future__ import annotations

import pytest

from ledger.checkpoint import Checkpoint, cosign, sign_checkpoint
from ledger.errors import FormatError, VerificationError
from ledger.head import check_continues
from ledger.merkle import EMPTY_ROOT, root
from ledger.note import SigningKey, sign_note
from ledger.trust import parse_trust_document
from ledger.verify import read_trust
from tests.forge import (
    LEDGER,
    ORIGIN,
    ROLES,
    ROOT,
    START,
    Forge,
    export_of,
    granted,
    make_key,
    numbered,
    refused,
    rotated,
    verify,
    witness_key,
)

SECOND_LEDGER = make_key(ORIGIN, "2")
WITNESSES = [witness_key(f"witness-{number}") for number in (1, 2, 3)]
_LINES = "".join(f"witness w{n} {key.verifier_key}\n" for n, key in enumerate(WITNESSES, 1))
TWO_OF_THREE = f"{_LINES}group g 2 w1 w2 w3\nquorum g\n"


def _log(events: int = 3, ledger: SigningKey = LEDGER, policy: str = "quorum none\n") -> Forge:
    forge = Forge.opened("runner", ledger=ledger, policy=policy)
    for number in range(events):
        forge.add("runner", numbered(number))
    return forge


# --- V1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"assay/trust/v2\n",
        b"\xff",
        Forge().trust_text.encode().replace(b"root ", b"rot "),
        Forge().trust_text.encode().replace(b"quorum none", b"quorum w1"),
        Forge().trust_text.encode().replace(b"\nlog", b"log"),
    ],
)
def test_v1_trust_document(text: bytes) -> None:
    """A trust document that does not parse is a finding of V1."""
    with pytest.raises(VerificationError) as caught:
        read_trust(text)
    assert ("V1", "BAD_TRUST_DOCUMENT") == (caught.value.step, caught.value.reason)


def test_v1_the_document_as_written_is_read() -> None:
    """The trust document of the tests parses to what it says."""
    forge = Forge(policy=TWO_OF_THREE)
    assert forge.trust == parse_trust_document(forge.trust_text.encode())
    assert (ORIGIN, (ROOT.verifier_key,)) == (forge.trust.origin, forge.trust.roots)


# --- V5 ----------------------------------------------------------------------------------------------------


def _signed(text: bytes) -> bytes:
    return sign_note(text, LEDGER)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"no checkpoint\n", "BAD_CHECKPOINT"),
        (f"{ORIGIN}\n05\n{'A' * 43}=\n".encode(), "BAD_DECIMAL"),
        (f"{ORIGIN}\n5\nAAAA\n".encode(), "BAD_CHECKPOINT"),
        (f"{ORIGIN}\n5\n{'A' * 42}B=\n".encode(), "BAD_BASE64"),
    ],
)
def test_v5_text(text: bytes, reason: str) -> None:
    """A checkpoint has one spelling."""
    forge = _log()
    refused(forge, "V5", reason, None, export=forge.export(_signed(text)))


@pytest.mark.parametrize(
    "note", [b"x", b"\n\n", b"text without signatures\n", b"\xff\n\n\xe2\x80\x94 a AAAA\n"]
)
def test_v5_no_note(note: bytes) -> None:
    """What is no signed note is no checkpoint."""
    forge = _log()
    refused(forge, "V5", "BAD_NOTE", None, export=forge.export(note))


def test_v5_origin() -> None:
    """A checkpoint of another log, though signed by this one's key, is refused."""
    forge = _log()
    other = forge.checkpoint(origin="ledger.test/assay-fedcba9876543210")
    refused(forge, "V5", "OTHER_ORIGIN", None, export=forge.export(other))


def test_v5_size_0() -> None:
    """A checkpoint covers at least one entry; an empty export under a true empty checkpoint is no log."""
    forge = Forge()
    empty = sign_checkpoint(Checkpoint(ORIGIN, 0, EMPTY_ROOT), LEDGER)
    refused(forge, "V5", "EMPTY_LOG", None, export=export_of(empty, []))
    opened = _log()
    refused(opened, "V5", "EMPTY_LOG", None, export=export_of(empty, opened.entries))


@pytest.mark.parametrize("size", [1, 4, 6, 2**63])
def test_v5_size_as_counted(size: int) -> None:
    """Entries that the checkpoint does not cover are refused as entries that lack are."""
    forge = _log()
    note = forge.checkpoint(size, root_hash=root(forge.leaves))
    refused(forge, "V5", "BAD_SIZE", None, export=forge.export(note))


def test_v5_root() -> None:
    """The root is the one over the entries as they stand in the file."""
    forge = _log()
    refused(forge, "V5", "BAD_ROOT", None, export=forge.export(forge.checkpoint(root_hash=bytes(32))))


def test_v5_the_size_comes_before_the_root_and_both_before_v6() -> None:
    """Of a wrong size, a wrong root and a wrong signature the size is reported, then the root."""
    forge = _log()
    both = forge.checkpoint(4, root_hash=bytes(32), key=SECOND_LEDGER)
    refused(forge, "V5", "BAD_SIZE", None, export=forge.export(both))
    root_only = forge.checkpoint(root_hash=bytes(32), key=SECOND_LEDGER)
    refused(forge, "V5", "BAD_ROOT", None, export=forge.export(root_only))


# --- V6 ----------------------------------------------------------------------------------------------------


def test_v6_another_key_of_the_same_name() -> None:
    """The origin's name under another key is no signature of the ledger."""
    forge = _log()
    note = forge.checkpoint(key=SECOND_LEDGER)
    refused(forge, "V6", "NO_KNOWN_SIGNATURE", None, export=forge.export(note))


def test_v6_a_bad_signature_of_the_known_key() -> None:
    """A signature of the ledger's over another checkpoint is refused."""
    forge = _log()
    text, other = forge.checkpoint(), forge.checkpoint(4)
    note = text.partition(b"\n\n")[0] + b"\n\n" + other.partition(b"\n\n")[2]
    refused(forge, "V6", "BAD_SIGNATURE", None, export=forge.export(note))


def test_v6_signed_twice() -> None:
    """A known key signs once."""
    forge = _log()
    note = forge.checkpoint()
    refused(forge, "V6", "SIGNED_TWICE", None, export=forge.export(note + note.partition(b"\n\n")[2]))


def test_v6_signature_lines_have_one_spelling() -> None:
    """Base64 with unused bits set is refused, though a lax decoder reads the same bytes."""
    forge = _log()
    note = forge.checkpoint()
    assert note.endswith(b"=\n")
    lax = note[:-3] + bytes([note[-3] + 1]) + note[-2:]
    refused(forge, "V6", "BAD_SIGNATURE_LINE", None, export=forge.export(lax))


def test_v6_unknown_signatures_are_ignored() -> None:
    """Lines of unknown keys beside the ledger's prove nothing and harm nothing."""
    forge = _log()
    note = forge.checkpoint(witnesses=[witness_key("unknown")])
    assert () == verify(forge.export(note), forge.trust).witnesses


def test_v6_the_ledger_key_in_force_at_the_size() -> None:
    """After a rotation the new key signs; at the size before it the old one does, and neither the other's."""
    forge = _log(1)
    forge.add(ROOT, rotated(SECOND_LEDGER), granted(make_key("judge"), ROLES["judge"]))
    new, old = forge.checkpoint(key=SECOND_LEDGER), forge.checkpoint(key=LEDGER)
    assert SECOND_LEDGER.verifier_key == verify(forge.export(new), forge.trust).ledger_key
    refused(forge, "V6", "NO_KNOWN_SIGNATURE", None, export=forge.export(old))
    before_old, before_new = forge.checkpoint(3, key=LEDGER), forge.checkpoint(3, key=SECOND_LEDGER)
    assert LEDGER.verifier_key == verify(forge.export(before_old, 3), forge.trust).ledger_key
    refused(forge, "V6", "NO_KNOWN_SIGNATURE", None, export=forge.export(before_new, 3))


def test_v6_the_trust_document_may_name_a_later_ledger_key() -> None:
    """An auditor who got the trust document after a rotation verifies the same log."""
    forge = _log(1)
    forge.add(ROOT, rotated(SECOND_LEDGER))
    later = read_trust(
        forge.trust_text.replace(str(LEDGER.verifier_key), str(SECOND_LEDGER.verifier_key)).encode()
    )
    assert 4 == verify(forge.export(forge.checkpoint(key=SECOND_LEDGER)), later).size


@pytest.mark.parametrize(("cosigned", "enough"), [([], 0), ([0], 0), ([0, 2], 1), ([0, 1, 2], 1)])
def test_v6_quorum(cosigned: list[int], enough: int) -> None:
    """Two of three witnesses are a quorum of two; one is none."""
    forge = _log(policy=TWO_OF_THREE)
    export = forge.export(forge.checkpoint(witnesses=[WITNESSES[n] for n in cosigned]))
    if enough:
        names = tuple(f"witness-{n + 1}" for n in cosigned)
        assert names == verify(export, forge.trust).witnesses
    else:
        refused(forge, "V6", "NO_QUORUM", None, export=export)


def test_v6_a_bad_cosignature_of_a_known_witness() -> None:
    """A witness's line over another checkpoint is an error even where a quorum is there without it."""
    forge = _log(policy=TWO_OF_THREE)
    other = Checkpoint(ORIGIN, 1, root(forge.leaves[:1])).text()
    note = forge.checkpoint(witnesses=WITNESSES[:2]) + cosign(other, WITNESSES[2], START // 1_000_000)
    refused(forge, "V6", "BAD_COSIGNATURE", None, export=forge.export(note))


def test_v6_a_witness_counts_once() -> None:
    """One witness twice is no two witnesses."""
    forge = _log(policy=TWO_OF_THREE)
    note = forge.checkpoint(witnesses=[WITNESSES[0], WITNESSES[0]])
    refused(forge, "V6", "SIGNED_TWICE", None, export=forge.export(note))


# --- V7 ----------------------------------------------------------------------------------------------------


def test_v7_nothing_remembered() -> None:
    """The first time there is nothing to compare with, and the result says so."""
    assert None is _log().verify().remembered_size


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_law_06_v7_a_log_that_grew(size: int) -> None:
    """Every checkpoint of the log's past is continued by the log of today."""
    forge = _log()
    verified = verify(forge.export(), forge.trust, remembered=forge.checkpoint(size))
    assert (size, 5, forge.checkpoint()) == (verified.remembered_size, verified.size, verified.checkpoint)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_law_06_v7_a_rollback_to_a_valid_earlier_state(size: int) -> None:
    """An older export, perfect in itself, is refused by whoever remembers a later checkpoint."""
    forge = _log()
    older = forge.export(size=size)
    assert size == verify(older, forge.trust).size
    error = refused(forge, "V7", "ROLLED_BACK", None, export=older, remembered=forge.checkpoint())
    assert "rolled back or older export" in error.message


def test_law_06_v7_a_fork_at_the_same_size() -> None:
    """Two true logs of one size under one key: who saw the one refuses the other."""
    forge, other = _log(), Forge.opened("runner")
    for number in (0, 1, 9):
        other.add("runner", numbered(number))
    refused(other, "V7", "FORKED", None, remembered=forge.checkpoint())


def test_law_06_v7_a_fork_that_has_grown() -> None:
    """A fork longer than what is remembered is refused by its root at the remembered size."""
    forge, other = _log(2), Forge.opened("runner")
    for number in (9, 1, 2, 3):
        other.add("runner", numbered(number))
    refused(other, "V7", "FORKED", None, remembered=forge.checkpoint())


def test_v7_a_remembered_size_within_a_batch() -> None:
    """A remembered size where no checkpoint of this log can have stood is compared all the same."""
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(4)))
    verified = verify(forge.export(), forge.trust, remembered=forge.checkpoint(4))
    assert 4 == verified.remembered_size
    forged = forge.checkpoint(4, root_hash=bytes(32))
    refused(forge, "V7", "FORKED", None, remembered=forged)


def test_v7_comes_last() -> None:
    """A rolled back log with a wrong signature is refused for the signature."""
    forge = _log()
    export = forge.export(forge.checkpoint(4, key=SECOND_LEDGER), 4)
    refused(forge, "V6", "NO_KNOWN_SIGNATURE", None, export=export, remembered=forge.checkpoint())


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (b"no note", "BAD_NOTE"),
        (make_key("other-0123456789abcdef"), "OTHER_ORIGIN"),
        (sign_checkpoint(Checkpoint(ORIGIN, 0, EMPTY_ROOT), LEDGER), "EMPTY_LOG"),
    ],
)
def test_v7_what_is_remembered_must_be_of_this_log(note: bytes | SigningKey, reason: str) -> None:
    """A memory that is broken or another log's is the caller's fault, not a finding about the log."""
    forge = _log()
    if isinstance(note, SigningKey):
        note = sign_checkpoint(Checkpoint(note.verifier_key.name, 1, bytes(32)), note)
    with pytest.raises(FormatError) as caught:
        verify(forge.export(), forge.trust, remembered=note)
    assert reason == caught.value.reason


def test_v7_the_comparison_alone() -> None:
    """Size and roots decide, and nothing else."""
    remembered = Checkpoint(ORIGIN, 3, b"\x01" * 32)
    check_continues(remembered, 3, b"\x01" * 32, None)
    check_continues(remembered, 4, b"\x02" * 32, b"\x01" * 32)
    for size, now, then in (
        (2, b"\x01" * 32, None),
        (3, b"\x02" * 32, b"\x01" * 32),
        (4, b"\x01" * 32, None),
    ):
        with pytest.raises(VerificationError) as caught:
            check_continues(remembered, size, now, then)
        assert "V7" == caught.value.step
