"""A host for bhyve, as far as Linux can play one: vm-bhyve's double runs QEMU with UEFI firmware.

All of it is in a network namespace. Volumes are raw files, as bhyve reads nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.state.store import Store
from lab.wait import Deadline, until
from tests.contract import vm_double
from tests.e2e import vm_qemu
from tests.e2e.e2e_site import Site

OVMF = Path("/usr/share/ovmf/OVMF.fd")


class NotHere(Exception):
    """This machine cannot play a host for bhyve; says why."""


@dataclass(frozen=True)
class Host:
    """A machine with vm-bhyve: its scratch ``directory``, its ``network`` namespace."""

    directory: Path
    network: str
    site: Site

    @property
    def root(self) -> Path:
        return self.directory / "root"

    def interfaces(self) -> set[str]:
        """Bridges and taps."""
        done = subprocess.run(
            ["ip", "-json", "-n", self.network, "link"], check=True, capture_output=True
        )
        return {each["ifname"] for each in json.loads(done.stdout)} - {"lo"}

    def guests(self) -> list[str]:
        """What is in vm-bhyve's datastore."""
        return sorted(path.name for path in (self.root / "vm").glob("[!.]*"))

    def processes(self) -> list[int]:
        """The processes that stand for bhyve."""
        return [int(path.name) for path in (self.root / "proc").iterdir()]

    def left(self) -> list[str]:
        """What is there besides images and templates."""
        found = [f"guest {name}" for name in self.guests()]
        found += [f"process {pid}" for pid in self.processes()]
        found += [f"interface {name}" for name in sorted(self.interfaces())]
        with Store(self.site.home) as store:
            found += [
                f"segment {row.ref}" for row in store.resources.all() if row.kind == "segment"
            ]
        return found


@contextmanager
def bhyve_host(token: str) -> Iterator[Host]:
    """Such a host without any image; afterwards nothing is left of it. ``token`` names its network.

    Raises NotHere.
    """
    if not OVMF.exists() or not shutil.which("ip"):
        raise NotHere("needs OVMF and ip (packages ovmf and iproute2)")
    network = f"lab-{token}"
    made = subprocess.run(["ip", "netns", "add", network], check=False, capture_output=True)
    if made.returncode:
        raise NotHere(f"no network namespace can be made here: {made.stderr.decode().strip()}")
    # Short: paths of sockets are limited. Not below the installation, which has files of others.
    directory = Path(tempfile.mkdtemp(prefix="lab-vm-"))
    vm_double.install(directory / "bin", directory / "root", run=vm_qemu.__file__, net=True)
    enter = directory / "enter"
    # The mount is this command's own: `ip netns exec` gives it a mount namespace.
    place = Path(vm_qemu.FIRMWARE)
    enter.write_text(
        f"#!/bin/sh\nset -eu\nmount -t tmpfs tmpfs {place.parents[1]}\n"
        f'mkdir {place.parent}\nln -s {OVMF} {place}\nexec "$@"\n'
    )
    enter.chmod(0o755)
    home = directory / "home"
    home.mkdir()
    settings = {
        "LAB_HYPERVISOR": "bhyve",
        "LAB_STORAGE": "fake",
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
    }
    site = Site(home, settings=settings, prefix=("ip", "netns", "exec", network, str(enter)))
    found = Host(directory, network, site)
    try:
        yield found
    finally:
        site.lab("down", "--all", "--yes", code=None)
        for pid in found.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: found.processes() == [], Deadline.after(10))
        subprocess.run(["ip", "netns", "delete", network], check=False)
        shutil.rmtree(directory)
