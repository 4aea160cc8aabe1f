"""Manifests and the candidates that they name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from clients.ids import uuid7
from ledger.admission import admit
from ledger.errors import AssayError, FormatError, NotFoundError, RefusedError
from ledger.trust import WRITER
from ledger.v1 import options_pb2
from trainer.publish import KINDS, Manifest, candidate_event, manifest

LORA = options_pb2.RESOURCE_KIND_MODEL_LORA


def make(folder: Path, **changes: object) -> Manifest:
    """The manifest of a folder."""
    values = {"resource": "sql-agent/adapter", "kind": LORA, "serve": ["serve", "--port", "0"], **changes}
    return manifest(folder, **values)  # type: ignore[arg-type]  # wrong ones too


def refused(kind: type[AssayError], act: Callable[[], object]) -> str:
    """The reason with which `act` is refused."""
    with pytest.raises(kind) as caught:
        act()
    return caught.value.reason


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three files, one of them below another folder."""
    root = tmp_path / "adapter"
    (root / "weights").mkdir(parents=True)
    (root / "config.json").write_bytes(b"{}")
    (root / "weights" / "b.bin").write_bytes(bytes(range(256)))
    (root / "weights" / "ä.bin").write_bytes(b"")
    return root


def test_a_manifest_is_canonical_json(folder: Path) -> None:
    """The bytes are RFC 8785 JSON with every file's path, size and digest; the digest is theirs."""
    made = make(folder)
    files = [
        ("config.json", b"{}"),
        ("weights/b.bin", bytes(range(256))),
        ("weights/ä.bin", b""),
    ]
    listed = ",".join(
        f'{{"path":"{path}","sha256":"{sha256(data).hexdigest()}","size":{len(data)}}}'
        for path, data in files
    )
    expected = (
        f'{{"files":[{listed}],"format":"assay/manifest/v1","kind":"model.lora","resource":"sql-agent/adapter",'
        '"serve":["serve","--port","0"]}'
    )
    assert expected.encode() == made.json
    assert sha256(expected.encode()).digest() == made.digest
    assert (3, 258) == (len(made.files), made.size)


def test_law_12_a_manifest_depends_on_nothing_but_what_it_lists(folder: Path, tmp_path: Path) -> None:
    """Another place, other times, other modes give the same digest; one byte, one name, one word another."""
    first = make(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    os.utime(moved / "config.json", (1, 1))
    (moved / "config.json").chmod(0o700)
    assert first == make(moved)
    others = {
        make(moved, serve=["serve"]).digest,
        make(moved, kind=options_pb2.RESOURCE_KIND_MODEL_FULL).digest,
    }
    others.add(make(moved, resource="other").digest)
    (moved / "config.json").write_bytes(b"[]")
    others.add(make(moved).digest)
    (moved / "config.json").rename(moved / "config2.json")
    others.add(make(moved).digest)
    assert 5 == len(others - {first.digest})


def test_files_are_sorted_by_path_not_by_folder(tmp_path: Path) -> None:
    """`a-b` stands before `a/b`, as their bytes do, though the folder `a` is visited first."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"1")
    (tmp_path / "a-b").write_bytes(b"2")
    assert ["a-b", "a/b"] == [file["path"] for file in json.loads(make(tmp_path).json)["files"]]


def test_a_link_within_the_folder_is_a_file(folder: Path) -> None:
    """A link to a file of the folder is listed under its own path with that file's content."""
    (folder / "link").symlink_to("weights/b.bin")
    made = {file.path: file for file in make(folder).files}
    assert made["weights/b.bin"].sha256 == made["link"].sha256


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    """A link that leaves the folder, by any way, is refused; so is one to a folder and one to nothing."""
    (tmp_path / "secret").write_bytes(b"x")
    link = folder / "link"
    for target, reason in (
        ("../secret", "LINK_LEAVES"),
        (str(tmp_path / "secret"), "LINK_LEAVES"),
        (str(tmp_path), "LINK_LEAVES"),
        ("weights", "LINK_TO_FOLDER"),
        (".", "LINK_TO_FOLDER"),
        ("nowhere", "UNREADABLE"),
        ("link", "UNREADABLE"),
    ):
        link.symlink_to(target)
        assert reason == refused(RefusedError, lambda: make(folder))
        link.unlink()


def test_empty_folders_are_refused(folder: Path) -> None:
    """A folder without files, the outermost or an inner one, would be lost in a list of files."""
    (folder / "inner").mkdir()
    assert "EMPTY_FOLDER" == refused(RefusedError, lambda: make(folder))
    assert "EMPTY_FOLDER" == refused(RefusedError, lambda: make(folder / "inner"))


def test_what_is_neither_file_nor_folder_is_refused(folder: Path) -> None:
    """A pipe is refused without being opened."""
    os.mkfifo(folder / "pipe")
    assert "NOT_A_FILE" == refused(RefusedError, lambda: make(folder))


def test_names_that_are_not_utf8_are_refused(folder: Path) -> None:
    """A name of bytes that are no UTF-8 cannot stand in JSON."""
    (folder / os.fsdecode(b"\xff.bin")).write_bytes(b"")
    assert "BAD_FILE_NAME" == refused(RefusedError, lambda: make(folder))


def test_an_unreadable_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be opened refuses the whole, by name."""
    opened = Path.open

    def open_but_one(path: Path, *args: object) -> object:
        if path.name == "b.bin":
            raise PermissionError(13, "Permission denied")
        return opened(path, *args)  # type: ignore[call-overload]  # passed through

    monkeypatch.setattr(Path, "open", open_but_one)
    with pytest.raises(RefusedError) as caught:
        make(folder)
    assert ("UNREADABLE", True) == (
        caught.value.reason,
        caught.value.message.endswith("b.bin, got Permission denied"),
    )


def test_bad_values_are_refused(folder: Path) -> None:
    """A name, kind or command that is none, and a folder that is not there, are refused."""
    assert "BAD_NAME" == refused(FormatError, lambda: make(folder, resource="a+b"))
    assert "BAD_KIND" == refused(
        FormatError, lambda: make(folder, kind=options_pb2.RESOURCE_KIND_UNSPECIFIED)
    )
    for serve in ([], [""], ["\udcff"]):
        assert "BAD_SERVE" == refused(FormatError, lambda serve=serve: make(folder, serve=serve))
    assert "FOLDER_ABSENT" == refused(NotFoundError, lambda: make(folder / "none"))


def test_every_kind_has_a_word() -> None:
    """Each kind of resource in the protos but the unspecified one has its word in manifests."""
    assert set(options_pb2.ResourceKind.values()) - {0} == set(KINDS)


def test_a_candidate_event_is_admitted(folder: Path, now: int) -> None:
    """CandidateRegistered names the manifest, its parent, files and size; only a trainer may write it."""
    made = make(folder)
    event = candidate_event(
        event_id=uuid7(now, bytes(10)),
        update="update-1",
        candidate=made,
        parent_digest=bytes(32),
        occurred_at=now,
    )
    body = admit(event.SerializeToString()).candidate_registered
    assert (made.digest, bytes(32), 3, 258) == (
        body.manifest_digest,
        body.parent_digest,
        body.files,
        body.size,
    )
    assert WRITER["candidate_registered"] == options_pb2.ROLE_TRAINER
