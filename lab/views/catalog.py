"""Images, engines and templates, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from lab.marks import ForAdmins, HostOnly, Public, Time, public
from lab.values import dataclass
from lab.views.labs import PlannedNode, RequestedView

Use = Literal["current", "stale", "unused"]
"""The use of an image or a template: ``current``: the next lab of its kind is cloned from it;
``stale``: only existing labs are; ``unused``: no lab is, and a part of its key has changed."""


@dataclass(frozen=True)
class KeyedView:
    """An image or a template by its key, which comes first."""

    key: Public[str]


@dataclass(frozen=True)
class ImageView(KeyedView):
    """An image."""

    recipe: Public[str]
    engine: Public[str]
    engine_version: Public[str]
    state: Public[str]
    size: Public[int]
    """In bytes."""
    created_at: Public[Time]
    build_seconds: Public[float]
    used_by: ForAdmins[tuple[str, ...]] = ()
    """Templates and labs; for admins."""
    use: Annotated[Use, public(values=str)] = "current"
    used_at: Public[Time] = 0.0
    facts: HostOnly[Mapping[str, str]] = field(default_factory=dict)
    """What its build noted."""


Buildable = Literal["yes", "failed", "unreachable", "unfit"]
"""Whether a host can build an image now."""


@dataclass(frozen=True)
class EngineView:
    """A series of an engine."""

    name: Annotated[str, public("mariadb:10.11")]
    """What ``engine`` takes."""
    server: Annotated[str, public("Percona Server 8.4")]
    default: Public[bool]
    """Whether the engine without a series means it."""
    recipe: Public[str]
    """Of its image."""
    blueprints: Public[tuple[str, ...]]
    """Which run on it."""
    packages: Public[tuple[str, ...]]
    """Where they come from."""
    build: Annotated[Buildable, public(values=str)]
    """Whether the host can build its image now: yes: nothing is known that prevents it; failed: it
    could not be built, or its cluster did not form, within the last day; unreachable: its
    repository did not answer; unfit: this host lacks a program that a build needs"""
    why: ForAdmins[str] = ""
    """Why it cannot, if so."""
    images: Public[tuple[str, ...]] = ()
    """The keys of those that are built."""
    templates: Public[tuple[str, ...]] = ()
    """The keys of those formed of them."""
    tested: Annotated[str, public("2026-11-27")] = ""
    """The last day on which the project's own tests ran labs on it; empty: they never did."""
    formed_at: Public[Time] = 0.0
    """When a template was last formed of it on this host; 0: none is there."""
    features: Public[tuple[str, ...]] = ()
    """Of an added build: what it has that not all builds of its family have, such as galera."""
    content: Public[str] = ""
    """SHA-256 of an added build; empty: an engine of packages."""
    source: ForAdmins[str] = ""
    """The path that the build was added from; for admins."""


@dataclass(frozen=True)
class TemplateView(RequestedView, KeyedView):
    """A template."""

    image: Public[str]
    """The key of its engine's image."""
    nodes: Public[int]
    state: Public[str]
    """building, ready or broken"""
    warm: Public[bool]
    """Whether its RAM is restored."""
    size: Public[int]
    """In bytes."""
    created_at: Public[Time]
    used_at: Public[Time]
    form_seconds: Public[float]
    use: Annotated[Use, public(values=str)] = "current"
    why: Public[str] = ""
    """Why it is broken, or why its RAM is no longer restored."""
    each: Public[tuple[PlannedNode, ...]] = ()
    """The nodes, one by one."""
    source: Annotated[str, public("shop@before-upgrade.20261121t110000")] = ""
    """The snapshot of a lab in use that it was captured from; else empty."""
    options: Public[Mapping[str, Any]] = field(default_factory=dict)
    """Of its blueprint; files by their digests."""

    @property
    def node_count(self) -> int:
        """How many nodes it has, with proxies, arbiters and replicas of a remote site."""
        return len(self.each) or self.nodes
