"""The hosts of a fleet, through the service of any of them."""

from __future__ import annotations

from lab.client.models import read, read_lab
from lab.client.transport import Wire, path_of
from lab.views.host import FleetHost
from lab.views.labs import Lab


class Hosts:
    """The hosts of a fleet; its methods raise as those of ``Client`` do."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def all(self) -> list[FleetHost]:
        """All hosts, by name; raises NotFound if the service belongs to no fleet."""
        return [read(item, FleetHost) for item in self._wire.items(path_of("hosts"), {})]

    def get(self, name: str) -> FleetHost:
        """A host; raises NotFound."""
        return read(self._wire.ask("GET", path_of("hosts", name)).body, FleetHost)

    def drain(self, name: str, *, draining: bool = True) -> FleetHost:
        """Have no further labs placed on a host, or have them again; raises NotFound, Conflict."""
        verb = "drain" if draining else "undrain"
        return read(self._wire.ask("POST", path_of("hosts", name, verb)).body, FleetHost)

    def remove(self, name: str) -> None:
        """Forget a host that is lost, or that has neither labs nor jobs; raises Conflict."""
        self._wire.ask("DELETE", path_of("hosts", name))

    def adopt(self, lab: str) -> Lab:
        """Have a foreign lab, ``NAME@HOST``, hold its name again; raises NotFound, Conflict."""
        return read_lab(self._wire.ask("POST", path_of("labs", lab, "adopt")).body)
