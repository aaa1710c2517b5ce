"""The readers of foreign bytes: dumps, backups, rules, archives' headers, answers of guests."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import zstandard

from lab.bundle.unpacking import unpacking
from lab.config import tomlfile
from lab.datasets import (
    accounts,
    backup,
    datadir,
    directory,
    of_mysql,
    queries,
    redo,
    rules,
    shell,
    tabbed,
)
from lab.datasets.dump import statements
from lab.datasets.kinds import sql
from lab.datasets.source import DataArchive, DumpDirectory
from lab.datasets.survey import HEAD, suits, survey
from lab.errors import CommandFailed, InvalidSpec, LabError, NotReady
from lab.exchange.trust import decode
from lab.hypervisor.agent import AgentChannel, loaded
from lab.lifecycle.images.provenance import imported
from lab.names import GuestName
from lab.progress import never_halt
from lab.storage.stream import received
from lab.wait import Deadline
from tests.fuzz.runner import Limits, durations, fuzz, seeds
from tests.support.data_directories import directory as data_directory
from tests.support.data_directories import directory_of_mysql, log, old_log, packed

CHUNKS = 997
"""Bytes of a chunk: what is cut by its end is found too."""


def cut(data: bytes) -> Iterator[bytes]:
    return (data[at : at + CHUNKS] for at in range(0, len(data), CHUNKS))


def drain(data: Iterator[object]) -> None:
    for _ in data:
        pass


def dump(data: bytes) -> None:
    heads = list(statements(cut(data), head=64))
    assert [one.number for one in heads] == list(range(1, len(heads) + 1))
    for one in heads:
        assert data[one.offset :].startswith(one.text)


def surveyed(data: bytes) -> None:
    found = survey(sql(cut(data), "x"), "x")
    for version in ("10.6.1", "11.8.2"):
        suits(found, "mariadb", version)


def masking(data: bytes) -> None:
    found = rules.parse(data, "rules")
    found.covering("shop", "customers")


def stream(data: bytes) -> None:
    contents = backup.Contents()
    assert b"".join(backup.checked(cut(data), "x", contents)) == data
    backup.described(contents, "x")


def rows(data: bytes) -> None:
    create, _, text = data.partition(b"\0\0")
    if found := tabbed.table(create):
        tabbed.check(found, "t.txt")
        drain(tabbed.inserts(cut(text), found, "t.txt"))


def format_of_rows(data: bytes) -> None:
    value, enclosing, escape, row, text = (*data.split(b"\0", 4), b"", b"", b"", b"")[:5]
    marks = shell.Marks(value, enclosing, escape, row)
    if marks.are_clear:
        found = b"".join(shell.normal(cut(text), marks, "x"))
        assert found.count(b"\n") <= text.count(marks.row[:1])


def users(data: bytes) -> None:
    for dialect in ("mariadb", "mysql"):
        script = accounts.translated(data, "x", dialect)
        assert script.text.count(b"\n") <= data.count(b"\n") + 1


def redo_log(data: bytes) -> None:
    log, _, found = data.partition(b"\1\1\1\1")
    what = redo.redo(log.ljust(redo.HEAD, b"\0"), {redo.FIRST: 1 << 20}, "x")
    assert what.offset >= 0
    what.is_empty(found)


def header(data: bytes) -> None:
    decode(data)


def made(data: bytes) -> None:
    imported(data)


def volume(data: bytes) -> None:
    """The head of a stream of a volume; its checksum is no secret."""
    line = data.partition(b"\n")[0] + b"\n"
    received(io.BytesIO(line + hashlib.sha256(line).digest()))


class Ports:
    """A guest that answers everything with the same."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        assert timeout > 0
        return loaded(self._data)[request["execute"]]

    def personalise(
        self, message: bytes, deadline: Deadline, halt: Callable[[], None] = never_halt
    ) -> str:
        assert message
        assert not deadline.passed
        halt()
        return self._data.decode(errors="replace")


def guest(data: bytes) -> None:
    channel = AgentChannel(Ports(data), GuestName("lab-shop-n1"))
    for ask in (
        lambda: channel.run(["true"], timeout=0.05),
        lambda: channel.clock(timeout=1),
        lambda: channel.personalise(b"x\n", timeout=1),
    ):
        try:
            ask()
        except (NotReady, CommandFailed):
            continue


def bundle(data: bytes) -> None:
    # Of what is inside: hardly any damage of what is compressed gets that far.
    for content in (data, zstandard.compress(data)):
        try:
            with unpacking(io.BytesIO(content)) as found:
                assert len(found.manifest.why) < 10_000
                found.lab.read()
        except InvalidSpec:
            continue


READERS: dict[str, Callable[[bytes], None]] = {
    "dump": dump,
    "survey": surveyed,
    "rules": masking,
    "toml": lambda data: drain(iter(tomlfile.loads(data, "lab.toml"))),
    "queries": lambda data: drain(iter(queries.check(data.decode(errors="replace")))),
    "backup": stream,
    "rows": rows,
    "format": format_of_rows,
    "accounts": users,
    "redo": redo_log,
    "header": header,
    "made": made,
    "volume": volume,
    "guest": guest,
    "bundle": bundle,
}
LIMITS = Limits(seconds=5.0)


@durations
@pytest.mark.parametrize("name", READERS)
def test_a_reader(name: str, seconds: float) -> None:
    """Protects the host: each input is read, or refused with an error that says why."""
    assert fuzz(READERS[name], seeds(name), errors=(LabError,), seconds=seconds, limits=LIMITS)


@durations
@pytest.mark.parametrize("layout", ["mydumper", "mysqlsh"])
def test_a_directory(
    tmp_path: Path, seconds: float, layout: Literal["mydumper", "mysqlsh"]
) -> None:
    """Protects the same; an input has the files, each as a name, an empty line and its content."""
    top = tmp_path / "dump"

    def read(data: bytes) -> None:
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir()
        for part in data.split(b"\0\0")[:50]:
            name, _, content = part.partition(b"\n\n")
            plain = base64.urlsafe_b64encode(name) if b"/" in name or b"\0" in name else name
            if 0 < len(plain) < 200 and plain not in (b".", b".."):
                (top / plain.decode("utf-8", "surrogateescape")).write_bytes(content)
        for piece in directory.pieces(DumpDirectory(top, layout), "mariadb"):
            assert len(piece.before) < HEAD
            drain(piece.data)

    assert fuzz(read, seeds(layout), errors=(InvalidSpec,), seconds=seconds, limits=LIMITS)


@durations
@pytest.mark.parametrize("family", ["mariadb", "mysql"])
def test_an_archive_of_a_data_directory(tmp_path: Path, seconds: float, family: str) -> None:
    """Protects the same; what is read of it is what a guest unpacks."""
    path = tmp_path / "a.tar"
    some = {
        "mariadb": [
            data_directory({"ib_logfile0": one, "shop/t.ibd": bytes(100)})
            for one in (log(), old_log(104))
        ],
        "mysql": [directory_of_mysql()],
    }[family]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        source, contents = DataArchive(path), backup.Contents()
        if family == "mysql":
            opened = of_mysql.opened(source, "9.7.4")
            assert sum(map(len, opened.data)) % 512 == 0
            assert opened.found.prepared
            return
        drain(backup.checked(datadir.streamed(source, "11.8.6"), "x", contents))
        assert backup.described(contents, "x").prepared

    inputs = [packed(path, one).read_bytes() for one in some]
    assert fuzz(read, inputs, errors=(InvalidSpec,), seconds=seconds, limits=LIMITS)
