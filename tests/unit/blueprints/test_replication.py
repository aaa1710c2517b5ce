"""A source and its replicas: what they boot with, when they are ready; and on real servers."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pymysql
import pytest
from pymysql.constants import COMMAND

from lab.blueprints import Blueprint, Engine, Member, Release, Situation, blueprint_of, planned
from lab.blueprints.dialects import dialect_of, plugin_of
from lab.blueprints.replication import links
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, InvalidSpec
from lab.guest.network import inner_address
from lab.imagebuild.recipe import load
from lab.observe.ask import hosts_in
from lab.observe.ways import Rows
from lab.options import OptionFile, Options, Topology
from lab.passwords import CACHING_SHA2, native
from lab.spec import LabSpec
from lab.units import MIB
from lab.wait import Deadline, attempts
from tests import ROOT
from tests.support.mariadb_server import NoServer, Server, server
from tests.support.mysql_server import mysql_root, mysql_server

T = TypeVar("T")
Start = Callable[[Member, str], AbstractContextManager[Server]]

NET = f"127.23.{os.getpid() % 256}"
"""Of the servers: another process of the tests has its own at the same time."""

CONFIG = (ROOT / "images/mariadb/my.cnf").read_text()
PATH = "/etc/mysql/mariadb.conf.d/99-lab.cnf"
RECIPE = load("mysql")
MYSQL = Engine(
    "mysql", "9.7", (ROOT / "images/mysql/my.cnf").read_text(), RECIPE.config, "mysql", 100, 101,
    service="mysql.service",
)  # fmt: skip
PERCONA = replace(
    MYSQL, name="percona-server", version="8.4",
    config=(ROOT / "images/percona-server/my.cnf").read_text(),
)  # fmt: skip
ENGINE = Engine("mariadb", "11.8.6", CONFIG, PATH, "mysql", 100, 101, service="mariadb.service")
MEMBERS = [
    Member(f"n{number}", number, inner_address(number), "source" if number == 1 else "replica")
    for number in (1, 2, 3)
]
N1, N2, N3 = MEMBERS
REPLICATION = blueprint_of(LabSpec("replication"))


@pytest.mark.parametrize("engine", [ENGINE, MYSQL, PERCONA], ids=lambda engine: engine.name)
@pytest.mark.parametrize("member", [N1, N2])
def test_config(golden: Callable[[str, str], None], member: Member, engine: Engine) -> None:
    """Protects every setting of the servers: a change must be meant."""
    files = REPLICATION.files(member, MEMBERS, engine, 768 * MIB, EngineProfile())
    assert list(files) == [engine.config_path]
    text = files[engine.config_path].content.decode()
    golden(f"blueprint/replication-{engine.name}-{member.role}.cnf", text)
    assert "wsrep" not in text


def test_it_has_a_source_and_replicas() -> None:
    plans = planned(LabSpec("replication"))
    assert [(plan.name, plan.role) for plan in plans] == [
        ("n1", "source"), ("n2", "replica"), ("n3", "replica")]  # fmt: skip
    with pytest.raises(InvalidSpec, match="two nodes at least, not 1"):
        planned(LabSpec("replication", nodes=1))
    ends = {one.name: one.nodes for one in REPLICATION.endpoints(MEMBERS)}
    assert ends == {"rw": ("n1",), "ro": ("n2", "n3")}
    assert REPLICATION.sources(N1, MEMBERS) == ()
    assert REPLICATION.sources(N3, MEMBERS) == ("n1",)
    assert REPLICATION.sources(N3, [N2, N3]) == ()


@pytest.mark.parametrize(
    "said", ["0-1-1'); DROP TABLE a; --", "\n0-1-1", "0-1-1\n", "0-1-1\\", "9" * 16385, "0-1-1 OR"]
)
def test_what_a_source_says_is_no_sql(said: str) -> None:
    """Protects replicas from the root of their source."""
    question = REPLICATION.question(
        "replica", {"n1": {"read_only": "OFF", "position": said}}, Release()
    )
    assert said not in question
    assert "n1 sent an invalid position" in question


def test_a_server_that_ended_is_started_again() -> None:
    situation = Situation({"n1": "server\tactive\n", "n2": "server\tfailed\n"}, True, True, {})
    found = REPLICATION.remedies(situation, {"n1": ENGINE, "n2": ENGINE})
    assert [(one.node, one.action, one.replaces) for one in found] == [("n2", "restart", False)]


def guest_source(server: Server, node: str, words: Sequence[str], stdin: bytes = b"") -> str:
    """The guest's program, run here for a server; its files are beside those of the server."""
    top = server.directory / f"guest-{node}"
    if not top.exists():
        top.mkdir()
        systemctl = top / "systemctl"
        systemctl.write_text("#!/bin/sh\necho active\n")
        systemctl.chmod(0o755)
        paths = {
            "/usr/lib/lab/mysql.pl": top / "mysql.pl", "/run/mysqld/mysqld.sock": server.socket,
            "/etc/lab/source": top / "note", "/run/lab-source": top / "options",
        }  # fmt: skip
        for name in ("mysql.pl", "source"):
            text = (ROOT / "images/guest/usr/lib/lab" / name).read_text()
            for path, here in paths.items():
                text = text.replace(path, str(here))
            (top / name).write_text(text)
    argv = ["perl", str(top / "source"), *words]
    env = {"PATH": f"{top}:{os.environ['PATH']}"}
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=60, env=env, check=False)
    if done.returncode:
        raise CommandFailed(argv, done.returncode, stderr=done.stderr.decode())
    return done.stdout.decode()


@dataclass(frozen=True)
class RealCluster:
    """See ``lab.blueprints.Cluster``; servers on loopback addresses of their own."""

    servers: Mapping[str, Server]
    members: Sequence[Member]
    engine: Engine
    plan: Blueprint

    @property
    def mariadb(self) -> bool:
        return dialect_of(self.engine).gtid_domains

    @property
    def tls(self) -> dict[str, Any]:
        """What a first login takes: before it the server does not know caching_sha2's digest."""
        if plugin_of(self.engine) != CACHING_SHA2:
            return {}
        return {"ssl_verify_cert": False, "ssl": {"fake": True}}

    @property
    def word(self) -> str:
        """What a replica is called in statements."""
        return "REPLICA" if "REPLICA" in dialect_of(self.engine).asked.threads else "SLAVE"

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        assert timeout > 0
        if argv[0] == "/usr/lib/lab/source":
            return guest_source(self.servers[member.name], member.name, argv[1:], stdin)
        assert argv[0] == "/usr/lib/lab/sql"
        try:
            rows = self.servers[member.name].ask(*stdin.decode().splitlines())
        except pymysql.Error as error:
            raise CommandFailed(argv, 255, stderr=str(error)) from None
        return "".join("\t".join(map(str, row)) + "\n" for row in rows)

    def each(self, step: Callable[[Member], T]) -> list[T]:
        return [step(member) for member in self.members]

    def ask(self, member: Member, reported: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        rows = self.servers[member.name].ask(
            self.plan.question(member.role, reported, self.engine.release)
        )
        return {str(name): str(value) for name, value in rows}

    def positions(self, member: Member) -> list[str]:
        """What it has executed."""
        variable = "gtid_binlog_pos" if self.mariadb else "gtid_executed"
        return [str(row[0]) for row in self.servers[member.name].ask(f"SELECT @@{variable}")]

    def unmet(self, member: Member) -> list[str]:
        """The requirements that are not met."""
        sources = self.plan.sources(member, self.members)
        by_name = {one.name: one for one in self.members}
        reported = {name: self.ask(by_name[name], {}) for name in sources}
        answer = self.ask(member, reported)
        while more := self.plan.elsewhere(member, self.members, answer, reported):
            reported[more[0]] = self.ask(by_name[more[0]], {})
        answer = self.ask(member, reported)
        role = self.plan.role(member.role, answer)
        wanted = self.plan.requirements(role, len(self.members))
        return [one.name for one in wanted if one.found(answer) != one.value]

    def form(self) -> None:
        if self.engine not in (MYSQL, PERCONA):  # whose images are provisioned
            lab = dialect_of(self.engine).create.format(account="lab@'%'")
            for db in self.servers.values():  # as images have it
                db.ask("SET sql_log_bin = 0", lab, "GRANT ALL ON *.* TO lab@'%' WITH GRANT OPTION")
        engines = {member.name: self.engine for member in self.members}
        self.plan.form(self, engines, Deadline.after(60))
        self.until_ready()

    def until_ready(self) -> None:
        for _ in attempts(Deadline.after(30)):
            if not any(map(self.unmet, self.members)):
                return
        raise AssertionError({one.name: self.unmet(one) for one in self.members})


@pytest.fixture(
    params=[
        "mariadb",
        pytest.param("mysql", marks=pytest.mark.rare),
        pytest.param("percona", marks=pytest.mark.rare),
    ]
)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Of both dialects; Percona's options, statements and image are tried on servers of MySQL."""
    return {"mariadb": ENGINE, "mysql": MYSQL, "percona": PERCONA}[request.param]


@pytest.fixture
def spec() -> LabSpec:
    """A source and a replica."""
    return LabSpec("replication", nodes=2)


@pytest.fixture
def starter() -> Callable[[ExitStack, Engine], Start]:
    """What gives what starts a server with an option file."""
    return lambda stack, engine: _mariadb if engine is ENGINE else _mysql(stack, engine)


@pytest.fixture
def cluster(
    engine: Engine, spec: LabSpec, starter: Callable[[ExitStack, Engine], Start]
) -> Iterator[RealCluster]:
    """Servers with the options of the blueprint, formed."""
    plan = blueprint_of(spec)
    members = [
        Member(node.name, n, f"{NET}.{n}", node.role) for n, node in enumerate(planned(spec), 1)
    ]
    texts = {
        member.name: plan.files(member, members, engine, 768 * MIB, EngineProfile())[
            engine.config_path
        ].content.decode()
        for member in members
    }
    try:
        with ExitStack() as stack:
            start = starter(stack, engine)
            servers = {
                member.name: stack.enter_context(start(member, texts[member.name]))
                for member in members
            }
            found = RealCluster(servers, members, engine, plan)
            found.form()
            yield found
    except NoServer as error:
        pytest.skip(str(error))


def _mariadb(member: Member, text: str) -> AbstractContextManager[Server]:
    """With the blueprint's own options; the others are the image's."""
    lines = text.splitlines()
    own = [line for line in lines[lines.index("[mysqld]") + 1 :] if line]
    words = [line.replace(" ", "").replace(f"{ENGINE.log_directory}/", "") for line in own]
    return server(
        [
            f"--server-id={member.index}", "--skip-networking=OFF", "--port=3306",
            f"--bind-address={member.address}", *(f"--{word}" for word in words),
        ],
    )  # fmt: skip


def _mysql(stack: ExitStack, engine: Engine) -> Start:
    # A socket needs a short path.
    top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lab-my-", dir="/tmp")))
    root = mysql_root(top, engine.name)

    def start(member: Member, text: str) -> AbstractContextManager[Server]:
        text = text.replace("bind_address = 0.0.0.0", f"bind_address = {member.address}")
        return mysql_server(root, member.name, text.replace("O_DIRECT", "fsync"))

    return start


def shut_down(db: Server) -> None:
    try:
        db.ask("SHUTDOWN")
    except pymysql.err.ProgrammingError:  # MySQL 5.6 has a message for it
        with db.connect() as connection:
            connection._execute_command(COMMAND.COM_SHUTDOWN, "")  # type: ignore[attr-defined]


def test_real_servers(cluster: RealCluster) -> None:
    """Protects all statements: formed, ready, cloned, behind, and cut off."""
    source, replica = cluster.members
    one, other = (cluster.servers[member.name] for member in cluster.members)
    one.ask("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT)", "INSERT INTO shop.t VALUES (1)")
    cluster.until_ready()
    assert other.ask("SELECT id FROM shop.t") == [(1,)]
    # As clones: a password, and a new one, while the servers run.
    for password in ("first", "second"):
        for member in cluster.members:
            statements = cluster.plan.personalise_statements(
                member, cluster.members, cluster.engine, "lab", password
            )
            cluster.run(
                member, ["/usr/lib/lab/sql"], stdin="\n".join(statements).encode(), timeout=9
            )
            assert not any(password in statement for statement in statements)
        cluster.until_ready()
        assert one.ask("SELECT COUNT(*) FROM mysql.user WHERE user = 'replication'") == [(1,)]
        for member in cluster.members:
            for more in (cluster.tls, {}):  # once anybody has logged in with TLS, others need none
                with pymysql.connect(
                    host=member.address, user="lab", password=password, **more
                ) as user:
                    cursor = user.cursor()
                    if member is source:
                        cursor.execute("INSERT INTO shop.t VALUES (2)")
                        user.commit()
                    else:
                        with pytest.raises(pymysql.err.OperationalError, match="read-only"):
                            cursor.execute("INSERT INTO shop.t VALUES (3)")
                    cursor.execute(dialect_of(cluster.engine).asked.links)
                    columns = tuple(column[0] for column in cursor.description)
                    rows = Rows(columns, tuple(cursor.fetchall()), 0)
                    followed = [] if member is source else [source.address]
                    assert hosts_in(rows) == followed, "a lab's account may ask for links"
    cluster.until_ready()
    (position,) = cluster.positions(source)
    assert cluster.positions(replica) == [position]
    assert position.count(",") == 0, "no server has a history of its own"
    # It is behind, which is seen; then its source ends.
    with other.connect() as locker, locker.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        one.ask("INSERT INTO shop.t VALUES (4)")
        assert cluster.unmet(replica) == ["caught up"]
    cluster.until_ready()
    # It has everything, but is not connected: it would not receive what is written next.
    other.ask(f"STOP {cluster.word} IO_THREAD")
    assert cluster.unmet(replica) == ["replicating"]
    other.ask(f"START {cluster.word} IO_THREAD")
    cluster.until_ready()
    shut_down(one)
    for _ in attempts(Deadline.after(30)):
        answer = cluster.ask(replica, {"n1": {}})
        if answer["replication"] != "running":
            break
    assert answer["caught up"] == "unknown: n1 does not answer"
    assert cluster.ask(replica, {})["replication"] == "running", "no source is to run"


def test_its_account_follows_from_the_password() -> None:
    """Protects labs: a clone's replicas log in with what no sibling has."""
    (change,) = (
        one
        for one in REPLICATION.personalise_statements(N2, MEMBERS, ENGINE, "lab", "s3cret")
        if "MASTER_PASSWORD" in one
    )
    own = change.split("''")[1]
    on_source = REPLICATION.personalise_statements(N1, MEMBERS, ENGINE, "lab", "s3cret", tls=True)
    assert any(native(own) in one for one in on_source)
    assert any(one.endswith("REQUIRE SSL ACCOUNT UNLOCK") for one in on_source)
    assert all("IF(@lab_linked" in one for one in on_source if "SLAVE" in one and "'DO 1'" in one)
    others = REPLICATION.personalise_statements(N2, MEMBERS, ENGINE, "lab", "other")
    assert not any(own in one for one in others)


def _spec(nodes: int, **more: Any) -> LabSpec:
    return LabSpec("replication", nodes=nodes, options=Options(**more).said)


@pytest.mark.parametrize(
    ("topology", "followed"),
    [
        ("star", [(), (1,), (1,), (1,)]),
        ("chain", [(), (1,), (2,), (3,)]),
        ("ring", [(4,), (1,), (2,), (3,)]),
        ("fan-in", [(), (), (), (1, 2, 3)]),
    ],
)
def test_links_are_data(topology: Topology, followed: list[tuple[int, ...]]) -> None:
    assert [links(topology, number, 4) for number in range(1, 5)] == followed


def test_roles_and_endpoints_of_topologies() -> None:
    def roles(spec: LabSpec) -> list[str]:
        return [node.role for node in planned(spec)]

    assert roles(_spec(3, topology="chain")) == ["source", "replica", "replica"]
    assert roles(_spec(3, topology="ring")) == ["source"] * 3
    assert roles(_spec(3, topology="fan-in")) == ["source", "source", "replica"]
    assert roles(_spec(3, delay=60.0)) == ["source", "delayed", "delayed"]
    late = _spec(3, delay=60.0, on=("n2",))
    assert roles(late) == ["source", "delayed", "replica"]
    members = [Member(n.name, i, "", n.role) for i, n in enumerate(planned(late), 1)]
    ends = {one.name: one.nodes for one in blueprint_of(late).endpoints(members)}
    assert ends == {"rw": ("n1",), "ro": ("n3", "n2")}
    ring = [Member(f"n{i}", i, "", "source") for i in (1, 2)]
    assert [one.name for one in REPLICATION.endpoints(ring)] == ["rw"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (_spec(3, delay=60.0, on=("n1",)), "n1 is no replica that can be delayed"),
        (_spec(3, delay=60.0, on=("n4",)), "n4 is no replica that can be delayed"),
        (_spec(3, topology="ring", delay=60.0), "no node of the topology ring is a replica"),
        (
            LabSpec("galera", options=Options(semi_sync=True).said),
            "galera does not have the option",
        ),
        (_spec(3, my_cnf=(OptionFile("", "replicas"),)), "no node has the role replicas"),
        (_spec(3, multi_primary=True), "replication does not have the option multi_primary"),
    ],
)
def test_options_that_cannot_be(spec: LabSpec, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        planned(spec)


def test_a_link_to_a_node_that_does_not_run() -> None:
    """Protects rings: without its last node, the first one follows nobody, not another."""
    ring = blueprint_of(_spec(3, topology="ring"))
    members = [Member(f"n{i}", i, "", "source") for i in (1, 2)]
    assert [ring.sources(one, members) for one in members] == [(), ("n1",)]


def test_golden_topologies(golden: Callable[[str, str], None]) -> None:
    """Protects the options of servers that have both ends of links."""
    for engine in (ENGINE, MYSQL):
        ring = blueprint_of(_spec(3, topology="ring", semi_sync=True))
        member = Member("n2", 2, inner_address(2), "source")
        files = ring.files(member, MEMBERS, engine, 768 * MIB, EngineProfile())
        text = files[engine.config_path].content.decode()
        golden(f"blueprint/replication-{engine.name}-ring.cnf", text[text.rindex("[mysqld]") :])


def _told(cluster: RealCluster, writer: str, number: int) -> None:
    """One writes, and all that follow it have it."""
    cluster.servers[writer].ask(f"INSERT INTO shop.t (was) VALUES ({number})")
    cluster.until_ready()


def _rows(cluster: RealCluster) -> dict[str, int]:
    return {
        name: db.ask("SELECT COUNT(*) FROM shop.t")[0][0] for name, db in cluster.servers.items()
    }


_TABLE = "CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, was INT)"


def _personalise(cluster: RealCluster, *names: str) -> None:
    for member in cluster.members:
        if member.name in names:
            statements = cluster.plan.personalise_statements(
                member, cluster.members, cluster.engine, "lab", "s3cret"
            )
            stdin = "\n".join(statements).encode()
            cluster.run(member, ["/usr/lib/lab/sql"], stdin=stdin, timeout=9)


def _helped(cluster: RealCluster, password: str) -> list[str]:
    """The nodes that were given actions until all are ready, as `lab start` gives them."""
    given: Counter[tuple[str, str]] = Counter()
    engines = {member.name: cluster.engine for member in cluster.members}
    by_name = {member.name: member for member in cluster.members}
    for _ in attempts(Deadline.after(60), first=1.0, most=1.0):
        if not any(map(cluster.unmet, cluster.members)):
            return [node for node, _ in given.elements()]
        argv = cluster.plan.standing(cluster.engine)
        standings = {name: cluster.run(one, argv, timeout=9) for name, one in by_name.items()}
        found = Situation(standings, True, False, given, password)
        for one in cluster.plan.remedies(found, engines):
            given[one.node, one.action] += 1
            assert not any(password in word for word in one.argv)
            stdin = one.stdin.replace(b"'10.77.0.", f"'{NET}.".encode())
            cluster.run(by_name[one.node], one.argv, stdin=stdin, timeout=30)
    raise AssertionError({one.name: cluster.unmet(one) for one in cluster.members})


@pytest.mark.rare
@pytest.mark.parametrize(
    "spec", [_spec(3, topology="chain"), _spec(3, topology="ring")], ids=["chain", "ring"]
)
def test_a_node_that_logs_in_as_it_did_before(cluster: RealCluster) -> None:
    """Protects `lab rollback --node`: it and its followers have passwords of different times."""
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    _personalise(cluster, "n1", "n3")
    threads = cluster.word
    for name in ("n2", "n3"):
        cluster.servers[name].ask(f"STOP {threads}", f"START {threads}")
    assert "replicating" in cluster.unmet(cluster.members[1])
    assert "n2" in _helped(cluster, "s3cret")
    _told(cluster, "n1", 1)
    assert set(_rows(cluster).values()) == {1}
    for member in cluster.members:
        assert (cluster.ask(member, {})["read_only"] == "OFF") == (member.role == "source")


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(3, topology="chain")])
def test_a_replica_of_a_node_that_went_back(cluster: RealCluster) -> None:
    """Protects the end of a chain: for a moment its source lacks what it has itself."""
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    _personalise(cluster, "n1", "n2", "n3")
    _told(cluster, "n1", 1)
    (at,) = cluster.positions(cluster.members[1])
    for number in range(2, 6):
        _told(cluster, "n1", number)
    middle = cluster.servers["n2"]
    back: tuple[str, ...]
    if cluster.mariadb:
        back = (
            "STOP SLAVE", "RESET MASTER", "SET GLOBAL gtid_slave_pos = ''",
            f"SET GLOBAL gtid_binlog_state = '{at}'", f"SET GLOBAL gtid_slave_pos = '{at}'",
            "SET SESSION sql_log_bin = 0", "DELETE FROM shop.t WHERE was > 1",
        )  # fmt: skip
        threads = "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'"
        start = "START SLAVE"
    else:
        back = (
            "STOP REPLICA", "RESET REPLICA", "RESET BINARY LOGS AND GTIDS",
            f"SET GLOBAL gtid_purged = '{at}'",
            "SET GLOBAL super_read_only = OFF", "SET SESSION sql_log_bin = 0",
            "DELETE FROM shop.t WHERE was > 1", "SET GLOBAL super_read_only = ON",
        )  # fmt: skip
        threads = "SELECT ID FROM performance_schema.processlist WHERE COMMAND = 'Binlog Dump GTID'"
        start = "START REPLICA"
    middle.ask(*back)
    for (thread,) in middle.ask(threads):
        middle.ask(f"KILL {thread}")
    last = cluster.members[2]
    for _ in attempts(Deadline.after(30)):
        if "replicating" in cluster.unmet(last):
            break
    time.sleep(2)  # it has tried again, and was refused
    middle.ask(start)
    # A server of MySQL answers who has transactions of another one that it lacks itself.
    assert _helped(cluster, "s3cret") == (["n3"] if cluster.mariadb else [])
    assert set(_rows(cluster).values()) == {5}


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(3, topology="chain")])
def test_a_real_chain(cluster: RealCluster) -> None:
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    _told(cluster, "n1", 1)
    assert set(_rows(cluster).values()) == {1}
    hosts = {f"n{n}": cluster.plan.sources(cluster.members[n - 1], cluster.members) for n in (2, 3)}
    assert hosts == {"n2": ("n1",), "n3": ("n2",)}


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(3, topology="ring")])
def test_a_real_ring(cluster: RealCluster) -> None:
    """Protects rings: all write, nobody executes his own again, and keys do not collide."""
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    for _ in range(2):  # round the ring
        cluster.until_ready()
    for number, name in enumerate(("n1", "n2", "n3", "n1"), 1):
        _told(cluster, name, number)
    for _ in attempts(Deadline.after(30)):
        if set(_rows(cluster).values()) == {4}:
            break
    assert set(_rows(cluster).values()) == {4}
    cluster.until_ready()


@pytest.mark.rare
@pytest.mark.parametrize("spec", [_spec(3, topology="fan-in")])
def test_a_real_fan_in(cluster: RealCluster) -> None:
    """Protects the readiness of a replica of several sources: it needs all of them."""
    for name in ("n1", "n2"):
        cluster.servers[name].ask("CREATE DATABASE IF NOT EXISTS " + name, f"USE {name}")
        cluster.servers[name].ask(f"CREATE TABLE {name}.t (id INT)")
    cluster.until_ready()
    last = cluster.members[2]
    for name in ("n1", "n2"):
        assert cluster.servers["n3"].ask(f"SELECT COUNT(*) FROM {name}.t") == [(0,)]
    mariadb = cluster.mariadb
    whole = "{} SLAVE 'n2'" if mariadb else "{} REPLICA FOR CHANNEL 'n2'"
    receiving = "{} SLAVE 'n2' IO_THREAD" if mariadb else "{} REPLICA IO_THREAD FOR CHANNEL 'n2'"
    for threads in (whole, receiving):
        cluster.servers["n3"].ask(threads.format("STOP"))
        assert "replicating" in cluster.unmet(last)
        cluster.servers["n3"].ask(threads.format("START"))
        cluster.until_ready()
    both = {source.name: cluster.ask(source, {}) for source in cluster.members[:2]}
    cluster.servers["n2"].ask("SHUTDOWN")
    for _ in attempts(Deadline.after(30)):
        if cluster.ask(last, both)["replication"] == "stopped":
            break
    assert cluster.ask(last, both)["replication"] == "stopped", "it is not connected to n2"
    rest = {"n1": both["n1"]}
    assert cluster.ask(last, rest)["replication"] == "running", "n2 is not to run"


@pytest.mark.parametrize("spec", [_spec(3, semi_sync=True, delay=3600.0, on=("n3",))])
def test_real_servers_with_semi_sync_and_delay(cluster: RealCluster) -> None:
    """Protects what commits wait for, and what a delayed replica is for."""
    cluster.servers["n1"].ask("CREATE DATABASE shop", _TABLE)
    began = time.monotonic()
    _told(cluster, "n1", 1)
    assert time.monotonic() - began < 9, "a commit without an acknowledgement waits for 10 s"
    assert cluster.servers["n2"].ask("SELECT COUNT(*) FROM shop.t") == [(1,)]
    assert not cluster.servers["n3"].ask("SHOW DATABASES LIKE 'shop'"), "it is an hour late"
    source = cluster.members[0]
    answer = cluster.ask(source, {})
    assert (answer["semi-sync status"], answer["semi-sync clients"]) == ("ON", "2")
    cluster.servers["n2"].ask("SHUTDOWN")
    for _ in attempts(Deadline.after(30)):
        if cluster.unmet(source):
            break
    assert cluster.unmet(source) == ["semi-sync replicas"]


def test_a_new_password_survives_a_power_loss() -> None:
    """Protects links of MariaDB: the file that holds the password is not synced by default."""
    statements = REPLICATION.personalise_statements(N2, MEMBERS, ENGINE, "lab", "x")
    (change,) = (at for at, one in enumerate(statements) if "MASTER_PASSWORD" in one)
    before, after = statements[:change], statements[change + 1 :]
    assert before[-2:] == ["SET @lab_sync = @@GLOBAL.sync_master_info",
                           "SET GLOBAL sync_master_info = 1"]  # fmt: skip
    assert after[0] == "SET GLOBAL sync_master_info = @lab_sync"
