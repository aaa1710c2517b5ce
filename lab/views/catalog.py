"""Images, engines and templates, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lab.views.labs import PlannedNode

Use = Literal["current", "stale", "unused"]
"""The use of an image or a template: ``current``: the next lab of its kind is cloned from it;
``stale``: only existing labs are; ``unused``: no lab is, and a part of its key has changed."""


@dataclass(frozen=True)
class ImageView:
    """An image. ``key`` is its content key; ``used_by`` names templates and labs."""

    key: str
    recipe: str
    engine: str
    engine_version: str
    state: str
    size: int
    created_at: float
    build_seconds: float
    used_by: tuple[str, ...] = ()
    use: Use = "current"
    used_at: float = 0.0
    facts: Mapping[str, str] = field(default_factory=dict)


Buildable = Literal["yes", "failed", "unreachable", "unfit"]

BUILDABLE: Mapping[Buildable, str] = {
    "yes": "nothing is known that prevents it",
    "failed": "it could not be built, or its cluster did not form, within the last day",
    "unreachable": "its repository did not answer",
    "unfit": "this host lacks a program that a build needs",
}
"""Whether a host can build an image now, and the meanings."""


@dataclass(frozen=True)
class EngineView:
    """A series of an engine."""

    name: str
    """The name in requests, such as ``mariadb:10.11``."""
    server: str
    """The server that runs in the guests."""
    default: bool
    """Whether the engine without a series means this one."""
    recipe: str
    blueprints: tuple[str, ...]
    """The blueprints that run on it."""
    packages: tuple[str, ...]
    """Debian's release, and the URLs of further repositories."""
    build: Buildable
    """Whether this host can build its image now."""
    why: str = ""
    """Why this host cannot build it."""
    images: tuple[str, ...] = ()
    """The keys of its images."""
    templates: tuple[str, ...] = ()
    """The keys of templates of these images."""


@dataclass(frozen=True)
class TemplateView:
    """A template."""

    key: str
    blueprint: str
    image: str
    """The key of its engine's image."""
    nodes: int
    memory: int
    """Memory, processors and disk are the size that was requested for a node."""
    cpus: int
    disk: int | None
    state: str
    """``building``, ``ready`` or ``broken``."""
    warm: bool
    """Whether its RAM is restored."""
    size: int
    created_at: float
    used_at: float
    form_seconds: float
    profile: str = ""
    use: Use = "current"
    why: str = ""
    """Why it is broken, or why its RAM is no longer restored; else empty."""
    each: tuple[PlannedNode, ...] = ()
    """The nodes, one by one."""
    source: str = ""
    """The snapshot of a lab in use that it was captured from, as ``shop@loaded``; empty for one
    of a freshly formed cluster."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of its labs, as ``Options.shown`` returns them."""

    @property
    def node_count(self) -> int:
        """How many nodes it has, with proxies, arbiters and replicas of a remote site."""
        return len(self.each) or self.nodes
