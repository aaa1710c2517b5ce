"""Protects loads: what a dump is, and that it does not fit, is known before it is used."""

from __future__ import annotations

import pytest

from lab.datasets.survey import SIGNS, Found, header, signs_of, suits, survey, truncated
from lab.errors import InvalidSpec

MARIADB = b"""\
/*M!999999\\- enable the sandbox mode */
-- MariaDB dump 10.19-11.4.2-MariaDB, for debian-linux-gnu (x86_64)
--
-- Host: localhost    Database: shop
-- ------------------------------------------------------
-- Server version\t11.4.2-MariaDB-ubu2404

/*!40101 SET NAMES utf8mb4 */;
DROP TABLE IF EXISTS `t`;
CREATE TABLE `t` (
  `a` varchar(9) COLLATE utf8mb4_uca1400_ai_ci,
  KEY `a` (`a`)
) ENGINE=InnoDB;
INSERT INTO `t` VALUES ('utf8mb4_0900_ai_ci -- Dump completed');
-- Dump completed on 2026-11-20 12:00:00
"""
MYSQL = b"""\
-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
--
-- Host: db    Database: \n-- Server version\t8.0.36-28
SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ 'x:1-2';
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `shop` /*!40100 DEFAULT CHARACTER SET utf8mb4 */;
USE `shop`;
CREATE TABLE `t` (
  `json` int,
  `a` json DEFAULT NULL,
  KEY `e` ((lower(`a`)))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci;
CREATE DATABASE IF NOT EXISTS `c``rm`;
use other;
"""


def test_a_dump_of_mariadb() -> None:
    found = survey([MARIADB[:50], MARIADB[50:]])
    assert found == Found(
        program="mariadb-dump", dialect="mariadb", version="11.4.2-MariaDB-ubu2404", databases=(),
        named="shop", complete=True, tables=1, statements=4, size=len(MARIADB),
        signs={"uca1400": 1},
    )  # fmt: skip
    assert truncated(found, "x") is None


def test_a_dump_of_mysql_that_is_truncated() -> None:
    found = survey([MYSQL])
    assert (found.program, found.dialect, found.version) == ("mysqldump", "mysql", "8.0.36-28")
    assert found.databases == ("shop", "c`rm", "other")
    assert found.named == ""
    assert found.signs == dict.fromkeys(
        ("gtid_purged", "utf8mb4_0900", "JSON", "expression index"), 1
    )
    assert found.complete is False
    error = truncated(found, "shop.sql")
    assert error is not None
    assert "shop.sql is truncated" in error.what


@pytest.mark.parametrize(
    ("line", "program", "dialect", "version"),
    [
        (b"-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for debian-linux-gnu (x86_64)",
         "mariadb-dump", "mariadb", "10.11.6-MariaDB"),
        (b"-- MariaDB dump 10.19-11.4.2-MariaDB, for Linux", "mariadb-dump", "mariadb",
         "11.4.2-MariaDB"),
        (b"-- MySQL dump 10.13  Distrib 8.0.36, for Linux", "mysqldump", "mysql", "8.0.36"),
        (b"-- MySQL dump 10.16  Distrib 10.1.48-MariaDB, for x\n-- Server version\t10.1.48-MariaDB",
         "mysqldump", "mariadb", "10.1.48-MariaDB"),
        (b"-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB, for x\n-- Server version\t8.0.36",
         "mariadb-dump", "mysql", "8.0.36"),
        (b"SELECT 1", "", "", ""),
        (b"SELECT '\n -- MySQL dump 10.13  Distrib 8.0.36, '", "", "", ""),
    ],
)  # fmt: skip
def test_headers(line: bytes, program: str, dialect: str, version: str) -> None:
    found = header(line + b"\n--\n")
    assert (found.program, found.dialect, found.version) == (program, dialect, version)
    assert found.complete is None


BY_SERIES = {
    "5.6.24": (b"5.6.24-log", b"SET @@GLOBAL.GTID_PURGED='x:1-5';", b"CHANGE MASTER TO MASTER_LOG"),
    "5.7.44": (b"5.7.44", b"SET @@GLOBAL.GTID_PURGED='x:1-5';", b"CHANGE MASTER TO MASTER_LOG"),
    "8.0.36": (b"8.0.36", b"SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ 'x:1-5';",
               b"CHANGE MASTER TO MASTER_LOG"),
    "8.4.7": (b"8.4.7-7", b"SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ 'x:1-5';",
              b"CHANGE REPLICATION SOURCE TO SOURCE_LOG"),
    "9.7.4": (b"9.7.4-2", b"SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ 'x:1-5';",
              b"CHANGE REPLICATION SOURCE TO SOURCE_LOG"),
}  # fmt: skip
"""By version of mysqldump: the server's, and lines that follow from what it is to others."""


@pytest.mark.parametrize("version", BY_SERIES)
@pytest.mark.parametrize("is_commented", [False, True])
def test_what_mysqldump_of_each_series_writes(version: str, is_commented: bool) -> None:
    """Also of a replica; with --set-gtid-purged=COMMENTED and --source-data=2 as comments."""
    server, purged, link = BY_SERIES[version]
    if is_commented:
        purged, link = b"/* %s */" % purged, b"-- %s" % link
    text = b"""\
-- MySQL dump 10.13  Distrib %s, for Linux (x86_64)
--
-- Host: localhost    Database: shop
-- ------------------------------------------------------
-- Server version\t%s

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;
SET @MYSQLDUMP_TEMP_LOG_BIN = @@SESSION.SQL_LOG_BIN;
SET @@SESSION.SQL_LOG_BIN= 0;

--
-- GTID state at the beginning of the backup \n--

%s

--
-- Position to start replication or point-in-time recovery from
--

%s_FILE='binlog.000002', MASTER_LOG_POS=157;
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `shop` /*!40100 DEFAULT CHARACTER SET latin1 */;

USE `shop`;
CREATE TABLE `t` (
  `a` int NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=latin1;
LOCK TABLES `t` WRITE;
INSERT INTO `t` VALUES (1);
UNLOCK TABLES;
SET @@SESSION.SQL_LOG_BIN = @MYSQLDUMP_TEMP_LOG_BIN;
/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;

-- Dump completed%s
""" % (version.encode(), server, purged, link, b"" if is_commented else b" on 2026-11-20 12:00:00")
    found = survey([text])
    assert (found.program, found.dialect, found.version) == ("mysqldump", "mysql", server.decode())
    assert (found.databases, found.named, found.tables) == (("shop",), "shop", 1)
    assert found.complete
    assert found.signs == ({} if is_commented else {"gtid_purged": 1})
    left_out = [one.what for one in suits(found, "mariadb", "11.8.6") if "GTID_PURGED" in one.what]
    assert len(left_out) == (not is_commented)
    assert not [one for one in suits(found, "mariadb", "11.8.6") if one.fatal]
    assert not [one for one in suits(found, "mysql", "9.7.4") if one.fatal]
    newer = [one for one in suits(found, "mysql", "8.0.40") if "newer than the server" in one.what]
    assert bool(newer) == (version in ("8.4.7", "9.7.4"))
    assert survey([text[:-60]]).complete is False


HEADER = b"-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)\n"


@pytest.mark.parametrize("size", [1, 17, 1000])
@pytest.mark.parametrize(
    ("tail", "is_complete"),
    [
        (b"x;\n-- Dump completed on 2026-11-20 12:00:00\n", True),
        (b"x;\n-- Dump completed\n\n", True),
        (b"x;\n-- Dump completed\r\n", True),
        (b"-- Dump completed", True),
        (b"x;\n-- Dump comple", False),
        (b"-- Dump completed\nINSERT", False),
        (b"INSERT INTO t VALUES ('-- Dump completed');", False),
        (b"", False),
        # lines of users behind it
        (b"x;\n-- Dump completed on 2026-09-30\nCOMMIT;\nSET unique_checks=1;\n", True),
        (b"x;\n-- Dump completed\nCOMMIT", True),
        (b"x;\n-- Dump completed\n-- written by nightly.sh\n", True),
        (b"x;\n-- Dump completed\n" + b"-- x\n" * 4000, True),
        # two dumps in one file
        (b"x;\n-- Dump completed\n" + HEADER + b"INSERT INTO t VALUES (1);", False),
        (b"x;\n-- Dump completed\n" + HEADER + b"y;\n-- Dump completed\n", True),
    ],
)
def test_the_last_line(tail: bytes, is_complete: bool, size: int) -> None:
    data = HEADER + tail
    found = survey([data[at : at + size] for at in range(0, len(data), size)])
    assert found.complete is is_complete


@pytest.mark.parametrize("program", ["mysqldump", "mariadb-dump"])
def test_a_message_in_a_dump_is_named(program: str) -> None:
    said = f"{program}: [Warning] Using a password on the command line can be insecure.\n"
    with pytest.raises(InvalidSpec, match=f"begins with a message of {program}") as failure:
        survey([said.encode() + MYSQL], "shop.sql")
    assert "2>&1" in failure.value.hint
    assert "insecure" in failure.value.details[0]


def test_a_dump_of_an_unknown_program_is_not_called_truncated() -> None:
    found = survey([b"CREATE TABLE t (a int);"])
    assert found.complete is None
    assert truncated(found, "x") is None


def of(dialect: str, version: str, *signs: str) -> Found:
    return Found(dialect=dialect, version=version, signs=dict.fromkeys(signs, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "engine", "version", "fatal"),
    [
        (of("mysql", "8.0.36", "utf8mb4_0900"), "mariadb", "10.11.6", False),
        (of("mysql", "8.0.36", "utf8mb4_0900"), "mariadb", "11.4.4", False),
        (of("mysql", "8.0.36", "utf8mb4_0900"), "mariadb", "11.6.2", False),
        (of("mysql", "8.0.36", "utf8mb4_0900 of others"), "mariadb", "11.8.2", False),
        (of("mysql", "8.0.36", "JSON"), "mariadb", "11.8.2", False),
        (of("mysql", "8.0.36", "gtid_purged"), "mariadb", "11.8.2", False),
        (of("mysql", "8.0.36", "invisible columns"), "mariadb", "11.8.2", False),
        (of("mysql", "8.0.36", "invisible indexes"), "mariadb", "11.8.2", False),
        (of("mysql", "8.0.36", "plugins of MySQL"), "mariadb", "11.8.2", True),
        (of("mariadb", "11.8.2", "plugins of MariaDB"), "mysql", "9.7.4", True),
        (of("mysql", "8.0.36", "encryption"), "mysql", "9.7.4", True),
        (of("mysql", "8.0.36", "expression index"), "mariadb", "11.8.2", True),
        (of("mysql", "9.7.4", "vectors"), "mariadb", "10.11.6", True),
        (of("mysql", "8.0.36", "native passwords"), "mysql", "8.4.0", True),
        (of("mysql", "8.0.36", "checks"), "mariadb", "11.8.2", False),
        (of("mariadb", "11.8.2", "uca1400"), "mariadb", "10.6.1", False),
        (of("mariadb", "11.8.2", "uca1400"), "percona-xtradb-cluster", "8.4.0", False),
        (of("mariadb", "11.8.2", "uca1400 of any set"), "mysql", "8.4.0", True),
        (of("mariadb", "11.8.2", "nopad", "defaults"), "mysql", "8.4.0", False),
        (of("mariadb", "11.8.2", "periods"), "mysql", "8.4.0", True),
        (of("mariadb", "11.8.2", "unique texts"), "mysql", "8.4.0", True),
        (of("mariadb", "10.11.2", "system versioning"), "percona-xtradb-cluster", "8.4.0", True),
        (of("mariadb", "10.11.2", "sequences"), "mysql", "8.4.0", True),
        (of("mariadb", "11.8.2-MariaDB"), "mariadb", "10.11.6", False),
        (of("", "", "utf8mb4_0900"), "mariadb", "10.11.6", False),
    ],
)
def test_what_does_not_suit(found: Found, engine: str, version: str, fatal: bool) -> None:
    reasons = suits(found, engine, version)
    assert reasons
    assert reasons[0].fatal is fatal
    assert all(one.what and one.hint for one in reasons)
    assert any(version in one.what or "no image" in one.what for one in reasons)
    assert not found.signs or reasons[0].what.endswith("(3 statements)") or not fatal


@pytest.mark.parametrize(
    ("found", "engine", "version"),
    [
        (of("mysql", "8.0.36", "utf8mb4_0900"), "mysql", "8.4.0"),
        (of("mysql", "5.7.36", "native passwords"), "mysql", "8.0.40"),
        (of("mysql", "8.0.36-28", "utf8mb4_0900", "JSON"), "percona-xtradb-cluster", "8.0.36"),
        (of("mysql", "8.0.36"), "mysql", "8.4.0"),
        (of("mariadb", "10.11.16-MariaDB"), "mariadb", "10.11.6"),
        (of("mariadb", "5.5.5-10.11.2-MariaDB"), "mariadb", "10.11.6"),
        (of("mariadb", "11.4.2", "uca1400", "system versioning"), "mariadb", "11.8.1"),
        (of("", ""), "mariadb", "10.11.6"),
    ],
)
def test_what_suits(found: Found, engine: str, version: str) -> None:
    assert suits(found, engine, version) == ()


@pytest.mark.parametrize(
    ("schema", "sign"),
    [
        (b"CREATE TABLE t (`a` int) ENGINE=Aria", "Aria"),
        (b"CREATE TABLE t (\n  `a` uuid NOT NULL)", "uuid or inet types"),
        (b"CREATE SEQUENCE `s` start with 1", "sequences"),
        (b"CREATE TABLE t (a int) WITH SYSTEM VERSIONING", "system versioning"),
        (b"/*!50001 SET collation_connection = utf8mb4_0900_as_cs */", "utf8mb4_0900"),
        (b"SET NAMES utf8mb4 COLLATE utf8mb4_mn_cyrl_0900_as_cs", "utf8mb4_0900 of others"),
        (b"CREATE TABLE t (a char(1) COLLATE uca1400_ai_ci)", "uca1400 of any set"),
        (b"CREATE TABLE t (a char(1) COLLATE utf8mb4_uca1400_nopad_ai_ci)", "uca1400"),
        (b"CREATE TABLE t (a char(1) COLLATE utf8mb4_general_nopad_ci)", "nopad"),
        (b"CREATE TABLE t (\n  `a` geomcollection DEFAULT NULL)", "collections of geometries"),
        (b"CREATE TABLE t (\n  `a` text DEFAULT concat('a',left('b',1)))", "defaults"),
        (b"CREATE TABLE t (\n  KEY `k` (`a`) IGNORED\n)", "ignored indexes"),
        (b"CREATE TABLE t (a int) ENGINE=InnoDB `ENCRYPTED`=YES", "options of tables"),
        (b"CREATE TABLE t (\n  `a` int DEFAULT NULL /*!80023 INVISIBLE */,", "invisible columns"),
        (b"CREATE TABLE t (\n  KEY `k` (`a`) /*!80000 INVISIBLE */", "invisible indexes"),
        (b"CREATE TABLE t (`a` int) ENGINE=InnoDB /*!80016 ENCRYPTION='Y' */", "encryption"),
        (
            b"CREATE USER `a`@`%` IDENTIFIED WITH 'caching_sha2_password'",
            "plugins of MySQL",
        ),
        (b"CREATE USER `mysql.sys`@`localhost` ACCOUNT LOCK", "accounts of images"),
        (b"GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost`", "accounts of images"),
        (b"GRANT SELECT ON `a`.* TO `lab`@`10.%`", "accounts of images"),
        (b"CREATE USER a IDENTIFIED WITH 'mysql_native_password' AS '*'", "native passwords"),
        (b"CREATE USER a IDENTIFIED VIA mysql_native_password USING '*'", "plugins of MariaDB"),
    ],
)
def test_signs_are_found(schema: bytes, sign: str) -> None:
    assert signs_of(schema) == {sign}
    assert sign in SIGNS


@pytest.mark.parametrize(
    "schema",
    [
        b"CREATE TABLE t (a int) COMMENT 'was utf8mb4_0900_ai_ci, and \\'uca1400_ai_ci'",
        b"CREATE TABLE t (a int /* ENGINE=Aria */)",
        b"CREATE TABLE t (\n  `geomcollection` int, `a` timestamp DEFAULT current_timestamp())",
        b"CREATE TABLE t (\n  `a` int DEFAULT (1 + 2), `b` text DEFAULT 'x')",
        b"GRANT SELECT ON `lab`.* TO `root`@`10.%`",
        b"CREATE TABLE t (UNIQUE KEY `a` (`a`) USING HASH) ENGINE=MEMORY",
        b"CREATE DATABASE `a` /*!80016 DEFAULT ENCRYPTION='N' */",
        b"/*!80000 SET @@GLOBAL.GTID_PURGED = 'x' */",
        b'CREATE PROCEDURE p() SELECT "WITH SYSTEM VERSIONING',
    ],
)
def test_what_is_not_executed_is_no_sign(schema: bytes) -> None:
    """Protects dumps that load: a sign is certain, and refuses them before a guest boots."""
    assert signs_of(schema) == set()


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        (b"CREATE FUNCTION metaphon RETURNS STRING SONAME 'udf.so';", ("metaphon",)),
        (b"/*M!100000 CREATE OR REPLACE AGGREGATE FUNCTION `a``b` RETURNS INT SONAME 'u.so' */;",
         ("a`b",)),
        (b"create function if not exists x\n returns real\tsoname 'u.so';", ("x",)),
        (b"INSERT INTO mysql.func VALUES ('one',0,'x.so','function'),('two',2,'x.so','aggregate');",
         ("one", "two")),
        (b"REPLACE INTO `mysql`.`func` SELECT 1;", ("mysql.func",)),
        (b"CREATE FUNCTION f(a int) RETURNS int RETURN 1;", ()),
        (b"INSERT INTO func VALUES ('one',0,'x.so','function');", ()),
        (b"INSERT INTO t VALUES ('INSERT INTO mysql.func VALUES (''x'')');", ()),
    ],
)  # fmt: skip
def test_loadable_functions_are_named(sql: bytes, names: tuple[str, ...]) -> None:
    """Protects from a load that ends with error 1126, or from calls that fail with 1305."""
    found = survey([b"CREATE TABLE t (a int);\n" + sql])
    assert found.functions == names
    reasons = [one.what for one in suits(found, "mariadb", "11.8.2")]
    assert bool(reasons) == bool(names)
    assert all(name in reasons[0] for name in names)
    assert not any(one.fatal for one in suits(found, "mariadb", "11.8.2"))


def test_values_of_generated_columns() -> None:
    """Protects from a load that fails at its rows: mariadb-dump writes what MySQL refuses."""
    table = b"CREATE TABLE `t` (`a` int, `b` int GENERATED ALWAYS AS (`a` + 1) STORED);\n"
    rows = b"INSERT INTO `t` VALUES (1,2);\nINSERT INTO `t` VALUES (2,3);\n"
    end = b"-- Dump completed on 2026-11-20\n"
    by_mariadb = b"-- MariaDB dump 10.19-11.8.2-MariaDB, for Linux\n-- Server version\t9.7.4\n"
    by_mysql = b"-- MySQL dump 10.13  Distrib 9.7.4, for Linux\n"
    found = survey([by_mariadb, table, rows, end])
    assert found.signs == {"values of generated columns": 2}
    [reason] = suits(found, "mysql", "9.7.4")
    assert reason.fatal
    assert reason.what == (
        "the dump has values of generated columns, as mariadb-dump writes them, which MySQL 9.7.4"
        " refuses (error 3105) (2 statements)"
    )
    assert "mysqldump" in reason.hint
    assert not any(one.fatal for one in suits(found, "mariadb", "11.8.2"))
    assert survey([by_mariadb, table, end]).signs == {}
    assert survey([by_mysql, table, rows, end]).signs == {}


def test_a_statement_that_is_too_long_to_be_changed() -> None:
    """Protects from a note that it was: a table with years of daily partitions."""
    parts = b",\n".join(b" PARTITION p%d VALUES LESS THAN (%d)" % (n, n) for n in range(2000))
    text = b"CREATE TABLE `t` (\n  `id` int\n) COLLATE=utf8mb4_0900_ai_ci\n(%s);\n" % parts
    found = survey([text])
    assert found.signs == {"utf8mb4_0900": 1}
    [reason, _] = suits(found, "mariadb", "10.11.6")
    assert reason.fatal
    assert "in a statement of 64 KiB or more, which is not changed" in reason.what
    assert not [one for one in suits(found, "mysql", "9.7.4") if one.fatal]


@pytest.mark.parametrize(
    ("schema", "signs"),
    [
        (b"CREATE TABLE `uca1400_x` (\n  `utf8mb4_0900_ai_ci` int -- uca1400_ai_ci\n)", set()),
        (b"CREATE TABLE t (\n  `a#b` varchar(9) COLLATE utf8mb4_0900_ai_ci\n)", {"utf8mb4_0900"}),
        (b"CREATE TABLE t (\n  `a` int, CHECK (`a` = 1 or `encrypted` = 1)\n)", set()),
        (b"CREATE TABLE t (\n  `a` timestamp(3) DEFAULT NOW(3)\n)", set()),
        (b"CREATE PROCEDURE p() BEGIN CREATE TABLE t (a int) ENGINE=Aria; END", set()),
        (b"CREATE PROCEDURE p() SELECT @@GLOBAL.GTID_PURGED", set()),
    ],
)
def test_only_what_is_executed_and_where_it_means_that(schema: bytes, signs: set[str]) -> None:
    assert signs_of(schema) == signs


def test_bytes_of_any_character_set_stay() -> None:
    text = b"CREATE TABLE `t` (\n  `a` varchar(9) DEFAULT concat('\xe9','x')\n)"
    assert signs_of(text) == {"defaults"}
    new = SIGNS["defaults"].becomes(text, "mysql", (9, 7, 4))
    assert new == text.replace(b"concat('\xe9','x')", b"(concat('\xe9','x'))")


@pytest.mark.parametrize(
    "program", [b"MariaDB dump 10.19-11.4.2", b"MySQL dump 10.17  Distrib 10.3"]
)
def test_values_of_generated_columns_by_both_names_of_the_program(program: bytes) -> None:
    text = (
        b"-- %s-MariaDB, for Linux (x86_64)\n"
        b"CREATE TABLE `t` (`a` int, `b` int GENERATED ALWAYS AS (`a`));\n"
        b"INSERT INTO `t` VALUES (1,1);\n"
    )
    found = survey([text % program])
    assert [one.what for one in suits(found, "mysql", "9.7.4") if one.fatal]
