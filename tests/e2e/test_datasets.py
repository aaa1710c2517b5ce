"""Datasets on real guests: loaded once, in every node of every lab from its first moment."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.passwords import caching_sha2
from lab.storage.sparse import extents
from tests.e2e.e2e_site import Site
from tests.support.mariadb_server import NoServer, server, stopped, unpacked
from tests.support.mysql_shell import Shell

pytestmark = pytest.mark.e2e

TABLES = {"Country": 239, "City": 4079, "CountryLanguage": 984}
"""The rows of the world database."""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """MySQL's world database, as the tests of MariaDB have it; compressed."""
    try:
        files = unpacked("mariadb-test-data") / "usr/share/mysql/mysql-test/include"
    except NoServer as why:
        pytest.skip(str(why))
    parts = [(files / name).read_bytes() for name in ("world_schema.inc", "world.inc")]
    path = tmp_path / "world.sql.gz"
    path.write_bytes(gzip.compress(b"\n".join(parts)))
    return path


@pytest.mark.rare
def test_a_cluster_begins_with_the_data(image: Site, world: Path) -> None:
    """Load, form without transfer, warm; a wrong dump says where; nothing is left."""
    site, name = image, f"world-{image.token}"
    made = site.lab("dataset", "create", name, "--from", str(world), "-o", "json", timeout=900).json
    assert {(t["database"], t["name"]) for t in made["tables"]} == {(name, t) for t in TABLES}
    assert site.settled() == []
    lab = site.name("world")
    with site.up("galera", "--nodes", "2", "--dataset", name, "--name", lab) as view:
        assert (view["started"], view["image"]) == ("warm", made["image"])
        for node in ("n1", "n2"):
            for table, rows in TABLES.items():
                statement = f"SELECT COUNT(*) FROM `{name}`.{table}"
                assert site.sql(lab, node, statement) == [[rows]]
        # No byte of it was sent from one node to the other when the cluster formed.
        log = site.lab("logs", lab, "--node", "n2", "-n", "500").stdout
        assert "SST" not in "".join(line for line in log.splitlines() if "received" in line.lower())
        pages = (
            "SELECT COUNT(*) FROM information_schema.innodb_buffer_page"
            " WHERE table_name LIKE '%City%'"
        )
        assert int(site.sql(lab, "n2", pages)[0][0]) > 10, "the buffer pool is cold"
        site.sql(lab, "n1", f"INSERT INTO `{name}`.City VALUES (5000, 'Atlantis', 'NLD', 1)")
        assert site.sql(lab, "n2", f"SELECT Name FROM `{name}`.City WHERE ID = 5000") == [
            ["Atlantis"]
        ]
        refused = site.lab("dataset", "rm", name, code=4)
        assert f"used by the lab {lab}" in refused.stderr
    wrong = world.with_name("wrong.sql")
    wrong.write_text(
        "CREATE TABLE t (id INT);\n\nINSERT INTO t VALUES (1);\nINSERT INTO u VALUES (2);\n"
    )
    failed = site.lab(
        "dataset", "create", f"x-{site.token}", "--from", str(wrong), code=2, timeout=900
    )
    assert "wrong.sql: statement 3, at line 4: the server refused it" in failed.stderr
    assert "ERROR 1146 (42S02)" in failed.stderr
    archive, other = world.with_name("world.lab"), f"y-{site.token}"
    site.lab("dataset", "export", name, str(archive), timeout=300)
    site.lab("dataset", "rm", name)
    site.lab("dataset", "import", str(archive), "--name", other, timeout=300)
    with site.up("single", "--dataset", other, "--name", lab):
        assert site.sql(lab, "n1", f"SELECT COUNT(*) FROM `{name}`.City") == [[TABLES["City"]]]
    site.lab("dataset", "rm", other)
    assert site.settled() == []
    assert site.lab("dataset", "ls", "-o", "json").json == []


@pytest.fixture
def mysql() -> Path:
    """What MySQL's tests load; of Debian's unstable, the only suite that has them."""
    try:
        return unpacked("mysql-testsuite", "sid", only=".sql") / "usr/lib/mysql-test"
    except NoServer as why:
        pytest.skip(str(why))


def without_mysqltest(script: Path, to: Path) -> Path:
    """A script of MySQL's tests as its client takes it: without the commands of mysqltest."""
    sql = re.sub(r"(?m)^--[a-z].*\n?", "", script.read_text())
    # mysqltest ends this command by the delimiter that it replaces.
    delimiter = re.compile(r"(?m)^DELIMITER (?:(\S+);|;\S+)$")
    to.write_text(delimiter.sub(lambda found: f"DELIMITER {found[1] or ';'}", sql))
    return to


@pytest.mark.rare
def test_dumps_of_mysql(image: Site, mysql: Path, tmp_path: Path) -> None:
    """Sakila, with its views, triggers and routines; and 67 MB of rows by MySQL 8.0's mysqldump."""
    site, name = image, f"sakila-{image.token}"
    schema = mysql / "suite/router/include/schema"
    tables, data = (
        without_mysqltest(schema / f"sakila-{part}.sql", tmp_path / f"sakila-{part}.sql")
        for part in ("schema", "data")
    )
    words = ("--from", str(tables), "--sql", str(data))
    site.lab("dataset", "create", name, *words, "--blueprint", "single", timeout=900)
    lab = site.name("sakila")
    with site.up("single", "--dataset", name, "--name", lab):
        for table, rows in {"film": 1000, "rental": 16044, "film_text": 1000}.items():
            assert site.sql(lab, "n1", f"SELECT COUNT(*) FROM sakila.{table}") == [[rows]]
        objects = {
            "views": "table_schema",
            "triggers": "trigger_schema",
            "routines": "routine_schema",
        }
        for kind, column in objects.items():
            count = f"SELECT COUNT(*) > 5 FROM information_schema.{kind} WHERE {column} = 'sakila'"
            assert site.sql(lab, "n1", count) == [[1]], kind
        sold = "SELECT total_sales > 30000 FROM sakila.sales_by_store LIMIT 1"
        assert site.sql(lab, "n1", sold) == [[1]]
    site.lab("dataset", "rm", name)
    large = mysql / "std_data/bug36444172/dump.sql"
    # 18 indexes of random values: seven minutes on an emulated guest that is alone.
    made = site.lab(
        "dataset", "create", name, "--from", str(large), "-o", "json", timeout=1800
    ).json
    assert made["loaded"] > 67_000_000
    with site.up("single", "--dataset", name, "--name", lab):
        [[rows]] = site.sql(lab, "n1", "SELECT COUNT(*) FROM test_db.test_table")
        with large.open("rb") as file:
            assert rows == sum(line.count(b"),(") + 1 for line in file
                               if line.startswith(b"INSERT INTO"))  # fmt: skip
    site.lab("dataset", "rm", name)
    assert site.settled() == []


PLANTED = ("ada.planted@example.org", "grace.planted@example.org")
CUSTOMERS = f"""\
CREATE DATABASE shop;
USE shop;
CREATE TABLE customers (id INT PRIMARY KEY, mail VARCHAR(100), note TEXT, UNIQUE KEY (mail));
INSERT INTO customers VALUES (1, '{PLANTED[0]}', 'says planted@example.org');
INSERT INTO customers VALUES (2, '{PLANTED[1]}', '');
CREATE TABLE orders (id INT PRIMARY KEY, mail VARCHAR(100), amount INT);
INSERT INTO orders VALUES (1, '{PLANTED[1]}', 7), (2, '{PLANTED[0]}', 8), (3, '{PLANTED[0]}', 9);
DELETE FROM orders WHERE id = 3;
CREATE TABLE people (id INT PRIMARY KEY, mail VARCHAR(200), KEY (mail));
INSERT INTO people SELECT seq, CONCAT(seq, 'planted@example.org', REPEAT('x', 150))
  FROM seq_1_to_9000;
CREATE TABLE parts (id INT PRIMARY KEY, name VARCHAR(20));
INSERT INTO parts VALUES (1, 'bolt');
CREATE DEFINER = gone@'10.20.%' VIEW names AS SELECT name FROM parts;
CREATE DEFINER = app@'%' VIEW ours AS SELECT name FROM parts;
CREATE USER app@'%' IDENTIFIED BY 'secret';
GRANT SELECT ON shop.* TO app@'%';
"""
RULES = """\
[tables."shop.customers"]
id = "keep"
mail = "email"
note = {fixed = "-"}
[tables."shop.orders"]
id = "keep"
mail = "email"
amount = "keep"
[tables."shop.people"]
id = "keep"
mail = "hash"
"""


def holding(root: Path, text: bytes) -> Iterator[Path]:
    """The files below ``root`` that have ``text``; holes are not read."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                for start, length in extents(file.fileno()):
                    before = b""
                    for offset in range(start, start + length, 1 << 24):
                        size = min(1 << 24, start + length - offset)
                        piece = before + os.pread(file.fileno(), size, offset)
                        if text in piece:
                            yield path
                            break
                        before = piece[-len(text) :]


@pytest.mark.rare  # the statements are proven on a server by tests/unit/datasets
def test_masked_data_leave_nothing_of_what_they_were(image: Site, tmp_path: Path) -> None:
    """Not in tables, redo and undo logs, free blocks, RAM, the record or logs; joins still hold."""
    site, name = image, f"masked-{image.token}"
    dump, rules = tmp_path / "shop.sql", tmp_path / "rules.toml"
    dump.write_text(CUSTOMERS)
    rules.write_text(RULES.replace('note = {fixed = "-"}\n', ""))
    create = ("dataset", "create", name, "--from", str(dump), "--mask", str(rules))
    failed = site.lab(*create, code=2, timeout=900)
    assert "no rule names 1 columns of covered tables" in failed.stderr
    assert "shop.customers.note" in failed.stderr
    rules.write_text(RULES)
    done = site.lab(*create, "--set", "innodb_ft_min_token_size=2", "-o", "json", timeout=900)
    made = done.json
    assert made["masked"]
    assert made["options"] == ["innodb_ft_min_token_size=2"]
    assert made["accounts"] == ["'app'@'%'"]
    assert made["definers"] == ["gone@10.20.%"]
    assert "fail with error 1449: gone@10.20.%" in done.stderr
    lab = site.name("masked")
    with site.up("galera", "--nodes", "1", "--dataset", name, "--name", lab) as view:
        assert view["started"] == "warm"
        rows = site.sql(lab, "n1", "SELECT id, mail, note FROM shop.customers ORDER BY id")
        assert [(row[0], row[2]) for row in rows] == [(1, "-"), (2, "-")]
        assert all("@" in row[1] and "planted" not in row[1] for row in rows)
        joined = (
            "SELECT o.id, c.id FROM shop.orders o JOIN shop.customers c USING (mail) ORDER BY 1"
        )
        assert site.sql(lab, "n1", joined) == [[1, 2], [2, 1]]
        # Large enough to go as a file of InnoDB.
        counted = "SELECT COUNT(DISTINCT mail), MAX(LENGTH(mail)) FROM shop.people"
        assert site.sql(lab, "n1", counted) == [[9000, 64]]
        assert site.sql(lab, "n1", "SELECT name FROM shop.parts") == [["bolt"]]
        assert site.sql(lab, "n1", "SELECT name FROM shop.ours") == [["bolt"]]
        grants = [row[0] for row in site.sql(lab, "n1", "SHOW GRANTS FOR app@'%'")]
        assert "GRANT SELECT ON `shop`.* TO `app`@`%`" in grants
        assert list(holding(site.root, b"planted@example.org")) == []
        assert any(holding(site.root, rows[0][1].encode())), "the search finds nothing at all"
    assert "shop.parts" not in site.lab("dataset", "scan", name).stdout
    site.lab("dataset", "rm", name)
    assert site.settled() == []


@pytest.mark.rare  # tests/unit/lifecycle/datasets/test_of_lab.py does it with fakes
def test_a_lab_in_use_becomes_a_dataset(image: Site) -> None:
    """Warm and as it is, without its secrets; a cluster of it forms without transfer."""
    site, name = image, f"promoted-{image.token}"
    lab, key = site.name("origin"), "cat /etc/mysql/tls/key.pem /etc/ssh/ssh_host_*_key"
    with site.up("galera", "--nodes", "2", "--name", lab):
        site.sql(lab, "n1", "CREATE DATABASE crm")
        site.sql(lab, "n2", "CREATE TABLE crm.people (id INT PRIMARY KEY)")
        site.sql(lab, "n2", "INSERT INTO crm.people VALUES (1), (2)")
        secrets = site.lab("ssh", lab, "--node", "n1", "--", key).stdout.splitlines()
        made = site.lab(
            "dataset", "create", name, "--from", f"lab:{lab}", "-o", "json", timeout=900
        ).json
        assert [(t["database"], t["name"]) for t in made["tables"]] == [("crm", "people")]
        site.sql(lab, "n1", "INSERT INTO crm.people VALUES (3)")
    lines = [line for line in secrets if line and not line.startswith("-----")]
    assert len(lines) > 3
    there = list((site.root / "storage").rglob(f"*{made['image']}*"))
    assert there
    for line in lines:
        assert [found for one in there for found in holding(one, line.encode())] == []
    clone = site.name("promoted")
    with site.up("galera", "--nodes", "2", "--dataset", name, "--name", clone) as view:
        assert (view["started"], view["image"]) == ("warm", made["image"])
        for node in ("n1", "n2"):
            rows = site.sql(clone, node, "SELECT id FROM crm.people ORDER BY id")
            assert rows == [[1], [2]]
        log = site.lab("logs", clone, "--node", "n2", "--source", "journal", "-n", "2000").stdout
        assert "state transfer needed: no" in log
    site.lab("dataset", "rm", name)
    assert site.settled() == []


BACKUP = (
    "mariadb-backup --backup --stream=mbstream --galera-info --target-dir=/tmp/backup --user=root"
    " 2>/tmp/backup.log | gzip -1 | base64 -w0; tail -n 1 /tmp/backup.log >&2"
)
"""A backup of a node, which mariadb-backup makes on it: as text, and its last message."""


@pytest.mark.rare  # tests/unit/guest/test_backup_in_guest.py does it on this host
def test_a_physical_backup_becomes_a_dataset(image: Site, tmp_path: Path) -> None:
    """Of a node of a cluster: prepared in the guest, then a cluster of it forms by itself."""
    site, name, lab = image, f"physical-{image.token}", image.name("origin")
    path, more = tmp_path / "shop.xb.gz", tmp_path / "more.sql"
    with site.up("galera", "--nodes", "1", "--name", lab):
        site.sql(lab, "n1", "CREATE DATABASE shop")
        site.sql(lab, "n1", "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT)")
        site.sql(lab, "n1", "INSERT INTO shop.orders VALUES (1, 'one'), (2, 'two')")
        site.sql(lab, "n1", "CREATE USER reader@'%' IDENTIFIED BY 'x'")
        made = site.lab("ssh", lab, "--node", "n1", "--", BACKUP, timeout=600)
        assert "completed OK!" in made.stderr
        path.write_bytes(base64.b64decode(made.stdout))
        history = site.sql(lab, "n1", "SHOW STATUS LIKE 'wsrep_cluster_state_uuid'")
    more.write_text("INSERT INTO shop.orders VALUES (3, 'three');\n")
    create = ("dataset", "create", name, "--from", str(path), "--sql", str(more))
    view = site.lab(*create, "-o", "json", timeout=1800).json
    assert [(t["database"], t["name"]) for t in view["tables"]] == [("shop", "orders")]
    assert site.settled() == []
    clone = site.name("physical")
    with site.up("galera", "--nodes", "2", "--dataset", name, "--name", clone) as up:
        assert (up["started"], up["image"]) == ("warm", view["image"])
        for node in ("n1", "n2"):
            rows = site.sql(clone, node, "SELECT id, note FROM shop.orders ORDER BY id")
            assert rows == [[1, "one"], [2, "two"], [3, "three"]]
            accounts = "SELECT User FROM mysql.global_priv WHERE User IN ('lab', 'reader')"
            assert sorted(site.sql(clone, node, accounts)) == [["lab"], ["reader"]]
        site.sql(clone, "n1", "INSERT INTO shop.orders VALUES (4, 'four')")
        assert site.sql(clone, "n2", "SELECT note FROM shop.orders WHERE id = 4") == [["four"]]
        log = site.lab("logs", clone, "--node", "n2", "--source", "journal", "-n", "2000").stdout
        assert "state transfer needed: no" in log
        kept = site.sql(clone, "n1", "SHOW STATUS LIKE 'wsrep_cluster_state_uuid'")
        assert kept == history, "all labs of an image have its history"
    path.write_bytes(path.read_bytes()[:-1000])
    failed = site.lab("dataset", "refresh", name, code=2, timeout=900)
    assert "shop.xb.gz is truncated" in failed.stderr
    site.lab("dataset", "rm", name)
    assert site.settled() == []
    assert site.lab("dataset", "ls", "-o", "json").json == []


OF_MYSQL = f"""\
-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
--
-- Host: localhost    Database: shop
-- ------------------------------------------------------
-- Server version\t8.0.36
SET @@SESSION.SQL_LOG_BIN= 0;
SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5';
CREATE DATABASE shop;
USE shop;
CREATE TABLE customers (id INT PRIMARY KEY, mail VARCHAR(100), note JSON, UNIQUE KEY (mail),
  upper_mail VARCHAR(100) GENERATED ALWAYS AS (UPPER(mail)) VIRTUAL, KEY ((LOWER(mail)))
) COLLATE utf8mb4_0900_ai_ci;
INSERT INTO customers (id, mail, note) VALUES (1, '{PLANTED[0]}', '{{"a": 1}}'),
  (2, '{PLANTED[1]}', '[]');
CREATE TABLE orders (id INT PRIMARY KEY, mail VARCHAR(100), amount INT);
INSERT INTO orders VALUES (1, '{PLANTED[1]}', 7), (2, '{PLANTED[0]}', 8);
CREATE TABLE people (id INT PRIMARY KEY, mail VARCHAR(200), KEY (mail));
SET SESSION cte_max_recursion_depth = 10000;
INSERT INTO people WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 9000)
  SELECT i, CONCAT(i, 'planted@example.org', REPEAT('x', 150)) FROM n;
CREATE TABLE parts (id INT PRIMARY KEY, name VARCHAR(20));
INSERT INTO parts VALUES (1, 'bolt');
CREATE DEFINER = gone@'10.20.%' VIEW names AS SELECT name FROM parts;
CREATE EVENT tidy ON SCHEDULE EVERY 1 DAY DO DELETE FROM parts WHERE id > 1;
CREATE TRIGGER seen BEFORE INSERT ON parts FOR EACH ROW SET NEW.name = UPPER(NEW.name);
CREATE ROLE reader;
GRANT SELECT ON shop.* TO reader;
CREATE USER app@'%' IDENTIFIED BY 'secret';
GRANT reader TO app@'%';
SET DEFAULT ROLE reader TO app@'%';
-- Dump completed on 2026-11-20 12:00:00
"""


@pytest.mark.rare  # tests/unit prove the statements on servers, and the programs of the guest
def test_a_dataset_of_mysql(installation: Site, tmp_path: Path) -> None:
    """A dump of MySQL, masked: a server of MySQL, replicas and a group, warm and with its data."""
    site = installation
    name = f"mysql-{site.token}"
    dump, rules = tmp_path / "shop.sql", tmp_path / "rules.toml"
    dump.write_text(OF_MYSQL)
    rules.write_text(RULES.replace("note =", 'upper_mail = "keep"\nnote =').replace("-", "{}"))
    create = ("dataset", "create", name, "--from", str(dump), "--mask", str(rules))
    done = site.lab(*create, "-o", "json", timeout=1800)
    made = done.json
    assert made["engine"].startswith("mysql 9.")
    assert (made["blueprint"], made["masked"]) == ("replication", True)
    assert made["accounts"] == ["'app'@'%'", "'reader'@'%'"]
    assert made["definers"] == ["gone@10.20.%"]
    assert "GTID position, 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5" in done.stderr
    assert site.settled() == []
    masked: list[object] = []
    for words in (("single",), ("replication", "--nodes", "2"), ("group", "--nodes", "3")):
        lab = site.name(words[0])
        with site.up(*words, "--dataset", name, "--name", lab) as view:
            assert (view["started"], view["image"]) == ("warm", made["image"])
            nodes = [node["name"] for node in view["nodes"]]
            for node in nodes:
                rows = site.sql(lab, node, "SELECT id, mail FROM shop.customers ORDER BY id")
                assert all("@" in row[1] and "planted" not in row[1] for row in rows)
                masked.append(rows)
                joined = (
                    "SELECT o.id, c.id FROM shop.orders o JOIN shop.customers c USING (mail)"
                    " ORDER BY 1"
                )
                assert site.sql(lab, node, joined) == [[1, 2], [2, 1]]
                counted = "SELECT COUNT(DISTINCT mail), MAX(LENGTH(mail)) FROM shop.people"
                assert site.sql(lab, node, counted) == [[9000, 64]]
            site.sql(lab, nodes[0], "INSERT INTO shop.parts VALUES (0, 'nut')")
            grants = [row[0] for row in site.sql(lab, nodes[0], "SHOW GRANTS FOR app@'%'")]
            assert "GRANT `reader`@`%` TO `app`@`%`" in grants
            assert list(holding(site.root, b"planted@example.org")) == []
    assert all(rows == masked[0] for rows in masked)
    site.lab("dataset", "rm", name)
    assert site.settled() == []


@pytest.mark.rare  # tests/unit/guest/test_load_in_guest.py does it on this host
def test_a_group_in_use_becomes_a_dataset(installation: Site) -> None:
    """Its primary wakes alone; replicas of it begin without the group's history."""
    site, name = installation, f"of-group-{installation.token}"
    lab, clone = site.name("origin"), site.name("promoted")
    with site.up("group", "--nodes", "3", "--name", lab):
        site.sql(lab, "n1", "CREATE DATABASE crm")
        site.sql(lab, "n1", "CREATE TABLE crm.people (id INT PRIMARY KEY)")
        site.sql(lab, "n1", "INSERT INTO crm.people VALUES (1), (2)")
        made = site.lab(
            "dataset", "create", name, "--from", f"lab:{lab}", "-o", "json", timeout=900
        ).json
    assert [(t["database"], t["name"]) for t in made["tables"]] == [("crm", "people")]
    for words in (("replication", "--nodes", "2"), ("group", "--nodes", "3")):
        with site.up(*words, "--dataset", name, "--name", clone) as view:
            assert view["started"] == "warm"
            site.sql(clone, "n1", "INSERT INTO crm.people VALUES (3)")
            assert site.sql(clone, "n1", "SELECT COUNT(*) FROM crm.people") == [[3]]
    site.lab("dataset", "rm", name)
    assert site.settled() == []


def digests(top: Path) -> dict[str, str]:
    """The SHA-256 of a file, or of all files below a directory."""
    files = [path for path in (top, *top.rglob("*")) if path.is_file()]
    return {
        path.relative_to(top).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.mark.rare  # tests/unit/datasets/test_round_trips.py does it with servers on this host
@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_what_a_lab_dumps_becomes_a_dataset(
    installation: Site, tmp_path: Path, engine: str
) -> None:
    """Out and in again: the checksums of all tables are the same. The dump as files, too."""
    site, name = installation, f"again-{engine}-{installation.token}"
    lab, clone = site.name("out"), site.name("in")
    dump = tmp_path / ("crm.sql.gz" if engine == "mariadb" else "crm")  # of the other, a directory
    checksum = "CHECKSUM TABLE crm.people, crm.files EXTENDED"
    with site.up("single", "--engine", engine, "--name", lab):
        for statement in (
            "CREATE DATABASE crm",
            "CREATE TABLE crm.people (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60))",
            "INSERT INTO crm.people (name) VALUES ('Ada'), ('Gr\u00e4ce'), (NULL)",
            "CREATE TABLE crm.files (id INT PRIMARY KEY, content BLOB, n INT AS (LENGTH(content)))",
            "INSERT INTO crm.files (id, content) VALUES (1, 0x00FF0A275C), (2, REPEAT('x', 60000))",
            "CREATE VIEW crm.names AS SELECT name FROM crm.people",
            "CREATE PROCEDURE crm.says () BEGIN /* why */ DO 1; END",
        ):
            site.sql(lab, "n1", statement)
        before = site.sql(lab, "n1", checksum)
        site.lab("dump", lab, "--to", str(dump) if dump.suffix else f"{dump}/")
        site.lab("cp", str(dump), f"{lab}:n1:/var/tmp/there")
        site.lab("cp", f"{lab}:n1:/var/tmp/there", str(tmp_path / "back"))
    assert digests(dump)
    assert digests(tmp_path / "back") == digests(dump)
    create = ("dataset", "create", name, "--from", str(dump), "-o", "json")
    assert site.lab(*create, timeout=1800).json["engine"].startswith(f"{engine} ")
    with site.up("single", "--dataset", name, "--name", clone) as view:
        assert view["started"] == "warm"
        assert site.sql(clone, "n1", checksum) == before
        assert site.sql(clone, "n1", "SELECT COUNT(*) FROM crm.names") == [[3]]
        body = "SELECT routine_definition FROM information_schema.routines"
        assert "/* why */" in str(site.sql(clone, "n1", f"{body} WHERE routine_schema = 'crm'"))
    site.lab("dataset", "rm", name)
    assert site.settled() == []


@pytest.mark.rare  # tests/unit/datasets/test_shell.py does it with a server of this host
@pytest.mark.parametrize("engine", ["mariadb", "mysql"])
def test_a_directory_of_mysql_shell_becomes_a_dataset(
    installation: Site, tmp_path: Path, engine: str
) -> None:
    """On either family, with rows of all kinds in chunks, and its accounts."""
    site, name = installation, f"mysqlsh-{engine}-{installation.token}"
    users = (
        "CREATE USER IF NOT EXISTS `app`@`%` IDENTIFIED WITH 'caching_sha2_password' AS"
        f" '{caching_sha2('secret')}';\n"
        "GRANT SELECT ON `shop`.* TO `app`@`%`;\n"
    )
    try:
        with server() as db:
            db.ask(
                "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, bin BLOB, bits BIT(10))",
                "INSERT INTO shop.t SELECT seq, UNHEX(MD5(seq)), b'1010101010'"
                " FROM shop.seq_1_to_5000",
            )
            sums = db.ask("SELECT COUNT(*), SUM(CRC32(bin)), SUM(bits + 0) FROM shop.t")
            top = Shell(chunk=1000, users=users).dump(db, tmp_path / "dump", ["shop"])
    except NoServer as why:
        pytest.skip(str(why))
    # MySQL is what such a directory becomes by itself.
    other = ("--engine", engine) if engine == "mariadb" else ()
    made = site.lab(
        "dataset", "create", name, "--from", str(top), *other, "--blueprint", "single",
        "-o", "json", timeout=1800,
    )  # fmt: skip
    assert made.json["engine"].startswith(f"{engine} ")
    assert ("accounts are locked" in made.stderr) == (engine == "mariadb")
    lab = site.name("mysqlsh")
    with site.up("single", "--dataset", name, "--name", lab):
        question = "SELECT COUNT(*), SUM(CRC32(bin)), SUM(bits + 0) FROM shop.t"
        [found] = site.sql(lab, "n1", question)  # sums are decimals, which JSON has as strings
        assert [str(value) for value in found] == [str(value) for value in sums[0]]
        [[account]] = site.sql(lab, "n1", "SHOW CREATE USER app@'%'")
        assert ("ACCOUNT LOCK" in account) == (engine == "mariadb")
        assert ("caching_sha2_password" in account) == (engine == "mysql")
    (top / "@.done.json").unlink()
    failed = site.lab("dataset", "refresh", name, code=2, timeout=900)
    assert "MySQL Shell has not finished this dump" in failed.stderr
    site.lab("dataset", "rm", name)
    assert site.settled() == []


@pytest.mark.rare  # tests/unit/guest/test_backup_in_guest.py does it on this host
def test_a_data_directory_of_an_older_series_becomes_a_dataset(image: Site, tmp_path: Path) -> None:
    """In an archive: its system tables are upgraded in the guest, then a cluster of it forms."""
    site, name, archive = image, f"directory-{image.token}", tmp_path / "shop.tgz"
    try:
        with server(["--log-bin=theirs"]) as db:
            db.ask(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.orders (id INT PRIMARY KEY, note TEXT)",
                "INSERT INTO shop.orders VALUES (1, 'one'), (2, 'two')",
                "CREATE USER reader@'%' IDENTIFIED BY 'x'",
            )
            directory = stopped(db)
            shutil.make_archive(str(archive.with_suffix("")), "gztar", directory)
            archive = next(tmp_path.glob("shop*"))
            version = db.version
    except NoServer as why:
        pytest.skip(str(why))
    view = site.lab(
        "dataset", "create", name, "--from", str(archive), "-o", "json", timeout=1800
    ).json
    assert [(t["database"], t["name"]) for t in view["tables"]] == [("shop", "orders")]
    assert site.settled() == []
    clone = site.name("directory")
    with site.up("galera", "--nodes", "2", "--dataset", name, "--name", clone) as up:
        assert up["started"] == "warm"
        for node in ("n1", "n2"):
            [[ours]] = site.sql(clone, node, "SELECT VERSION()")
            assert ours.split(".")[:2] != version.split(".")[:2], "the image is of a later series"
            rows = site.sql(clone, node, "SELECT id, note FROM shop.orders ORDER BY id")
            assert rows == [[1, "one"], [2, "two"]]
            accounts = "SELECT User FROM mysql.global_priv WHERE User IN ('lab', 'reader')"
            assert sorted(site.sql(clone, node, accounts)) == [["lab"], ["reader"]]
        site.sql(clone, "n1", "INSERT INTO shop.orders VALUES (3, 'three')")
        assert site.sql(clone, "n2", "SELECT note FROM shop.orders WHERE id = 3") == [["three"]]
    site.lab("dataset", "rm", name)
    assert site.settled() == []
