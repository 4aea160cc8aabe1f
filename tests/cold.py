"""A fold over persisted views beside one in memory, for tests that they find the same.

Entries come from a log in memory; the rows lie in a real file. `reference` is how updates and rollouts were
indexed before there were rows: all in memory, from the rules alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gate.report import at_risk, receipt_document
from ledger.entry import Opening
from ledger.errors import CannotTellError
from ledger.fact import Fact
from ledger.merkle import Tree
from ledger.receipt import OF_A_ROLLOUT, Receipts
from ledger.server.listing import summaries
from ledger.server.receipt_view import ReceiptView
from ledger.server.stored import Facts, Parsed, Stored
from ledger.server.updates import UpdateIndex
from ledger.server.views import Changes, Views
from ledger.standing import why_fallen
from ledger.trust import Grant
from ledger.v1 import event_pb2, receipt_pb2, runner_pb2

__all__ = ["ColdFold", "Reference", "concluded", "listed"]

Entry: TypeAlias = tuple[int, int, bytes, Grant, event_pb2.Event, bool]

_OWN_MODES = (runner_pb2.MODE_TRAIN, runner_pb2.MODE_VAL)
_OWN = frozenset(
    {
        "update_proposed",
        "update_frozen",
        "update_refused",
        "training_started",
        "training_progressed",
        "training_ended",
        "training_paused",
        "training_resumed",
        "resume_requested",
        "candidate_registered",
    }
)


class _Entries(Facts):
    """Facts of entries that are at hand."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def grant(self, name: str, key_id: bytes) -> Grant:
        return next(e[3] for e in self._entries if (e[3].key.name, e[3].key.key_id) == (name, key_id))

    def absent(self, positions: Iterable[int]) -> list[int]:
        return []

    def read(self, positions: Iterable[int], tiles: Iterable[int]) -> Parsed:
        wanted = list(positions)
        assert wanted == sorted(wanted)
        entries = []
        for position in wanted:
            index, recorded_at, leaf, grant, event, _ = self._entries[position]
            name = event.WhichOneof("body")
            assert name is not None
            opening = Opening(1, grant.key.name, grant.key.key_id, bytes(16), 0, bytes(64))
            stored = Stored(index, recorded_at, b"", opening, leaf, (index, leaf))
            entries.append((stored, name, getattr(event, name)))
        return Parsed(entries, {})

    def take(self, parsed: Parsed) -> list[Fact]:
        return [
            Fact(s.position, s.recorded_at, s.leaf, self._entries[s.position][3], name, body)
            for s, name, body in parsed.entries
        ]

    def recorded_at(self, index: int) -> int:
        return self._entries[index][1]


class ColdFold:
    """Index and receipts over rows; `forget`, `write` and `reopen` may come at any time."""

    def __init__(self, path: Path, entries: Sequence[Entry], tree: Tree) -> None:
        """`entries` and `tree` may grow while this folds them."""
        self._path, self._entries, self._tree = path, entries, tree
        self.views = Views(path, "test")
        self._open()

    def _open(self) -> None:
        facts = self.facts = _Entries(self._entries)
        self.index = UpdateIndex(self.views)
        self.view = ReceiptView(self.views, self.index, facts, self._tree.root)
        self.size = self.views.size

    def fold(self, size: int) -> None:
        """Folds entries up to `size`."""
        for entry in self._entries[self.size : size]:
            self.index.apply(*entry)
            self.view.apply(*entry)
        self.size = size

    def write(self) -> None:
        """Writes what was changed."""
        if self.size > self.views.size:
            rows = self.index.take_changes() | self.view.take_changes()
            root = self._tree.root(self.size)
            self.views.write(Changes(self.size, root, self.view.receipts.orphans, None, rows))
            self.views.size = self.size
            self.index.written()
            self.view.written(self.size)

    def reopen(self) -> None:
        """Loses what is in memory, goes on from the rows, and folds the rest again."""
        size = self.size
        self.views.close()
        self.views = Views(self._path, "test")
        self._open()
        self.fold(size)

    def listing(self) -> list[receipt_pb2.UpdateSummary]:
        """What ListUpdates shows, once it is written."""
        self.write()
        return list(summaries(self.views, self.view, 0, 1000))


class Reference:
    """Who may read what, and where the claims of a rollout stand."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.visible: dict[str, list[int]] = {}
        self.rollouts: dict[str, list[int]] = {}
        self.people: set[tuple[str, str]] = set()  # update, name
        owner: dict[str, str] = {}
        seen: set[str] = set()
        proposed: set[str] = set()
        for index, _, _, grant, event, _ in entries:
            name = event.WhichOneof("body")
            body: Any = getattr(event, name or "")
            if name == "rollout_enqueued":
                own = body.mode in _OWN_MODES and body.HasField("update")
                if body.rollout not in seen and own:
                    owner[body.rollout] = body.update
                    self.people.add((body.update, grant.name))
                elif owner.get(body.rollout) != body.update or not own:
                    owner.pop(body.rollout, None)
                seen.add(body.rollout)
            elif name == "update_proposed" and body.update not in proposed:
                proposed.add(body.update)
                self.people.add((body.update, grant.name))
            if name == "rollout_enqueued" or name in OF_A_ROLLOUT:
                self.rollouts.setdefault(body.rollout, []).append(index)
                update = owner.get(body.rollout)
            else:
                update = body.update if name in _OWN else None
            if update is not None:
                self.visible.setdefault(update, []).append(index)


def concluded(receipts: Receipts) -> dict[str, Any]:
    """Everything that a fold of receipts says, as values that compare."""
    size = receipts.size
    found: dict[str, Any] = {
        "size": size,
        "now": [receipts.now(at) for at in range(0, size + 1, 7)],
        "voids": receipts.voids,
        "unknown": receipts.unknown_pointers,
        "orphans": receipts.orphans,
        "erased": receipts.erased,
        "candidates": receipts.latest_candidate,
        "touched": receipts.touched,
        "defaults": receipts.pointers.all(),
        "standing": receipts.standing,
        "updates": list(receipts.updates),
    }
    for move in receipts.pointers.all().values():
        found[f"risk {move.index}"] = at_risk(receipts, move)
    for update in list(receipts.updates):
        record = receipts.updates[update]
        found[update] = (record.facts, record.rollouts, record.verdicts, record.live, record.rolled_back)
        found[f"fallen {update}"] = [
            why_fallen(receipts, verdict, receipts.now(size)) for verdict in record.verdicts
        ]
        try:
            found[f"document {update}"] = receipt_document(receipts, update, size)
        except CannotTellError as error:
            found[f"document {update}"] = str(error)
    return found


def listed(receipts: Receipts) -> list[receipt_pb2.UpdateSummary]:
    """What ListUpdates shows, from records that hold everything."""
    summaries = []
    for record in receipts.updates.values():
        proposal = receipts.proposal(record.id)
        candidates = record.of("candidate_registered")
        summary = receipt_pb2.UpdateSummary(
            update=record.id,
            frozen=bool(record.of("update_frozen")),
            training_ended=bool(record.of("training_ended")),
            candidate_digest=candidates[0].body.manifest_digest if candidates else None,
        )
        if proposal is not None:
            summary.resource = proposal.body.resource
            summary.scope.CopyFrom(proposal.body.scope)
            summary.proposed_by = proposal.grant.name
            summary.proposed_index = proposal.index
        valid = [verdict for verdict in record.verdicts if verdict.void is None]
        if valid:
            last = valid[-1].fact
            summary.verdict, summary.verdict_step = last.body.verdict, last.body.step
            summary.verdict_index = last.index
            if last.body.HasField("not_after"):
                summary.not_after = last.body.not_after
            summary.stands = why_fallen(receipts, valid[-1], receipts.now(receipts.size)) is None
        summaries.append(summary)
    return summaries
