"""The guest's programs ``load`` and ``backup`` with a real server, mariadb-backup and mbstream.

They run here, in a directory that stands for the guest's file systems.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.blueprints import Member
from lab.datasets import backup as backups
from lab.datasets import datadir
from lab.datasets.source import BackupDirectory, DataDirectory
from lab.run import run
from lab.wait import Deadline, attempts
from tests.support.backups import Programs, programs
from tests.support.mariadb_server import NoServer, client, daemon, server, share_of, stopped
from tests.support.upstream_builds import builds, starter
from tests.unit.guest.test_identity_in_guest import DIALECTS, program

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a guest's programs run as root"),
    pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed"),
]

SECONDS = 120.0
ODD = "od d-\N{LATIN SMALL LETTER SHARP S}"
SCHEMA = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.t (id INT PRIMARY KEY, s VARCHAR(200))",
    "INSERT INTO shop.t SELECT seq, REPEAT('x', 100) FROM shop.seq_1_to_3000",
    f"CREATE DATABASE `{ODD}`",
    f"CREATE TABLE `{ODD}`.aria (id INT) ENGINE=Aria",
    f"INSERT INTO `{ODD}`.aria VALUES (7)",
    "CREATE TABLE shop.remote (id INT PRIMARY KEY) DATA DIRECTORY='{directory}/elsewhere'",
    "INSERT INTO shop.remote VALUES (1)",
    # What a guest cannot use: accounts that lock us out, and the views of another cluster.
    "CREATE USER lab@'10.%' IDENTIFIED BY 'theirs'",
    "CREATE USER reader@'%' IDENTIFIED BY 'x'",
    "GRANT SELECT ON shop.* TO reader@'%'",
    "CREATE TABLE mysql.wsrep_cluster (id INT PRIMARY KEY) ENGINE=InnoDB",
    "INSERT INTO mysql.plugin VALUES ('simple_password_check', 'simple_password_check.so')",
    "DELETE FROM mysql.global_priv WHERE User = 'root'",
)
OPTIONS = ("innodb_data_file_path=ibdata1:12M:autoextend", "innodb_page_size=8192")


@dataclass(frozen=True)
class Sources:
    """Backups of one server: a directory, the same prepared, a stream with the last binlog.

    ``directory``: that of a server that was stopped.
    """

    full: Path
    prepared: Path
    stream: Path
    directory: Path
    programs: Programs


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sources]:
    top = tmp_path_factory.mktemp("backups")
    try:
        found = programs()
        with server(["--log-bin=theirs"], ["--innodb-page-size=8K"]) as db:
            (db.directory / "elsewhere").mkdir()
            db.ask(*(one.replace("{directory}", str(db.directory)) for one in SCHEMA))
            full = found.of(db, top / "full")
            stream = found.of(db, top / "stream.xb", "--stream=mbstream", "--galera-info")
            prepared = shutil.copytree(full, top / "prepared")
            found.prepare(prepared)
        with server(["--log-bin=theirs"], ["--innodb-page-size=8K"]) as db:
            db.ask(*(one.partition(" DATA DIRECTORY")[0] for one in SCHEMA))
            directory = shutil.copytree(stopped(db), top / "directory")
        yield Sources(full, prepared, stream, directory, found)
    except NoServer as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Guest:
    """A directory that stands for a guest, and how its programs are called there."""

    top: Path
    env: dict[str, str]

    @property
    def data(self) -> Path:
        return self.top / "mysql"

    def load(self, *argv: str) -> str:
        run([self.top / "load", *argv], timeout=SECONDS, env=self.env)
        for _ in attempts(Deadline.after(SECONDS)):
            said = run([self.top / "load", "look"], timeout=SECONDS, env=self.env).stdout
            if said.startswith("done "):
                return said
        raise AssertionError(argv)

    def put(self, data: bytes) -> str:
        """A disk with these bytes; how many they are."""
        (self.top / "dev/vdb").write_bytes(data.ljust((len(data) | 0xFFFFF) + 1, b"\0"))
        return str(len(data))

    def restore(
        self,
        data: bytes,
        *,
        apply: bool = False,
        upgrade: bool = False,
        options: Sequence[str] = OPTIONS,
    ) -> str:
        """What the last step printed that was run: the first that fails, or the last."""
        steps = (
            ("unpack", "lab-backup", self.put(data), "the.service"),
            ("prepare", f"{self.top}/conf/99-lab.cnf", "yes" if apply else "no", *options),
            ("adopt", "the.service", "yes" if upgrade else "no"),
        )
        said = ""
        for step in steps:
            said = self.load(*step)
            if said.split()[1] != "0":
                return f"{step[0]}: {said}"
        return said

    def rows(self, question: str) -> list[list[str]]:
        """What the server answers to the program that the lifecycle asks through."""
        sql = [self.top / "sql"]
        said = run(sql, timeout=SECONDS, env=self.env, stdin=f"{question}\n".encode()).stdout
        return [line.split("\t") for line in said.splitlines()]


SYSTEMCTL = """\
#!/bin/sh
# A unit: stop and start, and wait until that is done.
cd {top}
case "$1" in
    stop)
        [ -r pid ] || exit 0
        read -r pid <pid
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
        rm -f pid
        ;;
    start)
        setsid {server} --user=root --socket={top}/sock --pid-file={top}/pid \\
            --skip-networking >log 2>&1 &
        for n in $(seq 600); do
            ! grep -q "ready for connections" log || exit 0
            kill -0 $! 2>/dev/null || exit 1
            sleep 0.1
        done
        exit 1
        ;;
esac
"""


@pytest.fixture
def guest(sources: Sources) -> Iterator[Guest]:
    """With the data directory of another server in it, which does not run."""
    with guest_of("mariadb", sources.programs.env) as found:
        _programs(found.top / "bin", sources.programs)
        yield found


@contextmanager
def guest_of(dialect: str, env: Mapping[str, str]) -> Iterator[Guest]:
    """A guest whose server is of ``dialect``; programs come into its directory ``bin``."""
    with tempfile.TemporaryDirectory(prefix="lab-gb-", dir="/tmp") as path:  # a socket is in it
        top = Path(path)
        for name in ("mysql", "mysqllog", "conf", "dev", "sys/vdb", "bin", "run"):
            (top / name).mkdir(parents=True)
        (top / "sys/vdb/serial").write_text("lab-backup")
        (top / "mysql/grastate.dat").write_text("uuid: ours\n")
        (top / "mysql/old.ibd").touch()
        (top / "mysqllog/ib_logfile0").write_text("old")
        (top / "conf/99-lab.cnf").write_text(
            f"[server]\ndatadir = {top}/mysql\ninnodb_log_group_home_dir = {top}/mysqllog\n"
            "innodb_buffer_pool_size = 64M\n"
        )
        here = (
            ("--user=mysql ", "--user=root "),
            ("/run/mysqld/adopt", f"{top}/adopt"),
            ("mysql:mysql", "root:root"),
            ("/var/lib/mysql", f"{top}/mysql"),
            ("/run/lab-load", f"{top}/run"),
            ("/sys/block/", f"{top}/sys/"),
            ("disk=/dev/", f"disk={top}/dev/"),
        )
        for name in ("load", "sql", "mysql.pl"):
            program(name, top, top / "sock", *here).chmod(0o755)
        for name in ("dialect", "backup"):
            program(name, top, top / "sock", *here, source=DIALECTS[dialect]).chmod(0o755)
        server = {"mariadb": "mariadbd", "mysql": "mysqld"}[dialect]
        unit = SYSTEMCTL.replace("{top}", str(top)).replace("{server}", server)
        script(top / "bin/systemctl", unit)
        script(top / "bin/journalctl", f"#!/bin/sh\ncat {top}/log\n")
        found = Guest(top, {**env, "PATH": f"{top}/bin:{os.environ['PATH']}"})
        yield found
        run([top / "bin/systemctl", "stop", "x"], timeout=SECONDS, env=found.env)


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def server_of(place: Path, name: str, argv: Sequence[object], options: Sequence[str]) -> None:
    """The program of a server, which reads all option files of a directory, as in a guest."""
    top = place.parent
    words = [*argv, f"--defaults-file={top}/all.cnf", *options, '"$@"']
    text = f"#!/bin/sh\ncat {top}/conf/*.cnf >{top}/all.cnf\nexec {' '.join(map(str, words))}\n"
    script(place / name, text)


def _programs(place: Path, found: Programs) -> None:
    """What the guest's programs run, in ``place``."""
    share = share_of(daemon())
    server_of(place, "mariadbd", [daemon()], [f"--lc-messages-dir={share}"])
    links = [found.backup, found.mbstream]
    links += [client(name, "mariadb-client-core")[0] for name in ("mariadb", "mariadb-check")]
    links.append(daemon().parents[1] / "bin/mariadb-upgrade")
    for path in links:
        (place / path.name).symlink_to(path)


def stream_of(directory: Path) -> bytes:
    """A directory as the host streams it."""
    return b"".join(backups.streamed(BackupDirectory(directory)))


def check(guest: Guest, *, more: Sequence[str] = ()) -> None:
    """The server has the backup's data, the accounts that labs need, and nothing else of before.

    ``more``: files that the server makes in its directory besides.
    """
    assert guest.rows("SELECT COUNT(*), MAX(LENGTH(s)) FROM shop.t") == [["3000", "100"]]
    assert guest.rows(f"SELECT id FROM `{ODD}`.aria") == [["7"]]
    assert guest.rows("SELECT id FROM shop.remote") == [["1"]]
    assert guest.rows("SELECT @@innodb_page_size") == [["8192"]]
    accounts = guest.rows("SELECT CONCAT(User, '@', Host) FROM mysql.global_priv ORDER BY 1")
    assert {row[0] for row in accounts} == {
        "lab@%", "mariadb.sys@localhost", "reader@%", "root@localhost",
    }  # fmt: skip
    assert guest.rows("SELECT CURRENT_USER()") == [["root@localhost"]]
    (shown,) = guest.rows("SHOW CREATE USER lab@'%'")
    assert "ACCOUNT LOCK" in shown[0]
    (granted,) = guest.rows("SHOW GRANTS FOR lab@'%'")
    assert "ALL PRIVILEGES" in granted[0]
    assert "WITH GRANT OPTION" in granted[0]
    assert guest.rows("SHOW TABLES FROM mysql LIKE 'wsrep%'") == []
    assert guest.rows("SELECT * FROM mysql.plugin") == []
    names = {path.name for path in guest.data.iterdir()}
    own = {"ddl_recovery.log", "ibtmp1", "tc.log", "multi-master.info", "ib_buffer_pool", *more}
    assert names - own == {
        "grastate.dat", "ibdata1", "aria_log_control", "aria_log.00000001",
        "mysql", "shop", "od@0020d@002d@1j",
    }  # fmt: skip
    assert (guest.data / "grastate.dat").read_text() == "uuid: ours\n"
    assert (guest.top / "mysqllog/ib_logfile0").stat().st_size > 1 << 20
    assert list(guest.data.rglob("*.isl")) == []
    assert (guest.data / "shop").stat().st_mode & 0o777 == 0o700


def test_a_directory_becomes_the_servers_data(guest: Guest, sources: Sources) -> None:
    """Unpacked, prepared, on the volumes where the server looks, with accounts that work."""
    assert guest.restore(stream_of(sources.full), apply=True).startswith("done 0")
    check(guest)
    assert "innodb_page_size=8192" in (guest.top / "conf/98-lab-backup.cnf").read_text()
    assert not list(guest.top.glob("run/grastate*"))


@pytest.mark.rare
def test_a_prepared_directory_is_not_prepared_again(guest: Guest, sources: Sources) -> None:
    assert guest.restore(stream_of(sources.prepared), apply=False).startswith("done 0")
    check(guest)


def test_a_stream_with_a_binlog(guest: Guest, sources: Sources) -> None:
    """Protects clusters: nothing of the source's replication is left."""
    assert b"theirs.000" in sources.stream.read_bytes()
    assert guest.restore(sources.stream.read_bytes(), apply=True).startswith("done 0")
    check(guest)


def test_a_data_directory_becomes_the_servers_data(guest: Guest, sources: Sources) -> None:
    """Protects what a stopped server had; its logs and positions are left out on the host."""
    assert list(sources.directory.glob("theirs.*"))
    contents = backups.Contents()
    streamed = datadir.streamed(DataDirectory(sources.directory), "11.8.6")
    data = b"".join(backups.checked(streamed, "it", contents))
    assert not [path for path in contents.sizes if path.startswith("theirs")]
    assert guest.restore(data, apply=False).startswith("done 0")
    check(guest)


@pytest.mark.rare  # mariadb-upgrade takes its time
def test_system_tables_are_upgraded(guest: Guest, sources: Sources) -> None:
    """Protects labs of an image that is newer than the backup."""
    done = guest.restore(stream_of(sources.full), apply=True, upgrade=True)
    assert done.startswith("done 0"), done
    check(guest, more=["mariadb_upgrade_info", "mysql_upgrade_info", "sys", "performance_schema"])
    assert guest.rows("SHOW DATABASES LIKE 'sys'") == [["sys"]]


@pytest.mark.rare
def test_the_words_of_what_fails(guest: Guest, sources: Sources, tmp_path: Path) -> None:
    """Protects messages: what failed, and why, in the program's words."""
    whole = sources.stream.read_bytes()
    said = guest.restore(whole[: len(whole) // 2], apply=True)
    assert said.startswith("unpack: done 1\n")
    assert "xb_stream_read_chunk" in said
    damaged = shutil.copytree(sources.full, tmp_path / "damaged")
    (damaged / "ib_logfile0").write_bytes(b"x" * 20_000)
    said = guest.restore(stream_of(damaged), apply=True)
    assert said.startswith("prepare: done 1\n")
    assert "[ERROR]" in said
    shutil.rmtree(damaged / "mysql")
    shutil.copy(sources.prepared / "ib_logfile0", damaged)
    shutil.copy(sources.prepared / "ibdata1", damaged)
    said = guest.restore(stream_of(damaged), apply=False)
    assert said.startswith("adopt: done 1\n")
    assert "mysql." in said


OF_OLD = (
    "[mysqld]\ndatadir = /var/lib/mysql\npid_file = /run/mysqld/mysqld.pid\nskip_networking\n"
    "innodb_log_file_size = 4M\ninnodb_log_files_in_group = 2\n"
)


@pytest.mark.rare  # a build of its makers, and mariadb-upgrade takes its time
def test_a_directory_of_an_old_server_is_upgraded(guest: Guest, tmp_path: Path) -> None:
    """Of 10.2: the oldest that is accepted, with two redo logs and accounts in MyISAM."""
    try:
        start = starter(builds()["mariadb-10.2.11"])
        with start(Member("n1", 1, "127.0.0.1"), OF_OLD) as db:
            db.ask(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, s LONGTEXT) ENGINE=InnoDB",
                "INSERT INTO shop.t VALUES (1, REPEAT('x', 3000000))",
                "CREATE TABLE shop.m (id INT) ENGINE=MyISAM",
                "INSERT INTO shop.m VALUES (7)",
                "CREATE USER reader@'%' IDENTIFIED BY 'x'",
            )
            directory = shutil.copytree(stopped(db), tmp_path / "data")
    except NoServer as why:
        pytest.skip(str(why))
    source, contents = DataDirectory(directory), backups.Contents()
    streamed = datadir.streamed(source, "11.8.6")
    data = b"".join(backups.checked(streamed, "it", contents))
    found = backups.described(contents, "it")
    assert found.version == "10.2.11-MariaDB"
    assert "ib_logfile1" in contents.sizes
    done = guest.restore(data, upgrade=True, options=found.options)
    assert done.startswith("done 0"), done
    assert guest.rows("SELECT id, LENGTH(s) FROM shop.t") == [["1", "3000000"]]
    assert guest.rows("SELECT id FROM shop.m") == [["7"]]
    users = guest.rows("SELECT User FROM mysql.global_priv WHERE User IN ('lab', 'reader')")
    assert sorted(users) == [["lab"], ["reader"]]
