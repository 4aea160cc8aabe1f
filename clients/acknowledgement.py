"""Batches as a client sends them, and acknowledgements as it checks them (law 3).

Rules:
1. A batch is signed once; whatever is sent again is that same batch, byte for byte (law 5).
2. An acknowledgement is believed when the client's own events, rebuilt into entries, are proven to stand in a
   checkpoint that the ledger signed. The server's word is not needed for any of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clients.proven import check_inclusion
from ledger.batch import BatchNote, batch_text, check_batch_shape, event_root, parse_batch_note
from ledger.checkpoint import Checkpoint
from ledger.entry import Opening, place_batch
from ledger.errors import FormatError, VerificationError
from ledger.note import Signer
from ledger.touches import Condition
from ledger.v1 import ledger_pb2

__all__ = ["Placed", "SignedBatch", "check_placed", "sign"]


@dataclass(frozen=True, slots=True)
class Placed:
    """A batch that is durable and proven so. `recorded_at` in microseconds since 1970."""

    first_index: int
    count: int
    recorded_at: int
    checkpoint_size: int


@dataclass(frozen=True, slots=True)
class SignedBatch:
    """What is sent, and sent again."""

    note: BatchNote
    data: bytes  # the note as signed
    events: Sequence[bytes]
    condition: Condition | None

    @classmethod
    def of(cls, data: bytes, events: Sequence[bytes], condition: Condition | None = None) -> SignedBatch:
        """A batch from its signed note. Raises FormatError."""
        return cls(parse_batch_note(data), data, events, condition)

    def request(self, known_size: int) -> ledger_pb2.AppendRequest:
        """The request, asking for a proof from `known_size`."""
        request = ledger_pb2.AppendRequest(note=self.data, events=self.events, known_size=known_size)
        if self.condition is not None:
            request.condition.keys.extend(self.condition.keys)
            request.condition.since_size = self.condition.since
            if self.condition.not_after is not None:
                request.condition.not_after = self.condition.not_after
        return request


def sign(
    key: Signer,
    origin: str,
    stream: bytes,
    sequence: int,
    events: Sequence[bytes],
    condition: Condition | None,
) -> SignedBatch:
    """Signs a batch, as `ledger.batch.sign_batch` does. Raises FormatError for events that do not fit one."""
    check_batch_shape(events)
    root, known = event_root(events), key.verifier_key
    signature = key.sign(batch_text(origin, stream, sequence, len(events), root))
    note = BatchNote(origin, stream, sequence, len(events), root, known.name, known.key_id, signature)
    return SignedBatch(note, note.encode(), events, condition)


def check_placed(batch: SignedBatch, response: ledger_pb2.AppendResponse, checkpoint: Checkpoint) -> Placed:
    """That the batch stands where `response` says, in `checkpoint`, whose signature was checked.

    Raises VerificationError(NOT_INCLUDED, BAD_ACKNOWLEDGEMENT).
    """
    note, count = batch.note, len(batch.events)
    opening = Opening(count, note.name, note.key_id, note.stream, note.sequence, note.signature)
    first, recorded_at = response.first_index, response.recorded_at
    if response.count != count or len(response.previous) != 32:
        raise VerificationError(
            "V2",
            "BAD_ACKNOWLEDGEMENT",
            f"expected {count} entries and a link, got {response.count} and {len(response.previous)} bytes",
        )
    try:
        _, leaves = place_batch(first, recorded_at, response.previous, opening, batch.events)
    except FormatError as error:
        raise VerificationError("V2", "BAD_ACKNOWLEDGEMENT", error.message, index=first) from error
    check_inclusion(first + count - 1, leaves[-1], list(response.inclusion), checkpoint)
    return Placed(first, count, recorded_at, checkpoint.size)
