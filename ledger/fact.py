"""A fact: one entry of the log as folds keep it, and whether its author's key became suspect.

Facts are read only, like the messages in them. They are not frozen: one is made for every entry of a log, and
that would double what the making costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from ledger.trust import Grant, Revocation

__all__ = ["Fact", "SpanFact", "Suspects"]


@dataclass(slots=True)
class Fact:
    """One entry: where it stands, who wrote it under which grant, and the body message (read only)."""

    index: int
    recorded_at: int  # microseconds since 1970
    leaf: bytes  # leaf hash, 32 bytes
    grant: Grant
    name: str  # body field name, such as `attempt_ended`
    body: Any


@dataclass(slots=True)
class SpanFact:
    """A SpanRecorded without its content: spans are most of a log, and no check reads what they hold."""

    index: int
    leaf: bytes
    grant: Grant
    attempt: int
    trace_span: bytes  # trace id and span id, 24 bytes
    family: str
    body_digest: bytes  # SHA-256 of the body, to tell an equal repeat from a different one
    blob: bytes | None  # the digest of its content, where that stands outside the log


class _Written(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def grant(self) -> Grant: ...


@dataclass(slots=True)
class Suspects:
    """Which entries stopped counting, as of a size. Fed by the fold that owns it."""

    _revoked: dict[tuple[str, bytes], Revocation] = field(default_factory=dict)

    def revoke(self, name: str, key_id: bytes, revocation: Revocation) -> None:
        """Takes a KeyRevoked that names where suspicion begins."""
        self._revoked[(name, key_id)] = revocation

    def hold(self, fact: _Written, size: int) -> bool:
        """Whether the fact is suspect in a log of `size` entries."""
        if not self._revoked:
            return False
        key = fact.grant.key
        revocation = self._revoked.get((key.name, key.key_id))
        return revocation is not None and revocation.covers(fact.index, size)
