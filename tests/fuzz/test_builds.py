"""The readers of builds of servers: archives of each kind, and programs."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

from lab.errors import InvalidSpec
from lab.imagebuild.foreign import libraries, unpack
from tests.fuzz.runner import Limits, durations, fuzz
from tests.support.builds import PROGRAM


def _tar(mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name in ("a/bin/mariadbd", "a/bin/mysql", "a/share/x"):
            info = tarfile.TarInfo(name)
            info.size, info.mode = 3, 0o755
            archive.addfile(info, io.BytesIO(b"abc"))
        for kind, target in ((tarfile.SYMTYPE, "bin"), (tarfile.LNKTYPE, "a/bin/mysql")):
            info = tarfile.TarInfo(f"a/l{kind!r}")
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return buffer.getvalue()


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/bin/mariadbd", b"abc" * 50)
    return buffer.getvalue()


def _deb() -> bytes:
    parts = ((b"debian-binary", b"2.0\n"), (b"data.tar.gz", _tar("w:gz")))
    members = (
        name.ljust(48) + str(len(data)).encode().ljust(10) + b"`\n" + data + b"\n" * (len(data) % 2)
        for name, data in parts
    )
    return b"!<arch>\n" + b"".join(members)


SEEDS = [_tar("w"), _tar("w:gz"), _tar("w:xz"), _tar("w:bz2"), _zip(), _deb()]


def archive(data: bytes) -> None:
    """Nothing is made that leads out of the directory."""
    with tempfile.TemporaryDirectory() as made:
        tree = unpack.Tree(Path(made) / "tree")
        tree.root.mkdir()
        unpack.unpack(io.BytesIO(data), tree, "x")
        unpack.unpack_packed(tree)
        tree.finish()
        for path in tree.root.rglob("*"):
            assert path.is_symlink() or path.is_dir() or path.is_file()
        assert [one.name for one in Path(made).iterdir()] == ["tree"]


def program(data: bytes) -> None:
    libraries.needs(io.BytesIO(data))


@durations
def test_archives(seconds: float) -> None:
    limits = Limits(memory=256 << 20)
    assert fuzz(archive, SEEDS, errors=(InvalidSpec,), seconds=seconds, limits=limits)


@durations
def test_programs(seconds: float) -> None:
    assert fuzz(program, [PROGRAM.read_bytes()], errors=(InvalidSpec,), seconds=seconds)
