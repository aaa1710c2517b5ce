"""A group of real servers, each in a network namespace: what brings it back, and its primary."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pymysql
import pytest

from lab.blueprints import Blueprint, Member, Promotion, Situation, blueprint_of
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, Conflict, InvalidSpec, NotReady
from lab.guest.network import inner_address
from lab.options import Options
from lab.run import run
from lab.spec import LabSpec
from lab.units import MIB
from lab.wait import Deadline, attempts
from tests import ROOT
from tests.support.mariadb_server import NoServer
from tests.support.mysql_server import mysql_root
from tests.unit.blueprints.test_group import ENGINE

pytestmark = pytest.mark.rare

T = TypeVar("T")

_PLAIN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_WHOLE = "member\tONLINE\nmembers\t3\nreachable\t3\n"
NAMES = ("n1", "n2", "n3")


@dataclass
class Guest:
    """A server and the programs of its guest, which the test runs as their units would."""

    root: Path
    place: str
    member: Member
    process: subprocess.Popen[bytes] | None = None
    joining: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.root / f"run/mysqld/{self.member.name}.sock"

    @property
    def top(self) -> Path:
        return self.root.parent / self.member.name

    def install(self, options: str, peers: str) -> None:
        name, data = self.member.name, f"/var/lib/{self.member.name}"
        run(["cp", "-a", self.root / "var/lib/mysql", self.root / data[1:]], timeout=60)
        text = options.replace("/run/mysqld/mysqld.", f"/run/mysqld/{name}.")
        text = text.replace("/var/lib/mysql", data).replace("O_DIRECT", "fsync")
        (self.root / f"etc/{name}.cnf").write_text(text)
        self.top.mkdir()
        (self.top / "peers").write_text(peers)
        systemctl = self.top / "systemctl"
        systemctl.write_text(
            f'#!/bin/sh\n[ "$1" = is-active ] && echo active || echo "$@" >>{self.top}/asked\n'
        )
        systemctl.chmod(0o755)
        paths = {
            "/usr/lib/lab/mysql.pl": "mysql.pl", "/etc/lab/group": "peers",
            "/run/lab-leaves": "leaves", "/run/lab-joined": "joined",
        }  # fmt: skip
        for program in ("mysql.pl", "regroup"):
            script = (ROOT / "images/guest/usr/lib/lab" / program).read_text()
            script = script.replace("/run/mysqld/mysqld.sock", str(self.socket))
            for path, here in paths.items():
                script = script.replace(path, str(self.top / here))
            (self.top / program).write_text(script)

    def inside(self, *argv: str | Path) -> list[str]:
        return ["ip", "netns", "exec", self.place, *map(str, argv)]

    def start(self) -> None:
        argv = self.inside(
            "chroot", self.root, "/usr/sbin/mysqld",
            f"--defaults-file=/etc/{self.member.name}.cnf", "--user=mysql",
        )  # fmt: skip
        with (self.top / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, env=_PLAIN)
        self.join()

    def join(self) -> None:
        """As its unit, after each start of the server."""
        self.end_joining()
        with (self.top / "join.log").open("ab") as log:
            argv = self.inside("perl", self.top / "regroup", "join", "mysql.service")
            self.joining = subprocess.Popen(argv, stderr=log)

    def end_joining(self) -> None:
        if self.joining is not None:
            self.joining.kill()
            self.joining.wait()

    def kill(self) -> None:
        self.end_joining()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """As its unit is stopped: the server leaves its group."""
        self.end_joining()
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def identify(self, server_id: str) -> None:
        """As the guest's program of that name."""
        file = self.root / f"etc/{self.member.name}.cnf"
        text = re.sub(r"(?m)^server_id = .*", f"server_id = {server_id}", file.read_text())
        file.write_text(text)
        (self.root / f"var/lib/{self.member.name}/auto.cnf").unlink()

    def leave(self) -> None:
        """As a user would; it is refused while the START still runs that has just joined."""
        for _ in attempts(Deadline.after(30), first=0.5):
            with suppress(pymysql.Error):
                self.ask("STOP GROUP_REPLICATION")
                return
        raise AssertionError(self.member.name)

    def until(self, state: str) -> None:
        for _ in attempts(Deadline.after(60), first=0.5):
            if f"member\t{state}\n" in self.regroup("state", "mysql.service"):
                return
        raise AssertionError(self.regroup("state", "mysql.service"))

    def tear(self) -> None:
        """As a power loss leaves its relay log: what was not synced is zeros."""
        relay = self.root / f"var/lib/{self.member.name}"
        last = max(relay.glob("relay-group_replication_applier.0*"))
        os.truncate(last, last.stat().st_size + 400)

    def regroup(self, *words: str, stdin: bytes = b"", timeout: float = 60) -> str:
        argv = self.inside("perl", self.top / "regroup", *words)
        env = {"PATH": f"{self.top}:{os.environ['PATH']}"}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=env,
                              input=stdin.decode(), check=False)  # fmt: skip
        if done.returncode:
            raise CommandFailed(argv, done.returncode, stderr=done.stderr)
        return done.stdout

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        with socket.socket(socket.AF_UNIX) as probe:  # pymysql leaves its own open
            probe.connect(str(self.socket))
        with (
            pymysql.connect(unix_socket=str(self.socket), user="root", autocommit=True) as server,
            server.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())


@dataclass
class Group:
    """See ``lab.blueprints.Cluster``."""

    guests: dict[str, Guest]
    plan: Blueprint
    actions: list[tuple[str, str]] = field(default_factory=list)

    @property
    def members(self) -> Sequence[Member]:
        return [guest.member for guest in self.guests.values()]

    def each(self, step: Callable[[Member], T]) -> list[T]:
        return [step(member) for member in self.members]

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        guest = self.guests[member.name]
        if argv[0] == "systemctl":
            guest.stop() if argv[1] == "stop" else guest.start()
            return ""
        if argv[0] == "/usr/lib/lab/identity":
            guest.identify(argv[2])
            return ""
        if guest.process is None:
            raise NotReady(f"{member.name} does not run")
        if argv[0] == "/usr/lib/lab/regroup":
            return guest.regroup(*argv[1:], stdin=stdin, timeout=timeout)
        try:
            rows = guest.ask(*stdin.decode().splitlines())
        except (OSError, pymysql.Error) as error:
            raise CommandFailed(argv, 255, stderr=str(error)) from None
        return "".join("\t".join(map(str, row)) + "\n" for row in rows)

    @property
    def engines(self) -> dict[str, Any]:
        return dict.fromkeys(self.guests, ENGINE)

    def standings(self) -> dict[str, str]:
        for guest in self.guests.values():
            asked = guest.top / "asked"
            if asked.exists():
                asked.unlink()
                guest.join()
        return {name: one.regroup("state", "mysql.service") for name, one in self.guests.items()
                if one.process}  # fmt: skip

    def until_whole(self, seconds: float = 150, password: str = "") -> None:
        """What `lab start` does: look, and give the actions of the blueprint."""
        given: Counter[tuple[str, str]] = Counter()
        before: dict[str, str] = {}
        for _ in attempts(Deadline.after(seconds), first=2, most=2):
            here = self.standings()
            if all(_WHOLE in text for text in here.values()):
                return
            now = {name: self.plan.unchanging(text) for name, text in here.items()}
            if now == before:
                whole = len(here) == len(self.guests)
                situation = Situation(here, whole, False, given, password)
                for remedy in self.plan.remedies(situation, self.engines):
                    given[remedy.node, remedy.action] += 1
                    self.actions.append((remedy.node, remedy.action))
                    with suppress(CommandFailed):
                        guest = self.guests[remedy.node]
                        guest.regroup(*remedy.argv[1:], stdin=remedy.stdin)
            before = now
        raise AssertionError(here)

    def promote(self, to: str, *, force: bool = False) -> None:
        asked = Promotion(
            to, NAMES, Deadline.after(60), force=force, fence=lambda one: self.guests[one].kill()
        )
        self.plan.promote(self, self.engines, asked)

    def primaries(self) -> list[str]:
        return [name for name, text in self.standings().items() if "role\tprimary" in text]


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Servers' packages; a socket needs a short path."""
    with tempfile.TemporaryDirectory(prefix="lab-gr-", dir="/tmp") as top:
        try:
            yield mysql_root(Path(top))
        except NoServer as error:
            pytest.skip(str(error))


@pytest.fixture
def options() -> Options:
    return Options()


@pytest.fixture
def group(root: Path, options: Options) -> Iterator[Group]:
    """A group, formed, with a table; no interface of this host is part of it."""
    plan = blueprint_of(LabSpec("group", options=options.said))
    members = [Member(name, n, inner_address(n), "member") for n, name in enumerate(NAMES, 1)]
    switch = f"lab-{os.getpid()}-0"
    with ExitStack() as stack:
        made: dict[str, Guest] = {}
        run(["ip", "netns", "add", switch], timeout=10)
        stack.callback(run, ["ip", "netns", "delete", switch], timeout=10)
        for words in ("link add br0 type bridge", "link set br0 up"):
            run(["ip", "-n", switch, *words.split()], timeout=10)
        for member in members:
            place, port = f"lab-{os.getpid()}-{member.index}", f"port{member.index}"
            run(["ip", "netns", "add", place], timeout=10)
            stack.callback(run, ["ip", "netns", "delete", place], timeout=10)
            for where, words in (
                (switch, f"link add {port} type veth peer name eth0 netns {place}"),
                (switch, f"link set {port} master br0 up"),
                (place, "link set lo up"),
                (place, f"address add {member.address}/24 dev eth0"),
                (place, "link set eth0 up"),
            ):
                run(["ip", "-n", where, *words.split()], timeout=10)
            files = plan.files(member, members, ENGINE, 768 * MIB, EngineProfile())
            guest = made[member.name] = Guest(root, place, member)
            stack.callback(shutil.rmtree, guest.top)
            stack.callback(shutil.rmtree, root / f"var/lib/{member.name}")
            guest.install(
                files[ENGINE.config_path].content.decode(),
                files["/etc/lab/group"].content.decode(),
            )
            guest.start()
            stack.callback(guest.kill)
        found = Group(made, plan)
        plan.form(found, found.engines, Deadline.after(90))
        found.until_whole()
        made["n1"].ask(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY)",
            "INSERT INTO shop.t VALUES (1)",
        )
        yield found


@pytest.mark.parametrize("options", [Options(), Options(multi_primary=True)], ids=["one", "multi"])
def test_it_comes_back(group: Group, options: Options) -> None:
    """Protects groups from members that join each other, of which nobody is in a group."""
    for guest in group.guests.values():
        guest.kill()
    for name in ("n1", "n3"):  # one that starts the group, and one that joins it
        group.guests[name].tear()
    for guest in group.guests.values():
        guest.start()
    group.until_whole()
    # A minority is left, and so the others find one that listens, but cannot take them.
    for name in ("n2", "n3"):
        group.guests[name].kill()
    time.sleep(3)
    for name in ("n2", "n3"):
        group.guests[name].start()
    group.until_whole()
    assert ("n1", "leave") in group.actions
    assert [action for _, action in group.actions].count("bootstrap") == 2
    for guest in group.guests.values():
        assert guest.ask("SELECT id FROM shop.t") == [(1,)]
    assert group.primaries() == (list(NAMES) if options.multi_primary else ["n1"])
    if options.multi_primary:
        with pytest.raises(InvalidSpec, match="all members are primaries"):
            group.promote("n2")


def test_its_primary(group: Group) -> None:
    """Protects who writes: by the group's own choice, and by force where most of it is lost."""
    for name in ("n2", "n3", "n3"):
        group.promote(name)
        assert group.primaries() == [name]
        group.guests[name].ask(f"REPLACE INTO shop.t VALUES ({name[1]})")
    for name in ("n1", "n3"):
        group.guests[name].kill()
    for _ in attempts(Deadline.after(30)):
        if "reachable\t1" in group.standings()["n2"]:
            break
    with pytest.raises(Conflict, match="has lost its majority"):
        group.promote("n2")
    group.promote("n2", force=True)
    assert group.primaries() == ["n2"]
    group.guests["n2"].ask("INSERT INTO shop.t VALUES (9)")
    for name in ("n1", "n3"):
        group.guests[name].start()
    group.until_whole()
    assert group.primaries() == ["n2"]
    assert group.guests["n1"].ask("SELECT COUNT(*) FROM shop.t") == [(4,)]


_LOGIN = (
    "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'replication', SOURCE_PASSWORD = 'the template''s'"
    " FOR CHANNEL 'group_replication_recovery'"
)
_ROWS = "SELECT COUNT(*) FROM shop.t"


def test_members_that_left_while_their_servers_ran(group: Group) -> None:
    """Protects `lab start` and `lab rollback --node`: their guests do not have them join again."""
    n1, n2, n3 = (group.guests[name] for name in NAMES)
    for guest in group.guests.values():
        own = group.plan.personalise_statements(
            guest.member, group.members, ENGINE, "lab", "secret"
        )
        guest.ask(*own)
    n2.leave()
    n3.leave()
    n1.ask("INSERT INTO shop.t VALUES (2)")
    n3.ask(_LOGIN, "SET GLOBAL group_replication_recovery_retry_count = 1")
    n3.ask("START GROUP_REPLICATION")
    n3.until("ERROR")
    group.until_whole(password="secret")
    assert sorted(group.actions[-2:]) == [("n2", "return"), ("n3", "return")]
    # As a node is that was rolled back: it lacks something, and its recovery is refused.
    n2.ask(_LOGIN)
    n2.stop()
    n1.ask("INSERT INTO shop.t VALUES (3)")
    n2.start()
    n2.until("RECOVERING")
    group.until_whole(password="secret")
    assert group.actions[-1] == ("n2", "return")
    assert [guest.ask(_ROWS) for guest in group.guests.values()] == [[(3,)]] * 3
    # One in ERROR, which has the most, starts the group that the others have left.
    n1.ask("SET GLOBAL group_replication_unreachable_majority_timeout = 3")
    n2.leave()
    n1.ask("INSERT INTO shop.t VALUES (4)")
    n3.kill()
    n1.until("ERROR")
    n3.start()
    group.until_whole(password="secret")
    assert group.actions[-2:] == [("n1", "bootstrap"), ("n2", "return")]
    assert [guest.ask(_ROWS) for guest in group.guests.values()] == [[(4,)]] * 3


def test_a_branch_with_an_identity_of_its_own(group: Group) -> None:
    """Protects what an event commits while servers stop one after the other."""
    group.promote("n2")
    group.guests["n2"].ask(
        "CREATE TABLE shop.e (id INT PRIMARY KEY AUTO_INCREMENT)",
        "CREATE EVENT shop.often ON SCHEDULE EVERY 1 SECOND DO INSERT INTO shop.e VALUES ()",
    )
    group.plan.identify(group, group.engines, 1 << 21)
    group.until_whole()
    assert group.primaries() == ["n2"]
    group.guests["n2"].ask("DROP EVENT shop.often")
    ((name,),) = group.guests["n1"].ask("SELECT @@group_replication_group_name")
    assert name not in (group.guests["n1"].root / "etc/n1.cnf").read_text()
