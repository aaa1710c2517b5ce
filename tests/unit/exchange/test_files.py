"""Protects exported files: complete under their name or absent, and resumed only if they match."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, InvalidSpec, NotFound
from lab.exchange.files import source, target

PIECES = [b"head", b"a" * 1000, b"b" * 1000]
WHOLE = b"".join(PIECES)


def export(path: Path, *, resume: bool = False, pieces: list[bytes] = PIECES) -> None:
    with target(str(path), resume=resume) as to:
        for piece in pieces:
            to.write(piece)


def interrupted(path: Path) -> Path:
    """An export that ends early; its partial file."""

    def failing() -> None:
        with target(str(path), resume=False) as to:
            to.write(WHOLE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    return path.with_name(f"{path.name}.part")


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.lab"
    with target(str(path), resume=False) as to:
        to.write(WHOLE)
        assert not path.exists()
    assert path.read_bytes() == WHOLE
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_url_is_refused_with_what_to_do_and_without_repeating_it() -> None:
    """Protects who gives one, and the password that it may have in it."""
    with pytest.raises(InvalidSpec) as refused, source("HTTPS://ann:secret@labs.example/x.lab"):
        pass
    assert "secret" not in str(refused.value)
    assert "curl -C - -o FILE URL" in refused.value.hint


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.lab"
    path.write_bytes(b"precious")
    with pytest.raises(Conflict, match="exists already"):
        export(path)
    with pytest.raises(Conflict, match="not a partial copy of this archive"):
        export(path, resume=True)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("length", [0, 2, 4, 500, 1004, len(WHOLE) - 1])
def test_resume_continues_at_the_end_of_the_file(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.lab"
    partial = interrupted(path)
    os.truncate(partial, length)
    number = partial.stat().st_ino
    export(path, resume=True)
    assert path.read_bytes() == WHOLE
    assert path.stat().st_ino == number
    assert list(tmp_path.iterdir()) == [path]


def test_resume_takes_a_file_that_a_redirection_left(tmp_path: Path) -> None:
    path = tmp_path / "x.lab"
    path.write_bytes(WHOLE[:700])
    export(path, resume=True)
    assert path.read_bytes() == WHOLE
    export(path, resume=True)  # it is whole: nothing to do
    assert path.read_bytes() == WHOLE


def test_resume_refuses_what_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "x.lab"
    partial = interrupted(path)
    partial.write_bytes(WHOLE[:500] + b"X" + WHOLE[501:700])
    with pytest.raises(Conflict, match="between bytes 4 and 700"):
        export(path, resume=True)
    partial.write_bytes(WHOLE + b"more")
    with pytest.raises(Conflict, match="longer than this archive"):
        export(path, resume=True)
    assert not path.exists()
    export(path)  # without --resume
    assert path.read_bytes() == WHOLE


def test_two_exports_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.lab"
    with target(str(path), resume=False) as to:
        to.write(b"first")
        with pytest.raises(Conflict, match="another process is writing"):
            export(path)
    assert path.read_bytes() == b"first"


def test_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.lab"

    def filling() -> None:
        with target(str(path), resume=False) as to:
            to.write(PIECES[0])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(HostUnfit, match="No space left") as caught:
        filling()
    assert "--resume" in caught.value.hint
    export(path, resume=True)
    assert path.read_bytes() == WHOLE


def test_no_such_place(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no directory"):
        export(tmp_path / "absent" / "x.lab")
    with pytest.raises(HostUnfit, match="cannot be written"):
        export(Path("/dev/null/x.lab"))
    with pytest.raises(NotFound, match="cannot be read"), source(str(tmp_path / "absent")):
        pass


def test_a_pipe_by_name_is_just_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    export(path)
    reader.join()
    assert found == [WHOLE]
    assert list(tmp_path.iterdir()) == [path]


def test_a_terminal_is_no_place_for_an_archive() -> None:
    """Protects people's terminals; run in one of its own."""
    code = (
        "from lab.exchange.files import source, target\n"
        "from lab.errors import InvalidSpec\n"
        "for way in (lambda: target('-', resume=False), lambda: source('-')):\n"
        "    try:\n"
        "        with way(): pass\n"
        "    except InvalidSpec as error: print(error)\n"
    )
    parent, child = os.openpty()
    subprocess.run([sys.executable, "-c", code], stdin=child, stdout=child, check=True)
    os.close(child)
    said = os.read(parent, 1000)
    os.close(parent)
    assert b"cannot be written to a terminal" in said
    assert b"cannot be read from a terminal" in said


def test_source_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.lab"
    path.write_bytes(WHOLE)
    with source(str(path)) as stream:
        assert stream.read() == WHOLE
    with pytest.raises(InvalidSpec), target("-", resume=False):
        raise InvalidSpec("passed on")


def test_a_partial_file_that_others_made_is_not_written(tmp_path: Path) -> None:
    """Protects root's files: an export to /tmp has a name that others know before."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    path, partial = tmp_path / "x.lab", tmp_path / "x.lab.part"
    for put in (os.symlink, os.link):
        put(precious, partial)
        with pytest.raises(HostUnfit), target(str(path), resume=False) as file:
            file.write(WHOLE)
        assert precious.read_bytes() == b"mine"
        partial.unlink()
    os.mkfifo(partial)
    with pytest.raises(HostUnfit, match="not a file of ours"), target(str(path), resume=True):
        pass
