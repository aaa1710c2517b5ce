"""Ports of this host: asked for, reserved in the record, so that no two labs get the same."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lab.blueprints import NodePlan
from lab.errors import HostUnfit
from lab.hypervisor import Redirects
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes import personalise
from lab.lifecycle.nodes.nodes import Node, plan, plan_at_guest_addresses, services_of
from lab.names import LOOPBACK, Owner, is_loopback

TRIES = 3
"""How often to start with other ports when some were taken since they were found free."""


def check_published(address: str) -> None:
    """Raise HostUnfit unless ``address`` is one of this host's."""
    if not is_loopback(address) and not _tcp_free(address, 0):
        raise HostUnfit(
            f"SQL ports are to be published at {address}, which is no address of this host",
            hint="set publish (LAB_PUBLISH) to one that it has, or to 0.0.0.0 for all of them",
        )


def reserve_ports(ctx: Context, owner: Owner, count: int, address: str = LOOPBACK) -> list[int]:
    """``count`` TCP ports that nobody uses, on the loopback and at ``address``.

    Not to be called in a transaction where the hypervisor has ``redirects``: it is asked then.
    Raises HostUnfit.
    """
    check_published(address)
    first, last = ctx.settings.port_range
    addresses, redirects = dict.fromkeys((LOOPBACK, address)), redirects_at(ctx, address)
    redirected = set(redirects.ports()) if redirects else set()

    def free(port: int) -> bool:
        return port not in redirected and all(
            _tcp_free(one, port, redirect=redirects is not None) for one in addresses
        )

    return ctx.store.resources.reserve_ports(owner, count, first, last, free)


def move_taken(ctx: Context, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """``nodes`` with other ports, in the record too, where another program has theirs by now.

    None of ``nodes`` runs; their lab's lock is held. Raises HostUnfit.
    """
    for address in {node.address for node in nodes if not node.guest_address or node.redirect}:
        check_published(address)
    taken = list(_taken(ctx, nodes))
    if not taken:
        return tuple(nodes)
    owner = nodes[0].owner
    published = next(n.address for n in nodes if n.redirect or not n.guest_address)
    new = dict(zip(taken, reserve_ports(ctx, owner, len(taken), published), strict=True))
    moved = tuple(_moved(node, new) for node in nodes)
    with ctx.store.transaction():
        for node in moved:
            now = node.record
            ports = {"sql_port": now.sql_port, "ssh_port": now.ssh_port, "ports": now.ports}
            ctx.store.nodes.update(owner.name, node.name, **ports, extra=now.extra)
        _give_back(ctx, owner)
    personalise.move_hosts(ctx, owner, new)
    changes = ", ".join(f"{old} is {now} now" for old, now in new.items())
    ctx.progress.note("ports", f"other programs use ports of {owner.name}: {changes}")
    return moved


def _give_back(ctx: Context, owner: Owner) -> None:
    """Keep no port that no node of a lab or its standby has.

    Those moved from, or reserved by who was killed.
    """
    nodes, standby = ctx.store.nodes.of(owner.name), ctx.store.standbys.find(owner.name)
    used = {port for node in nodes for port in (*node.all_ports.values(), node.redirect)}
    used |= standby.ports if standby else set()
    for found in ctx.store.resources.of(owner):
        if found.kind == "port" and int(found.ref) not in used:
            ctx.store.resources.gone(owner, "port", found.ref)


def _moved(node: Node, new: Mapping[int, int]) -> Node:
    if node.guest_address:
        return replace(node, redirect=new.get(node.redirect, node.redirect))
    ports = {name: new.get(port, port) for name, port in node.ports.items()}
    return replace(node, ports=ports)


def allot(
    ctx: Context,
    owner: Owner,
    plans: Sequence[NodePlan],
    images: Images,
    address: str,
    host: str,
) -> tuple[tuple[Node, ...], int]:
    """The nodes of a lab with what leads to them, and its segment; all of it reserved.

    ``plans``: of its blueprint; ``images``: for them.
    ``address``, ``host``: where ports are published, and the name that is printed.
    Raises HostUnfit. Not to be called in a transaction.
    """
    if ctx.hypervisor.capabilities().forwards:
        ports = reserve_ports(ctx, owner, len(services_of(plans)), address)
        segment = reserve_segment(ctx, owner)
        return tuple(plan(owner, plans, images, ports, address=address, host=host)), segment
    segment = reserve_segment(ctx, owner)
    nodes = plan_at_guest_addresses(owner, plans, images, segment)
    if is_loopback(address):
        return tuple(nodes), segment
    if ctx.hypervisor.redirects is None:
        raise HostUnfit(
            f"SQL cannot be published at {address}: guests have addresses of their own here, and"
            " no ports lead to them",
            hint="set publish (LAB_PUBLISH) to 127.0.0.1, and let the host's firewall redirect",
        )
    servers = [node.name for node in nodes if node.has_sql]
    redirects = dict(zip(servers, reserve_ports(ctx, owner, len(servers), address), strict=True))
    return tuple(
        replace(node, address=address, host=host, redirect=redirects[node.name])
        if node.has_sql
        else node
        for node in nodes
    ), segment


def _taken(ctx: Context, nodes: Sequence[Node]) -> Iterator[int]:
    """The ports of ``nodes`` that others have by now."""
    for node in nodes:
        if node.redirect:
            redirects = redirects_at(ctx, node.address)
            redirected = redirects.ports() if redirects else {}
            if redirected.get(node.redirect, node.guest) != node.guest or not (
                _tcp_free(node.address, node.redirect, redirect=True)
            ):
                yield node.redirect
        elif not node.guest_address:
            for service, port in node.ports.items():
                if not _tcp_free(node.address_of(service), port):
                    yield port


def redirects_at(ctx: Context, address: str) -> Redirects | None:
    """What would redirect ports at ``address`` to guests; None if programs listen at them."""
    return None if is_loopback(address) else ctx.hypervisor.redirects


def reserve_segment(ctx: Context, owner: Owner) -> int:
    """A number for a private segment that nobody uses; as ``reserve_ports``. Raises HostUnfit."""
    first, last = ctx.settings.port_range
    return ctx.store.resources.reserve_ports(
        owner, 1, first, last, ctx.hypervisor.segment_free, kind="segment"
    )[0]


def _tcp_free(address: str, port: int, *, redirect: bool = False) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if not redirect:
            # As QEMU will: a port whose last connection is still closing is free. Where ports are
            # redirected, none closes here, and the host may run FreeBSD: there this option would
            # give us a port at which another program listens.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
