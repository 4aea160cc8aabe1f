"""Policies are strict: what is unknown, said twice, absent, empty, contradictory or not exact is refused."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from gate.policy import parse_policy, policy_digest
from ledger.errors import CannotTellError, FormatError
from tests.memory import demo_document

GOOD = json.loads(demo_document().policy_bytes)


def text(change: Any = None, **changes: Any) -> bytes:
    """The demo's policy with other values at its top."""
    raw = json.loads(json.dumps(GOOD))
    raw.update(changes)
    if change is not None:
        change(raw)
    return json.dumps(raw).encode()


def refused(document: bytes) -> str:
    """Why a policy is refused; always BAD_POLICY."""
    with pytest.raises(FormatError) as caught:
        parse_policy(document)
    assert "BAD_POLICY" == caught.value.reason
    return caught.value.message


def at(path: str, value: Any) -> bytes:
    """The demo's policy with another value at a dotted path."""
    raw = json.loads(json.dumps(GOOD))
    *way, leaf = path.split(".")
    place = raw
    for step in way:
        place = place[step]
    place[leaf] = value
    return json.dumps(raw).encode()


def without(path: str) -> bytes:
    """The demo's policy without the key at a dotted path."""
    raw = json.loads(json.dumps(GOOD))
    *way, leaf = path.split(".")
    place = raw
    for step in way:
        place = place[step]
    del place[leaf]
    return json.dumps(raw).encode()


def test_the_demo_policy_is_read() -> None:
    """What stands in the document is what checks are given; its digest is that of its exact bytes."""
    policy = parse_policy(text())
    assert (1, "sql-agent-internal", 100) == (policy.rules, policy.name, policy.span_coverage.min_completed)
    assert policy_digest(text()) != policy_digest(text() + b"\n")
    assert parse_policy(text()) == parse_policy(text() + b"\n")


@pytest.mark.parametrize(
    "path",
    [
        "surprise",
        "principals.auditors",
        "span_coverage.minimum",
        "retry_debt.max",
        "beats_parent.min_gain",
        "canary_verified.timeout",
        "canary_verified.bounds.memory",
    ],
)
def test_an_unknown_key_is_refused(path: str) -> None:
    """A key that nobody reads is a mistake, at any depth, and the message says where."""
    assert path in refused(at(path, 1))


@pytest.mark.parametrize(
    "path",
    [
        "name",
        "version",
        "principals",
        "principals.judges",
        "principals.canaries",
        "principals.canary_approvers",
        "principals.default_approvers",
        "span_coverage",
        "span_coverage.min_completed",
        "canary_verified",
        "canary_verified.min_tasks",
        "canary_verified.bounds",
        *(
            f"canary_verified.bounds.{bound}"
            for bound in ("tasks", "wall_time_us", "tools", "micro_usd", "side_effects")
        ),
    ],
)
def test_what_must_be_chosen_has_no_default(path: str) -> None:
    """Leaving out a threshold that the operator must choose is refused, never filled in."""
    assert path in refused(without(path))


@pytest.mark.parametrize(
    "path",
    [
        "principals.judges",
        "principals.canaries",
        "principals.canary_approvers",
        "principals.default_approvers",
        "canary_verified.methods",
    ],
)
def test_an_empty_list_is_refused_where_something_must_stand(path: str) -> None:
    """Nobody to judge and no method to verify by is no policy."""
    assert path in refused(at(path, []))


@pytest.mark.parametrize("path", ["canary_verified.bounds.tools", "canary_verified.bounds.side_effects"])
def test_an_empty_bound_means_none(path: str) -> None:
    """No tool and no side effect is a bound that somebody may want."""
    assert 1 == parse_policy(at(path, [])).rules


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("span_coverage.min_completed", 0),
        ("span_coverage.min_completed", -1),
        ("span_coverage.min_completed", "100"),
        ("span_coverage.min_completed", True),
        ("span_coverage.min_completed", None),
        ("span_coverage.min_completed", 1.5),
        ("span_coverage.min_completed", 100.0),
        ("retry_debt.max_unexpected", -1),
        ("retry_debt.max_silent", "0"),
        ("beats_parent.margin", "-0.01"),
        ("beats_parent.margin", "NaN"),
        ("beats_parent.margin", "Infinity"),
        ("beats_parent.margin", "much"),
        ("beats_parent.margin", True),
        ("beats_parent.margin", None),
        ("beats_parent.margin", "1e999999999"),
        ("beats_parent.margin", "1e-999999999"),
        ("beats_parent.min_trials", 0),
        ("beats_parent.max_candidates_judged_before", -1),
        ("canary_verified.min_tasks", 0),
        ("canary_verified.min_tasks", 21),  # more than the bound allows
        ("canary_verified.methods", ["TRUST_ME"]),
        ("canary_verified.bounds.tasks", 0),
        ("canary_verified.bounds.wall_time_us", 0),
        ("canary_verified.bounds.micro_usd", -1),
        ("principals.judges", ["a name"]),
        ("principals.judges", "judge-1"),
        ("name", ""),
        ("max_redos", -1),
        ("rules", 0),
        ("rules", "1"),
        ("rules", True),
        ("rules", 1.0),
        ("rules", None),
    ],
)
def test_impossible_and_contradictory_thresholds_are_refused(path: str, value: Any) -> None:
    """Each number is what it must be, and no two contradict."""
    assert path.rpartition(".")[2] in refused(at(path, value)) or path == "rules"


def test_rules_missing_are_refused() -> None:
    """A policy that does not say under which rules it is read cannot be replayed later."""
    assert "rules" in refused(without("rules"))


@pytest.mark.parametrize("rules", [2, 3, 10**30])
def test_newer_rules_cannot_be_told(rules: int) -> None:
    """Rules of a later release are neither good nor bad here, whatever else the document says."""
    with pytest.raises(CannotTellError) as caught:
        parse_policy(text(rules=rules, something="new"))
    assert "RULES_UNKNOWN" == caught.value.reason


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b"null",
        b"\xff",
        b"\xef\xbb\xbf{}",
        text() + b"{}",
        b"[" * 100_000,
        b'{"rules": ' + b"1" * 5000 + b"}",
        b" " * 32_768 + text(),
    ],
    ids=["empty", "cut", "list", "number", "null", "not UTF-8", "BOM", "two", "deep", "long number", "large"],
)
def test_what_is_no_json_object_is_refused(document: bytes) -> None:
    """One JSON object of at most 32 KiB of UTF-8, and nothing else."""
    refused(document)


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinities_are_refused(constant: str) -> None:
    """No comparison with NaN ever decides a promotion."""
    document = text().replace(b'"margin": "0"', b'"margin": ' + constant.encode())
    assert constant in refused(document)


def test_a_repeated_key_is_refused() -> None:
    """A key said twice would mean one thing to one reader and another to the next."""
    document = text().replace(b'"min_completed": 100', b'"min_completed": 100, "min_completed": 1')
    assert "min_completed" in refused(document)


@pytest.mark.parametrize(
    ("margin", "exact"),
    [
        ('"0.1"', Fraction(1, 10)),
        ("0.1", Fraction(1, 10)),
        ('"0.30000000000000004"', Fraction(30000000000000004, 10**17)),
        ("1e-3", Fraction(1, 1000)),
        ("0", Fraction(0)),
        ("-0.0", Fraction(0)),
        ('"0.333333333333333333333333333"', Fraction(333333333333333333333333333, 10**27)),
    ],
)
def test_a_margin_is_the_decimal_that_it_spells(margin: str, exact: Fraction) -> None:
    """Decimal text, exactly: no double is involved, whether it is quoted or not."""
    document = text().replace(b'"margin": "0"', b'"margin": ' + margin.encode())
    assert parse_policy(document).beats_parent.exact_margin == exact


def test_defaults_are_the_strictest() -> None:
    """What may be left out is then zero, one, read-backs only, or no redo."""
    raw = json.loads(text())
    for key in ("retry_debt", "beats_parent"):
        del raw[key]
    del raw["canary_verified"]["methods"]
    policy = parse_policy(json.dumps(raw).encode())
    assert (0, 0, 0) == (policy.retry_debt.max_unexpected, policy.retry_debt.max_silent, policy.max_redos)
    assert (policy.beats_parent.exact_margin, policy.beats_parent.min_trials) == (Fraction(0), 1)
    assert ("READ_BACK_FILE", "READ_BACK_HTTP", "READ_BACK_SQL") == policy.canary_verified.methods
