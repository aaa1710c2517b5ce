"""Ports of this host: asked for, reserved in the record, so that no two labs get the same."""

from __future__ import annotations

import socket

from lab.lifecycle.context import Context
from lab.names import Owner

GROUP = "230.0.0.1"
"""The multicast group of all segments; see ``lab.hypervisor.libvirt.domain``."""


def reserve_ports(ctx: Context, owner: Owner, count: int) -> list[int]:
    """``count`` TCP ports on the loopback that nobody uses; raises HostUnfit."""
    first, last = ctx.settings.port_range
    return ctx.store.resources.reserve_ports(owner, count, first, last, _tcp_free)


def reserve_segment(ctx: Context, owner: Owner) -> int:
    """A number (a UDP port) for a private segment that nobody uses; raises HostUnfit."""
    first, last = ctx.settings.port_range
    return ctx.store.resources.reserve_ports(owner, 1, first, last, _udp_free, kind="segment")[0]


def _tcp_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As QEMU will: a port whose last connection is still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _binds(probe, port)


def _udp_free(port: int) -> bool:
    # At the group's address, as QEMU binds: a socket at the loopback's would not collide with
    # the guests of another installation, and two clusters on one segment would mix.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return _binds(probe, port, GROUP)


def _binds(probe: socket.socket, port: int, address: str = "127.0.0.1") -> bool:
    try:
        probe.bind((address, port))
    except OSError:
        return False
    return True
