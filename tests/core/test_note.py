"""Names, base64, keys, the strict Ed25519 rule and signed notes."""

from __future__ import annotations

import pickle
from contextlib import suppress
from hashlib import sha512

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import FormatError, VerificationError
from ledger.note import (
    KEY_TYPE_COSIGNATURE,
    KEY_TYPE_ED25519,
    MAX_SIGNATURES,
    Note,
    Signature,
    SigningKey,
    VerifierKey,
    check_name,
    check_public_key,
    decode_base64,
    decode_decimal,
    ed25519_verify,
    encode_base64,
    parse_note,
    sign_note,
    signature_line,
)
from tests.core.refusal import refusal
from tests.vectors.regenerate import FILE, signing_key, unescape

KEY = SigningKey("author.test/a", bytes(range(32)))
OTHER = SigningKey("author.test/b", bytes(range(1, 33)))
TEXT = b"some text\n\nwith a blank line\n"
NOTE = sign_note(TEXT, KEY)

names = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="+"), min_size=1, max_size=128
)
seeds = st.binary(min_size=32, max_size=32)

# --- a reference for the curve, from RFC 8032, written for being read ------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def add(a: Point, b: Point) -> Point:
    """The sum of two affine points."""
    t = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + t, -1, P)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, P)
    return x % P, y % P


def times(n: int, a: Point) -> Point:
    """`a` added up n times."""
    total = (0, 1)
    while n:
        total, a, n = add(total, a) if n & 1 else total, add(a, a), n >> 1
    return total


def decode_point(data: bytes) -> Point | None:
    """The point that `data` encodes canonically, if it does."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    xx = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(xx, (P + 3) // 8, P)
    if x * x % P != xx:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or x * x % P != xx or (x == 0 and sign):
        return None
    return (P - x if x & 1 != sign else x), y


def encode_point(a: Point) -> bytes:
    """The canonical encoding."""
    return (a[1] | (a[0] & 1) << 255).to_bytes(32, "little")


def reference_verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """The rule of design section 4, word for word."""
    a, r, s = decode_point(public_key), decode_point(signature[:32]), int.from_bytes(signature[32:], "little")
    if a is None or r is None or s >= L or (0, 1) in (times(8, a), times(8, r)):
        return False
    h = int.from_bytes(sha512(signature[:32] + public_key + message).digest(), "little") % L
    minus_a = (P - a[0]) % P, a[1]
    return encode_point(add(times(s, BASE), times(h, minus_a))) == signature[:32]


BASE = decode_point((4 * pow(5, -1, P) % P).to_bytes(32, "little")) or (0, 1)
# Any point, freed of its part of prime order, is one of the eight; this one generates them.
TORSION = [times(k, times(L, decode_point((3).to_bytes(32, "little")) or (0, 1))) for k in range(8)]
EDGES = [line.split(" ")[1:] for line in FILE.read_text().splitlines() if line.startswith("ed25519 ")]


@pytest.mark.parametrize(("verdict", "key", "signature", "message"), EDGES)
def test_ed25519_edges_have_one_verdict(verdict: str, key: str, signature: str, message: str) -> None:
    """On each golden edge our verdict is the file's, and so is the reference's."""
    edge = bytes.fromhex(key), bytes.fromhex(signature), bytes.fromhex(message)
    assert (verdict == "accept") == ed25519_verify(*edge)
    assert (verdict == "accept") == reference_verify(*edge)


def test_every_point_of_small_order_is_refused() -> None:
    """The eight points whose order divides 8 are refused as keys, with either sign bit, and as R."""
    assert 8 == len(set(TORSION))
    for point in TORSION:
        y = point[1].to_bytes(32, "little")
        for encoded in (y, (point[1] | 1 << 255).to_bytes(32, "little")):
            assert "BAD_PUBLIC_KEY" == refusal(check_public_key, encoded)
            assert not ed25519_verify(encoded, KEY.sign(b""), b"")


@pytest.mark.parametrize("torsion", range(8))
def test_a_key_of_small_order_signs_nothing(torsion: int) -> None:
    """Under such a key anyone can make what the bare equation accepts: S·B = R, for some message or all."""
    key, nonce = encode_point(TORSION[torsion]), 7
    r = encode_point(times(nonce, BASE))
    for number in range(64):
        signature, message = r + nonce.to_bytes(32, "little"), b"%d" % number
        assert not ed25519_verify(key, signature, message)
    assert "BAD_PUBLIC_KEY" == refusal(check_public_key, key)


@pytest.mark.parametrize("y", [P, P + 1, P + 3, P + 18])
@pytest.mark.parametrize("sign", [0, 1])
def test_a_key_not_below_p_is_refused(y: int, sign: int) -> None:
    """A second spelling of a point is no key: two auditors would hash different bytes."""
    with pytest.raises(FormatError):
        check_public_key((y | sign << 255).to_bytes(32, "little"))
    check_public_key((P - 2).to_bytes(32, "little"))


@settings(max_examples=20)
@given(seeds, st.binary(max_size=40), st.integers(0, 7), st.integers(0, 7), st.booleans())
def test_mixed_order_signatures_are_judged_without_cofactor(
    seed: bytes, message: bytes, of_key: int, of_r: int, reduced: bool
) -> None:
    """Keys and R with a part of small order: we agree with the cofactorless reference, S ≥ L included."""
    secret = int.from_bytes(sha512(seed).digest()[:32], "little") % L
    key = encode_point(add(times(secret, BASE), TORSION[of_key]))
    nonce = int.from_bytes(sha512(seed + message).digest(), "little") % L
    r = encode_point(add(times(nonce, BASE), TORSION[of_r]))
    h = int.from_bytes(sha512(r + key + message).digest(), "little") % L
    s = (nonce + h * secret) % L + (0 if reduced else L)
    signature = r + s.to_bytes(32, "little")
    assert reference_verify(key, signature, message) == ed25519_verify(key, signature, message)


@given(names, seeds, st.binary(max_size=200), st.integers(0, 511))
def test_a_signature_with_one_bit_changed_is_refused(
    name: str, seed: bytes, message: bytes, bit: int
) -> None:
    """What a key signs verifies, under both functions; with any bit changed it does not."""
    key = SigningKey(name, seed)
    signature, known = key.sign(message), key.verifier_key
    assert known.verify(message, signature)
    assert ed25519_verify(known.public_key, signature, message)
    changed = (int.from_bytes(signature, "big") ^ 1 << bit).to_bytes(64, "big")
    assert not known.verify(message, changed)
    assert not known.verify(message + b"\n", signature)
    assert not known.verify(message, signature[:-1])
    assert not known.verify(message, signature + b"\x00")
    assert not ed25519_verify(known.public_key[:-1], signature, message)


# --- keys ------------------------------------------------------------------------------------------------


def test_the_specification_s_example_verifies() -> None:
    """The note of the C2SP specification verifies with its vkey."""
    key = VerifierKey.parse("example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k")
    note = parse_note(
        "This is an example message.\n\n— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlT"
        "gK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n".encode()
    )
    assert (key,) == note.verify([key])


def test_key_id_of_a_known_seed() -> None:
    """Name and seed give the key id that Go's note package gives."""
    seed = bytes.fromhex("810a1402d5146c8d84f2443330f54080ebf98ee17d9c74f6252fc5d5c7283173")
    assert "c74f20a3" == SigningKey("PeterNeumann", seed).verifier_key.key_id.hex()


@given(names, seeds, st.sampled_from([KEY_TYPE_ED25519, KEY_TYPE_COSIGNATURE]))
def test_a_vkey_has_one_spelling(name: str, seed: bytes, kind: int) -> None:
    """A key's text parses to an equal key; the same key under the other type has another id."""
    key = SigningKey(name, seed, kind).verifier_key
    again = VerifierKey.parse(str(key))
    assert (key, key.key_id, hash(key)) == (again, again.key_id, hash(again))
    assert key.key_id != SigningKey(name, seed, kind ^ 5).verifier_key.key_id


def test_a_vkey_with_one_character_changed_is_refused() -> None:
    """Name, key id and key hold each other: no single change parses, nor does another spelling."""
    text = str(KEY.verifier_key)
    for at, character in enumerate(text):
        for other in "A+ =\n":
            if other != character:
                with pytest.raises(FormatError):
                    VerifierKey.parse(text[:at] + other + text[at + 1 :])
    name, _, rest = text.partition("+")
    for misspelt in (f"{name}+{rest[:8].upper()}{rest[8:]}", text + "\n", f"{name}+{rest[1:]}", name, ""):
        with pytest.raises(FormatError):
            VerifierKey.parse(misspelt)


@pytest.mark.parametrize(
    ("name", "kind", "public_key", "reason"),
    [
        ("", 1, KEY.verifier_key.public_key, "BAD_NAME"),
        ("a b", 1, KEY.verifier_key.public_key, "BAD_NAME"),
        ("a", 2, KEY.verifier_key.public_key, "BAD_KEY_TYPE"),
        ("a", 6, bytes(1312), "BAD_KEY_TYPE"),
        ("a", 1, KEY.verifier_key.public_key[1:], "BAD_PUBLIC_KEY"),
        ("a", 4, bytes(32), "BAD_PUBLIC_KEY"),
    ],
)
def test_a_key_is_checked_when_it_is_made(name: str, kind: int, public_key: bytes, reason: str) -> None:
    """No key object exists that the rules refuse."""
    assert reason == refusal(VerifierKey, name, kind, public_key)


@given(st.text())
def test_any_text_is_a_vkey_or_a_format_error(text: str) -> None:
    """Parsing a vkey raises nothing but FormatError."""
    with suppress(FormatError):
        assert text == str(VerifierKey.parse(text))


def test_keys_travel_only_where_they_may() -> None:
    """A verifier key can be sent to a worker process; a signing key cannot, and never shows its seed."""
    assert KEY.verifier_key == pickle.loads(pickle.dumps(KEY.verifier_key))
    assert pickle.loads(pickle.dumps(KEY.verifier_key)).verify(b"x", KEY.sign(b"x"))
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    assert f"<SigningKey {KEY.verifier_key}>" == repr(KEY)
    assert "BAD_SEED" == refusal(SigningKey, "a", bytes(31))


# --- text ------------------------------------------------------------------------------------------------


@given(st.text(max_size=140))
def test_names_are_ascii_without_plus(name: str) -> None:
    """A name is 1 to 128 of ASCII 0x21–0x7E but `+`; anything else is BAD_NAME."""
    fits = 1 <= len(name) <= 128 and all("!" <= c <= "~" and c != "+" for c in name)
    if fits:
        check_name(name)
    else:
        assert "BAD_NAME" == refusal(check_name, name)


@given(st.binary(max_size=100), st.text(max_size=8))
def test_base64_has_one_spelling(data: bytes, noise: str) -> None:
    """What decodes is what encodes to it; everything else is BAD_BASE64."""
    assert data == decode_base64(encode_base64(data))
    try:
        assert noise == encode_base64(decode_base64(noise))
    except FormatError as error:
        assert "BAD_BASE64" == error.reason


@pytest.mark.parametrize(
    "text", ["A", "AA", "AB==", "AAB=", "A===", "AA==\n", "A A==", "AA==AA==", "_-==", "ÄÄ=="]
)
def test_lax_base64_is_refused(text: str) -> None:
    """Unused bits, blanks, missing or doubled padding, other alphabets: refused."""
    with pytest.raises(FormatError):
        decode_base64(text)


@given(st.integers(0, 2**64 - 1))
def test_decimals_have_one_spelling(number: int) -> None:
    """A number's decimal reads back; with a sign, a zero, a blank or more than 64 bits it does not."""
    assert number == decode_decimal(str(number))
    for text in (
        f"0{number}",
        f"+{number}",
        f" {number}",
        f"{number}\n",
        f"-{number}",
        str(number + 2**64),
        "",
        "٣",
    ):
        assert "BAD_DECIMAL" == refusal(decode_decimal, text)


# --- notes -----------------------------------------------------------------------------------------------


def test_law_02_the_bytes_signed_are_the_bytes_verified() -> None:
    """A note keeps its text to the byte, and no bit of the text can change under its signature."""
    note = parse_note(NOTE)
    assert TEXT == note.text
    assert (KEY.verifier_key,) == note.verify([KEY.verifier_key])
    for bit in range(8 * len(TEXT)):
        changed = (int.from_bytes(TEXT, "big") ^ 1 << bit).to_bytes(len(TEXT), "big")
        with pytest.raises(VerificationError) as error:
            Note(changed, note.signatures).verify([KEY.verifier_key])
        assert ("V6", "BAD_SIGNATURE") == (error.value.step, error.value.reason)


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs"])), min_size=1),
    st.sets(seeds, min_size=1, max_size=5),
)
def test_notes_round_trip(lines: list[str], each_seed: set[bytes]) -> None:
    """A signed note parses to its text and one line a key, which verify, and re-encodes to itself."""
    text = "".join(f"{line}\n" for line in lines).encode()
    keys = [SigningKey("n", seed) for seed in each_seed]
    data = sign_note(text, *keys)
    note = parse_note(data)
    known = tuple(key.verifier_key for key in keys)
    assert (text, known) == (note.text, note.verify(known))
    encoded = b"".join(signature_line(s.name, s.key_id, s.payload) for s in note.signatures)
    assert data == text + b"\n" + encoded


LINE = NOTE.rpartition(b"\n\n")[2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "BAD_NOTE"),
        (TEXT, "BAD_SIGNATURE_LINE"),
        (b"text\n" + LINE, "BAD_NOTE"),
        (b"text\n\n", "BAD_NOTE"),
        (b"\n" + LINE, "BAD_NOTE"),
        (NOTE[:-1], "BAD_NOTE"),
        (NOTE + b"\n", "BAD_NOTE"),
        (NOTE.replace(b"some", b"so\re"), "BAD_NOTE"),
        (NOTE.replace(b"some", b"so\te"), "BAD_NOTE"),
        (NOTE.replace(b"some", b"so\x00e"), "BAD_NOTE"),
        (NOTE.replace(b"some", b"so\xffe"), "BAD_NOTE"),
        (NOTE.replace("—".encode(), b"-"), "BAD_SIGNATURE_LINE"),
        (NOTE.replace("— ".encode(), "—  ".encode()), "BAD_SIGNATURE_LINE"),
        (NOTE.replace(b"author.test/a", b"a+b"), "BAD_SIGNATURE_LINE"),
        (NOTE.replace(b"author.test/a", "a\u00a0b".encode()), "BAD_SIGNATURE_LINE"),
        (NOTE.replace(b"author.test/a ", b" "), "BAD_SIGNATURE_LINE"),
        (NOTE[:-1] + b" \n", "BAD_SIGNATURE_LINE"),
        (NOTE.replace(b"=\n", b"\n"), "BAD_SIGNATURE_LINE"),
        (b"text\n\n" + signature_line("a", b"1234", b""), "BAD_SIGNATURE_LINE"),
        (b"text\n\n" + LINE * (MAX_SIGNATURES + 1), "TOO_MANY_SIGNATURES"),
    ],
)
def test_what_is_no_note(data: bytes, reason: str) -> None:
    """Each departure from the frame or a line is refused with its reason."""
    assert reason == refusal(parse_note, data)


def test_a_signature_line_with_unused_bits_set_is_refused(vectors: dict[str, str]) -> None:
    """The golden line whose lax decoding gives the right signature is refused all the same."""
    text = unescape(vectors["checkpoint.7"]).rpartition(b"\n\n")[0] + b"\n"
    ledger = signing_key(vectors, "ledger").verifier_key
    assert (ledger,) == parse_note(unescape(vectors["checkpoint.7"])).verify([ledger])
    assert "BAD_SIGNATURE_LINE" == refusal(parse_note, text + b"\n" + unescape(vectors["refuse.sigline"]))


@given(st.binary(max_size=100), st.integers(0, len(NOTE)), st.integers(0, len(NOTE)))
def test_any_bytes_are_a_note_or_a_format_error(noise: bytes, start: int, end: int) -> None:
    """Parsing raises nothing but FormatError, and what parses re-encodes to itself."""
    for data in (noise, NOTE[:start] + noise + NOTE[end:]):
        try:
            note = parse_note(data)
        except FormatError:
            continue
        lines = [f"— {s.name} {encode_base64(s.key_id + s.payload)}\n".encode() for s in note.signatures]
        assert data == note.text + b"\n" + b"".join(lines)


def test_unknown_keys_are_ignored() -> None:
    """Lines of others count for nothing: same name, same id, or neither; 64 of them are no hindrance."""
    known = KEY.verifier_key
    stranger = b"".join(signature_line("x", k.to_bytes(4, "big"), b"any") for k in range(MAX_SIGNATURES - 3))
    near = signature_line(known.name, b"none", b"any") + signature_line("y", known.key_id, b"any")
    note = parse_note(TEXT + b"\n" + stranger + near + "— schlüssel AAAAAAA=\n".encode())
    assert MAX_SIGNATURES == len(note.signatures)
    with pytest.raises(VerificationError) as error:
        note.verify([known])
    assert "NO_KNOWN_SIGNATURE" == error.value.reason
    assert (known,) == Note(TEXT, (*note.signatures, *parse_note(NOTE).signatures)).verify(
        [OTHER.verifier_key, known]
    )


def test_a_known_key_s_bad_signature_refuses_the_note() -> None:
    """One bad line by a known key is not made good by another's good one."""
    known = OTHER.verifier_key
    forged = parse_note(NOTE + signature_line(known.name, known.key_id, KEY.sign(TEXT)))
    assert (KEY.verifier_key,) == forged.verify([KEY.verifier_key])
    with pytest.raises(VerificationError) as error:
        forged.verify([KEY.verifier_key, known], step="V3")
    assert ("V3", "BAD_SIGNATURE") == (error.value.step, error.value.reason)


def test_a_known_key_signs_once() -> None:
    """Two lines by one key are refused, even the same line twice."""
    with pytest.raises(VerificationError) as error:
        parse_note(NOTE + LINE).verify([KEY.verifier_key])
    assert "SIGNED_TWICE" == error.value.reason
    assert "SIGNED_TWICE" == refusal(sign_note, TEXT, KEY, KEY)


def test_an_empty_set_of_keys_verifies_nothing() -> None:
    """No keys, or only cosignature keys: refused, never vacuously true."""
    witness = SigningKey(KEY.verifier_key.name, bytes(range(32)), KEY_TYPE_COSIGNATURE).verifier_key
    signed = Note(TEXT, (Signature(witness.name, witness.key_id, KEY.sign(TEXT)),))
    for keys in ([], [witness]):
        with pytest.raises(VerificationError) as error:
            signed.verify(keys)
        assert "NO_KNOWN_SIGNATURE" == error.value.reason


@pytest.mark.parametrize("text", [b"", b"text", b"a\tb\n", b"\xff\n"])
def test_only_what_a_note_can_hold_is_signed(text: bytes) -> None:
    """A text without its last newline, with control characters or outside UTF-8 is not signed."""
    assert "BAD_NOTE" == refusal(sign_note, text, KEY)


def test_only_note_keys_sign_notes() -> None:
    """No key, a witness's key, or more keys than a note has lines: refused."""
    witness = SigningKey("w", bytes(32), KEY_TYPE_COSIGNATURE)
    many = [SigningKey(f"k{n}", bytes(32)) for n in range(MAX_SIGNATURES + 1)]
    assert "BAD_NOTE" == refusal(sign_note, TEXT)
    assert "BAD_KEY_TYPE" == refusal(sign_note, TEXT, witness)
    assert "TOO_MANY_SIGNATURES" == refusal(sign_note, TEXT, *many)
    assert MAX_SIGNATURES == len(parse_note(sign_note(TEXT, *many[1:])).signatures)
