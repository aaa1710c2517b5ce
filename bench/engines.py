"""Labs of each series of servers, data of MySQL, and what an upgrade of three nodes takes."""

from __future__ import annotations

from bench.datasets import MASKED, created, source
from bench.figures import Figure, Target
from bench.labs import Failed, Home
from bench.measure import Log, labs_removed
from bench.topologies import check

OLDER, NEWER = "mariadb:10.11", "mariadb:11.8"
MYSQL = "mysql:9.7"
_ENGINES = (NEWER, OLDER, MYSQL)
_BLUEPRINTS = ("single", "replication")
_ROLLED = ("galera", "replication")
_DATA = "of-mysql"
_WITH_DATA = ("single", "replication", "group")


def warm(home: Home, runs: int, log: Log) -> list[Figure]:
    """Warm labs of each series, in turns, so that all meet the same machine."""
    kinds = [(blueprint, "--engine", engine) for blueprint in _BLUEPRINTS for engine in _ENGINES]
    seconds: dict[tuple[str, ...], list[float]] = {kind: [] for kind in kinds}
    for kind in kinds:
        with log.attempt(f"{' '.join(kind)}: template"):
            home.run("template", "build", *kind)
    for number in range(1, runs + 1):
        for kind in kinds:
            with log.attempt(f"{' '.join(kind)}, warm {number}"), labs_removed(home):
                seconds[kind].append(_warm_lab(home, 1, kind))
    return [
        Figure(f"warm `lab up {' '.join(kind)}`", "s", tuple(found), failed=runs - len(found))
        for kind, found in seconds.items()
    ]


def of_mysql(home: Home, megabytes: int, log: Log) -> list[Figure]:
    """A dataset of MySQL; ``megabytes``: of SQL."""
    create: list[float] = []
    masks: list[float] = []
    with log.attempt(f"dataset of {megabytes} MB on {MYSQL}"):
        made, masked = created(home, _DATA, megabytes, MYSQL)
        create.append(made.seconds)
        masks.append(masked.seconds / made.seconds)
    of = f"`lab dataset create --engine {MYSQL}`, {megabytes} MB of SQL"
    return [
        Figure(of, "s", tuple(create), failed=1 - len(create)),
        Figure(
            "the same with `--mask`, to that without", "x", tuple(masks), Target(2.0), MASKED
        ),
    ]  # fmt: skip


def with_data(home: Home, runs: int, megabytes: int, log: Log) -> list[Figure]:
    """Labs with a dataset of MySQL beside empty ones; ``megabytes``: of SQL."""
    ratios: dict[str, list[float]] = {blueprint: [] for blueprint in _WITH_DATA}
    with log.attempt(f"dataset of {megabytes} MB on {MYSQL}"):
        home.run("dataset", "create", _DATA, "--from", source(megabytes), "--engine", MYSQL)
        for blueprint, found in ratios.items():
            empty = (blueprint, "--engine", MYSQL)
            full = (*empty, "--dataset", _DATA)
            for words in (empty, full):
                home.run("template", "build", *words)
            for number in range(1, runs + 1):
                with log.attempt(f"{blueprint} with data {number}"):
                    kinds, took = (empty, full) if number % 2 else (full, empty), {}
                    for kind in kinds:
                        with labs_removed(home):  # one that runs would slow down the next
                            took[kind] = _warm_lab(home, 1, kind)
                    found.append(took[full] / took[empty])
    return [
        Figure(
            f"warm `lab up {blueprint}` with {megabytes} MB of SQL to an empty one", "x",
            tuple(found), Target(1.3, 1.0), "both made in turns", failed=runs - len(found),
        )
        for blueprint, found in ratios.items()
    ]  # fmt: skip


def _warm_lab(home: Home, number: int, words: tuple[str, ...]) -> float:
    """How long it takes, in seconds; raises Failed if it boots."""
    ran = home.run("up", *words, "--name", home.name(number), "-o", "json")
    if ran.value["started"] != "warm":
        raise Failed(f"it started {ran.value['started']}: {ran.value['why_cold']}")
    check(ran.value)
    return ran.seconds


def upgrades(home: Home, log: Log) -> list[Figure]:
    """Upgrades of three nodes."""
    return [figure for blueprint in _ROLLED for figure in _upgraded(home, blueprint, log)]


def _upgraded(home: Home, blueprint: str, log: Log) -> list[Figure]:
    """One upgrade of three nodes, and the way back to before its second step."""
    whole: list[float] = []
    outages: list[float] = []
    back: list[float] = []
    with log.attempt(f"{blueprint}: upgrade"), labs_removed(home):
        home.run("image", "build", NEWER)
        name = home.name(1)
        lab = home.run("up", blueprint, "--engine", OLDER, "--name", name, "-o", "json").value
        check(lab)
        ran = home.run("upgrade", name, "--to", NEWER, "-o", "json")
        if ran.value["lost"] != 0:
            raise Failed(f"{ran.value['lost']} of {ran.value['written']} acknowledged rows lost")
        whole.append(ran.seconds)
        outages.append(max(step["outage"] for step in ran.value["steps"]))
        back.append(home.run("rollback", name, "--to", "before-n2").seconds)
    of = f"`lab upgrade` of a {blueprint} of three from {OLDER} to {NEWER}"
    return [
        Figure(
            of, "s", tuple(whole), failed=1 - len(whole),
            note="snapshots with RAM included; of rows written meanwhile none was lost",
        ),
        Figure(
            f"{of}: longest time without a write", "s", tuple(outages), failed=1 - len(outages)
        ),
        Figure(
            f"{of}: `lab rollback` to before the second node", "s", tuple(back),
            failed=1 - len(back),
        ),
    ]  # fmt: skip
