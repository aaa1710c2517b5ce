"""A blueprint whose nodes differ in image, size, role and services: a server, and a front end.

Another has an arbiter as well, which has no SQL. ``register`` puts both into the table of
blueprints for one test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from lab import blueprints
from lab.blueprints import (
    SERVICES,
    Blueprint,
    Condition,
    Endpoint,
    Engine,
    Member,
    NodePlan,
    Service,
)
from lab.blueprints.single import Single
from lab.config.profile import EngineProfile
from lab.guest.seed import SeedFile
from lab.sizes import NodeSize
from lab.units import MIB

FRONT = NodePlan(
    "n2",
    "front",
    NodeSize(memory=512 * MIB, cpus=2),
    "percona-xtradb-cluster",
    (Service("sql", 6033), Service("ssh", 22), Service("admin", 6032)),
)
"""Its server listens at another port than others, and has one more."""

ARBITER = NodePlan("n3", "arbiter", NodeSize(memory=384 * MIB), services=(Service("ssh", 22),))
"""It has no server that is asked anything."""


@dataclass(frozen=True)
class Mixed(Single):
    """See Blueprint; the second node is ``front``, the first as requested, then ``others``."""

    name: str = "mixed"
    front: NodePlan = FRONT
    others: tuple[NodePlan, ...] = ()

    def plan(self, size: NodeSize) -> tuple[NodePlan, ...]:
        """See Blueprint."""
        first = NodePlan("n1", "server", size, services=SERVICES)
        return (first, self.front, *self.others)

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint."""
        if member.role == "arbiter":
            return {}
        if member.role != "front":
            return super().files(member, members, engine, memory, profile)
        return {engine.config_path: SeedFile(f"# {memory}\nport = 6033\n".encode())}

    def requirements(self, role: str, nodes: int) -> tuple[Condition, ...]:
        """See Blueprint; what a front end must be follows from its role."""
        if role == "arbiter":
            return ()
        name = "writable" if role == "server" else "open"
        return (Condition(f"{name} of {nodes}", "read_only", "OFF"),)

    def endpoints(self, nodes: Sequence[Member]) -> tuple[Endpoint, ...]:
        """See Blueprint; users connect to the front end."""
        front = tuple(node.name for node in nodes if node.role == "front")
        servers = tuple(node.name for node in nodes if node.role == "server")
        return (
            Endpoint("rw", front),
            Endpoint("server", servers),
            Endpoint("admin", front, "admin"),
        )


MIXED: Blueprint = Mixed()
WATCHED: Blueprint = Mixed("watched", others=(ARBITER,))


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``mixed`` and ``watched`` be blueprints until the test is over."""
    monkeypatch.setitem(blueprints.KNOWN, MIXED.name, f"{__name__}:MIXED")
    monkeypatch.setitem(blueprints.KNOWN, WATCHED.name, f"{__name__}:WATCHED")
