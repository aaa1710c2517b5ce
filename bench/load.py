"""sysbench on all nodes of a lab at the same time, to measure memory and disk use under load."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.labs import Failed, Home, ended, one_line
from bench.probe import disk, pss, qemu_of

SECONDS = 60
"""How long the load runs; memory and disk use are measured when it has ended."""
_PREPARE_SECONDS = 600.0
_OPTIONS = {
    "db-driver": "mysql",
    "mysql-host": "127.0.0.1",
    "mysql-db": "sbtest",
    "mysql-ignore-errors": "all",  # a cluster rolls back what conflicts: error 1213
    "tables": "4",
    "table-size": "10000",
    "threads": "2",
}


def sysbench() -> str:
    """Where the program is; empty if it is not installed."""
    return shutil.which("sysbench") or ""


def under_load(home: Home, runs: int, log: Any, up: Sequence[str], program: str) -> list[Figure]:
    """Memory and disk of one warm lab: idle, and after a minute of load on all of its nodes."""
    taken: dict[str, list[float]] = {}
    for number in range(1, runs + 1):
        with log.attempt(f"memory and disk under load {number}"):
            lab = home.run(*up, "--name", home.name(1), "-o", "json").value
            try:
                _take(taken, "idle", home, lab)
                home.run("sql", lab["name"], "-e", "CREATE DATABASE sbtest")
                with load(lab, program, SECONDS):
                    pass
                _take(taken, "load", home, lab)
            finally:
                home.run("down", lab["name"])
    texts = {"idle": "idle, when ready", "load": f"after {SECONDS} s of sysbench on all nodes"}
    note = "oltp_read_write, 4 tables of 10,000 rows, 2 threads for each node"
    figures = []
    for what in ("memory", "disk"):
        for when in ("idle", "load"):
            samples = tuple(taken.get(f"{what} {when}", ()))
            name, about = f"{what} of a warm lab, {texts[when]}", note if when == "load" else ""
            failed = runs - len(samples)
            figures.append(Figure(name, "MB", samples, note=about, failed=failed))
    return figures


@contextmanager
def load(lab: Mapping[str, Any], program: str, seconds: int) -> Iterator[None]:
    """Fill tables through the first node, then run load on all for ``seconds``; raises Failed.

    The password is in files that only we can read, never in a command line.
    """
    ports = [int(node["sql_port"]) for node in lab["nodes"]]
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as directory, ExitStack() as stack:
        configs = [_config(Path(directory), lab, port, seconds) for port in ports]
        first = stack.enter_context(ended(_start(program, configs[0], "prepare")))
        _done(first, _PREPARE_SECONDS)
        running = [_start(program, config, "run") for config in configs]
        stack.enter_context(ended(*running))
        for process in running:
            _done(process, seconds + _PREPARE_SECONDS)
        yield


def _config(directory: Path, lab: Mapping[str, Any], port: int, seconds: int) -> Path:
    options = {
        **_OPTIONS, "mysql-port": str(port), "mysql-user": lab["user"],
        "mysql-password": lab["password"], "time": str(seconds),
    }  # fmt: skip
    path = directory / f"{port}.cfg"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in options.items())
    return path


def _start(program: str, config: Path, word: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [program, f"--config-file={config}", "oltp_read_write", word],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def _done(process: subprocess.Popen[str], seconds: float) -> None:
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"sysbench did not end in {seconds:g} s") from None
    if process.returncode:
        raise Failed(f"sysbench exited {process.returncode}: {one_line(out)}")


def _take(taken: dict[str, list[float]], when: str, home: Home, lab: Mapping[str, Any]) -> None:
    guests = [str(node["guest"]) for node in lab["nodes"]]
    taken.setdefault(f"memory {when}", []).append(pss(qemu_of(guests)) / 1e6)
    taken.setdefault(f"disk {when}", []).append(disk(home.directories(lab["name"])) / 1e6)
