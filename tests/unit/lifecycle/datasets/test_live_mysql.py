"""Protects users of MySQL: a live server of it is dumped by its own client, with its accounts."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.blueprints import Member
from lab.config.profile import EngineProfile
from lab.datasets.live import created, dumping
from lab.datasets.selection import Selection
from lab.datasets.source import parse
from lab.datasets.survey import suits
from lab.errors import HostUnfit, InvalidSpec
from lab.lifecycle.datasets import dataset
from lab.lifecycle.datasets import spool as spools
from lab.requests.datasets import CreateDataset
from lab.units import MIB
from tests.support import mysql_server
from tests.support.lifecycle_world import World
from tests.support.mariadb_server import NoServer, Server
from tests.support.upstream_builds import builds, starter
from tests.unit.blueprints.test_replication import REPLICATION
from tests.unit.datasets.test_loaded_by_mysql import COUNTS, ROWS, SCHEMA, load
from tests.unit.lifecycle.datasets.test_engine import greeting

PASSWORD = """hun"ter'2\\n #;%s"""
ACCOUNTS = (
    "CREATE ROLE 'readers', 'writers'@'10.%'",
    "CREATE USER app@'%' IDENTIFIED BY 'of the app' REQUIRE SSL COMMENT 'it''s \\\\ one\nof ours'",
    "CREATE USER `o'd\\\\d`@'10.0.0.0/255.0.0.0' IDENTIFIED WITH sha256_password BY 'x'",
    "GRANT SELECT, INSERT (name), UPDATE ON shop.t TO app@'%' WITH GRANT OPTION",
    "GRANT EXECUTE ON FUNCTION shop.twice TO `o'd\\\\d`@'10.0.0.0/255.0.0.0'",
    "GRANT BACKUP_ADMIN, SET_ANY_DEFINER ON *.* TO app@'%'",
    "GRANT SELECT ON *.* TO `o'd\\\\d`@'10.0.0.0/255.0.0.0'",
    "REVOKE SELECT ON mysql.* FROM `o'd\\\\d`@'10.0.0.0/255.0.0.0'",
    "GRANT SELECT ON shop.* TO readers",
    "GRANT readers, 'writers'@'10.%' TO app@'%'",
    "SET DEFAULT ROLE readers, 'writers'@'10.%' TO app@'%'",
    "ANALYZE TABLE shop.t UPDATE HISTOGRAM ON name WITH 4 BUCKETS",
)
HASHES = (
    "SELECT user, host, plugin, HEX(authentication_string), ssl_type, user_attributes,"
    " account_locked FROM mysql.user WHERE user NOT IN ('reader', 'poor') ORDER BY user, host"
)
ALL = Selection()
HISTOGRAMS = "SELECT column_name FROM information_schema.column_statistics"


@contextmanager
def listening(*options: str) -> Iterator[tuple[Server, int]]:
    """A server at a port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    network = ["--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}"]
    try:
        with mysql_server.server([*network, *options]) as db:
            yield db, port
    except NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def live() -> Iterator[tuple[Server, int]]:
    with listening("--auto-generate-certs=ON") as (db, port):
        secret = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        db.ask(*SCHEMA, *ACCOUNTS)
        for name in ("reader", "poor"):
            db.ask(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY \"{secret}\"")
        db.ask("GRANT ALL ON *.* TO reader@'127.0.0.1'")
        for what in ("SELECT", "SHOW VIEW", "TRIGGER", "EVENT", "SHOW_ROUTINE"):
            where = "*.*" if "_" in what else "shop.*"
            db.ask(f"GRANT {what} ON {where} TO poor@'127.0.0.1'")
        yield db, port


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MySQL's programs, in a directory that everybody can read."""
    try:
        with mysql_server.reachable_clients() as path:
            monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")
            monkeypatch.setenv("LAB_SOURCE_PASSWORD", PASSWORD)
            yield
    except NoServer as why:
        pytest.skip(str(why))


def of(
    port: int,
    work: Path,
    selection: Selection = ALL,
    *,
    rest: str = "",
    user: str = "reader",
) -> spools.Spool:
    source = parse(f"mysql://{user}@127.0.0.1:{port}/{rest}")
    return spools.write(
        source, [], work / "spool", "shop", lambda _: None, selection, dialect="mysql",
        version="9.7.4",
    )  # fmt: skip


@pytest.mark.usefixtures("clients")
def test_a_server_is_dumped_and_loaded_as_it_was(live: tuple[Server, int], tmp_path: Path) -> None:
    """With generated columns, histograms, and accounts with their passwords."""
    db, port = live
    spool = of(port, tmp_path)
    assert (spool.found.dialect, spool.found.program) == ("mysql", "mysqldump")
    assert (spool.found.databases, spool.found.notes) == (("shop",), ())
    assert suits(spool.found, "mysql", spool.found.version) == ()
    text = spool.path.read_bytes()
    assert b"GTID_PURGED" not in text
    with mysql_server.server() as other:
        load(other, [text])
        for question in (ROWS, COUNTS, HASHES, HISTOGRAMS):
            assert other.ask(question) == db.ask(question)
        for account in ("app@'%'", "readers@'%'", "`o'd\\\\d`@'10.0.0.0/255.0.0.0'"):
            question = f"SHOW GRANTS FOR {account}"
            assert other.ask(question) == db.ask(question)
        roles = "SELECT default_role_user FROM mysql.default_roles ORDER BY 1"
        assert other.ask(roles) == [("readers",), ("writers",)]


@pytest.mark.usefixtures("clients")
def test_accounts_that_may_not_be_seen(live: tuple[Server, int], tmp_path: Path) -> None:
    spool = of(live[1], tmp_path, user="poor")
    (note,) = spool.found.notes
    assert "accounts are not in the dataset: ERROR 1142 (42000)" in note
    assert "SELECT command denied to user 'poor'" in note
    assert "CREATE USER" not in spool.path.read_text(errors="replace")
    assert spool.found.tables == 2


@pytest.mark.usefixtures("clients")
def test_what_is_named_has_no_accounts(live: tuple[Server, int], tmp_path: Path) -> None:
    """As of MySQL Shell: those of an instance, not of its schemas or tables."""
    chosen = Selection(where=("shop.t:id >= 2",), schema_only=("shop.audit",))
    text = of(live[1], tmp_path, chosen, rest="shop").path.read_text(errors="replace")
    assert "CREATE USER" not in text
    assert "Grace" in text
    assert "\u00c4da" not in text
    assert text.count("CREATE TABLE `audit`") == text.count("CREATE TABLE `t`") == 1
    assert "INSERT INTO `audit`" not in text
    assert "twice" in text
    (tmp_path / "spool").unlink()
    chosen = Selection(tables=("shop.audit",), schema_only=("shop.audit",))
    text = of(live[1], tmp_path, chosen).path.read_text(errors="replace")
    assert "CREATE TABLE `audit`" in text
    assert "CREATE TABLE `t`" not in text


@pytest.mark.usefixtures("clients")
def test_the_servers_words_are_shown(
    live: tuple[Server, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_SOURCE_PASSWORD", "wrong")
    with pytest.raises(InvalidSpec, match="the dump failed") as failure:
        of(live[1], tmp_path)
    assert any("Access denied" in line for line in failure.value.details)


@pytest.mark.usefixtures("clients")
def test_a_server_without_tls(tmp_path: Path) -> None:
    """Its plugin sends no password in clear text, which its words do not explain."""
    with listening() as (db, port):
        db.ask("CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'x'")
        with pytest.raises(InvalidSpec, match="the dump failed") as failure:
            of(port, tmp_path)
    assert "get-server-public-key" in failure.value.hint


@pytest.mark.rare
@pytest.mark.usefixtures("clients")
def test_a_server_of_5_6(tmp_path: Path) -> None:
    """Its accounts have a plugin that clients of 9 do not: what can be done is said."""
    engine, member = builds()["mysql-5.6.24"], Member("n1", 1, "127.0.24.77", "source")
    files = REPLICATION.files(member, [member], engine, 768 * MIB, EngineProfile())
    text = files[engine.config_path].content.decode()
    try:
        with starter(engine)(member, text) as old:
            old.ask("GRANT ALL ON *.* TO reader@'%' IDENTIFIED BY 'x'")
            source = parse(f"mysql://reader@{member.address}/")
            with pytest.raises(InvalidSpec, match="the dump failed") as failure:
                spools.write(source, [], tmp_path / "x", "x", lambda _: None, dialect="mysql")
    except NoServer as reason:
        pytest.skip(str(reason))
    assert "a client of 8.4 or 8.0" in failure.value.hint


@pytest.mark.parametrize("theirs", ["", "mysqldump", "mysql"])
def test_the_programs_are_missed_before_anything_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    """Those of MariaDB's packages have the same names, and are not what is needed."""
    with tempfile.TemporaryDirectory() as path, greeting(b"8.4.8") as port, world.open() as ctx:
        for name in ("mysqldump", "mysql") if theirs else ():
            program = Path(path) / name
            said = (
                "15.2 for debian-linux-gnu (x86_64), from 11.8.2-MariaDB" if name == theirs else ""
            )
            program.write_text(f"#!/bin/sh\necho '{name}  {said or 'Ver 8.4.8'}'\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
        asked = CreateDataset(
            name="shop", source=f"mysql://u@127.0.0.1:{port}/shop", engine="mysql"
        )
        said = f"{theirs} is MariaDB's on this host" if theirs else "mysqldump is not installed"
        with pytest.raises(HostUnfit, match=f"is MySQL 8.4.8, and {said}") as failure:
            dataset.create(ctx, asked)
        assert "MySQL's own client" in failure.value.hint
        assert ctx.store.images.all() == []


def test_histograms_are_asked_of_servers_that_have_them() -> None:
    for version, asked in (("8.4.8", 1), ("8.0.36-28", 1), ("5.7.44-log", 0)):
        assert f"--loose-column-statistics={asked}" in dumping(version, [], ["shop"])
    assert not [one for one in dumping("10.11.6-MariaDB", [], ["shop"]) if "statistics" in one]


def test_accounts_of_older_servers() -> None:
    """MySQL 5.7 has other quotes, and no roles."""
    said = ["CREATE USER 'a'@'%' IDENTIFIED WITH 'mysql_native_password' AS '*AB' REQUIRE NONE",
            "GRANT USAGE ON *.* TO 'a'@'%'"]  # fmt: skip
    assert created(said) == (
        b"CREATE USER IF NOT EXISTS 'a'@'%' IDENTIFIED WITH 'mysql_native_password' AS '*AB'"
        b" REQUIRE NONE;\nGRANT USAGE ON *.* TO 'a'@'%';\n"
    )
