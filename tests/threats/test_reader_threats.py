"""What a hostile folder, or a ledger under a stolen key, tries on who verifies; and does not reach."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from clients.cli.audit import Audit
from clients.memory import Memory
from ledger.bundle import Bundle, Citation, encode_bundle, make_claim
from ledger.checkpoint import Checkpoint
from ledger.errors import FormatError, VerificationError
from ledger.merkle import Tree, root
from ledger.note import sign_note
from tests.forge import LEDGER, ORIGIN, ROOT, Forge, make_key, numbered, rotated

SECOND = make_key(ORIGIN, "2")


def _verify(forge: Forge, folder: Path) -> VerificationError:
    with pytest.raises(VerificationError) as caught:
        Audit(forge.trust, None).verify(folder)
    return caught.value


# --- folders of tiles ---------------------------------------------------------------------------------------


def test_a_folder_of_links_to_itself_is_not_walked_for_ever(tmp_path: Path) -> None:
    """Some thousand links show a tree of 2^40 leaves whose every hash tile holds. Its size is not believed
    before entries under real signatures came to it."""
    row = [sha256(b"leaf").digest()] * 256
    for level in range(5):
        folder = tmp_path / "tile" / str(level)
        folder.mkdir(parents=True)
        (folder / "all").write_bytes(b"".join(row))
        for number in range(1000):
            (folder / f"{number:03}").symlink_to("all")
            (folder / f"x{number:03}").symlink_to(".")
        row = [root(row)] * 256
    partial = tmp_path / "tile" / "5" / "000.p"
    partial.mkdir(parents=True)
    (partial / "1").write_bytes(row[0])
    (tmp_path / "checkpoint").write_bytes(sign_note(Checkpoint(ORIGIN, 256**5, row[0]).text(), LEDGER))
    error = _verify(Forge.opened("runner"), tmp_path)
    assert ("V2", "TILE_MISSING", 0) == (error.step, error.reason, error.index)


@pytest.mark.parametrize("what", ["a device", "a pipe", "a giant", "a folder"])
@pytest.mark.parametrize("where", ["checkpoint", "tile/entries/000.p/3", "tile/0/000.p/3"])
def test_what_is_no_tile_is_neither_waited_for_nor_read(tmp_path: Path, what: str, where: str) -> None:
    """A device, a pipe or a file of a terabyte in a tile's place costs neither time nor memory."""
    forge = Forge.opened("runner")
    forge.add("runner", numbered(1))
    _write(forge, tmp_path)
    Audit(forge.trust, None).verify(tmp_path)
    path = tmp_path / where
    path.unlink()
    if what == "a device":
        path.symlink_to("/dev/zero")
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a giant":
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        path.mkdir()
    assert {"checkpoint": "V5", "tile/entries/000.p/3": "V2", "tile/0/000.p/3": "V5"}[where] == _verify(
        forge, tmp_path
    ).step


@pytest.mark.parametrize("note", [b"", b"rubbish", b"\xff" * 100, b"a\n1\nAA==\n\n", b"x" * 70_000])
def test_v5_a_checkpoint_that_is_none_fails_the_verification(tmp_path: Path, note: bytes) -> None:
    """By the verifier's step: a folder that does not hold is no mistake of who verifies it."""
    forge = Forge.opened("runner")
    _write(forge, tmp_path)
    (tmp_path / "checkpoint").write_bytes(note)
    assert "V5" == _verify(forge, tmp_path).step


def _write(forge: Forge, folder: Path) -> None:
    size = forge.size
    (folder / "tile/entries/000.p").mkdir(parents=True)
    (folder / "tile/0/000.p").mkdir(parents=True)
    run = b"".join(len(entry).to_bytes(2, "big") + entry for entry in forge.entries)
    (folder / f"tile/entries/000.p/{size}").write_bytes(run)
    (folder / f"tile/0/000.p/{size}").write_bytes(b"".join(forge.leaves))
    (folder / "checkpoint").write_bytes(forge.checkpoint())


# --- a stolen ledger key ------------------------------------------------------------------------------------


def test_law_06_a_rotation_outlives_the_client_that_learnt_it(tmp_path: Path) -> None:
    """Who stole the ledger's old key goes on from what a client remembers, when that starts again: refused,
    as before the start."""
    forge = Forge.opened("runner")
    at = forge.add(ROOT, rotated(SECOND))
    forge.add("runner", numbered(forge.size))
    tree = Tree()
    tree.extend(forge.leaves)
    claim = make_claim(at, forge.entries.__getitem__, lambda index: tree.inclusion(index, forge.size))
    memory = Memory(forge.trust, tmp_path)
    note = forge.checkpoint(key=SECOND)
    memory.learn(encode_bundle(Bundle(note, (Citation(claim, None),))))
    memory.advance(note, memory.open(note))
    forge.add("runner", numbered(forge.size))
    stolen = forge.checkpoint(key=LEDGER)
    for client in (memory, Memory(forge.trust, tmp_path)):
        with pytest.raises(VerificationError) as caught:
            client.open(stolen)
        assert ("V6", "NO_KNOWN_SIGNATURE") == (caught.value.step, caught.value.reason)
    assert forge.size == Memory(forge.trust, tmp_path).open(forge.checkpoint(key=SECOND)).size


def test_what_was_kept_of_rotations_is_proven_again(tmp_path: Path) -> None:
    """A file that does not prove them is refused, and the message says what to do."""
    forge = Forge.opened("runner")
    at = forge.add(ROOT, rotated(SECOND))
    tree = Tree()
    tree.extend(forge.leaves)
    claim = make_claim(at, forge.entries.__getitem__, lambda index: tree.inclusion(index, forge.size))
    bundle = encode_bundle(Bundle(forge.checkpoint(key=SECOND), (Citation(claim, None),)))
    Memory(forge.trust, tmp_path).learn(bundle)
    (kept,) = tmp_path.iterdir()
    assert bundle == kept.read_bytes()
    kept.write_bytes(bundle[:-1] + bytes([bundle[-1] ^ 1]))
    with pytest.raises(FormatError, match="remove it"):
        Memory(forge.trust, tmp_path)
