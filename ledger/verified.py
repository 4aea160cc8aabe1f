"""What the verifier asks for, and what it answers (design section 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ledger.note import VerifierKey
from ledger.trust import Grant
from ledger.v1 import event_pb2

__all__ = ["Clean", "Keys", "Verified"]


class Keys(Protocol):
    """What V4 asks; `trust.Authority` answers.

    A stand-in's `check_writer` is not asked about what `trust.WRITER` gives to the grant's role.
    """

    @property
    def ledger_key(self) -> VerifierKey:
        """The key that signs checkpoints of the present size."""

    def find(self, name: str, key_id: bytes) -> Grant:
        """The grant in force of a signer, or RefusedError."""

    def check_writer(self, grant: Grant, body: str) -> None:
        """RefusedError unless the grant's role may write the type."""

    def with_key_event(self, index: int, event: event_pb2.Event, count: int) -> Keys:
        """What holds after the event, or InputError where a key rule is broken."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A log that passed V2 to V7."""

    origin: str
    size: int
    #: 32 bytes.
    root: bytes
    #: The signed note: what to remember from now on.
    checkpoint: bytes
    #: Principal -> number of its entries.
    authors: Mapping[str, int]
    batches: int
    #: Microseconds since 1970, of the first and of the last entry.
    first_recorded_at: int
    last_recorded_at: int
    #: In force at `size`.
    ledger_key: VerifierKey
    #: Names of the witnesses that cosigned.
    witnesses: tuple[str, ...]
    #: Size of the remembered checkpoint that this log continues. None: rollback cannot be detected yet.
    remembered_size: int | None
    #: Every key that has a place in the log.
    keys: Keys


@dataclass(frozen=True, slots=True)
class Clean:
    """A range of whole batches without a fault, if it begins where it says, under the keys it was given."""

    first: int
    #: Leaf hash of the entry before, as the first entry links to it.
    previous: bytes
    #: recorded_at of the first and of the last entry.
    first_time: int
    last_time: int
    count: int
    #: Leaf hash of the last entry.
    last: bytes
    #: The tree over the leaf hashes, in the parts that `merkle.subtrees` makes.
    subtrees: Sequence[tuple[int, bytes]]
    #: Public key -> stream -> the first sequence, and the next after the last.
    sequences: Mapping[bytes, Mapping[bytes, tuple[int, int]]]
    authors: Mapping[str, int]
    batches: int
