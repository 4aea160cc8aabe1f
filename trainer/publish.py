"""Manifests: what a version of a resource is (design section 1), and the event that registers one.

Rules:
1. A manifest is RFC 8785 JSON: format, resource, kind, serve command, and each file's path, size and SHA-256,
   sorted by path. Its SHA-256 is the version's one name; "latest" and folder names are none (law 12).
2. A manifest is the whole of what it names. What it cannot say is refused: links that leave the folder, links
   to folders, empty folders, anything that is neither file nor folder, names that are not UTF-8, and what
   cannot be read.
3. Files are read once; the size is that of the bytes that were hashed.
4. Registering a candidate gives it no authority.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import rfc8785

from ledger.errors import FormatError, NotFoundError, RefusedError
from ledger.note import check_name
from ledger.v1 import event_pb2, options_pb2, trainer_pb2

__all__ = ["KINDS", "MANIFEST_FORMAT", "Manifest", "ManifestFile", "candidate_event", "manifest"]

MANIFEST_FORMAT: Final = "assay/manifest/v1"

KINDS: Final = {
    options_pb2.RESOURCE_KIND_MODEL_FULL: "model.full",
    options_pb2.RESOURCE_KIND_MODEL_LORA: "model.lora",
    options_pb2.RESOURCE_KIND_PROMPT_TEMPLATE: "prompt_template",
}


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file: its path below the folder with `/` between parts, its size in bytes, its SHA-256."""

    path: str
    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest's exact bytes, their SHA-256 and the files that they list."""

    json: bytes
    digest: bytes
    files: tuple[ManifestFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def manifest(
    folder: Path, *, resource: str, kind: options_pb2.ResourceKind.ValueType, serve: Sequence[str]
) -> Manifest:
    """The manifest of what lies in `folder`; `serve` is the command, word by word, run in that folder.

    Raises NotFoundError FOLDER_ABSENT; FormatError BAD_NAME, BAD_KIND, BAD_SERVE; RefusedError EMPTY_FOLDER,
    LINK_LEAVES, LINK_TO_FOLDER, NOT_A_FILE, BAD_FILE_NAME, UNREADABLE.
    """
    check_name(resource)
    if kind not in KINDS:
        raise FormatError("BAD_KIND", f"expected one of {', '.join(KINDS.values())}, got {kind}")
    if not serve or not all(word and _is_text(word) for word in serve):
        raise FormatError(
            "BAD_SERVE", f"expected one word or more, none empty, all Unicode, got {list(serve)!r}"[:300]
        )
    if not folder.is_dir():
        raise NotFoundError("FOLDER_ABSENT", f"expected a folder at {folder}")
    root = folder.resolve()
    files = tuple(sorted((_read(root, path) for path in _walk(root, root)), key=lambda file: file.path))
    text = rfc8785.dumps(
        {
            "format": MANIFEST_FORMAT,
            "resource": resource,
            "kind": KINDS[kind],
            "serve": list(serve),
            "files": [{"path": f.path, "size": f.size, "sha256": f.sha256.hex()} for f in files],
        }
    )
    return Manifest(text, hashlib.sha256(text).digest(), files)


def candidate_event(
    *,
    event_id: bytes,
    update: str,
    candidate: Manifest,
    parent_digest: bytes,
    occurred_at: int | None = None,
    external_ref: options_pb2.ExternalRef | None = None,
) -> event_pb2.Event:
    """CandidateRegistered for `candidate`, trained from the version with `parent_digest`.

    `event_id` is a UUIDv7 of 16 bytes, `occurred_at` in microseconds since 1970.
    """
    body = trainer_pb2.CandidateRegistered(
        update=update,
        manifest_digest=candidate.digest,
        parent_digest=parent_digest,
        files=len(candidate.files),
        size=candidate.size,
        external_ref=external_ref,
    )
    return event_pb2.Event(event_id=event_id, occurred_at=occurred_at, candidate_registered=body)


def _is_text(value: str) -> bool:
    """Whether `value` has UTF-8: Python spells other bytes of a file name as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unreadable(path: Path, error: OSError) -> RefusedError:
    return RefusedError("UNREADABLE", f"expected to read {path}, got {error.strerror or error}")


def _walk(root: Path, folder: Path) -> Iterator[Path]:
    """The files below `folder`, links to files within `root` included."""
    try:
        items = sorted(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from error
    if not items:
        raise RefusedError(
            "EMPTY_FOLDER", f"expected files in {folder}, got none: a manifest lists files only"
        )
    for item in items:
        if not _is_text(item.name):
            raise RefusedError("BAD_FILE_NAME", f"expected names in UTF-8, got {item.name!r} in {folder}")
        try:
            target = item.resolve(strict=True)
            mode = target.stat().st_mode
        except (OSError, RuntimeError) as error:  # RuntimeError: pathlib's word for a loop of links
            raise RefusedError("UNREADABLE", f"expected to find what {item} names, got {error}") from error
        if item.is_symlink():
            if not target.is_relative_to(root):
                raise RefusedError("LINK_LEAVES", f"expected links within {root}, got {item} to {target}")
            if stat.S_ISDIR(mode):
                raise RefusedError("LINK_TO_FOLDER", f"expected links to files only, got {item} to {target}")
        if stat.S_ISDIR(mode):
            yield from _walk(root, item)
        elif stat.S_ISREG(mode):
            yield item
        else:
            raise RefusedError("NOT_A_FILE", f"expected files and folders only, got {item}")


def _read(root: Path, path: Path) -> ManifestFile:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            size = file.tell()
    except OSError as error:
        raise _unreadable(path, error) from error
    return ManifestFile(path.relative_to(root).as_posix(), size, digest)
