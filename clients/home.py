"""A home: everything that a ledger, a gate and their principals need on one machine (`assay init`).

    assay.json                    origin, trust domain, addresses, principals and their roles
    trust.txt                     what an auditor trusts: root's and the ledger's verifier keys
    ledger.json                   the ledger's configuration (ledger.server.config), for its operator to edit
    genesis.bin                   the first two batches, signed by root: the log's opening, the grants
    ca.crt, ca.key                who may connect
    ledger/                       note.key, server.crt, server.key, data/
    gate/                         server.crt, server.key (as an author the gate is an ordinary principal)
    principals/<name>/            note.key, client.crt, client.key; root's too
    issued/<name>/                client.crt, client.key for one whose note key is elsewhere
    memory/                       checkpoints that clients remember

Rules:
1. A home is made whole or not at all: built beside its place, then renamed into it. Nothing that exists is
   ever overwritten.
2. The origin is `<name>-<16 hex digits, random>`: a log made anew is another log.
3. Each principal has its own keys; those of the development set their own controllers too (law 8).
4. Private keys are readable by their owner alone. All of them on one disk is for development only, and the
   one who makes a home is told so.
5. What the ledger would refuse at its opening is refused here.
6. Clock and randomness are handed in.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from clients.certificates import CertificateAuthority, Credential, check_holder, check_trust_domain
from clients.ids import RANDOM_BYTES, uuid7
from clients.strict_json import decoder
from ledger.admission import admit
from ledger.batch import STREAM_BYTES, sign_batch
from ledger.errors import AssayError, FormatError, NotFoundError, RefusedError
from ledger.genesis import encode_genesis
from ledger.keyfile import SALT_BYTES, encode_key, encrypt_key
from ledger.note import Signer, SigningKey, check_name
from ledger.trust import Authority, parse_trust_document, role_name
from ledger.v1 import event_pb2, options_pb2, root_pb2

__all__ = [
    "DEVELOPMENT_PRINCIPALS",
    "NOTICE",
    "ROOT",
    "Home",
    "NewHome",
    "Principal",
    "add_principal",
    "create_home",
    "issue_client",
    "ledger_config",
    "load_home",
]

ROOT: Final = "root-1"

NOTICE: Final = (
    "All private keys of this home lie on one disk: whoever reads it can act as every principal, as the "
    "ledger and as root. This is for development only. In production each key is made where it is used, "
    "root's key is kept offline, and auditors get trust.txt by another way than from the ledger."
)

_LEDGER: Final = "ledger"
_GATE: Final = "gate"
_ROLES: Final = tuple(
    role_name(number) for number in options_pb2.Role.values() if number != options_pb2.ROLE_UNSPECIFIED
)
_ORIGIN_NAME_END: Final = 128 - 17  # what a name leaves for the dash and the 16 digits
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who gets a key: `role` is one of ROLE_OPERATOR … ROLE_AUDITOR, `controller` who answers for it."""

    name: str
    role: options_pb2.Role.ValueType
    controller: str
    approver_kind: root_pb2.ApproverKind.ValueType | None = None
    policy_digest: bytes | None = None


def _development(
    name: str, role: options_pb2.Role.ValueType, approver_kind: root_pb2.ApproverKind.ValueType | None = None
) -> Principal:
    return Principal(name, role, f"owner-of-{name}", approver_kind)


#: One principal per power; approver-1 is meant for step canary, approver-2 for step default.
DEVELOPMENT_PRINCIPALS: Final = (
    _development("operator-1", options_pb2.ROLE_OPERATOR),
    _development("runner-1", options_pb2.ROLE_RUNNER),
    _development("trainer-1", options_pb2.ROLE_TRAINER),
    _development("judge-1", options_pb2.ROLE_JUDGE),
    _development("canary-1", options_pb2.ROLE_CANARY),
    _development("approver-1", options_pb2.ROLE_APPROVER, root_pb2.APPROVER_KIND_HUMAN),
    _development("approver-2", options_pb2.ROLE_APPROVER, root_pb2.APPROVER_KIND_HUMAN),
    _development("gate-1", options_pb2.ROLE_GATE),
    _development("auditor-1", options_pb2.ROLE_AUDITOR),
)


def _checked_origin(origin: str) -> str:
    check_name(origin)
    if not re.fullmatch(r".+-[0-9a-f]{16}", origin):
        raise FormatError("BAD_ORIGIN", f"expected <name>-<16 lower-case hex digits>, got {origin!r}")
    return origin


def _checked_domain(domain: str) -> str:
    check_trust_domain(domain)
    return domain


def _checked_address(address: str) -> str:
    _host(address)
    return address


def _checked_principals(principals: dict[str, str]) -> dict[str, str]:
    for name, role in principals.items():
        check_holder(name)
        if role not in _ROLES:
            raise FormatError("BAD_ROLE", f"expected one of {', '.join(_ROLES)} for {name}, got {role!r}")
    return principals


class Home(BaseModel):
    """`assay.json`. Port 0 in an address: the server picks one and says which when it is ready."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    origin: Annotated[str, AfterValidator(_checked_origin)]
    trust_domain: Annotated[str, AfterValidator(_checked_domain)]
    ledger: Annotated[str, AfterValidator(_checked_address)]
    gate: Annotated[str, AfterValidator(_checked_address)]
    principals: Annotated[dict[str, str], AfterValidator(_checked_principals)]


@dataclass(frozen=True, slots=True)
class NewHome:
    """What was made, where, and what the one who made it must be told."""

    path: Path
    home: Home
    notice: str = NOTICE


def create_home(  # noqa: PLR0913 - each is a value that the home is made of
    path: Path,
    *,
    origin_name: str,
    ledger: str,
    gate: str,
    trust_domain: str,
    principals: Sequence[Principal] = DEVELOPMENT_PRINCIPALS,
    passphrase: str | None = None,
    random: Callable[[int], bytes],
    now: int,
) -> NewHome:
    """Makes a home at `path`, which must be absent or an empty folder; parents are made.

    `ledger` and `gate` are addresses `host:port`; a `passphrase` encrypts every note key; `random(n)` gives n
    bytes; `now` is in microseconds since 1970, and certificates are valid from an hour before it.
    Raises RefusedError HOME_EXISTS, FormatError for a value that cannot stand in a home, OSError.
    """
    path = path.absolute()
    _check_free(path)
    _check_principals(principals)
    if len(origin_name) > _ORIGIN_NAME_END:
        raise FormatError(
            "BAD_ORIGIN", f"expected a name of at most {_ORIGIN_NAME_END}, got {len(origin_name)}"
        )
    names = {ROOT: role_name(options_pb2.ROLE_ROOT)} | {p.name: role_name(p.role) for p in principals}
    home = _validated(
        {
            "origin": f"{origin_name}-{random(8).hex()}",
            "trust_domain": trust_domain,
            "ledger": ledger,
            "gate": gate,
            "principals": names,
        },
        "the values for a new home",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{path.name}.{random(8).hex()}.draft"
    draft.mkdir(mode=0o700)
    try:
        _Builder(draft, home, random, now, passphrase).build(principals)
        _check_free(path)
        draft.rename(path)  # replaces an empty folder, and no other
    except BaseException:
        shutil.rmtree(draft)
        raise
    return NewHome(path, home)


def load_home(path: Path) -> Home:
    """The document of the home at `path`. Raises NotFoundError HOME_ABSENT, FormatError BAD_HOME."""
    file = path / "assay.json"
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise NotFoundError("HOME_ABSENT", f"expected a home with {file}; `assay init` makes one") from error
    try:
        document = decoder.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError("BAD_HOME", f"{file}: expected JSON, got {error}") from error
    return _validated(document, str(file))


def add_principal(path: Path, name: str, role: str) -> Home:
    """Enters a principal into the document of the home at `path`, which is replaced whole.

    Raises FormatError BAD_HOME for a name or role that cannot stand there, and what `load_home` raises.
    """
    home = load_home(path)
    document = home.model_dump() | {"principals": {**home.principals, name: role}}
    added = _validated(document, f"{name} in {path / 'assay.json'}")
    draft = path / ".assay.json.draft"
    draft.write_bytes(added.model_dump_json(indent=2).encode() + b"\n")
    draft.replace(path / "assay.json")
    return added


def issue_client(path: Path, name: str, *, random: Callable[[int], bytes], now: int) -> Credential:
    """A certificate for a principal, by the authority of the home at `path`; arguments as `create_home`'s.

    Raises FormatError BAD_HOLDER, BAD_CREDENTIAL; what `load_home` raises; OSError.
    """
    own = Credential((path / "ca.crt").read_bytes(), (path / "ca.key").read_bytes())
    domain = load_home(path).trust_domain
    return CertificateAuthority(domain, random=random, now=now, credential=own).issue_client(name)


def ledger_config(home: Home) -> dict[str, Any]:
    """A new home's configuration of the server (ledger.server.config), paths relative to the home folder."""
    return {
        "listen": home.ledger,
        "data": "ledger/data",
        "trust": "trust.txt",
        "trust_domain": home.trust_domain,
        "note_keys": ["ledger/note.key"],
        "certificate": "ledger/server.crt",
        "private_key": "ledger/server.key",
        "client_ca": "ca.crt",
        "genesis": "genesis.bin",
    }


def _validated(document: object, where: str) -> Home:
    try:
        return Home.model_validate(document)
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc'])) or 'document'}: {fault['msg']}" for fault in error.errors()
        )
        raise FormatError("BAD_HOME", f"{where}: {'; '.join(faults)}") from error
    except AssayError as error:
        raise FormatError("BAD_HOME", f"{where}: {error.message}") from error


def _host(address: str) -> str:
    """The host of `host:port` or `[IPv6]:port`. Raises FormatError BAD_ADDRESS."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65_535:
        raise FormatError("BAD_ADDRESS", f"expected host:port, got {address[:80]!r}")
    return match["ipv6"] or match["host"]


def _check_free(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RefusedError(
            "HOME_EXISTS", f"expected a new or empty folder, got {path}, which is something else"
        )
    if path.is_dir() and (inside := sorted(item.name for item in path.iterdir())):
        raise RefusedError(
            "HOME_EXISTS", f"expected a new or empty folder, got {path} with {', '.join(inside[:5])}"
        )


def _check_principals(principals: Iterable[Principal]) -> None:
    taken = {ROOT, _LEDGER, _GATE}  # the services' certificates carry these names
    for principal in principals:
        check_holder(principal.name)
        if principal.name in taken:
            raise FormatError("BAD_PRINCIPAL", f"expected a name of its own, got {principal.name!r} again")
        if principal.role in (options_pb2.ROLE_UNSPECIFIED, options_pb2.ROLE_ROOT):
            raise FormatError("BAD_PRINCIPAL", f"expected a role that root grants for {principal.name}")
        taken.add(principal.name)


class _Builder:
    """Fills one draft folder. Owns the folder, the certificate authority and nothing else."""

    def __init__(
        self, folder: Path, home: Home, random: Callable[[int], bytes], now: int, passphrase: str | None
    ) -> None:
        self._folder = folder
        self._passphrase = passphrase
        self._home = home
        self._random = random
        self._now = now
        self._authority = CertificateAuthority(home.trust_domain, random=random, now=now)

    def build(self, principals: Sequence[Principal]) -> None:
        self._write("ca.crt", self._authority.credential.certificate)
        self._write("ca.key", self._authority.credential.key)
        ledger_key = self._note_key(_LEDGER, self._home.origin)
        self._serve(_LEDGER, self._home.ledger)
        self._serve(_GATE, self._home.gate)
        root_key = self._principal(ROOT)
        grants = [_grant(principal, self._principal(principal.name)) for principal in principals]
        trust = _trust(root_key, ledger_key)
        self._write("trust.txt", trust)
        opened = root_pb2.LedgerOpened(origin=self._home.origin, ledger_vkey=str(ledger_key.verifier_key))
        batches = [[self._event(ledger_opened=opened)]]
        if grants:
            batches.append([self._event(key_granted=grant) for grant in grants])
        _check_authority(trust, batches)
        self._write("genesis.bin", self._signed(root_key, batches))
        (self._folder / _LEDGER / "data").mkdir(mode=0o700)
        (self._folder / "memory").mkdir(mode=0o700)
        self._write("ledger.json", json.dumps(ledger_config(self._home), indent=2).encode() + b"\n")
        # The document last: a folder that has one is a home.
        self._write("assay.json", self._home.model_dump_json(indent=2).encode() + b"\n")

    def _note_key(self, folder: str, name: str) -> SigningKey:
        seed = self._random(32)
        data = encode_key(name, seed)
        if self._passphrase is not None:
            data = encrypt_key(data, self._passphrase, self._random(SALT_BYTES))
        self._write(f"{folder}/note.key", data)
        return SigningKey(name, seed)

    def _serve(self, name: str, address: str) -> None:
        hosts = ("localhost", "127.0.0.1", "::1", _host(address))
        self._credential(f"{name}/server", self._authority.issue_server(name, hosts))

    def _principal(self, name: str) -> SigningKey:
        self._credential(f"principals/{name}/client", self._authority.issue_client(name))
        return self._note_key(f"principals/{name}", name)

    def _credential(self, stem: str, credential: Credential) -> None:
        self._write(f"{stem}.crt", credential.certificate)
        self._write(f"{stem}.key", credential.key)

    def _write(self, name: str, data: bytes) -> None:
        file = self._folder / name
        # The draft's own mode keeps others out of the folders below it.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600 if file.suffix == ".key" else 0o644, exist_ok=False)
        file.write_bytes(data)

    def _signed(self, root: Signer, batches: Iterable[Sequence[bytes]]) -> bytes:
        stream = self._random(STREAM_BYTES)
        return encode_genesis(
            (sign_batch(root, self._home.origin, stream, sequence, events), events)
            for sequence, events in enumerate(batches)
        )

    def _event(self, **body: Any) -> bytes:
        event_id = uuid7(self._now, self._random(RANDOM_BYTES))
        return event_pb2.Event(event_id=event_id, occurred_at=self._now, **body).SerializeToString()


def _grant(principal: Principal, key: Signer) -> root_pb2.KeyGranted:
    return root_pb2.KeyGranted(
        vkey=str(key.verifier_key),
        role=principal.role,
        controller=principal.controller,
        approver_kind=principal.approver_kind,
        policy_digest=principal.policy_digest,
    )


def _trust(root: Signer, ledger: Signer) -> bytes:
    """The trust document (design section 5): no witnesses yet, so no quorum."""
    return f"assay/trust/v1\nroot {root.verifier_key}\n\nlog {ledger.verifier_key}\nquorum none\n".encode()


def _check_authority(trust: bytes, batches: Iterable[Sequence[bytes]]) -> None:
    """Walks the batches as the ledger will. Raises FormatError, RefusedError as the ledger would."""
    authority = Authority.initial(parse_trust_document(trust))
    index = 0
    for events in batches:
        for event in events:
            authority = authority.with_key_event(index, admit(event), len(events))
            index += 1
