"""The spool: what the loader reads, and which statement a line of it belongs to."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.config.enginefile import DialectName
from lab.datasets.dump import statements
from lab.datasets.source import DumpFile, parse
from lab.errors import HostUnfit, InvalidSpec
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.datasets.loader import Refused, refused
from lab.lifecycle.datasets.spool import Spool
from lab.progress import ByteProgress, Event, Progress
from lab.units import MIB

OWN_SESSION = (
    "/*M!110201 SET SESSION character_set_collations=DEFAULT */; SET NAMES utf8mb4; SET SESSION"
    " sql_mode=DEFAULT, time_zone=DEFAULT, foreign_key_checks=1, unique_checks=1,"
    " autocommit=1;"
)
BEGINS = "SET SESSION autocommit=1; "


def written(tmp_path: Path, *texts: str) -> Spool:
    files = [tmp_path / f"{number}.sql" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return spools.write(
        DumpFile(files[0]), files[1:], tmp_path / "spool", "shop", lambda _: None, dialect="mariadb"
    )


def content(spool: Spool, size: int = 7) -> Iterator[bytes]:
    """The spool in chunks that cut everything."""
    data = spool.path.read_bytes()
    return (data[start : start + size] for start in range(0, len(data), size))


def test_what_is_written(tmp_path: Path) -> None:
    spool = written(tmp_path, "CREATE TABLE t (id INT)", "INSERT INTO t VALUES (1);\n")
    text = spool.path.read_bytes()
    assert len(text) == spool.size == MIB
    assert spool.path.stat().st_mode & 0o777 == 0o600
    lines = [line.strip() for line in text.decode().splitlines() if line.strip()]
    assert lines == [
        f"{BEGINS}CREATE DATABASE IF NOT EXISTS `shop`; USE `shop`;",
        "CREATE TABLE t (id INT)",
        ";",
        OWN_SESSION,
        "INSERT INTO t VALUES (1);",
    ]


def test_a_file_ends_before_the_next_begins(tmp_path: Path) -> None:
    """Protects each file: it is valid by itself, and so are all of them one after the other."""
    routine = "DELIMITER //\nCREATE PROCEDURE p() BEGIN SELECT 1; END //\nSELECT 2"
    spool = written(tmp_path, routine, "SELECT 3", "SELECT 4;\n-- the end")
    found = [one.text for one in statements([spool.path.read_bytes()], "spool")]
    texts = [text for text in found if b"SELECT" in text]
    assert texts == [
        b"CREATE PROCEDURE p() BEGIN SELECT 1; END", b"SELECT 2", b"SELECT 3", b"SELECT 4",
    ]  # fmt: skip
    for text, name, at in ((b"SELECT 3", "1.sql", 1), (b"SELECT 4", "2.sql", 1)):
        line = spool.path.read_bytes().partition(text)[0].count(b"\n") + 1
        assert spool.blame(content(spool), line)[0].endswith(f"{name}: statement {at}, at line 1")


OLD = "-- MySQL dump 10.13  Distrib {0}, for Linux\n-- Server version\t{0}\nSELECT 1;\n"


@pytest.mark.parametrize(
    ("version", "dialect", "first"),
    [
        ("5.7.44", "mysql", "SET SESSION default_collation_for_utf8mb4=utf8mb4_general_ci;"),
        ("8.0.36", "mysql", ""),
        ("10.6.4-MariaDB", "mysql", "SET SESSION default_collation_for_utf8mb4"),
        ("5.7.44", "mariadb", "/*M!110201 SET SESSION character_set_collations='' */;"),
        ("8.0.36", "mariadb", "/*M!110201 SET SESSION character_set_collations='' */;"),
    ],
)
def test_a_character_set_has_its_former_collation(
    tmp_path: Path, version: str, dialect: DialectName, first: str
) -> None:
    """Protects what is equal in a table whose dump leaves its collation out."""
    path = tmp_path / "a.sql"
    path.write_text(OLD.format(version) + "-- Dump completed\n")
    spool = spools.write(
        DumpFile(path), [], tmp_path / "spool", "shop", lambda _: None, dialect=dialect
    )
    text = spool.path.read_text().splitlines()[0]
    assert text.startswith(BEGINS + (first or "CREATE DATABASE"))


def test_what_another_server_lacks_is_left_out(tmp_path: Path) -> None:
    """Protects dumps of MySQL with GTIDs from a new dump; lines keep their numbers."""
    text = "SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ 'a:1-5,\nb:7';\nCREATE TABLE t (id INT);\n"
    path = tmp_path / "a.sql"
    path.write_text(f"-- a dump\n{text}")
    cases: dict[DialectName, bool] = {"mariadb": False, "mysql": True}
    for dialect, kept in cases.items():
        spool = spools.write(
            DumpFile(path), [], tmp_path / dialect, "shop", lambda _: None, dialect=dialect
        )
        content = spool.path.read_bytes()
        assert (b"GTID" in content) == kept
        assert (b"\nDO 0 " in content) != kept
        assert content.split(b"\n")[4] == b"CREATE TABLE t (id INT);"
        assert spool.found.signs == {"gtid_purged": 1}


def test_what_files_have_is_said_too(tmp_path: Path) -> None:
    """Protects from changes without a word: files of --sql are changed like dumps."""
    dump, more = tmp_path / "a.sql", tmp_path / "more.sql"
    dump.write_text("CREATE TABLE t (id INT) COLLATE utf8mb4_0900_ai_ci;\n")
    more.write_text("CREATE TABLE u (id INT) COLLATE utf8mb4_0900_ai_ci;\n")
    spool = spools.write(
        DumpFile(dump), [more], tmp_path / "spool", "shop", lambda _: None, dialect="mariadb",
        version="10.11.6",
    )  # fmt: skip
    assert spool.found.signs == {"utf8mb4_0900": 2}
    assert spool.found.tables == 1
    assert spool.path.read_bytes().count(b"COLLATE utf8mb4_uca1400_nopad_ai_ci;") == 2


@pytest.mark.parametrize(
    ("mode", "left"),
    [
        ("A,NO_AUTO_CREATE_USER,B", "A,B"), ("NO_AUTO_CREATE_USER,B", "B"),
        ("A,NO_AUTO_CREATE_USER", "A"), ("NO_AUTO_CREATE_USER", ""),
    ],
)  # fmt: skip
def test_a_mode_that_mysql_has_removed_is_left_out(tmp_path: Path, mode: str, left: str) -> None:
    """Protects dumps of MySQL 5.7 with routines: only that word, and no texts of theirs."""
    first, path = "/*!50003 SET sql_mode              = '%s' */ ;\n", tmp_path / "a.sql"
    body = "CREATE PROCEDURE p() SET sql_mode = 'NO_AUTO_CREATE_USER';\n"
    path.write_text(first % mode + body)
    cases: dict[DialectName, str] = {"mariadb": mode, "mysql": left}
    for dialect, kept in cases.items():
        spool = spools.write(
            DumpFile(path), [], tmp_path / dialect, "shop", lambda _: None, dialect=dialect
        )
        lines = [line.decode() for line in spool.path.read_bytes().split(b"\n")[1:3]]
        assert "".join(lines[0].split()) == "".join((first % kept).split())
        assert lines[1] == body.rstrip("\n")
        assert spool.found.signs == {"removed mode": 1}


def test_a_dump_with_databases_is_left_alone(tmp_path: Path) -> None:
    spool = written(tmp_path, "CREATE DATABASE crm;\nUSE crm;\nCREATE TABLE t (id INT);")
    assert b"shop" not in spool.path.read_bytes()
    assert spool.found.databases == ("crm",)


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("SELECT 1", "0.sql: statement 1, at line 1"),
        ("SELECT 2", "0.sql: statement 2, at line 3"),
        ("SELECT\n3", "0.sql: statement 3, at line 4"),
        ("SELECT 4", "1.sql: statement 1, at line 2"),
        ("SELECT 5", "1.sql: statement 2, at line 4"),
    ],
)
def test_a_line_is_of_a_statement(tmp_path: Path, which: str, said: str) -> None:
    """Protects messages: the client of a server names the line at which a statement begins."""
    spool = written(
        tmp_path,
        "SELECT 1;\n-- a remark\nSELECT 2;\nSELECT\n3;\n",
        "\nSELECT 4;\n\nSELECT 5;",
    )
    at = spool.path.read_bytes().index(which.encode())
    line = spool.path.read_bytes().count(b"\n", 0, at) + 1
    where, secret = spool.blame(content(spool), line)
    assert where.endswith(said)
    assert not secret


def test_a_password_in_a_refused_statement_is_not_repeated(tmp_path: Path) -> None:
    """Protects passwords: the error of a job is shown to all who see the job."""
    spool = written(tmp_path, "SELECT 1;\nCREATE USER a IDENTIFIED BY 'hunter2' NONSENSE;\n")
    where, secret = spool.blame(content(spool), 3)
    assert where.endswith("statement 2, at line 2")
    assert secret
    said = (
        "--------------\nCREATE USER a IDENTIFIED BY 'hunter2' NONSENSE\n--------------\n\n"
        "ERROR 1064 (42000) at line 3: You have an error in your SQL syntax; check the manual for"
        " the right syntax to use near 'BY 'hunter2' NONSENSE' at line 1\n"
    )
    error = refused(Refused(said), where, secret=True)
    assert "hunter2" not in f"{error.what} {error.details}"
    assert error.details[0].startswith("ERROR 1064 (42000): You have an error")
    assert "near 'BY" in refused(Refused(said), where).details[0], "without a password it helps"
    odd = refused(Refused("--------------\nhunter2\n--------------\nkilled"), where)
    assert odd.details == ("killed",)


def test_sources_that_cannot_be_loaded_yet(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="cannot be loaded from this source yet"):
        spools.write(
            parse("lab:shop"), [], tmp_path / "spool", "shop", lambda _: None, dialect="mariadb"
        )


def test_progress_of_bytes() -> None:
    heard: list[Event] = []
    pace = ByteProgress(Progress(heard.append), "load", 100 * MIB)
    pace(10 * MIB)
    pace(20 * MIB)
    assert len(heard) == 1, "once a second"
    assert pace.text(10 * MIB, 0.5) == "10M of 100M"
    assert pace.text(50 * MIB, 10.0) == "50M of 100M, 5M/s, 10s left"
    assert ByteProgress(Progress(), "load").text(50 * MIB, 10.0) == "50M, 5M/s"


def test_a_spool_is_whole_or_refused(tmp_path: Path) -> None:
    """Protects rows: the last ones were dropped where space ended while statements grew."""
    create, insert = "CREATE TABLE t (\n  `a` varchar(36) DEFAULT uuid()\n);\n", "SELECT 'LAST';\n"
    path, soft = tmp_path / "a.sql", resource.getrlimit(resource.RLIMIT_FSIZE)
    for fill in range(MIB - 4096 - 110, MIB):
        path.write_text(f"{create}SELECT '{'x' * fill}';\n{insert}")
        (tmp_path / "spool").unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, soft[1]))
        try:
            spool = spools.write(
                DumpFile(path), [], tmp_path / "spool", "shop", lambda _: None,
                dialect="mysql", version="8.4.0",
            )  # fmt: skip
        except HostUnfit:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, soft)
        data = spool.path.read_bytes()
        assert b"DEFAULT (uuid())" in data
        assert insert.encode() in data
    else:
        pytest.fail("there was space for all")
