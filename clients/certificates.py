"""A small certificate authority for mTLS between principals and services (design section 5, Transport).

Rules:
1. Keys are P-256: gRPC cannot use Ed25519 certificates.
2. A certificate names its holder in exactly one URI SAN, `spiffe://<trust domain>/<name>`. The subject
   repeats the name for people; nothing decides by it.
3. A certificate is for connecting or for serving, never for both; only the authority's own signs others.
4. Clock and randomness are handed in. (The signatures' nonces are the cryptography library's own.)
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ledger.errors import FormatError

__all__ = ["CertificateAuthority", "Credential", "check_holder", "check_trust_domain", "spiffe_uri"]

# What may stand in a path segment of a SPIFFE id, is a safe folder name and fits a subject's common name.
_HOLDER: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_TRUST_DOMAIN: Final = re.compile(r"[a-z0-9._-]{1,255}")
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256 (SP 800-186)
_KEY_BYTES: Final = 40  # FIPS 186-5 A.2.1: 64 bits more than the order, so that the remainder has no bias
_SERIAL_BYTES: Final = 16
_BACKDATED: Final = timedelta(hours=1)  # for clocks that lag behind the maker's
_AUTHORITY_LIFE: Final = timedelta(days=3650)
_HOLDER_LIFE: Final = timedelta(days=825)


def check_holder(name: str) -> None:
    """Raise FormatError BAD_HOLDER unless `name` is 1 to 64 of A-Z a-z 0-9 . _ - without a leading dot."""
    if not _HOLDER.fullmatch(name):
        raise FormatError(
            "BAD_HOLDER", f"expected 1 to 64 of A-Z a-z 0-9 . _ -, no dot first, got {name[:80]!r}"
        )


def check_trust_domain(domain: str) -> None:
    """Raise FormatError BAD_TRUST_DOMAIN unless 1 to 255 of a-z 0-9 . _ - (SPIFFE-ID section 2.1)."""
    if not _TRUST_DOMAIN.fullmatch(domain):
        raise FormatError("BAD_TRUST_DOMAIN", f"expected 1 to 255 of a-z 0-9 . _ -, got {domain[:80]!r}")


def spiffe_uri(domain: str, name: str) -> str:
    """`spiffe://<domain>/<name>`. Raises FormatError: BAD_TRUST_DOMAIN, BAD_HOLDER."""
    check_trust_domain(domain)
    check_holder(name)
    return f"spiffe://{domain}/{name}"


@dataclass(frozen=True, slots=True, repr=False)
class Credential:
    """A certificate and its private key, both PEM (the key PKCS #8, not encrypted). `repr` shows neither."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<Credential>"


class CertificateAuthority:
    """Issues certificates for one trust domain. Holds its key for as long as it lives."""

    def __init__(
        self, domain: str, *, random: Callable[[int], bytes], now: int, credential: Credential | None = None
    ) -> None:
        """`now` in microseconds since 1970; `random(n)` gives n bytes. `credential`: its own, made before.

        Raises FormatError BAD_TRUST_DOMAIN, BAD_CREDENTIAL.
        """
        check_trust_domain(domain)
        self._domain = domain
        self._random = random
        self._now = datetime.fromtimestamp(now // 1_000_000, UTC)
        self._subject = _subject("assay certificate authority")
        if credential is not None:
            self._key, self._certificate = _loaded(credential)
            return
        self._key = self._new_key()
        builder = self._builder(self._subject, self._key, _AUTHORITY_LIFE)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    @property
    def credential(self) -> Credential:
        """The authority's own certificate, which the others are checked against, and its key."""
        return _credential(self._certificate, self._key)

    def issue_client(self, name: str) -> Credential:
        """A certificate with which `name` connects. Raises FormatError BAD_HOLDER."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def issue_server(self, name: str, hosts: Iterable[str]) -> Credential:
        """A certificate with which `name` serves under `hosts` (DNS names or IP addresses).

        Raises FormatError: BAD_HOLDER, BAD_HOST.
        """
        return self._issue(
            name, ExtendedKeyUsageOID.SERVER_AUTH, [_host(host) for host in dict.fromkeys(hosts)]
        )

    def _issue(
        self, name: str, usage: x509.ObjectIdentifier, hosts: Iterable[x509.GeneralName]
    ) -> Credential:
        uri = x509.UniformResourceIdentifier(spiffe_uri(self._domain, name))
        key = self._new_key()
        builder = self._builder(_subject(name), key, _HOLDER_LIFE)
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([usage]), False),
            (x509.SubjectAlternativeName([uri, *hosts]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        return _credential(builder.sign(self._key, hashes.SHA256()), key)

    def _new_key(self) -> ec.EllipticCurvePrivateKey:
        drawn = int.from_bytes(self._random(_KEY_BYTES), "big")
        return ec.derive_private_key(drawn % (_ORDER - 1) + 1, ec.SECP256R1())

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta
    ) -> x509.CertificateBuilder:
        public = key.public_key()
        # RFC 5280 section 4.1.2.2: a positive serial number; the lowest bit keeps it from being zero.
        serial = int.from_bytes(self._random(_SERIAL_BYTES), "big") | 1
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public)
            .serial_number(serial)
            .not_valid_before(self._now - _BACKDATED)
            .not_valid_after(self._now + life)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _loaded(credential: Credential) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key(credential.key, None)
        certificate = x509.load_pem_x509_certificate(credential.certificate)
    except (TypeError, ValueError):
        raise FormatError(
            "BAD_CREDENTIAL", "expected a certificate and its key, PEM, got other bytes"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise FormatError("BAD_CREDENTIAL", "expected the P-256 key of the certificate, got another")
    return key, certificate


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass  # not an address, so a name
    if not host.isascii() or not host:
        raise FormatError("BAD_HOST", f"expected an IP address or an ASCII host name, got {host[:80]!r}")
    return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _credential(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Credential:
    return Credential(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
