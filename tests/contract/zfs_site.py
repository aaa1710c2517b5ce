"""Pools for tests: on blank disks if some are named, else on files.

``LAB_TEST_ZFS_DISKS`` names blank disks, colon-separated; whatever is on them is lost.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from lab.errors import CommandFailed, HostUnfit
from lab.run import run
from lab.storage import Volume
from lab.storage.zfs.driver import ZfsStorage
from tests.contract.storage_contract import Place
from tests.contract.storage_place import MIB

GIB = 1 << 30


def why_not() -> str:
    """Why ZFS cannot be tested here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root to make a pool"
    try:
        zpool("list", "-H")
    except HostUnfit:
        return "needs zfsutils-linux"
    except CommandFailed as error:
        return f"ZFS does not work: {error.stderr.strip()}"
    return ""


def zfs(*args: str | Path, stdin: bytes = b"") -> str:
    return run(["zfs", *args], timeout=120, stdin=stdin).stdout


def zpool(*args: str | Path) -> str:
    return run(["zpool", *args], timeout=120).stdout


@contextlib.contextmanager
def pool(folder: Path, size: int = 2 * GIB, *, files_only: bool = False) -> Iterator[str]:
    """A fresh pool of about ``size`` bytes, gone afterwards."""
    name = f"labtest{secrets.token_hex(4)}"
    disks = os.environ.get("LAB_TEST_ZFS_DISKS", "").split(":")[0]
    device: str | Path = disks
    if files_only or not disks:
        device = folder / f"{name}.img"
        with Path(device).open("wb") as file:
            file.truncate(size)
    zpool("create", "-f", "-O", "mountpoint=none", "-O", "canmount=off", name, device)
    try:
        yield name
    finally:
        destroy_pool(name)


def destroy_pool(name: str) -> None:
    """Destroy the pool if it is imported, as soon as udev no longer has its volumes open."""
    if name in zpool("list", "-H", "-o", "name").split():
        patiently(lambda: zpool("destroy", "-f", name))


@contextlib.contextmanager
def parent(pool_name: str, *options: str) -> Iterator[str]:
    """A fresh parent dataset in a pool, gone afterwards with all that is in it."""
    name = f"{pool_name}/t{secrets.token_hex(4)}"
    zfs("create", *options, name)
    try:
        yield name
    finally:
        remove(name)


def fill(pool_name: str, *, leave: int) -> None:
    """Take all room of a pool but ``leave`` bytes, at once: by a reservation."""
    name = f"{pool_name}/filler"
    zfs("create", name)

    def reserve() -> None:
        zpool("sync", pool_name)
        free = int(zfs("get", "-Hp", "-o", "value", "available", pool_name))
        zfs("set", f"reservation={free - leave}", name)

    patiently(reserve)


def remove(name: str) -> None:
    for held in zfs("list", "-H", "-r", "-t", "snapshot", "-o", "name,userrefs", name).split("\n"):
        snapshot, _, references = held.partition("\t")
        if references.strip() not in ("", "0"):
            for line in zfs("holds", "-H", snapshot).splitlines():
                zfs("release", line.split("\t")[1], snapshot)
    patiently(lambda: zfs("destroy", "-R", name))


def patiently(action: Callable[[], object]) -> None:
    """Do it as soon as nobody is in the way."""
    for left in reversed(range(100)):
        try:
            action()
        except CommandFailed:
            if not left:
                raise
            time.sleep(0.1)
        else:
            return


def open_zfs(root: str, works: Path, home: str) -> ZfsStorage:
    return ZfsStorage(root, home, works / home)


def place(root: str, works: Path) -> Place:
    return Place(partial(open_zfs, root, works), put, get, pace=pace())


@cache
def pace() -> float:
    """Seconds that a handful of calls take here: in an emulated machine, many."""
    start = time.monotonic()
    for _ in range(5):
        zfs("list")
    return 5 * (time.monotonic() - start)


def put(volume: Volume, offset: int, data: bytes) -> None:
    """Write as a guest does; wait until ZFS counts it if it is enough to be looked for."""
    handle = os.open(volume.path, os.O_RDWR)
    try:
        assert os.pwrite(handle, data, offset) == len(data)
        os.fsync(handle)
    finally:
        os.close(handle)
    if len(data) >= MIB:
        zpool("sync")


def get(volume: Volume, offset: int, length: int) -> bytes:
    handle = os.open(volume.path, os.O_RDONLY)
    try:
        return os.pread(handle, length, offset)
    finally:
        os.close(handle)


def below(root: str) -> list[str]:
    """All that is there, folders and snapshots too."""
    listed = zfs("list", "-H", "-r", "-t", "all", "-o", "name", root).splitlines()
    return [name.removeprefix(root) for name in listed[1:]]
