"""`assay demo`: a ledger, a gate, four candidates and an auditor, on this machine, for real.

Rules:
1. Real processes over mTLS, each principal with its own key; nothing here reaches into a server.
2. It succeeds only if everything it shows was so: the shipped file's verdicts as expected, the learner's
   verdict refused, pointers apart, the export verified and replayed, the flipped bit found.
3. Another file than the shipped one is shown, not judged: nobody said what it must give.
4. What is kept can be served again: its addresses are the ones that were served on.
5. SIGTERM and SIGHUP end it as Ctrl-C does: no process and no folder with private keys is left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from clients.demo import document as demo_file
from clients.demo.document import Candidate, DemoDocument
from clients.demo.interrupts import as_interrupts
from clients.demo.scenario import Scenario, wrap
from clients.export import export_log
from clients.gate import GateClient
from clients.home import DEVELOPMENT_PRINCIPALS, Home, create_home
from clients.identity import load_identity
from clients.ids import RANDOM_BYTES, uuid7
from clients.ledger import LedgerClient
from clients.receipts import ReceiptsClient
from clients.servers import ServerProcess, gate_command, ledger_command
from gate.judge import STEPS
from gate.reasons import CHECKS
from gate.replay import replay_export
from gate.report import frame_of, sentence, state_name, verdict_name
from ledger.errors import NotFoundError, RefusedError, VerificationError
from ledger.trust import parse_trust_document, role_name
from ledger.v1 import event_pb2, gate_pb2, options_pb2, receipt_pb2
from ledger.verify import verify_export

__all__ = ["DemoResult", "Progress", "as_json", "run_demo", "shipped_candidates"]

_BATCH: Final = 64
_PRINCIPALS: Final = tuple(p.name for p in DEVELOPMENT_PRINCIPALS if p.role != options_pb2.ROLE_GATE)
_APPROVERS: Final = tuple(p.name for p in DEVELOPMENT_PRINCIPALS if p.role == options_pb2.ROLE_APPROVER)
_ROLES: Final = {p.name: role_name(p.role) for p in DEVELOPMENT_PRINCIPALS}

_STARTING, _OF_A_CANDIDATE, _EXPORTING, _AUDITING = 2, 7, 3, 7  # how much of the bar each part takes

Progress = Callable[[str, int, int], None]  # what goes on, how far all of it is, and of how much


@dataclass(slots=True)
class DemoResult:
    """What happened, as JSON types; `failures` is empty if everything was so."""

    candidates: list[dict[str, Any]] = field(default_factory=list)
    learner: dict[str, Any] = field(default_factory=dict)
    pointers: dict[str, Any] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    shipped: bool = True  # the file that ships, whose verdicts are known beforehand
    kept: Path | None = None  # home and export, if they were to be left

    @property
    def promoted(self) -> int:
        """How many of the candidates were promoted to a bounded canary."""
        return sum(shown["verdict"] != "HOLD" for shown in self.candidates)


# What the shipped file must give; a file that a user edits is shown, not judged.
_SHIPPED: Final = {
    "A": ("PROMOTE_TO_BOUNDED_CANARY", ()),
    "B": ("HOLD", (2, 3)),
    "C": ("HOLD", (5,)),
    "D": ("HOLD", (6, 7)),
}


def shipped_candidates() -> bytes:
    """The candidates file that ships: A to D."""
    return files("clients.demo").joinpath("candidates.json").read_bytes()


def _now() -> int:
    return time.time_ns() // 1000


def _new_id() -> bytes:
    return uuid7(_now(), os.urandom(RANDOM_BYTES))


def run_demo(candidates: bytes | None, keep: Path | None, progress: Progress) -> DemoResult:
    """Runs the demonstration. `candidates`: another file than the shipped one; `keep`: a folder that is left.

    Raises FormatError(BAD_CANDIDATES, BAD_POLICY), RefusedError(FOLDER_EXISTS), AssayError where the
    demonstration itself cannot run.
    """
    shipped = shipped_candidates()
    document = demo_file.parse_document(candidates if candidates is not None else shipped)
    demo_file.check_approvers(document, _APPROVERS)
    demo_file.check_principals(document, _ROLES)
    if keep is not None:
        _check_free(keep)
    started = time.monotonic()
    with as_interrupts():
        folder = Path(tempfile.mkdtemp(prefix="assay-demo-"))
        try:
            demo = _Demo(document, folder, progress)
            result = asyncio.run(demo.run(judge_shipped=candidates in (None, shipped)))
            if keep is not None:
                shutil.copytree(folder, keep, dirs_exist_ok=True)
                result.kept = keep
        finally:
            shutil.rmtree(folder)
    result.seconds = time.monotonic() - started
    return result


def _check_free(folder: Path) -> None:
    """Before anything runs: what is kept must not mix with what is there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RefusedError(
            "FOLDER_EXISTS",
            f"expected a new or empty folder to keep the demonstration in, got {folder}; name another one",
        )


class _Demo:
    """One run in one folder."""

    def __init__(self, document: DemoDocument, folder: Path, progress: Progress) -> None:
        self.document = document
        self.home = folder / "home"
        self.export = folder / "log.export"
        self._progress = progress
        self._done = 0  # of the bar, by the parts that are over
        self._all = _STARTING + _OF_A_CANDIDATE * len(document.candidates) + _EXPORTING + _AUDITING
        self.scenario = Scenario(document, _new_id, _now)
        self.result = DemoResult()
        self.clients: dict[str, LedgerClient] = {}
        self.gates: dict[str, GateClient] = {}

    async def run(self, *, judge_shipped: bool) -> DemoResult:
        made = create_home(
            self.home,
            origin_name="demo.assay",
            ledger="127.0.0.1:0",
            gate="127.0.0.1:0",
            trust_domain="demo.assay",
            random=os.urandom,
            now=_now(),
        )
        self._tell("starting ledger and gate", 0, _STARTING)
        async with AsyncExitStack() as stack:
            await self._start(stack, made.home)
            await self._append("operator-1", self.scenario.publications())
            for candidate in self.document.candidates:
                await self._candidate(candidate)
            await self._learner_tries()
            await self._pointers()
            await export_log(
                self.clients["auditor-1"],
                self.export,
                lambda at, of: self._tell("exporting", _EXPORTING * at // of, _EXPORTING),
            )
            self._tell("exporting", _EXPORTING, _EXPORTING)
        # From here on the servers are gone: the auditor has a file, a trust document and no network.
        self._audit()
        self.result.shipped = judge_shipped
        if judge_shipped:
            self._judge_shipped()
        return self.result

    def _tell(self, what: str, so_far: int, of: int) -> None:
        """Shows how far all is, from how far the part is that goes on; a part that is over is added up."""
        self._progress(what, self._done + so_far, self._all)
        if so_far == of:
            self._done += of

    async def _start(self, stack: AsyncExitStack, home: Home) -> None:
        log = self.home / "servers.log"
        ledger = await stack.enter_async_context(ServerProcess(ledger_command(self.home, home), log))
        self._tell("starting ledger and gate", 1, _STARTING)
        command = gate_command(self.home, "gate-1", ledger.address)
        gate = await stack.enter_async_context(ServerProcess(command, log))
        self._tell("starting ledger and gate", _STARTING, _STARTING)
        # Port 0 let the system choose; a home that is kept says what was chosen.
        served = home.model_copy(update={"ledger": ledger.address, "gate": gate.address})
        (self.home / "assay.json").write_text(served.model_dump_json(indent=2) + "\n", encoding="utf-8")
        ledger_command(self.home, served, listen=served.ledger)
        for name in _PRINCIPALS:
            identity = load_identity(self.home, name, target=ledger.address)
            self.clients[name] = await stack.enter_async_context(LedgerClient(identity))
            self.gates[name] = await stack.enter_async_context(GateClient(identity, gate.address))

    async def _append(self, author: str, events: Iterable[event_pb2.Event]) -> int:
        """Streams events in batches; the number that was acknowledged."""
        acknowledged = 0

        async def batches() -> AsyncIterator[list[bytes]]:
            batch: list[bytes] = []
            for event in events:
                batch.append(event.SerializeToString())
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
            if batch:
                yield batch

        async for placed in self.clients[author].append_stream(batches()):
            acknowledged += placed.count
        return acknowledged

    # --- one candidate -------------------------------------------------------------------------------------

    async def _candidate(self, candidate: Candidate) -> None:
        s, update, name = self.scenario, self.scenario.update_id(candidate), candidate.name
        steps = _OF_A_CANDIDATE
        self._tell(f"candidate {name}: freezing", 0, steps)
        await self._append("trainer-1", s.proposal(candidate))
        await self.gates["trainer-1"].freeze(update)
        await self._append("trainer-1", s.training_started(candidate))
        self._tell(f"candidate {name}: rollouts", 1, steps)
        await self._append("runner-1", (event for rollout in s.rollouts(candidate) for event in rollout))
        self._tell(f"candidate {name}: rewards", 2, steps)
        await self._append("judge-1", s.rewards(candidate))
        await self._append("trainer-1", s.training_ended(candidate))
        self._tell(f"candidate {name}: evaluating on the holdout", 3, steps)
        await self._append("judge-1", s.evaluations(candidate))
        self._tell(f"candidate {name}: rehearsing", 4, steps)
        await self._append("canary-1", s.canary(candidate))
        self._tell(f"candidate {name}: approving", 5, steps)
        step = options_pb2.STEP_CANARY
        if candidate.approval.by is not None:
            shown = await self.gates[candidate.approval.by].evaluate(update, step)
            await self._append(candidate.approval.by, s.approval(candidate, step, shown.verdict))
        self._tell(f"candidate {name}: judging", 6, steps)
        judged = await self.gates["operator-1"].evaluate(update, step, record=True)
        receipt = await ReceiptsClient(self.clients["auditor-1"]).get_update(update)
        self._tell(f"candidate {name}: judged", steps, steps)
        self.result.candidates.append(_shown(candidate, judged.verdict, judged.index, receipt))

    # --- the learner, the pointers -------------------------------------------------------------------------

    async def _learner_tries(self) -> None:
        """The trainer writes itself a verdict, with its own valid key."""
        candidate = self.document.candidates[0]
        forged = gate_pb2.VerdictIssued(
            update=self.scenario.update_id(candidate),
            step=options_pb2.STEP_DEFAULT,
            verdict=gate_pb2.VERDICT_PROMOTE_TO_DEFAULT,
            resource=self.document.resource,
            scope=self.scenario.scope,
            log_size=1,
            log_root=bytes(32),
            evidence_digest=bytes(32),
            policy_digest=bytes(32),
            rules=1,
            findings=[gate_pb2.Finding(check=CHECKS[0], state=gate_pb2.STATE_PASS, cited_root=bytes(32))],
            findings_digest=bytes(32),
            not_after=_now() + 3_600_000_000,
        )
        event = wrap(forged, _new_id(), _now())
        try:
            placed = await self.clients["trainer-1"].append([event.SerializeToString()])
        except RefusedError as error:
            self.result.learner = {"refused": True, "reason": error.reason, "message": error.message}
        else:
            self.result.learner = {"refused": False, "index": placed.first_index}
        if self.result.learner.get("reason") != "ROLE_MAY_NOT_WRITE":
            self.result.failures.append("expected the learner's verdict refused with ROLE_MAY_NOT_WRITE")

    async def _pointers(self) -> None:
        receipts = ReceiptsClient(self.clients["auditor-1"])
        default = await receipts.resolve_default(self.document.resource, self.scenario.scope)
        try:
            latest = await receipts.latest_candidate(self.document.resource, self.scenario.scope)
        except NotFoundError:
            latest = None
        promoted = default.origin == receipt_pb2.DEFAULT_ORIGIN_PROMOTED
        self.result.pointers = {
            "resource": self.document.resource,
            "scope": f"{self.scenario.scope.workflow}/{self.scenario.scope.segment}",
            "approved_default": default.manifest_digest.hex(),
            "approved_default_origin": "PROMOTED" if promoted else "BASELINE (ungated)",
            "approved_default_index": default.index,
            "latest_candidate": None if latest is None else latest.manifest_digest.hex(),
            "latest_candidate_update": None if latest is None else latest.update,
            "latest_candidate_index": None if latest is None else latest.index,
        }
        if default.manifest_digest != self.scenario.baseline:
            self.result.failures.append("expected the baseline to stay the approved default")

    # --- offline -------------------------------------------------------------------------------------------

    def _audit(self) -> None:
        trust = parse_trust_document((self.home / "trust.txt").read_bytes())
        data = self.export.read_bytes()
        done = 0

        def told(count: int) -> None:
            nonlocal done
            done += count
            parts = min(_AUDITING * done // (2 * len(data)), _AUDITING - 1)
            self._tell("verifying and replaying offline", parts, _AUDITING)

        verified, replay = replay_export(lambda: BytesIO(data), trust, progress=told)
        self._tell("verifying and replaying offline", _AUDITING, _AUDITING)
        replayed = replay.result()
        self.result.audit = {
            "origin": verified.origin,
            "size": verified.size,
            "root": verified.root.hex(),
            "bytes": len(data),
            "batches": verified.batches,
            "authors": dict(verified.authors),
            "verdicts_replayed": replayed.verdicts,
            "moves_replayed": replayed.moves,
            "freezes_replayed": replayed.freezes,
            "unreplayable": len(replayed.unreplayable),
        }
        if replayed.verdicts != len(self.document.candidates) or replayed.unreplayable:
            self.result.failures.append("expected every verdict replayed")
        self._flip(data, len(data) // 2)

    def _flip(self, data: bytes, position: int) -> None:
        """One bit in the middle of the file."""
        trust = parse_trust_document((self.home / "trust.txt").read_bytes())
        changed = bytearray(data)
        changed[position] ^= 1
        try:
            verify_export(BytesIO(bytes(changed)), trust)
        except VerificationError as error:
            self.result.audit["flipped_bit"] = {
                "byte": position,
                "found": True,
                "step": error.step,
                "index": error.index,
                "says": str(error),
            }
        else:
            self.result.audit["flipped_bit"] = {"byte": position, "found": False}
            self.result.failures.append("expected the flipped bit to be found")

    def _judge_shipped(self) -> None:
        for shown in self.result.candidates:
            verdict, held = _SHIPPED[shown["candidate"]]
            failing = tuple(n for n, check in enumerate(CHECKS, start=1) if shown["states"][check] != "PASS")
            if (shown["verdict"], failing) != (verdict, held):
                self.result.failures.append(
                    f"{shown['candidate']}: expected {verdict} {list(held)}, "
                    f"got {shown['verdict']} {list(failing)}"
                )


def _shown(
    candidate: Candidate, verdict: gate_pb2.VerdictIssued, index: int, receipt: dict[str, Any]
) -> dict[str, Any]:
    return {
        "candidate": candidate.name,
        "story": candidate.story,
        "update": verdict.update,
        "verdict": verdict_name(verdict.verdict),
        "verdict_index": index,
        "covers": frame_of(receipt, STEPS[verdict.step]) | {"log_size": verdict.log_size},
        "gain": receipt["after"]["gain"],
        "gain_decimal": receipt["after"]["gain_decimal"],
        "evidence_digest": verdict.evidence_digest.hex(),
        "states": {finding.check: state_name(finding.state) for finding in verdict.findings},
        "reasons": {finding.check: list(finding.reasons) for finding in verdict.findings if finding.reasons},
        "counts": {f.check: {count.name: count.value for count in f.counts} for f in verdict.findings},
        "sentences": {finding.check: sentence(finding) for finding in verdict.findings},
    }


def as_json(result: DemoResult) -> str:
    """The result as JSON text."""
    return json.dumps(
        {
            "candidates": result.candidates,
            "learner": result.learner,
            "pointers": result.pointers,
            "audit": result.audit,
            "failures": result.failures,
            "shipped_file": result.shipped,
            "promoted": result.promoted,
            "kept": None if result.kept is None else str(result.kept),
            "seconds": round(result.seconds, 2),
        },
        indent=2,
    )
