"""The guest's own programs, run here: ``personalise`` at a port, ``sql`` at a real server.

Clock and entropy are left alone: those belong to the machine that runs the tests.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.guest.identity import item
from lab.run import run
from lab.wait import Deadline, attempts, until
from tests import ROOT

PROGRAMS = ROOT / "images/guest/usr/lib/lab"
ME = f"{os.getuid()}:{os.getgid()}"
SECONDS = 10.0

pytestmark = pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed")


def program(name: str, directory: Path, socket: Path) -> Path:
    """A guest's program that finds its things in ``directory``, and the server at ``socket``."""
    text = (PROGRAMS / name).read_text()
    for there, here in (
        ("/usr/lib/lab/", f"{directory}/"),
        ("/run/mysqld/mysqld.sock", str(socket)),
        ("/sys/class/virtio-ports/", f"{directory}/ports/"),
        ('"/dev/"', f'"{directory}/dev/"'),
    ):
        text = text.replace(there, here)
    path = directory / name
    path.write_text(text)
    return path


@dataclass
class Port:
    """The host's end of a running ``personalise``."""

    end: int

    def tell(self, *lines: str) -> str:
        os.write(self.end, "".join(f"{line}\n" for line in (*lines, "end")).encode())
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([self.end], [], [], SECONDS)
            assert ready, f"no answer, only {answer!r}"
            answer += os.read(self.end, 4096)
        word, _, reason = answer.decode().strip().partition(" ")
        return f"{word} {bytes.fromhex(reason).decode()}".strip()


@contextmanager
def resident(directory: Path, socket: Path) -> Iterator[Port]:
    """``personalise`` at a terminal in the place of a virtio port."""
    host, guest = os.openpty()
    tty.setraw(guest)
    for port, name in (("vport0p1", "org.other.0"), ("vport0p2", "org.lab.personalise.0")):
        (directory / "ports" / port).mkdir(parents=True)
        (directory / "ports" / port / "name").write_text(f"{name}\n")
    (directory / "dev").mkdir()
    (directory / "dev/vport0p2").symlink_to(os.ttyname(guest))
    program("mysql.pl", directory, socket)
    with subprocess.Popen(["perl", program("personalise", directory, socket)]) as process:
        try:
            yield Port(host)
        finally:
            process.kill()
            os.close(host)
            os.close(guest)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    with resident(tmp_path, tmp_path / "no-server") as port:
        yield port


def test_a_clone_looks_often_and_a_lab_seldom(tmp_path: Path) -> None:
    """Protects starts, which wait for this, and idle hosts, whose guests would wake for nothing.

    A file in the port's place is at its end when it is read, like a port whose other end is closed.
    """
    port = tmp_path / "dev/vport0p2"
    for directory in (port.parent, tmp_path / "ports/vport0p2"):
        directory.mkdir(parents=True)
    port.touch()
    (tmp_path / "ports/vport0p2/name").write_text("org.lab.personalise.0\n")
    program("mysql.pl", tmp_path, tmp_path / "no-server")

    def wakes(pid: int) -> int:
        """How often a process went to sleep within a second."""

        def count() -> int:
            text = Path(f"/proc/{pid}/status").read_text()
            return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

        before = count()
        time.sleep(1.0)
        return count() - before

    def tell(*lines: str) -> None:
        with port.open("a") as file:
            file.write("".join(f"{line}\n" for line in (*lines, "end")))
        written = port.stat().st_size
        assert until(lambda: port.stat().st_size > written or None, Deadline.after(SECONDS))

    with subprocess.Popen(["perl", program("personalise", tmp_path, tmp_path / "no")]) as process:
        try:
            tell(item("sql", "DO 1"))  # the rehearsal of a template: there is no server here
            waiting = wakes(process.pid)
            tell(item("file", str(tmp_path / "x"), "600", ME, b"x"))
            assert (tmp_path / "x").read_bytes() == b"x"
            settled = wakes(process.pid)
        finally:
            process.kill()
    assert waiting > 2 * settled > 0, (waiting, settled)


def test_files_are_replaced_with_their_modes(port: Port, tmp_path: Path) -> None:
    old = tmp_path / "key.pem"
    old.write_text("old")
    content = os.urandom(3000)
    assert port.tell(item("file", str(old), "640", ME, content)) == "ok"
    assert old.read_bytes() == content
    assert old.stat().st_mode & 0o7777 == 0o640
    assert port.tell(item("file", str(old), "600", ME, "")) == "ok"
    assert old.read_bytes() == b""


def test_a_failure_is_reported_and_ends_the_message(port: Port, tmp_path: Path) -> None:
    untouched, later = tmp_path / "untouched", tmp_path / "later"
    answer = port.tell(
        item("file", "/nowhere/at-all", "600", ME, "x"), item("file", str(untouched), "600", ME, "")
    )
    assert answer.startswith("error file: /nowhere/at-all")
    assert not untouched.exists()
    assert port.tell("teapot") == "error teapot: unknown item"
    assert "no user" in port.tell(item("file", str(later), "600", "nobody-has-this", "x"))
    assert "no-server" in port.tell(item("sql", "DO 1"))
    assert port.tell(item("file", str(later), "600", ME, "x")) == "ok"


@dataclass(frozen=True)
class Server:
    directory: Path
    socket: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A mariadbd of its own: the installed one, or the package, unpacked and not installed."""
    directory = tmp_path_factory.mktemp("m")
    daemon = shutil.which("mariadbd") or _unpacked(directory)
    share = Path(daemon).parents[1] / "share/mysql"
    data, socket = directory / "data", directory / "s"
    data.mkdir()
    common = [
        daemon, "--no-defaults", f"--user={ME}", f"--datadir={data}",
        f"--lc-messages-dir={share}", "--innodb-log-file-size=8M",
    ]  # fmt: skip
    tables = "".join(
        (share / f"mysql_system_tables{part}.sql").read_text() for part in ("", "_data")
    )
    # As mariadb-install-db --auth-root-authentication-method=socket does.
    lines = [line for line in tables.splitlines() if "@current_hostname" not in line]
    start = f"create database mysql;\nuse mysql;\nset @skip_auth_anonymous=1;\n\
set @auth_root_socket='{ME}';\n"
    run([*common, "--bootstrap"], timeout=SECONDS, stdin=(start + "\n".join(lines)).encode())
    with (directory / "log").open("wb") as log:
        options = ["--skip-networking", f"--socket={socket}", f"--pid-file={directory}/pid"]
        with subprocess.Popen([*common, *options], stdout=log, stderr=log) as process:
            try:
                # The socket is there a moment before the server listens to it.
                ready = (
                    b"ready for connections" in (directory / "log").read_bytes()
                    for _ in attempts(Deadline.after(SECONDS))
                )
                assert any(ready), (directory / "log").read_text()
                yield Server(directory, socket)
            finally:
                process.terminate()


def _unpacked(directory: Path) -> str:
    if not shutil.which("apt-get"):
        pytest.skip("no mariadbd is installed, and no apt-get to get one with")
    try:
        run(["apt-get", "-q", "download", "mariadb-server-core"], timeout=60, cwd=directory)
        package = next(directory.glob("*.deb"))
        run(["dpkg-deb", "-x", package, directory / "root"], timeout=60)
        daemon = directory / "root/usr/sbin/mariadbd"
        run([daemon, "--version"], timeout=10)
    except LabError as error:
        pytest.skip(f"no mariadbd is installed, and none can be had: {error}")
    return str(daemon)


@pytest.mark.e2e
def test_sql_prints_rows(server: Server, tmp_path: Path) -> None:
    """Protects the readiness check from inside: login by socket, every kind of row."""
    program("mysql.pl", tmp_path, server.socket)
    sql = program("sql", tmp_path, server.socket)
    long, longer = 300, 70_000
    questions = [
        "SELECT 1, NULL, ''",
        "",
        f"SELECT REPEAT('x', {long}), REPEAT('y', {longer})",
        "DO 1",
        "SELECT 'snow \N{SNOWMAN}' UNION SELECT 'man'",
        "SHOW GLOBAL STATUS WHERE Variable_name IN ('Uptime_since_flush_status', 'wsrep_ready')",
    ]
    shown = run(["perl", sql], timeout=SECONDS, stdin="\n".join(questions).encode()).stdout
    lines = shown.splitlines()
    assert lines[:4] == [
        "1\tNULL\t", f"{'x' * long}\t{'y' * longer}", "snow \N{SNOWMAN}", "man",
    ]  # fmt: skip
    assert lines[4].split("\t")[0] == "Uptime_since_flush_status"
    with pytest.raises(LabError) as failure:
        run(["perl", sql], timeout=SECONDS, stdin=b"SELECT * FROM nowhere.at_all\n")
    assert "nowhere" in failure.value.details[-1]


def test_a_question_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    """Protects guests that are forming a cluster: they are asked once, not again and again."""
    there = tmp_path / "sql.sock"
    program("mysql.pl", tmp_path, there)
    sql = program("sql", tmp_path, there)
    with pytest.raises(LabError) as failure:
        run(["perl", sql], timeout=SECONDS, stdin=b"DO 1\n")
    assert "No such file" in failure.value.details[-1]
    asking = subprocess.Popen(["perl", sql, str(int(SECONDS))], stdin=subprocess.DEVNULL)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(there))
            with pytest.raises(subprocess.TimeoutExpired):  # refused, as it does not listen yet
                asking.wait(0.3)
            server.listen()
            server.settimeout(SECONDS)
            server.accept()[0].close()
        asking.wait(SECONDS)
    finally:
        asking.kill()
        asking.wait()


@pytest.mark.e2e
def test_statements_survive_a_server_that_was_restarted(server: Server, tmp_path: Path) -> None:
    """Protects clones: the program's connection may be older than the server they have."""
    with resident(tmp_path, server.socket) as port:
        assert port.tell(item("sql", "CREATE DATABASE a")) == "ok"
        assert "syntax" in port.tell(item("sql", "SELEKT 1"))
        sql = program("sql", tmp_path, server.socket)
        processes = run(["perl", sql], timeout=SECONDS, stdin=b"SHOW PROCESSLIST\n").stdout
        idle = next(line.split("\t")[0] for line in processes.splitlines() if "Sleep" in line)
        run(["perl", sql], timeout=SECONDS, stdin=f"KILL {idle}\n".encode())
        assert port.tell(item("sql", "CREATE DATABASE b")) == "ok"
        shown = run(["perl", sql], timeout=SECONDS, stdin=b"SHOW DATABASES\n").stdout
        assert {"a", "b"} <= set(shown.split())


@pytest.mark.e2e
def test_statements_are_tried_again_while_the_server_is_busy(
    server: Server, tmp_path: Path
) -> None:
    """Protects clones on a busy host: their nodes may not agree at once after they resumed."""
    with resident(tmp_path, server.socket) as port:
        assert port.tell(item("sql", "SET SESSION lock_wait_timeout = 0")) == "ok"
        assert port.tell(item("sql", "CREATE TABLE mysql.busy (a INT) ENGINE=InnoDB")) == "ok"
        sql = program("sql", tmp_path, server.socket)
        questions = b"LOCK TABLES mysql.busy WRITE\nSELECT SLEEP(1.5)\n"
        with subprocess.Popen(["perl", sql], stdin=subprocess.PIPE) as other:
            assert other.stdin is not None
            other.stdin.write(questions)
            other.stdin.close()
            for _ in attempts(Deadline.after(SECONDS)):
                shown = run(["perl", sql], timeout=SECONDS, stdin=b"SHOW PROCESSLIST\n").stdout
                if "SLEEP" in shown:
                    break
            assert port.tell(item("sql", "ALTER TABLE mysql.busy ADD COLUMN b INT")) == "ok"
