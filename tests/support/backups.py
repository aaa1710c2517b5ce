"""Physical backups for tests: streams of made-up files, and what a real mariadb-backup writes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.run import run
from tests.support.mariadb_server import Server, client

CHUNK = 1000
SECONDS = 120.0


def chunk(path: str, data: bytes, offset: int = 0, kind: bytes = b"P", flags: int = 0) -> bytes:
    """A chunk of a stream; the end of a file if ``kind`` is E."""
    name = path.encode()
    head = struct.pack("<8sBcI", b"XBSTCK01", flags, kind, len(name)) + name
    if kind == b"P":
        head += struct.pack("<QQI", len(data), offset, zlib.crc32(data))
    return head + data


def stream(files: Mapping[str, bytes]) -> bytes:
    """A stream of files, as mbstream writes it, in small chunks."""
    found = b""
    for path, data in files.items():
        for at in range(0, len(data), CHUNK):
            found += chunk(path, data[at : at + CHUNK], at)
        found += chunk(path, b"", kind=b"E")
    return found


def files(
    tablespace: bytes = b"",
    *,
    server: str = "11.8.6-MariaDB-log",
    prepared: bool = False,
    more: Mapping[str, bytes] | None = None,
    **info: str,
) -> dict[str, bytes]:
    """The files of a backup; a fake server has the SQL in ``tablespace``.

    ``info``: further lines of the file of that name.
    """
    facts = {"server_version": server, "partial": "N", "incremental": "N", **info}
    kind = "log-applied" if prepared else "full-backuped"
    return {
        "backup-my.cnf": b"[mysqld]\ninnodb_data_file_path=ibdata1:12M:autoextend\n",
        "ibdata1": tablespace,
        "ib_logfile0": b"\0" * 2048,
        "mysql/db.opt": b"default-character-set=utf8mb4\n",
        "mariadb_backup_checkpoints": f"backup_type = {kind}\nfrom_lsn = 0\n".encode(),
        "mariadb_backup_info": "".join(f"{k} = {v}\n" for k, v in facts.items()).encode(),
        **(more or {}),
    }


def write(directory: Path, contents: Mapping[str, bytes]) -> Path:
    """``directory`` with these files."""
    for name, data in contents.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


@dataclass(frozen=True)
class Programs:
    """mariadb-backup and mbstream, and the environment they run in."""

    backup: Path
    mbstream: Path
    env: dict[str, str]

    def of(self, server: Server, to: Path, *options: str) -> Path:
        """A backup of ``server``: a directory, or a file if its options have ``--stream``."""
        argv = [
            str(self.backup), "--no-defaults", "--backup", "--user=root",
            f"--socket={server.socket}", f"--datadir={server.directory}/data", *options,
        ]  # fmt: skip
        if not any(option.startswith("--stream") for option in options):
            run([*argv, f"--target-dir={to}"], timeout=SECONDS, env=self.env)
            return to
        script = f'exec "$@" --target-dir="{to}.tmp" >"{to}"'
        run(["sh", "-c", script, "sh", *argv], timeout=SECONDS, env=self.env)
        return to

    def prepare(self, directory: Path, *options: str) -> None:
        """Prepare a backup."""
        argv = [str(self.backup), "--prepare", f"--target-dir={directory}", *options]
        run(argv, timeout=SECONDS, env=self.env)


def programs() -> Programs:
    """The host's, or those of Debian's package; raises NoServer."""
    found, env = client("mariadb-backup", "mariadb-backup")
    return Programs(found, found.with_name("mbstream"), env)
