"""The environment digest: what evidence was made under, in one digest.

    assay/environment/v1
    <target number> <64 hex digits>      one line a part, by number
    tool_contract <64 hex digits>
    <bound> <value>                      one line a declared bound: tasks, wall_time_us, micro_usd in decimal,
                                         tools and side_effects as SHA-256 of their sorted names, a line each

SHA-256 of this text. A bound that is not declared has no line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Literal

from ledger.v1 import canary_pb2, options_pb2

__all__ = ["environment_digest"]

_NUMBERS: Final[tuple[Literal["tasks", "wall_time_us", "micro_usd"], ...]] = (
    "tasks",
    "wall_time_us",
    "micro_usd",
)
_LISTS: Final[tuple[Literal["tools", "side_effects"], ...]] = ("tools", "side_effects")


def _names_digest(names: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{name}\n" for name in sorted(set(names))).encode()).hexdigest()


def environment_digest(
    parts: Iterable[options_pb2.EnvironmentPart], tool_contract: bytes, bounds: canary_pb2.Bounds
) -> bytes:
    """The 32-byte digest over a window's parts, tool contract and declared bounds."""
    lines = ["assay/environment/v1"]
    lines += [f"{part.target} {part.digest.hex()}" for part in sorted(parts, key=lambda part: part.target)]
    lines.append(f"tool_contract {tool_contract.hex()}")
    for bound in _NUMBERS:
        if bounds.HasField(bound):
            lines.append(f"{bound} {getattr(bounds, bound)}")
    for listed in _LISTS:
        if bounds.HasField(listed):
            lines.append(f"{listed} {_names_digest(getattr(bounds, listed).names)}")
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).digest()
