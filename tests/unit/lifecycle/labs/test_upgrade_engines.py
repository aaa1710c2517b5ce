"""What becomes of the engine of a lab by an upgrade, and of one that was added and removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import InvalidSpec
from lab.lifecycle.core.context import Context
from lab.lifecycle.host import builds
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.lifecycle.nodes import inspect
from lab.lifecycle.snapshots import snapshot
from lab.observe.account import Account
from lab.observe.ways import Rows
from lab.requests.host import RemoveEngine
from lab.requests.labs import BranchLab, RollBack, UpgradeLab
from tests.support.builds import added_build
from tests.support.lifecycle_world import World, lab_request


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    with World(tmp_path).open() as opened:
        yield opened


def engines(ctx: Context, name: str = "shop") -> list[tuple[str, str]]:
    """Of a lab, and of its nodes."""
    lab = inspect.lab(ctx, name)
    return [
        (lab.engine, lab.engine_version),
        *((node.engine, node.engine_version) for node in lab.nodes),
    ]


def test_a_lab_of_an_engine_that_was_removed_is_upgraded(ctx: Context) -> None:
    """Protects who removes a build that labs have: they stay, with what can be done to them."""
    added_build(ctx.home.engines, "mine", version="11.4.5", features=("upgrade", "galera"))
    up(ctx, lab_request("replication", "shop", nodes=2, engine="mariadb:10.11"))
    up(ctx, lab_request("single", "whole", engine="mine"))
    upgrade(ctx, UpgradeLab(lab="shop", to="mine", node="n2"), timeout=20)
    builds.remove(ctx, RemoveEngine(name="mine"))
    [made] = branch(ctx, BranchLab(lab="shop", name="other"), timeout=20)
    assert [node.image for node in made.nodes] == [n.image for n in ctx.store.nodes.of("shop")]
    for name, nodes in (("shop", 2), ("other", 2), ("whole", 1)):
        view = upgrade(ctx, UpgradeLab(lab=name, to="mariadb:11.8"), timeout=20)
        assert [step.state for step in view.steps] == ["upgraded"] * nodes
        assert engines(ctx, name) == [("mariadb", "11.8.6")] * (nodes + 1)


def test_a_name_that_became_another_family_is_not_what_a_lab_runs(ctx: Context) -> None:
    """Protects data: those of MySQL are nothing that a server of MariaDB could upgrade."""
    added_build(ctx.home.engines, "mine", family="mysql", version="9.7.4")
    up(ctx, lab_request("single", "shop", engine="mine"))
    shutil.rmtree(ctx.home.engines / "mine")
    added_build(ctx.home.engines, "mine", version="11.4.5", content="1" * 64, features=("upgrade",))
    for to in ("mariadb:11.8", "mine"):
        with pytest.raises(InvalidSpec, match=r"shop runs mine \(mysql .*\), which cannot become"):
            upgrade(ctx, UpgradeLab(lab="shop", to=to), timeout=20)


@pytest.mark.parametrize(
    ("older", "newer", "was", "now"),
    [
        ("mysql:8.4", "percona:8.4", ("mysql", "8.4.6"), ("percona-server", "8.4.6")),
        ("percona:8.4", "mysql:26.10", ("percona-server", "8.4.6"), ("mysql", "26.10.6")),
    ],
)
def test_a_lab_has_the_engine_that_it_was_upgraded_to(
    ctx: Context, older: str, newer: str, was: tuple[str, str], now: tuple[str, str]
) -> None:
    """Protects from a server that does not exist: the name of one, and the version of another."""
    up(ctx, lab_request("single", "shop", engine=older))
    [step] = upgrade(ctx, UpgradeLab(lab="shop", to=newer), timeout=20).steps
    assert (step.before, step.after) == (was[1], now[1])
    assert engines(ctx) == [now, now]
    rollback(ctx, RollBack(lab="shop"), timeout=20)
    assert engines(ctx) == [was, was]


def test_versions_are_what_the_servers_say(ctx: Context) -> None:
    """Protects from what is only planned: an image tells what was installed when it was built."""
    up(ctx, lab_request("single", "shop", engine="mariadb:10.11"))
    said = iter(["10.11.7-MariaDB-log", "nonsense"])

    def ask(
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        if list(statements) == ["SELECT VERSION()"]:
            return [Rows(("VERSION()",), ((next(said),),), 1)]
        return ctx.sql_all(account, port, statements, timeout=timeout, whole=whole)

    asked = UpgradeLab(lab="shop", to="mariadb:11.8")
    [step] = upgrade(replace(ctx, sql_all=ask), asked, timeout=20).steps
    assert (step.before, step.after, step.state) == ("10.11.7", "", "upgraded")


@pytest.mark.parametrize("to", ["mysql:8.4", "percona:8.4", "mysql:8.0"])
def test_mysql_before_8_0_16_is_not_upgraded(ctx: Context, to: str) -> None:
    """Protects from a step that cannot succeed, and from the reason of another failure."""
    up(ctx, lab_request("single", "shop", engine="mysql:8.0"))
    built = len(ctx.store.images.all())
    with pytest.raises(
        InvalidSpec, match=r"shop runs MySQL 8\.0\.6: .* before 8\.0\.16"
    ) as refused:
        upgrade(ctx, UpgradeLab(lab="shop", to=to), timeout=20)
    assert "lab dump" in (refused.value.hint or "")
    assert len(ctx.store.images.all()) == built
    assert [one.name for one in snapshot.snapshots(ctx, "shop")] == ["origin"]


@pytest.mark.parametrize("version", ["5.6.24", "8.0.11"])
def test_no_server_becomes_mysql_before_8_0_16(ctx: Context, version: str) -> None:
    """Protects from a failure at each such step: it cannot check the options that it is given."""
    up(ctx, lab_request("single", "shop", engine="mysql:8.4"))
    added_build(ctx.home.engines, "old", family="mysql", version=version)
    built = len(ctx.store.images.all())
    with pytest.raises(InvalidSpec, match=rf"old is MySQL {version}: .* before 8\.0\.16"):
        upgrade(ctx, UpgradeLab(lab="shop", to="old"), timeout=20)
    assert len(ctx.store.images.all()) == built


def test_an_older_build_is_refused_before_its_image_is_made(ctx: Context) -> None:
    up(ctx, lab_request("single", "shop", engine="mariadb:10.11"))
    added_build(ctx.home.engines, "old", version="10.6.5", features=("upgrade",))
    built = len(ctx.store.images.all())
    with pytest.raises(InvalidSpec, match=r"servers are not downgraded to 10\.6\.5"):
        upgrade(ctx, UpgradeLab(lab="shop", to="old"), timeout=20)
    assert len(ctx.store.images.all()) == built
