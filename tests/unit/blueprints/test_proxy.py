"""Proxies and arbiters: what they boot with, when they are ready; and in front of real servers."""

from __future__ import annotations

import http.client
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.blueprints import (
    Blueprint,
    Engine,
    Member,
    NodePlan,
    Service,
    blueprint_of,
    planned,
    planned_by,
    with_options,
)
from lab.blueprints.proxies import CHECK_PORT, Traffic
from lab.blueprints.proxies.router import SERVERS
from lab.blueprints.proxy import CHECKS, PROXIES
from lab.config.profile import EngineProfile
from lab.errors import NotReady
from lab.guest.network import inner_address
from lab.guest.seed import SeedFile
from lab.imagebuild.recipe import load
from lab.observe import page
from lab.options import PROXY_NAMES, Options
from lab.run import run
from lab.sizes import NodeSize
from lab.spec import LabSpec
from lab.units import MIB
from lab.wait import Deadline, until
from tests import ROOT
from tests.support.haproxy import haproxy
from tests.support.mariadb_server import NoServer
from tests.unit.blueprints.test_replication import ENGINE, MYSQL, RealCluster, _mariadb
from tests.unit.guest.test_identity_in_guest import program

PROFILE = EngineProfile()
ARBITER_VIEW = "/var/lib/garbd/gvwstate.dat"


def engine_of(recipe: str) -> Engine:
    found = load(recipe)
    text = (found.directory / "my.cnf").read_text()
    return Engine(recipe, "1", text, found.config, found.user, 100, 101, service=found.service)


def spec(blueprint: str, nodes: int = 3, **options: Any) -> LabSpec:
    return LabSpec(blueprint, nodes=nodes, options=Options(**options).said)


def members(nodes: Sequence[NodePlan]) -> list[Member]:
    return [
        Member(node.name, number, inner_address(number), node.role)
        for number, node in enumerate(nodes, 1)
    ]


def files(wanted: LabSpec, name: str) -> dict[str, str]:
    """The texts of the files of a node."""
    return files_by(blueprint_of(wanted), name)


def files_by(plan: Blueprint, name: str) -> dict[str, str]:
    """The texts of the files of a node of a lab whose blueprint is ``plan``."""
    nodes = planned_by(plan, NodeSize(), "", {})
    plans, everyone = {node.name: node for node in nodes}, members(nodes)
    server = MYSQL if plan.name == "group" else ENGINE
    engine = engine_of(plans[name].recipe) if plans[name].recipe else server
    (member,) = (one for one in everyone if one.name == name)
    found = plan.files(member, everyone, engine, 768 * MIB, PROFILE)
    return {path: file.content.decode() for path, file in found.items()}


GALERA = spec("galera", proxy="haproxy", arbiter=True)
CONFIGURED = {
    "proxy-galera.cfg": GALERA,
    "proxy-replication.cfg": spec("replication", delay=60.0, on=("n3",), proxy="haproxy"),
    "proxy-group.cfg": spec("group", proxy="haproxy"),
    "proxy-group-multi-primary.cfg": spec("group", multi_primary=True, proxy="haproxy"),
    "proxy-galera-1.cfg": spec("galera", 1, proxy="haproxy"),
}


def config_of(wanted: LabSpec) -> str:
    return files(wanted, planned(wanted)[-1].name)["/etc/haproxy/haproxy.cfg"]


@pytest.mark.parametrize("name", CONFIGURED)
def test_what_haproxy_boots_with(golden: Callable[[str, str], None], name: str) -> None:
    """Protects where statements go: a change must be meant."""
    golden(f"blueprint/{name}", config_of(CONFIGURED[name]))


@pytest.mark.parametrize("blueprint", ["galera", "replication", "group"])
def test_what_servers_are_checked_for(golden: Callable[[str, str], None], blueprint: str) -> None:
    found = files(spec(blueprint, proxy="haproxy"), "n2")
    golden(f"blueprint/check-{blueprint}", found[CHECKS])
    assert CHECKS not in files(spec(blueprint), "n2")
    # The checker runs all the time: its statements must not count as use of a lab.
    statements = [line.split("\t", 2)[2] for line in found[CHECKS].splitlines()[1:]]
    assert all(one.startswith(("SHOW ", "SET SESSION ")) for one in statements)


def test_what_the_router_boots_with() -> None:
    found = files(spec("replication", delay=60.0, on=("n3",), proxy="router"), "n4")
    servers = "n1\t10.77.0.1\t\nn2\t10.77.0.2\t\nn3\t10.77.0.3\tlast\n"
    assert found[SERVERS] == f"rw\tfirst-available\n{servers}"
    spread = files(spec("group", multi_primary=True, proxy="router"), "n4")
    assert spread[SERVERS].startswith("rw\tround-robin\nn1\t")
    assert "[DEFAULT]" in found["/etc/lab/router.cnf"]


def test_the_names_of_proxies_are_those_of_the_table() -> None:
    """Protects a proxy that could be requested, and is not there."""
    assert ("none", *PROXIES) == PROXY_NAMES


@dataclass(frozen=True)
class Third:
    """A proxy that is none of ours."""

    recipe: str = "haproxy"
    seed: str = "/etc/third.cnf"
    pages: tuple[Service, ...] = (Service("metrics", 6070), Service("admin", 6080))
    counts_delayed: bool = False

    def files(
        self, servers: Sequence[Member], engine: Engine, traffic: Traffic
    ) -> Mapping[str, SeedFile]:
        text = f"{engine.name} {traffic.variable} {' '.join(one.name for one in servers)}"
        return {self.seed: SeedFile(text.encode())}


@pytest.mark.parametrize("blueprint", ["galera", "replication", "group"])
def test_a_third_proxy_is_an_object(blueprint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from a proxy that needs more than its file and its line in the table."""
    monkeypatch.setitem(PROXIES, "third", Third())
    third: Any = {"proxy": "third"}  # the option is of a type that has ours alone
    found = with_options(blueprint, Options(**third), 3)
    nodes = planned_by(found, NodeSize(), "", {})
    plan = nodes[-1]
    assert (plan.name, plan.role, plan.recipe) == ("n4", "proxy", "haproxy")
    assert [(one.name, one.port) for one in plan.services] == [
        ("sql", 3306), ("ro", 3307), ("ssh", 22), ("metrics", 6070), ("admin", 6080),
    ]  # fmt: skip
    (path, text), *more = files_by(found, "n4").items()
    assert not more
    assert (path, text.split()[-3:]) == ("/etc/third.cnf", ["n1", "n2", "n3"])
    assert CHECKS in files_by(found, "n1")
    through = found.through("proxy")
    assert list(through) == ["sql", "ro", "metrics", "admin"]
    assert through["metrics"] == through["admin"] == ""
    required = [(one.name, one.variable) for one in found.requirements("proxy", 3)]
    assert required[-2:] == [("metrics", "metrics.page"), ("admin", "admin.page")]
    ends = {one.name: (one.nodes, one.service) for one in found.endpoints(members(nodes))}
    assert ends["rw"] == (("n4",), "sql")
    assert ends["ro"] == (("n4",), "ro")
    assert ends["metrics"] == (("n4",), "metrics")
    assert ends["admin"] == (("n4",), "admin")
    assert ends["writers"][0][0] == "n1"


def test_an_arbiter_is_a_member_of_the_cluster(golden: Callable[[str, str], None]) -> None:
    """Protects its vote after a power loss: all members restore one view, with it."""
    found = files(GALERA, "n4")
    golden("blueprint/arbiter.cnf", found["/etc/lab/garbd.cnf"])
    server = files(GALERA, "n1")["/var/lib/mysql/gvwstate.dat"]
    assert found[ARBITER_VIEW].partition("#vwbeg")[2] == server.partition("#vwbeg")[2]
    assert found[ARBITER_VIEW].count("member:") == 4
    option_file = files(GALERA, "n1")[ENGINE.config_path]
    assert "gcomm://10.77.0.1,10.77.0.2,10.77.0.3,10.77.0.4\n" in option_file


def test_no_peer_takes_a_proxy_for_a_server() -> None:
    group = files(spec("group", proxy="haproxy"), "n1")
    assert group["/etc/lab/group"] == "10.77.0.2 33061\n10.77.0.3 33061\n"
    assert "10.77.0.4" not in "".join(group.values())
    for blueprint in ("group", "replication"):
        wanted = spec(blueprint, proxy="haproxy")
        plan, everyone = blueprint_of(wanted), members(planned(wanted))
        assert plan.sources(everyone[-1], everyone) == ()


@pytest.mark.parametrize(
    ("wanted", "answer", "unmet"),
    [
        (GALERA, {"sql.wsrep_node_name": "n1", "ro.wsrep_node_name": "n2"}, []),
        (GALERA, {"sql.wsrep_node_name": "n1", "ro.wsrep_node_name": "n1"}, ["ro: n1, as rw does"]),
        (GALERA, {"rw": "n1 n2 n3", "ro": "n2 n3"}, []),
        (GALERA, {"rw": "n1", "ro": ""}, ["ro: no server"]),
        (GALERA, {"rw": "n1 n2", "ro": "n2"}, ["ro: only n2"]),
        (GALERA, {}, ["rw: no server", "ro: no server"]),
        (spec("galera", 1, proxy="haproxy"), {"sql.wsrep_node_name": "n1"}, []),
        (spec("group", proxy="haproxy"), {"sql.read_only": "OFF", "ro.read_only": "ON"}, []),
        (
            spec("group", proxy="haproxy"),
            {"sql.read_only": "ON", "ro.read_only": "OFF"},
            ["rw: a server that is read-only", "ro: a server that takes writes"],
        ),
        (spec("replication", proxy="haproxy"), {"rw": "n1", "ro": "n2"}, ["ro: only n2"]),
        (spec("group", multi_primary=True, proxy="haproxy"), {"sql.read_only": "OFF"}, []),
    ],
)
def test_when_a_proxy_is_ready(wanted: LabSpec, answer: dict[str, str], unmet: list[str]) -> None:
    found = blueprint_of(wanted).requirements("proxy", wanted.nodes)
    asked = {**answer, "admin.page": "200"}
    missing = [one for one in found if one.found(asked) != one.value]
    assert [f"{one.name}: {one.found(asked)}" for one in missing] == unmet
    assert "admin" in [one.name for one in found if one.found(answer) != one.value]


@pytest.fixture(scope="module")
def real() -> tuple[Path, dict[str, str]]:
    try:
        return haproxy()
    except NoServer as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", CONFIGURED)
def test_haproxy_takes_it(name: str, real: tuple[Path, dict[str, str]], short: Path) -> None:
    """Protects from a proxy that does not start: the real one checks its file."""
    text = config_of(CONFIGURED[name]).replace("/run/haproxy/", f"{short}/")
    (short / "cfg").write_text(text)
    done = run([real[0], "-c", "-f", short / "cfg"], timeout=30, env=real[1])
    assert "WARNING" not in done.stderr
    assert "ALERT" not in done.stderr


def status(address: str, path: str) -> int:
    """The HTTP status that a checker answers."""
    connection = http.client.HTTPConnection(address, CHECK_PORT, timeout=10)
    connection.request("GET", path)
    return connection.getresponse().status


@dataclass
class Front:
    """A proxy in front of real servers, each with its checker."""

    cluster: RealCluster
    address: str
    socket: Path

    def reached(self, port: int) -> str:
        """The server that answers there, by its number; empty for none."""
        try:
            with pymysql.connect(
                host=self.address, port=port, user="lab", password="secret"
            ) as connection:
                cursor = connection.cursor()
                cursor.execute("SELECT @@server_id")
                return f"n{cursor.fetchall()[0][0]}"
        except pymysql.Error:
            return ""

    def until(self, rw: str, ro: str) -> None:
        assert until(
            lambda: (self.reached(3306), self.reached(3307)) == (rw, ro),
            Deadline.after(20),
        ), (self.reached(3306), self.reached(3307))


@contextmanager
def checker(directory: Path, socket: Path, text: str) -> Iterator[None]:
    directory.mkdir()
    program("mysql.pl", directory, socket)
    (directory / "asked").write_text(text)
    argv: list[str | Path] = ["perl", program("check", directory, socket), directory / "asked"]
    with subprocess.Popen(argv) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def front(real: tuple[Path, dict[str, str]], short: Path) -> Iterator[Front]:
    """A source and a replica of MariaDB, and HAProxy."""
    if not shutil.which("perl"):
        pytest.skip("perl is not installed")
    wanted = spec("replication", 2, proxy="haproxy")
    plan = blueprint_of(wanted)
    net = f"127.77.{secrets.randbelow(256)}"  # another run may have its own at the same time
    everyone = [
        Member(node.name, n, f"{net}.{n}", node.role) for n, node in enumerate(planned(wanted), 1)
    ]
    servers, proxy = everyone[:2], everyone[2]

    def written(member: Member, engine: Engine) -> Mapping[str, str]:
        found = plan.files(member, everyone, engine, 768 * MIB, PROFILE)
        return {path: file.content.decode() for path, file in found.items()}

    try:
        with ExitStack() as stack:
            running = {
                member.name: stack.enter_context(
                    _mariadb(member, written(member, ENGINE)[ENGINE.config_path])
                )
                for member in servers
            }
            cluster = RealCluster(running, servers, ENGINE, plan)
            cluster.form()
            for member in servers:
                statements = plan.personalise_statements(member, servers, ENGINE, "lab", "secret")
                text = "\n".join(statements).encode()
                cluster.run(member, ["/usr/lib/lab/sql"], stdin=text, timeout=9)
                place, socket = short / member.name, running[member.name].socket
                stack.enter_context(checker(place, socket, written(member, ENGINE)[CHECKS]))
            config = written(proxy, engine_of("haproxy"))["/etc/haproxy/haproxy.cfg"]
            config = config.replace("/run/haproxy/", f"{short}/")
            config = config.replace("bind 0.0.0.0:", f"bind {proxy.address}:")
            (short / "cfg").write_text(config)
            argv = [str(real[0]), "-db", "-f", str(short / "cfg")]
            process = stack.enter_context(subprocess.Popen(argv, env=real[1]))
            stack.callback(process.kill)
            yield Front(cluster, proxy.address, short / "admin.sock")
    except NoServer as error:
        pytest.skip(str(error))


def test_real_servers_behind_haproxy(front: Front) -> None:
    """Protects writes and reads: they follow the roles of servers, and who is promoted."""
    front.until("n1", "n2")
    source, replica = front.cluster.members
    first, second = (front.cluster.servers[one.name] for one in (source, replica))
    assert [status(source.address, path) for path in ("/rw", "/ro", "/no", "/")] == [
        200, 503, 404, 404]  # fmt: skip
    assert [status(replica.address, path) for path in ("/rw", "/ro")] == [503, 200]
    # What the guest's program says of itself, before anybody reaches its ports.
    proxied = (ROOT / "images/haproxy/usr/lib/lab/proxied").read_text()
    script = front.socket.parent / "proxied"
    script.write_text(proxied.replace("127, 0, 0, 1", front.address.replace(".", ", ")))

    def proxied_says(text: str) -> bool:
        return run(["perl", script, front.socket, "8404"], timeout=10).stdout == text

    wanted = "rw\tn1\nro\tn2\nadmin.page\t200\n"
    assert until(lambda: proxied_says(wanted), Deadline.after(10))
    assert page.status(front.address, 8404, timeout=5) == "200"
    # Its threads stop: it is read from no longer, but reads are answered.
    second.ask("STOP SLAVE")
    front.until("n1", "n1")
    second.ask("START SLAVE")
    front.until("n1", "n2")
    # The source does not take connections: what its replica has can be read.
    second.ask("STOP SLAVE", "CHANGE MASTER TO MASTER_PORT = 1", "START SLAVE")

    def waits() -> bool:
        (row,) = second.ask("SHOW REPLICA STATUS")
        return " Connecting Yes " in " ".join(map(str, row))

    assert until(waits, Deadline.after(10))
    assert status(replica.address, "/ro") == 200
    second.ask("STOP SLAVE", "CHANGE MASTER TO MASTER_PORT = 3306", "START SLAVE")
    # Roles change.
    second.ask("STOP SLAVE", "SET GLOBAL read_only = OFF")
    first.ask("SET GLOBAL read_only = ON")
    front.until("n2", "n2")
    # A server that hangs, or ends, is no answer.
    first.ask("SET GLOBAL read_only = OFF")
    second.ask("SET GLOBAL read_only = ON", "START SLAVE")
    front.until("n1", "n2")
    second.ask("SHUTDOWN")
    front.until("n1", "n1")
    assert status(replica.address, "/ro") == 503


def test_a_checker_keeps_its_session(front: Front) -> None:
    """Protects idle guests, and leases of idle labs: no login for each answer, no SELECT."""
    source = front.cluster.members[0]
    server = front.cluster.servers["n1"]
    front.until("n1", "n2")

    def counted(name: str) -> int:
        return int(server.ask(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

    def sessions() -> list[Any]:
        rows = server.ask("SHOW PROCESSLIST")
        return [row[0] for row in rows if row[3] == "information_schema"]

    (session,), selects = sessions(), counted("Com_select")
    for _ in range(5):
        assert status(source.address, "/rw") == 200
    assert (sessions(), counted("Com_select")) == ([session], selects)
    server.ask(f"KILL {session}")
    assert until(lambda: status(source.address, "/rw") == 200, Deadline.after(10))


@pytest.mark.parametrize("said", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 x\r\n", b"y" * 2000])
def test_what_is_no_page(said: bytes) -> None:
    """Protects from a node whose root puts something else in the place of its proxy."""
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(100)
                connected.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(NotReady, match="no page at"):
            page.status("127.0.0.1", listener.getsockname()[1], timeout=5)
        thread.join()
    with pytest.raises(NotReady, match="no page at"):
        page.status("127.0.0.1", 1, timeout=0.5)
