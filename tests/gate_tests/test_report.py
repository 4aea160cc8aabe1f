"""What receipts and sentences say, and what they must not make up (law 9)."""

from __future__ import annotations

from gate.report import receipt_document, sentence
from tests.gate_tests.editing import drop
from tests.memory import Story

U = "update-A"


def test_law_09_what_was_not_scored_is_not_said_to_have_held(story: Story) -> None:
    """Without evaluations no protected case is scored: the sentence says so, and never "0 of 5 regressed"."""
    story.until_approval(story.candidate("A"), drop("evaluation_recorded", None))
    said = sentence(story.judged(U).findings[4])
    expected = "none of 5 protected cases scored for both — a subject was not evaluated"
    assert expected == said


def test_a_receipt_shows_nothing_from_after_its_size(story: Story) -> None:
    """As of a size, approvals, verdicts and rollbacks that came later are not there."""
    promoted = story.until_promoted(story.candidate("A"))
    story.roll_back(promoted)
    now = receipt_document(story.log.receipts, U, story.log.size)["after"]
    first = min(approval["index"] for approval in now["approvals"])
    before = receipt_document(story.log.receipts, U, first)["after"]
    assert (2, 2, 1) == tuple(len(now[name]) for name in ("approvals", "verdicts", "rolled_back"))
    assert (0, 0, 0) == tuple(len(before[name]) for name in ("approvals", "verdicts", "rolled_back"))


def test_asking_for_a_receipt_makes_no_update(story: Story) -> None:
    """An update that nobody named has an empty receipt, and stays unknown."""
    receipt = receipt_document(story.log.receipts, "update-Z", story.log.size)
    assert (None, []) == (receipt["before"]["proposed"], receipt["after"]["verdicts"])
    assert "update-Z" not in story.log.receipts.updates
