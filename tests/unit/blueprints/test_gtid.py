"""Sets of MySQL's GTIDs."""

from __future__ import annotations

import pytest

from lab.blueprints import gtid

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "9a6b1f2e-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 0),
        (f"{A}:1", 1),
        (f"{A}:1-5:11-18", 13),
        (f"{A}:1-5,{B}:7", 6),
        (f"{A.upper()}:1-5,{A}:3-9", 9),
        (f"{A}:1-2:domain_1:1-3:5", 6),
    ],
)
def test_sets_are_read(text: str, size: int) -> None:
    assert gtid.size(gtid.parse(text)) == size


@pytest.mark.parametrize(
    "text", ["x", A, f"{A}:", f"{A}:0", f"{A}:5-1", f"{A}:1-", f"{A}:1;{B}:1", f"{A}:{'9' * 20}"]
)
def test_anything_else_is_refused(text: str) -> None:
    """Protects decisions from what a guest's root says."""
    with pytest.raises(ValueError, match="is not a GTID set"):
        gtid.parse(text)


def test_what_a_guest_says_is_cut() -> None:
    """Protects messages: a guest may say anything, of any length."""
    with pytest.raises(ValueError, match="is not a GTID set") as raised:
        gtid.parse(f"{A}:1-5," + "x" * 100_000)
    assert len(str(raised.value)) < 200


def test_which_contains_which() -> None:
    small, large = gtid.parse(f"{A}:1-4"), gtid.parse(f"{A}:1-2:3-9,{B}:1")
    assert gtid.contains(large, small)
    assert not gtid.contains(small, large)
    assert not gtid.contains(gtid.parse(f"{B}:1-9"), small)
    assert gtid.size(gtid.union(small, gtid.parse(f"{A}:8"))) == 5
    tagged = gtid.parse(f"{A}:tag:1-4")
    assert not gtid.contains(small, tagged)


@pytest.mark.parametrize(
    ("position", "source", "behind"),
    [
        ("0-1-42", "0-1-42", 0),
        ("0-1-40", "0-1-42", 2),
        ("0-1-44", "0-1-42", 0),
        ("", "0-1-3,1-2-4", 7),
        ("0-1-3", "0-3-3,1-2-4", 4),
        (f"{A}:1-5", f"{A}:1-9:11", 5),
        (f"{A}:1-9,{B}:1", f"{A}:1-9", 0),
        ("", f"{A}:1-9", 9),
        ("x", "0-1-42", None),
        ("0-1-42", f"{A}:1-9", None),
        (f"{A}:1-9", "0-1-42", None),
        ("0-1-" + "9" * 30, "0-1-42", None),
        ("", "0-1-" + "9" * 20, None),
    ],
)
def test_what_a_replica_lacks(position: str, source: str, behind: int | None) -> None:
    """Protects the lag that `lab status` shows, of both engines, from whatever guests say."""
    assert gtid.behind(position, source) == behind


A, B = "94638caf-e94d-11f1-8be8-9f0000000001", "94c9eb09-e94d-11f1-8be8-9f0000000002"


@pytest.mark.parametrize(
    ("position", "limit", "wanted"),
    [
        ("", 27, ""),
        ("0-1-42,1-1-5", 27, "0-1-42, 1-1-5"),
        (f"{A}:1-261,{B}:1-87", 80, "94638caf..:1-261, 94c9eb09..:1-87"),
        (f"{A}:1-261,{B}:1-87", 27, "94638caf..:1-261 and 1 more"),
        (f"{A}:1234567", 27, "94638caf..:1234567"),
        (f"{A}:1-5,{A[:-1]}2:1-6", 100, f"{A}:1-5, {A[:-1]}2:1-6"),
        (f"{A}:1-2:4-5:7-8:10-11:13-14", 27, "94638caf..:..:10-11:13-14"),
        ("x" * 200, 27, "x" * 27 + "..."),
    ],
)
def test_what_differs_is_shown(position: str, limit: int, wanted: str) -> None:
    """Protects the numbers: identities are shortened, and only where they stay unique."""
    assert gtid.shown(position, limit) == wanted
