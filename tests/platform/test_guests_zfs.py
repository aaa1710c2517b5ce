"""Guests whose disks are real ZVols: a whole life of a lab, used as a user does.

They come from the archive of a template, since what is slow (building an image, forming a
cluster) is not what is to be proved here. tests/e2e/test_zvols.py makes one and hands it over.
"""

from __future__ import annotations

import secrets
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.config import settings
from lab.hypervisor import DirectBoot
from lab.hypervisor.libvirt.connection import default_uri
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.images import image as images
from lab.lifecycle.images.ready import Image
from lab.lifecycle.nodes.nodes import Node, Wiring, guest_spec
from lab.names import Owner
from lab.run import run
from lab.sizes import NodeSize
from lab.storage import Volume
from lab.units import MIB
from lab.wait import Deadline, until
from tests.contract import zfs_site
from tests.contract.hypervisor_site import free_port
from tests.e2e.e2e_site import Site
from tests.platform.handed import GIVEN, bring, on_zvols
from testvm.overlay import cpio

SLOW = 2400.0
"""Seconds: guests in a guest without KVM are emulated twice."""

pytestmark = pytest.mark.skipif(
    not GIVEN, reason="no template was handed over: `make test-e2e` does it"
)


@pytest.fixture(scope="module")
def site(big_pool: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An installation on that pool, with the template."""
    with on_zvols(big_pool, tmp_path_factory.mktemp("config"), SLOW) as site:
        bring(site)
        yield site


def test_a_lab_lives_on_zvols(site: Site, big_pool: str) -> None:
    """Protects what this project is named for: ZVols, raw and uncached, under real guests."""
    (template,) = site.lab("template", "ls", "-o", "json").json
    (image,) = site.lab("image", "ls", "-o", "name").stdout.split()
    name, size = site.name("zvols"), ["--nodes", str(template["nodes"])]
    size += ["--memory", str(template["memory"])]
    size += ["--image", image]  # here another one might be built
    view = site.lab(
        "up", template["blueprint"], *size, "--name", name, "-o", "json", timeout=SLOW
    ).json
    nodes = [node["name"] for node in view["nodes"]]
    assert view["template"] == template["key"]
    assert view["started"] == "warm", view["why_cold"]
    assert [_disks(name, node) for node in nodes] == [[RAW]] * len(nodes)
    assert len(_volumes(f"{big_pool}/lab/labs/{name}")) == len(nodes)

    _captured_and_back(site, name, nodes[0])
    site.sql(name, nodes[0], "CREATE DATABASE ours")
    _survives_a_full_pool(site, big_pool, name, nodes[0])
    site.lab("rollback", name, timeout=SLOW)
    for node in nodes:
        assert site.sql(name, node, "SHOW DATABASES LIKE 'ours'") == []

    site.lab("down", name)
    assert site.settled(seconds=30.0) == []
    left = _volumes(f"{big_pool}/lab")
    assert [volume for volume in left if "/labs/" in volume] == []
    assert {volume: _written(volume) for volume in left} == dict.fromkeys(left, 0)


def _captured_and_back(site: Site, name: str, node: str) -> None:
    """Protects captures: RAM and ZVols are of one moment, and a branch keeps what it needs."""
    site.sql(name, node, "CREATE DATABASE kept")
    taken = site.lab("snapshot", "take", name, "--label", "mine", "-o", "json", timeout=SLOW).json
    assert taken["warm"], taken["why_cold"]
    site.sql(name, node, "CREATE DATABASE lost")
    back = site.lab("rollback", name, "--to", "mine", "-o", "json", timeout=SLOW).json
    assert back["started"] == "warm", back["why_cold"]
    branch = site.name("branch")
    site.lab("branch", name, branch, "--at", "mine", timeout=SLOW)
    for lab in (name, branch):
        assert site.sql(lab, node, "SHOW DATABASES LIKE 'kept'") == [["kept"]]
        assert site.sql(lab, node, "SHOW DATABASES LIKE 'lost'") == []
    site.lab("down", name, code=4)
    site.lab("down", branch)
    site.lab("snapshot", "rm", name, "mine")


def _survives_a_full_pool(site: Site, pool: str, name: str, node: str) -> None:
    """Protects data: a guest that cannot write is halted, reported, and resumes with free space."""
    zfs_site.fill(pool, leave=0)
    try:
        write = ("dd", "if=/dev/urandom", "of=/x", "bs=1M", "count=64", "conv=fsync")
        writer = site.start("exec", name, "--node", node, "--timeout", "1h", "--", *write)
        why = until(lambda: _halted(site, name, node), Deadline.after(SLOW), first=1) or ""
        assert "could not be written" in why
        assert why in site.lab("doctor", code=None).stdout
    finally:
        zfs_site.zfs("destroy", f"{pool}/filler")
    assert site.lab("start", name, "-o", "json", timeout=SLOW).json["state"] == "ready"
    # It has written everything, or failed because the guest did not respond.
    writer.communicate(timeout=SLOW)
    assert site.sql(name, node, "SHOW DATABASES LIKE 'ours'") == [["ours"]]


def _halted(site: Site, name: str, node: str) -> str:
    """Why a node is paused; "" if it is not."""
    (lab,) = (lab for lab in site.lab("ls", "-o", "json").json if lab["name"] == name)
    (found,) = (one for one in lab["nodes"] if one["name"] == node)
    return str(found["why"])


MARKED = 100
"""A sector that nothing else uses."""


def _booted(mark: str) -> bytes:
    """An image's initial RAM disk does this instead: mounts the system, leaves a mark, and ends.

    The mark is in the gap before the first partition.
    """
    return f"""#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do /bin/busybox insmod "$module"; done
until [ -b /dev/vda2 ]; do /bin/busybox usleep 10000; done
/bin/busybox mount -t ext4 -o ro,noload /dev/vda2 /root
echo "version: $(/bin/busybox cat /root/etc/debian_version)" >/dev/ttyS0
echo {mark} | /bin/busybox dd of=/dev/vda bs=512 seek={MARKED} conv=notrunc,fsync
/bin/busybox poweroff -f
""".encode()


def test_a_guest_boots_from_a_clone(site: Site) -> None:
    """Protects what a guest writes: it is on its own ZVol, and not on the image's."""
    (key,) = site.lab("image", "ls", "-o", "name").stdout.split()
    mark = f"mark-{secrets.token_hex(16)}"
    with open_context(settings.load(env=site.env)) as ctx:
        image = images.find(ctx, key)
        owner = Owner("lab", site.name("boots"))
        ctx.home.create_directory(owner)
        node = Node(owner, "n1", 1, "member")
        base = images.snapshots(ctx, image)["os"]
        tags = {"owner": str(owner), "node": node.name}
        volume = ctx.storage.clone(base, node.volume("os"), tags)
        said = _boot(ctx, image, node, volume, _booted(mark))
        assert "version: 13" in said, said
        assert _holds(volume.path, mark)
        assert not _holds(ctx.storage.get(base.volume).path, mark)
        ctx.storage.destroy(volume.name)
    site.lab("gc", "--orphans")


def _boot(ctx: Context, image: Image, node: Node, volume: Volume, init: bytes) -> str:
    """Let a guest boot with another first program, and end; what its console said."""
    assert isinstance(image.boot, DirectBoot)
    initrd = ctx.home.labs / node.owner.name / "initrd"
    own = image.boot.initrd.read_bytes()
    initrd.write_bytes(own + bytes(-len(own) % 4) + cpio([("init", 0o755, init)]))
    initrd.chmod(0o644)
    log = ctx.home.console_log(node.guest)
    wiring = Wiring(home=ctx.home.id, segment=free_port(), seed=initrd, console_log=log)
    guest = guest_spec(replace(node, size=NodeSize(memory=512 * MIB)), [volume], image, wiring)
    ctx.hypervisor.start(replace(guest, boot=replace(image.boot, initrd=initrd)))
    gone = until(lambda: node.guest not in ctx.hypervisor.guests(), Deadline.after(SLOW), first=1)
    said = log.read_text()
    assert gone, said
    log.unlink()
    return said


def _holds(device: Path, mark: str) -> bool:
    with device.open("rb") as file:
        file.seek(MARKED * 512)
        return file.read(512).startswith(mark.encode())


def _volumes(below: str) -> list[str]:
    return zfs_site.zfs("list", "-H", "-r", "-t", "volume", "-o", "name", below).splitlines()


def _written(volume: str) -> int:
    """Bytes that were written to a volume since its newest snapshot: the one that labs are of."""
    return int(zfs_site.zfs("get", "-Hp", "-o", "value", "written", volume))


RAW = {
    "what": "block", "where": "/dev/zvol",
    "name": "qemu", "type": "raw", "cache": "none", "io": "native", "discard": "unmap",
    "error_policy": "stop", "rerror_policy": "report",
}  # fmt: skip


def _disks(lab: str, node: str) -> list[dict[str, str]]:
    """How libvirt has QEMU use the disks, but for those that are read-only."""
    argv = ["virsh", "-q", "-c", default_uri(), "dumpxml", f"lab-{lab}-{node}"]
    root = ET.fromstring(run(argv, timeout=60).stdout)  # noqa: S314  libvirt's own XML
    return [_disk(disk) for disk in root.iterfind("devices/disk") if disk.find("readonly") is None]


def _disk(disk: ET.Element) -> dict[str, str]:
    driver, source = disk.find("driver"), disk.find("source")
    assert driver is not None
    assert source is not None
    device = source.get("dev", "")
    where = "/dev/zvol" if device.startswith("/dev/zvol/") else device
    return {"what": disk.get("type", ""), "where": where, **driver.attrib}
