"""Verification by ranges: the same result and the same findings as entry by entry, whatever the log."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from io import BytesIO
from typing import Any

import pytest

from ledger.errors import CannotTellError, VerificationError
from ledger.parallel import judge_range, verify_export_parallel
from ledger.trust import TrustDocument
from ledger.verified import Verified
from tests.events import minimal_event
from tests.forge import ROLES, ROOT, Forge, export_of, granted, make_key, numbered, relink, revoked, verify


class Inline(Executor):
    """Workers in this process: what goes to them and comes back is pickled as for another."""

    def __init__(self) -> None:
        self.clean = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task: Future[Any] = Future()
        sent = pickle.loads(pickle.dumps(args))
        task.set_result(pickle.loads(pickle.dumps(fn(*sent, **kwargs))))
        self.clean += task.result() is not None
        return task


class Dripping:
    """A file that comes in small pieces, so that a small log has many ranges."""

    def __init__(self, data: bytes) -> None:
        self._data = BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._data.read(min(size, 250))


def _parallel(
    export: bytes,
    trust: TrustDocument,
    *,
    ahead: int = 2,
    remembered: bytes | None = None,
    executor: Executor | None = None,
) -> Verified:
    return verify_export_parallel(
        Dripping(export), trust, executor or Inline(), ahead=ahead, remembered=remembered, range_bytes=1
    )


def _outcome(call: Callable[[], Verified]) -> object:
    try:
        return call()
    except VerificationError as error:
        return error.step, error.reason, error.message, error.index
    except CannotTellError as error:
        return error.reason, error.message


def _log() -> Forge:
    forge = Forge.opened("runner", "trainer")
    for number in range(6):
        forge.add("runner", *map(numbered, range(number, number + 3)), stream=bytes([number % 2]) * 16)
        forge.add("trainer", minimal_event("training_progressed"))
    return forge


LOG = _log()


@pytest.mark.parametrize("ahead", [0, 1, 3, 100])
@pytest.mark.parametrize("remembered", [None, 1, 7, 10, 27])
def test_a_true_log(ahead: int, remembered: int | None) -> None:
    """The result is the serial one, and workers did find ranges clean."""
    note = None if remembered is None else LOG.checkpoint(remembered)
    executor = Inline()
    found = _parallel(LOG.export(), LOG.trust, ahead=ahead, remembered=note, executor=executor)
    assert verify(LOG.export(), LOG.trust, remembered=note) == found
    # Whatever is in flight when the first grants act is judged again; with 100 ahead that is all.
    assert (executor.clean >= 5) == (ahead < 100)


def test_in_processes() -> None:
    """Trust, keys, ranges and results survive the way to another process and back."""
    with ProcessPoolExecutor(1) as executor:
        assert LOG.verify() == _parallel(LOG.export(), LOG.trust, executor=executor)


def test_keys_that_change_on_the_way() -> None:
    """Ranges judged under keys that have changed since are judged again: a revoked key is found."""
    for ahead in (0, 1, 4):
        forge = _log()
        forge.add(ROOT, granted(make_key("judge"), ROLES["judge"]))
        for _ in range(4):
            forge.add("judge", minimal_event("reward_recorded"))
            forge.add("runner", numbered(1))
        assert forge.verify() == _parallel(forge.export(), forge.trust, ahead=ahead)
        forge.add(ROOT, revoked(make_key("judge")))
        first = forge.add("judge", minimal_event("reward_recorded"))
        for _ in range(4):
            forge.add("runner", numbered(1))
        with pytest.raises(VerificationError) as caught:
            _parallel(forge.export(), forge.trust, ahead=ahead)
        assert ("V4", "KEY_REVOKED", first) == (caught.value.step, caught.value.reason, caught.value.index)


@pytest.mark.parametrize("position", range(0, len(LOG.export()), 7))
def test_every_flipped_byte_gives_the_serial_finding(position: int) -> None:
    """Step, reason, message and index are the same, wherever the fault is."""
    tampered = bytearray(LOG.export())
    tampered[position] ^= 1
    data = bytes(tampered)
    serial = _outcome(lambda: verify(data, LOG.trust))
    assert serial == _outcome(lambda: _parallel(data, LOG.trust))
    assert isinstance(serial, tuple)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(LOG.entries[:11] + LOG.entries[15:], id="batches dropped"),
        pytest.param(LOG.entries[:11] + LOG.entries[14:15] + LOG.entries[11:14], id="batches swapped"),
        pytest.param(LOG.entries + LOG.entries[11:14], id="a batch replayed"),
        pytest.param(LOG.entries[:7] + LOG.entries[11:], id="a stream's first batch dropped"),
        pytest.param(LOG.entries[:12], id="cut within a batch"),
        pytest.param(LOG.entries[:20] + LOG.entries[22:], id="openings lacking"),
    ],
)
@pytest.mark.parametrize("mended", [False, True])
def test_tampering_gives_the_serial_finding(entries: list[bytes], mended: bool) -> None:
    """Faults between ranges, which no worker can see, are found as well as those within."""
    if mended:
        entries = relink(entries).entries
    data = export_of(LOG.checkpoint(), entries)
    serial = _outcome(lambda: verify(data, LOG.trust))
    assert isinstance(serial, tuple)
    for ahead in (0, 2, 50):
        assert serial == _outcome(lambda ahead=ahead: _parallel(data, LOG.trust, ahead=ahead))  # type: ignore[misc]  # a default binds


def test_faults_in_two_ranges() -> None:
    """The first fault of the log is reported, whichever worker is done first."""
    forge = _log()
    forge.add("runner", numbered(0), signer=ROOT)
    for _ in range(3):
        forge.add("runner", numbered(1))
    forge.add("trainer", minimal_event("verdict_issued"))
    serial = _outcome(forge.verify)
    assert ("V3", "BAD_BATCH_SIGNATURE") == serial[:2]  # type: ignore[index]  # a finding
    assert serial == _outcome(lambda: _parallel(forge.export(), forge.trust))


def test_a_clock_that_goes_back_between_ranges() -> None:
    """Time is compared across ranges too."""
    forge = _log()
    forge.add("runner", numbered(0), recorded_at=forge.recorded_at - 5_000_000)
    for _ in range(3):
        forge.add("runner", numbered(1))
    serial = _outcome(forge.verify)
    assert ("V2", "BAD_TIME") == serial[:2]  # type: ignore[index]  # a finding
    assert serial == _outcome(lambda: _parallel(forge.export(), forge.trust))


def test_a_newer_type_within_a_range() -> None:
    """Unknown types are counted as the serial verifier counts them."""
    forge = _log()
    newer = b"\x0a\x01x\xe2\x12\x00"
    for _ in range(3):
        forge.add("runner", numbered(1), newer)
    serial = _outcome(forge.verify)
    assert "NEWER_EVENT_TYPE" == serial[0]  # type: ignore[index]  # cannot tell
    assert serial == _outcome(lambda: _parallel(forge.export(), forge.trust))


def test_a_worker_that_dies_is_not_hidden() -> None:
    """What the executor raises reaches the caller."""

    class Dying(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            task: Future[Any] = Future()
            task.set_exception(RuntimeError("worker died"))
            return task

    with pytest.raises(RuntimeError, match="worker died"):
        _parallel(LOG.export(), LOG.trust, executor=Dying())


@pytest.mark.parametrize("run", [b"", b"\x00\x01x", bytes(60), b"\xff" * 200])
def test_what_is_no_range_is_not_clean(run: bytes) -> None:
    """A worker answers "not clean", and raises nothing, for any bytes."""
    assert None is judge_range(LOG.trust, LOG.verify().keys, 3, run)
