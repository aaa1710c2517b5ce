"""Builds of servers that were added to a home (``lab engine add``), each a recipe of its own.

``engines/NAME/`` of the home has what was found in a build, and the build as one archive. What all
builds of a family have in common is a directory of ``images/``, which engines.toml names.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any

from lab.config import tomlfile
from lab.errors import Conflict, InvalidSpec, NotFound
from lab.keys import Key, WrongType, complete, keys, list_of, matching
from lab.units import MIB, SIZE
from lab.values import dataclass

BASE = "/opt/lab/server"
"""Where a build is in its guest: the directory above the one with the server."""
FOUND = "build.json"
ARCHIVE = "build.tar.gz"
COMMON = "build.toml"
"""In the directory of a family: what all of its builds have in common."""
OPTIONS = "/etc/mysql/build.cnf"
"""The options of a build's programs, in the guest: where it lies."""
_RUN = "/run/mysqld"
_CHUNK = MIB

_FILE = matching("a file's name", r"[\w#.+-]+")
_PATTERN = matching("a pattern of files' names", r"[\w#.+*-]+")
_PACKAGE = matching("a package's name", r"[a-z0-9][a-z0-9+.-]+")


def _names(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise WrongType
    return tuple(value.items())


_Names = Annotated[tuple[tuple[str, str], ...], Key("a table of texts by name", _names)]


@dataclass(frozen=True)
class Common:
    """What all builds of a family have in common."""

    disk: Annotated[int, SIZE]
    """Of their images, in bytes."""
    packages: Annotated[tuple[str, ...], list_of("a list of packages", _PACKAGE)]
    """Of their images, beside those of all guests and those with libraries of the build."""
    service: Annotated[str, matching("a systemd unit", r"[\w@.-]+\.service")]
    user: Annotated[str, matching("an account", r"[a-z][a-z0-9-]*")]
    config: Annotated[str, matching("an absolute path in the guest", r"(/[\w.-]+)+")]
    log_files: Annotated[tuple[str, ...], list_of("a list of names of files", _FILE)]
    needed: Annotated[tuple[str, ...], list_of("a list of programs", _FILE)]
    """Programs without which no image can be made."""
    own: Annotated[tuple[str, ...], list_of("a list of patterns of names", _PATTERN)]
    """Programs of servers: others of a build do not replace those of the guest."""
    left_out: Annotated[tuple[str, ...], list_of("a list of names of directories", _FILE)]
    """Directories of a build that no guest reads."""
    programs: _Names
    """The programs that are called, each with its former name or none; the server first."""
    features: _Names
    """What a build may have, and the name of the file by which it has it."""
    links: _Names
    """Absolute paths in the guest, and the names of the files that they lead to, if there."""
    client_packages: Annotated[tuple[str, ...], list_of("a list of packages", _PACKAGE)] = ()
    """Of an image whose build has no client program, where it need not have one."""

    @property
    def server(self) -> tuple[str, ...]:
        """The names of the server's program."""
        return tuple(name for name in self.programs[0] if name)


def common(directory: Path) -> Common:
    """What the builds of a family have in common, whose directory it is; raises InvalidSpec."""
    path = directory / COMMON
    return complete(Common, tomlfile.read(path, keys(Common)), path)


@dataclass(frozen=True)
class Build:
    """What was found in a build, and where it was put."""

    name: str
    family: str
    version: str
    """Of the server, as the program says it: 11.4.5."""
    said: str
    """All that its ``--version`` says."""
    suite: str
    """Debian's release of its guests."""
    packages: tuple[str, ...]
    """Those with libraries of the programs."""
    features: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Links in the guest: absolute paths, and where they lead to."""
    library_paths: tuple[str, ...]
    """Directories of the build with libraries of its programs, below ``BASE``."""
    options: tuple[tuple[str, str], ...]
    """Options of the server that are paths below ``BASE``."""
    content: str
    """SHA-256 of what was given: the paths, kinds, modes and contents of all files."""
    size: int
    """Bytes of its files."""
    source: str
    """The path that was given."""
    added_at: float
    directory: Path = Path()
    """Where it is kept."""

    @property
    def archive(self) -> Path:
        """The build itself."""
        return self.directory / ARCHIVE


def write(build: Build) -> None:
    """Write what was found beside the archive."""
    values = asdict(build)
    del values["directory"]
    path = build.directory / FOUND
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def find(engines: Path, name: str) -> Build | None:
    """The build of that name below ``engines``, if there is one; raises InvalidSpec."""
    directory = engines / name
    try:
        values = json.loads((directory / FOUND).read_text(encoding="utf-8"))
        known = {field.name for field in fields(Build)}  # another version of lab may have more
        values = {key: _frozen(value) for key, value in values.items() if key in known}
        return Build(**{**values, "directory": directory})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError, TypeError, AttributeError) as error:
        raise InvalidSpec(
            f"the added engine {name} cannot be read: {error}",
            hint=f"`lab engine rm {name}`, and add it again",
        ) from None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


def named(engines: Path, name: str) -> Build:
    """The build of that name below ``engines``; raises NotFound if there is none, InvalidSpec."""
    found = find(engines, name)
    if found is None:
        raise NotFound(f"there is no added engine {name!r}", hint="`lab engine ls` lists them")
    return found


def builds(engines: Path) -> list[Build]:
    """All builds below ``engines``, by name; those that cannot be read are left out."""
    found = []
    try:
        names = sorted(path.name for path in engines.iterdir())
    except OSError:
        return []
    for name in names:
        try:
            build = find(engines, name)
        except InvalidSpec:
            continue
        found += [build] if build else []
    return found


def families(engines: Path) -> Mapping[str, str]:
    """The families of all builds below ``engines``, by name."""
    return {build.name: build.family for build in builds(engines)}


class Hashed:
    """A file that is read, and the digest of what was."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """As the file's own."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


class Content:
    """The digest of a build's content, of its members in the order of their archive."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()

    def add(self, member: tarfile.TarInfo, content: str) -> None:
        """A member; ``content``: the digest of a file, or where a link leads to."""
        what = "link" if member.issym() else "file"
        line = f"{member.name}\0{what}\0{member.mode:o}\0{content}\n"
        self._whole.update(line.encode(errors="surrogateescape"))

    @property
    def digest(self) -> str:
        """Of all members that were added."""
        return self._whole.hexdigest()


def content_of(archive: IO[bytes]) -> str:
    """The digest of what an archive of a build holds; raises ValueError, OSError if damaged."""
    whole = Content()
    try:
        with (
            gzip.GzipFile(fileobj=archive, mode="rb") as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            for member in tar:
                content, file = member.linkname, tar.extractfile(member) if member.isreg() else None
                if file is not None:
                    hashed = Hashed(file)
                    while hashed.read(_CHUNK):
                        pass
                    content = hashed.digest.hexdigest()
                whole.add(member, content)
            while plain.read(_CHUNK):
                pass  # what is behind a tar's end can lack its own, for which tar would fail
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error
    return whole.digest


@contextmanager
def opened(build: Build) -> Iterator[IO[bytes]]:
    """The archive of a build, with the content that was added; raises Conflict, InvalidSpec.

    It was read under no lock what the build is: another command may have replaced it since.
    """
    try:
        file = build.archive.open("rb")
    except FileNotFoundError:
        raise _changed(build, "removed") from None
    with file:
        if why := _wrong(file, build):
            now = find(build.directory.parent, build.name)
            if now is None or now.content != build.content:
                raise _changed(build, "replaced" if now else "removed")
            raise InvalidSpec(
                f"the archive of the added engine {build.name} is damaged: {why}",
                hint=f"`lab engine rm {build.name}`, and add it again",
            )
        file.seek(0)
        yield file


def _wrong(archive: IO[bytes], build: Build) -> str:
    """What is wrong with the archive of a build; empty if nothing is."""
    try:
        return "" if content_of(archive) == build.content else "it has other content than was added"
    except (ValueError, OSError) as error:
        return str(error)


def _changed(build: Build, what: str) -> Conflict:
    return Conflict(
        f"the engine {build.name} was {what} while an image of it was being built",
        hint="nothing was made of it: try again with the engine as it is now",
    )


def overlay(build: Build, config: str) -> bytes:
    """What leads to the programs of a build in its guest, as an uncompressed tar.

    ``config``: the path of the option file that lab writes; the programs read all of its directory.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, text in _files(build, config):
            info = tarfile.TarInfo(path.lstrip("/"))
            info.size, info.mode = len(text.encode()), 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
        for path, target in build.links:
            info = tarfile.TarInfo(path.lstrip("/"))
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return buffer.getvalue()


def _files(build: Build, config: str) -> Iterator[tuple[str, str]]:
    of_server = {"basedir": BASE, "socket": f"{_RUN}/mysqld.sock", "pid_file": f"{_RUN}/mysqld.pid"}
    of_server |= {name: f"{BASE}/{path}" for name, path in build.options}
    lines = ["[client]", f"socket = {_RUN}/mysqld.sock", "[mysqld]"]
    lines += [f"{name} = {value}" for name, value in of_server.items()]
    yield OPTIONS, "".join(f"{line}\n" for line in lines)
    # All servers read this one, wherever they were to be installed.
    directory = PurePosixPath(config).parent
    yield "/etc/my.cnf", f"!include {OPTIONS}\n!includedir {directory}/\n"
    yield f"{directory}/00-lab.cnf", "# Only lab's own options apply.\n"
    if build.library_paths:
        paths = "".join(f"{BASE}/{path}\n" for path in build.library_paths)
        yield "/etc/ld.so.conf.d/zz-lab.conf", paths
