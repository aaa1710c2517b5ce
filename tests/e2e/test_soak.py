"""Hours of resets, claims, sleeps and wakes under clients that work: no row is stale, none lost.

``LAB_SOAK_SECONDS`` says for how long; ``make soak`` takes two hours. What was counted and measured
is printed at the end, and written to ``build/test/soak.txt``.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.client import Client, Lab
from lab.requests.labs import ResetLab, SleepLab
from lab.wait import Deadline, until
from tests import ROOT
from tests.e2e.bank import ACCOUNTS, SCHEMA, TOTAL, Clerk, differences, promises, working
from tests.e2e.e2e_site import PXC, Site
from tests.e2e.test_serve import served

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

SECONDS = float(os.environ.get("LAB_SOAK_SECONDS") or 600)
_CYCLES = 8
"""Sleeps and wakes in a round."""
_PATIENCE = 120.0
_MOST_GUESTS = 18
"""Three nodes of each lab and its standby or successor, of a lab that waits, of one that ends."""
CONFIG = """
[serve]
sweep = 2.0

[[serve.pool]]
blueprint = "pxc"
engine = "mariadb"
nodes = 3
"""


@dataclass
class Counted:
    """What a soak did, and how long each took, in seconds."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    resident: list[int] = field(default_factory=list)
    """Bytes of the service's memory, once a round."""
    files: list[int] = field(default_factory=list)
    """Files that the service has open, once a round."""
    disk: list[int] = field(default_factory=list)
    """Bytes of the home, once a round."""
    transfers: int = 0

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block, and its seconds."""
        began = time.monotonic()
        yield
        self.seconds.setdefault(what, []).append(time.monotonic() - began)

    def text(self, took: float) -> str:
        """The report."""
        lines = [f"soak of {took:.0f} s, {self.transfers} transfers"]
        for what, seconds in sorted(self.seconds.items()):
            ordered = sorted(seconds)
            late = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
            lines.append(
                f"{what}: {len(ordered)}, median {statistics.median(ordered):.2f} s,"
                f" p99 {late:.2f} s, longest {ordered[-1]:.2f} s"
            )
        for name, values in (("memory", self.resident), ("disk", self.disk)):
            lines.append(
                f"{name}: {values[0] / 1e6:.0f} MB at first, {values[-1] / 1e6:.0f} at last"
            )
        lines.append(
            f"open files of the service: {self.files[0]} at first, {self.files[-1]} at last"
        )
        return "\n".join(lines) + "\n"


@dataclass
class Bank:
    """A lab with the bank's tables, and clerks at all of its nodes."""

    client: Client
    name: str
    clerks: Sequence[Clerk] = ()

    def lab(self) -> Lab:
        return self.client.get(self.name)

    def address(self, node: str) -> Callable[[], dict[str, Any]]:
        """How to connect to a node: where it was at first, as a client of users has it."""
        lab = self.lab()
        at = {
            "host": lab.node(node).host, "port": lab.node(node).sql_port,
            "user": lab.user, "password": lab.password,
        }  # fmt: skip
        return lambda: dict(at)

    def check(self, opened: float) -> None:
        """All nodes have the same, no money is lost, no row is stale, and none is missing."""
        for node in self.lab().nodes:
            promised = promises(self.clerks)
            with (
                closing(
                    pymysql.connect(**self.address(node.name)(), read_timeout=_PATIENCE)
                ) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("SET SESSION wsrep_sync_wait = 1")
                cursor.execute("SELECT COUNT(*), SUM(balance) FROM bank.accounts")
                assert cursor.fetchone() == (ACCOUNTS, TOTAL), node.name
                cursor.execute("SELECT id, number FROM bank.sessions")
                found = {str(key): int(number) for key, number in cursor.fetchall()}
            assert differences(found, self.clerks, promised, opened) == [], node.name


@contextmanager
def bank(site: Site, client: Client, name: str) -> Iterator[Bank]:
    """A cluster of three with the bank's tables and a clerk at each node, for the block."""
    lab = client.create(PXC[0], engine=PXC[2], nodes=3, name=site.name(name))
    made = Bank(client, lab.name)
    with closing(pymysql.connect(**made.address("n1")())) as connection:
        for statement in SCHEMA:
            connection.cursor().execute(statement)
        connection.commit()
    if name == "desk":
        client.snapshots.take(lab.name, "base")
        client.reset(lab.name)
    with working([made.address(node.name) for node in lab.nodes]) as made.clerks:
        assert until(lambda: all(clerk.sessions for clerk in made.clerks), Deadline.after(30))
        yield made
    client.delete(lab.name)


def _reset(desk: Bank, counted: Counted) -> float:
    """Connections of before it never succeed again, and nothing of them is there; its begin."""
    begun = time.monotonic()
    with counted.timed("reset"):
        desk.client.run(ResetLab(lab=desk.name, to="base"))
    over = time.monotonic()

    def back() -> bool:
        return all(clerk.sessions[-1].begun > over for clerk in desk.clerks)

    assert until(back, Deadline.after(_PATIENCE)), [clerk.broken()[-3:] for clerk in desk.clerks]
    for session in (session for clerk in desk.clerks for session in clerk.sessions):
        if session.opened < begun:
            assert session.begun < over, f"a connection of before the reset works: {session}"
            assert session.error, f"a connection of before the reset is open: {session}"
    desk.check(begun)
    return begun


def _claim(client: Client, counted: Counted) -> None:
    """A lab from the pool is a cluster of its own, and is gone afterwards."""

    def waits() -> bool:
        return bool(client.labs(state="pooled"))

    assert until(waits, Deadline.after(_PATIENCE), most=1.0), "no lab waits in the pool"
    with counted.timed("claim"):
        lab = client.create(PXC[0], engine=PXC[2], nodes=3)
    for node in lab.nodes:
        with (
            closing(
                pymysql.connect(
                    host=node.host, port=node.sql_port or 0, user=lab.user, password=lab.password
                )
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SHOW DATABASES LIKE 'bank'")
            assert not cursor.fetchall(), "it has another lab's data"
            cursor.execute("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")
            assert (cursor.fetchone() or ("", ""))[1] == "3"
            cursor.execute(f"CREATE DATABASE of_{node.name}")
    client.delete(lab.name)


def _sleep(ledger: Bank, counted: Counted) -> None:
    """Its clients wake it by what they send on connections that are open, and none breaks."""
    before = [clerk.sessions[-1].acknowledged for clerk in ledger.clerks]
    with counted.timed("sleep and wake"):
        ledger.client.run(SleepLab(lab=ledger.name))

        def works() -> bool:
            now = [clerk.sessions[-1].acknowledged for clerk in ledger.clerks]
            return all(later > earlier for earlier, later in zip(before, now, strict=True))

        assert until(works, Deadline.after(_PATIENCE), first=0.01, most=0.05), ledger.lab().state
    broken = [error for clerk in ledger.clerks for error in clerk.broken()]
    assert not broken, f"a connection broke: {broken}"
    time.sleep(random.uniform(0, 0.5))


def _look(site: Site, service: int, counted: Counted) -> None:
    """Measure what leaks would show in."""
    guests = site.guests()
    assert len(guests) <= _MOST_GUESTS, guests
    status = Path(f"/proc/{service}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    counted.resident.append(int(resident.split()[1]) * 1024)
    counted.files.append(len(list(Path(f"/proc/{service}/fd").iterdir())))
    counted.disk.append(site.used())


def test_a_soak(formed: Site, tmp_path: Path) -> None:
    """Protects who leaves it running: what held in the first minute holds in the last."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "config.toml").write_text(CONFIG)
    site = replace(formed, settings={"XDG_CONFIG_HOME": str(tmp_path)})
    counted, began = Counted(), time.monotonic()
    with (
        served(site, how=signal.SIGTERM) as (env, process),
        Client(env["LAB_URL"], site.home.admin_token.read_text().strip()) as client,
    ):
        with bank(site, client, "desk") as desk, bank(site, client, "ledger") as ledger:
            while time.monotonic() - began < SECONDS:
                reset = _reset(desk, counted)
                _claim(client, counted)
                for _ in range(_CYCLES):
                    _sleep(ledger, counted)
                ledger.check(0.0)
                desk.check(reset)
                _look(site, process.pid, counted)
            clerks = (*desk.clerks, *ledger.clerks)
        counted.transfers = sum(sum(promises([clerk]).values()) for clerk in clerks)
        slowest = [session.slowest for clerk in ledger.clerks for session in clerk.sessions]
        counted.seconds["slowest transfer of a clerk whose lab sleeps"] = slowest
    site.lab("down", "--all", "--yes")
    report = counted.text(time.monotonic() - began)
    (ROOT / "build" / "test").mkdir(parents=True, exist_ok=True)
    (ROOT / "build" / "test" / "soak.txt").write_text(report)
    print(report)  # noqa: T201
    early, late = counted.files[1:4], counted.files[-3:]
    assert max(late) <= max(early) + 8, f"files stay open: {counted.files}"
    assert site.settled() == []
