"""Offline verification beside its ceilings: SHA-256 of the same entries, and one Ed25519 check a batch.

One core, full parse, spans of about 400 bytes, at 256, 16 and 1 events a batch; then on all cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from io import BytesIO
from time import perf_counter
from typing import Final

from ledger.note import VerifierKey
from ledger.parallel import verify_export_parallel
from ledger.v1 import event_pb2
from ledger.verify import verify_export
from tests.events import minimal_event
from tests.forge import Forge, event_id, make_key

__all__ = ["run"]

#: Events a batch -> events in the log.
_LOGS: Final = {256: 51_200, 16: 32_000, 1: 12_000}
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


def _rate(count: int, seconds: float, once: Callable[[], object]) -> float:
    """Events a second of `once()`, repeated for at least `seconds`; the best time counts."""
    best, spent = 0.0, 0.0
    while spent < seconds:
        start = perf_counter()
        once()
        took = perf_counter() - start
        best, spent = max(best, count / took), spent + took
    return best


def _hash(entries: list[bytes]) -> None:
    for entry in entries:
        sha256(entry).digest()


def _check(key: VerifierKey, signature: bytes, text: bytes, times: int) -> None:
    for _ in range(times):
        key.verify(text, signature)


def run(seconds: float) -> dict[str, float]:
    """Measures for about `seconds` in all; name -> events a second, or a ratio where the name says so."""
    share = seconds / (4 * len(_LOGS))
    cores = os.cpu_count() or 1
    key, text = make_key("runner"), b"x" * 150
    signature = key.sign(text)
    figures: dict[str, float] = {}
    with ProcessPoolExecutor(cores) as executor:
        for batch, count in _LOGS.items():
            forge = _log(batch)
            export, trust = forge.export(), forge.trust
            check = partial(_check, key.verifier_key, signature, text, count // batch)
            verified = _rate(count, share, lambda e=export, t=trust: verify_export(BytesIO(e), t))  # type: ignore[misc]  # defaults bind
            everywhere = _rate(
                count,
                share,
                lambda e=export, t=trust: verify_export_parallel(  # type: ignore[misc]  # defaults bind
                    BytesIO(e), t, executor, ahead=2 * cores
                ),
            )
            hashes, checks = _rate(count, share, partial(_hash, forge.entries)), _rate(count, share, check)
            figures[f"batches of {batch}: verify, one core"] = verified
            figures[f"batches of {batch}: verify, {cores} cores"] = everywhere
            figures[f"batches of {batch}: ceiling, SHA-256 of the same entries"] = hashes
            figures[f"batches of {batch}: ceiling, one Ed25519 check a batch"] = checks
            figures[f"batches of {batch}: ratio of one core to both ceilings together"] = verified * (
                1 / hashes + 1 / checks
            )
    return figures
