"""Which keys an event touches, and on which it rests: "nothing slips in between" (law 14).

Rules:
1. `touches` is read from the event alone, so server, gate and auditor name the same keys.
2. Runner events, rewards and erasures touch no key: however many stream in, they abort nothing. (They cannot
   change a verdict either: after the data cut-off they do not count, and no check reads a blob.)
3. A judgment (verdict, pointer move, LIVE window) rests on everything that could change it. The ledger
   applies that condition whether or not the author sends it; an auditor applies it again.
4. A baseline rests on there never having been one (law 13).
5. Judgments stand alone in their batch, so that a verdict and its cause never arrive together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ledger.v1 import canary_pb2, event_pb2, options_pb2

__all__ = [
    "AUTHORITY",
    "STANDS_ALONE",
    "TOUCHES_NOTHING",
    "Condition",
    "baseline_key",
    "judgment_keys",
    "pointer_key",
    "rests_on",
    "scope_key",
    "touches",
    "update_key",
    "workflow_key",
]

AUTHORITY: Final = "authority"

STANDS_ALONE: Final = frozenset(
    {"ledger_opened", "verdict_issued", "default_promoted", "default_rolled_back"}
)


@dataclass(frozen=True, slots=True)
class Condition:
    """No entry at or after `since` touched any of `keys`, and recorded_at <= `not_after` (microseconds)."""

    keys: tuple[str, ...]
    since: int
    not_after: int | None


def update_key(update: str) -> str:
    """`update/<id>`"""
    return f"update/{update}"


def scope_key(scope: options_pb2.Scope) -> str:
    """`scope/<workflow>/<segment>`, the segment `*` included."""
    return f"scope/{scope.workflow}/{scope.segment}"


def workflow_key(workflow: str) -> str:
    """`scope/<workflow>/*`: what is published for all segments, and the workflow itself."""
    return f"scope/{workflow}/*"


def pointer_key(resource: str, scope: options_pb2.Scope) -> str:
    """`pointer/<resource>/<workflow>/<segment>`; unambiguous, since parts of a scope have no slash."""
    return f"pointer/{resource}/{scope.workflow}/{scope.segment}"


def baseline_key(resource: str, scope: options_pb2.Scope) -> str:
    """`baseline/<resource>/<workflow>/<segment>`: touched once, by the pointer's first value."""
    return f"baseline/{resource}/{scope.workflow}/{scope.segment}"


_Keys: TypeAlias = Callable[[Any], tuple[str, ...]]


def _none(_: Any) -> tuple[str, ...]:
    return ()


def _authority(_: Any) -> tuple[str, ...]:
    return (AUTHORITY,)


def _update(body: Any) -> tuple[str, ...]:
    return (update_key(body.update),)


def _scope(body: Any) -> tuple[str, ...]:
    return (scope_key(body.scope),)


def _workflow(body: Any) -> tuple[str, ...]:
    return (workflow_key(body.workflow),)


def _pointer(body: Any) -> tuple[str, ...]:
    return (pointer_key(body.resource, body.scope),)


def _baseline(body: Any) -> tuple[str, ...]:
    return (pointer_key(body.resource, body.scope), baseline_key(body.resource, body.scope))


def _pointer_and_update(body: Any) -> tuple[str, ...]:
    return (pointer_key(body.resource, body.scope), update_key(body.update))


_TOUCHES: Final[dict[str, _Keys]] = {
    "ledger_opened": _authority,
    "key_granted": _authority,
    "key_revoked": _authority,
    "ledger_key_rotated": _authority,
    "workflow_declared": _workflow,
    "policy_published": _scope,
    "evaluator_published": _scope,
    "snapshot_published": _scope,
    "protected_set_published": _scope,
    "tool_contract_published": _scope,
    "environment_changed": _scope,
    "baseline_adopted": _baseline,
    "rollback_requested": _pointer,
    "resume_requested": _update,
    "blob_erased": _none,
    "rollout_enqueued": _none,
    "attempt_started": _none,
    "span_recorded": _none,
    "attempt_ended": _none,
    "rollout_ended": _none,
    "reward_recorded": _none,
    "evaluation_recorded": _update,
    "evaluation_closed": _update,
    "update_proposed": _update,
    "training_started": _update,
    "training_progressed": _update,
    "training_ended": _update,
    "candidate_registered": _update,
    "canary_started": _update,
    "canary_task_recorded": _update,
    "canary_ended": _update,
    "rollback_rehearsed": _update,
    "approval_granted": _update,
    "approval_withdrawn": _update,
    "approver_rollback_requested": _pointer,
    "update_frozen": _update,
    "update_refused": _update,
    "verdict_issued": _update,
    "default_promoted": _pointer_and_update,
    "default_rolled_back": _pointer_and_update,
    "training_paused": _update,
    "training_resumed": _update,
}


#: Bodies that touch no key, so that whoever has a batch of nothing else need not look at each event.
TOUCHES_NOTHING: Final = frozenset(body for body, keys in _TOUCHES.items() if keys is _none)


def touches(event: event_pb2.Event) -> tuple[str, ...]:
    """The keys that the event touches; none for a type unknown here."""
    body = event.WhichOneof("body")
    return () if body is None else _TOUCHES[body](getattr(event, body))


def judgment_keys(update: str, resource: str, scope: options_pb2.Scope) -> tuple[str, ...]:
    """Everything that a judgment of this update in this scope rests on."""
    return (
        pointer_key(resource, scope),
        update_key(update),
        scope_key(scope),
        workflow_key(scope.workflow),
        AUTHORITY,
    )


def rests_on(event: event_pb2.Event) -> Condition | None:
    """The condition that a judgment carries in itself; None for every other event."""
    body = event.WhichOneof("body")
    if body == "baseline_adopted":
        adopted = event.baseline_adopted
        return Condition((baseline_key(adopted.resource, adopted.scope),), 0, None)
    if body == "verdict_issued":
        verdict = event.verdict_issued
        not_after = verdict.not_after if verdict.HasField("not_after") else None
        keys = judgment_keys(verdict.update, verdict.resource, verdict.scope)
        return Condition(keys, verdict.log_size, not_after)
    if body == "default_promoted":
        promoted = event.default_promoted
        keys = judgment_keys(promoted.update, promoted.resource, promoted.scope)
        return Condition(keys, promoted.verdict_index + 1, promoted.not_after)
    if body == "canary_started" and event.canary_started.kind == canary_pb2.WINDOW_KIND_LIVE:
        live = event.canary_started.live
        keys = judgment_keys(event.canary_started.update, live.resource, live.scope)
        return Condition(keys, live.seen_size, live.not_after)
    return None
