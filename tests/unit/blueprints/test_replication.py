"""A source and its replicas: what they boot with, when they are ready; and on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import pymysql
import pytest

from lab.blueprints import Engine, Member, Situation, blueprint, planned
from lab.blueprints.passwords import native
from lab.blueprints.replication import REPLICATION
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, InvalidSpec
from lab.guest.network import inner_address
from lab.spec import MIB, LabSpec
from lab.wait import Deadline, attempts
from tests import ROOT
from tests.support.mariadb_server import NoServer, Server, server

T = TypeVar("T")

CONFIG = (ROOT / "images/mariadb/my.cnf").read_text()
PATH = "/etc/mysql/mariadb.conf.d/99-lab.cnf"
ENGINE = Engine("mariadb", "11.8.6", CONFIG, PATH, "mysql", 100, 101, service="mariadb.service")
MEMBERS = [
    Member(f"n{number}", number, inner_address(number), "source" if number == 1 else "replica")
    for number in (1, 2, 3)
]
N1, N2, N3 = MEMBERS


@pytest.mark.parametrize("member", [N1, N2])
def test_config(golden: Callable[[str, str], None], member: Member) -> None:
    """Protects every setting of the servers: a change must be meant."""
    files = REPLICATION.files(member, MEMBERS, ENGINE, 768 * MIB, EngineProfile())
    assert list(files) == [PATH]
    text = files[PATH].content.decode()
    golden(f"blueprint/replication-{member.role}.cnf", text)
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

    def ask(self, member: Member, told: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        rows = self.servers[member.name].ask(REPLICATION.question(member.role, told))
        return {str(name): str(value) for name, value in rows}

    def unmet(self, member: Member) -> list[str]:
        """The requirements that are not met."""
        sources = REPLICATION.sources(member, self.members)
        by_name = {one.name: one for one in self.members}
        told = {name: self.ask(by_name[name], {}) for name in sources}
        answer = self.ask(member, told)
        wanted = REPLICATION.requirements(member.role, len(self.members))
        return [one.name for one in wanted if one.found(answer) != one.value]

    def until_ready(self) -> None:
        for _ in attempts(Deadline.after(30)):
            if not any(map(self.unmet, self.members)):
                return
        raise AssertionError({one.name: self.unmet(one) for one in self.members})


@pytest.fixture
def cluster() -> Iterator[RealCluster]:
    """Three servers with the options of the blueprint, which do not replicate yet."""
    members = [Member(f"n{n}", n, f"127.0.23.{n}", r) for n, r in ((1, "source"), (2, "replica"))]
    try:
        with ExitStack() as stack:
            servers = {}
            for member in members:
                files = REPLICATION.files(member, members, ENGINE, 768 * MIB, EngineProfile())
                lines = files[PATH].content.decode().splitlines()
                own = lines[lines.index("[mysqld]") + 1 :]
                servers[member.name] = stack.enter_context(
                    server(
                        [
                            f"--server-id={member.index}", "--skip-networking=OFF", "--port=3306",
                            f"--bind-address={member.address}",
                            *("--" + one.replace(" ", "").replace(f"{ENGINE.log_directory}/", "")
                              for one in own if one),
                        ]
                    )
                )  # fmt: skip
            yield RealCluster(servers, members)
    except NoServer as error:
        pytest.skip(str(error))


def test_real_servers(cluster: RealCluster) -> None:
    """Protects all statements: formed, ready, cloned, behind, and cut off."""
    source, replica = cluster.members
    one, other = (cluster.servers[member.name] for member in cluster.members)
    lab = "CREATE USER lab@'%' IDENTIFIED VIA mysql_native_password USING 'invalid' ACCOUNT LOCK"
    for db in (one, other):  # as images have it
        db.ask("SET sql_log_bin = 0", lab, "GRANT ALL ON *.* TO lab@'%' WITH GRANT OPTION")
    engines = {member.name: ENGINE for member in cluster.members}
    REPLICATION.form(cluster, engines, Deadline.after(30))
    cluster.until_ready()
    one.ask("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT)", "INSERT INTO shop.t VALUES (1)")
    cluster.until_ready()
    assert other.ask("SELECT id FROM shop.t") == [(1,)]
    # As clones: a password, and a new one, with the same connections between the servers.
    for password in ("first", "second"):
        for member in cluster.members:
            statements = REPLICATION.personalise_statements(
                member, cluster.members, ENGINE, "lab", password
            )
            cluster.run(
                member, ["/usr/lib/lab/sql"], stdin="\n".join(statements).encode(), timeout=9
            )
            assert not any(password in statement for statement in statements)
        cluster.until_ready()
        assert one.ask("SELECT COUNT(*) FROM mysql.user WHERE user = 'replication'") == [(1,)]
        for member in cluster.members:
            with pymysql.connect(host=member.address, user="lab", password=password) as user:
                cursor = user.cursor()
                if member is source:
                    cursor.execute("INSERT INTO shop.t VALUES (2)")
                    user.commit()
                else:
                    with pytest.raises(pymysql.err.OperationalError, match="read-only"):
                        cursor.execute("INSERT INTO shop.t VALUES (3)")
    cluster.until_ready()
    position = one.ask("SELECT @@GLOBAL.gtid_binlog_pos")
    assert other.ask("SELECT @@GLOBAL.gtid_binlog_pos") == position
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
