"""Protects physical backups: what is refused before a guest boots, and streams stay as they are.

Backups are those of a real mariadb-backup, where its package can be had.
"""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.datasets import backup as backups
from lab.datasets.backup import Backup, Contents
from lab.datasets.source import MAGIC, BackupDirectory, BackupStream, parse
from lab.errors import InvalidSpec
from lab.run import run
from tests.support.backups import Programs, chunk, files, programs, stream, write
from tests.support.mariadb_server import NoServer, server

SECONDS = 60.0


@dataclass(frozen=True)
class Made:
    """Backups of one server, made by ``programs``."""

    top: Path
    programs: Programs
    version: str

    def __getitem__(self, name: str) -> Path:
        return self.top / name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    top = tmp_path_factory.mktemp("backups")
    try:
        found = programs()
        with server(["--log-bin=binlog"]) as db:
            db.ask(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.`a b\N{SNOWMAN}` (id INT PRIMARY KEY, s LONGTEXT)",
                "INSERT INTO shop.`a b\N{SNOWMAN}` VALUES (1, REPEAT('x', 12000000))",
            )
            found.of(db, top / "full")
            found.of(db, top / "stream.xb", "--stream=mbstream", "--galera-info")
            found.of(db, top / "partial", "--databases=shop")
            found.of(db, top / "incremental", f"--incremental-basedir={top}/full")
            found.prepare(shutil.copytree(top / "full", top / "prepared"))
            version = db.version
    except NoServer as error:
        pytest.skip(str(error))
    return Made(top, found, version)


def read(path: Path) -> tuple[bytes, Contents]:
    """The stream of a source, and what is in it."""
    source, contents = parse(str(path)), Contents()
    assert isinstance(source, BackupDirectory | BackupStream)
    directory = isinstance(source, BackupDirectory)
    data = backups.streamed(source) if directory else backups.unpacked_stream(source)  # type: ignore[arg-type]  # it is
    return b"".join(backups.checked(data, path.name, contents)), contents


def of(path: Path) -> Backup:
    return backups.described(read(path)[1], path.name)


def test_real_backups(made: Made) -> None:
    for name in ("full", "stream.xb", "prepared"):
        found = of(made[name])
        assert found.version.split("-")[0] == made.version.split("-")[0]
        assert found.prepared == (name == "prepared")
        assert "innodb_page_size=16384" in found.options
        assert "innodb_data_file_path=ibdata1:12M:autoextend" in found.options
        assert found.size > 24_000_000
        backups.check_fits(found, made.version, name)
        assert not backups.older(found, made.version)
    with pytest.raises(InvalidSpec, match="partial is a partial backup"):
        of(made["partial"])
    with pytest.raises(InvalidSpec, match="incremental is an incremental backup") as failure:
        of(made["incremental"])
    assert "--incremental-dir" in failure.value.hint


def test_a_full_backup_with_its_increments_is_full(made: Made, tmp_path: Path) -> None:
    """Its files of information are those of the last increment."""
    base = shutil.copytree(made["full"], tmp_path / "base")
    made.programs.prepare(base)
    made.programs.prepare(base, f"--incremental-dir={made['incremental']}")
    assert of(base).prepared


def test_a_directory_becomes_the_stream_that_mbstream_reads(made: Made, tmp_path: Path) -> None:
    """All files, empty ones too, byte by byte."""
    source = shutil.copytree(made["full"], tmp_path / "full")
    (source / "shop/empty.CSV").touch()
    data, _ = read(source)
    to = tmp_path / "to"
    to.mkdir()
    run(
        [made.programs.mbstream, "-x", "-C", to], timeout=SECONDS, stdin=data, env=made.programs.env
    )
    assert run(["diff", "-r", source, to], timeout=SECONDS).stdout == ""


def test_a_real_stream_is_passed_on_as_it_is(made: Made, tmp_path: Path) -> None:
    whole = made["stream.xb"].read_bytes()
    assert read(made["stream.xb"])[0] == whole
    packed = tmp_path / "a.xb.gz"
    packed.write_bytes(gzip.compress(whole, 1))
    assert read(packed)[0] == whole


def refusal(contents: dict[str, bytes], version: str = "11.8.6") -> InvalidSpec:
    with pytest.raises(InvalidSpec) as failure:
        backups.check_fits(backups.described(contained(stream(contents)), "it"), version, "it")
    return failure.value


def contained(data: bytes, size: int = 7) -> Contents:
    """What is in a stream that arrives in small pieces."""
    contents = Contents()
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    assert b"".join(backups.checked(pieces, "it", contents)) == data
    return contents


@pytest.mark.parametrize(
    ("contents", "said", "hint"),
    [
        (files(server="8.0.36-28"), "MySQL 8.0.36, whose files MariaDB cannot read", "mysqldump"),
        (files(server="12.0.2-MariaDB"), "MariaDB 12.0.2, which is newer", "from a dump"),
        (files(server="11.9.0-MariaDB-log"), "the server of the image, 11.8.6", "from a dump"),
        (files(server="10.7.8-MariaDB"), "10.7.8 and not prepared", "of that version"),
        (files(partial="Y"), "is a partial backup", "full backup"),
        (files(more={"shop/t.ibd.qp": b"x"}), "it has shop/t.ibd.qp", "--decompress"),
        (files(more={"ibdata1.xbcrypt": b"x"}), "compressed or encrypted", "--decompress"),
        (
            files(more={"backup-my.cnf": b"plugin_load=file_key_management=f\n"}),
            "a server that encrypts its files",
            "mariadb-dump",
        ),
        (
            files(more={"backup-my.cnf": b"innodb_data_file_path=/data/ibdata1:12M\n"}),
            "which names no files of the backup",
            "mariadb-dump",
        ),
        (
            files(more={"backup-my.cnf": b"innodb_data_file_path=ibdata1:12M;ibdata2:1M\n"}),
            "no file ibdata2",
            "completed OK!",
        ),
        (
            files(more={"mariadb_backup_checkpoints": b"backup_type = incremental\n"}),
            "incremental backup",
            "--incremental-dir",
        ),
    ],
)  # fmt: skip
def test_what_a_server_cannot_have(contents: dict[str, bytes], said: str, hint: str) -> None:
    error = refusal(contents)
    assert said in error.what
    assert hint in error.hint


@pytest.mark.parametrize(
    "missing",
    [
        "mariadb_backup_info",
        "mariadb_backup_checkpoints",
        "backup-my.cnf",
        "ibdata1",
        "ib_logfile0",
    ],
)
def test_a_backup_that_did_not_complete(missing: str) -> None:
    contents = files()
    del contents[missing]
    error = refusal(contents)
    assert "not a complete backup" in error.what
    assert missing in error.what


def test_what_fits() -> None:
    old = files(server="10.6.20-MariaDB", prepared=True)
    old = {name.replace("mariadb_backup_", "xtrabackup_"): data for name, data in old.items()}
    del old["ib_logfile0"]
    found = backups.described(contained(stream(old)), "it")
    backups.check_fits(found, "11.8.6", "it")
    assert backups.older(found, "11.8.6")
    found = backups.described(contained(stream(files())), "it")
    backups.check_fits(found, "11.8.2", "it")  # of the same series


def test_invalid_options_do_not_reach_an_option_file() -> None:
    """Protects the guest's server: a backup is somebody's file."""
    for line in (
        b"innodb_page_size=1\\nplugin",
        b"innodb_undo_tablespaces=x",
        b"innodb_page_size=4k",
    ):
        error = refusal(files(more={"backup-my.cnf": line + b"\n"}))
        assert "invalid innodb_" in error.what


def test_renamed_and_removed_files() -> None:
    """Chunks of newer versions, which record DDL that ran during the backup."""
    renamed = chunk(
        "shop/a.ibd", len(b"shop/b.ibd").to_bytes(4, "little") + b"shop/b.ibd", kind=b"R"
    )
    data = stream({"./shop/a.ibd": b"12345", "shop/c.ibd": b"1"})
    data += chunk("shop/a.ibd", (9).to_bytes(8, "little"), kind=b"S")
    data += renamed + chunk("shop/c.ibd", b"", kind=b"D")
    assert contained(data).sizes == {"shop/b.ibd": 5}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is not a complete backup"),
        (b"CREATE TABLE", "truncated: it ends after byte 12"),
        (b"CREATE TABLE t (id INT);", "at byte 0: it is no stream"),
        (stream({"a": b"1"}) + b"[00] 2026 completed OK!", "at byte 51: there is no chunk"),
        (stream({"a": b"1"})[:-1], "truncated: it ends after byte 50"),
        (stream({"a": b"1"})[:34], "truncated: it ends after byte 34"),
        (stream({"a": b"1"})[:36], "ends after byte 36, and a is not complete"),
        (stream({"a": b"1"}).replace(b"1", b"2", 99)[8:], "damaged"),
        (chunk("a", b"1")[:-1] + b"2", "the checksum of a chunk of a is wrong"),
        (chunk("a", b"", kind=b"Q"), "chunks of the type 'Q'"),
        (chunk("../a", b"1"), "'../a', which is not of a backup"),
        (chunk("/etc/a", b"1"), "'/etc/a', which is not of a backup"),
        (chunk("a/../../b", b"1"), "which is not of a backup"),
        (chunk("a\0b", b"1"), "which is not of a backup"),
        (chunk("a" * 600, b"1"), "a path has 600 bytes"),
        (chunk("backup-my.cnf", b"x" * (2 << 20)), "backup-my.cnf is larger than 1 MiB"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)  # fmt: skip
def test_streams_that_are_damaged(data: bytes, said: str) -> None:
    """Protects the guest, and the user's time: it is known before a guest boots, and where."""
    with pytest.raises(InvalidSpec) as failure:
        backups.described(contained(data), "it")
    assert said in failure.value.what
    assert failure.value.hint


def test_a_chunk_that_claims_too_much() -> None:
    """Protects the guest's memory: mbstream keeps a chunk in it."""
    data = bytearray(chunk("a", b"1"))
    data[15:23] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(InvalidSpec, match="a chunk of a has 1099511627776 bytes"):
        contained(bytes(data))


def test_links_and_unreadable_files_of_a_directory(tmp_path: Path) -> None:
    top = write(tmp_path / "full", files())
    (top / "shop").symlink_to("/etc")
    with pytest.raises(InvalidSpec, match="shop is neither a file nor a directory") as failure:
        read(top)
    assert "cp -L" in failure.value.hint
    (top / "shop").unlink()
    os.mkfifo(top / "pipe")
    with pytest.raises(InvalidSpec, match="pipe is neither"):
        read(top)


def test_a_small_file_in_many_chunks_is_not_kept_without_end() -> None:
    """Protects memory: each chunk is small, and there are as many as a stranger likes."""
    path, data = b"xtrabackup_info", b"k=v\n" * (1 << 16)

    def stream() -> Iterator[bytes]:
        for number in range(100):
            offset = number * len(data)
            yield backups._HEAD.pack(MAGIC, 0, b"P", len(path)) + path
            yield backups._PAYLOAD.pack(len(data), offset, zlib.crc32(data)) + data

    contents = Contents()
    with pytest.raises(InvalidSpec, match="xtrabackup_info is larger than 1 MiB"):
        for _ in backups.checked(stream(), "x", contents):
            pass
    assert len(contents.small["xtrabackup_info"]) <= 1 << 20
