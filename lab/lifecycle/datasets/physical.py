"""Physical backups: checked on this host, then unpacked and prepared in the guest that loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.config.enginefile import DialectName
from lab.datasets import backup as backups
from lab.datasets import datadir, of_mysql
from lab.datasets.backup import Backup, Contents
from lab.datasets.source import BackupDirectory, BackupStream, DataArchive, DataDirectory
from lab.errors import InvalidSpec
from lab.lifecycle.datasets.loader import Refused, Server
from lab.paths import new_file
from lab.progress import ByteProgress
from lab.units import MIB
from lab.values import dataclass

Physical = BackupDirectory | BackupStream | DataDirectory | DataArchive

_OPTION = re.compile(r"(?:innodb_[a-z_]{1,50}=[\w.:;-]{1,4000}|lower_case_table_names=[012])")
_NOTES = re.compile(
    r"\[(?:Note|System|Warning)\]|\[\d+\] \d{4}-\d\d-\d\d [\d:]+ (?!.*\b(?:error|fail))",
    re.IGNORECASE,
)
"""Lines of mariadb-backup and of servers that are no reason of a failure."""


@dataclass(frozen=True)
class Stored:
    """A backup as a stream in a file of whole MiB; ``size``: of the stream, in bytes."""

    name: str
    path: Path
    size: int
    backup: Backup
    upgrade: bool
    """Whether its system tables are of another version than the server."""


def size(source: Physical) -> int:
    """Bytes of a source, as far as they are known before it is read; 0: not known."""
    if isinstance(source, DataDirectory | DataArchive):
        return datadir.size(source)
    if isinstance(source, BackupDirectory):
        return sum(backups.of_directory(source).sizes.values())
    if source.packing or not source.path.is_file():
        return 0
    return source.path.stat().st_size


def write(
    source: Physical,
    path: Path,
    version: str,
    dialect: DialectName,
    progress: Callable[[int], None],
) -> Stored:
    """Write a source to the new file ``path``: as the stream of a backup, or for MySQL as a tar.

    ``version``, ``dialect``: of the server that is to have it; ``progress`` is called with the
    bytes that are written. Raises InvalidSpec for a backup that the server cannot have, or that is
    damaged, truncated or changes while it is read; HostUnfit if there is no space.
    """
    return _WRITERS[dialect](source, path, version, progress)


def _as_archive(
    source: Physical, path: Path, version: str, progress: Callable[[int], None]
) -> Stored:
    opened = of_mysql.opened(source, version)
    done = _written(opened.data, path, progress)
    return Stored(str(source), path, done, opened.found, backups.older(opened.found, version))


def _as_stream(
    source: Physical, path: Path, version: str, progress: Callable[[int], None]
) -> Stored:
    name = str(source)
    if isinstance(source, BackupDirectory):
        data = backups.streamed(source)
        backups.check_fits(backups.described(backups.of_directory(source), name), version, name)
    elif isinstance(source, BackupStream):
        data = backups.unpacked_stream(source)
    else:
        data = datadir.streamed(source, version)
    contents = Contents()
    done = _written(backups.checked(data, name, contents), path, progress)
    found = backups.described(contents, name)
    backups.check_fits(found, version, name)
    return Stored(name, path, done, found, backups.older(found, version))


_WRITERS: Mapping[DialectName, Callable[[Physical, Path, str, Callable[[int], None]], Stored]] = {
    "mariadb": _as_stream,
    "mysql": _as_archive,
}
"""By the dialect of the server: what its image's program ``backup`` unpacks."""


def _written(data: Iterable[bytes], path: Path, progress: Callable[[int], None]) -> int:
    """The bytes that are written to a new file, which gets whole MiB."""
    done = 0
    with new_file(path) as out:
        for chunk in data:
            out.write(chunk)
            done += len(chunk)
            progress(done)
        out.truncate(-(-done // MIB) * MIB)
    return done


def check(stored: Stored, source: Physical, path: Path) -> None:
    """Raise InvalidSpec unless ``stored`` can be what ``write`` has returned."""
    whole = -(-stored.size // MIB) * MIB
    good = stored.name == str(source) and stored.path == path and path.is_file()
    good = good and path.stat().st_size == whole and stored.size > 0
    if not good or not all(map(_OPTION.fullmatch, stored.backup.options)):
        raise InvalidSpec(f"{source}: what was read of it is invalid")


def load(server: Server, disk: str, stored: Stored) -> None:
    """Give ``server`` the backup that is on its ``disk``; raises InvalidSpec, NotReady."""
    ctx, found = server.ctx, stored.backup
    with (
        ctx.progress.step("load", "unpacking the backup"),
        _named(stored, "it could not be unpacked"),
    ):
        server.unpack(disk, stored.size, ByteProgress(ctx.progress, "load", stored.size))
    with (
        ctx.progress.step("prepare", "preparing the backup"),
        _named(stored, "it could not be prepared"),
    ):
        server.prepare(found.options, prepared=found.prepared)
    doing = "starting the server on it, and upgrading its system tables"
    doing = doing if stored.upgrade else "starting the server on it"
    with ctx.progress.step("adopt", doing), _named(stored, "the server could not start on it"):
        server.adopt(upgrade=stored.upgrade)


@contextmanager
def _named(stored: Stored, what: str) -> Iterator[None]:
    """A program that fails in the block is an error about the backup; ``what``: it could not do."""
    try:
        yield
    except Refused as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reasons = [line for line in lines if not _NOTES.search(line)] or lines
        raise InvalidSpec(f"{stored.name}: {what}", details=reasons[-5:]) from None
