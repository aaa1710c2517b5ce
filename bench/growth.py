"""How time, memory and disk grow: by the nodes of a lab, by labs, by the rows of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.figures import Figure, Target
from bench.labs import Failed, Home, Ran
from bench.measure import MEGABYTE, Log, labs_removed
from bench.probe import disk, pss, qemu_of
from bench.topologies import check

NODES = {"galera": (1, 3, 5, 7, 9), "replication": (2, 3, 5, 7), "group": (3, 5, 7)}
LABS = 8
ROWS = (10_000, 100_000, 1_000_000)
_NINE = ("galera", 9)
_TARGETS = {_NINE: Target(6, 4.5), ("group", 3): Target(2.4, 1.8)}


@dataclass
class _Cost:
    """What labs of one kind cost, a sample for each of them."""

    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)

    def add(self, home: Home, ran: Ran) -> None:
        """Of a lab that has just become ready; its disk is looked at before it is used."""
        if ran.value["started"] != "warm":
            raise Failed(f"it started {ran.value['started']}: {ran.value['why_cold']}")
        self.seconds.append(ran.seconds)
        self.disk.append(disk(home.directories(ran.value["name"])) / MEGABYTE)
        self.memory.append(pss(qemu_of(node["guest"] for node in ran.value["nodes"])) / MEGABYTE)
        check(ran.value)

    def figures(self, what: str, runs: int, target: Target) -> list[Figure]:
        failed = runs - len(self.seconds)
        return [
            Figure(what, "s", tuple(self.seconds), target, failed=failed),
            Figure(f"{what}: memory (PSS)", "MB", tuple(self.memory), failed=failed),
            Figure(f"{what}: disk", "MB", tuple(self.disk), failed=failed),
        ]


def growth(home: Home, runs: int, log: Log) -> list[Figure]:
    """All figures; the lab of each is a clone of a template that is there."""
    figures: list[Figure] = []
    for kind, counts in NODES.items():
        figures += _nodes(home, kind, counts, runs, log)
    return [*figures, *_labs(home, log), *_rows(home, runs, log)]


def _nodes(home: Home, kind: str, counts: Sequence[int], runs: int, log: Log) -> list[Figure]:
    figures = []
    for count in counts:
        words, cost = (kind, "--nodes", str(count)), _Cost()
        with log.attempt(f"{kind} of {count}: template"):
            home.run("template", "build", *words)
        for number in range(1, runs + 1):
            with log.attempt(f"{kind} of {count}, warm {number}"), labs_removed(home):
                cost.add(home, home.run("up", *words, "--name", home.name(1), "-o", "json"))
        target = _TARGETS.get((kind, count), Target())
        figures += cost.figures(f"warm `lab up {' '.join(words)}`", runs, target)
    return figures


def _labs(home: Home, log: Log) -> list[Figure]:
    """Labs of three nodes one after another, all of which stay: what each further one costs."""
    words, costs = ("galera", "--nodes", "3"), [_Cost() for _ in range(LABS)]
    with log.attempt(f"{LABS} labs, one after another"), labs_removed(home):
        home.run("template", "build", *words)
        for number, cost in enumerate(costs, 1):
            cost.add(home, home.run("up", *words, "--name", home.name(number), "-o", "json"))
    return [
        figure
        for number, cost in enumerate(costs, 1)
        if number in (1, 2, 4, LABS)
        for figure in cost.figures(f"lab {number} of {LABS}, the others idle", 1, Target())
    ]


def _rows(home: Home, runs: int, log: Log) -> list[Figure]:
    figures = []
    for rows in ROWS:
        name, cost = f"rows{rows}", _Cost()
        with log.attempt(f"a dataset of {rows} rows"):
            home.run("dataset", "create", name, "--from", f"generate:sysbench?tables=1&rows={rows}")
            for number in range(1, runs + 1):
                with log.attempt(f"{rows} rows, warm {number}"), labs_removed(home):
                    words = ("single", "--dataset", name)
                    cost.add(home, home.run("up", *words, "--name", home.name(1), "-o", "json"))
            home.run("dataset", "rm", name)
        figures += cost.figures(f"warm `lab up single --dataset` of {rows} rows", runs, Target())
    return figures
