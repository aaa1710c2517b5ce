"""Addresses within a lab, and the network configuration of a node."""

from __future__ import annotations

import ipaddress

from lab.guest import network
from lab.sizes import NODES_LIMIT

NAMES = ["n1", "n2", "n3"]
EVERYONE = range(1, NODES_LIMIT + 1)


def test_no_two_nodes_share_an_address() -> None:
    addresses = {network.inner_address(index) for index in EVERYONE}
    macs = {network.inner_mac(index) for index in EVERYONE}
    macs |= {network.outer_mac(index) for index in EVERYONE}
    assert (len(addresses), len(macs)) == (NODES_LIMIT, 2 * NODES_LIMIT)


def test_macs_are_qemu_s_and_unicast() -> None:
    """Protects neighbours: such an address never belongs to a real card."""
    for index in EVERYONE:
        for mac in (network.inner_mac(index), network.outer_mac(index)):
            assert mac.startswith("52:54:00:")
            assert len(bytes.fromhex(mac.replace(":", ""))) == 6


def test_inner_and_outer_networks_do_not_overlap() -> None:
    outer = ipaddress.ip_interface(network.OUTER_ADDRESS).network
    inner = ipaddress.ip_interface(f"{network.inner_address(1)}/24").network
    assert not outer.overlaps(inner)
    assert ipaddress.ip_address(network.OUTER_GATEWAY) in outer


def test_files() -> None:
    files = network.files(2, NAMES)
    assert files["/etc/hostname"].content == b"n2\n"
    assert files["/etc/hosts"].content.decode().splitlines() == [
        "127.0.0.1 localhost",
        "::1 localhost",
        "10.77.0.1 n1",
        "10.77.0.2 n2",
        "10.77.0.3 n3",
    ]
    assert files["/etc/lab/network"].content.decode().splitlines() == [
        "OUTER_MAC=52:54:00:4c:00:02",
        "OUTER_ADDRESS=10.0.2.15/24",
        "OUTER_GATEWAY=10.0.2.2",
        "INNER_MAC=52:54:00:4c:01:02",
        "INNER_ADDRESS=10.77.0.2/24",
    ]


def test_the_guest_reads_them_as_shell() -> None:
    """Protects the boot script, which sources the file: no value may need quoting."""
    for line in network.files(1, NAMES)["/etc/lab/network"].content.decode().splitlines():
        assert not set(line) & set(" '\"$`\\;&|<>()*?")


def test_installations_have_segments_of_their_own() -> None:
    """Protects labs of two users, who both count their segments from one on."""
    groups = {network.segment_group(home) for home in ("", "1f0c2a77", "1f0c2a78", "9ab3d1e2")}
    assert len(groups) == 4
    assert all(
        ipaddress.ip_address(group) in ipaddress.ip_network("239.0.0.0/8") for group in groups
    )


def test_labs_have_subnets_of_their_own() -> None:
    """Protects labs from each other: every segment has a subnet, and none reaches into another."""
    shared = ipaddress.IPv4Network("100.64.0.0/10")
    seen = set()
    for segment in (0, 1, 255, 256, 23306, 65535):
        hosts = [network.own_address(segment, index) for index in (0, *EVERYONE)]
        subnets = {ipaddress.IPv4Interface(f"{h}/{network.OWN_PREFIX}").network for h in hosts}
        (subnet,) = subnets
        assert subnet.subnet_of(shared)
        assert not set(hosts) & {str(subnet.network_address), str(subnet.broadcast_address)}
        assert len(set(hosts)) == 1 + NODES_LIMIT
        seen.add(subnet)
    assert len(seen) == 6


def test_a_node_is_given_its_lab_s_own_address() -> None:
    file = network.cards(2, 23306)["/etc/lab/network"].content.decode().splitlines()
    assert "OUTER_ADDRESS=100.86.194.131/26" in file
    assert "OUTER_GATEWAY=100.86.194.129" in file
    assert network.files(2, NAMES, 23306)["/etc/lab/network"].content.decode().splitlines() == file
