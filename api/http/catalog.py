"""Images and templates, as requests ask for them and the service tells of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from lab.api.http.models import WORD, Asked, Cluster
from lab.api.http.units import Time


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
    size: Annotated[int, Field(description="In bytes.")]
    created_at: Time
    build_seconds: float
    used_by: Annotated[list[str], Field(description="Templates and labs; for admins.")]
    use: str
    used_at: Time


class Template(BaseModel):
    """A template."""

    key: str
    blueprint: str
    image: str
    nodes: int
    memory: Annotated[int, Field(description="Of a node, in bytes.")]
    cpus: int
    disk: Annotated[int, Field(description="Of a node, in bytes; 0: the image's.")]
    state: str
    warm: bool
    size: Annotated[int, Field(description="In bytes.")]
    created_at: Time
    used_at: Time
    form_seconds: float
    profile: str
    use: str
    why: Annotated[
        str, Field(description="Why it is broken, or why its RAM is no longer restored.")
    ]
