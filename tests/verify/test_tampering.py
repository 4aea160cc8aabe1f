"""Every tampering with a small log: flipped, dropped, swapped, cut, spliced, replayed; each is found."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import VerificationError
from tests.events import minimal_event
from tests.forge import Forge, export_of, make_key, numbered, refused, relink, verify


def _log() -> Forge:
    """Index 0 opens, 1 and 2 grant, 3 to 5 runner, 6 trainer, 7 and 8 runner, 9 runner."""
    forge = Forge.opened("runner", "trainer")
    forge.add("runner", *map(numbered, range(3)))
    forge.add("trainer", minimal_event("training_progressed"))
    forge.add("runner", numbered(3), numbered(4))
    forge.add("runner", numbered(5))
    return forge


LOG = _log()
EXPORT = LOG.export()


def test_the_log_itself_passes() -> None:
    """What is tampered with below is true before."""
    assert 10 == LOG.verify().size


@pytest.mark.parametrize("bit", range(8))
def test_law_02_every_bit_of_an_export_is_authenticated(bit: int) -> None:
    """Any one flipped bit, in the header, the checkpoint, a length or an entry, refuses the export."""
    passed = []
    for position in range(len(EXPORT)):
        tampered = bytearray(EXPORT)
        tampered[position] ^= 1 << bit
        try:
            verify(bytes(tampered), LOG.trust)
        except VerificationError:
            continue
        passed.append(position)
    assert [] == passed


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_law_02_any_bytes_in_place_of_any_others(data: st.DataObject) -> None:
    """Any stretch replaced by any other bytes refuses the export: with a finding, never with a crash."""
    start = data.draw(st.integers(0, len(EXPORT) - 1))
    stop = data.draw(st.integers(start, min(len(EXPORT), start + 80)))
    other = data.draw(st.binary(max_size=80))
    tampered = EXPORT[:start] + other + EXPORT[stop:]
    if tampered == EXPORT:
        assert 10 == verify(tampered, LOG.trust).size
        return
    with pytest.raises(VerificationError):
        verify(tampered, LOG.trust)


@pytest.mark.parametrize(
    ("index", "step", "reason", "found"),
    [
        (0, "V4", "BAD_KEY_ID", 0),  # the last byte of LedgerOpened is the ledger key's
        (1, "V2", "BAD_LINK", 2),
        (2, "V3", "BAD_BATCH_SIGNATURE", 1),
        (3, "V2", "BAD_LINK", 4),
        (4, "V2", "BAD_LINK", 5),
        (5, "V3", "BAD_BATCH_SIGNATURE", 3),
        (6, "V3", "BAD_BATCH_SIGNATURE", 6),
        (7, "V2", "BAD_LINK", 8),
        (8, "V3", "BAD_BATCH_SIGNATURE", 7),
        (9, "V3", "BAD_BATCH_SIGNATURE", 9),
    ],
)
def test_flip_an_event_byte(index: int, step: str, reason: str, found: int) -> None:
    """Within a batch the next link says where; at its end the author's signature does."""
    entries = list(LOG.entries)
    entries[index] = entries[index][:-1] + bytes([entries[index][-1] ^ 1])
    refused(LOG, step, reason, found, export=export_of(LOG.checkpoint(), entries))


@pytest.mark.parametrize("index", range(9))
def test_drop_an_entry(index: int) -> None:
    """Where an entry lacks, the next says another index."""
    entries = LOG.entries[:index] + LOG.entries[index + 1 :]
    refused(LOG, "V2", "BAD_INDEX", index, export=export_of(LOG.checkpoint(), entries))


@pytest.mark.parametrize(
    ("index", "step", "reason", "found"),
    [
        (0, "V4", "NOT_OPENED", 0),
        (1, "V3", "NO_OPENING", 1),
        (4, "V3", "BAD_OFFSET", 4),
        (5, "V3", "OPEN_BATCH", 3),
        (6, "V5", "BAD_SIZE", None),
        (7, "V3", "NO_OPENING", 7),
        (9, "V5", "BAD_SIZE", None),
    ],
)
def test_drop_an_entry_and_mend_the_chain(index: int, step: str, reason: str, found: int | None) -> None:
    """With indexes and links made right again the batch or the checkpoint shows it."""
    mended = relink(LOG.entries[:index] + LOG.entries[index + 1 :])
    refused(LOG, step, reason, found, export=export_of(LOG.checkpoint(), mended.entries))


def test_drop_a_whole_batch_and_mend_chain_and_checkpoint() -> None:
    """A ledger that leaves out a batch, and signs that, is shown by the author's next sequence."""
    mended = relink(LOG.entries[:3] + LOG.entries[6:])
    refused(mended, "V3", "SEQUENCE_GAP", 4)


def test_drop_the_last_batch_of_a_stream_is_not_to_be_seen() -> None:
    """A withheld tail shows to its author only, who lacks an acknowledgement; no auditor can see it."""
    mended = relink(LOG.entries[:9])
    assert 9 == mended.verify().size


@pytest.mark.parametrize("index", range(9))
def test_swap_two_entries(index: int) -> None:
    """Neighbours swapped are found at the first of them."""
    entries = list(LOG.entries)
    entries[index], entries[index + 1] = entries[index + 1], entries[index]
    refused(LOG, "V2", "BAD_INDEX", index, export=export_of(LOG.checkpoint(), entries))


@pytest.mark.parametrize(
    ("index", "step", "reason", "found"),
    [(4, "V3", "BAD_OFFSET", 4), (5, "V3", "OPEN_BATCH", 3), (7, "V3", "NO_OPENING", 7)],
)
def test_swap_two_entries_and_mend_the_chain(index: int, step: str, reason: str, found: int) -> None:
    """The offsets within a batch show a swap, where links and indexes were mended."""
    entries = list(LOG.entries)
    entries[index], entries[index + 1] = entries[index + 1], entries[index]
    refused(relink(entries), step, reason, found)


def test_swap_two_batches_of_a_stream_and_mend_the_chain() -> None:
    """A ledger that turns an author's order round is shown by the sequence."""
    mended = relink(LOG.entries[:7] + LOG.entries[9:] + LOG.entries[7:9])
    refused(mended, "V3", "SEQUENCE_GAP", 7)


def test_swap_batches_of_two_authors_is_the_ledger_s_to_do() -> None:
    """A ledger orders between authors; that it can do so, and no more, is the claim."""
    mended = relink(LOG.entries[:3] + LOG.entries[6:7] + LOG.entries[3:6] + LOG.entries[7:])
    assert 10 == mended.verify().size


@pytest.mark.parametrize("size", range(1, 10))
def test_truncate(size: int) -> None:
    """A cut tail is shown by the open batch or by the signed size."""
    opens = {2: 1, 4: 3, 5: 3, 8: 7}
    found = ("V3", "OPEN_BATCH", opens[size]) if size in opens else ("V5", "BAD_SIZE", None)
    refused(LOG, *found, export=export_of(LOG.checkpoint(), LOG.entries[:size]))


def test_truncate_at_every_byte() -> None:
    """However many bytes lack at the end, the export is refused."""
    for length in range(len(EXPORT)):
        with pytest.raises(VerificationError):
            verify(EXPORT[:length], LOG.trust)


def test_splice_entries_of_another_log() -> None:
    """A batch of another log of the same authors, chain mended, has a signature over another origin."""
    other = Forge.opened("runner", "trainer", ledger=make_key("ledger.test/assay-fedcba9876543210"))
    first = other.add("runner", *map(numbered, range(3)))
    mended = relink(LOG.entries[:3] + other.entries[first:])
    refused(mended, "V3", "BAD_BATCH_SIGNATURE", 3)
    unmended = export_of(LOG.checkpoint(), LOG.entries[:3] + other.entries[first:] + LOG.entries[6:])
    refused(LOG, "V2", "BAD_LINK", 3, export=unmended)


def test_splice_an_event_into_a_batch() -> None:
    """An event of one batch put into another, chain mended, breaks the author's signature."""
    forge = Forge.opened("runner", "trainer")
    forge.add("runner", numbered(0), numbered(1), numbered(2))
    forge.add("runner", numbered(3), numbered(4), numbered(5))
    mended = relink(forge.entries[:4] + forge.entries[7:8] + forge.entries[5:])
    refused(mended, "V3", "BAD_BATCH_SIGNATURE", 3)


@pytest.mark.parametrize("times", [1, 2])
def test_law_05_replay_of_an_old_batch(times: int) -> None:
    """A batch that the ledger places again, chain and checkpoint mended, repeats its sequence."""
    mended = relink(LOG.entries + LOG.entries[3:6] * times)
    refused(mended, "V3", "SEQUENCE_REPEATED", 10)


def test_replay_of_the_opening() -> None:
    """Root's first batch placed again would open the log again."""
    mended = relink(LOG.entries + LOG.entries[:1])
    refused(mended, "V4", "ALREADY_OPENED", 10)


def test_append_after_the_checkpoint() -> None:
    """Entries beyond the signed size are refused, true as they may be."""
    refused(LOG, "V5", "BAD_SIZE", None, export=export_of(LOG.checkpoint(9), LOG.entries))
