"""SQLite keeps the contract."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ledger.errors import FatalError
from ledger.server.durable import Folder
from ledger.server.sqlite import SQLiteStore
from ledger.server.store import Store
from tests.contract.contract import ORIGIN, StoreContract

__all__ = ["SQLitePlace"]


class SQLitePlace:
    """A folder."""

    changes = ("UPDATE stored_events SET state = x'00'", "DELETE FROM stored_events")

    def __init__(self, path: Path) -> None:
        self._path = path

    def store(self) -> Store:
        """The folder's store."""
        return SQLiteStore(Folder(self._path), ORIGIN)

    other_store = store

    def execute(self, statement: str) -> None:
        """On the file itself."""
        with closing(sqlite3.connect(self._path / "ledger.sqlite")) as connection:
            connection.execute(statement)


class TestSQLite(StoreContract):
    """The contract."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> SQLitePlace:
        """A fresh folder."""
        return SQLitePlace(tmp_path)


def test_a_database_that_is_none_is_fatal_and_the_folder_is_free_again(tmp_path: Path) -> None:
    """STORE_UNREADABLE, not the library's own error; nothing keeps the lock."""
    (tmp_path / "ledger.sqlite").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(FatalError) as caught:
        SQLiteStore(Folder(tmp_path), ORIGIN)
    assert "STORE_UNREADABLE" == caught.value.reason
    Folder(tmp_path).close()
