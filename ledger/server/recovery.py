"""Start-up: the state is taken from tiles and views where they are the log's, and built from the store else.

Rules kept here:

- Nothing that was derived is believed because it lies there: tiles must fold to the root that this ledger
  signed, views must be sealed by this ledger and name the tree's root at their own size. What is not the
  log's is dropped, said in the log, and built again.
- What the store holds beyond the views is folded entry by entry: every link, index, opening and key rule, by
  the code that places. What it holds below them is read when it is asked for, and checked against the tree.
- The root and the ledger's signature are checked at the end. Authors' signatures are the auditor's.
- A store that ends before the last released checkpoint, or that holds another tree, refuses to start (law 6).
- A store of several commits with no released checkpoint beside it is one of which nobody can tell: refused.
- A store whose commit was not released yet is ahead, which is no fault: it is released now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from ledger.admission import parse_event
from ledger.checkpoint import Checkpoint, open_checkpoint
from ledger.entry import ENTRY_HEADER, ENTRY_VERSION, FIRST_PREVIOUS, Entry, Opening, decode_entry, iter_run
from ledger.errors import AssayError, FatalError, VerificationError
from ledger.fold import Fold, read_event
from ledger.merkle import leaf_hash
from ledger.server.folds import Folded, FoldRunner
from ledger.server.receipt_view import ReceiptView
from ledger.server.released import check_reaches, check_root
from ledger.server.state import Draft, KeyRing, Placed, State, authority_after
from ledger.server.store import Store
from ledger.server.stored import Facts, Stored, entries_at
from ledger.server.tiles import TiledTree
from ledger.server.updates import UpdateIndex
from ledger.server.views import Changes, Views
from ledger.touches import TOUCHES_NOTHING, touches
from ledger.trust import KEY_EVENTS, Authority, TrustDocument

__all__ = ["TILES", "VIEWS", "Recovered", "recover"]

TILES: Final = "tiles"  # folder of the static tiles
VIEWS: Final = "views.sqlite"
_LINK: Final = slice(17, 49)  # of an entry: the leaf hash of the one before
_AT_ONCE: Final = 2**16  # entries

_log = logging.getLogger("ledger.server")


@dataclass(frozen=True, slots=True)
class Recovered:
    """The stored log as its server needs it: the sequencer's state, and views that have seen all of it."""

    state: State
    tree: TiledTree
    views: Views
    index: UpdateIndex
    view: ReceiptView
    runner: FoldRunner
    keys: KeyRing  # that seal the views; an empty one leaves them unsealed

    def take_changes(self) -> Changes:
        """What the views changed since they were written; between two batches only."""
        size = self.runner.size
        rows = self.index.take_changes() | self.view.take_changes()
        signer = self.keys.at(self.state.authority, size)
        return Changes(size, self.tree.root(size), self.view.receipts.orphans, signer, rows)

    def written(self, changes: Changes) -> None:
        """Those changes are in the rows now."""
        self.views.size = changes.size
        self.index.written()
        self.view.written(changes.size)
        self.runner.keep(changes.size)


_NO_KEYS: Final = KeyRing(())


def recover(
    store: Store, trust: TrustDocument, data: Path, folds: Sequence[Fold] = (), keys: KeyRing = _NO_KEYS
) -> Recovered:
    """The state of the stored log; `data` is the folder of tiles and views.

    Who has no `keys` of the ledger writes views that no start takes.
    `folds` see every entry, so where there are any nothing is taken from views.
    Raises FatalError: STORE_BROKEN where the store is not a log by this ledger, BEHIND_RELEASED, FORKED,
    VIEWS_UNREADABLE, LOCK_LOST.
    """
    head = store.head()
    views = Views(data / VIEWS, trust.origin)
    if folds and views.size:
        views.drop("expected no folds beside the server's own, got some")
    try:
        recovered = _go_on(store, trust, data / TILES, views, head, keys)
        if recovered is not None:
            try:
                return _to_the_head(recovered, store, head)
            except FatalError as error:
                if error.reason != "STORE_BROKEN":
                    raise
                views.drop(f"expected views and tiles of this log, got {error}")
        if views.dropped is not None:
            _log.warning("the views in %s are built again: %s", views.path, views.dropped)
        tree = TiledTree(data / TILES)
        state = State(Authority.initial(trust), tree)
        return _to_the_head(_views_over(state, tree, store, views, folds, keys), store, head)
    except BaseException as error:
        views.close()
        if isinstance(error, FatalError) and error.reason == "STORE_BROKEN" and store.head() != head:
            raise FatalError(
                "LOCK_LOST",
                "expected the store to stay as it is while it is read, got another head: this ledger lost "
                "its lock meanwhile, and another one writes; start again",
            ) from error
        if isinstance(error, AssayError) and not isinstance(error, FatalError):
            raise FatalError("STORE_BROKEN", f"expected a log that can be read, got {error}") from error
        raise


def _to_the_head(recovered: Recovered, store: Store, head: tuple[int, bytes] | None) -> Recovered:
    """Takes what the store holds beyond the views, and checks the whole."""
    state = recovered.state
    try:
        for first_index, run in store.runs(state.size):
            _take_run(recovered, first_index, run)
        _check_head(state, head)
    except FatalError:
        raise
    except AssayError as error:
        raise FatalError("STORE_BROKEN", f"expected a log at index {state.size}, got {error}") from error
    _check_released(state, store)
    return recovered


def _go_on(
    store: Store,
    trust: TrustDocument,
    tiles: Path,
    views: Views,
    head: tuple[int, bytes] | None,
    keys: KeyRing,
) -> Recovered | None:
    """What is known at the views' size; None, and the views dropped, where they are not this log's."""
    size = 0 if head is None else head[0]
    if not views.size:
        return None
    if views.size > size:
        views.drop(f"expected rows of at most {size} entries, got {views.size}")
        return None
    try:
        authority = _authority(store, trust, views)
        views.check_seal(authority.ledger_key)
        tree = TiledTree.open(tiles, authority.checkpoint_keys)
        if tree is None or tree.size > size:
            tree = TiledTree(tiles)
        last = _extend(tree, store, views.size)
        if tree.size < views.size or tree.root(views.size) != views.root:
            views.drop(f"expected the log's root at size {views.size}, got another")
            return None
        state = State(authority, tree, views.size, last.recorded_at, tree.leaf(views.size - 1))
        return _views_over(state, tree, store, views, (), keys)
    except (AssayError, LookupError, TypeError, ValueError) as error:  # rows may hold anything
        if isinstance(error, FatalError) and error.reason == "STORE_UNREADABLE":
            raise
        views.drop(f"expected rows of this log, got {error!r}")
        return None


def _views_over(
    state: State, tree: TiledTree, store: Store, views: Views, folds: Sequence[Fold], keys: KeyRing
) -> Recovered:
    index = UpdateIndex(views)
    view = ReceiptView(views, index, Facts(store, lambda: state.authority, tree), tree.root)
    state.touched.update(view.receipts.touched)
    for fact in view.receipts.registry.declarations():
        state.content.declare(fact.body)
    for rollout, workflow, version in views.select("SELECT rollout, workflow, version FROM under_blob"):
        under = state.content.declared[workflow, version]
        if under is None:
            raise FatalError("VIEWS_BROKEN", f"expected {workflow} version {version} to ask for blobs")
        state.content.rollouts[rollout] = under
    runner = FoldRunner([index, view, *folds], views.size)
    return Recovered(state, tree, views, index, view, runner, keys)


def _authority(store: Store, trust: TrustDocument, views: Views) -> Authority:
    """The authority at the views' size, from the stored key events."""
    authority = Authority.initial(trust)
    names = sorted(KEY_EVENTS)
    rows = views.select(
        f"SELECT position FROM spine WHERE name IN ({', '.join('?' * len(names))}) ORDER BY position",  # noqa: S608 - marks
        names,
    )
    for entry in entries_at(store, [position for (position,) in rows]):
        event, _ = read_event(entry.event)
        authority.find(entry.opening.name, entry.opening.key_id)
        authority = authority.with_key_event(entry.position, event, entry.opening.count)
    return authority


def _extend(tree: TiledTree, store: Store, size: int) -> Stored:
    """Takes the leaves below `size` that no tile has, every link checked; the last entry."""
    while tree.size < size:
        start = tree.size
        previous = tree.leaf(start - 1) if start else FIRST_PREVIOUS
        leaves: list[bytes] = []
        for first_index, run in store.runs(start):
            for index, data in enumerate(iter_run(run), first_index):
                if start + len(leaves) == index < size:
                    if data[_LINK] != previous:
                        raise FatalError("STORE_BROKEN", f"expected entry {index} linked to the one before")
                    previous = leaf_hash(data)
                    leaves.append(previous)
            if start + len(leaves) >= size or len(leaves) >= _AT_ONCE:
                break
        if not leaves:
            raise FatalError("STORE_BROKEN", f"expected an entry at index {start}, got none")
        tree.extend(leaves)
    entry = next(entries_at(store, [size - 1]))
    if entry.leaf != tree.leaf(size - 1):
        raise FatalError("STORE_BROKEN", f"expected the tree's leaf at index {size - 1}, got another entry")
    return entry


def _take_run(recovered: Recovered, first_index: int, run: bytes) -> None:
    """Takes the entries of a run that the state does not have yet."""
    state, tree = recovered.state, recovered.tree
    if not first_index <= state.size:
        raise FatalError("STORE_BROKEN", f"expected a run at index {state.size}, got {first_index}")
    entries = islice(iter_run(run), state.size - first_index, None)
    draft = Draft.of(state)
    for batch in _batches(draft.last_leaf, state.size, entries):
        _take_batch(draft, batch)
    leaves = [leaf for placed in draft.placed for leaf in placed.leaves]
    tree.extend(leaves[max(0, tree.size - state.size) :])  # tiles may be ahead of views
    state.absorb(draft)
    for p in draft.placed:
        recovered.runner.apply(Folded(p.first_index, p.recorded_at, p.grant, p.leaves, p.events))
    if state.size - recovered.views.size >= _AT_ONCE:  # a long way is not gone in vain, nor kept in memory
        changes = recovered.take_changes()
        recovered.views.write(changes)
        recovered.written(changes)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A stored batch: its first entry, all its events' bytes, its leaf hashes."""

    first: Entry
    opening: Opening
    events: list[bytes]
    leaves: list[bytes]


def _batches(previous: bytes, index: int, entries: Iterable[bytes]) -> Iterator[_Batch]:
    """The batches of a run's rest, links and indexes checked."""
    batch: _Batch | None = None
    for data in entries:
        if batch is None:
            entry = decode_entry(data)
            if entry.opening is None or entry.previous != previous or entry.index != index:
                raise FatalError("STORE_BROKEN", f"expected an opening at {index}, linked to the one before")
            batch = _Batch(entry, entry.opening, [entry.event], [])
        else:
            # What a placed entry has to begin with is known; packing that is cheaper than taking it apart.
            head = ENTRY_HEADER.pack(
                ENTRY_VERSION, index, batch.first.recorded_at, previous, len(batch.events)
            )
            if not data.startswith(head):
                raise FatalError("STORE_BROKEN", f"expected entry {index} to follow the one before")
            batch.events.append(data[ENTRY_HEADER.size :])
        previous = leaf_hash(data)
        batch.leaves.append(previous)
        index += 1
        if len(batch.events) == batch.opening.count:
            yield batch
            batch = None
    if batch is not None:
        raise FatalError(
            "STORE_BROKEN", f"expected a batch of {batch.opening.count}, got {len(batch.events)}"
        )


def _take_batch(draft: Draft, batch: _Batch) -> None:
    first, opening = batch.first, batch.opening
    grant = draft.authority.find(opening.name, opening.key_id)
    events = [parse_event(event) for event in batch.events]
    bodies = {body for event in events if (body := event.WhichOneof("body"))}
    touched: dict[str, int] = {}
    if not bodies <= TOUCHES_NOTHING:
        for index, event in enumerate(events, first.index):
            for key in touches(event):
                touched[key] = index
    key_event = not bodies.isdisjoint(KEY_EVENTS)
    authority = authority_after(draft.authority, first.index, events) if key_event else draft.authority
    placed = Placed(
        first.index,
        first.recorded_at,
        first.previous,
        grant,
        opening.stream,
        opening.sequence,
        batch.leaves,
        events,
    )
    draft.take(placed, touched, authority, draft.content_after(events, bodies))


def _check_head(state: State, head: tuple[int, bytes] | None) -> None:
    if head is None:
        if state.size:
            raise FatalError("STORE_BROKEN", f"expected a checkpoint for size {state.size}, got none")
        return
    checkpoint = open_checkpoint(head[1], state.authority.ledger_key)
    expected = Checkpoint(state.authority.trust.origin, state.size, state.tree.root())
    if (head[0], checkpoint) != (state.size, expected):
        raise FatalError(
            "STORE_BROKEN",
            f"expected size {state.size}, root {expected.root.hex()}, got size "
            f"{checkpoint.size}, root {checkpoint.root.hex()}",
        )


def _check_released(state: State, store: Store) -> None:
    """Law 6."""
    released = store.released()
    if released is None:
        # Each commit is released before the next: only the first one may be stored and not released.
        if len(list(islice(store.runs(0), 2))) > 1:
            raise FatalError(
                "RELEASED_MISSING",
                f"expected the last released checkpoint beside a store of {state.size} entries, got none: "
                "whether this store is the newest cannot be told; put the checkpoint's file back",
            )
        return
    try:
        checkpoint = open_checkpoint(released, *state.authority.checkpoint_keys)
    except VerificationError as error:
        raise FatalError("BAD_RELEASED", f"expected a checkpoint by this ledger, got {error}") from error
    check_reaches(state.size, checkpoint, "as released")
    check_root(state.tree.root(checkpoint.size), checkpoint, "as released")
