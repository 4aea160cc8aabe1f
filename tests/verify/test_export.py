"""Export files: their layout, how they are read, and that reading holds a bounded part of them."""

from __future__ import annotations

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import FormatError, VerificationError
from ledger.export import EXPORT_LINE, MAX_CHECKPOINT_BYTES, encode_export_header, read_export
from ledger.verify import verify_export
from tests.forge import Forge, numbered, refused


class _Dripping:
    """A file that gives fewer bytes than asked for, as a pipe does."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = BytesIO(data)
        self._step = step
        self.greatest = 0

    def read(self, size: int, /) -> bytes:
        self.greatest = max(self.greatest, size)
        return self._data.read(min(size, self._step))


def test_the_layout() -> None:
    """First line, u32 length, checkpoint; the run follows."""
    assert b"assay/export/v1\n\x00\x00\x00\x04note" == encode_export_header(b"note")


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 50))
def test_what_is_written_is_read(checkpoint: bytes, run: bytes, step: int) -> None:
    """Checkpoint and run come back, however the file's bytes come in."""
    found, chunks = read_export(_Dripping(encode_export_header(checkpoint) + run, step))
    assert (checkpoint, run) == (found, b"".join(chunks))


def test_a_checkpoint_has_at_most_64_kib() -> None:
    """A longer one is neither written nor read, nor is memory taken for it."""
    assert MAX_CHECKPOINT_BYTES == len(read_export(BytesIO(encode_export_header(bytes(65_536))))[0])
    with pytest.raises(FormatError, match="BAD_EXPORT"):
        encode_export_header(bytes(65_537))
    stream = _Dripping(EXPORT_LINE + b"\xff" * 4, 100)
    with pytest.raises(FormatError, match="BAD_EXPORT"):
        read_export(stream)
    assert len(EXPORT_LINE) == stream.greatest


@pytest.mark.parametrize("length", range(len(EXPORT_LINE) + 4 + 3))
def test_a_file_that_ends_before_its_run(length: int) -> None:
    """Cut anywhere before the run, a file is cut short."""
    whole = encode_export_header(b"note")
    with pytest.raises(FormatError) as caught:
        read_export(BytesIO(whole[:length]))
    assert "CUT_SHORT" == caught.value.reason


@pytest.mark.parametrize("line", [b"assay/export/v2\n", b"assay/bundle/v1\n", bytes(16)])
def test_v2_another_first_line(line: bytes) -> None:
    """Another kind of file is a finding of V2."""
    forge = Forge.opened()
    refused(forge, "V2", "BAD_EXPORT", None, export=line + forge.export()[16:])


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_log_verifies_however_its_file_comes_in(step: int) -> None:
    """Verification does not depend on where the chunks are cut."""
    forge = Forge.opened("runner")
    forge.add("runner", *map(numbered, range(5)))
    assert 7 == verify_export(_Dripping(forge.export(), step), forge.trust).size


def test_progress_counts_the_run() -> None:
    """Progress is told every byte of the run, and nothing else."""
    forge = Forge.opened("runner")
    told: list[int] = []
    verify_export(BytesIO(forge.export()), forge.trust, progress=told.append)
    header = len(encode_export_header(forge.checkpoint()))
    assert len(forge.export()) - header == sum(told)


def test_an_error_of_the_file_is_not_hidden() -> None:
    """What reading raises reaches the caller as it is."""

    class Broken:
        def read(self, size: int, /) -> bytes:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        verify_export(Broken(), Forge().trust)
    with pytest.raises(VerificationError):
        verify_export(BytesIO(b""), Forge().trust)
