"""Ports and segments are asked for on the host, not only in the record."""

from __future__ import annotations

import socket
from pathlib import Path

from lab.config.settings import load
from lab.guest.network import segment_group
from lab.hypervisor.libvirt.driver import segment_is_free
from lab.lifecycle.core.context import open_context
from lab.lifecycle.nodes.ports import reserve_ports
from lab.names import Owner

PXC = Owner("lab", "pxc")


def test_what_others_use_is_passed_over(tmp_path: Path) -> None:
    """Protects a lab from a port that is taken."""
    flags = {"home": tmp_path, "hypervisor": "fake", "storage": "fake", "port_range": "23900-23999"}
    with (
        open_context(load(flags, env={}, files=())) as ctx,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener,
    ):
        listener.bind(("127.0.0.1", 23900))
        listener.listen()
        assert 23900 not in reserve_ports(ctx, PXC, 2)


def test_a_segment_of_guests_is_passed_over() -> None:
    """Protects a lab from guests of a lab that the record lost."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as guest:
        # As QEMU joins a segment: bound to the group, shared with other guests.
        guest.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        guest.bind((segment_group("home"), 23900))
        assert not segment_is_free("home", 23900)
        assert segment_is_free("another", 23900)
