"""A source and its replicas: what they boot with, when they are ready; and on real servers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pymysql
import pytest

from lab.blueprints import Engine, Member, Situation, blueprint, planned
from lab.blueprints.passwords import native
from lab.blueprints.replication import REPLICATION
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, InvalidSpec
from lab.guest.network import inner_address
from lab.imagebuild.recipe import load
from lab.spec import MIB, LabSpec
from lab.wait import Deadline, attempts
from tests import ROOT
from tests.support.mariadb_server import NoServer, Server, server
from tests.support.mysql_server import mysql_root, mysql_server

T = TypeVar("T")

CONFIG = (ROOT / "images/mariadb/my.cnf").read_text()
PATH = "/etc/mysql/mariadb.conf.d/99-lab.cnf"
RECIPE = load("mysql")
MYSQL = Engine(
    "mysql", "9.7", (ROOT / "images/mysql/my.cnf").read_text(), RECIPE.config, "mysql", 100, 101,
    service="mysql.service",
)  # fmt: skip
ENGINE = Engine("mariadb", "11.8.6", CONFIG, PATH, "mysql", 100, 101, service="mariadb.service")
MEMBERS = [
    Member(f"n{number}", number, inner_address(number), "source" if number == 1 else "replica")
    for number in (1, 2, 3)
]
N1, N2, N3 = MEMBERS


@pytest.mark.parametrize("engine", [ENGINE, MYSQL], ids=lambda engine: engine.name)
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
    assert blueprint("replication") is REPLICATION
    ends = {one.name: one.nodes for one in REPLICATION.endpoints(MEMBERS)}
    assert ends == {"rw": ("n1",), "ro": ("n2", "n3")}
    assert REPLICATION.sources(N1, MEMBERS) == ()
    assert REPLICATION.sources(N3, MEMBERS) == ("n1",)
    assert REPLICATION.sources(N3, [N2, N3]) == ()


@pytest.mark.parametrize(
    "said", ["0-1-1'); DROP TABLE a; --", "\n0-1-1", "0-1-1\n", "0-1-1\\", "9" * 1001, "0-1-1 OR"]
)
def test_what_a_source_says_is_no_sql(said: str) -> None:
    """Protects replicas from the root of their source."""
    question = REPLICATION.question("replica", {"n1": {"position": said}})
    assert said not in question
    assert "n1 sent an invalid position" in question


def test_a_server_that_ended_is_started_again() -> None:
    situation = Situation({"n1": "server\tactive\n", "n2": "server\tfailed\n"}, True, True, {})
    found = REPLICATION.remedies(situation, {"n1": ENGINE, "n2": ENGINE})
    assert [(one.node, one.order, one.replaces) for one in found] == [("n2", "restart", False)]


@dataclass(frozen=True)
class RealCluster:
    """See ``lab.blueprints.Cluster``; servers on loopback addresses of their own."""

    servers: Mapping[str, Server]
    members: Sequence[Member]
    engine: Engine

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        assert argv[0] == "/usr/lib/lab/sql"
        assert timeout > 0
        try:
            rows = self.servers[member.name].ask(*stdin.decode().splitlines())
        except pymysql.Error as error:
            raise CommandFailed(argv, 255, stderr=str(error)) from None
        return "".join("\t".join(map(str, row)) + "\n" for row in rows)

    def each(self, step: Callable[[Member], T]) -> list[T]:
        return [step(member) for member in self.members]

    def ask(self, member: Member, reported: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        rows = self.servers[member.name].ask(REPLICATION.question(member.role, reported))
        return {str(name): str(value) for name, value in rows}

    def positions(self, member: Member) -> list[str]:
        """What it has executed."""
        mariadb = self.engine is ENGINE
        variable = "gtid_binlog_pos" if mariadb else "gtid_executed"
        return [str(row[0]) for row in self.servers[member.name].ask(f"SELECT @@{variable}")]

    def unmet(self, member: Member) -> list[str]:
        """The requirements that are not met."""
        sources = REPLICATION.sources(member, self.members)
        by_name = {one.name: one for one in self.members}
        reported = {name: self.ask(by_name[name], {}) for name in sources}
        answer = self.ask(member, reported)
        wanted = REPLICATION.requirements(member.role, len(self.members))
        return [one.name for one in wanted if one.found(answer) != one.value]

    def until_ready(self) -> None:
        for _ in attempts(Deadline.after(30)):
            if not any(map(self.unmet, self.members)):
                return
        raise AssertionError({one.name: self.unmet(one) for one in self.members})


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.rare)])
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """A source and a replica with the options of the blueprint, which do not replicate yet."""
    members = [Member(f"n{n}", n, f"127.0.23.{n}", r) for n, r in ((1, "source"), (2, "replica"))]
    engine = {"mariadb": ENGINE, "mysql": MYSQL}[request.param]
    texts = {
        member.name: REPLICATION.files(member, members, engine, 768 * MIB, EngineProfile())[
            engine.config_path
        ].content.decode()
        for member in members
    }
    try:
        with ExitStack() as stack:
            start = _mysql(stack) if engine is MYSQL else _mariadb
            servers = {
                member.name: stack.enter_context(start(member, texts[member.name]))
                for member in members
            }
            yield RealCluster(servers, members, engine)
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


def _mysql(stack: ExitStack) -> Callable[[Member, str], AbstractContextManager[Server]]:
    # A socket needs a short path.
    top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lab-my-", dir="/tmp")))
    root = mysql_root(top)

    def start(member: Member, text: str) -> AbstractContextManager[Server]:
        text = text.replace("bind_address = 0.0.0.0", f"bind_address = {member.address}")
        return mysql_server(root, member.name, text.replace("O_DIRECT", "fsync"))

    return start


def test_real_servers(cluster: RealCluster) -> None:
    """Protects all statements: formed, ready, cloned, behind, and cut off."""
    source, replica = cluster.members
    one, other = (cluster.servers[member.name] for member in cluster.members)
    if cluster.engine is ENGINE:
        lab = (
            "CREATE USER lab@'%' IDENTIFIED VIA mysql_native_password USING 'invalid' ACCOUNT LOCK"
        )
        for db in (one, other):  # as images have it
            db.ask("SET sql_log_bin = 0", lab, "GRANT ALL ON *.* TO lab@'%' WITH GRANT OPTION")
    engines = {member.name: cluster.engine for member in cluster.members}
    REPLICATION.form(cluster, engines, Deadline.after(60))
    cluster.until_ready()
    one.ask("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT)", "INSERT INTO shop.t VALUES (1)")
    cluster.until_ready()
    assert other.ask("SELECT id FROM shop.t") == [(1,)]
    # As clones: a password, and a new one, while the servers run.
    for password in ("first", "second"):
        for member in cluster.members:
            statements = REPLICATION.personalise_statements(
                member, cluster.members, cluster.engine, "lab", password
            )
            cluster.run(
                member, ["/usr/lib/lab/sql"], stdin="\n".join(statements).encode(), timeout=9
            )
            assert not any(password in statement for statement in statements)
        cluster.until_ready()
        assert one.ask("SELECT COUNT(*) FROM mysql.user WHERE user = 'replication'") == [(1,)]
        tls: dict[str, Any] = (
            {"ssl_verify_cert": False, "ssl": {"fake": True}} if cluster.engine is MYSQL else {}
        )
        for member in cluster.members:
            for more in (tls, {}):  # once anybody has logged in with TLS, others need none
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
    one.ask("SHUTDOWN")
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
    own = change.split("'")[1]
    on_source = REPLICATION.personalise_statements(N1, MEMBERS, ENGINE, "lab", "s3cret", tls=True)
    assert any(native(own) in one for one in on_source)
    assert any(one.endswith("REQUIRE SSL ACCOUNT UNLOCK") for one in on_source)
    assert not any("SLAVE" in one for one in on_source)
    others = REPLICATION.personalise_statements(N2, MEMBERS, ENGINE, "lab", "other")
    assert not any(own in one for one in others)
