"""Root at work on the log's keys: grants, revocations, rotations, each between two verifications.

Rules:
1. Before root signs, and after, the whole log is read and verified (V2 to V7 without the quorum of witnesses,
   who come after the ledger): root never signs on top of a log that it cannot prove.
2. What is asked for is judged by the verifier's own rules first, so that a refusal costs nothing.
3. A key is on disk before it is granted, and in its principal's place before the old one is revoked: whatever
   breaks off in between, the same command again goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clients.ledger import LedgerClient
from ledger.entry import encode_run
from ledger.errors import FormatError, NotFoundError, RefusedError
from ledger.note import VerifierKey
from ledger.trust import Authority, Grant
from ledger.v1 import event_pb2, root_pb2
from ledger.verified import Verified
from ledger.verify import Verifier

__all__ = ["KeyDesk", "Known", "grant_in_force", "grants_same", "rotation_of", "verify_log"]


@dataclass(frozen=True, slots=True)
class Known:
    """A log that was read and verified whole, and the keys that it gives."""

    verified: Verified
    authority: Authority


async def verify_log(client: LedgerClient) -> Known:
    """Reads the whole log as it is now and verifies it. Raises AssayError, VerificationError among them."""
    note = await client.checkpoint_note()
    checkpoint = client.checkpoint
    if checkpoint is None:
        raise NotFoundError("EMPTY_LOG", "expected a log that root has opened, got an empty one")
    verifier = Verifier(client.identity.trust.without_quorum())
    async for _, entry in client.read(0, checkpoint.size):
        verifier.feed(encode_run([entry]))
    verified = verifier.finish(note)
    if not isinstance(verified.keys, Authority):
        raise TypeError("expected the verifier's own authority")
    return Known(verified, verified.keys)


class KeyDesk:
    """Writes key events as root. `event` makes the bytes of an event around a body."""

    def __init__(self, client: LedgerClient, event: Callable[[object], bytes]) -> None:
        self._client = client
        self._event = event

    async def known(self) -> Known:
        """The log as it is now, verified."""
        return await verify_log(self._client)

    def check(self, known: Known, body: object) -> bytes:
        """The event around a body. Raises RefusedError, FormatError: what the key rules find wrong."""
        data = self._event(body)
        known.authority.with_key_event(known.verified.size, event_pb2.Event.FromString(data), 1)
        return data

    async def write(self, known: Known, body: object) -> tuple[int, Known]:
        """Places a key event after `known`; its index, and the log verified after. Raises AssayError."""
        placed = await self._client.append([self.check(known, body)])
        return placed.first_index, await self.known()


def grant_in_force(authority: Authority, name: str, key_id: str | None = None) -> Grant:
    """The grant of a principal, by the key id's 8 hex digits where it has several keys in force.

    Raises NotFoundError NO_SUCH_KEY, RefusedError WHICH_KEY.
    """
    if any(name == root.name for root in authority.trust.roots):
        raise NotFoundError(
            "NO_SUCH_KEY",
            f"expected a key that root granted, got root's own, {name}: it stands in the trust document and "
            "is neither revoked nor rotated",
        )
    held = [g for (of, _), g in authority.grants.items() if of == name and g.granted_at >= 0]
    living = [g for g in held if g.revocation is None and key_id in (None, g.key.key_id.hex())]
    if not living:
        has = ", ".join(g.key.key_id.hex() for g in held if g.revocation is None) or "none"
        had = ", ".join(g.key.key_id.hex() for g in held if g.revocation is not None) or "none"
        wanted = "a key" if key_id is None else f"key {key_id}"
        raise NotFoundError(
            "NO_SUCH_KEY",
            f"expected {wanted} of {name} in force, got none (in force: {has}, revoked: {had})",
        )
    if len(living) > 1:
        ids = ", ".join(g.key.key_id.hex() for g in living)
        raise RefusedError(
            "WHICH_KEY", f"expected one key of {name}, got several in force: name one of {ids}"
        )
    return living[0]


def grants_same(grant: Grant, body: root_pb2.KeyGranted) -> bool:
    """Whether a grant gave what a KeyGranted asks for."""
    return body == rotation_of(grant, grant.key)


def rotation_of(old: Grant, new: VerifierKey) -> root_pb2.KeyGranted:
    """The grant of a new key with all that the old one had. Raises FormatError BAD_NAME for another's key."""
    if new.name != old.name:
        raise FormatError("BAD_NAME", f"expected a key named {old.name}, got one named {new.name}")
    return root_pb2.KeyGranted(
        vkey=str(new),
        role=old.role,  # type: ignore[arg-type]  # a Role, kept as int in the core
        controller=old.controller,
        approver_kind=old.approver_kind,  # type: ignore[arg-type]  # the same
        policy_digest=old.policy_digest,
    )
