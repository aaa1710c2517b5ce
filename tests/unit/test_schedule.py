"""Schedules of snapshots: what is due, what is too many, and what nobody may remove."""

from __future__ import annotations

import pytest

from lab import schedule
from lab.errors import InvalidSpec
from lab.schedule import Schedule, parse, read

NOON = 1_795_262_400.0  # 2026-11-21 12:00 UTC
HOUR = 3600.0


def taken(name: str, *hours_ago: float) -> list[schedule.Taken]:
    return [read(schedule.label(name, NOON - hours * HOUR)) for hours in hours_ago]


def test_a_label_tells_name_and_time() -> None:
    label = schedule.label("before-upgrade", NOON)
    assert label == "before-upgrade.20261121t120000"
    assert (read(label).name, read(label).at) == ("before-upgrade", NOON)
    again = schedule.label("before-upgrade", NOON, [label])
    assert (read(again).name, read(again).at) == ("before-upgrade", NOON)
    assert again != label


def test_what_others_named_is_left_alone() -> None:
    strange = read("zfs-auto-snap_hourly-2026")
    assert strange.at is None
    assert schedule.excess(parse("hourly:1"), [strange, read("origin")]) == []


def test_schedules_are_read_and_written() -> None:
    assert parse("hourly:24, daily:7") == Schedule((("hourly", 24), ("daily", 7)))
    assert str(parse("hourly:24, daily:7")) == "hourly:24,daily:7"
    assert parse("none") == parse("") == Schedule()


@pytest.mark.parametrize(
    "text",
    ["hourly", "hourly:0", "hourly:-1", "monthly:1", "hourly:1,hourly:2", "hourly:9999", ","],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse(text)


@pytest.mark.parametrize("name", ["", "Big", "hourly", "origin", "a.b", "x" * 32, "../x", "ü"])
def test_names_that_cannot_be_given(name: str) -> None:
    with pytest.raises(InvalidSpec):
        schedule.check_name(name)


def test_what_is_due() -> None:
    plan = parse("hourly:2,daily:2")
    assert schedule.due(plan, [], NOON) == ["hourly", "daily"]
    assert schedule.due(plan, taken("hourly", 1) + taken("daily", 5), NOON) == ["hourly"]
    assert schedule.due(plan, taken("hourly", 0.5) + taken("daily", 23), NOON) == []
    # by another's clock it is from the future: not a reason to take none
    assert schedule.due(Schedule(), [], NOON) == []


def test_the_oldest_of_each_kind_go() -> None:
    there = [
        *taken("hourly", 1, 3, 2),
        *taken("daily", 50, 20),
        *taken("weekly", 9),
        *taken("mine", 99),
    ]
    gone = schedule.excess(parse("hourly:2,daily:2"), there)
    assert sorted(gone) == sorted(one.label for one in taken("hourly", 3) + taken("weekly", 9))
