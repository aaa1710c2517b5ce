"""A cluster and its remote site: what they boot with and are asked; and on real servers."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lab.blueprints import Engine, Member, Release, Situation, blueprint_of, planned
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, InvalidSpec
from lab.guest.network import inner_address
from lab.imagebuild.recipe import load
from lab.options import Options
from lab.passwords import native
from lab.run import run
from lab.spec import LabSpec
from lab.units import MIB
from lab.wait import Deadline, attempts
from tests import ROOT
from tests.support import galera_server, upstream_builds
from tests.support.mariadb_server import NoServer, Server
from tests.unit.blueprints.test_replication import ENGINE, RealCluster
from tests.unit.guest.test_identity_in_guest import program

Golden = Callable[[str, str], None]

SPEC = LabSpec("galera-dr", options=Options(replicas=2).said)
DR = blueprint_of(SPEC)
MEMBERS = [Member(n.name, i, inner_address(i), n.role) for i, n in enumerate(planned(SPEC), 1)]
N1, N2, N3, N4, N5 = MEMBERS
PERCONA = Engine(
    "percona-xtradb-cluster", "8.4", (ROOT / "images/percona-xtradb-cluster/my.cnf").read_text(),
    load("percona-xtradb-cluster").config, "mysql", 100, 101, service="mysql.service",
)  # fmt: skip
SOURCES = "/etc/lab/sources"


@pytest.mark.parametrize("engine", [ENGINE, PERCONA], ids=lambda engine: engine.name)
@pytest.mark.parametrize("member", [N2, N4])
def test_config(golden: Golden, member: Member, engine: Engine) -> None:
    """Protects every setting of the servers: a change must be meant."""
    files = DR.files(member, MEMBERS, engine, 768 * MIB, EngineProfile())
    text = files[engine.config_path].content.decode()
    golden(f"blueprint/dr-{engine.name}-{member.role}.cnf", text)
    if member == N4:
        golden(f"blueprint/dr-{engine.name}.sources", files[SOURCES].content.decode())
        assert "\nwsrep_" not in text, "a replica is in no cluster"


def test_nodes_of_both_sites() -> None:
    roles = [(node.name, node.role) for node in planned(LabSpec("pxc-dr"))]
    assert roles == [("n1", "member"), ("n2", "member"), ("n3", "member"), ("n4", "replica")]
    assert {end.name: end.nodes for end in DR.endpoints(MEMBERS)} == {
        "rw": ("n1", "n2", "n3"), "ro": ("n4", "n5")}  # fmt: skip
    assert [end.name for end in DR.endpoints([])] == ["rw"], "it is being created"
    assert [DR.sources(one, MEMBERS) for one in (N1, N4, N5)] == [
        (), ("n1", "n2", "n3"), ("n4",)]  # fmt: skip
    assert DR.sources(N4, [N2, N4]) == ("n2",)
    assert DR.sources(N5, [N1, N5]) == ()
    assert list(DR.files(N5, MEMBERS, ENGINE, MIB, EngineProfile())) == [ENGINE.config_path]
    view = DR.files(N1, MEMBERS, ENGINE, MIB, EngineProfile())["/var/lib/mysql/gvwstate.dat"]
    assert view.content.count(b"\nmember: ") == 3, "replicas are no members"
    assert [c.name for c in DR.requirements("member", 5)][2] == "size 3"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LabSpec("galera-dr", nodes=7, options=Options(replicas=3).said), "at most 9 nodes"),
        (LabSpec("galera", options=Options(replicas=2).said), "galera does not have the option"),
        (LabSpec("galera-dr", options=Options(delay=60.0).said), "does not have the option delay"),
    ],
)
def test_labs_that_cannot_be(spec: LabSpec, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        planned(spec)


@pytest.mark.parametrize("replicas", [0, 9])
def test_how_many_replicas_there_can_be(replicas: int) -> None:
    with pytest.raises(InvalidSpec, match="1 to 8 replicas"):
        Options(replicas=replicas)


@pytest.mark.parametrize(
    ("position", "own", "wanted"),
    [
        ("0-1-9", "1", "0-1-9"),
        ("0-1-9,1-1-5", "1", "0-1-9"),
        ("0-1-9,700-1-12,701-1-5", "701", "0-1-9,700-1-12"),
        ("aa:1-7,bb:1-2", "bb", "aa:1-7"),
        ("1-1-5", "1", ""),
        ("", "1", ""),
    ],
)
def test_what_the_cluster_has(position: str, own: str, wanted: str) -> None:
    """Protects the meaning of caught up: nothing that only one member has is waited for."""
    said = {"position": position, "own": own}
    for reported in ({"n1": said}, {"n1": {}, "n2": said}):
        question = DR.question("replica", reported, Release())
        assert (f"('{wanted}', " in question) == bool(wanted)
        assert "unknown" not in question


def test_lag_is_in_what_is_replicated() -> None:
    """Protects `lab status`: a replica never has what only the member has that is compared."""
    assert DR.position({"position": "0-1-50,1-1-3", "own": "1"}) == "0-1-50"
    assert DR.position({"position": "0-1-50,4-4-3"}) == "0-1-50,4-4-3", "of a replica"
    assert DR.position({}) == ""


def test_what_members_say_is_no_sql() -> None:
    """Protects replicas from the root of a member; and users, from silence that seems good."""
    said = "0-1-1'); DROP TABLE a; --"
    question = DR.question("replica", {"n1": {}, "n2": {"position": said, "own": "2"}}, Release())
    assert said not in question
    assert "n2 sent an invalid position" in question
    assert "the cluster does not answer" in DR.question("replica", {"n1": {}, "n2": {}}, Release())
    assert "n4 does not answer" in DR.question("replica", {"n4": {}}, Release())


def test_passwords_of_both_sites() -> None:
    """Protects clones: members get them once, replicas by themselves; none is in a statement."""
    by_node = {
        one.name: DR.personalise_statements(one, MEMBERS, ENGINE, "lab", "s3cret", tls=True)
        for one in MEMBERS
    }
    assert not any("s3cret" in statement for found in by_node.values() for statement in found)
    unlocked = [n for n, found in by_node.items() if any(native("s3cret") in one for one in found)]
    assert unlocked == ["n1", "n4", "n5"]
    (change,) = (one for one in by_node["n4"] if "MASTER_PASSWORD" in one)
    assert any(native(change.split("'")[3]) in one for one in by_node["n1"])
    assert "SET SESSION sql_log_bin = 0" in by_node["n4"], "a replica has no history of its own"
    assert "SET SESSION sql_log_bin = 0" not in by_node["n1"]
    alone = DR.personalise_statements(N2, [N2, N4], ENGINE, "lab", "s3cret")
    assert any("UNLOCK" in one for one in alone)


def test_remedies_of_both_sites() -> None:
    """Protects recovery: the cluster's needs all members, and none of the replicas."""
    uuid = "11111111-2222-3333-4444-555555555555"
    lost = "server\tactive\nposition\t{}\nwsrep_cluster_status\tnon-Primary\n"
    standings = {
        **{f"n{n}": lost.format(f"{uuid}:{n},0-1-{n}") for n in (1, 2, 3)},
        "n4": "server\tfailed\n",
    }
    engines = {member.name: ENGINE for member in MEMBERS}
    found = DR.remedies(Situation(standings, False, True, {}), engines)
    assert [(one.node, one.action) for one in found] == [("n3", "bootstrap"), ("n4", "restart")]
    assert "(3)" in found[0].why, "the seqno is before the comma"
    only = DR.remedies(Situation({"n4": "server\tfailed\n"}, False, True, {}), engines)
    assert [(one.node, one.action) for one in only] == [("n4", "restart")]
    # A replica that went back logs in as it did before.
    down = {"n4": "server\tactive\nrunning\tno\n", "n5": "server\tactive\nrunning\tyes\n"}
    (relink,) = DR.remedies(Situation(down, False, False, {}, "s3cret"), engines)
    assert (relink.node, relink.argv) == ("n4", ("/usr/lib/lab/source", "follow"))
    assert b"RESET SLAVE '' ALL\nCHANGE MASTER '' TO MASTER_HOST = '10.77.0.1'," in relink.stdin
    assert b"s3cret" not in relink.stdin
    two = {"n2": "server\tactive\nwsrep_cluster_status\tPrimary\n", **down}
    (relink,) = DR.remedies(Situation(two, False, False, {}, "s3cret"), engines)
    assert b"MASTER_HOST = '10.77.0.2'," in relink.stdin, "n1 does not run"
    given = {("n4", "follow"): 99}
    assert not DR.remedies(Situation(down, False, False, given, "s3cret"), engines)


@dataclass(frozen=True)
class Site:
    """Real servers of both sites."""

    cluster: RealCluster
    stacks: dict[str, ExitStack]
    top: Path

    def stop(self, name: str) -> None:
        self.stacks[name].close()

    def ask(self, name: str, *statements: str) -> list[tuple[object, ...]]:
        return self.cluster.servers[name].ask(*statements)

    def follow(self, name: str) -> str:
        """Which member's address the replica ``name`` follows, by its guest's program."""
        server = self.cluster.servers[name]
        program("mysql.pl", self.top, server.socket)
        path = program(
            "follow", self.top, server.socket, ("/etc/lab/sources", f"{self.top}/sources"),
            ("$PAUSE = 2", "$PAUSE = 1"),
        )  # fmt: skip
        run(["perl", path, "8"], timeout=60)
        return str(self.ask(name, "SHOW REPLICA STATUS")[0][1])


@pytest.fixture
def last() -> Engine:
    """The engine of n5."""
    return ENGINE


@pytest.fixture
def site(last: Engine) -> Iterator[Site]:
    members = [replace(one, address=f"127.0.24.{one.index}") for one in MEMBERS]
    engines = {one.name: ENGINE for one in members} | {"n5": last}
    files = {one.name: DR.files(one, members, engines[one.name], 768 * MIB, EngineProfile())
             for one in members}  # fmt: skip
    stacks = {one.name: ExitStack() for one in members}
    try:
        with ExitStack() as stack:
            for one in stacks.values():
                stack.callback(one.close)
            # A socket needs a short path.
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="lab-g-", dir="/tmp"))
            top = Path(place)
            galera_server.image(top)
            (top / "sources").write_bytes(files["n4"][SOURCES].content)

            def start(one: Member) -> Server:
                if engines[one.name] != ENGINE:
                    text = files[one.name][last.config_path].content.decode()
                    found = stacks[one.name].enter_context(upstream_builds.starter(last)(one, text))
                    found.ask("SET SESSION sql_log_bin = 0", "CREATE USER lab@'%' ACCOUNT LOCK")
                    return found
                made = galera_server.node(top, one.name, one.address, ENGINE, files[one.name])
                return stacks[one.name].enter_context(made)

            with ThreadPoolExecutor() as pool:  # members wait for each other
                servers = dict(zip(stacks, pool.map(start, members), strict=True))
            cluster = RealCluster(servers, members, ENGINE, DR)
            DR.form(cluster, engines, Deadline.after(60))
            cluster.until_ready()
            yield Site(cluster, stacks, top)
    except NoServer as error:
        pytest.skip(str(error))


@pytest.mark.rare
def test_real_servers(site: Site) -> None:
    """Protects all statements: formed, cloned, written to; and the link, which loses no rows."""
    members, replicas = ("n1", "n2", "n3"), ("n4", "n5")
    site.ask("n1", "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    site.ask("n2", "INSERT INTO shop.t VALUES (1)", "CREATE TABLE shop.u AS SELECT * FROM shop.t")
    site.ask("n3", "FLUSH ENGINE LOGS", "INSERT INTO shop.t VALUES (2)")
    # What it does not replicate is in a domain of its own, and no replica waits for it.
    site.ask("n3", "SET wsrep_on = OFF", "CREATE TABLE shop.own (id INT)")
    site.cluster.until_ready()
    assert [site.ask(name, "SELECT COUNT(*) FROM shop.t") for name in replicas] == [[(2,)]] * 2
    positions = {str(site.ask(name, "SELECT @@gtid_binlog_pos")[0][0]) for name in members[:2]}
    assert len(positions) == 1
    assert re.fullmatch("0-1-[0-9]+", positions.pop())
    for password in ("first", "second"):  # as clones, while the servers run
        for one in site.cluster.members:
            statements = DR.personalise_statements(
                one, site.cluster.members, ENGINE, "lab", password
            )
            stdin = "\n".join(statements).encode()
            site.cluster.run(one, ["/usr/lib/lab/sql"], stdin=stdin, timeout=9)
        site.cluster.until_ready()
    site.ask("n4", *DR.flush)  # it notes nothing
    assert str(site.ask("n4", "SELECT @@gtid_binlog_pos")[0][0]).startswith("0-1-")
    site.stop("n1")
    site.ask("n2", "INSERT INTO shop.t VALUES (3)")
    assert site.cluster.unmet(site.cluster.members[1]) == ["size 3"]
    assert site.follow("n4") == "127.0.24.2"
    rest = replace(site.cluster, members=site.cluster.members[1:])
    for _ in attempts(Deadline.after(30)):
        if not any(map(rest.unmet, rest.members[2:])):
            break
    assert [site.ask(name, "SELECT COUNT(*) FROM shop.t") for name in replicas] == [[(3,)]] * 2
    site.ask("n4", "STOP REPLICA")  # who stops it means that
    assert site.follow("n4") == "127.0.24.2"
    assert site.ask("n4", "SHOW REPLICA STATUS")[0][10] == "No"
    site.ask("n4", "START REPLICA")
    site.stop("n2")  # n3 alone has no majority
    for _ in attempts(Deadline.after(30)):
        if "Primary" in rest.unmet(site.cluster.members[2]):
            break
    answer = rest.ask(site.cluster.members[2], {})
    assert (answer["wsrep_ready"], bool(answer["position"])) == ("OFF", True)


@pytest.mark.rare
@pytest.mark.parametrize("last", [upstream_builds.builds()["mariadb-11.4.5"]])
def test_a_replica_of_another_series(site: Site, last: Engine) -> None:
    """Protects `--node` of a remote site: each node is spoken to as its own version understands."""
    site.ask("n1", "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    site.ask("n2", "INSERT INTO shop.t VALUES (1)")
    site.cluster.until_ready()
    for one in site.cluster.members:
        engine = last if one.name == "n5" else ENGINE
        statements = DR.personalise_statements(one, site.cluster.members, engine, "lab", "new")
        stdin = "\n".join(statements).encode()
        site.cluster.run(one, ["/usr/lib/lab/sql"], stdin=stdin, timeout=9)
    site.ask("n3", "INSERT INTO shop.t VALUES (2)")
    site.cluster.until_ready()
    assert site.ask("n5", "SELECT COUNT(*), VERSION() LIKE '11.4.5%' FROM shop.t") == [(2, 1)]
    assert site.ask("n4", "SELECT VERSION() LIKE '11.4.5%'") == [(0,)]


def test_members_that_do_not_join_in_time() -> None:
    """Protects who waits: the node is named, also when its server answers otherwise."""

    class Nobody:
        """See Cluster."""

        members = MEMBERS

        def run(self, member: Member, _argv: object, **_: object) -> str:
            if member == N1:
                return "wsrep_ready\tON\n"
            raise CommandFailed(["sql"], 255, stderr="refused")

        def each(self, step: Callable[[Member], object]) -> list[object]:
            return [step(member) for member in self.members]

    with pytest.raises(Exception, match="n2 did not join the cluster in time"):
        DR.form(Nobody(), dict.fromkeys(("n1", "n2", "n3"), ENGINE), Deadline.after(0.1))  # type: ignore[arg-type]
