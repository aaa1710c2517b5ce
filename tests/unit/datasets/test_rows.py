"""Protects data on their way from one server to another: each type of value, row and table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from lab.datasets.columns import QUERY, from_rows, identifier
from lab.datasets.rows import ELSEWHERE, reading, rows_of, shared
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, Server, server

HARD = "CONCAT(0x00, 0x09, 0x0A, 0x0D, 0x5C, 0x1A, '''\"N', 0x5C4E)"
"""What separates or escapes values."""
SCHEMA = (
    (
        "CREATE TABLE shop.numbers (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, t TINYINT, u INT"
        " UNSIGNED ZEROFILL, d DECIMAL(30,10), f FLOAT, g DOUBLE, b BIT(13), y YEAR, l BOOLEAN)"
    ),
    "CREATE TABLE shop.times (d DATE, t TIME(6), dt DATETIME(3), ts TIMESTAMP(6) NULL)",
    (
        "CREATE TABLE shop.texts (c CHAR(20), v VARCHAR(90) CHARACTER SET latin1, x TEXT, b BLOB,"
        " vb VARBINARY(90), bi BINARY(8), j JSON, gr VARCHAR(30) CHARACTER SET greek)"
        " DEFAULT CHARSET=utf8mb4"
    ),
    (
        "CREATE TABLE shop.wide (u VARCHAR(30) CHARACTER SET ucs2, w VARCHAR(30)"
        " CHARACTER SET utf16,"
        " s VARCHAR(30) CHARACTER SET sjis, g VARCHAR(30) CHARACTER SET gbk,"
        " e ENUM('a', 'b') CHARACTER SET utf32)"
    ),
    (
        "CREATE TABLE shop.kinds (e ENUM('', 'a', 'b'), s SET('x', 'y', 'z'), u UUID, i6 INET6,"
        " g GEOMETRY, p POINT)"
    ),
    (
        "CREATE TABLE shop.made (a INT, v INT AS (a + 1), s INT AS (a + 2) STORED, h INT INVISIBLE,"
        " `odd ``\n\tname` INT, c INT CHECK (c > 0), KEY (v))"
    ),
    "CREATE TABLE shop.history (id INT PRIMARY KEY, a INT) WITH SYSTEM VERSIONING",
    "CREATE TABLE shop.one (a VARCHAR(10))",
    "CREATE TABLE shop.parts (id INT PRIMARY KEY, a INT) PARTITION BY HASH (id) PARTITIONS 3",
    "CREATE TABLE shop.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES history (id))",
    "CREATE TABLE shop.words (id INT PRIMARY KEY, w TEXT, FULLTEXT (w)) ENGINE=InnoDB",
    "CREATE TABLE shop.aria (id INT AUTO_INCREMENT PRIMARY KEY, a INT) ENGINE=Aria",
    "CREATE TABLE shop.all_of (id INT, KEY (id)) ENGINE=MRG_MyISAM UNION=(shop.isam)",
    "CREATE TABLE shop.isam (id INT, KEY (id)) ENGINE=MyISAM",
    "CREATE TABLE shop.empty (id INT)",
)
ROWS = (
    "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES', time_zone = '+00:00'",
    (
        "INSERT INTO shop.numbers VALUES (0, -128, 7, -1.5, 1.1,"
        " 2.2250738585072014e-308, 4105, 0, 1),"
        " (18446744073709551614, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),"
        " (5, 127, 4294967295, 12345678901234567890.0123456789, 16777216, 0.1, 10, 2155, 0)"
    ),
    (
        "INSERT INTO shop.times VALUES ('0000-00-00', '-838:59:59.999999', '2020-00-31"
        " 00:00:00.123',"
        " '2024-03-31 01:30:00.000001'), ('2021-02-31', '00:00:00', '0000-00-00', NULL),"
        " (NULL, NULL, NULL, '2024-10-27 00:30:00')"
    ),
    (
        f"INSERT INTO shop.texts VALUES ({HARD}, {HARD}, {HARD}, {HARD}, {HARD},"
        f" 0x095C0A00, '{{}}',"
        " 'αβγ'), ('', '', '', '', '', '', '[1]', ''), ('\U0001f600 ä', 'äöü', REPEAT('x', 60000),"
        " REPEAT(0x00FF5C, 20000), 0x80FFFE, 0xFF, '\"\\\\n\"', NULL), (NULL, NULL,"
        " NULL, NULL, NULL,"
        " NULL, NULL, NULL), ('N', '\\\\N', '\\\\', 0x5C, 'NULL', 0x4E, '1', 'NULL')"
    ),
    (
        "INSERT INTO shop.wide VALUES (CHAR(0x0109 USING ucs2), CHAR(0x5C0A USING utf16),"
        " CHAR(0x835C USING sjis), CHAR(0xD55C USING gbk), 'b'),"
        " (CHAR(0x0A5C0900 USING ucs2), CHAR(0xD83DDE00 USING utf16), CHAR(0x5C USING sjis),"
        " CHAR(0x5C09 USING gbk), ''), ('', '', '', '', NULL)"
    ),
    (
        "INSERT INTO shop.kinds VALUES ('', '', '123e4567-e89b-12d3-a456-426655440000', '::1',"
        " ST_GeomFromText('LINESTRING(0 0, 9 10, 92 0)', 4326), POINT(9, 10)), (7,"
        " 'x,z', NULL, NULL,"
        " NULL, NULL), ('b', 'y', '00000000-0000-0000-0000-000000000000', '2001:db8::ff00:42:8329',"
        " GeometryCollection(POINT(1, 1)), NULL)"
    ),
    "INSERT INTO shop.made (a, h, `odd ``\n\tname`, c) VALUES (1, 2, 3, 4), (NULL, NULL, NULL, 5)",
    "INSERT INTO shop.history VALUES (1, 1), (2, 2)",
    "UPDATE shop.history SET a = 3",
    "DELETE FROM shop.history WHERE id = 2",
    "INSERT INTO shop.one VALUES (''), (NULL), ('a')",
    "INSERT INTO shop.parts VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
    "INSERT INTO shop.child VALUES (1, 1), (2, NULL)",
    "INSERT INTO shop.words VALUES (1, 'some words'), (2, 'others')",
    "INSERT INTO shop.aria VALUES (7, 1)",
    "INSERT INTO shop.isam VALUES (1), (1), (2)",
)

ALL_MADE = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.t (a INT DEFAULT 1)",
    "INSERT INTO shop.t VALUES (1), (1)",
)


SERVERS = {"mariadb": server, "mysql": mysql_server.server}
ONLY_MARIADB = (
    (" WITH SYSTEM VERSIONING", ""),
    ("ENGINE=Aria", "ENGINE=MyISAM"),
    ("UUID, i6 INET6", "VARCHAR(40), i6 GEOMETRYCOLLECTION"),
    ("'::1',", "NULL,"),
    ("'2001:db8::ff00:42:8329'", "GeometryCollection(POINT(1, 1), POINT(2, 3))"),
    (",ORACLE'", "'"),
    ("9 10, 92 0", "9 10, 82 0"),  # a latitude
)


@pytest.fixture(params=list(SERVERS))
def db(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each family."""
    try:
        with SERVERS[request.param]() as running:
            yield running
    except NoServer as reason:
        pytest.skip(str(reason))


def known_to(db: Server, statements: Iterable[str]) -> list[str]:
    """Statements, in those of MySQL without what only MariaDB has."""
    found = list(statements)
    for there, here in ONLY_MARIADB if db.version == "mysql" else ():
        found = [statement.replace(there, here) for statement in found]
    return found


def test_each_value_arrives(db: Server) -> None:
    """As the server compares them, in each column: bytes, character sets and NULL."""
    before, after = "shop", "copy"
    schema = known_to(db, SCHEMA)
    filled = known_to(db, ROWS)
    db.ask(
        f"CREATE DATABASE {before}", f"CREATE DATABASE {after}", f"USE {before}", *schema, *filled
    )
    columns = [one for one in from_rows(db.ask(QUERY)) if one.database == before]
    without = db.ask(
        "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.tables"
        f" WHERE engine IN {ELSEWHERE}"
    )
    assert without == [("shop.all_of",)]
    tables = rows_of(columns, str(db.directory / "rows"), [name for (name,) in without])
    assert len(tables) == len(SCHEMA) - 1
    (db.directory / "rows").mkdir()
    for one in tables:
        # A session of a server whose options are odd.
        odd = known_to(db, ["SET sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES,ORACLE'"])
        db.ask(*odd, *one.written())
    made = [
        statement.replace(f"{before}.", f"{after}.").replace("REFERENCES ", f"REFERENCES {before}.")
        for statement in schema
    ]
    db.ask(f"USE {after}", "SET foreign_key_checks = 0", *made)
    db.ask(
        *reading(),
        *(
            statement.replace(f"`{before}`", f"`{after}`")
            for one in tables
            for statement in one.read()
        ),
    )
    for one in tables:
        names = [identifier(column.name) for column in columns if column.table == one.table]
        listed = ", ".join(f"HEX({name}), HEX(CONCAT('', {name}))" for name in names)
        some = [
            sorted(db.ask(f"SELECT {listed} FROM {database}.`{one.table}`"), key=repr)
            for database in (before, after)
        ]
        assert some[0] == some[1], one.table
        assert bool(some[0]) == (one.table != "empty")
    assert db.ask(f"SELECT COUNT(*) FROM {after}.all_of") == [(3,)]
    if db.version != "mysql":
        assert db.ask(f"SELECT COUNT(*) FROM {after}.history FOR SYSTEM_TIME ALL") == [(1,)]
    assert db.ask(f"SELECT id FROM {after}.words WHERE MATCH (w) AGAINST ('others')") == [(2,)]


def test_a_table_of_generated_columns_keeps_its_rows(db: Server) -> None:
    columns = [
        replace(column, generated=True)
        for column in from_rows(db.ask(*ALL_MADE, QUERY))
        if column.database == "shop"
    ]
    [one] = rows_of(columns, str(db.directory))
    assert one.columns == ()
    db.ask(*one.written(), "DELETE FROM shop.t", *one.read())
    assert db.ask("SELECT COUNT(*) FROM shop.t") == [(2,)]


def test_sizes_are_shared_out() -> None:
    assert shared({0: 5, 1: 9, 2: 4, 3: 1}, 2) == [[1, 3], [0, 2]]
    assert shared({0: 0, 1: 0, 2: 0}, 2) == [[0, 2], [1]]
    assert shared({0: 7}, 2) == [[0]]
    assert shared({}, 2) == []
