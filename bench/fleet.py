"""A fleet by simulation: many hosts on one PostgreSQL, with the statements that services execute.

Hosts are threads that join, send heartbeats, look for what was placed on them, claim it, publish
labs and end jobs as ``lab.api.background.membership`` does; labs and guests are imagined. All
connections go through a proxy that delays each packet, as a network does.
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
from lab.errors import HostUnfit
from lab.fleet import hosts, known, placements
from lab.fleet.choose import Needs
from lab.fleet.database import FleetDatabase, migrate
from lab.fleet.hosts import Facts, Member
from lab.fleet.known import Known
from lab.fleet.placements import Placement
from lab.units import GIB
from tests.support.postgres_server import Postgres, postgres, programs

HOSTS = 100
AN_HOUR = 10_000
LATENCIES = (0.0, 0.005, 0.05)
_LAB = 2 * GIB
_LIFE = 60.0
"""Seconds that a lab lives."""
_BEAT, _POLL = 5.0, 5.0
_AT_ONCE = 16
"""Requests that are placed at the same time, by as many hosts."""
_LIST_EVERY = 1.0
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
        return Facts(memory=64 * GIB, memory_free=free, cpus=16, labs=len(self._labs))

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
        if mine:
            hosts.beat(self.database, self.member, self._facts())
            placements.end(self.database, self.member, [one.job for one in mine])


def simulated(seconds: float, log: Log) -> list[Figure]:
    """Placement, list, statements and dead rows by the latency of the database."""
    if programs() is None:
        raise Failed("PostgreSQL's server is not installed (Debian: postgresql)")
    figures: list[Figure] = []
    for latency in LATENCIES:
        what = f"{latency * 1000:.0f} ms to PostgreSQL"
        with log.attempt(f"{HOSTS} hosts, {what}"):
            found = _run(seconds, latency)
            figures += _figures(found, what, seconds)
    return figures


def _run(seconds: float, latency: float) -> Counted:
    counted, ends = Counted(), threading.Event()
    with postgres(tcp=True, connections=HOSTS * 3 + 50) as server:
        migrate(server.url)
        with _delayed(server.port, latency) as port:
            url = server.at(port)
            many = [_Host(url, f"h{number}", ends, counted) for number in range(HOSTS)]
            for host in many:
                host.start()
            before = _counters(server)
            began = time.monotonic()
            with _events(server, seconds):
                _load(many, seconds, counted)
            took = time.monotonic() - began
            after = _counters(server)
            ends.set()
            for host in many:
                host.wake.set()
            for host in many:
                host.join(30)
    counted.statements = (after[0] - before[0]) / took
    counted.dead = (after[1] - before[1]) / took
    return counted


@contextlib.contextmanager
def _events(server: Postgres, seconds: float) -> Iterator[None]:
    """What happens to a database: a vacuum after a third, a restart after two thirds."""

    def vacuum() -> None:
        with psycopg.connect(server.plain, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")

    def restart() -> None:
        server.stop("fast")  # so that it keeps what it has counted
        server.start()

    timers = [threading.Timer(seconds / 3, vacuum), threading.Timer(seconds * 2 / 3, restart)]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


def _load(many: Sequence[_Host], seconds: float, counted: Counted) -> None:
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
            time.sleep(_CHANCE.expovariate(AN_HOUR / 3600))
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
        f"{HOSTS} hosts, {AN_HOUR} labs an hour for {seconds:.0f} s, with a vacuum and a restart of"
        f" PostgreSQL; {found.late} requests got 503"
    )
    return [
        Figure(f"from request to placed, {what}", "s", tuple(found.placed), note=note),
        Figure(f"placed: 95 of 100 within, {what}", "s", (_late(found.placed, 0.95),)),
        Figure(f"from request to begun by its host, {what}", "s", tuple(found.begun)),
        Figure(
            f"begun: 95 of 100 within, {what}", "s", (_late(found.begun, 0.95),),
        ),
        Figure(f"a list of all labs, {what}", "s", tuple(found.listed)),
        Figure(f"transactions, {what}", "1/s", (found.statements,)),
        Figure(f"rows for a vacuum, {what}", "1/s", (found.dead,)),
    ]  # fmt: skip


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
        there, back = await asyncio.open_connection("127.0.0.1", port)
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
