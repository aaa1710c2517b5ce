"""Protects users: each kind of source is known by its text, and no password gets into a message."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from lab.datasets.dump import Packing
from lab.datasets.source import (
    PASSWORD_HINT,
    BackupDirectory,
    BackupStream,
    DataArchive,
    DataDirectory,
    DumpDirectory,
    DumpFile,
    LabCapture,
    Server,
    StandardInput,
    Sysbench,
    Tpcc,
    check_defaults_file,
    parse,
)
from lab.errors import InvalidSpec
from tests.support.data_directories import packed


def made(top: Path, *names: str) -> Path:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("MariaDB" if name.endswith("info") else "")
    return top


@pytest.mark.parametrize(
    ("name", "kind", "packing"),
    [
        ("a.sql", DumpFile, ""),
        ("a.SQL", DumpFile, ""),
        ("a.sql.gz", DumpFile, "gz"),
        ("a.b.sql.zst", DumpFile, "zst"),
        ("a.xb", BackupStream, ""),
        ("a.xbstream", BackupStream, ""),
        ("a.mbstream", BackupStream, ""),
        ("a.xbstream.gz", BackupStream, "gz"),
        ("a.xb.zst", BackupStream, "zst"),
    ],
)
def test_files(tmp_path: Path, name: str, kind: type, packing: str) -> None:
    path = made(tmp_path, name) / name
    path.write_bytes({"gz": b"\x1f\x8b", "zst": b"\x28\xb5\x2f\xfd", "": b""}[packing])
    assert parse(str(path)) == kind(path, packing)
    assert parse(str(parse(str(path)))) == parse(str(path))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["shop/t.sql", "shop/t.txt"], "mariadb-dump"),
        (
            ["metadata", "shop-schema-create.sql", "shop.t-schema.sql", "shop.t.00000.sql"],
            "mydumper",
        ),
        (["metadata", "shop-schema-create.sql.zst", "shop.t.00000.sql.zst"], "mydumper"),
        (["@.json", "shop.json", "shop@t.sql"], "mysqlsh"),
        (["0001-shop.sql", "0002-crm.sql.gz", ".hidden"], "scripts"),
    ],
)
def test_directories_of_dumps(tmp_path: Path, names: list[str], expected: str) -> None:
    found = parse(str(made(tmp_path, *names)))
    assert isinstance(found, DumpDirectory)
    assert (found.path, found.layout) == (tmp_path, expected)
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    "names",
    [
        ["mariadb_backup_checkpoints", "ibdata1"],
        ["xtrabackup_checkpoints", "xtrabackup_info"],
        ["backup-my.cnf", "shop/t.ibd"],
    ],
)
def test_directories_of_backups(tmp_path: Path, names: list[str]) -> None:
    assert parse(str(made(tmp_path, *names))) == BackupDirectory(tmp_path)


@pytest.mark.parametrize("other", ["mysql/user.frm", "mysql.ibd"])
def test_data_directories(tmp_path: Path, other: str) -> None:
    assert parse(str(made(tmp_path, "ibdata1", other, "shop/t.ibd"))) == DataDirectory(tmp_path)


@pytest.mark.parametrize("packing", ["", "gz", "xz"])
@pytest.mark.parametrize("name", ["a.tar", "a", "a.sql", "a.tgz"])
def test_archives_are_known_by_their_first_bytes(
    tmp_path: Path, name: str, packing: Packing
) -> None:
    data = packed(tmp_path / "x", {"ibdata1": bytes(100_000)}).read_bytes()
    path = tmp_path / name
    path.write_bytes({"": data, "gz": gzip.compress(data), "xz": lzma.compress(data)}[packing])
    assert parse(str(path)) == DataArchive(path, packing)


@pytest.mark.parametrize(
    ("name", "packing"),
    [("backup", ""), ("a.bin", ""), ("a.sql", ""), ("backup.gz", "gz"), ("a.sql.zst", "zst")],
)
def test_streams_are_known_by_their_first_bytes(
    tmp_path: Path, name: str, packing: Packing
) -> None:
    """Protects streams of any name from being taken for SQL, or for nothing."""
    path, data = tmp_path / name, b"XBSTCK01" + bytes(100_000)
    if packing == "gz":
        data = gzip.compress(data)
    elif packing == "zst":
        data = pytest.importorskip("zstandard").compress(data)
    path.write_bytes(data)
    assert parse(str(path)) == BackupStream(path, packing)
    path.write_bytes(data[:5])
    if name.startswith("a.sql"):
        assert parse(str(path)) == DumpFile(path, packing)
    else:
        with pytest.raises(InvalidSpec, match="is not a source"):
            parse(str(path))


def test_other_directories_and_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="not a directory of a dump") as failure:
        parse(str(tmp_path))
    assert "mariadb-dump --dir" in failure.value.hint
    for beside, why in {
        "t.txt": "not a directory of a dump",  # of mysqldump --tab
        "setup.sh": "not a directory of a dump",  # of containers
        "shop@t.sql": "has 'shop@t.sql', a name of mydumper or of MySQL Shell",
        "shop.t-schema.sql": "has 'shop.t-schema.sql', a name of mydumper",
        "shop.t.00000.sql.zst": "has 'shop.t.00000.sql.zst', a name of mydumper",
    }.items():
        with pytest.raises(InvalidSpec, match=why):
            parse(str(made(tmp_path / beside.replace(".", "_"), "shop.sql", beside)))
    with pytest.raises(InvalidSpec, match="there is no file"):
        parse(str(tmp_path / "none.sql"))
    with pytest.raises(InvalidSpec, match="is not a source") as failure:
        parse(str(made(tmp_path, "a.csv") / "a.csv"))
    assert ".zst, .zip" in failure.value.hint


SERVERS = [
    ("mysql://root@db.example", Server("mysql", "root", "db.example")),
    ("mysql://root@db.example/", Server("mysql", "root", "db.example")),
    ("MariaDB://me@10.0.0.5:3307/shop", Server("mariadb", "me", "10.0.0.5", 3307, ("shop",))),
    ("mysql://me@[::1]:3307/a,b", Server("mysql", "me", "::1", 3307, ("a", "b"))),
    ("mysql://m%40e@h/a%2Cb,%C3%BC", Server("mysql", "m@e", "h", 3306, ("a,b", "ü"))),
]


@pytest.mark.parametrize(("text", "expected"), SERVERS)
def test_servers(text: str, expected: Server) -> None:
    assert parse(text) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "mysql://root:hunter2@db/shop",
        "mysql://root:hunter2@db:3306/shop",
        "mysql://root:hun/ter2@db",
        "mysql://root%3Ahunter2@db",
        "mysql://:hunter2@db",
        "mysql://a:hunter2@b@db",
    ],
)
def test_a_password_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidSpec) as failure:
        parse(text)
    assert "password" in failure.value.what
    assert failure.value.hint == PASSWORD_HINT
    assert "LAB_SOURCE_PASSWORD" in PASSWORD_HINT
    assert "ter2" not in failure.value.what


@pytest.mark.parametrize(
    "text",
    [
        "root:hunter2@db/shop",
        "mysql:/root:hunter2@db/shop",
        "mysql://root:hunter2",
        "mysql://db:hunter2/shop",
        "mysql://root@db/shop?password=hunter2",
        "mysql://root@db:hunter2",
        "postgres://root:hunter2@db/shop",
    ],
)
def test_what_may_be_a_password_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidSpec) as failure:
        parse(text)
    assert "hunter2" not in failure.value.what + failure.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "mysql://db/shop",
        "mysql://@db/shop",
        "mysql://root@",
        "mysql://root@db:0",
        "mysql://root@db:70000",
        "mysql://root@-x-",
        "mysql://root@[1::2::3]",
        "mysql://root@db/a,,b",
        "mysql://root@db/a,a",
        "mysql://root@db/" + "x" * 65,
        "mysql://root@db/%ff",
        "mysql://root@db/a%00",
        "mysql://root@db/a/b",
        "mysql://root@db/a#b",
        "mysql://root@db/" + ",".join(map(str, range(101))),
        "http://root@db/a",
        "",
        " ",
        "x" * 5000,
        "a\0.sql",
    ],
)
def test_texts_that_are_no_source(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse(text)


def test_labs_and_standard_input() -> None:
    assert parse("lab:shop") == LabCapture("shop")
    assert parse("lab:shop@v1.2") == LabCapture("shop", "v1.2")
    assert parse("-") == StandardInput()
    for text in ("lab:shop", "lab:shop@v1.2", "-"):
        assert str(parse(text)) == text
    for text in ("lab:", "lab:Shop", "lab:shop@", "lab:shop@/x"):
        with pytest.raises(InvalidSpec):
            parse(text)


def test_generators() -> None:
    assert parse("generate:sysbench") == Sysbench()
    assert parse("generate:sysbench?tables=8&rows=100000") == Sysbench(8, 100_000)
    assert parse("generate:tpcc?warehouses=2") == Tpcc(2)
    assert parse(str(Tpcc(3, 9))) == Tpcc(3, 9)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("generate:tpch", "no generator 'tpch'"),
        ("generate:", "no generator ''"),
        ("generate:sysbench?tabless=1", "unknown key 'tabless'"),
        ("generate:sysbench?tables=0", "tables is '0', expected a whole number from 1 to 1000"),
        ("generate:sysbench?tables=x", "tables is 'x'"),
        ("generate:sysbench?tables", "tables is ''"),
        ("generate:sysbench?rows=1&rows=2", "rows is given twice"),
        ("generate:tpcc?warehouses=99999", "warehouses is '99999'"),
    ],
)
def test_mistakes_in_generators_are_named(text: str, named: str) -> None:
    with pytest.raises(InvalidSpec) as failure:
        parse(text)
    assert named in failure.value.what


def test_a_defaults_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "my.cnf"
    with pytest.raises(InvalidSpec, match="cannot be read"):
        check_defaults_file(path)
    path.write_text("[client]\npassword=x\n")
    path.chmod(0o640)
    with pytest.raises(InvalidSpec, match="mode 0640") as failure:
        check_defaults_file(path)
    assert failure.value.hint == f"chmod 600 {path}"
    path.chmod(0o600)
    assert check_defaults_file(path) == path
    with pytest.raises(InvalidSpec, match="is not a file"):
        check_defaults_file(tmp_path)


def test_the_home_of_nobody() -> None:
    with pytest.raises(InvalidSpec, match="the home of a user that is not known, 'nosuchuser'"):
        parse("~nosuchuser/x.sql")
