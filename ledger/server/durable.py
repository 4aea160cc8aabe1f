"""Files that must survive a power cut: the one module here that calls fsync (SQLite does its own).

`Released` keeps one value in two slots of one file, written in turn:

    pwrite(slot) fdatasync(file)      once a commit; the other slot holds the value before, whole
    fsync(file) fsync(folder)         once, when the file is made at its full length

A write that is cut short spoils one slot, whose digest then fails, and the value before is read. That is the
right one: a value counts only after `put` returned. In place instead of temp, fsync, rename: one flush of
data and none of the folder's journal, on every commit's way.

A failed flush is reported once and the page may be lost: nothing is retried, the caller stops (FatalError).
`Files` are made of what is stored elsewhere: there the whole write may be tried again.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Final

from ledger.errors import FatalError

__all__ = ["MAX_VALUE_BYTES", "Files", "Folder", "Released", "publish"]

_LOCK: Final = "lock"
_RELEASED: Final = "released"
_TEMP: Final = ".temp"
_FLUSHES: Final = 4
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
                "ALREADY_RUNNING",
                f"expected to be the one process on {path}, got a lock that another holds: stop that one "
                "first (a ledger with --standby waits for it)",
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
                _sync_folder(folder.path)
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
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class Files:
    """Files of a folder that appear whole, each at once and for good. Called from one thread.

    write(temp) fsync(temp)       each file
    rename(temp, file)            each
    fsync(folder)                 each folder in which a name is new
    """

    def __init__(self, folder: Path) -> None:
        """Makes the folder where it is missing, for its owner alone; removes what a killed writer left."""
        self._folder = folder
        self._temp = folder / _TEMP
        self._temp.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._temp.mkdir(exist_ok=True, mode=0o700)
        self._clear()

    def write(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Writes (path from the folder, bytes); all durable on return.

        Raises OSError: each file is there whole or as it was, and none may be relied upon. Writing all of
        them again mends that: nothing of the first try is used.
        """
        names = [(self._folder / path, self._temp / str(number)) for number, (path, _) in enumerate(files)]
        try:
            # Side by side, since the file system then flushes its journal for several at once.
            with ThreadPoolExecutor(_FLUSHES, "ledger-files") as threads:
                written = threads.map(_write, [temp for _, temp in names], [data for _, data in files])
                for _ in written:  # raises what writing raised
                    pass
            changed: dict[Path, None] = {}
            for path, temp in names:
                changed |= dict.fromkeys(_make(path.parent))
                temp.replace(path)
            for folder in changed:
                _sync_folder(folder)
        except OSError:
            self._clear()
            raise

    def _clear(self) -> None:
        for left in self._temp.iterdir():
            left.unlink()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def publish(temp: Path, path: Path) -> None:
    """Makes a file that is written and closed appear at `path`, durable on return: the calls of `Files`.

    Raises OSError: the file is at `path` whole or not at all, and may not be relied upon.
    """
    written = os.open(temp, os.O_RDONLY)
    try:
        os.fsync(written)
    finally:
        os.close(written)
    folders = _make(path.parent)
    temp.replace(path)
    for folder in folders:
        _sync_folder(folder)


def _make(folder: Path) -> list[Path]:
    """Makes a folder; it and the folders above in which a name is new."""
    if folder.is_dir():
        return [folder]
    above = _make(folder.parent)
    folder.mkdir(exist_ok=True)  # another thread may have made it meanwhile
    return [folder, *above]


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
