"""A ledger in memory that does as it is told: true logs, and logs with any one fault, under real keys.

What is not told otherwise is right: links, indexes, sequences, signatures, checkpoints. So a test names one
fault, and everything around it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from io import BytesIO
from types import MappingProxyType
from typing import Final, TypeAlias

import pytest

from ledger.batch import batch_text, event_root
from ledger.checkpoint import Checkpoint, cosign
from ledger.entry import FIRST_PREVIOUS, Entry, Opening, decode_entry, encode_entry, encode_run
from ledger.errors import VerificationError
from ledger.export import encode_export_header
from ledger.fold import Fold
from ledger.merkle import leaf_hash, root
from ledger.note import KEY_TYPE_COSIGNATURE, KEY_TYPE_ED25519, SigningKey, sign_note
from ledger.trust import TrustDocument
from ledger.v1 import event_pb2, options_pb2, root_pb2, runner_pb2
from ledger.verify import Verified, read_trust, verify_export

__all__ = [
    "LEDGER",
    "ORIGIN",
    "ROLES",
    "ROOT",
    "START",
    "Forge",
    "event_id",
    "export_of",
    "granted",
    "make_key",
    "numbered",
    "opened",
    "refused",
    "relink",
    "revoked",
    "rotated",
    "verify",
    "witness_key",
]

ORIGIN: Final = "ledger.test/assay-0123456789abcdef"
#: recorded_at of the first batch; each later one comes a second after.
START: Final = 1_767_225_600_000_000

Edit: TypeAlias = Callable[[Entry], Entry]
Mangle: TypeAlias = Callable[[bytes], bytes]


def make_key(name: str, salt: str = "", kind: int = KEY_TYPE_ED25519) -> SigningKey:
    """The test key of a name, always the same; another `salt`, another key."""
    return SigningKey(name, sha256(f"test key {name} {salt}".encode()).digest(), kind)


LEDGER: Final = make_key(ORIGIN)
ROOT: Final = make_key("root")
#: One principal for each grantable role, named after it.
ROLES: Final[Mapping[str, int]] = {
    value.name.removeprefix("ROLE_").lower(): value.number
    for value in options_pb2.Role.DESCRIPTOR.values
    if value.number > options_pb2.ROLE_ROOT
}


# --- events ------------------------------------------------------------------------------------------------


def event_id(number: int) -> bytes:
    """A UUIDv7 made of a number."""
    return number.to_bytes(6, "big") + b"\x70\x00\x80" + bytes(7)


def opened(origin: str = ORIGIN, ledger: SigningKey = LEDGER) -> event_pb2.Event:
    """LedgerOpened."""
    body = root_pb2.LedgerOpened(origin=origin, ledger_vkey=str(ledger.verifier_key))
    return event_pb2.Event(event_id=event_id(0), ledger_opened=body)


def granted(key: SigningKey, role: int, *, controller: str | None = None) -> event_pb2.Event:
    """KeyGranted; approvers are human."""
    body = root_pb2.KeyGranted(vkey=str(key.verifier_key), role=role)  # type: ignore[arg-type]  # any number
    body.controller = controller or f"controller-of-{key.verifier_key.name}"
    if role == options_pb2.ROLE_APPROVER:
        body.approver_kind = root_pb2.APPROVER_KIND_HUMAN
    return event_pb2.Event(event_id=event_id(1), key_granted=body)


def revoked(key: SigningKey, suspect_from: int | None = None) -> event_pb2.Event:
    """KeyRevoked."""
    body = root_pb2.KeyRevoked(vkey=str(key.verifier_key), reason="lost", suspect_from=suspect_from)
    return event_pb2.Event(event_id=event_id(2), key_revoked=body)


def rotated(ledger: SigningKey) -> event_pb2.Event:
    """LedgerKeyRotated."""
    body = root_pb2.LedgerKeyRotated(ledger_vkey=str(ledger.verifier_key), reason="yearly")
    return event_pb2.Event(event_id=event_id(3), ledger_key_rotated=body)


def numbered(number: int) -> event_pb2.Event:
    """A runner's event."""
    body = runner_pb2.RolloutEnqueued(
        rollout=f"rollout-{number}", workflow="sql-agent", workflow_version=1, mode=runner_pb2.MODE_TRAIN
    )
    return event_pb2.Event(event_id=event_id(number), rollout_enqueued=body)


# --- the ledger --------------------------------------------------------------------------------------------


class Forge:
    """An empty log with its trust document. `entries` and `leaves` may be changed at will."""

    def __init__(
        self,
        *,
        ledger: SigningKey = LEDGER,
        roots: Sequence[SigningKey] = (ROOT,),
        policy: str = "quorum none\n",
    ) -> None:
        self.ledger = ledger
        self.origin = ledger.verifier_key.name
        self.trust_text = (
            "assay/trust/v1\n"
            + "".join(f"root {key.verifier_key}\n" for key in roots)
            + f"\nlog {ledger.verifier_key}\n{policy}"
        )
        self.trust: TrustDocument = read_trust(self.trust_text.encode())
        self.entries: list[bytes] = []
        self.leaves: list[bytes] = []
        self.sequences: dict[tuple[bytes, bytes], int] = {}
        self.recorded_at = START

    @classmethod
    def opened(cls, *roles: str, ledger: SigningKey = LEDGER, policy: str = "quorum none\n") -> Forge:
        """A log whose entry 0 opens it, and whose second batch grants a key to each of `roles`."""
        forge = cls(ledger=ledger, policy=policy)
        forge.add(ROOT, opened(forge.origin, ledger))
        if roles:
            forge.add(ROOT, *(granted(make_key(role), ROLES[role]) for role in roles))
        return forge

    @property
    def size(self) -> int:
        """Entries so far."""
        return len(self.entries)

    def add(
        self,
        author: SigningKey | str,
        *events: event_pb2.Event | bytes,
        stream: bytes = bytes(16),
        sequence: int | None = None,
        recorded_at: int | None = None,
        origin: str | None = None,
        signer: SigningKey | None = None,
        edits: Mapping[int, Edit] = MappingProxyType({}),
        mangles: Mapping[int, Mangle] = MappingProxyType({}),
    ) -> int:
        """Place a batch and return its first index.

        `edits` change entries (by offset) before they are encoded, `mangles` their bytes after; the links go
        on from what came of it.
        """
        key = make_key(author) if isinstance(author, str) else author
        datas = [event if isinstance(event, bytes) else event.SerializeToString() for event in events]
        slot = (key.verifier_key.public_key, stream)
        if sequence is None:
            sequence = self.sequences.get(slot, 0)
        self.sequences[slot] = sequence + 1
        text = batch_text(origin or self.origin, stream, sequence, len(datas), event_root(datas))
        signature = (signer or key).sign(text)
        known = key.verifier_key
        opening = Opening(len(datas), known.name, known.key_id, stream, sequence, signature)
        if recorded_at is not None:
            self.recorded_at = recorded_at
        first = self.size
        for offset, data in enumerate(datas):
            link = self.leaves[-1] if self.leaves else FIRST_PREVIOUS
            entry = Entry(first + offset, self.recorded_at, link, offset, None if offset else opening, data)
            if (edit := edits.get(offset)) is not None:
                entry = edit(entry)
            encoded = encode_entry(entry)
            if (mangle := mangles.get(offset)) is not None:
                encoded = mangle(encoded)
            self.append(encoded)
        self.recorded_at += 1_000_000
        return first

    def append(self, entry: bytes) -> None:
        """One entry as it is."""
        self.entries.append(entry)
        self.leaves.append(leaf_hash(entry))

    def checkpoint(
        self,
        size: int | None = None,
        *,
        key: SigningKey | None = None,
        witnesses: Sequence[SigningKey] = (),
        origin: str | None = None,
        root_hash: bytes | None = None,
    ) -> bytes:
        """The signed note at `size` (default: all), cosigned by `witnesses`."""
        size = self.size if size is None else size
        found = root(self.leaves[:size]) if root_hash is None else root_hash
        text = Checkpoint(origin or self.origin, size, found).text()
        cosigned = (cosign(text, witness, START // 1_000_000) for witness in witnesses)
        return sign_note(text, key or self.ledger) + b"".join(cosigned)

    def export(self, checkpoint: bytes | None = None, size: int | None = None) -> bytes:
        """An export file of the first `size` entries (default: all)."""
        return export_of(checkpoint or self.checkpoint(size), self.entries[:size])

    def verify(self, **arguments: object) -> Verified:
        """`verify` of its own export."""
        return verify(self.export(), self.trust, **arguments)  # type: ignore[arg-type]  # passed through


def export_of(checkpoint: bytes, entries: Sequence[bytes]) -> bytes:
    """An export file."""
    return encode_export_header(checkpoint) + encode_run(entries)


def verify(
    export: bytes, trust: TrustDocument, *, remembered: bytes | None = None, fold: Fold | None = None
) -> Verified:
    """The export file, verified."""
    return verify_export(BytesIO(export), trust, remembered=remembered, fold=fold)


def refused(
    forge: Forge,
    step: str,
    reason: str,
    index: int | None,
    *,
    export: bytes | None = None,
    remembered: bytes | None = None,
) -> VerificationError:
    """Assert that the verifier refuses the export (default: all that was forged) with this finding."""
    with pytest.raises(VerificationError) as caught:
        verify(export if export is not None else forge.export(), forge.trust, remembered=remembered)
    error = caught.value
    assert (step, reason, index) == (error.step, error.reason, error.index), str(error)
    return error


def relink(entries: Sequence[bytes]) -> Forge:
    """These entries in this order, indexes, times and links made right: what a bribed ledger can do."""
    forge = Forge()
    for entry in map(decode_entry, entries):
        link = forge.leaves[-1] if forge.leaves else FIRST_PREVIOUS
        forge.append(encode_entry(replace(entry, index=forge.size, recorded_at=START, previous=link)))
    return forge


def witness_key(name: str) -> SigningKey:
    """A witness's test key."""
    return make_key(name, kind=KEY_TYPE_COSIGNATURE)
