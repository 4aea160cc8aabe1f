"""Our static tiles under other people's code: Go's module database packages, and pymerkle."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ledger.checkpoint import Checkpoint, cosign, sign_checkpoint
from ledger.entry import encode_run
from ledger.merkle import Tree, leaf_hash
from ledger.note import KEY_TYPE_COSIGNATURE, SigningKey
from ledger.tile import ENTRIES, TILE_WIDTH, TileTree, tiles_of
from tests.lab import Lab
from tests.server.people import enqueued

#: Where Debian's golang-golang-x-mod-dev puts its packages.
_GOCODE = Path("/usr/share/gocode")
_SOURCE = Path(__file__).with_name("tiles.go")


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go program, built without modules and so without a network."""
    go = shutil.which("go")
    if go is None or not (_GOCODE / "src/golang.org/x/mod").is_dir():
        pytest.skip("golang-go and golang-golang-x-mod-dev are not installed")
    folder = tmp_path_factory.mktemp("go")
    environment = os.environ | {
        "GO111MODULE": "off",
        "GOPATH": str(_GOCODE),
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "",
    }
    subprocess.run([go, "build", "-o", folder / "tiles", _SOURCE], env=environment, check=True, cwd=folder)
    return folder / "tiles"


def check(checker: Path, folder: Path, key: str, step: int = 1) -> list[int]:
    """Size, indexes checked, signatures verified, signatures by others. Raises CalledProcessError."""
    command = [checker, folder, key, str(step)]
    return [int(part) for part in subprocess.run(command, check=True, capture_output=True).stdout.split()]


def entry(index: int) -> bytes:
    """Some bytes."""
    return b"event %d" % index * (index % 7)


def synthetic(folder: Path, size: int, key: SigningKey) -> None:
    """A static log of `size` entries."""
    tree = TileTree(lambda *_: b"", [leaf_hash(entry(index)) for index in range(size)])
    for tile in tiles_of(size):
        first = tile.index * TILE_WIDTH
        bundle = tile.level == ENTRIES
        path = folder / tile.path
        path.parent.mkdir(parents=True, exist_ok=True)
        entries = map(entry, range(first, first + tile.width)) if bundle else ()
        path.write_bytes(encode_run(entries) if bundle else tree.hashes(tile))
    checkpoint = Checkpoint(key.verifier_key.name, size, tree.root())
    (folder / "checkpoint").write_bytes(sign_checkpoint(checkpoint, key))


KEY = SigningKey("ledger.example/test", bytes(range(32)))


async def test_go_reads_a_ledgers_tiles(checker: Path) -> None:
    """Each entry of a real ledger, and each tree that it ever was, by x/mod's note and tlog."""
    async with Lab() as lab:
        author = lab.of_role("runner").open_stream()
        for number in range(2):
            await author.append([enqueued(lab, f"ro-{number}-{k}") for k in range(300)])
        size = (await lab.of_role("auditor").get_checkpoint()).size
        await lab.stop()
        folder = lab.path / "ledger/data/tiles"
        assert [size, size, 1, 0] == check(checker, folder, str(lab.trust.log))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 65_536, 70_000])
def test_go_reads_every_shape_of_an_edge(checker: Path, tmp_path: Path, size: int) -> None:
    """One, two and three levels of tiles, full and partial."""
    synthetic(tmp_path, size, KEY)
    step = max(1, size // 300)
    assert [size, len(range(0, size, step)), 1, 0] == check(checker, tmp_path, str(KEY.verifier_key), step)


def test_go_reads_a_cosigned_checkpoint(checker: Path, tmp_path: Path) -> None:
    """A witness's line beside the log's is another signature to it."""
    synthetic(tmp_path, 300, KEY)
    path = tmp_path / "checkpoint"
    witness = SigningKey("witness.example/w1", bytes(range(32, 64)), KEY_TYPE_COSIGNATURE)
    note = path.read_bytes()
    text = note[: note.index(b"\n\n") + 1]
    path.write_bytes(note + cosign(text, witness, 1_767_225_600))
    assert [300, 300, 1, 1] == check(checker, tmp_path, str(KEY.verifier_key))


@pytest.mark.parametrize("name", ["tile/0/000", "tile/0/001.p/44", "tile/1/000.p/1", "tile/entries/000"])
def test_go_refuses_what_we_would_refuse(checker: Path, tmp_path: Path, name: str) -> None:
    """One bit of a tile; and a checkpoint signed by somebody else."""
    synthetic(tmp_path, 300, KEY)
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(subprocess.CalledProcessError):
        check(checker, tmp_path, str(KEY.verifier_key))
    path.write_bytes(data)
    stranger = SigningKey("ledger.example/test", bytes(32))
    with pytest.raises(subprocess.CalledProcessError):
        check(checker, tmp_path, str(stranger.verifier_key))


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 257, 1000])
def test_pymerkle_has_the_same_roots_and_proofs(size: int) -> None:
    """An independent build of RFC 9162 in Python."""
    pymerkle = pytest.importorskip("pymerkle", reason="the extra `interop` is not installed")
    theirs = pymerkle.InmemoryTree(algorithm="sha256")
    for index in range(size):
        theirs.append_entry(entry(index))
    ours = Tree(leaf_hash(entry(index)) for index in range(size))
    for at in {1, size // 2 or 1, size}:
        assert theirs.get_root(at) == ours.root(at)
        proof = theirs.prove_inclusion(at, size)  # it counts from 1
        pymerkle.verify_inclusion(ours.leaf(at - 1), ours.root(size), proof)
        pymerkle.verify_consistency(ours.root(at), ours.root(size), theirs.prove_consistency(at, size))
