"""Datasets: what labs with data cost beside empty ones, and how fast data gets in."""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql

from bench.figures import Figure, Target
from bench.labs import COMMAND_SECONDS, Failed, Home, Ran, ended, one_line
from bench.measure import MEGABYTE, UP, Log, check, labs_removed
from bench.probe import disk, pss, qemu_of
from lab.datasets.generate import generate
from lab.datasets.source import Sysbench, parse

READS = 1000
_ROW = 187 + 2 * 6  # bytes of SQL, as ``lab.datasets.generate.estimate``
_TABLES = 8
_LOADED_BY_HAND = 64
"""Megabytes of SQL whose load is compared with the client's."""
_HOT = 200_000
"""Rows of the first table that labs have in memory, with 40 MB."""
_WARM = f"SELECT COUNT(c) FROM sbtest.sbtest1 WHERE id <= {_HOT};\n"  # noqa: S608
_RULES = """\
[tables."sbtest.sbtest1"]
id = "keep"
k = "shuffle"
c = "name"
pad = "hash"
[tables."sbtest.sbtest2"]
id = "keep"
k = "keep"
c = "email"
pad = {fixed = "-"}
"""
MASKED = "5 rules, one of them `shuffle`, for two of eight tables; rows go to a second server"
_SINGLE = ("up", "single")
_DATA = "data"


def source(megabytes: int) -> str:
    """Tables of sysbench with so many megabytes of SQL."""
    rows = megabytes * MEGABYTE // (_TABLES * _ROW)
    return f"generate:sysbench?tables={_TABLES}&rows={rows}"


def datasets(home: Home, runs: int, megabytes: int, log: Log) -> list[Figure]:
    """Figures of labs with ``megabytes`` of SQL beside those of empty ones, in turns."""
    taken: dict[str, list[float]] = {}
    with log.attempt(f"dataset of {megabytes} MB"):
        made, masked = created(home, _DATA, megabytes, "mariadb")
        rows, taken["create"] = made.value["tables"][0]["rows"], [made.seconds]
        taken["mask"] = [masked.seconds / made.seconds]
        for words in (UP, (*UP, "--dataset", _DATA)):  # the templates
            home.run("template", "build", *words[1:])
        for number in range(1, runs + 1):
            with log.attempt(f"labs with data {number}"), labs_removed(home):
                for what, value in _beside(home, rows).items():
                    taken.setdefault(what, []).append(value)
    for number in range(1, runs + 1):
        with log.attempt(f"data by hand {number}"), labs_removed(home):
            taken.setdefault("load", []).append(_load(home, number))
        with log.attempt(f"promotion {number}"), labs_removed(home):
            taken.setdefault("promote", []).append(_promote(home, number))
    size = f"{megabytes} MB of SQL"
    names: tuple[tuple[str, str, Any, Target, str], ...] = (
        ("create", f"`lab dataset create`, {size}", "s", Target(), ""),
        (
            "mask",
            "the same with `--mask`, to that without",
            "x",
            Target(2.0),
            MASKED,
        ),
        (
            "up",
            "warm lab with this dataset to an empty one",
            "x",
            Target(1.15, 1.0),
            "both made in turns",
        ),
        ("disk", "disk of a further lab with it", "MB", Target(5), ""),
        ("pss", "memory of it to that of an empty one (PSS)", "x", Target(1.1), ""),
        (
            "reads",
            f"first {READS} point reads, booted cold to resumed warm",
            "x",
            Target(3, 10, at_least=True),
            "random rows that `--warm` names, in one statement (`id IN (...)`)",
        ),
        (
            "statements",
            "the same, a statement for each row",
            "x",
            Target(),
            "where guests are emulated, a statement takes longer than reading a page",
        ),
        (
            "load",
            "loading SQL, to the plain client in such a guest",
            "x",
            Target(1.0, 0.5),
            f"{_LOADED_BY_HAND} MB; the client reads a file on the guest's disk",
        ),
        ("promote", "`lab dataset create --from lab:NAME`", "s", Target(10, 3), "a 3-node lab"),
    )
    return [
        Figure(name, unit, tuple(taken.get(what, ())), target, note)
        for what, name, unit, target, note in names
    ]


def created(home: Home, name: str, megabytes: int, engine: str) -> tuple[Ran, Ran]:
    """How a dataset was made of so many megabytes of SQL; and how once more, with masking rules.

    The second is removed.
    """
    home.run("image", "build", engine)  # else the first of them would count it
    what = ("--from", source(megabytes), "--engine", engine, "-o", "json")
    with tempfile.TemporaryDirectory(dir=home.root) as directory:
        warm, rules = Path(directory) / "warm.sql", Path(directory) / "rules.toml"
        warm.write_text(_WARM)
        rules.write_text(_RULES)
        made = home.run("dataset", "create", name, *what, "--warm", str(warm))
        masked = home.run("dataset", "create", "masked", *what, "--mask", str(rules))
    home.run("dataset", "rm", "masked")
    return made, masked


def _beside(home: Home, rows: int) -> dict[str, float]:
    """One lab with the data beside an empty one; ``rows``: of the first table."""
    with labs_removed(home):  # one that runs would slow down the next
        empty = home.run(*UP, "--name", home.name(1), "-o", "json")
    first = home.run(*UP, "--dataset", _DATA, "--name", home.name(2), "-o", "json")
    more = home.run(*UP, "--dataset", _DATA, "--name", home.name(3), "-o", "json").value
    # Their memory is compared while both run: what QEMU's processes share is divided by all.
    other = home.run(*UP, "--name", home.name(1), "-o", "json").value
    for lab in (empty.value, first.value, more, other):
        if lab["started"] != "warm":
            raise Failed(f"it started {lab['started']}: {lab['why_cold']}")
    found = {
        "up": first.seconds / empty.seconds,
        "pss": _memory(more) / _memory(other),
        "disk": disk(home.directories(more["name"])) / MEGABYTE,
    }
    warm = _reads(more, min(rows, _HOT))
    home.run("down", "--all", "--yes")
    words = (*UP, "--dataset", _DATA, "--cold", "--name", home.name(4), "-o", "json")
    cold = home.run(*words).value
    booted = _reads(cold, min(rows, _HOT))
    found |= {what: booted[what] / warm[what] for what in warm}
    check(cold)
    return found


def _memory(lab: Mapping[str, Any]) -> int:
    return pss(qemu_of(node["guest"] for node in lab["nodes"]))


def _reads(lab: Mapping[str, Any], rows: int) -> dict[str, float]:
    """Seconds of the first point reads, of one node in one statement, and of another one by one."""
    keys = random.Random(1)  # noqa: S311  which rows is no secret
    chosen = keys.sample(range(1, rows + 1), READS)
    of = "SELECT c FROM sbtest.sbtest1 WHERE id"
    together = [f"{of} IN ({','.join(map(str, chosen))})"]
    one_by_one = [f"{of} = {key}" for key in chosen]
    return {
        "reads": _seconds(lab, 0, together),
        "statements": _seconds(lab, 1, one_by_one),
    }


def _seconds(lab: Mapping[str, Any], node: int, statements: Sequence[str]) -> float:
    with (
        closing(_connect(lab, int(lab["nodes"][node]["sql_port"]))) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT COUNT(*) FROM information_schema.tables")  # the session's own work
        began = time.perf_counter()
        found = sum(cursor.execute(statement) for statement in statements)
        seconds = time.perf_counter() - began
    if found != READS:
        raise Failed(f"{lab['name']} has {found} of {READS} rows")
    return seconds


def _connect(lab: Mapping[str, Any], port: int) -> Any:
    return pymysql.connect(
        host="127.0.0.1", port=port, user=lab["user"], password=lab["password"], read_timeout=120
    )


def _load(home: Home, number: int) -> float:
    """A load into a dataset to one by the client, in a guest of the same image."""
    what = parse(source(_LOADED_BY_HAND))
    if not isinstance(what, Sysbench):
        raise Failed(f"{what} is not what is compared")
    with tempfile.TemporaryDirectory(dir=home.root) as directory:
        dump = Path(directory) / "dump.sql"
        with dump.open("wb") as file:
            file.writelines(generate(what))
        name = f"load{number}"
        ours = home.run("dataset", "create", name, "--from", str(dump), "-o", "json").value
        home.run("dataset", "rm", name)
        lab = home.run(*_SINGLE, "--name", home.name(1), "-o", "json").value
        _in_guest(home, lab, dump, "cat > /var/lib/mysql/dump.sql")
        began = time.perf_counter()
        _in_guest(home, lab, None, "mariadb < /var/lib/mysql/dump.sql")
        by_hand = time.perf_counter() - began
    steps = {step["step"]: step["seconds"] for step in ours["steps"]}
    return float(steps["load"]) / by_hand


def _in_guest(home: Home, lab: Mapping[str, Any], stdin: Path | None, command: str) -> None:
    """Run a shell command in the first node over SSH; raises Failed."""
    with (stdin or Path("/dev/null")).open("rb") as file:
        process = home.start("ssh", lab["name"], "--", command, stdin=file)
    with ended(process):
        try:
            _, err = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"{command} did not end in {COMMAND_SECONDS:g} s") from None
    if process.returncode:
        raise Failed(f"{command} exited {process.returncode}: {one_line(err)}")


def _promote(home: Home, number: int) -> float:
    """Seconds in which a running lab becomes a dataset."""
    lab = home.run(*UP, "--name", home.name(1), "-o", "json").value
    home.run("sql", lab["name"], "-e", "CREATE DATABASE shop")
    name = f"promoted{number}"
    made = home.run("dataset", "create", name, "--from", f"lab:{lab['name']}", "-o", "json")
    home.run("dataset", "rm", name)
    return made.seconds
