"""Images and templates, as requests ask for them and the service tells of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from api.models import WORD, Asked, Cluster


class ImageRequest(Asked):
    """An image to be built."""

    recipe: Annotated[str, Field(pattern=WORD, examples=["mariadb"])]
    rebuild: Annotated[bool, Field(description="Even if it is there.")] = False


class TemplateRequest(Cluster):
    """A template to be made, for labs that are asked for in the same words."""


class Image(BaseModel):
    """An image."""

    key: str
    recipe: str
    engine: str
    engine_version: str
    state: str
    size: int
    created_at: float
    build_seconds: float
    used_by: Annotated[list[str], Field(description="Templates and labs; for admins.")]
    use: str
    used_at: float


class Template(BaseModel):
    """A template."""

    key: str
    blueprint: str
    image: str
    nodes: int
    memory: int
    cpus: int
    disk: int
    state: str
    warm: bool
    size: int
    created_at: float
    used_at: float
    form_seconds: float
    profile: str
    use: str
    why: Annotated[
        str, Field(description="Why it is broken, or why its RAM is no longer restored.")
    ]
