"""QEMU of each Debian release for tests: the host's, or unpacked once below a cache.

One that is unpacked runs with its release's loader and libraries, so it needs nothing of the host.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.run import run
from lab.wait import Deadline, until
from tests.support.mariadb_server import NoServer, cache

PROGRAM = "qemu-system-x86_64"
INSTALLED = "installed"
"""Instead of a release: what this host has."""
_LIBRARIES = "lib/x86_64-linux-gnu"
_UNPACKED_AGAIN = 30 * 86400.0
"""Seconds until a release is looked at again: it gets updates."""
_SECONDS = 30.0


def program(release: str) -> Path:
    """QEMU of a Debian release, as one program that takes QEMU's arguments; raises NoServer."""
    if release == INSTALLED:
        if found := shutil.which(PROGRAM):
            return Path(found)
        raise NoServer(f"{PROGRAM} is not installed")
    place = cache() / f"qemu-{release}"
    place.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists() or time.time() - place.stat().st_mtime > _UNPACKED_AGAIN:
            _unpack(release, place)
    return place / PROGRAM


def _unpack(release: str, place: Path) -> None:
    new = place.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    root = new / "root"
    root.mkdir(parents=True)
    tar = new / "root.tar"
    packages = "--include=qemu-system-x86,seabios"
    lean = '--aptopt=APT::Install-Recommends "false"'
    lenient = '--aptopt=Acquire::Check-Valid-Until "false"'  # of a mirror that is a copy
    try:
        options = ["--variant=extract", "--format=tar", packages, lean, lenient]
        run(["mmdebstrap", "--quiet", *options, release, tar], timeout=300)
        run(
            ["tar", "-xf", tar, "-C", root, "--no-same-owner", "--exclude=./dev/*"],
            timeout=120,
        )
    except LabError as error:
        shutil.rmtree(new, ignore_errors=True)
        if place.exists():
            return  # out of date, but of that release
        raise NoServer(f"QEMU of {release} cannot be had: {error}") from error
    tar.unlink()
    # Until Debian 12 packages still have what a merged /usr moves there.
    # Not the link in lib64, which leads to this host's loader: that is of another libc.
    loaders = [root / top / f"{_LIBRARIES}/ld-linux-x86-64.so.2" for top in ("usr", ".")]
    loader = next(f"{place}/{path.relative_to(new)}" for path in loaders if path.is_file())
    libraries = ":".join(f"{place}/root/{top}{_LIBRARIES}" for top in ("usr/", ""))
    firmware = " ".join(f"-L {place}/root/usr/share/{name}" for name in ("qemu", "seabios"))
    script = new / PROGRAM
    script.write_text(
        "#!/bin/sh\n"
        f"QEMU_MODULE_DIR={place}/root/usr/{_LIBRARIES}/qemu\nexport QEMU_MODULE_DIR\n"
        f"exec {loader} --argv0 {PROGRAM} --library-path {libraries}"
        f' {place}/root/usr/bin/{PROGRAM} {firmware} "$@"\n'
    )
    script.chmod(0o755)
    shutil.rmtree(place, ignore_errors=True)
    new.rename(place)


class Machine:
    """A QEMU that was started paused, with a monitor; see ``started``."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process = process
        self._file = connection.makefile("rw")
        self._file.readline()
        self.ask({"execute": "qmp_capabilities"})

    def ask(self, command: Mapping[str, Any]) -> Any:
        """What QEMU returns for a command; a ``device_state.Monitor``."""
        self._file.write(f"{json.dumps(command)}\n")
        self._file.flush()
        for line in self._file:
            answer = json.loads(line)
            if "return" in answer:
                return answer["return"]
            assert "error" not in answer, answer
        raise AssertionError("QEMU has ended")


@contextmanager
def started(qemu: Path, directory: Path, arguments: Sequence[str]) -> Iterator[Machine]:
    """A machine of ``qemu`` for the block; ``directory``: where its monitor's socket is made."""
    path = directory / f"monitor-{len(list(directory.iterdir()))}"
    words = ["-S", "-accel", "tcg", "-display", "none", "-nodefaults", "-no-user-config"]
    words += ["-qmp", f"unix:{path},server=on,wait=off"]
    process = subprocess.Popen([str(qemu), *words, *arguments], stdin=subprocess.DEVNULL)
    try:
        with socket.socket(socket.AF_UNIX) as connection:

            def connected() -> bool:
                assert process.poll() is None, f"QEMU has ended with {process.returncode}"
                return connection.connect_ex(str(path)) == 0

            assert until(connected, Deadline.after(_SECONDS), first=0.01)
            connection.settimeout(_SECONDS)
            yield Machine(process, connection)
    finally:
        process.kill()
        process.wait(_SECONDS)
