"""InnoDB's redo log in a data directory: who wrote it, and whether its server stopped cleanly.

The head of ``ib_logfile0`` (storage/innobase/log/log0log.cc and log0recv.cc of MariaDB), numbers
big-endian::

    0   format (4), highest bit: encrypted
    8   the LSN at which the records of this file begin (8)
    16  who created it (32): ``MariaDB 10.11.6``

Since 10.8 (format ``Phys``) there is one file. Its checkpoints are at 4096 and 8192: LSN (8), LSN
of the end (8), and CRC-32C at 60; records begin at 12288, and go round. A server that stopped
cleanly has left none behind the last checkpoint, but perhaps FILE_CHECKPOINT. Before, checkpoints
are at 512 and 1536: number (8), LSN (8), offset in all files (8). The block of 512 bytes there
has, at 4, how much is in it: up to the checkpoint, if the server stopped cleanly.

MySQL from 8.0.30 on (format 6, log0pre_8_0_30.cc and log0types.h) has ``#innodb_redo/#ib_redo7``
and so on, each with records from its LSN, at 2048; a checkpoint has its LSN at 8 only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping

from lab.errors import InvalidSpec
from lab.units import MIB
from lab.values import dataclass

HEAD = 12288
"""Bytes of ``ib_logfile0`` that are wanted."""
FIRST = "ib_logfile0"
FILES = re.compile(r"ib_logfile\d{1,3}")

_PHYS = 0x50687973
_OLDER = frozenset([1, 2, 3, 4, 5, 103, 104, 0x50485953])
"""Of MariaDB 10.2 (and MySQL 5.7), MySQL 8.0 before 8.0.30, MariaDB 10.3, 10.4 and 10.5."""
_MYSQL = 6
_ENCRYPTED = 1 << 31
_START = 12288
_WINDOW = 2 * MIB
"""Bytes behind the checkpoint in which a record ends."""
_BLOCK = 512
_CHECKPOINT = 0xFA
_STOP = (
    "stop its server (SHUTDOWN, not kill), and copy the directory again; mariadb-backup and"
    " xtrabackup copy that of a running server"
)


@dataclass(frozen=True)
class Redo:
    """The redo log: what is to be looked at in a file, so that ``check`` says whether it is empty.

    ``bit``: that ends records there, in this round; None: of the older formats.
    """

    creator: str
    file: str
    offset: int
    size: int
    bit: int | None = None
    clean: bool = True
    """Whether the head alone does not say that it has records."""
    used: int = 0
    """Of a block of the older formats: up to the checkpoint."""

    def is_empty(self, found: bytes) -> bool:
        """Whether there is no record behind the checkpoint; ``found``: the bytes at ``offset``."""
        if self.bit is None:
            return len(found) == _BLOCK and int.from_bytes(found[4:6], "big") == self.used
        if not self.clean:
            return False
        end = _record(found, self.bit)
        if end and found[0] == _CHECKPOINT:
            found = found[end:]
            end = _record(found, self.bit)
        return end == 0


def redo(head: bytes, sizes: Mapping[str, int], name: str) -> Redo:
    """What the head of ``ib_logfile0`` says; raises InvalidSpec for one that cannot be read.

    ``sizes``: of all files of the log; ``name``: of the source.
    """
    if len(head) < HEAD:
        raise InvalidSpec(f"{name}: {FIRST} is truncated: it has {len(head)} bytes", hint=_STOP)
    form, first = struct.unpack_from(">I4xQ", head)
    if form & _ENCRYPTED:
        raise InvalidSpec(
            f"{name} is of a server that encrypts its redo log, and the directory has no keys",
            hint="create the dataset from a dump",
        )
    if form == _PHYS:
        return _phys(head, first, sizes[FIRST], creator(head))
    if form in _OLDER:
        return _older(head, sizes, creator(head), name)
    raise _unknown(name, FIRST, form, creator(head))


def creator(head: bytes) -> str:
    """What a file of the log calls its server, by its head."""
    return head[16:48].rstrip(b"\0 ").decode(errors="replace")


def redo_of_mysql(heads: Mapping[str, bytes], sizes: Mapping[str, int], name: str) -> Redo:
    """What the heads of the files of MySQL's redo log say, from 8.0.30 on; raises InvalidSpec.

    ``heads``, ``sizes``: by the paths of the files; ``name``: of the source.
    """
    last, starts = 0, {}
    for path, head in heads.items():
        if len(head) < 2048:
            raise InvalidSpec(f"{name}: {path} is truncated: it has {len(head)} bytes", hint=_STOP)
        form, first = struct.unpack_from(">I4xQ", head)
        if form != _MYSQL:
            raise _unknown(name, path, form, creator(head))
        starts[path] = first
        last = max(last, *(struct.unpack_from(">8xQ", head, at)[0] for at in (512, 1536)))
    for path, first in starts.items():
        if last and first <= last < first + sizes[path] - 2048:
            at = 2048 + last - first
            start = at - at % _BLOCK
            return Redo(creator(heads[path]), path, start, _BLOCK, used=last % _BLOCK)
    raise InvalidSpec(f"{name}: the redo log has no checkpoint, or lacks a file", hint=_STOP)


def _unknown(name: str, path: str, form: int, by: str) -> InvalidSpec:
    return InvalidSpec(
        f"{name}: {path} has the format {form:#x}, of {by or 'an unknown server'}, which is not"
        " known",
        hint="create the dataset from a dump",
    )


def unclean(name: str, by: str) -> InvalidSpec:
    """The error about a server that did not stop, or not cleanly."""
    return InvalidSpec(
        f"{name} is of a server ({by}) that runs or was not stopped cleanly: its redo log has"
        " changes that are not in its tables",
        hint=_STOP,
    )


def _phys(head: bytes, first: int, size: int, by: str) -> Redo:
    points = [struct.unpack_from(">QQ", head, at) for at in (4096, 8192) if _is_checked(head, at)]
    lsn, end = max(points, default=(0, 1))
    capacity = size - _START
    if lsn < first or capacity <= 0:
        return Redo(by, FIRST, 0, 1, 0, clean=False)
    rounds, at = divmod(end - first, capacity)
    bit = 1 - (rounds & 1)
    return Redo(by, FIRST, _START + at, min(_WINDOW, capacity - at), bit, clean=lsn == end)


def _is_checked(head: bytes, at: int) -> bool:
    return _crc(head[at : at + 60]) == int.from_bytes(head[at + 60 : at + 64], "big")


def _older(head: bytes, sizes: Mapping[str, int], by: str, name: str) -> Redo:
    points = [struct.unpack_from(">QQQ", head, at) for at in (512, 1536)]
    _, lsn, offset = max(points)
    number, at = divmod(offset, sizes[FIRST])
    file = f"ib_logfile{number}"
    if file not in sizes:
        raise InvalidSpec(f"{name}: {file} is missing", hint=_STOP)
    start = at - at % _BLOCK
    return Redo(by, file, start, _BLOCK, used=lsn % _BLOCK)


def _record(data: bytes, bit: int) -> int:
    """Behind the mini-transaction at the start of ``data``; 0: there is none."""
    at, end = 0, len(data)
    while at < end and data[at] > 1:
        length = data[at] & 15
        at += 1
        if not length:
            if at + 5 > end:
                return 0
            length = _length(data, at) + 15
        at += length
    if not 0 < at <= end - 5 or data[at] != bit:
        return 0
    return at + 5 if _crc(data[:at]) == int.from_bytes(data[at + 1 : at + 5], "big") else 0


def _length(data: bytes, at: int) -> int:
    """A number of one to five bytes, whose first one says how many."""
    least, mask = 0, 0x80
    for size in range(1, 5):
        if not data[at] & mask:
            found = int.from_bytes(data[at : at + size], "big")
            return least + (found & ((1 << 7 * size) - 1))
        least, mask = least + (1 << 7 * size), mask >> 1
    return least + int.from_bytes(data[at + 1 : at + 5], "big")


def _table() -> Iterator[int]:
    for number in range(256):
        found = number
        for _ in range(8):
            found = found >> 1 ^ (0x82F63B78 if found & 1 else 0)
        yield found


_TABLE = tuple(_table())


def _crc(data: Iterable[int]) -> int:
    """CRC-32C."""
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 255]
    return found ^ 0xFFFFFFFF
