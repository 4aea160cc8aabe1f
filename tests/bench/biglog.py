"""`python -m tests.bench.biglog FOLDER --entries N [--no-verdicts]`: a home whose ledger holds a large log.

What it holds is what services would stream: the demo's updates, four at a time, a hundred rollouts each,
spans of about 400 bytes, in signed batches of up to 256 events, placed by the server's own code and committed
to its own store. `assay verify` passes on an export of it. With verdicts the gate judges every update, and
every tenth is approved: a HOLD or a PROMOTE that replays.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from clients.demo.document import Candidate, DemoDocument, parse_document
from clients.demo.run import shipped_candidates
from clients.demo.scenario import Events, Scenario, wrap
from clients.home import DEVELOPMENT_PRINCIPALS, Home, create_home
from clients.ids import uuid7
from clients.keyfile import read_key
from gate.freeze import derive_freeze
from gate.judge import RulesJudge, verdict_of
from ledger.batch import parse_batch_note, sign_batch
from ledger.checkpoint import Checkpoint, sign_checkpoint
from ledger.genesis import decode_genesis
from ledger.merkle import Tree
from ledger.note import SigningKey
from ledger.receipt import Receipts
from ledger.server.durable import Folder
from ledger.server.sqlite import SQLiteStore
from ledger.server.state import Draft, KeyRing, Placed, Prepared, State, known_grant
from ledger.server.store import Commit
from ledger.trust import WRITER, Authority, parse_trust_document, role_name
from ledger.v1 import event_pb2, gate_pb2, options_pb2

__all__ = ["make_big_log"]

_BATCH: Final = 256
_COMMIT: Final = 2**20  # bytes of events
_TOGETHER: Final = 4
_ROLLOUTS: Final = 100
_APPROVED: Final = 10  # of so many updates one is approved
_PADDING: Final = "x" * 240
_STREAM: Final = bytes(16)
_LEAST_PER_UPDATE: Final = 900
_FOR_FREEZES: Final = frozenset(
    {
        "workflow_declared",
        "policy_published",
        "evaluator_published",
        "snapshot_published",
        "protected_set_published",
        "tool_contract_published",
        "environment_changed",
        "baseline_adopted",
        "update_proposed",
        "update_frozen",
    }
)


def _document(updates: int) -> DemoDocument:
    """The demo's candidates file with so many candidates as its first, and a hundred rollouts each."""
    raw = json.loads(shipped_candidates())
    first = raw["candidates"][0]
    first["training"] |= {"rollouts": _ROLLOUTS, "covered": _ROLLOUTS}
    raw["policy"]["span_coverage"]["min_completed"] = _ROLLOUTS
    raw["candidates"] = [first | {"name": f"{number:05d}"} for number in range(updates)]
    return parse_document(json.dumps(raw).encode())


class _Writer:
    """Places and commits batches. Owns store, state and what waits for the next commit."""

    def __init__(self, path: Path, home: Home) -> None:
        self.store = SQLiteStore(Folder(path / "ledger" / "data"), home.origin)
        self.trust = parse_trust_document((path / "trust.txt").read_bytes())
        self.keys = KeyRing([read_key(path / "ledger" / "note.key")])
        self.state = State(Authority.initial(self.trust), Tree())
        self.draft = Draft.of(self.state)
        self.clock = time.time_ns() // 1000
        self._bytes = 0
        self._sequences: Counter[str] = Counter()

    def place(self, note: bytes, data: Sequence[bytes], events: Sequence[event_pb2.Event]) -> Placed:
        """Places a signed batch; commits when there is enough."""
        parsed = parse_batch_note(note)
        bodies = frozenset(body for event in events if (body := event.WhichOneof("body")))
        grant = known_grant(self.draft.authority, parsed)
        size = sum(map(len, data))
        batch = Prepared(parsed, grant, data, events, bodies, size)
        placed = self.draft.place(batch, None, self.clock, self.keys)
        self.clock += 1000
        self._bytes += size
        if self._bytes >= _COMMIT:
            self.commit()
        return placed

    def sign(self, key: SigningKey, events: Sequence[event_pb2.Event]) -> Placed:
        """Signs and places a batch."""
        data = [event.SerializeToString() for event in events]
        name = key.verifier_key.name
        sequence = self._sequences[name]
        self._sequences[name] += 1
        return self.place(sign_batch(key, self.trust.origin, _STREAM, sequence, data), data, events)

    def commit(self) -> None:
        """Commits what was placed."""
        draft, state = self.draft, self.state
        if not draft.placed:
            return
        state.tree.extend([leaf for placed in draft.placed for leaf in placed.leaves])
        checkpoint = Checkpoint(self.trust.origin, draft.size, state.tree.root())
        signed = sign_checkpoint(checkpoint, self.keys.holding(draft.authority))
        self.store.commit(Commit(state.size, b"".join(draft.runs), tuple(draft.markers), draft.size, signed))
        self.store.release(signed)
        state.absorb(draft)
        self.draft, self._bytes = Draft.of(state), 0


class _Teller:
    """Tells the updates' stories. Owns the receipts that freezes and verdicts rest on."""

    def __init__(self, path: Path, home: Home, document: DemoDocument, *, verdicts: bool) -> None:
        self._writer = _Writer(path, home)
        self._keys = {name: read_key(path / "principals" / name / "note.key") for name in home.principals}
        self._by_role = {role: name for name, role in reversed(home.principals.items())}
        self._verdicts = verdicts
        self._numbers = itertools.count()
        self._judge = RulesJudge()
        self._receipts = Receipts(self._judge, self._writer.state.tree.root)
        self.scenario = Scenario(document, self._new_id, lambda: self._writer.clock)
        for note, data in decode_genesis((path / "genesis.bin").read_bytes()):
            self._fold(self._writer.place(note, data, [event_pb2.Event.FromString(event) for event in data]))
        self._writer.commit()
        for event in self.scenario.publications():
            self._write([event])

    @property
    def size(self) -> int:
        """Entries placed."""
        return self._writer.draft.size

    def _new_id(self) -> bytes:
        return uuid7(self._writer.clock, next(self._numbers).to_bytes(10, "big"))

    def _write(self, events: Events, author: str | None = None) -> None:
        """Places events of one author in as few batches as may be."""
        name = events[0].WhichOneof("body")
        if name is None:
            raise ValueError("expected an event with a body, got none")
        key = self._keys[author or self._by_role[role_name(WRITER[name])]]
        for start in range(0, len(events), _BATCH):
            self._fold(self._writer.sign(key, events[start : start + _BATCH]))

    def _say(self, body: Any) -> None:
        self._write([wrap(body, self._new_id(), self._writer.clock)])

    def _fold(self, placed: Placed) -> None:
        """Without verdicts only what a freeze rests on is folded: the rest would fill the memory."""
        alone = len(placed.events) == 1
        for offset, (leaf, event) in enumerate(zip(placed.leaves, placed.events, strict=True)):
            if self._verdicts or event.WhichOneof("body") in _FOR_FREEZES:
                index = placed.first_index + offset
                self._receipts.apply(index, placed.recorded_at, leaf, placed.grant, event, alone)

    def tell(self, candidates: Sequence[Candidate]) -> None:
        """The stories of these updates, their rollouts side by side."""
        s = self.scenario
        for candidate in candidates:
            update = s.update_id(candidate)
            self._write(s.proposal(candidate))
            self._say(
                derive_freeze(self._receipts, update, "trainer-1", is_operator=False, redo=(), size=self.size)
            )
            self._write(s.training_started(candidate))
        for rollouts in zip(*(s.rollouts(candidate) for candidate in candidates), strict=True):
            self._write([_padded(event) for rollout in rollouts for event in rollout])
        for candidate in candidates:
            self._write(s.rewards(candidate))
            self._write(s.training_ended(candidate))
            self._write(s.evaluations(candidate))
            self._write(s.canary(candidate))
            if self._verdicts:
                self._judged(candidate)

    def _judged(self, candidate: Candidate) -> None:
        if int(candidate.name) % _APPROVED == 0:
            verdict = self._verdict(candidate)
            approval = self.scenario.approval(candidate, options_pb2.STEP_CANARY, verdict)
            self._write(approval, candidate.approval.by)
        self._say(self._verdict(candidate))

    def _verdict(self, candidate: Candidate) -> gate_pb2.VerdictIssued:
        """What the gate says as of the log so far, which is committed first: a verdict names its root."""
        self._writer.commit()
        update, step, size = self.scenario.update_id(candidate), options_pb2.STEP_CANARY, self.size
        judgement = self._judge.evaluate(self._receipts, update, step, size)
        proposal = self._receipts.proposal(update)
        if proposal is None:
            raise ValueError(f"expected a proposal of {update}, got none")
        return verdict_of(judgement, proposal.body, step, size, self._writer.state.tree.root(size))

    def end(self) -> None:
        """Commits the rest and closes the store."""
        self._writer.commit()
        self._writer.store.close()


def _padded(event: event_pb2.Event) -> event_pb2.Event:
    if event.WhichOneof("body") == "span_recorded":
        span = Span.FromString(event.span_recorded.otlp_span)
        span.attributes.append(KeyValue(key="input", value=AnyValue(string_value=_PADDING)))
        event.span_recorded.otlp_span = span.SerializeToString()
    return event


def make_big_log(path: Path, entries: int, *, verdicts: bool = True) -> int:
    """Makes a home in the folder `path`, which must not exist, with a log of at least `entries` entries.

    Returns its size. 1,000,000 entries are about 1,000 updates and take a minute or two.
    """
    home = create_home(
        path,
        origin_name="big",
        ledger="127.0.0.1:0",
        gate="127.0.0.1:0",
        trust_domain="big.test",
        principals=DEVELOPMENT_PRINCIPALS,
        random=os.urandom,
        now=time.time_ns() // 1000,
    ).home
    document = _document(entries // _LEAST_PER_UPDATE + 2 * _TOGETHER)
    teller = _Teller(path, home, document, verdicts=verdicts)
    candidates = iter(document.candidates)
    while teller.size < entries:
        teller.tell(list(itertools.islice(candidates, _TOGETHER)))
    teller.end()
    return teller.size


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.biglog")
    parser.add_argument("folder", type=Path, help="of the home; must not exist")
    parser.add_argument("--entries", type=int, required=True)
    parser.add_argument("--no-verdicts", dest="verdicts", action="store_false", help="less memory")
    arguments = parser.parse_args()
    size = make_big_log(arguments.folder, arguments.entries, verdicts=arguments.verdicts)
    print(json.dumps({"home": str(arguments.folder), "size": size}))


if __name__ == "__main__":
    main()
