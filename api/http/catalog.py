"""The models of images and templates."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from lab.api.http.models import ENGINE, Asked, Cluster
from lab.api.http.units import Time
from lab.views import catalog as views
from lab.views import labs
from lab.views.catalog import ImageView, TemplateView


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

    @staticmethod
    def of(view: ImageView, *, with_users: bool) -> Image:
        """``view`` as the API returns it; ``with_users``: with ``used_by``."""
        return Image(
            key=view.key,
            recipe=view.recipe,
            engine=view.engine,
            engine_version=view.engine_version,
            state=view.state,
            size=view.size,
            created_at=view.created_at,
            build_seconds=view.build_seconds,
            used_by=list(view.used_by) if with_users else [],
            use=view.use,
            used_at=view.used_at,
        )


class Engine(BaseModel):
    """A series of an engine."""

    name: Annotated[str, Field(description="What `engine` takes.", examples=["mariadb:10.11"])]
    server: Annotated[str, Field(examples=["Percona Server 8.4"])]
    default: Annotated[bool, Field(description="Whether the engine without a series means it.")]
    recipe: Annotated[str, Field(description="Of its image.")]
    blueprints: Annotated[list[str], Field(description="Which run on it.")]
    packages: Annotated[list[str], Field(description="Where they come from.")]
    build: Annotated[
        str,
        Field(
            description="Whether the host can build its image now: "
            + "; ".join(f"{word}: {meaning}" for word, meaning in views.BUILDABLE.items())
        ),
    ]
    why: Annotated[str, Field(description="Why it cannot, if so.")]
    images: Annotated[list[str], Field(description="The keys of those that are built.")]
    templates: Annotated[list[str], Field(description="The keys of those formed of them.")]

    @staticmethod
    def of(view: views.EngineView, *, with_why: bool) -> Engine:
        """``view`` as the API returns it; ``with_why``: with the reason, which names files."""
        return Engine(**{**vars(view), "why": view.why if with_why else ""})


class PlannedNode(BaseModel):
    """A node of a template, or of a lab that would be created."""

    name: Annotated[str, Field(examples=["n1"])]
    image: Annotated[str, Field(description="The key of its image.")]
    memory: Annotated[int, Field(description="In bytes.")]
    cpus: int
    disk: Annotated[int | None, Field(description="In bytes; null: the image's.")]

    @staticmethod
    def of(view: labs.PlannedNode) -> PlannedNode:
        """``view`` as the API returns it."""
        return PlannedNode(**vars(view))


class Template(BaseModel):
    """A template."""

    key: str
    blueprint: str
    image: str
    nodes: int
    memory: Annotated[int, Field(description="As requested for a node, in bytes.")]
    cpus: int
    disk: Annotated[int | None, Field(description="As requested, in bytes; null: the image's.")]
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
    each: list[PlannedNode]
    source: Annotated[
        str,
        Field(
            description="The snapshot of a lab in use that it was captured from; else empty.",
            examples=["shop@before-upgrade.20261121t110000"],
        ),
    ]
    options: Annotated[
        dict[str, Any], Field(description="Of its blueprint; files by their digests.")
    ]

    @staticmethod
    def of(view: TemplateView) -> Template:
        """``view`` as the API returns it."""
        return Template(
            key=view.key,
            blueprint=view.blueprint,
            image=view.image,
            nodes=view.nodes,
            memory=view.memory,
            cpus=view.cpus,
            disk=view.disk,
            state=view.state,
            warm=view.warm,
            size=view.size,
            created_at=view.created_at,
            used_at=view.used_at,
            form_seconds=view.form_seconds,
            profile=view.profile,
            use=view.use,
            why=view.why,
            each=[PlannedNode.of(node) for node in view.each],
            source=view.source,
            options=dict(view.options),
        )
