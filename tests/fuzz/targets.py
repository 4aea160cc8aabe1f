"""What is fuzzed: every parser of bytes that come from elsewhere. Any bytes are a value or one of our errors.

A target is a function from bytes; what it returns is thrown away, and whatever it raises but an AssayError is
a bug. Where a format has one spelling the target says so itself: what parses must encode to the same bytes.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Final

from clients.home import load_home
from clients.strict_json import parse_json
from gate.policy import parse_policy
from ledger.admission import admit
from ledger.batch import parse_batch_note, sign_batch
from ledger.bundle import (
    Bundle,
    Citation,
    Claim,
    decode_bundle,
    encode_bundle,
    make_claim,
    verify_bundle,
)
from ledger.checkpoint import open_checkpoint, open_note, parse_checkpoint_text, verify_cosignatures
from ledger.entry import decode_entry, encode_entry, encode_run, iter_run
from ledger.errors import AssayError, RefusedError
from ledger.export import read_export
from ledger.fold import read_event
from ledger.genesis import decode_genesis, encode_genesis
from ledger.head import parse_remembered
from ledger.keyfile import decode_key, encode_key, encrypt_key
from ledger.merkle import Tree
from ledger.note import VerifierKey, decode_base64, decode_decimal, parse_note
from ledger.proof import encode_proof, parse_proof
from ledger.server.config import load_config
from ledger.server.durable import Folder, Released
from ledger.tile import decode_bundle as decode_tile_bundle
from ledger.tile import parse_tile_path
from ledger.trust import parse_trust_document
from ledger.verify import verify_export
from ledger.wire import error_of, status_of
from tests.events import BODIES, minimal_event, otlp_span
from tests.forge import LEDGER, ORIGIN, ROOT, Forge, numbered, witness_key
from tests.hardening.messages import VARIANTS, full_event

__all__ = ["TARGETS", "Target", "run_one"]


@dataclass(frozen=True)
class Target:
    """A parser and valid samples to begin with."""

    parse: Callable[[bytes], object]
    samples: Callable[[], Sequence[bytes]]


def run_one(target: Target, data: bytes) -> bool:
    """Whether the bytes are accepted. Raises what is a bug."""
    try:
        target.parse(data)
    except AssayError:
        return False
    return True


def _same(data: bytes, again: bytes) -> None:
    if data != again:
        raise AssertionError(f"expected one spelling, got {data!r} for {again!r}")


# --- samples -----------------------------------------------------------------------------------------------


@cache
def _forge() -> Forge:
    witness = witness_key("w1")
    forge = Forge.opened("runner", policy=f"witness w1 {witness.verifier_key}\nquorum w1\n")
    for number in range(6):
        forge.add("runner", numbered(number), numbered(number + 1))
    return forge


@cache
def _note() -> bytes:
    return _forge().checkpoint(witnesses=[witness_key("w1")])


@cache
def _export() -> bytes:
    return _forge().export(_note())


@cache
def _bundle() -> bytes:
    forge = _forge()
    tree = Tree(forge.leaves)

    def claim(index: int) -> Claim:
        return make_claim(index, forge.entries.__getitem__, lambda at: tree.inclusion(at, tree.size))

    return encode_bundle(Bundle(_note(), (Citation(claim(tree.size - 1), claim(1)),)))


def _events() -> list[bytes]:
    full = [full_event(body, n).SerializeToString() for body in BODIES for n in range(VARIANTS)]
    return [*full, *(minimal_event(body).SerializeToString() for body in BODIES)]


def _policy() -> list[bytes]:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    return [block.encode() for block in re.findall(r"```json policy.json\n(.*?)```", page, re.DOTALL)]


# --- targets -----------------------------------------------------------------------------------------------


def _vkey(data: bytes) -> None:
    text = data.decode("latin-1")
    _same(data, str(VerifierKey.parse(text)).encode("latin-1"))


def _base64(data: bytes) -> None:
    decode_base64(data.decode("latin-1"))


def _decimal(data: bytes) -> None:
    _same(data, str(decode_decimal(data.decode("latin-1"))).encode())


def _cosignature(data: bytes) -> None:
    note, _ = open_note(data, ORIGIN)
    verify_cosignatures(note, [witness_key("w1").verifier_key])


def _batch_note(data: bytes) -> None:
    _same(data, parse_batch_note(data).encode())


def _entry(data: bytes) -> None:
    entry = decode_entry(data)
    _same(data, encode_entry(entry))


def _run(data: bytes) -> None:
    _same(data, encode_run(list(iter_run(data))))


def _export_header(data: bytes) -> None:
    _, chunks = read_export(BytesIO(data))
    for _ in chunks:
        pass


def _export_file(data: bytes) -> None:
    verify_export(BytesIO(data), _forge().trust)


def _bundle_file(data: bytes) -> None:
    _same(data, encode_bundle(decode_bundle(data)))
    verify_bundle(data, _forge().trust)


def _policy_lines(data: bytes) -> None:
    head = f"assay/trust/v1\nroot {ROOT.verifier_key}\n\n".encode()
    parse_trust_document(head + data)


def _key_file(data: bytes) -> None:
    decode_key(data)


def _genesis(data: bytes) -> None:
    _same(data, encode_genesis(decode_genesis(data)))


def _proof(data: bytes) -> None:
    proof = parse_proof(data)
    _same(data, encode_proof(proof.index, proof.hashes, proof.checkpoint, proof.extra))


def _tile_path(data: bytes) -> None:
    _same(data, parse_tile_path(data.decode("latin-1")).path.encode("latin-1"))


def _tile_bundle(data: bytes) -> None:
    decode_tile_bundle(data, 3)


def _gate_policy(data: bytes) -> None:
    parse_policy.__wrapped__(data)  # without its cache, which would keep every input


def _json(data: bytes) -> None:
    parse_json(data.decode("utf-8", "replace"), "fuzz")


def _span(data: bytes) -> None:
    event = minimal_event("span_recorded")
    event.span_recorded.otlp_span = data
    admit(event.SerializeToString())


def _status(data: bytes) -> None:
    status_of(error_of(data))


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="assay-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _config(data: bytes) -> None:
    with _folder() as path:
        (path / "server.json").write_bytes(data)
        load_config(path / "server.json")


def _home(data: bytes) -> None:
    with _folder() as path:
        (path / "assay.json").write_bytes(data)
        load_home(path)


_SLOT = 2**17


def _released(data: bytes) -> None:
    """The data stands at the begin of both slots: the second half in the second."""
    middle = len(data) // 2
    with _folder() as path:
        halves = (data[:middle], data[middle:])
        (path / "released").write_bytes(b"".join(half.ljust(_SLOT, b"\x00") for half in halves))
        folder = Folder(path)
        try:
            Released(folder).close()
        finally:
            folder.close()


@cache
def _released_samples() -> list[bytes]:
    with _folder() as path:
        folder = Folder(path)
        released = Released(folder)
        for note in (b"one", _note(), _note() + b"later"):
            released.put(note)
        released.close()
        folder.close()
        data = (path / "released").read_bytes()
    return [data[:1024] + data[_SLOT : _SLOT + 1024]]


_CONFIG: Final = (
    b'{"listen": "127.0.0.1:0", "data": "data", "trust": "trust.txt", "trust_domain": "lab.test", '
    b'"note_keys": ["note.key"], "certificate": "a.crt", "private_key": "a.key", "client_ca": "ca.crt"}'
)

_HOME: Final = (
    b'{"origin": "lab-0123456789abcdef", "trust_domain": "lab.test", "ledger": "127.0.0.1:7420", '
    b'"gate": "[::1]:7421", "principals": {"root-1": "root", "runner-1": "runner"}}'
)

TARGETS: Final[Mapping[str, Target]] = {
    "note": Target(parse_note, lambda: [_note()]),
    "vkey": Target(_vkey, lambda: [str(key.verifier_key).encode() for key in (ROOT, LEDGER)]),
    "base64": Target(_base64, lambda: [b"", b"AA==", b"AAAA"]),
    "decimal": Target(_decimal, lambda: [b"0", b"18446744073709551615"]),
    "checkpoint": Target(parse_checkpoint_text, lambda: [parse_note(_note()).text]),
    "signed-checkpoint": Target(lambda data: open_checkpoint(data, LEDGER.verifier_key), lambda: [_note()]),
    "remembered": Target(lambda data: parse_remembered(data, ORIGIN), lambda: [_note()]),
    "cosignature": Target(_cosignature, lambda: [_note()]),
    "batch-note": Target(_batch_note, lambda: [sign_batch(ROOT, ORIGIN, bytes(16), 0, [b"event"])]),
    "event": Target(admit, _events),
    "stored-event": Target(read_event, _events),
    "span": Target(_span, lambda: [otlp_span(), otlp_span(200)]),
    "entry": Target(_entry, lambda: _forge().entries[:4]),
    "run": Target(_run, lambda: [encode_run(_forge().entries)]),
    "export-header": Target(_export_header, lambda: [_export()[:2000]]),
    "export": Target(_export_file, lambda: [_export()]),
    "bundle": Target(_bundle_file, lambda: [_bundle()]),
    "trust": Target(parse_trust_document, lambda: [_trust()]),
    "tlog-policy": Target(_policy_lines, lambda: [_trust().partition(b"\n\n")[2]]),
    "key-file": Target(_key_file, lambda: [encode_key("runner-1", bytes(range(32)))]),
    "encrypted-key": Target(lambda data: decode_key(data, None), lambda: [_encrypted()]),  # up to the cipher
    "home": Target(_home, lambda: [_HOME]),
    "genesis": Target(
        _genesis, lambda: [encode_genesis([(sign_batch(ROOT, ORIGIN, bytes(16), 0, [b"e"]), [b"e"])])]
    ),
    "proof": Target(_proof, lambda: [encode_proof(5, [bytes(32)] * 3, _note(), b"extra")]),
    "tile-path": Target(_tile_path, lambda: [b"tile/0/x001/x234/067", b"tile/entries/000.p/3"]),
    "tile-bundle": Target(_tile_bundle, lambda: [encode_run([b"one", b"two", b"three"])]),
    "gate-policy": Target(_gate_policy, _policy),
    "json": Target(_json, lambda: [b'{"a": [1, 2.5e3, null, true, "x"], "b": {"c": -0}}']),
    "config": Target(_config, lambda: [_CONFIG]),
    "released": Target(_released, _released_samples),
    "status": Target(_status, lambda: [status_of(RefusedError("KEY_REVOKED", "m")).SerializeToString()]),
}


def _encrypted() -> bytes:
    return encrypt_key(encode_key("runner-1", bytes(range(32))), "passphrase", bytes(16), 14)


def _trust() -> bytes:
    witness = witness_key("w1").verifier_key
    return (
        f"assay/trust/v1\nroot {ROOT.verifier_key}\n\nlog {LEDGER.verifier_key}\nwitness w1 {witness} "
        f"https://w1.example/\ngroup g 1 w1\nquorum g\n"
    ).encode()
