"""The outage that an upgrade reports is that of the lab, not of who measures it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.probe import Probe
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes import inspect
from lab.observe.ways import Rows
from tests.support.lifecycle_world import World, lab_request
from tests.unit.lifecycle.labs.test_upgrade_replicates import answering, port


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with World(tmp_path).open() as opened:
        yield opened


@pytest.mark.rare
@pytest.mark.parametrize("hanging", [("n1",), ("n1", "n2")])
def test_a_server_that_hangs_delays_no_row_of_another(
    ctx: Context, hanging: tuple[str, ...]
) -> None:
    """Protects from a figure that is the probe's own: another server takes every row meanwhile."""
    up(ctx, lab_request("galera", "shop", nodes=3, engine="mariadb:10.11"))
    ports, hangs = {port(ctx, node) for node in hanging}, threading.Event()

    def answer(port: int, statement: str) -> list[Rows] | None:
        if hangs.is_set() and port in ports and statement.startswith("INSERT"):
            time.sleep(5)  # what a question of the probe may take
            raise NotReady("no answer")
        return None

    asking = answering(ctx, answer)
    with Probe(asking, inspect.record_of(ctx, "shop")) as probe:
        time.sleep(1)
        probe.begin_step()
        hangs.set()
        time.sleep(8)
        outages = probe.end_step()
        hangs.clear()
    assert outages.writes < 3.5, "two times half a second, and what a busy machine adds"
    report = probe.report(verify=True)
    assert (report.lost, report.refused) == (0, 0)
    assert report.written > 10


def test_writes_that_no_server_takes_are_counted(ctx: Context) -> None:
    up(ctx, lab_request("galera", "shop", nodes=2, engine="mariadb:10.11"))
    refuses = threading.Event()

    def answer(_: int, statement: str) -> list[Rows] | None:
        if refuses.is_set() and statement.startswith("INSERT"):
            raise NotReady("no SQL")
        return None

    with Probe(answering(ctx, answer), inspect.record_of(ctx, "shop")) as probe:
        time.sleep(0.6)
        probe.begin_step()
        refuses.set()
        time.sleep(2)
        outages = probe.end_step()
        refuses.clear()
        time.sleep(0.6)
    report = probe.report(verify=True)
    assert report.lost == 0
    assert report.refused >= 2
    assert outages.writes >= 1.5
