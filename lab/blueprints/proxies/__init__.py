"""The proxies of blueprints: one a file; ``lab.blueprints.proxy`` has them by name.

Each server has a resident checker (``/usr/lib/lab/check`` in its guest) that answers over HTTP
whether its server takes writes now (``/rw``) and whether it can be read from (``/ro``): 200 or
503. A proxy asks that, by itself or by a program beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lab.blueprints import Engine, Member, Service
from lab.guest.seed import SeedFile
from lab.values import dataclass

RO_PORT, CHECK_PORT = 3307, 9200
"""Of a proxy's guest, for reads; of a server's checker."""


@dataclass(frozen=True)
class RoleQuery:
    """A question of the checker: it holds when the first row of ``statement`` has ``text`` in it.

    Statements are of kinds that are not counted as use of a lab
    (``lab.lifecycle.service.activity``), so no SELECT.
    """

    statement: str
    text: str = ""
    """Values of columns that are next to each other, with spaces between; one of several, with
    ``|`` between. Empty: the statement has no rows and only has to succeed."""


@dataclass(frozen=True)
class Traffic:
    """Which servers of a blueprint get which statements."""

    writes: tuple[RoleQuery, ...]
    """What holds on a server that takes writes."""
    reads: tuple[RoleQuery, ...]
    """What holds on a server to read from."""
    variable: str = "read_only"
    """The variable of servers by whose value it is seen where a statement arrived: ``read_only``,
    or the name of the node where servers are alike."""
    alike: bool = False
    """Whether all servers take writes, and the first of those that do is given them all."""
    spread: bool = False
    """Whether writes go to all servers that take them."""


class Proxy(Protocol):
    """A proxy: what its node runs and boots with.

    Its guest answers at the port for SQL, for writes, and at ``RO_PORT``, for reads.
    """

    @property
    def recipe(self) -> str:
        """The recipe of its image."""

    @property
    def seed(self) -> str:
        """The path of a file that no other node boots with."""

    @property
    def pages(self) -> tuple[Service, ...]:
        """Its services that are pages, such as statistics: ready when the HTTP status is 200."""

    @property
    def counts_delayed(self) -> bool:
        """Whether delayed replicas, which it reads from last, count among those it reads from."""

    def files(
        self, servers: Sequence[Member], engine: Engine, traffic: Traffic
    ) -> Mapping[str, SeedFile]:
        """What it boots with in front of ``servers``, by absolute path.

        ``engine``: the proxy in its image, with the template of its configuration.
        """
