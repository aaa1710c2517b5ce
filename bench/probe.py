"""What labs cost and whether they answer, looked at from outside the program."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pymysql.cursors

READY = {
    "wsrep_local_state_comment": "Synced",
    "wsrep_cluster_status": "Primary",
    "wsrep_ready": "ON",
}


def qemu_of(guests: Iterable[str], proc: Path = Path("/proc")) -> list[Path]:
    """The processes, as directories of /proc, that run ``guests``."""
    wanted = {f"guest={name}".encode() for name in guests}
    found = []
    for directory in proc.iterdir():
        if directory.name.isdigit():
            with suppress(OSError):  # ended since it was listed
                words = (directory / "cmdline").read_bytes().split(b"\0")
                if any(word.split(b",", 1)[0] in wanted for word in words):
                    found.append(directory)
    return found


def cpu(processes: Iterable[int]) -> float:
    """Seconds of processor time that processes, given by their ids, have had together."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss(processes: Iterable[Path]) -> int:
    """Bytes of memory: what each has alone, and its share of what several have together."""
    return sum(_pss((process / "smaps_rollup").read_text()) for process in processes)


def pss_own(processes: Iterable[Path]) -> int:
    """Bytes of memory that each has alone, and that no file holds as well."""
    rollups = ((process / "smaps_rollup").read_text() for process in processes)
    return sum(_pss(text, "Pss_Anon:") for text in rollups)


def _pss(rollup: str, name: str = "Pss:") -> int:
    # proc(5): "Pss:  12345 kB"
    return next(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith(name))


def disk(directories: Iterable[Path]) -> int:
    """Bytes on disk of all files below ``directories``; holes do not count, nor missing ones."""
    found = 0
    for directory in directories:
        for path, _, files in os.walk(directory):
            for file in files:
                with suppress(FileNotFoundError):
                    found += (Path(path) / file).lstat().st_blocks * 512
    return found


def unready(ports: Sequence[int], user: str, password: str, proof: str) -> list[str]:
    """What is wrong with a cluster, asked through each of its ``ports``; empty: nothing.

    Beside the cluster's status, a row written through the first port must be readable
    through all: ``proof`` is the name of the database that is made for it.
    """
    found = []
    for number, port in enumerate(ports):
        with _connection(port, user, password) as cursor:
            if number == 0:
                cursor.execute(f"CREATE DATABASE `{proof}`")
                cursor.execute(f"CREATE TABLE `{proof}`.t (id INT PRIMARY KEY)")
                cursor.execute(f"INSERT INTO `{proof}`.t VALUES (42)")  # noqa: S608  our own name
            cursor.execute("SET SESSION wsrep_sync_wait = 1")
            cursor.execute(f"SELECT id FROM `{proof}`.t")  # noqa: S608  our own name
            if cursor.fetchall() != ((42,),):
                found.append(f"port {port}: the row written through the first port is not there")
            cursor.execute("SHOW GLOBAL STATUS LIKE 'wsrep%'")
            found += [f"port {port}: {line}" for line in unmet(dict(cursor.fetchall()), len(ports))]
    return found


def unmet(status: Mapping[str, str], nodes: int) -> list[str]:
    """What of a node's ``status`` is not as it is in a ready cluster of ``nodes``."""
    wanted = READY | {"wsrep_cluster_size": str(nodes)}
    return [
        f"{name} is {status.get(name, 'missing')}, not {value}"
        for name, value in wanted.items()
        if str(status.get(name)) != value
    ]


@contextmanager
def _connection(port: int, user: str, password: str) -> Iterator[pymysql.cursors.Cursor]:
    connection = pymysql.connect(
        host="127.0.0.1",
        port=port,
        user=user,
        password=password,
        autocommit=True,
        ssl_disabled=True,
        connect_timeout=10,
        read_timeout=30,
    )
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()
