"""What is in the log and does not count, in words: for people who ask why their evidence changes nothing.

Rules:
1. The codes are the receipt's; here they only get words. A code without words is shown as it is.
2. A window or an evaluation that does not count is named; claims by the hundred are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from clients.cli.show import counted

if TYPE_CHECKING:
    from clients.cli.desk import Desk

__all__ = ["ANOMALIES", "Uncounted", "erased_lines", "find_uncounted", "uncounted_lines", "words_of"]

ANOMALIES: Final[Mapping[str, str]] = {
    "REPEATED": "said before, the same way",
    "CONFLICT": "said before, differently",
    "NOT_THE_PROPOSER": "by another trainer than the one that proposed the update",
    "NOT_PROPOSED": "of an update that nobody proposed",
    "OUTSIDE_WINDOW": "enqueued before the freeze, or after training ended",
    "AFTER_END": "after its rollout had ended",
    "LATE_OR_ORPHAN": "late, or of a rollout or attempt that was not open",
    "NOT_PINNED": "by a principal that the freeze does not name for it",
    "EVALUATION_NOT_CHOSEN": "not the first one since the freeze that names its pins; later ones never count",
    "OTHER_SUBJECT": "of another candidate than this update's",
    "BEFORE_FREEZE": "started before the freeze whose pins hold now",
    "LIVE_WINDOW_VOID": "the verdict that it rests on did not stand when it started",
    "BEFORE_ROLLBACK": "started before the promotion was rolled back",
}

# Codes behind which a window or an evaluation may stand that somebody waits for.
_NAMED: Final = frozenset(
    {"LIVE_WINDOW_VOID", "BEFORE_FREEZE", "BEFORE_ROLLBACK", "OTHER_SUBJECT", "NOT_PINNED"}
    | {"EVALUATION_NOT_CHOSEN"}
)
_MANY: Final = 40  # entries looked up; the rest is counted
_SHOWN: Final = 10  # erased contents shown to people; JSON has them all


def words_of(code: str) -> str:
    """The code and what it says."""
    return f"{code} ({ANOMALIES[code]})" if code in ANOMALIES else code


def erased_lines(receipt: Mapping[str, Any]) -> Iterator[str]:
    """Content that claims of the update name and that is gone. The claims stand, and count as before."""
    erased = receipt["during"]["erased_content"]
    for gone in erased[:_SHOWN]:
        yield f"  {gone['rollout']}: content {gone['digest']} ERASED by the entry at index {gone['erased']}"
    if (more := len(erased) - _SHOWN) > 0:
        yield f"  and {more} more ERASED (--json)"


@dataclass(frozen=True, slots=True)
class Uncounted:
    """A window or an evaluation that does not count, and why."""

    what: str
    code: str
    why: str
    indexes: list[int]

    def document(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)


async def find_uncounted(desk: Desk, receipt: Mapping[str, Any]) -> list[Uncounted]:
    """Looks up what the receipt's anomalies stand on. Raises AssayError as the ledger's client does."""
    from ledger.entry import decode_entry
    from ledger.fold import read_event

    found: dict[tuple[str, str], Uncounted] = {}
    for anomaly in [item for item in receipt["anomalies"] if item["code"] in _NAMED][:_MANY]:
        index, code = anomaly["index"], anomaly["code"]
        async for _, data in desk.ledger.read(index, index + 1):
            event, name = read_event(decode_entry(data).event)
            if name is None:
                continue
            body = getattr(event, name)
            key = (_what(name, body), code)
            why = _why(code, body, receipt)
            found.setdefault(key, Uncounted(*key, why, [])).indexes.append(index)
    return list(found.values())


def _what(name: str, body: Any) -> str:
    fields = body.DESCRIPTOR.fields_by_name
    for field in ("window", "evaluation"):
        if field in fields:
            return f"{field} {getattr(body, field)}"
    return name.replace("_", " ")


def _why(code: str, body: Any, receipt: Mapping[str, Any]) -> str:
    if code != "LIVE_WINDOW_VOID" or "live" not in body.DESCRIPTOR.fields_by_name:
        return ANOMALIES[code]
    named = body.live.verdict_index
    verdict = next((v for v in receipt["after"]["verdicts"] if v["index"] == named), None)
    if verdict is None:
        return f"it names index {named}, where no verdict on this update stands"
    if verdict["verdict"] == "HOLD":
        return f"it rests on the HOLD at index {named}"
    return f"the verdict at index {named} that it rests on did not stand when it started"


def uncounted_lines(
    found: Iterable[Uncounted], anomalies: Iterable[Mapping[str, Any]], update: str
) -> Iterator[str]:
    """One line for each window and evaluation, one for all other claims that do not count."""
    shown: set[int] = set()
    for item in found:
        shown.update(item.indexes)
        at = (
            f"index {item.indexes[0]}"
            if len(item.indexes) == 1
            else counted(len(item.indexes), "entry", "entries")
        )
        yield f"  {item.what}: {item.code}, {item.why} ({at})"
    rest = Counter(item["code"] for item in anomalies if item["index"] not in shown)
    if rest:
        codes = ", ".join(f"{count} {words_of(code)}" for code, count in sorted(rest.items()))
        other = "other claim" if shown else "claim"
        yield f"  {counted(rest.total(), other)}: {codes}; assay receipt {update}"
