"""Captures of labs from before an upgrade: whatever is made of one has the servers of then."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.lifecycle.archives.snapshot_archive import export_snapshot, import_snapshot
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import dataset
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.lifecycle.nodes import inspect
from lab.lifecycle.snapshots import snapshot
from lab.requests.archives import Destination, ExportArchive, ImportSnapshot
from lab.requests.datasets import CreateDataset
from lab.requests.labs import BranchLab, RollBack, UpgradeLab
from lab.requests.snapshots import TakeSnapshot
from lab.views.labs import LabView
from tests.support.exchange_world import Side
from tests.support.lifecycle_world import World, lab_request

OLDER, NEWER = "mariadb:10.11", "mariadb:11.8"
OLD, NEW = "10.11.6", "11.8.6"


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with World(tmp_path).open() as opened:
        yield opened


def upgraded(ctx: Context, node: str = "") -> dict[str, str]:
    """A lab of two servers that were upgraded, or one; the labels of its snapshots by node."""
    up(ctx, lab_request("galera", "shop", nodes=2, engine=OLDER))
    query(ctx, "shop", None, "CREATE TABLE t (a INT)")
    view = upgrade(ctx, UpgradeLab(lab="shop", to=NEWER, node=node), timeout=20)
    return {step.node: step.snapshot for step in view.steps}


def engines(view: LabView) -> list[tuple[str, str]]:
    return [(node.engine, node.engine_version) for node in view.nodes]


def mariadb(*versions: str) -> list[tuple[str, str]]:
    return [("mariadb", version) for version in versions]


def images(ctx: Context, name: str) -> list[str]:
    return [node.image.rpartition("-")[0] for node in ctx.store.nodes.of(name)]


def test_a_branch_of_a_lab_half_way(ctx: Context) -> None:
    """Protects from a branch with the RAM of one server and the name, and image, of another."""
    before = upgraded(ctx, "n2")["n2"]
    [made] = branch(ctx, BranchLab(lab="shop", name="was", at=before), timeout=20)
    assert (made.started, engines(made)) == ("warm", mariadb(OLD, OLD))
    assert images(ctx, "was") == ["mariadb-10.11", "mariadb-10.11"]
    assert ctx.store.labs.get("was").options.get("node") is None
    view = upgrade(ctx, UpgradeLab(lab="was", to=NEWER), timeout=20)
    assert [(step.node, step.before) for step in view.steps] == [("n2", OLD), ("n1", OLD)]
    [now] = branch(ctx, BranchLab(lab="shop", name="now"), timeout=20)
    assert engines(now) == mariadb(OLD, NEW)


@pytest.mark.rare
def test_branches_of_a_lab_that_was_upgraded(ctx: Context) -> None:
    """Protects the way back: each snapshot of it, and its origin, can still be branched."""
    before = upgraded(ctx)
    for name, at, found in (
        ("a", before["n2"], (OLD, OLD)),
        ("b", before["n1"], (OLD, NEW)),
        ("c", "origin", (OLD, OLD)),
    ):
        [made] = branch(ctx, BranchLab(lab="shop", name=name, at=at), timeout=20)
        assert (made.state, made.engine_version) == ("ready", OLD)
        assert engines(made) == mariadb(*found)
        upgrade(ctx, UpgradeLab(lab=name, to=NEWER), timeout=20)
        assert engines(inspect.lab(ctx, name)) == mariadb(NEW, NEW)
        back = rollback(ctx, RollBack(lab=name), timeout=20)
        assert engines(back) == mariadb(*found), "its origin is what it was branched of"
    assert engines(inspect.lab(ctx, "shop")) == mariadb(NEW, NEW)


def test_a_branch_of_a_branch_has_what_that_was_made_with(ctx: Context) -> None:
    """Protects from the images that the first lab has now: the origin of a branch is older."""
    up(ctx, lab_request("galera", "shop", nodes=2, engine=OLDER))
    branch(ctx, BranchLab(lab="shop", name="first", at="origin"), timeout=20)
    upgrade(ctx, UpgradeLab(lab="shop", to=NEWER), timeout=20)
    upgrade(ctx, UpgradeLab(lab="first", to=NEWER), timeout=20)
    [made] = branch(ctx, BranchLab(lab="first", name="second", at="origin"), timeout=20)
    assert engines(made) == mariadb(OLD, OLD)
    assert engines(rollback(ctx, RollBack(lab="first"), timeout=20)) == mariadb(OLD, OLD)


@pytest.mark.rare
@pytest.mark.parametrize("node", ["n2", "n1"])
def test_an_archive_of_a_snapshot_has_the_servers_of_then(tmp_path: Path, node: str) -> None:
    here, there = Side(tmp_path / "here"), Side(tmp_path / "there")
    archive = io.BytesIO()
    with here.open() as ctx:
        before = upgraded(ctx)
        export_snapshot(
            ctx,
            ExportArchive(
                kind="snapshot", lab="shop", which=before[node], to=Destination(sink=archive)
            ),
        )
    with there.open() as ctx:
        made = import_snapshot(ctx, io.BytesIO(archive.getvalue()), ImportSnapshot(), timeout=20.0)
        assert engines(made) == mariadb(OLD, OLD if node == "n2" else NEW)


def test_a_dataset_of_a_snapshot_has_the_server_of_then(tmp_path: Path) -> None:
    with Side(tmp_path / "here").open() as ctx:
        before = upgraded(ctx)["n2"]
        made = dataset.create(ctx, CreateDataset(name="was", source=f"lab:shop@{before}"))
        assert made.engine == f"mariadb {OLD}"
        taken = snapshot.take(ctx, TakeSnapshot(lab="shop", name="since")).label
        made = dataset.create(ctx, CreateDataset(name="now", source=f"lab:shop@{taken}"))
        assert made.engine == f"mariadb {NEW}"
