"""Choosing what counts as evidence of an update, as of a log size (checks.md section 1).

Rules:
1. Those of `gate.choosing`: chosen, never edited; by natural key the first by index counts.
2. The first freeze opens the update, the last one's pins hold. Evidence made before a re-freeze or a redo
   stops counting for the checks whose pins changed, and for no others.
3. Nothing is pooled, nothing is chosen among: the first evaluation, every window, the last rehearsal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

from gate.choosing import Choosing
from gate.evidence import (
    FOREVER,
    TARGETS,
    Attempt,
    Evaluation,
    Evidence,
    RolloutEvidence,
    Window,
    pinned_environment,
)
from ledger.claims import Rollout, Update
from ledger.fact import Fact
from ledger.receipt import Receipts
from ledger.standing import verdict_at
from ledger.v1 import canary_pb2, gate_pb2, judge_pb2, options_pb2, runner_pb2, trainer_pb2

__all__ = ["gather"]

_Choice: TypeAlias = Literal[
    "resource",
    "kind",
    "parent_digest",
    "training_snapshot_digest",
    "algorithm_config_digest",
    "code_revision",
    "workflow_version",
]

_KINDS: Final = (canary_pb2.WINDOW_KIND_REHEARSAL, canary_pb2.WINDOW_KIND_LIVE)
_TRAINERS_CHOICES: Final[tuple[_Choice, ...]] = get_args(_Choice)
_T = options_pb2
# check -> the environment targets and operator's pins that its evidence rests on (checks.md section 4)
_RESTS_ON_TARGETS: Final[dict[int, tuple[int, ...]]] = {
    4: (
        _T.ENVIRONMENT_TARGET_TASK_DISTRIBUTION,
        _T.ENVIRONMENT_TARGET_HARNESS,
        _T.ENVIRONMENT_TARGET_TOKENIZER,
    ),
    6: TARGETS,
}
_RESTS_ON_PINS: Final[dict[int, tuple[str, ...]]] = {
    4: ("evaluator_digest", "holdout_digest", "tool_contract_digest"),
    6: ("holdout_digest", "tool_contract_digest"),
}


def gather(receipts: Receipts, update: str, step: int, size: int) -> Evidence:
    """Chooses what counts of an update for a step, from the prefix of `size` entries. An update that nobody
    named has nothing that counts."""
    return _Gathering(receipts, receipts.updates.get(update) or Update(update), step, size).run()


class _Gathering(Choosing):
    """One choice. Owns the Evidence until it is handed out."""

    def run(self) -> Evidence:
        out = self.out
        self._identity()
        self._pauses()
        if out.freezes:
            opened = out.freezes[0].index
            for rollout_id, rollout in self.record.rollouts.items():
                chosen = self._rollout(rollout_id, rollout, opened)
                if chosen is not None:
                    out.rollouts.append(chosen)
            if out.candidates:
                self._evaluations()
                self._windows()
            self._approvals()
        out.anomalies = sorted(set(out.anomalies))
        out.suspect = len(self._suspect)
        return out

    def _one(self, name: str, authors: Iterable[str]) -> Fact | None:
        """The first trainer event of a type; a different second one is a conflict."""
        facts = self._by(self._seen(self.record.of(name)), authors, "NOT_THE_PROPOSER")
        first, conflicts = self._firsts(facts, lambda _: None)
        if conflicts:
            self.out.conflicts.add(name)
        return first.get(None)

    # --- identity ---

    def _identity(self) -> None:
        out, record = self.out, self.record
        out.freezes = self._seen(record.of("update_frozen"))
        # Who proposed first is the update's trainer, even if its key became suspect: nobody takes its place.
        proposals = [fact for fact in record.of("update_proposed") if fact.index < self.size]
        if not proposals:
            for name in ("training_started", "training_progressed", "training_ended", "candidate_registered"):
                for fact in self._seen(record.of(name)):
                    self._odd(fact, "NOT_PROPOSED")
            return
        proposer = (proposals[0].grant.name,)
        out.proposal = self._one("update_proposed", proposer)
        out.training_started = self._one("training_started", proposer)
        out.training_ended = self._one("training_ended", proposer)
        progressed = self._by(self._seen(record.of("training_progressed")), proposer, "NOT_THE_PROPOSER")
        progressed = self._before_cut_off(progressed)
        # A trainer that starts again from a checkpoint tells a step twice: both are training that happened.
        told, _ = self._firsts(progressed, lambda fact: fact.body.SerializeToString(deterministic=True))
        out.progressed = list(told.values())
        registered = self._by(self._seen(record.of("candidate_registered")), proposer, "NOT_THE_PROPOSER")
        different, _ = self._firsts(registered, lambda fact: fact.body.SerializeToString(deterministic=True))
        out.candidates = list(different.values())
        if (
            out.proposal is not None
            and out.pins is not None
            and _repeats_otherwise(out.pins, out.proposal.body)
        ):
            out.conflicts.add("update_proposed")

    def _before_cut_off(self, facts: list[Fact]) -> list[Fact]:
        for fact in facts:
            if fact.index > self.out.cut_off:
                self._odd(fact, "LATE_OR_ORPHAN")
        return [fact for fact in facts if fact.index < self.out.cut_off]

    def _pauses(self) -> None:
        """A pause ends with the first TrainingResumed that names a later, unused ResumeRequested."""
        requests = {fact.index for fact in self._seen(self.record.of("resume_requested"))}
        resumes = [
            r for r in self._seen(self.record.of("training_resumed")) if r.body.request_index in requests
        ]
        running_since = -1
        for pause in self._seen(self.record.of("training_paused")):
            if pause.index < running_since:
                continue  # it was paused already
            resume = next((r for r in resumes if pause.index < r.body.request_index < r.index), None)
            self.out.pauses.append((pause, resume))
            running_since = FOREVER if resume is None else resume.index

    # --- during training ---

    def _rollout(self, rollout_id: str, record: Rollout, opened: int) -> RolloutEvidence | None:
        cut_off = self.out.cut_off
        enqueued = self._seen(record.enqueued)
        if not enqueued or enqueued[0].body.update != self.record.id:
            return None
        first = enqueued[0]
        if first.body.mode not in (runner_pb2.MODE_TRAIN, runner_pb2.MODE_VAL):
            return None
        if not opened < first.index < cut_off:
            self._odd(first, "OUTSIDE_WINDOW")
            return None
        all_ends = self._seen(record.ended)
        ends = [f for f in all_ends if first.index < f.index < cut_off]
        last = ends[0].index if ends else cut_off
        for fact in all_ends:
            if not ends or fact.index != ends[0].index:
                self._odd(fact, "AFTER_END" if ends else "LATE_OR_ORPHAN")
        chosen = RolloutEvidence(rollout_id, first, ends[0] if ends else None)
        if record.taken:  # what follows under this id belongs to whoever claimed it first
            chosen.conflict = True
            self._odd(first, "CONFLICT")
        for repeat in enqueued[1:]:
            if repeat.index < last and repeat.body != first.body:
                chosen.conflict = True
            self._odd(repeat, "REPEATED" if repeat.body == first.body else "CONFLICT")
        self._attempts(chosen, record, last)
        self._rewards(chosen, record)
        return chosen

    def _in_time(self, facts: Iterable[Any], after: int, before: int) -> list[Any]:
        """Facts strictly between two indexes; the others came late or before what they belong to."""
        kept = []
        for fact in self._seen(facts):
            if after < fact.index < before:
                kept.append(fact)
            else:
                self._odd(fact, "LATE_OR_ORPHAN")
        return kept

    def _attempts(self, chosen: RolloutEvidence, record: Rollout, last: int) -> None:
        started = self._in_time(record.started, chosen.enqueued.index, last)
        firsts, conflicts = self._firsts(started, lambda fact: fact.body.number)
        chosen.attempts = {number: Attempt(number, firsts[number]) for number in sorted(firsts)}
        ended = [
            f
            for f in self._in_time(record.attempts_ended, chosen.enqueued.index, last)
            if self._opened(chosen, f)
        ]
        ends, end_conflicts = self._firsts(ended, lambda fact: fact.body.attempt)
        for number, fact in ends.items():
            chosen.attempts[number].ended = fact
        chosen.conflict = chosen.conflict or bool(conflicts or end_conflicts)
        for span in self._in_time(record.spans, chosen.enqueued.index, last):
            attempt = chosen.attempts.get(span.attempt)
            if attempt is None or attempt.started.index > span.index:
                self._odd(span, "LATE_OR_ORPHAN")
                continue
            earlier = attempt.spans.setdefault(span.trace_span, span)
            if earlier is not span:
                equal = earlier.body_digest == span.body_digest
                attempt.span_conflict = attempt.span_conflict or not equal
                self._odd(span, "REPEATED" if equal else "CONFLICT")

    def _opened(self, chosen: RolloutEvidence, fact: Fact) -> bool:
        attempt = chosen.attempts.get(fact.body.attempt)
        if attempt is None or attempt.started.index > fact.index:
            self._odd(fact, "LATE_OR_ORPHAN")
            return False
        return True

    def _rewards(self, chosen: RolloutEvidence, record: Rollout) -> None:
        """Rewards up to the data cut-off: later ones could change what a verdict rests on."""
        given = self._in_time(record.rewards, chosen.enqueued.index, self.out.cut_off)
        opened = [fact for fact in given if self._opened(chosen, fact)]
        firsts, _ = self._firsts(
            opened,
            lambda f: (f.body.attempt, f.body.judge_version, f.body.dimension, tuple(f.body.span_ids)),
        )
        chosen.rewards = list(firsts.values())

    # --- after training ---

    def _floor(self, check: int, *, evaluator: bool = False) -> int:
        """Index of the freeze from which evidence for a check counts (4 for 4 and 5, 6 for 6 and 7)."""
        group = 4 if check in (4, 5) else 6
        pins = _RESTS_ON_PINS[group] + (("evaluator_digest",) if evaluator else ())
        targets = _RESTS_ON_TARGETS[group]

        def rests_on(freeze: Fact) -> tuple[Any, ...]:
            environment = pinned_environment(freeze.body)
            return (*(getattr(freeze.body, pin) for pin in pins), *(environment.get(t) for t in targets))

        freezes = self.out.freezes
        floor, held = freezes[-1].index, rests_on(freezes[-1])
        for freeze in reversed(freezes):
            if rests_on(freeze) != held:
                break
            floor = freeze.index
        redone = [freeze.index for freeze in freezes if check in freeze.body.redo_checks]
        return max([floor, *redone])

    def _evaluations(self) -> None:
        pins = self.out.freezes[-1].body
        parts = self._by(self._seen(self.record.of("evaluation_recorded")), pins.judges, "NOT_PINNED")
        closes = self._by(self._seen(self.record.of("evaluation_closed")), pins.judges, "NOT_PINNED")
        used: set[str] = set()
        for check in (4, 5):
            floor = self._floor(check)
            self.out.evaluations[check] = {}
            for subject, digest in (
                (judge_pb2.SUBJECT_PARENT, pins.parent_digest),
                (judge_pb2.SUBJECT_CANDIDATE, self.out.candidates[0].body.manifest_digest),
            ):
                header = (
                    pins.evaluator_digest,
                    pins.holdout_digest,
                    pinned_environment(pins).get(options_pb2.ENVIRONMENT_TARGET_HARNESS),
                    subject,
                    digest,
                )
                fresh = [fact for fact in parts if fact.index > floor]
                first = next((fact for fact in fresh if _evaluation_header(fact.body) == header), None)
                if first is not None:
                    used.add(first.body.evaluation)
                    self.out.evaluations[check][subject] = self._evaluation(first, fresh, closes, header)
        for fact in (*parts, *closes):
            if fact.body.evaluation not in used:
                self._odd(fact, "EVALUATION_NOT_CHOSEN")

    def _evaluation(
        self, first: Fact, parts: list[Fact], closes: list[Fact], header: tuple[Any, ...]
    ) -> Evaluation:
        chosen = Evaluation(first.body.evaluation)
        others: list[Fact] = []  # parts said again, differently
        for fact in parts:
            if fact.body.evaluation != chosen.id or fact.index < first.index:
                continue
            if _evaluation_header(fact.body) != header:
                chosen.conflicts.add("")
                continue
            earlier = chosen.parts.setdefault(fact.body.part.number, fact)
            if earlier is fact:
                self._scores(chosen, fact)
            elif earlier.body == fact.body:
                self._odd(fact, "REPEATED")
            else:
                others.append(fact)
                self._odd(fact, "CONFLICT")
        for fact in others:
            for score in fact.body.scores:
                if chosen.scores.get(score.case_id, {}).get(score.trial, score) != score:
                    chosen.conflicts.add(score.case_id)
        own = [f for f in closes if f.body.evaluation == chosen.id and f.index > first.index]
        ends, conflicts = self._firsts(own, lambda _: None)
        chosen.closed = ends.get(None)
        if conflicts or len({fact.body.part.of for fact in chosen.parts.values()}) > 1:
            chosen.conflicts.add("")
        return chosen

    def _scores(self, chosen: Evaluation, fact: Fact) -> None:
        for score in fact.body.scores:
            trials = chosen.scores.setdefault(score.case_id, {})
            earlier = trials.setdefault(score.trial, score)
            if earlier is not score and earlier != score:
                chosen.conflicts.add(score.case_id)

    def _windows(self) -> None:
        out, record, pins = self.out, self.record, self.out.freezes[-1].body
        candidate = out.candidates[0].body.manifest_digest
        starts = self._by(self._seen(record.of("canary_started")), pins.canaries, "NOT_PINNED")
        firsts, conflicts = self._firsts(starts, lambda fact: fact.body.window)
        tasks = self._by(self._seen(record.of("canary_task_recorded")), pins.canaries, "NOT_PINNED")
        ends = self._by(self._seen(record.of("canary_ended")), pins.canaries, "NOT_PINNED")
        rehearsals = self._by(self._seen(record.of("rollback_rehearsed")), pins.canaries, "NOT_PINNED")
        floor, floor_if_judged, floor_7 = self._floor(6), self._floor(6, evaluator=True), self._floor(7)
        back = max((index for index in record.rolled_back if index < self.size), default=-1)
        for window_id, started in firsts.items():
            if started.body.subject_digest != candidate or started.body.kind not in _KINDS:
                self._odd(started, "OTHER_SUBJECT")
                continue
            window = Window(started, conflict=window_id in conflicts)
            own_ends, end_conflicts = self._firsts(
                (f for f in ends if f.body.window == window_id and f.index > started.index), lambda _: None
            )
            window.ended = own_ends.get(None)
            own_tasks = [f for f in tasks if f.body.window == window_id and f.index > started.index]
            window.tasks, task_conflicts = self._firsts(own_tasks, lambda fact: fact.body.task)
            window.conflict = window.conflict or bool(end_conflicts or task_conflicts)
            judged = any(f.body.HasField("evaluator_digest") for f in own_tasks)
            if started.index < (floor_if_judged if judged else floor):
                self._odd(started, "BEFORE_FREEZE")
                continue
            if window.live and (out.step != options_pb2.STEP_DEFAULT or not self._live_counts(started, back)):
                continue
            named = [
                f for f in rehearsals if f.body.window == window_id and f.index > max(started.index, floor_7)
            ]
            window.rehearsal = named[-1] if named else None
            out.windows.append(window)

    def _live_counts(self, started: Fact, rolled_back: int) -> bool:
        if self.record.live.get(started.index) is not None:
            self._odd(started, "LIVE_WINDOW_VOID")
            return False
        verdict = verdict_at(self.receipts, self.record.id, started.body.live.verdict_index)
        if verdict is None or self.receipts.suspects.hold(verdict.fact, self.size):
            self._odd(started, "LIVE_WINDOW_VOID")
            return False
        if started.index < rolled_back:
            self._odd(started, "BEFORE_ROLLBACK")
            return False
        return True

    def _approvals(self) -> None:
        out, record = self.out, self.record
        granted = [f for f in self._seen(record.of("approval_granted")) if f.body.step == out.step]
        back = max((index for index in record.rolled_back if index < self.size), default=-1)
        if out.step == options_pb2.STEP_DEFAULT:
            granted = [fact for fact in granted if fact.index > back]
        withdrawn = {(f.grant.name, f.body.approval) for f in self._seen(record.of("approval_withdrawn"))}
        out.approvals = [(fact, (fact.grant.name, fact.body.approval) in withdrawn) for fact in granted]


def _repeats_otherwise(pins: gate_pb2.UpdateFrozen, proposal: trainer_pb2.UpdateProposed) -> bool:
    """Whether a freeze repeats the trainer's choices differently; what it leaves out is an absent pin."""
    return pins.scope != proposal.scope or any(
        pins.HasField(name) and getattr(pins, name) != getattr(proposal, name) for name in _TRAINERS_CHOICES
    )


def _evaluation_header(body: judge_pb2.EvaluationRecorded) -> tuple[Any, ...]:
    return (
        body.evaluator_digest,
        body.snapshot_digest,
        body.harness_digest,
        body.subject,
        body.subject_digest,
    )
