"""The guest's own programs, run here: ``personalise`` at a port, ``sql`` at a real server.

Clock and entropy are left alone: those belong to the machine that runs the tests. Where the clock
is set, it is one that the program only believes in, and it has no right to set the machine's.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from lab.blueprints import Member, rejoin
from lab.errors import LabError
from lab.guest import authority
from lab.guest.identity import item
from lab.run import run
from lab.wait import Deadline, attempts, until
from tests import ROOT
from tests.support.mariadb_server import NoServer, daemon, share_of, system_tables

PROGRAMS = ROOT / "images/guest/usr/lib/lab"
DIALECTS = {name: ROOT / "images/dialects" / name / "usr/lib/lab" for name in ("mariadb", "mysql")}
"""By dialect, the directory of its own programs."""
ME = f"{os.getuid()}:{os.getgid()}"
SECONDS = 10.0
T = TypeVar("T")

pytestmark = pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed")


def program(
    name: str, directory: Path, socket: Path, *changes: tuple[str, str], source: Path = PROGRAMS
) -> Path:
    """A guest's program that finds its things in ``directory``, and the server at ``socket``.

    ``changes``: other texts of the program, and what to have in their place.
    """
    text = (source / name).read_text()
    for there, here in (
        ("/usr/lib/lab/", f"{directory}/"),
        ("/run/mysqld/mysqld.sock", str(socket)),
        ("/sys/class/virtio-ports/", f"{directory}/ports/"),
        ('"/dev/"', f'"{directory}/dev/"'),
        ("/dev/rtc0", f"{directory}/dev/rtc0"),
        ("/sys/fs/cgroup/", f"{directory}/cgroup/"),
        ("/etc/ssh/", f"{directory}/ssh/"),
        *changes,
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
        word, _, rest = answer.decode().rstrip("\n").partition(" ")
        return (
            f"error {bytes.fromhex(rest).decode()}".strip()
            if word == "error"
            else answer.decode().strip()
        )


@contextmanager
def resident(
    directory: Path, socket: Path, *changes: tuple[str, str], perl: Sequence[str] = ("perl",)
) -> Iterator[Port]:
    """``personalise`` at a terminal in the place of a virtio port; ``perl``: what runs it."""
    host, guest = os.openpty()
    tty.setraw(guest)
    for port, name in (("vport0p1", "org.other.0"), ("vport0p2", "org.lab.personalise.0")):
        (directory / "ports" / port).mkdir(parents=True)
        (directory / "ports" / port / "name").write_text(f"{name}\n")
    (directory / "dev").mkdir()
    (directory / "dev/vport0p2").symlink_to(os.ttyname(guest))
    program("mysql.pl", directory, socket)
    argv: list[str | Path] = [*perl, program("personalise", directory, socket, *changes)]
    with subprocess.Popen(argv) as process:
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


def test_who_waits_for_the_host_sleeps(tmp_path: Path) -> None:
    """Protects starts, which wait for this, and idle hosts, whose guests would wake for nothing.

    A file in the port's place is at its end when it is read, like a port whose other end is closed.
    """
    port = tmp_path / "dev/vport0p2"
    for directory in (port.parent, tmp_path / "ports/vport0p2"):
        directory.mkdir(parents=True)
    port.touch()
    (tmp_path / "ports/vport0p2/name").write_text("org.lab.personalise.0\n")
    program("mysql.pl", tmp_path, tmp_path / "no-server")

    def larger(size: int) -> bool:
        return port.stat().st_size > size

    def slept(pid: int) -> int:
        """How often a process has gone to sleep."""
        text = Path(f"/proc/{pid}/status").read_text()
        return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])  # the program begins with it so
    try:
        process = subprocess.Popen(["perl", program("personalise", tmp_path, tmp_path / "no")])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
    with process:
        try:
            for content in (b"x", b"y"):
                with port.open("a") as file:
                    file.write(item("file", str(tmp_path / "x"), "600", ME, content) + "\nend\n")
                written = port.stat().st_size
                process.send_signal(signal.SIGIO)
                assert until(partial(larger, written), Deadline.after(SECONDS))
                assert (tmp_path / "x").read_bytes() == content
                time.sleep(0.2)  # it reads the end
                before = slept(process.pid)
                time.sleep(1.0)
                assert slept(process.pid) == before
        finally:
            process.kill()


def test_files_are_replaced_with_their_modes(port: Port, tmp_path: Path) -> None:
    old = tmp_path / "key.pem"
    old.write_text("old")
    content = os.urandom(3000)
    assert port.tell(item("file", str(old), "640", ME, content)) == "ok"
    assert old.read_bytes() == content
    assert old.stat().st_mode & 0o7777 == 0o640
    assert port.tell(item("file", str(old), "600", ME, "")) == "ok"
    assert old.read_bytes() == b""


def test_a_file_that_is_alike_is_written_over(port: Port, tmp_path: Path) -> None:
    """Protects the time of a clone: a new file takes ten times as long.

    Nothing else gets what is written: no file that a link leads to, or that has another name.
    """
    key, other, link = tmp_path / "key.pem", tmp_path / "other", tmp_path / "link.pem"
    for content in (b"a key", b"k", b"", b"a longer key"):
        assert port.tell(item("file", str(key), "600", ME, content)) == "ok"
        before = key.stat().st_ino
        assert port.tell(item("file", str(key), "600", ME, content[::-1])) == "ok"
        assert (key.read_bytes(), key.stat().st_ino) == (content[::-1], before)
    other.write_text("theirs")
    other.chmod(0o600)
    link.symlink_to(other)
    assert port.tell(item("file", str(link), "600", ME, "ours")) == "ok"
    assert (link.is_symlink(), link.read_text(), other.read_text()) == (False, "ours", "theirs")
    link.unlink()
    link.hardlink_to(other)
    assert port.tell(item("file", str(link), "600", ME, "ours")) == "ok"
    assert (link.read_text(), other.read_text()) == ("ours", "theirs")
    link.unlink()
    os.mkfifo(link, 0o600)  # nobody reads it
    assert port.tell(item("file", str(link), "600", ME, "ours")) == "ok"
    assert (link.is_file(), link.read_text()) == (True, "ours")
    key.chmod(0o644)
    assert port.tell(item("file", str(key), "600", ME, "secret")) == "ok"
    assert (key.stat().st_mode & 0o7777, key.stat().st_ino) != (0o644, before)


def test_a_new_host_key_ends_what_serves_connections(port: Port, tmp_path: Path) -> None:
    """Protects a capture's SSH host key, which is in the memory of each process of sshd.

    What a user started through them stays.
    """
    unit = tmp_path / "cgroup/system.slice/system-ssh.slice/ssh@1-10.0.2.15:22.service"
    for directory in (unit, tmp_path / "ssh", tmp_path / "bin"):
        directory.mkdir(parents=True)
    started = []
    for name in ("sshd", "sshd-session", "sshdata", "job"):
        path = shutil.copy(shutil.which("sleep") or "", tmp_path / "bin" / name)
        started.append(subprocess.Popen([path, "60"]))
    try:
        (unit / "cgroup.procs").write_text("".join(f"{one.pid}\n" for one in started))
        assert port.tell(item("file", str(tmp_path / "other"), "600", ME, "x")) == "ok"
        assert [one.poll() for one in started] == [None] * 4
        key = tmp_path / "ssh/ssh_host_ed25519_key"
        assert port.tell(item("file", str(key), "600", ME, "x")) == "ok"
        assert [one.wait(SECONDS) for one in started[:2]] == [-signal.SIGKILL] * 2
        assert [one.poll() for one in started[2:]] == [None] * 2
    finally:
        for one in started:
            one.kill()
            one.wait(SECONDS)
    (unit / "cgroup.procs").unlink()  # no connection was ever made
    assert port.tell(item("file", str(key), "600", ME, "y")) == "ok"


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
    """``clock``: a file with the seconds that its clock is ahead of ours. ``seeds``: a file that
    grows by a byte whenever OpenSSL fetches a seed from the kernel; None without a C compiler.
    """

    directory: Path
    socket: Path
    clock: Path
    seeds: Path | None


WATCH = r"""
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What OpenSSL calls in its place: rand_unix.c, and get_time in drbg.c. */
int getentropy(void *to, size_t length) {
    int file = open(getenv("WATCH_SEEDS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(file, "x", 1) != 1) abort();
    close(file);
    return syscall(SYS_getrandom, to, length, 0) == (long)length ? 0 : -1;
}

time_t time(time_t *to) {
    struct timespec now;
    char ahead[64] = "";
    int file = open(getenv("WATCH_CLOCK"), O_RDONLY);
    if (file >= 0) {
        if (read(file, ahead, 63) < 0) abort();
        close(file);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += atol(ahead);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"""


def watching(directory: Path) -> dict[str, str]:
    """The environment in which a server's clock and seeds are files; empty without a compiler."""
    compiler = shutil.which("cc")
    if not compiler:
        return {}
    source, library = directory / "watch.c", directory / "watch.so"
    source.write_text(WATCH)
    run([compiler, "-shared", "-fPIC", "-o", library, source], timeout=60)
    return {
        "LD_PRELOAD": str(library),
        "WATCH_CLOCK": str(directory / "clock"),
        "WATCH_SEEDS": str(directory / "seeds"),
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A mariadbd of its own: the installed one, or the package, unpacked and not installed."""
    directory = tmp_path_factory.mktemp("m")
    try:
        program_of_it = daemon()
    except NoServer as why:
        pytest.skip(str(why))
    share = share_of(program_of_it)
    data, socket = directory / "data", directory / "s"
    data.mkdir()
    made = authority.make("lab")
    tls = authority.issue(authority.read(made.private, made.certificate), "n1", ["n1"])
    (directory / "key.pem").write_bytes(tls.private)
    (directory / "cert.pem").write_bytes(tls.certificate)
    common = [
        str(program_of_it), "--no-defaults", f"--user={ME}", f"--datadir={data}",
        f"--lc-messages-dir={share}", "--innodb-log-file-size=8M", f"--tmpdir={data}",
    ]  # fmt: skip
    # As mariadb-install-db --auth-root-authentication-method=socket does.
    tables = system_tables(share, f"'{ME}'" if os.getuid() == 0 else "NULL")
    run([*common, "--bootstrap"], timeout=SECONDS, stdin=tables)
    with (directory / "log").open("wb") as log:
        options = [
            "--skip-networking", f"--socket={socket}", f"--pid-file={directory}/pid",
            f"--ssl-cert={directory}/cert.pem", f"--ssl-key={directory}/key.pem",
        ]  # fmt: skip
        watch = watching(directory)
        with subprocess.Popen(
            [*common, *options], stdout=log, stderr=log, env=os.environ | watch
        ) as process:
            try:
                # The socket is there a moment before the server listens to it.
                ready = (
                    b"ready for connections" in (directory / "log").read_bytes()
                    for _ in attempts(Deadline.after(SECONDS))
                )
                assert any(ready), (directory / "log").read_text()
                seeds = directory / "seeds" if watch else None
                yield Server(directory, socket, directory / "clock", seeds)
            finally:
                process.terminate()


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


class Client:
    """A client's session at a real server: what it holds, it holds until the session ends."""

    def __init__(self, sql: Path) -> None:
        pipe = subprocess.PIPE
        at_once = "$| = 1; do shift; die $@ if $@"
        argv = ["perl", "-e", at_once, str(sql)]
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe)

    def ask(self, *statements: str) -> list[list[str]]:
        """The rows that statements return, once all have been answered."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("".join(f"{s}\n" for s in (*statements, "SELECT 7")).encode())
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        assert ready, statements
        lines = iter(self._process.stdout.readline, b"7\n")
        return [line.decode(errors="replace").rstrip("\n").split("\t") for line in lines]

    def begin(self, statement: str) -> None:
        """Begin a statement that will not be answered."""
        assert self._process.stdin
        self._process.stdin.write(f"{statement}\n".encode())
        self._process.stdin.flush()

    def lost(self) -> bool:
        """Whether the server has ended the session; asks it one more thing."""
        self._process.communicate(b"DO 1\n", SECONDS)
        return self._process.returncode != 0

    def sees(self, *words: str) -> bool:
        """Wait until a row of the process list has all ``words``."""
        return any(
            any(all(word in row for word in words) for row in self.ask(PROCESSES))
            for _ in attempts(Deadline.after(SECONDS))
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def sql(server: Server, tmp_path: Path) -> Path:
    """The program of that name, at the real server."""
    program("mysql.pl", tmp_path, server.socket)
    return program("sql", tmp_path, server.socket)


@pytest.fixture
def client(sql: Path) -> Iterator[Callable[[], Client]]:
    """Opens sessions, which end with the test; there are no others of clients before."""
    opened: list[Client] = []
    users = ([row[1] for row in shown(sql, PROCESSES)] for _ in attempts(Deadline.after(SECONDS)))
    assert any(found.count("root") == 1 for found in users)

    def one() -> Client:
        opened.append(Client(sql))
        return opened[-1]

    yield one
    for client in opened:
        client.close()


def shown(sql: Path, statement: str) -> list[list[str]]:
    """The rows that a statement of another session returns."""
    done = run(["perl", sql], timeout=SECONDS, stdin=f"{statement}\n".encode())
    return [line.split("\t") for line in done.stdout.splitlines()]


PROCESSES = "SHOW PROCESSLIST"


@pytest.mark.e2e
def test_sessions_of_a_capture_are_ended_with_all_that_they_hold(
    server: Server, tmp_path: Path, client: Callable[[], Client]
) -> None:
    """Protects labs restored with RAM: clients that are gone hold locks that block everyone."""
    other = client()
    other.ask(
        "CREATE DATABASE held", "CREATE TABLE held.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
        "INSERT INTO held.t VALUES (1, 0), (2, 0)", "CREATE USER ghost IDENTIFIED BY 'x'",
    )  # fmt: skip
    with resident(tmp_path, server.socket) as port:
        assert port.tell(item("sql", "DO 1")) == "ok"
        row, name, table, waits = (client() for _ in range(4))
        row.ask("BEGIN", "UPDATE held.t SET b = 1 WHERE a = 1")
        name.ask("SELECT GET_LOCK('mine', 0)")
        table.ask(
            "CREATE TEMPORARY TABLE held.temporary (a INT)", "INSERT INTO held.temporary VALUES (1)"
        )
        waits.begin("UPDATE held.t SET b = 2 WHERE a = 1")
        assert other.sees("UPDATE held.t SET b = 2 WHERE a = 1")
        assert port.tell(item("sessions")) == "ok 5"
        assert all(one.lost() for one in (row, name, table, waits, other))
        other, reads, blocked = (client() for _ in range(3))
        there = other.ask("SELECT b FROM held.t WHERE a = 1 FOR UPDATE")
        assert there == [["0"]], "no statement got a lock because another session ended first"
        assert other.ask("SELECT GET_LOCK('mine', 0)") == [["1"]]
        reads.ask("FLUSH TABLES WITH READ LOCK")
        change = "ALTER USER ghost IDENTIFIED BY 'y'"
        blocked.begin(change)
        assert other.sees(change, "Waiting for backup lock")
        assert port.tell(item("sessions"), item("sql", change)) == "ok 3"
        assert reads.lost()
        assert port.tell(item("sessions")) == "ok 0"


@pytest.mark.e2e
def test_what_is_not_a_clients_session_stays(
    server: Server, tmp_path: Path, client: Callable[[], Client]
) -> None:
    """Protects the server's own threads, an event that is executed, and our own connection."""
    other = client()
    other.ask(
        "SET GLOBAL event_scheduler = ON", "CREATE DATABASE timed",
        "CREATE EVENT timed.one ON SCHEDULE EVERY 1 HOUR DO DO SLEEP(600)",
    )  # fmt: skip
    with resident(tmp_path, server.socket) as port:
        try:
            assert other.sees("DO SLEEP(600)")
            with socket.socket(socket.AF_UNIX) as mute:
                mute.connect(str(server.socket))  # has not logged in
                assert other.sees("unauthenticated user")
                assert port.tell(item("sessions")) == "ok 2"
                assert port.tell(item("sql", "DO 1")) == "ok"
            stayed = client().ask(PROCESSES)
            users = {row[1] for row in stayed}
            assert {"event_scheduler"} < users
            assert "unauthenticated user" not in users
            assert any("DO SLEEP(600)" in row for row in stayed)
        finally:
            last = client()
            rows = last.ask("SET GLOBAL event_scheduler = OFF", "DROP DATABASE timed", PROCESSES)
            last.ask(*(f"KILL {row[0]}" for row in rows if "DO SLEEP(600)" in row))


@dataclass(frozen=True)
class Here:
    """A cluster of one node: the real server."""

    sql: Path
    members: Sequence[Member] = (Member("n1", 1, "10.0.0.1"),)

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        """See Cluster."""
        assert (member.name, list(argv)) == ("n1", ["/usr/lib/lab/sql"])
        return run(["perl", self.sql], timeout=timeout, stdin=stdin).stdout

    def each(self, step: Callable[[Member], T]) -> list[T]:
        """See Cluster."""
        return [step(member) for member in self.members]


@pytest.mark.e2e
def test_no_event_writes_while_nodes_stop(sql: Path, client: Callable[[], Client]) -> None:
    """Protects nodes that get identities of their own: all of them have the same write sets."""
    other = client()
    other.ask(
        "SET GLOBAL event_scheduler = ON", "CREATE DATABASE ticking",
        "CREATE EVENT ticking.one ON SCHEDULE EVERY 1 HOUR DO DO SLEEP(601)",
    )  # fmt: skip
    try:
        assert other.sees("DO SLEEP(601)")
        rejoin.settle(Here(sql))
        last = client()
        assert not any("DO SLEEP(601)" in row for row in last.ask(PROCESSES))
        assert last.ask("SELECT @@GLOBAL.event_scheduler") == [["OFF"]]
        assert other.ask("SELECT 2") == [["2"]], "sessions of clients stay"
        rejoin.settle(Here(sql))
    finally:
        client().ask("SET GLOBAL event_scheduler = OFF", "DROP DATABASE ticking")


@pytest.mark.e2e
def test_ended_sessions_are_counted_until_a_message_succeeds(
    server: Server, tmp_path: Path, client: Callable[[], Client]
) -> None:
    """Protects the report: a message that the server refused is sent again, when none are left."""
    with resident(tmp_path, server.socket) as port:
        client().ask("DO 1")
        assert "syntax" in port.tell(item("sessions"), item("sql", "SELEKT 1"))
        client().ask("DO 1")
        assert port.tell(item("sessions"), item("sql", "DO 1")) == "ok 2"
        assert port.tell(item("sql", "DO 1")) == "ok"
    with resident(tmp_path / "b", tmp_path / "no-server") as port:
        assert "no-server" in port.tell(item("sessions"))


REFUSED = (
    'query("KILL $id")',
    '($main::n{$id}++ > 2 or die "This is a high priority thread/query\\n"); query("KILL $id")',
)
"""What Galera answers while all nodes execute a session's statement."""


@pytest.mark.e2e
def test_a_session_that_cannot_be_ended_yet_is_ended_later(
    server: Server, tmp_path: Path, client: Callable[[], Client]
) -> None:
    """Protects rollbacks to a moment at which a client changed the schema."""
    with resident(tmp_path, server.socket, REFUSED) as port:
        client().ask("DO 1")
        assert port.tell(item("sessions")) == "ok 1"


DAY = 86400.0
CLOCK = """\
package clock;
# The clock of the program: $offset ahead of the machine's. What it is set to is a line of a file.
my $offset = 0;
sub now {
    my $time = pack("qq", 0, 0);
    CORE::syscall(228, 0, $time);
    my ($seconds, $nanoseconds) = unpack("qq", $time);
    return $seconds + $nanoseconds / 1e9;
}
*CORE::GLOBAL::syscall = sub {
    my ($number) = @_;
    if ($number == 228) {
        my $now = now() + $offset;
        $_[2] = pack("qq", int($now), int(($now - int($now)) * 1e9));
        return 0;
    }
    return CORE::syscall($number, $_[1], $_[2], $_[3], $_[4]) if $number != 227;
    my ($seconds, $nanoseconds) = unpack("qq", $_[2]);
    $offset = $seconds + $nanoseconds / 1e9 - now();
    open(my $set, ">>", $ENV{SET_CLOCK});
    printf {$set} "%.6f %.6f\n", $seconds + $nanoseconds / 1e9, now();
    open(my $ahead, ">", $ENV{WATCH_CLOCK}) or return 0;
    printf {$ahead} "%.0f", $offset;
    return 0;
};
1;
"""


@pytest.fixture
def set_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of what the program's clock was set to, and when, both in seconds since the epoch."""
    path = tmp_path / "set-clock"
    path.touch()
    (tmp_path / "clock.pm").write_text(CLOCK)
    monkeypatch.setenv("SET_CLOCK", str(path))
    monkeypatch.setenv("WATCH_CLOCK", str(tmp_path / "ahead"))
    return path


def believing(directory: Path) -> list[str]:
    """A perl with a clock of its own; root's right to set the machine's is taken away first."""
    perl = ["perl", f"-I{directory}", "-Mclock"]
    if os.geteuid() != 0:
        return perl
    if not shutil.which("setpriv"):
        pytest.skip("no setpriv to take away the right to set this machine's clock")
    return ["setpriv", "--bounding-set", "-sys_time", "--inh-caps", "-sys_time", *perl]


def settings(path: Path) -> list[tuple[float, float]]:
    return [(float(to), float(at)) for to, at in map(str.split, path.read_text().splitlines())]


@pytest.mark.e2e
def test_a_server_draws_while_the_clock_is_a_day_back(
    server: Server, tmp_path: Path, set_clock: Path
) -> None:
    """Protects a guest's clock: it is right afterwards, by as much later as the server took."""
    with resident(tmp_path, server.socket, perl=believing(tmp_path)) as port:
        now = time.time() + 1000.0
        began = time.time()
        assert port.tell(item("reseed", f"{now:.6f}")) == "ok"
        took = time.time() - began
    (back, _), (right, at) = settings(set_clock)
    assert back == pytest.approx(now - DAY, abs=1e-3)
    assert now <= right <= now + took, "the time that the server took is not lost"
    assert right - at == pytest.approx(now - began, abs=took)


@pytest.mark.e2e
def test_a_server_whose_connections_are_all_in_use_gets_new_seeds_too(
    server: Server, client: Callable[[], Client], tmp_path: Path, set_clock: Path
) -> None:
    """Protects captures of busy labs: our own connection is there already."""
    with resident(tmp_path, server.socket, perl=believing(tmp_path)) as port:
        assert port.tell(item("sql", "SET GLOBAL max_connections = 10")) == "ok"
        try:
            for _ in range(10):
                client().ask("DO 1")
            reseed = item("reseed", f"{time.time():.6f}")
            assert port.tell(reseed, item("sessions")) == "ok 10"
        finally:
            assert port.tell(item("sql", "SET GLOBAL max_connections = 151")) == "ok"
    assert len(settings(set_clock)) == 2


@pytest.mark.e2e
def test_all_generators_of_a_server_get_new_seeds(
    server: Server,
    client: Callable[[], Client],
    tmp_path: Path,
    set_clock: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects branches of a used lab, whose clock was right: setting it renews nothing."""
    seeds = server.seeds
    if seeds is None:
        pytest.skip("no C compiler to watch a server's seeds with")
    monkeypatch.setenv("WATCH_CLOCK", str(server.clock))
    draws, other = "DO RANDOM_BYTES(8)", client()

    def fetched(act: Callable[[], object]) -> int:
        before = seeds.stat().st_size if seeds.exists() else 0
        act()
        return (seeds.stat().st_size if seeds.exists() else 0) - before

    with resident(tmp_path / "r", server.socket, perl=believing(tmp_path)) as port:

        def tell(word: str) -> None:
            assert port.tell(item(word, f"{time.time():.6f}")) == "ok"

        tell("clock")
        other.ask(draws)
        assert fetched(lambda: tell("clock")) == 0
        assert fetched(lambda: other.ask(draws)) == 0, "as after a capture: nothing is too old"
        assert fetched(lambda: tell("reseed")) == 1
        assert float(server.clock.read_text()) == pytest.approx(0.0, abs=1.0)
        # The seeds of a day ago are too old for the next draw; after it there is nothing to do.
        assert fetched(lambda: other.ask(draws)) == 1
        assert fetched(lambda: other.ask(draws)) == 0
        assert len(settings(set_clock)) == 4


def test_a_server_that_is_silent_or_down_is_not_waited_for(tmp_path: Path, set_clock: Path) -> None:
    """Protects restores from a server that hangs: the clock must not stay a day back."""
    soon, perl = ("$PATIENCE = 10;", "$PATIENCE = 1;"), believing(tmp_path)
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "s"))
        mute.listen()
        with resident(tmp_path, tmp_path / "s", soon, perl=perl) as port:
            now = time.time()
            assert "no answer in 1 s" in port.tell(item("reseed", f"{now:.6f}"))
            mute.close()
            assert "Connection refused" in port.tell(item("reseed", f"{now:.6f}"))
    (_, _), (right, at), (_, _), (again, _) = settings(set_clock)
    assert right == pytest.approx(at, abs=0.5)
    assert again == pytest.approx(now, abs=1.0)
