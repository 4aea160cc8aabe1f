"""The cosigning client: what goes to witnesses, what is kept of their answers, and what no witness can do."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from clients.export import export_log
from clients.tiles import open_log, publish_tiles, write_tiles
from ledger.checkpoint import Checkpoint, cosign, parse_checkpoint_text
from ledger.errors import FatalError, FormatError, NotFoundError, VerificationError
from ledger.note import parse_note
from ledger.server import witnesses
from ledger.server.config import load_config
from ledger.server.witnesses import parse_witnesses
from ledger.verify import Verified, verify_export
from tests.forge import witness_key
from tests.lab import Lab
from tests.server.people import enqueued, reason_of, until
from tests.witness import Witness


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds follow each other at once."""
    monkeypatch.setattr(witnesses, "_EVERY", 0.01)
    monkeypatch.setattr(witnesses, "_RETRY", 0.05)


class WitnessedLab(Lab):
    """A lab whose trust document names witnesses: `number` of them, of which `quorum` are needed."""

    def __init__(
        self,
        number: int = 1,
        quorum: int = 1,
        *,
        down: bool = False,
        twin: WitnessedLab | None = None,
        **options: Any,
    ) -> None:
        """`down`: the witnesses answer with an error; `twin`: a lab whose keys, trust document and witnesses
        this one has too, with a log of its own."""
        super().__init__(**options)
        self._down = down
        self._number = number
        self._quorum = quorum
        self._twin = twin
        self._servers = ExitStack()
        self.asks = True
        self.witnesses: list[Witness] = []

    async def start(self) -> None:
        """Starts the witnesses with the ledger the first time."""
        if self._twin is not None:
            self.witnesses = self._twin.witnesses
            for name in ("ledger/note.key", "trust.txt", "genesis.bin", "assay.json", "ca.crt", "ca.key"):
                shutil.copy(self._twin.path / name, self.path / name)
            for folder in ("principals", "ledger", "gate"):
                ignored = shutil.ignore_patterns("data")
                shutil.copytree(
                    self._twin.path / folder, self.path / folder, ignore=ignored, dirs_exist_ok=True
                )
            self.home = self._twin.home
            self._twin = None
        elif not self.witnesses:
            log, names = self.trust.log, [f"w{n}" for n in range(self._number)]
            self.witnesses = [self._servers.enter_context(Witness(name, log)) for name in names]
            for witness in self.witnesses if self._down else ():
                witness.lie = _always(500, "text/plain", b"")(witness)
            policy = "".join(witness.line(name) for name, witness in zip(names, self.witnesses, strict=True))
            policy += f"group g {self._quorum} {' '.join(names)}\nquorum g\n"
            trust = self.path / "trust.txt"
            trust.write_text(trust.read_text().replace("quorum none\n", policy))
        asked = self.witnesses if self.asks else ()
        urls = {f"w{n}": witness.url for n, witness in enumerate(asked)}
        self._settings["witnesses"] = urls if self._subprocess else parse_witnesses(urls, self.trust)
        await super().start()

    async def __aexit__(self, *raised: Any) -> None:
        with self._servers:
            await super().__aexit__(*raised)

    async def check(self, fold: Any = None) -> Verified:
        """As the lab's, of the head: it may have no cosignatures yet."""
        return verify_export(BytesIO(await self.export()), self.trust.without_quorum(), fold=fold)

    @property
    def asking(self) -> witnesses.Witnesses:
        """The ledger's side."""
        assert self.host is not None
        return self.host.witnesses

    async def cosigned(self, size: int) -> None:
        """Waits until a quorum cosigned `size` entries."""
        await until(lambda: self.asking.cosigned_size == size)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for exports."""
    yield tmp_path


# --- what is gathered, kept and served -------------------------------------------------------------------


async def test_v6_an_export_carries_the_quorum(folder: Path) -> None:
    """The exported checkpoint is the latest that two of three witnesses cosigned, and verifies offline."""
    async with WitnessedLab(3, 2) as lab:
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await lab.cosigned(placed.checkpoint_size)
        size = await export_log(lab.of_role("auditor"), folder / "log.export")
        verified = verify_export((folder / "log.export").open("rb"), lab.trust)
        assert (placed.checkpoint_size, size) == (verified.size, size)
        assert {"w0", "w1"} <= set(verified.witnesses) or 2 <= len(verified.witnesses)


async def test_tiles_carry_the_quorum(folder: Path) -> None:
    """A folder of tiles stands under the cosigned checkpoint too."""
    async with WitnessedLab() as lab:
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await lab.cosigned(placed.checkpoint_size)
        draft = await write_tiles(lab.of_role("auditor"), folder / "tiles")
        assert placed.checkpoint_size == verify_export(open_log(draft), lab.trust).size
        publish_tiles(folder / "tiles")


async def test_law_03_an_acknowledgement_waits_for_no_witness(folder: Path) -> None:
    """While the one witness hangs, appends are acknowledged; what is cosigned stays."""
    async with WitnessedLab() as lab:
        await lab.cosigned(len(lab.home.principals))
        lab.witnesses[0].answers.clear()
        placed = await lab.of_role("runner").append([enqueued(lab)])
        assert placed.checkpoint_size > (lab.asking.cosigned_size or 0)
        assert placed.checkpoint_size > await export_log(lab.of_role("auditor"), folder / "log.export")
        lab.witnesses[0].answers.set()
        await lab.cosigned(placed.checkpoint_size)


async def test_law_09_before_the_first_quorum_there_is_no_cosigned_checkpoint() -> None:
    """The newest checkpoint does not come in its place: NO_QUORUM."""
    async with WitnessedLab(down=True) as lab:
        await until(lambda: lab.asking.away == 1)
        assert None is lab.asking.cosigned
        assert "NO_QUORUM" == await reason_of(lab.of_role("auditor").cosigned_note(), NotFoundError)
        lab.witnesses[0].lie = None
        await lab.cosigned(len(lab.home.principals))
        await lab.of_role("auditor").cosigned_note()


async def test_only_what_is_released_goes_to_a_witness() -> None:
    """Each size that the witness was asked for was acknowledged, and grows from the one before."""
    async with WitnessedLab() as lab:
        sizes = {len(lab.home.principals)}
        runner = lab.of_role("runner")
        for number in range(5):
            sizes.add((await runner.append([enqueued(lab, f"ro-{number}")])).checkpoint_size)
        await lab.cosigned(max(sizes))
        asked = lab.witnesses[0].asked
        assert sizes | {1} >= {new for _, new in asked}
        assert [old for old, _ in asked[1:]] == [new for _, new in asked[:-1]]


async def test_what_is_cosigned_survives_a_restart_without_any_witness() -> None:
    """The value is durable: the next process serves it though nobody cosigns any more."""
    async with WitnessedLab() as lab:
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await lab.cosigned(placed.checkpoint_size)
        note = await lab.of_role("auditor").cosigned_note()
        lab.witnesses[0].lie = _always(503, "text/plain", b"later\n")(lab.witnesses[0])
        for asks in (True, False):  # False: none is configured any more
            lab.asks = asks
            await lab.restart()
            assert note == await lab.of_role("auditor").cosigned_note()


async def test_a_conflict_is_mended_from_where_the_witness_stands() -> None:
    """After a restart the ledger does not know what the witness saw, is told (409), and proves from there."""
    async with WitnessedLab() as lab:
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await lab.cosigned(placed.checkpoint_size)
        await lab.stop()
        lab.witnesses[0].asked.clear()
        await lab.start()
        later = await lab.of_role("runner").append([enqueued(lab, "ro-2")])
        await lab.cosigned(later.checkpoint_size)
        first, second, *_ = lab.witnesses[0].asked
        assert (0, placed.checkpoint_size) == (first[0], second[0])


async def test_a_log_at_rest_is_cosigned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosignature's time goes on though the log does not, so that its age tells something."""
    monkeypatch.setattr(witnesses, "_AGAIN", 0.05)
    async with WitnessedLab() as lab:
        size = len(lab.home.principals)
        await lab.cosigned(size)
        lab.witnesses[0].now += 1000

        def renewed() -> bool:
            assert lab.asking.cosigned is not None
            note = lab.asking.cosigned[1]
            return cosign(parse_note(note).text, lab.witnesses[0].key, lab.witnesses[0].now) in note

        await until(renewed)
        assert size == lab.asking.cosigned_size


# --- witnesses that are down, and witnesses that lie -----------------------------------------------------


async def test_one_of_three_is_down_and_the_quorum_comes_together(caplog: pytest.LogCaptureFixture) -> None:
    """It is named in the log once, counted in the numbers, and holds nobody up."""
    async with WitnessedLab(3, 2) as lab:
        await lab.cosigned(len(lab.home.principals))
        lab.witnesses[2].lie = _always(500, "text/plain", b"broken\n")(lab.witnesses[2])
        runner = lab.of_role("runner")
        for number in range(3):
            placed = await runner.append([enqueued(lab, f"ro-{number}")])
            await lab.cosigned(placed.checkpoint_size)
        await until(lambda: lab.asking.away == 1)
        told = [r for r in caplog.records if r.levelno == logging.ERROR and "witness w2" in r.getMessage()]
        assert [1] == [len(told)]
        lab.witnesses[2].lie = None
        await until(lambda: lab.asking.away == 0)


async def test_a_witness_that_never_answers_does_not_hold_the_stop() -> None:
    """The ledger ends though the witness holds its connection; and without it the quorum still grows."""
    async with WitnessedLab(2, 1) as lab:
        await lab.cosigned(len(lab.home.principals))
        lab.witnesses[1].answers.clear()
        await lab.of_role("runner").append([enqueued(lab)])
        await asyncio.wait_for(lab.restart(), 60)


def _other_root(witness: Witness) -> Callable[[bytes], tuple[int, str, bytes]]:
    """Equivocation: it cosigns another tree of the same size."""

    def answer(body: bytes) -> tuple[int, str, bytes]:
        checkpoint = parse_checkpoint_text(parse_note(body.partition(b"\n\n")[2]).text)
        other = Checkpoint(checkpoint.origin, checkpoint.size, bytes(32))
        return 200, "text/plain", cosign(other.text(), witness.key, witness.now)

    return answer


def _by(name: str, time: int) -> Callable[[Witness], Callable[[bytes], tuple[int, str, bytes]]]:
    def lie(witness: Witness) -> Callable[[bytes], tuple[int, str, bytes]]:
        def answer(body: bytes) -> tuple[int, str, bytes]:
            text = parse_note(body.partition(b"\n\n")[2]).text
            return 200, "text/plain", cosign(text, witness_key(name), time)

        return answer

    return lie


def _always(*answer: Any) -> Callable[[Witness], Callable[[bytes], Any]]:
    def lie(_: Witness) -> Callable[[bytes], Any]:
        return lambda _: answer

    return lie


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (_by("another", 1), "BAD_COSIGNATURE"),
        (_by("w0", 0), "BAD_COSIGNATURE"),
        (_other_root, "BAD_COSIGNATURE"),
        (_always(200, "text/plain", b"\x00garbage"), "BAD_NOTE"),
        (_always(200, "text/plain", b""), "BAD_COSIGNATURE"),
        (_always(200, "text/plain", "\n\n— x AAAAAAA=\n".encode()), "BAD_NOTE"),
        (_always(200, "text/plain", b"x" * 70_000), "OVER_SIZE"),
        (_always(404, "text/plain", b"unknown log\n"), "WITNESS_REFUSED"),
        (_always(403, "text/plain", b"no\n"), "WITNESS_REFUSED"),
        (_always(422, "text/plain", b"no\n"), "INCONSISTENT"),
        (_always(409, "text/x.tlog.size", b"not a size\n"), "BAD_DECIMAL"),
        (_always(409, "text/x.tlog.size", b"0\n"), "WITNESS_REFUSED"),
        (_always(409, "text/x.tlog.size", b"99999999\n"), "AHEAD_OF_LOG"),
    ],
)
async def test_what_a_lying_witness_says_is_its_own_failure(
    lie: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is kept or served; the log goes on, and says what was wrong."""
    async with WitnessedLab() as lab:
        before = len(lab.home.principals)
        await lab.cosigned(before)
        lab.witnesses[0].lie = lie(lab.witnesses[0])
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await until(lambda: lab.asking.away == 1)
        assert before == lab.asking.cosigned_size
        assert any(reason in record.getMessage() for record in caplog.records), caplog.messages
        lab.witnesses[0].lie = None
        await lab.cosigned(placed.checkpoint_size)


# --- split view, rollback --------------------------------------------------------------------------------


async def test_law_06_a_split_view_has_no_quorum(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two ledgers under one key: the witness cosigns the first, and whoever trusts it refuses the second."""
    async with WitnessedLab() as first:
        placed = await first.of_role("runner").append([enqueued(first)])
        await first.cosigned(placed.checkpoint_size)
        async with WitnessedLab(twin=first) as second:
            await second.of_role("runner").append([enqueued(second, "another")])
            await second.of_role("runner").append([enqueued(second, "yet-another")])
            await until(lambda: any("did not cosign" in record.getMessage() for record in caplog.records))
            other = await second.export()
            with pytest.raises(VerificationError) as caught:
                verify_export(BytesIO(other), first.trust)
            assert ("V6", "NO_QUORUM") == (caught.value.step, caught.value.reason)
            assert first.trust == second.trust
            assert second.asking.cosigned_size in (None, 1, len(first.home.principals))
        assert placed.checkpoint_size == first.witnesses[0].size()


async def test_law_06_a_store_behind_what_was_cosigned_does_not_start(folder: Path) -> None:
    """Database and released file set back together do not start beside the cosigned checkpoint."""
    async with WitnessedLab() as lab:
        await lab.cosigned(len(lab.home.principals))
        await lab.stop()
        data = lab.path / "ledger" / "data"
        shutil.copytree(data, folder / "old")
        await lab.start()
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await lab.cosigned(placed.checkpoint_size)
        await lab.stop()
        cosigned = (data / "witnesses" / "cosigned").read_bytes()
        shutil.rmtree(data)
        shutil.copytree(folder / "old", data)
        (data / "witnesses" / "cosigned").write_bytes(cosigned)
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "BEHIND_RELEASED" == caught.value.reason


async def test_law_06_a_ledger_set_back_whole_learns_it_from_its_witness(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing on its own disks can tell; the witness remembers more, and the ledger says what that means."""
    async with WitnessedLab() as lab:
        await lab.cosigned(len(lab.home.principals))
        await lab.stop()
        data = lab.path / "ledger" / "data"
        shutil.copytree(data, folder / "old")
        await lab.start()
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await lab.cosigned(placed.checkpoint_size)
        await lab.stop()
        shutil.rmtree(data)
        shutil.copytree(folder / "old", data)
        await lab.start()
        await until(lambda: any("AHEAD_OF_LOG" in record.getMessage() for record in caplog.records))


async def test_a_cosigned_file_of_another_ledger_is_refused() -> None:
    """What lies in the folder must be this ledger's own."""
    async with WitnessedLab() as lab:
        await lab.cosigned(len(lab.home.principals))
        await lab.stop()
        (lab.path / "ledger" / "data" / "witnesses" / "cosigned").write_bytes(b"no note")
        with pytest.raises(FatalError) as caught:
            await lab.start()
        assert "BAD_COSIGNED" == caught.value.reason


# --- the process and its configuration -------------------------------------------------------------------


async def test_the_command_takes_witnesses_from_its_configuration() -> None:
    """`witnesses` of the configuration file, in a process of its own."""
    async with WitnessedLab(subprocess=True) as lab:
        client = lab.of_role("auditor")
        placed = await lab.of_role("runner").append([enqueued(lab)])
        await until(lambda: lab.witnesses[0].size() == placed.checkpoint_size)

        async def cosigned() -> int:
            try:
                note = await client.cosigned_note()
            except NotFoundError:
                return 0
            return parse_checkpoint_text(parse_note(note).text).size

        while await cosigned() < placed.checkpoint_size:  # the witness answered; the file is being written
            pass


@pytest.mark.parametrize(
    "url", ["ftp://host/", "https://", "https://user:secret@host/", "http://host/?q", "host:80"]
)
def test_a_url_that_is_none_is_a_bad_configuration(url: str, tmp_path: Path) -> None:
    """And what it says does not repeat it: it may hold a password."""
    config = tmp_path / "ledger.json"
    values = dict.fromkeys(("data", "trust", "certificate", "private_key", "client_ca"), "x")
    document = {"listen": "h:0", "trust_domain": "d", "note_keys": ["k"], "witnesses": {"w": url}, **values}
    config.write_text(json.dumps(document))
    with pytest.raises(FormatError) as caught:
        load_config(config)
    assert "BAD_CONFIG" == caught.value.reason
    assert "secret" not in str(caught.value)


async def test_a_witness_that_the_trust_document_lacks_is_a_bad_configuration() -> None:
    """A name that nobody trusts is a mistake, not a witness."""
    async with Lab() as lab:
        with pytest.raises(FormatError) as caught:
            parse_witnesses({"w9": "http://localhost:1/"}, lab.trust)
    assert "BAD_CONFIG" == caught.value.reason
