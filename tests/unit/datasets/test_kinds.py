"""Protects loads: a file is what its first bytes say, and what is no SQL is refused at once."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.datasets.kinds import plain, sql
from lab.datasets.source import MAGIC, BackupStream, DumpFile, parse
from lab.errors import InvalidSpec
from lab.lifecycle.datasets import spool as spools

zstandard = pytest.importorskip("zstandard", reason="needs the package zstandard")

SQL = (
    "CREATE TABLE bins (id INT PRIMARY KEY, place VARCHAR(9));\nINSERT INTO bins VALUES (1,'Ä');\n"
)
BIG = (SQL * 40_000).encode()


def zipped(*members: bytes, method: int = zipfile.ZIP_DEFLATED, streamed: bool = False) -> bytes:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return not streamed

        def tell(self) -> int:
            if streamed:
                raise OSError
            return super().tell()

    file = Pipe()
    with zipfile.ZipFile(file, "w", method) as archive:
        for number, member in enumerate(members):
            archive.writestr(f"{number}.sql", member)
    return file.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zstd": lambda data: bytes(zstandard.ZstdCompressor().compress(data)),
    "zip": zipped,
    "zip, stored": lambda data: zipped(data, method=zipfile.ZIP_STORED),
    "zip from a pipe": lambda data: zipped(data, streamed=True),
}


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [7, 65_536])
@pytest.mark.parametrize("packer", PACKERS)
def test_what_is_packed_is_unpacked(packer: str, size: int) -> None:
    data = BIG if size > 7 else SQL.encode() * 20
    packed = PACKERS[packer](data)
    assert b"".join(sql(cut(packed, size), "x")) == data
    if packer != "plain":
        for part in (12, len(packed) // 2):
            with pytest.raises(InvalidSpec, match=r"truncated|damaged"):
                list(sql(cut(packed[:part], size), "x"))


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_marks_and_utf_16(codec: str) -> None:
    data = ("\ufeff" if codec == "utf-16-be" else "") + SQL
    for packer in ("plain", "gzip"):
        packed = PACKERS[packer](data.encode(codec))
        assert b"".join(sql(cut(packed, 3), "x")).decode() == SQL


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (gzip.compress(gzip.compress(b"a", mtime=0), mtime=0), "compressed twice"),
        (zipped(b"a", b"b"), "a zip with several members"),
        (zipped(), "an empty zip"),
        (b"PGDMP\x01\x0e", "pg_dump -Fc"),
        (b"--\n-- PostgreSQL database dump\n--\nSET x;", "a dump of PostgreSQL"),
        (b"SQLite format 3\0...", "a database of SQLite"),
        (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
        (b"x" * 257 + b"ustar\0", "tar"),
        ("SELECT 1;".encode("utf-16-le"), "UTF-16 without a byte order mark"),
        (b"\x7fELF\x02\x01\0\0", "bytes that are zero"),
    ],
)
def test_what_is_no_dump_is_refused(data: bytes, said: str) -> None:
    for size in (1, 1000):
        with pytest.raises(InvalidSpec, match="is not a dump of MySQL or MariaDB") as failure:
            list(sql(cut(data, size), "shop.sql"))
        assert said in failure.value.what
        assert failure.value.hint


def test_a_truncated_utf_16() -> None:
    with pytest.raises(InvalidSpec, match="UTF-16 has characters that are not complete"):
        list(sql([SQL.encode("utf-16")[:-1]], "x"))


def test_nothing_and_almost_nothing() -> None:
    for data in (b"", b"\xef", b"\xef\xbb\xbf", b"B", b"\x1f"):
        assert b"".join(sql(iter([data] if data else []), "x")) == data.removeprefix(
            b"\xef\xbb\xbf"
        )


@pytest.mark.parametrize("name", ["bins.sql", "bins.sql.gz", "bins.sql.xz", "bins.zip"])
@pytest.mark.parametrize("packer", PACKERS)
def test_a_name_says_little(packer: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(PACKERS[packer](SQL.encode()))
    source = parse(str(path))
    assert isinstance(source, DumpFile)
    assert bool(source.packing) is (packer != "plain"), "so its size is known, or is not"
    spool = spools.write(
        source, [path], tmp_path / "spool", "desk", lambda _: None, dialect="mariadb"
    )
    assert spool.path.read_text().count(SQL) == 2, "also of further files"
    assert spool.found.tables == 1


def test_a_cut_dump_with_a_mark_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "cut.sql"
    text = "-- MySQL dump 10.13  Distrib 8.0.36, for Linux (x86_64)\n" + SQL
    path.write_text(text, encoding="utf-8-sig")
    with pytest.raises(InvalidSpec, match="is truncated"):
        spools.write(
            parse(str(path)), [], tmp_path / "spool", "desk", lambda _: None, dialect="mariadb"
        )


def test_a_stream_of_a_backup_is_one_whatever_its_name(tmp_path: Path) -> None:
    for packer in ("plain", "gzip", "xz"):
        path = tmp_path / f"{packer}.sql"
        path.write_bytes(PACKERS[packer](MAGIC + b"\0P"))
        source = parse(str(path))
        assert isinstance(source, BackupStream)
        assert b"".join(plain([path.read_bytes()], "x")).startswith(MAGIC)
