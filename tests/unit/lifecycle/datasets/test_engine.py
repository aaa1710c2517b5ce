"""The engine of a dataset: that of the request, else one of the family that its source is of."""

from __future__ import annotations

import bz2
import gzip
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.datasets import source as sources
from lab.datasets.source_dialect import dialect_of_source
from lab.datasets.survey import HEAD
from lab.errors import CommandFailed, InvalidSpec, NotFound
from lab.imagebuild.recipe import load
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import dataset
from lab.lifecycle.images import failures
from lab.lifecycle.images.provenance import read_provenance
from lab.lifecycle.labs.up import up
from lab.requests.datasets import CreateDataset
from tests.support.backups import write
from tests.support.lifecycle_world import World, named

OF_MYSQL = b"""\
-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)
--
-- Host: localhost    Database: shop
-- ------------------------------------------------------
-- Server version\t8.0.36
CREATE TABLE t (id INT PRIMARY KEY);
INSERT INTO t VALUES (1), (2);
-- Dump completed on 2026-11-20 12:00:00
"""
OF_MARIADB = b"""\
/*M!999999\\- enable the sandbox mode */
-- MariaDB dump 10.19-11.8.2-MariaDB, for debian-linux-gnu (x86_64)
CREATE TABLE t (id INT PRIMARY KEY);
-- Dump completed on 2026-11-20 12:00:00
"""


@pytest.fixture
def ctx(world: World) -> Iterator[Context]:
    with world.open() as context:
        yield context


def made(ctx: Context, path: Path, content: bytes, **values: Any) -> tuple[str, str]:
    """The engine of a dataset of a dump, and the blueprint that it is for."""
    path.write_bytes(content)
    view = dataset.create(ctx, CreateDataset(name="shop", source=str(path), **values))
    return view.engine.split(" ")[0], view.blueprint


def test_of_the_family_of_its_dump(ctx: Context, world: World, tmp_path: Path) -> None:
    """Protects users of MySQL from another server than theirs."""
    path = tmp_path / "shop.sql"
    assert made(ctx, path, OF_MYSQL) == ("mysql", "replication")
    assert up(ctx, named("a", "single", nodes=1, dataset="shop")).engine == "mysql"
    assert up(ctx, named("b", "group", nodes=3, dataset="shop")).engine == "mysql"
    record = ctx.store.images.get(dataset.dataset(ctx, "shop").image)
    assert read_provenance(ctx, record).engine == "mysql"
    assert dataset.refresh(ctx, "shop").engine.startswith("mysql")
    assert not [note for note in world.notes if " is of " in note or "server is" in note]


def test_versions_on_several_engines(ctx: Context, tmp_path: Path) -> None:
    """Protects comparisons: a version for each engine, of the same source."""
    path = tmp_path / "shop.sql"
    assert made(ctx, path, OF_MYSQL, keep=1) == ("mysql", "replication")
    second = dataset.refresh(ctx, "shop", engine="mariadb:10.11")
    assert (second.version, second.engine.split(" ")[0], second.blueprint) == (
        2, "mariadb", "replication",
    )  # fmt: skip
    for which, engine in (("shop", "mariadb"), ("shop@1", "mysql"), ("shop@2", "mariadb")):
        spec = named(f"lab-{which.replace('@', '-')}", "single", nodes=1, dataset=which)
        assert up(ctx, spec).engine == engine
    for engine, which in (("mysql", "shop"), ("mariadb:10.11", "shop"), ("mysql:9.7", "shop@1")):
        spec = named(f"on-{engine.replace(':', '-').replace('.', '-')}", "single", nodes=1,
                     dataset=which, engine=engine)  # fmt: skip
        assert up(ctx, spec).engine == engine.partition(":")[0]
    with pytest.raises(NotFound, match=r"no version of .* shop is on mariadb:11\.8") as none:
        up(ctx, named("none", "single", nodes=1, dataset="shop", engine="mariadb:11.8"))
    assert "`lab dataset refresh shop --engine mariadb:11.8` makes one" in none.value.hint
    with pytest.raises(InvalidSpec, match="cannot run on the engine 'mariadb'"):
        up(ctx, named("none", "group", nodes=3, dataset="shop", engine="mariadb"))
    # As the latest; and what is kept is kept of each engine.
    assert dataset.refresh(ctx, "shop").engine == second.engine
    assert [one.version for one in dataset.datasets(ctx) if one.state == "ready"] == [1, 3]
    with pytest.raises(InvalidSpec, match="there is no engine 'oracle'"):
        dataset.refresh(ctx, "shop", engine="oracle")


@pytest.mark.parametrize(
    ("content", "values", "engine", "plan"),
    [
        (OF_MARIADB, {}, "mariadb", "galera"),
        (b"CREATE TABLE t (id INT PRIMARY KEY)", {}, "mariadb", "galera"),
        (b"CREATE TABLE t (id INT PRIMARY KEY)", {"blueprint": "group"}, "mysql", "group"),
        (OF_MARIADB, {"engine": "mysql"}, "mysql", "replication"),
        (OF_MYSQL, {"engine": "mariadb:10.11"}, "mariadb", "galera"),
        (OF_MYSQL, {"blueprint": "single"}, "mysql", "single"),
        (OF_MYSQL, {"engine": "percona-server"}, "percona-server", "replication"),
    ],
)
def test_of_the_request(
    ctx: Context, tmp_path: Path, content: bytes, values: dict[str, str], engine: str, plan: str
) -> None:
    assert made(ctx, tmp_path / "shop.sql", content, **values) == (engine, plan)


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TABLE = "/*!40101 SET NAMES binary*/;\n\nCREATE TABLE `t` (\n  `id` int{}\n) ENGINE=InnoDB{};\n"
PLAIN = TABLE.format("(11) NOT NULL", " DEFAULT CHARSET=utf8mb4")


def of_mydumper(
    top: Path, position: str = "", database: str = "/*!40100 DEFAULT CHARACTER SET latin1 */",
    table: str = PLAIN, further: str = "",
) -> Path:  # fmt: skip
    """A directory as mydumper writes it: 0.10, or another, by what ``position`` is."""
    top.mkdir()
    for name, text in {
        "metadata": f"Started dump at: x\n{position}Finished dump at: x\n",
        "shop-schema-create.sql": f"CREATE DATABASE `shop` {database};\n",
        "shop.t-schema.sql": table,
        "shop.t.sql": "/*!40101 SET NAMES binary*/;\nINSERT INTO `t` VALUES\n(1),\n(2);\n",
        **(
            {f"shop.s-schema{further}.sql": "CREATE SEQUENCE `s` start with 1;\n"}
            if further
            else {}
        ),
    }.items():
        (top / name).write_text(text)
    return top


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("mysql", {"database": "/*!40100 DEFAULT CHARACTER SET latin1 */"
                               " /*!80016 DEFAULT ENCRYPTION='N' */"}),
        ("mysql", {"table": TABLE.format(" NOT NULL,\n  `j` json DEFAULT NULL", "")}),
        ("mysql", {"table": TABLE.format(" DEFAULT '3' /*!80023 INVISIBLE */", "")}),
        ("mysql", {"position": f"SHOW MASTER STATUS:\n\tLog: b.1\n\tPos: 4\n\tGTID:{UUID}:1-5,\n"
                               f"{UUID}:7\n\n"}),
        ("mysql", {"position": "# Started\n[config]\nquote-character = BACKTICK\n\n[source]\n"
                               f"# Channel_Name = ''\n# executed_gtid_set = \"{UUID}:1-5\"\n"
                               "# SOURCE_LOG_FILE = \"b.1\"\n\n[replication]\n"
                               "# executed_gtid_set = \"0-1-23\"\n"}),
        ("mysql", {"position": "[master]\n# Channel_Name = ''\nFile = b.1\nPosition = 4\n"
                               f"Executed_Gtid_Set = {UUID}:1-5\n"}),
        ("mariadb", {"position": "SHOW MASTER STATUS:\n\tLog: b.1\n\tPos: 4\n\tGTID:0-1-23,1-2-4"
                                 "\n\n"}),
        ("mariadb", {"database": "/*!40100 DEFAULT CHARACTER SET utf8mb4 COLLATE"
                                 " utf8mb4_uca1400_ai_ci */"}),
        ("mariadb", {"table": TABLE.format("(11),\n  `at` time DEFAULT current_timestamp()", "")}),
        ("mariadb", {"table": TABLE.format("(11)", " WITH SYSTEM VERSIONING")}),
        ("mariadb", {"further": "-sequence"}),
        # Of MySQL 5.7, or of MariaDB: a replica's position is that of another server.
        ("", {}),
        ("", {"position": "SHOW MASTER STATUS:\n\tLog: b.1\n\tPos: 4\n\tGTID:\n\n"
                          f"SHOW SLAVE STATUS:\n\tHost: h\n\tGTID:{UUID}:1-5\n\n"}),
        ("", {"position": "SHOW MASTER STATUS:\n\tLog: b.1\n\tPos: 4\n\tGTID:(null)\n\n"}),
        # MariaDB has these names since 11.4.5, and strings and names say nothing.
        ("", {"database": "/*!40100 DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci */"}),
        ("", {"table": TABLE.format("(11) COMMENT 'it''s /*!80023 INVISIBLE */ \\' WITH SYSTEM"
                                    " VERSIONING',\n  `DEFAULT current_timestamp()` int(11)", "")}),
        ("", {"table": "CREATE TABLE `t` (`a"}),
    ],
)  # fmt: skip
def test_what_mydumper_writes_of_the_family(
    tmp_path: Path, family: str, written: dict[str, str]
) -> None:
    top = of_mydumper(tmp_path / "dump", **written)
    assert dialect_of_source(sources.parse(str(top))) == family
    for path in top.glob("*.sql"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert dialect_of_source(sources.parse(str(top))) == family


def test_a_directory_of_mydumper_is_loaded_into_its_family(
    ctx: Context, world: World, tmp_path: Path
) -> None:
    """Protects from MariaDB in the place of MySQL; where that is wanted, it is said."""
    table = "CREATE TABLE `t` (\n  `id` int\n);\n"  # the fake server has no engines
    shown = "/*!80016 DEFAULT ENCRYPTION='N' */"
    top = of_mydumper(tmp_path / "dump", database=shown, table=table)
    view = dataset.create(ctx, CreateDataset(name="shop", source=str(top)))
    assert view.engine.startswith("mysql")
    assert not [note for note in world.notes if " is of " in note]
    view = dataset.create(ctx, CreateDataset(name="crm", source=str(top), engine="mariadb"))
    assert view.engine.startswith("mariadb")
    assert any(
        note.startswith("the dump is of MySQL, the server is MariaDB") for note in world.notes
    )
    plain = of_mydumper(tmp_path / "plain", table=table)
    view = dataset.create(ctx, CreateDataset(name="plain", source=str(plain)))
    assert view.engine.startswith("mariadb")


def test_it_is_said_when_it_is_another(ctx: Context, world: World, tmp_path: Path) -> None:
    """Protects from tests on a server that nobody asked for: its blueprint has none of MySQL."""
    path = tmp_path / "shop.sql"
    assert made(ctx, path, OF_MYSQL, blueprint="galera") == ("mariadb", "galera")
    said = f"{path} is of MySQL; using MariaDB: labs of galera do not run on MySQL"
    assert said in world.notes


def test_an_image_that_cannot_be_had(ctx: Context, world: World, tmp_path: Path) -> None:
    for recipe in ("mysql", "percona-xtradb-cluster", "percona-server"):
        failed = failures.recorded(
            ctx, load(recipe), failures.UNBUILT, tmp_path / "log", CommandFailed
        )
        with pytest.raises(CommandFailed), failed:
            raise CommandFailed(["mmdebstrap"], 1, stderr="E: no such package")
    found = made(ctx, tmp_path / "shop.sql", OF_MYSQL)
    assert found == ("mariadb", "galera"), world.notes
    assert any("using MariaDB: " in note and "mysql" in note for note in world.notes)


def test_a_physical_backup_is_not_of_mysql(ctx: Context, tmp_path: Path) -> None:
    """Protects from an hour of copying before the server cannot start."""
    full, stream = tmp_path / "full", tmp_path / "a.xb"
    stream.write_bytes(b"XBSTCK01")
    write(full, {"xtrabackup_checkpoints": b"backup_type = full-backuped\n", "ibdata1": b"",
                 "mysql.ibd": b""})  # fmt: skip
    for source, said in (
        (stream, "the stream of a backup, which MySQL cannot prepare"),
        (full, "not prepared: its type is full-backuped"),
    ):
        asked = CreateDataset(name="shop", source=str(source), engine="mysql")
        with pytest.raises(InvalidSpec, match=said) as failure:
            dataset.create(ctx, asked)
        assert "xtrabackup --prepare" in failure.value.hint
    assert dataset.datasets(ctx) == []


@contextmanager
def greeting(version: bytes, packet: bytes = b"") -> Iterator[int]:
    """The port of a server that greets once with a version, or says something else."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            with listening.accept()[0] as client:
                said = packet or b"\x0a" + version + b"\0" + bytes(60)
                client.sendall(b"\x4a\0\0\0" + said)

        thread = threading.Thread(target=greet)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def test_what_says_the_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, in UTF-16, in a directory, from standard input, and of a server that greets."""
    packed, wide = tmp_path / "a.sql.gz", tmp_path / "b.sql"
    packed.write_bytes(gzip.compress(OF_MYSQL * 2000))
    wide.write_bytes(OF_MYSQL.decode().encode("utf-16"))
    (tmp_path / "dump/shop").mkdir(parents=True)
    (tmp_path / "dump/shop/t.sql").write_bytes(OF_MARIADB)
    (tmp_path / "dump/shop/t.txt").write_bytes(b"")
    blocks = tmp_path / "a.sql.bz2"  # which give nothing before all of 900 kB is there
    rows = b"".join(b"INSERT INTO t VALUES ('%x');\n" % number**5 for number in range(60_000))
    blocks.write_bytes(bz2.compress(OF_MYSQL + rows))
    assert blocks.stat().st_size > 5 * HEAD
    for path, family in (
        (packed, "mysql"), (wide, "mysql"), (blocks, "mysql"), (tmp_path / "dump", "mariadb"),
    ):  # fmt: skip
        assert dialect_of_source(sources.parse(str(path))) == family
    content = io.BufferedReader(io.BytesIO(OF_MYSQL))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=content))
    assert dialect_of_source(sources.parse("-")) == "mysql"
    assert content.read() == OF_MYSQL
    versions = {b"8.0.36": "mysql", b"5.5.5-10.11.6-MariaDB": "mariadb"}
    for version, family in versions.items():
        with greeting(version) as port:
            assert dialect_of_source(sources.parse(f"mysql://u@127.0.0.1:{port}/shop")) == family
    assert dialect_of_source(sources.parse(f"mysql://u@127.0.0.1:{port}/shop")) == ""
    assert dialect_of_source(sources.parse("generate:sysbench")) == ""
