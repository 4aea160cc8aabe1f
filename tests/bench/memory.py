"""`assay verify` of two large logs, the second five times the first: time and memory.

The files are made as they are written, in a folder that goes away at the end (5,000,000 entries: 2.3 GB):
real keys, 256-event batches of spans of about 400 bytes, links, signatures, checkpoint. What is measured is
the command itself, in a process of its own with its workers: time, processor time, and the highest resident
memory of each process (VmHWM), which shows whether memory grows with the log.
"""

from __future__ import annotations

import os
import resource
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, Final

from ledger.batch import batch_text, event_root
from ledger.checkpoint import Checkpoint, sign_checkpoint
from ledger.entry import FIRST_PREVIOUS, Opening, encode_run, place_batch
from ledger.export import encode_export_header
from ledger.merkle import Frontier
from ledger.note import SigningKey
from ledger.v1 import event_pb2, options_pb2
from tests.bench.row import Row
from tests.events import minimal_event, otlp_span
from tests.forge import START, event_id, granted, opened

_BATCH: Final = 256
_PADDING: Final = 330
_LOOK: Final = 0.05  # seconds between two looks at the processes
_WANTED: Final = 100_000
_MOST_MIB: Final = 200

__all__ = ["make_export", "rows"]


class _Log:
    """A log that is written as it grows."""

    def __init__(self, file: BinaryIO, ledger: SigningKey) -> None:
        self._file = file
        self._origin = ledger.verifier_key.name
        self._leaf = FIRST_PREVIOUS
        self._sequences: dict[SigningKey, int] = {}
        self.tree = Frontier()

    def add(self, key: SigningKey, events: list[bytes]) -> None:
        sequence = self._sequences[key] = self._sequences.get(key, -1) + 1
        text = batch_text(self._origin, bytes(16), sequence, len(events), event_root(events))
        known = key.verifier_key
        opening = Opening(len(events), known.name, known.key_id, bytes(16), sequence, key.sign(text))
        first = self.tree.size
        entries, leaves = place_batch(first, START + first, self._leaf, opening, events)
        self._file.write(encode_run(entries))
        self.tree.extend(leaves)
        self._leaf = leaves[-1]


def _spans(first: int, count: int) -> list[bytes]:
    """Spans that differ in their event id alone."""
    span = minimal_event("span_recorded", otlp_span=otlp_span(_PADDING))
    span.event_id = mark = b"\xff" * 16
    before, after = span.SerializeToString().split(mark)
    return [before + event_id(number) + after for number in range(first, first + count)]


def make_export(path: Path, trust: Path, entries: int) -> None:
    """Writes an export file of exactly so many entries (2 and more), and its trust document."""
    origin = f"bench-{secrets.token_hex(8)}"
    ledger, root, runner = (SigningKey(name, os.urandom(32)) for name in (origin, "root", "runner"))
    with path.open("wb") as file:
        # Every checkpoint of this size has this length: the true one goes here in the end.
        file.write(encode_export_header(sign_checkpoint(Checkpoint(origin, entries, bytes(32)), ledger)))
        log = _Log(file, ledger)
        for event in (opened(origin, ledger), granted(runner, options_pb2.ROLE_RUNNER)):
            log.add(root, [_bytes(event)])
        while (left := entries - log.tree.size) > 0:
            log.add(runner, _spans(log.tree.size, min(left, _BATCH)))
        file.seek(0)
        checkpoint = Checkpoint(origin, entries, log.tree.root())
        file.write(encode_export_header(sign_checkpoint(checkpoint, ledger)))
    trust.write_text(f"assay/trust/v1\nroot {root.verifier_key}\n\nlog {ledger.verifier_key}\nquorum none\n")


def _bytes(event: event_pb2.Event) -> bytes:
    return event.SerializeToString()


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants; those that end meanwhile are left out."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return
    for child in children:
        yield from _family(int(child))


def _peak(pid: int) -> int | None:
    """VmHWM in bytes; None for a process that ends."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _verify(path: Path, trust: Path) -> tuple[float, float, int, list[int]]:
    """(seconds, processor seconds, peak of the command's process, peaks of its workers) in bytes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = perf_counter()
    command = [sys.executable, "-m", "clients.cli", "verify", str(path), "--trust", str(trust), "--forget"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for pid in _family(process.pid):
            if (peak := _peak(pid)) is not None:
                peaks[pid] = max(peak, peaks.get(pid, 0))
        try:
            process.wait(_LOOK)
        except subprocess.TimeoutExpired:
            continue
    took = perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"expected {path} to be verified, got exit code {process.returncode}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return took, spent, peaks.pop(process.pid), sorted(peaks.values(), reverse=True)


def rows(seconds: float, entries: int) -> list[Row]:
    """Of logs of entries/5 and entries; it takes as long as it takes."""
    measured: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        path, trust = Path(folder) / "log.assay", Path(folder) / "trust.txt"
        for size in (entries // 5, entries):
            make_export(path, trust, size)
            took, spent, parent, workers = _verify(path, trust)
            what, together = f"assay verify, {size:,} entries", (parent + sum(workers)) / 2**20
            measured += (
                Row(f"{what}: file", path.stat().st_size / 1e6, "MB"),
                Row(f"{what}: time", took, "s"),
                Row(f"{what}: on all cores", size / took, "events/s"),
                Row(f"{what}: for each second of a core", size / spent, "events/s", least=_WANTED),
                Row(f"{what}: peak of the command's process", parent / 2**20, "MiB"),
                Row(f"{what}: peak of its largest worker", max(workers, default=0) / 2**20, "MiB"),
                Row(f"{what}: peaks of all its processes", together, "MiB", most=_MOST_MIB),
            )
    return measured
