"""Files that must survive a power cut: the one module here that calls fsync (SQLite does its own).

`Released` keeps one value in two slots of one file, written in turn:

    pwrite(slot) fdatasync(file)      once a commit; the other slot holds the value before, whole
    fsync(file) fsync(folder)         once, when the file is made at its full length

A write that is cut short spoils one slot, whose digest then fails, and the value before is read. That is the
right one: a value counts only after `put` returned. In place instead of temp, fsync, rename: one flush of
data and none of the folder's journal, on every commit's way.

A failed flush is reported once and the page may be lost: nothing is retried, the caller stops (FatalError).
"""

from __future__ import annotations

import fcntl
import os
import struct
from hashlib import sha256
from pathlib import Path
from typing import Final

from ledger.errors import FatalError

__all__ = ["MAX_VALUE_BYTES", "Folder", "Released"]

_LOCK: Final = "lock"
_RELEASED: Final = "released"
_SLOT: Final = 2**17
_HEAD: Final = struct.Struct(">QI")  # number of the write, length of the value
_DIGEST: Final = 32
MAX_VALUE_BYTES: Final = _SLOT - _HEAD.size - _DIGEST


class Folder:
    """A folder that one process owns, by a lock that ends with the process."""

    def __init__(self, path: Path) -> None:
        """Makes the folder where it is missing. Raises FatalError ALREADY_RUNNING if another has it."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path
        self._lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise FatalError(
                "ALREADY_RUNNING", f"expected to be the one process on {path}, got a lock that another holds"
            ) from error

    def close(self) -> None:
        """Gives the lock back."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


class Released:
    """One value on disk, replaced durably. Called from one thread."""

    def __init__(self, folder: Folder) -> None:
        """Opens or makes the file. Raises FatalError NOT_DURABLE."""
        path = folder.path / _RELEASED
        self._file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(self._file).st_size != 2 * _SLOT:
                os.ftruncate(self._file, 2 * _SLOT)
                os.fsync(self._file)
                directory = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(directory)
                finally:
                    os.close(directory)
        except OSError as error:
            raise FatalError("NOT_DURABLE", f"expected {path} to reach the disk, got {error}") from error
        slots = [self._slot(0), self._slot(1)]
        if slots == [None, None]:
            os.close(self._file)
            raise FatalError("BAD_RELEASED", f"expected a whole value in {path}, got two spoiled ones")
        self._number, self._value = max((slot for slot in slots if slot), key=lambda slot: slot[0])

    def get(self) -> bytes | None:
        """The value of the last `put` that returned, or of one that was cut off after it was written."""
        return self._value

    def put(self, value: bytes) -> None:
        """Replaces the value; durable on return. Raises FatalError NOT_DURABLE, and then nobody may go on."""
        if len(value) > MAX_VALUE_BYTES:
            raise FatalError("NOT_DURABLE", f"expected at most {MAX_VALUE_BYTES} bytes, got {len(value)}")
        number = self._number + 1
        data = _HEAD.pack(number, len(value)) + value
        data += sha256(data).digest()
        try:
            written = os.pwrite(self._file, data, number % 2 * _SLOT)
            if written != len(data):
                raise OSError(f"expected {len(data)} bytes written, got {written}")
            os.fdatasync(self._file)
        except OSError as error:
            raise FatalError("NOT_DURABLE", f"expected a value to reach the disk, got {error}") from error
        self._number, self._value = number, value

    def _slot(self, position: int) -> tuple[int, bytes | None] | None:
        """(number, value) of a slot; (0, None) where nothing was written; None where it is spoiled."""
        data = os.pread(self._file, _SLOT, position * _SLOT)
        if not any(data[: _HEAD.size]):
            return 0, None
        number, length = _HEAD.unpack_from(data)
        end = _HEAD.size + length
        if length > MAX_VALUE_BYTES or sha256(data[:end]).digest() != data[end : end + _DIGEST]:
            return None
        return number, data[_HEAD.size : end]

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)
