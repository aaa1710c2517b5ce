"""Another source: on real servers, under a writer, without the old one, and with it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pytest

from lab.blueprints import Member, Promotion, Situation, blueprint_of, switchover
from lab.blueprints.dialects import dialect_of
from lab.errors import Conflict, InvalidSpec, NotReady
from lab.spec import LabSpec
from lab.wait import Deadline, attempts, until
from tests.unit.blueprints.test_replication import (
    ENGINE,
    NET,
    RealCluster,
    _spec,
    cluster,
    engine,
    guest_source,
    starter,
)

__all__ = ["cluster", "engine", "starter"]

PASSWORD = "s3cret"
_TABLE = "CREATE TABLE shop.t (id INT PRIMARY KEY)"


@dataclass(frozen=True)
class Partly:
    """``whole``, of which the nodes ``down`` do not answer."""

    whole: RealCluster
    down: set[str] = field(default_factory=set)

    @property
    def members(self) -> Sequence[Member]:
        return self.whole.members

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        if member.name in self.down:
            raise NotReady(f"{member.name} does not answer")
        return self.whole.run(member, argv, stdin=stdin, timeout=timeout)

    def each(self, step: Callable[[Member], Any]) -> list[Any]:
        return self.whole.each(step)

    def promote(self, to: str, *, force: bool = False) -> None:
        engines = {member.name: self.whole.engine for member in self.members}
        names = tuple(member.name for member in self.members)
        asked = Promotion(
            to, names, Deadline.after(60), force=force, password=PASSWORD, fence=self.down.add
        )
        self.whole.plan.promote(self, engines, asked)

    def boots(self, node: str) -> None:
        """A node is there again, as its guest boots: it is read-only."""
        self.down.discard(node)
        follow = dialect_of(self.whole.engine).links.role.follow
        guest_source(self.whole.servers[node], node, ("yield", *follow))

    def standings(self) -> dict[str, str]:
        up = [member for member in self.members if member.name not in self.down]
        argv = ("/usr/lib/lab/source", "state", "mysql.service")
        return {
            member.name: self.run(member, argv, timeout=9).replace(f"{NET}.", "10.77.0.")
            for member in up
        }

    def remedy(self) -> list[tuple[str, str]]:
        """What is ordered to the nodes that run, and done."""
        engines = {member.name: self.whole.engine for member in self.members}
        here = self.standings()
        situation = Situation(here, len(here) == len(self.members), True, {}, PASSWORD)
        found = self.whole.plan.remedies(situation, engines)
        by_name = {member.name: member for member in self.members}
        for one in found:
            stdin = one.stdin.replace(b"10.77.0.", f"{NET}.".encode())
            self.run(by_name[one.node], one.argv, stdin=stdin, timeout=9)
        return [(one.node, one.action) for one in found]

    def writable(self) -> list[str]:
        words = ("state", "mysql.service")
        return [
            node
            for node, db in self.whole.servers.items()
            if "read_only\tOFF" in guest_source(db, node, words)
        ]


def clone(real: RealCluster, password: str = PASSWORD) -> None:
    """Give the nodes a password, as clones get it."""
    for member in real.members:
        statements = real.plan.personalise_statements(
            member, real.members, real.engine, "lab", password
        )
        stdin = "\n".join(statements).encode()
        real.run(member, ["/usr/lib/lab/sql"], stdin=stdin, timeout=9)


def login(real: RealCluster, node: str, password: str = PASSWORD) -> pymysql.Connection[Any]:
    """A session of the lab's user, through the network."""
    (address,) = (one.address for one in real.members if one.name == node)
    return pymysql.connect(
        host=address, user="lab", password=password, autocommit=True, read_timeout=20, **real.tls
    )


class Writer(threading.Thread):
    """Inserts rows into whichever server takes them, and keeps what was acknowledged."""

    def __init__(self, real: RealCluster) -> None:
        super().__init__(daemon=True)
        self.real, self.done, self.rows = real, threading.Event(), list[int]()

    def run(self) -> None:
        number = 0
        while not self.done.is_set():
            for node in self.real.servers:
                with suppress(pymysql.Error), login(self.real, node) as db, db.cursor() as cursor:
                    while not self.done.is_set():
                        number += 1
                        cursor.execute(f"INSERT INTO shop.t VALUES ({number})")
                        self.rows.append(number)


@pytest.mark.parametrize(
    "spec",
    [_spec(3), pytest.param(_spec(3, semi_sync=True), marks=pytest.mark.rare)],
    ids=["async", "semi-sync"],
)
def test_a_switchover_of_real_servers(cluster: RealCluster) -> None:
    """Protects acknowledged rows, who writes, and what clones of it become."""
    clone(cluster)
    here = Partly(cluster)
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    cluster.until_ready()
    writer = Writer(cluster)
    writer.start()
    for to in ("n2", "n3", "n1", "n1"):
        before = len(writer.rows)
        here.promote(to)
        assert here.writable() == [to]
        for _ in attempts(Deadline.after(20)):
            if len(writer.rows) > before + 10:
                break
        assert len(writer.rows) > before + 10
    writer.done.set()
    writer.join(30)
    cluster.until_ready()
    for db in cluster.servers.values():
        there = {row[0] for row in db.ask("SELECT id FROM shop.t")}
        assert there >= set(writer.rows)
    # Clones of it: each server is in the role that it had.
    here.promote("n2")
    for password in ("other", PASSWORD):
        clone(cluster, password)
        assert here.writable() == ["n2"]
        cluster.until_ready()
    assert until(lambda: here.remedy() == [], Deadline.after(20))


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(2)])
def test_transactions_and_locks_do_not_stop_it(cluster: RealCluster) -> None:
    clone(cluster)
    here = Partly(cluster)
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    with suppress(pymysql.Error), login(cluster, "n1") as opened, login(cluster, "n1") as locked:
        opened.query("BEGIN")
        opened.query("INSERT INTO shop.t VALUES (1)")
        locked.query("CREATE TABLE shop.locked (id INT)")
        locked.query("LOCK TABLES shop.locked WRITE")
        began = time.monotonic()
        here.promote("n2")
        assert time.monotonic() - began < 30
        with pytest.raises(pymysql.Error):
            opened.query("COMMIT")
    cluster.until_ready()
    assert cluster.servers["n2"].ask("SELECT COUNT(*) FROM shop.t") == [(0,)]


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(2)])
def test_a_replica_that_does_not_catch_up(cluster: RealCluster, monkeypatch: Any) -> None:
    """Protects a lab whose new source is late: the old one takes writes again."""
    monkeypatch.setattr(switchover, "_CATCH_UP", 1.0)
    clone(cluster)
    here = Partly(cluster)
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    cluster.until_ready()
    with cluster.servers["n2"].connect() as locker, locker.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        cluster.servers["n1"].ask("INSERT INTO shop.t VALUES (1)")
        with pytest.raises(NotReady, match="n2 has not received all transactions of n1"):
            here.promote("n2")
    assert here.writable() == ["n1"]
    cluster.until_ready()


@pytest.mark.parametrize("spec", [_spec(3)])
def test_a_failover_of_real_servers(cluster: RealCluster) -> None:
    """Protects transactions that only some have, and writes from a source that comes back."""
    clone(cluster)
    here = Partly(cluster)
    one, two, three = (cluster.servers[name] for name in ("n1", "n2", "n3"))
    one.ask("CREATE DATABASE shop", _TABLE)
    cluster.until_ready()
    stop = f"STOP {cluster.word} IO_THREAD"
    two.ask(stop)
    one.ask("INSERT INTO shop.t VALUES (1)")
    for _ in attempts(Deadline.after(20)):
        if three.ask("SELECT COUNT(*) FROM shop.t") == [(1,)]:
            break
    here.down.add("n1")
    with pytest.raises(Conflict, match="n1, the source, does not answer"):
        here.promote("n3")
    with pytest.raises(Conflict, match="n3 has transactions that n2 lacks"):
        here.promote("n2", force=True)
    here.down.add("n2")
    with pytest.raises(NotReady, match="n2 does not answer: it may have transactions"):
        here.promote("n3", force=True)
    here.down.discard("n2")
    here.promote("n3", force=True)
    three.ask("INSERT INTO shop.t VALUES (2)")
    # It comes back, and follows; no node was ever without knowing who writes.
    here.boots("n1")
    assert here.writable() == ["n3"]
    assert here.remedy() == [("n1", "note"), ("n1", "follow")]
    cluster.until_ready()
    assert one.ask("SELECT COUNT(*) FROM shop.t") == [(2,)]
    # All of them boot: the one that was promoted takes writes.
    for node in ("n1", "n2", "n3"):
        here.boots(node)
    assert here.writable() == []
    assert "caught up" in cluster.unmet(cluster.members[0])
    assert here.remedy() == [("n3", "lead")]
    assert here.remedy() == []
    cluster.until_ready()
    # It is lost with a transaction that nobody else has.
    two.ask(stop)
    one.ask(stop)
    three.ask("INSERT INTO shop.t VALUES (3)")
    here.down.add("n3")
    here.promote("n1", force=True)
    here.boots("n3")
    assert here.remedy() == [("n3", "note")]
    with pytest.raises(NotReady, match="n3 has transactions that n1, the source, lacks") as raised:
        here.remedy()
    assert "lab rollback NAME --node n3" in raised.value.hint
    assert here.writable() == ["n1"]


def test_nodes_that_cannot_be_promoted() -> None:
    asked = Promotion("n2", ("n1", "n2"), Deadline.after(1))
    nobody: Any = None
    for spec, why in (
        (_spec(3, topology="chain"), "in a chain each node follows"),
        (_spec(3, topology="ring"), "every node takes writes"),
        (_spec(3, topology="fan-in"), "every node but the last"),
        (LabSpec("galera"), "every node of this topology takes writes"),
        (LabSpec("single"), "every node of this topology takes writes"),
    ):
        with pytest.raises(InvalidSpec, match=why):
            blueprint_of(spec).promote(nobody, {}, asked)


def standing(node: str, *lines: str) -> dict[str, str]:
    rows = ["server\tactive", "position\t", "received\t", "running\tno", *lines]
    return {node: "\n".join(rows)}


def test_who_takes_writes_is_not_decided_by_a_node_alone() -> None:
    """Protects the others' transactions: one of them may have been promoted since."""
    plan = blueprint_of(_spec(3))
    engines = dict.fromkeys(("n1", "n2", "n3"), ENGINE)
    n1 = standing("n1", "read_only\tON", "executed\t0-1-9", "follows\t")
    n3 = standing("n3", "read_only\tON", "executed\t0-1-9", "follows\t10.77.0.2", "epoch\t1",
                  "source\tn2")  # fmt: skip
    ahead = standing("n3", "read_only\tON", "executed\t0-1-10", "follows\t10.77.0.1")
    with pytest.raises(NotReady, match="n3 has transactions that n1, the source, lacks"):
        plan.remedies(Situation({**n1, **ahead}, False, True, {}), engines)
    with pytest.raises(NotReady, match="another node may have been promoted"):
        plan.remedies(Situation(n1, False, True, {}), engines)
    assert plan.remedies(Situation({**n1, **n3}, False, True, {}), engines) == []
    assert plan.remedies(Situation({"n1": "server\tactive"}, True, True, {}), engines) == []
    (lead,) = plan.remedies(Situation(n1, True, True, {}), engines)
    assert lead.argv == ("/usr/lib/lab/source", "lead", "0", "n1", "read_only=OFF")
    said = standing("n1", "read_only\tON", "executed\t", "follows\t'; DROP", "epoch\t9" * 99,
                    "source\t\x1b[31m")  # fmt: skip
    (found,) = (switchover.Standing.parse(node, text, "n1") for node, text in said.items())
    assert (found.follows, found.epoch, found.source) == ("", 0, "n1")
    bad = standing("n1", "read_only\tON", "executed\t'; DROP")
    with pytest.raises(NotReady, match="are not known"):
        plan.remedies(Situation(bad, True, True, {}), engines)
