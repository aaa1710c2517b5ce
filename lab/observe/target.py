"""A node as far as it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lab.blueprints import CLIENT, Member, Release
from lab.guest.network import inner_address
from lab.names import GuestName


class Target(Protocol):
    """A node of a lab: who it is, and how it is reached."""

    @property
    def name(self) -> str:
        """Its name in the lab."""

    @property
    def index(self) -> int:
        """Its number, from 1."""

    @property
    def role(self) -> str:
        """The role that it was planned for."""

    @property
    def release(self) -> Release:
        """Its server; empty where that is not known."""

    @property
    def guest(self) -> GuestName:
        """What the hypervisor knows it as."""

    @property
    def guest_address(self) -> str:
        """The guest's own address, where the hypervisor forwards no ports; else empty."""

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports at which its services are reached, by their names."""

    @property
    def sql_port(self) -> int:
        """The port at which its server answers, 0 for none."""

    @property
    def has_sql(self) -> bool:
        """Whether statements can be sent to it: to its server, or through its proxy."""

    @property
    def has_server(self) -> bool:
        """Whether it has a server of its own."""

    @property
    def is_proxy(self) -> bool:
        """Whether statements that are sent to it reach servers of other nodes."""


def member_of(node: Target) -> Member:
    """``node`` as blueprints see it."""
    return Member(node.name, node.index, inner_address(node.index), node.role)


def size_of(nodes: Sequence[Target]) -> int:
    """How many of ``nodes`` form one system: all but proxies and clients."""
    return sum(not node.is_proxy and node.role != CLIENT for node in nodes)
