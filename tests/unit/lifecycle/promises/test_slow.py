"""Servers on a host that is too busy: they become ready, only later."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.errors import HostUnfit, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import lab, nodes_of, record_of
from lab.lifecycle.nodes.readiness import until_ready
from lab.observe.account import Account
from lab.observe.ask import through_port
from lab.observe.ways import Rows
from lab.wait import Deadline
from tests.support.lifecycle_world import World, lab_request

WORK = 0.4
"""Seconds that a server works for each connection: more than one that is asked once has."""
PATIENCE = 0.3


class Busy:
    """Servers that work for one connection after the other, also once its client has gone."""

    def __init__(self, ctx: Context) -> None:
        self.asked = 0
        self._sql_all = ctx.sql_all
        self._until: dict[int, float] = {}
        self._guard = threading.Lock()

    def __call__(
        self, account: Account, port: int, statements: Sequence[str], *, timeout: float, **how: Any
    ) -> list[Rows]:
        """What the server says, if that is within ``timeout``."""
        now = time.monotonic()
        with self._guard:
            self.asked += 1
            done = self._until[port] = max(self._until.get(port, now), now) + WORK
        if done > now + timeout:
            time.sleep(timeout)
            raise NotReady("no SQL", begun=True)
        time.sleep(done - now)
        return self._sql_all(account, port, statements, timeout=timeout, **how)


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    """Of a replicating lab: its source is asked by each replica as well."""
    with World(tmp_path).open() as ctx:
        up(ctx, lab_request("replication", "shop"))
        yield ctx


def _wait(ctx: Context, seconds: float, *, grows: bool) -> None:
    nodes, record = nodes_of(ctx, "shop"), record_of(ctx, "shop")
    deadline = Deadline.after(seconds)
    ask = through_port(
        ctx.ways, record.plan, account_of(ctx.home, record), nodes,
        patience=PATIENCE, deadline=deadline if grows else None,
    )  # fmt: skip
    until_ready(ctx, nodes, record.plan, ask, deadline, pause=0.01)


def test_a_server_is_not_kept_busy_by_who_waits_for_it(ctx: Context) -> None:
    """Protects from a wait without end: what was given up is work for the server all the same."""
    busy = Busy(ctx)
    _wait(replace(ctx, sql_all=busy), 30.0, grows=True)
    assert busy.asked < 40
    with pytest.raises(NotReady):  # it would be, with the same time for each
        _wait(replace(ctx, sql_all=Busy(ctx)), 2.0, grows=False)


def test_a_wait_ends_in_time_however_slow_a_server_is(ctx: Context) -> None:
    """Protects `--timeout`: the time that a slow server gets is part of it."""
    began = time.monotonic()
    with pytest.raises(NotReady):
        _wait(replace(ctx, sql_all=_never), 1.0, grows=True)
    assert time.monotonic() - began < 1.0 + 4 * PATIENCE


def test_nodes_that_get_on_have_longer_than_the_setting_says(tmp_path: Path) -> None:
    """Protects cold starts on a slow or busy host, and `--timeout` as a limit."""
    world = World(tmp_path, ready_timeout=1.0)
    with world.open() as ctx:
        up(ctx, lab_request("single", "shop"))
        nodes, record = nodes_of(ctx, "shop"), record_of(ctx, "shop")
        for timeout in (1.0, 0.9):
            slow = Starting(ctx, 1.8)
            ask = through_port(
                replace(ctx, sql_all=slow).ways, record.plan, account_of(ctx.home, record), nodes
            )
            deadline = ctx.ready_by(timeout)
            if timeout == world.ready_timeout:
                until_ready(ctx, nodes, record.plan, ask, deadline, pause=0.01)
                assert time.monotonic() > slow.began + 1.0
            else:
                with pytest.raises(NotReady):
                    until_ready(ctx, nodes, record.plan, ask, deadline, pause=0.01)


class Starting:
    """A server that says each tenth of a second what it does now, and takes a while to start."""

    def __init__(self, ctx: Context, seconds: float) -> None:
        self.began = time.monotonic()
        self._seconds = seconds
        self._sql_all = ctx.sql_all

    def __call__(self, *words: Any, **how: Any) -> list[Rows]:
        """What the server says once it has started."""
        passed = time.monotonic() - self.began
        if passed < self._seconds:
            raise NotReady(f"step {int(passed * 10)}")
        return self._sql_all(*words, **how)


def _never(*_: object, timeout: float, **__: object) -> list[Rows]:
    time.sleep(timeout)
    raise NotReady("no SQL", begun=True)


def test_a_look_waits_for_a_server_that_began_to_answer(tmp_path: Path) -> None:
    """Protects `lab ls` on busy hosts: what `up` found ready is not `unreachable` after it."""
    limit = WORK * 0.8
    with World(tmp_path).open() as ctx:
        up(ctx, lab_request("single", "shop"))
        hurried = replace(ctx, settings=replace(ctx.settings, answer_timeout=limit))
        assert lab(replace(hurried, sql_all=Busy(ctx)), "shop").state == "ready"
        for begun, seconds in ((True, 4 * limit), (False, limit)):
            without = Without(begun=begun)
            assert lab(replace(hurried, sql_all=without), "shop").state == "unreachable"
            # What it was given, not what passed: this host may be busy.
            assert 0 < without.waited <= seconds


class Without:
    """A server that gives no answer in the time it gets, after it began to (``begun``) or not."""

    def __init__(self, *, begun: bool) -> None:
        self.waited = 0.0
        self._begun = begun

    def __call__(self, *_: object, timeout: float, **__: object) -> list[Rows]:
        """Wait, and raise NotReady."""
        time.sleep(timeout)
        self.waited += timeout
        raise NotReady("no SQL", begun=self._begun)


def test_a_node_whose_kernel_crashed_is_not_waited_for(ctx: Context) -> None:
    """Protects from minutes of waiting, and engines from the blame; crashes of before are over."""
    nodes, record = nodes_of(ctx, "shop"), record_of(ctx, "shop")
    log = ctx.home.console_log(nodes[1].guest)
    log.write_text("Kernel panic - not syncing: of an earlier boot\n")

    def ask(*_: object, **__: object) -> list[Rows]:
        raise NotReady("no SQL")

    def wait(seconds: float) -> None:
        silent = through_port(
            replace(ctx, sql_all=ask).ways, record.plan, account_of(ctx.home, record), nodes
        )
        until_ready(ctx, nodes, record.plan, silent, Deadline.after(seconds), pause=0.01)

    with pytest.raises(NotReady, match="is not ready"):
        wait(3.0)
    began = time.monotonic()
    text = f"{log.read_text()}[ 1.1] Kernel panic - not syncing\n"
    threading.Timer(0.5, log.write_text, [text]).start()
    with pytest.raises(HostUnfit, match="the kernel of n2 crashed") as crashed:
        wait(30.0)
    assert time.monotonic() - began < 15
    assert crashed.value.details == ("[ 1.1] Kernel panic - not syncing",)
