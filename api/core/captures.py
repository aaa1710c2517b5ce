"""What labs are cloned from on each host of a fleet, as the hosts say with their heartbeats."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from lab.api.core.fleet import Fleet
from lab.config.settings import Settings
from lab.errors import LabError
from lab.fleet.choose import template_of
from lab.fleet.database import Unreachable
from lab.fleet.hosts import Host, Version
from lab.imagebuild import manifest
from lab.lifecycle.images.order import pinned, recipe_of
from lab.names import parse_dataset
from lab.paths import Home
from lab.spec import LabSpec
from lab.state.store import Store


def template_named(
    settings: Settings, spec: LabSpec, dataset: str, recipe: str | None = None
) -> str:
    """What a template for a lab is known by in the fleet; ``dataset``: with its version.

    ``recipe``: of its engine's image, if that is known; else what the lab requests.
    """
    if recipe is None:
        recipe = recipe_of(spec.blueprint, spec.engine) if spec.engine else ""
    size = (spec.memory, spec.cpus, spec.disk)
    profile = settings.profile_of(spec.profile).name
    said = pinned(spec.blueprint, spec.chosen).of_template.said
    # Options may be whole files, of any project: a digest of them is published.
    options = hashlib.sha256(repr(sorted(said.items())).encode()).hexdigest()[:12] if said else ""
    return template_of(spec.blueprint, recipe, spec.node_count, size, profile, dataset, options)


def latest(fleet: Fleet, spec: LabSpec, own: Sequence[Version], project: str | None) -> str:
    """The dataset of a requested lab with its version: the latest of all hosts that it can have.

    As requested where no host is known to have it; ``own``: the versions of this host.
    """
    if not spec.dataset:
        return ""
    there = [one for one in own if fits(spec, one, project)]
    there += [one for _, one in elsewhere(fleet, spec, project)]
    return max(there, key=lambda one: one.version).at if there else spec.dataset


def elsewhere(fleet: Fleet, spec: LabSpec, project: str | None) -> list[tuple[Host, Version]]:
    """The versions of a requested lab's dataset on other hosts, the latest first.

    Also on hosts that are late: they may answer in a moment. ``project``: whose datasets the lab
    may have; None: all.
    """
    if not spec.dataset:
        return []
    with suppress(Unreachable):  # then as it was known last
        fleet.refresh()
    found = [
        (host, one)
        for host in others(fleet)
        for one in host.facts.versions
        if fits(spec, one, project)
    ]
    return sorted(found, key=lambda pair: -pair[1].version)


def named(fleet: Fleet, dataset: str) -> list[tuple[Host, Version]]:
    """The versions of a dataset on other hosts, also those being made, the latest first."""
    with suppress(Unreachable):
        fleet.refresh()
    found = [
        (host, one)
        for host in others(fleet)
        for one in (*host.facts.versions, *host.facts.coming)
        if one.name == dataset
    ]
    return sorted(found, key=lambda pair: -pair[1].version)


def fits(spec: LabSpec, version: Version, project: str | None) -> bool:
    """Whether a requested lab may be of this version of a dataset."""
    if not spec.dataset:
        return False
    name, number = parse_dataset(spec.dataset)
    recipe = recipe_of(spec.blueprint, spec.engine) if spec.engine else ""
    return (
        version.name == name
        and number in (0, version.version)
        and recipe in ("", version.recipe)
        and (project is None or version.project in ("", project))
    )


def others(fleet: Fleet) -> list[Host]:
    """The other hosts that are not lost, the one with the lowest load first."""
    there = [host for host in fleet.hosts if host.name != fleet.name and host.state != "lost"]
    return sorted(there, key=lambda host: host.facts.load)


def versions(home: Home, store: Store) -> tuple[Version, ...]:
    """The versions of datasets that are on this host and that new labs can have."""
    return tuple(
        Version(
            record.dataset, record.version, record.project, record.recipe,
            _digest(home.image(record.key), record.created_at),
        )
        for record in store.images.all()
        if record.dataset and record.state == "ready" and not record.removing
    )  # fmt: skip


def coming(store: Store) -> tuple[Version, ...]:
    """The versions that are being made, or removed, on this host: their numbers are taken."""
    return tuple(
        Version(record.dataset, record.version, record.project, record.recipe)
        for record in store.images.all()
        if record.dataset and (record.state != "ready" or record.removing)
    )


@lru_cache(maxsize=1024)
def _digest(directory: Path, created_at: float) -> str:
    """The content of an image, which does not change; empty if that cannot be read."""
    del created_at  # of another one with the same key
    with suppress(LabError, OSError):
        found = sorted(manifest.read(directory).digests.items())
        return hashlib.sha256(repr(found).encode()).hexdigest()[:16]
    return ""
