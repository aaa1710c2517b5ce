"""Upgrades of labs, node by node, on the fakes: what is kept, what is reported, what goes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, InvalidSpec, NoProgram, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.host import catalog
from lab.lifecycle.images import image
from lab.lifecycle.labs import power
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.lifecycle.nodes import inspect
from lab.lifecycle.snapshots import snapshot
from lab.names import Owner
from lab.requests.labs import BranchLab, RollBack, UpgradeLab
from lab.schedule import FORMER
from tests.support.builds import added_build
from tests.support.lifecycle_world import World, at, count, lab_request, raising

OLDER, NEWER = "mariadb:10.11", "mariadb:11.8"


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with World(tmp_path).open() as opened:
        yield opened


def older(ctx: Context, blueprint: str, nodes: int = 2, **more: object) -> None:
    """A lab of the older series with a table of a row."""
    up(ctx, lab_request(blueprint, "shop", nodes=nodes, engine=OLDER, **more))
    query(ctx, "shop", None, "CREATE TABLE t (a INT)")
    query(ctx, "shop", None, "INSERT INTO t VALUES (1)")


def versions(ctx: Context, name: str = "shop") -> list[str]:
    return [node.engine_version for node in inspect.lab(ctx, name).nodes if node.engine_version]


@pytest.mark.parametrize(
    ("blueprint", "nodes"),
    [
        ("single", 1),
        ("galera", 3),
        ("replication", 3),
        pytest.param("galera-dr", 4, marks=pytest.mark.rare),
    ],
)
def test_all_nodes(ctx: Context, blueprint: str, nodes: int) -> None:
    """Protects what an upgrade is for: the data are there on newer servers, and can go back."""
    older(ctx, blueprint, 2 if blueprint == "galera-dr" else nodes,
          **({"replicas": 2} if blueprint == "galera-dr" else {}))  # fmt: skip
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert [step.state for step in view.steps] == ["upgraded"] * nodes
    assert {(step.before, step.after) for step in view.steps} == {("10.11.6", "11.8.6")}
    assert (view.failed, view.lost, view.changed, view.unchecked) == (False, 0, (), ())
    lab = inspect.lab(ctx, "shop")
    assert (lab.state, lab.engine_version) == ("ready", "11.8.6")
    assert versions(ctx) == ["11.8.6"] * nodes
    assert count(ctx) == 1
    assert not [volume for volume in ctx.storage.volumes() if volume.name.volume == FORMER]
    taken = [one.name for one in snapshot.snapshots(ctx, "shop")]
    assert taken == ["origin", *(f"before-{step.node}" for step in view.steps)]
    query(ctx, "shop", None, "INSERT INTO t VALUES (2)")

    back = rollback(ctx, RollBack(lab="shop", to=view.steps[-1].snapshot), timeout=20)
    last = view.steps[-1].node
    assert {node.name: node.engine_version for node in back.nodes}[last] == "10.11.6"
    assert count(ctx) == 1
    down(ctx, "shop", force=True)
    assert ctx.storage.volumes() == [
        volume for volume in ctx.storage.volumes() if volume.name.owner.kind != "lab"
    ]


def test_a_build_that_could_not_upgrade_its_tables_is_refused(ctx: Context) -> None:
    """Protects from what was found only after the server of a node had been replaced."""
    older(ctx, "single", 1)
    added_build(ctx.home.engines, "bare")
    with pytest.raises(InvalidSpec, match=r"bare .* the build has no upgrade") as refused:
        upgrade(ctx, UpgradeLab(lab="shop", to="bare"), timeout=20)
    assert "mariadb-upgrade" in (refused.value.hint or "")
    assert snapshot.snapshots(ctx, "shop")[1:] == []
    added_build(ctx.home.engines, "whole", features=("upgrade",))
    view = upgrade(ctx, UpgradeLab(lab="shop", to="whole"), timeout=20)
    assert [step.state for step in view.steps] == ["upgraded"]


def test_who_takes_the_writes_is_the_last(ctx: Context) -> None:
    older(ctx, "replication", 3)
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert [step.node for step in view.steps] == ["n3", "n2", "n1"]
    assert {node.name: node.role for node in inspect.lab(ctx, "shop").nodes}["n3"] == "source"


def test_one_node(ctx: Context) -> None:
    """A lab half way: it survives a stop, and its branch has the same servers."""
    older(ctx, "galera", 2)
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, node="n2"), timeout=20)
    assert [(step.node, step.state) for step in view.steps] == [("n2", "upgraded")]
    assert versions(ctx) == ["10.11.6", "11.8.6"]
    assert inspect.lab(ctx, "shop").engine_version.startswith("10.11.6")
    power.stop(ctx, "shop")
    assert start(ctx, "shop", timeout=20).state == "ready"
    assert count(ctx, "n2") == 1
    [made] = branch(ctx, BranchLab(lab="shop", name="other"), timeout=20)
    assert [node.engine_version for node in made.nodes] == ["10.11.6", "11.8.6"]
    assert count(ctx, "n2", "other") == 1
    with pytest.raises(Conflict, match="has the image"):
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, node="n2"), timeout=20)
    [step] = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).steps
    assert (step.node, versions(ctx)) == ("n1", ["11.8.6", "11.8.6"])
    rollback(ctx, RollBack(lab="shop"), timeout=20)
    assert versions(ctx) == ["10.11.6", "10.11.6"]


LONG = " " * 100_000
LINE = "[ERROR] mariadbd: unknown variable 'old-x=1'"
RARE = pytest.mark.rare


@pytest.mark.parametrize(
    "step", ["carry.begin", *(pytest.param(step, marks=RARE) for step in ("boot.begin",
                                                                          "upgrade.begin"))]
)  # fmt: skip
def test_a_step_that_fails_goes_back(tmp_path: Path, step: str) -> None:
    """Reported, with the lab as it was before: also the nodes that were upgraded before it stay."""
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx, "galera", 2)
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, node="n2"), timeout=20)
    hook = at(
        step,
        raising(NotReady("the server of n1 does not start", details=["[ERROR] x", LINE + LONG])),
    )
    with world.open(hook) as ctx:
        view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
        [found] = view.steps
        assert (found.node, found.state, found.after) == ("n1", "rolled back", "")
        assert found.why == "the server of n1 does not start"
        assert found.log == ("[ERROR] x", (LINE + LONG)[:500])
        assert [(one.name, one.state) for one in found.options or ()] == [("old_x", "unknown")]
        assert (found.locked_out, found.rebuild) == (None, None)
        assert (view.failed, view.lost) == (True, None)
        assert inspect.lab(ctx, "shop").state == "ready"
        assert versions(ctx) == ["10.11.6", "11.8.6"]
        assert (count(ctx, "n1"), count(ctx, "n2")) == (1, 1)
        assert upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).lost == 0
        assert versions(ctx) == ["11.8.6", "11.8.6"]


def test_a_snapshot_that_has_no_space_ends_it(tmp_path: Path) -> None:
    """The steps before are reported, and the lab is half way, as it was."""
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx, "galera", 2)
    taken = []

    def hook(step: str) -> None:
        if step == "snapshot.begin":
            taken.append(step)
            if len(taken) == 2:
                raise HostUnfit("no space")

    with world.open(hook) as ctx:
        view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
        assert [(s.node, s.state, s.why) for s in view.steps] == [
            ("n2", "upgraded", ""), ("n1", "failed", "no space"),
        ]  # fmt: skip
        assert view.steps[1].snapshot == ""
        assert (view.steps[1].log, view.steps[1].options) == (None, None)
        assert inspect.lab(ctx, "shop").state == "ready"
        assert versions(ctx) == ["10.11.6", "11.8.6"]


def test_a_lab_is_kept_as_a_step_left_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx, "galera", 2)
    hook = at("upgrade.begin", raising(NotReady("no")))
    with world.open(hook) as ctx:
        view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, keep_failed=True), timeout=20)
        assert [step.state for step in view.steps] == ["failed"]
        assert versions(ctx) == ["10.11.6", "11.8.6"]
        rollback(ctx, RollBack(lab="shop", to=view.steps[0].snapshot), timeout=20)
        assert versions(ctx) == ["10.11.6", "10.11.6"]
        assert count(ctx) == 1


def test_a_node_that_was_not_verified_goes_back_with_a_start(tmp_path: Path) -> None:
    """Protects from a server of the new version that counts, though it does not replicate."""
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx, "galera", 2)
    asked = UpgradeLab(lab="shop", to=NEWER, node="n2", keep_failed=True)
    with world.open(at("replicate.begin", raising(NotReady("no rows")))) as ctx:
        assert [step.state for step in upgrade(ctx, asked, timeout=20).steps] == ["failed"]
        assert versions(ctx) == ["10.11.6", "11.8.6"]
        assert "completes it" in inspect.lab(ctx, "shop").interrupted
    with world.open() as ctx:
        assert start(ctx, "shop", timeout=20).state == "ready"
        assert versions(ctx) == ["10.11.6", "10.11.6"]
    step = "replicate.begin"
    assert world.killed(lambda ctx: upgrade(ctx, asked, timeout=20), step) == step
    with world.open() as ctx:
        assert start(ctx, "shop", timeout=20).state == "ready"
        assert versions(ctx) == ["10.11.6", "10.11.6"]
        assert count(ctx, "n2") == 1
        assert [step.state for step in upgrade(ctx, asked, timeout=20).steps] == ["upgraded"]
        assert inspect.lab(ctx, "shop").interrupted == ""


SOME = ("storage.rollback", "carry.begin", "upgrade.begin")
OTHERS = (
    "stop.begin", "storage.clone", "system.begin", "carry.end", "boot.begin", "upgrade.end",
)  # fmt: skip


@pytest.mark.rare
@pytest.mark.parametrize("step", [*SOME, *(pytest.param(step, marks=RARE) for step in OTHERS)])
def test_a_killed_upgrade_is_completed_backwards(tmp_path: Path, step: str) -> None:
    """Protects the data: whenever it is killed, `lab start` has a lab that is whole."""
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx, "galera", 2)

    def verb(ctx: Context) -> None:
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, node="n2"), timeout=20)

    assert world.killed(verb, step) == step
    with world.open() as ctx:
        assert start(ctx, "shop", timeout=20).state == "ready"
        assert (count(ctx, "n1"), count(ctx, "n2")) == (1, 1)
        assert versions(ctx)[0] == "10.11.6"
        assert not [volume for volume in ctx.storage.volumes() if volume.name.volume == FORMER]
        verb(ctx) if versions(ctx)[1] == "10.11.6" else None
        assert versions(ctx) == ["10.11.6", "11.8.6"]
        down(ctx, "shop", force=True)
    assert not [one for one in world.there() if "shop" in one]


def test_what_is_refused(ctx: Context) -> None:
    up(ctx, lab_request("galera", "shop", nodes=2, engine=NEWER))
    built = len(ctx.store.images.all())
    with pytest.raises(InvalidSpec, match=r"runs 11\.8\.6; servers are not downgraded to 10\.11"):
        upgrade(ctx, UpgradeLab(lab="shop", to=OLDER), timeout=20)
    assert len(ctx.store.images.all()) == built, "an image was built for nothing"
    with pytest.raises(InvalidSpec, match="cannot run on the engine"):
        upgrade(ctx, UpgradeLab(lab="shop", to="mysql:9.7"), timeout=20)
    with pytest.raises(Conflict, match="has the image"):
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert ctx.hypervisor.memory is not None
    ctx.hypervisor.memory.pause([inspect.node_of(ctx, "shop", "n2").guest])
    with pytest.raises(NotReady, match="n2 of shop does not run") as paused:
        upgrade(ctx, UpgradeLab(lab="shop", to="mariadb:11.8"), timeout=20)
    assert paused.value.hint == "`lab start shop` first"
    assert start(ctx, "shop", timeout=20).state == "ready"
    power.stop(ctx, "shop", node="n2")
    with pytest.raises(NotReady, match="n2 of shop does not run"):
        upgrade(ctx, UpgradeLab(lab="shop", to="mariadb:11.8"), timeout=20)


def test_a_database_of_the_users_is_not_removed(ctx: Context) -> None:
    """Protects data in a database that happens to have the name of the probe's."""
    older(ctx, "single", 1)
    query(ctx, "shop", None, "CREATE DATABASE lab_upgrade")
    query(ctx, "shop", None, "CREATE TABLE lab_upgrade.mine (a INT)")
    with pytest.raises(Conflict, match="has a database lab_upgrade"):
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert query(ctx, "shop", None, "SELECT COUNT(*) FROM lab_upgrade.mine").rows[0][0] == 0


def test_a_workload_runs_meanwhile(ctx: Context) -> None:
    """Protects who brings a workload: it has the lab's variables, and is ended at the end."""
    older(ctx, "single", 1)
    script = "trap 'exit 7' TERM; printf '%s\\033\\n' $LAB_NAME; sleep 300 & wait"
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, workload=("sh", "-c", script)), timeout=20)
    assert view.workload is not None
    assert (view.workload.code, view.workload.by_itself) == (7, False)
    assert view.workload.output == (r"shop\x1b",)


def test_what_a_workload_prints_of_the_password_is_not_kept(ctx: Context) -> None:
    """Protects who passes the report on: a file of HTML is not secret."""
    older(ctx, "single", 1)
    script = ("sh", "-xc", 'true -p"$LAB_PASSWORD" $LAB_DSN')
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, workload=script), timeout=20)
    assert view.workload is not None
    [line] = view.workload.output
    assert line.startswith("+ true -p*** mysql://lab:***@")


def test_a_workload_that_ends_early(ctx: Context) -> None:
    older(ctx, "single", 1)
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, workload=("false",)), timeout=20)
    assert view.workload is not None
    assert (view.workload.code, view.workload.by_itself, view.failed) == (1, True, False)


def test_a_workload_that_cannot_run_changes_nothing(ctx: Context) -> None:
    older(ctx, "single", 1)
    with pytest.raises(NoProgram):
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, workload=("/nowhere",)), timeout=20)
    assert versions(ctx) == ["10.11.6"]
    assert [one.name for one in snapshot.snapshots(ctx, "shop")] == ["origin"]


def test_statements_are_compared_on_each_node(ctx: Context) -> None:
    """Protects who has many: each node, before and after; one that fails on both is not counted."""
    older(ctx, "galera", 2)
    text = "SELECT a FROM t; SELECT nothing FROM t"
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, statements=text), timeout=20)
    assert [(step.compared, step.statements) for step in view.steps] == [(1, ())] * 2
    assert {(step.locked_out, step.rebuild, step.log, step.options) for step in view.steps} == {
        ((), (), (), ())
    }
    with pytest.raises(InvalidSpec, match="does not only read"):
        upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, statements="DELETE FROM t"), timeout=20)


def test_statements_of_a_step_that_fails_are_unknown(tmp_path: Path) -> None:
    """Protects from "none differ" where the new server was never asked."""
    world = World(tmp_path)
    with world.open() as ctx:
        older(ctx, "single", 1)
    with world.open(at("upgrade.begin", raising(NotReady("no")))) as ctx:
        asked = UpgradeLab(lab="shop", to=NEWER, statements="SELECT a FROM t")
        [step] = upgrade(ctx, asked, timeout=20).steps
    assert (step.state, step.statements, step.compared) == ("rolled back", None, 0)


def test_each_endpoint_is_measured(tmp_path: Path) -> None:
    """Protects who connects through a proxy: its endpoints answer while a server is away."""
    with World(tmp_path, boot_seconds=0.4).open() as ctx:
        older(ctx, "galera", 2, proxy="haproxy")
        view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
        for step in view.steps:
            assert step.unanswered[step.node] >= 0.4
            names = [name for name in step.unanswered if " " in name]
            assert [name.split()[1] for name in names] == ["rw", "ro"]
            assert set(step.unanswered) == {"n1", "n2", *names}


def test_options_that_the_new_server_ignores(ctx: Context) -> None:
    """Protects who brings an option file: the step says which of its options are over."""
    older(ctx, "single", 1, set=["removed_x=1", "max_connections=50"])
    [step] = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).steps
    assert [(one.name, one.state) for one in step.options or ()] == [("removed_x", "ignored")]


def test_an_image_that_snapshots_need_stays(ctx: Context) -> None:
    """Protects the way back: of two upgrades, the series between is in snapshots only."""
    up(ctx, lab_request("single", "shop", engine="mariadb:10.6"))
    upgrade(ctx, UpgradeLab(lab="shop", to=OLDER), timeout=20)
    between = ctx.store.nodes.of("shop")[0].image
    [step] = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20).steps
    assert f"snapshot shop@{step.snapshot}" in image.image(ctx, between).used_by
    with pytest.raises(Conflict, match=f"used by snapshot shop@{step.snapshot}"):
        image.remove(ctx, between)
    assert Owner("image", between) not in catalog.unused(ctx, time.time() + 1)
    rollback(ctx, RollBack(lab="shop", to=step.snapshot), timeout=20)
    assert versions(ctx) == ["10.11.6"]
    upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    taken = [one.label for one in snapshot.snapshots(ctx, "shop") if one.name != "origin"]
    snapshot.remove(ctx, "shop", taken, force=True)
    image.remove(ctx, between)


def test_rows_are_looked_for_where_they_come(ctx: Context) -> None:
    """Protects from a loss that is none: a source of a fan-in never gets the other's rows."""
    older(ctx, "replication", 3, topology="fan-in")
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert (view.failed, view.lost) == (False, 0)
    assert view.unchecked == ("n2: it does not replicate from n1, which took the rows",)


def test_a_delayed_replica_is_not_asked_for_them(ctx: Context) -> None:
    older(ctx, "replication", 3, delay=3600.0, on=["n3"])
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert (view.failed, view.lost) == (False, 0)
    assert view.unchecked == ("n3: it is a delayed replica",)
    roles = {node.name: node.role for node in inspect.lab(ctx, "shop").nodes}
    assert roles == {"n1": "replica", "n2": "source", "n3": "delayed"}


def test_a_replica_behind_a_delayed_one_is_not_asked_for_them(ctx: Context) -> None:
    """Protects from a loss that is none: what comes late to a replica comes late to its own."""
    older(ctx, "replication", 4, topology="chain", delay=3600.0, on=["n3"])
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert (view.failed, view.lost) == (False, 0)
    assert view.unchecked == (
        "n3: it is a delayed replica",
        "n4: it replicates from n1 through a delayed replica",
    )


def test_one_of_the_new_series_takes_the_writes(ctx: Context) -> None:
    """Protects an upgrade in several calls: the last one promotes what an earlier one upgraded."""
    older(ctx, "replication", 3)
    upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, node="n2"), timeout=20)
    upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, node="n1"), timeout=20)
    roles = {node.name: node.role for node in inspect.lab(ctx, "shop").nodes}
    assert roles == {"n1": "replica", "n2": "source", "n3": "replica"}
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    assert ([step.node for step in view.steps], view.lost) == (["n3"], 0)


def test_a_group_elects_its_primary_itself(tmp_path: Path) -> None:
    """Protects groups: they refuse a primary by hand whose version is not the lowest."""
    steps: list[str] = []
    with World(tmp_path).open(steps.append) as ctx:
        up(ctx, lab_request("group", "shop", nodes=3, engine="mysql:8.4"))
        view = upgrade(ctx, UpgradeLab(lab="shop", to="mysql:9.7"), timeout=20)
    assert ([step.node for step in view.steps], view.failed) == (["n3", "n2", "n1"], False)
    assert {step.rebuild for step in view.steps} == {None}, "MySQL was not asked"
    assert "promote.begin" not in steps
