"""Private keys where they lie: a file, or the environment in its place.

Rules:
1. A file that others can write to or read is refused: mode 0600. It appears whole, and with that mode.
2. `ASSAY_KEY_<NAME>` holds a key's text in place of its file, so that a secret store can hand it in.
3. An encrypted key's passphrase is `ASSAY_PASSPHRASE`, or is asked for at a terminal; nowhere else.
"""

from __future__ import annotations

import os
import secrets
import sys
from getpass import getpass
from pathlib import Path
from typing import Final

from ledger.errors import NotFoundError, RefusedError
from ledger.keyfile import (
    PASSPHRASE_VARIABLE,
    SALT_BYTES,
    decode_key,
    decrypt_key,
    encode_key,
    encrypt_key,
    is_encrypted,
    key_variable,
)
from ledger.note import SigningKey

__all__ = [
    "new_key",
    "new_passphrase",
    "passphrase_like",
    "read_key",
    "read_key_text",
    "read_plain",
    "write_key",
]

_OTHERS: Final = 0o077
_NEW: Final = "ASSAY_NEW_PASSPHRASE"


def new_key(name: str) -> tuple[bytes, SigningKey]:
    """A fresh key: its file's bytes, plain, and itself."""
    data = encode_key(name, secrets.token_bytes(32))
    return data, decode_key(data)


def read_key(path: Path, name: str | None = None) -> SigningKey:
    """The key in the file at `path`, or in the environment for `name`.

    Raises NotFoundError KEY_ABSENT, RefusedError KEY_EXPOSED for a file that others may open, KEY_LOCKED and
    WRONG_PASSPHRASE for an encrypted one, FormatError BAD_KEY_FILE.
    """
    handed = None if name is None else os.environ.get(key_variable(name))
    # A shell's $(cat FILE) drops the last newline.
    data = f"{handed.rstrip()}\n".encode() if handed else read_key_text(path)
    return decode_key(data, _passphrase(path) if is_encrypted(data) else None)


def read_key_text(path: Path) -> bytes:
    """The file's bytes, plain or encrypted. Raises NotFoundError KEY_ABSENT, RefusedError KEY_EXPOSED."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except FileNotFoundError as error:
        raise NotFoundError("KEY_ABSENT", f"expected a key file at {path}") from error
    if mode & _OTHERS:
        raise RefusedError("KEY_EXPOSED", f"expected mode 0600 of {path}, got {mode & 0o777:04o}")
    return data


def read_plain(path: Path) -> bytes:
    """The plain bytes of the key file at `path`, which is not in the environment. Raises as `read_key`."""
    data = read_key_text(path)
    return decrypt_key(data, _passphrase(path)) if is_encrypted(data) else data


def passphrase_like(path: Path) -> str | None:
    """The passphrase of the key at `path`, for another key beside it; None where it is not encrypted.

    Raises as `read_key`.
    """
    data = read_key_text(path)
    if not is_encrypted(data):
        return None
    passphrase = _passphrase(path)
    decode_key(data, passphrase)
    return passphrase


def write_key(path: Path, data: bytes, passphrase: str | None) -> None:
    """Writes a plain key file's bytes, encrypted where there is a passphrase; replaces what is there."""
    if passphrase is not None:
        data = encrypt_key(data, passphrase, secrets.token_bytes(SALT_BYTES))
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def new_passphrase(variable: str = _NEW) -> str:
    """A passphrase to encrypt with: from the environment, or typed twice at a terminal.

    Raises RefusedError NO_PASSPHRASE without either, or where the two differ.
    """
    if (given := os.environ.get(variable)) is not None:
        return given
    if not sys.stdin.isatty():
        raise RefusedError("NO_PASSPHRASE", f"expected a terminal to ask at, or {variable} set, got neither")
    typed = getpass("New passphrase: ")
    if getpass("The same again: ") != typed:
        raise RefusedError("NO_PASSPHRASE", "expected the same passphrase twice, got two")
    return typed


def _passphrase(path: Path) -> str | None:
    """The environment's, or one typed at a terminal; None without either."""
    if (given := os.environ.get(PASSPHRASE_VARIABLE)) is not None:
        return given
    return getpass(f"Passphrase of {path}: ") if sys.stdin.isatty() else None
