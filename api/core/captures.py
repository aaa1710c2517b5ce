"""What labs are cloned from on each host of a fleet, as the hosts say with their heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lab.api.core.fleet import Fleet
from lab.fleet.choose import template_of
from lab.fleet.database import Unreachable
from lab.fleet.hosts import Host, Version
from lab.lifecycle.images.order import recipe_of
from lab.names import parse_dataset
from lab.spec import LabSpec
from lab.state.store import Store


def template_named(spec: LabSpec, dataset: str, recipe: str | None = None) -> str:
    """What a template for a lab is known by in the fleet; ``dataset``: with its version.

    ``recipe``: of its engine's image, if that is known; else what the lab requests.
    """
    if recipe is None:
        recipe = recipe_of(spec.blueprint, spec.engine) if spec.engine else ""
    said = spec.options.of_template.said
    options = ",".join(f"{key}={value}" for key, value in sorted(said.items()))
    return template_of(spec.blueprint, recipe, spec.nodes, spec.size.memory, dataset, options)


def pinned(fleet: Fleet, spec: LabSpec, own: Sequence[Version], project: str | None) -> str:
    """The dataset of a requested lab with its version: the latest of all hosts', on each of them.

    As requested if that names a version, or an engine, which may have another latest one. ``own``:
    those of this host.
    """
    name, version = parse_dataset(spec.dataset) if spec.dataset else ("", 0)
    if version or spec.engine or not name:
        return spec.dataset
    there = [one for one in own if one.name == name and _may(project, one)]
    there += [one for _, one in elsewhere(fleet, name, project)]
    return max(there, key=lambda one: one.version).at if there else spec.dataset


def elsewhere(fleet: Fleet, which: str, project: str | None) -> list[tuple[Host, Version]]:
    """The versions of a dataset on other hosts that a project may use, the latest first.

    ``which``: ``shop@2``, or ``shop`` for all; ``project``: None for those of all projects.
    """
    with suppress(Unreachable):  # then as it was known last
        fleet.refresh()
    found = [
        (host, one)
        for host in others(fleet)
        for one in host.facts.versions
        if which in (one.name, one.at) and _may(project, one)
    ]
    return sorted(found, key=lambda pair: -pair[1].version)


def _may(project: str | None, version: Version) -> bool:
    """Whether a project may use a version of a dataset; None: an administrator."""
    return project is None or version.project in ("", project)


def others(fleet: Fleet) -> list[Host]:
    """The other hosts that answer, the one with the lowest load first."""
    there = [host for host in fleet.hosts if host.name != fleet.name and host.answers]
    return sorted(there, key=lambda host: host.facts.load)


def versions(store: Store) -> tuple[Version, ...]:
    """The versions of datasets that are on this host and that new labs can have."""
    return tuple(
        Version(record.dataset, record.version, record.project, record.recipe)
        for record in store.images.all()
        if record.dataset and record.state == "ready" and not record.removing
    )
