"""Writes to a lab while it is changed: what was acknowledged, and what is there at the end."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import field
from functools import cached_property, partial
from types import TracebackType

from lab.errors import Conflict, LabError, NotReady, StatementRefused
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import lab, nodes_of
from lab.lifecycle.nodes.nodes import Node
from lab.observe.account import Account
from lab.state.records import LabRecord
from lab.values import dataclass
from lab.views.labs import Link
from lab.views.upgrades import ReplicatedView
from lab.wait import Deadline, attempts

SCHEMA = "lab_upgrade"
"""The database of the rows, which is removed at the end."""
_EVERY = 0.25
"""Seconds between two writes."""
_LOOK = 0.5
"""Seconds between two questions to an endpoint."""
_ANSWER = 5.0
"""Seconds for what is written and asked again and again: later, it is no answer."""
_PATIENCE = 0.5
"""Seconds after which another server is asked to take a row, while the first may still do so."""
_ASKED_ONCE = 60.0
"""And for what the report needs: a server that has just started reads its catalogue first, which
takes seconds where it is emulated."""
SETTLED = 30.0
"""Seconds after which a row that was acknowledged has come to all servers."""
_LONG = 600.0
_MADE = (
    f"DROP DATABASE IF EXISTS {SCHEMA}",  # of an upgrade that went back
    f"CREATE DATABASE {SCHEMA}",
    f"CREATE TABLE {SCHEMA}.writes (n BIGINT PRIMARY KEY)",
)
_MOST_TABLES = 2000
_TABLES = (
    "SELECT table_schema, table_name, engine, table_rows FROM information_schema.tables"
    " WHERE table_type = 'BASE TABLE' ORDER BY 1, 2 LIMIT {limit}"
)
_FOUND = f"SELECT n FROM {SCHEMA}.writes WHERE n BETWEEN {{first}} AND {{last}}"  # noqa: S608
_ROW = f"INSERT INTO {SCHEMA}.writes VALUES ({{number}})"  # noqa: S608
READ_ONLY = (1290, 1836)
"""Errors of servers that are read-only: ER_OPTION_PREVENTS_STATEMENT, ERREAD_ONLY_MODE."""
_NUMBER = re.compile("[0-9]{1,9}")
_ROWS_AT_ONCE = 1000
_OTHERS = (
    "SELECT table_schema, table_name, engine, table_rows"  # noqa: S608
    " FROM information_schema.tables"
    f" WHERE table_schema = '{SCHEMA}' AND table_name <> 'writes'"
)
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,3}")
"""Of what a server says: a name, a packager and others may follow."""
_SERVERS_OWN = ("mysql", "sys", "information_schema", "performance_schema", SCHEMA)
_TABLES_AT_ONCE = 100


@dataclass(frozen=True)
class ProbeReport:
    """How many rows were written, refused and lost, and which tables others changed."""

    written: int
    """Rows that a server acknowledged."""
    refused: int
    """How often no server took a row."""
    lost: int | None
    """Acknowledged rows that a server lacks; None if one did not say what it has."""
    changed: tuple[str, ...] | None
    """Tables whose checksum differs; None if the server did not give it before and after."""
    unchecked: tuple[str, ...] = ()
    """Servers that were not asked, and why."""


@dataclass
class _Silence:
    """The longest time between two answers, since ``begin``."""

    _last: float = field(default_factory=time.monotonic)
    _longest: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        with self._lock:
            self._longest, self._last = 0.0, time.monotonic()

    def answered(self) -> None:
        with self._lock:
            now = time.monotonic()
            self._longest, self._last = max(self._longest, now - self._last), now

    def longest(self) -> float:
        """In seconds; one that lasts counts as well."""
        with self._lock:
            return max(self._longest, time.monotonic() - self._last)


@dataclass(frozen=True)
class Outages:
    """The longest times without an answer, in seconds.

    ``writes``: without a server that took a row; ``endpoints``: by the name of a server, or that of
    a proxy with its endpoint.
    """

    writes: float
    endpoints: Mapping[str, float]


@dataclass
class Probe:
    """Writes a row every quarter of a second to a server that takes it, in the block.

    That is the one which took the last row, as long as it does.

    A server that is read-only refuses it, as one that is in no primary component does; so does the
    one that is upgraded. Each server, and each endpoint of a proxy, is asked for an answer beside
    it.
    """

    ctx: Context
    record: LabRecord
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _acknowledged: dict[str, set[int]] = field(default_factory=dict)
    """The numbers of rows, by the server that took them."""
    _refused: int = 0
    _writes: _Silence = field(default_factory=_Silence)
    _endpoints: dict[str, _Silence] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)
    _sums: dict[str, str] | None = None
    """The checksums before; None: not known."""
    _roles: dict[str, str] = field(default_factory=dict)
    _links: tuple[Link, ...] = ()
    _made_on: str = ""
    """The server on which the table of the rows was created."""

    def __enter__(self) -> Probe:
        others = self._ask(self._servers()[0], [_OTHERS])[0]
        if any((row[0], row[1]) != (SCHEMA, "writes") for row in others if row[0] == SCHEMA):
            raise Conflict(
                f"{self.record.name} has a database {SCHEMA}, which is for the rows of the upgrade",
                hint="rename or remove it",
            )
        seen = lab(self.ctx, self.record.name)
        self._roles, self._links = {node.name: node.role for node in seen.nodes}, seen.links
        with suppress(LabError):  # a server that does not answer in time
            self._sums = self._checksums()
        self._made_on = self._anywhere(_MADE)
        self._writes.begin()
        self._begin_thread(self._write)
        for name, port in self._ports().items():
            self._endpoints[name] = silence = _Silence()
            self._begin_thread(partial(self._look, port, silence))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if kind is not None:  # an interrupt, perhaps: a server that hangs is not waited for
            with suppress(LabError):
                self._anywhere([f"DROP DATABASE IF EXISTS {SCHEMA}"], _ANSWER)

    def begin_step(self) -> None:
        """Measure outages from now on."""
        for one in (self._writes, *self._endpoints.values()):
            one.begin()

    def end_step(self) -> Outages:
        """The longest outages since ``begin_step``."""
        found = {name: one.longest() for name, one in self._endpoints.items()}
        return Outages(self._writes.longest(), found)

    def version(self, node: Node) -> str:
        """The version that a server has, as it says itself; empty if it does not answer."""
        with suppress(LabError):
            found = _VERSION.match(str(self._ask(node, ["SELECT VERSION()"])[0][0][0]))
            return found[0] if found else ""
        return ""

    def provider(self, node: Node) -> str | None:
        """The version of a server's wsrep provider; empty if it has none, None if not known."""
        with suppress(LabError):
            rows = self._ask(node, ["SHOW GLOBAL STATUS LIKE 'wsrep_provider_version'"])[0]
            return str(rows[0][1])[:100] if rows else ""
        return None

    def protocol(self, node: Node) -> int | None:
        """The version of the protocol of a server's cluster; None if it has none, or not known."""
        with suppress(LabError):
            rows = self._ask(node, ["SHOW GLOBAL STATUS LIKE 'wsrep_protocol_version'"])[0]
            said = str(rows[0][1]) if rows else ""
            return int(said) if _NUMBER.fullmatch(said) else None
        return None

    def replicated(self, node: Node) -> tuple[ReplicatedView, ...]:
        """A row for each direction in which ``node`` replicates, from another server and to one.

        Another one is of those that have not its image, if there are. There is no direction to a
        delayed replica, and none from a server that is read-only, or to which our table does not
        come. Raises NotReady if none takes a row.
        """
        others = [one for one in self._servers() if one.name != node.name]
        others.sort(key=lambda one: one.image == node.image)
        found = []
        for takers, targets in ((others, [node]), ([node], others)):
            pairs = [(a, b) for a in takers for b in targets if self._comes(a, b)]
            took = self._taken(list(dict.fromkeys(taker for taker, _ in pairs)))
            if took is not None:
                taker, row = took
                target = next(b for a, b in pairs if a == taker)
                found.append(self._arrives(row, taker, target))
        return tuple(found)

    def _comes(self, source: Node, target: Node) -> bool:
        """Whether ``source`` has our table, and its rows come to ``target``, by no delayed one."""
        has_it = self._made_on in self._sources(source.name)
        comes = source.name in self._sources(target.name)
        return has_it and comes and target.name not in self._late

    def _taken(self, nodes: Sequence[Node]) -> tuple[Node, int] | None:
        """The first of ``nodes`` that takes a row, and its number; None if all are read-only.

        Raises NotReady if none takes one in time.
        """
        for _ in attempts(Deadline.after(SETTLED)):
            self.ctx.progress.halt()
            failed = list[LabError]()
            for node in nodes:
                row = next(self._numbers)
                try:
                    self._ask(node, [_ROW.format(number=row)], _ANSWER)
                except LabError as error:
                    failed.append(error)
                else:
                    self._took(node.name, row)
                    return node, row
            if all(isinstance(one, StatementRefused) and one.status in READ_ONLY for one in failed):
                return None
        names = " and ".join(node.name for node in nodes)
        raise NotReady(
            f"no row was taken by {names} within {SETTLED:g} s", details=[failed[-1].what]
        )

    def _arrives(self, row: int, source: Node, target: Node) -> ReplicatedView:
        began, error = time.monotonic(), ""
        for _ in attempts(Deadline.after(SETTLED)):
            self.ctx.progress.halt()
            try:
                asked = _FOUND.format(first=row, last=row)
                if self._ask(target, [asked], _ANSWER)[0]:
                    seconds = time.monotonic() - began
                    return ReplicatedView(source.name, target.name, seconds)
                error = ""
            except LabError as failed:
                error = f": {failed}"
        what = f"{target.name} does not have the row that {source.name} acknowledged"
        why = f"{what} {SETTLED:g} s before{error}"
        return ReplicatedView(source.name, target.name, None, why)

    def report(self, *, verify: bool) -> ProbeReport:
        """Count all writes, after the block.

        ``verify``: whether to look for them on all servers; else how many are lost is not known.
        """
        written = sum(map(len, self._acknowledged.values()))
        if not verify:
            with suppress(LabError):
                self._anywhere([f"DROP DATABASE IF EXISTS {SCHEMA}"])
            return ProbeReport(written, self._refused, None, None)
        lost: int | None = None
        changed: tuple[str, ...] | None = None
        wanted, unchecked = self._wanted()
        with suppress(LabError):  # what was done is reported, whatever a server answers now
            lost = max((self._missing(node, rows) for node, rows in wanted), default=0)
        with suppress(LabError):
            changed = self._changed()
        with suppress(LabError):
            self._anywhere([f"DROP DATABASE IF EXISTS {SCHEMA}"])
        return ProbeReport(written, self._refused, lost, changed, tuple(unchecked))

    def _changed(self) -> tuple[str, ...] | None:
        """The tables whose checksums are not those before; None if either are not known."""
        before = self._sums
        now = None if before is None else self._checksums()
        if before is None or now is None:
            return None
        names = sorted({*before, *now})
        return tuple(name for name in names if before.get(name) != now.get(name))

    def _wanted(self) -> tuple[list[tuple[Node, set[int]]], list[str]]:
        """The rows that each server has to have, and why others are not asked."""
        wanted, unchecked = list[tuple[Node, set[int]]](), list[str]()
        takers = {name for name, rows in self._acknowledged.items() if rows}
        names = ", ".join(sorted(takers))
        for node in self._servers():
            sources = self._sources(node.name)
            rows = set[int]().union(*(self._acknowledged.get(name, set()) for name in sources))
            if node.name in self._late:
                unchecked.append(f"{node.name}: it is a delayed replica")
            elif rows or not takers:
                wanted.append((node, rows))
            elif takers & self._sources(node.name, in_time=False):
                how = f"it replicates from {names} through a delayed replica"
                unchecked.append(f"{node.name}: {how}")
            else:
                how = f"it does not replicate from {names}, which took the rows"
                unchecked.append(f"{node.name}: {how}")
        return wanted, unchecked

    @property
    def _late(self) -> set[str]:
        late = self.record.plan.late
        return {name for name, role in self._roles.items() if role in late}

    def _sources(self, node: str, *, in_time: bool = True) -> set[str]:
        """The servers whose rows come to one, with itself; ``in_time``: by no delayed replica.

        Where nodes elect who takes writes, and in a cluster, those of all come to all.
        """
        if self.record.plan.elects:
            return set(self._roles)
        cluster = {name for name, role in self._roles.items() if role == "member"}
        return _upstream(node, self._links, cluster, self._late if in_time else ())

    def _missing(self, node: Node, acknowledged: set[int]) -> int:
        """How many acknowledged rows a server does not have, some time later: it may be late."""
        last = max(acknowledged, default=0)
        for _ in attempts(Deadline.after(SETTLED)):
            found: set[str] = set()
            for at in range(0, last + 1, _ROWS_AT_ONCE):
                rows = self._ask(node, [_FOUND.format(first=at, last=at + _ROWS_AT_ONCE - 1)])[0]
                found |= {str(row[0]) for row in rows[:_ROWS_AT_ONCE]}
            missing = len({str(number) for number in acknowledged} - found)
            if not missing:
                break
        return missing

    def _write(self) -> None:
        asked, last = dict[str, Future[bool]](), ""
        with ThreadPoolExecutor(len(self._servers())) as pool:
            while not self._over.wait(_EVERY):
                taker = ""
                with suppress(LabError):  # the lab is gone
                    taker = self._taker(pool, asked, last)
                last = taker or last
                if not taker:
                    with self._lock:
                        self._refused += 1

    def _taker(self, pool: Executor, asked: dict[str, Future[bool]], last: str) -> str:
        """The server that takes a row now, preferably the ``last`` one; empty if none does.

        One that hangs is not waited for while others are asked, else the outage would be ours: it
        stays in ``asked``, and what it acknowledges later counts. Each gets a number of its own, as
        it may have executed what it has not acknowledged.
        """
        for node in sorted(self._servers(), key=lambda node: node.name != last):
            if node.name not in asked:
                asked[node.name] = pool.submit(self._takes, node)
                if taker := _first(asked, _PATIENCE, until=asked[node.name]):
                    return taker
        return _first(asked, _ANSWER)

    def _takes(self, node: Node) -> bool:
        number = next(self._numbers)
        try:
            self._ask(node, [_ROW.format(number=number)], _ANSWER)
        except LabError:
            return False
        self._took(node.name, number)
        return True

    def _took(self, taker: str, number: int) -> None:
        self._writes.answered()
        with self._lock:
            self._acknowledged.setdefault(taker, set()).add(number)

    @cached_property
    def _account(self) -> Account:
        return account_of(self.ctx.home, self.record)

    def _begin_thread(self, do: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=do, name="probe", daemon=True))
        self._threads[-1].start()

    def _ports(self) -> dict[str, int]:
        """What is asked: the port of each server, and those of a proxy, by endpoint."""
        found = dict[str, int]()
        for node in nodes_of(self.ctx, self.record.name):
            if node.has_server:
                found[node.name] = node.sql_port
            elif node.is_proxy:
                found[f"{node.name} rw"], found[f"{node.name} ro"] = node.sql_port, node.ports["ro"]
        return found

    def _look(self, port: int, silence: _Silence) -> None:
        while not self._over.wait(_LOOK):
            with suppress(LabError):  # a server that is in no primary component refuses it
                self.ctx.ways.sql_all(self._account, port, ["SELECT 1"], timeout=_ANSWER)
                silence.answered()

    def _servers(self) -> list[Node]:
        return [node for node in nodes_of(self.ctx, self.record.name) if node.has_server]

    def _anywhere(self, statements: Sequence[str], timeout: float = _ASKED_ONCE) -> str:
        """The server that executes statements, the first; raises the error of the last."""
        failed: LabError | None = None
        for node in self._servers():
            try:
                self._ask(node, statements, timeout)
            except LabError as error:
                failed = error
            else:
                return node.name
        raise failed or NotReady(f"{self.record.name} has no server")

    def _ask(
        self, node: Node, statements: Sequence[str], timeout: float = _ASKED_ONCE
    ) -> list[tuple[tuple[object, ...], ...]]:
        found = self.ctx.ways.sql_all(self._account, node.sql_port, statements, timeout=timeout)
        return [one.rows for one in found]

    def _checksums(self) -> dict[str, str] | None:
        """The checksums of the users' tables on the first server, by their names.

        None if it has too many tables.
        """
        first, found = self._servers()[0], dict[str, str]()
        rows = self._ask(first, [_TABLES.format(limit=_MOST_TABLES + 1)])[0]
        if len(rows) > _MOST_TABLES:
            return None
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


def _first(
    asked: dict[str, Future[bool]], seconds: float, *, until: Future[bool] | None = None
) -> str:
    """The first that takes what it was ``asked``, empty if none does in so many ``seconds``.

    Or ``until`` that one has answered. Those that have answered are not in ``asked`` any more.
    """
    deadline = Deadline.after(seconds)
    while asked and not (until is not None and until.done() and until not in asked.values()):
        done, _ = wait(asked.values(), deadline.left, FIRST_COMPLETED)
        if not done:
            break
        found = [name for name, one in asked.items() if one in done]
        takers = [name for name in found if asked.pop(name).result()]
        if takers:
            return takers[0]
    return ""


def _upstream(
    node: str, links: Sequence[Link], cluster: Collection[str], late: Collection[str]
) -> set[str]:
    """A node, and those whose transactions come to it, though not through one that is ``late``.

    ``cluster``: nodes that have each other's.
    """
    found, new = set[str](), {node}
    while new:
        found |= new
        sources = {link.source for link in links if link.replica in new.difference(late)}
        new = (sources.union(cluster) if new.intersection(cluster) else sources) - found
    return found
