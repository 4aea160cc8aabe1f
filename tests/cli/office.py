"""A home with real processes, made and driven by the command line; evidence by each principal's client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from clients.cli.desk import event, now
from clients.cli.main import app
from clients.demo.document import Candidate
from clients.demo.scenario import Scenario, digest
from clients.identity import load_identity
from clients.ids import RANDOM_BYTES, uuid7
from clients.sync import SyncLedgerClient
from ledger.environment import environment_digest
from ledger.v1 import canary_pb2, event_pb2, options_pb2
from tests.cli.conftest import Ran
from tests.memory import demo_document, small
from tests.ports import free_port

__all__ = ["Office"]

SCOPE = "sql-agent/en-internal"
RESOURCE = "sql-writer"
_TARGETS = {
    name.removeprefix("ENVIRONMENT_TARGET_").lower().replace("_", "-"): number
    for name, number in options_pb2.EnvironmentTarget.items()
    if number
}


class Office:
    """Ledger, gate and people of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self._servers: list[subprocess.Popen[str]] = []
        document = demo_document(small)
        self.scenario = Scenario(document, lambda: uuid7(now(), os.urandom(RANDOM_BYTES)), now)
        self.document = document
        made = self.run(
            *("init", self.home, "--dev", "--json"),
            *("--ledger", f"127.0.0.1:{free_port()}", "--gate", f"127.0.0.1:{free_port()}"),
        )
        assert made.code == 0, made.err

    # --- the command ----------------------------------------------------------------------------------------

    def run(self, *arguments: object, typed: str | None = None) -> Ran:
        """`assay --home HOME …` in this process."""
        words = ["--home", str(self.home), *(str(argument) for argument in arguments)]
        result = CliRunner().invoke(app, words, input=typed)
        return Ran(result.exit_code, result.stdout, result.stderr)

    def json(self, *arguments: object, code: int = 0) -> Any:
        """The answer to --json, which must exit with `code`."""
        ran = self.run(*arguments, "--json")
        assert code == ran.code, (arguments, ran)
        return ran.document

    # --- the processes --------------------------------------------------------------------------------------

    def serve(self, *services: str) -> None:
        """Starts ledger and gate with `assay serve`, or those named, each until it says that it is ready."""
        for service in services or ("ledger", "gate"):
            self.serve_one(service)

    def serve_one(self, service: str, *options: str) -> None:
        """Starts one of them with these options."""
        with (self.folder / f"{service}.log").open("a") as log:
            command = [sys.executable, "-m", "clients.cli", "--home", str(self.home), "serve", service]
            server = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, text=True)
        self._servers.append(server)
        assert server.stdout is not None
        assert "address" in json.loads(server.stdout.readline() or "{}"), log.name

    def stop(self) -> list[int]:
        """Stops gate, then ledger; their exit codes."""
        return [self.stop_last() for _ in range(len(self._servers))]

    def stop_last(self) -> int:
        """Stops the server that was started last; its exit code."""
        server = self._servers.pop()
        server.send_signal(signal.SIGTERM)
        code = server.wait()
        if server.stdout is not None:
            server.stdout.close()
        return code

    # --- people ---------------------------------------------------------------------------------------------

    def send(self, author: str, events: Iterable[event_pb2.Event]) -> int:
        """One batch by a principal's own client; its first index."""
        with SyncLedgerClient(load_identity(self.home, author)) as client:
            return client.append([item.SerializeToString() for item in events]).first_index

    def write(self, author: str, bodies: Sequence[Any]) -> int:
        """One batch of bodies; its first index."""
        with SyncLedgerClient(load_identity(self.home, author)) as client:
            return client.append([event(body) for body in bodies]).first_index

    def file(self, content: str | bytes, name: str | None = None) -> Path:
        """A file with this content."""
        data = content.encode() if isinstance(content, str) else content
        path = self.folder / (name or f"{digest(data.decode()).hex()[:16]}.txt")
        path.write_bytes(data)
        return path

    def pin(self, label: str) -> str:
        """@FILE whose digest is the scenario's `digest(label)`."""
        return f"@{self.file(label)}"

    def candidate(self, name: str) -> Candidate:
        """A candidate of the document."""
        return next(candidate for candidate in self.document.candidates if candidate.name == name)

    # --- the frame ------------------------------------------------------------------------------------------

    def cases_file(self) -> Path:
        """The holdout's cases, a line each."""
        rows = [{"case": case, "family": case.rpartition("-")[0]} for case in self.scenario._cases()]
        return self.file("".join(json.dumps(row) + "\n" for row in rows), "holdout.jsonl")

    def train_file(self) -> Path:
        """The training tasks."""
        return self.file("".join(f'{{"case": "train-{n}"}}\n' for n in range(9)), "train.jsonl")

    def publish(self) -> str:
        """The whole frame, published with `assay publish`; the holdout's digest."""
        contract, cases = self.pin("tool-contract/1"), self.cases_file()
        families = [
            f"--family={name}={least}" for name, least in self.document.workflow.span_families.items()
        ]
        self.json(
            *("publish", "workflow", "sql-agent", "--version", 1, *families, "--tool-contract", contract),
            *("--expected-retries", 1, "--infrastructure-retries", 2, "--destination", "reports"),
        )
        self.json("publish", "tool-contract", SCOPE, contract)
        evaluator = ("--name", "execution-match", "--digest", self.pin("evaluator/execution-match/1"))
        self.json("publish", "evaluator", SCOPE, *evaluator, "--better", "higher")
        self.json("publish", "snapshot", SCOPE, self.train_file(), "--purpose", "train")
        holdout: str = self.json(
            "publish", "snapshot", SCOPE, cases, "--purpose", "holdout", "--family", "family"
        )["digest"]
        protect = [f"--protect={family}" for family in self.document.holdout.protected]
        self.json("publish", "protected-set", SCOPE, cases, "--snapshot", holdout, *protect)
        self.json("publish", "policy", SCOPE, self.file(self.document.policy_bytes, "policy.json"))
        for name, number in _TARGETS.items():
            self.json("publish", "environment", SCOPE, name, self.pin(f"environment/{number}/1"))
        baseline = (RESOURCE, SCOPE, self.pin(f"{RESOURCE}/baseline"))
        self.json("publish", "baseline", *baseline, "--reason", "in use before")
        return holdout

    # --- an update ------------------------------------------------------------------------------------------

    def propose(self, update: str) -> None:
        """`assay update propose` and `freeze`."""
        self.json(
            *("update", "propose", update, RESOURCE, SCOPE, "--kind", "model.lora", "--code", "4f1c0de"),
            *("--parent", self.pin(f"{RESOURCE}/baseline"), "--training-snapshot", f"@{self.train_file()}"),
            *("--config", self.pin("grpo"), "--workflow-version", 1),
            *("--harness", self.pin("environment/6/1"), "--tokenizer", self.pin("environment/7/1")),
        )
        self.json("update", "freeze", update)

    def train(self, candidate: Candidate) -> None:
        """What runner, judge and trainer write until there is a candidate."""
        told = self.scenario
        self.send("trainer-1", told.training_started(candidate))
        self.send("runner-1", [item for rollout in told.rollouts(candidate) for item in rollout])
        self.send("judge-1", told.rewards(candidate))
        self.send("trainer-1", told.training_ended(candidate))

    def scores_file(self, candidate: Candidate) -> Path:
        """The judge's results of parent and candidate, under columns of another tool's names."""
        solved = self.scenario._solved_by_parent()
        subjects = (("old", solved), ("new", self.scenario._solved_by(candidate, solved)))
        rows = [
            {
                "task": case,
                "kind": case.rpartition("-")[0],
                "model": model,
                "run": 0,
                "points": float(case in right),
            }
            for model, right in subjects
            for case in self.scenario._cases()
        ]
        return self.file("".join(json.dumps(row) + "\n" for row in rows), f"scores-{candidate.name}.jsonl")

    def import_scores(self, candidate: Candidate) -> Any:
        """`assay import evaluations`, pins from the update's freeze."""
        return self.json(
            *("import", "evaluations", self.scores_file(candidate)),
            *("--update", self.scenario.update_id(candidate), "--case", "task", "--family", "kind"),
            *("--subject", "model", "--trial", "run", "--score", "points"),
            *("--parent-is", "old", "--candidate-is", "new"),
        )

    def rehearse(self, candidate: Candidate) -> None:
        """The canary's rehearsal window."""
        self.send("canary-1", self.scenario.canary(candidate))

    def go_live(self, candidate: Candidate, verdict_index: int, not_after: int) -> None:
        """The canary's LIVE window on a standing canary verdict."""
        started, *rest = self.scenario.canary(candidate)
        start = started.canary_started
        start.kind, start.window = canary_pb2.WINDOW_KIND_LIVE, f"live-{candidate.name}"
        for part in start.environment:
            if part.target == options_pb2.ENVIRONMENT_TARGET_DESTINATION:
                part.digest = digest(f"environment/{part.target}/1")
        start.environment_digest = environment_digest(
            start.environment, start.tool_contract_digest, start.bounds
        )
        start.live.CopyFrom(
            canary_pb2.LiveAuthority(
                resource=RESOURCE,
                scope=self.scenario.scope,
                verdict_index=verdict_index,
                seen_size=self.json("status")["size"],
                not_after=not_after,
            )
        )
        bodies: list[Any] = []
        for item in rest:
            body = getattr(item, item.WhichOneof("body"))
            body.window = start.window
            if item.WhichOneof("body") == "rollback_rehearsed":
                body.environment_digest = start.environment_digest
            bodies.append(body)
        self.write("canary-1", [start])
        self.write("canary-1", bodies)
