"""Captures of real clusters in use: what a rollback and a branch have is an exact prefix."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site

pytestmark = pytest.mark.e2e

NODES = ("n1", "n2", "n3")


@dataclass
class Writer:
    """Inserts the numbers from 1 into a table, as clients do, each in its own transaction.

    ``times``: when each was begun, and when its commit was acknowledged.
    """

    number: int
    times: list[tuple[float, float]] = field(default_factory=list)

    def run(self, connection: Any, ends: threading.Event) -> None:
        with suppress(pymysql.Error), connection.cursor() as cursor:
            while not ends.is_set():
                began = time.time()
                values = (self.number, len(self.times) + 1)
                cursor.execute("INSERT INTO t.bank VALUES (%s, %s)", values)
                self.times.append((began, time.time()))


def connect(view: Any, node: Any) -> Any:
    return pymysql.connect(
        host=node["host"],
        port=node["sql_port"],
        user=view["user"],
        password=view["password"],
        autocommit=True,
        read_timeout=60,
    )


@contextmanager
def writing(site: Site, name: str) -> Iterator[list[Writer]]:
    """A writer through each node for the block."""
    view = site.lab("status", name, "-o", "json").json["lab"]
    ends, writers = threading.Event(), [Writer(number) for number in range(1, 4)]
    connections = [connect(view, node) for node in view["nodes"]]
    threads = [
        threading.Thread(target=writer.run, args=(connection, ends))
        for writer, connection in zip(writers, connections, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        ends.set()
        for thread, connection in zip(threads, connections, strict=True):
            thread.join(60)
            with suppress(pymysql.Error):
                connection.close()


def rows(site: Site, name: str) -> set[tuple[int, int]]:
    """What all nodes have, once that is the same."""

    def look() -> list[set[tuple[int, int]]] | None:
        query = "SELECT writer, number FROM t.bank"
        found = [{(int(a), int(b)) for a, b in site.sql(name, node, query)} for node in NODES]
        return found if found[0] == found[1] == found[2] else None

    found = until(look, Deadline.after(30), most=0.5)
    assert found is not None, "the nodes differ"
    return found[0]


def check_prefix(
    there: set[tuple[int, int]], writers: list[Writer], began: float, ended: float
) -> None:
    """What was captured between ``began`` and ``ended`` is what a real moment had."""
    begun = {(w.number, n): t[0] for w in writers for n, t in enumerate(w.times, 1)}
    acknowledged = {(w.number, n): t[1] for w in writers for n, t in enumerate(w.times, 1)}
    missing = {row for row, at in acknowledged.items() if at < began} - there
    assert not missing, f"acknowledged before the snapshot and lost: {sorted(missing)}"
    later = there & {row for row, at in begun.items() if at > ended}
    assert not later, f"begun after the snapshot: {sorted(later)}"
    for writer in writers:
        numbers = sorted(number for who, number in there if who == writer.number)
        assert numbers == list(range(1, len(numbers) + 1)), f"gaps: {writer.number}"
    newest = max((begun[row] for row in there & begun.keys()), default=0.0)
    before = {row for row, at in acknowledged.items() if at < newest}
    assert not before - there, "a later transaction is there, and an earlier one is not"


def test_a_rollback_is_an_exact_prefix(site: Site) -> None:
    """Of a bank's workload on all nodes; from RAM, then from the same disks alone."""
    name = site.name("bank")
    site.lab("up", *PXC, "--nodes", "3", "--name", name)
    site.lab("sql", name, "-e", "CREATE DATABASE t")
    table = "CREATE TABLE t.bank (writer INT, number INT, PRIMARY KEY (writer, number))"
    site.lab("sql", name, "-e", table)
    with writing(site, name) as writers:
        time.sleep(3)
        began = time.time()
        snapshot = site.lab("snapshot", "take", name, "--label", "mid", "-o", "json").json
        ended = time.time()
        time.sleep(2)
    assert snapshot["warm"]
    assert all(len(writer.times) > 5 for writer in writers), "the writers stopped"
    password = site.lab("status", name, "-o", "json").json["lab"]["password"]
    warm = site.lab("rollback", name, "--to", "mid", "-o", "json").json
    assert (warm["started"], warm["password"]) == ("warm", password)
    check_prefix(rows(site, name), writers, began, ended)
    # Once more, after writes that are to be forgotten.
    site.lab("sql", name, "-e", "INSERT INTO t.bank VALUES (9, 9)")
    assert site.lab("rollback", name, "--to", "mid", "-o", "json").json["started"] == "warm"
    check_prefix(rows(site, name), writers, began, ended)
    cold = site.lab("rollback", name, "--to", "mid", "--cold", "-o", "json").json
    assert cold["started"] == "cold"
    check_prefix(rows(site, name), writers, began, ended)
    site.lab("down", name)
