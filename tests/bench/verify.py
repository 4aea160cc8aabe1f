"""Offline verification beside its ceilings: SHA-256 of the same entries, and one Ed25519 check a batch.

One core, full parse, spans of about 400 bytes, at 256, 16 and 1 events a batch; the largest on all cores
too. Short rounds in turn, the median of each counts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from io import BytesIO
from statistics import median
from time import perf_counter
from typing import Final

from ledger.note import VerifierKey
from ledger.parallel import verify_export_parallel
from ledger.trust import TrustDocument
from ledger.v1 import event_pb2
from ledger.verify import verify_export
from tests.bench.row import Row, cores
from tests.events import minimal_event
from tests.forge import Forge, event_id, make_key

__all__ = ["rows"]

#: Events a batch -> events in the log.
_LOGS: Final = {256: 153_600, 16: 32_000, 1: 12_000}
_WANTED: Final = {256: 100_000, 16: 45_000, 1: 5_000}
_SCALES: Final = 0.75  # of each core
_SPAN_BYTES: Final = 320


def _span(number: int) -> event_pb2.Event:
    event = minimal_event("span_recorded", rollout=f"rollout-{number % 97}", otlp_span=bytes(_SPAN_BYTES))
    event.event_id = event_id(number)
    return event


def _log(batch: int) -> Forge:
    forge = Forge.opened("runner")
    for first in range(0, _LOGS[batch], batch):
        forge.add("runner", *map(_span, range(first, first + batch)))
    return forge


def _rates(count: int, seconds: float, *steps: Callable[[], object]) -> list[float]:
    """Events a second of each of `steps`, in turn for about `seconds`; the median of its rounds counts."""
    rounds: list[list[float]] = [[] for _ in steps]
    end = perf_counter() + seconds
    while perf_counter() < end or not rounds[0]:
        for rates, step in zip(rounds, steps, strict=True):
            start = perf_counter()
            step()
            rates.append(count / (perf_counter() - start))
    return [median(rates) for rates in rounds]


def _serial(export: bytes, trust: TrustDocument) -> None:
    verify_export(BytesIO(export), trust)


def _parallel(export: bytes, trust: TrustDocument, executor: Executor) -> None:
    verify_export_parallel(BytesIO(export), trust, executor, ahead=2 * cores())


def _hash(entries: list[bytes]) -> None:
    for entry in entries:
        sha256(entry).digest()


def _check(key: VerifierKey, signature: bytes, text: bytes, times: int) -> None:
    for _ in range(times):
        key.verify(text, signature)


def rows(seconds: float, entries: int) -> list[Row]:
    """Measures for about `seconds` in all."""
    share = seconds / (4 * len(_LOGS))
    key, text = make_key("runner"), b"x" * 150
    signature = key.sign(text)
    measured: list[Row] = []
    with ProcessPoolExecutor(cores()) as executor:
        for batch, count in _LOGS.items():
            forge = _log(batch)
            export, trust = forge.export(), forge.trust
            serial = partial(_serial, export, trust)
            parallel = partial(_parallel, export, trust, executor)
            checks = partial(_check, key.verifier_key, signature, text, count // batch)
            one, every, hashed, checked = _rates(
                count, 4 * share, serial, parallel, partial(_hash, forge.entries), checks
            )
            ceiling = 1 / (1 / hashed + 1 / checked)
            of = "SHA-256 of the same entries and one Ed25519 check a batch"
            what = f"verify, batches of {batch}"
            measured.append(Row(f"{what}, one core", one, "events/s", ceiling, of, least=_WANTED[batch]))
            if batch == max(_LOGS):
                least = None if cores() == 1 else _SCALES * cores()
                measured.append(Row(f"{what}, {cores()} cores", every, "events/s"))
                measured.append(Row(f"{what}, all cores as times one", every / one, "", least=least))
    return measured
