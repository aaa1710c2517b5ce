"""The images that labs can be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lab.blueprints import Engine, NodePlan
from lab.errors import NotFound
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


@dataclass(frozen=True)
class Images:
    """The images of a lab's nodes: of its ``engine``, and ``others`` by their recipes."""

    engine: Image
    others: Mapping[str, Image] = field(default_factory=dict, hash=False)

    def planned(self, plan: NodePlan) -> Image:
        """The image of a node that is to be made."""
        return self.others[plan.recipe] if plan.recipe else self.engine

    def __getitem__(self, key: str) -> Image:
        """The image of that key, the engine's if it is empty; raises NotFound.

        It is empty in manifests of captures that were made before nodes could differ.
        """
        found = [image for image in self.all if key in ("", image.key)]
        if not found:
            raise NotFound(f"{key} is no image of this lab", hint="`lab image ls` lists them")
        return found[0]

    @property
    def all(self) -> tuple[Image, ...]:
        """Each of them, the engine's first."""
        return tuple({one.key: one for one in (self.engine, *self.others.values())}.values())
