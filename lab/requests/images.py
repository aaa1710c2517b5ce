"""Requests about images and templates."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lab.names import ENGINE
from lab.request import HOST_ONLY, FieldMark, Request
from lab.spec import LabSpec


class BuildTemplate(LabSpec, frozen=True, kw_only=True):
    """A template to build, for labs that are requested with the same fields."""

    LATER = (*LabSpec.LATER, "with_ram")

    # Unused; but they are written into rows, as of every cluster.
    name: Annotated[str, HOST_ONLY] = ""
    ttl: Annotated[float | None, HOST_ONLY] = None
    snapshots: Annotated[str, HOST_ONLY] = ""
    with_ram: Annotated[bool, HOST_ONLY] = False
    """Whether one that has no RAM is followed by one that is formed here."""


class DeleteTemplate(Request, frozen=True, kw_only=True):
    """The removal of a template."""

    key: Annotated[str, FieldMark("about", "template")] = ""


class BuildImage(Request, frozen=True, kw_only=True):
    """An image to build."""

    recipe: Annotated[
        str,
        Meta(
            pattern=ENGINE,
            description="A recipe, or an engine that has just one.",
            examples=["mariadb:10.11"],
        ),
    ]
    rebuild: Annotated[bool, Meta(description="Build it even if it exists.")] = False


class DeleteImage(Request, frozen=True, kw_only=True):
    """The removal of an image."""

    which: Annotated[str, FieldMark("about", "image")] = ""
    """Its key or recipe."""
