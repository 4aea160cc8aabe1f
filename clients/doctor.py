"""What an installation looks like from the inside: files, keys, certificates, disk, limits.

Rules:
1. A check is OK only where something was measured and found right. What could not be looked at is UNKNOWN and
   says why; what is right or wrong by choice, such as a part that is switched off, is a NOTE.
2. What is WRONG comes with what to do.
3. Nothing is changed, and no secret is shown. The time is handed in.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from packaging.requirements import Requirement

from clients.home import load_home
from ledger.errors import AssayError, FormatError
from ledger.keyfile import is_encrypted
from ledger.trust import parse_trust_document

__all__ = ["Check", "Ledger", "State", "check_installation", "looked"]

_DISTRIBUTION: Final = "assay-ledger"
_PYTHON: Final = (3, 11)
_OTHERS: Final = 0o077
_PLAIN: Final = b"PRIVATE+KEY+"
_SOON: Final = timedelta(days=30)
_DESCRIPTORS: Final = 4096  # a connection is one


class State(StrEnum):
    """What came of a check."""

    OK = "OK"
    WRONG = "WRONG"
    UNKNOWN = "UNKNOWN"
    NOTE = "NOTE"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, or why nothing was; and what to do, where something is to be done."""

    name: str
    state: State
    found: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a ledger's configuration says of where it keeps and shows things."""

    data: Path  # folder of the store
    store: str | None = None  # URL of a database; None: SQLite in `data`
    metrics: str | None = None  # host:port

    @property
    def sqlite(self) -> Path:
        """The database of a ledger without `store`."""
        return self.data / "ledger.sqlite"

    @classmethod
    def of(cls, home: Path, config: Path | None) -> Ledger:
        """Reads `config`, or the home's own; of a home that has none yet, what it will be.

        Raises FormatError BAD_CONFIG, OSError.
        """
        file = config or home / "ledger.json"
        if config is None and not file.exists():
            return cls(home / "ledger" / "data")
        try:
            document = json.loads(file.read_bytes())
            return cls(file.parent / document["data"], document.get("store"), document.get("metrics"))
        except (ValueError, KeyError, TypeError) as error:
            # Not what it holds: one of the values may be a password.
            raise FormatError(
                "BAD_CONFIG", f"expected a ledger's configuration in {file}, got {type(error).__name__}"
            ) from None


def check_installation(home: Path, now: datetime) -> Iterator[Check]:
    """This machine and a home, without a network."""
    yield _python()
    yield looked("packages", _packages)
    yield looked("home", lambda: _home(home))
    yield looked("trust document", lambda: _trust(home))
    yield looked("key files", lambda: _modes(home))
    yield looked("keys at rest", lambda: _at_rest(home))
    yield looked("certificates", lambda: _certificates(home, now))
    yield _descriptors()


def looked(name: str, look: Callable[[], Check]) -> Check:
    """A check whose looking may itself fail: then nothing is known."""
    try:
        return look()
    except OSError as error:
        return Check(name, State.UNKNOWN, f"{error.filename or 'the system'}: {error.strerror or error}")


def _python() -> Check:
    found = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro} at {sys.executable}"
    if sys.version_info[:2] < _PYTHON:
        return Check("python", State.WRONG, found, "install Python 3.11 or newer and make a new environment")
    return Check("python", State.OK, found)


def _packages() -> Check:
    try:
        own, wanted = metadata.version(_DISTRIBUTION), metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return Check(
            "packages",
            State.UNKNOWN,
            f"{_DISTRIBUTION} is not installed here as a package, so nothing says what it needs",
            "pip install it, with --constraint constraints.txt for the versions that were tested",
        )
    needed = [
        need
        for need in map(Requirement, wanted)
        if need.marker is None or need.marker.evaluate({"extra": ""})
    ]
    faults = [fault for need in needed if (fault := _unmet(need)) is not None]
    if faults:
        return Check("packages", State.WRONG, "; ".join(faults), f"pip install --upgrade {_DISTRIBUTION}")
    return Check("packages", State.OK, f"{_DISTRIBUTION} {own}, and the {len(needed)} packages that it needs")


def _unmet(need: Requirement) -> str | None:
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return f"expected {need.name}, got none"
    if need.specifier.contains(version, prereleases=True):
        return None
    return f"expected {need.name}{need.specifier}, got {version}"


def _home(home: Path) -> Check:
    try:
        document = load_home(home)
    except AssayError as error:
        return Check("home", State.WRONG, error.message, "name the home with --home, or make one: assay init")
    return Check("home", State.OK, f"{home}, origin {document.origin}")


def _trust(home: Path) -> Check:
    name, file = "trust document", home / "trust.txt"
    try:
        trust, document = parse_trust_document(file.read_bytes()), load_home(home)
    except AssayError as error:
        return Check(name, State.WRONG, error.message, "take trust.txt again from who gave it to you")
    if trust.origin != document.origin:
        found = f"expected the log {document.origin} of this home, got {trust.origin}"
        return Check(name, State.WRONG, found, "put the trust document of this log here")
    roots, witnesses = len(trust.roots), len(trust.policy.witnesses)
    return Check(name, State.OK, f"{trust.origin}, root keys: {roots}, witnesses: {witnesses}")


def _keys(home: Path) -> list[Path]:
    return sorted(home.rglob("*.key"))


def _modes(home: Path) -> Check:
    name, keys = "key files", _keys(home)
    if not keys:
        return Check(name, State.NOTE, f"no private key lies in {home}")
    exposed = [key for key in keys if key.stat().st_mode & _OTHERS]
    if exposed:
        shown = ", ".join(str(key.relative_to(home)) for key in exposed[:5])
        return Check(
            name,
            State.WRONG,
            f"{len(exposed)} of {len(keys)} may be opened by others: {shown}",
            f"chmod 600 {exposed[0]}; if others could read it, revoke the key: whoever has it can sign",
        )
    return Check(name, State.OK, f"{len(keys)}, each for its owner alone")


def _at_rest(home: Path) -> Check:
    name = "keys at rest"
    keys = [key for key in _keys(home) if key.name == "note.key"]
    if not keys:
        return Check(name, State.NOTE, f"no signing key lies in {home}")
    held = {key: key.read_bytes() for key in keys}
    plain = [key for key, data in held.items() if data.startswith(_PLAIN)]
    odd = [key for key, data in held.items() if key not in plain and not is_encrypted(data)]
    if odd:
        shown = ", ".join(str(key.relative_to(home)) for key in odd)
        return Check(
            name, State.WRONG, f"no signing key: {shown}", "put the file back from where keys are kept"
        )
    if plain:
        return Check(
            name,
            State.NOTE,
            f"{len(plain)} of {len(keys)} signing keys lie here unencrypted: whoever reads them can sign",
            "for development only; in production each key is made, and kept, where it is used",
        )
    return Check(name, State.OK, f"{len(keys)} signing keys, each of them encrypted")


def _certificates(home: Path, now: datetime) -> Check:
    name, files = "certificates", sorted(home.rglob("*.crt"))
    if not files:
        return Check(name, State.UNKNOWN, f"no certificate lies in {home}", "nothing can connect without one")
    faults: list[str] = []
    first: tuple[datetime, Path] | None = None
    for file in files:
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
        except ValueError:
            faults.append(f"{file.relative_to(home)} is no certificate")
            continue
        ends = certificate.not_valid_after_utc
        first = min(first or (ends, file), (ends, file))
        if (fault := _certificate_fault(certificate, file, now)) is not None:
            faults.append(f"{file.relative_to(home)} {fault}")
    if faults or first is None:
        more = "" if len(faults) <= 5 else f", and {len(faults) - 5} more"
        advice = "issue it again under the same authority; what connects with it needs a restart"
        return Check(name, State.WRONG, ", ".join(faults[:5]) + more, advice)
    ends, file = first
    return Check(name, State.OK, f"{len(files)}; the first to end is {file.relative_to(home)}, {_day(ends)}")


def _certificate_fault(certificate: x509.Certificate, file: Path, now: datetime) -> str | None:
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {_day(certificate.not_valid_before_utc)}: is this machine's clock right?"
    if now > certificate.not_valid_after_utc:
        return f"ended on {_day(certificate.not_valid_after_utc)}"
    if now + _SOON > certificate.not_valid_after_utc:
        return f"ends on {_day(certificate.not_valid_after_utc)}"
    key = file.with_suffix(".key")
    if not key.exists():
        return None
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError):
        return f"stands beside {key.name}, which is no private key in PEM, or an encrypted one"
    return None if private.public_key() == certificate.public_key() else f"is not for the key in {key.name}"


def _day(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d")


def _descriptors() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    found = f"up to {'any number' if unlimited else hard} for what this shell starts"
    if not unlimited and hard < _DESCRIPTORS:
        return Check(
            "open files",
            State.WRONG,
            found,
            f"raise the hard limit (LimitNOFILE, ulimit -Hn): {_DESCRIPTORS}",
        )
    return Check("open files", State.OK, found)
