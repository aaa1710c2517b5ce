"""Writes to a lab while it is changed: what was acknowledged, and what is there at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from lab.errors import Conflict, LabError
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import nodes_of
from lab.lifecycle.nodes.nodes import Node
from lab.state.records import LabRecord
from lab.wait import Deadline, attempts

SCHEMA = "lab_upgrade"
"""The database of the rows, which is removed at the end."""
_EVERY = 0.25
"""Seconds between two writes."""
_ANSWER = 5.0
_SETTLED = 30.0
_LONG = 600.0
_MADE = (
    f"DROP DATABASE IF EXISTS {SCHEMA}",  # of an upgrade that went back
    f"CREATE DATABASE {SCHEMA}",
    f"CREATE TABLE {SCHEMA}.writes (n BIGINT PRIMARY KEY)",
)
_TABLES = (
    "SELECT table_schema, table_name, engine, table_rows FROM information_schema.tables"
    " WHERE table_type = 'BASE TABLE' ORDER BY 1, 2 LIMIT 2000"
)
_FOUND = f"SELECT n FROM {SCHEMA}.writes WHERE n BETWEEN {{first}} AND {{last}}"  # noqa: S608
_ROWS_AT_ONCE = 1000
_OTHERS = (
    "SELECT table_schema, table_name, engine, table_rows"  # noqa: S608
    " FROM information_schema.tables"
    f" WHERE table_schema = '{SCHEMA}' AND table_name <> 'writes'"
)
_SERVERS_OWN = ("mysql", "sys", "information_schema", "performance_schema", SCHEMA)
_TABLES_AT_ONCE = 100


@dataclass(frozen=True)
class ProbeReport:
    """What became of the writes; ``lost``: None if a server did not say what it has."""

    written: int
    refused: int
    lost: int | None
    changed: tuple[str, ...]


@dataclass
class Probe:
    """Writes a row every quarter of a second to the first server that takes it, in the block.

    A server that is read-only refuses it, as one that is in no primary component does; so does the
    one that is upgraded. An outage is the time in which none took any.
    """

    ctx: Context
    record: LabRecord
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _acknowledged: list[int] = field(default_factory=list)
    _refused: int = 0
    _last: float = 0.0
    _longest: float = 0.0
    _sums: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Probe:
        others = self._ask(self._servers()[0], [_OTHERS])[0]
        if any((row[0], row[1]) != (SCHEMA, "writes") for row in others if row[0] == SCHEMA):
            raise Conflict(
                f"{self.record.name} has a database {SCHEMA}, which is for the rows of the upgrade",
                hint="rename or remove it",
            )
        with suppress(LabError):  # too many tables, or a server that does not answer in time
            self._sums = self._checksums()
        self._anywhere(_MADE)
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._write, name="probe", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if kind is not None:
            with suppress(LabError):
                self._anywhere([f"DROP DATABASE IF EXISTS {SCHEMA}"])

    def begin_step(self) -> None:
        """Measure the outage from now on."""
        with self._lock:
            self._longest, self._last = 0.0, time.monotonic()

    def end_step(self) -> float:
        """The longest outage since ``begin_step``, in seconds."""
        with self._lock:
            return max(self._longest, time.monotonic() - self._last)

    def report(self, *, verify: bool) -> ProbeReport:
        """What became of all writes, after the block.

        ``verify``: whether to look for them on all servers; else how many are lost is not known.
        """
        acknowledged, servers = set(self._acknowledged), self._servers()
        if not verify:
            with suppress(LabError):
                self._anywhere([f"DROP DATABASE IF EXISTS {SCHEMA}"])
            return ProbeReport(len(acknowledged), self._refused, None, ())
        lost: int | None = None
        changed: list[str] = []
        with suppress(LabError):  # what was done is reported, whatever a server answers now
            lost = max(self._missing(node, acknowledged) for node in servers)
            now = self._checksums()
            names = sorted({*self._sums, *now})
            changed = [name for name in names if self._sums.get(name) != now.get(name)]
        with suppress(LabError):
            self._anywhere([f"DROP DATABASE IF EXISTS {SCHEMA}"])
        return ProbeReport(len(acknowledged), self._refused, lost, tuple(changed))

    def _missing(self, node: Node, acknowledged: set[int]) -> int:
        """How many acknowledged rows a server does not have, some time later: it may be late."""
        last = max(acknowledged, default=0)
        for _ in attempts(Deadline.after(_SETTLED)):
            found: set[str] = set()
            for at in range(0, last + 1, _ROWS_AT_ONCE):
                rows = self._ask(node, [_FOUND.format(first=at, last=at + _ROWS_AT_ONCE - 1)])[0]
                found |= {str(row[0]) for row in rows[:_ROWS_AT_ONCE]}
            missing = len({str(number) for number in acknowledged} - found)
            if not missing:
                break
        return missing

    def _write(self) -> None:
        number = 0
        while not self._over.wait(_EVERY):
            number += 1
            try:
                self._anywhere([f"INSERT INTO {SCHEMA}.writes VALUES ({number})"])  # noqa: S608
            except LabError:
                with self._lock:
                    self._refused += 1
                continue
            with self._lock:
                now = time.monotonic()
                self._longest, self._last = max(self._longest, now - self._last), now
                self._acknowledged.append(number)

    def _servers(self) -> list[Node]:
        return [node for node in nodes_of(self.ctx, self.record.name) if node.has_server]

    def _anywhere(self, statements: Sequence[str]) -> None:
        """Execute statements on the first server that takes them; raises the error of the last."""
        failed: LabError | None = None
        for node in self._servers():
            try:
                self._ask(node, statements)
            except LabError as error:
                failed = error
            else:
                return
        if failed is not None:
            raise failed

    def _ask(
        self, node: Node, statements: Sequence[str], timeout: float = _ANSWER
    ) -> list[tuple[tuple[object, ...], ...]]:
        account = account_of(self.ctx.home, self.record)
        found = self.ctx.ways.sql_all(account, node.sql_port, statements, timeout=timeout)
        return [one.rows for one in found]

    def _checksums(self) -> dict[str, str]:
        """The checksums of the users' tables on the first server, by their names."""
        first, found = self._servers()[0], dict[str, str]()
        rows = self._ask(first, [_TABLES])[0]
        names = [
            f"`{row[0]}`.`{row[1]}`"
            for row in rows
            if str(row[0]).lower() not in _SERVERS_OWN and "`" not in f"{row[0]}{row[1]}"
        ]
        for at in range(0, len(names), _TABLES_AT_ONCE):
            some = ", ".join(names[at : at + _TABLES_AT_ONCE])
            answer = self._ask(first, [f"CHECKSUM TABLE {some}"], _LONG)[0]
            found |= {str(row[0]): str(row[1]) for row in answer}
        return found
