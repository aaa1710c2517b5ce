"""Ports of this host: asked for, reserved in the record, so that no two labs get the same."""

from __future__ import annotations

import socket

from lab.guest.network import segment_group
from lab.lifecycle.context import Context
from lab.names import Owner


def reserve_ports(ctx: Context, owner: Owner, count: int) -> list[int]:
    """``count`` TCP ports on the loopback that nobody uses; raises HostUnfit."""
    first, last = ctx.settings.port_range
    return ctx.store.resources.reserve_ports(owner, count, first, last, _tcp_free)


def reserve_segment(ctx: Context, owner: Owner) -> int:
    """A number (a UDP port) for a private segment that nobody uses; raises HostUnfit."""
    first, last = ctx.settings.port_range
    group = segment_group(ctx.home.id)
    return ctx.store.resources.reserve_ports(
        owner, 1, first, last, lambda port: _udp_free(group, port), kind="segment"
    )[0]


def _tcp_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As QEMU will: a port whose last connection is still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _binds(probe, "127.0.0.1", port)


def _udp_free(group: str, port: int) -> bool:
    # Bound without sharing, unlike QEMU does it: so it fails while any guest is there.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return _binds(probe, group, port)


def _binds(probe: socket.socket, address: str, port: int) -> bool:
    try:
        probe.bind((address, port))
    except OSError:
        return False
    return True
