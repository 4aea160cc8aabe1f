"""Content of rollouts: which events name it by digest, and which must not carry it (content rule BLOB).

Rules:
1. What may have to go one day never lands in the log: a span that carries its bytes, of a rollout under a
   workflow that was declared with rule BLOB, is refused before it is placed.
2. Of a workflow's version the first declaration counts, as it was placed: a key that became suspect since
   opens nothing. A rollout stands under BLOB once one of its RolloutEnqueued names such a version, whichever
   of them came first: nobody takes content into the log by claiming somebody's rollout for another workflow.
3. A batch is looked at whole: whether a span stands in it before or after its RolloutEnqueued is the same.
   A span whose rollout nobody enqueued yet has no workflow, so no rule: it is recorded as any claim is.
4. A RolloutEnqueued carries no content: its input is a digest or a blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ledger.errors import RefusedError
from ledger.v1 import event_pb2, operator_pb2, options_pb2, runner_pb2

__all__ = ["ContentRules", "Version", "named_blob"]

Version: TypeAlias = tuple[str, int]  # workflow and its version


def named_blob(event: event_pb2.Event) -> tuple[str, options_pb2.Blob] | None:
    """The rollout and the blob that an event names; None where it names none."""
    name = event.WhichOneof("body")
    if name == "span_recorded" and event.span_recorded.WhichOneof("content") == "blob":
        return event.span_recorded.rollout, event.span_recorded.blob
    if name == "rollout_enqueued" and event.rollout_enqueued.WhichOneof("input") == "input_blob":
        return event.rollout_enqueued.rollout, event.rollout_enqueued.input_blob
    return None


@dataclass(slots=True)
class ContentRules:
    """What is declared, and which rollouts stand under BLOB. Owned by whoever takes entries.

    `below`: what held before these entries, which is read and never changed. In memory stay the declared
    versions, and of each rollout under BLOB its id: about 130 bytes.
    """

    below: ContentRules | None = None
    declared: dict[Version, Version | None] = field(default_factory=dict)  # itself if for BLOB: one object
    rollouts: dict[str, Version] = field(default_factory=dict)  # under BLOB
    needed: bool = False  # a version is declared for BLOB: where there is none, no event need be looked at

    def over(self) -> ContentRules:
        """Rules that go on from these and leave them as they are."""
        return ContentRules(self, needed=self.needed)

    def absorb(self, above: ContentRules) -> None:
        """Makes rules that went `over` these a part of them."""
        self.declared.update(above.declared)
        self.rollouts.update(above.rollouts)
        self.needed = above.needed

    def declare(self, body: operator_pb2.WorkflowDeclared) -> None:
        """Takes a declaration; the first one of a version counts."""
        version = (body.workflow, body.version)
        if not any(version in rules.declared for rules in self._levels()):
            asked = body.content_rule == operator_pb2.CONTENT_RULE_BLOB
            self.declared[version] = version if asked else None
            self.needed = self.needed or asked

    def asked_by(self, body: runner_pb2.RolloutEnqueued) -> Version | None:
        """The version under which a RolloutEnqueued places its rollout, if that is declared for BLOB."""
        version = (body.workflow, body.workflow_version)
        return next((found for rules in self._levels() if (found := rules.declared.get(version))), None)

    def take(self, events: Iterable[event_pb2.Event]) -> None:
        """Takes the events of a batch: declarations, and rollouts under BLOB."""
        for event in events:
            name = event.WhichOneof("body")
            if name == "workflow_declared":
                self.declare(event.workflow_declared)
            elif name == "rollout_enqueued" and self.needed:
                body = event.rollout_enqueued
                if (version := self.asked_by(body)) is not None and self._version(body.rollout) is None:
                    self.rollouts[body.rollout] = version

    def check(self, events: Iterable[event_pb2.Event]) -> None:
        """Looks at the events of a batch that was taken. Raises RefusedError INLINE_NOT_ALLOWED."""
        for position, event in enumerate(events):
            if event.HasField("span_recorded"):
                span = event.span_recorded
                version = self._version(span.rollout)
                if version is not None and span.HasField("otlp_span"):
                    raise RefusedError(
                        "INLINE_NOT_ALLOWED",
                        f"events[{position}].span_recorded: expected a blob, as workflow {version[0]} "
                        f"version {version[1]} declares, got {len(span.otlp_span)} bytes inline; put it with "
                        "`assay blob put` and name its digest",
                    )

    def _version(self, rollout: str) -> Version | None:
        rules: ContentRules | None = self
        while rules is not None:
            if (found := rules.rollouts.get(rollout)) is not None:
                return found
            rules = rules.below
        return None

    def _levels(self) -> Iterator[ContentRules]:
        rules: ContentRules | None = self
        while rules is not None:
            yield rules
            rules = rules.below
