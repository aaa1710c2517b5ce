"""Disks, made without mounting anything.

Sizes and offsets are in bytes. The one a node boots from has a GPT: 1 MiB free, 64 MiB of EFI
system partition, an ext4 root up to 1 MiB before the end (the backup GPT lies there). Those
for data and logs are one ext4 file system each, without partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lab.imagebuild.isolate import isolated
from lab.run import run
from lab.units import MIB

SECTOR = 512
ESP_START = MIB
ESP_SIZE = 64 * MIB
ROOT_START = ESP_START + ESP_SIZE
LOG_SIZE = 2048 * MIB
"""Of a disk for logs: a few times what engines write in turns (redo log, write sets)."""

_BLOCK = 4096
_GROWS_TO = 4 << 40
"""Bytes that a file system can grow to: mke2fs reserves descriptors for that, by default for 1024
times its size. Those of 8 GiB are too many for one transaction of its journal: Linux 6.1.192 hangs
when it grows such a file system while it is mounted."""
_EXT4 = f"nodiscard,lazy_itable_init=1,resize={_GROWS_TO // _BLOCK}"
_COPY = MIB

ESP_TYPE = "ef00"
ROOT_TYPE = "8304"
"""sgdisk's codes (see ``sgdisk --list-types``): EFI system, Linux x86-64 root."""


def root_size(disk: int) -> int:
    """The size of the root partition of a disk of ``disk`` bytes."""
    return disk - ROOT_START - MIB


def partition(disk: Path, size: int, log: IO[bytes]) -> None:
    """Make the sparse file ``disk`` of ``size`` bytes with an empty GPT layout."""
    with disk.open("xb") as file:
        file.truncate(size)
    esp = f"1:{ESP_START // SECTOR}:{(ROOT_START // SECTOR) - 1}"
    root_end = (ROOT_START + root_size(size)) // SECTOR - 1
    run(
        [
            "sgdisk", f"--new={esp}", f"--typecode=1:{ESP_TYPE}", "--change-name=1:ESP",
            f"--new=2:{ROOT_START // SECTOR}:{root_end}", f"--typecode=2:{ROOT_TYPE}",
            "--change-name=2:root", disk,
        ],
        timeout=60, log=log,
    )  # fmt: skip


def fill_root(disk: Path, size: int, tree: Path, log: IO[bytes]) -> None:
    """Write the files below ``tree`` as ext4 into the root partition of ``disk``."""
    options = f"offset={ROOT_START},root_owner=0:0,{_EXT4}"
    run(
        [
            *isolated(network=False),
            "mke2fs", "-q", "-t", "ext4", "-d", tree, "-L", "lab-root", "-m", "0",
            "-b", str(_BLOCK), "-J", "size=16", "-O", "^metadata_csum_seed,^orphan_file",
            "-E", options, disk, str(root_size(size) // _BLOCK),
        ],
        timeout=300, log=log,
    )  # fmt: skip


def fill_plain(
    disk: Path, size: int, tree: Path, label: str, owner: tuple[int, int], log: IO[bytes]
) -> None:
    """Make ``disk`` of ``size`` bytes: one ext4 with the files below ``tree``.

    ``owner``: the uid and gid of its root directory.
    """
    with disk.open("xb") as file:
        file.truncate(size)
    uid, gid = owner
    options = f"root_owner={uid}:{gid},{_EXT4}"
    run(
        [
            *isolated(network=False),
            "mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, "-L", label, "-m", "0",
            "-b", str(_BLOCK), "-J", "size=16", "-O", "^metadata_csum_seed,^orphan_file",
            "-E", options, disk, str(size // _BLOCK),
        ],
        timeout=300, log=log,
    )  # fmt: skip
    # An engine takes every directory among its data for a database.
    run(["debugfs", "-w", "-R", "rmdir lost+found", disk], timeout=60, log=log)


def fill_esp(disk: Path, esp: Path, contents: dict[str, Path], log: IO[bytes]) -> None:
    """Make a FAT32 file system in the scratch file ``esp`` and copy it to its place.

    ``contents``: paths on it (with slashes) and the files that go there.
    """
    with esp.open("xb") as file:
        file.truncate(ESP_SIZE)
    run(["mkfs.vfat", "-F", "32", "-n", "LAB-ESP", esp], timeout=60, log=log)
    parents = {
        "/".join(path.split("/")[:depth])
        for path in contents
        for depth in range(1, path.count("/") + 1)
    }
    run(["mmd", "-i", esp, *(f"::{path}" for path in sorted(parents))], timeout=60, log=log)
    for path, source in contents.items():
        run(["mcopy", "-i", esp, source, f"::{path}"], timeout=60, log=log)
    copy_into(esp, disk, ESP_START)


def copy_into(source: Path, target: Path, offset: int) -> None:
    """Copy ``source`` over ``target`` from ``offset`` on, leaving holes where it is zero."""
    zeros = bytes(_COPY)
    with source.open("rb") as reader, target.open("r+b") as writer:
        for position, chunk in _chunks(reader):
            if chunk != zeros[: len(chunk)]:
                writer.seek(offset + position)
                writer.write(chunk)


def verify_plain(disk: Path, log: IO[bytes]) -> None:
    """Raise CommandFailed unless the one file system on ``disk`` is sound."""
    run(["e2fsck", "-fn", disk], timeout=120, log=log)


def verify(disk: Path, log: IO[bytes]) -> None:
    """Raise CommandFailed unless partition table and file systems are sound."""
    run(["sgdisk", "--verify", disk], timeout=60, log=log)
    run(["e2fsck", "-fn", f"{disk}?offset={ROOT_START}"], timeout=120, log=log)


def _chunks(reader: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    position = 0
    while chunk := reader.read(_COPY):
        yield position, chunk
        position += len(chunk)
