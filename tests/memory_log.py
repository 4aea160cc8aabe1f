"""A log in memory for tests of meaning: real events, real leaves and roots, no signatures, no server.

It keeps the rules that folds rely on: the index grows by one, the clock never runs backwards, authors hold
grants in force and write what their role may write.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from clients.demo.scenario import wrap
from clients.ids import uuid7
from gate.replay import Replay
from ledger.admission import admit
from ledger.merkle import Tree, leaf_hash
from ledger.note import SigningKey
from ledger.receipt import Receipts
from ledger.trust import WRITER, Grant, Revocation, role_name
from ledger.v1 import event_pb2, options_pb2, root_pb2
from tests.events import body_name

__all__ = [
    "BY_ROLE",
    "HUMAN",
    "PRINCIPALS",
    "RELEASE_ACTOR",
    "SECOND",
    "START",
    "MemoryLog",
    "fold",
    "principal",
]

START: Final = 1_767_225_600_000_000
SECOND: Final = 1_000_000
HUMAN = root_pb2.APPROVER_KIND_HUMAN
RELEASE_ACTOR = root_pb2.APPROVER_KIND_RELEASE_ACTOR


def principal(name: str, role: int, controller: str | None = None, **more: Any) -> Grant:
    """A grant with a key made from the name."""
    seed = hashlib.sha256(f"test key of {name}".encode()).digest()
    return Grant(SigningKey(name, seed).verifier_key, role, controller or f"owner-of-{name}", 0, **more)


# The first of a role writes what the demo does not give to somebody by name.
PRINCIPALS: Final = {
    grant.name: grant
    for grant in (
        principal("root-1", options_pb2.ROLE_ROOT),
        principal("operator-1", options_pb2.ROLE_OPERATOR),
        principal("runner-1", options_pb2.ROLE_RUNNER),
        principal("trainer-1", options_pb2.ROLE_TRAINER),
        principal("trainer-2", options_pb2.ROLE_TRAINER),
        principal("judge-1", options_pb2.ROLE_JUDGE),
        principal("judge-2", options_pb2.ROLE_JUDGE),
        principal("canary-1", options_pb2.ROLE_CANARY),
        principal("canary-2", options_pb2.ROLE_CANARY),
        principal("approver-1", options_pb2.ROLE_APPROVER, approver_kind=HUMAN),
        principal("approver-2", options_pb2.ROLE_APPROVER, approver_kind=HUMAN),
        principal("approver-3", options_pb2.ROLE_APPROVER, approver_kind=HUMAN),
        principal("gate-1", options_pb2.ROLE_GATE),
    )
}
BY_ROLE: Final = {role_name(grant.role): name for name, grant in reversed(PRINCIPALS.items())}


class MemoryLog:
    """Appends events and folds them through replay, entry by entry."""

    def __init__(self, principals: dict[str, Grant] | None = None) -> None:
        self.principals = dict(PRINCIPALS if principals is None else principals)
        self.tree = Tree()
        self.entries: list[tuple[int, int, bytes, Grant, event_pb2.Event, bool]] = []
        self.clock = START
        self._ids = itertools.count()
        self.replay = Replay(self.tree.root)
        for grant in self.principals.values():
            if grant.role != options_pb2.ROLE_ROOT:
                self.write("root-1", _granted(grant))

    @property
    def receipts(self) -> Receipts:
        """The fold's receipts."""
        return self.replay.receipts

    @property
    def size(self) -> int:
        """Entries so far."""
        return len(self.entries)

    def new_id(self) -> bytes:
        """A UUIDv7 that is new in this log."""
        return uuid7(self.clock, next(self._ids).to_bytes(10, "big"))

    def tick(self, microseconds: int = SECOND) -> None:
        """Lets time pass."""
        assert microseconds >= 0
        self.clock += microseconds

    def write(self, author: str, body: Any, *, alone: bool = True) -> int:
        """Appends one body by an author and returns its index."""
        return self.append(author, [wrap(body, self.new_id(), self.clock)], alone=alone)

    def append(self, author: str, events: Sequence[event_pb2.Event], *, alone: bool | None = None) -> int:
        """Appends a batch at one recorded_at; returns the first index. Every event must be admissible."""
        first, grant = self.size, self.principals[author]
        single = len(events) == 1 if alone is None else alone
        assert grant.revocation is None, f"{author} is revoked"
        for event in events:
            data = event.SerializeToString()
            admit(data)
            assert WRITER[body_name(event)] == grant.role, (author, body_name(event))
            index = self.size
            leaf = leaf_hash(index.to_bytes(8, "big") + self.clock.to_bytes(8, "big") + data)
            self.tree.extend([leaf])
            entry = (index, self.clock, leaf, grant, event, single)
            self.entries.append(entry)
            self.replay.apply(*entry)
        return first

    def revoke(self, name: str, suspect_from: int | None) -> int:
        """Root revokes a principal's key; returns the index."""
        grant = self.principals[name]
        body = root_pb2.KeyRevoked(vkey=str(grant.key), reason="lost", suspect_from=suspect_from)
        index = self.write("root-1", body)
        self.principals[name] = replace(grant, revocation=Revocation(index, suspect_from))
        return index


def _granted(grant: Grant) -> root_pb2.KeyGranted:
    return root_pb2.KeyGranted(
        vkey=str(grant.key),
        role=grant.role,  # type: ignore[arg-type]  # a Role, kept as int in the core
        controller=grant.controller,
        approver_kind=grant.approver_kind,  # type: ignore[arg-type]  # the same
        policy_digest=grant.policy_digest,
    )


def fold(entries: Iterable[tuple[int, int, bytes, Grant, event_pb2.Event, bool]]) -> Replay:
    """A new replay of these entries."""
    tree = Tree()
    replay = Replay(tree.root)
    for entry in entries:
        tree.extend([entry[2]])
        replay.apply(*entry)
    return replay
