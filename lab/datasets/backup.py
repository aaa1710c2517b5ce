"""Physical backups of mariadb-backup: what they say about themselves, and their streams.

A stream (extra/mariabackup/xbstream_write.cc) is a sequence of chunks, numbers little-endian::

    "XBSTCK01", flags (1 byte), type (1), length of the path (4), path
    P   length (8), offset in the file (8), CRC-32 (4), as many bytes of the file
    E   nothing: the end of the file
    S   offset (8): where the next bytes of the file go
    R   length (4), path: the file is renamed
    D   nothing: the file is removed

What the server was is in small files of the backup: ``backup-my.cnf``, and since MariaDB 11.1
``mariadb_backup_info`` and ``mariadb_backup_checkpoints``; before, and in backups of Percona
XtraBackup, ``xtrabackup_info`` and ``xtrabackup_checkpoints``.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import NoReturn

from lab.config.enginefile import numbers
from lab.datasets.kinds import plain
from lab.datasets.pieces import Signature, changed, content, signature, small
from lab.datasets.source import MAGIC, BackupDirectory, BackupStream
from lab.datasets.survey import short
from lab.errors import InvalidSpec
from lab.units import MIB
from lab.values import dataclass

INFO = ("mariadb_backup_info", "xtrabackup_info")
CHECKPOINTS = ("mariadb_backup_checkpoints", "xtrabackup_checkpoints")
OPTIONS = "backup-my.cnf"
_REDO = "ib_logfile0"
_SMALL = frozenset((*INFO, *CHECKPOINTS, OPTIONS))
_SMALL_LIMIT = MIB
_PATH_LIMIT = 511  # FN_REFLEN, with the zero at its end
CHUNK_LIMIT = 256 * MIB
"""mbstream keeps a chunk in memory; mariadb-backup writes them of 10 MiB."""
FILES_LIMIT = 1_000_000
_PREPARED = ("log-applied", "full-prepared")
_REDO_FORMAT = (10, 8)
"""Since this version no later one can read the redo log of an earlier one."""
_PACKED = re.compile(r"\.(qp|lz4|zst|xbcrypt)\Z")
_TABLESPACE = re.compile(
    r"([\w.-]{1,255}):\d{1,15}[KMG]?(?::autoextend(?::max:\d{1,15}[KMG]?)?)?", re.IGNORECASE
)
_TABLESPACES_LIMIT = 100
_NUMBER = re.compile(r"\d{1,9}")
_HEAD = struct.Struct("<8sBcI")
_PAYLOAD = struct.Struct("<QQI")


@dataclass
class Contents:
    """The files of a backup: the sizes of all in bytes, and what is in those with facts."""

    sizes: dict[str, int] = field(default_factory=dict)
    small: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Backup:
    """A backup that can become the data directory of a server."""

    version: str
    """Of its server: ``10.11.6-MariaDB-log``."""
    prepared: bool
    options: tuple[str, ...]
    """What a server needs in its option file to read it: ``innodb_page_size=4096``."""
    size: int
    """Bytes of its files."""


# What a backup says


def described(contents: Contents, name: str) -> Backup:
    """What is in a backup; ``name``: of the source.

    Raises InvalidSpec for one that is of another engine, incremental, partial, compressed,
    encrypted or incomplete.
    """
    if packed := packed_file(contents.sizes):
        raise InvalidSpec(
            f"{name} is compressed or encrypted: it has {packed}",
            hint="mariadb-backup --decompress --remove-original --target-dir=DIR (of a stream,"
            " after mbstream -x -C DIR), then create the dataset from DIR",
        )
    info, checkpoints = _facts(contents, INFO, name), _facts(contents, CHECKPOINTS, name)
    options = _facts(contents, (OPTIONS,), name)
    version = info.get("server_version", "")
    if "mariadb" not in version.lower():
        raise InvalidSpec(
            f"{name} is a backup of MySQL {short(version)}, whose files MariaDB cannot read",
            hint="dump the databases with mysqldump, and create the dataset from the dump",
        )
    if checkpoints.get("backup_type") == "incremental":
        raise InvalidSpec(
            f"{name} is an incremental backup: it has only what changed after another one",
            hint="mariadb-backup --prepare --target-dir=FULL --incremental-dir=DIR adds it to the"
            " full backup; create the dataset from FULL",
        )
    if info.get("partial") == "Y":
        raise InvalidSpec(
            f"{name} is a partial backup: it lacks databases that its server cannot do without",
            hint="create the dataset from a full backup, or from a dump of these databases",
        )
    if any("plugin" in key or key == "innodb_encrypt_log" for key in options):
        raise InvalidSpec(
            f"{name} is of a server that encrypts its files, and no backup has the keys",
            hint="create the dataset from a dump: mariadb-dump --databases shop crm",
        )
    prepared = checkpoints.get("backup_type") in _PREPARED
    files = _tablespaces(options, name)
    for needed in (*files, *(() if prepared else (_REDO,))):
        if needed not in contents.sizes:
            raise _incomplete(name, needed)
    return Backup(version, prepared, _needed(options, name), sum(contents.sizes.values()))


def packed_file(paths: Iterable[str]) -> str:
    """A file that is compressed or encrypted, by its name; empty: there is none."""
    return next((path for path in sorted(paths) if _PACKED.search(path)), "")


def check_fits(backup: Backup, version: str, name: str) -> None:
    """Raise InvalidSpec if the MariaDB server of an image, of ``version``, cannot read a backup."""
    ours, theirs = numbers(version), numbers(backup.version)
    if theirs[:2] > ours[:2]:
        raise InvalidSpec(
            f"{name} is of MariaDB {short(backup.version)}, which is newer than the server of the"
            f" image, {short(version)}",
            hint="create the dataset from a dump, or build an image with that version",
        )
    if not backup.prepared and theirs[:2] < _REDO_FORMAT <= ours[:2]:
        raise InvalidSpec(
            f"{name} is of MariaDB {short(backup.version)} and not prepared: {short(version)}"
            " cannot read its redo log",
            hint="with mariadb-backup of that version: mariadb-backup --prepare --target-dir=DIR"
            " (of a stream, after mbstream -x -C DIR), then create the dataset from DIR",
        )


def older(backup: Backup, version: str) -> bool:
    """Whether the system tables of a backup are of another version than the server's."""
    return numbers(backup.version) != numbers(version)


def _facts(contents: Contents, names: Iterable[str], where: str) -> dict[str, str]:
    """The lines ``key = value`` of the first file that is there; raises InvalidSpec."""
    names = tuple(names)
    for name in names:
        if (text := contents.small.get(name)) is not None:
            lines = text.decode(errors="replace").splitlines()
            pairs = (line.partition("=") for line in lines if "=" in line)
            return {key.strip().replace("-", "_"): value.strip() for key, _, value in pairs}
    raise _incomplete(where, " or ".join(names))


def _incomplete(name: str, missing: str) -> InvalidSpec:
    return InvalidSpec(
        f"{name} is not a complete backup: it has no file {missing}",
        hint="the last line of mariadb-backup is `completed OK!`: repeat the backup",
    )


def _tablespaces(options: dict[str, str], name: str) -> tuple[str, ...]:
    """The files of the system tablespace."""
    text = options.get("innodb_data_file_path", "ibdata1:12M:autoextend")
    found = [_TABLESPACE.fullmatch(one) for one in text.split(";", _TABLESPACES_LIMIT)]
    if not all(found):
        raise InvalidSpec(
            f"{name}: its server's innodb_data_file_path is {text[:200]!r},"
            " which names no files of the backup",
            hint="create the dataset from a dump: mariadb-dump --databases shop crm",
        )
    return tuple(match[1] for match in found if match)


def _needed(options: dict[str, str], name: str) -> tuple[str, ...]:
    found = []
    for key in ("innodb_data_file_path", "innodb_page_size", "innodb_undo_tablespaces"):
        value = options.get(key, "")
        if key != "innodb_data_file_path" and value and not _NUMBER.fullmatch(value):
            raise InvalidSpec(f"{name}: {OPTIONS} has an invalid {key}: {value[:200]!r}")
        if value:
            found.append(f"{key}={value}")
    return tuple(found)


# Directories


def of_directory(source: BackupDirectory) -> Contents:
    """The files of a directory; raises InvalidSpec."""
    return _contents(source, listed(source.path))


def streamed(source: BackupDirectory) -> Iterator[bytes]:
    """A directory as a stream; raises InvalidSpec, also if a file changes while it is read."""
    before = listed(source.path)
    for path in sorted(before):
        yield from packed(content(source.path / path), path)
    after = listed(source.path)
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            raise changed(source.path / path)


def packed(data: Iterable[bytes], path: str) -> Iterator[bytes]:
    """A file of a stream; ``data``: in chunks of at most ``CHUNK_LIMIT`` bytes."""
    offset, name = 0, os.fsencode(path)
    for chunk in data:
        yield _HEAD.pack(MAGIC, 0, b"P", len(name)) + name
        yield _PAYLOAD.pack(len(chunk), offset, zlib.crc32(chunk))
        yield chunk
        offset += len(chunk)
    yield _HEAD.pack(MAGIC, 0, b"E", len(name)) + name


def _contents(source: BackupDirectory, listed: dict[str, Signature]) -> Contents:
    facts = {}
    for name in _SMALL.intersection(listed):
        if listed[name][1] > _SMALL_LIMIT:
            raise InvalidSpec(f"{source.path / name} is larger than {_SMALL_LIMIT // MIB} MiB")
        facts[name] = small(source.path / name)
    return Contents({name: length for name, (_, length, _) in listed.items()}, facts)


def listed(top: Path) -> dict[str, Signature]:
    """The files below a directory, without sockets of servers; raises InvalidSpec for links."""
    found: dict[str, Signature] = {}
    left = [top]
    try:
        while left:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    path = os.path.relpath(entry.path, top)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(Path(entry.path))
                    elif entry.is_file(follow_symlinks=False):
                        found[path] = signature(entry.stat())
                    elif not stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                        raise InvalidSpec(
                            f"{entry.path} is neither a file nor a directory",
                            hint="copy the directory with cp -L, which follows links",
                        )
                    check_path(os.fsencode(path), f"{top}")
                    if len(found) > FILES_LIMIT:
                        raise InvalidSpec(f"{top} has more than {FILES_LIMIT} files")
    except OSError as error:
        where = error.filename or top
        raise InvalidSpec(f"{where} cannot be read: {error.strerror}") from error
    return found


# Streams


def unpacked_stream(source: BackupStream) -> Iterator[bytes]:
    """What is in a file with a stream, decompressed; raises InvalidSpec and HostUnfit."""
    return content(source.path, plain)


def checked(data: Iterable[bytes], name: str, contents: Contents) -> Iterator[bytes]:
    """Pass on the stream ``data``, and fill ``contents`` with what is in it.

    ``name``: of the source. Raises InvalidSpec with the offset if it is damaged, truncated, or not
    a stream.
    """
    reader = _Reader(data, name)
    unfinished: set[str] = set()
    while reader.more():
        yield from _chunk(reader, contents, unfinished)
        if len(contents.sizes) > FILES_LIMIT:
            raise InvalidSpec(f"{name} has more than {FILES_LIMIT} files")
    if unfinished:
        raise _truncated(name, reader.offset, min(unfinished))


def _chunk(reader: _Reader, contents: Contents, unfinished: set[str]) -> Iterator[bytes]:
    start = reader.offset
    magic, flags, kind, length = _HEAD.unpack((yield from reader.exactly(_HEAD.size)))
    if magic != MAGIC:
        reader.damaged(start, "there is no chunk" if start else "it is no stream of mbstream")
    path = yield from reader.path(length)
    if kind == b"P":
        unfinished.add(path)
        yield from _payload(reader, path, contents)
    elif kind == b"E":
        unfinished.discard(path)
        contents.sizes.setdefault(path, 0)
    elif kind == b"S":
        yield from reader.exactly(8)
    elif kind == b"R":
        (size,) = struct.unpack("<I", (yield from reader.exactly(4)))
        _rename(contents, path, (yield from reader.path(size)))
    elif kind == b"D":
        contents.sizes.pop(path, None)
        contents.small.pop(path, None)
    elif not flags & 1:
        shown = kind.decode("ascii", "replace")
        reader.damaged(start, f"mbstream does not know chunks of the type {shown!r}")


def _payload(reader: _Reader, path: str, contents: Contents) -> Iterator[bytes]:
    start = reader.offset
    size, offset, checksum = _PAYLOAD.unpack((yield from reader.exactly(_PAYLOAD.size)))
    if size > CHUNK_LIMIT:
        reader.damaged(start, f"a chunk of {path} has {size} bytes")
    kept = bytearray() if path in _SMALL else None
    crc = 0
    for piece in reader.next(size):
        crc = zlib.crc32(piece, crc)
        if kept is not None:
            kept += piece
            if len(kept) > _SMALL_LIMIT:
                reader.damaged(start, f"{path} is larger than {_SMALL_LIMIT // MIB} MiB")
        yield piece
    if crc != checksum:
        reader.damaged(start, f"the checksum of a chunk of {path} is wrong")
    contents.sizes[path] = max(contents.sizes.get(path, 0), offset + size)
    if kept is not None:
        before = contents.small.get(path, b"") if offset else b""
        if len(before) + len(kept) > _SMALL_LIMIT:
            reader.damaged(start, f"{path} is larger than {_SMALL_LIMIT // MIB} MiB")
        contents.small[path] = before + bytes(kept)


def _rename(contents: Contents, old: str, new: str) -> None:
    if old in contents.sizes:
        contents.sizes[new] = contents.sizes.pop(old)
    if old in contents.small:
        contents.small[new] = contents.small.pop(old)


def check_path(path: bytes, name: str) -> str:
    """``path`` of a file in a backup, without ``./``; raises InvalidSpec."""
    text = os.fsdecode(path).removeprefix("./")
    parts = text.split("/")
    if len(path) > _PATH_LIMIT or b"\0" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidSpec(
            f"{name} has a file of the name {text[:200]!r}, which is not of a backup",
            hint="a backup has paths below its directory only, of at most 511 bytes",
        )
    return text


def _truncated(name: str, offset: int, path: str = "") -> InvalidSpec:
    what = f", and {path} is not complete" if path else ""
    return InvalidSpec(
        f"{name} is truncated: it ends after byte {offset}{what}",
        hint="copy the file again, or repeat the backup",
    )


class _Reader:
    """Bytes of a stream, which are passed on as they are read; ``offset``: of the next one."""

    def __init__(self, data: Iterable[bytes], name: str) -> None:
        self._data = iter(data)
        self._name = name
        self._rest = memoryview(b"")
        self.offset = 0

    def more(self) -> bool:
        """Whether there is another byte."""
        while not self._rest:
            found = next(self._data, None)
            if found is None:
                return False
            self._rest = memoryview(found)
        return True

    def next(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes, in pieces; raises InvalidSpec if there are fewer."""
        while size:
            if not self.more():
                raise _truncated(self._name, self.offset)
            piece = bytes(self._rest[:size])
            self._rest = self._rest[len(piece) :]
            self.offset += len(piece)
            size -= len(piece)
            yield piece

    def exactly(self, size: int) -> Generator[bytes, None, bytes]:
        """Yield the next ``size`` bytes in pieces, and return them as a whole."""
        found = b""
        for piece in self.next(size):
            found += piece
            yield piece
        return found

    def path(self, length: int) -> Generator[bytes, None, str]:
        """A path of so many bytes, which is returned as text."""
        if length > _PATH_LIMIT:
            self.damaged(self.offset, f"a path has {length} bytes")
        found = yield from self.exactly(length)
        return check_path(found, self._name)

    def damaged(self, offset: int, why: str) -> NoReturn:
        """Raise InvalidSpec about the byte at ``offset``."""
        raise InvalidSpec(
            f"{self._name} is damaged at byte {offset}: {why}",
            hint="copy the file again, or repeat the backup; messages of mariadb-backup"
            " (standard error) are not part of the stream",
        )
