"""The fold of receipts over persisted rows, and the rows that it changes.

Rules kept here:

- What a fold concluded is kept with the entry it concluded it at; what it says of a record is not kept, since
  that is made again from the log.
- A fold that goes on from rows reads the entries that they point at, and refuses rows that point at others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any, Final

from gate.judge import RulesJudge
from ledger.claims import VerdictRecord, Void
from ledger.content import ContentRules
from ledger.errors import FatalError
from ledger.receipt import MAY_FELL, SPINE, Judged, Known, Receipts
from ledger.server.records import CONCLUDED, Aside, StoredRecords, concluded
from ledger.server.stored import Facts
from ledger.server.updates import UpdateIndex
from ledger.server.views import Views, pack, unpack
from ledger.touches import TOUCHES_NOTHING, touches
from ledger.trust import Grant
from ledger.v1 import canary_pb2, event_pb2, judge_pb2

__all__ = ["ReceiptView"]

#: What is judged, or looked up, in the whole record of the update that it names.
_JUDGED: Final = frozenset(
    {"candidate_registered", "canary_started", "verdict_issued", "default_promoted", "default_rolled_back"}
)


class ReceiptView:
    """The fold of receipts over an index, and what it changed that waits to be written.

    Feed the index each entry before this.
    """

    def __init__(
        self, views: Views, index: UpdateIndex, facts: Facts, root_at: Callable[[int], bytes]
    ) -> None:
        """Goes on from what the rows hold."""
        self.facts = facts
        self._index = index
        self._records = StoredRecords(views, index, facts)
        self.receipts = (
            Receipts.going_on(RulesJudge(), root_at, self._records, _known(views, facts))
            if views.size
            else Receipts(RulesJudge(), root_at, self._records)
        )
        self._records.standing = self.receipts.standing
        self._standing = list(self.receipts.standing)
        self.content = ContentRules()  # its declarations: rollouts go into rows
        for fact in self.receipts.registry.declarations():
            self.content.declare(fact.body)
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        self._touched: dict[str, int] = {}
        self._concluded: set[int] = set()  # positions of verdicts to write

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes one entry."""
        if self._index.size != index + 1:
            raise FatalError("VIEWS_BROKEN", f"expected an index at {index + 1}, got {self._index.size}")
        voids = len(self.receipts.voids)
        self.receipts.apply(index, recorded_at, leaf, grant, event, alone)
        name = event.WhichOneof("body")
        if name is not None and name not in TOUCHES_NOTHING:
            found = self.receipts.voids[voids:]
            for void in found:
                pointer = void.pointer or (None, None, None)
                self._row("voids", void.index, void.step, void.reason, void.message, *pointer)
            self._note(index, name, grant, event, holds=not found)
        elif name == "rollout_enqueued" and self.content.needed:
            body = event.rollout_enqueued
            if (version := self.content.asked_by(body)) is not None:
                self._row("under_blob", body.rollout, *version)
        elif name == "blob_erased":
            self._row("erased", event.blob_erased.digest, index)

    def _row(self, table: str, *row: Any) -> None:
        self._rows.setdefault(table, []).append(row)

    def _note(self, index: int, name: str, grant: Grant, event: event_pb2.Event, *, holds: bool) -> None:
        """Keeps what an entry changed beside the records; `holds`: it is not void."""
        receipts, records, body = self.receipts, self._records, getattr(event, name)
        for key in touches(event):
            self._touched[key] = index
        if name in SPINE:
            self._row("spine", index, name)
        if name == "workflow_declared":
            self.content.declare(body)
        if name == "evaluation_recorded" and body.subject == judge_pb2.SUBJECT_CANDIDATE:
            self._row("judged", body.snapshot_digest, body.update, grant.key.name, grant.key.key_id, index)
        elif name == "candidate_registered":
            for pointer, fact in receipts.latest_candidate.items():
                if fact.index == index:
                    self._row("candidates", *pointer, index)
        elif name == "canary_started" and body.kind == canary_pb2.WINDOW_KIND_LIVE:
            void = records.live[index] = receipts.update(body.update).live[index]
            self._row("live", self._number(body.update), index, void)
        elif name == "verdict_issued":
            self._conclude(receipts.update(body.update).verdicts[-1])
        elif name == "default_rolled_back" and holds:
            records.rolled_back[index] = body.update
            self._row("rolled_back", self._number(body.update), index)
        if name in MAY_FELL:
            for record in self._standing:
                if record.fell is not None:
                    self._conclude(record)
            self._standing = list(receipts.standing)

    def _conclude(self, record: VerdictRecord) -> None:
        self._records.verdicts[record.fact.index] = record
        self._concluded.add(record.fact.index)
        if record.fell is None:
            self._standing = list(self.receipts.standing)

    def _number(self, update: str) -> int:
        row = self._index.update(update)
        if row is None:
            raise FatalError("VIEWS_BROKEN", f"expected {update} to be an update of the index, got none")
        return row.number

    # --- reading ahead --------------------------------------------------------------------------------------

    async def prepare(self, update: str, aside: Aside) -> None:
        """Lets the loop do other work while the record of an update that will be asked for is made.

        Raises FatalError: what `StoredRecords.prepare` raises.
        """
        await self._records.prepare(update, aside)

    async def prepare_for(self, events: Iterable[event_pb2.Event], aside: Aside) -> None:
        """As `prepare`, for the updates of which folding these events asks.

        What was not foreseen is read by the fold, while nothing else runs.
        """
        for event in events:
            name = event.WhichOneof("body")
            updates: set[str] = set()
            if name in MAY_FELL:
                updates = self.receipts.resting_on(touches(event))
            if name in _JUDGED:
                updates.add(getattr(event, name).update)
            for update in updates:
                await self._records.prepare(update, aside)

    # --- writing --------------------------------------------------------------------------------------------

    def take_changes(self) -> dict[str, list[tuple[Any, ...]]]:
        """Rows to write, by table. They stay beside the rows until `written` says that they are there."""
        rows, self._rows = self._rows, {}
        rows["touched"] = list(self._touched.items())
        rows["verdicts"] = [self._verdict_row(position) for position in sorted(self._concluded)]
        self._touched, self._concluded = {}, set()
        return rows

    def _verdict_row(self, position: int) -> tuple[Any, ...]:
        record = self._records.verdicts[position]
        body = record.fact.body
        return (
            position,
            self._number(body.update),
            body.verdict,
            body.step,
            body.not_after if body.HasField("not_after") else None,
            record.void,
            record.unreplayable,
            pack(array("Q", [approval.index for approval in record.approvals])),
            record.freeze,
            *(record.fell or (None, None)),
        )

    def written(self, size: int) -> None:
        """What `take_changes` gave is in the rows now: all that was concluded below `size`."""
        records = self._records
        for position in [p for p in records.verdicts if p < size and p not in self._concluded]:
            del records.verdicts[position]
        for kept in (records.live, records.rolled_back):
            for position in [p for p in kept if p < size]:
                del kept[position]

    def forget(self) -> None:
        """Lets go of every record that can be made again."""
        self._records.forget()


def _known(views: Views, facts: Facts) -> Known:
    """What the rows hold beside the records, the facts read from the log."""
    spine = [position for (position,) in views.select("SELECT position FROM spine ORDER BY position")]
    candidates = views.select("SELECT resource, workflow, segment, position FROM candidates")
    standing = views.select(
        f"SELECT position, {CONCLUDED} FROM verdicts WHERE void IS NULL AND fell IS NULL "  # noqa: S608 - names of ours
        "AND not_after IS NOT NULL ORDER BY position"
    )
    wanted = {*spine, *(row[3] for row in candidates)}
    for row in standing:
        wanted.update((row[0], *unpack(row[3])))
    read = {fact.index: fact for fact in facts.at(sorted(wanted))}
    for name, positions in (
        ("candidate_registered", [row[3] for row in candidates]),
        ("verdict_issued", [row[0] for row in standing]),
    ):
        for position in positions:
            if read[position].name != name:
                got = read[position].name
                raise FatalError("VIEWS_BROKEN", f"expected a {name} at index {position}, got {got}")
    return Known(
        size=views.size,
        recorded_at=facts.recorded_at(views.size - 1),
        facts=[read[position] for position in spine],
        candidates=[((r, w, s), read[position]) for r, w, s, position in candidates],
        judged=[
            (holdout, Judged(position, facts.grant(author, key_id), update))
            for holdout, update, author, key_id, position in views.select(
                "SELECT holdout, id, author, key_id, position FROM judged ORDER BY position"
            )
        ],
        standing=[concluded(read[row[0]], row[1:], read) for row in standing],
        voids=[
            Void(step, position, reason, message, None if resource is None else (resource, workflow, segment))
            for position, step, reason, message, resource, workflow, segment in views.select(
                "SELECT position, step, reason, message, resource, workflow, segment FROM voids "
                "ORDER BY position"
            )
        ],
        touched=dict(views.select("SELECT key, position FROM touched")),
        erased=dict(views.select("SELECT digest, position FROM erased")),
        orphans=views.orphans,
    )
