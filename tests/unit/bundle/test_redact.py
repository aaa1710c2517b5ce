"""Nothing that a user must keep to himself is in a bundle; what explains a failure is."""

from __future__ import annotations

import secrets

import pytest

from lab.bundle.redact import GONE, Redactor

SECRET = "hunter2-" + secrets.token_hex(6)


@pytest.mark.parametrize(
    "text",
    [
        "password={}",
        "password = '{}'",
        'MYSQL_PWD="{}" mysql',
        "wsrep_sst_auth\tsst:{}",
        '{{"api_token": "{}"}}',
        "mysql -uroot -p{} shop",
        "mysqldump --password={} shop",
        "mysql://lab:{}@127.0.0.1:3306/",
        "Authorization: Bearer {}",
        "authentication_string: {}",
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\n{}",
    ],
)
def test_what_looks_like_a_secret(text: str) -> None:
    """Protects secrets that we do not know."""
    found = Redactor().text(f"before\n{text.format(SECRET)}\nafter")
    assert SECRET not in found
    assert found.startswith("before\n")


@pytest.mark.parametrize(
    "token", ["lab_0123456789ab_" + "x" * 43, "*" + "A1" * 20, "$A$005$" + "x" * 63]
)
def test_tokens_and_hashes(token: str) -> None:
    assert token not in Redactor().text(f"said {token} here")


def test_values_of_json() -> None:
    """Protects what is written as JSON, which must stay JSON."""
    found = Redactor([SECRET]).value(
        {"a": [f"x{SECRET}", 1, None], "password": "p", "b": {"token": ""}}
    )
    assert found == {"a": [f"x{GONE}", 1, None], "password": GONE, "b": {"token": ""}}


def test_known_secrets_go_wherever_they_are() -> None:
    """Protects the lab's password, in whatever form a program prints it."""
    found = Redactor([SECRET, "ab"]).text(f"x{SECRET}y ab")
    assert found == f"x{GONE}y ab", "what is too short is in every text"


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES ('{}', 1)",
        'SELECT * FROM t WHERE a = "{}"',
        "UPDATE t SET a = 'it''s {}' WHERE id = 77123",
        "SET @a = x'41', @b = '{}\\' still'",
        "CALL p('{}",
    ],
)
def test_literals_of_statements(statement: str) -> None:
    """Protects users' data: rows are in statements."""
    redactor = Redactor()
    text = statement.format(SECRET)
    for way in (redactor.statement, redactor.status, redactor.log):
        assert SECRET not in way(f"8\tlab\t10.0.0.1\tshop\tQuery\t3\t{text}")
    assert "77123" not in redactor.statement(text)
    words = ("INSERT INTO t", "FROM t", "UPDATE t", "SET @a", "CALL p")
    assert any(word in redactor.statement(text) for word in words), "names stay"


@pytest.mark.parametrize("head", ["2026-11-29T10:00:00.1+00:00 n1 mariadbd[7]: ", ""])
def test_a_statement_of_several_lines_in_a_log(head: str) -> None:
    """Protects rows where the journal makes a line of each line of a message."""
    log = (
        f"{head}2026-11-29 10:00:00 5 [ERROR] BF-BF conflict: INSERT INTO t\n"
        f"{head}VALUES ('{SECRET},\n"
        f"{head}{SECRET}', 'x {SECRET}')\n"
        f"{head}2026-11-29 10:00:01 0 [Note] WSREP: Member 0.0 ('n1') synced with group 12\n"
    )
    found = Redactor().log(log)
    assert SECRET not in found
    assert "INSERT INTO t" in found
    assert "Member 0.0 ('n1') synced with group 12" in found, "what explains is there"


@pytest.mark.parametrize(
    "line",
    [
        "[Note] WSREP: Server status change synced -> joined with 'n2', set 3 of 5",
        "[Warning] Access denied for user 'root'@'localhost' (using password: NO)",
        "[Note] InnoDB: Setting file './ibtmp1' size to 12 MB. Please wait ...",
        "[ERROR] Slave SQL: Error 'Duplicate entry' on query. Default database: 'shop'",
    ],
)
def test_messages_stay(line: str) -> None:
    """Protects what explains a failure."""
    assert Redactor().log(line).partition("(using")[0] == line.partition("(using")[0]


def test_figures_of_a_status_stay() -> None:
    text = "Trx read view will not see trx with id >= 4711\nLog sequence number 123456"
    assert Redactor().status(text) == text
