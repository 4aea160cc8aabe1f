"""What a tamper-evident log must detect or survive: each known threat, run once from end to end.

    tail cut off · rollback to an older valid state · fork, split view · stale view · reorder, gap, duplicate
    index · stolen or rotated key · canonicalization · replayed append · cross-log replay · leaf/node
    confusion · clock backwards · late async write over a newer tile · fsync error lost · two writers · a
    chain and a tree that disagree · monitor saves its state before the scan is done · bundle cut short

The parts have suites of their own; here a threat is met by all of them together.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from clients.cli.audit import Audit
from clients.memory import Memory
from ledger.batch import batch_text, event_root, sign_batch
from ledger.bundle import Bundle, Citation, Claim, encode_bundle, make_claim, verify_bundle
from ledger.checkpoint import Checkpoint, parse_checkpoint_text, sign_checkpoint
from ledger.entry import decode_entry, encode_entry, encode_run, iter_run
from ledger.errors import (
    AssayError,
    CannotTellError,
    FatalError,
    FormatError,
    RefusedError,
    VerificationError,
)
from ledger.genesis import decode_genesis, encode_genesis
from ledger.head import Freshness
from ledger.merkle import Tree, leaf_hash, node_hash, root, verify_consistency, verify_inclusion
from ledger.note import parse_note
from ledger.server import durable
from ledger.server.durable import Folder
from ledger.server.sqlite import SQLiteStore
from ledger.server.store import Commit
from ledger.v1 import event_pb2
from ledger.verify import verify_export
from tests.forge import (
    LEDGER,
    ORIGIN,
    ROLES,
    START,
    Forge,
    export_of,
    granted,
    make_key,
    numbered,
    refused,
    relink,
    revoked,
    rotated,
    verify,
    witness_key,
)
from tests.forge import ROOT as ROOT_KEY
from tests.hardening import test_clocks
from tests.lab import Lab
from tests.server import test_tiles, test_witnesses
from tests.server.people import batch, body, enqueued, reason_of

log = test_tiles.log  # a fixture

WITNESSES = [witness_key(f"witness-{number}") for number in (1, 2)]
BOTH = "".join(f"witness w{n} {key.verifier_key}\n" for n, key in enumerate(WITNESSES, 1))
QUORUM = f"{BOTH}group all all w1 w2\nquorum all\n"


def _log(batches: int = 4, policy: str = "quorum none\n") -> Forge:
    forge = Forge.opened("runner", "trainer", policy=policy)
    for number in range(batches):
        forge.add("runner", numbered(2 * number), numbered(2 * number + 1))
    return forge


def _data(lab: Lab) -> Path:
    return lab.path / "ledger" / "data"


# --- what a file can be ------------------------------------------------------------------------------------


async def test_tail_cut_off() -> None:
    """The checkpoint says how many entries there are: every shorter file of a real log is refused."""
    async with Lab() as lab:
        await lab.of_role("runner").append([enqueued(lab) for _ in range(20)])
        export = await lab.export()
        header, entries = _taken_apart(export)
        for kept in range(len(entries)):
            with pytest.raises(VerificationError) as caught:
                verify(header + encode_run(entries[:kept]), lab.trust)
            assert caught.value.step in ("V3", "V5")
        for cut in range(1, 60):
            with pytest.raises(VerificationError):
                verify(export[:-cut], lab.trust)


def _taken_apart(export: bytes) -> tuple[bytes, list[bytes]]:
    length = int.from_bytes(export[16:20], "big")
    end = 20 + length
    return export[:end], [bytes(entry) for entry in iter_run(export[end:])]


async def test_rollback_to_an_older_valid_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything on disk set back: each check of a single snapshot passes, and who remembers sees it."""
    async with Lab() as lab:
        memory = Memory(lab.trust, tmp_path / "memory", "auditor-1")
        await lab.of_role("runner").append([enqueued(lab)])
        await lab.stop()
        shutil.copytree(_data(lab), tmp_path / "old")
        await lab.start()
        await lab.of_role("runner").append([enqueued(lab)])
        await lab.of_role("auditor", memory=memory).get_checkpoint()
        newer = await lab.export()
        await lab.stop()
        shutil.rmtree(_data(lab))
        shutil.copytree(tmp_path / "old", _data(lab))
        await lab.start()
        older = await lab.export()
        verify(older, lab.trust)  # alone it is a valid log
        auditor = lab.of_role("auditor", memory=memory)
        assert "ROLLED_BACK" == await reason_of(auditor.get_checkpoint(), VerificationError)
        remembered = _taken_apart(newer)[0][20:]
        with pytest.raises(VerificationError) as caught:
            verify(older, lab.trust, remembered=remembered)
        assert ("V7", "ROLLED_BACK") == (caught.value.step, caught.value.reason)
    # Witnesses remember for those who do not, the ledger among them.
    behind = _log(3, QUORUM)
    refused(behind, "V6", "NO_QUORUM", None, export=behind.export())
    (tmp_path / "witnessed").mkdir()
    async with asyncio.timeout(60):
        await test_witnesses.test_law_06_a_ledger_set_back_whole_learns_it_from_its_witness(
            tmp_path / "witnessed", caplog
        )


async def test_fork_split_view(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two logs under one key: who saw one refuses the other and keeps both signed notes; witnesses too."""
    ours, theirs = _log(3), _log(2)
    theirs.add("runner", numbered(99), numbered(98))
    assert ours.size == theirs.size
    for name, forge in (("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_bytes(forge.export())
    audit = Audit(ours.trust, tmp_path / "memory")
    audit.verify(tmp_path / "ours")
    with pytest.raises(VerificationError) as caught:
        audit.verify(tmp_path / "theirs")
    assert ("V7", "FORKED") == (caught.value.step, caught.value.reason)
    kept = {path.read_bytes() for path in (tmp_path / "memory").iterdir()}
    assert {ours.checkpoint(), theirs.checkpoint()} <= kept
    assert Checkpoint(ORIGIN, ours.size, root(ours.leaves)) == parse_checkpoint_text(
        parse_note(ours.checkpoint()).text
    )
    # A later view that leaves out what was seen before is one too.
    theirs.add("runner", numbered(97), numbered(96))
    with pytest.raises(VerificationError) as caught:
        verify(theirs.export(), theirs.trust, remembered=ours.checkpoint())
    assert ("V7", "FORKED") == (caught.value.step, caught.value.reason)
    # A quorum that must overlap cannot cosign both views of one size.
    split = _log(3, QUORUM)
    one_each = [split.checkpoint(witnesses=[witness]) for witness in WITNESSES]
    for note in one_each:
        refused(split, "V6", "NO_QUORUM", None, export=split.export(note))
    verify(split.export(split.checkpoint(witnesses=WITNESSES)), split.trust)
    async with asyncio.timeout(60):
        await test_witnesses.test_law_06_a_split_view_has_no_quorum(tmp_path, caplog)


def test_stale_view() -> None:
    """A cosignature says how old it is: beyond the greatest age the view is refused, within it it passes."""
    forge = _log(2, QUORUM)
    export = forge.export(forge.checkpoint(witnesses=WITNESSES))
    made = START // 1_000_000
    verify_export(BytesIO(export), forge.trust, fresh=Freshness(now=made + 3600, max_age=3600))
    with pytest.raises(VerificationError) as caught:
        verify_export(BytesIO(export), forge.trust, fresh=Freshness(now=made + 3601, max_age=3600))
    assert ("V6", "STALE_COSIGNATURE") == (caught.value.step, caught.value.reason)


@pytest.mark.parametrize("index", range(4, 9))
def test_reorder_gap_duplicate_index(index: int) -> None:
    """Swapped, left out or doubled entries do not verify; nor when a bribed ledger makes the links right."""
    entries = _log().entries
    changed = {
        "swapped": [*entries[:index], entries[index + 1], entries[index], *entries[index + 2 :]],
        "left out": [*entries[:index], *entries[index + 1 :]],
        "doubled": [*entries[: index + 1], *entries[index:]],
    }
    for name, those in changed.items():
        plain = Forge()
        for entry in those:
            plain.append(entry)
        with pytest.raises(VerificationError) as caught:
            verify(plain.export(), plain.trust)
        assert ("V2", name) == (caught.value.step, name)
        with pytest.raises(VerificationError) as caught:
            verify(relink(those).export(), plain.trust)
        assert ("V3", name) == (caught.value.step, name)


def test_stolen_or_rotated_key() -> None:
    """What a key wrote before it was revoked or rotated stays verifiable; what it writes after is refused."""
    stolen, successor = make_key("runner"), make_key(ORIGIN, "2")
    forge = _log(2)
    forge.add(ROOT_KEY, granted(make_key("runner", "2"), ROLES["runner"]))
    forge.add(ROOT_KEY, revoked(stolen, suspect_from=5))
    forge.add(make_key("runner", "2"), numbered(50))
    assert forge.size == forge.verify().size
    before = forge.checkpoint()
    forge.add(ROOT_KEY, rotated(successor))
    refused(forge, "V6", "NO_KNOWN_SIGNATURE", None)
    after = forge.checkpoint(key=successor)
    verify(forge.export(after), forge.trust)
    verify(forge.export(before, forge.size - 1), forge.trust)  # the old key, for its range
    verify(forge.export(after), forge.trust, remembered=before)
    at = forge.add(stolen, numbered(51))
    refused(forge, "V4", "KEY_REVOKED", at, export=forge.export(forge.checkpoint(key=successor)))


async def test_stolen_key_at_the_door() -> None:
    """The same over the wire: refused from the revocation on."""
    async with Lab() as lab:
        runner = lab.of_role("runner")
        await runner.append([enqueued(lab)])
        key = runner.identity.key.verifier_key
        await lab.of_role("root").append([body(lab, "key_revoked", vkey=str(key), suspect_from=1)])
        assert "KEY_REVOKED" == await reason_of(runner.append([enqueued(lab)]), RefusedError)


def test_canonicalization() -> None:
    """Bytes are never encoded again to be checked, and one kind of signature is never another."""
    whole = numbered(7)
    head = event_pb2.Event(event_id=whole.event_id).SerializeToString()
    turned = whole.SerializeToString()[len(head) :] + head
    assert event_pb2.Event.FromString(turned) == whole
    forge = _log(1)
    at = forge.add("runner", turned)
    forge.verify()
    # The same event in the usual order is other bytes under the same signature.
    entry = decode_entry(forge.entries[at])
    forge.entries[at] = encode_entry(replace(entry, event=whole.SerializeToString()))
    forge.leaves[at] = leaf_hash(forge.entries[at])
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", at)
    # A batch note signed by the ledger is no checkpoint, and no batch note can be made to read as one.
    text = batch_text(ORIGIN, bytes(16), 0, 1, event_root([b"x"]))
    with pytest.raises(FormatError):
        parse_checkpoint_text(text)
    lines = text.split(b"\n")
    with pytest.raises(FormatError):
        sign_batch(LEDGER, "\n".join([ORIGIN, "1"]), bytes(16), 0, [b"x"])
    assert b"assay/batch/v1" == lines[0] != Checkpoint(ORIGIN, 1, bytes(32)).text().split(b"\n")[0]


async def test_replayed_append() -> None:
    """Sent again, before and after a restart and from another connection: one place, nothing added."""
    async with Lab() as lab:
        signed = batch(lab.identity("runner-1"), [enqueued(lab)])
        first = await lab.of_role("runner").append_signed(signed)
        await lab.restart()
        client = lab.of_role("runner")
        for _ in range(3):
            assert first.first_index == (await client.append_signed(signed)).first_index
        assert first.first_index + 1 == (await client.get_checkpoint()).size
    # A bribed ledger that places it a second time is refused by its sequence.
    forge = _log(2)
    at = forge.add("runner", numbered(0), numbered(1), sequence=0)
    refused(forge, "V3", "SEQUENCE_REPEATED", at)


async def test_cross_log_replay() -> None:
    """A batch made for one log is nothing in another, at the door and in a file."""
    async with Lab() as lab:
        identity = lab.identity("runner-1")
        text_for = "other-0123456789abcdef"
        events = [enqueued(lab)]
        line = sign_batch(identity.key, text_for, bytes(16), 0, events)
        client = lab.of_role("runner")
        request = batch(identity, events).request(0)
        request.note = line
        assert "OTHER_ORIGIN" == await reason_of(client.call(client.stub.Append, request), RefusedError)
    forge = _log(1)
    at = forge.add("runner", numbered(3), origin="other-0123456789abcdef")
    refused(forge, "V3", "BAD_BATCH_SIGNATURE", at)


def test_leaf_node_confusion() -> None:
    """An inner node is no leaf, a proof has its exact length, an index is below the size."""
    leaves = [leaf_hash(b"%d" % number) for number in range(7)]
    tree = Tree(leaves)
    top, proof = tree.root(), tree.inclusion(2, 7)
    assert verify_inclusion(leaves[2], 2, 7, proof, top)
    inner = node_hash(leaves[2], leaves[3])
    assert inner != leaf_hash(leaves[2] + leaves[3])
    for leaf, index, size, hashes in (
        (inner, 2, 7, proof[1:]),
        (leaf_hash(leaves[2] + leaves[3]), 1, 4, proof[1:]),
        (leaves[2], 2, 7, [*proof, bytes(32)]),
        (leaves[2], 2, 7, proof[:-1]),
        (leaves[2], 2, 9, proof),
        (leaves[2], 9, 7, proof),
        (leaves[2], 7, 7, proof),
        (leaves[0], 0, 0, []),
    ):
        assert not verify_inclusion(leaf, index, size, hashes, top)
    assert not verify_consistency(3, 7, tree.root(3), top, [*tree.consistency(3, 7), bytes(32)])
    assert not verify_consistency(0, 7, tree.root(0), top, [])


async def test_clock_backwards() -> None:
    """Never smaller, and refused when far back, until it is right."""
    await test_clocks.test_law_18_a_clock_set_far_back_refuses_and_recovers_by_itself()
    forge = _log(1)
    at = forge.add("runner", numbered(5), recorded_at=START - 1)
    refused(forge, "V2", "BAD_TIME", at)


# --- what disks and processes do ---------------------------------------------------------------------------


async def test_late_async_write_over_a_newer_tile(log: test_tiles.Log) -> None:
    """A full tile that is there with other bytes is never written over."""
    await test_tiles.test_law_06_a_full_tile_is_never_written_over(log)


async def test_fsync_error_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk reports an error once: nothing is acknowledged, and the ledger stops until it is started."""
    async with Lab() as lab:
        runner = lab.of_role("runner", attempts=1)
        signed = batch(runner.identity, [enqueued(lab)])
        await runner.get_checkpoint()

        def failing(_descriptor: int) -> None:
            monkeypatch.undo()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(durable.os, "fdatasync", failing)
        with pytest.raises(FatalError) as caught:
            await runner.append_signed(signed)
        assert "NOT_DURABLE" == caught.value.reason
        with pytest.raises(AssayError):
            await runner.append([enqueued(lab)])
        with pytest.raises(FatalError):
            await lab.stop()
        await lab.start()
        placed = await lab.of_role("runner").append_signed(signed)
        assert (await lab.check()).size == placed.first_index + 1


async def test_two_writers(tmp_path: Path) -> None:
    """The second process is refused by the lock; without a lock the database's own constraint stops it."""
    async with Lab() as lab:
        with pytest.raises(FatalError) as caught:
            SQLiteStore(Folder(_data(lab)), lab.home.origin)
        assert "ALREADY_RUNNING" == caught.value.reason
    first = SQLiteStore(Folder(tmp_path / "one"), ORIGIN)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "ledger.sqlite").symlink_to(tmp_path / "one" / "ledger.sqlite")
    second = SQLiteStore(Folder(tmp_path / "two"), ORIGIN)
    first.commit(Commit(0, encode_run([b"ours"]), (), 1, b"checkpoint of ours"))
    with pytest.raises(FatalError) as caught:
        second.commit(Commit(0, encode_run([b"theirs"]), (), 1, b"checkpoint of theirs"))
    assert "HEAD_MOVED" == caught.value.reason
    assert [(0, encode_run([b"ours"]))] == list(first.runs(0))
    first.close()
    second.close()


def test_a_chain_and_a_tree_that_disagree() -> None:
    """Links that are right under a root over other leaves, and a right root over links that are wrong."""
    forge, other = _log(), _log(3)
    other.add("runner", numbered(70), numbered(71))
    assert forge.size == other.size
    refused(forge, "V5", "BAD_ROOT", None, export=export_of(other.checkpoint(), forge.entries))
    at = 5
    entry = decode_entry(forge.entries[at])
    forge.entries[at] = encode_entry(replace(entry, previous=bytes(32)))
    forge.leaves[at] = leaf_hash(forge.entries[at])
    refused(forge, "V2", "BAD_LINK", at)


# --- what auditors do --------------------------------------------------------------------------------------


def test_monitor_saves_its_state_before_the_scan_is_done(tmp_path: Path) -> None:
    """A file with a good checkpoint and one bad entry at its end leaves what is remembered as it was."""
    forge = _log(2)
    audit, memory = Audit(forge.trust, tmp_path / "memory"), Memory(forge.trust, tmp_path / "memory")
    (tmp_path / "first").write_bytes(forge.export())
    audit.verify(tmp_path / "first")
    first = forge.checkpoint()
    forge.add("runner", numbered(8), signer=make_key("trainer"))
    (tmp_path / "bad").write_bytes(forge.export())
    with pytest.raises(VerificationError) as caught:
        audit.verify(tmp_path / "bad")
    assert "BAD_BATCH_SIGNATURE" == caught.value.reason
    memory = Memory(forge.trust, tmp_path / "memory")
    assert (first, 2 * 2 + 3) == (memory.note, memory.size)
    # So the log as it should have been is still taken for what it is: the same log, longer.
    good = _log(2)
    good.add("runner", numbered(8))
    (tmp_path / "good").write_bytes(good.export())
    audit.verify(tmp_path / "good")
    assert good.size == Memory(forge.trust, tmp_path / "memory").size


def test_bundle_cut_short() -> None:
    """Every length is checked against what is there: each beginning of each format is refused."""
    forge = _log(2)
    tree = Tree(forge.leaves)

    def claim(index: int) -> Claim:
        return make_claim(index, forge.entries.__getitem__, lambda at: tree.inclusion(at, tree.size))

    bundle = encode_bundle(Bundle(forge.checkpoint(), (Citation(claim(4), claim(1)),)))
    with pytest.raises(CannotTellError):
        verify_bundle(bundle, forge.trust)
    run = encode_run(forge.entries)
    genesis = encode_genesis([(sign_batch(ROOT_KEY, ORIGIN, bytes(16), 0, [b"e"]), [b"e"])])
    ends = {0}
    for entry in forge.entries:
        ends.add(max(ends) + 2 + len(entry))
    formats: dict[str, tuple[bytes, Callable[[bytes], object], set[int]]] = {
        "bundle": (bundle, lambda data: _proven(data, forge), set()),
        "run": (run, lambda data: list(iter_run(data)), ends),
        "export": (forge.export(), lambda data: verify(data, forge.trust), set()),
        "genesis": (genesis, decode_genesis, {0}),
    }
    for name, (whole, parse, fine) in formats.items():
        for length in range(len(whole)):
            if length not in fine:
                with pytest.raises(AssayError) as caught:
                    parse(whole[:length])
                assert not isinstance(caught.value, CannotTellError), (name, length)


def _proven(data: bytes, forge: Forge) -> None:
    verify_bundle(data, forge.trust)


def test_the_ledgers_own_key_signs_what_these_tests_believe() -> None:
    """The forge signs as the ledger does: no test above passes for want of a signature."""
    forge = _log(1)
    checkpoint = Checkpoint(ORIGIN, forge.size, root(forge.leaves))
    assert sign_checkpoint(checkpoint, LEDGER) == forge.checkpoint()
