"""The fault store is a store, and fails at each step in both forms; see tests.faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.errors import FatalError, OverloadedError
from ledger.server.store import Store
from tests.contract.contract import StoreContract, a_commit
from tests.contract.test_sqlite import SQLitePlace
from tests.faults import FaultStore


class _Place(SQLitePlace):
    def store(self) -> Store:
        """The folder's store, behind faults."""
        return FaultStore(super().store())

    other_store = store


class TestFaultStore(StoreContract):
    """The contract, while no fault is armed."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> _Place:
        """A fresh folder."""
        return _Place(tmp_path)


@pytest.fixture
def faulty(tmp_path: Path) -> FaultStore:
    """A fault store with one commit."""
    store = FaultStore(SQLitePlace(tmp_path).store())
    store.hold()
    store.commit(a_commit(0))
    store.release(b"checkpoint 1")
    return store


def test_a_commit_that_fails_not_done_is_not_there(faulty: FaultStore) -> None:
    """And the same again is taken."""
    faulty.arm("commit", "not done", OverloadedError("COMMIT_FAILED", "expected a commit, got a fault", 0.0))
    with pytest.raises(OverloadedError):
        faulty.commit(a_commit(1))
    assert (1, b"checkpoint 1") == faulty.head()
    faulty.commit(a_commit(1))
    assert (2, b"checkpoint 2") == faulty.head()
    faulty.close()


def test_a_commit_that_fails_done_is_there(faulty: FaultStore) -> None:
    """Reported failed all the same."""
    faulty.arm("commit", "done", FatalError("STORE_DOUBTFUL", "expected a commit, got a fault"))
    with pytest.raises(FatalError):
        faulty.commit(a_commit(1))
    assert (2, b"checkpoint 2") == faulty.head()
    faulty.close()


@pytest.mark.parametrize(("form", "expected"), [("not done", b"checkpoint 1"), ("done", b"checkpoint 2")])
def test_a_release_fails_in_both_forms(faulty: FaultStore, form: str, expected: bytes) -> None:
    """Only where it was done is the value the new one."""
    faulty.arm("release", form, FatalError("NOT_DURABLE", "expected a release, got a fault"))  # type: ignore[arg-type]  # of the two
    with pytest.raises(FatalError):
        faulty.release(b"checkpoint 2")
    assert expected == faulty.released()
    assert ("hold", "commit", "release", "release") == faulty.steps
    faulty.close()
