"""Cosignatures: released checkpoints go to witnesses over HTTP (C2SP tlog-witness), and the latest one that
satisfies the trust document's quorum is kept and served.

Rules kept here:

- Only what is released goes to a witness, and no acknowledgement waits for one.
- All witnesses are asked for the same checkpoint, a round, so that a quorum can come together while the log
  grows. A round ends when everybody has answered whom the last round found well, and the quorum is there or
  nobody is left to ask; who was away is asked all the same and waited for by nobody.
- A witness is believed as far as its signature goes: its own line, under its own key, over this checkpoint.
  A line of another key is passed over, and whatever else it says is a failure of its own, logged once for
  each reason that follows another.
- What satisfies the quorum is durable before it is served. A log that does not contain it does not start (law
  6); it never gets smaller or older.
- A log at rest is cosigned again every hour: a cosignature's time is what tells an auditor that nothing came
  after.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ledger.checkpoint import Checkpoint, open_note, verify_cosignatures
from ledger.errors import AssayError, FatalError, FormatError, OverloadedError, VerificationError
from ledger.head import check_signatures
from ledger.note import VerifierKey, decode_decimal, encode_base64, parse_note, signature_line
from ledger.server.durable import Files
from ledger.server.released import check_reaches, check_root
from ledger.server.sequencer import Head, Sequencer
from ledger.server.waiters import happens
from ledger.trust import TrustDocument

__all__ = ["COSIGNED", "Witness", "Witnesses", "parse_witnesses"]

_FOLDER: Final = "witnesses"
_COSIGNED: Final = "cosigned"
COSIGNED: Final = f"{_FOLDER}/{_COSIGNED}"  # below the ledger's `data`
_SOCKET: Final = 5.0  # seconds for one step of a connection
_ANSWER: Final = 10.0  # seconds for a whole answer
_EVERY: Final = 1.0  # seconds between two rounds
_RETRY: Final = 5.0  # seconds before a checkpoint without a quorum, or a witness that failed, is tried again
_AGAIN: Final = 3600.0  # seconds after which a log at rest is cosigned again
_MAX_ANSWER: Final = 65_536  # bytes

_log = logging.getLogger("ledger.server.witnesses")


@dataclass(frozen=True, slots=True)
class Witness:
    """Who cosigns, and where: `url` is the submission prefix."""

    key: VerifierKey
    url: str


def parse_witnesses(urls: Mapping[str, str], trust: TrustDocument) -> tuple[Witness, ...]:
    """Witnesses by their names in the trust document. Raises FormatError BAD_CONFIG."""
    witnesses = []
    for name, url in urls.items():
        if (key := trust.policy.witnesses.get(name)) is None:
            known = ", ".join(trust.policy.witnesses) or "none"
            raise FormatError(
                "BAD_CONFIG", f"witnesses: expected a witness of the trust document ({known}), got {name!r}"
            )
        witnesses.append(Witness(key, url))
    return tuple(witnesses)


class Witnesses:
    """Asks the witnesses of one ledger. Owned by the event loop; each is asked in a thread of its own."""

    def __init__(
        self, witnesses: Sequence[Witness], trust: TrustDocument, sequencer: Sequencer, data: Path
    ) -> None:
        """`data`: the folder that keeps what was cosigned.

        Raises FatalError: BEHIND_RELEASED, FORKED where the log does not contain it; BAD_COSIGNED where it is
        not this ledger's; WITNESSES_UNWRITABLE.
        """
        self._trust = trust
        self._sequencer = sequencer
        self._asked = [_Asked(witness) for witness in witnesses]
        self._stopping = asyncio.Event()
        self._round = asyncio.Event()  # somebody answered
        self._head: Head | None = None  # of the round
        self._lines: dict[VerifierKey, tuple[int, bytes]] = {}  # under it: time and signature line
        self._cosigned: tuple[Checkpoint, bytes] | None = None
        self._unwritable = False
        kept = data / COSIGNED
        try:
            if witnesses:
                self._files = Files(data / _FOLDER)
            note = kept.read_bytes() if kept.exists() else None
        except OSError as error:
            raise FatalError(
                "WITNESSES_UNWRITABLE", f"expected a folder for cosignatures in {data}, got {error}"
            ) from error
        if note is not None:  # whether or not anybody is asked now
            self._begin(note)
        if witnesses:
            self._disk = ThreadPoolExecutor(1, "ledger-cosigned")

    @property
    def cosigned(self) -> tuple[Checkpoint, bytes] | None:
        """The latest checkpoint that satisfies the quorum, and its note; None while there is none."""
        return self._cosigned

    @property
    def cosigned_size(self) -> int | None:
        """Its size."""
        return None if self._cosigned is None else self._cosigned[0].size

    @property
    def cosigned_at(self) -> int | None:
        """When the oldest of its cosignatures was made, in seconds since 1970."""
        if self._cosigned is None:
            return None
        note = parse_note(self._cosigned[1])
        return min(verify_cosignatures(note, self._trust.policy.witnesses.values()).values(), default=None)

    @property
    def away(self) -> int | None:
        """How many witnesses failed when they were asked last; None where none is asked."""
        return sum(asked.failing for asked in self._asked) if self._asked else None

    # --- life -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Asks until `stop`, or until the ledger stops."""
        if not self._asked:
            return
        with suppress(OverloadedError):  # the ledger stops
            await self._sequencer.beyond(0)
            while not self._stopping.is_set():
                head = self._sequencer.head
                await self._one_round(head)
                settled = self._complete and not self.away and not self._unwritable
                await happens(self._stopping, _EVERY)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN if settled else _RETRY):
                        await self._sequencer.beyond(head.size)

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Ends `running`, which is `run`; a witness that is being asked is not waited for."""
        self._stopping.set()
        self._round.set()
        for asked in self._asked:
            asked.abort()
        await running
        if self._asked:
            await asyncio.gather(*(asked.end() for asked in self._asked))
            self._disk.shutdown()

    # --- a round --------------------------------------------------------------------------------------------

    @property
    def _complete(self) -> bool:
        """Whether the round's checkpoint satisfies the quorum."""
        return self._head is not None and self._trust.policy.satisfied_by(frozenset(self._lines))

    async def _one_round(self, head: Head) -> None:
        """Asks everybody for a released head, and keeps what satisfies the quorum."""
        if self._head is None or head.size != self._head.size:
            self._head, self._lines = head, {}
        for asked in self._asked:
            asked.start(self, head)
        waited_for = [asked for asked in self._asked if not asked.failing]
        while not self._stopping.is_set():
            self._round.clear()
            if all(not asked.busy for asked in waited_for if not asked.failing) and (
                self._complete or all(not asked.busy for asked in self._asked)
            ):
                break
            await self._round.wait()
        await self._keep(head)

    def answered(self) -> None:
        """One of the witnesses answered, or failed."""
        self._round.set()

    def take(self, witness: Witness, head: Head, answer: bytes) -> None:
        """The lines that a witness answered for `head`. Raises VerificationError, FormatError."""
        note = parse_note(head.checkpoint + answer)
        if note.text != parse_note(head.checkpoint).text:
            raise FormatError("BAD_NOTE", f"expected signature lines, got {answer[:200]!r}")
        times = verify_cosignatures(note, [witness.key])
        if (time := times.get(witness.key)) is None or not time:
            raise VerificationError(
                "V6", "BAD_COSIGNATURE", f"expected a cosignature by {witness.key} with its time, got none"
            )
        payload = note.payload(witness.key)
        if payload is None or self._head is None or head.size != self._head.size:
            return  # for a round that is over
        before = self._lines.get(witness.key)
        if before is None or before[0] <= time:
            line = signature_line(witness.key.name, witness.key.key_id, payload)
            self._lines[witness.key] = (time, line)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The consistency proof between two released sizes."""
        return self._sequencer.consistency(old, new)

    async def _keep(self, head: Head) -> None:
        """Makes the round's checkpoint durable, then serves it, where the quorum is there."""
        if not self._complete:
            return
        note = head.checkpoint + b"".join(line for _, line in self._lines.values())
        if self._cosigned is not None and self._cosigned[1] == note:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, self._files.write, [(_COSIGNED, note)])
        except OSError as error:
            if not self._unwritable:
                _log.error("cosigned checkpoints stay at size %s: %s", self.cosigned_size, error)
            self._unwritable = True
            return
        self._unwritable = False
        self._cosigned = (open_note(note, self._trust.origin)[1], note)

    def _begin(self, note: bytes) -> None:
        """Takes up what was cosigned before this start."""
        state = self._sequencer.state
        try:
            parsed, checkpoint = open_note(note, self._trust.origin)
            key, *_ = parsed.verify(state.authority.checkpoint_keys)
        except VerificationError as error:
            raise FatalError(
                "BAD_COSIGNED", f"expected a checkpoint of this ledger in {COSIGNED}, got {error}"
            ) from error
        check_reaches(state.size, checkpoint, "as witnesses cosigned")
        check_root(state.tree.root(checkpoint.size), checkpoint, "as witnesses cosigned")
        try:
            check_signatures(parsed, key, self._trust)
        except VerificationError as error:  # the trust document names other witnesses now
            _log.warning("what was cosigned before is not served: %s", error)
            return
        self._cosigned = (checkpoint, note)


# --- one witness -------------------------------------------------------------------------------------------


class _Asked:
    """One witness and what became of asking it. Owned by the event loop; `_ask` runs in its thread."""

    def __init__(self, witness: Witness) -> None:
        self.witness = witness
        self.failing = False
        self._reason = ""  # why, as it was told last
        self._size = 0  # that it cosigned last, as far as it said
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "ledger-witness")
        self._connection: http.client.HTTPConnection | None = None

    @property
    def busy(self) -> bool:
        """Whether it has not answered yet."""
        return self._task is not None and not self._task.done()

    def start(self, owner: Witnesses, head: Head) -> None:
        """Asks for a cosignature of `head`, unless it is still busy with another."""
        if not self.busy:
            if self._task is not None:
                self._task.result()  # a fault of this module does not pass unseen
            self._task = asyncio.create_task(self._submit(owner, head))

    async def end(self) -> None:
        """Waits for what was started."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    def abort(self) -> None:
        """Ends the connection that is open; whoever reads from it fails."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    async def _submit(self, owner: Witnesses, head: Head) -> None:
        try:
            status, answer = await self._post(owner, head)
            if status == HTTPStatus.CONFLICT:
                self._size = self._conflict(answer, head)
                status, answer = await self._post(owner, head)
            if status == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise FormatError(
                    "INCONSISTENT",
                    f"expected HTTP 200, got 422: {answer[:200]!r}: if it is honest, it cosigned another log "
                    "under this ledger's key",
                )
            if status != HTTPStatus.OK:
                raise FormatError("WITNESS_REFUSED", f"expected HTTP 200, got {status}: {answer[:200]!r}")
            owner.take(self.witness, head, answer)
            self._size = head.size
        except (AssayError, OSError, http.client.HTTPException, ValueError) as error:
            self._fail(head, error)
        else:
            if self.failing:
                _log.warning("witness %s cosigned size %d again", self.witness.key.name, head.size)
            self.failing, self._reason = False, ""
        finally:
            owner.answered()

    def _fail(self, head: Head, error: Exception) -> None:
        name = self.witness.key.name
        said = f"{type(error).__name__}: {error}" if not isinstance(error, AssayError) else str(error)
        reason = error.reason if isinstance(error, AssayError) else type(error).__name__
        if reason != self._reason:
            _log.error(
                "witness %s did not cosign size %d: %s", name, head.size, said, extra={"size": head.size}
            )
        self.failing, self._reason = True, reason

    @staticmethod
    def _conflict(answer: bytes, head: Head) -> int:
        """The size that a witness stands at. Raises FormatError."""
        text = answer.decode("ascii", "replace")
        size = decode_decimal(text.removesuffix("\n"))
        if size > head.size:
            raise FormatError(
                "AHEAD_OF_LOG",
                f"expected a witness at a size of at most {head.size}, got {size}: if it is honest, this log "
                "was rolled back, or another ledger holds its key",
            )
        return size

    async def _post(self, owner: Witnesses, head: Head) -> tuple[int, bytes]:
        proof = owner.consistency(self._size, head.size) if self._size < head.size else []
        lines = (f"old {self._size}", *map(encode_base64, proof))
        body = "".join(f"{line}\n" for line in lines).encode() + b"\n" + head.checkpoint
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._ask, body)
        done, _ = await asyncio.wait({work}, timeout=_ANSWER)
        if not done:
            self.abort()
        return await work

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(self.witness.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = self._connection = kind(parts.netloc, timeout=_SOCKET)
        try:
            path = f"{parts.path.rstrip('/')}/add-checkpoint"
            connection.request("POST", path, body, {"Content-Type": "text/plain; charset=utf-8"})
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER + 1)
        finally:
            connection.close()
        if len(answer) > _MAX_ANSWER:
            raise FormatError("OVER_SIZE", f"expected an answer of at most {_MAX_ANSWER} bytes, got more")
        return response.status, answer
