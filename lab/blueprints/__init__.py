"""How nodes become a cluster: one topology a file, pure configuration and checks.

A blueprint touches nothing itself: it says which files a node boots with, which statements
make a clone itself, and how one reads from a node's answers whether it is ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.seed import SeedFile
from lab.suggest import did_you_mean


@dataclass(frozen=True)
class Engine:
    """The engine in an image, as far as blueprints depend on it.

    ``config``: the template of its my.cnf, ``config_path`` where a node's goes in the guest;
    ``user``, ``uid``, ``gid``: who the server runs as there; ``log_directory``: where it
    keeps its logs, which may be a volume of their own.
    """

    name: str
    version: str
    config: str
    config_path: str
    user: str
    uid: int
    gid: int
    log_directory: str = "/var/lib/mysql"


@dataclass(frozen=True)
class Member:
    """One node of a lab to be: ``index`` counts from 1, ``address`` is on the lab's segment."""

    name: str
    index: int
    address: str


Unmet = Literal["degraded", "not-synced", "not-primary"]
"""States of a node that answers but does not meet a requirement, the worst last: it accepts
statements, but its cluster is incomplete; it is joining, donating or desynced; it is in no primary
component."""


@dataclass(frozen=True)
class Check:
    """A requirement of a node. ``name``: in a word or two, ``what``: so that it can be looked up.

    ``found``: the value that was found. ``unmet``: the state of the node while it is not met.
    """

    name: str
    what: str
    met: bool
    found: str
    unmet: Unmet = "degraded"


@dataclass(frozen=True)
class Remedy:
    """What helps a node back into its cluster.

    ``order`` is one of the guest's program ``rejoin``: start the server again; start the cluster
    from this node's data; forget this node's data, so that it is given another's.
    """

    node: str
    order: Literal["restart", "bootstrap", "transfer"]
    why: str


class Blueprint(Protocol):
    """A topology."""

    @property
    def name(self) -> str:
        """What it is asked for by."""

    @property
    def version(self) -> int:
        """Raised when what ``files`` gives changes so that older templates must not serve."""

    @property
    def engines(self) -> tuple[str, ...]:
        """Recipes that can be used, the preferred one first."""

    def roles(self, nodes: int) -> list[str]:
        """The role of each node."""

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """What ``member`` boots with, by absolute path; ``memory`` of the node in bytes."""

    def own(
        self, member: Member, engine: Engine, user: str, password: str, *, tls: bool = False
    ) -> Sequence[str]:
        """The statements that make a cloned ``member`` itself. No password in clear text.

        ``tls``: the user is let in through TLS only.
        """

    def renew(self, engine: Engine) -> str:
        """The statement that has a server read its certificate and key anew."""

    def question(self) -> str:
        """The statement whose rows (name, value) ``checks`` wants."""

    def checks(self, answer: Mapping[str, str], nodes: int) -> list[Check]:
        """What a node must meet to be ready in a lab of ``nodes``, by the ``answer`` it gave."""

    def remedies(
        self, standings: Mapping[str, str], *, all_here: bool, waited: bool
    ) -> list[Remedy]:
        """What nodes need that booted and will not become a cluster by themselves; often nothing.

        ``standings``: what ``rejoin state`` says in each running node. ``all_here``: those are
        all nodes of the lab. ``waited``: they had all the time that they could need. Raises
        NotReady if only the nodes that do not run could help.
        """


BLUEPRINTS = ("pxc", "galera")
"""The names that ``blueprint`` knows."""


def blueprint(name: str) -> Blueprint:
    """The blueprint of that name; raises InvalidSpec."""
    from lab.blueprints.galera import GALERA, PXC

    known: dict[str, Blueprint] = {"pxc": PXC, "galera": GALERA}
    if name not in known:
        raise InvalidSpec(
            f"there is no blueprint {name!r}",
            hint=did_you_mean(name, known, otherwise=f"blueprints: {', '.join(known)}"),
        )
    return known[name]
