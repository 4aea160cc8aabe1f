"""Reason codes and count names are listed once and mean the same for ever; digests are golden."""

from __future__ import annotations

import ast
import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gate import canary_checks, checks, score_checks, staleness
from gate.finding import Notes, findings_digest
from gate.judge import RulesJudge
from gate.reasons import CHECKS, COUNTS, REASONS, RULES
from ledger.merkle import leaf_hash, root
from ledger.v1 import gate_pb2
from tests.memory import CANARY, DEFAULT, Story, demo_document

# State by state, as published with rules version 1. Codes may be added; these stay, with their states.
PUBLISHED = {
    "STALE": """
        STALE_DESTINATION STALE_EVALUATOR STALE_HARNESS STALE_HOLDOUT STALE_MODEL_SERVER
        STALE_PARENT STALE_PERMISSIONS STALE_POLICY STALE_PROTECTED_SET STALE_RETRY_BUDGETS
        STALE_RETRY_POLICY STALE_SPAN_FAMILIES STALE_TASK_DISTRIBUTION STALE_TOKENIZER
        STALE_TOOL_CONTRACT
    """,
    "FAIL": """
        APPROVER_NOT_INDEPENDENT APPROVER_NOT_NAMED BOUND_EXCEEDED BOUND_TOO_WIDE
        CANDIDATE_EARLY CASES_REGRESSED COVERAGE_SHORT ENVIRONMENT_MISMATCH FROZEN_LATE HARM
        HOLDOUT_OVERUSED METHOD_NOT_ALLOWED NOT_LOADED NOT_RESOLVED NOT_ROUTED_BACK NOT_SERVED
        NOT_VERIFIED NO_GAIN PARENT_MISMATCH SECOND_CANDIDATE SHARED_CONTROLLER SILENT_FAILURE
        TOO_FEW_COMPLETED TOO_FEW_TASKS TRAINED_WHILE_PAUSED UNDECLARED_TASK UNEXPECTED_RETRY
    """,
    "ERROR": """
        CONFLICT TASK_ERROR
    """,
    "MISSING": """
        APPROVAL_EXPIRED APPROVAL_NONE APPROVAL_OTHER_DIGEST APPROVAL_WITHDRAWN
        BOUND_UNDECLARED BOUND_UNMEASURED BUDGET_ABSENT CASE_UNSCORED EVALUATION_ABSENT
        EVALUATION_OPEN HARM_UNOBSERVED NO_CANDIDATE NO_PROTECTED_CASE NUMBER_GAP PART_MISSING
        PIN_ABSENT REHEARSAL_ABSENT ROLLOUT_OPEN TASK_ABSENT TOO_FEW_TRIALS TRAINING_OPEN
        UNCERTAINTY_ABSENT UNSCORABLE WINDOW_ABSENT WINDOW_EMPTY WINDOW_OPEN
    """,
}


def texts(path: Path) -> Iterator[str]:
    """Every string that stands in a module's code, docstrings aside."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_code_is_published_with_its_state() -> None:
    """The list of rules version 1: each code, and the state that it stands for."""
    listed = {
        (gate_pb2.State.keys()[state].removeprefix("STATE_"), code) for code, (state, _) in REASONS.items()
    }
    assert listed == {(state, code) for state, codes in PUBLISHED.items() for code in codes.split()}
    assert 1 == RULES


def test_every_listed_code_is_used_and_every_used_code_is_listed() -> None:
    """No check invents a code, and no code is listed that no check gives."""
    modules = (checks, score_checks, canary_checks, staleness)
    said = {text for module in modules for text in texts(Path(module.__file__ or ""))}
    assert [] == [code for code in REASONS if code not in said]
    with pytest.raises(KeyError):
        Notes("identity_pinned").add("NOT_A_CODE")


def test_every_code_says_what_it_means() -> None:
    """Each code has its own sentence, for people."""
    sentences = [sentence for _, sentence in REASONS.values()]
    assert len(set(sentences)) == len(sentences)
    assert all(sentences)


#: Counts of what an evaluation measures: absent until there is one.
UNMEASURED = ("gain_millionths", "judged_before", "regressed", "families_regressed")


@pytest.mark.parametrize("step", [CANARY, DEFAULT])
@pytest.mark.parametrize("until", ["nothing", "proposal", "everything"])
def test_counts_are_named_as_listed(story: Story, step: int, until: str) -> None:
    """A finding has the counts that are listed for its check, sorted, whatever the evidence."""
    if until == "proposal":
        story.write(story.scenario.proposal(story.candidate("A")))
    if until == "everything":
        story.until_default_verdict(story.candidate("A"))
    findings = story.judged("update-A", step).findings
    assert tuple(finding.check for finding in findings) == CHECKS
    for finding in findings:
        names = tuple(count.name for count in finding.counts)
        expected = COUNTS[finding.check]
        if until != "everything":
            expected = tuple(name for name in expected if name not in UNMEASURED)
        assert names == expected


def test_an_update_that_nobody_proposed_is_missing_everything(story: Story) -> None:
    """Nothing is evidence of nothing: all seven checks MISSING."""
    states = [finding.state for finding in story.judged("update-nobody").findings]
    assert states == [gate_pb2.STATE_MISSING] * 7


# --- golden ------------------------------------------------------------------------------------------------

FINDING = gate_pb2.Finding(
    check="retry_debt",
    state=gate_pb2.STATE_FAIL,
    reasons=["SILENT_FAILURE", "UNEXPECTED_RETRY"],
    counts=[
        gate_pb2.Finding.Count(name="attempts", value=3),
        gate_pb2.Finding.Count(name="silent", value=1),
    ],
    cited=2,
    cited_root=bytes(range(32)),
    cited_indexes=[4, 5],
)
PASSED = gate_pb2.Finding(check="span_coverage", state=gate_pb2.STATE_PASS, cited_root=bytes(32))
GOLDEN = (
    "assay/findings/v1\n"
    "retry_debt FAIL SILENT_FAILURE,UNEXPECTED_RETRY attempts=3 silent=1 cited=2 "
    "root=AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
    "span_coverage PASS - cited=0 root=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
)


def test_the_findings_digest_is_golden() -> None:
    """SHA-256 of one line a check: state, reasons or -, counts, cited, root; shown indexes stand outside."""
    assert findings_digest([FINDING, PASSED]) == hashlib.sha256(GOLDEN.encode()).digest()
    shown = gate_pb2.Finding()
    shown.CopyFrom(FINDING)
    del shown.cited_indexes[:]
    assert findings_digest([shown, PASSED]) == findings_digest([FINDING, PASSED])


def test_the_evidence_digest_is_golden(story: Story) -> None:
    """SHA-256 of header, update, step, count and root over the leaf hashes that count, a line each."""
    candidate = story.candidate("A")
    story.write(story.scenario.proposal(candidate))
    frozen = story.freeze("update-A")
    story.write(story.scenario.training_started(candidate))
    leaves = [leaf for _, _, leaf, *_ in story.log.entries[frozen - 1 :]]
    assert 3 == len(leaves)
    expected = base_text("update-A", "canary", 3, root(leaves))
    judged = RulesJudge().evaluate(story.log.receipts, "update-A", CANARY, story.log.size)
    assert judged.evidence_digest == hashlib.sha256(expected.encode()).digest()


def base_text(update: str, step: str, count: int, over: bytes) -> str:
    """The text of checks.md section 1."""
    return f"assay/evidence/v1\n{update}\n{step}\n{count}\n{base64.b64encode(over).decode()}\n"


def test_the_root_of_nothing_cited_is_that_of_the_empty_tree() -> None:
    """RFC 6962: the root over no leaf is SHA-256 of nothing."""
    assert Notes("span_coverage").finding().cited_root == hashlib.sha256(b"").digest()


def test_a_finding_shows_at_most_32_indexes_and_those_at_fault_first() -> None:
    """B's 37 rollouts without all their spans: 32 indexes are shown, all of them at fault; all are cited."""
    story = Story(demo_document())
    story.setup()
    story.until_approval(story.candidate("B"))
    finding = story.judged("update-B").findings[1]
    shown = list(finding.cited_indexes)
    assert (len(shown), shown) == (32, sorted(shown))
    assert finding.cited > 900
    assert {"attempt_started"} == {story.log.entries[index][4].WhichOneof("body") for index in shown}
    assert leaf_hash(b"") != finding.cited_root
