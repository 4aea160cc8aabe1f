"""`assay doctor` and `assay health`: right where something was measured and is right, and nowhere else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import psycopg
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,  # type: ignore[import-untyped]  # ships no types
)

from clients import doctor_storage
from clients.certificates import CertificateAuthority
from clients.doctor import Check, Ledger, State, check_installation
from clients.doctor_storage import check_storage
from clients.health import probe_credentials
from clients.home import ledger_config, load_home
from clients.keyfile import write_key
from gate.v1 import gate_pb2
from ledger.checkpoint import verify_cosignatures
from ledger.note import parse_note
from ledger.trust import parse_trust_document
from tests.cli.conftest import Run
from tests.cli.office import Office
from tests.ports import free_port
from tests.witness import Witness

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """An office whose ledger and gate serve; the ledger with numbers."""
    office = Office(tmp_path_factory.mktemp("office"))
    office.serve()
    try:
        yield office
    finally:
        assert [0, 0] == office.stop()


@pytest.fixture
def home(office: Office, tmp_path: Path) -> Path:
    """A copy of the office's home, to be damaged."""
    return Path(shutil.copytree(office.home, tmp_path / "home", ignore=shutil.ignore_patterns("data")))


def _checks(document: Any) -> dict[str, str]:
    return {check["name"]: check["state"] for check in document["checks"]}


def _local(home: Path, now: datetime = NOW) -> dict[str, Check]:
    checks = (*check_installation(home, now), *check_storage(Ledger.of(home, None)))
    return {check.name: check for check in checks}


def test_an_office_that_serves_is_well(office: Office) -> None:
    """Everything is measured; the second look compares with what the first one remembered."""
    first = office.json("doctor")
    assert "NOTE" == _checks(first)["checkpoint"]
    checks = _checks(office.json("doctor"))
    assert {"keys at rest": "NOTE", "metrics": "NOTE", "witnesses": "NOTE"} == {
        name: state for name, state in checks.items() if state != "OK"
    }
    assert {"ledger", "gate", "checkpoint", "clock", "disk", "database", "certificates"} <= set(checks)


def test_the_probe_needs_no_signing_key(office: Office, home: Path) -> None:
    """A certificate and the authority's are all that `assay health` reads."""
    for key in home.rglob("note.key"):
        key.unlink()
    served = {
        "service": "gate.v1.GateService",
        "address": office.json("health", "gate")["address"],
        "serves": True,
    }
    away, office.home = office.home, home
    try:
        assert served == office.json("health", "gate")
        assert 0 == office.run("--as", "gate-1", "health", "ledger").code
    finally:
        office.home = away


def test_the_gate_describes_its_service_too(office: Office) -> None:
    """As the ledger does, to whoever has a certificate."""
    home = load_home(office.home)
    with grpc.secure_channel(home.gate, probe_credentials(office.home, "auditor-1")) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "gate.v1.GateService" in set(database.get_services())
        found = database.FindFileContainingSymbol("gate.v1.GateService")
    assert gate_pb2.DESCRIPTOR.serialized_pb == found.SerializeToString()


def test_what_does_not_answer_is_wrong_and_what_hangs_on_it_unknown(run: Run, tmp_path: Path) -> None:
    """No service runs: exit code 3, and no check of theirs is OK."""
    home = tmp_path / "home"
    assert 0 == run("init", home, "--dev", "--ledger", "127.0.0.1:1", "--gate", "127.0.0.1:1").code
    ran = run("doctor", "--json")
    checks = _checks(ran.document)
    assert 3 == ran.code
    assert ["WRONG", "WRONG", "UNKNOWN", "UNKNOWN", "UNKNOWN"] == [
        checks[name] for name in ("ledger", "gate", "checkpoint", "clock", "database")
    ]
    assert "assay serve ledger" in run("doctor").out
    assert 7 == run("health", "ledger").code


def test_fsck_finds_no_store_where_no_ledger_has_served(run: Run, tmp_path: Path) -> None:
    """A home whose ledger never ran, and no home at all: exit code 6, as for whatever is not there."""
    assert 0 == run("init", "--dev").code
    for home in (tmp_path / "home", tmp_path / "absent"):
        ran = run("--home", home, "fsck")
        assert (6, "") == (ran.code, ran.out)
        assert f"NO_STORE: expected a ledger's database in {home}/ledger/data" in ran.err


def test_without_a_home_nothing_of_it_is_ok(run: Run) -> None:
    """Only what was measured without one may be OK."""
    ran = run("doctor", "--json")
    assert 3 == ran.code
    assert {"python", "packages", "open files"} >= {
        name for name, state in _checks(ran.document).items() if state == "OK"
    }


def _expose(home: Path) -> None:
    (home / "principals" / "judge-1" / "note.key").chmod(0o640)


def _spoil_key(home: Path) -> None:
    (home / "principals" / "judge-1" / "note.key").write_text("no key\n")


def _cut_trust(home: Path) -> None:
    trust = home / "trust.txt"
    trust.write_bytes(trust.read_bytes()[:-20])


def _swap_keys(home: Path) -> None:
    shutil.copy(home / "principals/judge-1/client.key", home / "principals/runner-1/client.key")


def _spoil_certificate(home: Path) -> None:
    (home / "gate" / "server.crt").write_text("no certificate\n")


def _old_certificate(home: Path) -> None:
    years_ago = time.time_ns() // 1000 - 900 * 86_400_000_000
    authority = CertificateAuthority("assay.local", random=lambda n: b"\x07" * n, now=years_ago)
    (home / "gate" / "server.crt").write_bytes(authority.issue_server("gate", ["localhost"]).certificate)


def _spoil_database(home: Path) -> None:
    (home / "ledger" / "data").mkdir()
    with sqlite3.connect(home / "ledger" / "data" / "ledger.sqlite") as database:
        database.execute("PRAGMA journal_mode=DELETE")
        database.execute("CREATE TABLE t (x)")
    database.close()


@pytest.mark.parametrize(
    ("damage", "name", "said"),
    [
        (_expose, "key files", "principals/judge-1/note.key"),
        (_spoil_key, "keys at rest", "principals/judge-1/note.key"),
        (_cut_trust, "trust document", "expected"),
        (_swap_keys, "certificates", "principals/runner-1/client.crt is not for the key"),
        (_spoil_certificate, "certificates", "gate/server.crt is no certificate"),
        (_old_certificate, "certificates", "gate/server.crt ended on"),
        (_spoil_database, "database", "WAL"),
    ],
)
def test_damage_is_found_and_comes_with_what_to_do(
    home: Path, damage: Callable[[Path], None], name: str, said: str
) -> None:
    """One fault each, in a home that was well."""
    before = _local(home)
    assert State.WRONG not in {check.state for check in before.values()}
    damage(home)
    found = _local(home)
    assert [name] == [check.name for check in found.values() if check.state is State.WRONG]
    assert said in found[name].found
    assert found[name].advice


def test_encrypted_keys_are_ok(home: Path) -> None:
    """Of some that are and some that are not, those that are not are told."""
    keys = sorted(home.rglob("note.key"))
    for number, key in enumerate(keys):
        assert ("NOTE", f"{len(keys) - number} of {len(keys)}") == (
            _local(home)["keys at rest"].state,
            _local(home)["keys at rest"].found.partition(" signing")[0],
        )
        write_key(key, key.read_bytes(), "a passphrase of the test's own")
    assert "OK" == _local(home)["keys at rest"].state


def test_certificates_that_end_soon_are_told_in_time(home: Path) -> None:
    """Twenty days before; and none is OK before its time."""
    ends = timedelta(days=825)
    assert State.OK is _local(home, NOW + ends - timedelta(days=40))["certificates"].state
    assert "ends on" in _local(home, NOW + ends - timedelta(days=20))["certificates"].found
    assert "ended on" in _local(home, NOW + ends + timedelta(hours=1))["certificates"].found
    assert "clock" in _local(home, NOW - timedelta(days=2))["certificates"].found


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    """Of the mounts above a path the deepest, and of two on one point the later; spaces are in octal."""
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:40 / /srv rw shared:1 - nfs4 host:/srv rw",
        "3 2 0:41 / /srv/a\\040b rw - tmpfs none rw",
        "4 2 0:42 / /srv/a\\040b rw - xfs /dev/sdb rw",
    ]
    for path, expected in (("/var", "ext4"), ("/srv/x", "nfs4"), ("/srv/a b/c", "xfs"), ("/srvx", "ext4")):
        assert expected == doctor_storage._holding(Path(path), lines)


def test_a_database_on_the_network_or_in_memory_is_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks do not hold there, or nothing does."""
    data = home / "ledger" / "data"
    data.mkdir()
    with sqlite3.connect(data / "ledger.sqlite") as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE t (x)")
    for kind, expected in (
        ("nfs4", State.WRONG),
        ("tmpfs", State.WRONG),
        ("xfs", State.OK),
        (None, State.UNKNOWN),
    ):
        monkeypatch.setattr(doctor_storage, "_file_system", lambda _, kind=kind: kind)
        assert expected is _local(home)["database"].state
    database.close()


def test_numbers_are_ok_only_where_a_ledger_gives_them(tmp_path: Path) -> None:
    """Configured and served: OK. Configured, and somebody else or nobody answers: WRONG."""
    office = Office(tmp_path)
    try:
        office.serve_one("ledger", "--metrics", f"127.0.0.1:{free_port()}")
        checks = {check["name"]: check for check in office.json("doctor", code=3)["checks"]}  # no gate
        assert ["OK", "WRONG"] == [checks["metrics"]["state"], checks["gate"]["state"]]
        assert "assay_released_size" in checks["metrics"]["found"]
    finally:
        assert [0] == office.stop()
    checks = {check["name"]: check for check in office.json("doctor", code=3)["checks"]}
    assert "UNKNOWN" == checks["metrics"]["state"]


def _served(office: Office, **settings: object) -> subprocess.Popen[str]:
    """A ledger with these settings beside the home's own, once it serves."""
    config = office.home / "ledger.json"
    config.write_text(json.dumps(ledger_config(load_home(office.home)) | settings))
    command = [sys.executable, "-m", "ledger.server", "--config", str(config)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    assert "address" in json.loads(server.stdout.readline() or "{}")
    return server


def _ended(server: subprocess.Popen[str]) -> int:
    server.send_signal(signal.SIGTERM)
    server.communicate()
    return server.returncode


def _check(office: Office, name: str) -> tuple[str, str]:
    """State and finding of one check."""
    document = json.loads(office.run("doctor", "--json").out)
    (check,) = (check for check in document["checks"] if check["name"] == name)
    return check["state"], check["found"]


def test_witnesses_are_ok_only_where_a_quorum_cosigned_lately(tmp_path: Path) -> None:
    """None asked yet: WRONG. Cosigned now: OK. Cosigned half a year ago: stale."""
    office = Office(tmp_path)
    trust = office.home / "trust.txt"
    log = parse_trust_document(trust.read_bytes()).log
    with Witness("witness.test", log) as witness:
        policy = witness.line("w") + "quorum w\n"
        trust.write_text(trust.read_text().replace("quorum none\n", policy))
        server = _served(office)
        state, found = _check(office, "witnesses")
        assert ("WRONG", True) == (state, "NO_QUORUM" in found)
        assert 0 == _ended(server)
        for now, expected in ((int(time.time()) - 15_000_000, "WRONG"), (int(time.time()), "OK")):
            witness.now = now
            server = _served(office, witnesses={"w": witness.url})
            while _cosigned_at(office, witness) != now:
                os.sched_yield()
            state, found = _check(office, "witnesses")
            assert (expected, True) == (state, "cosigned by 1" in found)
            assert 0 == _ended(server)


def _cosigned_at(office: Office, witness: Witness) -> int:
    """When the kept checkpoint was cosigned, in seconds since 1970; 0 where there is none."""
    kept = office.home / "ledger" / "data" / "witnesses" / "cosigned"
    if not kept.exists():
        return 0
    return verify_cosignatures(parse_note(kept.read_bytes()), [witness.key.verifier_key])[
        witness.key.verifier_key
    ]


def test_a_postgresql_that_loses_commits_is_wrong(tmp_path: Path, postgres_url: str) -> None:
    """Durable: OK. synchronous_commit off for the role, no trigger, or no server: WRONG, and which."""
    office = Office(tmp_path)
    server = _served(office, store=postgres_url)
    state, found = _check(office, "database")
    assert ("OK", True) == (state, "durable commits" in found)
    assert 0 == _ended(server)
    name = urlsplit(postgres_url).path[1:]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE stored_events DISABLE TRIGGER stored_events_append_only")
    state, found = _check(office, "database")
    assert ("WRONG", True) == (state, "trigger" in found)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    state, found = _check(office, "database")
    assert ("WRONG", True) == (state, "synchronous_commit is off" in found)
    config = office.home / "ledger.json"
    config.write_text(config.read_text().replace(name, "no_such_database"))
    assert "WRONG" == _check(office, "database")[0]
