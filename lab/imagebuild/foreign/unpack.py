"""Unpacking a build into an empty directory, whatever it is packed in.

What a file is, is seen by its first bytes. Only files, directories and symbolic links are made, and
links last, so that nothing is written through one. Runs in a process of its own (``apart``).
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from lab.distribution import extra
from lab.errors import HostUnfit, InvalidSpec, LabError
from lab.units import GIB, MIB, format_size
from lab.values import dataclass

BYTES = 24 * GIB
"""Of all files, at most: a debug build with its test suite has 5 GiB."""
MEMBERS = 300_000
DEPTH = 64
_PATH = 1024
_CHUNK = MIB
_HEAD = 512
_TAR = 257
_EXECUTABLE = (b"\x7fELF", b"#!")
_MAGIC = (
    (b"\x1f\x8b", "gz"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zst"), (b"BZh", "bz2"),
    (b"PK\x03\x04", "zip"), (b"!<arch>\ndebian-binary", "deb"),
)  # fmt: skip


def kind_of(head: bytes) -> str:
    """What a file that begins with ``head`` is: gz, xz, zst, bz2, zip, deb, tar; or empty."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return "tar" if head[_TAR : _TAR + 5] == b"ustar" else ""


@dataclass
class Tree:
    """A directory that is filled; ``left_out``: what was not made, and why."""

    root: Path
    most: int = BYTES
    """Bytes of all files, at most."""
    members: int = 0
    size: int = 0
    links: list[tuple[Path, str]] = field(default_factory=list)
    copies: list[tuple[Path, Path]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def place(self, name: str, below: Path) -> Path:
        """Where a member goes; raises InvalidSpec if that is not below."""
        path = PurePosixPath(name.lstrip("/"))
        if ".." in path.parts or not name.isprintable() or len(name) > _PATH:
            raise InvalidSpec(f"the build has the path {name[:80]!a}, which cannot be unpacked")
        self.members += 1
        if self.members > MEMBERS:
            raise InvalidSpec(f"the build has more than {MEMBERS} files", hint="is it a server's?")
        return below / path

    def directory(self, path: Path) -> None:
        """Make a directory, with those above it."""
        try:
            path.mkdir(0o755, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise _twice(path, self.root) from None

    def file(self, path: Path, content: IO[bytes], mode: int) -> None:
        """Make a file; it can be executed if its mode says so, or it is a program."""
        self.directory(path.parent)
        if path.is_file():  # a later member replaces an earlier one
            path.unlink()
        try:
            out = path.open("xb")
        except (FileExistsError, IsADirectoryError):
            raise _twice(path, self.root) from None
        head = b""
        with out:
            while chunk := content.read(_CHUNK):
                head = head or chunk[:_HEAD]
                self.size += len(chunk)
                self.check(self.size)
                out.write(chunk)
        path.chmod(0o755 if mode & 0o100 or head.startswith(_EXECUTABLE) else 0o644)

    def check(self, size: int) -> None:
        """Raise InvalidSpec or HostUnfit if there is no room for ``size`` bytes in all."""
        if size > BYTES:
            raise InvalidSpec(f"the build has more than {format_size(BYTES)}")
        if size > self.most:
            raise HostUnfit(
                f"the build has more than {format_size(self.most)}, and no more is free here",
                hint="free some space (`lab gc`, `lab down`), or set space_floor lower",
            )

    def finish(self) -> None:
        """Make the links. Those that lead out of the directory are left out."""
        for path, original in self.copies:
            if original.is_file() and not path.exists():
                self.directory(path.parent)
                os.link(original, path)
                self.size += path.stat().st_size  # whoever packs it reads it again
                self.check(self.size)
        made, top = [], real(self.root)
        for path, target in self.links:
            # Not by way of another link: that may lead out, and nothing is made there.
            direct = real(path.parent) == top / path.parent.relative_to(self.root)
            if not direct or target.startswith("/") or not target.isprintable():
                self._leave_out(path, target)
            elif not os.path.lexists(path):
                self.directory(path.parent)
                path.symlink_to(target)
                made.append((path, target))
        # Where one leads is known once all are there: the next one may be a part of its way.
        for path, target in made:
            if not real(path).is_relative_to(top):
                self._leave_out(path, target)
                path.unlink()
        self.copies.clear()
        self.links.clear()

    def _leave_out(self, path: Path, target: str) -> None:
        self.left_out.append(f"link {path.relative_to(self.root)} to {target[:80]!a}")


def real(path: Path) -> Path:
    """Where a path leads to; one that leads to itself has no end, and is where it is."""
    return Path(os.path.realpath(path))


def _twice(path: Path, root: Path) -> InvalidSpec:
    return InvalidSpec(f"the build has {path.relative_to(root)} as a file and as a directory")


def copy(source: int, tree: Tree, below: str = "") -> None:
    """Copy an open directory; links that lead out of it, devices and so on are left out.

    All is opened by the directory that it is in, and nothing by a link: we are root, and who can
    write to the build could put a link to files of root there while we read.
    """
    if below.count("/") > DEPTH:
        raise InvalidSpec(f"the build has directories that are more than {DEPTH} deep in others")
    for name in sorted(os.listdir(source)):
        path = f"{below}{name}"
        target = tree.place(path, tree.root)
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            tree.links.append((target, os.readlink(name, dir_fd=source)))
        elif stat.S_ISDIR(found.st_mode):
            handle = _opened(name, source, path, os.O_DIRECTORY)
            try:
                tree.directory(target)
                copy(handle, tree, f"{path}/")
            finally:
                os.close(handle)
        elif stat.S_ISREG(found.st_mode):
            with os.fdopen(_opened(name, source, path), "rb") as content:
                if not stat.S_ISREG(os.fstat(content.fileno()).st_mode):
                    raise _replaced(path)
                tree.file(target, content, found.st_mode)
        else:
            tree.left_out.append(path)


def _opened(name: str, directory: int, path: str, more: int = 0) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | more
    try:
        return os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.ENXIO):
            raise _replaced(path) from None
        raise


def _replaced(path: str) -> InvalidSpec:
    return InvalidSpec(
        f"{path} of the build was replaced while the build was read",
        hint="add it again when no program works on it",
    )


def unpack(content: IO[bytes], tree: Tree, name: str) -> None:
    """Unpack a file; raises InvalidSpec if it is no archive, or damaged."""
    kind = kind_of(_head(content))
    if not kind:
        raise InvalidSpec(
            f"{name} is no archive of a build",
            hint="a tar archive (also gz, xz, zst, bz2), a zip, a Debian package, or a directory",
        )
    with _whole(name):
        _unpack(content, kind, tree, tree.root)


def unpack_packed(tree: Tree) -> None:
    """Unpack archives that the top of a tree has: packages together, others each by itself.

    Oracle's bundles are archives of archives, and a directory may be one of packages. A text that
    is compressed, such as a list of changes, stays as it is.
    """
    for path in sorted(tree.root.iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as content:
            kind = kind_of(_head(content))
            if not kind or not _holds_files(content, kind):
                continue
            below = tree.root / "packages" if kind == "deb" else tree.root / f"in.{path.name}"
            tree.directory(below)
            with _whole(path.name):
                _unpack(content, kind, tree, below)
        path.unlink()


def _holds_files(content: IO[bytes], kind: str) -> bool:
    """Whether a file is an archive, as far as its beginning shows, and not merely compressed."""
    if kind == "deb":
        return True
    try:
        if kind == "zip":
            return zipfile.is_zipfile(content)
        with tarfile.open(fileobj=content if kind == "tar" else _plain(content, kind), mode="r|"):
            return True
    except (LabError, MemoryError):
        raise
    except Exception:  # noqa: BLE001  each reader has errors of its own
        return False
    finally:
        content.seek(0)


@contextmanager
def _whole(name: str) -> Iterator[None]:
    """Raise InvalidSpec for a file that readers of archives find damaged."""
    try:
        yield
    except (LabError, MemoryError):
        raise
    except Exception as error:  # each reader has errors of its own
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the system
        why = str(error)[:200] or type(error).__name__
        raise InvalidSpec(f"{name} is damaged: {why}") from None


def _head(content: IO[bytes]) -> bytes:
    head = content.read(_HEAD)
    content.seek(0)
    return head


def _unpack(content: IO[bytes], kind: str, tree: Tree, below: Path) -> None:
    if kind == "zip":
        _zip(content, tree, below)
    elif kind == "deb":
        _deb(content, tree, below)
    else:
        _tar(content if kind == "tar" else _plain(content, kind), tree, below)


def _plain(content: IO[bytes], kind: str) -> Any:
    """What is compressed in ``content``."""
    if kind == "zst":
        with extra("datasets", "a build in a .zst file"):
            import zstandard
        return zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
    openers: dict[str, Any] = {"gz": gzip.open, "xz": lzma.open, "bz2": bz2.open}
    return openers[kind](content)


def _tar(content: IO[bytes], tree: Tree, below: Path) -> None:
    with tarfile.open(fileobj=content, mode="r|") as archive:
        for member in archive:
            path = tree.place(member.name, below)
            if member.isdir():
                tree.directory(path)
            elif member.issym():
                tree.links.append((path, member.linkname))
            elif member.islnk():
                tree.copies.append((path, tree.place(member.linkname, below)))
            elif member.isreg():
                found = archive.extractfile(member)
                if found is not None:
                    tree.file(path, found, member.mode)
            else:
                tree.left_out.append(f"device {member.name}")


def _zip(content: IO[bytes], tree: Tree, below: Path) -> None:
    with zipfile.ZipFile(content) as archive:
        for member in archive.infolist():
            path, mode = tree.place(member.filename, below), member.external_attr >> 16
            if member.is_dir():
                tree.directory(path)
            elif stat.S_ISLNK(mode):
                tree.links.append((path, archive.read(member)[:_PATH].decode(errors="replace")))
            else:
                with archive.open(member) as found:
                    tree.file(path, found, mode)


def _deb(content: IO[bytes], tree: Tree, below: Path) -> None:
    """The files of a package: an ar archive, one of whose members is a tar archive; see deb(5)."""
    content.seek(8)
    while len(header := content.read(60)) == 60:
        size = int(header[48:58])
        if size < 0 or header[58:] != b"`\n":
            raise ValueError("a member of it has no header")
        if not header.startswith(b"data.tar"):
            content.seek(size + size % 2, os.SEEK_CUR)
            continue
        tree.check(tree.size + size)
        with tempfile.TemporaryFile(dir=tree.root.parent) as data:
            while size and (chunk := content.read(min(size, _CHUNK))):
                size -= data.write(chunk)
            data.seek(0)
            _unpack(data, kind_of(_head(data)) or "tar", tree, below)
        return
    raise ValueError("it has no data")
