"""Guests as bhyve would run them, run for real: the whole of a lab's life through vm-bhyve.

The driver for bhyve is the real one, and so are the guests: UEFI firmware, the image's own boot
loader, virtio-blk and virtio-net, seeds, addresses of their own, the guest agent at a socket,
bridges that packets pass. What is not is `vm`, a double that does what vm-bhyve's scripts do, and
bhyve: QEMU runs the machine that the guest's vm-bhyve configuration describes (``vm_qemu``). All of
it is in a network namespace of this test. Volumes are raw files, as bhyve reads nothing else.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import vm_double
import vm_qemu
from e2e_site import PXC, Site

from lab.wait import Deadline, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NODES = ("n1", "n2", "n3")
OVMF = Path("/usr/share/ovmf/OVMF.fd")
ADDRESSES = ip_network("100.64.0.0/10")
SIZE = "SHOW STATUS LIKE 'wsrep_cluster_size'"
STATE = "SHOW STATUS LIKE 'wsrep_local_state_comment'"


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
        found += [f"{row.kind} {row.ref}" for row in _resources(self.site) if row.kind == "segment"]
        return found


@pytest.fixture(scope="module")
def host(image: Site) -> Iterator[Host]:
    """A host for bhyve with the image that was made on Linux, exported there and imported here."""
    if not OVMF.exists() or not shutil.which("ip"):
        pytest.skip("needs OVMF and ip (packages ovmf and iproute2)")
    network = f"lab-{image.token}"
    made = subprocess.run(["ip", "netns", "add", network], check=False, capture_output=True)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.decode().strip()}")
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
        archive = directory / "image.lab"
        image.lab("image", "export", "mariadb", str(archive))
        site.lab("image", "import", str(archive))
        archive.unlink()
        yield found
        assert found.left() == []
    finally:
        site.lab("down", "--all", "--yes", code=None)
        for pid in found.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: found.processes() == [] or None, Deadline.after(10))
        subprocess.run(["ip", "netns", "delete", network], check=False)
        shutil.rmtree(directory)


def _resources(site: Site) -> list[Any]:
    from lab.state.store import Store

    with Store(site.home) as store:
        return list(store.resources.all())


def formed(site: Site, lab: str) -> None:
    """All nodes are in one cluster."""
    for node in NODES:
        assert site.sql(lab, node, SIZE)[0][1] == "3"
        assert site.sql(lab, node, STATE)[0][1] == "Synced"


def addresses(view: Any) -> list[str]:
    """Where the nodes of a lab are reached."""
    return [node["host"] for node in view["nodes"]]


def test_labs_as_bhyve_would_run_them(host: Host) -> None:
    """The promise of docs/freebsd.md: three nodes, cold but formed, at their own addresses."""
    site = host.site
    view = site.lab("up", *PXC, "--nodes", "3", "--name", "shop", "-o", "json", timeout=600).json
    formed(site, "shop")
    assert all(ip_address(address) in ADDRESSES for address in addresses(view))
    assert [node["sql_port"] for node in view["nodes"]] == [3306] * 3
    assert f"@{view['nodes'][0]['host']}:3306/" in view["dsn"]
    assert len(host.interfaces()) == 1 + 2 * 3  # one switch, two cards for each guest

    # By firmware, from the disk's own boot loader; the seed was read early, and the agent speaks.
    site.lab("exec", "shop", "--", "/usr/bin/test", "-d", "/sys/firmware/efi")
    assert site.lab("exec", "shop", "--node", "n2", "--", "/bin/hostname").stdout == "n2\n"
    for node in NODES:
        log = site.lab("logs", "shop", "--node", node, "-n", "2000").stdout
        assert "wsrep" in log
        assert "Running: 'wsrep_sst" not in log
    ssh = ("ssh", "shop", "--node", "n3", "--", "hostname")
    assert site.lab(*ssh).stdout == "n3\n"

    site.sql("shop", "n1", "CREATE DATABASE shop")
    site.sql("shop", "n1", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
    site.sql("shop", "n2", "INSERT INTO shop.orders VALUES (7)")
    assert site.sql("shop", "n3", "SELECT id FROM shop.orders") == [[7]]

    # The next one is a clone of the same disks: booted, not formed; no network of theirs meets.
    again = site.lab("up", *PXC, "--nodes", "3", "--name", "other", "-o", "json").json
    assert not set(addresses(again)) & set(addresses(view))
    formed(site, "other")
    assert not [row for row in site.sql("other", "n1", "SHOW DATABASES") if row == ["shop"]]
    assert len(site.lab("template", "ls", "-o", "name").stdout.split()) == 1
    site.lab("down", "other")

    # Asked to, guests shut down by their power button, and come again as they were.
    site.lab("stop", "shop")
    assert host.processes() == []
    site.lab("start", "shop")
    formed(site, "shop")
    assert site.sql("shop", "n1", "SELECT id FROM shop.orders") == [[7]]
    shown = site.lab("status", "shop", "-o", "json").json["lab"]
    assert addresses(shown) == addresses(view)
    site.lab("down", "shop")
    assert host.left() == []
    calls = [shlex.split(line)[1] for line in (host.root / "calls").read_text().splitlines()]
    assert {"start", "poweroff", "switch"} <= set(calls)
