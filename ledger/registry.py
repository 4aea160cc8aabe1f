"""What operators published, and what of it is in force (checks.md sections 1 and 4).

Rules:
1. In force is the latest publication or change for the segment, else for `*`; where none exists, nothing is.
2. A publication in parts is in force from its last part on; a missing part means that it never was.
3. Content is found by digest: the first complete publication of a digest holds its content for ever.
4. Everything is asked *as of* a log size, so that a verdict can be replayed on its own prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from ledger.fact import Fact, Suspects
from ledger.v1 import operator_pb2, options_pb2

__all__ = ["Publication", "Registry"]

_ENVIRONMENT: Final = "environment"


@dataclass(frozen=True, slots=True)
class Publication:
    """One complete publication: its digest, and the entries that carry it in order of their parts."""

    index: int  # of its last part in the log
    digest: bytes
    scope: options_pb2.Scope
    facts: tuple[Fact, ...]

    @property
    def body(self) -> Any:
        """The message of its first part."""
        return self.facts[0].body


def _environment_kind(target: int) -> str:
    """The kind under which an environment target is kept."""
    return f"{_ENVIRONMENT}/{target}"


@dataclass(slots=True)
class Registry:
    """Owned by the fold that feeds it; everybody else only asks."""

    suspects: Suspects
    _by_scope: dict[tuple[str, str, str], list[Publication]] = field(default_factory=dict)
    _by_digest: dict[tuple[str, bytes], list[Publication]] = field(default_factory=dict)
    _parts: dict[tuple[str, bytes, str, str, int], dict[int, Fact]] = field(default_factory=dict)
    _workflows: dict[str, list[Fact]] = field(default_factory=dict)

    # --- feeding ---

    def add(self, fact: Fact, digest_of_policy: bytes | None = None) -> None:
        """Takes an operator's publication. A policy's digest is handed in, since hashing is the fold's."""
        body = fact.body
        match fact.name:
            case "workflow_declared":
                self._workflows.setdefault(body.workflow, []).append(fact)
            case "policy_published" if digest_of_policy is not None:
                self._publish("policy", digest_of_policy, body.scope, (fact,))
            case "evaluator_published":
                self._publish("evaluator", body.digest, body.scope, (fact,))
            case "tool_contract_published":
                self._publish("tool_contract", body.digest, body.scope, (fact,))
            case "environment_changed":
                self._publish(_environment_kind(body.target), body.new_digest, body.scope, (fact,))
            case "snapshot_published":
                holdout = body.purpose == operator_pb2.SNAPSHOT_PURPOSE_HOLDOUT
                self._part("holdout" if holdout else "train", fact)
            case "protected_set_published":
                self._part("protected_set", fact)

    def _part(self, kind: str, fact: Fact) -> None:
        body = fact.body
        # Parts of another number of parts are another publication: they neither complete nor block this one.
        key = (kind, body.digest, body.scope.workflow, body.scope.segment, body.part.of)
        parts = self._parts.setdefault(key, {})
        parts.setdefault(body.part.number, fact)
        if len(parts) == body.part.of:
            facts = tuple(parts[number] for number in sorted(parts))
            del self._parts[key]
            self._publish(kind, body.digest, body.scope, facts)

    def _publish(self, kind: str, digest: bytes, scope: options_pb2.Scope, facts: tuple[Fact, ...]) -> None:
        publication = Publication(max(fact.index for fact in facts), digest, scope, facts)
        self._by_scope.setdefault((kind, scope.workflow, scope.segment), []).append(publication)
        self._by_digest.setdefault((kind, digest), []).append(publication)

    # --- asking ---

    def _standing(self, publications: Iterable[Publication], size: int) -> Iterator[Publication]:
        for publication in publications:
            if publication.index < size and not any(
                self.suspects.hold(fact, size) for fact in publication.facts
            ):
                yield publication

    def in_force(self, kind: str, scope: options_pb2.Scope, size: int) -> Publication | None:
        """The publication of a kind in force for a scope, as of a log of `size` entries."""
        for segment in (scope.segment, "*"):
            published = self._by_scope.get((kind, scope.workflow, segment), [])
            found = next(self._standing(reversed(published), size), None)
            if found is not None:
                return found
        return None

    def environment_in_force(self, target: int, scope: options_pb2.Scope, size: int) -> bytes | None:
        """The digest in force of an environment target; None where nobody said."""
        found = self.in_force(_environment_kind(target), scope, size)
        return None if found is None else found.digest

    def by_digest(self, kind: str, digest: bytes, size: int) -> Publication | None:
        """The first complete publication of a digest, as of a log of `size` entries."""
        return next(self._standing(self._by_digest.get((kind, digest), []), size), None)

    def workflow(self, workflow: str, version: int, size: int) -> Fact | None:
        """The first declaration of a workflow's version."""
        declared = self._workflows.get(workflow, [])
        return next((f for f in self._counting(declared, size) if f.body.version == version), None)

    def declarations(self) -> Iterator[Fact]:
        """Every WorkflowDeclared, those of a workflow in the order of the log."""
        return chain.from_iterable(self._workflows.values())

    def workflow_in_force(self, workflow: str, size: int) -> Fact | None:
        """The latest declaration of a workflow."""
        declared = reversed(self._workflows.get(workflow, []))
        return next(self._counting(declared, size), None)

    def _counting(self, facts: Iterable[Fact], size: int) -> Iterator[Fact]:
        for fact in facts:
            if fact.index < size and not self.suspects.hold(fact, size):
                yield fact
