"""Content by digest, by a ledger that runs: rights, limits, durability, erasure (design sections 5, 6, 8)."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import grpc
import pytest

from clients.blobs import BlobsClient, blob_of, new_salt
from clients.home import DEVELOPMENT_PRINCIPALS, ROOT, Principal
from clients.receipts import ReceiptsClient
from ledger.errors import (
    NotFoundError,
    OverloadedError,
    RefusedError,
    VerificationError,
)
from ledger.server.blob_service import WRITERS, BlobLimits
from ledger.server.blobs import Upload
from ledger.v1 import blob_pb2, blob_pb2_grpc, options_pb2, runner_pb2
from ledger.wire import error_of
from tests.lab import Lab
from tests.server.people import body, enqueued, reason_of, until

ROLES = ("root", "operator", "runner", "judge", "trainer", "canary", "approver", "gate", "auditor")
TEXT = b"a prompt that is too long for the log" * 1000
ALL = (
    *DEVELOPMENT_PRINCIPALS,
    Principal("runner-2", options_pb2.ROLE_RUNNER, "person-2"),
    Principal("trainer-2", options_pb2.ROLE_TRAINER, "team-2"),
)


def blobs(lab: Lab, name: str, **options: Any) -> BlobsClient:
    """The client of a principal."""
    return BlobsClient(lab.client(name, **options))


async def got(client: BlobsClient, digest: bytes) -> bytes:
    """The content of a digest."""
    content = BytesIO()
    await client.fetch(digest, content)
    return content.getvalue()


async def outcome(call: Any) -> str:
    """`yes`, or the reason of the refusal."""
    try:
        await call
    except (RefusedError, NotFoundError) as error:
        return error.reason
    return "yes"


def rollout(lab: Lab, name: str, mode: str, blob: options_pb2.Blob, update: str | None = "up-1") -> bytes:
    """A rollout that names a blob as its input."""
    fields = {} if update is None else {"update": update}
    return enqueued(lab, name, mode=runner_pb2.Mode.Value(f"MODE_{mode}"), input_blob=blob, **fields)


def span(lab: Lab, name: str, blob: options_pb2.Blob) -> bytes:
    """A span whose content is a blob."""
    return body(lab, "span_recorded", rollout=name, blob=blob)


def kept(lab: Lab) -> list[str]:
    """The names of the files that the ledger keeps content in, what is being received included."""
    folder = lab.path / "ledger" / "data" / "blobs"
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# --- content ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"x", TEXT, bytes(3 * 2**20)], ids=["empty", "small", "text", "3MiB"]
)
@pytest.mark.parametrize("salted", [False, True])
async def test_what_was_put_is_what_is_got(content: bytes, salted: bool) -> None:
    """Bytes, size and salt come back; the file is what the digest covers, and holds across a restart."""
    async with Lab() as lab:
        salt = new_salt() if salted else None
        blob = await blobs(lab, "runner-1").put(BytesIO(content), salt)
        covered = (salt or b"") + content
        assert options_pb2.Blob(digest=sha256(covered).digest(), size=len(content), salted=salted) == blob
        assert content == await got(blobs(lab, "auditor-1"), blob.digest)
        name = blob.digest.hex()
        file = lab.path / "ledger" / "data" / "blobs" / name[:2] / (name + ".salted" * salted)
        assert covered == file.read_bytes()
        await lab.restart()
        assert content == await got(blobs(lab, "auditor-1"), blob.digest)


async def test_law_05_the_same_content_again_is_the_same_blob() -> None:
    """One file, one answer, from many at once."""
    async with Lab() as lab:
        client = blobs(lab, "runner-1")
        answers = await asyncio.gather(*(client.put(BytesIO(TEXT)) for _ in range(8)))
        assert [blob_of(BytesIO(TEXT))] * 8 == answers
        assert [sha256(TEXT).hexdigest()] == kept(lab)


async def test_many_different_puts_at_once() -> None:
    """Each is whole, and what each holds meanwhile is counted."""
    async with Lab() as lab:
        client, reader = blobs(lab, "runner-1"), blobs(lab, "judge-1")
        contents = [bytes([number]) * 300_000 for number in range(24)]
        made = await asyncio.gather(*(client.put(BytesIO(content)) for content in contents))
        assert contents == await asyncio.gather(*(got(reader, blob.digest) for blob in made))


async def test_another_fsspec_store(tmp_path: Path) -> None:
    """`memory://`: put, get, erase, by the same code."""
    url = f"memory://{tmp_path.name}"
    async with Lab(settings={"blobs": url}) as lab:
        files = fsspec.filesystem("memory")
        blob = await blobs(lab, "runner-1").put(BytesIO(TEXT))
        assert TEXT == files.cat(f"/{tmp_path.name}/{blob.digest.hex()[:2]}/{blob.digest.hex()}")
        await lab.restart()
        assert TEXT == await got(blobs(lab, "auditor-1"), blob.digest)
        await lab.of_role("operator").append([body(lab, "blob_erased", digest=blob.digest)])
        assert "ERASED" == await reason_of(got(blobs(lab, "auditor-1"), blob.digest))
        await until(lambda: not files.find(f"/{tmp_path.name}"))


# --- what is refused ----------------------------------------------------------------------------------------


async def put_raw(lab: Lab, *parts: blob_pb2.PutRequest) -> str:
    """The reason with which a stream of messages is refused."""
    stub = blob_pb2_grpc.BlobServiceStub(lab.client("runner-1").channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Put(iter(parts), timeout=20)
    return error_of(caught.value).reason


def header(content: bytes = TEXT, **fields: Any) -> blob_pb2.PutRequest:
    """A header for content, with `fields` of the blob changed."""
    blob = {"digest": sha256(content).digest(), "size": len(content), "salted": False} | fields
    salt = blob.pop("salt", None)
    return blob_pb2.PutRequest(header=blob_pb2.BlobHeader(blob=options_pb2.Blob(**blob), salt=salt))


def chunk(content: bytes) -> blob_pb2.PutRequest:
    """A chunk."""
    return blob_pb2.PutRequest(chunk=content)


async def test_what_is_not_as_announced_leaves_nothing() -> None:
    """Other content, more, less, no header, a second header, salts that do not fit; then the right one."""
    async with Lab() as lab:
        cases = {
            "digest": (header(), chunk(b"y" + TEXT[1:])),
            "more": (header(), chunk(TEXT), chunk(b"x")),
            "less": (header(), chunk(TEXT[1:])),
            "none": (),
            "no header": (chunk(TEXT),),
            "twice": (header(), header()),
            "no salt": (header(salted=True), chunk(TEXT)),
            "salt unasked": (header(salt=bytes(32)), chunk(TEXT)),
            "short digest": (header(digest=b"x"), chunk(TEXT)),
        }
        found = {name: await put_raw(lab, *parts) for name, parts in cases.items()}
        assert {
            "digest": "BLOB_DIGEST",
            "more": "BLOB_SIZE",
            "less": "BLOB_SIZE",
            "none": "NO_HEADER",
            "no header": "NO_HEADER",
            "twice": "NO_CHUNK",
            "no salt": "BAD_SALT",
            "salt unasked": "BAD_SALT",
            "short digest": "BAD_DIGEST",
        } == found
        assert [] == kept(lab)
        await blobs(lab, "runner-1").put(BytesIO(TEXT))
        assert [sha256(TEXT).hexdigest()] == kept(lab)


async def test_a_cancelled_put_leaves_nothing() -> None:
    """Half of the content is there when its sender goes; the room that it took is given back."""
    limits = BlobLimits(total_bytes=len(TEXT))
    async with Lab(settings={"blob_limits": limits}) as lab:
        call = blob_pb2_grpc.BlobServiceStub(lab.client("runner-1").channel).Put()
        await call.write(header())
        await call.write(chunk(TEXT[:1000]))
        await until(lambda: bool(kept(lab)))
        call.cancel()
        await until(lambda: not kept(lab))
        await blobs(lab, "runner-1").put(BytesIO(TEXT))
        assert [sha256(TEXT).hexdigest()] == kept(lab)


async def test_a_killed_ledger_leaves_nothing_half_written() -> None:
    """SIGKILL in the middle of a put: the next start begins with whole content only."""
    async with Lab(subprocess=True) as lab:
        await blobs(lab, "runner-1").put(BytesIO(b"whole"))
        call = blob_pb2_grpc.BlobServiceStub(lab.client("runner-1").channel).Put()
        await call.write(header())
        await call.write(chunk(TEXT[:1000]))
        await until(lambda: len(kept(lab)) == 2)
        await lab.kill()
        await lab.stop()
        await lab.start()
        await until(lambda: [sha256(b"whole").hexdigest()] == kept(lab))
        assert b"whole" == await got(blobs(lab, "auditor-1"), sha256(b"whole").digest())


@pytest.mark.parametrize("step", ["write", "publish"])
async def test_a_full_disk_leaves_nothing_and_stops_nothing(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC at each step: the put is told to come again, the ledger goes on, and then it is taken."""
    async with Lab() as lab:
        real = getattr(Upload, step)
        full = True

        def failing(*values: Any) -> Any:
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*values)

        monkeypatch.setattr(Upload, step, failing)
        client = blobs(lab, "runner-1", attempts=1)
        for content in (TEXT, *[bytes(2**21)] * 20):  # what is still under way then costs nobody the reason
            assert "BLOB_NOT_STORED" == await reason_of(client.put(BytesIO(content)), OverloadedError)
        assert [] == kept(lab)
        await lab.of_role("runner").append([enqueued(lab)])
        full = False
        await blobs(lab, "runner-1").put(BytesIO(TEXT))
        assert [sha256(TEXT).hexdigest()] == kept(lab)


@pytest.mark.parametrize("name", ["runner-1", "trainer-1"])
async def test_a_refusal_arrives_whatever_is_still_to_be_sent(name: str) -> None:
    """4 MiB that are refused at once, for their size or their sender: the reason is told each time."""
    async with Lab(settings={"blob_limits": BlobLimits(blob_bytes=100)}) as lab:
        client = blobs(lab, name, attempts=1)
        found = {await reason_of(client.put(BytesIO(bytes(2**22)))) for _ in range(50)}
        assert {"BLOB_TOO_LARGE" if name == "runner-1" else "MAY_NOT_CALL"} == found


async def test_limits_say_what_to_do() -> None:
    """Of a blob, of orphans by count and by bytes, and of all; what an event names is no orphan any more."""
    limits = BlobLimits(blob_bytes=100, total_bytes=250, orphans=2, orphan_bytes=150)
    async with Lab(settings={"blob_limits": limits}) as lab:
        client = blobs(lab, "runner-1")
        with pytest.raises(RefusedError, match="expected at most 100 bytes of a blob, got 101") as caught:
            await client.put(BytesIO(bytes(101)))
        assert "BLOB_TOO_LARGE" == caught.value.reason
        first = await client.put(BytesIO(b"a" * 90))
        with pytest.raises(RefusedError, match="append the events that name them first") as caught:
            await client.put(BytesIO(b"b" * 70))
        assert "ORPHANS_FULL" == caught.value.reason
        second = await client.put(BytesIO(b"b" * 60))
        assert "ORPHANS_FULL" == await reason_of(client.put(BytesIO(b"")))
        assert first == await client.put(BytesIO(b"a" * 90))  # there already: it takes no room
        await lab.of_role("runner").append([rollout(lab, "ro-1", "TRAIN", first), span(lab, "ro-1", second)])
        third = await client.put(BytesIO(b"c" * 90))
        assert "BLOBS_FULL" == await reason_of(client.put(BytesIO(b"d" * 11)))
        await lab.restart()  # what was counted before counts on
        assert "BLOBS_FULL" == await reason_of(blobs(lab, "runner-1").put(BytesIO(b"d" * 11)))
        assert 3 == len(kept(lab))
        assert third == await blobs(lab, "runner-1").put(BytesIO(b"c" * 90))


async def test_orphans_are_collected_when_they_are_old() -> None:
    """Only what no event names, and only after its time; put again begins its time anew."""
    async with Lab() as lab:
        assert lab.host is not None
        client, service = blobs(lab, "runner-1"), lab.host.services.blobs
        named, orphan, fresh = [await client.put(BytesIO(text)) for text in (b"named", b"orphan", b"fresh")]
        await lab.of_role("runner").append([rollout(lab, "ro-1", "TRAIN", named)])
        lab.clock.advance(BlobLimits().orphan_age)
        await service.collect()
        assert 3 == len(kept(lab))
        lab.clock.advance(1)
        await client.put(BytesIO(b"fresh"))
        await service.collect()
        assert sorted([named.digest.hex(), fresh.digest.hex()]) == kept(lab)
        assert "NO_SUCH_BLOB" == await reason_of(blobs(lab, "judge-1").stat(orphan.digest), NotFoundError)
        assert orphan == await client.put(BytesIO(b"orphan"))


# --- rights -------------------------------------------------------------------------------------------------


async def test_law_07_only_whose_events_name_blobs_may_put() -> None:
    """By role; nobody without a key in force."""
    assert {options_pb2.ROLE_RUNNER} == WRITERS
    async with Lab() as lab:
        found = {}
        for role in ROLES:
            client = BlobsClient(lab.of_role(role))
            found[role] = await outcome(client.put(BytesIO(role.encode())))
        assert {role: "yes" if role == "runner" else "MAY_NOT_CALL" for role in ROLES} == found
        key = str(lab.identity("runner-1").key.verifier_key)
        client = blobs(lab, "runner-1")
        await lab.client(ROOT).append([body(lab, "key_revoked", vkey=key)])
        assert ("KEY_REVOKED",) * 2 == (
            await reason_of(client.put(BytesIO(b"more"))),
            await reason_of(got(client, sha256(b"runner").digest())),
        )


async def test_law_07_the_learner_reads_no_holdout_content() -> None:
    """Who may get, by role and by what names the content: one name that hides it hides it from learners."""
    async with Lab(principals=ALL) as lab:
        client, runner = blobs(lab, "runner-1"), lab.client("runner-1")
        for trainer, update in (("trainer-1", "up-1"), ("trainer-2", "up-2")):
            await lab.client(trainer).append([body(lab, "update_proposed", update=update)])
        naming = {
            "TRAIN": [("TRAIN", "up-1")],
            "VAL": [("VAL", "up-1")],
            "HOLDOUT": [("HOLDOUT", "up-1")],
            "CANARY": [("CANARY", "up-1")],
            "nobody's": [("TRAIN", None)],
            "another's": [("TRAIN", "up-2")],
            "shared": [("TRAIN", "up-1"), ("TRAIN", "up-2")],
            "mixed": [("TRAIN", "up-1"), ("HOLDOUT", "up-1")],
            "mixed with another's": [("TRAIN", "up-1"), ("HOLDOUT", "up-2")],
            "orphan": [],
        }
        made = {kind: await client.put(BytesIO(kind.encode())) for kind in naming}
        await lab.client("runner-2").append([enqueued(lab, "other", mode=1, update="up-2")])
        for place, (kind, names) in enumerate(naming.items()):
            for number, (mode, update) in enumerate(names):
                await runner.append([rollout(lab, f"ro-{place}-{number}", mode, made[kind], update)])
        found: dict[str, set[str]] = {}
        for name in ("runner-1", "trainer-1", "trainer-2", "runner-2", "judge-1", "gate-1", "auditor-1"):
            reader = blobs(lab, name)
            answers = {kind: await outcome(got(reader, blob.digest)) for kind, blob in made.items()}
            assert answers == {kind: await outcome(reader.stat(blob.digest)) for kind, blob in made.items()}
            assert set(answers.values()) <= {"yes", "MAY_NOT_READ"}
            found[name] = {kind for kind, answer in answers.items() if answer == "yes"}
        own = {"TRAIN", "VAL", "shared"}
        everything = set(naming)
        assert {
            "runner-1": own | {"another's"},  # runner-1 enqueued for up-2 too
            "trainer-1": own,
            "trainer-2": {"another's", "shared"},
            "runner-2": {"another's", "shared"},
            "judge-1": everything,
            "gate-1": everything,
            "auditor-1": everything,
        } == found
        unknown = sha256(b"unknown").digest()
        assert "MAY_NOT_READ" == await outcome(got(blobs(lab, "trainer-1"), unknown))
        assert "NO_SUCH_BLOB" == await outcome(got(blobs(lab, "judge-1"), unknown))


async def test_law_07_what_a_holdout_names_later_is_hidden_from_then_on() -> None:
    """A span of a holdout rollout that names the train rollout's content."""
    async with Lab() as lab:
        blob = await blobs(lab, "runner-1").put(BytesIO(TEXT))
        await lab.of_role("trainer").append([body(lab, "update_proposed", update="up-1")])
        runner, trainer = lab.of_role("runner"), blobs(lab, "trainer-1")
        await runner.append([rollout(lab, "ro-1", "TRAIN", blob)])
        assert TEXT == await got(trainer, blob.digest)
        await runner.append([enqueued(lab, "ro-2", mode=runner_pb2.MODE_HOLDOUT), span(lab, "ro-2", blob)])
        assert "MAY_NOT_READ" == await outcome(got(trainer, blob.digest))
        await lab.restart()
        assert "MAY_NOT_READ" == await outcome(got(blobs(lab, "trainer-1"), blob.digest))


# --- erasure ------------------------------------------------------------------------------------------------


async def test_erased_content_is_erased_and_not_missing() -> None:
    """Get says ERASED, Stat by which entry, receipts that it was there; put again is refused."""
    async with Lab() as lab:
        client, reader = blobs(lab, "runner-1"), blobs(lab, "judge-1")
        blob, other = await client.put(BytesIO(TEXT), new_salt()), await client.put(BytesIO(b"other"))
        await lab.of_role("trainer").append([body(lab, "update_proposed", update="up-1")])
        await lab.of_role("runner").append([rollout(lab, "ro-1", "TRAIN", other), span(lab, "ro-1", blob)])
        erased = await lab.of_role("operator").append([body(lab, "blob_erased", digest=blob.digest)])
        await until(lambda: [other.digest.hex()] == kept(lab))
        for _ in range(2):
            client, reader = blobs(lab, "runner-1"), blobs(lab, "judge-1")
            assert "ERASED" == await reason_of(got(reader, blob.digest), RefusedError)
            stat = await reader.stat(blob.digest)
            assert (blob_pb2.BLOB_STATE_ERASED, erased.first_index) == (stat.state, stat.erased_index)
            receipts = ReceiptsClient(lab.client("judge-1"))
            claims = (await receipts.get_rollout("ro-1"))["claims"]
            assert [None, erased.first_index] == [claim["content_erased"] for claim in claims]
            during = (await receipts.get_update("up-1"))["during"]
            shown = {"rollout": "ro-1", "digest": blob.digest.hex(), "erased": erased.first_index}
            assert [shown] == during["erased_content"]
            await lab.restart()
        plain = await blobs(lab, "runner-1").put(BytesIO(b"plain"))
        await lab.of_role("operator").append([body(lab, "blob_erased", digest=plain.digest)])
        assert "ERASED" == await reason_of(blobs(lab, "runner-1").put(BytesIO(b"plain")), RefusedError)


async def test_what_was_erased_and_not_removed_goes_at_the_next_start() -> None:
    """The ledger ended between the entry and the removal, and lost its rows too."""
    async with Lab() as lab:
        blob = await blobs(lab, "runner-1").put(BytesIO(TEXT))
        await lab.of_role("operator").append([body(lab, "blob_erased", digest=blob.digest)])
        await until(lambda: not kept(lab))
        await lab.stop()
        data = lab.path / "ledger" / "data"
        for left in data.glob("blobs.sqlite*"):
            left.unlink()
        name = blob.digest.hex()
        (data / "blobs" / name[:2] / name).write_bytes(TEXT)
        await lab.start()
        assert "ERASED" == await reason_of(got(blobs(lab, "judge-1"), blob.digest), RefusedError)
        await until(lambda: not kept(lab))


async def test_a_put_that_an_erasure_overtakes_is_refused() -> None:
    """The entry is placed while the content is on its way."""
    async with Lab() as lab:
        digest = sha256(TEXT).digest()
        call = blob_pb2_grpc.BlobServiceStub(lab.client("runner-1").channel).Put()
        await call.write(header())
        await until(lambda: bool(kept(lab)))
        await lab.of_role("operator").append([body(lab, "blob_erased", digest=digest)])
        assert "ERASED" == await reason_of(got(blobs(lab, "judge-1"), digest), RefusedError)
        await call.write(chunk(TEXT))
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert "ERASED" == error_of(caught.value).reason
        await until(lambda: not kept(lab))


def _remove(file: Path) -> None:
    file.unlink()


def _overwrite(file: Path) -> None:
    file.write_bytes(b"no database, but as long as the header of one" * 5)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def _other_columns(file: Path) -> None:
    with closing(sqlite3.connect(file)) as rows:
        rows.execute("DROP TABLE names")
        rows.execute("CREATE TABLE names (digest BLOB)")
        rows.commit()


def _other_values(file: Path) -> None:
    with closing(sqlite3.connect(file)) as rows:
        assert 1 == rows.execute("UPDATE log SET size = 'many'").rowcount
        rows.commit()


def _spoil_pages(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:] = b"x" * (len(data) - 4096)
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [_remove, _overwrite, _cut, _other_columns, _other_values, _spoil_pages])
async def test_rows_that_were_lost_are_made_again(damage: Callable[[Path], None]) -> None:
    """Content is found without its row, names come from the log; what is not whole is removed."""
    async with Lab() as lab:
        blob = await blobs(lab, "runner-1").put(BytesIO(TEXT))
        await lab.of_role("trainer").append([body(lab, "update_proposed", update="up-1")])
        await lab.of_role("runner").append([rollout(lab, "ro-1", "TRAIN", blob)])
        await lab.stop()
        data = lab.path / "ledger" / "data"
        assert [data / "blobs.sqlite"] == list(data.glob("blobs.sqlite*"))
        damage(data / "blobs.sqlite")
        wrong = sha256(b"right").hexdigest()
        (data / "blobs" / wrong[:2]).mkdir()
        (data / "blobs" / wrong[:2] / wrong).write_bytes(b"wrong")
        await lab.start()
        assert TEXT == await got(blobs(lab, "trainer-1"), blob.digest)
        assert (await blobs(lab, "judge-1").stat(blob.digest)).named
        await until(lambda: [blob.digest.hex()] == kept(lab))


async def test_rows_that_turn_out_to_be_damaged_are_made_again_at_the_next_start() -> None:
    """A page that no start reads: who asks for what stands there is told, and the log goes on."""
    async with Lab() as lab:
        blob = await blobs(lab, "runner-1").put(BytesIO(TEXT))
        others = [options_pb2.Blob(digest=sha256(bytes([n % 251, n // 251])).digest()) for n in range(2000)]
        named = [rollout(lab, f"ro-{n}", "TRAIN", one) for n, one in enumerate((blob, *others))]
        await lab.of_role("runner").append(named)
        await lab.stop()
        file = lab.path / "ledger" / "data" / "blobs.sqlite"
        data = bytearray(file.read_bytes())
        row = b"ro-0"
        page = next(at for at in range(4096, len(data), 4096) if blob.digest + row in data[at : at + 4096])
        data[page : page + 4096] = b"x" * 4096
        file.write_bytes(data)
        await lab.start()
        assert "VIEWS_UNREADABLE" == await reason_of(blobs(lab, "judge-1", attempts=1).stat(blob.digest))
        await lab.of_role("runner").append([enqueued(lab, "ro-more")])
        assert not file.exists()
        await lab.restart()
        assert (await blobs(lab, "judge-1").stat(blob.digest)).named


# --- reading ------------------------------------------------------------------------------------------------


async def test_a_reader_that_does_not_read_holds_nobody_up() -> None:
    """Many streams of one principal stand still, while others put, get and append."""
    async with Lab() as lab:
        big = await blobs(lab, "runner-1").put(BytesIO(bytes(32 * 2**20)))
        stub = blob_pb2_grpc.BlobServiceStub(lab.client("auditor-1").channel)
        idle = [stub.Get(blob_pb2.GetRequest(digest=big.digest)) for _ in range(32)]
        for call in idle:
            assert (await call.read()).WhichOneof("part") == "header"
        async with asyncio.timeout(20):
            small = await blobs(lab, "runner-1").put(BytesIO(TEXT))
            assert TEXT == await got(blobs(lab, "judge-1"), small.digest)
            await lab.of_role("runner").append([enqueued(lab)])
        for call in idle:
            call.cancel()


async def test_content_that_rotted_is_not_believed() -> None:
    """One bit of the stored file changed: the client compares, and trusts nobody."""
    async with Lab() as lab:
        blob = await blobs(lab, "runner-1").put(BytesIO(TEXT))
        name = blob.digest.hex()
        file = lab.path / "ledger" / "data" / "blobs" / name[:2] / name
        file.write_bytes(b"b" + TEXT[1:])
        assert "BLOB_DIGEST" == await reason_of(got(blobs(lab, "judge-1"), blob.digest), VerificationError)
        file.unlink()
        assert "NO_SUCH_BLOB" == await reason_of(got(blobs(lab, "judge-1"), blob.digest), NotFoundError)
        assert blob == await blobs(lab, "runner-1").put(BytesIO(TEXT))
        assert TEXT == await got(blobs(lab, "judge-1"), blob.digest)
