"""Signed notes: the ledger's one signature format (C2SP signed-note.md; design section 4).

Rules kept here:

- A note is text, a blank line, then 1 to 64 signature lines: UTF-8, no control character but newline.
- The bytes signed are the bytes verified; nothing is re-encoded to check a signature (law 2).
- Base64 and decimals have one spelling: what does not re-encode to itself is refused.
- One Ed25519 rule, so that no author can split auditors: S < L, cofactorless, R compared as bytes; refused
  besides is a public key or R whose y is not below p or is that of a point of small order. Keys are checked
  when they are made, R at every verification.
- Unknown keys are ignored. A known key signs once, and its bad signature refuses the note; so does the lack
  of any good one.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ledger.errors import FormatError, VerificationError

__all__ = [
    "KEY_TYPE_COSIGNATURE",
    "KEY_TYPE_ED25519",
    "MAX_SIGNATURES",
    "Note",
    "Signature",
    "Signer",
    "SigningKey",
    "VerifierKey",
    "check_name",
    "check_public_key",
    "decode_base64",
    "decode_decimal",
    "decode_text",
    "ed25519_verify",
    "encode_base64",
    "parse_note",
    "sign_note",
    "signature_line",
]

KEY_TYPE_ED25519: Final = 0x01
KEY_TYPE_COSIGNATURE: Final = 0x04
MAX_SIGNATURES: Final = 64

_P: Final = 2**255 - 19
_Y8: Final = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
# Every encoding, with either sign bit, of a y of the 8-torsion subgroup (orders 1, 2, 4, 8) or not below p.
_REFUSED_POINTS: Final = frozenset(
    (y | sign << 255).to_bytes(32, "little")
    for y in (1, _P - 1, 0, _Y8, _P - _Y8, *range(_P, 2**255))
    for sign in (0, 1)
)

_NAME: Final = re.compile(r"[\x21-\x2a\x2c-\x7e]{1,128}")
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,19}")
_CONTROL: Final = re.compile(rb"[\x00-\x09\x0b-\x1f]")


def check_name(name: str) -> None:
    """Raise FormatError BAD_NAME unless `name` is 1 to 128 ASCII characters 0x21–0x7E other than `+`."""
    if not _NAME.fullmatch(name):
        raise FormatError("BAD_NAME", f"expected 1 to 128 of ASCII 0x21–0x7E without '+', got {name[:129]!r}")


def encode_base64(data: bytes) -> str:
    """Padded standard base64 (RFC 4648 section 4)."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def decode_base64(text: str) -> bytes:
    """The bytes of padded standard base64; FormatError BAD_BASE64 unless it re-encodes to itself."""
    try:
        data = binascii.a2b_base64(text)
    except ValueError as error:  # binascii.Error is one; text outside ASCII raises the plain kind
        raise FormatError("BAD_BASE64", f"expected base64, got {text[:100]!r}") from error
    if (again := encode_base64(data)) != text:
        raise FormatError("BAD_BASE64", f"expected {again[:100]!r}, got {text[:100]!r}")
    return data


def decode_decimal(text: str) -> int:
    """An unsigned 64-bit number without leading zeros; FormatError BAD_DECIMAL for anything else."""
    if not _DECIMAL.fullmatch(text) or (number := int(text)) >= 2**64:
        raise FormatError("BAD_DECIMAL", f"expected decimal digits below 2^64, got {text[:100]!r}")
    return number


def decode_text(data: bytes) -> str:
    """What a note may hold: FormatError BAD_NOTE unless UTF-8 without control characters but newline."""
    if found := _CONTROL.search(data):
        raise FormatError("BAD_NOTE", f"expected no control character, got {found.group()!r}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("BAD_NOTE", f"expected UTF-8, got byte {data[error.start]:#04x}") from error


def check_public_key(public_key: bytes) -> None:
    """Raise FormatError BAD_PUBLIC_KEY for a key that is not 32 bytes, not canonical or of small order.

    A y that belongs to no point passes: such a key verifies nothing.
    """
    if len(public_key) != 32:
        raise FormatError("BAD_PUBLIC_KEY", f"expected 32 bytes, got {len(public_key)}")
    if public_key in _REFUSED_POINTS:
        raise FormatError("BAD_PUBLIC_KEY", f"expected y < p and no small order, got {public_key.hex()}")


def ed25519_verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the 64-byte `signature` over `message` holds under the strict rule above.

    For a key used more than once `VerifierKey.verify` is faster by the cost of loading the key.
    """
    if len(public_key) != 32 or public_key in _REFUSED_POINTS:
        return False
    return _verify_loaded(Ed25519PublicKey.from_public_bytes(public_key), signature, message)


def _verify_loaded(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    """The rule's other half, for a key that was checked."""
    if len(signature) != 64 or signature[:32] in _REFUSED_POINTS:
        return False
    # OpenSSL checks S < L, uses no cofactor and compares R as bytes, and checks nothing else.
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A named public key (C2SP vkey). `str()` gives the vkey text; hashable, equal by its three fields.

    Raises FormatError BAD_NAME, BAD_KEY_TYPE or BAD_PUBLIC_KEY.
    """

    name: str
    type: int
    public_key: bytes
    #: First four bytes of SHA-256(name ‖ 0x0A ‖ type ‖ public key).
    key_id: bytes = field(init=False, repr=False, compare=False)
    _loaded: Ed25519PublicKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.type not in (KEY_TYPE_ED25519, KEY_TYPE_COSIGNATURE):
            raise FormatError("BAD_KEY_TYPE", f"expected key type 1 or 4, got {self.type}")
        check_public_key(self.public_key)
        identity = self.name.encode("ascii") + b"\n" + bytes([self.type]) + self.public_key
        # Both are kept because a verifier asks for them once per batch, for a million batches.
        object.__setattr__(self, "key_id", sha256(identity).digest()[:4])
        object.__setattr__(self, "_loaded", Ed25519PublicKey.from_public_bytes(self.public_key))

    def __reduce__(self) -> tuple[object, ...]:
        # The loaded key cannot be pickled; a verifier's worker processes load it again.
        return VerifierKey, (self.name, self.type, self.public_key)

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(bytes([self.type]) + self.public_key)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """The key of `name+key id in hex+base64(type ‖ public key)`.

        Raises FormatError: BAD_VKEY, or what the fields raise, or BAD_KEY_ID where the text is not the key's
        own spelling.
        """
        parts = text.split("+", 2)
        if len(parts) != 3 or not (raw := decode_base64(parts[2])):
            raise FormatError("BAD_VKEY", f"expected name+key id+key, got {text[:300]!r}")
        key = cls(parts[0], raw[0], raw[1:])
        if str(key) != text:
            raise FormatError("BAD_KEY_ID", f"expected {key}, got {text[:300]}")
        return key

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the raw 64-byte `signature` over `message` is this key's, under the strict rule."""
        return _verify_loaded(self._loaded, signature, message)


class Signer(Protocol):
    """Who signs under a name: a key held here (`SigningKey`), or one that never leaves where it is kept."""

    @property
    def verifier_key(self) -> VerifierKey:
        """The public half."""

    def sign(self, message: bytes) -> bytes:
        """The raw 64-byte Ed25519 signature over `message`."""


class SigningKey:
    """A named private key, made of its 32-byte seed (RFC 8032). Never shows the seed, nor can be pickled.

    The `Signer` that a key file makes.
    """

    __slots__ = ("_private", "verifier_key")

    # `type` is what the specification calls it.
    def __init__(self, name: str, seed: bytes, type: int = KEY_TYPE_ED25519) -> None:  # noqa: A002
        if len(seed) != 32:
            raise FormatError("BAD_SEED", f"expected a seed of 32 bytes, got {len(seed)}")
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.verifier_key = VerifierKey(name, type, self._private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"<SigningKey {self.verifier_key}>"

    def sign(self, message: bytes) -> bytes:
        """The raw 64-byte Ed25519 signature over `message`."""
        return self._private.sign(message)


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature line: the signer's name, its 4-byte key id, and what follows the id."""

    name: str
    key_id: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """A note as parsed: `text` with its last newline, and the signature lines in their order."""

    text: bytes
    signatures: tuple[Signature, ...]

    def payload(self, key: VerifierKey, *, step: str = "V6") -> bytes | None:
        """What `key`'s signature line carries, not yet verified; None where it has none.

        Raises VerificationError SIGNED_TWICE, under the verification step that the caller is at.
        """
        found = [s.payload for s in self.signatures if s.key_id == key.key_id and s.name == key.name]
        if len(found) > 1:
            raise VerificationError(step, "SIGNED_TWICE", f"expected one line by {key}, got {len(found)}")
        return found[0] if found else None

    def verify(self, keys: Iterable[VerifierKey], *, step: str = "V6") -> tuple[VerifierKey, ...]:
        """Those of `keys` (type 1) that signed this note: at least one, in the order given.

        Cosignature keys are passed over (`checkpoint.verify_cosignatures`). Raises VerificationError
        BAD_SIGNATURE, SIGNED_TWICE or NO_KNOWN_SIGNATURE, under the caller's step.
        """
        signers = []
        for key in dict.fromkeys(keys):
            if key.type != KEY_TYPE_ED25519 or (payload := self.payload(key, step=step)) is None:
                continue
            if not key.verify(self.text, payload):
                raise VerificationError(step, "BAD_SIGNATURE", f"expected a signature by {key}, got another")
            signers.append(key)
        if not signers:
            got = ", ".join(f"{s.name}+{s.key_id.hex()}" for s in self.signatures)
            raise VerificationError(step, "NO_KNOWN_SIGNATURE", f"expected one by a known key, got {got}")
        return tuple(signers)


def parse_note(data: bytes) -> Note:
    """Split a signed note. Nothing is verified.

    Raises FormatError: BAD_NOTE for its frame, BAD_SIGNATURE_LINE or TOO_MANY_SIGNATURES for its lines.
    """
    decode_text(data)
    end = data.rfind(b"\n\n") + 1  # The text may hold blank lines; the last one ends it.
    if not end or not data.endswith(b"\n") or end + 1 == len(data):
        raise FormatError("BAD_NOTE", "expected text, a blank line, signature lines, a last newline")
    lines = data[end + 1 : -1].decode().split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise FormatError("TOO_MANY_SIGNATURES", f"expected at most {MAX_SIGNATURES}, got {len(lines)}")
    return Note(data[:end], tuple(_parse_signature(line) for line in lines))


def _parse_signature(line: str) -> Signature:
    match line.split(" "):
        # C2SP's rule for names, wider than ours: the line of an unknown key is ignored, not refused.
        case ["—", name, encoded] if name and "+" not in name and not any(map(str.isspace, name)):
            try:
                raw = decode_base64(encoded)
            except FormatError as error:
                raise FormatError("BAD_SIGNATURE_LINE", error.message) from error
            if len(raw) < 5:
                raise FormatError("BAD_SIGNATURE_LINE", f"expected more than a key id, got {len(raw)} bytes")
            return Signature(name, raw[:4], raw[4:])
    raise FormatError("BAD_SIGNATURE_LINE", f"expected '— name base64', got {line[:300]!r}")


def signature_line(name: str, key_id: bytes, payload: bytes) -> bytes:
    """The line `— <name> <base64(key id ‖ payload)>` with its newline. FormatError BAD_NAME."""
    check_name(name)
    return f"— {name} {encode_base64(key_id + payload)}\n".encode()


def sign_note(text: bytes, *keys: Signer) -> bytes:
    """`text` as a note, signed by each of `keys` (1 to 64 different ones, type 1).

    Raises FormatError BAD_NOTE for a text that no note can hold or for no key, BAD_KEY_TYPE, SIGNED_TWICE,
    TOO_MANY_SIGNATURES.
    """
    decode_text(text)
    if not text.endswith(b"\n") or not keys:
        raise FormatError("BAD_NOTE", f"expected text that ends in a newline and a key, got {len(keys)} keys")
    if len(keys) > MAX_SIGNATURES:
        raise FormatError("TOO_MANY_SIGNATURES", f"expected at most {MAX_SIGNATURES}, got {len(keys)}")
    lines: dict[VerifierKey, bytes] = {}
    for key in keys:
        known = key.verifier_key
        if known.type != KEY_TYPE_ED25519:
            raise FormatError("BAD_KEY_TYPE", f"expected key type 1, got {known.type} of {known.name}")
        if known in lines:
            raise FormatError("SIGNED_TWICE", f"expected different keys, got {known} twice")
        lines[known] = signature_line(known.name, known.key_id, key.sign(text))
    return text + b"\n" + b"".join(lines.values())
