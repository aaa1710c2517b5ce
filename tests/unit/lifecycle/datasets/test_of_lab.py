"""A lab becomes a dataset: warm, as it is, and independent of it afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from lab.errors import InvalidSpec, NotFound
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import dataset
from lab.lifecycle.images import image
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.power import stop
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.up import up
from lab.lifecycle.snapshots import snapshot
from lab.options import Topology
from lab.requests.datasets import CreateDataset
from lab.requests.labs import BranchLab
from lab.requests.snapshots import TakeSnapshot
from lab.schedule import ORIGIN
from tests.support.lifecycle_world import REQUEST, World, lab_request, named
from tests.unit.lifecycle.promises.test_killed import sweep


def make_shop(ctx: Context) -> None:
    up(ctx, named("shop"))
    query(ctx, "shop", "n1", "CREATE TABLE people (id INT PRIMARY KEY)")
    add(ctx, 1)


@pytest.fixture
def ctx(world: World) -> object:
    with world.open() as context:
        make_shop(context)
        yield context


def add(ctx: Context, number: int) -> None:
    query(ctx, "shop", "n1", f"INSERT INTO people VALUES ({number})")


def people(ctx: Context, lab: str) -> list[list[object]]:
    """Whom each node of a lab has."""
    return [
        [row[0] for row in query(ctx, lab, node.name, "SELECT id FROM people ORDER BY id").rows]
        for node in ctx.store.nodes.of(lab)
    ]


def taken(ctx: Context) -> list[str]:
    """The labels of the snapshots that were taken of the lab."""
    return [o.label for o in snapshot.snapshots(ctx, "shop") if o.label != ORIGIN]


def test_a_running_lab_becomes_a_dataset(ctx: Context) -> None:
    made = dataset.create(ctx, CreateDataset(name="crm", source="lab:shop"))
    assert (made.name, made.version, made.state, made.source) == ("crm", 1, "ready", "lab:shop")
    assert taken(ctx) == [], "the one that was taken for it is gone"
    assert len(ctx.hypervisor.guests()) == REQUEST.nodes
    add(ctx, 2)
    down(ctx, "shop")
    view = up(ctx, named("a", dataset="crm"))
    assert (view.state, view.started, view.image) == ("ready", "warm", made.image)
    assert people(ctx, "a") == [[1]] * REQUEST.nodes
    image.check_disks(ctx, image.find(ctx, made.image))
    down(ctx, "a")
    dataset.remove(ctx, "crm")
    assert dataset.datasets(ctx) == []


def test_a_dataset_has_the_engine_of_the_node_that_wakes(world: World) -> None:
    """Protects labs of several series: the disks of n1 are not those of the lab's image."""
    with world.open() as ctx:
        up(ctx, lab_request("galera", "two", nodes=2, node=("n1=mariadb:10.11",)))
        made = dataset.create(ctx, CreateDataset(name="crm", source="lab:two"))
        assert made.engine == "mariadb 10.11.6"
        assert made.image.startswith("mariadb-10.11-")
        found = up(ctx, lab_request("galera", "a", nodes=2, dataset="crm"))
        assert found.engines == ("mariadb 10.11.6",)


def test_a_snapshot_becomes_one(ctx: Context) -> None:
    """The lab has changed since; a refresh has the snapshot again, and that may be removed."""
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="loaded"))
    add(ctx, 2)
    dataset.create(ctx, CreateDataset(name="crm", source="lab:shop@loaded"))
    assert dataset.refresh(ctx, "crm").version == 2
    snapshot.remove(ctx, "shop", taken(ctx))
    up(ctx, named("a", dataset="crm"))
    assert people(ctx, "a") == [[1]] * REQUEST.nodes


def test_a_branch_of_a_lab_with_a_dataset(ctx: Context) -> None:
    """How a dataset is changed: a branch, statements, and a dataset of that."""
    dataset.create(ctx, CreateDataset(name="crm", source="lab:shop"))
    up(ctx, named("a", dataset="crm"))
    branch(ctx, BranchLab(lab="a", name="b"), timeout=20.0)
    query(ctx, "b", "n1", "INSERT INTO people VALUES (7)")
    made = dataset.create(ctx, CreateDataset(name="next", source="lab:b"))
    for lab in ("b", "a", "shop"):
        down(ctx, lab)
    for record in ctx.store.templates.all():
        template.remove(ctx, record.key)
    dataset.remove(ctx, "crm")
    assert up(ctx, named("c", dataset="next")).image == made.image
    assert people(ctx, "c") == [[1, 7]] * REQUEST.nodes


def test_what_cannot_become_one(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        dataset.create(ctx, CreateDataset(name="crm", source="lab:other"))
    more = CreateDataset(name="crm", source="lab:shop", files=(str(tmp_path / "x.sql"),))
    with pytest.raises(InvalidSpec, match="neither masked nor with further SQL"):
        dataset.create(ctx, more)
    snapshot.take(ctx, TakeSnapshot(lab="shop", name="cold", disks_only=True))
    with pytest.raises(InvalidSpec, match="no RAM") as caught:
        dataset.create(ctx, CreateDataset(name="crm", source="lab:shop@cold"))
    assert "lab start shop" in caught.value.hint
    stop(ctx, "shop")
    with pytest.raises(InvalidSpec, match="RAM"):
        dataset.create(ctx, CreateDataset(name="crm", source="lab:shop"))
    assert dataset.datasets(ctx) == []
    assert [label.partition(".")[0] for label in taken(ctx)] == ["cold"]


@pytest.mark.parametrize("topology", ["star", "chain", "ring"])
def test_a_lab_that_replicates_becomes_one(world: World, topology: Topology) -> None:
    asked = lab_request("replication", "shop", topology=topology)
    with world.open() as ctx:
        up(ctx, asked)
        query(ctx, "shop", "n1", "CREATE TABLE people (id INT PRIMARY KEY)")
        add(ctx, 1)
        made = dataset.create(ctx, CreateDataset(name="crm", source="lab:shop"))
        assert (made.state, made.blueprint) == ("ready", "replication")
        assert taken(ctx) == []
        down(ctx, "shop")
        assert up(ctx, structs.replace(asked, dataset="crm", name="a")).state == "ready"
        query(ctx, "a", "n1", "INSERT INTO people VALUES (2)")
        assert people(ctx, "a") == [[1, 2]] * asked.node_count


def test_a_fan_in_becomes_none(world: World) -> None:
    """No node that wakes alone has all data and takes writes."""
    with world.open() as ctx:
        up(ctx, lab_request("replication", "shop", topology="fan-in"))
        with pytest.raises(InvalidSpec, match="shop is a fan-in") as caught:
            dataset.create(ctx, CreateDataset(name="crm", source="lab:shop"))
        assert "n3" in caught.value.hint
        assert (dataset.datasets(ctx), taken(ctx)) == ([], [])


def test_a_refresh_from_another_lab_of_that_name(ctx: Context) -> None:
    dataset.create(ctx, CreateDataset(name="crm", source="lab:shop"))
    down(ctx, "shop")
    up(ctx, lab_request("replication", "shop", topology="fan-in"))
    with pytest.raises(InvalidSpec, match="shop is a fan-in"):
        dataset.refresh(ctx, "crm")
    assert [one.version for one in dataset.datasets(ctx)] == [1]


@pytest.mark.rare
def test_it_is_killed(world: World) -> None:
    """Protects the lab and the host at each step; a snapshot that is left expires."""

    def again(ctx: Context) -> None:
        for view in dataset.datasets(ctx):
            dataset.remove(ctx, view.name)
        snapshot.remove(ctx, "shop", taken(ctx))

    steps = {
        "storage.clone", "hypervisor.restore", "hypervisor.run", "hypervisor.stop",
        "storage.write", "storage.destroy", "state.commit",
    }  # fmt: skip
    sweep(
        world,
        make_shop,
        lambda ctx: dataset.create(ctx, CreateDataset(name="crm", source="lab:shop")),
        steps,
        again=again,
    )
