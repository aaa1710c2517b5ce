"""From a lab's figures to its guests: names, disks, seeds, domains, programs in them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TypeVar

from lab.blueprints import (
    SERVICES,
    Blueprint,
    Engine,
    Member,
    NodePlan,
    Release,
    Service,
    has_server,
)
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, NotReady
from lab.guest import network, seed
from lab.hypervisor import Disk, Forward, GuestSpec, Network
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import Image, Images
from lab.names import (
    LOOPBACK,
    GuestName,
    Owner,
    VolumeName,
    guest_name,
    is_loopback,
)
from lab.observe.target import member_of
from lab.sizes import NodeSize
from lab.state.records import NodeRecord
from lab.storage import Volume
from lab.values import dataclass

T = TypeVar("T")

PUBLISHED = ("sql", "ro")
"""The services that others than this host can use, where a lab is published."""


@dataclass(frozen=True)
class Node:
    """A node as it is planned, cloned and started."""

    owner: Owner
    name: str
    index: int
    role: str
    ports: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The ports of the host that lead to its services, by their names; empty for a template's."""
    address: str = LOOPBACK
    """The address at which its SQL port is published."""
    host: str = LOOPBACK
    """The name that is printed instead of ``address``."""
    guest_address: str = ""
    """The guest's own address, if the hypervisor forwards no ports; ``address`` and ``host`` are
    the same then, and the ports are the guest's."""
    redirect: int = 0
    """The port at ``address`` that leads other machines to its SQL port, with ``guest_address``;
    0 for none."""
    size: NodeSize = field(default_factory=NodeSize)
    image: str = ""
    """The key of its image; empty if that is not known."""
    services: tuple[Service, ...] = SERVICES
    """The services to which others than its peers connect."""
    release: Release = field(default_factory=Release)
    """Its server, as far as questions depend on it; empty if that is not known."""
    known_as: GuestName | None = None
    """The guest's name if it was, or is, one of a standby; None: it follows from the node's."""

    @property
    def has_sql(self) -> bool:
        """Whether statements can be sent to it: to its server, or through its proxy."""
        return any(service.name == "sql" for service in self.services)

    @property
    def has_server(self) -> bool:
        """Whether it has a server of its own."""
        return has_server(service.name for service in self.services)

    @property
    def is_proxy(self) -> bool:
        """Whether statements that are sent to it reach servers of other nodes."""
        return self.has_sql and not self.has_server

    @property
    def sql_port(self) -> int:
        """The port at which its server answers, 0 for none."""
        return self.ports.get("sql", 0)

    @property
    def ssh_port(self) -> int:
        """The port at which it takes SSH, 0 for none."""
        return self.ports.get("ssh", 0)

    def address_of(self, service: str) -> str:
        """The host's address at which the port of a service is."""
        return self.address if service in PUBLISHED else LOOPBACK

    @property
    def published(self) -> bool:
        """Whether others than this host can reach it, which then takes TLS."""
        return bool(self.redirect) or (not self.guest_address and not is_loopback(self.address))

    @property
    def extra(self) -> dict[str, str | int]:
        """What is recorded of how it is reached, where ports are not forwarded."""
        found: dict[str, str | int] = {"address": self.guest_address} if self.guest_address else {}
        return found | ({"redirect": self.redirect} if self.redirect else {})

    @property
    def record(self) -> NodeRecord:
        """What is recorded of a lab's node."""
        return NodeRecord(
            lab=self.owner.name,
            name=self.name,
            idx=self.index,
            role=self.role,
            guest=self.guest,
            sql_port=self.sql_port,
            ssh_port=self.ssh_port,
            extra=self.extra,
            image=self.image,
            services={service.name: service.port for service in self.services},
            ports={name: port for name, port in self.ports.items() if name not in ("sql", "ssh")},
            **vars(self.size),
        )

    @property
    def ssh_host(self) -> str:
        """The address at which its SSH port is."""
        return self.guest_address or LOOPBACK

    @property
    def guest(self) -> GuestName:
        """What the hypervisor knows it as."""
        return self.known_as or guest_name(self.owner, self.name)

    def volume(self, disk: str) -> VolumeName:
        """The name of one of its volumes."""
        return VolumeName(self.owner, self.name, disk)


@dataclass(frozen=True)
class Wiring:
    """What differs between a guest's uses: where its files are and which ports lead to it."""

    home: str
    segment: int
    seed: Path
    console_log: Path
    memory_file: Path | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def services_of(plans: Sequence[NodePlan]) -> list[tuple[str, str]]:
    """All services of planned nodes, as node and service; those of one name are together."""
    names = dict.fromkeys(service.name for node in plans for service in node.services)
    return [
        (node.name, name)
        for name in names
        for node in plans
        if name in (service.name for service in node.services)
    ]


def plan(
    owner: Owner,
    plans: Sequence[NodePlan],
    images: Images,
    ports: Sequence[int] = (),
    *,
    address: str = LOOPBACK,
    host: str = LOOPBACK,
) -> list[Node]:
    """The nodes of ``owner``, as planned. ``ports``: of their ``services_of``, in that order.

    ``address``, ``host``: as in Node.
    """
    given = dict(zip(services_of(plans), ports, strict=bool(ports)))
    return [
        Node(
            owner,
            planned.name,
            number,
            planned.role,
            {name: port for (node, name), port in given.items() if node == planned.name},
            address,
            host,
            size=planned.size,
            image=images.planned(planned).key,
            services=planned.services,
            release=images.planned(planned).engine.release,
        )
        for number, planned in enumerate(plans, 1)
    ]


def plan_at_guest_addresses(
    owner: Owner, plans: Sequence[NodePlan], images: Images, segment: int
) -> list[Node]:
    """Plan the nodes of a lab on hosts that reach guests at their own addresses."""
    found = []
    for node in plan(owner, plans, images):
        own = network.own_address(segment, node.index)
        found.append(
            replace(
                node,
                ports={service.name: service.port for service in node.services},
                address=own,
                host=own,
                guest_address=own,
            )
        )
    return found


def engines_of(nodes: Sequence[Node], images: Images) -> dict[str, Engine]:
    """What is in the image of each node, by the node's name."""
    return {node.name: images[node.image].engine for node in nodes}


def volumes_of(node: Node, images: Images) -> list[VolumeName]:
    """The names of the volumes of ``node``, as its image has them."""
    return [node.volume(disk) for disk in images[node.image].volumes]


def seed_disk(
    node: Node,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    engine: Engine,
    profile: EngineProfile,
    segment: int,
) -> bytes:
    """The seed that ``node`` boots with on ``segment``."""
    members = [member_of(n) for n in nodes]
    own = segment if node.guest_address else None
    files = network.files(node.index, [n.name for n in nodes], own)
    files |= blueprint.files(members[node.index - 1], members, engine, node.size.memory, profile)
    more = blueprint.options.option_file(node.role) if node.has_server else ""
    if more:
        ours = files[engine.config_path]
        files[engine.config_path] = replace(ours, content=ours.content + more.encode())
    return seed.pack(files)


def address_seed(node: Node, segment: int) -> bytes:
    """The seed of a clone whose address differs from that of the template's node.

    It has the network cards only, so the other files of the node stay as they are.
    """
    return seed.pack(network.cards(node.index, segment))


def forwards_of(node: Node) -> list[Forward]:
    """The ports of the host that lead to ``node``."""
    if node.guest_address:
        lead = Forward(node.redirect, node.sql_port, node.address, node.guest_address)
        return [lead] if node.redirect else []
    return [
        Forward(node.ports[service.name], service.port, node.address_of(service.name))
        for service in node.services
        if service.name in node.ports
    ]


def guest_spec(node: Node, volumes: Sequence[Volume], image: Image, wiring: Wiring) -> GuestSpec:
    """The guest of ``node``, with its ``volumes`` and its seed as disks."""
    disks = [Disk(v.path, v.format, f"lab-{v.name.volume}") for v in volumes]
    disks.append(Disk(wiring.seed, "raw", seed.SERIAL, readonly=True))
    return GuestSpec(
        name=node.guest,
        tags={
            "home": wiring.home,
            "owner": str(node.owner),
            "node": node.name,
            **wiring.tags,
        },
        memory=node.size.memory,
        cpus=node.size.cpus,
        disks=tuple(disks),
        network=Network(
            network.outer_mac(node.index),
            network.inner_mac(node.index),
            tuple(forwards_of(node)),
            wiring.segment,
        ),
        boot=image.boot,
        console_log=wiring.console_log,
        memory_file=wiring.memory_file,
    )


@dataclass(frozen=True)
class GuestCluster:
    """See ``lab.blueprints.Cluster``; programs run through the channels of the guests.

    ``saw`` is called with what each of them answered: another answer than before is progress.
    """

    ctx: Context
    nodes: Sequence[Node]
    saw: Callable[[Hashable], object] = field(default=lambda _: None, repr=False, compare=False)

    @property
    def members(self) -> list[Member]:
        """See Cluster."""
        return [member_of(node) for node in self.nodes]

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        """See Cluster."""
        (node,) = (node for node in self.nodes if node.name == member.name)
        channel = self.ctx.hypervisor.channel(node.guest)
        try:
            output = channel.run(argv, stdin=stdin, timeout=timeout, halt=self.ctx.progress.halt)
        except (CommandFailed, NotReady) as error:
            self.saw((member.name, *argv, str(error)))
            raise
        self.saw((member.name, *argv, output))
        return output.decode(errors="replace")

    def each(self, step: Callable[[Member], T]) -> list[T]:
        """See Cluster."""
        return each(step, self.members)
