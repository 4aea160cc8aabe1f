"""Event ids: UUIDs that need no coordination (RFC 9562).

Rules:
1. Clock and randomness are handed in.
2. A live author's id is a UUIDv7: it sorts by the author's time and says nothing else.
3. An importer's id is a UUIDv8 made from what was imported and where it stood there, so that importing the
   same source again gives the same events (law 5 then makes the second time harmless).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from ledger.errors import FormatError

__all__ = ["RANDOM_BYTES", "span_id", "trace_id", "uuid7", "uuid8"]

RANDOM_BYTES: Final = 10

_MILLISECONDS_END: Final = 2**48
_UUID_DOMAIN: Final = b"assay/import/uuid/v1\n"
_TRACE_DOMAIN: Final = b"assay/import/trace/v1\n"
_SPAN_DOMAIN: Final = b"assay/import/span/v1\n"


def uuid7(now: int, random: bytes) -> bytes:
    """The 16 bytes of a UUIDv7: `now` in microseconds since 1970, `random` of 10 bytes (6 bits are dropped).

    Raises FormatError: BAD_TIME, BAD_RANDOM.
    """
    milliseconds = now // 1000
    if not 0 <= milliseconds < _MILLISECONDS_END:
        raise FormatError("BAD_TIME", f"expected microseconds whose milliseconds fit 48 bits, got {now}")
    if len(random) != RANDOM_BYTES:
        raise FormatError("BAD_RANDOM", f"expected {RANDOM_BYTES} bytes, got {len(random)}")
    return _stamp(milliseconds.to_bytes(6, "big") + random, 7)


def uuid8(source: bytes, position: str) -> bytes:
    """The 16 bytes of a UUIDv8 for what stands at `position` of the source with SHA-256 digest `source`.

    Raises FormatError: BAD_DIGEST.
    """
    return _stamp(_derive(_UUID_DOMAIN, source, position)[:16], 8)


def trace_id(source: bytes, position: str) -> bytes:
    """A 16-byte OpenTelemetry trace id, made as `uuid8` is."""
    return _derive(_TRACE_DOMAIN, source, position)[:16]


def span_id(source: bytes, position: str) -> bytes:
    """An 8-byte OpenTelemetry span id, made as `uuid8` is."""
    return _derive(_SPAN_DOMAIN, source, position)[:8]


def _derive(domain: bytes, source: bytes, position: str) -> bytes:
    if len(source) != sha256().digest_size:
        raise FormatError("BAD_DIGEST", f"expected a digest of 32 bytes, got {len(source)}")
    return sha256(domain + source + position.encode()).digest()


def _stamp(data: bytes, version: int) -> bytes:
    """`data` with version and variant in their places (RFC 9562 sections 4.1, 4.2)."""
    out = bytearray(data)
    out[6] = version << 4 | out[6] & 0x0F
    out[8] = 0x80 | out[8] & 0x3F
    return bytes(out)
