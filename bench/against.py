"""Another checkout, such as that of an older commit, beside this one: turn about, in one run.

Ratios of one run hold on a shared machine, where figures of two runs do not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.figures import start_up
from bench.labs import Home
from bench.measure import UP, Log, check
from bench.service import posted, serving
from lab.client import Client
from lab.paths import Home as LabHome


@dataclass(frozen=True)
class Row:
    """Seconds of one thing in the other checkout and in this one, in the order they were taken."""

    name: str
    other: tuple[float, ...]
    this: tuple[float, ...]

    def __str__(self) -> str:
        if not self.other or not self.this:
            return f"| {self.name} | - | - | - |"
        other, this = statistics.median(self.other), statistics.median(self.this)
        return f"| {self.name} | {other:.3f} s | {this:.3f} s | {this / other:.2f} |"


@dataclass
class Side:
    """One of the two, with a service; what was measured of it."""

    home: Home
    client: Client
    taken: dict[str, list[float]]

    def add(self, name: str, seconds: float) -> None:
        """One more sample."""
        self.taken.setdefault(name, []).append(seconds)


def against(other: Home, this: Home, runs: int, log: Log) -> list[Row]:
    """Warm labs by the command line and the service, lists and removals; raises Failed."""
    for home in (other, this):
        log.say(f"image and template of {home.code}")
        home.run("template", "build", *UP[1:])
    with _side(other) as before, _side(this) as now:
        for number in range(1, runs + 1):
            log.say(f"turn {number} of {runs}")
            # Who is first changes: what one leaves in caches must not always serve the other.
            for side in (before, now)[:: 1 if number % 2 else -1]:
                _turn(side)
    names = [*now.taken, *(name for name in before.taken if name not in now.taken)]
    return [
        Row(name, tuple(before.taken.get(name, ())), tuple(now.taken.get(name, ())))
        for name in names
    ]


def text(rows: Sequence[Row], other: Home, this: Home) -> str:
    """The table: medians, and how much longer this one takes."""
    head = ["| medians | other | this | ratio |", "|---|---|---|---|"]
    where = [f"other: {other.code}", f"this: {this.code}"]
    return "\n".join([*where, "", *head, *(str(row) for row in rows)]) + "\n"


@contextmanager
def _side(home: Home) -> Iterator[Side]:
    with serving(home) as url:
        token = LabHome(home.root).admin_token.read_text().strip()
        with Client(url, token) as client:
            yield Side(home, client, {})


def _turn(side: Side) -> None:
    name = side.home.name(1)
    up = side.home.run(*UP, "--name", name, "-o", "json")
    check(up.value)
    side.add("warm `lab up pxc --nodes 3`", up.seconds)
    for part, seconds in start_up(up.seconds, up.value["steps"]).items():
        side.add(f"its part {part}", seconds)
    side.add("`lab ls`, one lab", side.home.run("ls").seconds)
    side.add("`lab down`", side.home.run("down", name).seconds)
    side.add("warm lab by `POST /v1/labs`", posted(side.client, name, 3))
    side.add("`GET /v1/labs`, one lab", _timed(side.client.labs))
    side.client.delete(name)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
