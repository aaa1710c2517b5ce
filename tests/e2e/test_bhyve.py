"""Guests as bhyve would run them, run for real: the whole of a lab's life through vm-bhyve.

The driver for bhyve is the real one, and so are the guests: UEFI firmware, the image's own boot
loader, virtio-blk and virtio-net, seeds, addresses of their own, the guest agent at a socket,
bridges that packets pass. What is not is `vm`, a double that does what vm-bhyve's scripts do, and
bhyve: QEMU runs the machine that the guest's vm-bhyve configuration describes (``vm_qemu``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from tests.e2e.bhyve_site import Host, NotHere, bhyve_host
from tests.e2e.e2e_site import PXC, Site

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

NODES = ("n1", "n2", "n3")
ADDRESSES = ip_network("100.64.0.0/10")
SIZE = "SHOW STATUS LIKE 'wsrep_cluster_size'"
STATE = "SHOW STATUS LIKE 'wsrep_local_state_comment'"


@pytest.fixture(scope="module")
def host(image: Site) -> Iterator[Host]:
    """A host for bhyve with the image that was made on Linux, exported there and imported here."""
    try:
        with bhyve_host(image.token) as found:
            archive = found.directory / "image.lab"
            image.lab("image", "export", "mariadb", str(archive))
            found.site.lab("image", "import", str(archive))
            archive.unlink()
            yield found
            assert found.left() == []
    except NotHere as why:
        pytest.skip(str(why))


def formed(site: Site, lab: str) -> None:
    """All nodes are in one cluster."""
    for node in NODES:
        assert site.sql(lab, node, SIZE)[0][1] == "3"
        assert site.sql(lab, node, STATE)[0][1] == "Synced"


def nothing_transferred(site: Site, lab: str) -> None:
    """The nodes restored their view together, as they had been stopped: no SST, IST or recovery."""
    for node in NODES:
        log = site.lab("logs", lab, "--node", node, "-n", "2000").stdout
        assert "restore pc from disk successfully" in log
        assert "Synchronized with group, ready for connections" in log
        for transfer in ("State transfer required", "IST receiver", "Running: 'wsrep_sst"):
            assert transfer not in log
        assert "Recovered position" not in log, "a second start of the server before the first"


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
    nothing_transferred(site, "shop")
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
    nothing_transferred(site, "other")
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
