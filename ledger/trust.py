"""Who may write what, and from which index on (design section 5).

Rules:
1. Root's keys are the trust document's, in force from index 0 for ever; they are never granted or revoked.
2. Entry 0 is LedgerOpened, alone in its batch, signed by root, naming the trusted origin.
3. One public key has one name and one role for the log's life; a name keeps its role.
4. Key events act after their batch's last entry; their rules are judged as if the earlier ones had acted.
5. What a role may write stands in one place: the `writer` option of the proto file that defines the event.

`Authority` is a value: `with_key_event` returns the next one. Server, verifier and folds run this same code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ledger.errors import FormatError, RefusedError
from ledger.note import KEY_TYPE_COSIGNATURE, KEY_TYPE_ED25519, VerifierKey
from ledger.v1 import event_pb2, options_pb2, root_pb2

__all__ = [
    "KEY_EVENTS",
    "WRITER",
    "Authority",
    "Grant",
    "Revocation",
    "TrustDocument",
    "WitnessPolicy",
    "parse_trust_document",
    "role_name",
]

_COUNT: Final = re.compile("[1-9][0-9]{0,5}")  # more members than a trust document can hold
_FIRST_LINE: Final = "assay/trust/v1"
_MAX_TRUST_BYTES: Final = 65_536

KEY_EVENTS: Final = frozenset({"ledger_opened", "key_granted", "key_revoked", "ledger_key_rotated"})

# body field name -> the one role that may write it
WRITER: Final[Mapping[str, int]] = {
    field.name: field.message_type.file.GetOptions().Extensions[options_pb2.writer]
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["body"].fields
    if field.message_type is not None
}


def role_name(role: int) -> str:
    """`trainer` for ROLE_TRAINER; `role 77` for one that a newer release granted."""
    known = options_pb2.Role.DESCRIPTOR.values_by_number.get(role)
    return f"role {role}" if known is None else known.name.removeprefix("ROLE_").lower()


# --- the trust document ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WitnessPolicy:
    """Witnesses, groups and the quorum of a C2SP tlog-policy."""

    witnesses: Mapping[str, VerifierKey]
    groups: Mapping[str, tuple[int, tuple[str, ...]]]  # name -> (threshold, members)
    quorum: str  # a witness, a group, or `none`

    def satisfied_by(self, cosigners: frozenset[VerifierKey]) -> bool:
        """Whether these witnesses are a quorum."""
        if self.quorum == "none":
            return True
        holds = {name: key in cosigners for name, key in self.witnesses.items()}
        # A group names what stands before it, so one pass in this order does, however deep they are nested.
        for name, (threshold, members) in self.groups.items():
            holds[name] = sum(holds[member] for member in members) >= threshold
        return holds[self.quorum]


@dataclass(frozen=True, slots=True)
class TrustDocument:
    """What an auditor gets by another way than the log."""

    roots: tuple[VerifierKey, ...]
    log: VerifierKey
    policy: WitnessPolicy

    @property
    def origin(self) -> str:
        """The log's name: key name of its `log` line."""
        return self.log.name

    def without_quorum(self) -> TrustDocument:
        """As a connected client judges: a checkpoint that is a moment old has no cosignatures yet."""
        return replace(self, policy=replace(self.policy, quorum="none"))


def _bad_trust(message: str) -> FormatError:
    return FormatError("BAD_TRUST_DOCUMENT", message)


def parse_trust_document(data: bytes) -> TrustDocument:
    """Parses `assay/trust/v1`, root lines, an empty line and a C2SP tlog-policy with exactly one log.

    Raises FormatError(BAD_TRUST_DOCUMENT, BAD_KEY, …).
    """
    if len(data) > _MAX_TRUST_BYTES:
        raise _bad_trust(f"expected at most {_MAX_TRUST_BYTES} bytes, got {len(data)}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _bad_trust("expected UTF-8 text") from error
    head, separator, policy = text.partition("\n\n")
    lines = head.split("\n")
    if not separator or lines[0] != _FIRST_LINE:
        raise _bad_trust(
            f"expected the line {_FIRST_LINE!r}, root lines and an empty line, got {lines[0][:80]!r}"
        )
    roots: list[VerifierKey] = []
    for line in lines[1:]:
        word, _, vkey = line.partition(" ")
        if word != "root" or not vkey:
            raise _bad_trust(f"expected `root <vkey>`, got {line[:80]!r}")
        key = VerifierKey.parse(vkey)
        if key.type != KEY_TYPE_ED25519:
            raise _bad_trust(f"expected an Ed25519 key for root, got type {key.type}")
        roots.append(key)
    if not roots:
        raise _bad_trust("expected at least one root line, got none")
    log, witness_policy = _parse_policy(policy)
    keys = [key.public_key for key in (*roots, log, *witness_policy.witnesses.values())]
    if len(set(keys)) != len(keys):
        raise _bad_trust("expected different public keys for root, log and witnesses, got one twice")
    if log.name in {key.name for key in roots}:
        raise _bad_trust(f"expected root to have a name other than the origin, got {log.name!r}")
    return TrustDocument(tuple(roots), log, witness_policy)


def _parse_policy(text: str) -> tuple[VerifierKey, WitnessPolicy]:
    logs: list[VerifierKey] = []
    witnesses: dict[str, VerifierKey] = {}
    groups: dict[str, tuple[int, tuple[str, ...]]] = {}
    quorum: str | None = None
    for raw in text.split("\n"):
        if any(ord(c) < 0x20 and c != "\t" for c in raw) or "\x7f" in raw:
            raise _bad_trust("expected no control characters but tab and newline")
        words = raw.replace("\t", " ").split(" ")
        words = [word for word in words if word]
        if not words or words[0].startswith("#"):
            continue
        match words:
            case ["log", vkey] | ["log", vkey, _]:
                logs.append(_key(vkey, KEY_TYPE_ED25519))
            case ["witness", name, vkey] | ["witness", name, vkey, _]:
                _check_new(name, witnesses, groups)
                witnesses[name] = _key(vkey, KEY_TYPE_COSIGNATURE)
            case ["group", name, threshold, *members] if members:
                _check_new(name, witnesses, groups)
                groups[name] = _group(threshold, members, witnesses, groups)
            case ["quorum", name] if quorum is None:
                if name != "none" and name not in witnesses and name not in groups:
                    raise _bad_trust(f"expected a quorum defined on a line before, got {name!r}")
                quorum = name
            case _:
                raise _bad_trust(f"expected a log, witness, group or (one) quorum line, got {raw[:80]!r}")
    if len(logs) != 1 or quorum is None:
        raise _bad_trust(f"expected exactly one log and one quorum line, got {len(logs)} and {quorum!r}")
    used = [member for _, members in groups.values() for member in members]
    if len(set(used)) != len(used):
        raise _bad_trust("expected each witness or group in one group at most, got one twice")
    return logs[0], WitnessPolicy(witnesses, groups, quorum)


def _key(vkey: str, expected: int) -> VerifierKey:
    key = VerifierKey.parse(vkey)
    if key.type != expected:
        raise _bad_trust(f"expected a key of type {expected} for {key.name}, got {key.type}")
    return key


def _check_new(name: str, witnesses: Mapping[str, object], groups: Mapping[str, object]) -> None:
    if name == "none" or name in witnesses or name in groups:
        raise _bad_trust(f"expected a new name, got {name!r}")


def _group(
    threshold: str,
    members: list[str],
    witnesses: Mapping[str, object],
    groups: Mapping[str, object],
) -> tuple[int, tuple[str, ...]]:
    for member in members:
        if member not in witnesses and member not in groups:
            raise _bad_trust(f"expected a member defined on a line before, got {member!r}")
    named = {"any": 1, "all": len(members)}
    if threshold not in named and not _COUNT.fullmatch(threshold):
        raise _bad_trust(f"expected any, all or a number, got {threshold!r}")
    count = named.get(threshold) or int(threshold)
    if not 1 <= count <= len(members):
        raise _bad_trust(f"expected a threshold of 1 to {len(members)}, got {threshold}")
    return count, tuple(members)


# --- grants and the authority that follows from them -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Revocation:
    """When a key ended, and from where on its entries stop counting (None: they all count)."""

    index: int
    suspect_from: int | None

    def covers(self, index: int, size: int) -> bool:
        """Whether an entry of the key at `index` stopped counting, as of a log of `size` entries."""
        return self.index < size and self.suspect_from is not None and self.suspect_from <= index


@dataclass(frozen=True, slots=True)
class Grant:
    """A principal's key. `granted_at` is the KeyGranted's index, -1 for root."""

    key: VerifierKey
    role: int
    controller: str
    granted_at: int
    approver_kind: int | None = None
    policy_digest: bytes | None = None
    revocation: Revocation | None = None

    @property
    def name(self) -> str:
        """The principal."""
        return self.key.name


@dataclass(frozen=True, slots=True)
class Authority:
    """Every key that ever had a place in this log, and the ledger key in force. A value."""

    trust: TrustDocument
    grants: Mapping[tuple[str, bytes], Grant]
    roles: Mapping[str, int]  # name -> role, for ever
    taken: frozenset[bytes]  # public keys that may not be granted
    ledger_keys: tuple[VerifierKey, ...] = ()  # in order of their rule; the last is in force
    rotated_at: tuple[int, ...] = ()  # indexes of the LedgerKeyRotated that brought the second and later ones

    @classmethod
    def initial(cls, trust: TrustDocument) -> Authority:
        """Authority over the empty log: root alone."""
        grants = {
            (key.name, key.key_id): Grant(key, options_pb2.ROLE_ROOT, key.name, -1) for key in trust.roots
        }
        taken = {key.public_key for key in (*trust.roots, trust.log, *trust.policy.witnesses.values())}
        roles = {key.name: options_pb2.ROLE_ROOT for key in trust.roots}
        return cls(trust, grants, {**roles, trust.origin: options_pb2.ROLE_UNSPECIFIED}, frozenset(taken))

    @property
    def ledger_key(self) -> VerifierKey:
        """The key that signs checkpoints of the present size."""
        if not self.ledger_keys:
            raise RefusedError("NOT_OPENED", "expected LedgerOpened at index 0, got an empty log")
        return self.ledger_keys[-1]

    @property
    def checkpoint_keys(self) -> tuple[VerifierKey, ...]:
        """The trusted key and those that followed it: one of them signed each checkpoint of this ledger."""
        return tuple(dict.fromkeys((self.trust.log, *self.ledger_keys)))

    def find(self, name: str, key_id: bytes) -> Grant:
        """The grant in force of a signer. Raises RefusedError(KEY_UNKNOWN, KEY_REVOKED)."""
        grant = self.grants.get((name, key_id))
        if grant is None:
            raise RefusedError("KEY_UNKNOWN", f"expected a granted key, got {name}+{key_id.hex()}")
        if grant.revocation is not None:
            raise RefusedError(
                "KEY_REVOKED",
                f"expected a key in force, got {name}+{key_id.hex()}, revoked at index "
                f"{grant.revocation.index}",
            )
        return grant

    def check_writer(self, grant: Grant, body: str) -> None:
        """Raises RefusedError(ROLE_MAY_NOT_WRITE) unless the grant's role is the body's writer."""
        writer = WRITER[body]
        if grant.role != writer:
            raise RefusedError(
                "ROLE_MAY_NOT_WRITE",
                f"{body}: expected a key of role {role_name(writer)}, got {grant.name} of role "
                f"{role_name(grant.role)}",
            )

    def with_key_event(self, index: int, event: event_pb2.Event, count: int) -> Authority:
        """The authority after a key event at `index` in a batch of `count`. Raises RefusedError, FormatError.

        Any other event leaves it as it is. The caller lets it act after the batch's last entry (rule 4).
        """
        body = event.WhichOneof("body")
        if index == 0 and (body != "ledger_opened" or count != 1):
            raise RefusedError(
                "NOT_OPENED", f"expected LedgerOpened alone at index 0, got {body} in a batch of {count}"
            )
        if body == "ledger_opened":
            return self._open(index, event.ledger_opened)
        if body == "key_granted":
            return self._grant(index, event.key_granted)
        if body == "key_revoked":
            return self._revoke(index, event.key_revoked)
        if body == "ledger_key_rotated":
            return self._rotate(index, event.ledger_key_rotated)
        return self

    def _open(self, index: int, body: root_pb2.LedgerOpened) -> Authority:
        if index != 0:
            raise RefusedError("ALREADY_OPENED", f"expected LedgerOpened at index 0 only, got index {index}")
        if body.origin != self.trust.origin:
            raise RefusedError("OTHER_ORIGIN", f"expected origin {self.trust.origin}, got {body.origin}")
        key = VerifierKey.parse(body.ledger_vkey)
        if key != self.trust.log:
            self._check_ledger_key(key)
        return replace(self, ledger_keys=(key,), taken=self.taken | {key.public_key})

    def _check_ledger_key(self, key: VerifierKey) -> None:
        if key.type != KEY_TYPE_ED25519 or key.name != self.trust.origin:
            raise RefusedError(
                "BAD_LEDGER_KEY",
                f"expected an Ed25519 key named {self.trust.origin}, got type {key.type}, {key.name}",
            )
        if key.public_key in self.taken and key != self.trust.log:
            raise RefusedError(
                "KEY_TAKEN", "expected a public key without a place in this log, got one that has one"
            )

    def _rotate(self, index: int, body: root_pb2.LedgerKeyRotated) -> Authority:
        key = VerifierKey.parse(body.ledger_vkey)
        self._check_ledger_key(key)
        if key in self.ledger_keys:
            raise RefusedError("KEY_TAKEN", "expected a new ledger key, got one that was in force before")
        return replace(
            self,
            ledger_keys=(*self.ledger_keys, key),
            rotated_at=(*self.rotated_at, index),
            taken=self.taken | {key.public_key},
        )

    def _grant(self, index: int, body: root_pb2.KeyGranted) -> Authority:
        key = VerifierKey.parse(body.vkey)
        if key.type != KEY_TYPE_ED25519:
            raise RefusedError("BAD_KEY_TYPE", f"expected an Ed25519 key, got type {key.type}")
        if body.role in (options_pb2.ROLE_UNSPECIFIED, options_pb2.ROLE_ROOT):
            raise RefusedError(
                "ROOT_NOT_GRANTABLE", "expected a role other than root: root stands in the trust document"
            )
        slot = (key.name, key.key_id)
        if key.public_key in self.taken or slot in self.grants:
            raise RefusedError(
                "KEY_TAKEN",
                f"expected a public key and key id that are new, got {key.name}+{key.key_id.hex()}",
            )
        if self.roles.get(key.name, body.role) != body.role:
            raise RefusedError(
                "NAME_KEEPS_ROLE",
                f"expected {key.name} to stay {role_name(self.roles[key.name])}, got {role_name(body.role)}",
            )
        kind = body.approver_kind if body.HasField("approver_kind") else None
        digest = body.policy_digest if body.HasField("policy_digest") else None
        _check_approver(body.role, kind, digest)
        grant = Grant(key, body.role, body.controller, index, kind, digest)
        return replace(
            self,
            grants={**self.grants, slot: grant},
            roles={**self.roles, key.name: body.role},
            taken=self.taken | {key.public_key},
        )

    def _revoke(self, index: int, body: root_pb2.KeyRevoked) -> Authority:
        key = VerifierKey.parse(body.vkey)
        grant = self.find(key.name, key.key_id)
        if grant.key != key or grant.role == options_pb2.ROLE_ROOT:
            raise RefusedError("NOT_REVOCABLE", f"expected a granted principal's key, got {key.name}")
        suspect_from = body.suspect_from if body.HasField("suspect_from") else None
        if suspect_from is not None and suspect_from > index:
            raise RefusedError(
                "BAD_SUSPECT_FROM", f"expected an index of at most {index}, got {suspect_from}"
            )
        revoked = replace(grant, revocation=Revocation(index, suspect_from))
        return replace(self, grants={**self.grants, (key.name, key.key_id): revoked})


def _check_approver(role: int, kind: int | None, digest: bytes | None) -> None:
    if (role == options_pb2.ROLE_APPROVER) != bool(kind):
        raise RefusedError("BAD_APPROVER", "expected approver_kind for approvers and for nobody else")
    if (kind == root_pb2.APPROVER_KIND_RELEASE_ACTOR) != (digest is not None):
        raise RefusedError("BAD_APPROVER", "expected policy_digest for release actors and for nobody else")
