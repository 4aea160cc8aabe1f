"""`assay verify` and `assay replay` on files: what they say, what they remember, how they exit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ledger.v1 import event_pb2, gate_pb2, operator_pb2, options_pb2
from tests.cli.conftest import Run
from tests.cli.signed import SignedLog, key_of, write_export
from tests.forge import ROOT, Forge, event_id, export_of, make_key, opened
from tests.gate_tests.editing import change
from tests.memory import Story, demo_document, small


@pytest.fixture
def file(promoted: tuple[Story, SignedLog], tmp_path: Path) -> Path:
    """The whole story's export; trust.txt lies beside it."""
    return write_export(promoted[1], tmp_path)


def trust(file: Path) -> tuple[str, str]:
    """The option that names the trust document."""
    return "--trust", str(file.with_name("trust.txt"))


# --- verify ----------------------------------------------------------------------------------------------


def test_verify_prints_what_it_verified(run: Run, file: Path, promoted: tuple[Story, SignedLog]) -> None:
    """A true log exits 0 and shows origin, size, root, authors, and what cannot be known yet."""
    ran = run("verify", file, *trust(file))
    log = promoted[1]
    assert ran.code == 0, ran.err
    assert f"VERIFIED {file}" in ran.out
    assert log.forge.origin in ran.out
    assert f"{log.forge.size} entries" in ran.out
    assert log.tree.root().hex() in ran.out
    assert "gate-1" in ran.out
    assert "rollback cannot be detected yet" in ran.out


def test_verify_in_json_holds_the_same(run: Run, file: Path, promoted: tuple[Story, SignedLog]) -> None:
    """--json gives size, root and authors as data."""
    document = run("verify", file, *trust(file), "--json").document
    log = promoted[1]
    assert log.forge.size == document["size"]
    assert log.tree.root().hex() == document["root"]
    assert log.forge.size == sum(document["authors"].values())
    assert document["remembered_size"] is None


def test_verify_remembers_a_pass_and_continues_it(
    run: Run, promoted: tuple[Story, SignedLog], tmp_path: Path
) -> None:
    """The second file of a log is checked against the first; both pass when it continues it."""
    log = promoted[1]
    early = write_export(log, tmp_path, size=log.forge.size - 1, name="early.assay")
    late = write_export(log, tmp_path)
    assert run("verify", early, *trust(early)).code == 0
    ran = run("verify", late, *trust(late))
    assert ran.code == 0
    assert f"continues the checkpoint of size {log.forge.size - 1}" in ran.out


def test_verify_finds_a_rollback(run: Run, promoted: tuple[Story, SignedLog], tmp_path: Path) -> None:
    """A file that is older than what is remembered exits 3, step V7, and says what to do."""
    log = promoted[1]
    early = write_export(log, tmp_path, size=log.forge.size - 1, name="early.assay")
    late = write_export(log, tmp_path)
    memory = ("--memory", tmp_path / "memory")
    assert run("verify", late, *trust(late), *memory).code == 0
    ran = run("verify", early, *trust(early), *memory)
    assert ran.code == 3
    assert ran.err.startswith("assay: V7: ROLLED_BACK: ")
    assert ran.err.count("\n") == 1
    assert run("verify", early, *trust(early), "--forget").code == 0, "--forget uses no memory"
    assert run("verify", late, *trust(late), *memory).code == 0, "what is remembered did not move"


def test_another_logs_trust_document_is_said_first(run: Run, file: Path) -> None:
    """Neither verify nor replay judges entries of a log that the trust document is not for."""
    other = file.with_name("other.txt")
    other.write_text(Forge.opened("operator", ledger=make_key("other.log-0123456789abcdef")).trust_text)
    for command in ("verify", "replay"):
        ran = run(command, file, "--trust", other, "--forget")
        assert ran.code == 3
        assert "V5: OTHER_ORIGIN: expected a file of other.log-0123456789abcdef" in ran.err


def test_verify_keeps_both_notes_of_a_fork(run: Run, tmp_path: Path) -> None:
    """Another log under the same keys exits 3; the first note stays remembered, the second lies beside it."""
    for name, number in (("one", 1), ("two", 2)):
        forge = Forge.opened("operator")
        forge.add("operator", _resume(number))
        (tmp_path / f"{name}.assay").write_bytes(forge.export())
        (tmp_path / "trust.txt").write_text(forge.trust_text)
    memory = tmp_path / "memory"
    one, two = (tmp_path / f"{name}.assay" for name in ("one", "two"))
    assert run("verify", one, *trust(one), "--memory", memory).code == 0
    ran = run("verify", two, *trust(two), "--memory", memory)
    assert ran.code == 3
    assert "FORKED" in ran.err
    assert [False, True] == sorted(".fork-" in path.name for path in memory.iterdir())
    assert run("verify", one, *trust(one), "--memory", memory).code == 0


def _resume(number: int) -> event_pb2.Event:
    event = event_pb2.Event(event_id=event_id(number))
    event.resume_requested.update = f"update-{number}"
    return event


def test_verify_names_the_first_fault(run: Run, file: Path, promoted: tuple[Story, SignedLog]) -> None:
    """A flipped bit exits 3 and names step, index, expected and got on one line; nothing is remembered."""
    entries = list(promoted[1].forge.entries)
    entries[30] = entries[30][:-1] + bytes([entries[30][-1] ^ 1])
    file.write_bytes(export_of(promoted[1].forge.checkpoint(), entries))
    ran = run("verify", file, *trust(file))
    assert ran.code == 3
    assert "at index 3" in ran.err
    assert "expected" in ran.err
    assert "got" in ran.err
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    failed = run("verify", file, *trust(file), "--json")
    assert failed.code == 3
    assert {"V2", "V3"} & {failed.document["step"]}
    write_export(promoted[1], file.parent)
    assert "yet" in run("verify", file, *trust(file)).out


def test_verify_cannot_tell_a_newer_type(run: Run, tmp_path: Path) -> None:
    """An event type of a newer release is neither true nor false: exit 4."""
    forge = Forge.opened("gate")
    # Field 999, length-delimited and empty: a type that this release does not know.
    forge.add("gate", event_pb2.Event(event_id=event_id(9)).SerializeToString() + b"\xba\x3e\x00")
    file = tmp_path / "log.assay"
    file.write_bytes(forge.export())
    (tmp_path / "trust.txt").write_text(forge.trust_text)
    ran = run("verify", file, *trust(file))
    assert ran.code == 4
    assert "NEWER_EVENT_TYPE" in ran.err


def test_a_broken_memory_names_its_file(run: Run, file: Path, tmp_path: Path) -> None:
    """A remembered checkpoint that does not parse is usage, names the file, and says what to do."""
    assert run("verify", file, *trust(file)).code == 0
    (remembered,) = (tmp_path / "state").rglob("*.checkpoint")
    remembered.write_bytes(b"broken")
    ran = run("verify", file, *trust(file))
    assert ran.code == 2
    assert str(remembered) in ran.err
    assert "remove it" in ran.err


@pytest.mark.parametrize(
    ("content", "code", "step"),
    [(b"", 3, "V2"), (b"assay/export/v2\n", 3, "V2"), (b"not a log at all" * 9, 3, "V2")],
)
def test_verify_refuses_what_is_no_export(run: Run, file: Path, content: bytes, code: int, step: str) -> None:
    """A file that is no export is not true."""
    file.write_bytes(content)
    ran = run("verify", file, *trust(file), "--json")
    assert code == ran.code
    assert step == ran.document["step"]


def test_verify_refuses_a_broken_trust_document(run: Run, file: Path) -> None:
    """A trust document that does not parse is step V1."""
    file.with_name("trust.txt").write_text("trust me\n")
    ran = run("verify", file, *trust(file))
    assert ran.code == 3
    assert "V1" in ran.err


def test_usage_is_exit_2(run: Run, file: Path) -> None:
    """What was typed wrong is exit 2: no trust document, no file, memory both ways, half a question."""
    assert run("verify", file).code == 2
    assert run("verify", file.with_name("absent"), *trust(file)).code == 2
    assert run("verify", file, *trust(file), "--forget", "--memory", file.parent).code == 2
    assert run("replay", file, *trust(file), "--update", "update-A").code == 2
    assert run("replay", file, *trust(file), "--update", "update-A", "--step", "canry").code == 2


# --- replay ----------------------------------------------------------------------------------------------


def test_replay_follows_every_power(run: Run, file: Path) -> None:
    """A true log's verdicts, moves and freezes replay: exit 0, with their numbers."""
    ran = run("replay", file, *trust(file), "--json")
    assert ran.code == 0, ran.err
    assert (2, 2, 2) == tuple(ran.document[key] for key in ("verdicts", "moves", "freezes"))
    assert [] == ran.document["unreplayable"]
    assert "2 verdicts, 2 pointer moves, 2 freezes" in run("replay", file, *trust(file)).out


def test_replay_judges_one_update_again(run: Run, file: Path) -> None:
    """--update gives the table of checks and the frame of the verdict; a HOLD is exit 1."""
    holding = run("replay", file, *trust(file), "--update", "update-B", "--step", "canary")
    assert holding.code == 1
    assert "HOLD" in holding.out
    for shown in (
        "rollback_and_authority",
        "STALE",
        "parent changed since",
        "sql-agent/en-internal",
        "sql-writer",
    ):
        assert shown in holding.out
    assert "safe" not in holding.out
    judged = run("replay", file, *trust(file), "--update", "update-A", "--step", "default", "--json")
    assert judged.code == 0, judged.out
    assert judged.document["judged"]["verdict"] == "PROMOTE_TO_DEFAULT"
    assert ["PASS"] * 7 == [finding["state"] for finding in judged.document["judged"]["findings"]]
    assert run("replay", file, *trust(file), "--update", "update-Z", "--step", "canary").code == 6


def test_replay_shows_what_was_erased(run: Run, tmp_path: Path) -> None:
    """From the file alone: which content of the update is gone, and by which entry; the digests stay."""
    story = Story(demo_document(small), SignedLog())
    story.setup()
    candidate, blob = story.candidate("A"), options_pb2.Blob(digest=bytes(range(32)), size=9)
    story.until_approval(candidate, change("span_recorded", lambda body: body.blob.CopyFrom(blob)))
    words = ("--update", "update-A", "--step", "canary")
    told = []
    for index in (None, story.say(operator_pb2.BlobErased(digest=blob.digest, reason="asked for"))):
        assert isinstance(story.log, SignedLog)
        size = story.log.forge.size if index is not None else story.log.forge.size - 1
        file = write_export(story.log, tmp_path, size=size)
        told.append(run("replay", file, *trust(file), "--forget", *words, "--json").document["judged"])
    rollout = story.scenario.rollout_id(candidate, 0)
    shown = [{"rollout": rollout, "digest": blob.digest.hex(), "erased": index}]
    assert [[], shown] == [judged["erased_content"] for judged in told]
    for name in ("evidence_digest", "findings_digest", "verdict"):
        assert told[0][name] == told[1][name]
    out = run("replay", file, *trust(file), "--forget", *words).out
    assert f"{rollout}: content {blob.digest.hex()} ERASED by the entry at index {index}" in out


def test_replay_finds_a_verdict_that_does_not_follow(
    run: Run, promoted: tuple[Story, SignedLog], tmp_path: Path
) -> None:
    """A gate's false verdict, well signed, verifies and does not replay: exit 3, step R2, its index."""
    log = promoted[1]
    index, body = next(
        (entry[0], entry[4].verdict_issued)
        for entry in log.entries
        if entry[4].WhichOneof("body") == "verdict_issued"
    )
    forged = SignedLog()
    for entry in log.entries[forged.size : index]:
        forged.forge.add(key_of(entry[3].key.name), entry[4], recorded_at=entry[1])
    false = gate_pb2.VerdictIssued()
    false.CopyFrom(body)
    false.evidence_digest = bytes(32)
    forged.forge.add(
        key_of("gate-1"), event_pb2.Event(event_id=event_id(1), verdict_issued=false), recorded_at=log.clock
    )
    file = write_export(forged, tmp_path)
    assert run("verify", file, *trust(file)).code == 0
    ran = run("replay", file, *trust(file), "--json")
    assert ran.code == 3
    assert ("R2", index) == (ran.document["step"], ran.document["index"])


def test_replay_of_a_log_without_powers_used(run: Run, tmp_path: Path) -> None:
    """A log in which nothing was judged replays: nothing is no fault."""
    forge = Forge()
    forge.add(ROOT, opened())
    file = tmp_path / "log.assay"
    file.write_bytes(forge.export())
    (tmp_path / "trust.txt").write_text(forge.trust_text)
    ran = run("replay", file, *trust(file), "--json")
    assert ran.code == 0
    assert (0, 0, 0) == tuple(ran.document[key] for key in ("verdicts", "moves", "freezes"))


# --- no network ------------------------------------------------------------------------------------------


_WATCHED = """
import sys
made = []
sys.addaudithook(lambda event, _: made.append(event) if event.startswith("socket.") else None)
from clients.cli.main import main
try:
    main()
except SystemExit as end:
    code = end.code
print(int(code), made, sorted({"grpc", "asyncio", "ssl"} & set(sys.modules)))
"""


@pytest.mark.parametrize("command", ["verify", "replay"])
def test_no_network_is_used(command: str, file: Path, tmp_path: Path) -> None:
    """verify and replay make no socket, and load neither gRPC nor an event loop."""
    done = subprocess.run(
        [sys.executable, "-c", _WATCHED, command, str(file), *trust(file), "--memory", str(tmp_path / "m")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 [] []", done.stderr
