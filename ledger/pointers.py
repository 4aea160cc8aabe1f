"""Pointers: the approved default of each resource and scope, as a stack (checks.md section 5).

Rules:
1. The bottom of a stack is the operator's baseline, adopted once; above it stand promotions.
2. A rollback pops the top promotion, on an unused request that names it. It needs no fresh evidence.
3. Moves are judged once, at their own index, and stay. Every value can be asked for as of a log size.
4. Asking for the default never yields a candidate; where there is none the answer is None (law 13).
"""

from __future__ import annotations

from bisect import bisect_right

from ledger.claims import Move, PointerKey
from ledger.fact import Fact, Suspects
from ledger.v1 import gate_pb2, options_pb2

__all__ = ["Pointers", "pointer_of"]


def pointer_of(resource: str, scope: options_pb2.Scope) -> PointerKey:
    """(resource, workflow, segment)."""
    return (resource, scope.workflow, scope.segment)


class Pointers:
    """Owned by the fold that feeds it; everybody else only asks."""

    def __init__(self, suspects: Suspects) -> None:
        self._suspects = suspects
        self._history: dict[
            PointerKey, list[tuple[int, tuple[Move, ...]]]
        ] = {}  # (index, stack from then on)
        self._requests: dict[int, Fact] = {}  # rollback requests that were not used

    # --- asking ---

    def stack(self, resource: str, scope: options_pb2.Scope, size: int | None = None) -> tuple[Move, ...]:
        """The pointer's values, baseline first, the present one last; as of `size` or now."""
        history = self._history.get(pointer_of(resource, scope), [])
        if size is None:
            return history[-1][1] if history else ()
        position = bisect_right(history, size - 1, key=lambda step: step[0])
        return history[position - 1][1] if position else ()

    def default(self, resource: str, scope: options_pb2.Scope, size: int | None = None) -> Move | None:
        """The approved default, as of `size` or now; None where there is none."""
        stack = self.stack(resource, scope, size)
        return stack[-1] if stack else None

    def holds_default(self, update: str, resource: str, scope: options_pb2.Scope, size: int) -> bool:
        """Whether the approved default is this update's own promotion."""
        default = self.default(resource, scope, size)
        return default is not None and default.update == update

    def request(self, index: int) -> Fact | None:
        """The unused rollback request at an index."""
        return self._requests.get(index)

    def open_requests(self, resource: str, scope: options_pb2.Scope) -> list[int]:
        """Indexes of the unused requests that name the pointer's top promotion."""
        top = self.default(resource, scope)
        return [
            index
            for index, fact in self._requests.items()
            if top is not None
            and top.update is not None
            and (fact.body.promotion_index, fact.body.resource, fact.body.scope)
            == (top.index, resource, scope)
        ]

    def promotion_of(self, verdict: gate_pb2.VerdictIssued, index: int) -> Move | None:
        """The move in the pointer's present value that rests on the verdict at `index`."""
        stack = self.stack(verdict.resource, verdict.scope)
        return next((move for move in stack if move.verdict_index == index), None)

    def all(self) -> dict[PointerKey, Move]:
        """Every pointer with its default."""
        return {key: history[-1][1][-1] for key, history in self._history.items()}

    def moved_at(self, resource: str, scope: options_pb2.Scope) -> int:
        """Index of the pointer's last valid move. Only for pointers that have moved."""
        return self._history[pointer_of(resource, scope)][-1][0]

    # --- moving ---

    def ask(self, fact: Fact) -> None:
        """Takes a rollback request."""
        self._requests[fact.index] = fact

    def adopt(self, fact: Fact) -> str | None:
        """Takes a BaselineAdopted; why it does not hold, if it does not."""
        key = pointer_of(fact.body.resource, fact.body.scope)
        if fact.body.scope.segment == "*":
            return "expected one segment, got *"
        if key in self._history:
            return "expected a resource and scope that never had a default, got one that has"
        move = Move(fact.index, fact.body.manifest_digest, None, None, None)
        self._history[key] = [(fact.index, (move,))]
        return None

    def promote(self, fact: Fact) -> None:
        """Takes a DefaultPromoted that was judged to hold."""
        body = fact.body
        move = Move(fact.index, body.to_digest, body.update, body.from_digest, body.verdict_index)
        stack = self.stack(body.resource, body.scope)
        self._history[pointer_of(body.resource, body.scope)].append((fact.index, (*stack, move)))

    def roll_back(self, fact: Fact) -> None:
        """Takes a DefaultRolledBack that was judged to hold."""
        body = fact.body
        del self._requests[body.request_index]
        stack = self.stack(body.resource, body.scope)
        self._history[pointer_of(body.resource, body.scope)].append((fact.index, stack[:-1]))

    def rollback_fault(self, fact: Fact, alone: bool) -> str | None:
        """Why a DefaultRolledBack at this place does not hold, or would not if it is yet to be written."""
        body = fact.body
        stack = self.stack(body.resource, body.scope)
        if not alone:
            return "expected a pointer move alone in its batch, got company"
        if not stack or stack[-1].update is None or stack[-1].index != body.promotion_index:
            return f"expected the top promotion of the pointer, got index {body.promotion_index}"
        request = self._requests.get(body.request_index)
        if request is None or self._suspects.hold(request, fact.index):
            return f"expected an unused rollback request at index {body.request_index}, got none"
        asked = (request.body.promotion_index, request.body.resource, request.body.scope)
        if asked != (body.promotion_index, body.resource, body.scope):
            return "expected the promotion that the request names, got another"
        if request.index < body.promotion_index:
            return "expected a request made after the promotion, got one from before"
        if (body.to_digest, body.update) != (stack[-2].digest, stack[-1].update):
            return "expected the way back to what was promoted from, got another digest or update"
        return None
