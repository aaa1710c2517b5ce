"""Labs with options: where they go, what they change, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab import users
from lab.errors import Conflict, InvalidSpec, NotReady
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import branch, power
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start, start_node
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import lab, status
from lab.lifecycle.service import pool
from lab.lifecycle.snapshots import snapshot
from lab.options import OptionFile
from lab.requests.labs import BranchLab, CreateLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from tests.support.lifecycle_world import World, lab_request

SLOW_QUERIES = OptionFile("[mysqld]\nlong_query_time=1\n", "replica")
TUNED = lab_request("replication", "shop", set=("max_connections=50",), my_cnf=(SLOW_QUERIES,))


def shop(blueprint: str = "replication", **values: Any) -> CreateLab:
    return lab_request(blueprint, "shop", **values)


def seeds(ctx: Context) -> list[bytes]:
    """What the nodes of the only template boot with."""
    (found,) = template.templates(ctx)
    directory = ctx.home.templates / found.key
    return [path.read_bytes() for path in sorted(directory.rglob("*seed*"))]


def test_options_of_servers(world: World) -> None:
    """Protects who tunes a server: it has the option, in a template of its own."""
    with world.open() as ctx:
        up(ctx, lab_request("replication", "plain"))
        made = up(ctx, TUNED)
        assert made.options == TUNED.chosen.shown
        assert len({one.key for one in template.templates(ctx)}) == 2
        up(ctx, structs.replace(TUNED, name="again"))
        assert len(template.templates(ctx)) == 2, "the second is a clone"
        template_of = ctx.store.labs.get("shop").template
        assert template_of is not None
        files = sorted((ctx.home.templates / template_of).rglob("*seed*"))
        found = [path.read_bytes() for path in files]
        assert [b"max_connections=50" in one for one in found] == [True] * 3
        assert [b"long_query_time=1" in one for one in found] == [False, True, True]


def test_a_server_that_does_not_start(world: World) -> None:
    """Protects from minutes of waiting: the server's own message, at once, and nothing left."""
    with world.open() as ctx:
        with pytest.raises(InvalidSpec, match="server of n1 does not start") as raised:
            up(ctx, shop("single", set=("unknown_option=1",)))
        first, kept = raised.value.details
        assert first == "[ERROR] unknown variable 'unknown_option=1'"
        assert Path(kept.removeprefix("bundle: ")).is_file()
        assert not ctx.store.labs.all()
        assert not template.templates(ctx)
        assert not ctx.hypervisor.guests()


def test_first_statements_are_in_the_template(world: World) -> None:
    with world.open() as ctx:
        asked = shop(init="CREATE TABLE t (a INT); INSERT INTO t VALUES (1);")
        up(ctx, asked)
        up(ctx, structs.replace(asked, name="again"))
        for name in ("shop", "again"):
            for node in ("n1", "n3"):
                assert query(ctx, name, node, "SELECT COUNT(*) FROM t").rows == ((1,),)
        query(ctx, "shop", None, "INSERT INTO t VALUES (2)")
        rollback(ctx, RollBack(lab="shop"), timeout=9.0)
        assert query(ctx, "shop", None, "SELECT COUNT(*) FROM t").rows == ((1,),)


def test_first_statements_that_are_refused(world: World) -> None:
    with world.open() as ctx:
        with pytest.raises(InvalidSpec, match="n1 refused a statement") as raised:
            up(ctx, shop("single", init="CREATE TABLE t (a INT); SELEKT 1;"))
        assert "syntax error" in raised.value.details[0]
        assert not ctx.hypervisor.guests()
        assert not template.templates(ctx)


def as_user(ctx: Context, name: str, node: str, user: str, password: str) -> None:
    """Log in to a node; raises NotReady."""
    own = account_of(ctx.home, ctx.store.labs.get(name))
    found = replace(own, user=user, password=password)
    ctx.sql(found, ctx.store.nodes.get(name, node).sql_port, "DO 1", timeout=9.0, whole=True)


@pytest.mark.parametrize("blueprint", ["single", "galera", "replication", "group", "galera-dr"])
def test_accounts(world: World, blueprint: str) -> None:
    """Protects who connects as an application: in each lab, from a template without accounts."""
    given = users.parse("app:s3cret@shop", "here")
    with world.open() as ctx:
        made = up(ctx, shop(blueprint, user=given))
        assert made.options == {"user": ["app@shop"]}
        other = up(ctx, lab_request(blueprint, "other", user=users.parse("app:x@*", "")))
        up(ctx, lab_request(blueprint, "plain"))
        assert len(template.templates(ctx)) == 1
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="one"))
        rollback(ctx, RollBack(lab="shop", to="one"), timeout=9.0)
        branch.branch(ctx, BranchLab(lab="shop", name="twin"), timeout=9.0)
        for view, password in ((made, "s3cret"), (lab(ctx, "twin"), "s3cret"), (other, "x")):
            for node in view.nodes:
                as_user(ctx, view.name, node.name, "app", password)
        with pytest.raises(NotReady, match="no SQL"):
            as_user(ctx, "plain", "n1", "app", "s3cret")
        assert b"s3cret" not in b"".join(p.read_bytes() for p in ctx.home.root.glob("state.db*"))


def test_a_lab_with_other_passwords_is_another(world: World) -> None:
    """Protects who connects: a lab that is there, or in a pool, has the passwords of its own."""
    one, other = (shop(user=users.parse(f"app:{word}@shop", "")) for word in ("one", "two"))
    with world.open() as ctx:
        up(ctx, one)
        again = shop(user=users.parse("app:one@shop", ""))  # with other salts
        assert ensure(ctx, again).state == "ready"
        with pytest.raises(Conflict, match="has another password for app"):
            ensure(ctx, other)
    kept, wanted = (structs.replace(asked, name="") for asked in (one, other))
    assert not pool.serves(world.settings, kept, wanted)
    kept = structs.replace(shop(), name="")
    assert pool.serves(world.settings, kept, kept)


def test_a_lab_with_other_options_is_another(world: World) -> None:
    """Protects `--exist-ok`: a lab without the options is not what was requested."""
    with world.open() as ctx:
        up(ctx, shop(semi_sync=True))
        assert ensure(ctx, shop(semi_sync=True)).state == "ready"
        for other in (shop(), shop(semi_sync=True, topology="chain")):
            with pytest.raises(Conflict, match="different configuration: options"):
                ensure(ctx, other)


@pytest.mark.parametrize(
    ("topology", "writers"), [("chain", ["n1"]), ("ring", ["n1", "n2", "n3"]), ("fan-in", ["n1"])]
)
def test_topologies(world: World, topology: str, writers: list[str]) -> None:
    """Protects every verb on links that are no star."""
    with world.open() as ctx:
        made = up(ctx, shop(topology=topology))
        assert {node.state for node in made.nodes} == {"ready"}
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        for number, name in enumerate(writers):
            query(ctx, "shop", name, f"INSERT INTO t VALUES ({number})")
        count = ((len(writers),),)
        assert query(ctx, "shop", "n3", "SELECT COUNT(*) FROM t").rows == count
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="loaded"))
        query(ctx, "shop", "n1", "DELETE FROM t")
        rollback(ctx, RollBack(lab="shop", to="loaded"), timeout=9.0)
        assert query(ctx, "shop", "n1", "SELECT COUNT(*) FROM t").rows == count
        (other,) = branch.branch(ctx, BranchLab(lab="shop", name="other"), timeout=9.0)
        assert other.options == {"topology": topology}
        assert [node.role for node in other.nodes] == [node.role for node in made.nodes]
        power.stop(ctx, "shop")
        assert start(ctx, "shop", timeout=9.0).state == "ready"


@pytest.mark.parametrize("topology", ["chain", "ring", "fan-in"])
def test_a_source_without_the_replica_that_acknowledges(world: World, topology: str) -> None:
    """Protects `lab start --node`: what would acknowledge is not to run."""
    with world.open() as ctx:
        up(ctx, shop(topology=topology, semi_sync=True))
        power.stop(ctx, "shop")
        assert start_node(ctx, "shop", "n1", timeout=9.0).state == "degraded", "not all of it runs"
        assert start(ctx, "shop", timeout=9.0).state == "ready"
        counted = [one for one in status(ctx, "shop").requirements if "clients" in one.what]
        assert counted
        assert all(one.met for one in counted)


def test_a_ring_without_a_node(world: World) -> None:
    """Protects a ring that is cut: the next node says so, and follows nobody else."""
    with world.open() as ctx:
        up(ctx, shop(topology="ring"))
        power.stop(ctx, "shop", node="n3")
        found = lab(ctx, "shop")
        assert found.state == "degraded"
        unmet = [one for one in status(ctx, "shop").requirements if not one.met]
        assert [(one.node, one.name, one.met, one.found) for one in unmet if one.node != "n3"] == [
            ("n1", "replicating", False, "stopped"),
            ("n1", "caught up", None, "unknown: n3 does not answer")]  # fmt: skip
        start_node(ctx, "shop", "n3", timeout=9.0)
        assert lab(ctx, "shop").state == "ready"


def test_a_delayed_replica_and_semi_sync(world: World) -> None:
    with world.open() as ctx:
        made = up(ctx, shop(semi_sync=True, delay=60.0, on=("n3",)))
        assert [node.role for node in made.nodes] == ["source", "replica", "delayed"]
        assert made.endpoints == {"rw": ("n1",), "ro": ("n2", "n3")}
        names = [one.name for one in status(ctx, "shop").requirements if one.node == "n1"]
        assert names == ["SQL", "writable", "semi-sync", "semi-sync replicas"]
        power.stop(ctx, "shop", node="n2")
        unmet = [
            one for one in status(ctx, "shop").requirements if one.node == "n1" and not one.met
        ]
        assert [(one.name, one.found) for one in unmet] == [("semi-sync replicas", "1")]


def test_a_group_in_which_all_write(world: World) -> None:
    with world.open() as ctx:
        made = up(ctx, shop("group", multi_primary=True))
        assert [node.role for node in made.nodes] == ["primary"] * 3
        assert made.endpoints == {"rw": ("n1", "n2", "n3")}
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        query(ctx, "shop", "n3", "INSERT INTO t VALUES (1)")
        assert query(ctx, "shop", "n2", "SELECT COUNT(*) FROM t").rows == ((1,),)
        names = [one.name for one in status(ctx, "shop").requirements if one.node == "n2"]
        assert "3 primaries" in names
