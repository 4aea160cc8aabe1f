"""Evaluation results in JSON Lines as events: a line is one score of one trial of one case.

Rules:
1. Every line counts once. A line that cannot be read, or says again what a line before it said (case, trial,
   subject), refuses the file; the error names the line.
2. Absence is absence (law 9): a score that is null or not there becomes `unscorable`, with the line as the
   reason. NaN and infinities are refused. No line is left out for what else it says: an attempt that hit a
   limit and scored 0 has a score of 0.
3. A number is the double that it spells. Nothing is averaged here.
4. Digests and names come from the caller; ids come from the source's digest and the position in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Protocol, TypeVar

from clients.ids import uuid8
from clients.importers.source import Imported, read_number
from clients.strict_json import parse_json
from ledger.admission import MAX_SCORES
from ledger.errors import FormatError
from ledger.v1 import event_pb2, judge_pb2, operator_pb2, options_pb2

__all__ = [
    "Columns",
    "Evaluation",
    "Rows",
    "Score",
    "evaluation_events",
    "protected_set_events",
    "read_rows",
    "snapshot_events",
]

_MAX_PART_BYTES: Final = 55_000  # of 60,000: room for the event's other fields
_MAX_CASES: Final = 500
# FORMAT_ID and FORMAT_NAME of options.proto; told here, where the line is known.
_ID: Final = re.compile(r"[!-~]{1,128}")
_NAME: Final = re.compile(r"[!-*,-~]{1,128}")
_ITEM_OVERHEAD: Final = 8  # tag and length of an item, with room to spare
_SUBJECT_NAMES: Final = {judge_pb2.SUBJECT_PARENT: "parent", judge_pb2.SUBJECT_CANDIDATE: "candidate"}


class _Sized(Protocol):
    def ByteSize(self) -> int: ...  # noqa: N802 - protobuf's name


_M = TypeVar("_M", bound=_Sized)


@dataclass(frozen=True, slots=True)
class Columns:
    """The keys under which a line holds what is read. `family` None: the lines name no family."""

    case: str = "case"
    subject: str = "subject"
    trial: str = "trial"
    score: str = "score"
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """One line, from 1. `value` None: the line has no score."""

    line: int
    case: str
    family: str | None
    subject: judge_pb2.Subject.ValueType
    trial: int
    value: float | None


@dataclass(frozen=True, slots=True)
class Rows:
    """A file's scores, in its order, and its SHA-256."""

    source: bytes
    scores: tuple[Score, ...]

    def families(self) -> dict[str, str | None]:
        """The family of each case, in the order of their first lines."""
        return {score.case: score.family for score in self.scores}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the file does not say. Digests of 32 bytes; `evaluations` and `subject_digests` by subject."""

    update: str
    evaluations: Mapping[judge_pb2.Subject.ValueType, str]
    evaluator_digest: bytes
    snapshot_digest: bytes
    harness_digest: bytes
    subject_digests: Mapping[judge_pb2.Subject.ValueType, bytes]


def read_rows(data: bytes, columns: Columns, subjects: Mapping[str, judge_pb2.Subject.ValueType]) -> Rows:
    """The scores of a file; `subjects` maps the subject column's values.

    Raises FormatError, naming the line: BAD_JSON, BAD_LINE, BAD_NUMBER, NONFINITE_VALUE, DUPLICATE_SCORE,
    TWO_FAMILIES (a case that stood in another family before); EMPTY_SOURCE for a file without lines.
    """
    scores: list[Score] = []
    said: dict[tuple[str, judge_pb2.Subject.ValueType, int], int] = {}
    families: dict[str, tuple[str | None, int]] = {}
    for number, line in enumerate(_lines(data), start=1):
        score = _read_line(line, number, columns, subjects)
        first = said.setdefault((score.case, score.subject, score.trial), number)
        if first != number:
            raise FormatError(
                "DUPLICATE_SCORE",
                f"line {number}: expected a new score, got {score.case} trial {score.trial} "
                f"{_SUBJECT_NAMES[score.subject]} of line {first} again",
            )
        family, where = families.setdefault(score.case, (score.family, number))
        if family != score.family:
            raise FormatError(
                "TWO_FAMILIES",
                f"line {number}: expected family {family} as in line {where}, got {score.family}",
            )
        scores.append(score)
    if not scores:
        raise FormatError("EMPTY_SOURCE", "expected one line or more, got none")
    return Rows(sha256(data).digest(), tuple(scores))


def evaluation_events(rows: Rows, evaluation: Evaluation) -> Iterator[Imported]:
    """Each subject's scores in parts of at most 500, then its EvaluationClosed; the parent's first.

    Raises FormatError NO_SCORES for a subject named in `evaluation` without a line in the file, and
    UNKNOWN_SUBJECT for one in the file that `evaluation` does not name.
    """
    named = evaluation.evaluations.keys() & evaluation.subject_digests.keys()
    if unknown := {score.subject for score in rows.scores} - named:
        got = ", ".join(sorted(_SUBJECT_NAMES[subject] for subject in unknown))
        raise FormatError(
            "UNKNOWN_SUBJECT", f"expected an evaluation id and a digest for each subject, not for {got}"
        )
    for subject in sorted(named):
        scores = [_case_score(score) for score in rows.scores if score.subject == subject]
        if not scores:
            raise FormatError("NO_SCORES", f"expected lines for {_SUBJECT_NAMES[subject]}, got none")
        yield from _one_evaluation(rows.source, evaluation, subject, scores)


def snapshot_events(
    rows: Rows, scope: options_pb2.Scope, digest: bytes, purpose: operator_pb2.SnapshotPurpose.ValueType
) -> Iterator[Imported]:
    """The file's cases, with their families, as the parts of one SnapshotPublished.

    Ids stand as in the file: for a holdout that must stay unknown, they have to be random there.
    """
    cases = [operator_pb2.Case(id=case, family=family) for case, family in rows.families().items()]
    parts = _parts(cases, _MAX_CASES)
    for number, part in enumerate(parts, start=1):
        body = operator_pb2.SnapshotPublished(
            scope=scope, digest=digest, purpose=purpose, part=_part(number, parts), cases=part
        )
        at = f"snapshot/{digest.hex()}/{number}"
        yield _imported(options_pb2.ROLE_OPERATOR, rows.source, at, snapshot_published=body)


def protected_set_events(
    rows: Rows, scope: options_pb2.Scope, digest: bytes, snapshot_digest: bytes, budgets: Mapping[str, int]
) -> Iterator[Imported]:
    """The cases of the families in `budgets` (family -> cases that may regress) as a ProtectedSetPublished.

    Raises FormatError: NO_PROTECTED_CASE for no family, UNKNOWN_FAMILY for one without a case in the file.
    """
    families = rows.families()
    if not budgets:
        raise FormatError("NO_PROTECTED_CASE", "expected one family or more, got none")
    if unknown := sorted(budgets.keys() - set(families.values())):
        raise FormatError("UNKNOWN_FAMILY", f"expected families of the file, got {', '.join(unknown)}"[:500])
    # One item a case; the items of a part are then joined by family, so that a family may span parts.
    cases = [
        operator_pb2.ProtectedFamily(name=name, case_ids=[case], regression_budget=budget)
        for name, budget in budgets.items()
        for case, family in families.items()
        if family == name
    ]
    parts = _parts(cases, _MAX_CASES)
    for number, part in enumerate(parts, start=1):
        body = operator_pb2.ProtectedSetPublished(
            scope=scope,
            digest=digest,
            snapshot_digest=snapshot_digest,
            part=_part(number, parts),
            families=_joined(part),
        )
        at = f"protected/{digest.hex()}/{number}"
        yield _imported(options_pb2.ROLE_OPERATOR, rows.source, at, protected_set_published=body)


def _lines(data: bytes) -> Iterator[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            "BAD_JSON", f"line {line}: expected UTF-8, got byte {data[error.start]:#04x}"
        ) from error
    # Not splitlines: JSON strings may hold U+2028 and its like.
    yield from text.removesuffix("\n").split("\n") if text else ()


def _read_line(
    line: str, number: int, columns: Columns, subjects: Mapping[str, judge_pb2.Subject.ValueType]
) -> Score:
    where = f"line {number}"
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise FormatError("BAD_LINE", f"{where}: expected an object, got {type(row).__name__}")
    subject = _string(row, columns.subject, where)
    if subject not in subjects:
        raise FormatError(
            "BAD_LINE", f"{where}: expected a subject among {', '.join(subjects)}, got {subject!r}"[:500]
        )
    trial = row.get(columns.trial)
    if type(trial) is not int or not 0 <= trial < 2**32:
        raise FormatError(
            "BAD_LINE", f"{where}: expected {columns.trial} from 0 to 2^32-1, got {trial!r}"[:300]
        )
    score = row.get(columns.score)
    return Score(
        number,
        _string(row, columns.case, where),
        None if columns.family is None else _string(row, columns.family, where, _NAME),
        subjects[subject],
        trial,
        None if score is None else read_number(score, f"{where}: {columns.score}"),
    )


def _string(row: Mapping[str, Any], column: str, where: str, form: re.Pattern[str] = _ID) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise FormatError(
            "BAD_LINE", f"{where}: expected {column} of the form {form.pattern}, got {value!r}"[:300]
        )
    return value


def _case_score(score: Score) -> judge_pb2.CaseScore:
    if score.value is None:
        reason = f"score absent in source line {score.line}"
        return judge_pb2.CaseScore(case_id=score.case, trial=score.trial, unscorable=reason)
    return judge_pb2.CaseScore(case_id=score.case, trial=score.trial, score=score.value)


def _one_evaluation(
    source: bytes,
    evaluation: Evaluation,
    subject: judge_pb2.Subject.ValueType,
    scores: Sequence[judge_pb2.CaseScore],
) -> Iterator[Imported]:
    name = evaluation.evaluations[subject]
    parts = _parts(scores, MAX_SCORES)
    for number, part in enumerate(parts, start=1):
        body = judge_pb2.EvaluationRecorded(
            update=evaluation.update,
            evaluation=name,
            evaluator_digest=evaluation.evaluator_digest,
            snapshot_digest=evaluation.snapshot_digest,
            harness_digest=evaluation.harness_digest,
            subject=subject,
            subject_digest=evaluation.subject_digests[subject],
            part=_part(number, parts),
            scores=part,
        )
        at = f"evaluation/{evaluation.update}/{name}/{number}"
        yield _imported(options_pb2.ROLE_JUDGE, source, at, evaluation_recorded=body)
    closed = judge_pb2.EvaluationClosed(
        update=evaluation.update, evaluation=name, parts=len(parts), results=len(scores)
    )
    at = f"evaluation/{evaluation.update}/{name}/closed"
    yield _imported(options_pb2.ROLE_JUDGE, source, at, evaluation_closed=closed)


def _parts(items: Iterable[_M], limit: int) -> list[list[_M]]:
    """`items` cut so that each part has at most `limit` of them and fits an event."""
    parts: list[list[_M]] = []
    room = 0
    for item in items:
        size = item.ByteSize() + _ITEM_OVERHEAD
        if not parts or len(parts[-1]) == limit or size > room:
            parts.append([])
            room = _MAX_PART_BYTES
        parts[-1].append(item)
        room -= size
    return parts


def _part(number: int, parts: Sequence[object]) -> options_pb2.Part:
    return options_pb2.Part(number=number, of=len(parts))


def _joined(cases: Iterable[operator_pb2.ProtectedFamily]) -> list[operator_pb2.ProtectedFamily]:
    families: dict[str, operator_pb2.ProtectedFamily] = {}
    for case in cases:
        if case.name in families:
            families[case.name].case_ids.extend(case.case_ids)
        else:
            families[case.name] = case
    return [*families.values()]


def _imported(role: options_pb2.Role.ValueType, source: bytes, at: str, **body: Any) -> Imported:
    return Imported(role, event_pb2.Event(event_id=uuid8(source, at), **body))
