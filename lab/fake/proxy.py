"""Proxies in guests of the fake hypervisor: which of the servers behind one gets a statement."""

from __future__ import annotations

from collections.abc import Sequence

from lab.fake import group
from lab.fake.guests import Record
from lab.fake.inside import (
    alone,
    arbitrates,
    grouped,
    last,
    multi_primary,
    only_uses,
    proxies,
    read_inside,
    read_only,
)


def has_no_server(record: Record) -> bool:
    """Whether a guest is a proxy, an arbiter or a client."""
    return proxies(record.disks) or arbitrates(record.disks) or only_uses(record.disks)


def writes(record: Record, peers: Sequence[Record]) -> bool:
    """Whether the server in a guest takes writes; ``peers``: those that run, with it."""
    if grouped(record.disks):
        everyone = {peer.name: group.current(peer, peers) for peer in peers}
        return record.name in group.primaries(record, everyone)
    leads = read_inside(record.disks).leads or not read_only(record.disks)
    return not record.read_only and (leads or not alone(record.disks))


def server(peers: Sequence[Record], service: str) -> Record | None:
    """The server that a proxy leads to, of those that run; None if there is none."""
    names = _lists(peers)[service == "ro"]
    return next((peer for peer in peers if peer.name == names[0]), None) if names else None


def proxied(record: Record, peers: Sequence[Record]) -> str:
    """What the program of that name prints in the guest of a proxy; ``peers``: with it."""
    rw, ro = _lists(peers)
    late = last(record.disks)
    late_ones = [str(peer.name) for peer in peers if peer.tags["node"] in late]
    ro = [name for name in ro if name not in late_ones] or ro
    return f"rw\t{' '.join(rw)}\nro\t{' '.join(ro)}\nadmin.page\t200\n"


def _lists(peers: Sequence[Record]) -> tuple[list[str], list[str]]:
    """The names of guests to write to and to read from, best first."""
    servers = [peer for peer in peers if not read_inside(peer.disks).apart]
    takes = [str(peer.name) for peer in servers if writes(peer, peers)]
    alike = not any(alone(peer.disks) or grouped(peer.disks) for peer in servers)
    spread = any(multi_primary(peer.disks) for peer in servers)
    rw = takes if spread else takes[:1]
    ro = takes[1:] if alike else [str(p.name) for p in servers if str(p.name) not in takes]
    return rw, ro or rw
