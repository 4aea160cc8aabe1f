"""Private note keys as text, in the format of Go's x/mod/sumdb/note, or under a passphrase in one of our own.

    PRIVATE+KEY+<name>+<key id>+<base64 of type ‖ 32-byte seed>

    assay/key/v1
    <vkey>
    scrypt <log2 N> <base64 of a 16-byte salt>
    <base64 of ChaCha20-Poly1305(type ‖ seed)>

The second one's key is scrypt (RFC 7914) of the passphrase (NFC, UTF-8) with r = 8, p = 1. The nonce is zero,
since a salt, and so a key, encrypts once; the lines above are the associated data.

Rules kept here:

- Each has one spelling. The vkey stands in the clear and must be that of what is decrypted.
- What scrypt may cost is bounded before it runs: a file cannot make its reader spend more than 256 MiB.
- No message ever holds a part of the key or of the passphrase.
- Bytes only: who may open the file is for whoever opens it, and so are salts.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from ledger.errors import FormatError, RefusedError
from ledger.note import KEY_TYPE_ED25519, SigningKey, VerifierKey, decode_base64, encode_base64

__all__ = [
    "LEDGER_KEY_VARIABLE",
    "PASSPHRASE_VARIABLE",
    "SALT_BYTES",
    "decode_key",
    "decrypt_key",
    "encode_key",
    "encrypt_key",
    "is_encrypted",
    "key_variable",
]

_PREFIX: Final = "PRIVATE+KEY+"
_FIRST_LINE: Final = "assay/key/v1"
SALT_BYTES: Final = 16
_COST: Final = 17  # log2 N: 128 MiB and about half a second
_COSTS: Final = range(14, 19)  # what is read: 16 to 256 MiB
_NONCE: Final = bytes(12)
_SCRYPT: Final = re.compile(r"scrypt ([1-9][0-9]?) (\S{24})")

#: Names the environment's passphrase for every key that is encrypted.
PASSPHRASE_VARIABLE: Final = "ASSAY_PASSPHRASE"  # noqa: S105 - a name, not a passphrase


def key_variable(name: str) -> str:
    """The environment variable that holds a key in place of its file: ASSAY_KEY_RUNNER_1 for `runner-1`."""
    return "ASSAY_KEY_" + re.sub("[^A-Z0-9]", "_", name.upper())


#: As `key_variable("ledger")`: the ledger's own key, whatever its origin.
LEDGER_KEY_VARIABLE: Final = key_variable("ledger")


def encode_key(name: str, seed: bytes, type: int = KEY_TYPE_ED25519) -> bytes:  # noqa: A002 - as in the vkey
    """The file's bytes for a key. Raises FormatError: what `SigningKey` finds wrong with the values."""
    key_id = SigningKey(name, seed, type).verifier_key.key_id
    return f"{_PREFIX}{name}+{key_id.hex()}+{encode_base64(bytes([type]) + seed)}\n".encode()


def encrypt_key(data: bytes, passphrase: str, salt: bytes, cost: int = _COST) -> bytes:
    """A plain key file's bytes under a passphrase. `salt`: 16 random bytes, never used before.

    Raises FormatError: BAD_PASSPHRASE for an empty one, BAD_KEY_FILE.
    """
    if not passphrase:
        raise FormatError("BAD_PASSPHRASE", "expected a passphrase of one character or more, got none")
    if len(salt) != SALT_BYTES or cost not in _COSTS:
        raise FormatError("BAD_KEY_FILE", f"expected a salt of 16 bytes and a cost of 14 to 18, got {cost}")
    key = decode_key(data)
    head = f"{_FIRST_LINE}\n{key.verifier_key}\nscrypt {cost} {encode_base64(salt)}\n".encode()
    secret = decode_base64(data.decode().removesuffix("\n").split("+", 4)[4])
    sealed = _cipher(passphrase, salt, cost).encrypt(_NONCE, secret, head)
    return head + f"{encode_base64(sealed)}\n".encode()


def is_encrypted(data: bytes) -> bool:
    """Whether a key file's bytes need a passphrase."""
    return data.startswith(f"{_FIRST_LINE}\n".encode())


def decode_key(data: bytes, passphrase: str | None = None) -> SigningKey:
    """The key that a file's bytes hold.

    Raises FormatError BAD_KEY_FILE; RefusedError KEY_LOCKED without the passphrase that it needs,
    WRONG_PASSPHRASE with another.
    """
    if is_encrypted(data):
        data = decrypt_key(data, passphrase)
    try:
        fields = data.decode("ascii").removeprefix(_PREFIX).removesuffix("\n").split("+", 2)
        name, _, encoded = fields
        raw = decode_base64(encoded)
        type_, seed = raw[0], raw[1:]
        key = SigningKey(name, seed, type_)
        right = encode_key(name, seed, type_) == data
    except (ValueError, IndexError, FormatError):
        # Not chained: the causes' messages quote what they were given, and that is the key.
        raise FormatError("BAD_KEY_FILE", f"expected one line {_PREFIX}<name>+<key id>+<base64>") from None
    if not right:
        raise FormatError("BAD_KEY_FILE", f"expected the one spelling of the key of {name}, got another")
    return key


def decrypt_key(data: bytes, passphrase: str | None) -> bytes:
    """The plain file's bytes of an encrypted key. Raises as `decode_key`."""
    try:
        _, vkey, scrypt, encoded, end = data.decode("ascii").split("\n")
        known = VerifierKey.parse(vkey)
        if (match := _SCRYPT.fullmatch(scrypt)) is None or end:
            raise FormatError("BAD_KEY_FILE", "expected scrypt <log2 N> <salt> and one line after it")
        cost, salt, sealed = int(match[1]), decode_base64(match[2]), decode_base64(encoded)
    except (ValueError, FormatError) as error:
        raise FormatError(
            "BAD_KEY_FILE", f"expected the four lines of an encrypted key ({_FIRST_LINE}), got {error}"
        ) from error
    if cost not in _COSTS or len(salt) != SALT_BYTES:
        raise FormatError("BAD_KEY_FILE", f"expected a cost of 14 to 18 and a salt of 16 bytes, got {cost}")
    if passphrase is None:
        raise RefusedError(
            "KEY_LOCKED",
            f"expected the passphrase of the key of {known.name}, got none: set {PASSPHRASE_VARIABLE}",
        )
    head = data[: data.rindex(b"\n", 0, -1) + 1]
    try:
        secret = _cipher(passphrase, salt, cost).decrypt(_NONCE, sealed, head)
    except InvalidTag:
        raise RefusedError(
            "WRONG_PASSPHRASE", f"expected the passphrase of the key of {known.name}, got another"
        ) from None
    try:
        key = SigningKey(known.name, secret[1:], secret[0])
    except (FormatError, IndexError):
        raise FormatError("BAD_KEY_FILE", f"expected the key of {known.name}, got none inside") from None
    if key.verifier_key != known:
        raise FormatError("BAD_KEY_FILE", f"expected the key of {known}, got another inside")
    return encode_key(known.name, secret[1:], secret[0])


def _cipher(passphrase: str, salt: bytes, cost: int) -> ChaCha20Poly1305:
    secret = unicodedata.normalize("NFC", passphrase).encode()
    return ChaCha20Poly1305(Scrypt(salt=salt, length=32, n=1 << cost, r=8, p=1).derive(secret))
