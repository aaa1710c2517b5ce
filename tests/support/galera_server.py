"""Nodes of a Galera cluster, and servers beside it, as processes on loopback addresses.

They start as guests do: with the option files of the blueprint, from copies of one data directory
that a node of a cluster left behind cleanly, as an image has it.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lab.blueprints import Engine
from lab.guest.seed import SeedFile
from lab.run import run
from tests.support.mariadb_server import (
    SECONDS,
    NoServer,
    Server,
    _ready,
    daemon,
    share_of,
    system_tables,
    unpacked,
)

_HERE = re.compile("/var/lib/mysql|/usr/lib/galera/libgalera_smm.so|O_DIRECT|0\\.0\\.0\\.0")


def provider() -> Path:
    """Galera's library: the host's, or out of Debian's package; raises NoServer."""
    path = "usr/lib/galera/libgalera_smm.so"
    installed = Path("/") / path
    found = installed if installed.exists() else unpacked("galera-4") / path
    if not found.exists():
        raise NoServer("the package galera-4 has no libgalera_smm.so")
    return found


def image(top: Path) -> Path:
    """A data directory with a locked account ``lab``, as in images/mariadb; raises NoServer."""
    program, library = daemon(), provider()
    share, data = share_of(program), top / "image"
    data.mkdir()
    common = [
        str(program), "--no-defaults", f"--user={pwd.getpwuid(os.geteuid()).pw_name}",
        f"--datadir={data}", f"--lc-messages-dir={share}", "--innodb-log-file-size=48M",
        "--skip-name-resolve", "--innodb-autoinc-lock-mode=2", "--binlog-format=ROW",
        f"--tmpdir={data}",  # see mariadb_server
    ]  # fmt: skip
    run([*common, "--bootstrap"], timeout=SECONDS, stdin=system_tables(share))
    argv = [
        *common, "--skip-networking", f"--socket={top}/i", f"--pid-file={top}/i.pid",
        "--wsrep-on=ON", f"--wsrep-provider={library}", "--wsrep-new-cluster",
        "--wsrep-provider-options=gcache.size=1M; gmcast.listen_addr=tcp://127.0.24.99:4567",
        "--wsrep-cluster-name=lab", "--wsrep-cluster-address=gcomm://",
        "--wsrep-node-address=127.0.24.99",
    ]  # fmt: skip
    with (
        (top / "i.log").open("wb") as log,
        subprocess.Popen(argv, stdout=log, stderr=log) as process,
    ):
        try:
            _ready(process, top / "i", top / "i.log")
            Server(top / "i", top, "").ask(
                "CREATE USER lab@'%' IDENTIFIED VIA mysql_native_password USING 'invalid'"
                " ACCOUNT LOCK",
                "GRANT ALL PRIVILEGES ON *.* TO lab@'%' WITH GRANT OPTION",
                "SHUTDOWN",
            )
            process.wait(SECONDS)
        finally:
            process.kill()
            process.wait(SECONDS)
    for name in ("galera.cache", "gvwstate.dat"):
        (data / name).unlink(missing_ok=True)
    return data


@contextmanager
def node(
    top: Path,
    name: str,
    address: str,
    engine: Engine,
    files: Mapping[str, SeedFile],
    *,
    kept: bool = False,
) -> Iterator[Server]:
    """The server of a node that boots with ``files``, with a copy of ``image`` of ``top``.

    ``kept``: with the data that it had.
    """
    program, data = daemon(), top / name
    if not kept:
        shutil.copytree(top / "image", data)
        for path, file in files.items():
            if path.startswith("/var/lib/mysql/"):
                (data / Path(path).name).write_bytes(file.content)
    here = {
        "/var/lib/mysql": str(data),
        "/usr/lib/galera/libgalera_smm.so": str(provider()),
        "O_DIRECT": "fsync",
        "0.0.0.0": address,  # noqa: S104  what the image's option file has
    }
    text = files[engine.config_path].content.decode()
    text = "".join(
        f"{_HERE.sub(lambda found: here[found[0]], line)}\n"
        for line in text.splitlines()
        if not line.startswith("ssl_")
    )
    config, socket, log = top / f"{name}.cnf", top / f"{name}.s", top / f"{name}.log"
    config.write_text(text)
    argv = [
        str(program), f"--defaults-file={config}", f"--socket={socket}", "--port=3306",
        f"--user={pwd.getpwuid(os.geteuid()).pw_name}", f"--pid-file={top}/{name}.pid",
        f"--lc-messages-dir={share_of(program)}", "--innodb-buffer-pool-size=32M",
        f"--tmpdir={data}",
    ]  # fmt: skip
    with (
        log.open("wb") as out,
        subprocess.Popen(argv, stdout=out, stderr=out) as process,
    ):
        try:
            yield Server(socket, top, _ready(process, socket, log))
        finally:
            process.kill()
            process.wait(SECONDS)
