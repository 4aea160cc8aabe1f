"""Private key files: `ledger.keyfile`'s one line on disk, read.

Rules:
1. A file that others can write to or read is refused: mode 0600.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ledger.errors import NotFoundError, RefusedError
from ledger.keyfile import decode_key
from ledger.note import SigningKey

__all__ = ["read_key"]

_OTHERS: Final = 0o077


def read_key(path: Path) -> SigningKey:
    """The key in the file at `path`.

    Raises NotFoundError KEY_ABSENT, RefusedError KEY_EXPOSED for a file that others may open, FormatError
    BAD_KEY_FILE.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read()
    except FileNotFoundError as error:
        raise NotFoundError("KEY_ABSENT", f"expected a key file at {path}") from error
    if mode & _OTHERS:
        raise RefusedError("KEY_EXPOSED", f"expected mode 0600 of {path}, got {mode & 0o777:04o}")
    return decode_key(data)
