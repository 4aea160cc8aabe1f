"""Homes: what `assay init` makes."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from clients.certificates import CertificateAuthority
from clients.home import (
    DEVELOPMENT_PRINCIPALS,
    ROOT,
    NewHome,
    Principal,
    create_home,
    ledger_config,
    load_home,
)
from clients.keyfile import read_key
from clients.servers import ledger_command
from ledger.admission import admit
from ledger.batch import batch_text, event_root, parse_batch_note
from ledger.errors import AssayError, FormatError, NotFoundError, RefusedError
from ledger.genesis import decode_genesis
from ledger.keyfile import decode_key, encode_key
from ledger.trust import Authority, parse_trust_document, role_name
from ledger.v1 import options_pb2, root_pb2

Random = Callable[[int], bytes]


def make(
    path: Path, random: Random, now: int, principals: Iterable[Principal] = DEVELOPMENT_PRINCIPALS
) -> NewHome:
    """A home at `path`."""
    return create_home(
        path,
        origin_name="assay",
        ledger="127.0.0.1:7600",
        gate="gate.example:7601",
        trust_domain="assay.test",
        principals=tuple(principals),
        random=random,
        now=now,
    )


def refused(kind: type[AssayError], act: Callable[[], object]) -> str:
    """The reason with which `act` is refused."""
    with pytest.raises(kind) as caught:
        act()
    return caught.value.reason


@pytest.fixture
def home(tmp_path: Path, random: Random, now: int) -> Path:
    """A home with the development's principals."""
    return make(tmp_path / "home", random, now).path


# --- what is made ------------------------------------------------------------------------------------------


def test_a_home_has_the_files_that_its_users_look_for(home: Path) -> None:
    """A home holds document, trust, genesis, authority, services, principals and memory, nothing else."""
    names = [ROOT, *(principal.name for principal in DEVELOPMENT_PRINCIPALS)]
    expected = {
        "assay.json",
        "ledger.json",
        "trust.txt",
        "genesis.bin",
        "ca.crt",
        "ca.key",
        "gate/server.crt",
        "gate/server.key",
    }
    expected |= {"ledger/note.key", "ledger/server.crt", "ledger/server.key"}
    expected |= {f"principals/{n}/{file}" for n in names for file in ("note.key", "client.crt", "client.key")}
    assert expected == {str(file.relative_to(home)) for file in home.rglob("*") if file.is_file()}
    assert (home / "ledger/data").is_dir()
    assert (home / "memory").is_dir()
    assert [home] == list(home.parent.iterdir())


def test_private_keys_are_their_owners_alone(home: Path) -> None:
    """Every key file has mode 0600, in a folder that others cannot enter."""
    assert {0o600} == {file.stat().st_mode & 0o777 for file in home.rglob("*.key")}
    assert 0o700 == home.stat().st_mode & 0o777


def test_the_document_reads_back(tmp_path: Path, random: Random, now: int) -> None:
    """`load_home` gives what `create_home` made; the one who made it is told what it is for."""
    made = make(tmp_path / "home", random, now)
    assert made.home == load_home(made.path)
    roles = {p.name: role_name(p.role) for p in DEVELOPMENT_PRINCIPALS}
    assert {ROOT: "root"} | roles == made.home.principals
    assert "for development only" in made.notice


def test_trust_and_keys_belong_together(home: Path) -> None:
    """trust.txt names root's key and the ledger's, whose name is the origin: a name and 16 random digits."""
    trust = parse_trust_document((home / "trust.txt").read_bytes())
    assert load_home(home).origin == trust.origin
    assert "assay-" == trust.origin[:6]
    assert 16 == len(bytes.fromhex(trust.origin[6:])) * 2
    assert trust.log == read_key(home / "ledger/note.key").verifier_key
    assert (read_key(home / f"principals/{ROOT}/note.key").verifier_key,) == trust.roots


def test_the_genesis_opens_the_log_and_grants_the_keys(home: Path) -> None:
    """The genesis is LedgerOpened alone, then one batch of grants, one stream, each signed by root."""
    trust = parse_trust_document((home / "trust.txt").read_bytes())
    batches = decode_genesis((home / "genesis.bin").read_bytes())
    authority, index, streams = Authority.initial(trust), 0, set()
    for sequence, (data, events) in enumerate(batches):
        note = parse_batch_note(data)
        text = batch_text(trust.origin, note.stream, sequence, len(events), event_root(events))
        assert text == note.text()
        assert trust.roots[0].verify(text, note.signature)
        streams.add(note.stream)
        for event in events:
            authority = authority.with_key_event(index, admit(event), len(events))
            index += 1
    assert ([1, len(DEVELOPMENT_PRINCIPALS)], 1) == ([len(events) for _, events in batches], len(streams))
    for principal in DEVELOPMENT_PRINCIPALS:
        key = read_key(home / f"principals/{principal.name}/note.key").verifier_key
        assert principal.role == authority.find(key.name, key.key_id).role


def test_law_08_development_principals_share_no_controller() -> None:
    """Each of the development's principals has its own controller; each role but root's has a principal."""
    controllers = {principal.controller for principal in DEVELOPMENT_PRINCIPALS}
    assert len(DEVELOPMENT_PRINCIPALS) == len(controllers)
    roles = set(options_pb2.Role.values()) - {options_pb2.ROLE_UNSPECIFIED, options_pb2.ROLE_ROOT}
    assert roles == {principal.role for principal in DEVELOPMENT_PRINCIPALS}


def test_two_homes_share_nothing(tmp_path: Path, random: Random, now: int) -> None:
    """A home made again has another origin and other keys."""
    one, other = (make(tmp_path / name, random, now) for name in ("one", "other"))
    assert one.home.origin != other.home.origin
    keys = [file.read_bytes() for made in (one, other) for file in made.path.rglob("*.key")]
    assert len(keys) == len(set(keys))


# --- certificates ------------------------------------------------------------------------------------------


def _handshake(home: Path, server: str, client: str, host: str = "localhost") -> None:
    """A TLS handshake in memory between two credentials of a home, each side checking the other."""
    contexts = []
    for protocol, stem in ((ssl.PROTOCOL_TLS_SERVER, server), (ssl.PROTOCOL_TLS_CLIENT, client)):
        context = ssl.SSLContext(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(home / "ca.crt")
        context.load_cert_chain(home / f"{stem}.crt", home / f"{stem}.key")
        contexts.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        contexts[0].wrap_bio(to_server, to_client, server_side=True),
        contexts[1].wrap_bio(to_client, to_server, server_hostname=host),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert sides[0].version() == sides[1].version() == "TLSv1.3"


@pytest.fixture(scope="module")
def current_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose certificates are valid while the tests run: TLS reads the machine's own clock."""
    counter = iter(range(1, 10_000))
    random = lambda count: next(counter).to_bytes(count, "big")  # noqa: E731 - a stream of other numbers
    return make(tmp_path_factory.mktemp("home") / "home", random, time.time_ns() // 1000).path


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "gate.example"])
def test_a_principal_connects(current_home: Path, host: str) -> None:
    """Principal and service accept each other under every host name that the service goes by."""
    _handshake(current_home, "gate/server", "principals/runner-1/client", host)


@pytest.mark.parametrize(
    ("server", "client"),
    [("ledger/server", "gate/server"), ("principals/runner-1/client", "principals/judge-1/client")],
)
def test_a_certificate_is_for_one_side(current_home: Path, server: str, client: str) -> None:
    """A service's certificate connects nowhere, and a principal's serves nothing."""
    with pytest.raises(ssl.SSLError):
        _handshake(current_home, server, client)


def test_a_certificate_names_its_holder_once(home: Path) -> None:
    """Each certificate has a P-256 key and one URI SAN: the holder within the trust domain."""
    names = [ROOT, *(principal.name for principal in DEVELOPMENT_PRINCIPALS)]
    stems = {f"principals/{name}/client": name for name in names} | {
        "ledger/server": "ledger",
        "gate/server": "gate",
    }
    for stem, name in stems.items():
        certificate = x509.load_pem_x509_certificate((home / f"{stem}.crt").read_bytes())
        names_of = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [f"spiffe://assay.test/{name}"] == names_of.get_values_for_type(x509.UniformResourceIdentifier)
        key = load_pem_private_key((home / f"{stem}.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert "secp256r1" == key.curve.name
        assert key.public_key() == certificate.public_key()


def test_certificates_are_valid_from_an_hour_before_the_moment_given(home: Path, now: int) -> None:
    """The clock handed in decides, not the machine's."""
    certificate = x509.load_pem_x509_certificate((home / "ca.crt").read_bytes())
    assert now // 1_000_000 - 3600 == int(certificate.not_valid_before_utc.timestamp())


def test_a_credential_is_not_shown(random: Random, now: int) -> None:
    """Neither repr nor str of a credential holds its key."""
    credential = CertificateAuthority("assay.test", random=random, now=now).issue_client("runner-1")
    assert "<Credential>" == repr(credential) == str(credential)


# --- what is refused ---------------------------------------------------------------------------------------


def test_nothing_that_exists_is_overwritten(home: Path, random: Random, now: int) -> None:
    """A folder with something in it is refused by name and stays as it was."""
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    assert "HOME_EXISTS" == refused(RefusedError, lambda: make(home, random, now))
    assert before == {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}


def test_an_empty_folder_becomes_the_home(tmp_path: Path, random: Random, now: int) -> None:
    """A folder without anything in it is taken, and parents are made."""
    (tmp_path / "empty").mkdir()
    assert make(tmp_path / "empty", random, now).home == load_home(tmp_path / "empty")
    assert make(tmp_path / "a/b/c", random, now).home == load_home(tmp_path / "a/b/c")


def test_a_file_or_link_in_the_way_is_refused(tmp_path: Path, random: Random, now: int) -> None:
    """A home takes the place of neither a file nor a link."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        assert "HOME_EXISTS" == refused(RefusedError, lambda name=name: make(tmp_path / name, random, now))


@pytest.mark.parametrize(
    ("principal", "reason"),
    [
        (Principal("runner-1", options_pb2.ROLE_RUNNER, "someone"), "BAD_PRINCIPAL"),
        (Principal("root-1", options_pb2.ROLE_RUNNER, "someone"), "BAD_PRINCIPAL"),
        (Principal("gate", options_pb2.ROLE_GATE, "someone"), "BAD_PRINCIPAL"),
        (Principal("other", options_pb2.ROLE_ROOT, "someone"), "BAD_PRINCIPAL"),
        (Principal("../other", options_pb2.ROLE_RUNNER, "someone"), "BAD_HOLDER"),
        (Principal("other", options_pb2.ROLE_RUNNER, "some one"), "BAD_FIELD"),
        (Principal("other", options_pb2.ROLE_APPROVER, "someone"), "BAD_APPROVER"),
        (
            Principal("other", options_pb2.ROLE_APPROVER, "someone", root_pb2.APPROVER_KIND_RELEASE_ACTOR),
            "BAD_APPROVER",
        ),
    ],
)
def test_what_the_ledger_would_refuse_is_not_made(
    tmp_path: Path, random: Random, now: int, principal: Principal, reason: str
) -> None:
    """Principals that no ledger would take, and names that are no folder's, are refused; nothing is left."""
    principals = (*DEVELOPMENT_PRINCIPALS, principal)
    assert reason == refused(AssayError, lambda: make(tmp_path / "home", random, now, principals))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"origin_name": "a+b"}, "BAD_HOME"),
        ({"origin_name": "a" * 112}, "BAD_ORIGIN"),
        ({"ledger": "127.0.0.1"}, "BAD_HOME"),
        ({"gate": "127.0.0.1:65536"}, "BAD_HOME"),
        ({"trust_domain": "Assay Test"}, "BAD_HOME"),
    ],
)
def test_values_that_cannot_stand_in_a_home_are_refused(
    tmp_path: Path, random: Random, now: int, change: dict[str, str], reason: str
) -> None:
    """A name, address or domain that is none is refused, and nothing is left."""
    values = {"origin_name": "a", "ledger": "localhost:1", "gate": "[::1]:2", "trust_domain": "d"} | change
    act = lambda: create_home(tmp_path / "home", **values, random=random, now=now)  # type: ignore[arg-type]  # noqa: E731
    assert reason == refused(FormatError, act)
    assert [] == list(tmp_path.iterdir())


def test_a_home_is_made_whole_or_not_at_all(tmp_path: Path, random: Random, now: int) -> None:
    """Wherever the making breaks off, at every seventh draw of randomness here, nothing is left of it."""
    draws = 0

    def limited(count: int) -> bytes:
        nonlocal draws
        draws += 1
        if draws == limit:
            raise OSError("no randomness left")
        return random(count)

    limit = 0
    make(tmp_path / "whole", limited, now)
    needed = draws
    assert needed > len(DEVELOPMENT_PRINCIPALS)
    for draw in range(1, needed + 1, 7):
        draws, limit = 0, draw
        with pytest.raises(OSError, match="no randomness left"):
            make(tmp_path / "home", limited, now)
        assert list(tmp_path.iterdir()) == [tmp_path / "whole"]


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"origin": "assay"},
        {"principals": {"runner-1": "king"}},
        {"principals": {"a/b": "runner"}},
        {"ledger": 7600},
    ],
)
def test_a_document_is_read_strictly(home: Path, change: dict[str, object]) -> None:
    """An unknown key and a value of another form are refused."""
    document = json.loads((home / "assay.json").read_text()) | change
    (home / "assay.json").write_text(json.dumps(document))
    assert "BAD_HOME" == refused(FormatError, lambda: load_home(home))


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff", '{"origin": "a", "origin": "b"}', "[" * 100_000])
def test_a_document_that_is_none_is_refused(home: Path, text: str) -> None:
    """Bytes that are no document raise FormatError, a key said twice included."""
    (home / "assay.json").write_bytes(text.encode("latin-1"))
    assert "BAD_HOME" == refused(FormatError, lambda: load_home(home))


def test_no_home_is_not_found(tmp_path: Path) -> None:
    """A folder without a document raises NotFoundError, never a default in its place."""
    assert "HOME_ABSENT" == refused(NotFoundError, lambda: load_home(tmp_path))


# --- key files ------------------------------------------------------------------------


def test_a_key_file_is_gos() -> None:
    """The key of Go's own note tests keeps its spelling (x/mod/sumdb/note)."""
    text = b"PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz\n"
    key = decode_key(text)
    seed = bytes.fromhex("810a1402d5146c8d84f2443330f54080ebf98ee17d9c74f6252fc5d5c7283173")
    assert text == encode_key("PeterNeumann", seed)
    assert "c74f20a3" == key.verifier_key.key_id.hex()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz\n\n",
        b"PRIVATE+KEY+PeterNeumann+c74f20a4+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz\n",
        b"PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDE=\n",
        b"PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz\n",
        b"PRIVATE+KEY+a+b+\n",
        b"\xff",
    ],
)
def test_a_key_file_has_one_spelling(data: bytes) -> None:
    """Another spelling is refused, and no message or cause shows what the file held."""
    with pytest.raises(FormatError) as caught:
        decode_key(data)
    assert "BAD_KEY_FILE" == caught.value.reason
    assert "AYEK" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """A key file of mode 0600 is read; one with a wider mode, or none, is an error of its own."""
    path = tmp_path / "note.key"
    path.touch(mode=0o600)
    path.write_bytes(encode_key("runner-1", bytes(32)))
    assert "runner-1" == read_key(path).verifier_key.name
    path.chmod(0o640)
    assert "KEY_EXPOSED" == refused(RefusedError, lambda: read_key(path))
    assert "KEY_ABSENT" == refused(NotFoundError, lambda: read_key(tmp_path / "none.key"))


# --- the ledger's configuration ----------------------------------------------------------------------------


def test_what_an_operator_wrote_for_the_ledger_stays(home: Path) -> None:
    """A start enters what it was told and the keys that lie in the home, and takes nothing else away."""
    file, document = home / "ledger.json", load_home(home)
    assert ledger_config(document) == json.loads(file.read_text())
    edited = ledger_config(document) | {
        "listen": "0.0.0.0:7600",
        "store": "postgresql://ledger@db.example/assay",
        "note_keys": ["ledger/note-gone.key", "/etc/assay/note.key"],
    }
    file.write_text(json.dumps(edited))
    assert str(file) == ledger_command(home, document, metrics="127.0.0.1:9401")[-1]
    expected = edited | {"note_keys": ["ledger/note.key", "/etc/assay/note.key"], "metrics": "127.0.0.1:9401"}
    assert expected == json.loads(file.read_text())
    ledger_command(home, document)
    assert expected == json.loads(file.read_text())


def test_a_home_without_a_configuration_gets_one(home: Path) -> None:
    """A home that was made before there was such a file serves as it did."""
    file, document = home / "ledger.json", load_home(home)
    file.unlink()
    ledger_command(home, document)
    assert ledger_config(document) == json.loads(file.read_text())


@pytest.mark.parametrize("text", ["", "{", "[]", "\x80"])
def test_a_configuration_that_is_none_is_left_alone(home: Path, text: str) -> None:
    """What cannot be read is refused, and not replaced."""
    file, document = home / "ledger.json", load_home(home)
    file.write_bytes(text.encode("latin-1"))
    assert "BAD_CONFIG" == refused(FormatError, lambda: ledger_command(home, document))
    assert text.encode("latin-1") == file.read_bytes()
