"""A ledger through everything that can happen to it, in any order, against a model of what it promised.

After each step the whole log is read and verified, each acknowledged batch stands exactly once where its
acknowledgement said, and somebody who remembers every checkpoint sees one log. What was tampered with, and
what was set back, is refused at the start or found by who verifies; never passed over.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clients.acknowledgement import SignedBatch, sign
from clients.identity import Identity
from clients.memory import Memory
from ledger.entry import decode_entry
from ledger.errors import AssayError, FatalError, RefusedError, VerificationError
from ledger.note import SigningKey
from ledger.v1 import options_pb2
from tests.lab import Lab
from tests.server.people import body, enqueued, reason_of

_T = TypeVar("_T")
_AUTHORS = ("runner-1", "trainer-1")
_REFUSALS = frozenset({"KEY_REVOKED"})


@dataclass(frozen=True)
class Acknowledged:
    """A batch and where it stands."""

    batch: SignedBatch
    first_index: int
    recorded_at: int


@dataclass(frozen=True)
class Backup:
    """A copy of everything on disk, and how many acknowledgements it holds at least."""

    folder: Path
    size: int


class Ledger(RuleBasedStateMachine):
    """One lab for each run. `acknowledged` is what must be there, whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.lab = Lab()
        self.run(self.lab.__aenter__())
        self.folders = Path(tempfile.mkdtemp(prefix="assay-backups-"))
        self.watcher = Memory(self.lab.trust, None)
        self.acknowledged: list[Acknowledged] = []
        self.backups: list[Backup] = []
        self.sequences: dict[tuple[bytes, bytes], int] = {}
        self.extra: list[SigningKey] = []  # second keys of runner-1, in force
        self.revoked: list[SigningKey] = []
        self.made = 0

    def run(self, doing: Coroutine[Any, Any, _T]) -> _T:
        return self.loop.run(doing)

    def teardown(self) -> None:
        try:
            self.run(self.lab.__aexit__(None, None, None))
        finally:
            self.loop.close()
            shutil.rmtree(self.folders)

    # --- what authors do ------------------------------------------------------------------------------------

    def _sign(self, author: str, key: SigningKey, stream: int, count: int) -> SignedBatch:
        slot = (key.verifier_key.public_key, bytes([stream]) * 16)
        return sign(
            key, self.lab.home.origin, slot[1], self.sequences.get(slot, 0), self._events(author, count), None
        )

    def _events(self, author: str, count: int) -> Sequence[bytes]:
        self.made += 1
        if author == "trainer-1":
            return [body(self.lab, "training_progressed", update=f"up-{self.made}") for _ in range(count)]
        return [enqueued(self.lab, f"ro-{self.made}-{n}") for n in range(count)]

    def _took(self, batch: SignedBatch, first_index: int, recorded_at: int) -> None:
        note = batch.note
        self.sequences[(self._public_key(batch), note.stream)] = note.sequence + 1
        self.acknowledged.append(Acknowledged(batch, first_index, recorded_at))

    def _public_key(self, batch: SignedBatch) -> bytes:
        keys = [self.identity(name).key for name in _AUTHORS] + self.extra + self.revoked
        return next(k.verifier_key.public_key for k in keys if k.verifier_key.key_id == batch.note.key_id)

    def identity(self, name: str) -> Identity:
        return self.lab.identity(name)

    @initialize()
    def _begin(self) -> None:
        self.append("runner-1", 0, 3)

    @rule(author=st.sampled_from(_AUTHORS), stream=st.integers(0, 1), count=st.sampled_from([1, 2, 300]))
    def append(self, author: str, stream: int, count: int) -> None:
        """One batch."""
        batch = self._sign(author, self.identity(author).key, stream, count)
        placed = self.run(self.lab.client(author).append_signed(batch))
        self._took(batch, placed.first_index, placed.recorded_at)

    @rule(batches=st.integers(1, 6))
    def append_in_a_stream(self, batches: int) -> None:
        """Batches one behind the other, not waiting for each answer."""

        async def all_of_them() -> None:
            stream = self.lab.client("runner-1").open_stream()
            sent = [self._events("runner-1", 2) for _ in range(batches)]
            number = 0
            async for placed in stream.append_stream(sent):
                key = self.identity("runner-1").key
                batch = sign(key, self.lab.home.origin, stream.id, number, sent[number], None)
                self._took(batch, placed.first_index, placed.recorded_at)
                number += 1
            assert batches == number

        self.run(all_of_them())

    @rule(data=st.data())
    def append_at_once(self, data: st.DataObject) -> None:
        """Two authors at the same time."""
        batches = [self._sign(name, self.identity(name).key, 2, 2) for name in _AUTHORS]

        async def both() -> list[Any]:
            clients = [self.lab.client(name) for name in _AUTHORS]
            return await asyncio.gather(
                *(client.append_signed(batch) for client, batch in zip(clients, batches, strict=True))
            )

        for batch, placed in zip(batches, self.run(both()), strict=True):
            self._took(batch, placed.first_index, placed.recorded_at)

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """An acknowledged batch gets its first position; the same place with another text is refused."""
        old = data.draw(st.sampled_from(self.acknowledged))
        client = self.lab.client(old.batch.note.name)
        placed = self.run(client.append_signed(old.batch))
        assert (old.first_index, old.recorded_at) == (placed.first_index, placed.recorded_at)
        keys = [self.identity(name).key for name in _AUTHORS] + self.extra
        for key in keys:
            if key.verifier_key.key_id == old.batch.note.key_id:
                note = old.batch.note
                other = sign(
                    key, self.lab.home.origin, note.stream, note.sequence, [enqueued(self.lab)], None
                )
                refused = reason_of(client.append_signed(other), RefusedError)
                assert "EQUIVOCATION" == self.run(refused)

    # --- what root does -------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.extra) + len(self.revoked) < 4)
    @rule()
    def grant(self) -> None:
        """Another key for runner-1, used at once."""
        self.made += 1
        key = SigningKey("runner-1", bytes([self.made]) * 32)
        granted = body(
            self.lab,
            "key_granted",
            vkey=str(key.verifier_key),
            role=options_pb2.ROLE_RUNNER,
            controller="owner-of-runner-1",
        )
        self.run(self.lab.client("root-1").append([granted]))
        self.extra.append(key)
        batch = self._sign("runner-1", key, 0, 1)
        placed = self.run(self.lab.client("runner-1").append_signed(batch))
        self._took(batch, placed.first_index, placed.recorded_at)

    @precondition(lambda self: self.extra)
    @rule()
    def revoke(self) -> None:
        """A second key ends; what it signs from then on is refused, what it wrote stays."""
        key = self.extra.pop()
        self.revoked.append(key)
        revoked = body(self.lab, "key_revoked", vkey=str(key.verifier_key))
        self.run(self.lab.client("root-1").append([revoked]))
        batch = self._sign("runner-1", key, 0, 1)
        refused = reason_of(self.lab.client("runner-1").append_signed(batch), RefusedError)
        assert self.run(refused) in _REFUSALS

    # --- what happens to the machine ------------------------------------------------------------------------

    @property
    def data(self) -> Path:
        return self.lab.path / "ledger" / "data"

    @rule()
    def restart(self) -> None:
        """Stopped in order, and started."""
        self.run(self.lab.restart())

    @rule(steps=st.integers(0, 40))
    def crash(self, steps: int) -> None:
        """Gone after so many turns of the loop with an append under way; what is on disk is what there is.

        The batch was not acknowledged: it stands whole or not at all, and sending it again settles it.
        """
        batch = self._sign("runner-1", self.identity("runner-1").key, 0, 2)

        async def until_gone() -> None:
            client = self.lab.client("runner-1")
            await client.get_checkpoint()
            sending = asyncio.create_task(client.append_signed(batch))
            for _ in range(steps):
                await asyncio.sleep(0)
            host = self.lab.host
            assert host is not None
            # From here on the loop does nothing more: only a commit that is being written may end.
            host.services.sequencer._writer.submit(lambda: None).result()
            self._copy(self.data, self.folders / "crash")
            sending.cancel()
            await asyncio.wait([sending])
            await self.lab.stop()

        self.run(until_gone())
        self._put(self.folders / "crash")
        self.run(self.lab.start())
        placed = self.run(self.lab.client("runner-1").append_signed(batch))
        self._took(batch, placed.first_index, placed.recorded_at)

    @rule(moves=st.sampled_from([-299_000_000, -1, 1, 3_600_000_000]))
    def set_the_clock(self, moves: int) -> None:
        """Within what a clock may be set back, from the log's time, or ahead."""
        latest = max(each.recorded_at for each in self.acknowledged)
        self.lab.clock.now = max(self.lab.clock.now, latest) + moves

    @rule()
    def back_up(self) -> None:
        """A copy of the folder while nobody writes."""
        folder = self.folders / f"backup-{len(self.backups)}"

        async def copy() -> int:
            size = (await self.lab.client("auditor-1").get_checkpoint()).size
            await self.lab.stop()
            self._copy(self.data, folder)
            await self.lab.start()
            return size

        self.backups.append(Backup(folder, self.run(copy())))

    # --- what somebody does to the disk ---------------------------------------------------------------------

    @rule(data=st.data())
    def tamper_with_an_entry(self, data: st.DataObject) -> None:
        """One bit of one stored run, behind the database's back."""
        self.run(self.lab.stop())
        whole = self.folders / "whole"
        self._copy(self.data, whole)
        with sqlite3.connect(self.data / "ledger.sqlite") as database:
            rows = database.execute(
                "SELECT rowid, state FROM stored_events WHERE topic = 'assay/run/v1'"
            ).fetchall()
            rowid, run = data.draw(st.sampled_from(rows))
            at = data.draw(st.integers(0, len(run) * 8 - 1))
            spoiled = bytearray(run)
            spoiled[at // 8] ^= 1 << at % 8
            for (name,) in database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall():
                database.execute(f"DROP TRIGGER {name}")
            database.execute("UPDATE stored_events SET state = ? WHERE rowid = ?", (bytes(spoiled), rowid))
        database.close()
        self._found(self._start_and_verify)
        self._put(whole)
        self.run(self.lab.start())

    @rule(gone=st.booleans())
    def tamper_with_what_was_released(self, gone: bool) -> None:
        """The released checkpoint's file is lost, or spoiled in both its slots: refused, with its reason."""
        self.run(self.lab.stop())
        whole = self.folders / "whole"
        self._copy(self.data, whole)
        released = self.data / "released"
        if gone:
            released.unlink()
        else:
            data = bytearray(released.read_bytes())
            for slot in (0, len(data) // 2):
                data[slot + 20] ^= 1
            released.write_bytes(data)
        try:
            self.run(self.lab.start())
        except FatalError as error:
            assert error.reason in ("RELEASED_MISSING", "BAD_RELEASED")
        else:
            raise AssertionError("expected a refusal to start, got a ledger that serves")
        self._put(whole)
        self.run(self.lab.start())

    @precondition(lambda self: self.backups)
    @rule(data=st.data(), all_of_it=st.booleans())
    def restore_an_old_backup(self, data: st.DataObject, all_of_it: bool) -> None:
        """The database alone is refused at the start; with its released file it is seen by who remembers."""
        backup = data.draw(st.sampled_from(self.backups))
        size = self.watcher.size
        self.run(self.lab.stop())
        whole = self.folders / "whole"
        self._copy(self.data, whole)
        self._put(backup.folder)
        if not all_of_it:
            shutil.copy(whole / "released", self.data / "released")
        if backup.size == size:
            self.run(self.lab.start())
            return
        if all_of_it:
            self.run(self.lab.start())
            refused = reason_of(self._watch(), VerificationError)
            assert "ROLLED_BACK" == self.run(refused)
            self.run(self.lab.stop())
        else:
            self._refused_to_start("BEHIND_RELEASED")
        self._put(whole)
        self.run(self.lab.start())

    def _refused_to_start(self, reason: str) -> None:
        try:
            self.run(self.lab.start())
        except FatalError as error:
            assert reason == error.reason
        else:
            raise AssertionError(f"expected {reason}, got a ledger that serves")

    async def _start_and_verify(self) -> None:
        await self.lab.start()
        try:
            await self._verify()
        finally:
            await self.lab.stop()

    def _found(self, looking: Any) -> None:
        try:
            self.run(looking())
        except AssayError:
            return
        raise AssertionError("expected the change to be found, got a log that verifies")

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(source, target)

    def _put(self, folder: Path) -> None:
        self._copy(folder, self.data)

    # --- what must hold after every step --------------------------------------------------------------------

    async def _watch(self) -> None:
        client = self.lab.client("auditor-1", memory=self.watcher)
        await client.get_checkpoint()

    async def _verify(self) -> None:
        verified = await self.lab.check()
        entries = {i: decode_entry(entry) async for i, entry in self.lab.client("auditor-1").read(0)}
        assert verified.size == len(entries)
        events: dict[bytes, int] = {}
        for index, entry in entries.items():
            assert entry.event not in events
            events[entry.event] = index
        for each in self.acknowledged:
            for offset, event in enumerate(each.batch.events):
                assert each.first_index + offset == events[event]
            assert each.recorded_at == entries[each.first_index].recorded_at

    @invariant()
    def all_that_was_promised_holds(self) -> None:
        """The log verifies, holds each acknowledged batch once, and continues every checkpoint remembered."""
        self.run(self._watch())
        self.run(self._verify())


Ledger.TestCase.settings = settings(
    max_examples=6, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedger = Ledger.TestCase
