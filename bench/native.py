"""The same topologies without guests: servers as processes of this host, of the guests' version.

Each server has a network namespace of its own on a bridge, so it can have the option file that a
node of a lab has. What is timed begins with a copy of an initialised data directory.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pymysql

from bench.labs import Failed
from lab.blueprints import Engine, Member, blueprint_of
from lab.config.profile import EngineProfile
from lab.errors import LabError
from lab.guest.network import inner_address
from lab.imagebuild.recipe import load
from lab.run import run
from lab.sizes import NodeSize
from lab.spec import LabSpec
from lab.wait import Deadline, attempts
from tests.support.mariadb_server import NoServer
from tests.support.mysql_server import mysql_root

_SECONDS = 180.0
_END_SECONDS = 30.0
_LOOK_EVERY = 0.02
PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_ACCOUNT = "replication@'%'"
_PASSWORD = "native"  # noqa: S105  of servers that end in seconds, in a namespace of their own
_ONLINE = (
    "SELECT COUNT(*) FROM performance_schema.replication_group_members"
    " WHERE MEMBER_STATE = 'ONLINE'"
)


@contextmanager
def mysql_files() -> Iterator[Path]:
    """A root file system with MySQL and an initialised data directory; raises Failed."""
    with tempfile.TemporaryDirectory(prefix="lab-nat-", dir="/var/tmp") as top:
        os.chmod(top, 0o755)  # noqa: PTH101, S103  its server runs as another user
        try:
            yield mysql_root(Path(top))
        except NoServer as error:
            raise Failed(f"no servers on this host: {error}") from error


def formed(root: Path, blueprint: str, nodes: int) -> float:
    """Seconds from nothing but files to a topology that is ready; it ends then. Raises Failed."""
    spec = LabSpec(blueprint, nodes=nodes, engine="mysql")
    plan = blueprint_of(spec)
    members = [
        Member(one.name, number, inner_address(number), one.role)
        for number, one in enumerate(plan.plan(spec.size), 1)
    ]
    with _network(members) as namespaces, ExitStack() as ends:
        began = time.perf_counter()
        sockets = []
        for member, namespace in zip(members, namespaces, strict=True):
            files = plan.files(member, members, engine(), NodeSize().memory, EngineProfile())
            text = files[engine().config_path].content.decode()
            sockets.append(_started(root, member, namespace, text, ends))
        ready = [connected(socket, ends) for socket in sockets]
        _FORM[blueprint](members, ready)
        return time.perf_counter() - began


def engine() -> Engine:
    """What a node's option file is made of."""
    recipe = load("mysql")
    config = (recipe.directory / "my.cnf").read_text()
    return Engine("mysql", "9.7", config, recipe.config, "mysql", 0, 0)


@contextmanager
def _network(members: Sequence[Member]) -> Iterator[list[str]]:
    """A namespace for each of ``members`` with its address, all on one bridge in another."""
    token = secrets.token_hex(3)
    hub, names = f"lab-{token}-0", [f"lab-{token}-{member.index}" for member in members]
    with ExitStack() as ends:
        for name in (hub, *names):
            _ip("netns", "add", name)
            ends.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "hub", "type", "bridge")
        _ip("-n", hub, "link", "set", "hub", "up")
        for member, name in zip(members, names, strict=True):
            port = f"p{member.index}"
            _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
            _ip("-n", hub, "link", "set", port, "master", "hub", "up")
            _ip("-n", name, "addr", "add", f"{member.address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield names


def _ip(*words: str) -> None:
    try:
        run(["ip", *words], timeout=_END_SECONDS)
    except LabError as error:
        raise Failed(f"no network namespaces here: {error}") from error


def _started(root: Path, member: Member, namespace: str, text: str, ends: ExitStack) -> Path:
    """Start the server of ``member`` on a copy of the data directory; its socket."""
    data, name = f"/var/lib/{member.name}", member.name
    ends.callback(shutil.rmtree, root / data[1:], ignore_errors=True)
    run(["cp", "-a", root / "var/lib/mysql", root / data[1:]], timeout=_SECONDS)
    text = text.replace("/run/mysqld/mysqld.", f"/run/mysqld/{name}.")
    file = f"/etc/{name}.cnf"
    (root / file[1:]).write_text(text.replace("/var/lib/mysql", data))
    argv = ["ip", "netns", "exec", namespace, "chroot", str(root),
            "/usr/sbin/mysqld", f"--defaults-file={file}", "--user=mysql"]  # fmt: skip
    log = ends.enter_context((root / f"var/log/{name}.log").open("wb"))
    process = subprocess.Popen(argv, stdout=log, stderr=log, env=PATH)
    ends.callback(_end, process)
    return root / f"run/mysqld/{name}.sock"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(_END_SECONDS)


def connected(socket: Path, ends: ExitStack) -> Any:
    """A session of root's, once the server takes one; raises Failed."""
    for _ in attempts(Deadline.after(_SECONDS), first=_LOOK_EVERY, most=_LOOK_EVERY):
        try:
            session = pymysql.connect(unix_socket=str(socket), user="root", autocommit=True)
        except pymysql.Error:
            continue
        ends.callback(session.close)
        return session
    raise Failed(f"the server at {socket} did not start in {_SECONDS:g} s")


def _execute(session: Any, *statements: str) -> Any:
    """Execute statements; the first value of the last one's answer."""
    with session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        row = cursor.fetchone()
        return row[0] if row else None


def _until(session: Any, question: str, wanted: object) -> None:
    for _ in attempts(Deadline.after(_SECONDS), first=_LOOK_EVERY, most=_LOOK_EVERY):
        if (found := _execute(session, question)) == wanted:
            return
    raise Failed(f"{question}: {found!r}, not {wanted!r}, after {_SECONDS:g} s")


def _accounts(session: Any, *, more: str = "") -> None:
    _execute(
        session,
        "SET SESSION sql_log_bin = 0",
        "SET GLOBAL super_read_only = OFF",
        f"CREATE USER {_ACCOUNT} IDENTIFIED BY '{_PASSWORD}'",
        f"GRANT REPLICATION SLAVE{more} ON *.* TO {_ACCOUNT}",
        "SET SESSION sql_log_bin = 1",
    )


def _single(_members: Sequence[Member], sessions: Sequence[Any]) -> None:
    _until(sessions[0], "SELECT @@GLOBAL.read_only", 0)


def _replication(members: Sequence[Member], sessions: Sequence[Any]) -> None:
    for session in sessions:
        _accounts(session)
    source, *replicas = sessions
    for session in replicas:
        _execute(
            session,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{members[0].address}',"
            f" SOURCE_USER = 'replication', SOURCE_PASSWORD = '{_PASSWORD}', SOURCE_SSL = 1,"
            " SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1",
            "START REPLICA",
            "SET GLOBAL super_read_only = ON",
        )
    _execute(source, "CREATE DATABASE proof")
    position = _execute(source, "SELECT @@GLOBAL.gtid_executed")
    for session in replicas:
        wait = f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{position}', {_SECONDS:g})"
        if _execute(session, wait) != 0:
            raise Failed("a replica did not catch up")


def _group(members: Sequence[Member], sessions: Sequence[Any]) -> None:
    for session in sessions:
        _accounts(session, more=", CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM")
        _execute(
            session,
            "SET GLOBAL super_read_only = ON",
            f"CHANGE REPLICATION SOURCE TO SOURCE_USER = 'replication',"
            f" SOURCE_PASSWORD = '{_PASSWORD}' FOR CHANNEL 'group_replication_recovery'",
        )
    first, *others = sessions
    _execute(
        first,
        "SET GLOBAL group_replication_bootstrap_group = ON",
        "START GROUP_REPLICATION",
        "SET GLOBAL group_replication_bootstrap_group = OFF",
    )
    for session in others:  # one after the other, as MySQL's manual has it
        _execute(session, "START GROUP_REPLICATION")
    for session in sessions:
        _until(session, _ONLINE, len(members))


_FORM = {"single": _single, "replication": _replication, "group": _group}
