"""Private note keys as text, in the format of Go's x/mod/sumdb/note: `PRIVATE+KEY+<name>+<key id>+<base64>`.

Rules kept here:

- One line: the name, the key id in hex, and base64 of type ‖ 32-byte seed, each in its one spelling.
- No message ever holds a part of the key.
- Bytes only: who may open the file is for whoever opens it.
"""

from __future__ import annotations

from typing import Final

from ledger.errors import FormatError
from ledger.note import KEY_TYPE_ED25519, SigningKey, decode_base64, encode_base64

__all__ = ["decode_key", "encode_key"]

_PREFIX: Final = "PRIVATE+KEY+"


def encode_key(name: str, seed: bytes, type: int = KEY_TYPE_ED25519) -> bytes:  # noqa: A002 - as in the vkey
    """The file's bytes for a key. Raises FormatError: what `SigningKey` finds wrong with the values."""
    key_id = SigningKey(name, seed, type).verifier_key.key_id
    return f"{_PREFIX}{name}+{key_id.hex()}+{encode_base64(bytes([type]) + seed)}\n".encode()


def decode_key(data: bytes) -> SigningKey:
    """The key that a file's bytes hold. Raises FormatError BAD_KEY_FILE."""
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
