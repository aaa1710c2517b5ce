"""Data directories of servers that were stopped, as directories or in archives of tar.

MariaDB's becomes what mariadb-backup would have made of it, a prepared full backup: a stream of
its tables, its redo log, which has nothing to apply, and the files that describe a backup. What
the server left beside (logs, positions, temporary tables) is left out. A directory of a backup in
an archive is read as well, as it is.

What a server was is in ``mariadb_upgrade_info`` (``mysql_upgrade_info`` before 11.0), in the head
of the definitions of its system tables, and in that of its redo log.
"""

from __future__ import annotations

import io
import os
import re
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import NoReturn

from lab.config.enginefile import numbers
from lab.datasets import backup as backups
from lab.datasets import redo as redos
from lab.datasets.kinds import plain
from lab.datasets.pieces import changed, content
from lab.datasets.redo import Redo
from lab.datasets.source import DataArchive, DataDirectory
from lab.datasets.survey import short
from lab.errors import InvalidSpec
from lab.units import MIB
from lab.values import dataclass

Stopped = DataDirectory | DataArchive

SYSTEM = "ibdata1"
REDO = "#innodb_redo/"
"""The directory of MySQL's redo log."""
_INFOS = ("mariadb_upgrade_info", "mysql_upgrade_info")
DICTIONARY = "mysql.ibd"
_OLDEST = (10, 2)
_HEAD = 64 << 10
"""Bytes of a file that say what it is; a page has no more."""
_PAGE = 16 << 10
"""Bytes in which the first page says whether it is encrypted, whatever its size."""
_HEADS_LIMIT = 64
_HEADED = frozenset((SYSTEM, redos.FIRST, *_INFOS, *backups.CHECKPOINTS, *backups.INFO))
_FRM = re.compile(r"(?:.*/)?mysql/[a-z_]{1,64}\.frm", re.DOTALL)
_FRM_HEAD = 64
_REDODICTIONARY = re.compile(r"#ib_redo\d{1,20}")
_FACT = re.compile(rb"(?:LCTN|MYSQLD_VERSION)=\d{1,6};")
"""Of the properties of MySQL's data dictionary, which are text in one of its pages."""
_DICTIONARY = 256 * MIB
"""Bytes of it in which they are looked for."""
_OPTION_FILES = re.compile(r"ibdata\d{1,3}")
_KEPT = re.compile(r"ibdata\d{1,3}|ib_logfile\d{1,3}|undo\d{3}|aria_log\.\d{8}|aria_log_control")
_UNDO = re.compile(r"undo\d{3}")
LEFT_OUT = re.compile(r"[#.]|lost\+found\Z")
"""Directories that are no databases."""
_ROCKS = "#rocksdb"
_CRYPT = b"s\x0e\x0cREt"
_DUMP = "create the dataset from a dump: mariadb-dump --databases shop crm"


@dataclass(frozen=True)
class Files:
    """The files of a source below ``top``, with sizes in bytes, and the heads of some."""

    name: str
    top: str
    sizes: Mapping[str, int]
    heads: Mapping[str, bytes]

    def redo_of_mysql(self) -> dict[str, bytes]:
        """The heads of the files of MySQL's redo log, from 8.0.30 on."""
        return {one: head for one, head in self.heads.items() if one.startswith(REDO)}

    def facts(self, key: str) -> set[int]:
        """The values of a property of MySQL's data dictionary, also of former versions of it."""
        pairs = (one.split(b"=") for one in self.heads.get(DICTIONARY, b"").split(b";") if one)
        return {int(value) for name, value in pairs if name == key.encode()}

    @property
    def is_backup(self) -> bool:
        """Whether they are of a backup, which says so itself."""
        return any(one in self.sizes for one in backups.CHECKPOINTS)


@dataclass(frozen=True)
class Found:
    """What a data directory is; ``version``: of its system tables, ``server``: the newest sign."""

    version: str
    server: str
    options: tuple[str, ...]
    redo: Redo


def size(source: Stopped) -> int:
    """Bytes of its files; 0 if they are not known before it is read."""
    if isinstance(source, DataDirectory):
        return sum(length for _, length, _ in backups.listed(source.path).values())
    return 0 if source.packing else source.path.stat().st_size


def streamed(source: Stopped, version: str) -> Iterator[bytes]:
    """The stream of a prepared backup; raises InvalidSpec.

    ``version``: of the MariaDB server that is to have it. A data directory that it cannot have, or
    whose server was not stopped cleanly, is refused, and so is one that changes meanwhile.
    """
    files = looked_at(source)
    if files.is_backup:
        data = _backup(source, files)
    else:
        data = _prepared(source, files, described(files, version))
    return unchanged(source, data)


def unchanged(source: Stopped, data: Iterator[bytes]) -> Iterator[bytes]:
    """``data`` of a source; raises InvalidSpec if one of its files changes while it is read."""
    before = backups.listed(source.path) if isinstance(source, DataDirectory) else {}
    yield from data
    after = backups.listed(source.path) if isinstance(source, DataDirectory) else {}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            raise changed(source.path / path)


def _backup(source: Stopped, files: Files) -> Iterator[bytes]:
    for path, _, data in members(source):
        if (name := below(path, files.top)) is not None:
            yield from backups.packed(data(), name)


def _prepared(source: Stopped, files: Files, found: Found) -> Iterator[bytes]:
    info = f"server_version = {found.version}\npartial = N\n"
    for name, text in (
        (backups.OPTIONS, "[mysqld]\n" + "".join(f"{one}\n" for one in found.options)),
        (backups.CHECKPOINTS[0], "backup_type = full-prepared\n"),
        (backups.INFO[0], info),
    ):
        yield from backups.packed([text.encode()], name)
    for path, _, data in members(source):
        kept = below(path, files.top)
        if kept is None or not _is_kept(kept):
            continue
        content_of = data()
        if kept == found.redo.file:
            content_of = emptied(content_of, found.redo, files.name)
        if kept.endswith(".ibd") or kept.startswith("ibdata"):
            content_of = _readable(content_of, kept, files.name)
        yield from backups.packed(content_of, kept)


def below(path: str, top: str) -> str | None:
    """A path below ``top``; None: it is not there."""
    return path[len(top) :] if path.startswith(top) else None


def _is_kept(path: str) -> bool:
    first, is_nested, _ = path.partition("/")
    return not LEFT_OUT.match(first) if is_nested else bool(_KEPT.fullmatch(first))


# What it is


def looked_at(source: Stopped) -> Files:
    """The files of a source: those of the one data directory, or backup, that is in it."""
    sizes: dict[str, int] = {}
    heads: dict[str, bytes] = {}
    large = 0
    for path, length, data in members(source):
        sizes[path] = length
        base = path.rpartition("/")[2]
        if _FRM.fullmatch(path):
            heads[path] = _first(data(), _FRM_HEAD)
        elif base == DICTIONARY:
            heads[path] = _facts(data())
        elif base in _HEADED or _REDODICTIONARY.fullmatch(base):
            large += 1
            if large > _HEADS_LIMIT:
                raise InvalidSpec(f"{source} has more than one data directory", hint=_ONE)
            heads[path] = _first(data(), _HEAD)
    tops = [
        path.removesuffix(SYSTEM)
        for path in sizes
        if path.rpartition("/")[2] == SYSTEM and _has_system(sizes, path.removesuffix(SYSTEM))
    ]
    if len(tops) != 1:
        what = "more than one data directory" if tops else "no data directory, and no backup"
        raise InvalidSpec(f"{source} has {what}", hint=_ONE)
    top = tops[0]
    return Files(
        str(source),
        top,
        {name: sizes[path] for path in sizes if (name := below(path, top))},
        {name: heads[path] for path in heads if (name := below(path, top))},
    )


_ONE = (
    "accepted: one directory of a server, with ibdata1 and the directory mysql, such as"
    " `tar -C /var/lib/mysql -czf shop.tar.gz .` makes of it"
)


def _has_system(sizes: Mapping[str, int], top: str) -> bool:
    return f"{top}{DICTIONARY}" in sizes or any(path.startswith(f"{top}mysql/") for path in sizes)


def creator_of(files: Files) -> str:
    """What the redo log calls its server: ``MariaDB 10.11.6``, ``MySQL 8.0.36``; empty: unknown."""
    logs = [files.heads.get(redos.FIRST, b""), *files.redo_of_mysql().values()]
    return next((one for log in logs if (one := redos.creator(log))), "")


def mysql_version(files: Files) -> str:
    """The version of MySQL that a data directory is of; empty: of MariaDB, or unknown."""
    creator, newest = creator_of(files), _newest(files)
    if DICTIONARY in files.sizes:
        found = [f"{n // 10000}.{n // 100 % 100}.{n % 100}" for n in files.facts("MYSQLD_VERSION")]
        return max([*found, creator.removeprefix("MySQL ")], key=numbers)
    if "mysql" in creator.lower() or numbers(newest)[:1] == (5,):
        return max(creator.partition(" ")[2], newest, key=numbers)
    return ""


def _newest(files: Files) -> str:
    """The version of the newest definition of a system table."""
    written = {_of_frm(head) for one, head in files.heads.items() if _FRM.fullmatch(one)}
    return max(written, key=numbers, default="")


def described(files: Files, version: str) -> Found:
    """What a data directory is; raises InvalidSpec unless a server of ``version`` can have it."""
    name, heads, creator = files.name, files.heads, creator_of(files)
    if DICTIONARY in files.sizes or mysql_version(files):
        raise InvalidSpec(
            f"{name} is a data directory of MySQL {short(mysql_version(files))}, whose files"
            " MariaDB cannot read",
            hint="create the dataset with --engine mysql, or from a dump of mysqldump",
        )
    info = next((heads[one] for one in _INFOS if one in heads), b"")
    newest = _newest(files)
    written = info.split(b"\n")[0].strip(b"\0 \r").decode(errors="replace")[:64]
    tables = written if numbers(written) else newest
    server = max((tables, creator.removeprefix("MariaDB ")), key=numbers)
    if not tables or numbers(server)[:2] < _OLDEST:
        raise InvalidSpec(
            f"{name} is a data directory of {server or creator or 'an unknown server'}, not of"
            f" MariaDB {_OLDEST[0]}.{_OLDEST[1]} or later",
            hint=_DUMP,
        )
    if numbers(server)[:2] > numbers(version)[:2]:
        raise InvalidSpec(
            f"{name} is of MariaDB {short(server)}, which is newer than the server of the image,"
            f" {short(version)}",
            hint="create the dataset from a dump, or build an image with that version",
        )
    _check_files(files)
    logs = {one: length for one, length in files.sizes.items() if redos.FILES.fullmatch(one)}
    if redos.FIRST not in logs:
        raise InvalidSpec(
            f"{name} has no redo log ({redos.FIRST}): it was in another directory",
            hint="copy innodb_log_group_home_dir of its server into it as well",
        )
    redo = redos.redo(heads[redos.FIRST], logs, name)
    if not redo.clean:
        raise redos.unclean(name, redo.creator)
    return Found(tables, server, _options(files), redo)


def _check_files(files: Files) -> None:
    for path in files.sizes:
        if path.endswith(".isl"):
            raise InvalidSpec(
                f"{files.name}: {path.removesuffix('.isl')} is a table with a DATA DIRECTORY, which"
                " is outside",
                hint=_DUMP,
            )
        if path.startswith(f"{_ROCKS}/"):
            raise InvalidSpec(
                f"{files.name} has tables of MyRocks, whose engine no image has", hint=_DUMP
            )


def _of_frm(head: bytes) -> str:
    """The version of the server that wrote the definition of a table; empty: of a view."""
    if len(head) < _FRM_HEAD or head[:2] != b"\xfe\x01":
        return ""
    (found,) = struct.unpack_from("<I", head, 51)
    end = "-MariaDB" if found >= 100000 else ""
    return f"{found // 10000}.{found // 100 % 100}.{found % 100}{end}"


def system_tablespace(files: Files) -> tuple[str, str]:
    """The options for the system tablespace: its files, and the size of a page."""
    head, parts = files.heads[SYSTEM], sorted(filter(_OPTION_FILES.fullmatch, files.sizes))
    if len(head) < 64:
        raise InvalidSpec(f"{files.name}: {SYSTEM} is truncated", hint=_DUMP)
    page = _page_size(struct.unpack_from(">I", head, 54)[0])
    wanted = struct.unpack_from(">I", head, 46)[0] * page
    there = sum(files.sizes[one] for one in parts)
    if wanted > there or any(files.sizes[one] % MIB for one in parts):
        raise InvalidSpec(
            f"{files.name}: the system tablespace has {there} bytes in {', '.join(parts)}, and says"
            f" {wanted}: it is truncated, or has files of other names (innodb_data_file_path)",
            hint=_DUMP,
        )
    paths = [f"{one}:{files.sizes[one] // MIB}M" for one in parts]
    return f"innodb_data_file_path={';'.join(paths)}:autoextend", f"innodb_page_size={page}"


def _options(files: Files) -> tuple[str, ...]:
    """What a server needs in its option file to read the directory."""
    undo = sum(1 for one in files.sizes if _UNDO.fullmatch(one))
    return (*system_tablespace(files), f"innodb_undo_tablespaces={undo}")


def _page_size(flags: int) -> int:
    """Of the flags of a tablespace: of the format full_crc32, or an older one."""
    shift = flags & 15 if flags & 16 else flags >> 6 & 15
    return 512 << shift if 3 <= shift <= 7 else 16384


# What is in it


def emptied(data: Iterable[bytes], redo: Redo, name: str) -> Iterator[bytes]:
    """A file of the redo log, which is checked to have nothing to apply."""
    found, at, end = bytearray(), 0, redo.offset + redo.size
    for chunk in data:
        yield chunk
        if at < end and at + len(chunk) > redo.offset:
            found += chunk[max(0, redo.offset - at) : end - at]
        at += len(chunk)
    if not redo.is_empty(bytes(found)):
        raise redos.unclean(name, redo.creator)


def _readable(data: Iterable[bytes], path: str, name: str) -> Iterator[bytes]:
    """A tablespace, which is checked not to be encrypted."""
    is_first = True
    for chunk in data:
        at = chunk[:_PAGE].find(_CRYPT) if is_first else -1
        # Behind it: type, length and bytes of a vector, the least version of the key; 0: plain.
        if (
            at >= 0
            and len(chunk) >= at + 28
            and chunk[at + 6] == 1
            and any(chunk[at + 24 : at + 28])
        ):
            raise InvalidSpec(
                f"{name}: {path} is encrypted, and the directory has no keys",
                hint=f"decrypt the tables (ENCRYPTED=NO), or {_DUMP}",
            )
        is_first = False
        yield chunk


def _facts(data: Iterable[bytes]) -> bytes:
    """What is said in MySQL's data dictionary of its server."""
    found: dict[bytes, None] = {}
    held, done = b"", 0
    for chunk in data:
        done += len(chunk)
        held = held[-64:] + chunk
        found |= dict.fromkeys(_FACT.findall(held))
        if done > _DICTIONARY or len(found) > _HEADS_LIMIT:
            break
    return b"".join(found)


def _first(data: Iterable[bytes], size: int) -> bytes:
    found = bytearray()
    for chunk in data:
        found += chunk
        if len(found) >= size:
            break
    return bytes(found[:size])


# Files


_Data = Callable[[], Iterator[bytes]]


def members(source: Stopped) -> Iterator[tuple[str, int, _Data]]:
    """The files, with their sizes, and what reads one before the next is looked at."""
    if isinstance(source, DataArchive):
        yield from _tar(source)
        return
    for path, (_, length, _) in sorted(backups.listed(source.path).items()):
        yield path, length, partial(content, source.path / path)


def _tar(source: DataArchive) -> Iterator[tuple[str, int, _Data]]:
    name = str(source)
    count = 0
    with (
        closing(content(source.path, plain)) as data,
        _reading(name),
        _Reader(data) as reader,
        tarfile.open(fileobj=reader, mode="r|", encoding="utf-8") as archive,
    ):
        for member in archive:
            count += 1
            if count > backups.FILES_LIMIT:
                raise InvalidSpec(f"{name} has more than {backups.FILES_LIMIT} files")
            if member.isdir():
                continue
            if not member.isreg():
                raise InvalidSpec(
                    f"{name}: {member.name[:200]!r} is neither a file nor a directory",
                    hint="archive the directory with tar --dereference --hard-dereference",
                )
            path = backups.check_path(os.fsencode(member.name), name)
            yield path, member.size, partial(_of_member, archive, member, name)
        reader.drain()
        behind = reader.count - archive.offset
    # A file's last pages may be zeros, too: the end is what is behind the files.
    if reader.last.strip(b"\0") or behind < _END:
        _damaged(name, "it has no end")


_END = 1024
"""Bytes of zero that are the end of an archive."""


def _damaged(name: str, why: str) -> NoReturn:
    raise InvalidSpec(
        f"{name} is truncated or damaged, or no archive of tar",
        hint="copy the file again; `tar -tf` checks it",
        details=[why[:200]],
    )


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """What ``tarfile`` cannot read in the block is damaged."""
    try:
        yield
    except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
        _damaged(name, str(error))


def _of_member(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Iterator[bytes]:
    done = 0
    with _reading(name):
        file = archive.extractfile(member)
        for chunk in iter(partial(file.read, MIB), b"") if file else ():
            done += len(chunk)
            yield chunk
    if done != member.size:
        _damaged(name, f"{member.name[:100]!r} is not complete")


class _Reader(io.RawIOBase):
    """A stream as ``tarfile`` reads it; ``count`` bytes were read, ``last`` are the last ones."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._held = memoryview(b"")
        self.count = 0
        self.last = b""

    def read(self, size: int = MIB) -> bytes:
        """The next bytes, ``size`` at most; none at the end."""
        if not self._held:
            self._held = memoryview(next(filter(None, self._data), b""))
        found = bytes(self._held[:size])
        self._held = self._held[len(found) :]
        self.count += len(found)
        self.last = (self.last + found[-_END:])[-_END:]
        return found

    def drain(self) -> None:
        """Read the rest."""
        while self.read():
            pass
