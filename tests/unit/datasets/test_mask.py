"""Protects people's data: masking on a real server leaves no value behind, and joins hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lab.blueprints.dialects import DIALECTS
from lab.config.enginefile import DialectName
from lab.datasets.columns import FIELDS, QUERY, Column, from_rows, identifier
from lab.datasets.mask import (
    FORGET,
    LAST,
    SCRATCH,
    Masking,
    digest,
    indexes_of,
    literal,
    plan,
    preconditions,
    secret_statements,
    values,
)
from lab.datasets.rules import REALISTIC, Rule, Rules, parse
from lab.errors import InvalidSpec
from tests.support import mysql_server
from tests.support.mariadb_server import NoServer, Server, server

pytest.importorskip("mimesis", reason="needs the package mimesis")

SECRET = b"a secret of a dataset"

SCHEMA = """
CREATE DATABASE shop; CREATE DATABASE crm;
CREATE TABLE shop.customers (
  id INT PRIMARY KEY AUTO_INCREMENT,
  email VARCHAR(80) NOT NULL UNIQUE,
  name VARCHAR(40) CHARACTER SET latin1,
  phone VARCHAR(20),
  tax CHAR(20) UNIQUE,
  note TEXT,
  city VARCHAR(6),
  born DATE,
  points INT,
  big BIGINT,
  login VARBINARY(70),
  label VARCHAR(60),
  upper_email VARCHAR(80) AS (UPPER(email)) STORED,
  changed TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00' ON UPDATE CURRENT_TIMESTAMP,
  `odd ``name` VARCHAR(30)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
CREATE TABLE shop.orders (
  id INT PRIMARY KEY, customer_email VARCHAR(80), FOREIGN KEY (customer_email)
  REFERENCES shop.customers (email) ON UPDATE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
CREATE TABLE crm.people (
  code VARCHAR(64) PRIMARY KEY, mail VARCHAR(100), name VARCHAR(40), born DATE,
  nick VARCHAR(30) UNIQUE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb3;
CREATE TABLE crm.history (id INT PRIMARY KEY, name VARCHAR(40)) {versioned};
"""

RULES = b"""
values = 300
[defaults]
id = "keep"
changed = "keep"
[tables."shop.customers"]
email = "email"
name = "name"
phone = "phone"
tax = "hash"
note = {fixed = "it's \\"gone\\" \\\\ %s"}
city = "city"
born = "shuffle"
points = "hash"
big = "hash"
login = "hash"
label = {expression = "CONCAT('at ', email)"}
"odd `name" = "null"
[tables."shop.orders"]
customer_email = "email"
[tables."cr*.people"]
code = "hash"
mail = "email"
name = "name"
born = "shuffle"
nick = "shuffle"
[tables."crm.history"]
name = "last_name"
"""
COUNT = 400


SERVERS = {"mariadb": server, "mysql": mysql_server.server}


@pytest.fixture(scope="module", params=list(SERVERS))
def db(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each family."""
    with _server(SERVERS[request.param]) as running:
        yield running


@contextmanager
def _server(begun: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """A server; the test is skipped if there is none."""
    try:
        with begun() as running:
            yield running
    except NoServer as reason:
        pytest.skip(str(reason))


def is_mariadb(db: Server) -> bool:
    return "MariaDB" in str(db.ask("SELECT VERSION()"))


@pytest.fixture
def data(db: Server) -> Iterator[Server]:
    """400 customers, each with an order and a row in another database; the last is all NULL."""
    fill(db)
    yield db
    db.ask("SET foreign_key_checks = 0", "DROP DATABASE shop", "DROP DATABASE crm")


def fill(db: Server) -> None:
    versioned = "WITH SYSTEM VERSIONING" if is_mariadb(db) else ""
    db.ask(*filter(str.strip, SCHEMA.format(versioned=versioned).split(";")))
    rows = ",".join(
        f"({n},'Anna.{n}@Real.test','M\xfcller {n % 7}','+49 170 {n}','T{n:07}','note {n}',"
        f"'Bonn','1980-01-01' + INTERVAL {n} DAY,{n},{n},'login{n}','label {n}','odd {n}')"
        for n in range(1, COUNT)
    )
    columns = "id,email,name,phone,tax,note,city,born,points,big,login,label,`odd ``name`"
    db.ask(
        f"INSERT INTO shop.customers ({columns}) VALUES {rows}",
        f"INSERT INTO shop.customers (id, email) VALUES ({COUNT}, 'alone@real.test')",
        "INSERT INTO shop.orders SELECT id, email FROM shop.customers",
        "INSERT INTO crm.people SELECT CONCAT('code ', id), email, name, born, CONCAT('nick', id)"
        " FROM shop.customers",
        "UPDATE crm.people SET nick = NULL WHERE code = 'code 7'",
        "INSERT INTO crm.history VALUES (1, 'Real Name')",
        "UPDATE crm.history SET name = 'Newer Real Name'",
    )


def columns_of(data: Server) -> tuple[Column, ...]:
    rows = data.ask(QUERY)
    assert {len(row) for row in rows} <= {FIELDS}
    return from_rows(rows)


def test_large_schemas_are_read_once(db: Server) -> None:
    """Protects from minutes: information_schema was filled again for each of its rows."""

    def filled(tables: int) -> int:
        names = [f"many.t{number}" for number in range(tables)]
        made = [
            f"CREATE TABLE IF NOT EXISTS {name} (id INT PRIMARY KEY, a INT, KEY (a),"
            " FOREIGN KEY (a) REFERENCES many.t0 (id))"
            for name in names
        ]
        count = "SHOW SESSION STATUS LIKE 'Created_tmp_tables'"
        db.ask("CREATE DATABASE IF NOT EXISTS many", *made)
        with db.connect() as connection, connection.cursor() as cursor:
            cursor.execute(count)
            before = int(cursor.fetchall()[0][1])
            cursor.execute(QUERY)
            found = from_rows(cursor.fetchall())
            cursor.execute(count)
            assert [(one.name, one.key) for one in found] == [
                ("id", "primary"), ("a", "index")] * tables  # fmt: skip
            return int(cursor.fetchall()[0][1]) - before

    few, many = filled(5), filled(20)
    db.ask("DROP DATABASE many")
    assert many == few


def planned(data: Server, rules: Rules) -> Masking:
    return plan(columns_of(data), rules, binds=not is_mariadb(data))


def mask(data: Server, rules: bytes = RULES, secret: bytes = SECRET) -> None:
    masking = planned(data, parse(rules, "r.toml"))
    statements = masking.statements(secret, created(data, masking.indexed))
    data.ask(*secret_statements(secret), *statements, FORGET)


def created(data: Server, tables: Iterable[Column]) -> dict[str, str]:
    """What SHOW CREATE TABLE says of the tables of columns."""
    return {
        one.table_name: data.ask(
            f"SHOW CREATE TABLE {identifier(one.database)}.{identifier(one.table)}"
        )[0][1]
        for one in tables
    }


def table(data: Server, name: str) -> list[tuple[object, ...]]:
    return data.ask(f"SELECT * FROM {name} ORDER BY 1")


TABLES = ("shop.customers", "shop.orders", "crm.people", "crm.history")


def test_nothing_of_the_values_remains(data: Server) -> None:
    mask(data)
    shown = repr([table(data, name) for name in TABLES])
    assert not re.search(r"(?i)real|m\xfcller|anna\.\d+@|\+49|T\d{7}|note \d|login\d|label", shown)
    if is_mariadb(data):
        history = "SELECT * FROM crm.history FOR SYSTEM_TIME ALL WHERE name LIKE '%Real%'"
        assert not data.ask(history)
    assert data.ask(f"SHOW DATABASES LIKE '{SCRATCH}'") == []
    emails = [str(row[0]) for row in data.ask("SELECT email FROM shop.customers")]
    assert len(set(emails)) == COUNT
    assert all(re.fullmatch(r".+\.[0-9a-f]{16}@example\.(com|net|org)", one) for one in emails)
    assert data.ask("SELECT COUNT(*) FROM shop.customers WHERE name LIKE '% %'") == [(COUNT - 1,)]


def test_equal_values_stay_equal(data: Server) -> None:
    """Declared foreign keys and joins that nobody declared, across databases."""
    mask(data)
    assert data.ask(
        "SELECT COUNT(*), SUM(c.id = o.id), SUM(c.email = p.mail) FROM shop.customers c"
        " JOIN shop.orders o ON o.customer_email = c.email JOIN crm.people p ON p.mail = c.email"
    ) == [(COUNT, COUNT, COUNT)]
    assert data.ask("SELECT COUNT(DISTINCT name) FROM crm.people")[0][0] <= 7
    assert data.ask("SELECT COUNT(DISTINCT name) FROM crm.people")[0][0] > 3


def test_a_foreign_key_holds_by_its_collation(db: Server) -> None:
    """Protects rows whose values differ from what they refer to in case, or in spaces."""
    collation = "utf8mb4_general_ci"  # both families have it, and it pads
    db.ask(
        "CREATE DATABASE spelt",
        f"CREATE TABLE spelt.a (part INT, mail VARCHAR(80) COLLATE {collation}, PRIMARY KEY (part,"
        " mail)) ENGINE=InnoDB",
        f"CREATE TABLE spelt.b (part INT, mail VARCHAR(80) COLLATE {collation}, at TIMESTAMP NOT"
        " NULL DEFAULT '2020-01-01 00:00:00' ON UPDATE CURRENT_TIMESTAMP, PRIMARY KEY (part, mail),"
        " CONSTRAINT z FOREIGN KEY (part, mail) REFERENCES spelt.a (part, mail)) ENGINE=InnoDB",
        f"CREATE TABLE spelt.c (id INT PRIMARY KEY, part INT, mail VARCHAR(80) COLLATE {collation},"
        " CONSTRAINT a FOREIGN KEY (part, mail) REFERENCES spelt.b (part, mail)) ENGINE=InnoDB",
        # What is kept stays as it is spelt, and a dump may lack what is referred to.
        f"CREATE TABLE spelt.d (mail VARCHAR(80) COLLATE {collation}, code VARCHAR(9) COLLATE"
        f" {collation}, PRIMARY KEY (mail, code)) ENGINE=InnoDB",
        f"CREATE TABLE spelt.e (id INT PRIMARY KEY, mail VARCHAR(80) COLLATE {collation}, code"
        f" VARCHAR(9) COLLATE {collation}, FOREIGN KEY (mail, code)"
        " REFERENCES spelt.d (mail, code)) ENGINE=InnoDB",
        "INSERT INTO spelt.d VALUES ('d@x.test', 'CODE')",
        "INSERT INTO spelt.e VALUES (1, 'D@x.test', 'code')",
        "SET foreign_key_checks = 0",
        f"CREATE TABLE spelt.f (id INT PRIMARY KEY, mail VARCHAR(80) COLLATE {collation},"
        " FOREIGN KEY (mail) REFERENCES spelt.none (mail)) ENGINE=InnoDB",
        "INSERT INTO spelt.a VALUES (1, 'Anna@x.test'), (2, 'anna@X.test')",
        "INSERT INTO spelt.b (part, mail) VALUES (1, 'ANNA@x.test'), (2, 'anna@x.test ')",
        "INSERT INTO spelt.c VALUES (1, 1, 'anna@x.test'), (2, 2, 'ANNA@X.TEST'), (3, 1, NULL)",
    )
    try:
        kept = b"".join(b'%s = "keep"\n' % name for name in (b"part", b"id", b"at", b"code"))
        tables = b"".join(b'[tables."spelt.%c"]\nmail = "email"\n' % name for name in b"abcdef")
        rules = parse(b"[defaults]\n" + kept + tables, "r.toml")
        masking = planned(db, rules)
        db.ask(*secret_statements(SECRET), *masking.statements(SECRET))
        joined = "spelt.a JOIN spelt.b USING (part, mail) JOIN spelt.c USING (part, mail)"
        assert db.ask(f"SELECT COUNT(*) FROM {joined}") == [(2,)]
        assert db.ask("SELECT COUNT(DISTINCT mail) FROM spelt.a") == [(2,)], "of their own bytes"
        assert db.ask("SELECT mail FROM spelt.c WHERE id = 3") == [(None,)]
        assert db.ask("SELECT e.code FROM spelt.d JOIN spelt.e USING (mail)") == [("code",)]
        assert db.ask("SELECT COUNT(*) FROM spelt.b WHERE at = '2020-01-01'") == [(2,)]
    finally:
        db.ask("SET foreign_key_checks = 0", "DROP DATABASE spelt")


def test_the_same_secret_gives_the_same_values(data: Server) -> None:
    data.ask("CREATE DATABASE kept", *(f"CREATE TABLE kept.{name.partition('.')[2]} AS SELECT *"
             f" FROM {name}" for name in TABLES[1:3]))  # fmt: skip
    try:
        mask(data)
        first = [table(data, name) for name in TABLES]
        mask_again(data, SECRET)
        assert table(data, "crm.people") == first[2]
        mask_again(data, b"another secret of a dataset")
        assert table(data, "crm.people") != first[2]
    finally:
        data.ask("DROP DATABASE kept")


def mask_again(data: Server, secret: bytes) -> None:
    data.ask("DELETE FROM crm.people", "INSERT INTO crm.people SELECT * FROM kept.people")
    rules = parse(RULES, "r.toml")
    only = Rules({"cr*.people": rules.tables["cr*.people"]}, rules.defaults, "en", rules.values)
    masking = planned(data, only)
    data.ask(*secret_statements(secret), *masking.statements(secret))


def test_each_kind_of_value(data: Server) -> None:
    mask(data)
    ask = data.ask
    assert ask("SELECT id, name, phone, tax, note, city, born, points, big, login, `odd ``name`"
               f" FROM shop.customers WHERE id = {COUNT}") == [(COUNT, *[None] * 10)]  # fmt: skip
    [row] = ask("SELECT tax, note, points, big, login, label, email, upper_email, `odd ``name`"
                " FROM shop.customers WHERE id = 5")  # fmt: skip
    assert row[0] == digest("hash", "T0000005", SECRET)[:20]
    assert row[1] == 'it\'s "gone" \\ %s'
    assert row[2] == int(digest("hash", "5", SECRET)[:15], 16) % (1 << 31)
    assert row[3] == int(digest("hash", "5", SECRET)[:15], 16)
    assert row[4] == digest("hash", b"login5", SECRET).encode()
    assert row[5] == f"at {row[6]}"[:60]
    assert row[7] == str(row[6]).upper()
    assert row[8] is None
    assert ask("SELECT MAX(CHAR_LENGTH(city)) FROM shop.customers")[0][0] <= 6
    assert ask("SELECT DISTINCT changed FROM shop.customers") == ask(
        "SELECT TIMESTAMP '2020-01-01 00:00:00'"
    )
    assert all(re.fullmatch(r"\d{3}-555-01\d\d", str(phone)) for (phone,) in ask(
        "SELECT phone FROM shop.customers WHERE phone IS NOT NULL"))  # fmt: skip


def test_a_value_becomes_the_same_on_both_families() -> None:
    """Protects joins and comparisons of a company that has servers of both: each kind of rule."""
    kinds = [*REALISTIC, "hash"]
    texts = ", ".join(f"c_{kind} VARCHAR(70), u_{kind} VARCHAR(40) UNIQUE" for kind in kinds)
    others = {
        "latin": "VARCHAR(40) CHARACTER SET latin1", "wide": "VARCHAR(40) CHARACTER SET utf16",
        "bytes": "VARBINARY(70)", "fixed_bytes": "BINARY(20)", "tiny": "TINYINT",
        "small": "SMALLINT UNSIGNED", "medium": "MEDIUMINT", "whole": "INT", "big": "BIGINT",
        "padded": "CHAR(20)", "long_one": "LONGTEXT",
    }  # fmt: skip
    rules = "".join(f'c_{kind} = "{kind}"\nu_{kind} = "{kind}"\n' for kind in kinds)
    rules += "".join(f'{name} = "hash"\n' for name in others)
    rules += (
        'id = "keep"\nd = "shuffle"\nn = "shuffle"\ngone = "null"\n'
        'note = {fixed = "it\'s \\u00e4"}\nsaid = {expression = "CONCAT(\'at \', c_email)"}\n'
    )
    columns = [*(f"{pre}_{kind}" for kind in kinds for pre in "cu"), *others]
    schema = (
        f"CREATE TABLE shop.all_of (id INT PRIMARY KEY, {texts},"
        f" {', '.join(' '.join(pair) for pair in others.items())},"
        " d DATE, n DECIMAL(9,3), gone INT, note TEXT, said VARCHAR(90)) DEFAULT CHARSET=utf8mb4"
    )
    listed = ", ".join(["id", *columns, "d", "n", "gone", "note", "said"])
    numbers = [name for name, kind in others.items() if "INT" in kind]
    rows = []
    for row in range(1, 4):
        some = [f"{row}{at}"[:2] if name in numbers else f"'{row} {at} \u00e4'"
                for at, name in enumerate(columns)]  # fmt: skip
        date = f"'2020-01-01' + INTERVAL {row} DAY"
        rows.append(f"({row}, {', '.join(some)}, {date}, {row}.5, 1, 'x', 'y')")
    seen = []
    for begun in SERVERS.values():
        with _server(begun) as db:
            filled = f"INSERT INTO shop.all_of ({listed}) VALUES {', '.join(rows)}"
            db.ask("CREATE DATABASE shop", schema, filled)
            mask(db, f'[tables."shop.all_of"]\n{rules}'.encode())
            hexed = ", ".join(f"HEX({name})" for name in listed.split(", "))
            seen.append(db.ask(f"SELECT {hexed} FROM shop.all_of ORDER BY id"))
    assert len(seen[0]) == 3
    for of_mariadb, of_mysql in zip(*seen, strict=True):
        assert dict(zip(listed.split(", "), of_mariadb, strict=True)) == dict(
            zip(listed.split(", "), of_mysql, strict=True)
        )


def test_shuffled_values_are_those_of_other_rows(data: Server) -> None:
    question = "SELECT born FROM shop.customers ORDER BY id"
    nicks = "SELECT nick FROM crm.people ORDER BY code"
    before, before_nicks = data.ask(question), data.ask(nicks)
    mask(data)
    after = data.ask(question)
    assert sorted(after, key=str) == sorted(before, key=str)
    assert after[-1] == (None,)
    same = sum(a == b for a, b in zip(after, before, strict=True))
    assert same < COUNT / 20
    assert sorted(data.ask(nicks), key=str) == sorted(before_nicks, key=str)
    assert data.ask("SELECT nick FROM crm.people WHERE nick IS NULL") == [(None,)]


def test_rows_are_masked_without_temporary_tables(data: Server) -> None:
    """Protects from hours: tables of a shuffle that grew with the rows were on disk, and joined."""
    masking = planned(data, parse(RULES, "r.toml"))
    statements = masking.statements(SECRET, created(data, masking.indexed))
    [(_, count)] = data.ask(
        *secret_statements(SECRET), *statements, "SHOW SESSION STATUS LIKE 'Created_tmp_tables'"
    )
    assert count == "0"


def test_masking_keeps_what_tables_are(data: Server) -> None:
    """Indexes are made again of masked rows: they, and foreign keys, are what they were."""
    long_one, more, names = "words", "", []
    if not is_mariadb(data):
        long_one, names = "words(700)", ["`unseen`", "`by_expression`"]
        more = ", KEY by_expression ((lower(`KEY ``k`` (x`)), id), KEY unseen (id) INVISIBLE"
    data.ask(
        "CREATE TABLE shop.odd (n INT AUTO_INCREMENT, id VARCHAR(40) NOT NULL PRIMARY KEY,"
        " `KEY ``k`` (x` VARCHAR(60) COMMENT 'a\n  KEY `no` (`n`)', words TEXT, UNIQUE (n),"
        " KEY `a ``b` (`KEY ``k`` (x`(10) DESC, id) COMMENT ',', FULLTEXT (words),"
        f" UNIQUE KEY long_one ({long_one}){more}) DEFAULT CHARSET=utf8mb4",
        "INSERT INTO shop.odd (id, `KEY ``k`` (x`, words) VALUES ('a', 'b', 'c'), ('d', 'e', 'f')",
    )
    rules = (
        RULES
        + b"""
[tables."shop.odd"]
n = "keep"
"KEY `k` (x" = "name"
words = "shuffle"
"""
    )
    before = created(data, columns_of(data))
    mask(data, rules)
    assert created(data, columns_of(data)) == before
    masked = planned(data, parse(rules, "r.toml"))
    assert {one.table for one in masked.indexed} == {"customers", "orders", "people", "odd"}
    keys = indexes_of(before["shop.odd"])
    assert [key.name for key in keys] == ["`long_one`", "`a ``b`", *names, "`words`"]
    assert sorted(data.ask("SELECT words FROM shop.odd")) == [("c",), ("f",)]


def test_columns_are_named_as_they_like(data: Server) -> None:
    """Protects from values of others' rows: names of columns that masking's own tables have."""
    names = ("id", "head", "plain", "tail")
    data.ask(
        "CREATE TABLE shop.names (number INT PRIMARY KEY,"
        + ",".join(f"{name} VARCHAR(60)" for name in names)
        + ")",
        "INSERT INTO shop.names VALUES (1, 'Real A', 'Real B', 'Real C', 'Real D')",
    )
    kinds = dict(zip(names, ("username", "email", "name", "city"), strict=True))
    text = "".join(f'{name} = "{kind}"\n' for name, kind in kinds.items())
    mask(data, RULES + b'[tables."shop.names"]\nnumber = "keep"\n' + text.encode())
    [row] = data.ask("SELECT * FROM shop.names")
    assert all(value and "Real" not in str(value) for value in row)


def test_the_secret_is_in_no_statement_but_one(data: Server) -> None:
    masking = planned(data, parse(RULES, "r.toml"))
    [given] = secret_statements(SECRET)
    pads = re.findall(r"x'([0-9a-f]+)'", given)
    assert [len(pad) for pad in pads] == [128, 128]
    for statement in masking.statements(SECRET):
        for text in (SECRET.decode(), SECRET.hex(), pads[0][:20], pads[1][:20]):
            assert text not in statement


def test_what_the_staging_server_must_not_have(data: Server) -> None:
    confined = DIALECTS["mariadb" if is_mariadb(data) else "mysql"].confined
    asked = [one.question for one in preconditions(confined)]
    assert [data.ask(question) for question in asked] == [[], [], []]
    try:
        data.ask(
            "SET GLOBAL general_log = 1",
            "CREATE TRIGGER shop.spy BEFORE UPDATE ON shop.orders FOR EACH ROW SET @a = OLD.id",
        )
        assert [data.ask(question) for question in asked] == [
            [("general_log",)],
            [],
            [("shop.spy",)],
        ]
    finally:
        data.ask("SET GLOBAL general_log = 0")


@pytest.mark.parametrize(("dialect", "directory"), [("mariadb", "/tmp"), ("mysql", "NULL")])
def test_a_staging_server_that_may_not_read_its_files(dialect: DialectName, directory: str) -> None:
    """Protects who sets it: rows go from server to server in files. NULL is none, in MySQL only."""
    _, asked, _ = preconditions(DIALECTS[dialect].confined)
    with _server(partial(SERVERS[dialect], [f"--secure-file-priv={directory}"])) as db:
        assert db.ask(asked.question) == [("secure_file_priv",)]


def test_columns_are_read_from_a_server(data: Server) -> None:
    found = {str(column): column for column in columns_of(data)}
    assert found["shop.customers.email"] == Column(
        "shop", "customers", "email", "varchar", nullable=False, length=80, charset="utf8mb4",
        key="unique",
    )  # fmt: skip
    assert found["shop.customers.id"].key == "primary"
    assert found["shop.customers.upper_email"].generated
    assert found["shop.customers.changed"].updated
    assert found["crm.history.name"].versioned == is_mariadb(data)
    assert found["shop.orders.customer_email"].references == ("shop", "customers", "email")
    assert found["shop.orders.customer_email"].key == "index"


def column(name: str = "c", **facts: Any) -> Column:
    base = Column("shop", "t", name, "varchar", length=50, charset="utf8mb4")
    return replace(base, **facts)


KEY = Column("shop", "t", "id", "int", nullable=False, key="primary")


@pytest.mark.parametrize(
    ("facts", "rule", "problem"),
    [
        ({"generated": True}, "hash", "generated"),
        ({"nullable": False}, "null", "NOT NULL"),
        ({"key": "unique"}, "fixed", "unique key"),
        ({"key": "primary"}, "shuffle", "primary key"),
        ({"key": "unique", "nullable": False}, "shuffle", "NOT NULL"),
        ({"type": "int", "length": None}, "email", "email needs a text, and it is int"),
        ({"type": "date", "length": None}, "hash", "no hash for date"),
        ({"type": "enum"}, "name", "name needs a text"),
        ({"type": "int", "length": None, "key": "unique"}, "hash", "not unique in int"),
        ({"length": 11, "key": "unique"}, "hash", "too few"),
        ({"length": 11, "key": "unique"}, "email", "too few"),
    ],
)
def test_rules_that_cannot_be_applied(facts: dict[str, Any], rule: str, problem: str) -> None:
    with pytest.raises(InvalidSpec) as failure:
        plan([KEY, column(**facts)], Rules({"shop.t": {"c": Rule(rule, "x")}}))
    assert failure.value.what == "1 masking rule cannot be applied"
    [line] = failure.value.details
    assert line.startswith("shop.t.c: ")
    assert problem in line


def test_a_shuffle_needs_a_primary_key() -> None:
    rules = Rules({"shop.t": {"c": Rule("shuffle")}})
    with pytest.raises(InvalidSpec) as failure:
        plan([column()], rules)
    assert "primary key" in failure.value.details[0]
    with pytest.raises(InvalidSpec) as failure:
        plan([column(), replace(KEY, type="text")], rules)
    assert "the primary key is text" in failure.value.details[0]


@pytest.mark.parametrize(
    ("child", "parent", "suits"),
    [
        ("email", "email", True),
        ("hash", "hash", True),
        ("null", "hash", True),
        ("keep", "keep", True),
        (None, None, True),
        ("shuffle", "keep", True),
        ("keep", "hash", False),
        (None, "email", False),
        ("hash", None, False),
        ("email", "hash", False),
        ("shuffle", "hash", False),
    ],
)
def test_both_ends_of_a_foreign_key_need_one_rule(
    child: str | None, parent: str | None, suits: bool
) -> None:
    columns = [
        KEY,
        column("child", references=("shop", "p", "c")),
        column(table="p", key="unique"),
        replace(KEY, table="p"),
    ]
    rules = Rules(
        {
            "shop.t": {"child": Rule(child)} if child else {},
            "shop.p": {"c": Rule(parent)} if parent else {},
        }
    )
    if suits:
        plan(columns, rules)
        return
    with pytest.raises(InvalidSpec) as failure:
        plan(columns, rules)
    [line] = failure.value.details
    assert line.startswith("shop.t.child: its rule is ")
    assert "shop.p.c" in line


def test_the_ends_of_a_foreign_key_are_cut_alike() -> None:
    columns = [
        column("child", length=30, references=("shop", "p", "c")),
        column("c", table="p", length=64, key="unique"),
    ]
    masking = plan(
        columns, Rules({"shop.t": {"child": Rule("hash")}, "shop.p": {"c": Rule("hash")}})
    )
    assert {masking.lengths[one] for one in columns} == {30}
    masked = [one for one in masking.statements(SECRET) if one.startswith("UPDATE `shop`.`")]
    spelt, *masked = masked
    assert " STRAIGHT_JOIN `shop`.`p` p ON c.`child` = p.`c` " in spelt
    assert len(masked) == 2
    assert all(", 30)" in one for one in masked)


def test_what_foreign_keys_connect_is_masked_in_one_session(data: Server) -> None:
    """Protects from locks: an index is made while the other end of a foreign key is changed."""
    data.ask(
        "CREATE TABLE crm.a (id INT PRIMARY KEY, name VARCHAR(40))",
        "CREATE TABLE crm.z (id INT PRIMARY KEY, a INT, mail VARCHAR(80),"
        " FOREIGN KEY (a) REFERENCES crm.a (id),"
        " FOREIGN KEY (mail) REFERENCES shop.orders (customer_email)) DEFAULT CHARSET=utf8mb4",
    )
    rules = b"""
[tables."crm.a"]
name = "name"
[tables."crm.z"]
a = "keep"
mail = "email"
"""
    masking = planned(data, parse(RULES + rules, "r.toml"))
    names = [[masking.tables[number][0][0].table for number in group] for group in masking.groups]
    assert sorted(map(sorted, names)) == [
        ["a", "customers", "orders", "z"],
        ["history"],
        ["people"],
    ]
    sessions = [iter(masking.masked(group)) for group in masking.groups]
    try:
        data.ask(*masking.first(SECRET))
        with ThreadPoolExecutor() as pool:
            running = [
                pool.submit(data.ask, *secret_statements(SECRET), *session) for session in sessions
            ]
        assert [one.result() for one in running] == [[]] * len(sessions)
    finally:
        data.ask(LAST)


def test_a_database_of_the_scratch_schemas_name_is_not_dropped() -> None:
    with pytest.raises(InvalidSpec, match=SCRATCH):
        plan([column(database=SCRATCH)], Rules({"shop.t": {}}))


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="16 bytes"):
        secret_statements(b"short")
    with pytest.raises(InvalidSpec, match="16 bytes"):
        next(iter(plan([], Rules()).statements(b"short")))


@pytest.mark.parametrize("kind", REALISTIC)
@pytest.mark.parametrize("locale", ["en", "de", "ru"])
def test_values_are_made_up(kind: str, locale: str) -> None:
    made = values(kind, locale, 50, SECRET)
    assert made == values(kind, locale, 50, SECRET)
    assert made != values(kind, locale, 50, SECRET[::-1])
    for head, plain, tail in made:
        assert plain
        assert plain.isascii()
        assert 0 < len(head) <= 120
        assert len(tail) <= 20
        assert tail in (("@example.com", "@example.net", "@example.org") if kind == "email" else "")
    assert len({head for head, _, _ in made}) > 10


def test_an_unknown_locale_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="'xx'") as failure:
        values("name", "xx", 1, SECRET)
    assert "de" in failure.value.hint


def test_names_and_texts_in_sql() -> None:
    assert identifier("a`b") == "`a``b`"
    assert literal("") == "''"
    assert literal("ä'") == "_utf8mb4 x'c3a427'"
