"""What the guest's program for loading says of its work, and what it leaves of a lab's node."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import create_server

import pytest

from lab.run import run
from lab.wait import Deadline, attempts
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, Server, server
from tests.unit.guest.test_identity_in_guest import DIALECTS, program


@pytest.fixture
def load(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    path = program("load", tmp_path, tmp_path / "sock", ("/run/lab-load", f"{tmp_path}/run"))
    path.chmod(0o755)
    program("dialect", tmp_path, tmp_path / "sock", source=DIALECTS["mariadb"])
    return path


def look(load: Path) -> str:
    return run([load, "look"], timeout=10).stdout


def test_a_step_that_begins(load: Path) -> None:
    """Its files are opened before they are written."""
    assert look(load) == "read 0\n"
    (load.parent / "run/pid").touch()
    assert look(load) == "read 0\n"
    (load.parent / "run/answered.0").touch()
    assert look(load) == "read 0\n"


def test_how_far_a_process_has_read(load: Path) -> None:
    (load.parent / "run/pid").write_text(f"{os.getpid()}\n")
    with (load.parent / "read").open("w+b") as file:
        file.write(bytes(7))
        file.flush()
        before = os.dup(0)
        try:
            os.dup2(file.fileno(), 0)
            assert look(load) == "read 7\n"
        finally:
            os.dup2(before, 0)
            os.close(before)


def test_the_end(load: Path) -> None:
    (load.parent / "run/status").write_text("3\n")
    (load.parent / "run/output").write_text("no such table\n")
    assert look(load) == "done 3\nno such table\n"


PLACES = ("/etc/", "/proc/", "/root/", "/var/lib/")
OWN = ("check", "cluster.sql", "group", "network", "seed-id", "source", "sources")
"""What a node of a lab has in /etc/lab, by its seed or programs."""

as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("perl"), reason="a guest's programs run as root, in perl"
)


@pytest.fixture(scope="module")
def replica() -> Iterator[Server]:
    """Where it is in a ring, and has a further link of its user's."""
    options = ["--log-bin=binlog", "--relay-log=relay", "--log-slave-updates", "--server-id=1",
               "--gtid-domain-id=1", "--gtid-strict-mode=ON"]  # fmt: skip
    try:
        with server(options) as found:
            found.ask("CREATE USER lab@'%' IDENTIFIED BY 'secret'")
            yield found
    except NoServer as why:
        pytest.skip(str(why))


def in_guest(directory: Path, socket: Path, *words: str, dialect: str = "mariadb") -> None:
    """Run ``load`` as in a guest whose files are in ``directory``."""
    # Beyond those it would change this machine's.
    changes = [(place, f"{directory}/root-fs{place}") for place in PLACES]
    path = program("load", directory, socket, ("/run/lab-load", f"{directory}/run"), *changes)
    path.chmod(0o755)
    for name in ("sql", "mysql.pl"):
        program(name, directory, socket).chmod(0o755)
    program("dialect", directory, socket, *changes, source=DIALECTS[dialect])
    for place in ("etc/lab", "etc/ssh", "etc/mysql/tls", "proc", "root/.ssh", "var/lib/mysql"):
        (directory / "root-fs" / place).mkdir(parents=True, exist_ok=True)
    (directory / "root-fs/proc/mounts").touch()
    tools = directory / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("systemctl", "chown", "sync"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    run([path, *words], timeout=120, env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"})


@as_root
def test_links_are_forgotten(tmp_path: Path, replica: Server) -> None:
    """A node that wakes alone may follow others; new labs are clones of its disks."""
    for port, name in enumerate(("", "n2", "o\\'ne"), 1):
        at = f"MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USE_GTID = slave_pos"
        replica.ask(f"CHANGE MASTER '{name}' TO {at}", f"START SLAVE '{name}'")
    replica.ask("CREATE DATABASE shop")
    assert len(replica.ask("SHOW ALL SLAVES STATUS")) == 3
    in_guest(tmp_path, replica.socket, "forget")
    assert replica.ask("SHOW ALL SLAVES STATUS") == []
    assert replica.ask("SELECT @@GLOBAL.gtid_slave_pos, @@GLOBAL.gtid_binlog_pos") == [("", "")]
    left = [path.name for path in (replica.directory / "data").iterdir()]
    assert [name for name in left if name.endswith(".info")] in ([], ["multi-master.info"])
    assert not any(name.startswith("relay") and name[-1].isdigit() for name in left), left
    in_guest(tmp_path, replica.socket, "forget")  # most nodes have no links


@as_root
def test_what_is_left_at_rest(tmp_path: Path, replica: Server) -> None:
    """Protects services that run where their file exists: the new lab has its own, or none."""
    lab = tmp_path / "root-fs/etc/lab"
    lab.mkdir(parents=True)
    for name in ("data-sectors", *OWN):
        (lab / name).touch()
    config = lab.parent / "99-lab.cnf"
    config.touch()
    in_guest(tmp_path, replica.socket, "rest", "mariadb.service", str(config))
    assert not config.exists()
    assert [path.name for path in lab.iterdir()] == ["data-sectors"], "the image's"


@as_root
def test_a_server_of_mysql_forgets_its_lab(tmp_path: Path) -> None:
    """Protects new labs from links, GTIDs and the password of the lab whose node woke alone."""
    options = ["--log-bin=binlog", "--relay-log=relay", "--super-read-only"]
    kept = "SELECT authentication_string FROM mysql.user WHERE user = 'lab'"
    try:
        with mysql_server.server(options) as db:
            db.ask(
                "SET GLOBAL super_read_only = OFF",
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'db.example'",
                "ALTER USER lab@'%' IDENTIFIED BY 'secret' ACCOUNT UNLOCK",
                "SET PERSIST max_connections = 77",
                "SET GLOBAL super_read_only = ON",
            )
            password = db.ask(kept)
            in_guest(tmp_path, db.socket, "forget", dialect="mysql")
            assert db.ask(kept) != password
            locked = "SELECT account_locked FROM mysql.user WHERE user = 'lab'"
            assert db.ask(locked) == [("Y",)]
            assert db.ask("SHOW REPLICA STATUS") == []
            assert db.ask("SELECT @@GLOBAL.gtid_executed, @@GLOBAL.super_read_only") == [("", 0)]
            data = tmp_path / "root-fs/var/lib/mysql"
            for name in ("auto.cnf", "mysqld-auto.cnf", "binlog.000001", "binlog.index"):
                shutil.copy(db.directory / "data" / name, data)
            (data / "ibdata1").touch()
            in_guest(tmp_path, db.socket, "rest", "mysql.service", "none", dialect="mysql")
            assert [path.name for path in data.iterdir()] == ["ibdata1"]
    except NoServer as why:
        pytest.skip(str(why))


_GROUP = "6ba7b812-9dad-11d1-80b4-00c04fd430c8"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody has."""
    with ExitStack() as stack:
        some = [stack.enter_context(create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in some]


@as_root
@pytest.mark.rare  # the server waits for half a minute until it gives its group up
def test_a_member_that_wakes_alone_leaves_its_group(tmp_path: Path) -> None:
    """Protects datasets of a group from a server that waits for members that never answer."""
    ports, own = free_ports(2), free_ports(2)
    seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
    on_recovery = "FOR CHANNEL 'group_replication_recovery'"
    try:
        with ExitStack() as stack:
            members = [
                stack.enter_context(mysql_server.server([
                    "--skip-networking=OFF", "--bind-address=127.0.0.1", f"--port={own[number]}",
                    "--log-bin=binlog", f"--server-id={number + 1}", "--performance-schema=ON",
                    "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--super-read-only=ON",
                    "--plugin-load-add=group_replication.so", "--report-host=127.0.0.1",
                    f"--loose-group-replication-group-name={_GROUP}",
                    f"--loose-group-replication-local-address=127.0.0.1:{port}",
                    f"--loose-group-replication-group-seeds={seeds}",
                    "--loose-group-replication-start-on-boot=OFF",
                    "--loose-group-replication-ssl-mode=DISABLED",
                    "--loose-group-replication-recovery-get-public-key=ON",
                    "--caching-sha2-password-auto-generate-rsa-keys=ON",
                ]))
                for number, port in enumerate(ports)
            ]  # fmt: skip
            first, other = members
            for member in members:
                member.ask(
                    "SET SESSION sql_log_bin = 0",
                    "SET GLOBAL super_read_only = OFF",
                    "CREATE USER rec@'%' IDENTIFIED BY 'x'",
                    "GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN,"
                    " GROUP_REPLICATION_STREAM ON *.* TO rec@'%'",
                    "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'rec', SOURCE_PASSWORD = 'x'"
                    f" {on_recovery}",
                    "SET GLOBAL super_read_only = ON",
                )
            first.ask(
                "SET GLOBAL group_replication_bootstrap_group = ON",
                "START GROUP_REPLICATION",
                "SET GLOBAL group_replication_bootstrap_group = OFF",
            )
            other.ask("START GROUP_REPLICATION")
            online = (
                "SELECT COUNT(*) FROM performance_schema.replication_group_members"
                " WHERE MEMBER_STATE = 'ONLINE'"
            )
            for _ in attempts(Deadline.after(120.0)):
                if first.ask(online) == [(2,)]:
                    break
            first.ask("CREATE DATABASE crm")
            os.kill(int((other.directory / "pid").read_text()), signal.SIGSTOP)
            in_guest(tmp_path, first.socket, "forget", dialect="mysql")
            assert first.ask(online) == [(0,)]
            assert first.ask("SELECT @@GLOBAL.gtid_executed, @@GLOBAL.super_read_only") == [("", 0)]
            assert first.ask("SHOW REPLICA STATUS") == []
            first.ask("CREATE TABLE crm.people (id INT PRIMARY KEY)")
    except NoServer as why:
        pytest.skip(str(why))
