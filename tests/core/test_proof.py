"""Inclusion proofs as text."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.checkpoint import open_checkpoint
from ledger.errors import FormatError
from ledger.merkle import leaf_hash, verify_inclusion
from ledger.note import decode_base64
from ledger.proof import Proof, encode_proof, parse_proof
from tests.core.refusal import refusal
from tests.vectors.regenerate import signing_key, unescape

HASHES = (leaf_hash(b"a"), leaf_hash(b"b"))
DATA = encode_proof(12, HASHES, b"checkpoint\n", b"extra")

hashes = st.binary(min_size=32, max_size=32)


def test_golden_proof_verifies_offline(vectors: dict[str, str]) -> None:
    """The golden proof's text is exact, and with key and entry it is all that verification needs."""
    golden = [decode_base64(vectors[f"inclusion.2of7.{k}"]) for k in range(3)]
    data = encode_proof(2, golden, unescape(vectors["checkpoint.7"]))
    assert vectors["tlogproof.2of7.sha256"] == sha256(data).hexdigest()
    proof = parse_proof(data)
    checkpoint = open_checkpoint(proof.checkpoint, signing_key(vectors, "ledger").verifier_key)
    leaf = leaf_hash(bytes.fromhex(vectors["entry.2"]))
    assert verify_inclusion(leaf, proof.index, checkpoint.size, proof.hashes, checkpoint.root)


@given(st.integers(0, 2**64 - 1), st.lists(hashes, max_size=64), st.binary(), st.none() | st.binary())
def test_proofs_round_trip(index: int, path: list[bytes], checkpoint: bytes, extra: bytes | None) -> None:
    """A proof parses to what it was made of; the checkpoint is carried as it is, blank lines and all."""
    assert Proof(index, tuple(path), checkpoint, extra) == parse_proof(
        encode_proof(index, path, checkpoint, extra)
    )


@given(st.binary(max_size=100), st.integers(0, len(DATA)), st.integers(0, len(DATA)))
def test_any_bytes_are_a_proof_or_a_format_error(noise: bytes, start: int, end: int) -> None:
    """Parsing raises nothing but FormatError, and what parses re-encodes to itself."""
    for data in (noise, DATA[:start] + noise + DATA[end:]):
        with suppress(FormatError):
            proof = parse_proof(data)
            assert data == encode_proof(proof.index, proof.hashes, proof.checkpoint, proof.extra)


def test_the_parts_stand_in_their_order() -> None:
    """Header, extra where there is any, index, hashes, a blank line, the checkpoint."""
    lines = DATA.split(b"\n")
    assert [b"c2sp.org/tlog-proof@v1", b"extra ZXh0cmE=", b"index 12"] == lines[:3]
    assert [b"", b"checkpoint", b""] == lines[5:]
    assert b"c2sp.org/tlog-proof@v1\nindex 0\n\n" == encode_proof(0, [], b"")


@pytest.mark.parametrize(
    ("was", "now", "reason"),
    [
        (b"@v1", b"@v2", "BAD_PROOF"),
        (b"\n\n", b"\n", "BAD_PROOF"),
        (b"index 12\n", b"", "BAD_PROOF"),
        (b"index 12", b"index12", "BAD_PROOF"),
        (b"index 12", b"index 12\nindex 12", "BAD_BASE64"),
        (b"index 12", b"index 012", "BAD_DECIMAL"),
        (b"index 12", b"index -12", "BAD_DECIMAL"),
        (b"index 12", b"index 18446744073709551616", "BAD_DECIMAL"),
        (b"index 12", b"index ", "BAD_DECIMAL"),
        (b"extra ZXh0cmE=", b"extra ZXh0cmE", "BAD_BASE64"),
        (b"extra ZXh0cmE=", b"extra ZXh0cmF=", "BAD_BASE64"),
        (b"extra ZXh0cmE=", b"extra ZXh0cmE=\nextra ZXh0cmE=", "BAD_PROOF"),
        (b"extra ZXh0cmE=", b"extra", "BAD_PROOF"),
        (b"index 12\n", b"index 12\nAAAA\n", "BAD_PROOF"),
        (b"index 12", b"index 12\r", "BAD_DECIMAL"),
        (b"index 12", b"index \xff", "BAD_PROOF"),
    ],
)
def test_what_is_no_proof(was: bytes, now: bytes, reason: str) -> None:
    """Each departure from the text is refused with its reason."""
    assert 1 == DATA.count(was)
    assert reason == refusal(parse_proof, DATA.replace(was, now))


def test_a_path_has_at_most_64_hashes() -> None:
    """No tree has a longer path: refused when written and when read."""
    assert "BAD_PROOF" == refusal(encode_proof, 0, [HASHES[0]] * 65, b"")
    longest = encode_proof(0, [HASHES[0]] * 64, b"")
    line = longest.split(b"\n")[2] + b"\n"
    assert "BAD_PROOF" == refusal(parse_proof, longest.replace(b"index 0\n", b"index 0\n" + line))


@pytest.mark.parametrize(("index", "path"), [(-1, []), (2**64, []), (0, [b"short"])])
def test_only_what_parses_is_written(index: int, path: list[bytes]) -> None:
    """An index or hash that no reader would take is not written."""
    with pytest.raises(FormatError):
        encode_proof(index, path, b"")
