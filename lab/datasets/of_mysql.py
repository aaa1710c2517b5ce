"""Data directories of MySQL's servers, as archives of tar that a guest unpacks.

The server itself upgrades its system tables when it starts (from 8.0.16 on). What it was is in the
properties of its data dictionary, ``mysql.ibd``, and in the head of its redo log.

XtraBackup (its xtrabackup_prepare_func and xtrabackup_close_temp_log, as of 8.4) ends --prepare
with a clean shutdown, writes ``full-prepared``, and removes the redo log, of which it leaves an
empty directory at most: the server makes a new one, if the directory for it is there.
"""

from __future__ import annotations

import re
import struct
import tarfile
from collections.abc import Iterable, Iterator

from lab.config.enginefile import numbers
from lab.datasets import backup as backups
from lab.datasets import datadir
from lab.datasets import redo as redos
from lab.datasets.backup import CHECKPOINTS, INFO, Backup
from lab.datasets.datadir import DICTIONARY, REDO, Files, Stopped
from lab.datasets.redo import Redo
from lab.datasets.source import BackupDirectory, BackupStream, DataDirectory
from lab.datasets.survey import short
from lab.errors import InvalidSpec
from lab.values import dataclass

_LONG = ((5, 7), (8, 0), (8, 4), (9, 7))
"""Series with long support: a server upgrades what is of the one before its own, or since."""
_KEPT = re.compile(r"ibdata\d{1,3}|ib_logfile\d{1,3}|undo_\d{3}|.+\.ib[du]|mysql_upgrade_history")
_REDO = re.compile(r"#innodb_redo/#ib_redo\d{1,20}")
_ENCRYPTED = 1 << 13
"""Of the flags of a tablespace."""
_BLOCK = 512
_PREPARE = (
    "xtrabackup --prepare --target-dir=DIR (of a stream, after xbstream -x -C DIR), then create the"
    " dataset from DIR"
)
_ADD = (
    "add it to the full one: xtrabackup --prepare --apply-log-only --target-dir=FULL, then"
    " xtrabackup --prepare --target-dir=FULL --incremental-dir=DIR, and create the dataset from"
    " FULL"
)
_DUMP = "create the dataset from a dump: mysqldump --databases shop crm"


@dataclass(frozen=True)
class Opened:
    """A data directory that a server can have, and the archive that is made of it."""

    found: Backup
    data: Iterator[bytes]


def opened(source: BackupDirectory | BackupStream | Stopped, version: str) -> Opened:
    """A data directory for MySQL's server of ``version``; raises InvalidSpec, also while read.

    XtraBackup's is one as well once it is prepared.
    """
    if isinstance(source, BackupStream):
        raise InvalidSpec(
            f"{source} is the stream of a backup, which is not prepared", hint=_PREPARE
        )
    if isinstance(source, BackupDirectory):
        source = DataDirectory(source.path)
        _check_unpacked(source)
    files = datadir.looked_at(source)
    name = files.name
    if files.is_backup:
        _check_prepared(files)
    theirs = datadir.mysql_version(files)
    if not theirs:
        raise InvalidSpec(
            f"{name} is a data directory of {datadir.creator_of(files) or 'an unknown server'}, not"
            " of MySQL",
            hint="create the dataset with --engine mariadb, or from a dump",
        )
    _check_version(name, theirs, version)
    redo = _redo(files)
    if redo is not None and not redo.clean:
        raise redos.unclean(name, redo.creator)
    cases = files.facts("LCTN")
    if len(cases) != 1:
        raise InvalidSpec(
            f"{name}: its data dictionary ({DICTIONARY}) is encrypted or damaged",
            hint=_DUMP,
        )
    options = (*datadir.system_tablespace(files), f"lower_case_table_names={cases.pop()}")
    kept = {path: size for path, size in files.sizes.items() if _is_kept(path)}
    backup = Backup(theirs, prepared=True, options=options, size=sum(kept.values()))
    return Opened(backup, datadir.unchanged(source, _archive(source, files, redo)))


def _check_unpacked(source: DataDirectory) -> None:
    """Raise InvalidSpec for a backup whose files XtraBackup has compressed or encrypted."""
    if path := backups.packed_file(backups.listed(source.path)):
        raise InvalidSpec(
            f"{source} is compressed or encrypted: it has {path}",
            hint="xtrabackup --decompress (or --decrypt=AES256) --remove-original"
            f" --target-dir=DIR, then {_PREPARE}",
        )


def _check_prepared(files: Files) -> None:
    """Raise InvalidSpec unless a backup is a full one, and prepared."""
    facts = b"\n".join(files.heads.get(one, b"") for one in (*CHECKPOINTS, *INFO))
    lines = dict(re.findall(rb"^(\w+) *= *([\w-]+)", facts, re.MULTILINE))
    if lines.get(b"backup_type") != b"full-prepared":
        kind = lines.get(b"backup_type", b"unknown").decode()
        raise InvalidSpec(
            f"{files.name} is a backup that is not prepared: its type is {kind}",
            hint=_ADD if kind == "incremental" else _PREPARE,
        )
    if lines.get(b"partial") == b"Y":
        raise InvalidSpec(
            f"{files.name} is a partial backup: it lacks databases that its server needs",
            hint=_DUMP,
        )


def _check_version(name: str, theirs: str, ours: str) -> None:
    before, now = numbers(theirs)[:2], numbers(ours)[:2]
    if before > now or (before == now and numbers(theirs) > numbers(ours)):
        raise InvalidSpec(
            f"{name} is of MySQL {short(theirs)}, which is newer than the server of the image,"
            f" {short(ours)}",
            hint="create the dataset from a dump, or build an image with that version",
        )
    if between := [one for one in _LONG if before < one < now]:
        way = ", then ".join(".".join(map(str, one)) for one in between)
        raise InvalidSpec(
            f"{name} is of MySQL {short(theirs)}, and {short(ours)} upgrades directories of the"
            f" series before it only",
            hint=f"upgrade its server to {way} first; or {_DUMP}",
        )


def _redo(files: Files) -> Redo | None:
    """The redo log; None: of a backup that is prepared."""
    if heads := files.redo_of_mysql():
        return redos.redo_of_mysql(heads, files.sizes, files.name)
    if redos.FIRST in files.heads:
        logs = {one: size for one, size in files.sizes.items() if redos.FILES.fullmatch(one)}
        return redos.redo(files.heads[redos.FIRST], logs, files.name)
    if files.is_backup:
        return None
    raise InvalidSpec(
        f"{files.name} has no redo log ({REDO} or {redos.FIRST}): it was in another directory",
        hint="copy innodb_log_group_home_dir of its server into it as well",
    )


def _is_kept(path: str) -> bool:
    first, is_nested, _ = path.partition("/")
    if not is_nested:
        return bool(_KEPT.fullmatch(first))
    return bool(_REDO.fullmatch(path)) or not datadir.LEFT_OUT.match(first)


def _archive(source: Stopped, files: Files, redo: Redo | None) -> Iterator[bytes]:
    if redo is None:
        place = tarfile.TarInfo(REDO.rstrip("/"))
        place.type, place.mode = tarfile.DIRTYPE, 0o750
        yield place.tobuf(tarfile.PAX_FORMAT)
    for path, size, data in datadir.members(source):
        kept = datadir.below(path, files.top)
        if kept is None or not _is_kept(kept):
            continue
        content = data()
        if redo is not None and kept == redo.file:
            content = datadir.emptied(content, redo, files.name)
        if kept.endswith((".ibd", ".ibu")) or kept.startswith(("ibdata", "undo_")):
            content = _readable(content, kept, files.name)
        member = tarfile.TarInfo(kept)
        member.size, member.mode = size, 0o640
        yield member.tobuf(tarfile.PAX_FORMAT)
        yield from content
        yield bytes(-size % _BLOCK)
    yield bytes(2 * _BLOCK)


def _readable(data: Iterable[bytes], path: str, name: str) -> Iterator[bytes]:
    """A tablespace, which is checked not to be encrypted."""
    is_first = True
    for chunk in data:
        if is_first and len(chunk) >= 58 and struct.unpack_from(">I", chunk, 54)[0] & _ENCRYPTED:
            raise InvalidSpec(
                f"{name}: {path} is encrypted, and the directory has no keys",
                hint=f"decrypt it (ENCRYPTION='N'), or {_DUMP}",
            )
        is_first = False
        yield chunk
