"""Our bytes agree with the golden vectors, which an independent build made."""

from __future__ import annotations

import pytest

from tests.vectors.regenerate import FILE, regenerate


def test_law_02_our_code_makes_the_golden_bytes() -> None:
    """Keys, notes, entries, leaves, roots, run, checkpoints, proofs and Ed25519 verdicts are the file's."""
    text = FILE.read_text()
    assert text.splitlines() == regenerate(text).splitlines()


def test_no_golden_line_goes_unchecked() -> None:
    """A line that the generator neither takes as given nor derives is an error; so is a missing one."""
    text = FILE.read_text()
    with pytest.raises(KeyError):
        regenerate(text + "root.8 AAAA\n")
    with pytest.raises(KeyError):
        regenerate("".join(line for line in text.splitlines(True) if not line.startswith("root.7")))
