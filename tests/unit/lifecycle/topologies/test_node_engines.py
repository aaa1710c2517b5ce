"""Labs whose nodes run servers of several series, from `up` to `down`, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab.blueprints import Engine, Member, blueprint_of, planned, with_options
from lab.blueprints.versions import cautions, series
from lab.cli.terminal.show import lab_text, labs_text
from lab.config.profile import EngineProfile
from lab.errors import Conflict, InvalidSpec
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import failures
from lab.lifecycle.images.order import choose, resolve
from lab.lifecycle.labs import power
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.promote import promote
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes import inspect
from lab.lifecycle.service import pool
from lab.lifecycle.snapshots import snapshot
from lab.options import Options
from lab.progress import Progress
from lab.requests.labs import BranchLab, CreateLab, EnsureLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.spec import LabSpec
from tests.support.exchange_world import Side
from tests.support.lifecycle_world import World, lab_request

OLDER = "mariadb:10.11"


def mixed(blueprint: str = "galera", *node: str, **more: Any) -> CreateLab:
    return lab_request(blueprint, "two", nodes=2, node=node or (f"n2={OLDER}",), **more)


def refused(blueprint: str, *node: str, **more: Any) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as caught:
        planned(LabSpec(blueprint, options=Options(node=node).said, **more))
    return caught.value


def origin(ctx: Context, volume: str) -> str:
    """What the fake storage says that a volume is a clone of."""
    found = json.loads((ctx.home.storage / "state.json").read_text())
    return str(found[volume]["origin"])


def versions(ctx: Context, name: str = "two") -> list[str]:
    return [node.engine_version for node in inspect.lab(ctx, name).nodes]


@pytest.mark.rare
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("blueprint", ["galera", "replication"])
def test_every_verb(tmp_path: Path, blueprint: str, cold: bool) -> None:
    """Protects labs half way through an upgrade: no verb takes one node's image for another's."""
    with World(tmp_path).open() as ctx:
        made = up(ctx, structs.replace(mixed(blueprint), cold=cold))
        assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
        first, second = made.nodes
        assert (first.image, first.engine_version) == (made.image, "11.8.6")
        assert second.image.startswith("mariadb-10.11-")
        assert second.engine_version == "10.11.6"
        if cold:
            assert origin(ctx, "labs/two/n2/os").startswith(f"images/{second.image}/")
        else:
            record = ctx.store.templates.get(made.template)
            assert record.images == {first.image, second.image}
        taken = snapshot.take(ctx, TakeSnapshot(lab="two", name="one"))
        query(ctx, "two", "n1", "CREATE TABLE t (a INT)")
        power.stop(ctx, "two")
        assert start(ctx, "two", timeout=10).state == "ready"
        assert rollback(ctx, RollBack(lab="two", to=taken.label), timeout=10).state == "ready"
        (other,) = branch(ctx, BranchLab(lab="two", name="other"), timeout=10)
        assert [node.image for node in other.nodes] == [first.image, second.image]
        assert versions(ctx, "other") == versions(ctx) == ["11.8.6", "10.11.6"]
        if blueprint == "replication":
            assert promote(ctx, "two", "n2", timeout=10).state == "ready"
        assert rollback(ctx, RollBack(lab="two", to="origin"), timeout=10).state == "ready"
        for name in ("other", "two"):
            down(ctx, name)


@pytest.mark.rare
def test_a_remote_site_of_another_series(tmp_path: Path) -> None:
    """A replica may be newer than its cluster, and follows it, cold and warm."""
    asked = lab_request(
        "galera-dr", "two", nodes=2, replicas=2, engine=OLDER,
        node=("n3=mariadb:11.8", "n4=mariadb:11.8"),
    )  # fmt: skip
    with World(tmp_path).open() as ctx:
        for cold in (True, False):
            made = up(ctx, structs.replace(asked, cold=cold))
            assert (made.state, made.started) == ("ready", "cold" if cold else "warm")
            assert versions(ctx) == ["10.11.6", "10.11.6", "11.8.6", "11.8.6"]
            query(ctx, "two", None, "CREATE TABLE t (a INT)")
            power.stop(ctx, "two")
            assert start(ctx, "two", timeout=10).state == "ready"
            (other,) = branch(ctx, BranchLab(lab="two", name="other"), timeout=10)
            assert [node.engine_version for node in other.nodes] == versions(ctx)
            for name in ("other", "two"):
                down(ctx, name)


@pytest.mark.rare
def test_a_template_is_that_of_its_images(tmp_path: Path) -> None:
    """Protects clones: another series is another template, and the same one by another name not."""
    with World(tmp_path).open() as ctx:
        made = up(ctx, structs.replace(mixed(), name="one"))
        again = up(ctx, structs.replace(mixed("galera", "n2=mariadb-10.11"), name="again"))
        alike = up(ctx, structs.replace(mixed("galera", "n2=mariadb"), name="alike"))
        usual = up(ctx, lab_request("galera", "usual", nodes=2))
        assert made.template == again.template != usual.template
        assert alike.template == usual.template
        assert len(ctx.store.images.all()) == 2
        (of_alike,) = branch(ctx, BranchLab(lab="alike"), timeout=10)
        assert {node.image for node in of_alike.nodes} == {usual.image}


def test_the_series_is_recorded(tmp_path: Path) -> None:
    """Protects labs of a time when an engine's first series was another one."""
    with World(tmp_path).open() as ctx:
        made = up(ctx, mixed("galera", "n2=mariadb"))
        assert made.options == {"node": ("n2=mariadb:11.8",)}
        asked = EnsureLab.of(mixed("galera", "n2=mariadb"))
        assert ensure(ctx, asked, timeout=10).name == "two"
        with pytest.raises(Conflict, match=r"options .*n2=mariadb:11.8.*requested .*10.11"):
            ensure(ctx, EnsureLab.of(mixed()), timeout=10)


def test_it_is_shown_where_versions_differ(tmp_path: Path) -> None:
    with World(tmp_path).open() as ctx:
        assert "ENGINE" not in lab_text(up(ctx, lab_request("galera", "usual", nodes=2)), 0)
        made = up(ctx, mixed())
        seen = preview(ctx, structs.replace(mixed(), name="next"))
    assert made.engines == ("mariadb 11.8.6", "mariadb 10.11.6")
    text = lab_text(made, 0)
    assert "ENGINE" in text
    assert [line.split()[-2:] for line in text.splitlines()[1:3]] == [
        ["mariadb", "11.8.6"],
        ["mariadb", "10.11.6"],
    ]
    assert "mariadb 11.8.6, mariadb 10.11.6" in labs_text([made], 0)
    assert [node.image for node in seen.each] == [node.image for node in made.nodes]
    assert seen.template == made.template


@pytest.mark.rare
def test_it_travels(tmp_path: Path) -> None:
    """Protects archives of several images: template and snapshot, with RAM."""
    here, there = Side(tmp_path / "here", forms=True), Side(tmp_path / "there")
    with here.open() as ctx:
        key = template.build(ctx, mixed()).key
    done = there.imported("template", here.exported("template", key), warm_only=True)
    with there.open() as ctx:
        made = up(ctx, mixed())
        assert (made.started, made.template) == ("warm", done.key)
        assert versions(ctx) == ["11.8.6", "10.11.6"]


def test_the_engine_of_the_lab_is_of_the_same_family(tmp_path: Path) -> None:
    """Protects blueprints of several families: the engine follows from those of nodes."""
    with World(tmp_path).open() as ctx:
        for blueprint, node, recipes in (
            ("replication", "n2=mysql:9.7", ["mysql"]),
            ("replication", "n2=percona:8.4", ["mysql"]),
            ("replication", f"n2={OLDER}", ["mariadb"]),
            ("pxc", "n2=percona:8.0", ["percona-xtradb-cluster"]),
            ("pxc", f"n2={OLDER}", ["mariadb"]),
        ):
            order = resolve(ctx, mixed(blueprint, node))
            assert [choice.name for choice in order.choices] == recipes
        order = resolve(ctx, mixed("replication", "n1=percona:8.0", "n2=mysql"))
        assert [choice.name for choice in order.choices] == ["percona-server-8.0"]
        assert [node.recipe for node in order.nodes] == ["percona-server-8.0", "mysql"]


def test_an_image_of_the_users_choice_is_of_the_lab(tmp_path: Path) -> None:
    with World(tmp_path).open() as ctx:
        key = up(ctx, lab_request("galera", "usual", nodes=2)).image
        made = up(ctx, structs.replace(mixed(), image=key))
        assert (made.image, versions(ctx)) == (key, ["11.8.6", "10.11.6"])
        with pytest.raises(InvalidSpec, match="cannot be in one lab"):
            up(ctx, structs.replace(mixed("replication", "n2=mysql"), name="no", image=key))
        ctx.store.images.update(key, dataset="shop", version=1)
        with pytest.raises(InvalidSpec, match="is the image of the dataset shop"):
            up(ctx, structs.replace(mixed(), name="no", image=key))


def test_what_is_refused() -> None:
    """Before anything is made, with the reason."""
    assert "single does not have the option node" in str(refused("single", f"n1={OLDER}"))
    assert "n4 is no node with a server" in str(refused("galera", f"n4={OLDER}"))
    with_proxy = Options(node=(f"n4={OLDER}",), proxy="haproxy")
    with pytest.raises(InvalidSpec, match="n4 is no node with a server") as caught:
        planned(LabSpec("galera", options=with_proxy.said))
    assert caught.value.hint == "nodes with servers: n1, n2, n3"
    assert "no series '9.9' of mariadb" in str(refused("galera", "n2=mariadb:9.9"))
    assert "cannot run on the engine 'mysql'" in str(refused("galera", "n2=mysql"))
    error = refused("replication", "n2=mysql", f"n3={OLDER}")
    assert str(error).startswith("mysql and mariadb:10.11 cannot be in one lab")
    assert "mysql and mariadb cannot" in str(refused("replication", "n2=mysql", engine="mariadb"))
    with pytest.raises(InvalidSpec, match="the dataset shop has an image of its own"):
        LabSpec("galera", dataset="shop", options=Options(node=(f"n2={OLDER}",)).said)


def test_a_pool_is_checked_when_its_service_starts(tmp_path: Path) -> None:
    with World(tmp_path).open() as ctx:
        with pytest.raises(InvalidSpec, match="n3 is no node"):
            pool.check(ctx.settings, mixed("galera", f"n3={OLDER}"))
        kept, other = mixed(), mixed("galera", "n2=mariadb-10.11")
        asked = structs.replace(kept, name="", accept_pooled_name=True)
        assert pool.serves(ctx.settings, kept, asked)
        assert pool.serves(ctx.settings, other, asked)
        assert not pool.serves(ctx.settings, mixed("galera", "n1=mariadb:10.11"), asked)


def test_its_failure_is_not_the_engines(tmp_path: Path) -> None:
    """Protects other labs: an engine that forms no cluster with another is not passed over."""
    with World(tmp_path).open() as ctx:
        order = resolve(ctx, mixed("pxc", f"n2={OLDER}"))
        assert choose(ctx, order) == (order.choices[0], "")
        assert failures.recent(ctx.home) == {}


def notes_of(tmp_path: Path, asked: CreateLab) -> list[str]:
    heard: list[str] = []
    progress = Progress(lambda event: heard.append(event.text) if event.step == "engine" else None)
    with World(tmp_path).open() as ctx:
        up(replace(ctx, progress=progress), asked)
    return heard


def test_it_is_said_what_is_not_supported(tmp_path: Path) -> None:
    (text,) = notes_of(tmp_path, mixed("replication"))
    assert text == (
        "n1 (11.8.6) and n2 (10.11.6): MariaDB supports replicas that are of their source's series"
        " or a newer one"
    )


def test_nothing_is_said_of_what_is_supported(tmp_path: Path) -> None:
    assert notes_of(tmp_path, mixed("replication", f"n1={OLDER}")) == []


def said(blueprint: str, found: Sequence[str], name: str = "mysql", **more: Any) -> list[str]:
    """What is said of nodes with servers of these versions."""
    spec = LabSpec(blueprint, nodes=len(found), options=Options(**more).said)
    nodes = planned(spec)
    members = [Member(n.name, at, f"10.0.0.{at}", n.role) for at, n in enumerate(nodes, 1)]
    engines = {
        node.name: Engine(name, version, "", "", "mysql", 1, 1)
        for node, version in zip(nodes, found, strict=True)
    }
    return [
        text.partition(": ")[2] or text for text in cautions(blueprint_of(spec), members, engines)
    ]


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        (("8.4.6", "9.7.4"), ""),
        (("8.0.46", "8.4.6-6"), ""),
        (("8.4.6", "9.1.0"), ""),
        (("9.1.0", "9.7.4"), ""),
        (("9.7.4", "26.7.0"), ""),
        (("8.4.5", "8.4.6"), ""),
        (("9.7.4", "8.4.6"), "MySQL supports no replica that is older than its source"),
        (("8.0.46", "9.7.4"), "up to the next series with long-term support"),
        (("8.0.46", "9.1.0"), "up to the next series with long-term support"),
        (("5.6.24", "8.0.46"), "up to the next series with long-term support"),
    ],
)
def test_what_mysqls_manual_says_of_links(versions: tuple[str, ...], text: str) -> None:
    found = said("replication", versions)
    assert bool(found) == bool(text)
    assert all(text in one for one in found)


def test_what_manuals_say_of_clusters() -> None:
    (galera,) = said("galera", ("11.8.6", "11.8.6", "10.11.14"), "mariadb")
    assert "while a cluster is upgraded" in galera
    assert said("galera", ("11.8.6", "11.8.6", "11.8.9"), "mariadb") == []
    (group,) = said("group", ("8.4.6", "9.7.4", "9.7.4"))
    assert "n1, which starts it, has to be of the lowest series" in group
    (chain,) = said("replication", ("8.0.46", "8.4.6", "9.7.4"), topology="chain")
    assert chain.startswith("MySQL supports 2 versions where several servers are sources")
    assert said("replication", ("8.0.46", "8.4.6", "8.4.6"), topology="chain") == []


def test_series() -> None:
    assert series("8.4.9-9") == (8, 4)
    assert series("26.7") == (26, 7)
    assert series("10.11.14") > series("10.6.22")


def test_members_of_several_images_have_one_history() -> None:
    """Protects the first start: with the images' own histories, nodes would transfer state."""
    engine = Engine("mariadb", "11.8.6", "[galera]\n", "/etc/my.cnf", "mysql", 100, 101)
    members = [Member(f"n{at}", at, f"10.0.0.{at}", "member") for at in (1, 2)]
    for options, there in ((Options(), False), (Options(node=(f"n2={OLDER}",)), True)):
        plan = with_options("galera", options, 2)
        found = [plan.files(one, members, engine, 1 << 30, EngineProfile()) for one in members]
        states = {files.get("/var/lib/mysql/grastate.dat") for files in found}
        assert (states != {None}) == there
        assert len(states) == 1
