"""Merkle trees over SHA-256 (RFC 6962 section 2.1, RFC 9162 section 2.1).

Rules kept here:

- leaf = SHA-256(00 ‖ data), node = SHA-256(01 ‖ left ‖ right): the prefixes keep leaves and nodes apart. The
  empty tree is SHA-256 of nothing; a tree of n > 1 leaves splits at the largest power of two below n.
- Trees are folded level by level: a last node without a sibling moves up as it is, which gives the same root
  as the recursive definition.
- A proof holds exactly the hashes that its sizes call for, 32 bytes each; sizes of 0 prove nothing and are
  refused, also where well-known verifiers accept them.

`root`, `path`, `Frontier` and `Tree` take level-0 nodes (leaf hashes), not data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from ledger.errors import FormatError

__all__ = [
    "EMPTY_ROOT",
    "HASH_BYTES",
    "LEAF_PREFIX",
    "NODE_PREFIX",
    "Frontier",
    "Tree",
    "leaf_hash",
    "node_hash",
    "path",
    "root",
    "subtrees",
    "verify_consistency",
    "verify_inclusion",
]

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = sha256(b"").digest()

#: What keeps leaves apart from nodes. For loops that cannot afford the call of `leaf_hash` or `node_hash`.
LEAF_PREFIX: Final = b"\x00"
NODE_PREFIX: Final = b"\x01"


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(00 ‖ data)."""
    return sha256(LEAF_PREFIX + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(01 ‖ left ‖ right)."""
    return sha256(NODE_PREFIX + left + right).digest()


def _pair(level: list[bytes]) -> list[bytes]:
    """The complete parents of `level`; an odd last node has none."""
    nodes = iter(level)
    # Written out, not node_hash: the call would cost half as much again as the hash.
    return [sha256(NODE_PREFIX + left + right).digest() for left, right in zip(nodes, nodes, strict=False)]


def _fold(level: list[bytes]) -> list[bytes]:
    """The level above `level`, with an odd last node moved up."""
    above = _pair(level)
    if len(level) & 1:
        above.append(level[-1])
    return above


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over leaf hashes of 32 bytes each (not checked: this is the verifier's inner loop)."""
    if not leaves:
        return EMPTY_ROOT
    level = list(leaves)
    while len(level) > 1:
        level = _fold(level)
    return level[0]


def subtrees(first: int, leaves: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """The largest perfect subtrees of a tree that cover the leaf hashes from index `first` on, left to right.

    (level, root of 2^level leaves) each, at most two of a level: what `Frontier.join` takes one by one.
    """
    left, right = list[tuple[int, bytes]](), list[tuple[int, bytes]]()
    nodes, position, level = list(leaves), first, 0
    while nodes:
        if position & 1:  # a right child, whose sibling is before these leaves
            left.append((level, nodes.pop(0)))
            position += 1
        if len(nodes) & 1:
            right.append((level, nodes.pop()))
        nodes, position, level = _pair(nodes), position >> 1, level + 1
    return left + right[::-1]


def path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The inclusion proof of `leaves[index]` in the tree over all `leaves`, leaf to root.

    Raises FormatError OUT_OF_RANGE unless 0 ≤ index < len(leaves).
    """
    if not 0 <= index < len(leaves):
        raise FormatError("OUT_OF_RANGE", f"expected an index below {len(leaves)}, got {index}")
    proof = []
    level = list(leaves)
    while len(level) > 1:
        if (sibling := index ^ 1) < len(level):
            proof.append(level[sibling])
        level = _fold(level)
        index >>= 1
    return proof


class Frontier:
    """The right edge of a growing tree: all that is needed to go on and to know the root.

    At most 64 hashes. `nodes` and `size` are the state; hand them to the constructor to go on from there.
    """

    __slots__ = ("_edge", "_size")

    def __init__(self, size: int = 0, nodes: Sequence[bytes] = ()) -> None:
        """Raises FormatError BAD_FRONTIER unless `nodes` holds one hash for each 1 bit of `size`."""
        if size < 0 or len(nodes) != size.bit_count() or any(len(node) != HASH_BYTES for node in nodes):
            raise FormatError("BAD_FRONTIER", f"expected a hash for each 1 bit of {size}, got {len(nodes)}")
        self._size = size
        # By level. An element counts only where its bit of the size is 1; others are leftovers.
        self._edge = [b""] * size.bit_length()
        levels = (level for level in reversed(range(size.bit_length())) if size >> level & 1)
        for level, node in zip(levels, nodes, strict=True):
            self._edge[level] = node

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._size

    @property
    def nodes(self) -> tuple[bytes, ...]:
        """The roots of the perfect subtrees that the tree splits into, left (largest) to right."""
        return tuple(node for level, node in reversed([*enumerate(self._edge)]) if self._size >> level & 1)

    def copy(self) -> Frontier:
        """An independent frontier of the same leaves."""
        other = Frontier()
        other._size, other._edge = self._size, self._edge[:]
        return other

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        self.join(0, leaf)

    def join(self, level: int, node: bytes) -> None:
        """Add 2^level leaves, whose root is `node`; FormatError BAD_FRONTIER where they are no subtree."""
        if self._size & (1 << level) - 1:
            raise FormatError("BAD_FRONTIER", f"expected a multiple of {1 << level} leaves, got {self._size}")
        grown = self._size + (1 << level)
        while self._size >> level & 1:
            node = node_hash(self._edge[level], node)
            level += 1
        self._edge += [b""] * (level + 1 - len(self._edge))
        self._edge[level] = node
        self._size = grown

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Add leaf hashes of 32 bytes each (not checked), a level at a time."""
        nodes = list(leaves)
        grown, level = self._size + len(nodes), 0
        while nodes:
            if level == len(self._edge):
                self._edge.append(b"")
            if self._size >> level & 1:
                nodes.insert(0, self._edge[level])
            if len(nodes) & 1:
                self._edge[level] = nodes[-1]
            nodes = _pair(nodes)
            level += 1
        self._size = grown

    def root(self) -> bytes:
        """The root over all leaves so far."""
        nodes = self.nodes
        if not nodes:
            return EMPTY_ROOT
        right = nodes[-1]
        for left in nodes[-2::-1]:
            right = node_hash(left, right)
        return right


class Tree:
    """A growing tree with every complete node kept, about 64 bytes a leaf: roots and proofs at any size."""

    __slots__ = ("_edges_of", "_levels")

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self._levels: list[bytearray] = [bytearray()]
        self._edges_of: tuple[int, list[bytes]] = (0, [b""])  # of the size asked for last
        self.extend(leaves)

    @property
    def size(self) -> int:
        """The number of leaves."""
        return len(self._levels[0]) // HASH_BYTES

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Add leaf hashes; FormatError BAD_HASH, and nothing added, unless each is 32 bytes."""
        nodes = list(leaves)
        if any(len(leaf) != HASH_BYTES for leaf in nodes):
            raise FormatError("BAD_HASH", "expected leaf hashes of 32 bytes each, got another length")
        level = 0
        while nodes:
            if level == len(self._levels):
                self._levels.append(bytearray())
            stored = self._levels[level]
            waiting = bytes(stored[-HASH_BYTES:]) if len(stored) // HASH_BYTES & 1 else b""
            stored += b"".join(nodes)
            nodes = _pair([waiting, *nodes] if waiting else nodes)
            level += 1

    def truncate(self, size: int) -> None:
        """Forget all but the first `size` leaves; FormatError OUT_OF_RANGE beyond the tree's size."""
        if not 0 <= size <= self.size:
            raise FormatError("OUT_OF_RANGE", f"expected a size up to {self.size}, got {size}")
        self._edges_of = (0, [b""])
        for level, stored in enumerate(self._levels):
            del stored[(size >> level) * HASH_BYTES :]

    def leaf(self, index: int) -> bytes:
        """The leaf hash at `index`; FormatError OUT_OF_RANGE unless 0 ≤ index < size."""
        if not 0 <= index < self.size:
            raise FormatError("OUT_OF_RANGE", f"expected an index below {self.size}, got {index}")
        return self._node(0, index)

    def leaves(self, indexes: Sequence[int]) -> list[bytes]:
        """The leaf hashes at ascending indexes; FormatError OUT_OF_RANGE as `leaf` raises it."""
        return [self.leaf(index) for index in indexes]

    def root(self, size: int | None = None) -> bytes:
        """The root over the first `size` leaves (default all); FormatError OUT_OF_RANGE beyond them."""
        size = self.size if size is None else size
        if not 0 <= size <= self.size:
            raise FormatError("OUT_OF_RANGE", f"expected a size up to {self.size}, got {size}")
        return self._edges(size)[-1] if size else EMPTY_ROOT

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """The proof of leaf `index` in the tree of the first `size` leaves, leaf to root.

        Raises FormatError OUT_OF_RANGE unless 0 ≤ index < size ≤ the tree's size.
        """
        if not 0 <= index < size <= self.size:
            raise FormatError("OUT_OF_RANGE", f"expected index < size ≤ {self.size}, got {index}, {size}")
        return self._climb(0, index, size)

    def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the first `new` leaves begin with the first `old` (RFC 9162, 2.1.4.1).

        Raises FormatError OUT_OF_RANGE unless 0 < old ≤ new ≤ the tree's size.
        """
        if not 0 < old <= new <= self.size:
            raise FormatError("OUT_OF_RANGE", f"expected 0 < old ≤ new ≤ {self.size}, got {old}, {new}")
        if old == new:
            return []
        # The last perfect subtree of the old tree: a node of both trees. Where it is the whole old tree the
        # verifier knows it.
        level = (old & -old).bit_length() - 1
        position = (old >> level) - 1
        seed = [self._node(level, position)] if position else []
        return seed + self._climb(level, position, new)

    def _node(self, level: int, position: int) -> bytes:
        start = position * HASH_BYTES
        return bytes(self._levels[level][start : start + HASH_BYTES])

    def _edges(self, size: int) -> list[bytes]:
        """By level, the root over what stands right of the complete nodes there, b"" for nothing.

        The last is the root of the tree of `size` leaves.
        """
        # Kept, because a log proves many entries at one size, and nodes never change.
        if self._edges_of[0] == size:
            return self._edges_of[1]
        edges = [b""]
        for level in range(size.bit_length()):
            edge = edges[-1]
            if (whole := size >> level) & 1:
                left = self._node(level, whole - 1)
                edge = node_hash(left, edge) if edge else left
            edges.append(edge)
        self._edges_of = (size, edges)
        return edges

    def _climb(self, level: int, position: int, size: int) -> list[bytes]:
        """The siblings on the way from a node up to the root of the tree of `size` leaves."""
        edges = self._edges(size)
        siblings = []
        for above in range(level, size.bit_length()):
            sibling, whole = position ^ 1, size >> above
            if sibling < whole:
                siblings.append(self._node(above, sibling))
            elif sibling == whole and edges[above]:
                siblings.append(edges[above])
            position >>= 1
        return siblings


def _all_hashes(*hashes: bytes) -> bool:
    return all(len(value) == HASH_BYTES for value in hashes)


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether `proof` shows the leaf hash at `index` of the tree of `size` leaves (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size or not _all_hashes(leaf, root, *proof):
        return False
    position, last, value = index, size - 1, leaf
    for sibling in proof:
        if not last:
            return False
        if position & 1 or position == last:
            value = node_hash(sibling, value)
            # A node without a sibling moved up as it is: no hash of the proof stands for those levels.
            while position and not position & 1:
                position, last = position >> 1, last >> 1
        else:
            value = node_hash(value, sibling)
        position, last = position >> 1, last >> 1
    return not last and value == root


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that the tree of `new` leaves begins with that of `old` (RFC 9162, 2.1.4.2)."""
    if not 0 < old <= new or not _all_hashes(old_root, new_root, *proof):
        return False
    if old == new:
        return not proof and old_root == new_root
    if not proof:
        return False
    # Where the old tree is perfect its root is the seed, and the proof leaves it out.
    seed, *siblings = proof if old & (old - 1) else [old_root, *proof]
    position, last = old - 1, new - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    old_value = new_value = seed
    for sibling in siblings:
        if not last:
            return False
        if position & 1 or position == last:
            old_value = node_hash(sibling, old_value)
            new_value = node_hash(sibling, new_value)
            while position and not position & 1:
                position, last = position >> 1, last >> 1
        else:
            new_value = node_hash(new_value, sibling)
        position, last = position >> 1, last >> 1
    return not last and old_value == old_root and new_value == new_root
