"""The table of what was run of each topology."""

from __future__ import annotations

from tests.e2e import matrix

PAGE = f"before\n{matrix.BEGIN}\n{matrix.END}\nafter\n"


def test_what_ran_is_in_the_table_and_what_did_not_stays() -> None:
    """Protects the table from claims of steps that did not pass, and from losing older ones."""
    first, second, *_ = (str(case) for case in matrix.CASES)
    page = matrix.merged(PAGE, {first: {"formed": "aaaaaaa", "all": "aaaaaaa"}})
    page = matrix.merged(page, {first: {"all": "bbbbbbb"}, second: {"formed": "bbbbbbb"}})
    found = matrix.rows(page)
    assert found[first] == {"formed": "aaaaaaa", "all": "bbbbbbb"}
    assert found[second] == {"formed": "bbbbbbb"}
    assert list(found) == [str(case) for case in matrix.CASES]
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")


def test_each_case_is_on_the_page() -> None:
    """Protects readers: a topology that is tested has a row, also before it was run."""
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.merged(page, {}) == page
