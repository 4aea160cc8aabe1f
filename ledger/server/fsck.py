"""Checking a stored log, the ledger stopped: everything is verified, and everything derived is derived again.

Rules kept here:

- The log passes the offline verifier, authors' signatures and all, over the very runs that are stored. Beside
  it each commit's checkpoint and each batch's marker is compared with what the log says they are.
- A finding has a kind, a position and what to do. The log, markers, checkpoints and what was released come
  back from a backup only; what is derived is deleted and made again at the next start.
- Nothing is changed unless the operator asks for the repair of what is derived.
- The first fault of the log ends the pass: what comes after it, or is derived from it, cannot be judged.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from ledger.batch import event_root
from ledger.checkpoint import Checkpoint, open_checkpoint, open_note
from ledger.entry import Opening, decode_entry, iter_run
from ledger.errors import AssayError, CannotTellError, VerificationError
from ledger.merkle import Frontier
from ledger.note import VerifierKey
from ledger.server.blob_index import BLOB_INDEX
from ledger.server.blobs import Contents
from ledger.server.derived import TileCheck, check_blob_index, check_views
from ledger.server.recovery import TILES, VIEWS
from ledger.server.store import Marker, Store, marker_originator
from ledger.server.tiles import CHECKPOINT
from ledger.server.views import SQLITE_SUFFIXES
from ledger.server.witnesses import COSIGNED
from ledger.trust import Grant, TrustDocument
from ledger.v1 import event_pb2
from ledger.verify import Verifier

__all__ = ["Finding", "Kind", "Report", "check_store"]

_MOST: Final = 100  # findings of a kind that are told one by one
_TOLD: Final = 500_000  # entries between two lines in the process's log

_log = logging.getLogger("ledger.server")


class Kind(StrEnum):
    """What is at fault."""

    LOG = "log"
    CHECKPOINT = "checkpoint"
    MARKER = "marker"
    RELEASED = "released"
    TILES = "tiles"
    VIEWS = "views"
    BLOB_INDEX = "blob index"
    BLOB = "blob"


_RESTORE: Final = "restore the newest backup that passes this check; this log must not go on from here"
_ADVICE: Final = {
    Kind.LOG: _RESTORE,
    Kind.CHECKPOINT: _RESTORE,
    Kind.MARKER: f"the entries are whole, but a batch sent again would not be known: {_RESTORE}",
    Kind.RELEASED: "whether this store is the newest cannot be told, or it is not: restore the newer store; "
    "a checkpoint that somebody remembers is handed in with --released",
    Kind.TILES: "derived: remove the folder of tiles (--repair-derived does); the next start makes it again",
    Kind.VIEWS: "derived: remove the file of views (--repair-derived does); the next start makes it again",
    Kind.BLOB_INDEX: "derived: remove the index of blobs (--repair-derived does); a start makes it again",
    Kind.BLOB: "restore this file from a backup; the log is whole, and no check or verdict reads contents",
}
_DERIVED: Final = frozenset({Kind.TILES, Kind.VIEWS, Kind.BLOB_INDEX})


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `position` is an index, or for checkpoints a size; None where it has none."""

    kind: Kind
    position: int | None
    found: str
    advice: str


@dataclass(slots=True)
class Report:
    """What came of a check."""

    size: int = 0
    root: bytes = b""
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[Kind] = field(default_factory=Counter)

    def document(self) -> dict[str, Any]:
        """As JSON says it."""
        return {
            "size": self.size,
            "root": self.root.hex(),
            "counts": {str(kind): count for kind, count in self.counts.items()},
            "findings": [
                {"kind": str(f.kind), "position": f.position, "found": f.found, "advice": f.advice}
                for f in self.findings
            ],
        }

    def remove_derived(self, data: Path) -> list[str]:
        """Removes what is derived and has findings, unless something else has any; the kinds removed."""
        if set(self.counts) - _DERIVED - {Kind.BLOB}:
            return []
        if Kind.TILES in self.counts:
            # The checkpoint goes first: it never stands over tiles that are missing.
            (data / TILES / CHECKPOINT).unlink()
            shutil.rmtree(data / TILES)
        for kind, name in ((Kind.VIEWS, VIEWS), (Kind.BLOB_INDEX, BLOB_INDEX)):
            for suffix in SQLITE_SUFFIXES if kind in self.counts else ():
                (data / f"{name}{suffix}").unlink(missing_ok=True)
        return [str(kind) for kind in self.counts if kind in _DERIVED]

    def add(self, kind: Kind, position: int | None, found: str) -> None:
        """Takes a finding; of very many of a kind only their number."""
        self.counts[kind] += 1
        if self.counts[kind] <= _MOST:
            self.findings.append(Finding(kind, position, found, _ADVICE[kind]))


def check_store(store: Store, trust: TrustDocument, data: Path, blobs: Contents | None = None) -> Report:
    """Verifies the log of `store` and all that is kept beside it: in `data` what is derived, and `blobs`.

    Raises FatalError where the store cannot be read, CannotTellError where all is right but entries are of
    event types that this release does not know.
    """
    released, published = store.released(), data / TILES / CHECKPOINT
    public = published.read_bytes() if published.exists() else None
    cosigned = (data / COSIGNED).read_bytes() if (data / COSIGNED).exists() else None
    sizes = [_claimed_size(note, trust) for note in (released, public, cosigned)]
    tiles = TileCheck(data / TILES, sizes[1] or 0)
    walk = _Walk(store, trust, {size for size in sizes if size is not None}, tiles)
    whole = walk.run()
    report = walk.report
    report.size, report.root = walk.edge.size, walk.edge.root()
    if whole:
        # Each commit is released before the next: only the first one may be stored and not released.
        if released is None and walk.commits > 1:
            found = f"expected a released checkpoint beside {report.size} entries, got none"
            report.add(Kind.RELEASED, None, found)
        if released is not None:
            _check_note(report, walk, "released", released, Kind.RELEASED)
        if public is not None:
            _check_note(report, walk, f"published in {published.parent}", public, Kind.TILES)
        if cosigned is not None:
            _check_note(report, walk, "cosigned by witnesses", cosigned, Kind.RELEASED)
        for index, found in tiles.faults:
            report.add(Kind.TILES, index, found)
        report.counts[Kind.TILES] += tiles.count - len(tiles.faults)  # those that were too many to tell
        if not walk.unknown and set(report.counts) <= _DERIVED | {Kind.MARKER}:
            for found in check_views(store, trust, data):
                report.add(Kind.VIEWS, None, found)
            for found in check_blob_index(store, trust.origin, report.size, data):
                report.add(Kind.BLOB_INDEX, None, found)
    if blobs is not None:
        _check_blobs(report, blobs)
    report.counts = +report.counts  # what has findings, and nothing else
    if not report.findings and walk.unknown:
        raise CannotTellError(
            "NEWER_EVENT_TYPE",
            f"expected event types that this release knows, got {walk.unknown} entries of others; use a "
            "newer release",
        )
    return report


def _check_blobs(report: Report, blobs: Contents) -> None:
    """Each content that is stored is what its digest covers."""
    for digest in blobs.digests():
        stored = blobs.find(digest)
        if stored is None or not blobs.whole(digest, stored.salted):
            report.add(Kind.BLOB, None, f"expected content of digest {digest.hex()}, got other bytes")


def _claimed_size(note: bytes | None, trust: TrustDocument) -> int | None:
    """The size that a checkpoint speaks of, whoever signed it; None where it is none."""
    if note is None:
        return None
    try:
        return open_note(note, trust.origin)[1].size
    except AssayError:
        return None


def _check_note(report: Report, walk: _Walk, what: str, note: bytes, unsigned: Kind) -> None:
    """Law 6: a checkpoint that left the process is one of this log, which is at least as long.

    One that no key of this ledger signed says nothing about the log: that is a fault of kind `unsigned`.
    """
    size = walk.edge.size
    try:
        checkpoint = open_checkpoint(note, *walk.ledger_keys)
    except VerificationError as error:
        report.add(unsigned, None, f"expected a checkpoint by this ledger, {what}, got {error}")
        return
    if checkpoint.size > size:
        found = f"expected at least {checkpoint.size} entries, as {what}, got {size}"
        report.add(Kind.RELEASED, checkpoint.size, found)
    elif checkpoint.root != walk.roots[checkpoint.size]:
        found = f"expected root {checkpoint.root.hex()} at size {checkpoint.size}, as {what}, got another"
        report.add(Kind.RELEASED, checkpoint.size, found)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A stored batch as its marker must have it."""

    first_index: int
    opening: Opening
    root: bytes


def _batches(run: bytes) -> Iterator[_Batch]:
    """The batches of a run that the verifier passed."""
    first: tuple[int, Opening] | None = None
    events: list[bytes] = []
    for data in iter_run(run):
        entry = decode_entry(data)
        if entry.opening is not None:
            first, events = (entry.index, entry.opening), []
        events.append(entry.event)
        if first is not None and len(events) == first[1].count:
            yield _Batch(*first, event_root(events))


class _Walk:
    """One pass over the log, run by run; the verifier's fold."""

    def __init__(self, store: Store, trust: TrustDocument, wanted: Set[int], tiles: TileCheck) -> None:
        """`wanted`: sizes whose roots are wanted; `tiles` looks along."""
        self.report = Report()
        self.edge = Frontier()
        self.unknown = 0  # entries of newer types
        self.roots: dict[int, bytes] = {}
        self.commits = 0
        self.ledger_keys: dict[VerifierKey, None] = {trust.log: None}  # in order of their rule
        self._store = store
        self._trust = trust
        self._wanted = wanted
        self._tiles = tiles
        self._verifier = Verifier(trust, fold=self)
        self._leaves: list[bytes] = []  # of the run at hand
        self._grants: dict[int, Grant] = {}  # of its entries, by index
        self._sequences: dict[bytes, tuple[str, int]] = {}  # originator -> author, the next sequence
        self._notes = store.checkpoints(0)
        self._note = next(self._notes, None)

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes an entry that the verifier passed."""
        self._leaves.append(leaf)
        self._grants[index] = grant
        if event.WhichOneof("body") is None:
            self.unknown += 1

    def run(self) -> bool:
        """Walks to the end, or to the log's first fault; whether the log is whole."""
        for first_index, run in self._store.runs(0):
            if not self._take(first_index, run):
                return False
            self._check_checkpoint()
            for batch in _batches(run):
                self._check_marker(batch)
        while self._note is not None:
            self._stray_note(self._note)
        for originator, (name, expected) in self._sequences.items():
            got = self._store.next_sequence(UUID(bytes=originator))
            if got > expected:
                self.report.add(
                    Kind.MARKER,
                    None,
                    f"expected the next sequence {expected} of {name}, got markers up to {got - 1}",
                )
        return True

    def _take(self, first_index: int, run: bytes) -> bool:
        size = self._verifier.size
        if first_index != size:
            self.report.add(Kind.LOG, size, f"expected a run at index {size}, got one at {first_index}")
            return False
        self._leaves.clear()
        self._grants.clear()
        try:
            for _ in iter_run(run):  # ends where the run does
                pass
            self._verifier.feed(run)
        except AssayError as error:
            index = error.index if isinstance(error, VerificationError) else None
            self.report.add(Kind.LOG, size if index is None else index, str(error))
            return False
        if self._verifier.size != size + len(self._leaves) or not self._leaves:
            self.report.add(
                Kind.LOG, size, "expected whole batches in a run, got one that is open at its end"
            )
            return False
        self._grow()
        for entry, leaf in zip(iter_run(run), self._leaves, strict=True):
            self._tiles.take(entry, leaf)
        if size // _TOLD != self.edge.size // _TOLD:
            _log.info("verified up to size %d", self.edge.size, extra={"size": self.edge.size})
        return True

    def _grow(self) -> None:
        size = self.edge.size
        for wanted in self._wanted:
            if size < wanted <= size + len(self._leaves):
                then = self.edge.copy()
                then.extend(self._leaves[: wanted - size])
                self.roots[wanted] = then.root()
        self.edge.extend(self._leaves)
        self.ledger_keys[self._verifier.keys.ledger_key] = None
        self.commits += 1

    def _check_checkpoint(self) -> None:
        """The commit's: at its size, over its root, by the key then in force."""
        size = self.edge.size
        while self._note is not None and self._note[0] < size:
            self._stray_note(self._note)
        if self._note is None or self._note[0] != size:
            self.report.add(Kind.CHECKPOINT, size, f"expected a checkpoint at size {size}, got none")
            return
        note, self._note = self._note[1], next(self._notes, None)
        expected = Checkpoint(self._trust.origin, size, self.edge.root())
        try:
            got = open_checkpoint(note, self._verifier.keys.ledger_key)
        except AssayError as error:
            self.report.add(Kind.CHECKPOINT, size, str(error))
            return
        if got != expected:
            self.report.add(Kind.CHECKPOINT, size, f"expected root {expected.root.hex()}, got {got}")

    def _stray_note(self, note: tuple[int, bytes]) -> None:
        self.report.add(
            Kind.CHECKPOINT, note[0], f"expected no checkpoint at size {note[0]}, where no commit ends"
        )
        self._note = next(self._notes, None)

    def _check_marker(self, batch: _Batch) -> None:
        opening, grant = batch.opening, self._grants[batch.first_index]
        originator = marker_originator(grant.key.public_key, opening.stream)
        self._sequences[originator.bytes] = grant.name, opening.sequence + 1
        expected = Marker(originator, opening.sequence, batch.root, batch.first_index)
        if (got := self._store.marker(originator, opening.sequence)) != expected:
            self.report.add(
                Kind.MARKER,
                batch.first_index,
                f"expected a marker of sequence {opening.sequence} of {grant.name}, "
                + (
                    "got none"
                    if got is None
                    else f"got one for index {got.first_index}, root {got.root.hex()}"
                ),
            )
