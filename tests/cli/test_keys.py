"""`assay key` on a real ledger: grants, revocations and rotations by root, and keys at rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.cli.desk import event
from clients.identity import load_identity
from clients.keyfile import read_key
from clients.sync import SyncLedgerClient
from ledger import keyfile
from ledger.errors import AssayError, FormatError, RefusedError
from ledger.keyfile import decode_key, decrypt_key, encode_key, encrypt_key, is_encrypted, key_variable
from ledger.trust import parse_trust_document
from ledger.v1 import runner_pb2
from tests.cli.conftest import Run
from tests.cli.office import Office
from tests.witness import Witness

PASSPHRASE = "correct horse battery staple"


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """A home whose ledger serves."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Office(tmp_path)
    made.serve("ledger")
    try:
        yield made
    finally:
        codes = made.stop()
    assert {0} >= set(codes)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A home whose ledger serves, in which nothing is changed."""
    folder = tmp_path_factory.mktemp("quiet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        made = Office(folder)
        made.serve("ledger")
        try:
            yield made
        finally:
            codes = made.stop()
        assert [0] == codes


def _rollout(number: int) -> runner_pb2.RolloutEnqueued:
    return runner_pb2.RolloutEnqueued(
        rollout=f"rollout-{number}",
        workflow="sql-agent",
        workflow_version=1,
        mode=runner_pb2.MODE_TRAIN,
        input_digest=bytes(32),
        resource_digest=bytes(32),
    )


def _verified(office: Office) -> int:
    """The whole log, exported and verified by the auditor; its size."""
    office.json("export", office.folder / "log.export", "--force")
    trust = office.home / "trust.txt"
    return int(office.json("verify", office.folder / "log.export", "--trust", trust, "--forget")["size"])


# --- grant, revoke, list -----------------------------------------------------------------------------------


def test_a_granted_principal_writes_and_a_revoked_one_does_not(office: Office) -> None:
    """Key and certificate are made in the home; the whole log was verified before and after each change."""
    said = office.json("key", "grant", "runner-9", "--role", "runner", "--controller", "team-9")
    assert said["index"] + 1 == said["verified_size"]
    index = office.write("runner-9", [_rollout(1)])
    assert said["index"] + 1 == index
    revoked = office.json("key", "revoke", "runner-9", "--reason", "left", "--suspect-from", index)
    assert (index + 1, index) == (revoked["index"], revoked["suspect_from"])
    with pytest.raises(RefusedError, match="KEY_REVOKED"):
        office.write("runner-9", [_rollout(2)])
    listed = {key["name"]: key for key in office.json("key", "list")["keys"]}
    assert (said["index"], index + 1, index) == (
        listed["runner-9"]["granted_at"],
        listed["runner-9"]["revoked_at"],
        listed["runner-9"]["suspect_from"],
    )
    assert None is listed["root-1"]["granted_at"] is listed["judge-1"]["revoked_at"]
    assert index + 2 == _verified(office)


def test_a_key_made_elsewhere_is_granted_by_its_public_half(office: Office, tmp_path: Path) -> None:
    """The private key never comes here; the certificate is put aside to be handed over."""
    made = office.json("key", "new", "judge-9", "--file", tmp_path / "judge-9.key")
    said = office.json(
        *("key", "grant", "judge-9", "--role", "judge", "--controller", "team-9", "--vkey", made["vkey"])
    )
    assert made["vkey"] == said["granted"]
    issued = office.home / "issued" / "judge-9"
    assert {"client.crt", "client.key"} == {file.name for file in issued.iterdir()}
    assert "judge-9" not in json.loads((office.home / "assay.json").read_text())["principals"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("grant", "judge-1", "--role", "runner", "--controller", "c"), 5, "KEY_TAKEN"),
        (("grant", "judge-1", "--role", "judge", "--controller", "c"), 5, "KEY_TAKEN"),
        (("grant", "approver-9", "--role", "approver", "--controller", "c"), 5, "BAD_APPROVER"),
        (("grant", "../x", "--role", "runner", "--controller", "c"), 2, "BAD_HOLDER"),
        (("grant", "x", "--role", "root", "--controller", "c"), 2, "expected one of"),
        (("grant", "x", "--role", "judge", "--controller", "c", "--vkey", "x+y"), 2, "BAD_VKEY"),
        (("revoke", "nobody", "--reason", "r"), 6, "NO_SUCH_KEY"),
        (("revoke", "root-1", "--reason", "r"), 6, "root's own"),
        (("rotate", "root-1"), 6, "root's own"),
        (("revoke", "judge-1", "--reason", "r", "--suspect-from", "99999"), 5, "BAD_SUSPECT_FROM"),
        (("rotate", "nobody"), 6, "KEY_ABSENT"),
    ],
)
def test_what_the_key_rules_refuse_leaves_nothing_behind(
    quiet: Office, arguments: tuple[str, ...], code: int, says: str
) -> None:
    """It is refused before anything is made or sent."""
    files = sorted(str(file) for file in quiet.home.rglob("*") if "data" not in file.parts)
    size = quiet.json("key", "list")["verified_size"]
    ran = quiet.run("key", *arguments)
    assert code == ran.code, ran
    assert says in ran.err
    after = sorted(str(file) for file in quiet.home.rglob("*") if "data" not in file.parts)
    assert [f for f in after if "memory" not in f] == [f for f in files if "memory" not in f]
    assert size == quiet.json("key", "list")["verified_size"]


def test_root_and_ledger_keys_that_lie_elsewhere(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's key may come from the environment; the ledger's successor is then made where its key lies."""
    (root,) = office.home.glob("principals/root*/note.key")
    monkeypatch.setenv(key_variable(root.parent.name), root.read_text())
    root.unlink()
    granted = office.json("key", "grant", "trainer-2", "--role", "trainer", "--controller", "bo")
    key = office.home / "principals" / "trainer-2" / "note.key"
    assert granted["granted"] == str(read_key(key).verifier_key)
    (office.home / "ledger" / "note.key").rename(office.folder / "ledger.key")
    refused = office.run("key", "rotate-ledger")
    assert (6, True, True) == (refused.code, "KEY_ABSENT" in refused.err, "--vkey" in refused.err)


def test_only_root_changes_keys(quiet: Office) -> None:
    """Another principal is told so before anything happens."""
    ran = quiet.run("--as", "operator-1", "key", "revoke", "judge-1", "--reason", "r")
    assert 5 == ran.code
    assert "OTHER_ROLE" in ran.err


# --- rotation ----------------------------------------------------------------------------------------------


def test_an_author_goes_on_under_a_new_key(office: Office) -> None:
    """What the old key wrote still counts, its stream ends, and the new one begins another."""
    first = office.write("runner-1", [_rollout(1)])
    before = load_identity(office.home, "runner-1")
    said = office.json("key", "rotate", "runner-1")
    after = load_identity(office.home, "runner-1")
    assert (str(before.key.verifier_key), str(after.key.verifier_key)) == (said["revoked"], said["granted"])
    assert first + 3 == office.write("runner-1", [_rollout(2)])
    with SyncLedgerClient(before) as old, pytest.raises(RefusedError, match="KEY_REVOKED"):
        old.append([event(_rollout(3))])
    assert [] == list((office.home / "principals" / "runner-1").glob("next-*"))
    assert first + 4 == _verified(office)
    by_id = {key["key_id"]: key for key in office.json("key", "list")["keys"]}
    assert None is by_id[before.key.verifier_key.key_id.hex()]["suspect_from"]


def test_a_rotation_that_broke_off_is_taken_up(office: Office) -> None:
    """After the grant and before the revocation: the same command again ends with one key in force."""
    folder = office.home / "principals" / "runner-1"
    old = read_key(folder / "note.key").verifier_key
    pending = folder / f"next-{old.key_id.hex()}.key"
    office.json("key", "new", "runner-1", "--file", pending)
    new = read_key(pending).verifier_key
    office.json(
        *("key", "grant", "runner-1", "--role", "runner", "--controller", "owner-of-runner-1"),
        *("--vkey", str(new)),
    )
    said = office.json("key", "rotate", "runner-1")
    assert (str(old), str(new)) == (said["revoked"], said["granted"])
    assert new == read_key(folder / "note.key").verifier_key
    office.write("runner-1", [_rollout(1)])


def test_law_06_the_ledger_goes_on_under_a_new_key_and_its_clients_with_it(office: Office) -> None:
    """A client from before the rotation learns the new key from the log; then the old file may go."""
    identity = load_identity(office.home, "runner-1")
    with SyncLedgerClient(identity) as client:
        client.append([event(_rollout(1))])
        made = office.json("key", "rotate-ledger")
        assert "start the ledger again" in made["next"]
        early = office.run("key", "rotate-ledger")
        assert (5, True) == (early.code, "LEDGER_KEY_NOT_HELD" in early.err)
        office.stop()
        office.serve("ledger")
        said = office.json("key", "rotate-ledger", "--reason", "yearly")
        assert said["index"] == client.append([event(_rollout(2))]).first_index - 1
    old = office.home / "ledger" / "note.key"
    assert str(old) == said["may_go"]
    old.unlink()
    office.stop()
    office.serve("ledger")
    assert said["index"] + 3 == office.write("runner-1", [_rollout(3)]) + 1
    assert said["index"] + 3 == _verified(office)
    assert said["ledger_key"] == office.json("key", "list")["ledger_key"]


# --- witnesses ---------------------------------------------------------------------------------------------


def test_an_export_under_witnesses_verifies_and_its_age_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust document, `serve --witness`, `export`, `verify --max-age`, from the command line alone."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    office = Office(tmp_path)
    trust = office.home / "trust.txt"
    with Witness("north", parse_trust_document(trust.read_bytes()).log) as witness:
        trust.write_text(trust.read_text().replace("quorum none", f"{witness.line('n')}quorum n"))
        witness.now = int(time.time()) - 7200
        office.serve_one("ledger", "--witness", f"n={witness.url}")
        index = office.write("runner-1", [_rollout(1)])
        while witness.size() <= index:
            assert index < office.json("key", "list")["verified_size"]  # the ledger goes on answering
        office.stop()  # what was cosigned is kept by now, or after the next start
        office.serve_one("ledger", "--witness", f"n={witness.url}")
        export = tmp_path / "log.export"
        while office.json("export", export, "--force")["size"] <= index:
            assert witness.asked
        verify = ("verify", export, "--trust", trust, "--forget")
        assert (index + 1, ["north"]) == tuple(map(office.json(*verify).get, ("size", "witnesses")))
        assert index + 1 == office.json(*verify, "--max-age", "3h")["size"]
        assert "STALE_COSIGNATURE" == office.json(*verify, "--max-age", "1h", code=3)["reason"]
        assert {0} == set(office.stop())


# --- keys at rest ------------------------------------------------------------------------------------------


def test_a_home_whose_keys_are_encrypted(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No signing key lies in plain text; with the passphrase they are read, without it nothing is."""
    monkeypatch.setattr(keyfile, "_COST", 14)
    monkeypatch.setenv("ASSAY_PASSPHRASE", PASSPHRASE)
    home = tmp_path / "home"
    assert 0 == run("init", home, "--dev", "--encrypt").code
    files = list(home.rglob("note.key"))
    assert 11 == len(files)
    assert all(is_encrypted(file.read_bytes()) for file in files)
    assert "judge-1" == load_identity(home, "judge-1").name
    monkeypatch.setenv("ASSAY_PASSPHRASE", "another")
    with pytest.raises(RefusedError, match="WRONG_PASSPHRASE"):
        load_identity(home, "judge-1")
    monkeypatch.delenv("ASSAY_PASSPHRASE")
    with pytest.raises(RefusedError, match="KEY_LOCKED"):
        load_identity(home, "judge-1")


def test_a_ledger_serves_under_an_encrypted_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes passphrase or key from its environment, and without either says what to do."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    office = Office(tmp_path)
    key = office.home / "ledger" / "note.key"
    plain = key.read_text()
    monkeypatch.setenv("ASSAY_NEW_PASSPHRASE", PASSPHRASE)
    assert office.json("key", "passphrase", "ledger")["encrypted"]
    assert is_encrypted(key.read_bytes())
    command = [sys.executable, "-m", "clients.cli", "--home", str(office.home), "serve", "ledger"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (2, True) == (ran.returncode, "KEY_LOCKED" in ran.stderr)
    monkeypatch.setenv("ASSAY_PASSPHRASE", PASSPHRASE)
    office.serve("ledger")
    office.write("runner-1", [_rollout(1)])
    assert [0] == office.stop()
    monkeypatch.delenv("ASSAY_PASSPHRASE")
    key.unlink()
    monkeypatch.setenv("ASSAY_KEY_LEDGER", plain.strip())
    office.serve("ledger")
    office.write("runner-1", [_rollout(2)])
    assert [0] == office.stop()


def test_a_passphrase_is_changed_and_removed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key stays the same one."""
    monkeypatch.setattr(keyfile, "_COST", 14)
    home = tmp_path / "home"
    assert 0 == run("init", home, "--dev").code
    file = home / "principals" / "judge-1" / "note.key"
    plain = file.read_bytes()
    monkeypatch.setenv("ASSAY_NEW_PASSPHRASE", "first")
    assert 0 == run("--home", home, "key", "passphrase", "judge-1").code
    monkeypatch.setenv("ASSAY_PASSPHRASE", "first")
    monkeypatch.setenv("ASSAY_NEW_PASSPHRASE", "second")
    assert 0 == run("--home", home, "key", "passphrase", "judge-1").code
    assert 5 == run("--home", home, "key", "passphrase", "judge-1").code
    monkeypatch.setenv("ASSAY_PASSPHRASE", "second")
    assert 0 == run("--home", home, "key", "passphrase", "judge-1", "--remove").code
    assert (plain, 0o600) == (file.read_bytes(), file.stat().st_mode & 0o777)


def test_a_key_from_the_environment_stands_in_for_its_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ASSAY_KEY_JUDGE_1 is judge-1's; another principal's key under that name is refused."""
    home = tmp_path / "home"
    assert 0 == run("init", home, "--dev").code
    file = home / "principals" / "judge-1" / "note.key"
    text = file.read_text()
    file.unlink()
    monkeypatch.setenv("ASSAY_KEY_JUDGE_1", text.strip())
    assert "judge-1" == load_identity(home, "judge-1").name
    other = (home / "principals" / "runner-1" / "note.key").read_text()
    monkeypatch.setenv("ASSAY_KEY_JUDGE_1", other)
    with pytest.raises(FormatError, match="BAD_KEY_FILE"):
        load_identity(home, "judge-1")


def test_variables_have_the_names_of_principals() -> None:
    """Upper case; what no variable's name can hold becomes an underscore."""
    assert ["ASSAY_KEY_RUNNER_1", "ASSAY_KEY_A_B"] == [key_variable("runner-1"), key_variable("a.b")]


PLAIN = encode_key("judge-1", bytes(range(32)))
SEALED = encrypt_key(PLAIN, PASSPHRASE, bytes(16), 14)


def test_a_key_encrypted_by_an_earlier_release_opens() -> None:
    """The format, byte for byte, as it was when this was written."""
    assert SEALED.decode() == (
        "assay/key/v1\n"
        "judge-1+e19835f6+AQOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4\n"
        "scrypt 14 AAAAAAAAAAAAAAAAAAAAAA==\n"
        "wyGQ2oX/yM0cTS7bCg/ml7rjGhxDp6ya1tJiCr9OwAyrurH49736bX9wlyqBj+leaQ==\n"
    )
    assert PLAIN == decrypt_key(SEALED, PASSPHRASE)


@settings(max_examples=10, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.text(min_size=1), st.binary(min_size=16, max_size=16))
def test_what_is_encrypted_decrypts_to_the_same_bytes(seed: bytes, passphrase: str, salt: bytes) -> None:
    """For every key, passphrase and salt; no byte of the plain text shows."""
    try:
        passphrase.encode()
    except UnicodeEncodeError:
        return
    plain = encode_key("judge-1", seed)
    sealed = encrypt_key(plain, passphrase, salt, 14)
    assert plain == decrypt_key(sealed, passphrase)
    assert decode_key(plain).verifier_key == decode_key(sealed, passphrase).verifier_key
    secret = plain.removesuffix(b"\n").split(b"+", 4)[4]  # base64 may hold a + too
    assert secret not in sealed


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_changed_byte_passes(data: st.DataObject) -> None:
    """Any other byte anywhere is refused, by the file's form or by the seal; and says nothing of the key."""
    at = data.draw(st.integers(0, len(SEALED) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != SEALED[at]))
    with pytest.raises(AssayError) as caught:
        decode_key(SEALED[:at] + bytes([byte]) + SEALED[at + 1 :], PASSPHRASE)
    assert caught.value.reason in {"BAD_KEY_FILE", "WRONG_PASSPHRASE"}
    assert PASSPHRASE not in str(caught.value)


@pytest.mark.parametrize("cost", ["10", "19", "63", "99"])
def test_law_09_a_cost_out_of_bounds_is_refused_before_it_is_paid(cost: str) -> None:
    """A file cannot make its reader spend gigabytes, nor pretend to be protected."""
    with pytest.raises(FormatError, match="BAD_KEY_FILE"):
        decode_key(SEALED.replace(b"scrypt 14", f"scrypt {cost}".encode()), PASSPHRASE)


def test_a_passphrase_is_never_empty() -> None:
    """Nothing is no passphrase."""
    with pytest.raises(FormatError, match="BAD_PASSPHRASE"):
        encrypt_key(PLAIN, "", os.urandom(16), 14)
