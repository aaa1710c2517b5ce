"""The images that labs can be made of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING

from lab.blueprints import Engine, NodePlan
from lab.errors import LabError, NotFound
from lab.hypervisor import DirectBoot, FirmwareBoot
from lab.names import Owner
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.lifecycle.core.context import Context


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
    """The images of a lab's nodes: of its ``engine``, and ``others``.

    By their recipes where nodes are planned by these, else by any names.
    """

    engine: Image
    others: Mapping[str, Image] = field(default_factory=dict, hash=False)

    def planned(self, plan: NodePlan) -> Image:
        """The image of a node that is to be made."""
        if plan.image:
            return self[plan.image]
        if plan.recipe in ("", self.engine.recipe):  # of which there may be another image
            return self.others.get(plan.recipe, self.engine)
        return self.others[plan.recipe]

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


def engine_units(ctx: Context, image: str) -> list[str]:
    """Arguments that have journalctl print the log of the engine in ``image``, a key.

    Of all recipes' engines if the image is not known or has lost its files: units that do not exist
    in a guest are ignored there.
    """
    from lab.imagebuild.manifest import read
    from lab.imagebuild.recipe import load, recipes

    units: set[str] = set()
    with suppress(LabError):
        units = {read(ctx.home.image(image)).service} if image else units
    units = units or {load(name).service for name in recipes()}
    return [argument for unit in sorted(units) for argument in ("-u", unit)]
