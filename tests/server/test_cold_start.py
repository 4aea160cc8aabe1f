"""A start that reads the log's end, not the log: same answers, whatever became of the derived files."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import shutil
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from clients.demo.document import DemoDocument
from clients.home import load_home
from clients.keyfile import read_key
from clients.receipts import ReceiptsClient
from gate.report import receipt_document
from ledger.entry import Opening, decode_entry, iter_run
from ledger.errors import AssayError, FatalError, NotFoundError
from ledger.merkle import leaf_hash
from ledger.server import recovery, state
from ledger.server.durable import Folder
from ledger.server.folds import Folded, FoldRunner
from ledger.server.recovery import TILES, VIEWS, recover
from ledger.server.sqlite import SQLiteStore
from ledger.server.stored import Facts, entries_at
from ledger.server.tiles import TiledTree
from ledger.server.views import Views
from ledger.trust import Authority, Grant, parse_trust_document
from ledger.v1 import event_pb2, gate_pb2
from tests.bench.biglog import make_big_log
from tests.events import minimal_event
from tests.gate_lab import CANARY, DEFAULT, GateLab, Wire
from tests.lab import START, Lab
from tests.memory import demo_document, small
from tests.memory_log import MemoryLog


def _small() -> DemoDocument:
    return demo_document(small)


def _data(lab: Lab) -> Path:
    return lab.path / "ledger" / "data"


def _change(path: Path, statement: str, *values: Any) -> int:
    """Changes rows behind the ledger's back; how many."""
    with sqlite3.connect(path) as connection:
        count = connection.execute(statement, values).rowcount
    connection.close()
    return count


def _replace(store: Path, old: bytes, new: bytes) -> int:
    """Replaces bytes in stored runs; in how many."""
    _change(store, "DROP TRIGGER IF EXISTS stored_events_no_update")
    changed = 0
    with sqlite3.connect(store) as connection:
        runs = connection.execute(
            "SELECT originator_id, originator_version, state FROM stored_events WHERE topic = 'assay/run/v1'"
        ).fetchall()
        for originator, version, state in runs:
            if old in state:
                changed += connection.execute(
                    "UPDATE stored_events SET state = ? WHERE originator_id = ? AND originator_version = ?",
                    (state.replace(old, new), originator, version),
                ).rowcount
    connection.close()
    return changed


def _rows(lab: Lab) -> list[Any]:
    """All rows; the ledger must not run."""
    views = Views(_data(lab) / VIEWS, lab.home.origin)
    try:
        return [views.size, views.root, views.orphans, *views.dump()]
    finally:
        views.close()


def _built_again(lab: Lab) -> list[Any]:
    """The rows of a start without any file that was derived, nothing of which is kept."""
    folder = lab.root / "again"
    folder.mkdir()
    store = lab.store()
    try:
        recovered = recover(store, lab.trust, folder)
        changes = recovered.take_changes()
        recovered.views.write(changes)
        recovered.views.close()
    finally:
        store.close()
    views = Views(folder / VIEWS, lab.home.origin)
    found = [views.size, views.root, views.orphans, *views.dump()]
    views.close()
    shutil.rmtree(folder)
    return found


async def _followed(lab: Lab, update: str, start: int = 0) -> list[tuple[int, bytes]]:
    """What the update's own trainer may read of it."""
    found = []
    async for message in lab.client("trainer-1").follow_update(update, start):
        if message.caught_up_size:
            break
        found.append((message.index, message.entry))
    return found


async def _answers(lab: GateLab, wire: Wire, updates: Iterable[str]) -> dict[str, Any]:
    """What the ledger says of everything, but for the checkpoint's signature."""
    client = ReceiptsClient(lab.client("auditor-1"))
    resource, scope = wire.document.resource, wire.scenario.scope
    default = await client.resolve_default(resource, scope)
    candidate = await client.latest_candidate(resource, scope)
    found: dict[str, Any] = {
        "list": [str(summary) for summary in [s async for s in client.list_updates()]],
        "default": (default.index, default.manifest_digest, list(default.at_risk), default.moved_index),
        "candidate": str(candidate),
    }
    for update in updates:
        found[update] = await client.get_update(update)
        found[f"followed {update}"] = await _followed(lab, update)
        found[f"followed from 30 {update}"] = await _followed(lab, update, 30)
    for position in range(3):
        rollout = wire.scenario.rollout_id(wire.candidate("A"), position)
        found[rollout] = await client.get_rollout(rollout)
    return found


async def test_answers_are_the_same_after_a_cold_start() -> None:
    """GetUpdate, ListUpdates, GetRollout, ResolveDefault, LatestCandidate and FollowUpdate."""
    async with GateLab() as lab:
        wire = Wire(lab, _small())
        await wire.setup()
        update, index = await wire.until_default_verdict(wire.candidate("A"))
        await wire.gate("approver-2").promote(update, index)
        await wire.send("trainer-1", wire.scenario.proposal(wire.candidate("B")))
        before = await _answers(lab, wire, ["update-A", "update-B"])
        await lab.restart()
        wire = Wire(lab, _small())
        assert before == await _answers(lab, wire, ["update-A", "update-B"])
        await lab.stop()
        (_data(lab) / VIEWS).unlink()
        shutil.rmtree(_data(lab) / TILES)
        await lab.start()
        wire = Wire(lab, _small())
        assert before == await _answers(lab, wire, ["update-A", "update-B"])


async def test_a_story_goes_on_over_cold_starts() -> None:
    """The ledger forgets every record between any two steps, and the promotion still holds in it."""
    async with GateLab() as lab:
        candidate = _small().candidates[0]

        async def again() -> Wire:
            await lab.restart()
            return Wire(lab, _small())

        wire = Wire(lab, _small())
        await wire.setup()
        wire = await again()
        update = await wire.until_approval(candidate)
        wire = await again()
        await wire.approve(candidate)
        canary = await wire.gate("operator-1").evaluate(update, CANARY, record=True)
        wire = await again()
        await wire.live_window(candidate, canary.index)
        wire = await again()
        await wire.approve(candidate, DEFAULT)
        final = await wire.gate("operator-1").evaluate(update, DEFAULT, record=True)
        assert gate_pb2.VERDICT_PROMOTE_TO_DEFAULT == final.verdict.verdict
        wire = await again()
        await wire.gate("approver-2").promote(update, final.index)
        wire = await again()
        client = ReceiptsClient(lab.client("auditor-1"))
        default = await client.resolve_default(wire.document.resource, wire.scenario.scope)
        assert wire.scenario.candidate_digest(candidate) == default.manifest_digest
        receipt = await client.get_update(update)
        assert [None, None] == [verdict["void"] for verdict in receipt["after"]["verdicts"]]
        await lab.stop()
        assert _built_again(lab) == _rows(lab)
        await lab.start()


async def test_the_loop_reads_no_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receipts, and judgments that need records, after a start that made none: the reading thread reads."""
    readers: list[str] = []
    stored = SQLiteStore.runs

    def runs(store: SQLiteStore, start: int) -> Iterator[tuple[int, bytes]]:
        readers.append(threading.current_thread().name)
        return stored(store, start)

    async with GateLab() as lab:
        wire = Wire(lab, _small())
        await wire.setup()
        update = await wire.until_approval(wire.candidate("A"))
        await lab.restart()
        monkeypatch.setattr(SQLiteStore, "runs", runs)
        await ReceiptsClient(lab.client("auditor-1")).get_update(update)
        assert readers
        await lab.restart()
        readers.clear()
        wire = Wire(lab, _small())
        await wire.approve(wire.candidate("A"))
        canary = await wire.gate("operator-1").evaluate(update, CANARY, record=True)
        receipt = await ReceiptsClient(lab.client("auditor-1")).get_update(update)
        assert [canary.index] == [verdict["index"] for verdict in receipt["after"]["verdicts"]]
        assert {name for name in readers if not name.startswith(("ledger-reader", "ledger-tiles"))} == set()


async def test_what_cannot_be_read_ahead_is_left_to_the_fold(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so once for the batch, and every fold gets it all the same."""
    folded: list[int] = []

    class Counting:
        def apply(
            self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
        ) -> None:
            folded.append(index)

    async def ahead(events: Sequence[event_pb2.Event]) -> None:
        raise FatalError("STORE_UNREADABLE", f"expected to read for {len(events)} events, got no store")

    runner = FoldRunner([Counting()])
    runner.read_ahead(ahead)
    log = MemoryLog()
    index, recorded_at, leaf, grant, event, _ = log.entries[0]
    running = asyncio.create_task(runner.run())
    runner.give(Folded(index, recorded_at, grant, [leaf], [event]))
    await runner.through()
    assert [0] == folded
    assert ["nothing is read ahead"] == [record.getMessage()[:21] for record in caplog.records]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_after_a_stop_nothing_is_left_to_fold() -> None:
    """A clean stop writes views and tiles up to the head."""
    async with Lab() as lab:
        await lab.of_role("runner").append([lab.event(minimal_event("rollout_enqueued"))] * 3)
        await lab.stop()
        store = lab.store()
        head = store.head()
        store.close()
        assert head is not None
        assert head[0] == _rows(lab)[0]
        await lab.start()


async def test_kill_at_any_time_leaves_rows_of_a_prefix() -> None:
    """SIGKILL while batches are on their way: after a start the rows equal rows built from nothing."""
    async with Lab(subprocess=True) as lab:
        for number in range(4):
            enough = asyncio.Event()

            async def write(
                role: str, body: str, count: int = 20 * (number + 1), enough: asyncio.Event = enough
            ) -> None:
                client = lab.of_role(role, attempts=1)
                for position in itertools.count():
                    fields = {"rollout": f"ro-{position % 7}"} if body == "rollout_enqueued" else {}
                    event = minimal_event(body, update=f"up-{position % 3}", **fields)
                    try:
                        await client.append([lab.event(event)] * 20)
                    except AssayError:
                        return  # it was killed
                    if position == count:
                        enough.set()

            writing = [
                asyncio.create_task(write("runner", "rollout_enqueued")),
                asyncio.create_task(write("trainer", "update_proposed")),
            ]
            await enough.wait()
            await lab.kill()
            await asyncio.gather(*writing)
            await lab.start()
            await lab.stop()
            assert _built_again(lab) == _rows(lab)
            await lab.start()


@pytest.mark.parametrize("what", ["ahead", "another root", "unreadable", "another version"])
async def test_views_that_are_not_the_logs_are_built_again(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A store set back together with its tiles, or rows of anything else: dropped, and the server says so."""
    async with Lab() as lab:
        path, kept = _data(lab) / VIEWS, lab.root / "kept"
        await lab.of_role("runner").append([lab.event(minimal_event("rollout_enqueued"))])
        await lab.stop()
        shutil.copytree(_data(lab), kept)
        await lab.start()
        await lab.of_role("trainer").append([lab.event(minimal_event("update_proposed"))])
        await lab.stop()
        if what == "ahead":
            shutil.copy(path, kept / VIEWS)
            shutil.rmtree(_data(lab))
            kept.rename(_data(lab))
        elif what == "another root":
            assert 1 == _change(path, "UPDATE log SET root = ?", bytes(32))
        elif what == "another version":
            assert 1 == _change(path, "UPDATE log SET version = version + 1")
        else:
            path.write_bytes(b"rubbish" * 1000)
        with caplog.at_level(logging.WARNING):
            await lab.start()
        assert any("are built again" in record.message for record in caplog.records)
        await lab.stop()
        assert _built_again(lab) == _rows(lab)
        await lab.start()


@pytest.mark.parametrize("derived", ["views and tiles", "views", "tiles", "neither"])
async def test_law_06_nothing_that_was_derived_hides_a_store_that_was_set_back(derived: str) -> None:
    """Views and tiles of the newer log, kept beside an older database: the start is refused all the same."""
    async with Lab() as lab:
        path = _data(lab) / "ledger.sqlite"
        await lab.of_role("runner").append([lab.event(minimal_event("rollout_enqueued"))])
        await lab.stop()
        older = path.read_bytes()
        await lab.start()
        await lab.of_role("trainer").append([lab.event(minimal_event("update_proposed"))])
        await lab.stop()
        newer = path.read_bytes()
        path.write_bytes(older)
        kept = lab.root / "kept"
        shutil.copytree(_data(lab), kept)
        if "views" not in derived:
            (_data(lab) / VIEWS).unlink()
        if "tiles" not in derived:
            shutil.rmtree(_data(lab) / TILES)
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "BEHIND_RELEASED" == caught.value.reason
        shutil.rmtree(_data(lab))
        kept.rename(_data(lab))
        path.write_bytes(newer)
        await lab.start()


async def test_law_13_rows_that_lie_make_no_default_of_a_candidate() -> None:
    """A row that calls a candidate a promotion, or another entry the candidate, is not used."""
    async with GateLab() as lab:
        wire = Wire(lab, _small())
        await wire.setup()
        await wire.until_approval(wire.candidate("A"))
        before = await _answers(lab, wire, ["update-A"])
        await lab.stop()
        path = _data(lab) / VIEWS
        registered = int(before["candidate"].rpartition("index: ")[2])
        assert 1 == _change(path, "INSERT INTO spine VALUES (?, 'default_promoted')", registered)
        await lab.start()
        assert before == await _answers(lab, Wire(lab, _small()), ["update-A"])
        await lab.stop()
        assert 1 == _change(path, "UPDATE candidates SET position = position - 1")
        await lab.start()
        assert before == await _answers(lab, Wire(lab, _small()), ["update-A"])


async def test_an_entry_that_is_not_the_trees_is_not_judged() -> None:
    """What was changed in the store below the views is found when it is asked for, and not served."""
    async with Lab() as lab:
        await lab.of_role("trainer").append([lab.event(minimal_event("update_proposed", update="up-1"))])
        await lab.of_role("runner").append([lab.event(minimal_event("rollout_enqueued"))])
        await lab.stop()
        store = _data(lab) / "ledger.sqlite"
        assert 1 == _replace(store, b"up-1", b"up-2")
        await lab.start()
        client = ReceiptsClient(lab.of_role("auditor"))
        with pytest.raises(AssayError) as caught:
            await client.get_update("up-1")
        assert not isinstance(caught.value, NotFoundError)
        with pytest.raises(AssayError):
            await lab.check()
        await lab.stop()
        assert 1 == _replace(store, b"up-2", b"up-1")
        await lab.start()


async def test_an_author_who_is_not_the_trees_is_not_believed() -> None:
    """The opening alone was changed, of a batch in which the asked entry comes later."""
    async with Lab() as lab:
        events = [minimal_event("update_proposed", update=f"up-{number}") for number in (1, 2)]
        await lab.client("trainer-1").append([lab.event(event) for event in events])
        await lab.of_role("runner").append([lab.event(minimal_event("rollout_enqueued"))])
        await lab.stop()
        store = _data(lab) / "ledger.sqlite"
        opened = len(events).to_bytes(2, "big") + bytes([len("trainer-1")])
        assert 1 == _replace(store, opened + b"trainer-1", opened + b"trainer-2")
        await lab.start()
        with pytest.raises(AssayError) as caught:
            await ReceiptsClient(lab.of_role("auditor")).get_update("up-2")
        assert not isinstance(caught.value, NotFoundError)
        await lab.stop()
        assert 1 == _replace(store, opened + b"trainer-2", opened + b"trainer-1")
        await lab.start()


async def test_law_15_a_time_that_is_not_the_trees_is_no_clock() -> None:
    """A verdict's only clock is recorded_at of an entry: one that was changed in the store is refused."""
    async with Lab() as lab:
        placed = await lab.of_role("trainer").append([lab.event(minimal_event("update_proposed"))])
        await lab.of_role("runner").append([lab.event(minimal_event("rollout_enqueued"))])
        await lab.stop()
        index = placed.first_index
        tree = TiledTree.open(_data(lab) / TILES, [lab.trust.log])
        assert tree is not None
        before, after = (struct.pack(">BQQ", 1, index, START + more) for more in (0, 1))

        def asked() -> int:
            store = lab.store()
            try:
                return Facts(store, lambda: Authority.initial(lab.trust), tree).recorded_at(index)
            finally:
                store.close()

        assert START == asked()
        assert 1 == _replace(_data(lab) / "ledger.sqlite", before, after)
        with pytest.raises(FatalError, match="the tree's entry"):
            asked()
        assert 1 == _replace(_data(lab) / "ledger.sqlite", after, before)
        await lab.start()


async def test_streams_that_were_forgotten_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one, the store is asked for a stream's next sequence: none has a gap or begins anew."""
    monkeypatch.setattr(state, "_MOST_STREAMS", 1)
    async with Lab() as lab:
        runner = lab.of_role("runner")
        streams = [runner.open_stream() for _ in range(4)]
        for _ in range(3):
            for stream in streams:
                await stream.append([lab.event(minimal_event("rollout_enqueued"))])
        await asyncio.gather(
            *(stream.append([lab.event(minimal_event("rollout_enqueued"))]) for stream in streams)
        )
        assert lab.host is not None
        assert 5 >= len(lab.host.services.sequencer.state.next_sequence)


def test_entries_are_found_in_any_order_of_jumps(tmp_path: Path) -> None:
    """Runs of many batches: each entry with its batch's opening and its leaf, however far the next one is."""
    make_big_log(tmp_path / "home", 3000, verdicts=False)
    home = load_home(tmp_path / "home")
    store = SQLiteStore(Folder(tmp_path / "home" / "ledger" / "data"), home.origin)
    entries = [data for _, run in store.runs(0) for data in iter_run(run)]
    openings: list[Opening] = []
    for data in entries:
        opening = decode_entry(data).opening
        openings.append(openings[-1] if opening is None else opening)
    chance = random.Random(3)
    for count in (1, 3, 50, len(entries)):
        wanted = sorted(chance.sample(range(len(entries)), count))
        for position, found in zip(wanted, entries_at(store, wanted), strict=True):
            entry = decode_entry(entries[position])
            expected = (position, entry.recorded_at, entry.event, openings[position])
            assert expected == found[:4]
            assert leaf_hash(entries[position]) == found.leaf
    with pytest.raises(FatalError) as caught:
        list(entries_at(store, [len(entries)]))
    assert "STORE_BROKEN" == caught.value.reason
    store.close()


def test_a_long_log_is_recovered_by_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start folds everything, writing as it goes; the next one folds nothing and finds the same."""
    monkeypatch.setattr(recovery, "_AT_ONCE", 1000)
    size = make_big_log(tmp_path / "home", 6000)
    home = load_home(tmp_path / "home")
    trust = parse_trust_document((tmp_path / "home" / "trust.txt").read_bytes())
    data = tmp_path / "home" / "ledger" / "data"
    store = SQLiteStore(Folder(data), home.origin)
    keys = state.KeyRing([read_key(tmp_path / "home" / "ledger" / "note.key")])
    first = recover(store, trust, data, keys=keys)
    assert 0 < size - first.views.size < 3000
    document = receipt_document(first.view.receipts, "update-00001", size)
    changes = first.take_changes()
    first.views.write(changes)
    first.written(changes)
    first.views.close()
    folded: list[int] = []
    monkeypatch.setattr(recovery.FoldRunner, "apply", lambda _, batch: folded.append(batch.first_index))
    second = recover(store, trust, data, keys=keys)
    assert [] == folded
    assert (size, first.tree.root()) == (second.state.size, second.tree.root())
    assert first.state.authority == second.state.authority
    assert first.state.touched == second.state.touched
    assert (first.state.recorded_at, first.state.last_leaf) == (
        second.state.recorded_at,
        second.state.last_leaf,
    )
    assert document == receipt_document(second.view.receipts, "update-00001", size)
    second.views.close()
    store.close()
