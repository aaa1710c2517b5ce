"""One server that is in no cluster; MariaDB from the image that the Galera blueprints use too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lab.blueprints import (
    Blueprint,
    Cluster,
    Condition,
    Endpoint,
    Engine,
    Member,
    NodePlan,
    Remedy,
    Situation,
    server,
)
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.seed import SeedFile
from lab.names import node_name
from lab.spec import LabSpec
from lab.wait import Deadline

_ENGINES = {"mariadb": "MariaDB", "mysql": "MySQL"}


@dataclass(frozen=True)
class Single:
    """See Blueprint."""

    name: str = "single"
    version: int = 1
    engines: Mapping[str, str] = field(default_factory=lambda: dict(_ENGINES), hash=False)
    transient: str = "Lock wait timeout|Deadlock found"
    flush: tuple[str, ...] = ("FLUSH ENGINE LOGS",)

    def plan(self, spec: LabSpec) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        if spec.nodes != 1:
            raise InvalidSpec(
                f"{self.name} has exactly one node, not {spec.nodes}",
                hint="leave out the number of nodes, or use a cluster: pxc or galera",
            )
        return (NodePlan(node_name(1), "server", spec.size),)

    def files(
        self,
        member: Member,
        members: Sequence[Member],  # noqa: ARG002  part of the protocol
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint."""
        text = server.options(member, server.alone(engine), memory, profile)
        if not server.is_mariadb(engine):  # which has none unless it is asked to
            text += "\n[mysqld]\nskip_log_bin\n"
        return {engine.config_path: SeedFile(text.encode())}

    def form(self, cluster: Cluster, engines: Mapping[str, Engine], deadline: Deadline) -> None:
        """See Blueprint."""

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:  # noqa: ARG002
        """See Blueprint."""
        return ()

    def question(self, role: str, reported: Mapping[str, Mapping[str, str]]) -> str:  # noqa: ARG002
        """See Blueprint."""
        return "SHOW GLOBAL VARIABLES LIKE 'read_only'"

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:  # noqa: ARG002
        """See Blueprint."""
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
        return [self.renew(engine), server.unlock(engine, user, password, tls=tls)]

    def renew(self, engine: Engine) -> str:
        """See Blueprint."""
        return server.renew(engine)

    def rest(self, cluster: Cluster, engines: Mapping[str, Engine]) -> None:
        """See Blueprint; the guest's shutdown stops the server cleanly."""

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """See Blueprint."""
        server.identify_apart(cluster, engines, identity)

    def standing(self, engine: Engine) -> tuple[str, ...]:
        """See Blueprint."""
        return server.standing(engine)

    def unchanging(self, standing: str) -> str:
        """See Blueprint."""
        return server.state(standing)

    def remark(self, standing: str) -> str:  # noqa: ARG002  part of the protocol
        """See Blueprint."""
        return ""

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """See Blueprint; the server recovers by itself, unless it has ended."""
        return server.restarts(situation, engines)

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint."""
        return (Endpoint("rw", tuple(node.name for node in nodes)),)


SINGLE: Blueprint = Single()
