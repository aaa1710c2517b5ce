"""The guest's programs ``load`` and ``backup`` with a real server of MySQL, in the same way."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.datasets import of_mysql
from lab.datasets.source import BackupDirectory, DataDirectory, parse
from tests.support.backups import write
from tests.support.data_directories import of_xtrabackup
from tests.support.mariadb_server import NoServer, stopped, unpacked
from tests.support.mysql_server import kept_root, program, server
from tests.unit.guest.test_backup_in_guest import Guest, guest_of, script, server_of

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a guest's programs run as root"),
    pytest.mark.skipif(not shutil.which("perl"), reason="perl is not installed"),
]
OURS = "9.7.4"


@pytest.fixture
def guest() -> Iterator[Guest]:
    try:
        root = kept_root()
    except NoServer as error:
        pytest.skip(str(error))
    with guest_of("mysql", os.environ) as found:
        place = found.top / "bin"
        for name in ("mysql", "mysqladmin"):
            argv = " ".join(program(root, f"usr/bin/{name}"))
            script(place / name, f'#!/bin/sh\nexec {argv} "$@"\n')
        options = [
            f"--basedir={root}/usr", f"--plugin-dir={root}/usr/lib/mysql/plugin",
            f"--lc-messages-dir={root}/usr/share/mysql", "--mysqlx=OFF", "--secure-file-priv=NULL",
            "--innodb-redo-log-capacity=64M", "--auto-generate-certs=OFF",
            "--caching-sha2-password-auto-generate-rsa-keys=OFF", "--performance-schema=OFF",
        ]  # fmt: skip
        server_of(place, "mysqld", program(root, "usr/sbin/mysqld"), options)
        yield found


def restored(guest: Guest, directory: Path) -> None:
    opened = of_mysql.opened(DataDirectory(directory), OURS)
    said = guest.restore(b"".join(opened.data), options=opened.found.options)
    assert said.startswith("done 0"), said


def check(guest: Guest) -> None:
    """The server has the accounts that labs need, and is nobody's replica."""
    assert guest.rows("SELECT CURRENT_USER()") == [["root@localhost"]]
    found = guest.rows(
        "SELECT CONCAT(user, '@', host), plugin, account_locked FROM mysql.user"
        " WHERE user IN ('lab', 'root', 'reader') ORDER BY 1"
    )
    assert ["lab@%", "caching_sha2_password", "Y"] in found
    assert ["root@localhost", "auth_socket", "N"] in found
    assert [row[0] for row in found if row[0].startswith("lab")] == ["lab@%"]
    (granted, *_) = guest.rows("SHOW GRANTS FOR lab@'%'")
    assert "WITH GRANT OPTION" in granted[0]
    assert guest.rows("SELECT COUNT(*) FROM mysql.slave_master_info") == [["0"]]
    assert (guest.data / "grastate.dat").read_text() == "uuid: ours\n"
    assert (guest.top / "mysqllog/#innodb_redo").is_dir()
    assert not (guest.data / "old.ibd").exists()


def test_a_data_directory_becomes_the_servers_data(guest: Guest, tmp_path: Path) -> None:
    """With its accounts, of which none locks a lab out, and without its links."""
    with server() as db:
        db.ask(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, s TEXT)",
            "INSERT INTO shop.t VALUES (1, 'one'), (2, 'two')",
            "CREATE USER lab@'10.%' IDENTIFIED BY 'theirs'",
            "CREATE USER reader@'%' IDENTIFIED BY 'x'",
            "GRANT SELECT ON shop.* TO reader@'%'",
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'theirs', SOURCE_USER = 'x'",
            "ALTER USER root@localhost IDENTIFIED BY 'theirs'",
        )
        directory = shutil.copytree(stopped(db), tmp_path / "data")
    restored(guest, directory)
    check(guest)
    assert guest.rows("SELECT s FROM shop.t ORDER BY id") == [["one"], ["two"]]
    assert guest.rows("SHOW GRANTS FOR reader@'%'")[1] == [
        "GRANT SELECT ON `shop`.* TO `reader`@`%`"
    ]


@pytest.mark.rare
def test_a_backup_of_xtrabackup_becomes_the_servers_data(guest: Guest, tmp_path: Path) -> None:
    """As --prepare leaves it: real files of a server, without its redo log."""
    with server() as db:
        db.ask(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, s TEXT)",
            "INSERT INTO shop.t VALUES (1, 'one'), (2, 'two')",
        )
        directory = shutil.copytree(stopped(db), tmp_path / "data")
    for file in (directory / "#innodb_redo").iterdir():
        file.unlink()
    for name in ("auto.cnf", "#innodb_temp"):  # no backup has these
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write(directory, of_xtrabackup(server=OURS))
    source = parse(str(directory))
    assert isinstance(source, BackupDirectory)
    opened = of_mysql.opened(source, OURS)
    said = guest.restore(b"".join(opened.data), options=opened.found.options)
    assert said.startswith("done 0"), said
    check(guest)
    assert guest.rows("SELECT s FROM shop.t ORDER BY id") == [["one"], ["two"]]


@pytest.mark.rare
@pytest.mark.parametrize(
    "name", ["mysql_inplace_upgrade84_lctn0", "data_instant_ddl_upgrade_8_4_3"]
)
def test_a_directory_of_8_4_is_upgraded(guest: Guest, tmp_path: Path, name: str) -> None:
    """Real ones, which the tests of MySQL 9.7 upgrade."""
    try:
        files = unpacked("mysql-testsuite", "sid", only="std_data/")
    except NoServer as why:
        pytest.skip(str(why))
    with zipfile.ZipFile(next(files.rglob(f"{name}.zip"))) as archive:
        archive.extractall(tmp_path)
    restored(guest, next(tmp_path.rglob("mysql.ibd")).parent)
    check(guest)
    (version,) = guest.rows("SELECT VERSION()")
    assert version[0].startswith("9.7")
    assert guest.rows("SELECT COUNT(*) > 0 FROM information_schema.tables"
                      " WHERE table_schema IN ('s1', 'test')") == [["1"]]  # fmt: skip
