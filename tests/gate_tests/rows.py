"""A row of a mutation table: candidate A with one fact changed, and exactly the checks that change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from clients.demo.document import Candidate
from ledger.claims import Judgement
from ledger.trust import Grant
from tests.memory import CANARY, PRINCIPALS, MemoryLog, Mutation, Story, demo_document, small, unchanged, why


def approved(story: Story, candidate: Candidate) -> None:
    """The approver signs the present evidence."""
    story.approve(candidate)


@dataclass(frozen=True, slots=True)
class Row:
    """`expected`: check number -> `STATE REASON,REASON`; what is not named passes."""

    fact: str
    expected: dict[int, str]
    mutate: Mutation = unchanged
    document: Callable[[dict[str, Any]], None] | None = None
    principals: Mapping[str, Grant] = field(default_factory=dict)  # beside or instead of the usual ones
    approve: Callable[[Story, Candidate], None] = approved  # and what comes after


def play(row: Row, step: int = CANARY) -> tuple[Story, Judgement]:
    """Candidate A's story with the row's mutation, judged at its end."""

    def change(raw: dict[str, Any]) -> None:
        small(raw)
        if row.document is not None:
            row.document(raw)

    story = Story(demo_document(change), MemoryLog({**PRINCIPALS, **row.principals}))
    story.setup(row.mutate)
    candidate = story.candidate("A")
    story.until_approval(candidate, row.mutate)
    row.approve(story, candidate)
    return story, story.judged("update-A", step)


def check(row: Row) -> None:
    """Asserts that exactly the expected checks leave PASS, for exactly the expected reasons."""
    _, judgement = play(row)
    assert row.expected == why(judgement)


def each(rows: tuple[Row, ...]) -> pytest.MarkDecorator:
    """One test a row, named after its fact."""
    assert len({row.fact for row in rows}) == len(rows)
    return pytest.mark.parametrize("row", rows, ids=[row.fact.replace(" ", "_") for row in rows])


def policy(**sections: Any) -> Callable[[dict[str, Any]], None]:
    """Changes sections of the document's policy."""

    def edit(raw: dict[str, Any]) -> None:
        for name, values in sections.items():
            present = raw["policy"].get(name)
            raw["policy"][name] = {**present, **values} if isinstance(present, dict) else values

    return edit


def candidate_a(**sections: Any) -> Callable[[dict[str, Any]], None]:
    """Changes sections of candidate A in the document."""

    def edit(raw: dict[str, Any]) -> None:
        for name, values in sections.items():
            raw["candidates"][0].setdefault(name, {}).update(values)

    return edit
