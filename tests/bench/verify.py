"""Offline verification beside its ceilings: SHA-256 of the same bytes, and one Ed25519 check a batch.

One core, full parse, events of about 400 bytes, at 256, 16 and 1 events a batch.
"""

from __future__ import annotations

from hashlib import sha256
from io import BytesIO
from time import perf_counter
from typing import Final

from ledger.verify import verify_export
from tests.forge import Forge, make_key, numbered

__all__ = ["BATCH_SIZES", "run"]

BATCH_SIZES: Final = (256, 16, 1)
#: Events at a batch size; enough for a steady rate within the smallest `seconds`.
_EVENTS: Final = {256: 51_200, 16: 16_000, 1: 2_000}
_PADDING: Final = 330


def _log(batch: int) -> Forge:
    forge = Forge.opened("runner")
    for first in range(0, _EVENTS[batch], batch):
        forge.add("runner", *(numbered(number, pad=_PADDING) for number in range(first, first + batch)))
    return forge


def _rate(count: int, seconds: float, once: object) -> float:
    """Events a second of `once()`, repeated for at least `seconds`; the best run counts."""
    assert callable(once)
    best, spent = 0.0, 0.0
    while spent < seconds:
        start = perf_counter()
        once()
        took = perf_counter() - start
        best, spent = max(best, count / took), spent + took
    return best


def run(seconds: float) -> dict[str, float]:
    """Measures for about `seconds` in all; name -> events a second (a ratio where the name says so)."""
    share = seconds / (3 * len(BATCH_SIZES))
    figures: dict[str, float] = {}
    for batch in BATCH_SIZES:
        forge = _log(batch)
        export, trust = forge.export(), forge.trust
        count = forge.size
        key, text = make_key("runner"), b"x" * 150
        signature = key.sign(text)

        def hash_all(entries: list[bytes] = forge.entries) -> None:
            for entry in entries:
                sha256(entry).digest()

        def check_all(batches: int = count // batch) -> None:
            for _ in range(batches):
                key.verifier_key.verify(text, signature)  # noqa: B023 - called within this turn of the loop

        verified = _rate(count, share, lambda: verify_export(BytesIO(export), trust))  # noqa: B023
        hashes, checks = _rate(count, share, hash_all), _rate(count, share, check_all)
        figures[f"verify, {batch} a batch"] = verified
        figures[f"ceiling: SHA-256 of the same entries, {batch} a batch"] = hashes
        figures[f"ceiling: one Ed25519 check a batch, {batch} a batch"] = checks
        figures[f"ratio to both ceilings together, {batch} a batch"] = verified * (1 / hashes + 1 / checks)
    return figures
