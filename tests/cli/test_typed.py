"""What people type, and the case files that they publish."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from clients.cli.cases import check_within, protected_digest, published_cases, read_cases
from clients.cli.parse import parse_counts, parse_digest, parse_scope, parse_seconds, parse_step
from ledger.errors import FormatError, RefusedError
from ledger.v1 import event_pb2, options_pb2


def test_law_12_a_pin_is_a_digest(tmp_path: Path) -> None:
    """Hex or the digest of a file; "latest", a name or a shortened digest is refused."""
    file = tmp_path / "evaluator.tar"
    file.write_bytes(b"code")
    assert sha256(b"code").digest() == parse_digest(f"@{file}", "--digest")
    assert bytes(range(32)) == parse_digest(bytes(range(32)).hex(), "--digest")
    for text in ("latest", "", "main", "ab" * 31, "ab" * 33, "zz" * 32):
        with pytest.raises(FormatError, match="a pin is a digest"):
            parse_digest(text, "--digest")


@pytest.mark.parametrize("text", ["", "a", "a/", "/b", "a/b/c", "a/*"])
def test_a_scope_has_two_parts(text: str) -> None:
    """<workflow>/<segment>; every segment at once only where that is meant."""
    with pytest.raises(FormatError, match="BAD_SCOPE"):
        parse_scope(text)
    assert options_pb2.Scope(workflow="a", segment="*") == parse_scope("a/*", any_segment=True)


def test_steps_durations_and_counts() -> None:
    """Words with one meaning each; what has none is refused."""
    assert options_pb2.STEP_DEFAULT == parse_step("default")
    assert [90, 5400, 86_400, 604_800] == [parse_seconds(text) for text in ("90s", "90m", "24h", "7d")]
    for text in ("", "0h", "24", "1w", "-1h", "1.5h"):
        with pytest.raises(FormatError, match="BAD_DURATION"):
            parse_seconds(text)
    assert {"a": 2, "b=c": 1} == parse_counts(["a=2", "b=c=1"], "--family", default=None)
    assert {"a": 0} == parse_counts(["a"], "--protect", default=0)
    for texts in (["a"], ["a=x"], ["=1"], ["a=1", "a=2"], ["a=-1"]):
        with pytest.raises(FormatError, match="BAD_COUNT"):
            parse_counts(texts, "--family", default=None)


def test_a_case_file_names_each_case_in_one_family() -> None:
    """An evaluation file will do; a case in two families, or a line without a case, is named."""
    rows = read_cases(
        b'{"case":"a","family":"x"}\n{"case":"b","family":"y"}\n{"case":"a","family":"x"}\n', "case", "family"
    )
    assert {"a": "x", "b": "y"} == rows.families()
    for data, reason in (
        (b"", "EMPTY_SOURCE"),
        (b"[]\n", "BAD_LINE"),
        (b'{"case":1,"family":"x"}\n', "BAD_LINE"),
        (b'{"case":"a b","family":"x"}\n', "BAD_LINE"),
        (b'{"case":"a"}\n', "BAD_LINE"),
        (b'{"case":"a","family":"x"}\n{"case":"a","family":"y"}\n', "TWO_FAMILIES"),
        (b"\xff\n", "BAD_JSON"),
    ):
        with pytest.raises(FormatError, match=reason):
            read_cases(data, "case", "family")


def test_a_protected_set_has_a_digest_of_what_it_says() -> None:
    """Other budgets, cases or holdouts give another digest; the order of lines does not."""
    lines = [b'{"case":"a","family":"x"}\n', b'{"case":"b","family":"x"}\n']
    digests = {
        protected_digest(read_cases(b"".join(data), "case", "family"), snapshot, budgets)
        for data, snapshot, budgets in (
            (lines, bytes(32), {"x": 0}),
            (lines[::-1], bytes(32), {"x": 0}),
            (lines[:1], bytes(32), {"x": 0}),
            (lines, bytes(31) + b"1", {"x": 0}),
            (lines, bytes(32), {"x": 1}),
        )
    }
    assert 4 == len(digests)


def test_a_protected_set_lies_within_its_holdout() -> None:
    """A case outside is named; a holdout that nobody published is no holdout."""
    event = event_pb2.Event()
    event.protected_set_published.families.add(name="x", case_ids=["a", "b"])
    check_within([event], {"a", "b", "c"}, bytes(32))
    with pytest.raises(RefusedError, match="such as b"):
        check_within([event], {"a"}, bytes(32))
    with pytest.raises(RefusedError, match="got none in this log"):
        check_within([event], set(), bytes(32))
    assert published_cases([], bytes(32)) == set()
