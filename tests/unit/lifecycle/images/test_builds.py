"""Engines that were added to a home: what they are for labs, and how they come and go."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, InvalidSpec, LabError, NotFound
from lab.imagebuild import added, isolate
from lab.imagebuild.build import lay_out
from lab.imagebuild.in_guest.builder import Builder
from lab.imagebuild.key import image_key
from lab.imagebuild.recipe import load
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import dataset
from lab.lifecycle.datasets.engine import check_engine
from lab.lifecycle.host import builds
from lab.lifecycle.host.engines import engines
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.images.order import resolve
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import record_of
from lab.requests.datasets import CreateDataset
from lab.requests.host import AddEngine, RemoveEngine
from lab.views.catalog import EngineView
from tests.support.builds import added_build, mariadb_tree
from tests.support.lifecycle_world import World, lab_request

SAYS = "bin/mariadbd  Ver 11.4.5-MariaDB for Linux on x86_64 (MariaDB Server)"


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    with world.open() as opened:
        yield opened


def saying(text: str) -> builds.Ask:
    """The programs of a build, each saying that."""
    return lambda *_: lambda _program: text


@pytest.fixture
def add(ctx: Context) -> Callable[..., EngineView]:
    """Adds a build without a mirror: its programs are not run."""
    try:
        isolate.check()
    except LabError as error:
        pytest.skip(f"no namespaces here: {error}")

    def made(
        source: Path, name: str = "mine", says: str = SAYS, *, force: bool = False
    ) -> EngineView:
        return builds.add(
            ctx, AddEngine(name=name, source=str(source), force=force), ask=saying(says)
        )

    return made


def test_a_build_is_an_engine_from_then_on(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    tree = mariadb_tree(tmp_path / "x")
    (tree / "lib/libgalera_smm.so").write_bytes(b"x")
    # As series before 10.5 call it.
    shutil.copy(tree / "bin/mariadbd", tree / "bin/mysql_upgrade")
    made = add(tree)
    assert (made.name, made.server) == ("mine", "MariaDB 11.4.5")
    assert made.features == ("galera", "upgrade")
    assert made == [view for view in engines(ctx) if view.name == "mine"][0]  # noqa: RUF015
    found = added.named(ctx.home.engines, "mine")
    assert (found.family, found.version, found.suite) == ("mariadb", "11.4.5", "trixie")
    links = dict(found.links)
    assert (
        links["/usr/sbin/mariadbd"] == links["/usr/sbin/mysqld"] == "/opt/lab/server/bin/mariadbd"
    )
    assert links["/usr/lib/galera/libgalera_smm.so"] == "/opt/lab/server/lib/libgalera_smm.so"
    assert found.archive.stat().st_size
    assert not list(ctx.home.builds.iterdir())
    galera = up(ctx, lab_request("galera", nodes=2, engine="mine"))
    single = up(ctx, lab_request("single", engine="mine"))
    for view in (galera, single):
        assert record_of(ctx, view.name).image.startswith("mine-")
        assert view.engine == "mariadb"
    [listed] = [view for view in engines(ctx) if view.name == "mine"]
    assert (len(listed.images), len(listed.templates)) == (1, 2)


def test_the_same_content_changes_nothing_however_it_is_packed(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    made = add(mariadb_tree(tmp_path / "x"))
    at = added.named(ctx.home.engines, "mine").added_at
    assert add(mariadb_tree(tmp_path / "deeper/usr")).content == made.content
    assert added.named(ctx.home.engines, "mine").added_at == at


def test_what_is_found_in_the_same_content_may_be_more(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    """Protects builds that another version of lab has looked at."""
    content = add(mariadb_tree(tmp_path / "x")).content
    added.write(replace(added.named(ctx.home.engines, "mine"), suite="bookworm"))
    assert add(mariadb_tree(tmp_path / "y")).content == content
    assert added.named(ctx.home.engines, "mine").suite == "trixie"


def test_other_content_needs_another_name_or_force(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    """Both versions are said; images of the former one stay."""
    first = add(mariadb_tree(tmp_path / "x"))
    lab = up(ctx, lab_request("single", engine="mine"))
    other = mariadb_tree(tmp_path / "y")
    (other / "share/new").write_text("x")
    newer = SAYS.replace("11.4.5", "11.4.9")
    with pytest.raises(Conflict, match=r"mariadb 11\.4\.5.*mariadb 11\.4\.9"):
        add(other, says=newer)
    assert added.named(ctx.home.engines, "mine").content == first.content
    again = add(other, says=newer, force=True)
    assert again.server == "MariaDB 11.4.9"
    key = record_of(ctx, lab.name).image
    assert image.find(ctx, key).key == key
    second = up(ctx, lab_request("single", engine="mine"))
    assert record_of(ctx, second.name).image != key


def test_an_engine_that_is_replaced_while_its_image_is_built(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    """Protects from new programs under the key and the version of the former ones."""
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    one, two = mariadb_tree(tmp_path / "x"), mariadb_tree(tmp_path / "y")
    (two / "share/new").write_text("x")
    add(one)
    recipe = load("mine", engines=ctx.home.engines)
    add(two, force=True)
    with pytest.raises(Conflict, match="mine was replaced while an image of it was being built"):
        lay_out(recipe, root, log)
    assert not (root / "opt/lab/server/share").exists()
    builds.remove(ctx, RemoveEngine(name="mine"))
    with pytest.raises(Conflict, match="mine was removed while"):
        lay_out(recipe, root, log)
    add(one)
    lay_out(load("mine", engines=ctx.home.engines), root, log)
    assert (root / "opt/lab/server/bin/mariadbd").exists()
    assert not (root / "opt/lab/server/share/new").exists()


def test_an_archive_that_the_disk_has_spoilt(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    add(mariadb_tree(tmp_path / "x"))
    recipe = load("mine", engines=ctx.home.engines)
    assert recipe.build is not None
    packed = recipe.build.archive.read_bytes()
    cut = (packed[:-100], packed[:-1])  # the last of which holds all that was added
    for content in (*cut, packed[:500] + b"xxxx" + packed[504:], b""):
        recipe.build.archive.write_bytes(content)
        with pytest.raises(InvalidSpec, match="archive of the added engine mine is damaged"):
            lay_out(recipe, tmp_path / "root", tmp_path / "log")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mariadb", Conflict), ("mysql-8.4", Conflict), ("percona", Conflict),
     ("Mine", InvalidSpec), ("../x", InvalidSpec), ("x" * 33, InvalidSpec),
     ("mine:1", InvalidSpec)],
)  # fmt: skip
def test_names_that_are_taken_or_none(
    add: Callable[..., EngineView], tmp_path: Path, name: str, kind: type[LabError]
) -> None:
    with pytest.raises(kind):
        add(tmp_path, name)


def test_what_is_not_there_or_not_whole(add: Callable[..., EngineView], tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no"):
        add(tmp_path / "absent")
    tree = mariadb_tree(tmp_path / "x")
    (tree / "bin/mariadb").unlink()
    with pytest.raises(InvalidSpec, match="has no program mariadb"):
        add(tree)
    says = "mysqld  Ver 8.0.36-28.1 for Linux on x86_64 (Percona XtraDB Cluster (GPL))"
    with pytest.raises(InvalidSpec, match="Percona XtraDB Cluster cannot be added"):
        add(mariadb_tree(tmp_path / "y"), says=says)


def test_a_build_that_is_too_old(add: Callable[..., EngineView], tmp_path: Path) -> None:
    says = SAYS.replace("11.4.5", "10.1.48")
    with pytest.raises(InvalidSpec, match=r"MariaDB 10\.1\.48 is too old for labs") as raised:
        add(mariadb_tree(tmp_path / "x"), says=says)
    assert raised.value.hint == "the oldest version that works is 10.2"


@pytest.mark.parametrize(
    ("family", "version", "features", "lacks"),
    [
        ("mysql", "9.7.4", ("semi-sync", "older semi-sync"), ""),
        ("mysql", "9.7.4", ("older semi-sync",), "semi-sync"),
        ("mysql", "8.0.25", ("older semi-sync",), ""),
        ("mysql", "5.6.24", (), "older semi-sync"),
        ("mariadb", "10.2.11", (), "semi-sync"),
        ("mariadb", "10.3.1", (), ""),
    ],
)
def test_semi_sync_needs_plugins(
    ctx: Context, family: str, version: str, features: tuple[str, ...], lacks: str
) -> None:
    """Protects from a lab that is never ready: refused before its image is built, if it can."""
    added_build(ctx.home.engines, family=family, version=version, features=features)
    asked = lab_request("replication", nodes=2, engine="mine", semi_sync=True)
    if not lacks:
        assert resolve(ctx, asked).choices[0].name == "mine"
        return
    with pytest.raises(InvalidSpec, match=f"with --semi-sync: the build has no {lacks}$") as said:
        up(ctx, asked)
    assert ".so" in said.value.hint
    assert ctx.store.images.all() == []
    assert resolve(ctx, lab_request("replication", nodes=2, engine="mine")).choices
    other = lab_request(
        "replication", nodes=2, engine="mine",
        semi_sync=True, node=("n2=mine",),
    )  # fmt: skip
    with pytest.raises(InvalidSpec, match="the build has no"):
        up(ctx, other)


def test_a_server_that_is_too_old_for_groups(ctx: Context) -> None:
    """It has the plugin, but not the privilege that members need."""
    for name, version in (("old", "8.0.26"), ("new", "8.0.27")):
        features = ("group-replication",)
        added_build(ctx.home.engines, name, family="mysql", version=version, features=features)
    with pytest.raises(InvalidSpec, match=r"GROUP_REPLICATION_STREAM.*since MySQL 8\.0\.27"):
        up(ctx, lab_request("group", engine="old"))
    assert resolve(ctx, lab_request("group", nodes=3, engine="new")).choices[0].name == "new"
    runs = {one.name: one.blueprints for one in engines(ctx)}
    assert ("group" in runs["old"], "group" in runs["new"]) == (False, True)


def test_a_server_of_mysql_without_its_client(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    """Protects builds of a server alone, which may lie at the top: Debian's client is used."""
    tree = mariadb_tree(tmp_path / "x")
    (tree / "bin/mariadbd").rename(tree / "mysqld")
    (tree / "bin/mariadb").unlink()
    add(tree, says="mysqld  Ver 5.6.24 for linux-glibc2.5 on x86_64 (MySQL Community Server)")
    found = added.named(ctx.home.engines, "mine")
    assert (found.family, found.version) == ("mysql", "5.6.24")
    assert "default-mysql-client" in found.packages
    assert dict(found.links)["/usr/sbin/mysqld"] == "/opt/lab/server/mysqld"


def test_a_failure_leaves_nothing(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    with pytest.raises(InvalidSpec, match="says no version"):
        add(mariadb_tree(tmp_path / "x"), says="MariaDB")
    assert not list(ctx.home.builds.iterdir())
    assert added.builds(ctx.home.engines) == []


def test_a_dataset_of_it(ctx: Context, tmp_path: Path) -> None:
    """Its blueprint is one that the build runs in, where none is named."""
    added_build(ctx.home.engines)
    assert check_engine(ctx.home, "", "mine").blueprint == "replication"
    with pytest.raises(InvalidSpec, match="no galera"):
        check_engine(ctx.home, "galera", "mine")
    dump = tmp_path / "dump.sql"
    dump.write_text("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY);\n")
    made = dataset.create(ctx, CreateDataset(name="shop", source=str(dump), engine="mine"))
    assert made.image.startswith("mine-shop")
    lab = up(ctx, lab_request("single", dataset="shop"))
    assert record_of(ctx, lab.name).image == made.image


@pytest.mark.parametrize("name", ["foreign", "system", "log", "made", "former", "removed"])
def test_no_name_is_that_of_a_working_file(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path, name: str
) -> None:
    other = mariadb_tree(tmp_path / "y")
    (other / "share/new").write_text("x")
    assert add(mariadb_tree(tmp_path / "x"), name).name == name
    again = add(other, name, force=True)
    assert added.named(ctx.home.engines, name).content == again.content
    builds.remove(ctx, RemoveEngine(name=name))
    assert added.find(ctx.home.engines, name) is None
    assert not list(ctx.home.builds.iterdir())


@pytest.mark.parametrize("exchanged", [True, False], ids=["exchanged", "in two steps"])
def test_an_engine_is_there_however_its_replacement_ends(
    ctx: Context,
    add: Callable[..., EngineView],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exchanged: bool,
) -> None:
    """Protects from a loss by SIGKILL: after each step the one or the other has the name."""
    contents = {add(mariadb_tree(tmp_path / "x")).content}
    other = mariadb_tree(tmp_path / "y")
    (other / "share/new").write_text("x")
    if not exchanged:  # as a file system that has no such thing
        monkeypatch.setattr(builds, "exchange", lambda *_: False)
    child = os.fork()
    if child == 0:
        rename, last = Path.rename, 1 if exchanged else 2
        left = [last]

        def killed(path: Path, target: Path) -> Path:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", killed)
        monkeypatch.setattr(builds, "sync", lambda *paths: len(paths) > 1 or killed(*paths, *paths))
        with suppress(BaseException):
            add(other, force=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    gc(ctx)
    found = added.named(ctx.home.engines, "mine").content
    assert (found in contents) == (not exchanged)
    assert not list(ctx.home.builds.iterdir())


@pytest.mark.usefixtures("add")
def test_room_is_kept_free(ctx: Context, tmp_path: Path) -> None:
    free = shutil.disk_usage(ctx.home.root).free
    low = replace(ctx, settings=replace(ctx.settings, space_floor=free * 2))
    with pytest.raises(HostUnfit, match="is kept free") as refused:
        builds.add(
            low, AddEngine(name="mine", source=str(mariadb_tree(tmp_path / "x"))), ask=saying(SAYS)
        )
    assert "space_floor" in refused.value.hint
    assert added.find(ctx.home.engines, "mine") is None


def test_the_archive_of_a_build_leaves_room(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(65 << 20)

    def room() -> None:
        raise HostUnfit("full")

    with pytest.raises(HostUnfit, match="full"):
        builds.pack(tmp_path, tmp_path.with_name("archive"), room)


def test_what_no_guest_reads_is_not_kept(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    """Protects the size of images: a test suite is larger than its server."""
    tree = mariadb_tree(tmp_path / "x")
    for name in ("mysql-test/t", "share/mariadb-test/t", "man/man1/m.1", "lib/x.a", "kept/doc.so"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    add(tree)
    with tarfile.open(added.named(ctx.home.engines, "mine").archive) as archive:
        names = set(archive.getnames())
    assert "kept/doc.so" in names
    assert not {name for name in names if "test" in name or name.endswith((".1", ".a"))}


def test_a_link_whose_text_is_no_utf_8(
    ctx: Context, add: Callable[..., EngineView], tmp_path: Path
) -> None:
    tree = mariadb_tree(tmp_path / "x")
    (tree / "share/latin1").symlink_to(os.fsdecode(b"f\xff"))
    assert add(tree).name == "mine"
    with tarfile.open(added.named(ctx.home.engines, "mine").archive) as archive:
        assert "share/latin1" not in archive.getnames()


def test_gc_removes_what_a_killed_command_left(ctx: Context) -> None:
    work = ctx.home.build("engine-mine")
    work.mkdir(parents=True)
    (work / "foreign").mkdir()
    assert f"build files {work}" in gc(ctx).removed
    assert not work.exists()


def test_a_blueprint_that_needs_what_a_build_lacks(ctx: Context) -> None:
    """The file is named by which a build would have it; nothing is built."""
    added_build(ctx.home.engines)
    added_build(ctx.home.engines, "bare", family="mysql", version="9.7.4")
    with pytest.raises(InvalidSpec, match=r"mine \(mariadb 11\.4\.5\).*no galera") as refused:
        up(ctx, lab_request("galera", nodes=3, engine="mine"))
    assert "libgalera_smm.so" in refused.value.hint
    with pytest.raises(InvalidSpec, match="no group-replication"):
        up(ctx, lab_request("group", nodes=3, engine="bare"))
    with pytest.raises(InvalidSpec, match="cannot run on the engine 'bare'"):
        up(ctx, lab_request("galera", nodes=3, engine="bare"))
    assert ctx.store.images.all() == []
    listed = {view.name: view.blueprints for view in engines(ctx)}
    assert (listed["mine"], listed["bare"]) == (("single", "replication"),) * 2


def test_nodes_can_have_added_engines(ctx: Context) -> None:
    added_build(ctx.home.engines)
    made = up(ctx, lab_request("replication", nodes=2, engine="mariadb", node=("n2=mine",)))
    images = [node.image for node in ctx.store.nodes.of(made.name)]
    assert [one.rpartition("-")[0] for one in images] == ["mariadb", "mine"]
    added_build(ctx.home.engines, "bare", family="mysql", version="9.7.4")
    with pytest.raises(InvalidSpec, match="cannot be in one lab"):
        up(ctx, lab_request("replication", nodes=2, engine="mine", node=("n2=bare",)))
    with pytest.raises(InvalidSpec, match="no galera"):
        up(ctx, lab_request("galera", nodes=2, engine="mariadb", node=("n2=mine",)))


def test_the_content_is_a_part_of_the_key(ctx: Context) -> None:
    keys = set()
    for content in ("a" * 64, "b" * 64):
        added_build(ctx.home.engines, content=content)
        keys.add(image_key(load("mine", engines=ctx.home.engines), volumes={}))
    assert len(keys) == 2


def test_what_was_made_of_it_outlives_it(ctx: Context) -> None:
    """As where its image was imported, and nobody has added the build."""
    added_build(ctx.home.engines)
    lab = up(ctx, lab_request("single", engine="mine"))
    key = record_of(ctx, lab.name).image
    builds.remove(ctx, RemoveEngine(name="mine"))
    assert added.builds(ctx.home.engines) == []
    assert record_of(ctx, up(ctx, lab_request("single", image=key)).name).image == key
    with pytest.raises(InvalidSpec, match="cannot run on the engine 'mine'"):
        up(ctx, lab_request("single", engine="mine"))
    with pytest.raises(InvalidSpec, match="cannot use the image"):
        up(ctx, lab_request("group", nodes=3, image=key))
    with pytest.raises(NotFound):
        builds.remove(ctx, RemoveEngine(name="mine"))


def test_one_that_cannot_be_read_disturbs_no_other(ctx: Context) -> None:
    made = added_build(ctx.home.engines)
    added_build(ctx.home.engines, "other")
    (made.directory / added.FOUND).write_text("{")
    assert [view.name for view in engines(ctx) if view.content] == ["other"]
    with pytest.raises(InvalidSpec, match="mine cannot be read"):
        up(ctx, lab_request("single", engine="mine"))
    with pytest.raises(InvalidSpec, match="cannot be read") as refused:
        added.named(ctx.home.engines, "mine")
    assert "lab engine rm mine" in refused.value.hint
    builds.remove(ctx, RemoveEngine(name="mine"))


def test_one_that_another_version_of_lab_described(ctx: Context) -> None:
    """It has more facts than are known here."""
    path = added_build(ctx.home.engines).directory / added.FOUND
    path.write_text(json.dumps({**json.loads(path.read_text()), "disk": 1, "later": [1]}))
    assert added.named(ctx.home.engines, "mine").version == "11.4.5"


def test_a_builder_says_that_it_cannot(ctx: Context, tmp_path: Path) -> None:
    recipe = load(added_build(ctx.home.engines).name, engines=ctx.home.engines)
    builder = Builder(tmp_path / "cloud.raw", ctx.home, ctx.hypervisor)
    with pytest.raises(HostUnfit, match="cannot be built in a guest"):
        builder.build(recipe, tmp_path, layout="single", progress=ctx.progress, log=tmp_path / "l")
