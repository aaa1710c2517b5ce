"""Where the data of a dataset comes from: the texts after ``--from``, as typed values.

============================================  ==================================================
``shop.sql``, ``.sql.gz``, ``shop.zip``       a dump: a file; by its first bytes whatever its name
``-``                                         a dump, from standard input
a directory                                   what ``mariadb-dump --dir``, mydumper or MySQL Shell
                                              wrote, files of SQL, or a physical backup
a directory, ``shop.tar``, ``.tar.gz``        the data directory of a server that was stopped; by
                                              its first bytes whatever its name
``shop.xb``, ``.mbstream``, ``.xbstream``     a physical backup as a stream, also .gz, .zst; by its
                                              first bytes whatever its name
``mysql://user@host:3306/shop,crm``           databases of a live server; none: all; or mariadb://
``lab:NAME[@LABEL]``                          a running lab, or one of its snapshots
``generate:sysbench?tables=8&rows=100000``    tables that are generated, also ``generate:tpcc``
``upload:shop.sql.gz``                        a dump that a client has sent to the service
============================================  ==================================================

``str()`` of each value is a text that ``parse`` takes for it. None has a password: see
``PASSWORD_HINT``.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import fields
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote, unquote_to_bytes

from lab import keys
from lab.datasets.dump import Packing
from lab.datasets.kinds import packing_of, plain
from lab.datasets.scripts import are_scripts, foreign
from lab.errors import InvalidSpec, LabError
from lab.keys import within
from lab.names import check_host, check_lab_name
from lab.paths import from_user
from lab.values import dataclass

PASSWORD_VARIABLE = "LAB_SOURCE_PASSWORD"  # noqa: S105  # only its name
"""The environment variable that holds the password of a live server."""
PASSWORD_HINT = (
    f"a password is never part of a command: set {PASSWORD_VARIABLE}, or name a defaults file"
    " that only you can read (mode 0600) with [client] and password=... in it"
)
ACCEPTED = (
    "a file .sql, also compressed (.gz, .xz, .bz2, .zst, .zip); - for standard input; a directory"
    " of mariadb-dump --dir, mydumper, MySQL Shell, mariadb-backup or SQL files; a stream .xb,"
    " .mbstream or .xbstream; a data directory, also as .tar; mysql://user@host:3306/database;"
    " lab:NAME; generate:sysbench or generate:tpcc"
)
OWN = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
"""The databases of a server itself."""
DATABASES_LIMIT = 100
"""Databases that one text names, at most."""

MAGIC = b"XBSTCK01"
"""The first bytes of a stream of mbstream or xbstream."""

PACKINGS = ("gz", "zst", "xz", "bz2", "zip")
_STREAMS = ("xb", "mbstream", "xbstream")
_TAR = (257, b"ustar")
UPLOAD = "upload:"
"""How the text of a dump that was sent to the service begins."""

_UPLOAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.sql(\.gz|\.zst|\.xz|\.bz2|\.zip)?")
_UPLOAD_LIMIT = 100
_NAME_LIMIT = 64  # of a database, in characters
_USER_LIMIT = 128  # MariaDB's; MySQL has 32
_TEXT_LIMIT = 4096
_HEAD = 64 << 10  # bytes of a file whose first are decompressed
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


@dataclass(frozen=True)
class DumpFile:
    """A dump in one file."""

    path: Path
    packing: Packing = ""
    shown: str = ""
    """What messages call it instead of its path."""

    def __str__(self) -> str:
        return self.shown or str(self.path)


@dataclass(frozen=True)
class Uploaded:
    """A dump that was sent to the service, under this name; it is read once."""

    name: str

    @property
    def packing(self) -> Packing:
        """How it is compressed."""
        return _packing(self.name)

    def __str__(self) -> str:
        return f"{UPLOAD}{self.name}"


@dataclass(frozen=True)
class StandardInput:
    """A dump that is read once."""

    def __str__(self) -> str:
        return "-"


@dataclass(frozen=True)
class DumpDirectory:
    """A logical dump of many files."""

    path: Path
    layout: Literal["mariadb-dump", "mydumper", "mysqlsh", "scripts"]
    """The program that wrote it: ``DB/TABLE.sql`` with ``DB/TABLE.txt``; ``DB.TABLE*.sql``;
    ``@.json`` with ``DB@TABLE.*``; or anybody, files of SQL only."""

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class BackupDirectory:
    """A physical backup."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class BackupStream:
    """A physical backup in one file, as mbstream and xbstream write it."""

    path: Path
    packing: Packing = ""

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class DataDirectory:
    """The data directory of a server that was stopped."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class DataArchive:
    """An archive of tar with a data directory, or with the directory of a physical backup."""

    path: Path
    packing: Packing = ""

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Server:
    """A live server; its password is not here."""

    scheme: Literal["mysql", "mariadb"]
    user: str
    host: str
    port: int = 3306
    databases: tuple[str, ...] = ()
    """Empty: all but those of the server itself."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        names = ",".join(quote(name, safe="") for name in self.databases)
        return f"{self.scheme}://{quote(self.user, safe='')}@{host}:{self.port}/{names}"


@dataclass(frozen=True)
class LabCapture:
    """A lab of this home as it is, or one of its snapshots."""

    lab: str
    label: str = ""
    """Of the snapshot; empty: the lab as it is."""

    def __str__(self) -> str:
        return f"lab:{self.lab}@{self.label}" if self.label else f"lab:{self.lab}"


@dataclass(frozen=True)
class Sysbench:
    """Tables as ``sysbench oltp_common`` prepares them."""

    tables: Annotated[int, within(1, 1000)] = 8
    rows: Annotated[int, within(1, 1_000_000_000)] = 100_000
    """Of each table."""
    seed: Annotated[int, within(0, (1 << 63) - 1)] = 1

    def __str__(self) -> str:
        return f"generate:sysbench?{_query(self)}"


@dataclass(frozen=True)
class Tpcc:
    """Tables with the rows that clause 4.3 of the TPC-C specification wants."""

    warehouses: Annotated[int, within(1, 10_000)] = 1
    seed: Annotated[int, within(0, (1 << 63) - 1)] = 1

    def __str__(self) -> str:
        return f"generate:tpcc?{_query(self)}"


Generated = Sysbench | Tpcc
Source = (
    DumpFile
    | Uploaded
    | StandardInput
    | DumpDirectory
    | BackupDirectory
    | BackupStream
    | DataDirectory
    | DataArchive
    | Server
    | LabCapture
    | Generated
)

_GENERATORS: Mapping[str, type[Sysbench] | type[Tpcc]] = {"sysbench": Sysbench, "tpcc": Tpcc}


def parse(text: str) -> Source:
    """The source that ``text`` names; looks at the file or directory, if it is one.

    Raises InvalidSpec with what is accepted. No message has a password in it.
    """
    if not text.strip() or len(text) > _TEXT_LIMIT or "\0" in text:
        raise InvalidSpec("no source is named", hint=f"accepted: {ACCEPTED}")
    if text == "-":
        return StandardInput()
    if text.startswith(UPLOAD):
        return Uploaded(check_upload(text.removeprefix(UPLOAD)))
    if text.startswith("lab:"):
        return _lab(text)
    if text.startswith("generate:"):
        return _generated(text)
    if scheme := _SCHEME.match(text):
        return _server(scheme[1].lower(), text[scheme.end() :])
    return _path(text)


def check_upload(name: str) -> str:
    """``name`` if a dump can be sent under it; raises InvalidSpec."""
    if len(name) > _UPLOAD_LIMIT or not _UPLOAD.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not the name of a dump",
            hint="such as shop.sql, shop.sql.gz, shop.sql.xz",
        )
    return name


def _packing(name: str) -> Packing:
    """How the name of a file says that it is compressed."""
    return cast("Packing", next((one for one in PACKINGS if name.endswith(f".{one}")), ""))


def _path(text: str) -> Source:
    path = from_user(text)
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:
        raise InvalidSpec(f"{text} cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        return _directory(path)
    name = path.name.lower()
    packing = _packing(name)
    inner = name.removesuffix(f".{packing}")
    kind = next((one for one in ("sql", "tar", *_STREAMS) if inner.endswith(f".{one}")), "")
    kind = kind or ("sql" if packing == "zip" else "")
    if stat.S_ISREG(mode):
        found = _seen(path)
        if found is not None:
            packing, seen = found
            kind = seen if seen and kind not in _STREAMS else kind
    if not kind:
        shown = "this" if "@" in text else repr(text)  # it may be a DSN with a password
        raise InvalidSpec(f"{shown} is not a source of data", hint=f"accepted: {ACCEPTED}")
    if not mode:
        raise InvalidSpec(f"there is no file {text}", hint="check the path")
    if not stat.S_ISREG(mode) and (not stat.S_ISFIFO(mode) or kind == "tar"):
        raise InvalidSpec(f"{text} is not a file", hint=f"accepted: {ACCEPTED}")
    if kind == "tar":
        return DataArchive(path, packing)
    return DumpFile(path, packing) if kind == "sql" else BackupStream(path, packing)


def _directory(path: Path) -> Source:
    try:
        names = {entry.name: entry.is_dir() for entry in path.iterdir()}
        found = _layout(path, names)
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from error
    if found is None:
        if name := foreign(names):
            raise InvalidSpec(
                f"{path} has {name!r}, a name of mydumper or of MySQL Shell, whose files are read"
                " in another order, but neither the file metadata nor @.json",
                hint="copy the whole dump; if it is none of these, rename that file",
            )
        raise InvalidSpec(
            f"{path} is not a directory of a dump or a backup",
            hint="accepted: DB/TABLE.sql and DB/TABLE.txt (mariadb-dump --dir), metadata and"
            " DB.TABLE-schema.sql (mydumper), @.json and DB@TABLE.sql (MySQL Shell), a directory"
            " with mariadb_backup_checkpoints, xtrabackup_checkpoints or backup-my.cnf, or with"
            " ibdata1 and mysql (a data directory), or nothing but files of SQL (NAME.sql)",
        )
    return found


def _layout(path: Path, names: Mapping[str, bool]) -> Source | None:
    # MariaDB renamed its files in 11.1; before, it shared the names with XtraBackup.
    if {"mariadb_backup_checkpoints", "xtrabackup_checkpoints", "backup-my.cnf"} & names.keys():
        return BackupDirectory(path)
    if "ibdata1" in names and (names.get("mysql") or "mysql.ibd" in names):
        return DataDirectory(path)
    if "@.json" in names:
        return DumpDirectory(path, "mysqlsh")
    schemas = (".sql", ".sql.gz", ".sql.zst")
    unfinished = any(name.startswith(("metadata.partial", "metadata.header")) for name in names)
    if (unfinished or "metadata" in names) and any(
        name.removesuffix(end).endswith(("-schema", "-schema-create"))
        for name in names
        for end in schemas
        if name.endswith(end)
    ):
        return DumpDirectory(path, "mydumper")
    if any(is_dir and _has_tables(path / name) for name, is_dir in names.items()):
        return DumpDirectory(path, "mariadb-dump")
    return DumpDirectory(path, "scripts") if are_scripts(names) else None


def _seen(path: Path) -> tuple[Packing, str] | None:
    """How a file is compressed, and whether ``xb`` or ``tar`` is in it; None: not readable."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None  # who reads it says what is wrong
    try:
        first = next(plain(iter([head]), str(path)), b"")
    except LabError:
        first = b""
    is_tar = first[_TAR[0] :].startswith(_TAR[1])
    return packing_of(head), _STREAMS[0] if first.startswith(MAGIC) else "tar" if is_tar else ""


def _has_tables(path: Path) -> bool:
    return any(entry.suffix == ".sql" for entry in path.iterdir())


def _lab(text: str) -> LabCapture:
    name, at, label = text.removeprefix("lab:").partition("@")
    if at and not _LABEL.fullmatch(label):
        raise InvalidSpec(f"{label!r} is not the label of a snapshot", hint="such as lab:shop@v1")
    return LabCapture(check_lab_name(name), label)


def _generated(text: str) -> Generated:
    name, _, query = text.removeprefix("generate:").partition("?")
    kind = _GENERATORS.get(name)
    if kind is None:
        known = ", ".join(f"generate:{one}" for one in _GENERATORS)
        raise InvalidSpec(f"there is no generator {name!r}", hint=f"accepted: {known}")
    given: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, _, value = pair.partition("=")
        if key in given:
            raise InvalidSpec(f"generate:{name}: {key} is given twice")
        given[key] = value
    values: dict[str, Any] = keys.parse_all(keys.keys(kind), given, f"generate:{name}")
    return kind(**values)


def _query(generated: Generated) -> str:
    return "&".join(f"{one.name}={getattr(generated, one.name)}" for one in fields(generated))


def _server(scheme: str, rest: str) -> Server:
    if scheme not in ("mysql", "mariadb"):
        raise InvalidSpec(f"{scheme}:// is not a source of data", hint=f"accepted: {ACCEPTED}")
    usage = f"{scheme}://user@host:3306/database"
    before = rest.rpartition("@")[0]
    if ":" in before or "%3a" in before.lower():
        raise InvalidSpec(f"{scheme}://... has a password in it", hint=PASSWORD_HINT)
    where, _, path = rest.partition("/")
    user, at, address = where.rpartition("@")
    if "?" in rest or "#" in rest:
        raise InvalidSpec(f"{scheme}://...: no options can follow ? or #", hint=f"such as {usage}")
    if not at or not user:
        raise InvalidSpec(f"{scheme}://... names no user", hint=f"such as {usage}")
    host, port = _address(address, usage)
    return Server(
        cast("Literal['mysql', 'mariadb']", scheme),
        _decoded(user, "a user", _USER_LIMIT),
        host,
        port,
        _databases(path.split(",")) if path else (),
    )


def _address(text: str, usage: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]*))(?::(\d{1,5}))?", text)
    port = int(match[3]) if match and match[3] else 3306
    if not match or not 1 <= port <= 65535 or not (match[1] or match[2]):
        raise InvalidSpec("the source is not the address of a server", hint=f"such as {usage}")
    if match[2]:
        return check_host(match[2]), port
    try:
        return str(IPv6Address(match[1])), port
    except ValueError:
        raise InvalidSpec(f"{match[1]!r} is not an IPv6 address", hint=f"such as {usage}") from None


def _databases(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(_decoded(name, "a database", _NAME_LIMIT) for name in names)
    if len(found) > DATABASES_LIMIT:
        raise InvalidSpec(
            f"{len(found)} databases are named, at most {DATABASES_LIMIT} can be",
            hint="name none for all databases",
        )
    if doubled := next((name for name in found if found.count(name) > 1), ""):
        raise InvalidSpec(f"the database {doubled!r} is named twice")
    return found


def _decoded(text: str, what: str, limit: int) -> str:
    try:
        name = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        name = ""
    plain = name.isprintable() and "/" not in name and name == name.strip()
    if not 1 <= len(name) <= limit or not plain or name.startswith("-"):
        raise InvalidSpec(
            f"{text!r} cannot be the name of {what}", hint="write other characters as %2C"
        )
    return name


def check_defaults_file(path: Path) -> Path:
    """``path`` if only its owner can read it, as a file with a password must be.

    Raises InvalidSpec.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidSpec(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise InvalidSpec(f"{path} is not a file", hint="such as ~/.my.cnf")
    if mode & 0o077:
        raise InvalidSpec(
            f"{path} can be read by others (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    return path
