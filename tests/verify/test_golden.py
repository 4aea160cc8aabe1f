"""The golden log through the verifier: its events are plain text, its authority stands in the vector file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest

from ledger.entry import encode_run
from ledger.errors import RefusedError, VerificationError
from ledger.note import VerifierKey
from ledger.trust import Grant
from ledger.v1 import event_pb2
from ledger.verify import Keys, Verified, Verifier, read_trust
from tests.forge import ROLES, relink
from tests.vectors.regenerate import FILE, read, unescape

TEXT = FILE.read_text()
LINES = read(TEXT)
ENTRIES = [bytes.fromhex(LINES[f"entry.{index}"]) for index in range(7)]
#: (key, role, in force from index), as the file says.
GRANTS = [tuple(line.split(" ")[1:]) for line in TEXT.splitlines() if line.startswith("grant ")]
ROLE_NUMBERS = {"root": 1, **ROLES}


def _trust(quorum: str = "none") -> bytes:
    return (
        f"assay/trust/v1\nroot {LINES['vkey.root']}\n\nlog {LINES['vkey.ledger']}\n"
        f"witness w1 {LINES['vkey.witness']}\nquorum {quorum}\n"
    ).encode()


@dataclass(frozen=True)
class FileKeys:
    """The vector file's authority: grants by the index that they are in force from."""

    size: int = 0

    @property
    def ledger_key(self) -> VerifierKey:
        """There is one."""
        return VerifierKey.parse(LINES["vkey.ledger"])

    def find(self, name: str, key_id: bytes) -> Grant:
        """Those in force."""
        for who, role, since in GRANTS:
            key = VerifierKey.parse(LINES[f"vkey.{who}"])
            if (name, key_id) == (key.name, key.key_id) and int(since) <= self.size:
                return Grant(key, ROLE_NUMBERS[role], key.name, int(since) - 1)
        raise RefusedError("KEY_UNKNOWN", f"expected a granted key, got {name}")

    def check_writer(self, grant: Grant, body: str) -> None:
        """The file's events have no type."""

    def with_key_event(self, index: int, event: event_pb2.Event, count: int) -> Keys:
        """Entry 0 acts."""
        return replace(self, size=index + 1)


def _as_text(data: bytes) -> tuple[event_pb2.Event, str | None]:
    """An event of the file, handed on as it is."""
    return cast(event_pb2.Event, data), "text"


class _Collected:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str, str, object]] = []

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        self.seen.append((index, recorded_at, leaf.hex(), grant.name, event))


def _verify(
    entries: list[bytes],
    checkpoint: bytes,
    *,
    quorum: str = "none",
    remembered: bytes | None = None,
    fold: _Collected | None = None,
    step: int = 100,
) -> Verified:
    verifier = Verifier(
        read_trust(_trust(quorum)), remembered=remembered, fold=fold, reader=_as_text, keys=FileKeys()
    )
    run = encode_run(entries)
    for start in range(0, len(run), step):
        verifier.feed(run[start : start + step])
    return verifier.finish(checkpoint)


COSIGNED = unescape(LINES["checkpoint.7"]) + unescape(LINES["cosigline.7"])


@pytest.mark.parametrize("step", [1, 2, 51, 100, 10_000])
def test_the_golden_log_passes_however_it_is_cut(step: int) -> None:
    """Seven entries, four batches, witness, remembered checkpoint: as the independent build made them."""
    fold = _Collected()
    verified = _verify(
        ENTRIES,
        COSIGNED,
        quorum="w1",
        remembered=unescape(LINES["checkpoint.4"]),
        fold=fold,
        step=step,
    )
    assert (7, 4, 4) == (verified.size, verified.batches, verified.remembered_size)
    assert unescape(LINES["checkpoint.7"]).split(b"\n")[2].decode() == LINES["root.7"]
    assert {"ledger.test/root": 1, "ledger.test/runner/r1": 5, "ledger.test/gate/g1": 1} == verified.authors
    assert ("witness.test/w1",) == verified.witnesses
    times = [int(LINES[f"batch.{batch}.recorded_at"]) for batch in (0, 1, 1, 1, 2, 3, 3)]
    assert [b"event %d" % index for index in range(7)] == [event for *_, event in fold.seen]
    assert times == [recorded_at for _, recorded_at, *_ in fold.seen]
    assert list(range(7)) == [index for index, *_ in fold.seen]


def test_the_golden_checkpoint_of_4_covers_whole_batches_only() -> None:
    """The first two batches end at size 4: they pass under checkpoint 4, and three of them do not."""
    assert 4 == _verify(ENTRIES[:4], unescape(LINES["checkpoint.4"])).size
    with pytest.raises(VerificationError) as caught:
        _verify(ENTRIES[:3], unescape(LINES["checkpoint.4"]))
    assert ("V3", "OPEN_BATCH", 1) == (caught.value.step, caught.value.reason, caught.value.index)


def test_the_golden_signature_line_that_a_lax_decoder_accepts() -> None:
    """Unused base64 bits refuse the checkpoint."""
    note = unescape(LINES["checkpoint.7"])
    lax = note.partition(b"\n\n")[0] + b"\n\n" + unescape(LINES["refuse.sigline"])
    with pytest.raises(VerificationError) as caught:
        _verify(ENTRIES, lax)
    assert ("V6", "BAD_SIGNATURE_LINE") == (caught.value.step, caught.value.reason)


def test_the_golden_log_without_its_witness() -> None:
    """Where the quorum is the witness, the checkpoint without its line is refused."""
    with pytest.raises(VerificationError) as caught:
        _verify(ENTRIES, unescape(LINES["checkpoint.7"]), quorum="w1")
    assert ("V6", "NO_QUORUM") == (caught.value.step, caught.value.reason)


def test_the_golden_log_reordered() -> None:
    """The runner's second batch in place of its first, chain mended, is a sequence gap."""
    mended = relink(ENTRIES[:1] + ENTRIES[5:] + ENTRIES[1:5])
    with pytest.raises(VerificationError) as caught:
        _verify(mended.entries, mended.checkpoint())
    assert ("V3", "SEQUENCE_GAP", 1) == (caught.value.step, caught.value.reason, caught.value.index)
