"""The connection to the state: opening, transactions, and translated errors.

A file of SQLite. Transactions that write run one after the other, so that "look, then write" is
atomic between processes without retries.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from lab.errors import Conflict, HostUnfit, LabError
from lab.locks.named import lock
from lab.paths import Home, no_space, unwritable
from lab.state import migrate
from lab.values import dataclass

BUSY_TIMEOUT = 10.0
"""Seconds to wait for another process that writes."""

_COMPARED = 500
"""Rows of a table that are compared to see whether something in it changed."""


@dataclass(frozen=True)
class _Contents:
    """The rows of some tables."""

    number: object
    """The version of the whole at which they were read last."""
    rows: list[object] | None
    """None: not kept, see ``Database._rows``."""
    version: object
    """What was answered for these rows."""


class Database:
    """Transactions on the state of a home. Safe for use by several threads.

    The file may be removed while we run: the next transaction starts a new one, as the
    state may be lost at any time without losing labs.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.database
        self._guard = threading.Lock()
        self._local = threading.local()
        self._engine: Engine | None = None
        self._inode: tuple[int, int] | None = None
        self._alone = False
        self._watching = threading.Lock()
        self._watch: sqlite3.Connection | None = None
        self._watched: tuple[int, int] | None = None
        self._watches = 0
        self._contents: dict[tuple[Table, ...], _Contents] = {}

    @property
    def where(self) -> str:
        """The database as messages name it."""
        return f"the state in {self._path}"

    def close(self) -> None:
        """Close all connections; the next transaction opens new ones."""
        with self._guard:
            self._dispose()
        with self._watching:
            self._unwatch()

    def version(self) -> object:
        """What is equal to an earlier answer only if nothing was committed since, by anybody.

        Asked for each request of a service, so it takes microseconds: SQLite counts the commits of
        other connections (``PRAGMA data_version``), and this one commits nothing, nor waits.
        """
        with self._watching:
            return self._version()

    def version_of(self, *tables: Table) -> object:
        """``version`` of these tables alone: what is stored elsewhere leaves it as it is.

        What is read after it has this version only if ``version`` is the same before and after:
        rows can change, and change back. Of tables with many rows it is ``version``.
        """
        with self._watching:
            number, known = self._version(), self._contents.get(tables)
            if known is not None and known.number == number:
                return known.version
            rows = self._rows(tables) if isinstance(number, tuple) else None
            if rows is None:
                version = number
            else:
                version = known.version if known is not None and known.rows == rows else object()
            self._contents[tables] = _Contents(number, rows, version)
            return version

    def _version(self) -> object:
        if self._home.full:  # then others need the file for themselves
            return object()
        inode = self._file_inode()
        if self._watch is None or inode != self._watched:
            self._unwatch()
            if inode is None:
                return object()
            self._watch = sqlite3.connect(self._path, timeout=0, check_same_thread=False)
            self._watched, self._watches = inode, self._watches + 1
        try:
            (number,) = self._watch.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:  # such as a file that is replaced now; the next use reports it
            self._unwatch()
            return object()
        return self._watches, number

    def _rows(self, tables: Sequence[Table]) -> list[object] | None:
        """All rows of tables as they are stored; None if they are many, or cannot be read."""
        found: list[object] = []
        for table in tables:
            if self._watch is None:
                return None
            try:
                cursor = self._watch.execute(
                    f"SELECT * FROM {table.name} LIMIT {_COMPARED + 1}"  # noqa: S608  # our names
                )
                rows = cursor.fetchall()
            except sqlite3.Error:
                self._unwatch()
                return None
            if len(rows) > _COMPARED:
                return None
            found.append(rows)
        return found

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def sync(self) -> None:
        """Make what was committed survive a power loss."""
        with contextlib.suppress(FileNotFoundError):  # all of it is in the file, synced
            fd = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment; joins the one that this thread is in.

        Raises HostUnfit (cannot be opened, newer than we are), Conflict (busy), LabError
        (damaged).
        """
        with self._transaction(write=False) as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection for changes: all or nothing, and no other process writes meanwhile."""
        with self._transaction(write=True) as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        outer: Connection | None = getattr(self._local, "connection", None)
        if outer is not None:
            if write and not self._local.write:
                raise RuntimeError("a transaction that reads cannot become one that writes")
            yield outer
            return
        if write:
            self._home.release_reserve()
        with self._errors_translated(), self._current_engine().connect() as plain:
            connection = plain.execution_options(lab_mode="write" if write else "read")
            with connection.begin():
                self._local.connection, self._local.write = connection, write
                try:
                    yield connection
                finally:
                    self._local.connection = None

    def _current_engine(self) -> Engine:
        with self._guard:
            stale = self._inode != self._file_inode() or (self._alone and not self._home.full)
            if self._engine is not None and stale:
                self._dispose()
            if self._engine is None:
                self._open()
            assert self._engine is not None  # noqa: S101  # for the type checker
            return self._engine

    def _open(self) -> None:
        self._create_file(self._path)
        self._inode = self._file_inode()
        self._alone = False
        if self._home.full:
            with self._watching:
                self._unwatch()
        try:
            revision = self._connected()
        except OperationalError:
            if not self._home.full:
                raise
            # There is no space for the shared index of the journal; exclusive access needs none.
            self._alone = True
            revision = self._connected()
        try:
            if not migrate.is_current(revision, self.where):
                assert self._engine is not None  # noqa: S101  # for the type checker
                self._migrate(self._engine)
        except BaseException:
            self._dispose()
            raise

    def _connected(self) -> str | None:
        """Make the engine, connect, and return the schema's revision."""
        self._engine = _engine(self._path, alone=self._alone)
        try:
            with self._engine.connect() as connection:
                return self._revision(connection)
        except BaseException:
            self._dispose()
            raise

    def _create_file(self, path: Path) -> None:
        """Make the file ourselves: SQLite would make it readable for all."""
        self._home.create()
        if path.exists():
            return
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise unwritable(path, error) from error

    def _migrate(self, engine: Engine) -> None:
        with lock(self._home, "state", "schema"):
            with engine.connect() as plain:
                # Kept in the file, and not possible within a transaction.
                connection = plain.execution_options(lab_mode="none")
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            with engine.connect() as plain:
                connection = plain.execution_options(lab_mode="write")
                with connection.begin():
                    revision = self._revision(connection)
                    if revision is None:
                        migrate.create(connection)
                    elif not migrate.is_current(revision, self.where):
                        migrate.upgrade(connection)

    def _revision(self, connection: Connection) -> str | None:
        try:
            return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        except OperationalError as error:
            # Cheaper than asking for the table first, which is there all but once.
            if "no such table" in str(error.orig):
                return None
            raise

    def _file_inode(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @contextlib.contextmanager
    def _errors_translated(self) -> Iterator[None]:
        """Turn what the driver raises into our errors."""
        try:
            yield
        except DBAPIError as error:
            raise self._translated(error) from error

    def _translated(self, error: DBAPIError) -> LabError:
        message = str(error.orig).strip()
        busy = any(word in message for word in _BUSY)
        if "is full" in message or (self._home.full and not busy):
            return no_space(self._path)
        for words, kind, what, hint in _SQLITE_ERRORS:
            if any(word in message for word in words):
                return kind(f"{self.where} {what}: {message}", hint=hint)
        return LabError(f"{self.where} failed: {message}", hint="`--debug` shows where")


_BUSY = ("is locked", "is busy")
_SQLITE_ERRORS: tuple[tuple[tuple[str, ...], type[LabError], str, str], ...] = (
    (
        ("unable to open", "readonly", "permission", "disk I/O"),
        HostUnfit,
        "cannot be used",
        "set LAB_HOME to a directory you may write to, or become its owner",
    ),
    (_BUSY, Conflict, "is busy", "try again; another lab process writes to it"),
    (
        ("not a database", "malformed"),
        LabError,
        "is damaged",
        "move it away, with its -wal and -shm: labs are found again by the tags on their guests",
    ),
)


def _engine(path: Path, *, alone: bool = False) -> Engine:
    """Connect to a database.

    ``alone``: no other process may use an SQLite file during a transaction.
    """
    # Parameters are hidden, as passwords are among them and tracebacks show them.
    url = URL.create("sqlite", database=str(path))
    # Alone, a connection that is kept would keep all others out for as long as we run.
    how: dict[str, Any] = {"poolclass": NullPool} if alone else {"max_overflow": -1}
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT}, hide_parameters=True, **how)
    if alone:
        event.listen(engine, "connect", _connected_alone)
    event.listen(engine, "connect", _connected_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _connected_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves, below
    connection.execute("PRAGMA foreign_keys=ON")
    # With WAL this survives a crash of the process; one of the host takes guests with it.
    connection.execute("PRAGMA synchronous=NORMAL")


def _connected_alone(connection: Any, _: object) -> None:
    # Before anything is read: the journal's index is then kept in memory (SQLite, "Use of WAL
    # Without Shared-Memory").
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")


def _begin_sqlite(connection: Connection) -> None:
    statement = {"write": "BEGIN IMMEDIATE", "read": "BEGIN"}.get(_mode(connection))
    if statement:
        connection.exec_driver_sql(statement)


def _mode(connection: Connection) -> str:
    mode: str = connection.get_execution_options().get("lab_mode", "read")
    return mode
