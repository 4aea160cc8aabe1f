"""What a principal needs to connect: its name, signing key, certificate, and whom it trusts.

Rules:
1. TLS says who is connected, the note key says who claims: both carry the same name.
2. Nothing is guessed: a file that is missing is an error that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import grpc

from clients.home import load_home
from clients.keyfile import read_key
from ledger.errors import FormatError, NotFoundError
from ledger.note import Signer
from ledger.trust import TrustDocument, parse_trust_document

__all__ = ["Identity", "load_identity"]


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal, ready to connect. `certificate`, `private_key` and `server_ca` are PEM."""

    key: Signer
    certificate: bytes
    private_key: bytes = field(repr=False)
    server_ca: bytes
    target: str  # host:port of the ledger
    trust: TrustDocument
    memory: Path  # folder of remembered checkpoints

    @property
    def name(self) -> str:
        """The principal's name."""
        return self.key.verifier_key.name

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """mTLS, the only way in."""
        return grpc.ssl_channel_credentials(self.server_ca, self.private_key, self.certificate)


def load_identity(home: Path, name: str, *, target: str | None = None) -> Identity:
    """The principal `name` of a home folder; `target` where the ledger listens elsewhere than the home says.

    Raises NotFoundError (HOME_ABSENT, PRINCIPAL_ABSENT, KEY_ABSENT), FormatError, RefusedError(KEY_EXPOSED).
    """
    document = load_home(home)
    folder = home / "principals" / name
    if name not in document.principals or not folder.is_dir():
        known = ", ".join(sorted(document.principals))
        raise NotFoundError("PRINCIPAL_ABSENT", f"expected one of {known}, got {name!r}")
    key = read_key(folder / "note.key", name)
    if key.verifier_key.name != name:
        raise FormatError("BAD_KEY_FILE", f"expected the key of {name}, got that of {key.verifier_key.name}")
    return Identity(
        key=key,
        certificate=(folder / "client.crt").read_bytes(),
        private_key=(folder / "client.key").read_bytes(),
        server_ca=(home / "ca.crt").read_bytes(),
        target=target or document.ledger,
        trust=parse_trust_document((home / "trust.txt").read_bytes()),
        memory=home / "memory",
    )
