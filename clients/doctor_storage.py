"""What keeps a log durable: disk and database, its settings, and the file system below it.

How a connection of the ledger's flushes is no property of a file or of another session: the ledger sets that,
and checks it itself, whenever it connects. Here it is what would make every ledger refuse, or lose.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from clients.doctor import Check, Ledger, State, looked

__all__ = ["check_storage"]

_NAME: Final = "database"
_FREE: Final = 2**30  # bytes: some hours of a busy ledger
_WAL: Final = b"\x02\x02"  # bytes 18 and 19 of an SQLite file in WAL mode (file format 1.3.3)
# SQLite's locks and shared memory do not work across machines; what lies in memory is not durable.
_NOT_FOR_DATA: Final = {
    "nfs": "a network file system",
    "nfs4": "a network file system",
    "cifs": "a network file system",
    "smb3": "a network file system",
    "fuse.sshfs": "a network file system",
    "tmpfs": "in memory",
    "ramfs": "in memory",
}
#: Of PostgreSQL, and the values that lose nothing.
_DURABLE: Final = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "remote_apply"),
}
_APPEND_ONLY: Final = (
    "SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass('stored_events') AND tgenabled = 'A'"
    " AND tgname = 'stored_events_append_only'"
)
_CONNECTING: Final = 5  # seconds


def check_storage(ledger: Ledger | None) -> Iterator[Check]:
    """Where a ledger keeps its log, if its configuration could be read."""
    if ledger is None:
        for name in ("disk", "database"):
            yield Check(name, State.UNKNOWN, "the configuration that names it could not be read")
        return
    yield looked("disk", lambda: _disk(ledger.data))
    yield looked(
        "database", lambda: _sqlite(ledger.sqlite) if ledger.store is None else _postgres(ledger.store)
    )


def _disk(data: Path) -> Check:
    usage = shutil.disk_usage(data)
    found = f"{usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f} under {data}"
    if usage.free < _FREE:
        return Check(
            "disk",
            State.WRONG,
            found,
            "make room: a ledger whose disk is full refuses appends, and loses nothing",
        )
    return Check("disk", State.OK, found)


def _postgres(url: str) -> Check:
    try:
        import psycopg  # noqa: PLC0415 - an extra
    except ImportError:
        found = "PostgreSQL, and the package to ask it is not installed here"
        return Check(_NAME, State.UNKNOWN, found, "pip install 'assay-ledger[postgres]'")
    try:
        with psycopg.connect(url, connect_timeout=_CONNECTING, autocommit=True) as connection:
            got = {
                name: connection.execute("SELECT current_setting(%s)", [name]).fetchone() for name in _DURABLE
            }
            triggers = connection.execute(_APPEND_ONLY).fetchone()
            version = connection.info.server_version // 10_000
    except psycopg.Error as error:
        found = f"PostgreSQL does not answer: {' '.join(str(error).split())}"
        return Check(_NAME, State.WRONG, found, "the ledger cannot serve without it: see docs/stores.md")
    wrong = [
        f"{name} is {value and value[0]}"
        for name, value in got.items()
        if value is None or value[0] not in _DURABLE[name]
    ]
    if wrong:
        advice = "set it for the server, or for the ledger's role: the ledger refuses to commit otherwise"
        return Check(_NAME, State.WRONG, f"PostgreSQL {version}: {', '.join(wrong)}", advice)
    if triggers != (1,):
        advice = "run postgres.sql again as the owner: see docs/stores.md"
        return Check(
            _NAME, State.WRONG, f"PostgreSQL {version}: rows may be changed, the trigger is missing", advice
        )
    return Check(_NAME, State.OK, f"PostgreSQL {version}: durable commits, append-only rows")


def _sqlite(file: Path) -> Check:
    name, folder = _NAME, file.parent
    if not file.exists():
        return Check(name, State.UNKNOWN, f"no database in {folder}: no ledger has served from there yet")
    with file.open("rb") as opened:
        head = opened.read(100)
    if not head.startswith(b"SQLite format 3\x00") or head[18:20] != _WAL:
        return Check(
            name,
            State.WRONG,
            f"{file} is not an SQLite file in WAL mode",
            "see `assay fsck`; restore a backup",
        )
    kind = _file_system(folder)
    if kind is None:
        return Check(name, State.UNKNOWN, f"{file} is in WAL mode; on what file system cannot be told here")
    if (why := _NOT_FOR_DATA.get(kind)) is not None:
        return Check(name, State.WRONG, f"{file} lies on {kind}, {why}", "move the folder to a local disk")
    return Check(name, State.OK, f"{file}: WAL mode, on {kind}")


def _file_system(path: Path) -> str | None:
    """The type of the file system that holds `path`, as the kernel names it; None where it does not say."""
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return None
    return _holding(path.resolve(), mounts.read_text(encoding="utf-8").splitlines())


def _holding(path: Path, lines: Iterable[str]) -> str | None:
    """The type of the last mount that is nearest above `path`.

    proc(5): fields up to a lone dash, the fifth of which is the mount point; after the dash the type.
    """
    found: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        # Spaces and the like in a mount point are in octal.
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        depth = len(point.parts)
        if path.is_relative_to(point) and (found is None or depth >= found[0]):
            found = depth, after.split()[0]
    return None if found is None else found[1]
