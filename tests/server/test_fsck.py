"""`--fsck`: a stored log that is well has no findings; each kind of damage is found where it is."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest

from clients.home import ledger_config
from clients.keyfile import read_key
from ledger.checkpoint import Checkpoint, open_note, sign_checkpoint
from ledger.entry import decode_entry, encode_run, iter_run
from ledger.merkle import Tree, leaf_hash
from ledger.server.durable import Folder, Released
from ledger.server.fsck import check_store
from ledger.server.witnesses import COSIGNED
from ledger.v1 import options_pb2
from tests.lab import Lab
from tests.server.people import body, enqueued

_TOPICS = {"run": "assay/run/v1", "marker": "assay/marker/v1", "checkpoint": "assay/checkpoint/v1"}


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    """A log of the genesis and three commits more, its ledger stopped."""
    async with Lab() as lab:
        for count in (3, 1, 2):
            await lab.of_role("runner").append([enqueued(lab)] * count)
        await lab.stop()
        yield lab


async def _fsck(lab: Lab, *options: str, config: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Exit code and what stdout says."""
    file = lab.path / "fsck.json"
    file.write_text(json.dumps(config or ledger_config(lab.home)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ledger.server", "--config", str(file), "--fsck", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, told = await process.communicate()
    return process.returncode or 0, json.loads(said or b"{}") or told.decode()


def _found(lab: Lab) -> list[tuple[str, int | None]]:
    """Kind and place of what is found, by the check itself."""
    store = lab.store()
    try:
        findings = check_store(store, lab.trust, _data(lab)).findings
    finally:
        store.close()
    assert all(finding.found and finding.advice for finding in findings)
    return [(str(finding.kind), finding.position) for finding in findings]


def _data(lab: Lab) -> Path:
    return lab.path / "ledger" / "data"


def _sql(lab: Lab, statement: str, *values: object) -> list[Any]:
    """As somebody with the disk would: past the triggers."""
    with sqlite3.connect(_data(lab) / "ledger.sqlite") as database:
        for verb in ("update", "delete"):
            database.execute(f"DROP TRIGGER IF EXISTS stored_events_no_{verb}")
        rows = database.execute(statement, values).fetchall()
    database.close()
    return rows


def _rows(lab: Lab, kind: str) -> list[tuple[int, bytes]]:
    """(version, state), in order."""
    statement = (
        "SELECT originator_version, state FROM stored_events WHERE topic = ? ORDER BY originator_version"
    )
    return _sql(lab, statement, _TOPICS[kind])


def _replace(lab: Lab, kind: str, version: int, state: bytes) -> None:
    statement = "UPDATE stored_events SET state = ? WHERE topic = ? AND originator_version = ?"
    _sql(lab, statement, state, _TOPICS[kind], version)


def _remove(lab: Lab, kind: str, version: int) -> None:
    _sql(lab, "DELETE FROM stored_events WHERE topic = ? AND originator_version = ?", _TOPICS[kind], version)


async def test_a_log_that_is_well_has_no_findings_and_is_not_touched(lab: Lab) -> None:
    """Size and root are those of the released checkpoint; no byte of the log changes."""

    def digests() -> dict[str, str]:
        files = ("ledger.sqlite", "released")
        return {name: sha256((_data(lab) / name).read_bytes()).hexdigest() for name in files}

    before = digests()
    code, document = await _fsck(lab)
    assert [0, [], {}] == [code, document["findings"], document["counts"]]
    assert before == digests()
    size, note = _rows(lab, "checkpoint")[-1]
    assert [16, 16, lab.home.origin] == [size, document["size"], document["origin"]]
    assert bytes.fromhex(document["root"]) == open_note(note, lab.home.origin)[1].root


async def test_a_ledger_that_runs_is_left_alone(lab: Lab) -> None:
    """The check takes the ledger's lock, or ends."""
    await lab.start()
    code, said = await _fsck(lab)
    assert 3 == code
    assert "ALREADY_RUNNING" in said
    await lab.stop()


async def test_a_folder_without_a_log_stays_empty(lab: Lab) -> None:
    """Nothing is made by looking."""
    shutil.rmtree(_data(lab))
    code, said = await _fsck(lab)
    assert 2 == code
    assert "NO_STORE" in said
    assert not _data(lab).exists()


def _flip(lab: Lab) -> None:
    version, run = _rows(lab, "run")[-2]
    _replace(lab, "run", version, run[:-1] + bytes([run[-1] ^ 1]))


def _cut(lab: Lab) -> None:
    version, run = _rows(lab, "run")[-1]
    _replace(lab, "run", version, run[:-1])


def _half_a_batch(lab: Lab) -> None:
    version, run = _rows(lab, "run")[-1]
    _replace(lab, "run", version, encode_run(list(iter_run(run))[:1]))


def _no_run(lab: Lab) -> None:
    _remove(lab, "run", _rows(lab, "run")[-2][0])


_LAST_MARKER = f"rowid = (SELECT max(rowid) FROM stored_events WHERE topic = '{_TOPICS['marker']}')"
_AGAIN = "INSERT INTO stored_events (originator_id, originator_version, topic, state) SELECT originator_id,"


def _no_marker(lab: Lab) -> None:
    _sql(lab, f"DELETE FROM stored_events WHERE {_LAST_MARKER}")


def _other_marker(lab: Lab) -> None:
    _sql(lab, f"UPDATE stored_events SET state = zeroblob(40) WHERE {_LAST_MARKER}")


def _stray_marker(lab: Lab) -> None:
    _sql(lab, f"{_AGAIN} originator_version + 1, topic, state FROM stored_events WHERE {_LAST_MARKER}")


def _no_checkpoint(lab: Lab) -> None:
    _remove(lab, "checkpoint", 13)


def _other_checkpoint(lab: Lab) -> None:
    key = read_key(lab.path / "ledger" / "note.key")
    _replace(lab, "checkpoint", 13, sign_checkpoint(Checkpoint(lab.home.origin, 13, bytes(32)), key))


def _unsigned_checkpoint(lab: Lab) -> None:
    note = dict(_rows(lab, "checkpoint"))[13]
    _replace(lab, "checkpoint", 13, note[:-10] + b"AAAAAAAA" + note[-2:])


def _stray_checkpoint(lab: Lab) -> None:
    which = f"topic = '{_TOPICS['checkpoint']}' AND originator_version = 13"
    _sql(lab, f"{_AGAIN} 12, topic, state FROM stored_events WHERE {which}")


def _no_released(lab: Lab) -> None:
    (_data(lab) / "released").unlink()


def _release(lab: Lab, size: int, root: bytes) -> None:
    folder = Folder(_data(lab))
    released = Released(folder)
    key = read_key(lab.path / "ledger" / "note.key")
    released.put(sign_checkpoint(Checkpoint(lab.home.origin, size, root), key))
    released.close()
    folder.close()


def _ahead(lab: Lab) -> None:
    _release(lab, 17, bytes(32))


def _forked(lab: Lab) -> None:
    _release(lab, 15, bytes(32))


def _cosign(lab: Lab, note: bytes) -> None:
    (_data(lab) / COSIGNED).parent.mkdir()
    (_data(lab) / COSIGNED).write_bytes(note)


def _cosigned_more(lab: Lab) -> None:
    key = read_key(lab.path / "ledger" / "note.key")
    _cosign(lab, sign_checkpoint(Checkpoint(lab.home.origin, 17, bytes(32)), key))


def _cosigned_garbage(lab: Lab) -> None:
    _cosign(lab, b"no checkpoint\n")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_flip, [("log", 13)]),
        (_cut, [("log", 14)]),
        (_half_a_batch, [("log", 14)]),
        (_no_run, [("log", 13)]),
        (_no_marker, [("marker", 14)]),
        (_other_marker, [("marker", 14)]),
        (_stray_marker, [("marker", None)]),
        (_no_checkpoint, [("checkpoint", 13)]),
        (_other_checkpoint, [("checkpoint", 13)]),
        (_unsigned_checkpoint, [("checkpoint", 13)]),
        (_stray_checkpoint, [("checkpoint", 12)]),
        (_no_released, [("released", None)]),
        (_ahead, [("released", 17)]),
        (_forked, [("released", 15)]),
        (_cosigned_more, [("released", 17)]),
        (_cosigned_garbage, [("released", None)]),
    ],
)
async def test_damage_is_found_by_kind_and_place(
    lab: Lab, damage: Callable[[Lab], None], expected: list[tuple[str, int | None]]
) -> None:
    """One fault each, in a log that was well."""
    damage(lab)
    assert expected == _found(lab)


async def test_law_07_a_log_rewritten_by_who_holds_the_ledgers_key_is_found(lab: Lab) -> None:
    """Links, marker, checkpoint and released are all made to fit, and it starts: authors' signatures tell."""
    version, run = _rows(lab, "run")[-1]
    entries = list(iter_run(run))
    event = decode_entry(entries[-1]).event
    entries[-1] = entries[-1][: -len(event)] + event.replace(b"ro-1", b"ro-2")
    assert entries[-1] not in run
    leaves = [leaf_hash(entry) for _, state in _rows(lab, "run")[:-1] for entry in iter_run(state)]
    root = Tree([*leaves, *map(leaf_hash, entries)]).root()
    _replace(lab, "run", version, encode_run(entries))
    key = read_key(lab.path / "ledger" / "note.key")
    _replace(lab, "checkpoint", 16, sign_checkpoint(Checkpoint(lab.home.origin, 16, root), key))
    (_data(lab) / "released").unlink()
    _release(lab, 16, root)
    code, document = await _fsck(lab)
    (finding,) = document["findings"]
    assert [3, "log", 14] == [code, finding["kind"], finding["position"]]
    assert "BAD_BATCH_SIGNATURE" in finding["found"]


async def test_very_many_findings_are_counted_and_not_listed(lab: Lab) -> None:
    """A log whose markers are all gone answers in a screen, not in a novel."""
    await lab.start()
    client = lab.of_role("runner")
    for _ in range(120):
        await client.append([enqueued(lab)])
    await lab.stop()
    _sql(lab, "DELETE FROM stored_events WHERE topic = ?", _TOPICS["marker"])
    code, document = await _fsck(lab)
    assert [3, {"marker": 125}, 100] == [code, document["counts"], len(document["findings"])]


# --- what is derived ----------------------------------------------------------------------------------------


def _tile(lab: Lab) -> Path:
    return _data(lab) / "tiles" / "tile"


def _spoil_bundle(lab: Lab) -> None:
    file = _tile(lab) / "entries" / "000"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _spoil_hash(lab: Lab) -> None:
    file = _tile(lab) / "0" / "000"
    file.write_bytes(bytes(32) + file.read_bytes()[32:])


def _no_partial(lab: Lab) -> None:
    (partial,) = (_tile(lab) / "0" / "001.p").iterdir()
    partial.unlink()


def _no_top(lab: Lab) -> None:
    shutil.rmtree(_tile(lab) / "1")


def _garbage_published(lab: Lab) -> None:
    (_data(lab) / "tiles" / "checkpoint").write_bytes(b"no checkpoint\n")


def _views(lab: Lab, statement: str) -> None:
    with sqlite3.connect(_data(lab) / "views.sqlite") as database:
        assert database.execute(statement).rowcount > 0
    database.close()


def _spoil_view(lab: Lab) -> None:
    _views(lab, "UPDATE rollouts SET first = first + 1")


def _drop_view(lab: Lab) -> None:
    _views(lab, "DELETE FROM touched")


def _garbage_views(lab: Lab) -> None:
    (_data(lab) / "views.sqlite").write_bytes(b"no database, but as long as the header of one" * 5)


def _spoil_blob_index(lab: Lab) -> None:
    with sqlite3.connect(_data(lab) / "blobs.sqlite") as database:
        assert 1 == database.execute("UPDATE names SET rollout = 'ro-1'").rowcount
    database.close()


def _garbage_blob_index(lab: Lab) -> None:
    (_data(lab) / "blobs.sqlite").write_bytes(b"no database, but as long as the header of one" * 5)


@pytest.fixture
async def long_lab() -> AsyncIterator[Lab]:
    """A log of more than one tile, its ledger stopped."""
    async with Lab() as lab:
        await lab.of_role("runner").append([enqueued(lab, f"ro-{number}") for number in range(300)])
        await lab.of_role("operator").append([body(lab, "environment_changed")])
        blob = options_pb2.Blob(digest=bytes(32), size=1)
        await lab.of_role("runner").append([enqueued(lab, "ro-blob", input_blob=blob)])
        await lab.stop()
        yield lab


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_spoil_bundle, [("tiles", 0)]),
        (_spoil_hash, [("tiles", 0)]),
        (_no_partial, [("tiles", 256)]),
        (_no_top, [("tiles", 0)]),
        (_garbage_published, [("tiles", None)]),
        (_spoil_view, [("views", None)]),
        (_drop_view, [("views", None)]),
        (_garbage_views, [("views", None)]),
        (_spoil_blob_index, [("blob index", None)]),
        (_garbage_blob_index, [("blob index", None)]),
    ],
)
async def test_what_is_derived_and_wrong_is_found_and_made_again(
    long_lab: Lab, damage: Callable[[Lab], None], expected: list[tuple[str, int | None]]
) -> None:
    """Told first, removed only when asked for; the next start makes it again, and then all is well."""
    lab = long_lab
    assert [] == _found(lab)
    damage(lab)
    assert expected == _found(lab)
    assert expected == _found(lab)  # nothing was repaired unasked
    kind = expected[0][0]
    code, document = await _fsck(lab, "--repair-derived")
    assert [0, [kind]] == [code, document["removed"]]
    await lab.restart()
    await lab.stop()
    assert [] == _found(lab)
    assert {"tiles", "views.sqlite"} <= {item.name for item in _data(lab).iterdir()}


async def test_contents_that_are_not_what_their_digest_covers_are_found(lab: Lab) -> None:
    """Nothing repairs them but a backup; the log is whole all the same."""
    digest = sha256(b"a prompt").hexdigest()
    file = _data(lab) / "blobs" / digest[:2] / digest
    file.parent.mkdir(parents=True)
    file.write_bytes(b"a prompt")
    assert 0 == (await _fsck(lab))[0]
    file.write_bytes(b"another prompt")
    code, document = await _fsck(lab, "--repair-derived")
    assert [3, {"blob": 1}, []] == [code, document["counts"], document["removed"]]
    assert digest in document["findings"][0]["found"]


async def test_a_publication_that_is_ahead_of_the_store_is_evidence_and_stays(long_lab: Lab) -> None:
    """Tiles of a longer log say that the store was set back: no repair removes them (law 6)."""
    lab = long_lab
    key = read_key(lab.path / "ledger" / "note.key")
    published = _data(lab) / "tiles" / "checkpoint"
    published.write_bytes(sign_checkpoint(Checkpoint(lab.home.origin, 999, bytes(32)), key))
    code, document = await _fsck(lab, "--repair-derived")
    assert [3, []] == [code, document["removed"]]
    assert ("released", 999) in {(f["kind"], f["position"]) for f in document["findings"]}
    assert published.exists()


async def test_a_log_in_postgresql_is_checked_alike(postgres_url: str) -> None:
    """Well, then with one byte changed by whoever owns the table."""
    async with Lab(store_url=postgres_url) as lab:
        await lab.of_role("runner").append([enqueued(lab)] * 3)
        await lab.stop()
        config = ledger_config(lab.home) | {"store": postgres_url}
        code, document = await _fsck(lab, config=config)
        assert [0, 13] == [code, document["size"]]
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ALTER TABLE stored_events DISABLE TRIGGER ALL")
            changed = connection.execute(
                "UPDATE stored_events SET state = set_byte(state, length(state) - 1, 7)"
                " WHERE topic = %s AND originator_version = 11",
                [_TOPICS["run"]],
            )
            assert 1 == changed.rowcount
            connection.execute("ALTER TABLE stored_events ENABLE ALWAYS TRIGGER stored_events_append_only")
        code, document = await _fsck(lab, config=config)
        assert [3, [("log", 10)]] == [code, [(f["kind"], f["position"]) for f in document["findings"]]]
