"""Hosts of a fleet as they are shown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lab.fleet.choose import TemplateName, free, template_name
from lab.fleet.hosts import LATE, Facts, Host
from lab.units import counted, format_size
from lab.views.host import Capacity, CaptureRow, FleetHost


def host_view(host: Host, now: float) -> FleetHost:
    """A host as it is shown; ``now``: in epoch seconds."""
    facts = host.facts if host.has_said else None
    return FleetHost(
        name=host.name,
        state=host_state(host),
        heard_at=now - host.age,
        labels=host.labels,
        memory=Capacity(facts.memory, facts.memory - max(0, free(host))) if facts else None,
        processors=facts.cpus if facts else None,
        load=facts.load if facts else None,
        labs=facts.labs if facts else None,
        waiting=host.waiting,
        templates=facts.formed if facts else None,
        version=host.version,
        url=host.url,
        disk=_disk(facts) if facts and facts.space else None,
        datasets=datasets_of(host) if facts else None,
    )


def _disk(facts: Facts) -> Capacity:
    return Capacity(facts.space, facts.space - facts.space_free)


def datasets_of(host: Host) -> tuple[str, ...]:
    """The versions of datasets that a host has, of all projects."""
    return tuple(sorted(one.at for one in host.facts.versions))


def host_state(host: Host) -> str:
    """The state of a host, of which nothing may have been heard for some time."""
    return "late" if host.state == "up" and host.age > LATE else host.state


def capture_rows(hosts: Sequence[Host], *, data: bool) -> list[CaptureRow]:
    """Which hosts have what labs are cloned from: templates first, each kind by name.

    ``data``: also datasets, and templates with one, of all projects.
    """
    found: dict[tuple[bool, str], set[str]] = {}
    for host in hosts:
        for template in _templates(host.facts.templates, data=data):
            found.setdefault((False, template), set()).add(host.name)
        for dataset in datasets_of(host) if data else ():
            found.setdefault((True, dataset), set()).add(host.name)
    return [
        CaptureRow("dataset" if is_dataset else "template", what, frozenset(names))
        for (is_dataset, what), names in sorted(found.items())
    ]


def _templates(names: Collection[str], *, data: bool) -> set[str]:
    """Templates for people; one of an engine has a second name without it, which is left out."""
    parts = {one for one in map(template_name, names) if one is not None}
    second = {replace(one, engine="") for one in parts if one.engine}
    return {_shown(one) for one in parts - second if data or not one.dataset}


def _shown(one: TemplateName) -> str:
    said = [
        one.blueprint,
        one.engine,
        f"{counted(one.nodes, 'node')} of {format_size(one.size[0])}",
    ]
    said += [f"dataset {one.dataset}" if one.dataset else ""]
    said += [f"options {one.options[:6]}" if one.options else ""]
    return ", ".join(filter(None, said))
