"""A PostgreSQL of the tests' own: a private cluster in a temporary folder, durable as it comes.

Where it comes from: `ASSAY_TEST_POSTGRES`, the URL of a server whose role may create databases; else a
cluster made by `initdb` (in PATH or /usr/lib/postgresql), as the user `postgres` where the tests run as root,
since a PostgreSQL refuses to run as root. Where there is neither, tests are skipped with the reason, or fail
if `ASSAY_REQUIRE_POSTGRES=1`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.ports import free_port

__all__ = ["Cluster", "NoPostgresError", "cluster", "database", "programs"]

_SERVER_USER: Final = "postgres"
_PROGRAMS: Final = ("initdb", "pg_ctl", "pg_basebackup", "psql")
_INSTALLED: Final = Path("/usr/lib/postgresql")


class NoPostgresError(RuntimeError):
    """Neither a server was named nor can one be made here."""


class Cluster:
    """A server of the tests' own, in a folder that ends with it."""

    def __init__(self) -> None:
        """Raises NoPostgresError."""
        self._programs = programs()
        self._root = Path(tempfile.mkdtemp(prefix="assay-postgres-"))
        self._as_user = _give_away(self._root)
        self.port = free_port()

    @property
    def url(self) -> str:
        """As its superuser."""
        return f"postgresql://assay@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """An empty cluster."""
        self._run("initdb", "-U", "assay", "-A", "trust", "-E", "UTF8", "--locale=C")

    def copy(self, primary: Cluster) -> None:
        """A replica that follows `primary`."""
        self._run("pg_basebackup", "-R", "-d", primary.url)

    def start(self) -> None:
        """Until it takes connections: TCP too, for tests that stand between. All that is durable stays on."""
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k {self._root} -c max_connections=200"
        self._run("pg_ctl", "-l", self._root / "log", "-w", "-o", options, "start")

    def promote(self) -> None:
        """A replica becomes a primary."""
        self._run("pg_ctl", "-w", "promote")

    def crash(self) -> None:
        """As if the machine had lost its power."""
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def remove(self) -> None:
        """Its folder, and the server if it still runs."""
        if (self._root / "data" / "postmaster.pid").exists():
            self.crash()
        shutil.rmtree(self._root)

    def _run(self, program: str, *arguments: str | Path) -> None:
        """Runs a program to its end. Raises RuntimeError with what it said."""
        command = [*self._as_user, self._programs / program, "-D", self._root / "data", *arguments]
        # What pg_ctl starts would keep a pipe open: it says what it has to say to a file.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(list(map(str, command)), stdout=said, stderr=said, cwd="/", check=False)
            if done.returncode:
                said.seek(0)
                raise RuntimeError(f"expected {command} to end with 0, got {said.read().decode()}")


@contextmanager
def cluster() -> Iterator[str]:
    """The URL of a server whose role may create databases; its own cluster is gone afterwards."""
    if url := os.environ.get("ASSAY_TEST_POSTGRES"):
        yield _without_password(url)
        return
    made = Cluster()
    try:
        made.make()
        made.start()
        yield made.url
    finally:
        made.remove()


@contextmanager
def database(server: str) -> Iterator[str]:
    """The URL of a new, empty database on `server`."""
    name = f"assay_{uuid4().hex}"
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _without_password(url: str) -> str:
    """The ledger takes no password in a URL: it goes where libpq looks for it, here and in subprocesses."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    os.environ["PGPASSWORD"] = unquote(parts.password)
    user, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}@{place}").geturl()


def programs() -> Path:
    """The folder of the server's programs. Raises NoPostgresError."""
    places = sorted(_INSTALLED.glob("*/bin"), reverse=True)
    if (found := shutil.which("initdb")) is not None:
        places = [Path(found).parent, Path(found).resolve().parent, *places]
    for place in places:
        if all((place / program).exists() for program in _PROGRAMS):
            return place
    raise NoPostgresError(
        f"expected {', '.join(_PROGRAMS)} in PATH or under {_INSTALLED}, or ASSAY_TEST_POSTGRES, got neither"
    )


def _give_away(root: Path) -> Sequence[str]:
    """What to put before a command so that the server's user runs it in `root`."""
    if os.geteuid() != 0:
        return ()
    try:
        user = pwd.getpwnam(_SERVER_USER)
    except KeyError as error:
        raise NoPostgresError(f"expected a user {_SERVER_USER} to run a server as, got none") from error
    os.chown(root, user.pw_uid, user.pw_gid)
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
