"""A real cluster does what a newcomer is promised: few labs, much asked of each."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import time
from typing import Any

import pymysql
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.e2e.e2e_site import PXC, ZONES, Done, Site, listening

pytestmark = pytest.mark.e2e

NODES = ("n1", "n2", "n3")
SIZE = "SHOW STATUS LIKE 'wsrep_cluster_size'"


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """What a program gets that was given nothing but the DSN."""
    match = re.fullmatch(r"mysql://(\w+):(\w+)@([\d.]+):(\d+)/", dsn)
    assert match, dsn
    user, password, host, port = match.groups()
    with (
        pymysql.connect(
            host=host, port=int(port), user=user, password=password, autocommit=True
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        return list(cursor.fetchall())


def clock_error(site: Site, lab: str) -> float:
    """Seconds between a node's clock and ours."""
    before = time.time()
    there = float(site.lab("exec", lab, "--", "/bin/date", "+%s.%N").stdout)
    return max(before - there, there - time.time(), 0.0)


def sizes(site: Site, lab: str, nodes: tuple[str, ...]) -> list[str]:
    """How large each of ``nodes`` thinks that its cluster is."""
    return [str(site.sql(lab, node, SIZE)[0][1]) for node in nodes]


def test_a_lab_is_what_up_says(site: Site) -> None:
    """The promise of the README: what is printed can be used, all of it, at once."""
    name = site.name("shop")
    shown = site.lab("up", *PXC, "--nodes", "3", "--name", name).stdout
    view = site.lab("status", name, "-o", "json").json["lab"]
    for text in (name, "pxc, ready", "mariadb", view["password"], view["dsn"], "(warm)"):
        assert text in shown
    for node in view["nodes"]:
        line = next(line for line in shown.splitlines() if line.startswith(node["name"]))
        assert f"127.0.0.1:{node['sql_port']}" in line
        assert "ready" in line
        assert {node["sql_port"], node["ssh_port"]} <= listening()
    status = site.lab("status", name, "-o", "json").json
    assert [node["state"] for node in status["lab"]["nodes"]] == ["ready"] * 3
    assert {one["met"] for one in status["requirements"]} == {True}
    assert site.lab("ls", "-o", "name").stdout.split() == [name]
    assert site.lab("wait", name, "--timeout", "20").seconds < 15

    zones = {tuple(site.sql(name, node, ZONES)[0]) for node in ("n1", "n2", "n3")}
    assert [zone[:2] for zone in zones] == [(1, 1)], zones

    # Written on one node, read on all.
    site.sql(name, "n1", "CREATE DATABASE shop")
    site.sql(name, "n2", "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20))")
    site.sql(name, "n1", "INSERT INTO shop.orders VALUES (1, 'tea'), (2, 'milk')")
    for node in NODES:
        # causal reads: not what a node knew a moment ago
        rows = site.sql(name, node, "SELECT what FROM shop.orders ORDER BY id")
        assert rows == [["tea"], ["milk"]]
    refused = site.lab("sql", name, "-e", "SELEKT 1", code=6)
    assert "SELEKT" in refused.stderr
    assert "1064" in refused.stderr or "syntax" in refused.stderr

    # A client program, a shell's environment, a program's DSN.
    exported = site.lab("env", name).stdout
    env = dict(word.split("=", 1) for word in shlex.split(exported.replace("export ", "")))
    assert query(env["LAB_DSN"], "SELECT COUNT(*) FROM shop.orders") == [(2,)]
    assert site.lab("env", name, "--format", "dotenv").stdout.splitlines()[0] == f"LAB_NAME={name}"
    printed = site.lab("sql", name, "--node", "2", stdin="SELECT 6 * 7;", code=None)
    assert printed.code in (0, 127)  # 127: no client program is installed here
    assert printed.code == 127 or "42" in printed.stdout

    # Into the nodes.
    assert site.lab("exec", name, "--node", "n2", "--", "/bin/hostname").stdout == "n2\n"
    assert site.lab("exec", name, "--", "/bin/sh", "-c", "exit 3", code=3).stdout == ""
    assert site.lab("ssh", name, "--node", "3", "--", "hostname").stdout == "n3\n"
    assert clock_error(site, name) < 2.0
    assert "mariadbd" in site.lab("logs", name, "-n", "200").stdout
    assert len(site.lab("logs", name, "--source", "journal", "-n", "5").stdout.splitlines()) >= 5
    site.lab("logs", name, "--source", "console")
    site.lab("logs", name, "--source", "teapot", code=2)

    # What is secret is for its owner only.
    private = site.home.lab(name) / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE(site.home.database.stat().st_mode) == 0o600
    for pid, _ in site.processes():
        assert view["password"] not in _cmdline(pid)
    taken = site.lab("up", *PXC, "--name", name, code=4)
    assert "exists" in taken.stderr
    assert "hint:" in taken.stderr

    ended = site.lab("down", name)
    assert ended.stdout == ""
    assert site.settled() == []
    site.lab("status", name, code=3)


@pytest.mark.parametrize("how", ["off", pytest.param("killed", marks=pytest.mark.rare)])
def test_a_node_that_died_comes_back(site: Site, how: str) -> None:
    """Two of three stay a cluster; the third finds it again, with what it has missed."""
    with site.up(*PXC, "--nodes", "3", "--name", site.name("ha")) as view:
        name = view["name"]
        site.sql(name, "n1", "CREATE DATABASE d")
        site.sql(name, "n1", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        if how == "off":
            site.lab("stop", name, "--node", "n3", "--force")
        else:
            os.kill(site.qemu(f"lab-{name}-n3"), signal.SIGKILL)
        _lost(site, name, "n3")
        site.lab("start", name, *(["--node", "n3"] if how == "off" else []), "--timeout", "200")
        _back(site, name, [[1]])


def _back(site: Site, name: str, rows: list[list[int]]) -> None:
    assert sizes(site, name, NODES) == ["3", "3", "3"]
    for node in NODES:
        assert site.sql(name, node, "SELECT id FROM d.t ORDER BY id") == rows


def _alone(site: Site, name: str, node: str) -> bool:
    """Whether a node has seen that the third one is gone.

    In the instant when Galera closes its connection to a peer that timed out, MariaDB 11.8 once
    in some thousand times drops the client that is in its TLS handshake: the server's log has
    "closed normally without authentication" in the same second as "no messages seen in PT3S",
    and the client sees an EOF. Later ones are served.
    """
    done = site.lab("sql", name, "--node", node, "-e", SIZE, "-o", "json", code=None)
    if done.code:
        assert "TLS/SSL connection has been closed (EOF)" in done.stderr, done
        return False
    return str(done.json["rows"][0][1]) == "2"


def _lost(site: Site, name: str, node: str) -> None:
    others = tuple(other for other in NODES if other != node)
    deadline = time.monotonic() + 60
    # Galera waits for a node that does not respond before it continues without it.
    while not all(_alone(site, name, other) for other in others):
        assert time.monotonic() < deadline
    status = site.sql(name, others[0], "SHOW STATUS LIKE 'wsrep_cluster_status'")
    assert status[0][1] == "Primary"
    site.sql(name, others[1], "INSERT INTO d.t VALUES (1)")
    states = {n["name"]: n["state"] for n in site.lab("ls", "-o", "json").json[0]["nodes"]}
    assert states[node] == "stopped"
    assert site.lab("ls", "-o", "json").json[0]["state"] == "degraded"


def test_two_clones_share_nothing_secret(site: Site) -> None:
    """Two labs of one template run side by side and do not notice each other."""
    with (
        site.up(*PXC, "--nodes", "3", "--name", site.name("a")) as a,
        site.up(*PXC, "--nodes", "3", "--name", site.name("b")) as b,
    ):
        assert a["template"] == b["template"]
        assert a["started"] == b["started"] == "warm"
        for lab in (a, b):
            site.sql(lab["name"], "n1", f"CREATE DATABASE only_{lab['name'].partition('-')[0]}")
        schemas = "SELECT schema_name FROM information_schema.schemata"
        found = [{row[0] for row in query(lab["dsn"], schemas)} for lab in (a, b)]
        assert "only_a" in found[0] - found[1]
        assert "only_b" in found[1] - found[0]
        assert a["password"] != b["password"]
        with pytest.raises(pymysql.err.OperationalError, match="1045"):
            query(a["dsn"].replace(a["password"], b["password"]), "SELECT 1")
        # After the node's own certificate comes the authority's, which all have.
        asked = (
            "cat /etc/ssh/ssh_host_*_key /etc/mysql/tls/key.pem; sha256sum /etc/ssh/*_key.pub;"
            " sed '/END CERTIFICATE/q' /etc/mysql/tls/cert.pem"
        )
        secrets = [
            site.lab("exec", lab["name"], "--node", node, "--", "/bin/sh", "-c", asked).stdout
            for lab in (a, b)
            for node in NODES
        ]
        keys = [line for text in secrets for line in set(_secret_lines(text))]
        assert len(keys) == len(set(keys)), "a key is in two nodes"
        assert len(keys) >= 6 * 3
        assert sum(key.startswith("serial number") for key in keys) == 6
        random = [
            site.lab(
                "exec", lab["name"], "--node", node, "--", "/bin/sh", "-c",
                "head -c 32 /dev/urandom | sha256sum; cat /proc/sys/kernel/random/uuid",
            ).stdout
            for lab in (a, b)
            for node in NODES
        ]  # fmt: skip
        assert len(set(random)) == 6
        assert max(clock_error(site, lab["name"]) for lab in (a, b)) < 2.0
        assert sizes(site, a["name"], NODES) + sizes(site, b["name"], NODES) == ["3"] * 6
        # The key of one does not open the other.
        key = site.home.lab(a["name"]) / "private" / "id_ed25519"
        refused = subprocess.run(
            [
                "ssh", "-i", key, "-p", str(b["nodes"][0]["ssh_port"]),
                "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
                "-o", "BatchMode=yes", "root@127.0.0.1", "true",
            ],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert refused.returncode == 255
        assert "denied" in refused.stderr


def _secret_lines(text: str) -> list[str]:
    """The lines of keys that cannot be the same by chance, and what is each certificate's own.

    Certificates of one authority have lines in common: its name, and those of the nodes.
    """
    found = re.findall(r"-+BEGIN CERTIFICATE-+.*?-+END CERTIFICATE-+\n", text, re.DOTALL)
    certificates = [x509.load_pem_x509_certificate(one.encode()) for one in found]
    form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    own = [one.public_key().public_bytes(*form).decode() for one in certificates]
    own += [f"serial number {one.serial_number}" for one in certificates]
    for one in found:
        text = text.replace(one, "")
    lines = text.splitlines()
    return own + [x for x in lines if len(x) >= 60 and not x.startswith("b3BlbnNz")]


@pytest.mark.rare
def test_a_lab_survives_its_stop(site: Site) -> None:
    """The disks stay: a clone that was restored boots cold, as the cluster that it was."""
    with site.up(*PXC, "--nodes", "3", "--name", site.name("keep")) as view:
        name = view["name"]
        site.sql(name, "n1", "CREATE DATABASE d")
        site.sql(name, "n2", "CREATE TABLE d.t (id INT PRIMARY KEY) SELECT 42 AS id")
        # Right after DDL, whose position in the cluster's history the server notes late.
        site.lab("stop", name)
        assert site.guests() == []
        assert site.lab("ls", "-o", "json").json[0]["state"] == "stopped"
        site.lab("wait", name, "--timeout", "5", code=7)
        site.lab("exec", name, "--", "true", code=7)
        started = site.lab("start", name, "--timeout", "240", "-o", "json", code=None)
        assert started.code == 0, _why(site, name, started)
        assert started.json["dsn"] == view["dsn"], "the same address and password as before"
        for node in NODES:
            assert site.sql(name, node, "SELECT id FROM d.t") == [[42]]
        assert sizes(site, name, NODES) == ["3", "3", "3"]
        assert clock_error(site, name) < 2.0
        assert site.lab("ssh", name, "--", "hostname").stdout == "n1\n"


@pytest.mark.rare
def test_start_after_a_crash(site: Site) -> None:
    """What nodes cannot do by themselves: each sees only itself."""
    with site.up(*PXC, "--nodes", "3", "--name", site.name("crash")) as view:
        name = view["name"]
        site.sql(name, "n1", "CREATE DATABASE d")
        # Its tables are ahead of the position that it noted: it will be given this once more,
        # fail, and leave as inconsistent.
        site.sql(name, "n1", "CREATE TABLE d.t (id INT PRIMARY KEY) SELECT 1 AS id")
        site.lab("stop", name, "--force", "--node", "n1")
        _insert_without(site, name, "INSERT INTO d.t VALUES (2)")
        started = site.lab("start", name, "--timeout", "400", code=None, timeout=450)
        assert started.code == 0, _why(site, name, started)
        assert "state transfer (SST) from another node" in started.stderr
        _back(site, name, [[1], [2]])
        # Nobody knows with whom it was a cluster.
        for node in NODES:
            lost = "rm /var/lib/mysql/gvwstate.dat; sync"
            site.lab("exec", name, "--node", node, "--", "/bin/sh", "-c", lost)
        site.lab("stop", name, "--force")
        alone = site.lab("start", name, "--node", "n2", "--timeout", "200", code=7)
        assert "a stopped node may have a higher seqno" in alone.stderr
        started = site.lab("start", name, "--timeout", "400", code=None, timeout=450)
        assert started.code == 0, _why(site, name, started)
        assert "bootstrapping from the highest seqno" in started.stderr
        _back(site, name, [[1], [2]])


def _insert_without(site: Site, name: str, statement: str) -> None:
    """Run ``statement`` on n2, once it and n3 have given up n1 and agreed on that."""
    deadline = time.monotonic() + 120
    while sizes(site, name, NODES[1:]) != ["2", "2"]:
        assert time.monotonic() < deadline
    argv = ("sql", name, "--node", "n2", "-e", statement)
    while (done := site.lab(*argv, code=None)).code:
        assert time.monotonic() < deadline, done


def _why(site: Site, name: str, done: Done) -> str:
    logs = [site.lab("logs", name, "--node", n, "-n", "40", code=None).stdout for n in NODES]
    return "\n".join([done.stderr, *logs])


@pytest.mark.rare
def test_a_node_that_was_the_last_one_goes_back(site: Site) -> None:
    """Its disk says that it may start the cluster; the others are one."""
    with site.up(*PXC, "--nodes", "3", "--name", site.name("last")) as view:
        name = view["name"]
        site.lab("sql", name, "-e", "CREATE TABLE mysql.t (a INT PRIMARY KEY)")
        for node in NODES:
            site.lab("stop", name, "--node", node)
        site.lab("snapshot", "take", name, "--label", "stopped")
        site.lab("start", name, "--timeout", "200")
        site.lab("sql", name, "-e", "INSERT INTO mysql.t VALUES (1)")
        site.lab("rollback", name, "--node", "n3", "--to", "stopped", "--timeout", "200")
        assert sizes(site, name, NODES) == ["3"] * 3
        assert [site.sql(name, node, "SELECT a FROM mysql.t") for node in NODES] == [[[1]]] * 3


@pytest.mark.rare
def test_a_lab_that_was_formed_for_itself_goes_back(site: Site) -> None:
    """Its origin is from before it was formed, which is repeated."""
    with site.up("replication", "--cold", "--nodes", "2", "--name", site.name("own")) as view:
        query(view["dsn"], "CREATE DATABASE shop")
        refused = site.lab("rollback", view["name"], "--node", "n2", code=4)
        assert f"lab rollback {view['name']}" in refused.stderr
        site.lab("rollback", view["name"], "--timeout", "200")
        assert query(view["dsn"], "SHOW DATABASES LIKE 'shop'") == []
        query(view["dsn"], "CREATE DATABASE other")


def test_cold_boots_and_forms(site: Site) -> None:
    """Where RAM cannot be restored, the same lab is had by booting."""
    with site.up(*PXC, "--nodes", "1", "--cold", "--name", site.name("cold")) as view:
        assert view["started"] == "cold"
        assert query(view["dsn"], SIZE)[0][1] == "1"
        assert clock_error(site, view["name"]) < 2.0
        # It was cleanly stopped: a recovery pass would be a second start of the server.
        log = site.lab("logs", view["name"], "-n", "2000").stdout
        assert "ready for connections" in log
        assert "Recovered position" not in log


def test_run_is_all_or_nothing(site: Site) -> None:
    """A disposable lab: its command's exit code, its DSN, and nothing left of it."""
    script = 'echo "$LAB_DSN"; exit 7'
    done = site.lab("run", *PXC, "--nodes", "1", "--", "sh", "-c", script, code=7)
    assert re.fullmatch(r"mysql://lab:\w+@127\.0\.0\.1:\d+/", done.stdout.strip())
    assert site.settled() == []
    done = site.lab("run", *PXC, "--nodes", "1", "--", "sh", "-c", "kill -9 $$", code=137)
    assert site.settled() == []


def _cmdline(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return file.read().decode(errors="replace")
    except OSError:
        return ""
