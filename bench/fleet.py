"""A fleet by simulation: many hosts on one PostgreSQL, with the statements that services execute.

Hosts are threads that join, send heartbeats, look for what was placed on them, claim it, publish
labs and end jobs with the calls of ``lab.api.background.membership``; labs and guests are imagined.
Connections go through a proxy that delays each packet, as a network does. All of it shares the
processors of one machine, so figures are worse than those of as many hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg

from bench.figures import Figure
from bench.labs import Failed
from bench.measure import Log
from lab.errors import HostUnfit, LabError
from lab.fleet import hosts, known, placements, tokens
from lab.fleet.choose import Needs, template_of
from lab.fleet.database import FleetDatabase, migrate
from lab.fleet.hosts import Facts, Member, Version
from lab.fleet.known import Known
from lab.fleet.placements import Placement
from lab.units import GIB
from tests.support.postgres_server import Postgres, postgres, programs, standby_of

HOSTS = 100
AN_HOUR = 10_000
LATENCIES = (0.0, 0.005, 0.05)
_RATES = (20_000, 40_000, 80_000, 160_000)
"""Labs an hour, to see where it bends."""
_BENT = 0.5
"""Seconds within which 95 of 100 requests are placed by a fleet that keeps up."""
_LAB = 2 * GIB
_LIFE = 60.0
"""Seconds that a lab lives."""
_BEAT, _POLL = 5.0, 5.0
_AT_ONCE = 16
"""Requests that are placed at the same time, by as many hosts."""
_LIST_EVERY = 1.0
_TEMPLATES = tuple(
    template_of("pxc", "mariadb:11.8", nodes, (768 << 20, 1, 0), "", "", "")
    for nodes in range(1, 10)
)
_IMAGES = tuple(f"{number:064x}" for number in range(5))
_VERSIONS = tuple(
    Version(f"shop{number}", 1, "", "mariadb", f"{number:064x}") for number in range(5)
)
"""What each host says that it has."""
_CHANCE = random.Random(40)  # noqa: S311  the same load each time


@dataclass
class Counted:
    """What a run measured, in seconds, and what PostgreSQL counted in it."""

    placed: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    listed: list[float] = field(default_factory=list)
    late: int = 0
    """Requests that got 503."""
    statements: float = 0.0
    """A second."""
    dead: float = 0.0
    """Rows a second that a vacuum has to remove."""


class _Host(threading.Thread):
    """A host: what its service says to the database, without its labs."""

    def __init__(self, url: str, name: str, ends: threading.Event, counted: Counted) -> None:
        super().__init__(name=name, daemon=True)
        self.wake = threading.Event()
        self.database = FleetDatabase(url)
        self._ends, self._counted = ends, counted
        self.member: Member = hosts.join(self.database, name, f"home-{name}", "", (), "1")[0]
        self._labs: dict[str, float] = {}
        """When each ends."""
        self._requested: dict[str, float] = {}
        hosts.beat(self.database, self.member, self._facts())

    def _facts(self) -> Facts:
        free = 64 * GIB - len(self._labs) * _LAB
        return Facts(
            memory=64 * GIB, memory_free=free, cpus=16, labs=len(self._labs), templates=_TEMPLATES,
            formed=len(_TEMPLATES), images=_IMAGES, versions=_VERSIONS,
        )  # fmt: skip

    def run(self) -> None:
        beat = poll = time.monotonic() + _CHANCE.uniform(0, _BEAT)
        while not self._ends.is_set():
            woken = self.wake.wait(max(0.0, min(beat, poll) - time.monotonic()))
            self.wake.clear()
            now = time.monotonic()
            with contextlib.suppress(HostUnfit):
                if woken or now >= poll:
                    self._look()
                    poll = now + _POLL
                if now >= beat:
                    hosts.beat(self.database, self.member, self._facts())
                    placements.lose(self.database, _problem)
                    hosts.hosts(self.database)
                    beat = now + _BEAT
        self.database.close()

    def _look(self) -> None:
        mine = placements.claim(self.database, self.member)
        now = time.monotonic()
        self._counted.begun += [now - float(one.request["at"]) for one in mine]
        gone = [name for name, end in self._labs.items() if end < now]
        for name in gone:
            del self._labs[name]
        self._labs |= {one.lab: now + _LIFE for one in mine}
        views = [
            Known(one.lab, one.project, "ready", one.job, {"name": one.lab}, None, time.time())
            for one in mine
        ]
        known.publish(self.database, self.member, views, gone)
        tokens.merged(self.database, [])
        if mine:
            hosts.beat(self.database, self.member, self._facts())
            placements.end(self.database, self.member, [one.job for one in mine])
        known.drop_reserved(self.database, self.member, [])
        placements.place_waiting(self.database, _problem)
        placements.claimed(self.database, self.member)


def _problem(error: LabError) -> dict[str, str]:
    return {"title": str(error)}


def simulated(seconds: float, log: Log) -> list[Figure]:
    """Placement, list, statements and dead rows by the latency of the database."""
    if programs() is None:
        raise Failed("PostgreSQL's server is not installed (Debian: postgresql)")
    figures: list[Figure] = []
    for latency in LATENCIES:
        what = f"{latency * 1000:.0f} ms to PostgreSQL"
        with log.attempt(f"{HOSTS} hosts, {what}"):
            figures += _figures(_run(seconds, latency), what, seconds)
    with log.attempt(f"{HOSTS} hosts, {AN_HOUR} to {_RATES[-1]} labs an hour"):
        figures += _growth(seconds / 10)
    return figures


def _growth(seconds: float) -> list[Figure]:
    """Growing rates, up to the first one that the fleet does not keep up with."""
    figures = []
    for rate in _RATES:
        found = _run(seconds, 0.0, an_hour=rate, events=False)
        late = _late(found.placed, 0.95)
        note = (
            f"for {seconds:.0f} s, without latency, vacuum and fail-over; {found.late} of"
            f" {found.late + len(found.placed)} requests got 503"
        )
        figures.append(
            Figure(f"placed: 95 of 100 within, at {rate:,} labs an hour", "s", (late,), note=note)
        )
        if late > _BENT or found.late:
            break
    return figures


def _run(seconds: float, latency: float, *, an_hour: int = AN_HOUR, events: bool = True) -> Counted:
    counted, ends = Counted(), threading.Event()
    size = HOSTS * 3 + 50
    with (
        postgres(tcp=True, connections=size) as primary,
        standby_of(primary, tcp=True, connections=size) as standby,
        _delayed(primary.port, latency) as one,
        _delayed(standby.port, latency) as other,
    ):
        migrate(primary.url)
        _alter(primary, "SET synchronous_standby_names = '*'")
        many = []
        for number in range(HOSTS):
            many.append(_Host(primary.at(one, other), f"h{number}", ends, counted))
            many[-1].start()  # at once: the others would declare it lost after 30 s of silence
        began, before = time.monotonic(), _counters(primary)
        of_primary = list[tuple[int, int]]()
        timers = []
        if events:
            timers = [
                threading.Timer(seconds / 3, _vacuum, [primary]),
                threading.Timer(seconds * 2 / 3, _fail_over, [primary, standby, of_primary]),
            ]
        for timer in timers:
            timer.start()
        _load(many, seconds, an_hour, counted)
        for timer in timers:
            timer.join()
        took = time.monotonic() - began
        lost = [host.name for host in many if not host.is_alive()]
        after = _counters(standby if of_primary else primary)
        if of_primary:
            after = after[0] + of_primary[0][0], after[1] + of_primary[0][1]
        ends.set()
        for host in many:
            host.wake.set()
        for host in many:
            host.join(30)
    if lost:
        raise Failed(f"{len(lost)} of {HOSTS} hosts ended in the run, such as {lost[0]}")
    counted.statements = (after[0] - before[0]) / took
    counted.dead = (after[1] - before[1]) / took
    return counted


def _vacuum(server: Postgres) -> None:
    with psycopg.connect(server.plain, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")


def _fail_over(primary: Postgres, standby: Postgres, counters: list[tuple[int, int]]) -> None:
    """End the server at once and promote its standby; ``counters`` gets what it had counted."""
    counters.append(_counters(primary))
    primary.stop()
    standby.promote()
    _alter(standby, "RESET synchronous_standby_names")  # it has none itself


def _alter(server: Postgres, what: str) -> None:
    with psycopg.connect(server.plain, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM {what}".encode())
        connection.execute("SELECT pg_reload_conf()")


def _load(many: Sequence[_Host], seconds: float, an_hour: int, counted: Counted) -> None:
    """Requests at random moments, at their rate, whatever the answers take; and lists."""
    by_name = {host.name: host for host in many}
    end = time.monotonic() + seconds

    def request(host: _Host) -> None:
        began = time.monotonic()
        wanted = Placement(
            job=str(uuid.uuid4()), kind="create", lab="", project=f"p{_CHANCE.randrange(10)}",
            token="", key=None, digest="", request={"at": began}, needs=Needs(_LAB),
        )  # fmt: skip
        try:
            _, chosen = placements.place(host.database, wanted, "pxc", queue=1000)
        except HostUnfit:
            counted.late += 1
            return
        counted.placed.append(time.monotonic() - began)
        if chosen is not None:
            by_name[chosen.name].wake.set()  # the call to its API

    def lists() -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            with contextlib.suppress(HostUnfit):
                known.labs(_CHANCE.choice(many).database)
                counted.listed.append(time.monotonic() - began)
            time.sleep(_LIST_EVERY)

    with ThreadPoolExecutor(_AT_ONCE + 1) as threads:
        threads.submit(lists)
        while time.monotonic() < end:
            time.sleep(_CHANCE.expovariate(an_hour / 3600))
            threads.submit(request, _CHANCE.choice(many))


def _counters(server: Postgres) -> tuple[int, int]:
    """Transactions so far, and rows that were replaced or removed."""
    with psycopg.connect(server.plain, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(
            "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),"
            " (SELECT SUM(n_tup_upd + n_tup_del - n_tup_hot_upd) FROM pg_stat_user_tables)"
        ).fetchone()
    assert row is not None  # noqa: S101  # for the type checker
    return int(row[0]), int(row[1])


def _figures(found: Counted, what: str, seconds: float) -> list[Figure]:
    note = (
        f"{HOSTS} hosts, {AN_HOUR} labs an hour for {seconds:.0f} s, with a vacuum, and a fail-over"
        f" to a synchronous standby; {found.late} of {found.late + len(found.placed)} requests got"
        " 503"
    )
    figures = []
    for name, samples in (
        ("from request to placed", found.placed),
        ("from request to begun by its host", found.begun),
        ("a list of all labs", found.listed),
    ):
        figures += [
            Figure(f"{name}, {what}", "s", tuple(samples), note=note),
            Figure(f"{name}: 95 of 100 within, {what}", "s", (_late(samples, 0.95),)),
            Figure(f"{name}: 99 of 100 within, {what}", "s", (_late(samples, 0.99),)),
        ]
    return [
        *figures,
        Figure(f"transactions, {what}", "1/s", (found.statements,)),
        Figure(f"rows that are left for a vacuum, {what}", "1/s", (found.dead,)),
    ]


def _late(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds) or [0.0]
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextlib.contextmanager
def _delayed(port: int, latency: float) -> Iterator[int]:
    """A port at which the server answers ``latency`` seconds later, half of it each way."""
    if not latency:
        yield port
        return
    loop = asyncio.new_event_loop()
    listening = socket.create_server(("127.0.0.1", 0))

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while data := await source.read(1 << 16):
                loop.call_later(latency / 2, sink.write, data)
        loop.call_later(latency / 2, sink.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # the server is stopped
            writer.close()
            return
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def run() -> None:
        await asyncio.start_server(serve, sock=listening)

    loop.run_until_complete(run())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
