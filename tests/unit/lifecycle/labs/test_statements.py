"""The user's statements before and after an upgrade, on real servers of both families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pymysql
import pytest

from lab.blueprints import Member, Release
from lab.blueprints.dialects import DIALECTS, dialect_of
from lab.errors import InvalidSpec, StatementRefused
from lab.lifecycle.labs import statements
from lab.lifecycle.labs.statements import Measured, compare, measure, parsed
from lab.observe.ways import Rows
from tests.support import mariadb_server, mysql_server, upstream_builds
from tests.support.mariadb_server import NoServer, Server

START = {"mariadb": mariadb_server.server, "mysql": mysql_server.server}
FILE = """
USE shop;
SELECT * FROM orders WHERE customer = 7;
WITH x AS (SELECT 1 AS a) SELECT * FROM x;
SELECT shop.note();
WITH x AS (SELECT 1 AS a) DELETE FROM orders WHERE 1;
SELECT nothing FROM orders;
"""
DATA = (
    "SET GLOBAL log_bin_trust_function_creators = 1",
    "CREATE DATABASE shop",
    "CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, customer INT)",
    f"INSERT INTO shop.orders (customer) VALUES {', '.join(['(7), (8)'] * 300)}",
    (
        "CREATE FUNCTION shop.note() RETURNS INT"
        " BEGIN INSERT INTO shop.orders (customer) VALUES (1); RETURN 1; END"
    ),
)
BUILDS = upstream_builds.builds()


class Place:
    """A server that is asked as a node of a lab is."""

    def __init__(self, server: Server, limits: Sequence[str]) -> None:
        self.server, self.limits = server, limits

    def ask(self, wanted: Sequence[str], seconds: float) -> list[Rows]:
        assert seconds > statements.EACH
        found = []
        try:
            with self.server.connect() as connection, connection.cursor() as cursor:
                for statement in wanted:
                    affected = cursor.execute(statement)
                    names = tuple(column[0] for column in cursor.description or ())
                    found.append(Rows(names, tuple(cursor.fetchall()), affected))
        except pymysql.err.MySQLError as error:
            raise StatementRefused(int(error.args[0]), str(error.args[1]), "HY000") from None
        return found

    def measure(self, text: str) -> list[Measured]:
        return measure(self.ask, self.limits, parsed(text, "f"))


@pytest.fixture(scope="module", params=list(START))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(START[request.param]())
        except NoServer as reason:
            pytest.skip(str(reason))
        found.ask(*DATA)
        yield Place(found, DIALECTS[request.param].limits)


def test_what_a_server_does_with_them(place: Place) -> None:
    """Protects the data too: what writes is refused by the server, whatever it begins with."""
    scan, one, writes, deletes, wrong = place.measure(FILE)
    assert 600 <= scan.read <= 605
    assert "ALL" in scan.plan[0]
    assert "orders" in scan.plan[0]
    assert scan.seconds > 0
    assert (one.error, one.read) == ("", one.read)
    assert one.read < 10
    assert "READ ONLY transaction" in writes.error
    assert deletes.error
    assert "Unknown column 'nothing'" in wrong.error
    assert place.server.ask("SELECT COUNT(*) FROM shop.orders") == [(600,)]


@pytest.mark.rare
@pytest.mark.parametrize("build", BUILDS)
def test_servers_of_other_series(build: str) -> None:
    """Protects comparisons across series: all that is said to one is understood by the others."""
    engine, here = BUILDS[build], Member("n1", 1, "127.0.0.1", "source")
    options = "[mysqld]\ndatadir = /var/lib/mysql\nskip-networking\n"
    try:
        with upstream_builds.starter(engine)(here, options) as server:
            server.ask(*DATA)
            place = Place(server, dialect_of(engine).limits)
            scan, _, writes, deletes, _ = place.measure(FILE)
            rows = server.ask("SELECT COUNT(*) FROM shop.orders")
    except NoServer as reason:
        pytest.skip(str(reason))
    assert scan.plan == ("SIMPLE, orders, ALL, Using where",)
    assert 600 <= scan.read <= 605
    assert "READ ONLY transaction" in writes.error
    assert (bool(deletes.error), rows) == (True, [(600,)])


def test_a_statement_that_takes_too_long(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "EACH", 1.0)
    many = "information_schema.columns"
    [found] = place.measure(f"SELECT COUNT(*) FROM {many} a, {many} b, {many} c, {many} d")
    assert "interrupted" in found.error or "time" in found.error


def test_a_plan_that_changed(place: Place) -> None:
    text = "SELECT id FROM shop.orders WHERE customer = 9"
    before = place.measure(text)
    place.server.ask("CREATE INDEX found ON shop.orders (customer)")
    [differs] = compare(parsed(text, "f"), before, place.measure(text))
    place.server.ask("DROP INDEX found ON shop.orders")
    assert differs.text == text
    assert {"plan", "rows"} <= set(differs.differs)
    assert (differs.read_before >= 600, differs.read_after <= 2) == (True, True)
    assert "found" in differs.plan_after[0]


def test_what_differs_much() -> None:
    """Protects from reports in which all is noise: by how much a time has to differ."""
    queries = parsed("SELECT 1", "f")
    same = Measured(("x",), 0.010, 100)
    for new, expected in (
        (replace(same, seconds=0.019), []),
        (replace(same, seconds=0.021), ["slower"]),
        (replace(same, seconds=0.0001), []),
        (replace(same, read=199), []),
        (replace(same, read=200), ["rows"]),
        (replace(same, plan=("y",)), ["plan"]),
        (Measured(error="no"), ["fails"]),
    ):
        found = compare(queries, [same], [new])
        assert [word for one in found for word in one.differs] == expected, new
    assert compare(queries, [Measured(error="no")], [same]) == ()
    assert compare(queries, [Measured(error="no")], [Measured(error="no")]) == ()


def test_all_of_them_have_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "_ALL", 0.0)
    [found] = measure(lambda _, __: [], (), parsed("SELECT 1", "f"))
    assert "not executed" in found.error


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("UPDATE t SET a = 1", "statement 1, at line 1 does not only read"),
        ("SELECT 1;\nCHECKSUM TABLE t", "statement 2, at line 2 is no SELECT"),
        ("SELECT 1;" * 101, "has 101 statements that select, not 1 to 100"),
        ("USE shop", "has 0 statements that select"),
    ],
)
def test_others_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSpec, match=why):
        parsed(text, "f")


def test_versions_without_a_limit() -> None:
    assert dialect_of(Release("mysql", "5.6.24")).limits == ()
    assert dialect_of(Release("mysql", "5.7.44")).limits == DIALECTS["mysql"].limits


def test_one_that_changes_the_variable_of_the_times(place: Place) -> None:
    """Protects the other statements: its time is not known, and no reason to give up."""
    [own, other] = place.measure("SELECT @lab_began := NULL; SELECT 1")
    assert "no time" in own.error
    assert (other.error, other.plan != ()) == ("", True)
