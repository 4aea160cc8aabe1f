"""Who is connected, and what a role may read (design section 5).

Rules kept here:

- TLS says who is connected: one URI SAN `spiffe://<trust domain>/<name>` of a client certificate that the
  transport verified. There is no other way in.
- An author appends under its own name only. Whether its key may write is judged at placement, not here, so
  that a batch sent again is answered even after a revocation.
- A reader is a principal with a key in force. Runner and trainer read their own update's train and val
  events; everybody else reads all; checkpoints and proofs are for all.
"""

from __future__ import annotations

from typing import Any, Final

import grpc.aio

from ledger.errors import RefusedError
from ledger.trust import Authority, role_name
from ledger.v1 import options_pb2
from ledger.wire import peer_name

__all__ = ["Access", "check_author", "reads_all"]

_OWN_UPDATE_ONLY: Final = frozenset({options_pb2.ROLE_RUNNER, options_pb2.ROLE_TRAINER})


def reads_all(role: int) -> bool:
    """Whether a role may read the whole log."""
    return role not in _OWN_UPDATE_ONLY and role != options_pb2.ROLE_UNSPECIFIED


def check_author(peer: str, name: str) -> None:
    """Raises RefusedError(PRINCIPAL_MISMATCH) unless the peer is `name`, the batch's author."""
    if peer != name:
        raise RefusedError("PRINCIPAL_MISMATCH", f"expected a batch by {peer}, got one by {name}")


class Access:
    """Judges peers of one trust domain."""

    def __init__(self, trust_domain: str) -> None:
        self._trust_domain = trust_domain

    def peer(self, context: grpc.aio.ServicerContext[Any, Any]) -> str:
        """The connected principal's name. Raises RefusedError(PEER_UNKNOWN)."""
        return peer_name(context, self._trust_domain)

    def role(self, context: grpc.aio.ServicerContext[Any, Any], authority: Authority) -> tuple[str, int]:
        """Name and role of a peer with a key in force. Raises RefusedError(PEER_UNKNOWN, KEY_REVOKED)."""
        name = self.peer(context)
        grants = [grant for (held, _), grant in authority.grants.items() if held == name]
        if not grants:
            raise RefusedError("PEER_UNKNOWN", f"expected a principal of this log, got {name}")
        if all(grant.revocation is not None for grant in grants):
            raise RefusedError("KEY_REVOKED", f"expected a principal with a key in force, got {name}")
        return name, authority.roles[name]

    def check_reads_all(self, context: grpc.aio.ServicerContext[Any, Any], authority: Authority) -> None:
        """Raises RefusedError(MAY_NOT_READ) unless the peer may read all, and what `role` raises."""
        name, role = self.role(context, authority)
        if not reads_all(role):
            raise RefusedError(
                "MAY_NOT_READ",
                f"expected a role that reads the whole log, got {name} of role {role_name(role)}; "
                "FollowUpdate serves an update's own events",
            )
