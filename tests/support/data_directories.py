"""Data directories for tests: the heads of made-up files, and archives of tar with them."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

from lab.datasets import redo

PAGE = 16384


def frm(version: int) -> bytes:
    head = bytearray(64)
    head[:2] = b"\xfe\x01"
    struct.pack_into("<I", head, 51, version)
    return bytes(head)


def log(creator: str = "MariaDB 10.11.6", form: int = 0x50687973, *, end: int = 0) -> bytes:
    """A redo log; ``end``: bytes behind its checkpoint."""
    found = bytearray(20000)
    struct.pack_into(">I4xQ32s", found, 0, form, 12288, creator.encode())
    struct.pack_into(">QQ", found, 4096, 15000, 15000 + end)
    struct.pack_into(">I", found, 4156, redo._crc(found[4096:4156]))
    return bytes(found)


def old_log(form: int, used: int = 100, file: int = 0) -> bytes:
    """A redo log of before 10.8, whose checkpoint is in a file at 3172."""
    found = bytearray(12288)
    struct.pack_into(">I4xQ32s", found, 0, form, 512, b"MariaDB 10.4.2")
    struct.pack_into(">QQQ", found, 512, 7, 4196, 12288 * file + 3172)
    struct.pack_into(">QQQ", found, 1536, 6, 1, 0)
    struct.pack_into(">H", found, 3072 + 4, used)
    return bytes(found)


def tablespace(pages: int = 64, flags: int = 21, size: int = 1 << 20) -> bytes:
    head = bytearray(PAGE)
    struct.pack_into(">I", head, 46, pages)
    struct.pack_into(">I", head, 54, flags)
    return bytes(head).ljust(size, b"\0")


def directory(more: Mapping[str, bytes | None] | None = None) -> dict[str, bytes]:
    found: dict[str, bytes | None] = {
        "ibdata1": tablespace(), "ib_logfile0": log(), "mysql/user.frm": frm(101106),
        "shop/t.ibd": bytes(PAGE), **(more or {}),
    }  # fmt: skip
    return {name: data for name, data in found.items() if data is not None}


def packed(path: Path, there: Mapping[str, bytes], top: str = "./") -> Path:
    with tarfile.open(path, "w") as out:
        for name, data in there.items():
            member = tarfile.TarInfo(f"{top}{name}")
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return path


REDO_OF_MYSQL = "#innodb_redo/#ib_redo"


def redo_of_mysql(
    lsn: int = 9000, used: int = 9000 % 512, form: int = 6, by: bytes = b"MySQL 8.4.2"
) -> bytes:
    """A file of the redo log from 8192 on, with a checkpoint."""
    found = bytearray(20480)
    struct.pack_into(">I4xQ32s", found, 0, form, 8192, by)
    struct.pack_into(">8xQ", found, 512, lsn)
    at = 2048 + lsn - 8192
    if 0 <= at < len(found):
        struct.pack_into(">H", found, at - at % 512 + 4, used)
    return bytes(found)


def dictionary(version: int = 80402, more: bytes = b"LCTN=1;") -> bytes:
    return bytes(4096) + b"\x07MYSQLD_VERSION=%d;" % version + more + bytes(4096)


def directory_of_mysql(more: Mapping[str, bytes | None] | None = None) -> dict[str, bytes]:
    found: dict[str, bytes | None] = {
        "ibdata1": tablespace(flags=0), "mysql.ibd": dictionary(),
        f"{REDO_OF_MYSQL}5": redo_of_mysql(),
        "undo_001": bytes(100), "shop/t.ibd": bytes(16384), **(more or {}),
    }  # fmt: skip
    return {name: data for name, data in found.items() if data is not None}
