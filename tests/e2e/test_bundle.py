"""A bundle of a real cluster: what is in it, and what is not."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress

import pymysql
import pytest
import zstandard

from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site
from tests.e2e.test_captures import connect

pytestmark = [pytest.mark.e2e, pytest.mark.rare]


def unpacked(content: bytes) -> dict[str, str]:
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return {
            member.name.partition("/")[2]: file.read().decode()
            for member in tar.getmembers()
            if (file := tar.extractfile(member))
        }


def test_nothing_that_is_secret_is_in_it(formed: Site) -> None:
    """Protects whoever sends one: secrets are planted in every kind of file."""
    secret = f"hunter2{secrets.token_hex(8)}"
    plant = (
        f"logger -t mariadbd \"INSERT INTO t VALUES ('{secret}')\"; "
        f"echo 'password={secret}' > /dev/console; echo 'token: {secret}' > /dev/kmsg; "
        f"printf '[client]\\npassword={secret}\\n' > /etc/mysql/conf.d/planted.cnf; "
        f"echo 'secret={secret}' >> /var/lib/mysql/grastate.dat; "
        f"setsid sh -c 'exec -a mariadb-dump sleep 300' --password={secret} > /dev/null 2>&1 &"
    )
    with formed.up(*PXC, "--nodes", "3") as view:
        name, password = view["name"], view["password"]
        formed.lab("exec", name, "--node", "n2", "--", "bash", "-c", plant)
        n1 = view["nodes"][0]
        with connect(view, n1) as busy, connect(view, n1) as idle:
            with idle.cursor() as cursor:
                cursor.execute("CREATE DATABASE planted")
                cursor.execute("CREATE TABLE planted.t (id INT PRIMARY KEY, a TEXT)")
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO planted.t VALUES (1, '{secret}')")
            asked = threading.Thread(target=_ask, args=(busy, f"SELECT SLEEP(120), '{secret}'"))
            asked.start()
            assert until(_runs(formed, name, secret), Deadline.after(30))
            formed.lab("stop", name, "--node", "n3", "--force")
            file = formed.root / "x.tar.zst"
            formed.lab("bundle", name, "-o", str(file), timeout=240)
            with connect(view, n1) as other, other.cursor() as cursor:
                cursor.execute(f"KILL {busy.thread_id()}")
            asked.join(60)
        found = unpacked(file.read_bytes())
        file.unlink()
    for path, text in found.items():
        assert secret not in text, path
        assert password not in text, path
    manifest = json.loads(found["manifest.json"])
    assert [one["state"] for one in manifest["nodes"]][2] == "stopped"
    assert [one["what"] for one in manifest["missing"]] == ["n3: guest"]
    assert "SLEEP(?)" in _one(found, "n1", "processlist").replace("120", "?")
    assert "wsrep_cluster_size\t2" in _one(found, "n2", "mysqladmin")
    assert "planted" in _one(found, "n1", "opentables")
    assert "[client]" in _one(found, "n2", "my.cnf")
    assert "uuid" in _one(found, "n2", "grastate.dat")
    assert "<domain" in found["nodes/n1/domain.xml"]
    assert "WSREP" in found["nodes/n1/error.log"]
    assert "WSREP" in found["timeline.txt"]
    assert len([path for path in found if path.endswith("-innodbstatus")]) == 4, "two rounds of two"
    assert found["nodes/n3/qemu.log"]


def test_a_failed_lab_is_opened_elsewhere(site: Site) -> None:
    """Protects who looks for the cause: the cluster as it failed, in another home, from one file.

    One node's server was stopped and the node that is left with another cannot be written to: the
    RAM continues, with what was in it. The same file without RAM boots, and heals.
    """
    name = site.name("fails")
    file = site.root / "failed.tar.zst"
    with site.up(*PXC, "--nodes", "3", "--name", name):
        site.lab("sql", name, "-e", "CREATE DATABASE t")
        site.lab("sql", name, "-e", "CREATE TABLE t.x (v INT PRIMARY KEY)")
        site.lab("sql", name, "-e", "INSERT INTO t.x VALUES (1)")
        site.lab("exec", name, "--node", "n2", "--", "sh", "-c", "echo mark > /run/mark")
        site.lab("exec", name, "--node", "n2", "--", "systemctl", "stop", "mariadb")
        site.lab("bundle", name, "--with-lab", "--yes", "-o", str(file), timeout=300)
    try:
        with site.sibling() as other:
            opened = ("open", str(file), other.name("look"))
            view = other.lab(*opened, "--timeout", "60s", "-o", "json", code=7, timeout=300).json
            look = view["name"]
            assert (view["state"], view["started"]) == ("failed", "warm")
            mark = other.lab("exec", look, "--node", "n2", "--agent", "--", "cat", "/run/mark")
            assert mark.stdout.strip() == "mark"
            found = other.lab("status", look, "-o", "json", code=None).json
            states = {one["name"]: one["state"] for one in found["lab"]["nodes"]}
            assert states["n2"] != "ready"
            again = other.root / "again.tar.zst"
            other.lab("bundle", look, "-o", str(again), timeout=240)
            again.unlink()
            other.lab("down", look)
            boots = ("open", str(file), other.name("disks"), "--no-ram", "--timeout", "840s")
            view = other.lab(*boots, "-o", "json", timeout=900).json
            try:
                assert (view["state"], view["started"]) == ("ready", "cold")
                assert other.sql(view["name"], "n2", "SELECT v FROM t.x") == [[1]]
            finally:
                other.lab("down", view["name"], code=None)
            assert other.settled() == []
    finally:
        file.unlink()


def _ask(connection: pymysql.Connection, statement: str) -> None:
    with suppress(pymysql.Error), connection.cursor() as cursor:
        cursor.execute(statement)


def _runs(site: Site, name: str, text: str) -> Callable[[], bool]:
    return lambda: text in str(site.sql(name, "n1", "SHOW FULL PROCESSLIST"))


def _one(found: dict[str, str], node: str, name: str) -> str:
    return next(
        text
        for path, text in found.items()
        if path.startswith(f"nodes/{node}/") and path.endswith(f"-{name}")
    )
