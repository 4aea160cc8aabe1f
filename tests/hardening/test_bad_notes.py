"""Bad notes, signatures and keys over the real wire: each with its reason, and nothing recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

import pytest

from clients.identity import Identity
from ledger.batch import batch_text, event_root
from ledger.errors import RefusedError
from ledger.note import _REFUSED_POINTS, encode_base64, signature_line
from ledger.v1 import ledger_pb2
from tests.events import minimal_event
from tests.hardening.door import Doors
from tests.server.people import STREAM, batch, enqueued

pytestmark = pytest.mark.asyncio(loop_scope="module")

L = 2**252 + 27742317777372353535851937790883648493  # the order of Ed25519's group

# --- notes -------------------------------------------------------------------------------------------------


def _lines(doors: Doors, events: Sequence[bytes]) -> list[str]:
    root = encode_base64(event_root(events))
    return ["assay/batch/v1", doors.lab.home.origin, STREAM.hex(), "0", str(len(events)), root]


_Spoil = Callable[[list[str]], list[str]]


def _line(number: int, value: str | Callable[[str], str]) -> _Spoil:
    def spoil(lines: list[str]) -> list[str]:
        new = value(lines[number]) if callable(value) else value
        return [*lines[:number], new, *lines[number + 1 :]]

    return spoil


NOTES: dict[str, tuple[_Spoil, str]] = {
    "another first line": (_line(0, "assay/batch/v2"), "BAD_BATCH_NOTE"),
    "a checkpoint's text": (lambda lines: [lines[1], "1", lines[5]], "BAD_BATCH_NOTE"),
    "a line too many": (lambda lines: [*lines, "more"], "BAD_BATCH_NOTE"),
    "a line too few": (lambda lines: lines[:-1], "BAD_BATCH_NOTE"),
    "another origin": (_line(1, "other-0123456789abcdef"), "OTHER_ORIGIN"),
    "an origin too long": (_line(1, "x" * 129), "BAD_NAME"),
    "no origin": (_line(1, ""), "BAD_NAME"),
    "an origin with a plus": (_line(1, "a+b"), "BAD_NAME"),
    "a stream too short": (_line(2, "00" * 15), "BAD_BATCH_NOTE"),
    "a stream too long": (_line(2, "00" * 17), "BAD_BATCH_NOTE"),
    "a stream in upper case": (_line(2, "AB" * 16), "BAD_BATCH_NOTE"),
    "a stream that is not hex": (_line(2, "zz" * 16), "BAD_BATCH_NOTE"),
    "a sequence with a zero before it": (_line(3, "00"), "BAD_BATCH_NOTE"),
    "a sequence with a sign": (_line(3, "+0"), "BAD_BATCH_NOTE"),
    "a sequence below zero": (_line(3, "-1"), "BAD_SEQUENCE"),
    "a sequence of 65 bits": (_line(3, str(2**64)), "BAD_SEQUENCE"),
    "a sequence of 5000 digits": (_line(3, "9" * 5000), "BAD_BATCH_NOTE"),
    "a sequence in other digits": (_line(3, "٣"), "BAD_BATCH_NOTE"),
    "the largest sequence, far ahead": (_line(3, str(2**64 - 1)), "SEQUENCE_GAP"),
    "a gap of one": (_line(3, "1"), "SEQUENCE_GAP"),
    "a count of zero": (_line(4, "0"), "EMPTY_BATCH"),
    "a count below zero": (_line(4, "-1"), "EMPTY_BATCH"),
    "a count above the limit": (_line(4, "4097"), "TOO_MANY_EVENTS"),
    "one event more than counted": (_line(4, "1"), "BAD_COUNT"),
    "one event fewer than counted": (_line(4, "3"), "BAD_COUNT"),
    "a root cut short": (_line(5, encode_base64(bytes(31))), "BAD_BATCH_NOTE"),
    "a root without its padding": (_line(5, lambda root: root.rstrip("=")), "BAD_BASE64"),
    "a root with its unused bits set": (_line(5, "A" * 42 + "B="), "BAD_BASE64"),
    "a root in the URL alphabet": (_line(5, "_" * 43 + "="), "BAD_BASE64"),
    "a root of other events": (_line(5, encode_base64(sha256(b"x").digest())), "ROOT_MISMATCH"),
    "a tab": (_line(1, "a\tb"), "BAD_NOTE"),
    "a carriage return": (_line(0, "assay/batch/v1\r"), "BAD_NOTE"),
    "a zero byte": (_line(1, "a\x00b"), "BAD_NOTE"),
}


@pytest.mark.parametrize("name", NOTES)
async def test_a_note_that_says_it_otherwise(doors: Doors, name: str) -> None:
    """Each misspelling of the signed text, signed as it stands."""
    door = doors["runner"]
    spoil, reason = NOTES[name]
    events = [enqueued(doors.lab), enqueued(doors.lab)]
    text = "\n".join([*spoil(_lines(doors, events)), ""]).encode()
    assert reason == (await door.refused(door.note(text, events))).reason


_Signed = Callable[[bytes, Identity], bytes]


def _payload(change: Callable[[bytes], bytes]) -> _Signed:
    def note(text: bytes, identity: Identity) -> bytes:
        key = identity.key.verifier_key
        return text + b"\n" + signature_line(key.name, key.key_id, change(identity.key.sign(text)))

    return note


def _raw_line(line: Callable[[str, str], str]) -> _Signed:
    def note(text: bytes, identity: Identity) -> bytes:
        key = identity.key.verifier_key
        return text + b"\n" + line(key.name, encode_base64(key.key_id + identity.key.sign(text))).encode()

    return note


SIGNATURES: dict[str, tuple[_Signed, str]] = {
    "no signature line": (lambda text, _: text + b"\n", "BAD_NOTE"),
    "no blank line": (lambda text, _: text, "BAD_NOTE"),
    "no last newline": (_raw_line(lambda name, data: f"— {name} {data}"), "BAD_NOTE"),
    "bytes that are not UTF-8": (lambda text, _: text + b"\xff\xfe\n\n", "BAD_NOTE"),
    "a hyphen for the dash": (_raw_line(lambda name, data: f"- {name} {data}\n"), "BAD_SIGNATURE_LINE"),
    "two spaces": (_raw_line(lambda name, data: f"—  {name} {data}\n"), "BAD_SIGNATURE_LINE"),
    "a word too many": (_raw_line(lambda name, data: f"— {name} {data} x\n"), "BAD_SIGNATURE_LINE"),
    "base64 without its padding": (
        _raw_line(lambda name, data: f"— {name} {data.rstrip('=')[:-1]}\n"),
        "BAD_SIGNATURE_LINE",
    ),
    "a key id alone": (_raw_line(lambda name, _: f"— {name} AAAAAA==\n"), "BAD_SIGNATURE_LINE"),
    "two signature lines": (_raw_line(lambda name, data: f"— {name} {data}\n" * 2), "BAD_BATCH_NOTE"),
    "65 signature lines": (_raw_line(lambda name, data: f"— {name} {data}\n" * 65), "TOO_MANY_SIGNATURES"),
    "another's name": (_raw_line(lambda _, data: f"— trainer-1 {data}\n"), "PRINCIPAL_MISMATCH"),
    "a name of 129 characters": (_raw_line(lambda _, data: f"— {'x' * 129} {data}\n"), "BAD_NAME"),
    "an unknown key id": (
        _raw_line(lambda name, _: f"— {name} {encode_base64(bytes(4) + bytes(64))}\n"),
        "KEY_UNKNOWN",
    ),
    "a signature cut short": (_payload(lambda s: s[:-1]), "BAD_BATCH_NOTE"),
    "a signature too long": (_payload(lambda s: s + b"\x00"), "BAD_BATCH_NOTE"),
    "one bit of R turned": (_payload(lambda s: bytes([s[0] ^ 1]) + s[1:]), "BAD_BATCH_SIGNATURE"),
    "one bit of S turned": (_payload(lambda s: s[:32] + bytes([s[32] ^ 1]) + s[33:]), "BAD_BATCH_SIGNATURE"),
    "S of L or more": (
        _payload(lambda s: s[:32] + (int.from_bytes(s[32:], "little") + L).to_bytes(32, "little")),
        "BAD_BATCH_SIGNATURE",
    ),
    "a signature of zeros": (_payload(lambda _: bytes(64)), "BAD_BATCH_SIGNATURE"),
}


@pytest.mark.parametrize("name", SIGNATURES)
async def test_a_signature_that_is_none(doors: Doors, name: str) -> None:
    """Each way in which a note's signature lines can be wrong."""
    door = doors["runner"]
    signed, reason = SIGNATURES[name]
    events = [enqueued(doors.lab)]
    text = batch_text(doors.lab.home.origin, STREAM, 0, 1, event_root(events))
    request = ledger_pb2.AppendRequest(note=signed(text, door.identity), events=events)
    assert reason == (await door.refused(request)).reason


async def test_an_r_of_small_order_or_not_canonical(doors: Doors) -> None:
    """BAD_BATCH_SIGNATURE, for each such R."""
    door = doors["runner"]
    for point in sorted(_REFUSED_POINTS):
        events = [enqueued(doors.lab)]
        text = batch_text(doors.lab.home.origin, STREAM, 0, 1, event_root(events))
        signed = _payload(lambda s, r=point: r + s[32:])(text, door.identity)  # type: ignore[misc]  # a default binds
        error = await door.refused(ledger_pb2.AppendRequest(note=signed, events=events))
        assert (point.hex(), "BAD_BATCH_SIGNATURE") == (point.hex(), error.reason)


async def test_a_bad_signature_is_found_before_events_are_parsed(doors: Doors) -> None:
    """Both wrong: the signature is the answer. Lengths, count and root are the shape, and come first."""
    door = doors["runner"]
    events = [b"\xff\xff"]
    text = batch_text(doors.lab.home.origin, STREAM, 0, 1, event_root(events))
    forged = _payload(lambda s: s[:32] + bytes([s[32] ^ 1]) + s[33:])(text, door.identity)
    request = ledger_pb2.AppendRequest(note=forged, events=events)
    assert "BAD_BATCH_SIGNATURE" == (await door.refused(request)).reason
    request = ledger_pb2.AppendRequest(note=forged, events=[enqueued(doors.lab)])
    assert "ROOT_MISMATCH" == (await door.refused(request)).reason


async def test_a_sequence_said_again_with_another_text(doors: Doors) -> None:
    """EQUIVOCATION, whatever else differs."""
    runner = doors.lab.of_role("runner")
    await runner.append_signed(batch(runner.identity, [enqueued(doors.lab, "ro-1")], stream=bytes(16)))
    other = batch(runner.identity, [enqueued(doors.lab, "ro-2")], stream=bytes(16))
    error = await doors["runner"].refused(other.request(0))
    assert (RefusedError, "EQUIVOCATION") == (type(error), error.reason)


# --- keys --------------------------------------------------------------------------------------------------


def _vkey(name: str, public_key: bytes, type_: int = 1) -> str:
    raw = bytes([type_]) + public_key
    key_id = sha256(name.encode() + b"\n" + raw).hexdigest()[:8]
    return f"{name}+{key_id}+{encode_base64(raw)}"


@pytest.mark.parametrize("body", ["key_granted", "ledger_key_rotated"])
async def test_a_key_of_small_order_or_not_canonical_never_enters(doors: Doors, body: str) -> None:
    """BAD_PUBLIC_KEY, for each such point, in a grant and in a rotation."""
    door = doors["root"]
    for point in sorted(_REFUSED_POINTS):
        granted = body == "key_granted"
        fields = (
            {"vkey": _vkey("new-1", point)}
            if granted
            else {"ledger_vkey": _vkey(doors.lab.home.origin, point)}
        )
        error = await door.events_refused(doors.lab.event(minimal_event(body, **fields)))
        assert (point.hex(), "BAD_PUBLIC_KEY") == (point.hex(), error.reason)


GOOD_POINT = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
VKEYS = {
    "not a vkey": ("new-1", "BAD_VKEY"),
    "no key": ("new-1+00000000+", "BAD_VKEY"),
    "bad base64": ("new-1+00000000+***", "BAD_BASE64"),
    "another key id": ("new-1+00000000+" + encode_base64(b"\x01" + GOOD_POINT), "BAD_KEY_ID"),
    "key id in upper case": (_vkey("new-1", GOOD_POINT).replace("new-1+", "new-1+A", 1), "BAD_KEY_ID"),
    "31 bytes": (_vkey("new-1", GOOD_POINT[:31]), "BAD_PUBLIC_KEY"),
    "an unknown type": (_vkey("new-1", GOOD_POINT, 9), "BAD_KEY_TYPE"),
    "a witness's type": (_vkey("new-1", GOOD_POINT, 4), "BAD_KEY_TYPE"),
    "no name": (_vkey("", GOOD_POINT), "BAD_NAME"),
    "a name with a space": (_vkey("a b", GOOD_POINT), "BAD_NAME"),
}


@pytest.mark.parametrize("name", VKEYS)
async def test_a_vkey_that_is_none(doors: Doors, name: str) -> None:
    """Each way to misspell a key in a grant."""
    vkey, reason = VKEYS[name]
    error = await doors["root"].events_refused(doors.lab.event(minimal_event("key_granted", vkey=vkey)))
    assert reason == error.reason
