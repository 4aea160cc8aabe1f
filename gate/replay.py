"""Replay: did everybody with a power keep to the rules? (design section 9)

R1  every pointer move satisfies checks.md at its own index
R2  every verdict replays: same states, reasons, counts, digests
R3  every freeze, pause and resume had its authority

A fold over a log that `ledger.verify` has verified; it reads nothing else. The first failure names index,
step, expected and got. Rules unknown to this release are neither true nor false: CANNOT TELL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gate.freeze import derive_freeze
from gate.gather import gather
from gate.judge import RulesJudge
from ledger.claims import UNREPLAYABLE, Void
from ledger.errors import AssayError, CannotTellError, VerificationError
from ledger.export import BinaryReader
from ledger.head import Freshness
from ledger.merkle import Frontier
from ledger.receipt import Receipts
from ledger.trust import Grant, TrustDocument
from ledger.v1 import event_pb2, gate_pb2, options_pb2
from ledger.verify import Verified, verify_export

__all__ = ["Replay", "Replayed", "replay_export"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay went through, and what it could not tell."""

    verdicts: int
    moves: int
    freezes: int
    unreplayable: tuple[Void, ...]


class Replay:
    """The fold of an auditor: receipts, with every power checked as it is used."""

    def __init__(self, root_at: Callable[[int], bytes]) -> None:
        self.receipts = Receipts(RulesJudge(), root_at)
        self.faults: list[Void] = []
        self._operators: set[str] = set()  # their keys in force
        self._counts = {"verdict_issued": 0, "update_frozen": 0, "moves": 0}

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the next entry."""
        name = event.WhichOneof("body")
        check = self._checks.get(name or "")
        if check is not None:
            check(self, index, event)
        self.receipts.apply(index, recorded_at, leaf, grant, event, alone)

    def _granted(self, index: int, event: event_pb2.Event) -> None:
        if event.key_granted.role == options_pb2.ROLE_OPERATOR:
            self._operators.add(event.key_granted.vkey)

    def _revoked(self, index: int, event: event_pb2.Event) -> None:
        self._operators.discard(event.key_revoked.vkey)

    def _is_operator(self, name: str) -> bool:
        return any(vkey.partition("+")[0] == name for vkey in self._operators)

    def _fault(self, index: int, reason: str, message: str, *, unknown: bool = False) -> None:
        self.faults.append(Void("R3", index, UNREPLAYABLE if unknown else reason, message))

    def _frozen(self, index: int, event: event_pb2.Event) -> None:
        self._counts["update_frozen"] += 1
        frozen: gate_pb2.UpdateFrozen = event.update_frozen
        pointer = (frozen.resource, frozen.scope.workflow, frozen.scope.segment)
        unknown = pointer in self.receipts.unknown_pointers
        try:
            expected = derive_freeze(
                self.receipts,
                frozen.update,
                frozen.requested_by,
                is_operator=self._is_operator(frozen.requested_by),
                redo=frozen.redo_checks,
                size=index,
            )
        except AssayError as error:
            unknown = unknown or isinstance(error, CannotTellError)
            message = f"expected a freeze that the log supports, got {error}"
            self._fault(index, "FREEZE_UNAUTHORISED", message, unknown=unknown)
            return
        if expected != frozen:
            wrong = [
                f.name
                for f in frozen.DESCRIPTOR.fields
                if getattr(expected, f.name) != getattr(frozen, f.name)
            ]
            message = f"expected the pins in force, got others: {', '.join(wrong)}"
            self._fault(index, "FREEZE_DIFFERS", message, unknown=unknown)

    def _paused(self, index: int, event: event_pb2.Event) -> None:
        evidence = gather(self.receipts, event.training_paused.update, options_pb2.STEP_CANARY, index)
        if not evidence.freezes or evidence.training_ended is not None:
            self._fault(
                index, "PAUSE_UNAUTHORISED", "expected an update that is frozen and training, got another"
            )

    def _resumed(self, index: int, event: event_pb2.Event) -> None:
        body = event.training_resumed
        evidence = gather(self.receipts, body.update, options_pb2.STEP_CANARY, index)
        pause, resume = evidence.pauses[-1] if evidence.pauses else (None, None)
        record = self.receipts.updates.get(body.update)
        requests = {fact.index for fact in record.of("resume_requested")} if record is not None else set()
        if (
            pause is None
            or resume is not None
            or not pause.index < body.request_index
            or body.request_index not in requests
        ):
            self._fault(
                index,
                "RESUME_UNAUTHORISED",
                f"expected a pause and a later ResumeRequested at index {body.request_index}, got none",
            )

    def _count(self, index: int, event: event_pb2.Event) -> None:
        name = event.WhichOneof("body")
        self._counts["verdict_issued" if name == "verdict_issued" else "moves"] += 1

    def all_faults(self) -> list[Void]:
        """Everything that somebody did without the right to, in order of the log."""
        found = [void for void in self.faults + self.receipts.voids if void.reason != UNREPLAYABLE]
        return sorted(found, key=lambda void: void.index)

    def result(self) -> Replayed:
        """Says what was replayed. Raises VerificationError for the first fault; `all_faults` has all."""
        faults = self.all_faults()
        if faults:
            first, more = faults[0], len(faults) - 1
            said = first.message if not more else f"{first.message} (and {more} more faults after it)"
            raise VerificationError(first.step, first.reason, said, index=first.index)
        voids = sorted(self.faults + self.receipts.voids, key=lambda void: void.index)
        unreplayable = tuple(void for void in voids if void.reason == UNREPLAYABLE)
        counts = self._counts
        return Replayed(counts["verdict_issued"], counts["moves"], counts["update_frozen"], unreplayable)

    _checks: Final[dict[str, Callable[[Any, int, event_pb2.Event], None]]] = {
        "key_granted": _granted,
        "key_revoked": _revoked,
        "update_frozen": _frozen,
        "training_paused": _paused,
        "training_resumed": _resumed,
        "verdict_issued": _count,
        "default_promoted": _count,
        "default_rolled_back": _count,
        "baseline_adopted": _count,
    }


# --- a whole export ----------------------------------------------------------------------------------------


class _VerdictSizes:
    """A fold that remembers at which log sizes verdicts were made."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the next entry."""
        if event.WhichOneof("body") == "verdict_issued":
            self.sizes.add(event.verdict_issued.log_size)


class _Rooted:
    """A fold around replay that keeps the log's root at the sizes that will be asked for, and no other."""

    def __init__(self, sizes: set[int]) -> None:
        self._sizes = sizes
        self._roots: dict[int, bytes] = {}
        self._tree = Frontier()
        self.replay = Replay(self._root_at)

    def _root_at(self, size: int) -> bytes:
        if size not in self._roots:
            raise _changed()
        return self._roots[size]

    def apply(
        self, index: int, recorded_at: int, leaf: bytes, grant: Grant, event: event_pb2.Event, alone: bool
    ) -> None:
        """Takes the next entry."""
        if index in self._sizes:
            self._roots[index] = self._tree.root()
        self._tree.append(leaf)
        self.replay.apply(index, recorded_at, leaf, grant, event, alone)


def _changed() -> VerificationError:
    return VerificationError("V5", "FILE_CHANGED", "expected the same file twice, got one that was changed")


def replay_export(
    open_export: Callable[[], BinaryReader],
    trust: TrustDocument,
    *,
    remembered: bytes | None = None,
    fresh: Freshness | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Verified, Replay]:
    """Verifies an export and replays every power that was used in it; ask the `Replay` for its `result`.

    The file is read twice, so that roots are kept only where a verdict names one: memory grows with updates
    and verdicts, not with entries. `open_export` opens it at its beginning; `progress` as `verify_export`'s.
    Raises VerificationError, CannotTellError, FormatError.
    """
    sizes = _VerdictSizes()
    verify = partial(verify_export, trust=trust, remembered=remembered, fresh=fresh, progress=progress)
    first = verify(open_export(), fold=sizes)
    rooted = _Rooted(sizes.sizes)
    second = verify(open_export(), fold=rooted)
    if first.root != second.root:
        raise _changed()
    return second, rooted.replay
