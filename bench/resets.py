"""Resets of labs: in a test suite, by the command, in a row; and what a standby costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pymysql

from bench import native, native_resets
from bench.figures import Figure, Target
from bench.labs import COMMAND_SECONDS, Failed, Home, environment, one_line
from bench.measure import MEGABYTE, UP, Log, check, labs_removed
from bench.probe import pss_own, qemu_of
from lab.wait import Deadline, attempts

MANY = 100
LIGHT = 4.0
"""Seconds of light tests between two of many resets."""
_ROW = 60.0
"""Seconds for resets without a break."""
_PATIENCE = 120.0


def resets(home: Home, runs: int, log: Log) -> list[Figure]:
    """``lab.reset()`` of a cluster and of one node, ``lab reset``, many, in a row, memory."""
    figures = []
    cluster, single = home.name(1), home.name(2)
    with log.attempt("resets of three nodes"), labs_removed(home):
        home.run(*UP, "--name", cluster)
        figures.append(
            _figure(
                "`lab.reset()` in pytest, three nodes", _in_tests(home, cluster, runs), 0.25, 0.17
            )
        )
        commands = [_command(home, cluster) for _ in range(runs)]
        figures.append(_figure("`lab reset`, three nodes", commands, 0.45, 0.35))
        figures.append(
            Figure(
                "memory of a standby of three nodes that nothing else shares", "MB",
                (_memory(home, cluster) / MEGABYTE,), Target(180, 120),
            )
        )  # fmt: skip
        many = sorted(_in_tests(home, cluster, MANY, LIGHT))
        figures.append(_figure(f"{MANY} resets, {LIGHT:g} s between", many, 0.35, 0.25))
        late = many[min(len(many) - 1, int(len(many) * 0.99))]
        figures.append(_figure(f"{MANY} resets, {LIGHT:g} s between: p99", [late], 1.5, 0.6))
        figures.append(
            Figure(
                "resets in a row", "1/min", (_row(home, cluster),), Target(35, 45, at_least=True)
            )
        )
    with log.attempt("resets of one node"), labs_removed(home):
        home.run("up", "single", "--name", single)
        figures.append(
            _figure("`lab.reset()` in pytest, `single`", _in_tests(home, single, runs), 0.15, 0.08)
        )
    figures += _beside(home, runs, log)
    with log.attempt("labs that are made ahead"), labs_removed(home):
        taken = _taken(replace(home, env={**home.env, "LAB_STANDBY": "1"}), runs)
        figures.append(_figure("`lab up pxc --nodes 3` where a standby is there", taken, 0.5, 0.4))
    return figures


def _beside(home: Home, runs: int, log: Log) -> list[Figure]:
    """A lab of one MySQL with tables, and one server as a process with the same."""
    ours: list[float] = []
    others: dict[str, list[float]] = {}
    name = home.name(3)
    with log.attempt("resets of one MySQL with tables"), labs_removed(home):
        made = home.run("up", "single", "--engine", "mysql", "--name", name, "-o", "json")
        _load(made.value)
        ours = _in_tests(home, name, runs)
    with log.attempt("one server as a process"), native.mysql_files() as root:
        others = native_resets.resets(root, runs)
    return [
        Figure(
            "`lab.reset()` in pytest, `single` of MySQL with tables", "s", tuple(ours),
            note=f"{native_resets.TABLES} tables of {native_resets.ROWS} rows",
        ),
        *(
            Figure(way, "s", tuple(found), note="the same tables, server and option file")
            for way, found in others.items()
        ),
    ]  # fmt: skip


def _load(view: dict[str, Any]) -> None:
    """Load the tables, by no client's program: a host may have none."""
    (node,) = view["nodes"]
    with (
        closing(
            pymysql.connect(
                host=node["host"], port=node["sql_port"], user=view["user"],
                password=view["password"], autocommit=True,
            )
        ) as connection,
        connection.cursor() as cursor,
    ):  # fmt: skip
        for statement in native_resets.dump().split(";\n")[:-1]:
            cursor.execute(statement)


def _taken(home: Home, runs: int) -> list[float]:
    """Seconds of ``lab up`` where a lab was made ahead, each with two others beside."""
    home.run(*UP)
    seconds = []
    for _ in range(runs):
        waiting = _waiting(home)
        ran = home.run(*UP, "-o", "json")
        check(ran.value)
        if ran.value["name"] != waiting:
            raise Failed(f"{waiting} was made ahead, and {ran.value['name']} was created")
        seconds.append(ran.seconds)
        home.run("down", waiting)
    home.run("standby", "--ahead", "--remove")
    return seconds


def _waiting(home: Home) -> str:
    """The lab that was made ahead, once there is one."""
    for _ in attempts(Deadline.after(_PATIENCE), most=0.5):
        for lab in home.run("ls", "-o", "json").value:
            if lab["state"] == "pooled":
                return str(lab["name"])
    raise Failed(f"no lab was made ahead after {_PATIENCE:g} s")


def _figure(name: str, samples: list[float], reach: float, stretch: float) -> Figure:
    return Figure(name, "s", tuple(samples), Target(reach, stretch))


def _in_tests(home: Home, name: str, count: int, pause: float = 0.0) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.in_tests", name, str(count), str(pause)],
        env={**environment(os.environ, home.root), **home.env}, cwd=home.root,
        capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"resets of {name} failed: {one_line(done.stderr)}")
    found: list[float] = json.loads(done.stdout)
    return found


def _standby(home: Home, name: str) -> Any:
    """The lab once it has a standby."""
    for _ in attempts(Deadline.after(_PATIENCE), most=0.5):
        lab = home.run("status", name, "-o", "json").value["lab"]
        if lab["standby"]:
            return lab
    raise Failed(f"{name} has no standby after {_PATIENCE:g} s")


def _command(home: Home, name: str) -> float:
    _standby(home, name)
    ran = home.run("reset", name, "-o", "json")
    check(ran.value)
    return ran.seconds


def _memory(home: Home, name: str) -> int:
    """Bytes of the standby's QEMUs that nothing else has."""
    lab = _standby(home, name)
    log = (home.root / "logs" / "console").iterdir()
    guests = {path.name.removesuffix(".log") for path in log if path.name.startswith(f"lab-{name}")}
    return pss_own(qemu_of(guests - {node["guest"] for node in lab["nodes"]}))


def _row(home: Home, name: str) -> float:
    """Resets a minute, each begun when the one before has ended."""
    began, count = time.monotonic(), 0
    while time.monotonic() - began < _ROW:
        home.run("reset", name, "-o", "name")
        count += 1
    return count * 60 / (time.monotonic() - began)
