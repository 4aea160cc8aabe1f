"""Receipts and findings as people and programs read them. Nothing here is judged or enters a digest.

Rules:
1. Every number comes from the log or from a finding; what was not measured is null, never 0.
2. Beside each kind of record stands what it does *not* show.
3. Nothing prints "safe": a verdict is shown with its resource, scope, step, cut-off, evaluator, parent and
   window (law 19).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from gate.checks import (
    Input,
    deciding_attempt,
    declared_families,
    missing_families,
    rollout_standing,
)
from gate.evidence import Attempt, Evidence, RolloutEvidence, Window
from gate.finding import Notes
from gate.gather import gather
from gate.judge import STEPS, evidence_digest, pinned_policy
from gate.reasons import REASONS
from gate.score_checks import holdout_gain, protected_families, regressions
from gate.staleness import stale_reasons
from ledger.claims import Move, Update
from ledger.fact import Fact
from ledger.receipt import Receipts
from ledger.standing import why_fallen
from ledger.v1 import canary_pb2, gate_pb2, judge_pb2, options_pb2, runner_pb2

__all__ = [
    "NOT_SHOWN",
    "at_risk",
    "digests_as_hex",
    "frame_of",
    "receipt_document",
    "sentence",
    "state_name",
    "verdict_name",
]

NOT_SHOWN: Final = {
    "rollout": "whether an outcome exists where it belongs",
    "attempt": "whether its success was luck",
    "span": "whether its effect was right",
    "reward": "whether protected behaviour held",
    "resource_update": "whether it may become default",
}
_MAX_ROLLOUTS: Final = 1000  # of those with something to say, in one document


def state_name(state: int) -> str:
    """`PASS` for STATE_PASS."""
    return gate_pb2.State.Name(state).removeprefix("STATE_")  # type: ignore[arg-type]  # any int of the enum


def verdict_name(verdict: int) -> str:
    """`HOLD` for VERDICT_HOLD."""
    return gate_pb2.Verdict.Name(verdict).removeprefix("VERDICT_")  # type: ignore[arg-type]  # any int of the enum


def at_risk(receipts: Receipts, move: Move) -> list[str]:
    """Codes of what a promotion rests on and no longer holds; none for a baseline, which rests on nothing."""
    if move.update is None:
        return []
    evidence = gather(receipts, move.update, options_pb2.STEP_DEFAULT, receipts.size)
    codes = {code for codes in stale_reasons(receipts, evidence).values() for code in codes}
    verdicts = [v.fact for v in receipts.update(move.update).verdicts if v.fact.index == move.verdict_index]
    if evidence.suspect or any(receipts.suspects.hold(fact, receipts.size) for fact in verdicts):
        codes.add("SUSPECT")
    return sorted(codes)


def sentence(finding: gate_pb2.Finding) -> str:
    """One line in words: what was counted, and every reason of the state."""
    counts = {count.name: count.value for count in finding.counts}
    said = _COUNTED[finding.check](counts)
    why = "; ".join(REASONS[code][1] for code in finding.reasons)
    return f"{said} — {why}" if why else said


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _gain(counts: dict[str, int]) -> str:
    if "gain_millionths" not in counts:
        return f"no gain can be given: {counts['scored']} of {counts['cases']} cases scored for both"
    return (
        f"gain {counts['gain_millionths'] / 1e6:+.4f} over {counts['cases']} cases "
        f"({counts['better']} better, {counts['worse']} worse)"
    )


def _protected(counts: dict[str, int]) -> str:
    if not counts["scored"]:
        return f"none of {_many(counts['protected'], 'protected case')} scored for both"
    if counts["scored"] < counts["protected"]:  # 0 regressed of those would read as 0 of all
        return (
            f"{counts['regressed']} regressed of the {counts['scored']} of {counts['protected']} protected "
            "cases scored for both"
        )
    return f"{counts['regressed']} of {counts['protected']} protected cases regressed"


def _canary(counts: dict[str, int]) -> str:
    if not counts["windows"]:
        return "no window"
    unseen = counts["harm_unobserved"]
    looked = f", {_many(unseen, 'task')} where nobody looked for harm" if unseen else ""
    return f"{counts['verified']} of {counts['tasks']} effects verified, harm {counts['harm']}{looked}"


_COUNTED: Final[Mapping[str, Callable[[dict[str, int]], str]]] = {
    "identity_pinned": lambda c: (
        f"{_many(c['candidates'], 'candidate')}, {_many(c['freezes'], 'freeze')}, "
        f"{_many(c['pins_absent'], 'pin')} absent"
    ),
    "span_coverage": lambda c: (
        f"{c['covered']} of {c['completed']} completed rollouts with all their spans "
        f"({c['rollouts']} in the window)"
    ),
    "retry_debt": lambda c: (
        f"{c['unexpected']} unexpected of {c['retries']} retries, {c['silent']} silent failures"
    ),
    "beats_parent": _gain,
    "protected_cases": _protected,
    "canary_verified": _canary,
    "rollback_and_authority": lambda c: (
        f"way back rehearsed in {c['rehearsals']} of {_many(c['windows'], 'window')}, "
        + (
            f"{_many(c['fulfilling'], 'approval')} of {c['approvals']} in force for it"
            if c["approvals"]
            else "no approval"
        )
    ),
}


# --- the receipt -------------------------------------------------------------------------------------------


def receipt_document(receipts: Receipts, update: str, size: int) -> dict[str, Any]:
    """The receipt of an update as of `size`: before, during, after, anomalies. JSON types only.

    Whether a verdict stands is told as of the fold's own size.
    """
    evidence = gather(receipts, update, options_pb2.STEP_DEFAULT, size)
    given = Input(receipts, evidence, pinned_policy(receipts, evidence))
    return {
        "update": update,
        "as_of": {"size": size, "recorded_at": evidence.now},
        "before": _before(receipts, evidence),
        "during": _during(given),
        "after": _after(given),
        "anomalies": [{"index": index, "code": code} for index, code in evidence.anomalies],
        "suspect_entries": evidence.suspect,
        "not_shown": NOT_SHOWN,
    }


def frame_of(receipt: Mapping[str, Any], step: str) -> dict[str, Any]:
    """In which frame a verdict on this update holds, from its receipt (gate.report.receipt_document)."""
    freezes = receipt["before"]["freezes"]
    proposed = receipt["before"]["proposed"]
    pins = freezes[-1]["claim"] if freezes else {}
    claim = pins or (proposed or {}).get("claim", {})
    scope = claim.get("scope", {})
    candidates = receipt["after"]["candidates"]
    return {
        "update": receipt["update"],
        "step": step,
        "resource": claim.get("resource"),
        "scope": f"{scope['workflow']}/{scope['segment']}" if scope else None,
        "candidate": candidates[0]["claim"]["manifest_digest"] if candidates else None,
        "parent": claim.get("parent_digest"),
        "evaluator": pins.get("evaluator_digest"),
        "holdout": pins.get("holdout_digest"),
        "policy": pins.get("policy_digest"),
        "data_cut_off": receipt["during"]["data_cut_off"],
        "canary_windows": [
            f"{window['started']['claim']['window']} ({'LIVE' if window['live'] else 'REHEARSAL'})"
            for window in receipt["after"]["windows"]
            if step == "default" or not window["live"]  # step canary reads rehearsals only
        ],
        "log_size": receipt["as_of"]["size"],
    }


def digests_as_hex(message: Any) -> Any:
    """A message as JSON types, with digests and ids in hex instead of base64."""
    return _hex(message, MessageToDict(message, preserving_proto_field_name=True))


def _hex(message: Any, document: dict[str, Any]) -> dict[str, Any]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            items = list(value) if field.is_repeated else [value]
            shown = document[field.name] if field.is_repeated else [document[field.name]]
            for item, below in zip(items, shown, strict=True):
                _hex(item, below)
        elif field.type == field.TYPE_BYTES:
            document[field.name] = [b.hex() for b in value] if field.is_repeated else value.hex()
        elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            document[field.name] = list(value) if field.is_repeated else value
    return document


def _fact(fact: Fact | None) -> dict[str, Any] | None:
    return None if fact is None else _shown(fact)


def _shown(fact: Fact) -> dict[str, Any]:
    said = {"index": fact.index, "recorded_at": fact.recorded_at, "by": fact.grant.name}
    return said | {"controller": fact.grant.controller, "claim": digests_as_hex(fact.body)}


def _before(receipts: Receipts, evidence: Evidence) -> dict[str, Any]:
    record = receipts.updates.get(evidence.update)
    refused = record.of("update_refused") if record is not None else []
    return {
        "proposed": _fact(evidence.proposal),
        "refusals": [_fact(fact) for fact in refused if fact.index < evidence.size],
        "freezes": [_fact(fact) for fact in evidence.freezes],
        "pauses": [
            {"paused": pause.index, "cause": pause.body.cause, "resumed": resume.index if resume else None}
            for pause, resume in evidence.pauses
        ],
    }


def _during(given: Input) -> dict[str, Any]:
    evidence = given.evidence
    families = declared_families(given)
    standing = Counter(rollout_standing(rollout) for rollout in evidence.rollouts)
    lacking: Counter[str] = Counter()
    covered = 0
    notable = []
    for rollout in evidence.rollouts:
        deciding = deciding_attempt(rollout) if rollout_standing(rollout) == "completed" else None
        lacks = missing_families(deciding, families) if deciding is not None and families is not None else {}
        lacking.update(lacks.keys())
        covered += deciding is not None and families is not None and not lacks
        if lacks or deciding is None or len(rollout.attempts) > 1 or rollout.conflict:
            notable.append(_rollout(rollout, deciding, lacks))
    return {
        "started": _fact(evidence.training_started),
        "ended": _fact(evidence.training_ended),
        "data_cut_off": evidence.training_ended.index if evidence.training_ended else None,
        "rollouts": len(evidence.rollouts),
        "rollouts_by_standing": dict(sorted(standing.items())),
        "declared_span_families": families,
        "completed_with_all_spans": covered if families is not None else None,
        "rollouts_lacking_family": dict(sorted(lacking.items())),
        "notable_rollouts": notable[:_MAX_ROLLOUTS],
        "notable_rollouts_in_all": len(notable),
        "rewards": sum(len(rollout.rewards) for rollout in evidence.rollouts),
        "erased_content": list(_erased(given)),
    }


def _erased(given: Input) -> Iterable[dict[str, Any]]:
    """Content that claims of the update name and that is gone: another thing than claims never made."""
    erased, size = given.receipts.erased, given.evidence.size
    if not erased:
        return
    for name, rollout in _record(given).rollouts.items():
        named = [
            (fact.index, fact.body.input_blob.digest)
            for fact in rollout.enqueued
            if fact.body.WhichOneof("input") == "input_blob"
        ]
        named += [(span.index, span.blob) for span in rollout.spans if span.blob is not None]
        for digest in dict.fromkeys(digest for index, digest in named if index < size):
            if (position := erased.get(digest)) is not None and position < size:
                yield {"rollout": name, "digest": digest.hex(), "erased": position}


def _rollout(rollout: RolloutEvidence, deciding: Attempt | None, lacks: dict[str, int]) -> dict[str, Any]:
    ended = rollout.ended
    succeeded = ended is not None and ended.body.status == runner_pb2.ROLLOUT_STATUS_SUCCEEDED
    return {
        "rollout": rollout.id,
        "standing": rollout_standing(rollout),
        "succeeded_after": deciding.number if deciding is not None and succeeded else None,
        "lacks": lacks,
        "conflict": rollout.conflict,
        "enqueued": rollout.enqueued.index,
        "ended": ended.index if ended is not None else None,
        "attempts": [_attempt(attempt) for attempt in rollout.attempts.values()],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    started, ended = attempt.started.body, attempt.ended
    cost = ended.body.cost if ended is not None and ended.body.HasField("cost") else None
    return {
        "number": attempt.number,
        "started": attempt.started.index,
        "why": _enum(runner_pb2.AttemptReason, started.reason) if started.HasField("reason") else None,
        "ended": ended.index if ended is not None else None,
        "outcome": _enum(runner_pb2.AttemptOutcome, ended.body.outcome) if ended is not None else None,
        "reason": ended.body.reason if ended is not None and ended.body.HasField("reason") else None,
        "cost": digests_as_hex(cost) if cost is not None else None,
        "spans": dict(sorted(Counter(span.family for span in attempt.spans.values()).items())),
    }


def _enum(kind: Any, value: int) -> str:
    name: str = kind.Name(value)
    return name.rpartition(f"{_screaming(kind.DESCRIPTOR.name)}_")[2].lower()


def _screaming(name: str) -> str:
    return "".join(f"_{c}" if c.isupper() and at else c for at, c in enumerate(name)).upper()


def _after(given: Input) -> dict[str, Any]:
    evidence = given.evidence
    means, gain = holdout_gain(given, Notes("beats_parent"))
    policy_digest = evidence.pins.policy_digest if evidence.pins is not None else b""
    return {
        "candidates": [_fact(fact) for fact in evidence.candidates],
        "evaluations": {
            _enum(judge_pb2.Subject, subject): {
                "evaluation": evaluation.id,
                "parts": sorted(evaluation.parts),
                "entries": sorted(fact.index for fact in evaluation.parts.values()),
                "closed": evaluation.closed.index if evaluation.closed else None,
            }
            for subject, evaluation in evidence.evaluations.get(4, {}).items()
        },
        "gain": None if gain is None else f"{gain.numerator}/{gain.denominator}",
        "gain_decimal": None if gain is None else round(float(gain), 6),
        "cases_with_both_means": None if means is None else len(set(means.parent) & set(means.candidate)),
        "protected_cases_fallen": list(_fallen(given)),
        "windows": [_window(window) for window in evidence.windows],
        "approvals": list(_approvals(given)),
        "evidence_digest": {STEPS[evidence.step]: evidence_digest(evidence).hex()},
        "policy_digest": policy_digest.hex() or None,
        "verdicts": list(_verdicts(given)),
        "rolled_back": [index for index in _record(given).rolled_back if index < evidence.size],
    }


def _fallen(given: Input) -> Iterable[dict[str, Any]]:
    """Protected cases that are worse than the parent's, by family, with both exact means."""
    means, fallen = regressions(given, Notes("protected_cases"))
    for family, (cases, budget) in (protected_families(given) or {}).items():
        for case in cases:
            if means is not None and case in fallen:
                yield {
                    "family": family,
                    "case": case,
                    "parent_mean": str(means.parent[case]),
                    "candidate_mean": str(means.candidate[case]),
                    "regression_budget": budget,
                }


def _record(given: Input) -> Update:
    """What is claimed of the update, the empty record where nothing is: asking makes none."""
    return given.receipts.updates.get(given.evidence.update) or Update(given.evidence.update)


def _approvals(given: Input) -> Iterable[dict[str, Any]]:
    record, size = _record(given), given.evidence.size
    withdrawn = {
        (fact.grant.name, fact.body.approval)
        for fact in record.of("approval_withdrawn")
        if fact.index < size and not given.receipts.suspects.hold(fact, size)
    }
    for fact in record.of("approval_granted"):
        if fact.index < size:
            yield _shown(fact) | {"withdrawn": (fact.grant.name, fact.body.approval) in withdrawn}


def _window(window: Window) -> dict[str, Any]:
    outcomes = Counter(_enum(canary_pb2.TaskOutcome, task.body.outcome) for task in window.tasks.values())
    return {
        "started": _fact(window.started),
        "live": window.live,
        "tasks_by_outcome": dict(sorted(outcomes.items())),
        "tasks_without_harm_observation": sum(
            not t.body.HasField("harm_count") for t in window.tasks.values()
        ),
        "ended": _fact(window.ended),
        "rehearsal": _fact(window.rehearsal),
    }


def _verdicts(given: Input) -> Iterable[dict[str, Any]]:
    for verdict in _record(given).verdicts:
        if verdict.fact.index >= given.evidence.size:
            continue
        body = verdict.fact.body
        fallen = why_fallen(given.receipts, verdict, given.evidence.now)
        yield {
            "index": verdict.fact.index,
            "step": STEPS.get(body.step),
            "verdict": verdict_name(body.verdict),
            "not_after": body.not_after if body.HasField("not_after") else None,
            "void": verdict.void,
            "stands": fallen is None,
            "stands_not_because": fallen,
            "states": {finding.check: state_name(finding.state) for finding in body.findings},
            "reasons": {finding.check: list(finding.reasons) for finding in body.findings if finding.reasons},
        }
