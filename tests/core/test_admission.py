"""Admission, rule 2: nothing is hidden and nothing is said twice, however the bytes are spelled."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ledger.admission import admit
from ledger.errors import AssayError, FormatError
from ledger.v1 import event_pb2, gate_pb2, options_pb2, trainer_pb2
from tests.events import BODIES, minimal_event

PACKED_TAG, UNPACKED_TAG = b"\x3a", b"\x38"  # Finding.cited_indexes


def _number(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _number(rest) if rest else bytes([low])


def _said(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return _number(number << 3 | 2) + _number(len(data)) + data


def _verdict(findings: int, index: bytes, hidden: bytes) -> bytes:
    """A verdict whose findings cite one index each, spelled `index`, and that ends in `hidden`."""
    event = minimal_event("verdict_issued")
    finding = event.verdict_issued.findings[0].SerializeToString() + index
    event.verdict_issued.ClearField("findings")
    body = event.verdict_issued.SerializeToString() + _said(11, finding) * findings + hidden
    field = event_pb2.Event.DESCRIPTOR.fields_by_name["verdict_issued"]
    return event_pb2.Event(event_id=event.event_id).SerializeToString() + _said(field.number, body)


def test_an_index_sent_packed_is_admitted() -> None:
    """The spelling of every protobuf library."""
    event = admit(_verdict(2, PACKED_TAG + b"\x01\x05", b""))
    assert [[5], [5]] == [list(f.cited_indexes) for f in event.verdict_issued.findings]


@pytest.mark.parametrize(
    "hidden",
    [
        _said(15_000, bytes(36)),  # an unknown field
        b"\x10\x01" * 20,  # `step`, said twenty times more
        b"\x15" + bytes(4) + b"\x10\x01" * 17 + b"\x10",  # `step` as a fixed32: unknown too
    ],
)
def test_what_an_unpacked_number_saves_pays_for_nothing(hidden: bytes) -> None:
    """40 indexes unpacked are 40 bytes shorter than ours: no hidden or repeated field takes them."""
    for findings in range(30, 50):
        with pytest.raises(FormatError) as caught:
            admit(_verdict(findings, UNPACKED_TAG + b"\x05", hidden))
        assert caught.value.reason in ("UNKNOWN_FIELD", "MALFORMED_EVENT")


@pytest.mark.parametrize("name", BODIES)
def test_every_type_of_event_is_admitted(name: str) -> None:
    """What needs a further look is looked at, and refused for nothing."""
    event = minimal_event(name)
    body: Any = getattr(event, name)
    if isinstance(body, (trainer_pb2.TrainingStarted, trainer_pb2.TrainingEnded)):
        body.environment.seeds.extend([1, 2**64 - 1])
    if isinstance(body, gate_pb2.UpdateFrozen):
        body.redo_checks.extend([4, 5])
        body.environment.add(target=options_pb2.ENVIRONMENT_TARGET_HARNESS, digest=bytes(32))
    assert event == admit(event.SerializeToString())


def test_any_bytes_are_admitted_or_refused() -> None:
    """Changed bytes never crash the door."""
    chance = random.Random(7)
    data = _verdict(3, PACKED_TAG + b"\x02\x05\x06", b"")
    for _ in range(3000):
        changed = bytearray(data)
        for _ in range(chance.choice([1, 1, 2, 5])):
            at = chance.randrange(len(changed))
            changed[at : at + chance.choice([0, 1, 2])] = chance.randbytes(chance.choice([0, 1, 2]))
        try:
            assert len(changed) == admit(bytes(changed)).ByteSize()
        except AssayError:
            continue
