"""What README and docs tell people to type works as it stands there, in the order in which it stands."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from clients.cli.main import app
from gate.policy import parse_policy
from tests.cli.manual import ROOT, Block, Manual, blocks, spans

README, GUIDE = "README.md", "docs/first-decision.md"
DOCUMENTS = (
    README,
    GUIDE,
    "docs/policy.md",
    "docs/receipts.md",
    "docs/trust.md",
    "docs/tiles.md",
    "docs/keys.md",
    "docs/blobs.md",
)
#: Followed by tests of their own.
ELSEWHERE = ("docs/operations.md",)

#: Lines that stand in a fence and are not typed here, and why.
NOT_TYPED = {
    "make demo": "it fetches an environment; what it runs, `assay demo`, is typed",
    "make test": "it runs this test",
    ". .venv/bin/activate": "the tests run in an environment that is active already",
}

_HIDDEN = re.compile(r"^ {4}(assay|make|python|git) ", re.MULTILINE)


def _read(document: str) -> str:
    return (ROOT / document).read_text()


@pytest.fixture
def manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manual]:
    """A reader in a new folder that has the demo's file where a clone has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("ASSAY_HOME", raising=False)
    (tmp_path / "clients" / "demo").mkdir(parents=True)
    shutil.copy(ROOT / "clients" / "demo" / "candidates.json", tmp_path / "clients" / "demo")
    reader = Manual(tmp_path)
    try:
        yield reader
    finally:
        codes = reader.stop()
    assert {0} == set(codes)


def _typed(block: Block) -> Block:
    """The block without the lines that are not typed here."""
    kept = [line for line in block.text.splitlines(True) if line.partition("  ")[0].strip() not in NOT_TYPED]
    return Block(block.language, block.name, "".join(kept))


def test_from_an_empty_folder_to_the_first_decision(manual: Manual) -> None:
    """The guide leads to a candidate that is the default, and back; each line answers as the guide says."""
    for block in blocks(_read(GUIDE)):
        manual.follow(block)
    for start, expected in (
        ("assay status", "nothing is published yet"),
        ("assay evaluate update-1 --step default", "PROMOTE_TO_DEFAULT"),
        ("assay promote", "PROMOTED sql-writer"),
        ("assay default", "promoted by the gate"),
        ("assay candidate", "also    the approved default"),
        ("assay replay", "2 verdicts, 2 pointer moves, 1 freeze"),
    ):
        assert expected in _first(manual, start)
    assert "nothing is missing in" in manual.said["assay status"][1]


def test_the_readme_and_the_other_pages(manual: Manual) -> None:
    """README, policies and receipts in order; where README has an update waiting, the guide made one."""
    evidence = _read(GUIDE).partition("## 2.")[2].partition("## 6.")[0]
    for block in map(_typed, blocks(_read(README))):
        if "updates --waiting" in block.text:
            for made in blocks(evidence):
                manual.follow(made)
        manual.follow(block)
    for document in DOCUMENTS[2:]:
        for block in blocks(_read(document)):
            manual.follow(_typed(block))
    for start, expected in (
        ("assay demo", "All as it should be"),
        ("assay updates", "an approval by approver-1"),
        ("assay evaluate", "PROMOTE_TO_BOUNDED_CANARY"),
        ("assay default", "BASELINE (ungated)"),
        ("assay replay", "1 verdict, 1 pointer move, 1 freeze"),
        ("assay publish policy sql-agent/en-internal policy.json", "published by operator-1"),
    ):
        assert expected in _first(manual, start)


def _first(manual: Manual, start: str) -> str:
    """What the first line that starts so answered."""
    return next(answers[0] for line, answers in manual.said.items() if line.startswith(start))


@pytest.mark.parametrize("document", DOCUMENTS + ELSEWHERE)
def test_no_command_hides(document: str) -> None:
    """A command stands in a fence that is typed here, or its reason not to be is listed."""
    text = _read(document)
    assert [] == _HIDDEN.findall(text)
    assert {"sh", "python", "json", ""} >= {block.language for block in blocks(text)}


def test_what_is_not_typed_stands_there() -> None:
    """The list of exceptions holds nothing that is gone."""
    lines = {
        line.partition("  ")[0].strip()
        for document in DOCUMENTS
        for block in blocks(_read(document))
        for line in block.text.splitlines()
    }
    assert set() == set(NOT_TYPED) - lines


@pytest.mark.parametrize("document", DOCUMENTS + ELSEWHERE)
def test_commands_in_sentences_exist(document: str) -> None:
    """`assay …` within a sentence names a command, and options that the command has."""
    for span in spans(_read(document)):
        if span.startswith("assay "):
            _check_words(shlex.split(span)[1:])


def _check_words(words: list[str]) -> None:
    command: Any = get_command(app)
    for word in words:
        if word.startswith("--"):
            options = {option for item in command.params for option in item.opts}
            assert word in options | {"--help"}, (words, options)
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif hasattr(command, "commands"):
            assert word == "…", (words, list(command.commands))


@pytest.mark.parametrize("document", [GUIDE, "docs/policy.md"])
def test_policies_in_the_docs_are_policies(document: str) -> None:
    """Each policy that a page shows passes the lint."""
    policies = [block for block in blocks(_read(document)) if block.name == "policy.json"]
    assert [1, 1] == [len(policies), parse_policy(policies[0].text.encode()).rules]
