"""Start-up: the state is built again from what the store holds.

Rules kept here:

- The store is trusted, and checked where that is cheap: every link, index, opening and key rule, by the code
  that places, and the root and the ledger's signature at the end. Authors' signatures are the auditor's.
- A store that ends before the last released checkpoint, or that holds another tree, refuses to start (law 6).
- A store of several commits with no released checkpoint beside it is one of which nobody can tell: refused.
- A store whose commit was not released yet is ahead, which is no fault: it is released now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledger.admission import parse_event
from ledger.checkpoint import Checkpoint, open_checkpoint
from ledger.entry import ENTRY_HEADER, ENTRY_VERSION, Entry, Opening, decode_entry, iter_run
from ledger.errors import AssayError, FatalError
from ledger.merkle import Tree, leaf_hash
from ledger.server.folds import Folded, FoldRunner
from ledger.server.state import Draft, Placed, State, authority_after
from ledger.server.store import Store
from ledger.touches import TOUCHES_NOTHING, touches
from ledger.trust import KEY_EVENTS, Authority, TrustDocument

__all__ = ["recover"]


def recover(store: Store, trust: TrustDocument, folds: FoldRunner, tree: Tree) -> State:
    """The state of the stored log, its leaves in `tree`, which was empty; the folds have seen all of it.

    Raises FatalError: STORE_BROKEN where the store is not a log by this ledger, BEHIND_RELEASED, FORKED.
    """
    state = State(Authority.initial(trust), tree)
    try:
        commits = 0
        for commits, (first_index, run) in enumerate(store.runs(0), 1):  # noqa: B007 - used after the loop
            _take_run(state, first_index, run, folds)
        _check_head(state, store.head())
    except FatalError:
        raise
    except AssayError as error:
        raise FatalError("STORE_BROKEN", f"expected a log at index {state.size}, got {error}") from error
    _check_released(state, store.released(), commits)
    return state


def _take_run(state: State, first_index: int, run: bytes, folds: FoldRunner) -> None:
    if first_index != state.size:
        raise FatalError("STORE_BROKEN", f"expected a run at index {state.size}, got {first_index}")
    draft = Draft.of(state)
    for batch in _batches(draft.last_leaf, first_index, run):
        _take_batch(draft, batch)
    state.tree.extend([leaf for placed in draft.placed for leaf in placed.leaves])
    state.absorb(draft)
    for p in draft.placed:
        folds.apply(Folded(p.first_index, p.recorded_at, p.grant, p.leaves, p.events))


@dataclass(frozen=True, slots=True)
class _Batch:
    """A stored batch: its first entry, all its events' bytes, its leaf hashes."""

    first: Entry
    opening: Opening
    events: list[bytes]
    leaves: list[bytes]


def _batches(previous: bytes, index: int, run: bytes) -> Iterator[_Batch]:
    """The batches of a run, links and indexes checked."""
    batch: _Batch | None = None
    for data in iter_run(run):
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
    bodies = {event.WhichOneof("body") for event in events}
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
    draft.take(placed, touched, authority)


def _check_head(state: State, head: tuple[int, bytes] | None) -> None:
    if head is None:
        if state.size:
            raise FatalError("STORE_BROKEN", f"expected a checkpoint for size {state.size}, got none")
        return
    checkpoint = open_checkpoint(head[1], state.authority.ledger_key)
    expected = Checkpoint(state.authority.trust.origin, state.size, state.tree.root())
    if (head[0], checkpoint) != (state.size, expected):
        raise FatalError(
            "STORE_BROKEN", f"expected size {state.size}, root {expected.root.hex()}, got {checkpoint}"
        )


def _check_released(state: State, released: bytes | None, commits: int) -> None:
    """Law 6."""
    if released is None:
        # Each commit is released before the next: only the first one may be stored and not released.
        if commits > 1:
            raise FatalError(
                "RELEASED_MISSING",
                f"expected the last released checkpoint beside a store of {state.size} entries, got none: "
                "whether this store is the newest cannot be told; put the checkpoint's file back",
            )
        return
    checkpoint = _any_key(state, released)
    if checkpoint.size > state.size:
        raise FatalError(
            "BEHIND_RELEASED",
            f"expected a store of at least {checkpoint.size} entries, as released, got {state.size}; "
            "restore the newer store: this log must not go on from here",
        )
    if state.tree.root(checkpoint.size) != checkpoint.root:
        raise FatalError(
            "FORKED", f"expected the released root at size {checkpoint.size}, got another tree in the store"
        )


def _any_key(state: State, released: bytes) -> Checkpoint:
    """The released checkpoint, under one of the keys that were ever in force, or the trusted one."""
    keys = dict.fromkeys((*state.authority.ledger_keys, state.authority.trust.log))
    failure: AssayError | None = None
    for key in keys:
        try:
            return open_checkpoint(released, key)
        except AssayError as error:
            failure = error
    raise FatalError("BAD_RELEASED", f"expected a checkpoint by this ledger, got {failure}")
