"""Changes to valid samples: what a fuzzer without eyes does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

__all__ = ["mutated"]

_PIECES: Final = (
    *(b"\n", b"\n\n", b" ", b"\t", b"\r\n", b"\x00", b"+", b"/", b"=", b"-", b"0", b"9" * 400, b"\x7f"),
    *("—".encode(), "— ".encode(), "٣".encode(), b"\xff\xfe", b"\xed\xa0\x80", b"NaN", b"1e999", b"[" * 3000),
    *(b"\xff" * n for n in (1, 2, 4, 8, 10)),
    *(bytes(n) for n in (2, 4, 8, 32)),
    *(b"\x80" * 9 + b"\x01", b"\x01\x00\x00\x00", b"\x0b\x0c", b"quorum none\n", b'"', b"\\u0000", b"{}"),
)
_MOST: Final = 1 << 18  # bytes


def mutated(chance: Random, samples: Sequence[bytes]) -> bytes:
    """A sample with 1 to 8 changes; now and then bytes out of nothing."""
    if not chance.randrange(50):
        return chance.randbytes(chance.choice((0, 1, 7, 64, 600)))
    data = bytearray(chance.choice(samples))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _change(chance, data, samples)
    return bytes(data[:_MOST])


def _change(chance: Random, data: bytearray, samples: Sequence[bytes]) -> None:
    at, to = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
    match chance.randrange(8):
        case 0 if data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 1 if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
        case 2:
            data[at:at] = chance.choice(_PIECES)
        case 3:
            piece = chance.choice(_PIECES)
            data[at : at + len(piece)] = piece
        case 4:
            del data[at : min(to, at + 40)]
        case 5:
            data[to:to] = data[at : min(to, at + 4096)]
        case 6:
            del data[to:]
        case _:
            other = chance.choice(samples)
            data[at:to] = other[: chance.randint(0, len(other))]
