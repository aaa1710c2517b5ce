"""Captures of a lab in use: snapshots with RAM, rollbacks, branches; idle and under load."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bench.figures import Figure, Target, Unit
from bench.labs import Failed, Home
from bench.load import SECONDS, load, sysbench
from bench.measure import MEGABYTE, UP, Log, check, labs_removed
from bench.probe import disk, pss, qemu_of

IDLE_SECONDS = 60
"""How long a lab idles before it is captured."""
BRANCHES = 10
RESETS = 100

_TARGETS = {
    "pause": Target(1.5, 0.3),
    "snapshot": Target(300, 40),
    "rollback": Target(1.5, 1.1),
    "branch": Target(4, 2.5),
    "branches": Target(25, 20),
}
_NAMES: Mapping[str, tuple[str, Unit]] = {
    "pause": ("pause of a lab for a snapshot with RAM", "s"),
    "snapshot": ("disk of such a snapshot", "MB"),
    "rollback": ("`lab rollback` to it", "s"),
    "branch": ("`lab branch` of a running lab", "s"),
    "branches": (f"`lab branch --count {BRANCHES}`", "s"),
    "memory": ("memory of a further branch (PSS of its guests)", "MB"),
    "disk": ("disk of a further branch", "MB"),
}
_WHEN = {
    "idle": f"{IDLE_SECONDS} s idle",
    "load": f"after {SECONDS} s of sysbench on all nodes",
}


def captures(home: Home, runs: int, log: Log) -> list[Figure]:
    """Pause, disk, rollback, branches of a three-node lab, idle, and loaded if sysbench is here."""
    kinds = ["idle", "load"] if sysbench() else ["idle"]
    figures = []
    for when in kinds:
        taken: dict[str, list[float]] = {}
        for number in range(1, runs + 1):
            with log.attempt(f"captures, {_WHEN[when]}, {number}"), labs_removed(home):
                lab = home.run(*UP, "--name", home.name(1), "-o", "json").value
                _use(home, lab, when)
                for what, value in _one(home, lab).items():
                    taken.setdefault(what, []).append(value)
        for what, (name, unit) in _NAMES.items():
            samples = tuple(taken.get(what, ()))
            target = _TARGETS.get(what, Target())
            figures.append(
                Figure(f"{name}, {_WHEN[when]}", unit, samples, target, failed=runs - len(samples))
            )
    return figures


def resets(home: Home, log: Log) -> list[Figure]:
    """Rollbacks in a row: how long each takes, and what is more at the end than after the first."""
    seconds: list[float] = []
    grown: list[float] = []
    with log.attempt(f"{RESETS} rollbacks in a row"), labs_removed(home):
        name = home.run(*UP, "--name", home.name(1), "-o", "json").value["name"]
        home.run("snapshot", "take", name, "--label", "base")
        before = 0
        for number in range(RESETS):
            ran = home.run("rollback", name, "--to", "base", "-o", "json")
            if ran.value["started"] != "warm":
                raise Failed(f"it started {ran.value['started']}: {ran.value['why_cold']}")
            seconds.append(ran.seconds)
            if not number:
                before = disk(home.directories(name))
        check(ran.value)
        grown.append((disk(home.directories(name)) - before) / MEGABYTE)
    missing = RESETS - len(seconds)
    return [
        Figure(f"`lab rollback`, {RESETS} in a row", "s", tuple(seconds), failed=missing),
        Figure("disk that these left", "MB", tuple(grown), Target(1), failed=1 - len(grown)),
    ]


def _use(home: Home, lab: Mapping[str, Any], when: str) -> None:
    if when == "idle":
        time.sleep(IDLE_SECONDS)
        return
    home.run("sql", lab["name"], "-e", "CREATE DATABASE sbtest")
    with load(lab, sysbench(), SECONDS):
        pass


def _one(home: Home, lab: Mapping[str, Any]) -> dict[str, float]:
    """All figures of one lab as it is."""
    name, found = lab["name"], dict[str, float]()
    before = disk(home.directories(name))
    taken = home.run("snapshot", "take", name, "--label", "base", "-o", "json").value
    if not taken["warm"]:
        raise Failed(f"the snapshot has no RAM: {taken['why_cold']}")
    found["pause"] = taken["pause"]
    found["snapshot"] = (disk(home.directories(name)) - before) / MEGABYTE
    back = home.run("rollback", name, "--to", "base", "-o", "json")
    if back.value["started"] != "warm":
        raise Failed(f"it started {back.value['started']}: {back.value['why_cold']}")
    check(back.value)
    found["rollback"] = back.seconds
    branched = home.run("branch", name, home.name(2), "-o", "json")
    found["branch"] = branched.seconds
    (one,) = _labs(branched.value)
    check(one)
    found["memory"] = pss(qemu_of(node["guest"] for node in one["nodes"])) / MEGABYTE
    found["disk"] = disk(home.directories(one["name"])) / MEGABYTE
    stem = home.name(3)
    many = home.run("branch", name, stem, "--at", "base", "--count", str(BRANCHES), "-o", "json")
    found["branches"] = many.seconds
    made = _labs(many.value)
    # Of so many emulated guests each waits for a processor: a further look at all takes minutes.
    check(made[-1])
    if any(one["state"] != "ready" for one in made):
        raise Failed(f"not all of the {BRANCHES} branches are ready")
    return found


def _labs(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else [value]
