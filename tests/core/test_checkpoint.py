"""Checkpoints and cosignatures, against the golden logs and other people's notes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.checkpoint import (
    Checkpoint,
    cosign,
    open_checkpoint,
    parse_checkpoint_text,
    sign_checkpoint,
    verify_cosignatures,
)
from ledger.errors import AssayError, FormatError, VerificationError
from ledger.merkle import EMPTY_ROOT, Tree, leaf_hash, verify_inclusion
from ledger.note import (
    KEY_TYPE_COSIGNATURE,
    SigningKey,
    VerifierKey,
    decode_base64,
    parse_note,
    sign_note,
    signature_line,
)
from tests.core.refusal import refusal
from tests.vectors.regenerate import signing_key, unescape

LEDGER = SigningKey("ledger.test/x-0011223344556677", bytes(range(32)))
WITNESS = SigningKey("witness.test/w", bytes(range(32, 64)), KEY_TYPE_COSIGNATURE)
CHECKPOINT = Checkpoint(LEDGER.verifier_key.name, 5, leaf_hash(b"root"))
TEXT = CHECKPOINT.text()
SIGNED = sign_checkpoint(CHECKPOINT, LEDGER)

# Accepted by Go's x/mod note and tlog packages: seeds 00..1f and 20..3f, entries `event 0` to `event 2`.
GO_ACCEPTED = (
    "ledger.example/test\n3\ncuDRdZjUDBQ/FOv7BeLFxN3Wvr8WXzVpRDrEaViH0wI=\n\n"
    "— ledger.example/test eoZAmXlOV3NpfpCqh9Yc4UbDOIcYgmSlybgDRFA+E0boiZXd93RS6yn1QQESSBlnN9jRoWzkBL58J62"
    "2Y9+anEWV7QQ=\n"
    "— witness.example/w1 IDJKvgAAAABpVGeARZOXQnoq06auyZS8RnSxKYh0GvKeHMlbX1faWLKSuRrrOFsYuLzXJKVQrRxKdhG1"
    "zzVxYzKUWs0M2X44xj3nDw==\n"
)

lines = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)
checkpoints = st.builds(
    Checkpoint,
    lines,
    st.integers(0, 2**64 - 1),
    st.binary(min_size=32, max_size=32),
    st.lists(lines, max_size=3).map(tuple),
)


def test_the_log_that_go_accepts() -> None:
    """Keys, root, proof, signature and cosignature made here are those that Go's packages accept."""
    ledger = SigningKey("ledger.example/test", bytes(range(32)))
    witness = SigningKey("witness.example/w1", bytes(range(32, 64)), KEY_TYPE_COSIGNATURE)
    vkeys = str(ledger.verifier_key), str(witness.verifier_key)
    assert "ledger.example/test+7a864099+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4" == vkeys[0]
    assert "witness.example/w1+20324abe+BCmsuuFBvMrwsi4alNNNC8c2HlJtC/4SyJeUvJMilm3X" == vkeys[1]
    tree = Tree(leaf_hash(b"event %d" % n) for n in range(3))
    proof = tree.inclusion(2, 3)
    assert [decode_base64("lZegCMOZEI3cZ/iBYp372ha+Y/y3S0KJL3Sd3gjTNko=")] == proof
    assert verify_inclusion(tree.leaf(2), 2, 3, proof, tree.root())
    signed = sign_checkpoint(Checkpoint("ledger.example/test", 3, tree.root()), ledger)
    assert GO_ACCEPTED.encode() == signed + cosign(parse_note(signed).text, witness, 1_767_139_200)


def test_golden_checkpoints_open(vectors: dict[str, str]) -> None:
    """The golden checkpoints open to their sizes and roots, the cosigned one with its witness's time."""
    ledger = signing_key(vectors, "ledger").verifier_key
    witness = VerifierKey.parse(vectors["vkey.witness"])
    for size in (4, 7):
        expected = Checkpoint(vectors["origin"], size, decode_base64(vectors[f"root.{size}"]))
        assert expected == open_checkpoint(unescape(vectors[f"checkpoint.{size}"]), ledger)
    cosigned = unescape(vectors["checkpoint.7"]) + unescape(vectors["cosigline.7"])
    assert 7 == open_checkpoint(cosigned, ledger).size
    assert {witness: 1_767_225_605} == verify_cosignatures(parse_note(cosigned), [ledger, witness])


def test_tessera_checkpoints_open(sample_data: Path) -> None:
    """All of Tessera's golden checkpoints are by its key; the one of size 0 verifies but covers no entry."""
    key = VerifierKey.parse((sample_data / "notes/tessera-testdata.vkey.txt").read_text().strip())
    for size in range(16):
        data = (sample_data / f"tessera-log/checkpoint.{size}").read_bytes()
        note = parse_note(data)
        assert (key,) == note.verify([key])
        assert size == parse_checkpoint_text(note.text).size
        if size:
            assert parse_checkpoint_text(note.text) == open_checkpoint(data, key)
    empty = (sample_data / "tessera-log/checkpoint.0").read_bytes()
    assert EMPTY_ROOT == parse_checkpoint_text(parse_note(empty).text).root
    assert ("V5", "EMPTY_LOG") == fault(empty, key)


def test_a_sunlight_witness_cosigned(sample_data: Path) -> None:
    """Another implementation's cosignature verifies, over its own time; the log's ECDSA line is ignored."""
    note = parse_note((sample_data / "notes/sunlight-witness-checkpoint.txt").read_bytes())
    witness = json.loads((sample_data / "notes/sunlight-witness.v0.json").read_text())
    key = VerifierKey.parse(witness["verifier_keys"][0])
    assert ("b8a2cf20", 4) == (key.key_id.hex(), key.type)
    assert {key: 1_767_139_200} == verify_cosignatures(note, [key])
    assert ("rome2026h1.example.org", 300) == (
        parse_checkpoint_text(note.text).origin,
        parse_checkpoint_text(note.text).size,
    )


# --- text ------------------------------------------------------------------------------------------------


@given(checkpoints)
def test_checkpoint_texts_round_trip(checkpoint: Checkpoint) -> None:
    """Text parses to the checkpoint that wrote it, extension lines kept."""
    assert checkpoint == parse_checkpoint_text(checkpoint.text())


@given(st.binary(max_size=100), st.integers(0, len(TEXT)), st.integers(0, len(TEXT)))
def test_any_bytes_are_a_checkpoint_or_a_format_error(noise: bytes, start: int, end: int) -> None:
    """Parsing raises nothing but FormatError, opening nothing but VerificationError; one spelling."""
    for text in (noise, TEXT[:start] + noise + TEXT[end:]):
        with suppress(FormatError):
            assert text == parse_checkpoint_text(text).text()
    for data in (noise, SIGNED[:start] + noise + SIGNED[end:]):
        try:
            assert CHECKPOINT == open_checkpoint(data, LEDGER.verifier_key)
        except VerificationError as error:
            assert error.step in ("V5", "V6")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "BAD_CHECKPOINT"),
        (TEXT[:-1], "BAD_CHECKPOINT"),
        (TEXT + b"\n", "BAD_CHECKPOINT"),
        (b"\n" + TEXT.partition(b"\n")[2], "BAD_CHECKPOINT"),
        (TEXT.replace(b"\n5\n", b"\n05\n"), "BAD_DECIMAL"),
        (TEXT.replace(b"\n5\n", b"\n+5\n"), "BAD_DECIMAL"),
        (TEXT.replace(b"\n5\n", b"\n5 \n"), "BAD_DECIMAL"),
        (TEXT.replace(b"\n5\n", b"\n-5\n"), "BAD_DECIMAL"),
        (TEXT.replace(b"\n5\n", b"\n\n"), "BAD_DECIMAL"),
        (TEXT.replace(b"\n5\n", b"\n18446744073709551616\n"), "BAD_DECIMAL"),
        (TEXT.replace(b"=\n", b"\n"), "BAD_BASE64"),
        (b"origin\n5\nAAAA\n", "BAD_CHECKPOINT"),
        (b"origin\n5\n\n", "BAD_CHECKPOINT"),
        (b"or\tigin\n5\nAAAA\n", "BAD_NOTE"),
        (b"or\xffigin\n5\nAAAA\n", "BAD_NOTE"),
    ],
)
def test_what_is_no_checkpoint(text: bytes, reason: str) -> None:
    """Each departure from the text is refused with its reason, and by a witness too."""
    assert reason == refusal(parse_checkpoint_text, text)
    with pytest.raises(FormatError):
        cosign(text, WITNESS, 1)


# --- opening ---------------------------------------------------------------------------------------------


def fault(data: bytes, key: VerifierKey) -> tuple[str, str]:
    """Step and reason of the refusal."""
    with pytest.raises(VerificationError) as error:
        open_checkpoint(data, key)
    return error.value.step, error.value.reason


def test_a_checkpoint_opens_for_its_own_log_only() -> None:
    """Text, origin and size fail as V5, signatures as V6; whoever else signed does not matter."""
    key, name = LEDGER.verifier_key, LEDGER.verifier_key.name
    other = SigningKey(name, bytes(32))
    assert CHECKPOINT == open_checkpoint(SIGNED, key)
    assert CHECKPOINT == open_checkpoint(sign_note(TEXT, other, LEDGER), key)
    assert ("V5", "BAD_NOTE") == fault(b"", key)
    assert ("V5", "BAD_DECIMAL") == fault(sign_note(TEXT.replace(b"\n5\n", b"\n05\n"), LEDGER), key)
    assert ("V5", "OTHER_ORIGIN") == fault(sign_note(TEXT.replace(b"ledger", b"lodger"), LEDGER), key)
    assert ("V5", "EMPTY_LOG") == fault(sign_note(replace(CHECKPOINT, size=0).text(), LEDGER), key)
    assert ("V6", "BAD_SIGNATURE") == fault(SIGNED.replace(b"\n5\n", b"\n6\n"), key)
    assert ("V6", "NO_KNOWN_SIGNATURE") == fault(sign_note(TEXT, other), key)
    assert ("V6", "SIGNED_TWICE") == fault(SIGNED + SIGNED.rpartition(b"\n\n")[2], key)
    assert ("V6", "BAD_SIGNATURE_LINE") == fault(SIGNED + b"noise\n", key)
    assert ("V6", "TOO_MANY_SIGNATURES") == fault(SIGNED + signature_line("a", b"1234", b"5") * 64, key)


def test_law_06_a_checkpoint_from_before_a_rotation_opens_under_the_keys_that_were() -> None:
    """One of a log's keys is enough; a bad signature by one is refused beside a good one by another."""
    key, other = LEDGER.verifier_key, SigningKey(LEDGER.verifier_key.name, bytes(32))
    assert CHECKPOINT == open_checkpoint(SIGNED, other.verifier_key, key)
    assert CHECKPOINT == open_checkpoint(sign_checkpoint(CHECKPOINT, other), key, other.verifier_key)
    both = sign_note(TEXT, LEDGER, other)
    assert CHECKPOINT == open_checkpoint(both, key, other.verifier_key)
    spoiled = signature_line(other.verifier_key.name, other.verifier_key.key_id, bytes(64))
    with pytest.raises(VerificationError) as caught:
        open_checkpoint(SIGNED + spoiled, key, other.verifier_key)
    assert ("V6", "BAD_SIGNATURE") == (caught.value.step, caught.value.reason)


def test_extension_lines_are_read_and_never_written() -> None:
    """A checkpoint with extension lines opens, keeps them, and is not signed by us."""
    extended = replace(CHECKPOINT, extensions=("some", "thing"))
    assert extended == open_checkpoint(sign_note(extended.text(), LEDGER), LEDGER.verifier_key)
    assert "EXTENSIONS" == refusal(sign_checkpoint, extended, LEDGER)


@pytest.mark.parametrize(
    "checkpoint",
    [
        replace(CHECKPOINT, origin="other"),
        replace(CHECKPOINT, size=-1),
        replace(CHECKPOINT, size=2**64),
        replace(CHECKPOINT, root=b"short"),
    ],
)
def test_only_a_checkpoint_of_the_own_log_is_signed(checkpoint: Checkpoint) -> None:
    """Another origin, or what would not parse again, is not signed."""
    with pytest.raises(FormatError):
        sign_checkpoint(checkpoint, LEDGER)


# --- cosignatures ----------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1), st.integers(0, 8 * 72 - 1))
def test_a_cosignature_covers_its_time(timestamp: int, bit: int) -> None:
    """A cosignature verifies with its time; with any bit of time or signature changed it is an error."""
    key = WITNESS.verifier_key
    note = parse_note(SIGNED + cosign(TEXT, WITNESS, timestamp))
    assert {key: timestamp} == verify_cosignatures(note, [key])
    payload = note.payload(key)
    assert payload is not None
    changed = (int.from_bytes(payload, "big") ^ 1 << bit).to_bytes(72, "big")
    forged = parse_note(SIGNED + signature_line(key.name, key.key_id, changed))
    with pytest.raises(VerificationError) as error:
        verify_cosignatures(forged, [key])
    assert ("V6", "BAD_COSIGNATURE") == (error.value.step, error.value.reason)


def test_a_known_witness_is_held_to_its_line() -> None:
    """Unknown witnesses are ignored; a known one's second, short, or plain signature is an error."""
    key = WITNESS.verifier_key
    line = cosign(TEXT, WITNESS, 7)
    stranger = cosign(TEXT, SigningKey("stranger", bytes(32), KEY_TYPE_COSIGNATURE), 7)
    assert {} == verify_cosignatures(parse_note(SIGNED + stranger), [key])
    assert {key: 7} == verify_cosignatures(parse_note(SIGNED + stranger + line), [key, LEDGER.verifier_key])
    plain = signature_line(key.name, key.key_id, WITNESS.sign(TEXT))
    far = (2**63).to_bytes(8, "big")
    late = far + WITNESS.sign(b"cosignature/v1\ntime 9223372036854775808\n" + TEXT)
    for bad in (line + line, plain, line[:-5] + b"\n", signature_line(key.name, key.key_id, late)):
        with pytest.raises(AssayError):
            verify_cosignatures(parse_note(SIGNED + bad), [key])


def test_a_cosignature_is_for_one_checkpoint() -> None:
    """The line under another text is an error: a witness cannot be quoted."""
    other = sign_checkpoint(replace(CHECKPOINT, size=6), LEDGER)
    with pytest.raises(VerificationError):
        verify_cosignatures(parse_note(other + cosign(TEXT, WITNESS, 7)), [WITNESS.verifier_key])


def test_only_witness_keys_cosign() -> None:
    """A note key, or a time that the format does not hold, is refused."""
    assert "BAD_KEY_TYPE" == refusal(cosign, TEXT, LEDGER, 1)
    for timestamp in (-1, 2**63):
        assert "BAD_TIME" == refusal(cosign, TEXT, WITNESS, timestamp)
