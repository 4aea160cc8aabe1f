"""The frame that updates are judged in, as the log has it: what is missing, and what must not be published.

Rules:
1. What a freeze would refuse later is said now, with the command that mends it.
2. A version is declared once: another content under the same number would make old evidence mean something
   else.
3. Who is named must be there: a policy that names an unknown principal can never pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gate.evidence import TARGETS
from ledger.errors import RefusedError
from ledger.trust import role_name
from ledger.v1 import operator_pb2, options_pb2

if TYPE_CHECKING:
    from clients.importers.evaluations import Rows
    from gate.policy import Policy
    from ledger.receipt import Receipts

__all__ = ["check_budgets", "check_framed", "check_principals", "check_version", "missing_pins"]

# A proposal names these itself; publishing them is possible, not needed.
_OWN: Final = (options_pb2.ENVIRONMENT_TARGET_HARNESS, options_pb2.ENVIRONMENT_TARGET_TOKENIZER)
_COMMANDS: Final = {
    "tool_contract": "publish tool-contract {scope} …",
    "evaluator": "publish evaluator {scope} …",
    "train": "publish snapshot {scope} FILE --purpose train",
    "holdout": "publish snapshot {scope} FILE --purpose holdout",
    "protected_set": "publish protected-set {scope} FILE …",
    "policy": "publish policy {scope} FILE",
}


def missing_pins(receipts: Receipts, workflow: str, segment: str) -> dict[str, str]:
    """What a freeze in this scope would lack now -> the command that publishes it, in that order."""
    size, registry = receipts.size, receipts.registry
    scope = options_pb2.Scope(workflow=workflow, segment=segment)
    shown = f"{workflow}/{segment}"
    missing: dict[str, str] = {}
    if registry.workflow_in_force(workflow, size) is None:
        missing["workflow"] = f"publish workflow {workflow} …"
    for kind, command in _COMMANDS.items():
        if registry.in_force(kind, scope, size) is None:
            missing["training tasks" if kind == "train" else kind.replace("_", " ")] = command.format(
                scope=shown
            )
    for target in TARGETS:
        if target not in _OWN and registry.environment_in_force(target, scope, size) is None:
            name = options_pb2.EnvironmentTarget.Name(target).removeprefix("ENVIRONMENT_TARGET_").lower()
            missing[name.replace("_", " ")] = f"publish environment {shown} {name.replace('_', '-')} …"
    if not any((flow, part) == (workflow, segment) for _, flow, part in receipts.pointers.all()):
        missing["baseline"] = f"publish baseline RESOURCE {shown} …"
    return missing


def check_framed(receipts: Receipts, workflow: str, segment: str) -> None:
    """Raises RefusedError NO_FRAME where nothing at all is published for a scope: it may be misspelt."""
    published = 1 + len(_COMMANDS) + len(set(TARGETS) - set(_OWN))
    lacking = missing_pins(receipts, workflow, segment)
    lacking.pop("baseline", None)
    if len(lacking) == published:
        raise RefusedError(
            "NO_FRAME",
            f"expected something published for {workflow}/{segment}, got nothing: is the scope spelt right? "
            "A baseline is adopted once and for ever (--anyway adopts it)",
        )


def check_version(receipts: Receipts, body: operator_pb2.WorkflowDeclared) -> int | None:
    """Index of an equal declaration of this version; None where the version is new.

    Raises RefusedError VERSION_EXISTS where it stands with other content.
    """
    declared = receipts.registry.workflow(body.workflow, body.version, receipts.size)
    if declared is None:
        return None
    if declared.body != body:
        differ = [
            f.name for f in body.DESCRIPTOR.fields if getattr(body, f.name) != getattr(declared.body, f.name)
        ]
        raise RefusedError(
            "VERSION_EXISTS",
            f"expected {body.workflow} version {body.version} as declared at index {declared.index}, got "
            f"other {', '.join(differ)}; declare the next version",
        )
    return declared.index


def check_principals(policy: Policy, roles: Mapping[str, int]) -> None:
    """Raises RefusedError UNKNOWN_PRINCIPAL for names without a key in force, or with one of another role."""
    who = policy.principals
    approver = options_pb2.ROLE_APPROVER
    wanted: tuple[tuple[str, tuple[str, ...], options_pb2.Role.ValueType], ...] = (
        ("judges", who.judges, options_pb2.ROLE_JUDGE),
        ("canaries", who.canaries, options_pb2.ROLE_CANARY),
        ("canary_approvers", who.canary_approvers, approver),
        ("default_approvers", who.default_approvers, approver),
    )
    faults = []
    for field, names, role in wanted:
        for name in names:
            if roles.get(name) != role:
                got = f"role {role_name(roles[name])}" if name in roles else "unknown to this log"
                faults.append(f"{field}: expected role {role_name(role)}, got {name}, {got}")
    if faults:
        raise RefusedError(
            "UNKNOWN_PRINCIPAL", f"{'; '.join(faults)}: nothing of theirs would count (--anyway publishes it)"
        )


def check_budgets(rows: Rows, budgets: Mapping[str, int]) -> None:
    """Raises RefusedError BUDGET_TOO_WIDE where all cases of a family may regress."""
    sizes: dict[str | None, int] = {}
    for of in rows.families().values():
        sizes[of] = sizes.get(of, 0) + 1
    for family, budget in budgets.items():
        if (size := sizes.get(family)) is not None and budget >= size:
            raise RefusedError(
                "BUDGET_TOO_WIDE",
                f"expected a budget below {size}, the cases of {family}, got {budget}: nothing would be "
                "protected",
            )
