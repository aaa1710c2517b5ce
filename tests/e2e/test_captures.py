"""Captures of real clusters in use: what a rollback and a branch have is an exact prefix."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site
from tests.e2e.test_cluster import query

pytestmark = pytest.mark.e2e

NODES = ("n1", "n2", "n3")


@dataclass
class Writer:
    """Inserts the numbers from 1 into a table, as clients do, each in its own transaction.

    ``times``: when each was begun, and when its commit was acknowledged.
    """

    number: int
    times: list[tuple[float, float]] = field(default_factory=list)

    def run(self, connection: Any, ends: threading.Event) -> None:
        with suppress(pymysql.Error), connection.cursor() as cursor:
            while not ends.is_set():
                began = time.time()
                values = (self.number, len(self.times) + 1)
                cursor.execute("INSERT INTO t.bank VALUES (%s, %s)", values)
                self.times.append((began, time.time()))


def connect(view: Any, node: Any) -> Any:
    return pymysql.connect(
        host=node["host"],
        port=node["sql_port"],
        user=view["user"],
        password=view["password"],
        autocommit=True,
        read_timeout=60,
    )


@contextmanager
def writing(site: Site, name: str) -> Iterator[list[Writer]]:
    """A writer through each node for the block."""
    view = site.lab("status", name, "-o", "json").json["lab"]
    ends, writers = threading.Event(), [Writer(number) for number in range(1, 4)]
    connections = [connect(view, node) for node in view["nodes"]]
    threads = [
        threading.Thread(target=writer.run, args=(connection, ends))
        for writer, connection in zip(writers, connections, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        ends.set()
        for thread, connection in zip(threads, connections, strict=True):
            thread.join(60)
            with suppress(pymysql.Error):
                connection.close()


def rows(site: Site, name: str) -> set[tuple[int, int]]:
    """What all nodes have, once that is the same."""

    def look() -> list[set[tuple[int, int]]] | None:
        query = "SELECT writer, number FROM t.bank"
        found = [{(int(a), int(b)) for a, b in site.sql(name, node, query)} for node in NODES]
        return found if found[0] == found[1] == found[2] else None

    found = until(look, Deadline.after(30), most=0.5)
    assert found is not None, "the nodes differ"
    return found[0]


def check_prefix(
    there: set[tuple[int, int]], writers: list[Writer], began: float, ended: float
) -> None:
    """What was captured between ``began`` and ``ended`` is what a real moment had."""
    begun = {(w.number, n): t[0] for w in writers for n, t in enumerate(w.times, 1)}
    acknowledged = {(w.number, n): t[1] for w in writers for n, t in enumerate(w.times, 1)}
    missing = {row for row, at in acknowledged.items() if at < began} - there
    assert not missing, f"acknowledged before the snapshot and lost: {sorted(missing)}"
    later = there & {row for row, at in begun.items() if at > ended}
    assert not later, f"begun after the snapshot: {sorted(later)}"
    for writer in writers:
        numbers = sorted(number for who, number in there if who == writer.number)
        assert numbers == list(range(1, len(numbers) + 1)), f"gaps: {writer.number}"
    newest = max((begun[row] for row in there & begun.keys()), default=0.0)
    before = {row for row, at in acknowledged.items() if at < newest}
    assert not before - there, "a later transaction is there, and an earlier one is not"


@pytest.mark.parametrize("how", ["warm", pytest.param("cold", marks=pytest.mark.rare)])
def test_a_rollback_is_an_exact_prefix(site: Site, how: str) -> None:
    """Of a bank's workload on all nodes; from RAM, and from the same disks alone."""
    name = site.name("bank")
    site.lab("up", *PXC, "--nodes", "3", "--name", name)
    site.lab("sql", name, "-e", "CREATE DATABASE t")
    table = "CREATE TABLE t.bank (writer INT, number INT, PRIMARY KEY (writer, number))"
    site.lab("sql", name, "-e", table)
    with writing(site, name) as writers:
        time.sleep(3)
        began = time.time()
        snapshot = site.lab("snapshot", "take", name, "--label", "mid", "-o", "json").json
        ended = time.time()
        time.sleep(2)
    assert snapshot["warm"]
    assert all(len(writer.times) > 5 for writer in writers), "the writers stopped"
    password = site.lab("status", name, "-o", "json").json["lab"]["password"]
    options = ["--cold"] if how == "cold" else []
    for _ in ("once", "and after writes that are to be forgotten"):
        back = site.lab("rollback", name, "--to", "mid", *options, "-o", "json").json
        assert (back["started"], back["password"]) == (how, password)
        check_prefix(rows(site, name), writers, began, ended)
        site.lab("sql", name, "-e", "INSERT INTO t.bank VALUES (9, 9)")
    site.lab("down", name)


def _hello(port: int) -> tuple[bytes, bytes]:
    """What a server sends that connects to it for TLS: the salt, and the ServerHello's bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        greeting = connection.recv(4096)[4:]
        after = greeting.index(b"\0", 1) + 5
        salt = greeting[after : after + 8] + greeting[after + 27 : after + 39]
        request = struct.pack("<IIB23x", 0x200 | 0x800 | 0x8000, 1 << 24, 45)
        connection.sendall(len(request).to_bytes(3, "little") + b"\1" + request)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing).do_handshake()
        connection.sendall(outgoing.read())
        record = b""
        while len(record) < 43:
            part = connection.recv(4096)
            assert part, "the server closed the connection"
            record += part
        assert record[0] == 22
        return salt, record[11:43]


def _random(site: Site, name: str) -> list[str]:
    """What the servers of a lab call random, of each node."""
    view = site.lab("status", name, "-o", "json").json["lab"]
    found = []
    for node in view["nodes"]:
        salt, hello = _hello(node["sql_port"])
        found += [f"salt {salt.hex()}", f"tls {hello.hex()}"]
        query = "SELECT HEX(RANDOM_BYTES(16)), UUID_v4()"
        ((bytes_, uuid),) = site.sql(name, node["name"], query)
        found += [f"bytes {bytes_}", f"uuid {uuid}"]
        kernel = site.lab("exec", name, "--node", node["name"], "--", "/usr/bin/head", "-c16",
                          "/proc/sys/kernel/random/uuid")  # fmt: skip
        found.append(f"kernel {kernel.stdout}")
    return found


@pytest.mark.rare  # test_shared has two clones of a template
def test_branches_share_no_secret_and_no_session(site: Site) -> None:
    """With each other, with their parent, and with what it is after a rollback."""
    name = site.name("use")
    view = site.lab("up", *PXC, "--nodes", "2", "--name", name, "-o", "json").json
    site.lab("sql", name, "-e", "CREATE DATABASE t")
    site.lab("sql", name, "-e", "CREATE TABLE t.x (id INT PRIMARY KEY, v INT)")
    site.lab("sql", name, "-e", "CREATE TABLE t.y (id INT PRIMARY KEY)")
    site.lab("sql", name, "-e", "INSERT INTO t.x VALUES (1, 0)")
    _random(site, name)  # its generators are in use
    ghosts = [connect(view, view["nodes"][0]) for _ in range(3)]
    holds = ["BEGIN", "SELECT * FROM t.x FOR UPDATE", "UPDATE t.x SET v = 1 WHERE id = 1"]
    for statement in (*holds, "CREATE TEMPORARY TABLE t.own (a INT)"):
        ghosts[0].cursor().execute(statement)
    ghosts[1].cursor().execute("SELECT GET_LOCK('mine', 1)")
    ghosts[2].cursor().execute("LOCK TABLES t.y READ")
    # A handshake that was not completed lasts until the server's time limit.
    count = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER IN"
    count += " ('lab', 'unauthenticated user')"
    for node, expected in (("n1", 4), ("n2", 1)):
        deadline = Deadline.after(60)
        while site.sql(name, node, count) != [[expected]]:
            assert not deadline.passed
    site.lab("snapshot", "take", name, "--label", "used")
    done = site.lab("branch", name, site.name("b"), "--at", "used", "--count", "2", "-o", "json")
    assert done.stderr.count("ended 3 client sessions") == 2
    labs = [name, *(made["name"] for made in done.json)]
    seen = [value for lab in labs for value in _random(site, lab)]
    for _ in range(2):
        back = site.lab("rollback", name, "--to", "used")
        assert "ended 3 client sessions" in back.stderr
        seen += _random(site, name)
    assert len(set(seen)) == len(seen), sorted(seen)
    for lab in labs:
        # Nobody holds the row, the table or the lock, and what was not committed is gone.
        assert site.sql(lab, "n1", "SELECT v FROM t.x") == [[0]]
        assert site.sql(lab, "n1", "UPDATE t.x SET v = 2 WHERE id = 1") is not None
        site.sql(lab, "n1", "INSERT INTO t.y VALUES (1)")
        assert site.sql(lab, "n1", "SELECT GET_LOCK('mine', 0)") == [[1]]
    passwords = {site.lab("status", lab, "-o", "json").json["lab"]["password"] for lab in labs}
    assert len(passwords) == len(labs)
    refused = site.lab("down", name, code=4)
    assert labs[1] in refused.stderr
    for ghost in ghosts:
        with suppress(pymysql.Error):
            ghost.close()
    site.lab("down", *labs)


def _identities(site: Site, name: str) -> dict[str, dict[str, str]]:
    """What the servers of a lab are known by, of each node."""
    found = {}
    for node in site.lab("status", name, "-o", "json").json["lab"]["nodes"]:
        names = ("server_id", "gtid_domain_id")
        ((server, domain),) = site.sql(name, node["name"], "SELECT @@server_id, @@gtid_domain_id")
        state = "SHOW GLOBAL STATUS LIKE 'wsrep_%_uuid'"
        uuids = {str(key): str(value) for key, value in site.sql(name, node["name"], state)}
        machine = site.lab(
            "exec", name, "--node", node["name"], "--", "/bin/cat", "/etc/machine-id"
        ).stdout.strip()
        values = dict(zip(names, (str(server), str(domain)), strict=True))
        found[node["name"]] = values | uuids | {"machine": machine}
    return found


@pytest.mark.rare
@pytest.mark.parametrize("topology", ["cluster", "single"])
def test_an_identity_of_its_own(site: Site, topology: str) -> None:
    """Protects labs that are to be connected to each other; nothing changes it back."""
    name, new = site.name("id"), site.name("new")
    what = (*PXC, "--nodes", "2") if topology == "cluster" else ("single",)
    site.lab("up", *what, "--name", name)
    site.lab("sql", name, "-e", "CREATE DATABASE t")
    site.lab("sql", name, "-e", "CREATE TABLE t.x (id INT PRIMARY KEY)")
    site.lab("sql", name, "-e", "INSERT INTO t.x VALUES (1)")
    # Something writes until the last moment.
    site.sql(name, "n1", "SET GLOBAL event_scheduler = ON")
    site.lab("sql", name, "-e", "CREATE TABLE t.tick (id INT AUTO_INCREMENT PRIMARY KEY)")
    tick = "CREATE EVENT t.often ON SCHEDULE EVERY 1 SECOND DO INSERT INTO t.tick VALUES ()"
    site.lab("sql", name, "-e", tick)
    site.lab("branch", name, new, "--identity", "new")
    parent, given = _identities(site, name), _identities(site, new)
    assert parent.keys() == given.keys()
    ticks = [site.sql(new, node, "SELECT id FROM t.tick ORDER BY id") for node in given]
    assert ticks[0]
    assert ticks == [ticks[0]] * len(ticks)
    for node, values in given.items():
        assert site.sql(new, node, "SELECT id FROM t.x") == [[1]]
        same = {key for key, value in values.items() if value and value == parent[node][key]}
        assert not same, (values, parent[node])
    servers = [values["server_id"] for values in (*given.values(), *parent.values())]
    assert len(set(servers)) == len(servers)
    common = ("gtid_domain_id", "wsrep_cluster_state_uuid")
    assert len({tuple(values[key] for key in common) for values in given.values()}) == 1
    lasting = {node: [v["server_id"], *(v[key] for key in common)] for node, v in given.items()}
    site.lab("sql", new, "-e", "INSERT INTO t.x VALUES (2)")
    site.lab("snapshot", "take", new, "--label", "mine")
    for verbs in ([["rollback", "--to", "mine"]], [["rollback"]], [["stop"], ["start"]]):
        for verb, *more in verbs:
            site.lab(verb, new, *more)
        found = _identities(site, new)
        now = {node: [v["server_id"], *(v[key] for key in common)] for node, v in found.items()}
        assert now == lasting, verbs
    site.lab("down", new, name)


@pytest.mark.rare
def test_a_scheduled_event_is_executed_once(site: Site) -> None:
    """The clock of a clone leaps over times of events: none is lost, and none runs in a row."""
    name = site.name("event")
    dsn = site.lab("up", *PXC, "--nodes", "2", "--name", name, "-o", "json").json["dsn"]
    for node in ("n1", "n2"):
        site.sql(name, node, "SET GLOBAL event_scheduler = ON")
    site.lab("sql", name, "-e", "CREATE DATABASE t")
    site.lab("sql", name, "-e", "CREATE TABLE t.e (event VARCHAR(9), node VARCHAR(9))")
    # Not by the program, whose start takes seconds on a busy host: the snapshot is to be taken
    # before the first event is due again.
    for event, when in (("once", "AT NOW() + INTERVAL 15 SECOND"), ("often", "EVERY 15 SECOND")):
        insert = f"INSERT INTO t.e VALUES ('{event}', @@hostname)"
        query(dsn, f"CREATE EVENT t.{event} ON SCHEDULE {when} DO {insert}")
    site.lab("snapshot", "take", name, "--label", "mine")
    before = site.sql(name, "n2", "SELECT event, node FROM t.e")
    assert before == [["often", "n1"]]
    time.sleep(50)
    assert len(site.sql(name, "n2", "SELECT * FROM t.e")) >= 4
    began = time.monotonic()
    site.lab("rollback", name, "--to", "mine")

    def executed() -> list[list[object]] | None:
        found = site.sql(name, "n2", "SELECT event, node FROM t.e ORDER BY event")
        return found if len(found) > 2 else None

    found = until(executed, Deadline.after(10), most=0.5)
    assert found is not None
    assert found.count(["once", "n1"]) == 1
    # Once before, once for all the times that were leaped over, of which there are three or more,
    # and at each of its times since the rollback began: one of them is soon, perhaps.
    due = 3 + int((time.monotonic() - began) // 15)
    assert 2 <= found.count(["often", "n1"]) <= due
    assert len(found) == 1 + found.count(["often", "n1"])
    site.lab("down", name)


def _usable(site: Site, name: str, rows: list[list[int]]) -> None:
    """All nodes of a lab answer, with these rows, and a write arrives."""
    assert site.lab("status", name, "-o", "json").json["lab"]["state"] == "ready"
    for node in ("n1", "n2"):
        assert site.sql(name, node, "SELECT id FROM t.x ORDER BY id") == rows


@pytest.mark.rare
def test_a_snapshot_that_fails_harms_nothing(site: Site) -> None:
    """A full disk, a kill and a dead QEMU while its nodes are paused, and two at once."""
    name = site.name("luck")
    site.lab("up", *PXC, "--nodes", "2", "--name", name)
    site.lab("sql", name, "-e", "CREATE DATABASE t")
    site.lab("sql", name, "-e", "CREATE TABLE t.x (id INT PRIMARY KEY)")
    site.lab("sql", name, "-e", "INSERT INTO t.x VALUES (1)")
    captures = site.home.lab(name) / "captures"
    captures.mkdir(mode=0o711)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M,mode=711", "t", captures], check=True)
    try:
        refused = site.lab("snapshot", "take", name, "--label", "full", code=None)
        assert refused.code not in (0, 70), refused
        assert "free some space" in refused.stderr
        _usable(site, name, [[1]])
    finally:
        subprocess.run(["umount", captures], check=True)
    assert site.crash("snapshot", "copy_memory", 2, name="luck") == -signal.SIGKILL
    site.lab("start", name)  # its nodes were left paused
    _usable(site, name, [[1]])
    dies = site.qemu(f"lab-{name}-n2")
    assert site.crash("snapshot", "copy_memory", 2, name="luck", victim=dies) != 0
    assert site.sql(name, "n1", "SELECT 1") == [[1]]
    site.lab("start", name)
    _usable(site, name, [[1]])
    labels = [one["name"] for one in site.lab("snapshot", "ls", name, "-o", "json").json]
    assert labels == ["origin"]
    both = [site.start("snapshot", "take", name, "--label", f"at-once-{n}") for n in (1, 2)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert sorted(process.returncode for process in both) == [0, 4], outputs
    site.lab("stop", name, "--node", "n2")
    apart = site.lab("snapshot", "take", name, "--label", "apart", "-o", "json").json
    assert not apart["warm"]
    assert "n2" in apart["why_cold"]
    site.lab("down", name)
    site.lab("gc")
    assert site.settled() == []


@pytest.mark.rare
def test_a_rollback_and_a_branch_are_killed(site: Site) -> None:
    """Nothing that was captured is lost, and what was not completed says so."""
    name = site.name("cut")
    site.lab("up", *PXC, "--nodes", "2", "--name", name)
    site.lab("sql", name, "-e", "CREATE DATABASE t")
    site.lab("sql", name, "-e", "CREATE TABLE t.x (id INT PRIMARY KEY)")
    site.lab("sql", name, "-e", "INSERT INTO t.x VALUES (1)")
    site.lab("snapshot", "take", name, "--label", "mine")
    for moment, count in (("rollback", 2), ("restore", 2), ("resume", 1)):
        site.lab("sql", name, "-e", "INSERT INTO t.x VALUES (2)")
        killed = site.crash("rollback", moment, count, name="cut")
        assert killed == -signal.SIGKILL, moment
        started = site.lab("start", name)
        assert "completing the interrupted rollback" in started.stderr
        _usable(site, name, [[1]])
    for moment, count in (("clone", 2), ("restore", 2), ("resume", 1)):
        assert site.crash("branch", moment, count, name="cut") == -signal.SIGKILL, moment
        site.lab("gc")
        assert site.lab("ls", "-o", "name").stdout.split() == [name]
        _usable(site, name, [[1]])
    site.lab("branch", name, site.name("last"), "--at", "mine")
    _usable(site, site.name("last"), [[1]])
    site.lab("down", site.name("last"), name)
    assert site.settled() == []
