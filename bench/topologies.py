"""Labs of each blueprint: warm and formed again, beside the same servers without guests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

from bench import native
from bench.figures import Figure, Target, ratio
from bench.labs import Failed, Home
from bench.measure import Log, labs_removed
from lab.sizes import BLUEPRINTS
from lab.wait import Deadline, attempts


@dataclass(frozen=True)
class Kind:
    """A blueprint that is measured: with ``words`` after it, and what is to be reached."""

    blueprint: str
    words: tuple[str, ...]
    target: Target

    @property
    def command(self) -> tuple[str, ...]:
        """What creates one."""
        return (self.blueprint, *self.words)

    def __str__(self) -> str:
        return " ".join(self.command)


_MYSQL = ("--engine", "mysql")
_KINDS = (
    Kind("single", (), Target(1.0, 0.7)),
    Kind("single", _MYSQL, Target(1.2, 0.8)),
    Kind("replication", (), Target(2.5, 1.8)),
    Kind("replication", _MYSQL, Target(2.5, 1.8)),
    Kind("group", (), Target(2.4, 1.8)),
)
_LATE = 30.0
_TABLE = "SELECT 1 FROM information_schema.tables WHERE table_schema = 'proof' AND table_name = 't'"
_ROW = "SELECT id FROM proof.t"
_COLD = Target(60, 40)
_NATIVE = Target(5, 7, at_least=True)
_PROXY = Target(0.4, 0.2)


def topologies(home: Home, runs: int, log: Log) -> list[Figure]:
    """All figures: of each kind a lab that is a clone, its template, and servers without guests."""
    figures: list[Figure] = []
    with ExitStack() as stack:
        root = None
        with log.attempt("servers without guests: packages"):
            root = stack.enter_context(native.mysql_files())
        for kind in _KINDS:
            figures += _kind(home, kind, runs, root, log)
    return [*figures, _proxy(home, runs, log)]


def _kind(home: Home, kind: Kind, runs: int, root: Path | None, log: Log) -> list[Figure]:
    warm: list[float] = []
    alone: list[float] = []
    beside = root if "mysql" in kind.words or kind.blueprint == "group" else None
    with log.attempt(f"{kind}: image"):
        home.run("template", "build", *kind.command)
    cold = _cold(home, kind, runs, log)
    for number in range(1, runs + 1):
        with log.attempt(f"{kind}, warm {number}"), labs_removed(home):
            ran = home.run("up", *kind.command, "--name", home.name(1), "-o", "json")
            if ran.value["started"] != "warm":
                raise Failed(f"it started {ran.value['started']}: {ran.value['why_cold']}")
            check(ran.value)
            warm.append(ran.seconds)
        if beside is not None:
            with log.attempt(f"{kind}, without guests {number}"):
                alone.append(native.formed(beside, kind.blueprint, BLUEPRINTS[kind.blueprint]))
    ours = Figure(
        f"warm `lab up {kind}`",
        "s",
        tuple(warm),
        kind.target,
        "process start to exit; a row written at `rw` is read at each node",
        failed=runs - len(warm),
    )
    figures = [ours, cold]
    if beside is not None:
        name = f"{kind.blueprint} of MySQL as processes of the host"
        note = "same version and options, from a copy of an initialised data directory to ready"
        theirs = Figure(name, "s", tuple(alone), note=note, failed=runs - len(alone))
        figures += [theirs, ratio(f"the same to warm `lab up {kind}`", theirs, ours, _NATIVE)]
    return figures


def _cold(home: Home, kind: Kind, runs: int, log: Log) -> Figure:
    seconds: list[float] = []
    for number in range(1, runs + 1):
        with log.attempt(f"{kind}, formed {number}"):
            for template in home.run("template", "ls", "-o", "json").value:
                if template["blueprint"] == kind.blueprint:
                    home.run("template", "rm", template["key"])
            seconds.append(home.run("template", "build", *kind.command).seconds)
    note = "image built; forms a cluster and captures it"
    name = f"`lab template build {kind}`"
    return Figure(name, "s", tuple(seconds), _COLD, note, failed=runs - len(seconds))


def _proxy(home: Home, runs: int, log: Log) -> Figure:
    """How much longer a lab with a proxy takes, made in turns with one without."""
    plain, fronted = ("galera",), ("galera", "--proxy", "haproxy")
    seconds: list[float] = []
    with log.attempt("a proxy: templates"):
        for words in (plain, fronted):
            home.run("template", "build", *words)
    for number in range(1, runs + 1):
        with log.attempt(f"a proxy {number}"):
            took = []
            for words in (plain, fronted):
                with labs_removed(home):
                    ran = home.run("up", *words, "--name", home.name(1), "-o", "json")
                    check(ran.value)
                    took.append(ran.seconds)
            seconds.append(took[1] - took[0])
    return Figure(
        "warm `lab up galera --proxy haproxy`, beyond one without a proxy",
        "s",
        tuple(seconds),
        _PROXY,
        "made in turns",
        failed=runs - len(seconds),
    )


def check(lab: Mapping[str, Any]) -> None:
    """Raise Failed unless a row that is written at ``rw`` can be read at each node."""
    ports = [node["sql_port"] for node in lab["nodes"] if node["sql_port"]]
    host, _, port = lab["addresses"]["rw"][0].rpartition(":")
    try:
        _ask(lab, host, int(port), "CREATE DATABASE proof")
        _ask(lab, host, int(port), "CREATE TABLE proof.t (id INT PRIMARY KEY)")
        _ask(lab, host, int(port), "INSERT INTO proof.t VALUES (42)")
        for other in ports:
            if not any(_arrived(lab, host, other) for _ in attempts(Deadline.after(_LATE))):
                raise Failed(f"{lab['name']}: port {other} does not have the row written at rw")
    except pymysql.Error as error:
        raise Failed(f"{lab['name']} is not ready: {error}") from error


def _arrived(lab: Mapping[str, Any], host: str, port: int) -> bool:
    return bool(_ask(lab, host, port, _TABLE)) and bool(_ask(lab, host, port, _ROW))


def _ask(lab: Mapping[str, Any], host: str, port: int, statement: str) -> Any:
    with (
        closing(
            pymysql.connect(
                host=host,
                port=port,
                user=lab["user"],
                password=lab["password"],
                ssl_verify_cert=False,
                ssl_verify_identity=False,
                autocommit=True,
                read_timeout=60,
            )
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
        return cursor.fetchall()
