"""What the sequencer knows of the log, and how a batch is judged and placed against it.

Rules kept here:

- Order of handling: shape → signature → marker (sent again?) → authority → content rule → condition.
- `prepare` needs nothing of the log but its signer's grant, which lasts, so it runs before a batch has its
  turn; `Draft.place` judges. Lengths, count and root are the shape of a batch; its events are parsed after
  the signature, so that rubbish costs its sender more than us.
- A `Draft` is what a commit would make of the state. Until `State.absorb` takes it nothing has moved; a draft
  that is dropped leaves no trace.
- Authority is judged once per batch at its first index, with the verifier's own function; key events act
  after their batch's last entry.
- Recovery makes `Placed` values of stored entries and takes them through the same `Draft` and `absorb`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from uuid import UUID

from ledger.admission import admit
from ledger.batch import BatchNote, check_batch_shape, event_root
from ledger.content import ContentRules
from ledger.entry import FIRST_PREVIOUS, MAX_RECORDED_AT, Opening, encode_run, place_batch
from ledger.errors import FatalError, FormatError, OverloadedError, RefusedError
from ledger.merkle import Tree
from ledger.note import Signer
from ledger.server.store import Marker, marker_originator
from ledger.server.turns import SLICE, Slice
from ledger.touches import STANDS_ALONE, TOUCHES_NOTHING, Condition, rests_on, touches
from ledger.trust import KEY_EVENTS, Authority, Grant
from ledger.v1 import event_pb2

__all__ = [
    "EVENT_WORK",
    "Draft",
    "KeyRing",
    "Placed",
    "Prepared",
    "State",
    "authority_after",
    "known_grant",
    "prepare",
]

_STREAM_START: Final = 0
_MOST_STREAMS: Final = 65_536  # remembered, about 200 bytes each
EVENT_WORK: Final = 256  # what parsing an event costs at least, in bytes of a large one
_HASHED_PER_PARSED: Final = 4  # bytes hashed in the time of one parsed
_MAX_BEHIND: Final = 300_000_000  # microseconds
_CLOCK_RETRY: Final = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch whose shape and signature are right."""

    note: BatchNote
    grant: Grant  # its signer's as it was prepared: the key is right, whether it is in force is judged later
    data: Sequence[bytes]
    events: Sequence[event_pb2.Event]
    bodies: frozenset[str]
    size: int  # bytes of all events


@dataclass(frozen=True, slots=True)
class Placed:
    """A batch in its place."""

    first_index: int
    recorded_at: int
    previous: bytes
    grant: Grant
    stream: bytes
    sequence: int
    leaves: Sequence[bytes]
    events: Sequence[event_pb2.Event]


def known_grant(authority: Authority, note: BatchNote) -> Grant:
    """The signer's grant, revoked or not. Raises RefusedError(KEY_UNKNOWN)."""
    grant = authority.grants.get((note.name, note.key_id))
    if grant is None:
        raise RefusedError("KEY_UNKNOWN", f"expected a granted key, got {note.name}+{note.key_id.hex()}")
    return grant


async def prepare(
    parsed: BatchNote, data: Sequence[bytes], origin: str, grant: Grant, turn: Slice
) -> Prepared:
    """Checks shape and signature of a batch for the log `origin`, then its events at the door.

    Every slice of it awaits `turn`: a batch made to be slow takes a good part of a second.
    Raises FormatError (what `check_batch_shape` and `admit` raise, BAD_COUNT, ROOT_MISMATCH),
    RefusedError(OTHER_ORIGIN, BAD_BATCH_SIGNATURE).
    """
    check_batch_shape(data)
    if parsed.origin != origin:
        raise RefusedError("OTHER_ORIGIN", f"expected a batch for {origin}, got one for {parsed.origin}")
    if parsed.count != len(data):
        raise FormatError("BAD_COUNT", f"expected {parsed.count} events, as the note says, got {len(data)}")
    await turn(sum(map(len, data)) // _HASHED_PER_PARSED)
    root = event_root(data)
    if parsed.root != root:
        raise FormatError("ROOT_MISMATCH", f"expected the note's root {parsed.root.hex()}, got {root.hex()}")
    if not grant.key.verify(parsed.text(), parsed.signature):
        raise RefusedError("BAD_BATCH_SIGNATURE", f"expected a signature by {grant.key}, got another")
    events: list[event_pb2.Event] = []
    work = 0
    for position, event in enumerate(data):
        try:
            events.append(admit(event))
        except FormatError as error:
            raise FormatError(error.reason, f"events[{position}].{error.message}") from error
        work += EVENT_WORK + len(event)
        if work >= SLICE:
            await turn(work)
            work = 0
    bodies = frozenset(body for event in events if (body := event.WhichOneof("body")))
    return Prepared(parsed, grant, data, events, bodies, sum(map(len, data)))


def authority_after(authority: Authority, first_index: int, events: Sequence[event_pb2.Event]) -> Authority:
    """The authority after a batch, each key rule judged as if the earlier events had acted."""
    for offset, event in enumerate(events):
        authority = authority.with_key_event(first_index + offset, event, len(events))
    return authority


@dataclass(slots=True)
class State:
    """The log as committed. Owned by the sequencer; `tree` alone runs ahead while a commit is on its way."""

    authority: Authority
    tree: Tree = field(default_factory=Tree)
    size: int = 0
    recorded_at: int = 0
    last_leaf: bytes = FIRST_PREVIOUS
    # By public key ‖ stream, of those that placed lately; the store knows all.
    next_sequence: dict[bytes, int] = field(default_factory=dict)
    touched: dict[str, int] = field(default_factory=dict)  # key -> index of the last entry that touched it
    content: ContentRules = field(default_factory=ContentRules)

    def unknown_streams(self, batches: Iterable[Prepared]) -> dict[bytes, UUID]:
        """Streams of these batches whose next sequence the store must be asked for, with their markers' id.

        Before that, streams that placed nothing for long are forgotten, and their sequences looked up again.
        """
        for stream in list(islice(self.next_sequence, max(0, len(self.next_sequence) - _MOST_STREAMS))):
            del self.next_sequence[stream]
        return {
            stream: marker_originator(batch.grant.key.public_key, batch.note.stream)
            for batch in batches
            if (stream := batch.grant.key.public_key + batch.note.stream) not in self.next_sequence
        }

    def absorb(self, draft: Draft) -> None:
        """Makes a committed draft the state. The tree has its leaves already."""
        self.authority = draft.authority
        self.size = draft.size
        self.recorded_at = draft.recorded_at
        self.last_leaf = draft.last_leaf
        for stream, sequence in draft.next_sequence.items():
            self.next_sequence.pop(stream, None)  # the last of the dictionary placed last
            self.next_sequence[stream] = sequence
        self.touched.update(draft.touched)
        self.content.absorb(draft.content)


@dataclass(slots=True)
class Draft:
    """What a commit will make of the state, batch after batch."""

    state: State
    authority: Authority
    size: int
    recorded_at: int
    last_leaf: bytes
    content: ContentRules
    placed: list[Placed] = field(default_factory=list)
    runs: list[bytes] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    next_sequence: dict[bytes, int] = field(default_factory=dict)
    touched: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> Draft:
        """A draft that changes nothing yet."""
        return cls(
            state, state.authority, state.size, state.recorded_at, state.last_leaf, state.content.over()
        )

    def expected_sequence(self, batch: Prepared) -> int:
        """The next sequence of the batch's stream."""
        stream = batch.grant.key.public_key + batch.note.stream
        if (drafted := self.next_sequence.get(stream)) is not None:
            return drafted
        return self.state.next_sequence.get(stream, _STREAM_START)

    def in_this_draft(self, batch: Prepared) -> bool:
        """Whether the sequence is taken by a batch of this very draft, whose marker is not stored yet."""
        stream = batch.grant.key.public_key + batch.note.stream
        return batch.note.sequence >= self.state.next_sequence.get(stream, _STREAM_START)

    def place(self, batch: Prepared, condition: Condition | None, now: int, keys: KeyRing) -> Placed:
        """Judges a new batch's authority and condition, and places it.

        `now` in microseconds since 1970. Raises InputError, OverloadedError(CLOCK_BEHIND), and nothing moved;
        FatalError BAD_CLOCK.
        """
        note = batch.note
        expected = self.expected_sequence(batch)
        if note.sequence != expected:
            raise RefusedError(
                "SEQUENCE_GAP", f"expected sequence {expected} of this stream, got {note.sequence}"
            )
        grant, authority = self._judge_authority(batch)
        if authority is not self.authority:
            keys.holding(authority)
        if self.recorded_at - now > _MAX_BEHIND:
            raise OverloadedError(
                "CLOCK_BEHIND",
                f"expected a clock at most {_MAX_BEHIND // 1_000_000} s behind the last entry's recorded_at "
                f"{self.recorded_at}, got {now}; the ledger goes on when its clock is right",
                _CLOCK_RETRY,
            )
        recorded_at = max(now, self.recorded_at)
        if recorded_at >= MAX_RECORDED_AT:
            raise FatalError("BAD_CLOCK", f"expected a time before the year 10000, got {recorded_at}")
        content = self.content_after(batch.events, batch.bodies)
        if content is not None:
            content.check(batch.events)
        touched = self._judge_condition(batch, condition, recorded_at)
        opening = Opening(len(batch.data), note.name, note.key_id, note.stream, note.sequence, note.signature)
        entries, leaves = place_batch(self.size, recorded_at, self.last_leaf, opening, batch.data)
        placed = Placed(
            self.size, recorded_at, self.last_leaf, grant, note.stream, note.sequence, leaves, batch.events
        )
        self.take(placed, touched, authority, content)
        self.runs.append(encode_run(entries))
        originator = marker_originator(grant.key.public_key, note.stream)
        self.markers.append(Marker(originator, note.sequence, note.root, placed.first_index))
        return placed

    def content_after(
        self, events: Sequence[event_pb2.Event], bodies: AbstractSet[str]
    ) -> ContentRules | None:
        """What a batch makes of the rules for content; None where no event of it can matter to them."""
        if not self.content.needed and "workflow_declared" not in bodies:
            return None
        content = self.content.over()
        content.take(events)
        return content

    def take(
        self,
        placed: Placed,
        touched: dict[str, int],
        authority: Authority,
        content: ContentRules | None,
    ) -> None:
        """Adds a placed batch to what the commit will make of the state. The one place that moves a draft."""
        self.placed.append(placed)
        self.touched.update(touched)
        self.authority = authority
        if content is not None:
            self.content.absorb(content)
        self.size += len(placed.leaves)
        self.recorded_at = placed.recorded_at
        self.last_leaf = placed.leaves[-1]
        self.next_sequence[placed.grant.key.public_key + placed.stream] = placed.sequence + 1

    def _judge_authority(self, batch: Prepared) -> tuple[Grant, Authority]:
        note = batch.note
        grant = self.authority.find(note.name, note.key_id)
        for body in sorted(batch.bodies):
            self.authority.check_writer(grant, body)
        if len(batch.data) > 1 and (alone := sorted(batch.bodies & STANDS_ALONE)):
            raise RefusedError(
                "MUST_STAND_ALONE", f"expected {alone[0]} alone in its batch, got one of {len(batch.data)}"
            )
        if self.size and not batch.bodies & KEY_EVENTS:
            return grant, self.authority
        return grant, authority_after(self.authority, self.size, batch.events)

    def _judge_condition(
        self, batch: Prepared, condition: Condition | None, recorded_at: int
    ) -> dict[str, int]:
        """The keys that the batch touches, after the author's condition and each judgment's own held."""
        if condition is not None:
            self._check(condition, {}, recorded_at, self.size)
        touched: dict[str, int] = {}
        if batch.bodies <= TOUCHES_NOTHING:
            return touched
        for index, event in enumerate(batch.events, self.size):
            own = rests_on(event)
            if own is not None:
                self._check(own, touched, recorded_at, index)
            for key in touches(event):
                touched[key] = index
        return touched

    def _check(self, condition: Condition, own: dict[str, int], recorded_at: int, size: int) -> None:
        if condition.since > size:
            raise RefusedError(
                "CONDITION_FAILED",
                f"expected a condition since a size of at most {size}, got {condition.since}",
            )
        for key in condition.keys:
            last = own.get(key, self.touched.get(key, self.state.touched.get(key, -1)))
            if last >= condition.since:
                raise RefusedError(
                    "CONDITION_FAILED",
                    f"expected {key} untouched since size {condition.since}, got one at index {last}",
                )
        if condition.not_after is not None and recorded_at > condition.not_after:
            raise RefusedError(
                "CONDITION_FAILED", f"expected recorded_at up to {condition.not_after}, got {recorded_at}"
            )


class KeyRing:
    """The ledger keys that this process holds; the log says which one signs."""

    def __init__(self, keys: Sequence[Signer]) -> None:
        self._keys = {key.verifier_key: key for key in keys}

    def at(self, authority: Authority, size: int) -> Signer | None:
        """The key in force after `size` entries of a log whose authority is `authority` by now.

        None where it is not held any more.
        """
        return self._keys.get(authority.ledger_keys[sum(index < size for index in authority.rotated_at)])

    def holding(self, authority: Authority) -> Signer:
        """The key in force under `authority`. Raises RefusedError LEDGER_KEY_NOT_HELD: nothing could sign."""
        key = self._keys.get(authority.ledger_key)
        if key is None:
            raise RefusedError(
                "LEDGER_KEY_NOT_HELD",
                f"expected to hold {authority.ledger_key} before it comes into force, got no such key",
            )
        return key
