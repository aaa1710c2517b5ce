"""The systemd units of engines: what the manifest of an image says."""

from __future__ import annotations

from lab.errors import LabError
from lab.imagebuild.manifest import read
from lab.imagebuild.recipe import load, recipes
from lab.lifecycle.core.context import Context


def engine_units(ctx: Context, image: str) -> list[str]:
    """Arguments that have journalctl print the log of the engine in ``image``, a key.

    Of all recipes' engines if the image is not known or has lost its files: units that do not exist
    in a guest are ignored there.
    """
    units = _units(ctx, image) if image else []
    return [argument for unit in units or _all_units() for argument in ("-u", unit)]


def _units(ctx: Context, image: str) -> list[str]:
    try:
        return [read(ctx.home.image(image)).service]
    except LabError:
        return []


def _all_units() -> list[str]:
    return sorted({load(name).service for name in recipes()})
