"""Addresses inside a lab. They are the same in every lab: each has its own segment."""

from __future__ import annotations

from hashlib import sha256

from lab.guest.seed import SeedFile

OUTER_ADDRESS = "10.0.2.15/24"
"""What QEMU's user-mode network expects of its only guest."""
OUTER_GATEWAY = "10.0.2.2"

OWN_PREFIX = 26
"""Bits of a lab's own subnet, where the hypervisor forwards no ports."""
_OWN_NETS = 0x64400000
"""100.64.0.0/10 (RFC 6598, shared address space): it holds a subnet of 64 addresses for each
of 65536 segments, and homes, offices and data centres seldom use it."""

SQL_PORT = 3306
SSH_PORT = 22


def segment_group(home: str) -> str:
    """The multicast group (239.0.0.0/8, RFC 2365) of the segments of one installation.

    Each installation numbers its segments by itself, so the group must tell them apart:
    clusters of equal addresses and UUIDs that met would tear each other apart.
    """
    return "239." + ".".join(str(byte) for byte in sha256(home.encode()).digest()[:3])


def own_address(segment: int, index: int) -> str:
    """The address at which the host reaches the ``index``-th node (from 1) of a lab.

    ``index`` 0 is the host itself. Every segment, from 0 to 65535, has a subnet of its own.
    """
    number = _OWN_NETS + segment * 2 ** (32 - OWN_PREFIX) + 1 + index
    return ".".join(str(byte) for byte in number.to_bytes(4, "big"))


def inner_address(index: int) -> str:
    """The address of the ``index``-th node (from 1) on the lab's segment."""
    return f"10.77.0.{index}"


def outer_mac(index: int) -> str:
    """The MAC of a node's interface towards the host."""
    return f"52:54:00:4c:00:{index:02x}"


def inner_mac(index: int) -> str:
    """The MAC of a node's interface on the lab's segment."""
    return f"52:54:00:4c:01:{index:02x}"


def files(index: int, names: list[str], own: int | None = None) -> dict[str, SeedFile]:
    """The network configuration of the ``index``-th of the nodes ``names``.

    ``own``: the lab's segment, where the hypervisor forwards no ports.
    """
    hosts = ["127.0.0.1 localhost", "::1 localhost"]
    hosts += [f"{inner_address(number)} {name}" for number, name in enumerate(names, 1)]
    return {
        "/etc/hostname": SeedFile(f"{names[index - 1]}\n".encode()),
        "/etc/hosts": SeedFile("".join(f"{line}\n" for line in hosts).encode()),
        **cards(index, own),
    }


def cards(index: int, own: int | None) -> dict[str, SeedFile]:
    """The part of ``files`` that differs between labs where ``own`` is given."""
    network = {
        "OUTER_MAC": outer_mac(index),
        "OUTER_ADDRESS": OUTER_ADDRESS,
        "OUTER_GATEWAY": OUTER_GATEWAY,
        "INNER_MAC": inner_mac(index),
        "INNER_ADDRESS": f"{inner_address(index)}/24",
    }
    if own is not None:
        network["OUTER_ADDRESS"] = f"{own_address(own, index)}/{OWN_PREFIX}"
        network["OUTER_GATEWAY"] = own_address(own, 0)
    lines = "".join(f"{key}={value}\n" for key, value in network.items())
    return {"/etc/lab/network": SeedFile(lines.encode())}
