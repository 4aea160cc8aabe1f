"""Root at work in two places at once: each command ends with a true answer, and the log verifies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.cli.desk import event
from clients.cli.keys import _rotate
from clients.keyfile import read_key
from clients.keys import KeyDesk, Known
from clients.ledger import LedgerClient
from ledger.v1 import root_pb2
from tests.cli.conftest import Ran
from tests.cli.office import Office
from tests.lab import Lab
from tests.server.people import enqueued


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
    assert [0] == codes


@pytest.fixture
def homes(office: Office) -> list[Path]:
    """Two homes with root's key, on two machines perhaps."""
    second = office.folder / "second"
    shutil.copytree(office.home, second, ignore=shutil.ignore_patterns("data"))
    return [office.home, second]


def _at_once(homes: Sequence[Path], *commands: Sequence[str]) -> list[Ran]:
    """Runs `assay key …` in each home, started together."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "clients.cli", "--home", str(home), "key", *command, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for home, command in zip(homes, commands, strict=True)
    ]
    return [Ran(process.returncode, *said) for process in running for said in [process.communicate()]]


def _verified(office: Office) -> dict[str, Any]:
    """The whole log, verified by the auditor offline, and the grants by public key."""
    office.json("export", office.folder / "log.export", "--force")
    trust = office.home / "trust.txt"
    size = office.json("verify", office.folder / "log.export", "--trust", trust, "--forget")["size"]
    listed = office.json("key", "list")
    assert size == listed["verified_size"]
    return {key["vkey"]: key for key in listed["keys"]}


def _granted(name: str, role: str) -> tuple[str, ...]:
    return ("grant", name, "--role", role, "--controller", "team-9")


def test_two_grants_at_once_both_stand(office: Office, homes: list[Path]) -> None:
    """Other names, and the same name with two keys: each at the index that its command said."""
    for names in (("runner-8", "judge-8"), ("runner-9", "runner-9")):
        ran = _at_once(homes, *(_granted(name, name.partition("-")[0]) for name in names))
        assert [0, 0] == [one.code for one in ran], ran
        held = _verified(office)
        for one in ran:
            assert one.document["index"] == held[one.document["granted"]]["granted_at"]
        assert 2 == len({one.document["index"] for one in ran})


def test_law_07_of_two_grants_that_rule_each_other_out_one_stands(office: Office, homes: list[Path]) -> None:
    """A name has one role for ever: who came second is refused, and is told why."""
    ran = _at_once(homes, _granted("both", "judge"), _granted("both", "trainer"))
    first, second = sorted(ran, key=lambda one: one.code)
    assert (0, 5) == (first.code, second.code), ran
    assert "NAME_KEEPS_ROLE" in second.err
    (stands,) = [key for key in _verified(office).values() if key["name"] == "both"]
    assert first.document["granted"] == stands["vkey"]


def test_two_rotations_at_once_give_each_home_a_key_or_tell_it_that_it_is_late(
    office: Office, homes: list[Path]
) -> None:
    """The old key is revoked once. A home whose key the other had revoked before it began keeps that, and is
    told so; a rotation that began ends, whoever revoked the old key."""
    files = [home / "principals" / "runner-1" / "note.key" for home in homes]
    old = str(read_key(files[0]).verifier_key)
    ran = _at_once(homes, ("rotate", "runner-1"), ("rotate", "runner-1"))
    held = _verified(office)
    now = [str(read_key(file).verifier_key) for file in files]
    for one, key in zip(ran, now, strict=True):
        if one.code:
            assert (6, old) == (one.code, key), one
            assert "NO_SUCH_KEY" in one.err
        else:
            assert (old, key) == (one.document["revoked"], one.document["granted"])
            assert None is held[key]["revoked_at"] is held[key]["suspect_from"]
    assert 0 in [one.code for one in ran]
    assert held[old]["revoked_at"] is not None
    assert {key for key, said in held.items() if said["name"] == "runner-1"} == {old, *now}
    assert [] == [file for home in homes for file in home.rglob("next-*.key")]


class _Overtaken(KeyDesk):
    """A desk of root that another one is always a moment ahead of, with the same revocation."""

    def __init__(self, client: LedgerClient, other: KeyDesk) -> None:
        super().__init__(client, event)
        self._other = other

    async def write(self, known: Known, body: object) -> tuple[int, Known]:
        if isinstance(body, root_pb2.KeyRevoked):
            await self._other.write(await self._other.known(), body)
        return await super().write(known, body)


async def test_a_rotation_whose_old_key_is_revoked_elsewhere_meanwhile_is_done() -> None:
    """What it was to bring about stands in the log; nothing is left to be taken up."""
    async with Lab() as lab:
        file = lab.path / "principals" / "runner-1" / "note.key"
        old = str(read_key(file).verifier_key)
        desk = _Overtaken(lab.of_role("root"), KeyDesk(lab.of_role("root"), event))
        said = await _rotate(lab.path, desk, "runner-1", "rotated")
        assert (old, str(read_key(file).verifier_key)) == (said["revoked"], said["granted"])
        assert said["verified_size"] == (await lab.check()).size
        assert [] == list(file.parent.glob("next-*"))
        assert 1 == (await lab.client("runner-1").append([enqueued(lab)])).count


def test_two_revocations_at_once_end_a_key_once(office: Office, homes: list[Path]) -> None:
    """The second is refused by the client's own rules, or at placement."""
    ran = _at_once(homes, *[("revoke", "judge-1", "--reason", place) for place in ("here", "there")])
    first, second = sorted(ran, key=lambda one: one.code)
    assert 0 == first.code, ran
    assert second.code in (5, 6), ran
    (held,) = [key for key in _verified(office).values() if key["name"] == "judge-1"]
    assert json.loads(first.out)["index"] == held["revoked_at"]
