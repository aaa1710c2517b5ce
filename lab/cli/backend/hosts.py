"""The hosts of a fleet, through a service, or from its database where that is set here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lab.errors import HostUnfit, NotFound
from lab.views.host import FleetHost

if TYPE_CHECKING:
    from lab.config.settings import Settings
    from lab.fleet.database import FleetDatabase
    from lab.views.labs import Lab


class Hosts(Protocol):
    """What ``lab host`` needs; ``lab.client.hosts.Hosts`` is another implementation."""

    def all(self) -> list[FleetHost]:
        """All hosts, by name."""

    def get(self, name: str) -> FleetHost:
        """A host; raises NotFound."""

    def drain(self, name: str, *, draining: bool = True) -> FleetHost:
        """Have no further labs placed on a host, or have them again; raises NotFound, Conflict."""

    def remove(self, name: str) -> None:
        """Forget a host that is lost, or that has neither labs nor jobs; raises Conflict."""

    def adopt(self, lab: str) -> Lab:
        """Have a foreign lab hold its name again; raises NotFound, Conflict."""


class Recorded:
    """The hosts as the database of the fleet has them."""

    def __init__(self, database: FleetDatabase) -> None:
        self._database = database

    def all(self) -> list[FleetHost]:
        """See Hosts."""
        from lab.fleet.hosts import hosts
        from lab.views.fleet import host_view

        now = time.time()
        return [host_view(one, now) for one in hosts(self._database)]

    def get(self, name: str) -> FleetHost:
        """See Hosts."""
        found = {one.name: one for one in self.all()}
        if name not in found:
            raise NotFound(f"the fleet has no host {name}", hint=f"its hosts: {', '.join(found)}")
        return found[name]

    def drain(self, name: str, *, draining: bool = True) -> FleetHost:
        """See Hosts."""
        from lab.fleet.hosts import drain

        drain(self._database, name, draining=draining)
        return self.get(name)

    def remove(self, name: str) -> None:
        """See Hosts."""
        from lab.fleet.hosts import remove

        remove(self._database, name)

    def adopt(self, lab: str) -> Lab:
        """Only a service does it: it knows its epoch."""
        raise HostUnfit(
            f"{lab} can be adopted through a service only",
            hint=f"`lab --remote URL host adopt {lab}`",
        )


@contextmanager
def recorded(settings: Settings) -> Iterator[Recorded]:
    """The hosts of the fleet of this host's settings, for the block; raises NotFound, HostUnfit."""
    if not settings.serve.database:
        raise NotFound(
            "this host belongs to no fleet",
            hint="name the service of one: `lab --remote URL host ls`, or set LAB_URL",
        )
    from lab.fleet.database import FleetDatabase

    database = FleetDatabase(settings.serve.database)
    try:
        database.check()
        yield Recorded(database)
    finally:
        database.close()
