"""The requests for images and templates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lab.api.http.models import ENGINE, Asked, Cluster


class ImageRequest(Asked):
    """An image to build."""

    recipe: Annotated[
        str,
        Field(
            pattern=ENGINE,
            description="A recipe, or an engine that has just one.",
            examples=["mariadb:10.11"],
        ),
    ]
    rebuild: Annotated[bool, Field(description="Build it even if it exists.")] = False


class TemplateRequest(Cluster):
    """A template to build, for labs that are requested with the same fields."""
