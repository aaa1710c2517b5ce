"""Snapshots of a lab: how their labels are made, and how many a schedule keeps.

A label is a name and the time at which it was taken, ``hourly.20261121t110000``: so that
storage alone knows all that is to be known about snapshots.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Mapping, Sequence

from lab.errors import InvalidSpec
from lab.values import dataclass

PERIODS: Mapping[str, float] = {"hourly": 3600.0, "daily": 86400.0, "weekly": 604800.0}
"""Seconds between two snapshots of a kind."""

ORIGIN = "origin"
"""The label of what a lab was when it was made."""

FORMER = "former"
"""The label of a node's former system, on that volume alone, while another one takes its place; and
the name of the volume that is a clone of it."""

KEEP_LIMIT = 999
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
_STAMP = "%Y%m%dt%H%M%S"
_LABEL = re.compile(r"(?P<name>[a-z0-9][a-z0-9_-]*)\.(?P<stamp>\d{8}t\d{6})(?:-\d+)?")
# A sweeper that comes a little early must not wait a whole round of its own.
_SLACK = 0.02


@dataclass(frozen=True)
class Schedule:
    """How many snapshots of each kind are kept, in the order given; empty: none are taken."""

    keep: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{kind}:{count}" for kind, count in self.keep)


NONE = Schedule()


@dataclass(frozen=True)
class Taken:
    """A snapshot by its label. ``at``: UTC seconds, None for a label that is not ours."""

    label: str
    name: str
    at: float | None


def parse(text: str) -> Schedule:
    """The schedule that ``hourly:24,daily:7`` means; ``none`` for none; raises InvalidSpec."""
    if text.strip() in ("", "none"):
        return NONE
    found: dict[str, int] = {}
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        if kind not in PERIODS or not count.isdecimal() or not 0 < int(count) <= KEEP_LIMIT:
            raise InvalidSpec(
                f"{part.strip()!r} is not a schedule of snapshots",
                hint=f"such as hourly:24,daily:7; kinds: {', '.join(PERIODS)}",
            )
        if kind in found:
            raise InvalidSpec(f"{kind} is given twice")
        found[kind] = int(count)
    return Schedule(tuple(found.items()))


def check_name(name: str) -> str:
    """``name`` if a person may give it to a snapshot; raises InvalidSpec."""
    if not _NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a name for a snapshot",
            hint="small letters, digits, hyphens and underscores, 31 at most",
        )
    if name in PERIODS or name in (ORIGIN, FORMER):
        raise InvalidSpec(f"{name} is a reserved name", hint="choose another name")
    return name


def label(name: str, at: float, taken: Sequence[str] = ()) -> str:
    """A label for a snapshot of that name taken ``at`` (UTC seconds), none of ``taken``."""
    plain = f"{name}.{time.strftime(_STAMP, time.gmtime(at))}"
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    return found


def read(text: str) -> Taken:
    """What a label says."""
    match = _LABEL.fullmatch(text)
    if match is None:
        return Taken(text, text, None)
    at = calendar.timegm(time.strptime(match["stamp"], _STAMP))
    return Taken(text, match["name"], float(at))


def due(schedule: Schedule, there: Sequence[Taken], now: float) -> list[str]:
    """The kinds of which a snapshot is to be taken at ``now`` (UTC seconds)."""
    kinds = []
    for kind, _ in schedule.keep:
        times = [one.at for one in there if one.name == kind and one.at is not None]
        if not times or now - max(times) >= PERIODS[kind] * (1 - _SLACK):
            kinds.append(kind)
    return kinds


def excess(schedule: Schedule, there: Sequence[Taken]) -> list[str]:
    """The labels of scheduled snapshots that are more than are kept, oldest first.

    Kinds that the schedule no longer has are kept none of; those with names of people are
    never among them.
    """
    keep = dict.fromkeys(PERIODS, 0) | dict(schedule.keep)
    found = []
    for kind, count in keep.items():
        ours = sorted((one.at or 0.0, one.label) for one in there if one.name == kind)
        found += [label for _, label in ours[: max(0, len(ours) - count)]]
    return found
