"""How labs are reached: their address and name, and with what trust."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lab.blueprints import Endpoint, Link, Member, Release
from lab.blueprints.dialects import dialect_of, plugin_of
from lab.config.enginefile import family_of
from lab.errors import InvalidSpec
from lab.guest.network import inner_address
from lab.names import EVERYWHERE, LOOPBACK, is_loopback
from lab.observe.account import Account
from lab.passwords import NATIVE
from lab.paths import Home
from lab.state.records import LabRecord, NodeRecord
from lab.views.labs import SSL_MODE


def beyond(record: LabRecord) -> bool:
    """Whether other hosts can reach the lab, which then takes TLS."""
    return not is_loopback(record.address)


def account_of(home: Home, record: LabRecord, *, verify: bool = True) -> Account:
    """The account of a lab's user, as it is used on this host.

    ``verify``: with the server's certificate checked: while a node does not run, other users of
    this host can listen at its port. Not by the published name, which may not resolve to this
    host here. The authority is not made here: nodes have no certificate of a new one.
    """
    host = LOOPBACK if record.address == EVERYWHERE else record.address
    release = release_of(record)
    ca = str(home.ca) if dialect_of(release).tls else ""
    plugin = plugin_of(release)
    plain = plugin == NATIVE and not beyond(record)
    return Account(record.user, record.password, host, ca, verify, plain, plugin=plugin)


def release_of(record: LabRecord) -> Release:
    """The server in the image of a lab's engine."""
    return Release(record.engine, record.engine_version)


def unencrypted(release: Release) -> str:
    """Why connections to a server are not encrypted; empty: they can be."""
    if dialect_of(release).tls:
        return ""
    title = family_of(release.name).title
    return f"{title} {release.version} reads no other certificate while it runs: it has no TLS"


def dsn_of(record: LabRecord, node: NodeRecord) -> str:
    """``mysql://USER:PASSWORD@HOST:PORT/``, with how to check the server where that is needed."""
    mode = f"?ssl-mode={SSL_MODE}" if beyond(record) else ""
    host, port = published_at(record, node)
    return f"mysql://{record.user}:{record.password}@{host}:{port}/{mode}"


def links_of(record: LabRecord, nodes: Sequence[NodeRecord]) -> tuple[Link, ...]:
    """Who replicates from whom, by the lab's blueprint; nothing if it is unknown."""
    try:
        return record.plan.links(_members(nodes))
    except InvalidSpec:  # of another version of lab
        return ()


def _members(nodes: Sequence[NodeRecord]) -> list[Member]:
    return [Member(n.name, n.idx, inner_address(n.idx), n.role) for n in nodes]


def endpoints_of(record: LabRecord, nodes: Sequence[NodeRecord]) -> tuple[Endpoint, ...]:
    """What users of a lab connect to, by its blueprint; all servers if it is unknown."""
    try:
        return record.plan.endpoints(_members(nodes))
    except InvalidSpec:  # of another version of lab
        return (Endpoint("rw", tuple(node.name for node in nodes if "sql" in node.services)),)


def elects(record: LabRecord) -> bool:
    """Whether nodes elect who takes writes: only they know who is the default."""
    try:
        return record.plan.elects
    except InvalidSpec:  # of another version of lab
        return False


def follows(record: LabRecord, node: NodeRecord) -> bool:
    """Whether a node may replicate from another, by the lab's blueprint."""
    try:
        return record.plan.follows(node.role)
    except InvalidSpec:  # of another version of lab
        return False


def entry_of(
    record: LabRecord, nodes: Sequence[NodeRecord], running: Collection[str]
) -> NodeRecord:
    """The node to which users of a lab connect who name none; there is one at least.

    The first whose guest is ``running``, if there is one.
    """
    names = endpoints_of(record, nodes)[0].nodes
    found = [node for name in names for node in nodes if node.name == name]
    return next((node for node in found if node.guest in running), found[0])


def published_at(record: LabRecord, node: NodeRecord, service: str = "sql") -> tuple[str, int]:
    """The host and the port that are printed for connections to a service, SQL if none is given.

    Of a guest with an address of its own, only one port is redirected for other machines: SQL.
    """
    if service != "sql":
        host = record.host if service == "ro" and not node.redirect else LOOPBACK
        return node.guest_address or host, node.all_ports.get(service, 0)
    if node.redirect:
        return record.host, node.redirect
    return node.guest_address or record.host, node.sql_port


def addresses_of(
    record: LabRecord, nodes: Sequence[NodeRecord], endpoint: Endpoint
) -> tuple[str, ...]:
    """Where the nodes of an endpoint answer, as ``host:port``."""
    by_name = {node.name: published_at(record, node, endpoint.service) for node in nodes}
    return tuple("{}:{}".format(*by_name[name]) for name in endpoint.nodes)


def warning(address: str) -> str:
    """What to tell who publishes SQL ports at ``address``; empty for the loopback."""
    if is_loopback(address):
        return ""
    where = "all addresses of this host" if address == EVERYWHERE else address
    return f"others can reach SQL at {where}, with a lab's password and TLS"
