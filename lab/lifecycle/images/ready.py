"""An image that labs can be made of."""

from __future__ import annotations

from dataclasses import dataclass

from lab.blueprints import Engine
from lab.hypervisor import DirectBoot, FirmwareBoot
from lab.names import Owner


@dataclass(frozen=True)
class Image:
    """An image that is ready for use. ``volumes``: the names of a node's disks, os first."""

    key: str
    recipe: str
    boot: DirectBoot | FirmwareBoot
    engine: Engine
    volumes: tuple[str, ...] = ("os",)

    @property
    def grows(self) -> str:
        """The volume that is larger where a node is given a larger disk."""
        return "data" if "data" in self.volumes else "os"

    @property
    def owner(self) -> Owner:
        """Whom its volumes belong to."""
        return Owner("image", self.key)
