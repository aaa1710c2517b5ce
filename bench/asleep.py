"""Labs that sleep: how soon a client that connects is answered, and what they cost meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pymysql

from bench.figures import Figure, Target
from bench.labs import Failed, Home
from bench.measure import UP, Log, labs_removed
from bench.probe import cpu, qemu_of
from bench.service import served
from lab.client import Client
from lab.paths import Home as LabHome
from lab.requests.labs import SleepLab

LABS = 30
_REST = 1.5
"""Seconds that a lab sleeps before a client comes."""
_WATCHED = 30.0
"""Seconds for which the processor time of labs that are asleep is counted."""
_STATE = "SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'"


def measured(home: Home, wakes: int, log: Log) -> list[Figure]:
    """From connect to answer of a cluster that was asleep, and the processor time of many."""
    seconds: list[float] = []
    shares: list[float] = []
    token = LabHome(home.root).admin_token
    with log.attempt(f"{wakes} wakes of three nodes"), labs_removed(home):
        view = home.run(*UP, "--name", home.name(1), "-o", "json").value
        with served(home) as (url, _), Client(url, token.read_text().strip()) as client:
            seconds += [_woken(client, view) for _ in range(wakes)]
    with log.attempt(f"{LABS} labs asleep"), labs_removed(home):
        for number in range(1, LABS + 1):
            home.run("up", "single", "--name", home.name(number))
        with served(home) as (url, process), Client(url, token.read_text().strip()) as client:
            guests = [_slept(client, home.name(number)) for number in range(1, LABS + 1)]
            time.sleep(5.0)
            shares.append(_share([process.pid, *_pids(guests)]))
            awake = [lab.name for lab in client.labs() if lab.state != "asleep"]
            if awake:
                raise Failed(f"{len(awake)} labs were woken, such as {awake[0]}")
    late = sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))] if seconds else None
    return [
        Figure(
            "asleep, three nodes: from connect to an answer as Synced", "s", tuple(seconds),
            Target(0.25, 0.17), f"asleep for {_REST:g} s each time; a login with TLS included",
        ),
        Figure(
            "the same: 99 of 100 within", "s", () if late is None else (late,), Target(0.6),
        ),
        Figure(
            f"processor time of {LABS} labs asleep, with that of the service", "%", tuple(shares),
            Target(2), f"of one core, over {_WATCHED:g} s; `single`",
        ),
    ]  # fmt: skip


def _slept(client: Client, name: str) -> str:
    """Put a lab of one node to sleep; the name of its guest."""
    lab = client.run(SleepLab(lab=name))
    if lab.state != "asleep":
        raise Failed(f"{name} is {lab.state}, not asleep")
    return str(lab.nodes[0].guest)


def _woken(client: Client, view: dict[str, Any]) -> float:
    """Seconds in which a client of a lab that was asleep had its answer."""
    lab = client.run(SleepLab(lab=view["name"]))
    if lab.state != "asleep":
        raise Failed(f"{lab.name} is {lab.state}, not asleep")
    time.sleep(_REST)
    node = view["nodes"][0]
    began = time.perf_counter()
    with (
        closing(
            pymysql.connect(
                host=node["host"], port=node["sql_port"], user=view["user"],
                password=view["password"], connect_timeout=60, read_timeout=60,
            )
        ) as connection,
        connection.cursor() as cursor,
    ):  # fmt: skip
        cursor.execute(_STATE)
        (_, state) = cursor.fetchone() or ("", "")
    if state != "Synced":
        raise Failed(f"{lab.name} answered as {state or 'nothing'}")
    return time.perf_counter() - began


def _pids(guests: Sequence[str]) -> list[int]:
    return [int(process.name) for process in qemu_of(guests)]


def _share(processes: Sequence[int]) -> float:
    """Percent of one core that processes take together."""
    before, began = cpu(processes), time.monotonic()
    time.sleep(_WATCHED)
    return 100 * (cpu(processes) - before) / (time.monotonic() - began)
