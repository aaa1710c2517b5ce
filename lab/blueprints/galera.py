"""A Galera cluster: every node a member, all of them writable.

All nodes start from one data directory that was cleanly closed, so there is nothing to
transfer. Each is also given the file in which Galera notes its last primary view
(``gvwstate.dat``), forged so that all of them were members of one: they find each other and
restore that view together (``pc.recovery``) instead of one bootstrapping and the others
joining. Format: the Galera documentation, "Recovering Primary Component".
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field

from lab.blueprints import (
    CLIENT,
    Blueprint,
    Cluster,
    Condition,
    Endpoint,
    Engine,
    Member,
    NodePlan,
    Release,
    Remedy,
    Situation,
    proxy,
    rejoin,
    server,
)
from lab.blueprints.proxies import RoleQuery, Traffic
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.sizes import NodeSize
from lab.values import dataclass

_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
_SYNCED = (
    RoleQuery("SHOW GLOBAL STATUS LIKE 'wsrep_ready'", "ON"),
    RoleQuery("SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'", "Synced"),
)
_TRAFFIC = Traffic(_SYNCED, _SYNCED, "wsrep_node_name", alike=True)
_ARBITER_VIEW = "/var/lib/garbd/gvwstate.dat"
_STATE = f"""\
# GALERA saved state
version: 2.1
uuid:    {uuid.uuid5(_NAMESPACE, "lab/galera")}
seqno:   0
safe_to_bootstrap: 0
"""
"""Where members start that are of several images: each image has a history of its own, and with
different ones they would transfer state instead of forming. No user's data are in any of them."""


@dataclass(frozen=True, kw_only=True)
class Galera(server.Defaults):
    """See Blueprint."""

    name: str
    engines: Mapping[str, str] = field(hash=False)
    """``pxc`` prefers Percona's, ``galera`` is MariaDB's."""
    version: int = 1
    transfers: bool = True
    needs: tuple[str, ...] = ("galera",)
    transient: str = "WSREP has not yet prepared|Lock wait timeout|Deadlock found"
    """The errors 1047, 1205 and 1213."""
    flush: tuple[str, ...] = ("FLUSH ENGINE LOGS", "FLUSH LOCAL ENGINE LOGS")
    """First a replicated statement that changes nothing: executing it, a node notes its position in
    the cluster's history, which MariaDB omits after a CREATE TABLE ... SELECT of its own. A node
    whose tables are ahead of its position would receive that again when it starts, and leave as
    inconsistent. Then the redo log, and with it the position."""
    takes: frozenset[str] = server.COMMON | {"node", "proxy", "arbiter"}

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        if self.options.arbiter and self.nodes < 2:
            raise InvalidSpec(
                "an arbiter votes in a cluster of two members at least",
                hint="such as --nodes 2 --arbiter",
            )
        return (*self._planned(size), *proxy.plan(self.options, self.nodes))

    def _planned(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """The members of the cluster that have a server."""
        names = (node_name(number) for number in range(1, self.nodes + 1))
        return tuple(NodePlan(name, "member", size) for name in names)

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint."""
        if member.role == proxy.PROXY:
            return proxy.files(members, engine, self.options, _TRAFFIC)
        if member.role == CLIENT:
            return proxy.of_client(members, engine)
        members = proxy.voters(members)
        if member.role == proxy.ARBITER:
            view = SeedFile(_view(member, members).encode(), 0o660, engine.uid, engine.gid)
            option_file = proxy.garbd(member, members, engine)
            return {engine.config_path: option_file, _ARBITER_VIEW: view}
        peers = ",".join(other.address for other in members)
        more = {
            "node_name": member.name,
            "node_address": member.address,
            "cluster_name": "lab",
            # A node alone has no one to find: it always starts a cluster of its own.
            "cluster_address": f"gcomm://{peers}" if len(members) > 1 else "gcomm://",
        }
        config = server.options(member, engine, memory, profile, more)
        files = {engine.config_path: SeedFile(config.encode())}
        files |= proxy.checks(member, self.options, _TRAFFIC)
        if len(members) > 1:
            view = SeedFile(_view(member, members).encode(), 0o660, engine.uid, engine.gid)
            files["/var/lib/mysql/gvwstate.dat"] = view
        if self.options.node:
            state = SeedFile(_STATE.encode(), 0o660, engine.uid, engine.gid)
            files["/var/lib/mysql/grastate.dat"] = state
        return files

    def question(
        self,
        role: str,  # noqa: ARG002  part of the protocol
        reported: Mapping[str, Mapping[str, str]],  # noqa: ARG002  part of the protocol
        release: Release,  # noqa: ARG002  part of the protocol
    ) -> str:
        """See Blueprint."""
        # LIKE, not WHERE: the server then computes only these of its hundreds of variables.
        return "SHOW GLOBAL STATUS LIKE 'wsrep_%'"

    def through(self, role: str) -> Mapping[str, str]:
        """See Blueprint."""
        return proxy.through(self.options, _TRAFFIC) if role == proxy.PROXY else {}

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:
        """See Blueprint; an arbiter is a node of the cluster."""
        if role in (proxy.ARBITER, CLIENT):
            return ()
        if role == proxy.PROXY:
            return proxy.requirements(self.options, _TRAFFIC, self.nodes)
        return (
            Condition("Synced", "wsrep_local_state_comment", "Synced", "not-synced"),
            Condition("Primary", "wsrep_cluster_status", "Primary", "not-primary"),
            Condition(f"size {nodes}", "wsrep_cluster_size", str(nodes), "degraded"),
            Condition("wsrep_ready", "wsrep_ready", "ON", "not-synced"),
        )

    def position(self, answer: Mapping[str, str]) -> str:
        """See Blueprint; the history's UUID and the seqno, as in ``grastate.dat``."""
        history, seqno = answer.get("wsrep_cluster_state_uuid"), answer.get("wsrep_last_committed")
        return f"{history}:{seqno}" if history and seqno else ""

    def personalise_statements(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        user: str,
        password: str,
        *,
        tls: bool = False,
    ) -> Sequence[str]:
        """See Blueprint."""
        if member != members[0]:  # accounts are replicated: one node changes them for all
            return [*self.renewal(engine)]
        accounts = server.accounts(engine, user, password, self.options, tls=tls)
        return [*self.renewal(engine), *accounts]

    def rest(self, cluster: Cluster, engines: Mapping[str, Engine]) -> None:
        """See Blueprint."""
        rejoin.rest(proxy.voters_of(cluster), engines)

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """See Blueprint; nodes restore a view of other members, at the position they share."""
        rejoin.settle(proxy.servers_of(cluster))
        cluster = proxy.voters_of(cluster)
        last = str(rejoin.stop(cluster, engines))
        namespace = uuid.uuid5(_NAMESPACE, str(identity))
        history = (str(uuid.uuid5(namespace, "lab")), last)

        def restart(member: Member) -> None:
            view = _view(member, cluster.members, namespace) if len(cluster.members) > 1 else ""
            self._restart(cluster, member, engines[member.name], identity, history, view)

        cluster.each(restart)

    def _restart(
        self,
        cluster: Cluster,
        member: Member,
        engine: Engine,
        identity: int,
        history: tuple[str, str],
        view: str,
    ) -> None:
        """Give ``member`` identities; see ``server.identify``."""
        server.identify(cluster, member, engine, identity, *history, view=view)

    def standing(self, engine: Engine) -> tuple[str, ...]:
        """See Blueprint."""
        return rejoin.program("state", engine)

    def unchanging(self, standing: str) -> str:
        """See Blueprint."""
        return rejoin.unchanging(standing)

    def remark(self, standing: str) -> str:
        """See Blueprint."""
        return rejoin.remark(standing)

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """See Blueprint."""
        return rejoin.remedies(situation, engines)

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint; all nodes are writable."""
        members = tuple(node.name for node in proxy.servers(nodes))
        return proxy.endpoints((Endpoint("rw", members),), nodes, self.options)


def _view(member: Member, members: Sequence[Member], namespace: uuid.UUID = _NAMESPACE) -> str:
    # A group channel's UUIDs are time-based ones; any distinct values do.
    identities = {o.name: str(uuid.uuid5(namespace, f"lab/{o.name}")) for o in members}
    ordered = sorted(identities.values())
    lines = [
        f"my_uuid: {identities[member.name]}",
        "#vwbeg",
        f"view_id: 3 {ordered[0]} 1",
        "bootstrap: 0",
        *(f"member: {identity} 0" for identity in ordered),
        "#vwend",
    ]
    return "".join(f"{line}\n" for line in lines)


_MARIADB = {"mariadb": "MariaDB with Galera"}
_PERCONA = {"percona-xtradb-cluster": "Percona XtraDB Cluster"}
PXC: Blueprint = Galera(name="pxc", engines={**_PERCONA, **_MARIADB})
GALERA: Blueprint = Galera(name="galera", engines=_MARIADB)
