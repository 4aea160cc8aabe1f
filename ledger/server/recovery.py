"""Start-up: the state is built again from what the store holds.

Rules kept here:

- The store is trusted, and checked where that is cheap: every link, index, opening and key rule, by the code
  that places, and the root and the ledger's signature at the end. Authors' signatures are the auditor's.
- A store that ends before the last released checkpoint, or that holds another tree, refuses to start (law 6).
- A store whose commit was not released yet is ahead, which is no fault: it is released now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ledger.admission import parse_event
from ledger.checkpoint import Checkpoint, open_checkpoint
from ledger.entry import Entry, Opening, decode_entry, iter_run
from ledger.errors import AssayError, FatalError
from ledger.merkle import Tree, leaf_hash
from ledger.server.folds import Folded, FoldRunner
from ledger.server.state import Draft, Placed, State, authority_after
from ledger.server.store import Store
from ledger.touches import touches
from ledger.trust import KEY_EVENTS, Authority, TrustDocument

__all__ = ["recover"]


def recover(store: Store, trust: TrustDocument, folds: FoldRunner, tree: Tree) -> State:
    """The state of the stored log, its leaves in `tree`, which was empty; the folds have seen all of it.

    Raises FatalError: STORE_BROKEN where the store is not a log by this ledger, BEHIND_RELEASED, FORKED.
    """
    state = State(Authority.initial(trust), tree)
    try:
        for first_index, run in store.runs(0):
            _take_run(state, first_index, run, folds)
        _check_head(state, store.head())
    except FatalError:
        raise
    except AssayError as error:
        raise FatalError("STORE_BROKEN", f"expected a log at index {state.size}, got {error}") from error
    _check_released(state, store.released())
    return state


def _take_run(state: State, first_index: int, run: bytes, folds: FoldRunner) -> None:
    if first_index != state.size:
        raise FatalError("STORE_BROKEN", f"expected a run at index {state.size}, got {first_index}")
    draft = Draft.of(state)
    for opening, entries, leaves in _batches(draft.last_leaf, first_index, run):
        _take_batch(draft, opening, entries, leaves)
    state.tree.extend([leaf for placed in draft.placed for leaf in placed.leaves])
    state.absorb(draft)
    for p in draft.placed:
        folds.apply(Folded(p.first_index, p.recorded_at, p.grant, p.leaves, p.events))


def _batches(previous: bytes, index: int, run: bytes) -> Iterator[tuple[Opening, list[Entry], list[bytes]]]:
    """The batches of a run, links and indexes checked."""
    opening: Opening | None = None
    entries: list[Entry] = []
    leaves: list[bytes] = []
    for data in iter_run(run):
        entry = decode_entry(data)
        if entry.previous != previous or entry.index != index:
            raise FatalError("STORE_BROKEN", f"expected entry {index} to follow the one before, got another")
        if (entry.opening is None) == (opening is None) or entry.offset != len(entries):
            raise FatalError("STORE_BROKEN", f"expected whole batches, got offset {entry.offset} at {index}")
        opening = opening or entry.opening
        entries.append(entry)
        leaves.append(previous := leaf_hash(data))
        index += 1
        if opening is not None and len(entries) == opening.count:
            yield opening, entries, leaves
            opening, entries, leaves = None, [], []
    if opening is not None:
        raise FatalError("STORE_BROKEN", f"expected a batch of {opening.count}, got {len(entries)}")


def _take_batch(draft: Draft, opening: Opening, entries: Sequence[Entry], leaves: Sequence[bytes]) -> None:
    grant = draft.authority.find(opening.name, opening.key_id)
    events = [parse_event(entry.event) for entry in entries]
    touched: dict[str, int] = {}
    key_event = False
    for entry, event in zip(entries, events, strict=True):
        key_event |= event.WhichOneof("body") in KEY_EVENTS
        for key in touches(event):
            touched[key] = entry.index
    first = entries[0]
    authority = authority_after(draft.authority, first.index, events) if key_event else draft.authority
    draft.take(
        Placed(
            first.index,
            first.recorded_at,
            first.previous,
            grant,
            opening.stream,
            opening.sequence,
            leaves,
            events,
        ),
        touched,
        authority,
    )


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


def _check_released(state: State, released: bytes | None) -> None:
    """Law 6."""
    if released is None:
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
