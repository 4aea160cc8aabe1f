"""Receipts over persisted rows: what is asked for is made again from the log, the rest stays on disk.

Rules kept here:

- A record that is not in memory is made from its entries as the log holds them, by the code that folds; only
  verdicts, LIVE windows and rollbacks, which were judged at their own index, come with what was found then.
- Who can wait has entries read beside the loop, slice by slice; a fold that cannot finds them read ahead.
- Records that were asked for or grew lately stay in memory, bounded by how many claims they hold.
- Memory that grows beside: one number for each update, scope and pointer that was ever touched, one for each
  update, holdout and judge, and whatever operators and the gate published, moved and voided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from ledger.claims import Rollout, Update, VerdictRecord
from ledger.errors import FatalError
from ledger.fact import Fact
from ledger.receipt import OF_A_ROLLOUT
from ledger.server.stored import Facts
from ledger.server.updates import TAKEN, WITHDRAWS, UpdateIndex, UpdateRow, flagged
from ledger.server.views import Views, unpack
from ledger.v1 import canary_pb2

__all__ = ["CONCLUDED", "Aside", "StoredRecords", "concluded"]

_MOST_CLAIMS: Final = 131_072  # in memory, some 600 bytes each
_SLICE: Final = 1024  # claims of a record that are taken before other work may run: 3 ms

_T = TypeVar("_T")


class Aside(Protocol):
    """Runs a blocking reading where it does not stop the loop."""

    async def __call__(self, read: Callable[[], _T]) -> _T:
        """What `read` gives or raises."""
        ...


def _weight(rollout: Rollout) -> int:
    claims = len(rollout.enqueued) + len(rollout.started) + len(rollout.attempts_ended) + len(rollout.ended)
    return claims + len(rollout.spans) + len(rollout.rewards)


class StoredRecords(Mapping[str, Update]):
    """`ledger.claims.Records` over an index and the log. Owned by the fold of receipts."""

    def __init__(self, views: Views, index: UpdateIndex, facts: Facts) -> None:
        self.size = 0
        self.standing: list[VerdictRecord] = []  # the fold's: the same objects are in the records
        self.verdicts: dict[int, VerdictRecord] = {}  # judged and not written yet, by position
        self.live: dict[int, str | None] = {}  # LIVE windows, likewise
        self.rolled_back: dict[int, str] = {}  # valid rollbacks, likewise: position -> update
        self._views = views
        self._index = index
        self._facts = facts
        self._held: OrderedDict[str, Update] = OrderedDict()
        self._weights: dict[str, int] = {}
        self._weight = 0

    @property
    def updates(self) -> Mapping[str, Update]:
        """Every update that is named below `size`."""
        return self

    def __len__(self) -> int:
        return self._index.count

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.ids())

    def __contains__(self, update: object) -> bool:
        return isinstance(update, str) and self._row(update) is not None

    def __getitem__(self, update: str) -> Update:
        row = self._row(update)
        if row is None:
            raise KeyError(update)
        held = self._touch(update)
        return self._whole(row) if held is None else held

    def _row(self, update: str) -> UpdateRow | None:
        row = self._index.update(update)
        return None if row is None or row.first >= self.size else row

    def whole(self, update: str) -> Update:
        """The update's record with all claims below `size`, made if there is none."""
        held = self._touch(update)
        if held is not None:
            return held
        row = self._index.update(update)
        if row is None:
            return Update(update)  # nobody named it: nothing to hold
        return self._whole(row)

    def at_hand(self, update: str) -> Update | None:
        """As `whole`; None where that record is not in memory."""
        held = self._touch(update)
        if held is not None:
            self._weights[update] += 1
            self._weight += 1
            return held
        row = self._index.update(update)
        if row is None or row.first != self.size:
            return None
        return self._hold(Update(update), row)

    def claim(self, rollout: str, index: int, update: str | None) -> tuple[int, str | None]:
        """Position and update of a rollout's first RolloutEnqueued; the index has seen this one already."""
        return self._index.claimed(rollout) or (index, update)

    def claimed(self, rollout: str) -> tuple[int, str | None] | None:
        """As `claim`; None for a rollout that nobody enqueued."""
        return self._index.claimed(rollout)

    def recorded_at(self, index: int) -> int | None:
        """recorded_at of an entry, in microseconds."""
        return self._facts.recorded_at(index)

    def withdrawals(self, update: str) -> list[Fact]:
        """The update's ApprovalWithdrawn; no record is made for them."""
        held = self._held.get(update)
        if held is not None:
            return held.of("approval_withdrawn")
        row = self._index.update(update)
        claims = [] if row is None else self._index.claims(row, 0, self.size)
        return list(self._facts.at([position for position, flags in claims if flags & WITHDRAWS]))

    # --- keeping --------------------------------------------------------------------------------------------

    def _touch(self, update: str) -> Update | None:
        held = self._held.get(update)
        if held is not None:
            self._held.move_to_end(update)
        return held

    def _hold(self, record: Update, row: UpdateRow) -> Update:
        weight = sum(map(len, record.facts.values())) + sum(map(_weight, record.rollouts.values())) + 1
        self._held[row.id] = record
        self._weights[row.id] = weight
        self._weight += weight
        while self._weight > _MOST_CLAIMS and len(self._held) > 1:
            name, _ = self._held.popitem(last=False)
            self._weight -= self._weights.pop(name)
        return record

    def forget(self) -> None:
        """Lets go of every record: what is asked for next is made from the log."""
        self._held.clear()
        self._weights.clear()
        self._weight = 0

    # --- making ---------------------------------------------------------------------------------------------

    async def prepare(self, update: str, aside: Aside) -> None:
        """Makes the update's record, where it is not in memory, while the loop does other work.

        Entries are read and parsed by `aside`, a slice at a time, until the record has all claims below a
        `size` that went on meanwhile. Raises FatalError: what `Facts.read` and `Facts.take` raise.
        """
        record, done, facts = Update(update), 0, self._facts
        while update not in self._held and (row := self._row(update)) is not None:
            codes = self._index.codes(row, done, self.size)
            if not codes:
                self._hold(self._finish(record, row), row)
                return
            for start in range(0, len(codes), _SLICE):
                claims = flagged(codes[start : start + _SLICE])
                positions = [position for position, _ in claims]
                tiles = facts.absent(positions)
                parsed = await aside(partial(facts.read, positions, tiles))
                if update in self._held:
                    return  # somebody could not wait
                self._extend(record, row, claims, facts.take(parsed))
                done = positions[-1] + 1

    def _whole(self, row: UpdateRow) -> Update:
        """Makes and holds a record at once: nothing else runs while its entries are read."""
        claims = self._index.claims(row, 0, self.size)
        facts = self._facts.at([position for position, _ in claims])
        record = Update(row.id)
        self._extend(record, row, claims, facts)
        return self._hold(self._finish(record, row), row)

    def _extend(
        self, record: Update, row: UpdateRow, claims: Iterable[tuple[int, int]], facts: Iterable[Fact]
    ) -> None:
        """Adds the next claims; `facts` are theirs."""
        taken = {position for position, flags in claims if flags & TAKEN}
        live = dict(self._views.select("SELECT position, void FROM live WHERE number = ?", (row.number,)))
        live |= self.live
        for fact in facts:
            if fact.name == "rollout_enqueued":
                record.enqueue(fact, taken=fact.index in taken)
            elif fact.name in OF_A_ROLLOUT:
                record.of_rollout(fact)
            elif fact.name == "verdict_issued":
                record.verdicts.append(self._verdict(record, fact))
            else:
                if fact.name == "canary_started" and fact.body.kind == canary_pb2.WINDOW_KIND_LIVE:
                    record.live[fact.index] = live[fact.index]
                record.keep(fact)

    def _finish(self, record: Update, row: UpdateRow) -> Update:
        written = self._views.select("SELECT position FROM rolled_back WHERE number = ?", (row.number,))
        fresh = {position for position, update in self.rolled_back.items() if update == row.id}
        record.rolled_back = sorted({position for (position,) in written} | fresh)
        return record

    def _verdict(self, record: Update, fact: Fact) -> VerdictRecord:
        """What was concluded about a verdict of this update, whose claims before it are in the record."""
        kept = self.verdicts.get(fact.index)
        if kept is None:
            kept = next((v for v in self.standing if v.fact.index == fact.index), None)
        if kept is not None:
            return kept
        rows = self._views.select(f"SELECT {CONCLUDED} FROM verdicts WHERE position = ?", (fact.index,))  # noqa: S608 - names of ours
        if not rows:
            raise FatalError("VIEWS_BROKEN", f"expected what became of the verdict at {fact.index}, got none")
        approvals = {granted.index: granted for granted in record.of("approval_granted")}
        return concluded(fact, rows[0], approvals)


#: What `concluded` takes, as columns of `verdicts`.
CONCLUDED: Final = "void, unreplayable, approvals, freeze, fell, fell_because"


def concluded(fact: Fact, row: Sequence[Any], approvals: Mapping[int, Fact]) -> VerdictRecord:
    """A verdict with what was concluded about it; `approvals` by position."""
    void, unreplayable, used, freeze, fell, because = row
    return VerdictRecord(
        fact,
        void,
        bool(unreplayable),
        tuple(approvals[position] for position in unpack(used)),
        freeze,
        None if fell is None else (fell, because),
    )
