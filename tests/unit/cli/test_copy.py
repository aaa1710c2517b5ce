"""`lab cp` and `lab dump`: through a real SSH server whose files are this host's."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.cli import main
from lab.lifecycle.nodes.ssh import ssh_command
from lab.wait import Deadline, until
from tests.support.ssh_server import shell_server
from tests.unit.cli.test_fake_lifecycle import FakeLifecycle

pytestmark = [
    pytest.mark.skipif(not shutil.which("scp"), reason="no scp"),
    pytest.mark.skipif(not os.access("/run", os.W_OK), reason="programs are noted in /run"),
]


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    private = tmp_path_factory.mktemp("private")
    with shell_server(private) as port:
        yield ssh_command(private, "127.0.0.1", port)


@pytest.fixture
def world(way: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLifecycle:
    """A lab whose files are below ``node``, in a directory where we are."""
    (tmp_path / "node").mkdir()
    monkeypatch.chdir(tmp_path)
    found = FakeLifecycle("shop")
    found.way = way
    return found


def test_files_go_in_both_directions(world: FakeLifecycle, tmp_path: Path) -> None:
    """Protects content, modes and names: blanks, patterns, dashes, colons, several languages."""
    node = tmp_path / "node"
    for name in ("a b.txt", "-x", "--", "[1]*?", "ž 🗑", "n1:x", "$(id)"):
        there = f"shop:n2:{node}/{name}"
        (tmp_path / name).write_bytes(b"one\0two\n")
        (tmp_path / name).chmod(0o640)
        words = [f"./{name}"] if name.startswith("-") else [name]
        assert main(["cp", *words, there], lifecycle=world) == 0, name
        assert (node / name).read_bytes() == b"one\0two\n"
        assert (node / name).stat().st_mode & 0o777 == 0o640
        assert world.called("ssh") == ["shop", "n2"]
        (tmp_path / name).unlink()
        assert main(["cp", there, *words], lifecycle=world) == 0, name
        assert (tmp_path / name).read_bytes() == b"one\0two\n"


def test_directories(world: FakeLifecycle, tmp_path: Path) -> None:
    """Protects trees: into a directory that exists by name, else as the new name."""
    node = tmp_path / "node"
    (tmp_path / "conf/d").mkdir(parents=True)
    (tmp_path / "conf/d/my.cnf").write_text("[mysqld]\n")
    assert main(["cp", "conf", f"shop:1:{node}/"], lifecycle=world) == 0
    assert (node / "conf/d/my.cnf").read_text() == "[mysqld]\n"
    assert main(["cp", f"shop:{node}/conf", "back"], lifecycle=world) == 0
    assert world.called("ssh") == ["shop", "n1"]
    assert (tmp_path / "back/d/my.cnf").read_text() == "[mysqld]\n"


def test_streams(
    world: FakeLifecycle, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Protects pipes: bytes as they are, and no incomplete file under its name."""
    (tmp_path / "node/-x y").write_bytes(b"\xff\n" * 100_000)
    assert main(["cp", f"shop:n1:{tmp_path}/node/-x y", "-"], lifecycle=world) == 0
    assert capfdbinary.readouterr().out == b"\xff\n" * 100_000
    read, write = os.pipe()
    os.write(write, b"given\0")
    os.close(write)
    before = os.dup(0)
    os.dup2(read, 0)
    try:
        assert main(["cp", "-", f"shop:n1:{tmp_path}/node/new"], lifecycle=world) == 0
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)
    assert (tmp_path / "node/new").read_bytes() == b"given\0"
    assert sorted(path.name for path in (tmp_path / "node").iterdir()) == ["-x y", "new"]
    assert main(["cp", f"shop:n1:{tmp_path}/node", "-"], lifecycle=world) == 6
    assert b"is a directory" in capfdbinary.readouterr().err


def test_a_stream_that_breaks_replaces_nothing(world: FakeLifecycle, tmp_path: Path) -> None:
    """Protects the file that is there: the end of a connection is not the end of the data."""
    target = tmp_path / "node/kept"
    target.write_bytes(b"whole")
    read, write = os.pipe()
    os.write(write, b"half")
    before = os.dup(0)
    os.dup2(read, 0)

    def broken() -> None:
        def arrived() -> bool:
            parts = [one for one in target.parent.iterdir() if one != target]
            return any(one.read_bytes() == b"half" for one in parts)

        until(arrived, Deadline.after(20.0))
        children = Path("/proc/self/task").glob("*/children")
        for child in " ".join(path.read_text() for path in children).split():
            if Path(f"/proc/{child}/comm").read_text() == "ssh\n":
                os.kill(int(child), signal.SIGKILL)

    breaking = threading.Thread(target=broken)
    breaking.start()
    try:
        assert main(["cp", "-", f"shop:n1:{target}"], lifecycle=world) != 0
    finally:
        breaking.join()
        os.dup2(before, 0)
        for one in (before, read, write):
            os.close(one)
    assert target.read_bytes() == b"whole"


def test_what_is_not_there(
    world: FakeLifecycle, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Protects scripts: each mistake has its code and its words."""
    for words, code, said in (
        (["a", "shop:n1:/b"], 3, "there is no file a"),
        (["a", "b"], 2, "no path is in a node"),
        (["shop:n1:/a", "shop:n2:/a"], 2, "both paths are in nodes"),
        (["shop:n1:a", "b"], 2, "begins with a slash"),
        ([f"shop:n1:{tmp_path}/none", "b"], 6, "No such file or directory"),
        ([f"shop:n1:{tmp_path}/none", "-"], 6, "No such file or directory"),
    ):
        assert main(["cp", *words], lifecycle=world) == code, words
        assert said in capfd.readouterr().err


DUMP = """#!{python}
import sys
print("-- dump of", sys.argv[-sys.argv[::-1].index("--"):])
print("-- Dump completed")
if sys.argv[-1] == "broken":
    sys.exit("Got error: 1")
"""


@pytest.fixture
def program(world: FakeLifecycle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLifecycle:
    """A lab whose server's dump program prints its arguments."""
    path = tmp_path / "bin/mariadb-dump"
    path.parent.mkdir()
    path.write_text(DUMP.format(python=sys.executable))
    path.chmod(0o755)
    # The commands of the server are run with the environment of this process.
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    return world


def test_a_dump(program: FakeLifecycle, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Protects names of databases from being options, and files: complete or not there."""
    argv = ["dump", "shop", "-D", "-x", "--database", "a b"]
    assert main(argv, lifecycle=program) == 0
    assert capfd.readouterr().out == "-- dump of ['-x', 'a b']\n-- Dump completed\n"
    assert program.called("ssh") == ["shop", "n1"]
    for suffix, opened in (("sql", open), ("sql.gz", gzip.open), ("sql.xz", lzma.open)):
        path = tmp_path / f"shop.{suffix}"
        assert main([*argv, "--node", "2", "--to", str(path)], lifecycle=program) == 0
        with opened(path, "rt") as file:
            assert file.read().endswith("-- Dump completed\n")
    assert program.called("ssh") == ["shop", "n2"]
    path = tmp_path / "broken.sql"
    path.write_text("before")
    assert main(["dump", "shop", "-D", "broken", "--to", str(path)], lifecycle=program) == 6
    assert "Got error: 1" in capfd.readouterr().err
    assert path.read_text() == "before"
    assert not list(tmp_path.glob(".broken*"))
    assert main(["dump", "shop", "-D", "x", "--to", "/nowhere/x.gz"], lifecycle=program) == 1
    assert "/nowhere/x.gz cannot be written" in capfd.readouterr().err


def test_a_dump_of_a_lab_that_is_asleep(
    program: FakeLifecycle, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its nodes are paused, so none would be found that runs: it is woken first."""
    view = program.views["shop"]
    nodes = tuple(replace(node, state="paused") for node in view.nodes)
    program.views["shop"] = replace(view, state="asleep", nodes=nodes)
    assert main(["dump", "shop", "-D", "x"], lifecycle=program) == 0
    assert "Dump completed" in capfd.readouterr().out


def test_a_dump_replaces_files_only(program: FakeLifecycle, tmp_path: Path) -> None:
    """Protects /dev/null, which root would rename away, pipes, and the file that a link names."""
    pipe, there, link = tmp_path / "pipe", tmp_path / "there.sql", tmp_path / "link.sql"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)  # a pipe with a reader opens at once
    try:
        assert main(["dump", "shop", "-D", "x", "--to", str(pipe)], lifecycle=program) == 0
        assert pipe.is_fifo()
        assert os.read(end, 1 << 16) == b"-- dump of ['x']\n-- Dump completed\n"
    finally:
        os.close(end)
    there.touch()
    link.symlink_to(there)
    assert main(["dump", "shop", "-D", "x", "--to", str(link)], lifecycle=program) == 0
    assert link.is_symlink()
    assert there.read_bytes().startswith(b"-- dump of")
    assert {path.name for path in tmp_path.iterdir()} >= {"pipe", "there.sql", "link.sql"}
    assert not list(tmp_path.glob(".*.part-*"))


def test_a_server_without_its_own_program_is_not_dumped_by_another(
    program: FakeLifecycle, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Protects dumps of builds of MySQL that have no client, and get MariaDB's."""
    [shop] = program.views.values()
    nodes = tuple(replace(node, engine="mysql") for node in shop.nodes)
    program.views["shop"] = replace(shop, nodes=nodes)
    client = tmp_path / "bin/mysqldump"
    client.symlink_to("mariadb-dump")
    assert main(["dump", "shop", "-D", "crm"], lifecycle=program) == 6
    assert "the build of this server has no mysqldump" in capfd.readouterr().err


PARTS = """-- dump
SET NAMES utf8mb4;

--
-- Current Database: `a/b`
--

USE `a/b`;
DELIMITER ;;
-- Current Database: `none`
DELIMITER ;
INSERT INTO `t` VALUES ({rows});

--
-- Current Database: `crm`
--

USE `crm`;
{end}
SET SQL_NOTES=@OLD_SQL_NOTES;

-- Dump completed on 2026-11-27
"""


def test_a_dump_to_a_directory(
    program: FakeLifecycle, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each file begins and ends as the whole does; the directory is complete or not there."""
    end = "/*!40103 SET TIME_ZONE=@OLD_TIME_ZONE */;"
    whole = PARTS.format(rows="1," * 200_000, end=end)
    (tmp_path / "whole").write_text(whole)
    script = f"#!/bin/sh\ncat {tmp_path}/whole\n"
    (tmp_path / "bin/mariadb-dump").write_text(script)
    (tmp_path / "empty").mkdir(0o700)
    given = (tmp_path / "empty").stat()
    for to in ("new/", "empty"):
        assert main(["dump", "shop", "--database", "x", "--to", to], lifecycle=program) == 0
        first, second = sorted((tmp_path / to).iterdir())
        assert (first.name, second.name) == ("00001_a_b.sql", "00002_crm.sql")
        head, tail = whole[: whole.index("-- Current")], whole[whole.index(end) :]
        cut = whole.index("-- Current Database: `crm`")
        assert first.read_text() == whole[:cut] + tail
        assert second.read_text() == head + whole[cut:]
    kept = (tmp_path / "empty").stat()
    assert (kept.st_ino, kept.st_mode) == (given.st_ino, given.st_mode), "its mode may protect it"
    assert main(["dump", "shop", "-D", "x", "--to", "new"], lifecycle=program) == 2
    assert "new is not empty" in capfd.readouterr().err
    for wrong in (whole[:-40], "x\n" * 70_000):
        (tmp_path / "whole").write_text(wrong)
        assert main(["dump", "shop", "-D", "x", "--to", "bad/"], lifecycle=program) == 1
        assert "the dump " in capfd.readouterr().err
    (tmp_path / "whole").write_text(whole)
    (tmp_path / "bin/mariadb-dump").write_text(f"{script}exit 1\n")
    assert main(["dump", "shop", "-D", "x", "--to", "bad/"], lifecycle=program) == 6
    assert not [path for path in tmp_path.iterdir() if "bad" in path.name]
    (tmp_path / "still").mkdir()
    assert main(["dump", "shop", "-D", "x", "--to", "still"], lifecycle=program) == 6
    assert not list((tmp_path / "still").iterdir())
