"""V6 and V7 with witnesses: quorum, age of cosignatures, split views; no clock but the one handed in."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.cli.audit import Audit
from clients.memory import Memory
from gate.replay import replay_export
from ledger.checkpoint import cosign, parse_checkpoint_text
from ledger.errors import VerificationError
from ledger.head import Freshness
from ledger.merkle import Tree
from ledger.note import encode_base64, parse_note
from ledger.parallel import verify_export_parallel
from ledger.verify import Verified, verify_export
from tests.forge import LEDGER, START, Forge, make_key, numbered, witness_key
from tests.witness import Witness

NAMES = ("w1", "w2", "w3")
KEYS = [witness_key(name) for name in NAMES]
POLICY = "".join(f"witness {name} {key.verifier_key}\n" for name, key in zip(NAMES, KEYS, strict=True))
TWO = f"{POLICY}group g 2 {' '.join(NAMES)}\nquorum g\n"
NOW = START // 1_000_000
DAY = 86_400


def _log(policy: str = TWO, last: int = 3) -> Forge:
    forge = Forge.opened("runner", policy=policy)
    for number in (*range(3), last):
        forge.add("runner", numbered(number))
    return forge


def _note(forge: Forge, *ages: int | None) -> bytes:
    """The forge's checkpoint, cosigned by each witness so many seconds before NOW; None: not at all."""
    note = forge.checkpoint()
    text = parse_note(note).text
    return note + b"".join(
        cosign(text, key, NOW - age) for key, age in zip(KEYS, ages, strict=False) if age is not None
    )


def _verify(forge: Forge, note: bytes, max_age: int | None = None) -> Verified:
    fresh = None if max_age is None else Freshness(NOW, max_age)
    return verify_export(BytesIO(forge.export(note)), forge.trust, fresh=fresh)


# --- age -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages", "passes"),
    [
        ((0, 0), True),
        ((DAY, DAY, DAY), True),
        ((DAY, DAY + 1, DAY), True),
        ((DAY, DAY + 1), False),
        ((DAY + 1, DAY + 1, DAY + 1), False),
        ((-300, -300), True),
        ((-301, 0), False),
    ],
)
def test_v6_only_fresh_cosignatures_count(ages: tuple[int, ...], passes: bool) -> None:
    """A quorum must be there of cosignatures that are young enough, and not from the future either."""
    forge = _log()
    note = _note(forge, *ages)
    assert len(ages) == len(_verify(forge, note).witnesses)
    if passes:
        assert forge.size == _verify(forge, note, DAY).size
        return
    with pytest.raises(VerificationError) as caught:
        _verify(forge, note, DAY)
    assert ("V6", "STALE_COSIGNATURE") == (caught.value.step, caught.value.reason)


def test_v6_no_quorum_is_said_before_staleness() -> None:
    """One old cosignature of two that are needed: what lacks is the quorum."""
    forge = _log()
    with pytest.raises(VerificationError) as caught:
        _verify(forge, _note(forge, DAY * 9), DAY)
    assert "NO_QUORUM" == caught.value.reason


def test_v6_an_age_is_never_judged_without_a_cosignature() -> None:
    """Where no quorum is demanded one fresh cosignature is: absence is not freshness (law 9)."""
    forge = _log(f"{POLICY}quorum none\n")
    with pytest.raises(VerificationError) as caught:
        _verify(forge, _note(forge), DAY)
    assert "STALE_COSIGNATURE" == caught.value.reason
    assert "got none of any age" in caught.value.message
    assert forge.size == _verify(forge, _note(forge, None, 5), DAY).size
    assert forge.size == _verify(forge, _note(forge)).size


def test_v6_a_time_that_was_changed_is_no_cosignature() -> None:
    """The time is signed: an old cosignature made young is a bad one, which refuses the log."""
    forge = _log()
    note = _note(forge, 0, DAY * 9)
    head, _, last = note[:-1].rpartition(b" ")
    payload = bytearray(b64decode(last))
    payload[4:12] = NOW.to_bytes(8, "big")
    with pytest.raises(VerificationError) as caught:
        _verify(forge, head + b" " + encode_base64(bytes(payload)).encode() + b"\n", DAY)
    assert ("V6", "BAD_COSIGNATURE") == (caught.value.step, caught.value.reason)


@given(st.lists(st.none() | st.integers(0, 2 * DAY), max_size=3), st.integers(1, 2 * DAY))
def test_v6_what_passes_under_an_age_passes_under_every_greater_one(
    ages: list[int | None], max_age: int
) -> None:
    """And without any; so asking for freshness only ever refuses more."""
    forge = _log()
    note = _note(forge, *ages)
    try:
        _verify(forge, note, max_age)
    except VerificationError:
        young = [age for age in ages if age is not None and age <= max_age]
        assert 2 > len(young)
        return
    assert forge.size == _verify(forge, note, max_age + 1).size == _verify(forge, note).size


def test_every_way_to_verify_judges_the_age() -> None:
    """Serial, on all cores, and before a replay: the same finding."""
    forge = _log()
    export, fresh = forge.export(_note(forge, 99, 99)), Freshness(NOW, 98)

    def parallel() -> object:
        with ThreadPoolExecutor(1) as pool:
            return verify_export_parallel(BytesIO(export), forge.trust, pool, ahead=1, fresh=fresh)

    ways: tuple[Callable[[], object], ...] = (
        lambda: verify_export(BytesIO(export), forge.trust, fresh=fresh),
        parallel,
        lambda: replay_export(lambda: BytesIO(export), forge.trust, fresh=fresh),
    )
    for way in ways:
        with pytest.raises(VerificationError) as caught:
            way()
        assert "STALE_COSIGNATURE" == caught.value.reason


# --- split view ------------------------------------------------------------------------------------------


@pytest.fixture
def witness() -> Iterator[Witness]:
    """One witness of LEDGER's log."""
    with Witness("w1", LEDGER.verifier_key) as made:
        yield made


def _add(witness: Witness, forge: Forge, old: int) -> tuple[int, bytes]:
    """Submits a forge's checkpoint; the status and what came."""
    tree = Tree()
    tree.extend(forge.leaves)
    proof = tree.consistency(old, forge.size) if old else []
    lines = "".join(f"{line}\n" for line in (f"old {old}", *map(encode_base64, proof)))
    status, _, answer = witness.answer(lines.encode() + b"\n" + forge.checkpoint())
    return status, answer


def test_law_06_one_of_two_views_has_a_quorum(witness: Witness) -> None:
    """Two logs under one key: the witness cosigns the first; the second, and whatever grows on it, never."""
    policy = witness.line("w1") + "quorum w1\n"
    first, second = _log(policy), _log(policy, last=9)
    status, line = _add(witness, first, 0)
    assert 200 == status
    assert ("w1",) == _verify(first, first.checkpoint() + line).witnesses
    assert 409 == _add(witness, second, 0)[0]
    assert 422 == _add(witness, second, first.size)[0]
    second.add("runner", numbered(10))
    assert 422 == _add(witness, second, first.size)[0]
    for note in (second.checkpoint(), second.checkpoint() + line):
        with pytest.raises(VerificationError) as caught:
            _verify(second, note)
        assert caught.value.reason in {"NO_QUORUM", "BAD_COSIGNATURE"}


def test_law_06_a_witness_that_cosigns_both_views_is_caught_by_memory(tmp_path: Path) -> None:
    """Who saw one view refuses the other, and keeps both signed and cosigned notes: the evidence."""
    first, second = _log(), _log(last=9)
    one, other = _note(first, 0, 0), _note(second, 0, 0)
    seen, shown = tmp_path / "first.export", tmp_path / "second.export"
    seen.write_bytes(first.export(one))
    shown.write_bytes(second.export(other))
    audit = Audit(first.trust, tmp_path / "memory")
    assert None is audit.verify(seen).remembered_size
    with pytest.raises(VerificationError) as caught:
        audit.verify(shown)
    assert ("V7", "FORKED") == (caught.value.step, caught.value.reason)
    kept = {file.read_bytes() for file in (tmp_path / "memory").iterdir()}
    assert {one, other} == kept
    assert {first.size} == {parse_checkpoint_text(parse_note(note).text).size for note in kept}


# --- what a connected client asks for --------------------------------------------------------------------


def test_a_client_asks_for_the_ledger_s_signature_and_not_for_the_quorum() -> None:
    """A client believes a checkpoint that is a moment old; an auditor would refuse it."""
    forge = _log()
    assert forge.size == Memory(forge.trust, None).open(forge.checkpoint()).size
    with pytest.raises(VerificationError):
        _verify(forge, forge.checkpoint())


def test_v6_a_client_refuses_a_bad_cosignature_of_a_known_witness() -> None:
    """What is there must hold."""
    forge, other = _log(), _log(last=9)
    line = cosign(parse_note(other.checkpoint()).text, KEYS[0], NOW)
    with pytest.raises(VerificationError) as caught:
        Memory(forge.trust, None).open(forge.checkpoint() + line)
    assert "BAD_COSIGNATURE" == caught.value.reason


def test_the_witness_of_these_tests_refuses_what_is_malformed(witness: Witness) -> None:
    """The fixture enforces the protocol, so that a ledger that gets by it speaks it."""
    forge, elsewhere = _log(), "ledger.test/assay-fedcba9876543210"
    for status, body in (
        (400, b"rubbish"),
        (400, b"old 9999\n\n" + forge.checkpoint()),
        (400, b"old 00\n\n" + forge.checkpoint()),
        (403, b"old 0\n\n" + forge.checkpoint(key=make_key(forge.origin, "another"))),
        (404, b"old 0\n\n" + forge.checkpoint(origin=elsewhere)),
        (422, b"old 0\n" + encode_base64(bytes(32)).encode() + b"\n\n" + forge.checkpoint()),
        (200, b"old 0\n\n" + forge.checkpoint()),
    ):
        assert status == witness.answer(body)[0], body
