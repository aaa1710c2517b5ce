"""Files of statements that read, and where the server refused one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.datasets import queries
from lab.errors import InvalidSpec

TEXT = """\
-- What the start page shows.
USE shop;
SELECT name
FROM people WHERE note <> 'a;b';
(SELECT 1) UNION (SELECT 2);
with x as (select 1) select * from x;
CHECKSUM TABLE people EXTENDED
"""


def test_statements_that_read_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "warm.sql"
    path.write_text(TEXT)
    assert queries.read(path) == TEXT


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT 1;\n\nDELETE FROM t;\n", "statement 2, at line 3 does not only read"),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", "statement 1, at line 1 does not only read"),
        ("SET GLOBAL read_only = 0", "statement 1, at line 1 does not only read"),
        ("-- nothing\n", "has no statement"),
        ("SELECT 'open", "a string"),
        ("SELECT 1;" * 9000, "more than 64K"),
    ],
)
def test_others_are_refused(tmp_path: Path, text: str, why: str) -> None:
    """Protects the data: the file says what is read, and nothing else."""
    path = tmp_path / "warm.sql"
    path.write_text(text)
    with pytest.raises(InvalidSpec) as caught:
        queries.read(path)
    assert why in str(caught.value)


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="No such file"):
        queries.read(tmp_path / "none.sql")
    (tmp_path / "odd.sql").write_bytes(b"SELECT '\xff'")
    with pytest.raises(InvalidSpec, match="UTF-8"):
        queries.read(tmp_path / "odd.sql")


def test_a_refusal_names_the_statement() -> None:
    said = "ERROR 1146 (42S02) at line 4: Table 'shop.people' doesn't exist\n"
    error = queries.refused(TEXT, said, "warm.sql")
    assert str(error) == "warm.sql: statement 2, at line 3: the server refused it"
    assert error.details == ("ERROR 1146 (42S02): Table 'shop.people' doesn't exist",)
    other = queries.refused(TEXT, "no client\n", "warm.sql")
    assert other.details == ("no client",)
