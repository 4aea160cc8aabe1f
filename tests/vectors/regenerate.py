"""Recompute what assay-1.txt derives from its seeds, events and times, with our own code.

`python -m tests.vectors.regenerate` rewrites the file in place; a test compares. Lines that are given stay as
they are; a line that is neither given nor derived is an error, so that no golden figure goes unchecked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ledger.batch import parse_batch_note, sign_batch
from ledger.checkpoint import Checkpoint, cosign, sign_checkpoint
from ledger.entry import FIRST_PREVIOUS, Opening, encode_run, place_batch
from ledger.merkle import Tree, leaf_hash, path, root
from ledger.note import (
    KEY_TYPE_COSIGNATURE,
    KEY_TYPE_ED25519,
    SigningKey,
    ed25519_verify,
    encode_base64,
    parse_note,
)
from ledger.proof import encode_proof

__all__ = ["FILE", "read", "regenerate", "signing_key", "unescape"]

FILE = Path(__file__).with_name("assay-1.txt")

_GIVEN = re.compile(r"origin|seed\.\w+|grant|batch\.\d\.(author|recorded_at)|author\.event")
_NAMES = {
    "witness": "witness.test/w1",
    "runner": "ledger.test/runner/r1",
    "gate": "ledger.test/gate/g1",
    "root": "ledger.test/root",
}
_STREAMS = {
    author: bytes(range(at, at + 16)) for author, at in (("root", 0xA0), ("runner", 0xB0), ("gate", 0xC0))
}
_EVENTS = [b"event %d" % index for index in range(7)]
_BATCHES = ((0, 1), (1, 4), (4, 5), (5, 7))
_COSIGNED_AT = 1_767_225_605


def read(text: str) -> dict[str, str]:
    """The lines by name, as they stand; of a name that occurs more than once the last."""
    lines = (line.partition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def unescape(value: str) -> bytes:
    """A text value's bytes."""
    return value.replace("\\n", "\n").encode()


def signing_key(given: dict[str, str], who: str) -> SigningKey:
    """The test key of the ledger, a witness or a principal."""
    kind = KEY_TYPE_COSIGNATURE if who == "witness" else KEY_TYPE_ED25519
    return SigningKey(_NAMES.get(who, given["origin"]), bytes.fromhex(given[f"seed.{who}"]), kind)


@dataclass
class _Log:
    """The log of the file, as far as it is placed."""

    entries: list[bytes]
    tree: Tree
    derived: dict[str, str]

    def text(self, name: str, value: bytes) -> None:
        self.derived[name] = value.decode().replace("\n", "\\n")

    def hashes(self, prefix: str, values: list[bytes]) -> None:
        self.derived |= {f"{prefix}.{k}": encode_base64(value) for k, value in enumerate(values)}


def _place(log: _Log, given: dict[str, str]) -> None:
    sequences: dict[str, int] = {}
    for number, (start, end) in enumerate(_BATCHES):
        author = given[f"batch.{number}.author"]
        sequence = sequences[author] = sequences.get(author, -1) + 1
        key = signing_key(given, author)
        note = sign_batch(key, given["origin"], _STREAMS[author], sequence, _EVENTS[start:end])
        batch = parse_batch_note(note)
        log.text(f"batch.{number}.text", batch.text())
        log.text(f"batch.{number}.sigline", note.removeprefix(batch.text() + b"\n"))
        opening = Opening(batch.count, batch.name, batch.key_id, batch.stream, sequence, batch.signature)
        previous = log.tree.leaf(start - 1) if start else FIRST_PREVIOUS
        recorded_at = int(given[f"batch.{number}.recorded_at"])
        entries, leaves = place_batch(start, recorded_at, previous, opening, _EVENTS[start:end])
        log.entries += entries
        log.tree.extend(leaves)


def _sign(log: _Log, given: dict[str, str]) -> None:
    tree, ledger = log.tree, signing_key(given, "ledger")
    log.text("checkpoint.4", sign_checkpoint(Checkpoint(given["origin"], 4, tree.root(4)), ledger))
    note = sign_checkpoint(Checkpoint(given["origin"], 7, tree.root(7)), ledger)
    log.text("checkpoint.7", note)
    log.text("cosigline.7", cosign(parse_note(note).text, signing_key(given, "witness"), _COSIGNED_AT))
    proof = tree.inclusion(2, 7)
    log.hashes("inclusion.2of7", proof)
    log.derived["tlogproof.2of7.sha256"] = sha256(encode_proof(2, proof, note)).hexdigest()
    # The checkpoint's signature with an unused bit of its last base64 character set.
    line = note.rpartition(b"\n\n")[2]
    log.text("refuse.sigline", line.removesuffix(b"8=\n") + b"9=\n")


def derive(given: dict[str, str]) -> dict[str, str]:
    """Every derived value by its name."""
    log = _Log([], Tree(), {})
    for who in ("ledger", *_NAMES):
        log.derived[f"vkey.{who}"] = str(signing_key(given, who).verifier_key)
    _place(log, given)
    _sign(log, given)
    log.derived |= {f"entry.{index}": entry.hex() for index, entry in enumerate(log.entries)}
    log.hashes("leaf", [leaf_hash(entry) for entry in log.entries])
    log.derived |= {f"root.{size}": encode_base64(log.tree.root(size)) for size in range(1, 8)}
    run = encode_run(log.entries)
    log.derived |= {"run.length": str(len(run)), "run.sha256": sha256(run).hexdigest()}
    for old in (4, 5):
        log.hashes(f"consistency.{old}to7", log.tree.consistency(old, 7))
    event = int(given["author.event"])
    start, end = next(batch for batch in _BATCHES if batch[0] <= event < batch[1])
    leaves = [leaf_hash(data) for data in _EVENTS[start:end]]
    log.hashes("author.path", path(leaves, event - start))
    log.derived |= {
        "author.leaf": encode_base64(leaves[event - start]),
        "author.root": encode_base64(root(leaves)),
    }
    log.derived |= {"author.position": str(event - start), "author.count": str(end - start)}
    return log.derived


def _verdict(edge: str) -> str:
    """An Ed25519 edge, `verdict public-key signature message` in hex, with our own verdict."""
    fields = edge.split(" ")[1:]
    key, signature, message = map(bytes.fromhex, fields)
    return " ".join(("accept" if ed25519_verify(key, signature, message) else "refuse", *fields))


def regenerate(text: str) -> str:
    """The file with each derived value computed anew. KeyError for a line that is missing or not known."""
    derived = derive(read(text))
    missing = derived.keys() - read(text).keys()
    if missing:
        raise KeyError(*sorted(missing))
    lines = []
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "ed25519":
            value = _verdict(value)
        elif not (name.startswith("#") or _GIVEN.fullmatch(name)):
            value = derived[name]
        lines.append(f"{name} {value}\n")
    return "".join(lines)


if __name__ == "__main__":
    FILE.write_text(regenerate(FILE.read_text()))
