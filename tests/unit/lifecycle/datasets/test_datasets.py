"""Datasets: loaded once, named and versioned, then in every node of a lab from its first moment."""

from __future__ import annotations

import gzip
import io
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec import structs

from lab.datasets.columns import FIELDS, Column
from lab.errors import Conflict, HostUnfit, InvalidSpec, LabError, LimitReached, NotFound
from lab.lifecycle.captures import retire, template
from lab.lifecycle.core.context import Context, Origin
from lab.lifecycle.datasets import dataset
from lab.lifecycle.datasets.load import _secret, _Watch
from lab.lifecycle.datasets.loader import Server
from lab.lifecycle.datasets.masking import columns_of
from lab.lifecycle.datasets.outside import outside
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.images.order import resolve
from lab.lifecycle.images.provenance import read_provenance, write_provenance
from lab.lifecycle.labs import power
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.labs.preview import preview
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.labs.upgrade import upgrade
from lab.names import Owner
from lab.paths import PRIVATE, make_directory
from lab.progress import ByteProgress, Event, Progress
from lab.requests.datasets import CreateDataset
from lab.requests.host import CollectGarbage
from lab.requests.labs import UpgradeLab
from lab.spec import LabSpec
from lab.units import MIB
from tests.support.lifecycle_world import REQUEST, Counter, World, make_image, named, raising
from tests.support.meanwhile import removed_meanwhile
from tests.support.vanishing import before
from tests.unit.lifecycle.promises.test_killed import sweep

DUMP = b"""\
-- MariaDB dump 10.19-11.8.2-MariaDB, for debian-linux-gnu (x86_64)
-- Host: localhost    Database: crm
/*!40101 SET NAMES utf8mb4 */;
CREATE TABLE people (id INT PRIMARY KEY, name TEXT);
LOCK TABLES people WRITE;
INSERT INTO people VALUES (1, 'Ada; or ''Countess'''), (2, 'Grace');
UNLOCK TABLES;
-- Dump completed on 2026-11-20 12:00:00
"""
OF_SHOP = named("", dataset="shop")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sql"
    path.write_bytes(DUMP)
    return path


@pytest.fixture
def ctx(world: World) -> object:
    with world.open() as context:
        make_image(context)
        yield context


def names(ctx: Context, lab: str) -> list[object]:
    """The people whom each node of a lab knows."""
    statement = "SELECT name FROM people ORDER BY id"
    return [
        tuple(row[0] for row in ctx.hypervisor.servers.execute(node.guest, statement).rows)  # type: ignore[attr-defined]
        for node in ctx.store.nodes.of(lab)
    ]


def test_a_lab_begins_with_the_data(ctx: Context, dump: Path) -> None:
    made = dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    assert (made.name, made.version, made.state) == ("shop", 1, "ready")
    assert made.source == str(dump)
    view = up(ctx, named("a", dataset="shop"))
    assert (view.state, view.started, view.image) == ("ready", "warm", made.image)
    assert names(ctx, "a") == [("Ada; or 'Countess'", "Grace")] * REQUEST.nodes
    cold = up(ctx, named("b", "single", nodes=1, dataset="shop", cold=True))
    assert (cold.state, cold.started) == ("ready", "cold")
    assert names(ctx, "b") == [("Ada; or 'Countess'", "Grace")]
    assert preview(ctx, OF_SHOP).image == made.image
    # Other labs have none of it, and an image that is named by its recipe is not a dataset's.
    assert up(ctx, named("empty")).image == image.image(ctx, "mariadb").key != made.image


def test_nothing_of_the_loader_stays(ctx: Context, dump: Path) -> None:
    """Protects the next load and the nodes: no guest, spool, dump, seed or file of its boot."""
    made = dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    assert ctx.hypervisor.guests() == {}
    assert {v.name.volume for v in ctx.storage.volumes()} == {"os"}
    assert list(ctx.home.builds.iterdir()) == []
    there = {path.name for path in ctx.home.image(made.image).iterdir()}
    assert there == {"kernel", "initrd", "manifest.json", "dataset.json", "private"}
    up(ctx, named("a", dataset="shop"))
    image.check_disks(ctx, image.find(ctx, made.image))


def test_masked_values_stay_equal_while_an_older_version_is_removed(
    ctx: Context, dump: Path
) -> None:
    """Its files vanish after they were seen: the secret of the next version is the same."""
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    dataset.refresh(ctx, "shop")
    paths = []
    for record in image.versions_of(ctx, "shop"):
        private = make_directory(ctx.home.private(Owner("image", record.key)), PRIVATE)
        (private / "mask-secret").write_bytes(b"of all versions")
        paths.append(private / "mask-secret")
    with before(("open",), str(paths[0]), paths[0].unlink):
        assert _secret(ctx, Owner("image", "new"), "shop") == b"of all versions"


def test_compressed_dumps_and_further_sql(ctx: Context, tmp_path: Path) -> None:
    packed, more = tmp_path / "shop.sql.gz", tmp_path / "more.sql"
    packed.write_bytes(gzip.compress(DUMP))
    more.write_text("INSERT INTO people VALUES (3, 'Edith');\nDELETE FROM people WHERE id = 1")
    dataset.create(ctx, CreateDataset(name="shop", source=str(packed), files=(str(more),)))
    up(ctx, named("a", dataset="shop"))
    assert names(ctx, "a")[0] == ("Grace", "Edith")


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0), b"-- a comment\n\n"])
def test_an_empty_source_is_no_dataset(ctx: Context, tmp_path: Path, content: bytes) -> None:
    """Protects from what a failed dump leaves in its file."""
    path = tmp_path / ("shop.sql.gz" if content[:1] == b"\x1f" else "shop.sql")
    path.write_bytes(content)
    with pytest.raises(InvalidSpec, match="is empty: it has no statement") as error:
        dataset.create(ctx, CreateDataset(name="shop", source=str(path)))
    assert "--force" in (error.value.hint or "")
    assert dataset.datasets(ctx) == []
    path.write_bytes(b"CREATE DATABASE crm;" if path.suffix == ".sql" else content)
    assert (
        dataset.create(ctx, CreateDataset(name="shop", source=str(path), force=True)).tables == ()
    )


def test_a_source_without_tables_is_no_dataset(ctx: Context, tmp_path: Path) -> None:
    path = tmp_path / "shop.sql"
    path.write_text("CREATE DATABASE crm;")
    with pytest.raises(InvalidSpec, match="nothing was loaded: the server has no table"):
        dataset.create(ctx, CreateDataset(name="shop", source=str(path)))
    assert dataset.datasets(ctx) == []


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (DUMP.replace(b"INSERT", b"-- INSERT"), ["rows: 0, shop@1 has 2"]),
        (
            b"CREATE TABLE other (id INT PRIMARY KEY);",
            ["tables: 1, shop@1 has 3", "rows: 0, shop@1 has 2", "bytes: 16K, shop@1 has 48K"],
        ),
    ],
)
def test_a_source_that_lost_data_replaces_nothing(
    ctx: Context, dump: Path, content: bytes, lines: list[str]
) -> None:
    """Protects the version that has data: with --keep 1 the next one removes it."""
    if len(lines) > 1:
        dump.write_bytes(DUMP.replace(b"LOCK", b"CREATE TABLE a (id INT); CREATE TABLE b (id INT);"
                                      b" LOCK", 1))  # fmt: skip
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump), keep=1))
    dump.write_bytes(content)
    with pytest.raises(Conflict if lines else InvalidSpec) as error:
        dataset.refresh(ctx, "shop")
    if lines:
        assert error.value.what == "the source has less than half of what shop@1 has"
        assert list(error.value.details) == lines
    assert "--force" in (error.value.hint or "")
    assert [view.at for view in dataset.datasets(ctx)] == ["shop@1"]
    up(ctx, named("a", dataset="shop"))
    assert names(ctx, "a")[0] == ("Ada; or 'Countess'", "Grace")
    down(ctx, "a")
    if lines:
        assert dataset.refresh(ctx, "shop", force=True).version == 2
        assert [view.at for view in dataset.datasets(ctx)] == ["shop@2"]


def test_what_is_known_while_it_is_loaded(ctx: Context, dump: Path) -> None:
    """Protects lists from a dataset that is of an unknown source, with no table, and loaded."""
    seen = []

    def hear(event: Event) -> None:
        if (event.step, event.state) == ("rest", "begin"):
            seen.extend(dataset.datasets(ctx))

    ctx.progress.listener = hear
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump), settings=("sql_mode=ANSI",)))
    [view] = seen
    assert (view.state, view.source, view.options) == ("building", str(dump), ("sql_mode=ANSI",))


def test_options_of_the_servers_that_load(ctx: Context, dump: Path) -> None:
    """They are those of every version; what is no option is refused before anything is made."""
    made = dataset.create(
        ctx,
        CreateDataset(
            name="shop", source=str(dump), settings=("sql_mode=ANSI",), my_cnf="[mysqld]\n"
        ),
    )
    assert made.options == ("sql_mode=ANSI", "an option file")
    assert dataset.refresh(ctx, "shop").options == made.options
    with pytest.raises(InvalidSpec, match="is not an option of a server"):
        dataset.create(ctx, CreateDataset(name="other", source=str(dump), settings=("no option",)))


def test_queries_say_what_is_in_memory(
    ctx: Context, dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the first requests to a lab, and the creation from queries that do not work."""
    made = dataset.create(
        ctx,
        CreateDataset(name="shop", source=str(dump), warm="USE shop;\nSELECT name\nFROM people;\n"),
    )
    executed: list[tuple[str, str]] = []
    usual = ctx.hypervisor.servers.execute  # type: ignore[attr-defined]

    def execute(guest: str, statement: str) -> object:
        executed.append((guest, statement))
        return usual(guest, statement)

    monkeypatch.setattr(ctx.hypervisor.servers, "execute", execute)  # type: ignore[attr-defined]
    up(ctx, named("a", dataset="shop"))
    nodes = {guest for guest, statement in executed if statement == "SELECT name\nFROM people"}
    assert len(nodes) == REQUEST.nodes
    assert dataset.refresh(ctx, "shop").version == made.version + 1
    executed.clear()
    up(ctx, named("b", dataset="shop"))
    assert [s for _, s in executed if s == "SELECT name\nFROM people"]
    with pytest.raises(InvalidSpec, match="statement 1, at line 1: the server refused") as refused:
        dataset.create(
            ctx, CreateDataset(name="other", source=str(dump), warm="SELECT shoe FROM people")
        )
    assert "ERROR" in refused.value.details[0]
    with pytest.raises(InvalidSpec, match="does not only read"):
        dataset.create(
            ctx, CreateDataset(name="other", source=str(dump), warm="DELETE FROM people")
        )
    assert [view.name for view in dataset.datasets(ctx)] == ["shop", "shop"]


def test_standard_input(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DUMP)))
    dataset.create(ctx, CreateDataset(name="shop", source="-"))
    up(ctx, named("a", dataset="shop"))
    assert len(names(ctx, "a")[0]) == 2  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec, match="cannot be read again"):
        dataset.refresh(ctx, "shop")


def test_versions(ctx: Context, dump: Path) -> None:
    """Versions are immutable; a lab keeps its own, the next one is of the latest."""
    first = dataset.create(ctx, CreateDataset(name="my-shop", source=str(dump)))
    with pytest.raises(Conflict, match=r"exists: its latest version is 1"):
        dataset.create(ctx, CreateDataset(name="my-shop", source=str(dump)))
    up(ctx, named("old", dataset="my-shop"))
    dump.write_bytes(DUMP.replace(b"Grace", b"Katherine"))
    second = dataset.refresh(ctx, "my-shop")
    assert (second.version, second.state) == (2, "ready")
    assert names(ctx, "old")[0][1] == "Grace"  # type: ignore[index]
    up(ctx, named("new", dataset="my-shop"))
    assert names(ctx, "new")[0][1] == "Katherine"  # type: ignore[index]
    up(ctx, named("again", dataset="my-shop@1"))
    assert names(ctx, "again")[0][1] == "Grace"  # type: ignore[index]
    assert [view.at for view in dataset.datasets(ctx)] == ["my-shop@1", "my-shop@2"]
    assert dataset.dataset(ctx, "my-shop").version == 2
    with pytest.raises(NotFound, match=r"no dataset .my-shop@3"):
        resolve(ctx, LabSpec("galera", dataset="my-shop@3"))
    with pytest.raises(NotFound, match=r"no dataset .my-shops") as failed:
        resolve(ctx, LabSpec("galera", dataset="my-shops"))
    assert "my-shop" in failed.value.hint
    assert first.image != second.image


def test_the_same_lab_is_known_again(ctx: Context, dump: Path) -> None:
    """Protects `--exist-ok` of CI jobs: a lab of another version is another configuration."""
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    asked = named("ci", dataset="shop")
    made = up(ctx, asked)
    assert ensure(ctx, asked).name == made.name
    dataset.refresh(ctx, "shop")
    with pytest.raises(Conflict, match=r"different configuration: image"):
        ensure(ctx, asked)


def test_versions_beyond_those_to_keep_go(ctx: Context, dump: Path) -> None:
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump), keep=2))
    up(ctx, named("a", dataset="shop"))
    for _ in range(3):
        dataset.refresh(ctx, "shop")
    assert [view.version for view in dataset.datasets(ctx)] == [1, 3, 4], "a lab uses the first"
    down(ctx, "a")
    dataset.refresh(ctx, "shop")
    assert [view.version for view in dataset.datasets(ctx)] == [4, 5]


def test_removal(ctx: Context, dump: Path) -> None:
    made = dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    dataset.refresh(ctx, "shop")
    up(ctx, named("a", dataset="shop@1"))
    with pytest.raises(Conflict, match=r"shop@1 is used by the lab a"):
        dataset.remove(ctx, "shop@1")
    with pytest.raises(Conflict, match=r"dataset shop@1, dataset shop@2"):
        image.remove(ctx, "mariadb")
    assert gc(ctx, CollectGarbage(unused=True)).removed == ()
    with pytest.raises(Conflict, match=r"shop@1 is used by the lab a") as refused:
        dataset.remove(ctx, "shop")
    assert "--defer" in refused.value.hint
    assert "template" not in refused.value.hint, "they go with the version"
    there = [view.at for view in dataset.datasets(ctx)]
    assert there == ["shop@1", "shop@2"], "what is refused removes nothing"
    up(ctx, named("b", dataset="shop@2"))
    down(ctx, "b")
    dataset.remove(ctx, "shop@2")
    down(ctx, "a")
    dataset.remove(ctx, "shop")
    assert dataset.datasets(ctx) == []
    assert all(record.image != made.image for record in ctx.store.templates.all())
    image.remove(ctx, "mariadb")
    assert list(ctx.storage.volumes()) == []


def test_a_removed_version_goes_with_its_last_lab(ctx: Context, dump: Path) -> None:
    """Protects labs that run, and the disk: nobody has to come back and remove it."""
    made = dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    dataset.refresh(ctx, "shop")
    for name in ("a", "b"):
        up(ctx, named(name, dataset="shop@1"))
    assert not dataset.remove(ctx, "shop@1", defer=True)
    assert [(view.at, view.state) for view in dataset.datasets(ctx)] == [
        ("shop@1", "removing"), ("shop@2", "ready")
    ]  # fmt: skip
    with pytest.raises(NotFound, match=r"no dataset .shop@1"):
        up(ctx, named("c", dataset="shop@1"))
    power.stop(ctx, "a")
    assert start(ctx, "a", timeout=30).state == "ready", "its labs work as before"
    down(ctx, "a")
    assert gc(ctx).removed == ()
    assert dataset.dataset(ctx, "shop@1").state == "removing"
    down(ctx, "b")
    assert [view.at for view in dataset.datasets(ctx)] == ["shop@2"]
    assert all(volume.name.owner.name != made.image for volume in ctx.storage.volumes())
    assert dataset.remove(ctx, "shop", defer=True), "nothing uses it: at once"


def test_what_a_sweep_removes_at_the_same_time_is_gone_too(ctx: Context, dump: Path) -> None:
    """Protects what `lab down` and `DELETE` say where the sweep of a service is a moment faster."""
    made = dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    up(ctx, named("a", dataset="shop"))
    dataset.remove(ctx, "shop", defer=True)

    def discard() -> None:
        retire.discard(ctx, made.image)

    with removed_meanwhile(ctx, Owner("image", made.image), after="a", removal=discard):
        down(ctx, "a")
        assert dataset.datasets(ctx) == []


def test_a_lab_that_was_upgraded_has_its_version(ctx: Context, dump: Path) -> None:
    """Protects its disks and its snapshots: they are clones of those of the version."""
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump), engine="mariadb:10.11"))
    up(ctx, named("a", dataset="shop"))
    upgrade(ctx, UpgradeLab(lab="a", to="mariadb:11.8"), timeout=30)
    with pytest.raises(Conflict, match=r"shop@1 is used by the lab a"):
        dataset.remove(ctx, "shop@1")
    dataset.refresh(ctx, "shop", keep=1)
    assert [view.version for view in dataset.datasets(ctx)] == [1, 2]
    assert not dataset.remove(ctx, "shop@1", defer=True)
    assert gc(ctx).removed == ()
    assert gc(ctx).left == ()
    down(ctx, "a", force=True)
    assert [view.version for view in dataset.datasets(ctx)] == [2]


def test_gc_removes_what_waited_for_a_lab(ctx: Context, dump: Path) -> None:
    """Protects the disk where a lab ended by its lease, not by `lab down`."""
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    up(ctx, named("a", dataset="shop"))
    dataset.remove(ctx, "shop", defer=True)
    ctx.store.labs.update("a", expires_at=1.0)
    assert len(gc(ctx).removed) == 2
    assert dataset.datasets(ctx) == []


def test_projects_of_the_service(ctx: Context, dump: Path) -> None:
    """Protects data: a name, a secret and a lab of another project are never taken over."""
    theirs = replace(ctx, origin=Origin(project="a", job="1"))
    made = dataset.create(theirs, CreateDataset(name="shop", source=str(dump)))
    again = dataset.made_by(ctx, "1")
    assert again is not None
    assert (made.project, again.at) == ("a", "shop@1")
    for other in (ctx, replace(ctx, origin=Origin(project="b", job="2"))):
        with pytest.raises(Conflict, match="is taken"):
            dataset.create(other, CreateDataset(name="shop", source=str(dump)))
    up(theirs, named("lab-of-a"))
    dataset.create(theirs, CreateDataset(name="crm", source="lab:lab-of-a"))
    down(ctx, "lab-of-a")
    up(replace(ctx, origin=Origin(project="b")), named("lab-of-a"))
    with pytest.raises(NotFound, match="is gone"):
        dataset.refresh(theirs, "crm")

    def within(done: int) -> None:
        if done > 1 << 20:
            raise LimitReached("the dataset has more than 1M of SQL")

    with pytest.raises(LimitReached, match="more than 1M of SQL"):
        dataset.create(
            replace(ctx, data=within),
            CreateDataset(name="big", source="generate:sysbench?tables=1&rows=9000"),
        )


def test_unpacking_leaves_space_free(ctx: Context) -> None:
    """A small file may unpack to any size: the free space is looked at while it is written."""
    watch = _Watch(ctx, ByteProgress(ctx.progress, "read"))
    watch(1)
    watch.ctx = replace(ctx, settings=replace(ctx.settings, space_floor=1 << 60))
    watch(63 * MIB)
    with pytest.raises(HostUnfit, match="of disk is free"):
        watch(65 * MIB)


def test_lists_read_no_columns(ctx: Context, dump: Path) -> None:
    """Protects the memory of whoever lists datasets: a guest says how many columns there are."""
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    record = image.version_named(ctx, "shop")
    made = read_provenance(ctx, record)
    write_provenance(ctx, record.key, replace(made, columns=(Column("shop", "t", "c", "int"),)))
    assert read_provenance(ctx, record, columns=False) == replace(made, columns=())
    assert len(read_provenance(ctx, record).columns) == 1


def test_columns_are_limited() -> None:
    """Protects the record of a version from what a guest says."""

    class Says:
        def rows(self, _: str) -> list[list[str]]:
            return [["x"] * FIELDS] * 20_001

        def run(self, *_: str, **__: object) -> str:
            return "\n".join("\t".join(row) for row in self.rows(""))

    with pytest.raises(InvalidSpec, match="20001 columns, a dataset can have 20000"):
        columns_of(cast("Server", Says()))


class _Endless:
    """A loader whose guest answers each question with more lines than were asked for."""

    engine = SimpleNamespace(name="mariadb")

    def __init__(self, line: str) -> None:
        self.said: list[Event] = []
        self.ctx = SimpleNamespace(progress=Progress(self.said.append))
        self._line = line

    def run(self, *_: str, **__: object) -> str:
        return f"{self._line}\n" * 20_000

    rows, tables, forget_links = Server.rows, Server.tables, Server.forget_links


def test_what_a_guest_says_of_its_data_is_limited() -> None:
    """Protects the record of a version, and the events of a job, from lines without end."""
    guest = _Endless("a\tb\tInnoDB\t1\t1")
    server = cast("Server", guest)
    assert len(server.tables()) == 10_000
    found = outside(server, masked=True)
    assert (len(found.accounts), len(found.definers)) == (1000, 1000)
    assert len(guest.said) < 200
    assert len(server.forget_links()) == 100
    Progress(guest.said.append).note("load", "x" * 100_000)
    assert len(guest.said[-1].text) == 4096


def test_an_upload(ctx: Context, dump: Path) -> None:
    """Protects clients of the service: messages have the name that they know."""
    sql = "INSERT INTO people VALUES (3, 'Edith');"
    sent = ctx.home.upload("t", "1") / "mine.sql"
    sent.parent.mkdir(parents=True)
    sent.write_bytes(dump.read_bytes())
    asked = CreateDataset(name="shop", source="upload:mine.sql", sql=sql, upload="t/1/mine.sql")
    made = dataset.create(ctx, asked)
    assert made.source == "upload:mine.sql"
    up(ctx, named("a", dataset="shop"))
    assert len(names(ctx, "a")[0]) == 3  # type: ignore[arg-type]
    assert (ctx.home.image(made.image) / "dataset.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidSpec, match="cannot be read again"):
        dataset.refresh(ctx, "shop")
    sent.write_bytes(DUMP.replace(b"INTO people", b"INTO persons"))
    other = structs.replace(asked, name="other", sql="")
    with pytest.raises(InvalidSpec, match=r"^upload:mine.sql: statement 4"):
        dataset.create(ctx, other)
    sent.unlink()
    with pytest.raises(InvalidSpec, match="not there any more"):
        dataset.create(ctx, other)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (DUMP.replace(b"INTO people", b"INTO persons"), "shop.sql: statement 4, at line 6"),
        (DUMP.replace(b"-- Dump completed", b"-- "), "shop.sql is truncated"),
        (b"USE mysql;\n" + DUMP, "the server's own database mysql"),
        (
            b"SET NAMES utf8mb4;\nINSERT INTO people VALUES (1, 'Ada",
            "shop.sql ends within a string",
        ),
    ],
    ids=["refused", "last line", "system", "cut"],
)
def test_a_dump_that_is_wrong(
    ctx: Context, world: World, dump: Path, content: bytes, said: str
) -> None:
    """It is said where, and nothing is left."""
    before = world.there()
    dump.write_bytes(content)
    with pytest.raises(InvalidSpec, match=said):
        dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    assert world.there() == before


def test_a_source_that_is_not_there(ctx: Context, tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="there is no file"):
        dataset.create(ctx, CreateDataset(name="shop", source=str(tmp_path / "none.sql")))
    with pytest.raises(InvalidSpec, match="not a valid name"):
        dataset.create(ctx, CreateDataset(name="Shop", source="-"))
    with pytest.raises(InvalidSpec, match="an image of its own"):
        LabSpec("galera", dataset="shop", image="mariadb")


def test_a_small_host_is_told_first(tmp_path: Path, dump: Path) -> None:
    """Protects the host's disk: the room is checked before anything is read."""
    with World(tmp_path / "home", capacity=512 << 20).open() as ctx:
        make_image(ctx)
        with pytest.raises(HostUnfit, match=r"the dataset needs .* of disk"):
            dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))


def test_progress_tells_how_far_it_is(world: World, dump: Path) -> None:
    heard: list[Event] = []
    with world.open() as ctx:
        make_image(ctx)
        ctx.progress.listener = heard.append
        dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    far = [event.text for event in heard if event.state == "update"]
    assert far
    assert any(" of 1M" in text for text in far)


def test_two_creations_of_one_name(world: World, dump: Path) -> None:
    """One makes it, the other is refused."""
    with world.open() as ctx:
        make_image(ctx)
    outcomes: list[str] = []

    def one() -> None:
        with world.open() as ctx:
            try:
                outcomes.append(
                    dataset.create(ctx, CreateDataset(name="shop", source=str(dump))).at
                )
            except LabError as error:
                outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["Conflict", "shop@1"]


@pytest.mark.rare  # test_killed does it to a lab
def test_it_is_killed(world: World, dump: Path) -> None:
    """Protects the host, and the dump's content, at each step of a load."""

    def remove_datasets(ctx: Context) -> None:
        for view in dataset.datasets(ctx):
            dataset.remove(ctx, view.name)

    steps = {
        "storage.import_raw", "storage.clone", "hypervisor.start", "hypervisor.run",
        "hypervisor.stop", "storage.destroy", "storage.snapshot", "state.commit",
    }  # fmt: skip
    sweep(
        world,
        make_image,
        lambda ctx: dataset.create(ctx, CreateDataset(name="shop", source=str(dump))),
        steps,
        again=remove_datasets,
    )


@pytest.mark.rare
@pytest.mark.parametrize("error", [HostUnfit("no space is left"), KeyboardInterrupt()])
def test_it_fails(world: World, dump: Path, error: BaseException) -> None:
    """A full disk, or Ctrl-C, at each step."""
    with world.open() as ctx:
        make_image(ctx)
    baseline, step = world.there(), 0
    while True:
        hook = Counter(step, raising(error))
        with world.open(hook) as ctx:
            try:
                dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
                dataset.remove(ctx, "shop")
            except (LabError, KeyboardInterrupt):
                pass
        with world.open() as ctx:
            gc(ctx)
            for view in dataset.datasets(ctx):
                assert view.state == "ready"
                dataset.remove(ctx, view.name)
        assert world.there() == baseline, f"failed at step {step}, {hook.done}"
        if not hook.done:
            return
        step += 1


def test_its_template_is_its_own(ctx: Context, dump: Path) -> None:
    template.build(ctx, REQUEST)
    dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    assert template.build(ctx, OF_SHOP).key != template.build(ctx, REQUEST).key
