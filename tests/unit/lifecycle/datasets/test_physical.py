"""Datasets of physical backups: checked here, unpacked and prepared in the guest."""

from __future__ import annotations

import gzip
import io
import os
import sys
from pathlib import Path

import pytest

from lab.datasets import backup as backups
from lab.datasets.source import BackupDirectory
from lab.errors import HostUnfit, InvalidSpec, LabError
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import dataset, physical
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.labs.up import up
from lab.requests.datasets import CreateDataset
from tests.support.backups import chunk, files, stream, write
from tests.support.data_directories import directory, directory_of_mysql, log, packed
from tests.support.lifecycle_world import REQUEST, Counter, World, make_image, named, raising
from tests.unit.lifecycle.datasets.test_datasets import names
from tests.unit.lifecycle.promises.test_killed import sweep

DATA = (
    b"CREATE TABLE people (id INT PRIMARY KEY, name TEXT);\n"
    b"INSERT INTO people VALUES (1, 'Ada'), (2, 'Grace');\n"
)
OF_SHOP = named("", dataset="shop")


@pytest.fixture
def ctx(world: World) -> object:
    with world.open() as context:
        make_image(context)
        yield context


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return write(tmp_path / "full", files(DATA))


def streamed(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.rare
def test_a_lab_begins_with_a_directory(ctx: Context, backup: Path) -> None:
    made = dataset.create(ctx, CreateDataset(name="shop", source=str(backup)))
    assert (made.version, made.state, made.source) == (1, "ready", str(backup))
    assert made.loaded > sum(map(len, files(DATA).values()))
    view = up(ctx, named("a", dataset="shop"))
    assert (view.state, view.started, view.image) == ("ready", "warm", made.image)
    assert names(ctx, "a") == [("Ada", "Grace")] * REQUEST.nodes
    assert [v.name.volume for v in ctx.storage.volumes() if "backup" in str(v.name)] == []
    assert list(ctx.home.builds.iterdir()) == []
    write(backup, {"ibdata1": DATA.replace(b"Ada", b"Katherine")})
    assert dataset.refresh(ctx, "shop").version == 2
    up(ctx, named("b", dataset="shop"))
    assert names(ctx, "b")[0] == ("Katherine", "Grace")


@pytest.mark.rare
@pytest.mark.parametrize(
    ("name", "packed"), [("a.mbstream", False), ("a.xb.gz", True), ("backup.bin", False)]
)
def test_streams_and_further_sql(ctx: Context, tmp_path: Path, name: str, packed: bool) -> None:
    """SQL of files is executed after the server has started on the backup."""
    data, more = stream(files(DATA, prepared=True)), tmp_path / "more.sql"
    path = streamed(tmp_path / name, gzip.compress(data) if packed else data)
    more.write_text("INSERT INTO people VALUES (3, 'Edith');\nDELETE FROM people WHERE id = 1")
    dataset.create(ctx, CreateDataset(name="shop", source=str(path), files=(str(more),)))
    up(ctx, named("a", dataset="shop"))
    assert names(ctx, "a")[0] == ("Grace", "Edith")


def test_sql_that_is_wrong_is_named(ctx: Context, world: World, backup: Path) -> None:
    before, more = world.there(), backup.parent / "more.sql"
    more.write_text("DELETE FROM people WHERE id = 1;\nDELETE FROM persons;\n")
    with pytest.raises(InvalidSpec, match=r"more\.sql: statement 2, at line 2"):
        dataset.create(ctx, CreateDataset(name="shop", source=str(backup), files=(str(more),)))
    assert world.there() == before


@pytest.mark.rare
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (files(DATA, server="11.9.1-MariaDB"), "newer than the server of the image, 11.8.6"),
        (files(DATA, server="10.6.20-MariaDB-log"), "10.6.20 and not prepared"),
        (files(DATA, server="8.0.36"), "MySQL 8.0.36, whose files MariaDB cannot read"),
        (files(DATA, partial="Y"), "is a partial backup"),
    ],
    ids=["newer", "redo log", "mysql", "partial"],
)
def test_what_does_not_fit_is_refused_before_a_guest_boots(
    world: World, tmp_path: Path, content: dict[str, bytes], said: str
) -> None:
    path = streamed(tmp_path / "a.xb", stream(content))
    with world.open() as ctx:
        make_image(ctx)
    before = world.there()
    heard: list[str] = []
    with world.open(heard.append) as ctx:
        for source in (str(path), str(write(tmp_path / "full", content))):
            with pytest.raises(InvalidSpec, match=said) as failure:
                dataset.create(ctx, CreateDataset(name="shop", source=source))
            assert failure.value.hint
    assert "hypervisor.start" not in heard
    assert "storage.import_raw" not in heard
    assert world.there() == before


@pytest.mark.rare
@pytest.mark.parametrize(
    ("content", "engine", "said"),
    [
        (directory({"ib_logfile0": log(end=100)}), "mariadb", "was not stopped cleanly"),
        (directory(), "mysql", "MariaDB 10.11.6, not of MySQL"),
        (directory_of_mysql(), "mariadb", "a data directory of MySQL 8.4.2"),
        (directory_of_mysql({"mysql.ibd": b"x"}), "mysql", "is encrypted or damaged"),
    ],
    ids=["killed", "not of mysql", "of mysql", "damaged"],
)
def test_data_directories_that_do_not_fit(
    world: World, tmp_path: Path, content: dict[str, bytes], engine: str, said: str
) -> None:
    """Before a guest boots, as a directory and as an archive."""
    archive = packed(tmp_path / "a.tar", content)
    with world.open() as ctx:
        image.build(ctx, engine)
    before, heard = world.there(), list[str]()
    with world.open(heard.append) as ctx:
        for source in (str(archive), str(write(tmp_path / "data", content))):
            asked = CreateDataset(name="shop", source=source, engine=engine)
            with pytest.raises(InvalidSpec, match=said) as failure:
                dataset.create(ctx, asked)
            assert failure.value.hint
    assert "hypervisor.start" not in heard
    assert world.there() == before


@pytest.mark.parametrize(
    ("tablespace", "said", "details"),
    [
        (
            b"corrupt",
            "full: it could not be prepared",
            ["[ERROR] InnoDB: a page is corrupted"],
        ),
        (
            b"INSERT INTO none VALUES (1);",
            "full: the server could not start on it",
            ["no such table"],
        ),
    ],
)
def test_the_words_of_what_refuses_it(
    ctx: Context, world: World, tmp_path: Path, tablespace: bytes, said: str, details: list[str]
) -> None:
    before = world.there()
    path = write(tmp_path / "full", files(tablespace))
    with pytest.raises(InvalidSpec, match=said) as failure:
        dataset.create(ctx, CreateDataset(name="shop", source=str(path)))
    assert len(failure.value.details) == 1, "no notes"
    assert details[0] in failure.value.details[0]
    assert world.there() == before


def test_standard_input_is_sql(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is piped is named, instead of being read as a statement of gigabytes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stream(files(DATA)))))
    with pytest.raises(
        InvalidSpec, match="standard input is a stream of mbstream or xbstream"
    ) as failure:
        dataset.create(ctx, CreateDataset(name="shop", source="-"))
    assert "shop.xb" in failure.value.hint


@pytest.mark.rare
def test_a_stream_that_is_damaged_or_cut(ctx: Context, world: World, tmp_path: Path) -> None:
    before, whole = world.there(), stream(files(DATA))
    path = tmp_path / "a.xb"
    for data, said in (
        (whole[:-1], "truncated"),
        (whole[: len(whole) // 2], "truncated"),
        (whole.replace(b"Grace", b"Brace"), "checksum of a chunk of ibdata1"),
        (whole + b"mariadb-backup: completed OK!\n", "damaged at byte"),
        (chunk("../evil", b"x") + whole, "not of a backup"),
        (b"CREATE TABLE t (id INT);\n", "no stream of mbstream"),
    ):
        streamed(path, data)
        with pytest.raises(InvalidSpec, match=said):
            dataset.create(ctx, CreateDataset(name="shop", source=str(path)))
    assert world.there() == before


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, backup: Path) -> None:
    """Also one that was read before, or that comes later."""
    data = backups.streamed(BackupDirectory(backup))
    next(data)
    write(backup, {"mysql/late.ibd": b""})
    with pytest.raises(InvalidSpec, match=r"mysql/late\.ibd changed while it was read"):
        list(data)

    def hear(_: int) -> None:
        os.utime(backup / "backup-my.cnf", (1, 1))

    with pytest.raises(InvalidSpec, match=r"backup-my\.cnf changed while it was read"):
        physical.write(BackupDirectory(backup), tmp_path / "stream", "11.8.2", "mariadb", hear)


def test_a_small_host_is_told_first(tmp_path: Path, backup: Path) -> None:
    """Protects the host's disk: the room for a backup is checked before it is read."""
    with (backup / "ibdata1").open("r+b") as file:
        file.truncate(1 << 30)
    with World(tmp_path / "home", capacity=3 << 30).open() as ctx:
        make_image(ctx)
        with pytest.raises(HostUnfit, match=r"the dataset needs 3\.3G of disk"):
            dataset.create(ctx, CreateDataset(name="shop", source=str(backup)))


@pytest.mark.rare
def test_it_is_killed(world: World, backup: Path) -> None:
    """Protects the host, and the backup, at each step of a load."""

    def remove_datasets(ctx: Context) -> None:
        for view in dataset.datasets(ctx):
            dataset.remove(ctx, view.name)

    steps = {"storage.import_raw", "hypervisor.run", "hypervisor.stop", "storage.destroy"}
    sweep(
        world,
        make_image,
        lambda ctx: dataset.create(ctx, CreateDataset(name="shop", source=str(backup))),
        steps,
        again=remove_datasets,
    )
    assert {p.name for p in backup.iterdir()} >= {"ibdata1", "mariadb_backup_info"}


@pytest.mark.rare
@pytest.mark.parametrize("error", [HostUnfit("no space is left"), KeyboardInterrupt()])
def test_it_fails(world: World, backup: Path, error: BaseException) -> None:
    """A full disk, or Ctrl-C, at each step."""
    more = backup.parent / "more.sql"
    more.write_text("DELETE FROM people WHERE id = 1;\n")
    with world.open() as ctx:
        make_image(ctx)
    baseline, step = world.there(), 0
    while True:
        hook = Counter(step, raising(error))
        with world.open(hook) as ctx:
            try:
                asked = CreateDataset(name="shop", source=str(backup), files=(str(more),))
                dataset.create(ctx, asked)
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
