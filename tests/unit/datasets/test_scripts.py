"""A dump that becomes a directory: its files are read again, whatever a database is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.datasets.scripts import _FILES, Split
from lab.datasets.source import DumpDirectory, parse
from lab.errors import InvalidSpec, LabError

END = "/*!40103 SET TIME_ZONE=@OLD_TIME_ZONE */;\n-- Dump completed\n"


@pytest.mark.parametrize("name", ["schema", "a-schema", "a@b", "-x", "../up", "\u00e4" * 64, "."])
def test_names_of_databases(tmp_path: Path, name: str) -> None:
    """Protects what was dumped from names that other programs give their files, and paths."""
    split = Split(lambda file: (tmp_path / file).open("ab"))
    split.write(f"SET NAMES utf8mb4;\n-- Current Database: `{name}`\nUSE `{name}`;\n{END}".encode())
    split.complete()
    [file] = tmp_path.iterdir()
    assert f"USE `{name}`;" in file.read_text()
    found = parse(str(tmp_path))
    assert isinstance(found, DumpDirectory)
    assert found.layout == "scripts"


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("01-schema.sql", True), ("02-data.sql.gz", True), ("01.20240131.sql", True),
        ("schema.sql", True), ("shop.t-schema.sql", False), ("shop-schema-create.sql", False),
        ("shop.t.00001.sql", False), ("shop@t.sql", False),
    ],
)  # fmt: skip
def test_names_of_scripts(tmp_path: Path, name: str, is_read: bool) -> None:
    """Protects what people have for containers, and dumps of which a file is missing."""
    (tmp_path / "00_first.sql").write_text("SELECT 1;")
    (tmp_path / name).write_text("SELECT 1;")
    if is_read:
        assert parse(str(tmp_path)) == DumpDirectory(tmp_path, "scripts")
    else:
        with pytest.raises(InvalidSpec, match=f"has '{name}', a name of mydumper or of MySQL"):
            parse(str(tmp_path))


@pytest.mark.rare
def test_a_node_does_not_decide_how_many_files_there_are(tmp_path: Path) -> None:
    """Protects the host: who is root in a node decides what its dump program writes."""
    split = Split(lambda _: (tmp_path / "one").open("wb"))
    split.write(b"-- Current Database: `a`\n" * _FILES)
    with pytest.raises(LabError, match="more than 99999 parts"):
        split.write(b"-- Current Database: `a`\n")
    split.close()
    split = Split(lambda file: (tmp_path / file).open("ab"))
    split.write(b"-- Current Database: `" + b"x" * 900 + b"`\n")
    split.close()
    assert max(len(path.name) for path in tmp_path.iterdir()) == 6 + 64 + 4
