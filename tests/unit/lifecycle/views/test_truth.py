"""What views say was seen: each kind of lab in each state, against what its nodes really do."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from lab.cli.terminal.show import lab_text, status_text
from lab.cli.terminal.tree import topology_text
from lab.errors import CommandFailed, Conflict, NotReady
from lab.fake.hypervisor import FakeHypervisor
from lab.guest.network import inner_address
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.conditions import parse, unmet, why_no_writes
from lab.lifecycle.labs.promote import promote
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab, labs, nodes_of, status
from lab.lifecycle.snapshots import snapshot
from lab.observe.ways import Rows
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.views.labs import LabView
from tests.support.lifecycle_world import Counter, World, lab_request, raising

STAR = lab_request("replication", "shop")
KINDS = {
    "star": STAR,
    "delayed": lab_request("replication", "shop", semi_sync=True, delay=3600.0, on=("n3",)),
    "proxied": lab_request("replication", "shop", proxy="haproxy"),
    "chain": lab_request("replication", "shop", topology="chain"),
    "ring": lab_request("replication", "shop", topology="ring"),
    "fan-in": lab_request("replication", "shop", topology="fan-in"),
    "group": lab_request("group", "shop"),
    "galera": lab_request("galera", "shop"),
    "dr": lab_request("galera-dr", "shop", nodes=2, replicas=2),
    "single": lab_request("single", "shop"),
}
MOVED = {"star": "n2", "proxied": "n3", "delayed": "n2"}
"""The node that is promoted, where one can be."""


def views(ctx: Context) -> list[LabView]:
    """The lab in each of the ways in which it is looked at."""
    (listed,) = labs(ctx)
    return [listed, lab(ctx, "shop"), status(ctx, "shop").lab]


def real_sources(ctx: Context, node: str) -> list[str]:
    """The nodes that a running server is linked to, by its guest."""
    assert isinstance(ctx.hypervisor, FakeHypervisor)
    guests = {one.name: one.guest for one in nodes_of(ctx, "shop")}
    follows = ctx.hypervisor.servers.inside(guests[node]).follows.split(",")
    by_address = {inner_address(number): f"n{number}" for number in range(1, 10)}
    return [by_address[one] for one in follows if one in by_address]


def takes_writes(ctx: Context, view: LabView) -> bool:
    """Whether a statement at the printed address is accepted."""
    assert view.entry is not None
    node = view.entry
    if node.is_proxy:
        writers = [one for one in view.nodes if one.name in view.endpoints["writers"]]
        return not node.is_silent and any(_written(ctx, one.name) for one in writers)
    return _written(ctx, node.name)


def _written(ctx: Context, node: str) -> bool:
    try:
        query(ctx, "shop", node, f"CREATE TABLE IF NOT EXISTS by_{node} (a INT)")
    except (NotReady, CommandFailed):
        return False
    return True


def check(ctx: Context, *, starting: bool = False) -> None:
    """Fails if a view shows what was planned, or known once, as if it had been observed.

    ``starting``: the lab was stopped, and its start did not come to its end.
    """
    for view in views(ctx):
        states = {node.name: node.state for node in view.nodes}
        silent_ones = {node.name for node in view.nodes if node.is_silent}
        elects = view.blueprint == "group" or (
            view.blueprint == "replication" and view.options.get("topology", "star") == "star"
        )
        for node in view.nodes:
            silent = node.is_silent
            assert not (silent and (node.position or node.behind is not None)), node
            if elects and not node.is_proxy:
                assert bool(node.role_known) == silent, node
        for link in view.links:
            assert bool(link.known) == (link.replica in silent_ones), link
        if view.blueprint != "galera-dr":  # there the fake looks for another member itself
            for name in states:
                if name not in silent_ones:
                    shown = [link.source for link in view.links if link.replica == name]
                    assert shown == real_sources(ctx, name), name
        assert bool(view.started) == (view.state != "stopped" and not starting)
        if view.state != "stopped" or elects:
            assert bool(why_no_writes(view)) != takes_writes(ctx, view), why_no_writes(view)
        else:
            assert why_no_writes(view)
        _check_texts(view, {name: states[name] for name in silent_ones})
    _check_requirements(ctx)


def _check_texts(view: LabView, states: dict[str, str]) -> None:
    """``states``: of the nodes that are silent."""
    for line in topology_text(view, io.StringIO()).splitlines()[1:]:
        words = line.lstrip("│├└─ |-`").split()
        if words[0] in states:
            assert states[words[0]] in line, line
            assert "behind" not in line
    assert ("ready in" in lab_text(view, 0.0)) == bool(view.started)


def _check_requirements(ctx: Context) -> None:
    found = status(ctx, "shop")
    silent = [node.name for node in found.lab.nodes if node.is_silent]
    late = [node.name for node in found.lab.nodes if node.role == "delayed"]
    for one in found.requirements:
        assert not (one.met and one.node in silent), one
        assert not (one.met and one.node in late and one.name == "caught up"), one
    status_text(found, 0.0)


def some_rare(kinds: Iterable[str], *usual: str) -> list[Any]:
    """All of them; for each change those that are ``usual``."""
    return [pytest.param(k, marks=[] if k in usual else pytest.mark.rare) for k in kinds]


def made(ctx: Context, kind: str) -> LabView:
    """A lab whose template is made once for all tests of a world."""
    return up(ctx, KINDS[kind])


@pytest.mark.parametrize("kind", some_rare(KINDS, "galera", "proxied"))
def test_each_node_stopped(world: World, kind: str) -> None:
    with world.open() as ctx:
        names = [node.name for node in made(ctx, kind).nodes]
        check(ctx)
        for name in names[:: len(names) - 1] if len(names) > 1 else names:
            power.stop(ctx, "shop", node=name, force=True)
            check(ctx)
            start_node(ctx, "shop", name, timeout=20)
        power.stop(ctx, "shop")
        check(ctx)
        assert start(ctx, "shop", timeout=20).state == "ready"
        check(ctx)


@pytest.mark.parametrize("kind", some_rare(MOVED, "proxied"))
def test_the_source_moved(world: World, kind: str) -> None:
    """Protects users of a lab whose source was promoted: also while that one, or all, stopped."""
    with world.open() as ctx:
        made(ctx, kind)
        new = MOVED[kind]
        moved = promote(ctx, "shop", new, timeout=20)
        assert [node.name for node in moved.nodes if node.role == "source"] == [new]
        check(ctx)
        for stopped in (new, None):
            power.stop(ctx, "shop", node=stopped, force=True)
            check(ctx)
            for view in views(ctx):
                sources = [n for n in view.nodes if n.role == "source"]
                assert [n.name for n in sources] == [new]
                assert (sources[0].shown_role, sources[0].state) == (
                    "source (last known)", "stopped")  # fmt: skip
                assert view.endpoints.get("writers", view.endpoints["rw"]) == (new,)
                assert {link.source for link in view.links} == {new}
                if "writers" not in view.endpoints:
                    assert view.dsn.endswith(f":{sources[0].sql_port}/")
        assert start(ctx, "shop", timeout=20).state == "ready"
        check(ctx)


def test_the_last_source_is_known_from_those_that_follow_it(world: World) -> None:
    """Protects records of an earlier version, which kept no roles."""
    with world.open() as ctx:
        made(ctx, "star")
        promote(ctx, "shop", "n3", timeout=20)
        power.stop(ctx, "shop", node="n3", force=True)
        for node in ("n1", "n2", "n3"):
            ctx.store.nodes.update("shop", node, seen={})
        view = lab(ctx, "shop")
        assert [n.shown_role for n in view.nodes] == [
            "replica", "replica", "source (last known)"]  # fmt: skip
        power.stop(ctx, "shop", force=True)
        for node in ("n1", "n2", "n3"):
            ctx.store.nodes.update("shop", node, seen={})
        planned = [n.shown_role for n in lab(ctx, "shop").nodes]
        assert planned == ["source (planned)", "replica (planned)", "replica (planned)"]


def test_the_link_between_sites_moved(world: World) -> None:
    """Protects `lab status` of galera-dr: the member that the remote site follows now."""
    with world.open() as ctx:
        assert [link.source for link in made(ctx, "dr").links] == ["n1", "n3"]
        power.stop(ctx, "shop", node="n1", force=True)
        found = [(link.source, link.replica, link.known) for link in lab(ctx, "shop").links]
        assert found == [("n2", "n3", ""), ("n3", "n4", "")]
        power.stop(ctx, "shop", force=True)
        found = [(link.source, link.replica, link.known) for link in lab(ctx, "shop").links]
        assert found == [("n2", "n3", "last known"), ("n3", "n4", "last known")]


def never(*_: object) -> Rows:
    raise AssertionError


def test_a_delayed_replica_has_not_caught_up(world: World) -> None:
    """Protects the mark: a node that is late on purpose has none, and nobody waits for it."""
    with world.open() as ctx:
        made(ctx, "delayed")
        found = status(ctx, "shop")
        names: Sequence[str] = [one.name for one in found.requirements if one.node == "n3"]
        assert "replicating" in names
        assert "caught up" not in names
        assert unmet(parse("caught-up"), found.lab, never, 1.0) == ""
        drawn = topology_text(found.lab, io.StringIO())
        assert "delayed, 1h late" in drawn


def test_a_rollback_that_was_interrupted_is_named(world: World) -> None:
    """Protects from a lab that is degraded, or stopped, with no word of why."""

    def stop_at(step: str) -> None:
        if step == "storage.rollback":
            raise KeyboardInterrupt

    with world.open() as ctx:
        made(ctx, "star")
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
    with world.open(stop_at) as ctx, pytest.raises(KeyboardInterrupt):
        rollback(ctx, RollBack(lab="shop", to="mine"), timeout=20)
    with world.open() as ctx:
        for view in views(ctx):
            assert view.interrupted.startswith("rollback to mine"), view
            assert "`lab start shop` completes it" in view.interrupted
            assert "interrupted" in lab_text(view, 0.0)
            assert not view.started
        assert start(ctx, "shop", timeout=20).state == "ready"
        assert not lab(ctx, "shop").interrupted


VERBS: dict[str, Callable[[Context], object]] = {
    "start": lambda ctx: start(ctx, "shop", timeout=20),
    "stop": lambda ctx: power.stop(ctx, "shop"),
    "promote": lambda ctx: promote(ctx, "shop", "n2", timeout=20),
    "branch": lambda ctx: branch(ctx, BranchLab(lab="shop", name="twig"), timeout=20),
    "snapshot": lambda ctx: snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine")),
}


@pytest.mark.parametrize(
    ("verb", "step", "number", "state"),
    [
        ("start", "hypervisor.start", 1, "degraded"),
        ("start", "ready.begin", 0, "degraded"),
        ("stop", "hypervisor.stop", 1, "degraded"),
        ("stop", "state.commit", 0, "stopped"),
        ("promote", "hypervisor.run", 12, "degraded"),
        ("branch", "hypervisor.resume", 1, "ready"),
        ("snapshot", "storage.snapshot", 0, "ready"),
        ("snapshot", "hypervisor.resume", 0, "degraded"),
    ],
)
def test_a_verb_that_was_interrupted(
    world: World, verb: str, step: str, number: int, state: str
) -> None:
    """Protects who looks next: nothing of what the verb was to do, or had begun, is shown as done.

    ``number``: of the steps of that name, before which it is interrupted.
    """
    counter = Counter(number, raising(KeyboardInterrupt()))

    def hook(now: str) -> None:
        if now == step:
            counter(now)

    with world.open() as ctx:
        made(ctx, "star")
        if verb == "start":
            power.stop(ctx, "shop")
    with world.open(hook) as ctx, pytest.raises(KeyboardInterrupt):
        VERBS[verb](ctx)
    with world.open() as ctx:
        check(ctx, starting=verb == "start")
        for view in views(ctx):  # there is no lab but this one
            assert view.state == state, view
            assert not view.interrupted


def test_a_group_that_loses_its_majority(world: World) -> None:
    with world.open() as ctx:
        made(ctx, "group")
        for node in ("n1", "n3"):
            power.stop(ctx, "shop", node=node, force=True)
        check(ctx)
        with pytest.raises((Conflict, NotReady)):
            promote(ctx, "shop", "n2", timeout=2)
