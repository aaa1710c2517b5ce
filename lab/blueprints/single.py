"""One server that is in no cluster; MariaDB from the image that the Galera blueprints use too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from lab.blueprints import (
    CLIENT,
    Blueprint,
    Condition,
    Endpoint,
    Engine,
    Member,
    NodePlan,
    Release,
    proxy,
    server,
)
from lab.blueprints.dialects import dialect_of
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.sizes import NodeSize
from lab.values import dataclass

_ENGINES = {"mariadb": "MariaDB", "mysql": "MySQL"}


@dataclass(frozen=True)
class Single(server.Defaults):
    """See Blueprint."""

    name: str = "single"
    version: int = 1
    engines: Mapping[str, str] = field(default_factory=lambda: dict(_ENGINES), hash=False)
    flush: tuple[str, ...] = ("FLUSH ENGINE LOGS",)

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        if self.nodes != 1:
            raise InvalidSpec(
                f"{self.name} has exactly one node, not {self.nodes}",
                hint="leave out the number of nodes, or use a cluster: pxc or galera",
            )
        return (NodePlan(node_name(1), "server", size), *proxy.plan(self.options, self.nodes))

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint."""
        if member.role == CLIENT:
            return proxy.of_client(members, engine)
        text = server.options(member, server.alone(engine), memory, profile)
        return {engine.config_path: SeedFile((text + dialect_of(engine).unlogged).encode())}

    def question(
        self,
        role: str,  # noqa: ARG002  part of the protocol
        reported: Mapping[str, Mapping[str, str]],  # noqa: ARG002  part of the protocol
        release: Release,
    ) -> str:
        """See Blueprint."""
        # Not SHOW VARIABLES: it compares each of the server's hundreds of variables.
        read_only = dialect_of(release).asked.read_only.format(variable="@@GLOBAL.read_only")
        return f"SELECT 'read_only', {read_only}"

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:  # noqa: ARG002
        """See Blueprint."""
        if role == CLIENT:
            return ()
        hint = "`SET GLOBAL read_only = OFF` lets it accept writes again"
        return (Condition("writable", "read_only", "OFF", "degraded", hint),)

    def personalise_statements(
        self,
        member: Member,  # noqa: ARG002  part of the protocol
        members: Sequence[Member],  # noqa: ARG002  part of the protocol
        engine: Engine,
        user: str,
        password: str,
        *,
        tls: bool = False,
    ) -> Sequence[str]:
        """See Blueprint."""
        accounts = server.accounts(engine, user, password, self.options, tls=tls)
        return [*self.renewal(engine), *accounts]

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint."""
        return (Endpoint("rw", tuple(node.name for node in proxy.servers(nodes))),)


SINGLE: Blueprint = Single()
