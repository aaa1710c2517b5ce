"""Protects people: a mistake in a file of rules is named, and no column is forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.datasets.columns import Column
from lab.datasets.rules import KINDS, Rule, Rules, parse, read, scan, uncovered, unknown
from lab.errors import InvalidSpec

EXAMPLE = b"""
locale = "de"
values = 100
[defaults]
id = "keep"
[tables."shop.customers"]
email = "email"
name = "name"
note = {fixed = ""}
points = {fixed = 5}
label = {expression = "CONCAT('x;', id)"}
[tables."crm_*.calls"]
number = "phone"
[tables."*.calls"]
number = "keep"
[tables."crm_test.calls"]
number = "null"
"""


def text(table: str, name: str, kind: str = "varchar") -> Column:
    return Column("shop", table, name, kind, length=100, charset="utf8mb4")


def test_rules_are_read(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_bytes(EXAMPLE)
    rules = read(tmp_path / "rules.toml")
    assert (rules.locale, rules.values) == ("de", 100)
    assert rules.tables["shop.customers"] == {
        "email": Rule("email"),
        "name": Rule("name"),
        "note": Rule("fixed", ""),
        "points": Rule("fixed", "5"),
        "label": Rule("expression", "CONCAT('x;', id)"),
    }
    assert str(rules.tables["shop.customers"]["label"]) == "{expression = \"CONCAT('x;', id)\"}"
    assert rules.of(text("customers", "email")) == Rule("email")
    assert rules.of(text("customers", "id")) == Rule("keep")
    assert rules.of(text("customers", "other")) is None
    assert rules.of(text("orders", "id")) is None


@pytest.mark.parametrize(
    ("database", "kind"), [("crm_test", "null"), ("crm_eu", "phone"), ("shop", "keep")]
)
def test_the_most_specific_key_holds(database: str, kind: str) -> None:
    column = replace(text("calls", "number"), database=database)
    assert parse(EXAMPLE, "x").of(column) == Rule(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_written(kind: str) -> None:
    assert parse(f'[tables."a.b"]\nc = "{kind}"'.encode(), "x").tables["a.b"]["c"] == Rule(kind)


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ("", ["r.toml has no rules"]),
        ("x = 1", ["r.toml: unknown key 'x'"]),
        ("tables = 1", ["r.toml: tables is 1"]),
        ('[tables.shop]\nc = "hash"', ["'shop' is not a table"]),
        ('[tables."shop.*"]\nc = "hash"', ["'shop.*' is not a table"]),
        ('[tables]\n"shop.t" = 5', ["shop.t is not a table of rules"]),
        ('[tables."shop.t"]\nc = "emial"', ["shop.t: c: there is no rule 'emial'"]),
        ('[tables."shop.t"]\nc = 5', ["shop.t: c is 5", "expected email, name", "{fixed"]),
        ('[tables."shop.t"]\nc = {fixed = true}', ["shop.t: c is {'fixed': True}"]),
        ('[tables."shop.t"]\nc = {fixed = "x", expression = "y"}', ["shop.t: c is {"]),
        ('[tables."shop.t"]\nc = {other = "x"}', ["shop.t: c is {'other'"]),
        ('[tables."shop.t"]\nc = {expression = ""}', ["shop.t: c: the expression is empty"]),
        ('[tables."shop.t"]\nc = {expression = "(1"}', ["parentheses do not match"]),
        ('[tables."shop.t"]\nc = {expression = "1)+(1"}', ["parentheses do not match"]),
        ('[tables."shop.t"]\nc = {expression = "1; DROP TABLE x"}', ["has ';' in it"]),
        ('[tables."shop.t"]\nc = {expression = "1 -- x"}', ["has '--' in it"]),
        ('[tables."shop.t"]\nc = {expression = "1 /* x"}', ["has '/*' in it"]),
        ('[tables."shop.t"]\nc = {expression = "\'x"}', ["a string that is not closed: \"'x"]),
        ("[tables.'shop.t']\nc = {expression = '\"x)'}", ["a string that is not closed"]),
        ("[tables.'shop.t']\nc = {expression = '`x)'}", ["a string that is not closed"]),
        ("[tables.'shop.t']\nc = {expression = \"('\\\\')\"}", ["a string that is not closed"]),
        ("[tables.'shop.t']\nc = {expression = \"'x' \\\\\"}", ["has '\\\\' in it"]),
        ('[defaults]\nid = "kepe"', ["r.toml: defaults: id: there is no rule 'kepe'"]),
        ('locale = "x"', ["locale is 'x', expected a language"]),
        ("values = 5", ["values is 5, expected a whole number from 10 to 100000"]),
        ("tables = [", ["r.toml is not valid TOML"]),
    ],
)
def test_a_mistake_is_named(rules: str, named: list[str]) -> None:
    with pytest.raises(InvalidSpec) as failure:
        parse(rules.encode(), "r.toml")
    for part in named:
        assert part in failure.value.what
    assert "r.toml" in failure.value.what


def test_a_misspelt_rule_gets_a_hint() -> None:
    with pytest.raises(InvalidSpec) as failure:
        parse(b'[tables."shop.t"]\nc = "emial"', "r.toml")
    assert failure.value.hint == "did you mean 'email'?"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="cannot be read: No such file"):
        read(tmp_path / "none.toml")
    (tmp_path / "big.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(InvalidSpec, match="too large"):
        read(tmp_path / "big.toml")


COLUMNS = [
    text("customers", "id", "int"),
    text("customers", "email"),
    text("customers", "name"),
    text("customers", "note"),
    text("customers", "points", "int"),
    text("customers", "label"),
    text("calls", "number"),
    text("orders", "total", "int"),
]


def test_a_new_column_of_a_covered_table_is_found() -> None:
    rules = parse(EXAMPLE, "x")
    assert uncovered(COLUMNS, rules) == ()
    new = text("customers", "birthday", "date")
    assert uncovered([*COLUMNS, new], rules) == (new,)
    assert uncovered([*COLUMNS, replace(new, generated=True)], rules) == ()
    assert uncovered([*COLUMNS, text("orders", "x")], rules) == ()


def test_rules_for_what_does_not_exist_are_found() -> None:
    rules = parse(EXAMPLE, "x")
    messages = [error.what for error in unknown(COLUMNS, rules)]
    assert messages == [
        "there is no table crm_*.calls, which a rule names",
        "there is no table crm_test.calls, which a rule names",
    ]
    columns = [one for one in COLUMNS if one.name not in ("email", "id")]
    own = Rules({"shop.customers": rules.tables["shop.customers"]}, rules.defaults)
    found = unknown([*columns, text("customers", "e_mail")], own)
    assert [error.what for error in found] == [
        "shop.customers: there is no column 'email', which a rule names",
        "[defaults]: there is no column 'id', which a rule names",
    ]
    assert found[0].hint == "did you mean 'e_mail'?"
    assert unknown(COLUMNS, Rules({"shop.custmers": {}}))[0].hint.startswith("did you mean")


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("email", "varchar", "email"),
        ("EMail", "varchar", "email"),
        ("e_mail_address", "varchar", "email"),
        ("billingEmail", "text", "email"),
        ("first_name", "varchar", "first_name"),
        ("lname", "varchar", "last_name"),
        ("Nachname", "varchar", "last_name"),
        ("phone", "varchar", "phone"),
        ("mobile_no", "bigint", "shuffle"),
        ("tel2", "varchar", "phone"),
        ("street", "varchar", "address"),
        ("Straße", "varchar", "address"),
        ("zip", "varchar", "postal_code"),
        ("plz", "int", "shuffle"),
        ("iban", "char", "hash"),
        ("ssn", "varchar", "hash"),
        ("passport_number", "varchar", "hash"),
        ("dob", "date", "shuffle"),
        ("birth_date", "date", "shuffle"),
        ("geburtsdatum", "date", "shuffle"),
        ("last_ip", "varchar", "hash"),
        ("ipAddress", "inet6", "shuffle"),
        ("api_key", "varchar", "hash"),
        ("remember_token", "varchar", "hash"),
        ("password", "varchar", "hash"),
        ("contraseña", "varchar", "hash"),
        ("gender", "enum", "null"),
    ],
)
def test_columns_that_look_personal_are_found(name: str, kind: str, rule: str) -> None:
    [found] = scan([text("t", name, kind)])
    assert found.rule == rule
    assert "in its name" in found.reason
    assert found.reason.split("'")[1] in name, "what it has in its name"


@pytest.mark.parametrize(
    ("table", "name", "kind"),
    [
        ("t", "id", "int"),
        ("t", "zipped", "blob"),
        ("t", "description", "text"),
        ("products", "name", "varchar"),
        ("t", "email_sent", "tinyint"),
        ("t", "recipe", "text"),
        ("t", "created_at", "datetime"),
        ("t", "telemetry", "text"),
        ("t", "shipped", "int"),
    ],
)
def test_other_columns_are_not(table: str, name: str, kind: str) -> None:
    assert scan([text(table, name, kind)]) == ()


def test_a_name_in_a_table_of_people_and_what_rules_name() -> None:
    [found] = scan([text("customers", "name")])
    assert (found.rule, found.reason) == ("name", "a person's name: the table is of 'customers'")
    rules = parse(EXAMPLE, "x")
    assert scan(COLUMNS, rules) == ()
    assert [one.column.name for one in scan(COLUMNS)] == ["email", "name"]
    not_null = replace(text("t", "gender", "enum"), nullable=False)
    assert scan([not_null])[0].rule == "shuffle"
