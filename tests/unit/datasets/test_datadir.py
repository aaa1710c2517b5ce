"""Protects data: the directory of a stopped server is read as it is, or refused with the reason."""

from __future__ import annotations

import io
import shutil
import socket
import struct
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.datasets import backup as backups
from lab.datasets import datadir, redo
from lab.datasets.backup import Backup, Contents
from lab.datasets.datadir import Stopped
from lab.datasets.source import DataArchive, DataDirectory, parse
from lab.errors import InvalidSpec
from lab.run import run
from tests.support.backups import files
from tests.support.data_directories import directory, frm, log, old_log, packed, tablespace
from tests.support.mariadb_server import NoServer, server, stopped

OURS = "11.8.6"


def read(source: Stopped, version: str = OURS) -> tuple[Backup, Contents]:
    contents, name = Contents(), str(source)
    for _ in backups.checked(datadir.streamed(source, version), name, contents):
        pass
    return backups.described(contents, name), contents


def of(path: Path) -> Stopped:
    source = parse(str(path))
    assert isinstance(source, DataDirectory | DataArchive)
    return source


def refusal(path: Path, version: str = OURS) -> InvalidSpec:
    with pytest.raises(InvalidSpec) as failure:
        read(of(path), version)
    assert str(path) in failure.value.what
    assert failure.value.hint
    return failure.value


@dataclass(frozen=True)
class Made:
    """Directories of real servers."""

    stopped: Path
    running: Path
    small_pages: Path
    version: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    top = tmp_path_factory.mktemp("directories")
    try:
        with server(["--log-bin=binlog"]) as db:
            db.ask(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.`a b` (id INT PRIMARY KEY, s LONGTEXT)",
                "INSERT INTO shop.`a b` VALUES (1, REPEAT('x', 2000000))",
                "CREATE DATABASE crm",
            )
            running = shutil.copytree(db.directory / "data", top / "running")
            version = db.version
            of_stopped = shutil.copytree(stopped(db), top / "stopped")
        with server([], ["--innodb-page-size=8K"]) as db:
            small = shutil.copytree(stopped(db), top / "small")
    except NoServer as error:
        pytest.skip(str(error))
    return Made(of_stopped, running, small, version)


def test_a_stopped_server(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shutil.copytree(made.stopped, tmp_path / "data")
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(source)
        sock.bind("mysqld.sock")
        found, contents = read(of(source))
    assert found.prepared
    assert found.version.split("-")[0] == made.version.split("-")[0]
    undo = 0 if made.version.startswith("10.") else 3  # by default, since MariaDB 11.0
    assert found.options == (
        "innodb_data_file_path=ibdata1:12M:autoextend", "innodb_page_size=16384",
        f"innodb_undo_tablespaces={undo}",
    )  # fmt: skip
    top = {path for path in contents.sizes if "/" not in path}
    assert top == {
        "aria_log.00000001", "aria_log_control", "backup-my.cnf", "ib_logfile0", "ibdata1",
        "mariadb_backup_checkpoints", "mariadb_backup_info",
        *(f"undo{number:03}" for number in range(1, undo + 1)),
    }  # fmt: skip
    nested = {str(one.relative_to(source)) for one in source.rglob("*/*") if one.is_file()}
    assert contents.sizes.keys() - top == nested
    assert contents.sizes["shop/a@0020b.ibd"] == (source / "shop/a@0020b.ibd").stat().st_size


@pytest.mark.parametrize(
    ("name", "how", "what"),
    [("a.tar", "--sort=name", "."), ("a.tgz", "-z", "mysql/data"), ("a.xyz", "--zstd", ".")],
)
def test_an_archive_is_read_as_the_directory(
    made: Made, tmp_path: Path, name: str, how: str, what: str
) -> None:
    directory, archive = tmp_path / "up/mysql/data", tmp_path / name
    shutil.copytree(made.stopped, directory)
    at = directory if what == "." else tmp_path / "up"
    run(["tar", how, "-cf", archive, what], timeout=60, cwd=at)
    assert read(of(archive)) == read(of(made.stopped))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    assert "truncated" in refusal(archive).what


@pytest.mark.parametrize("zeros", [0, 4096])
def test_an_archive_without_its_end_is_refused(made: Made, tmp_path: Path, zeros: int) -> None:
    """Protects tables: what is missing is not left out, also behind a file that ends in zeros."""
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as out:
        out.add(made.stopped, ".")
        content = bytes(zeros) or b"x"
        last = tarfile.TarInfo("shop/last.ibd")
        last.size = len(content)
        out.addfile(last, io.BytesIO(content))
        end = out.offset
    archive.write_bytes(archive.read_bytes()[:end])
    assert "truncated" in refusal(archive).what


def test_a_server_that_runs_is_refused(made: Made, tmp_path: Path) -> None:
    found = refusal(made.running)
    assert "was not stopped cleanly" in found.what
    assert "SHUTDOWN" in found.hint
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as out:
        out.add(made.running, "x")
    assert "was not stopped cleanly" in refusal(archive).what


def test_pages_of_another_size(made: Made) -> None:
    assert "innodb_page_size=8192" in read(of(made.small_pages))[0].options


def test_a_prepared_backup_in_an_archive(tmp_path: Path) -> None:
    there = files(b"x" * 100, prepared=True)
    archive = packed(tmp_path / "a.tar", there, "full/")
    found, contents = read(of(archive))
    assert found.prepared
    assert contents.sizes.keys() == there.keys()


# Directories that are made by hand

ENCRYPTED = b"\0" * 500 + b"s\x0e\x0cREt\x01\x10" + b"i" * 16 + b"\0\0\0\x01" + b"\0" * 30
REFUSED: dict[str, tuple[Mapping[str, bytes | None], str]] = {
    "newer": ({"mysql/user.frm": frm(110901)}, "11.9.1, which is newer"),
    "newer by its log": ({"ib_logfile0": log("MariaDB 12.1.2")}, "12.1.2, which is newer"),
    "too old": (
        {"mysql/user.frm": frm(100134), "ib_logfile0": log("", 0)},
        "MariaDB 10.2 or later",
    ),
    "unknown": ({"mysql/user.frm": b"TYPE=VIEW".ljust(64)}, "not of MariaDB"),
    "mysql 8": (
        {"mysql.ibd": b"", "#innodb_redo/#ib_redo7": log("MySQL 8.0.36"), "ib_logfile0": None},
        "data directory of MySQL 8.0.36",
    ),
    "mysql 5": ({"mysql/user.frm": frm(50744), "ib_logfile0": log("", 1)}, "of MySQL 5.7.44"),
    "no log": ({"ib_logfile0": None}, "no redo log"),
    "half a log": ({"ib_logfile0": log()[:9000]}, "ib_logfile0 is truncated"),
    "another log": ({"ib_logfile0": log(form=7)}, "the format 0x7"),
    "an encrypted log": ({"ib_logfile0": log(form=0xD0687973)}, "encrypts its redo log"),
    "not clean": ({"ib_logfile0": log(end=100)}, "not stopped cleanly"),
    "no checkpoint": ({"ib_logfile0": log().replace(b"\x3a\x98", b"\x3a\x99")}, "not stopped"),
    "an old log": ({"ib_logfile0": old_log(104, 111)}, "not stopped cleanly"),
    "an old log's second file": ({"ib_logfile0": old_log(103, file=2)}, "ib_logfile2 is missing"),
    "outside": ({"shop/t.isl": b"/elsewhere/t.ibd"}, "shop/t is a table with a DATA DIRECTORY"),
    "rocksdb": ({"#rocksdb/CURRENT": b"x"}, "MyRocks"),
    "encrypted": ({"shop/t.ibd": ENCRYPTED}, "shop/t.ibd is encrypted"),
    "more system files": ({"ibdata1": tablespace(100)}, "innodb_data_file_path"),
    "a cut system file": ({"ibdata1": tablespace(size=100000)}, "innodb_data_file_path"),
    "an empty system file": ({"ibdata1": b""}, "ibdata1 is truncated"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused(tmp_path: Path, case: str) -> None:
    more, said = REFUSED[case]
    assert said in refusal(packed(tmp_path / "a.tar", directory(more))).what


@pytest.mark.parametrize("form", [1, 103, 104, 0x50485953])
def test_logs_before_10_8(tmp_path: Path, form: int) -> None:
    there = directory({"mysql/user.frm": frm(100206), "ib_logfile0": old_log(form)})
    found, contents = read(of(packed(tmp_path / "a.tar", there)))
    assert found.version == "10.2.6-MariaDB"
    assert "ib_logfile0" in contents.sizes


def test_what_else_is_in_a_directory(tmp_path: Path) -> None:
    """Files and tablespaces that belong to the tables are kept, others are not."""
    there = directory({
        "ibdata2": bytes(2 << 20), "undo001": b"u", "undo002": b"u",
        "mysql_upgrade_info": b"10.11.4-MariaDB\n",
        "binlog.000001": b"b", "ibtmp1": b"t", "#innodb_temp/t.ibt": b"t", "lost+found/x": b"x",
        ".ssh/key": b"k", "shop/t.ibd": ENCRYPTED.replace(b"\0\0\0\x01", b"\0\0\0\0"), "core": b"c",
        "mysql/user.frm": frm(101106), "ib_logfile0": log("MariaDB 11.8.2"),
    })  # fmt: skip
    found, contents = read(of(packed(tmp_path / "a.tar", there)))
    assert found.version == "10.11.4-MariaDB", "its system tables, which are upgraded"
    assert found.options == (
        "innodb_data_file_path=ibdata1:1M;ibdata2:2M:autoextend", "innodb_page_size=16384",
        "innodb_undo_tablespaces=2",
    )  # fmt: skip
    made = {"backup-my.cnf", "mariadb_backup_info", "mariadb_backup_checkpoints"}
    assert contents.sizes.keys() - made == {
        "ibdata1", "ibdata2", "ib_logfile0", "undo001", "undo002", "mysql/user.frm", "shop/t.ibd",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "size"), [(0, 16384), (21, 16384), (19, 4096), (5 << 6, 16384), (7 << 6, 65536)]
)
def test_the_size_of_pages(flags: int, size: int) -> None:
    assert datadir._page_size(flags) == size


@pytest.mark.parametrize(
    ("kind", "link"),
    [(tarfile.SYMTYPE, "/etc"), (tarfile.LNKTYPE, "ibdata1"), (tarfile.CHRTYPE, "")],
)
def test_links_in_an_archive_are_refused(tmp_path: Path, kind: bytes, link: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as out:
        member = tarfile.TarInfo("./shop/t.ibd")
        member.type, member.linkname = kind, link
        out.addfile(member)
    assert "neither a file nor a directory" in refusal(path).what


@pytest.mark.parametrize("name", ["../ibdata1", "/etc/passwd", "a/../../b", "a//b"])
def test_names_outside_are_refused(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / "a.tar", {name: b"x", **directory()}, "")
    assert "which is not of a backup" in refusal(path).what


def test_a_link_in_a_directory_is_refused(made: Made, tmp_path: Path) -> None:
    source = shutil.copytree(made.stopped, tmp_path / "data")
    (source / "shop/b.ibd").symlink_to("/etc/passwd")
    assert "neither a file nor a directory" in refusal(source).what


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    assert "no data directory" in refusal(packed(tmp_path / "a.tar", {"x": b"y"})).what
    two = {f"{one}/{name}": data for one in "ab" for name, data in directory().items()}
    assert "more than one" in refusal(packed(tmp_path / "b.tar", two)).what


def test_a_directory_that_changes_is_refused(made: Made, tmp_path: Path) -> None:
    source = shutil.copytree(made.stopped, tmp_path / "data")
    stream: Iterator[bytes] = datadir.streamed(of(source), OURS)
    next(stream)
    (source / "shop/new.ibd").write_bytes(b"x")
    with pytest.raises(InvalidSpec, match="changed while it was read"):
        list(stream)


def test_records_behind_a_checkpoint() -> None:
    """By the end and the checksum of a record, whatever follows."""

    def ended(data: bytes, bit: int = 1) -> bytes:
        return data + bytes([bit]) + struct.pack(">I", redo._crc(data))

    point = ended(bytes.fromhex("fa000000000000000ae1e0"))
    change = ended(b"\x35abcde" + b"\x30" + b"\x81\x00" + b"x" * (128 + 256 + 15 - 2))
    assert redo._record(change, 1) == len(change)
    assert redo._record(change, 0) == 0
    assert redo._record(change[:-1] + b"!", 1) == 0
    found = redo.Redo("x", redo.FIRST, 0, 100, 1)
    assert found.is_empty(b"")
    assert found.is_empty(bytes(100))
    assert found.is_empty(point + bytes(100))
    assert not found.is_empty(change)
    assert not found.is_empty(point + change)
