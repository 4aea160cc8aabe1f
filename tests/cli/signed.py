"""The demo's story as a signed log: what `tests.memory` tells, under real keys, in a file that verifies."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from ledger.note import SigningKey
from ledger.v1 import event_pb2
from tests.forge import Forge, opened
from tests.memory import MemoryLog, Story, demo_document, small

__all__ = ["SignedLog", "key_of", "promoted_story", "write_export"]


def key_of(name: str) -> SigningKey:
    """The key that `tests.memory` grants to a name."""
    return SigningKey(name, sha256(f"test key of {name}".encode()).digest())


class SignedLog(MemoryLog):
    """A MemoryLog whose every batch is placed by a forge too; the leaves are the forge's."""

    def __init__(self) -> None:
        self.forge = Forge(roots=(key_of("root-1"),))
        super().__init__()

    def append(self, author: str, events: Sequence[event_pb2.Event], *, alone: bool | None = None) -> int:
        """Places a batch, signed; returns its first index."""
        if not self.forge.size:
            self._place("root-1", [opened()])
        return self._place(author, events)

    def _place(self, author: str, events: Sequence[event_pb2.Event]) -> int:
        first = self.forge.add(key_of(author), *events, recorded_at=self.clock)
        for offset, event in enumerate(events):
            leaf = self.forge.leaves[first + offset]
            self.tree.extend([leaf])
            entry = (first + offset, self.clock, leaf, self.principals[author], event, len(events) == 1)
            self.entries.append(entry)
            self.replay.apply(*entry)
        return first


def promoted_story() -> tuple[Story, SignedLog]:
    """Small candidates: A is promoted to default, B holds for its approval alone."""
    log = SignedLog()
    story = Story(demo_document(small), log)
    story.setup()
    story.until_approval(story.candidate("B"))
    story.until_promoted(story.candidate("A"))
    return story, log


def write_export(log: SignedLog, folder: Path, size: int | None = None, name: str = "log.assay") -> Path:
    """The export file of the first `size` entries, beside trust.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trust.txt").write_text(log.forge.trust_text)
    file = folder / name
    file.write_bytes(log.forge.export(size=size))
    return file
