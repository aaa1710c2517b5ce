"""Protects data: the directory of a stopped server of MySQL is read as it is, or refused."""

from __future__ import annotations

import io
import shutil
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.datasets import of_mysql
from lab.datasets.backup import Backup
from lab.datasets.source import BackupDirectory, DataArchive, DataDirectory, parse
from lab.errors import InvalidSpec
from tests.support.backups import write
from tests.support.data_directories import REDO_OF_MYSQL as TOP
from tests.support.data_directories import dictionary, log, of_xtrabackup, old_log, packed
from tests.support.data_directories import directory as of_mariadb
from tests.support.data_directories import directory_of_mysql as directory
from tests.support.data_directories import redo_of_mysql as redo
from tests.support.mariadb_server import NoServer, stopped
from tests.support.mysql_server import server

OURS = "9.7.4"


def read(path: Path, version: str = OURS) -> tuple[Backup, dict[str, bytes]]:
    """What is found, and the files of the archive that is made."""
    source = parse(str(path))
    assert isinstance(source, DataDirectory | DataArchive | BackupDirectory)
    opened = of_mysql.opened(source, version)
    with tarfile.open(fileobj=io.BytesIO(b"".join(opened.data))) as archive:
        contents = ((one.name, archive.extractfile(one)) for one in archive)
        return opened.found, {name: file.read() for name, file in contents if file}


def refusal(path: Path, version: str = OURS) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as failure:
        read(path, version)
    assert str(path) in failure.value.what
    assert failure.value.hint
    return failure.value


@dataclass(frozen=True)
class Made:
    """Directories of a real server."""

    stopped: Path
    running: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    top = tmp_path_factory.mktemp("directories")
    try:
        with server() as db:
            db.ask(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.t (id INT PRIMARY KEY, s LONGTEXT)",
                "INSERT INTO shop.t VALUES (1, REPEAT('x', 2000000))",
                "CREATE TABLESPACE more ADD DATAFILE 'more.ibd'",
            )
            running = shutil.copytree(db.directory / "data", top / "running")
            return Made(shutil.copytree(stopped(db), top / "stopped"), running)
    except NoServer as error:
        pytest.skip(str(error))


def test_a_stopped_server(made: Made, tmp_path: Path) -> None:
    found, there = read(made.stopped)
    assert found.version.split("-")[0].startswith("9.7")
    assert found.options == (
        "innodb_data_file_path=ibdata1:12M:autoextend", "innodb_page_size=16384",
        "lower_case_table_names=0",
    )  # fmt: skip
    for name in ("shop/t.ibd", "mysql.ibd", "more.ibd", "undo_001", "ibdata1"):
        assert there[name] == (made.stopped / name).read_bytes()
    assert [name for name in there if name.startswith("#innodb_redo/")]
    assert not [name for name in there if name.endswith(".dblwr") or "_tmp" in name]
    assert "auto.cnf" not in there
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as out:
        out.add(made.stopped, "mysql")
    assert read(archive) == (found, there)


def test_a_server_that_runs_is_refused(made: Made) -> None:
    assert "was not stopped cleanly" in refusal(made.running).what


# Directories that are made by hand

ENCRYPTED = bytes(54) + struct.pack(">I", 1 << 13) + bytes(1000)
REFUSED: dict[str, tuple[Mapping[str, bytes | None], str]] = {
    "8.0": (
        {"mysql.ibd": dictionary(80036), f"{TOP}5": redo(by=b"MySQL 8.0.35")},
        "8.0.36, and 9.7.4 upgrades",
    ),
    "newer": ({"mysql.ibd": dictionary(90705)}, "9.7.5, which is newer"),
    "no facts": ({"mysql.ibd": bytes(4096)}, "is encrypted or damaged"),
    "two of them": ({"mysql.ibd": dictionary(more=b"LCTN=1;LCTN=0;")}, "encrypted or damaged"),
    "no log": ({f"{TOP}5": None}, "has no redo log"),
    "another log": ({f"{TOP}5": redo(form=9)}, "the format 0x9"),
    "half a log": ({f"{TOP}5": redo()[:1000]}, "is truncated"),
    "not clean": ({f"{TOP}5": redo(used=0)}, "was not stopped cleanly"),
    "a part of a log": ({f"{TOP}5": redo(90000)}, "lacks a file"),
    "an encrypted table": ({"shop/t.ibd": ENCRYPTED}, "shop/t.ibd is encrypted"),
    "encrypted undo": ({"undo_001": ENCRYPTED}, "undo_001 is encrypted"),
    "an old log": ({f"{TOP}5": None, "ib_logfile0": old_log(5, 1)}, "was not stopped cleanly"),
    "a backup": ({"xtrabackup_checkpoints": b"backup_type = full-backuped\n"}, "is not prepared"),
    "a part": (
        {"xtrabackup_checkpoints": b"backup_type = full-prepared\n",
         "xtrabackup_info": b"partial = Y\n"}, "is a partial backup",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused(tmp_path: Path, case: str) -> None:
    more, said = REFUSED[case]
    assert said in refusal(packed(tmp_path / "a.tar", directory(more))).what


@pytest.mark.parametrize(
    ("theirs", "ours", "first"),
    [
        ("5.7.44", "8.0.40", ""), ("5.7.44", "8.4.5", "8.0"), ("8.0.11", "8.4.5", ""),
        ("8.3.0", "8.4.5", ""), ("8.0.36", "9.7.4", "8.4"), ("8.4.2", "9.7.4", ""),
        ("9.1.0", "9.7.4", ""), ("8.0.36", "8.0.36", ""), ("5.7.44", "26.7.1", "8.0, then 8.4"),
    ],
)  # fmt: skip
def test_series_that_are_upgraded(theirs: str, ours: str, first: str) -> None:
    """Protects from a start that fails: only from the series with long support before its own."""
    if not first:
        of_mysql._check_version("x", theirs, ours)
        return
    with pytest.raises(InvalidSpec, match="the series before it only") as failure:
        of_mysql._check_version("x", theirs, ours)
    assert failure.value.hint.startswith(f"upgrade its server to {first}")


@pytest.mark.parametrize("redo_of_theirs", [True, False])
def test_a_prepared_backup(tmp_path: Path, redo_of_theirs: bool) -> None:
    """Of XtraBackup, which removes the redo log at the end: its own files are left out."""
    there = directory({} if redo_of_theirs else {f"{TOP}5": None})
    found, made = read(write(tmp_path / "full", there | of_xtrabackup()))
    assert found.options[-1] == "lower_case_table_names=1"
    assert made == there
    data = b"".join(of_mysql.opened(DataDirectory(tmp_path / "full"), OURS).data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        folders = [one.name for one in archive if one.isdir()]
    assert folders == ([] if redo_of_theirs else ["#innodb_redo"])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("full-backuped", "xtrabackup --prepare --target-dir=DIR"),
        ("log-applied", "xtrabackup --prepare --target-dir=DIR"),
        ("incremental", "--target-dir=FULL --incremental-dir=DIR"),
    ],
)
def test_a_backup_that_is_not_prepared(tmp_path: Path, kind: str, said: str) -> None:
    there = directory({f"{TOP}5": None}) | of_xtrabackup(kind)
    if kind == "incremental":  # it has what changed in files, with their sizes in others
        there["ibdata1.delta"], there["ibdata1.meta"] = b"XTRA", b"page_size = 16384\n"
    failure = refusal(write(tmp_path / "full", there))
    assert f"its type is {kind}" in failure.what
    assert said in failure.hint


def test_a_backup_that_is_compressed(tmp_path: Path) -> None:
    """Protects from words about a directory that is none: no file has its own name."""
    there = {f"{name}.zst": data for name, data in directory().items()}
    failure = refusal(write(tmp_path / "full", there | of_xtrabackup("full-backuped")))
    assert "is compressed or encrypted: it has #innodb_redo/#ib_redo5.zst" in failure.what
    assert "--decompress" in failure.hint


def test_other_servers_are_named(tmp_path: Path) -> None:
    other = packed(tmp_path / "a.tar", of_mariadb())
    assert "MariaDB 10.11.6, not of MySQL" in refusal(other).what
    assert "--engine mariadb" in refusal(other).hint
    nobody = packed(tmp_path / "b.tar", of_mariadb({"ib_logfile0": log("")}))
    assert "an unknown server" in refusal(nobody).what


def test_odd_names_are_kept(tmp_path: Path) -> None:
    odd = "shop/od@0020d\N{SNOWMAN}" + "x" * 200 + ".ibd"
    source = packed(tmp_path / "a.tar", directory({odd: bytes(100) + b"odd" * 1000}))
    assert read(source)[1][odd] == bytes(100) + b"odd" * 1000
