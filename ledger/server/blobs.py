"""Content by digest, in a folder or in any store that `fsspec` knows.

Rules kept here:

- A file is what the digest covers: the salt, if there is one, then the content. `sha256sum` checks it.
- Content is received into a file of this machine and appears under its name once it is whole. In a folder it
  is durable then (ledger.server.durable); elsewhere it is as durable as what the store answered for.
- Nothing here knows who may do what: that is the service's.

Everything here blocks. Errors are those of the file system: OSError, and whatever an `fsspec` store raises.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # ships no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]  # ships no types

from ledger.server.durable import publish

__all__ = ["BLOBS", "SALT_BYTES", "Contents", "Stored", "Upload", "contents_of"]

BLOBS: Final = "blobs"  # below the ledger's `data`, where no URL is given
SALT_BYTES: Final = 32
_SALTED: Final = ".salted"
_TEMP: Final = ".temp"
_CHUNK: Final = 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """Content that is there: its bytes without the salt."""

    size: int
    salted: bool


class Contents:
    """Content under `url`. Safe to use from several threads, for different digests."""

    def __init__(self, url: str, temp: Path) -> None:
        """`temp`: a folder of this machine for what is being received; a folder's own is used where `url`
        names one. Removes what a killed process left there."""
        self._files, root = url_to_fs(url, use_listings_cache=False)
        self._root = root.rstrip("/")
        self.local = isinstance(self._files, LocalFileSystem)
        self._temp = Path(self._root) / _TEMP if self.local else temp
        self._temp.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self._temp.iterdir():
            left.unlink()

    def begin(self) -> Upload:
        """A place to receive content into. Does not block."""
        return Upload(self, self._temp)

    def publish(self, temp: Path, digest: bytes, salted: bool) -> None:
        """Makes a received file appear; durable on return."""
        path = self._path(digest, salted)
        if self.local:
            publish(temp, Path(path))
            return
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(temp), path)

    def find(self, digest: bytes) -> Stored | None:
        """What is there under the digest."""
        for salted in (False, True):
            try:
                size = self._files.info(self._path(digest, salted))["size"]
            except FileNotFoundError:
                continue
            return Stored(size - SALT_BYTES * salted, salted)
        return None

    def open(self, digest: bytes, salted: bool) -> IO[bytes]:
        """Salt and content, to be read. Raises FileNotFoundError."""
        file: IO[bytes] = self._files.open(self._path(digest, salted), "rb")
        return file

    def whole(self, digest: bytes, salted: bool) -> bool:
        """Whether what is there is what the digest covers; reads all of it."""
        covered = sha256()
        with self.open(digest, salted) as file:
            while chunk := file.read(_CHUNK):
                covered.update(chunk)
        return covered.digest() == digest

    def remove(self, digest: bytes) -> None:
        """Removes what is there under the digest, if anything is."""
        for salted in (False, True):
            try:
                self._files.rm_file(self._path(digest, salted))
            except FileNotFoundError:
                continue

    def digests(self) -> Iterator[bytes]:
        """Every digest under which something is there; files with other names are not ours."""
        try:
            files = self._files.find(self._root)
        except FileNotFoundError:
            return
        for path in files:
            name = str(path).rpartition("/")[2].removesuffix(_SALTED)
            if len(name) == 2 * sha256().digest_size and set(name) <= set("0123456789abcdef"):
                yield bytes.fromhex(name)

    def _path(self, digest: bytes, salted: bool) -> str:
        name = digest.hex()
        return f"{self._root}/{name[:2]}/{name}{_SALTED if salted else ''}"


def contents_of(url: str | None, data: Path) -> Contents:
    """The contents of a ledger: under `url`, or in a folder of its `data`."""
    return Contents(url or str(data / BLOBS), data / f"{BLOBS}{_TEMP}")


class Upload:
    """Content that is being received. `discard` ends it, after `publish` too; one thread at a time."""

    def __init__(self, contents: Contents, folder: Path) -> None:
        """Touches nothing yet, so that there is never a file that nobody knows of."""
        self._contents = contents
        self._path = folder / secrets.token_hex(16)
        self._file: IO[bytes] | None = None

    def write(self, data: bytes) -> None:
        """Adds bytes; the first ones, none too, make the file."""
        if self._file is None:
            self._file = self._path.open("xb")
        self._file.write(data)

    def publish(self, digest: bytes, salted: bool) -> None:
        """Makes it appear; durable on return."""
        if self._file is not None:
            self._file.close()
        self._contents.publish(self._path, digest, salted)

    def discard(self) -> None:
        """Leaves nothing of what was received and did not appear."""
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self._path.unlink(missing_ok=True)
