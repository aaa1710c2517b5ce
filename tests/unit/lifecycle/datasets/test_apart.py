"""Protects the service: what foreign bytes do to their reader, they do to a process of its own."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lab.datasets.selection import Selection
from lab.datasets.source import parse
from lab.errors import InvalidSpec, LabError, LimitReached
from lab.lifecycle.datasets import apart
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.datasets.apart import _Request
from lab.units import MIB
from lab.wait import Deadline, until
from tests import ROOT

SQL = "CREATE TABLE t (id INT);\nINSERT INTO t VALUES (1);\n"


def spool(path: Path, work: Path, seconds: int = 60) -> spools.Spool:
    return apart.spool(
        parse(str(path)), [path], work / "spool", "shop", lambda _: None, Selection(),
        seconds=seconds, dialect="mariadb",
    )  # fmt: skip


def test_it_reads_what_the_function_reads(tmp_path: Path) -> None:
    path = tmp_path / "shop.sql.gz"
    path.write_bytes(gzip.compress(SQL.encode()))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here = spools.write(
        parse(str(path)), [path], tmp_path / "a/spool", "shop", lambda _: None, dialect="mariadb"
    )
    there = spool(path, tmp_path / "b")
    assert (there.size, there.parts, there.found) == (here.size, here.parts, here.found)
    assert there.path.read_bytes() == here.path.read_bytes()
    assert [one.name for one in (tmp_path / "b").iterdir()] == ["spool"]


def test_its_errors_are_those_of_the_function(tmp_path: Path) -> None:
    path = tmp_path / "shop.sql"
    path.write_text("SELECT 'open")
    with pytest.raises(InvalidSpec, match="ends within a string") as failure:
        spool(path, tmp_path)
    assert "truncated" in failure.value.hint


def test_it_says_how_far_it_is_and_can_be_ended(tmp_path: Path) -> None:
    """Protects quotas: a caller that has enough ends it, and nothing is left of it."""
    path = tmp_path / "shop.sql"
    path.write_text(SQL * 1000)

    def enough(done: int) -> None:
        if done > 1000:
            raise LimitReached("enough")

    with pytest.raises(LimitReached):
        apart.spool(
            parse(str(path)), [], tmp_path / "spool", "shop", enough, Selection(), dialect="mariadb"
        )
    assert not (tmp_path / "request").exists()


def test_it_is_ended_with_what_it_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "shop.sql"
    os.mkfifo(path)
    seen: list[int] = []

    def interrupted(done: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        apart.spool(
            parse(str(path)),
            [],
            tmp_path / "spool",
            "shop",
            interrupted,
            Selection(),
            dialect="mariadb",
        )
    assert time.monotonic() - began < 30
    assert seen == [0], "nothing was read, and still it could be ended"


WAITING = """
import sys
from pathlib import Path
from lab.datasets.selection import Selection
from lab.datasets.source import parse
from lab.lifecycle.datasets import apart
apart.spool(parse(sys.argv[1]), [], Path(sys.argv[2]), "shop", lambda _: None, Selection(),
            dialect="mariadb")
"""


def test_it_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """Protects a host from readers that wait for bytes of a server or pipe without end."""
    path = tmp_path / "shop.sql"
    os.mkfifo(path)
    argv = [sys.executable, "-c", WAITING, str(path), str(tmp_path / "spool")]

    def ended() -> bool:
        there = [one for one in Path("/proc").glob("[0-9]*/cmdline") if _of(one, tmp_path)]
        return not there

    with subprocess.Popen(argv, cwd=ROOT) as parent, path.open("wb"):  # the reader has it open
        parent.kill()
        parent.wait()
        assert until(ended, Deadline.after(10.0))


def _of(cmdline: Path, work: Path) -> bool:
    try:
        return f"{work}/request".encode() in cmdline.read_bytes()
    except OSError:
        return False


def test_its_processor_time_ends(tmp_path: Path) -> None:
    path = tmp_path / "shop.sql"
    path.write_bytes(b"'';" * (8 * MIB))
    with pytest.raises(InvalidSpec, match="more than 1 s of processor time"):
        spool(path, tmp_path, seconds=1)


def test_its_memory_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest line of a directory of mariadb-dump is kept at once."""
    monkeypatch.setattr(apart, "MEMORY", 200 * MIB)
    shop = tmp_path / "dump/shop"
    shop.mkdir(parents=True)
    (shop / "t.sql").write_text("CREATE TABLE `t` (\n  `a` longtext\n);\n")
    with (shop / "t.txt").open("wb") as file:
        file.write(b"'" * (100 * MIB) + b"\n")
    with pytest.raises(InvalidSpec, match="needs more than 200M of memory"):
        spool(tmp_path / "dump", tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"[]", b'{"result": {"path": "/etc/passwd"}}', b"{" * 100_000,
        b'{"result": {"path": "SPOOL", "size": 7, "parts": [], "found": {}}}',
        b'{"failure": {"kind": "SystemExit", "what": "x"}}',
    ],
)  # fmt: skip
def test_an_answer_is_foreign(answer: bytes, tmp_path: Path) -> None:
    path = tmp_path / "answer"
    path.write_bytes(answer)
    with pytest.raises(LabError) as failure:
        apart._check(apart._read(path, "x", spools.Spool), tmp_path / "spool", "x")
    assert type(failure.value) is LabError


def test_other_threads_go_on(tmp_path: Path) -> None:
    """Protects the service's other requests, whose threads share an interpreter with the job."""
    path = tmp_path / "shop.sql"
    path.write_bytes(b"'';" * (MIB >> 4))
    reader = threading.Thread(target=spool, args=(path, tmp_path))
    before = time.process_time()
    reader.start()
    reader.join()
    assert time.process_time() - before < 1.0, "of this process; the other one takes 10 s"


def test_a_request_has_no_password() -> None:
    assert not [name for name in _Request.__dataclass_fields__ if "password" in name]
