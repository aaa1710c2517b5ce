"""The database of a fleet: connections with time limits, transactions, and translated errors."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from lab.errors import Conflict, HostUnfit, LabError
from lab.fleet.schema import REVISION, SCHEMA

PATIENCE = 2.0
"""Seconds that a request waits for the database; then it gets 503, and is to come again."""
CONNECTIONS = 5
"""Of a host; each takes a process of PostgreSQL's."""
_MIGRATION = 600.0
"""Seconds that a statement of a migration may take."""
_VERSION_TABLE = "fleet_version"
_AWAY = ("", "08", "25", "28", "3D", "40", "53", "55", "57", "58")
"""Classes of errors that say nothing about the statement: a connection that broke, a server that
starts or ends, a time limit, a standby that is read-only, too many connections."""


class Unreachable(HostUnfit):
    """The fleet's database does not answer; the same may succeed in a moment."""


class Fenced(Conflict):
    """A host was declared lost, or another process took its place: its writes are refused."""


class _Guard:
    """Ends connections whose server has not answered in time.

    PostgreSQL keeps ``statement_timeout`` itself, and the kernel answers keepalives: a server that
    hangs would hang its clients. A thread shuts the sockets down, so that the driver sees an error.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._limits: dict[int, tuple[int, float]] = {}
        """The socket, and when it is shut down, by a number."""
        self._next = 0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def limited(self, connection: Connection) -> Iterator[None]:
        """Shut the connection down if the block takes longer than a server that answers."""
        driver = connection.connection.driver_connection
        assert driver is not None  # noqa: S101  # for the type checker
        # Its own descriptor: the driver's number may be another file's when it is over.
        socket_ = os.dup(driver.pgconn.socket)
        with self._lock:
            self._next += 1
            number = self._next
            self._limits[number] = socket_, time.monotonic() + self._patience
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, daemon=True, name="lab-guard")
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._limits[number]
            os.close(socket_)

    def _watch(self) -> None:
        while not self._ends.wait(PATIENCE / 4):
            now = time.monotonic()
            with self._lock:
                for file, end in self._limits.values():
                    if end < now:
                        with suppress(OSError), socket.socket(fileno=os.dup(file)) as late:
                            late.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the thread."""
        self._ends.set()


class FleetDatabase:
    """Transactions on the database of a fleet. Safe for use by several threads.

    ``url``: ``postgresql://user@host/database``; ``patience``: seconds for a statement. Raises
    HostUnfit if it is none.
    """

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        self.url = parse(url)
        self._engine = create_engine(
            self.url,
            hide_parameters=True,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_timeout=PATIENCE,
            connect_args={
                "connect_timeout": int(PATIENCE),
                "options": f"-c statement_timeout={patience * 1000:.0f}"
                f" -c lock_timeout={patience * 1000:.0f} -c timezone=UTC",
                "keepalives_idle": 5,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": int(PATIENCE * 1000),
            },
        )
        event.listen(self._engine, "checkin", _used)
        event.listen(self._engine, "checkout", _check_open)
        self._guard = _Guard(2 * patience)
        # PostgreSQL's own way for single statements: one journey instead of three.
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @property
    def where(self) -> str:
        """The database as messages name it; no account."""
        place = self.url.host or self.url.query.get("host", "localhost")
        return f"the fleet's database {self.url.database} at {place}"

    def close(self) -> None:
        """Close all connections; the next transaction opens new ones."""
        self._engine.dispose()
        self._guard.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """All or nothing. Raises Unreachable, Conflict."""
        with (
            self._errors_translated(),
            self._engine.begin() as connection,
            self._guard.limited(connection),
        ):
            yield connection

    def run(self, statement: str, **values: Any) -> list[Any]:
        """Execute one statement on its own; its rows, none where it has none. Raises as above."""
        with (
            self._errors_translated(),
            self._single.connect() as connection,
            self._guard.limited(connection),
        ):
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def check(self) -> None:
        """Raise HostUnfit unless its tables are those that this program knows."""
        with (
            self._errors_translated(),
            self._single.connect() as connection,
            self._guard.limited(connection),
        ):
            found = revision(connection)
        if found == REVISION:
            return
        if found is None:
            raise self._without_tables()
        newer = found > REVISION
        raise HostUnfit(
            f"{self.where} has schema {found}, this program knows {REVISION}",
            hint="upgrade lab on this host" if newer else "`lab db migrate` upgrades the schema",
        )

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            raise self._unreachable("all connections are in use") from error
        except DBAPIError as error:
            translated = self._translated(error)
            if translated is None:
                raise
            raise translated from error
        except SQLAlchemyError as error:
            raise self._unreachable(str(error).splitlines()[0]) from error

    def _translated(self, error: DBAPIError) -> LabError | None:
        """By the classes of PostgreSQL, "Appendix A"; None: a statement of ours is wrong."""
        code = getattr(error.orig, "sqlstate", None) or ""
        message = (str(error.orig).strip().splitlines() or [""])[0]
        if code[:2] == "23":  # integrity constraint violation
            return Conflict(f"{self.where}: {message}")
        if code in ("42P01", "3F000"):  # undefined table, schema
            return self._without_tables()
        if code == "42501":
            return HostUnfit(
                f"{self.where}: {message}",
                hint="`lab db migrate --grant ROLE` gives a role what services need",
            )
        return self._unreachable(message) if code[:2] in _AWAY else None

    def _without_tables(self) -> HostUnfit:
        return HostUnfit(
            f"{self.where} has no tables of a fleet",
            hint="`lab db migrate` makes them, with a role that may",
        )

    def _unreachable(self, why: str) -> Unreachable:
        return Unreachable(
            f"the database of the fleet does not answer: {why}",
            hint="labs that run are reachable meanwhile; try again",
            retry_after=PATIENCE,
        )


def _used(_: Any, record: ConnectionPoolEntry) -> None:
    record.info["used"] = True


def _check_open(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
    """Have the pool replace a kept connection that its server has ended since; costs no journey.

    A server says nothing unasked but that it ends, so there is nothing to read; on a new one there
    may be what TLS says after its handshake.
    """
    ready = select.poll()  # select() takes no descriptor from 1024 on
    ready.register(connection, select.POLLIN)
    if record.info.get("used") and ready.poll(0):
        raise DisconnectionError


def parse(url: str) -> URL:
    """The URL of a database of PostgreSQL; raises HostUnfit for another."""
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):  # the latter: not one port
        found = None
    if found is None or found.get_backend_name() != "postgresql":
        raise HostUnfit(
            "the URL of the fleet's database is none of PostgreSQL's",
            hint="such as postgresql://lab@db.example/lab, or of two servers"
            " postgresql://lab@/lab?host=db1,db2&target_session_attrs=read-write",
        )
    return found.set(drivername="postgresql+psycopg")


def revision(connection: Connection) -> str | None:
    """The revision of the fleet's tables; None without."""
    if (
        connection.execute(text(f"SELECT to_regclass('{SCHEMA}.{_VERSION_TABLE}')")).scalar()
        is None
    ):
        return None
    query = f"SELECT version_num FROM {SCHEMA}.{_VERSION_TABLE}"
    found: str | None = connection.execute(text(query)).scalar()
    return found


def migrate(url: str, *, grant: str = "") -> str:
    """Bring the tables to this program's revision, and return the one of before ("" without).

    ``grant``: a role that services use; it may then read and write rows. Raises HostUnfit.
    """
    from alembic import command
    from alembic.config import Config

    database = FleetDatabase(url, patience=_MIGRATION)
    try:
        with database.transaction() as connection:
            before = revision(connection)
            if before is not None and before > REVISION:
                raise HostUnfit(
                    f"{database.where} has schema {before}, this program knows {REVISION}",
                    hint="upgrade lab on this host",
                )
            connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
            config = Config()
            config.set_main_option("script_location", "lab.fleet:migrations")
            config.attributes |= {"connection": connection, "version_table": _VERSION_TABLE}
            command.upgrade(config, "head")
            if grant:
                role = connection.dialect.identifier_preparer.quote_identifier(grant)
                for rights in (
                    f"USAGE ON SCHEMA {SCHEMA}",
                    f"SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA}",
                    f"USAGE ON ALL SEQUENCES IN SCHEMA {SCHEMA}",
                ):
                    connection.execute(text(f"GRANT {rights} TO {role}"))
        return before or ""
    finally:
        database.close()
