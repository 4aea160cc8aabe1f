"""The contract of a store, as tests that every implementation inherits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol
from uuid import UUID

import pytest

from ledger.errors import FatalError, OverloadedError
from ledger.server.store import Commit, Marker, Store
from tests.faults import fail_database

__all__ = ["ORIGIN", "Place", "StoreContract", "a_commit"]

ORIGIN = "ledger-0123456789abcdef"
STREAM = UUID(int=7)


def a_commit(first: int, count: int = 1, salt: bytes = b"", run_bytes: int = 0) -> Commit:
    """A commit of one batch of STREAM, whose sequence is its first index."""
    run = b"run %d " % first + salt
    return Commit(
        first,
        run + bytes(max(0, run_bytes - len(run))),
        (Marker(STREAM, first, bytes(32), first),),
        first + count,
        b"checkpoint %d" % (first + count),
    )


class Place(Protocol):
    """Where stores of one kind are, for a test."""

    #: What SQL may try on rows.
    changes: tuple[str, ...]

    def store(self) -> Store:
        """A store on the place's one log and folder."""
        ...

    def other_store(self) -> Store:
        """A store on the same log in another process's eyes."""
        ...

    def execute(self, statement: str) -> None:
        """Runs SQL as the owner of the rows. Raises the driver's error."""
        ...


def reason_of(raised: pytest.ExceptionInfo[FatalError | OverloadedError]) -> str:
    """The reason of what was raised."""
    return raised.value.reason


class StoreContract:
    """Inherit, and give a fixture `place`."""

    @pytest.fixture
    def store(self, place: Place) -> Iterator[Store]:
        """An empty store whose one writer is this process."""
        made = place.store()
        made.hold()
        yield made
        made.close()

    # --- what is stored -------------------------------------------------------------------------------------

    def test_an_empty_store_has_nothing(self, store: Store) -> None:
        """Absence is absence: no head, no run, no marker, nothing released; a stream begins at 0."""
        assert store.head() is None
        assert [] == list(store.runs(0))
        assert store.marker(STREAM, 0) is None
        assert 0 == store.next_sequence(STREAM)
        assert store.released() is None

    def test_law_03_a_commit_is_there_after_closing(self, place: Place) -> None:
        """Run, marker, checkpoint and released checkpoint survive."""
        first = place.store()
        first.hold()
        first.commit(a_commit(0, 3))
        first.release(b"checkpoint 3")
        first.close()
        again = place.store()
        try:
            assert (3, b"checkpoint 3") == again.head()
            assert [(0, b"run 0 ")] == list(again.runs(0))
            assert Marker(STREAM, 0, bytes(32), 0) == again.marker(STREAM, 0)
            assert 1 == again.next_sequence(STREAM)
            assert b"checkpoint 3" == again.released()
        finally:
            again.close()

    def test_the_head_is_the_last_commit(self, store: Store) -> None:
        """By size, not by time or row; sizes beyond 32 bits too."""
        store.commit(a_commit(0, 3))
        store.commit(a_commit(3, 2**40))
        assert (2**40 + 3, b"checkpoint %d" % (2**40 + 3)) == store.head()
        assert [0, 3] == [first for first, _ in store.runs(0)]

    def test_bytes_come_back_as_they_were(self, store: Store) -> None:
        """Law 2: every byte value, in runs of 8 MiB too."""
        run = bytes(range(256)) * (8 * 2**20 // 256)
        commit = Commit(0, run, (Marker(STREAM, 0, bytes(range(32)), 0),), 9, bytes(range(256)))
        store.commit(commit)
        assert [(0, run)] == list(store.runs(0))
        assert (9, bytes(range(256))) == store.head()
        assert commit.markers[0] == store.marker(STREAM, 0)

    def test_runs_begin_with_the_one_that_holds_the_index(self, store: Store) -> None:
        """From every start, over more runs than are fetched at once, small ones and large ones mixed."""
        firsts = []
        first = 0
        for number in range(80):
            count = 1 + number % 3
            store.commit(a_commit(first, count, run_bytes=70_000 if number % 11 == 5 else 0))
            firsts.append(first)
            first += count
        for start in range(first):
            expected = [f for k, f in enumerate(firsts) if f >= start or [*firsts, first][k + 1] > start]
            assert expected == [f for f, _ in store.runs(start)]

    def test_markers_are_found_by_stream_and_sequence(self, store: Store) -> None:
        """One commit of 4096 batches by several streams."""
        streams = [UUID(int=n) for n in range(1, 4)]
        markers = tuple(Marker(streams[n % 3], n // 3, n.to_bytes(32, "big"), n) for n in range(4096))
        store.commit(Commit(0, b"run", markers, 4096, b"checkpoint"))
        for n in (0, 1, 2, 3, 4094, 4095):
            assert markers[n] == store.marker(streams[n % 3], n // 3)
        assert store.marker(streams[0], 1366) is None
        assert store.marker(UUID(int=99), 0) is None
        assert [1366, 1365, 1365, 0] == [store.next_sequence(s) for s in (*streams, UUID(int=99))]

    def test_what_is_committed_is_read_in_any_thread(self, store: Store) -> None:
        """Readers beside the writer see whole commits only: a head's marker and run are there with it."""

        def read() -> None:
            while (head := store.head()) is None or head[0] < 50:
                if head is not None:
                    size = head[0]
                    assert store.marker(STREAM, size - 1) is not None
                    assert size - 1 == next(iter(store.runs(size - 1)))[0]

        with ThreadPoolExecutor(3) as threads:
            reading = [threads.submit(read) for _ in range(3)]
            for first in range(50):
                store.commit(a_commit(first))
            for done in reading:
                done.result()

    # --- all or nothing, one place --------------------------------------------------------------------------

    def test_law_04_a_commit_is_stored_whole_or_not(self, store: Store) -> None:
        """Its last marker's place is taken: neither run nor the other marker nor checkpoint are there."""
        store.commit(a_commit(0))
        other = UUID(int=8)
        taken = (Marker(other, 0, bytes(32), 1), Marker(STREAM, 0, bytes(range(32)), 1))
        with pytest.raises(FatalError) as caught:
            store.commit(Commit(1, b"run 1", taken, 2, b"checkpoint 2"))
        assert "HEAD_MOVED" == reason_of(caught)
        assert [(0, b"run 0 ")] == list(store.runs(0))
        assert store.marker(other, 0) is None
        assert (1, b"checkpoint 1") == store.head()

    def test_another_commit_at_the_same_place_is_fatal(self, store: Store) -> None:
        """A second writer moved the head; what he stored stays."""
        store.commit(a_commit(0))
        with pytest.raises(FatalError) as caught:
            store.commit(a_commit(0, salt=b"other"))
        assert "HEAD_MOVED" == reason_of(caught)
        assert [(0, b"run 0 ")] == list(store.runs(0))

    def test_law_05_the_same_commit_again_is_committed(self, store: Store) -> None:
        """An IntegrityError over equal bytes is an acknowledgement that was lost."""
        store.commit(a_commit(0))
        store.commit(a_commit(0))
        assert (1, b"checkpoint 1") == store.head()
        assert [(0, b"run 0 ")] == list(store.runs(0))

    def test_law_06_rows_cannot_be_changed_or_removed(self, place: Place, store: Store) -> None:
        """Triggers refuse, whoever asks."""
        store.commit(a_commit(0))
        for statement in place.changes:
            with pytest.raises(Exception, match="append-only"):
                place.execute(statement)
        assert [(0, b"run 0 ")] == list(store.runs(0))

    # --- one writer -----------------------------------------------------------------------------------------

    def test_a_second_writer_is_refused_until_the_first_has_ended(self, place: Place) -> None:
        """ALREADY_RUNNING, with what to do; afterwards he goes on where the first ended."""
        first = place.store()
        first.hold()
        first.commit(a_commit(0))
        with pytest.raises(FatalError, match=r"stop that .* first") as caught:
            _held(place.other_store)
        assert "ALREADY_RUNNING" == reason_of(caught)
        first.hold()
        first.commit(a_commit(1))
        first.close()
        second = _held(place.other_store)
        try:
            assert (2, b"checkpoint 2") == second.head()
            second.commit(a_commit(2))
        finally:
            second.close()

    def test_holding_twice_is_holding(self, store: Store) -> None:
        """Asked again, the writer still is it."""
        store.hold()
        store.commit(a_commit(0))
        store.hold()
        assert (1, b"checkpoint 1") == store.head()

    # --- doubtful outcomes ----------------------------------------------------------------------------------

    def test_an_error_after_the_rows_were_stored_is_a_commit(self, store: Store) -> None:
        """Done, reported failed: read back, equal, committed."""
        fail_database(store).arm("insert", "done")
        store.commit(a_commit(0))
        assert (1, b"checkpoint 1") == store.head()
        store.commit(a_commit(1))

    def test_an_error_before_the_rows_were_stored_fails_that_commit(self, store: Store) -> None:
        """Not done, reported failed: OverloadedError, and the next try goes through."""
        fail_database(store).arm("insert", "not done")
        with pytest.raises(OverloadedError) as caught:
            store.commit(a_commit(0))
        assert "COMMIT_FAILED" == reason_of(caught)
        assert store.head() is None
        store.commit(a_commit(0))
        assert (1, b"checkpoint 1") == store.head()

    def test_an_error_while_another_writer_moved_the_head_is_fatal(self, store: Store) -> None:
        """Not done, and never to be done at this place."""
        faulty = fail_database(store)
        store.commit(a_commit(0, 2))
        faulty.arm("insert", "not done")
        with pytest.raises(FatalError) as caught:
            store.commit(a_commit(1))
        assert "HEAD_MOVED" == reason_of(caught)

    @pytest.mark.parametrize("step", ["hold", "select"])
    def test_an_outcome_that_cannot_be_read_back_is_fatal(self, store: Store, step: str) -> None:
        """Whether it was stored is not known: STORE_DOUBTFUL, never a guess."""
        faulty = fail_database(store)
        faulty.arm("insert", "done")
        inner = faulty.insert

        def insert(rows: object) -> None:
            try:
                inner(rows)  # type: ignore[arg-type]  # passed through
            finally:
                faulty.arm(step, "not done")  # type: ignore[arg-type]  # of the two

        faulty.insert = insert  # type: ignore[method-assign]  # a spy
        with pytest.raises(FatalError) as caught:
            store.commit(a_commit(0))
        assert "STORE_DOUBTFUL" == reason_of(caught)
        assert (1, b"checkpoint 1") == store.head()

    # --- the released checkpoint ----------------------------------------------------------------------------

    def test_law_06_the_released_value_survives_what_becomes_of_the_rest(self, place: Place) -> None:
        """The last value whose `release` returned, with no commit at all."""
        store = place.store()
        for value in (b"one", b"two", b"three"):
            store.release(value)
            assert value == store.released()
        store.close()
        again = place.store()
        assert b"three" == again.released()
        assert again.head() is None
        again.close()


def _held(open_store: Callable[[], Store]) -> Store:
    store = open_store()
    try:
        store.hold()
    except FatalError:
        store.close()
        raise
    return store
