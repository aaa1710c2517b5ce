"""Hosts of a fleet as they are shown."""

from __future__ import annotations

from lab.fleet.choose import free
from lab.fleet.hosts import LATE, Host
from lab.views.host import Capacity, FleetHost


def host_view(host: Host, now: float) -> FleetHost:
    """A host as it is shown; ``now``: in epoch seconds."""
    facts, late = host.facts, host.state == "up" and host.age > LATE
    return FleetHost(
        name=host.name,
        state="late" if late else host.state,
        heard_at=now - host.age,
        labels=host.labels,
        memory=Capacity(facts.memory, facts.memory - max(0, free(host))),
        processors=facts.cpus,
        load=facts.load,
        labs=facts.labs,
        waiting=host.waiting,
        templates=facts.formed,
        datasets=tuple(sorted(one.at for one in facts.versions)),
        version=host.version,
        url=host.url,
    )
