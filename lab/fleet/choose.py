"""Which host of a fleet fits a request: hosts as they are in, the best one or what each lacks out.

A host that has what the lab is cloned from comes before one that would have to fetch or make it;
among equals the one whose memory is used least.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lab.errors import ROOM_RETRY, HostUnfit, InvalidSpec
from lab.fleet.hosts import LATE, Host, Version
from lab.units import format_size
from lab.values import dataclass


@dataclass(frozen=True)
class Needs:
    """What a lab requires of its host."""

    memory: int
    """In bytes."""
    on: str = ""
    """The name of a host, or a label with ``@`` before it; empty: any."""
    template: str = ""
    """What it is cloned from, as hosts name theirs."""
    dataset: str = ""
    """The dataset that it is a clone of, ``shop@2``, or ``shop`` for any version: a host that has
    none fetches it from one that has."""
    project: str | None = None
    """Whose datasets it may have; None: all."""


def template_of(
    blueprint: str,
    recipe: str,
    nodes: int,
    size: tuple[int, int, int],
    profile: str,
    dataset: str,
    options: str,
) -> str:
    """What a template is known by to other hosts: what was requested, not what it was made of."""
    return "/".join((blueprint, recipe, str(nodes), *map(str, size), profile, dataset, options))


@dataclass(frozen=True)
class TemplateName:
    """What ``template_of`` was given."""

    blueprint: str
    engine: str
    nodes: int
    size: tuple[int, int, int]
    """Memory and disk of a node in bytes, and its processors between them."""
    profile: str
    dataset: str
    options: str


def template_name(text: str) -> TemplateName | None:
    """The reverse of ``template_of``; None for a name that another version gave."""
    parts = text.split("/", 8)
    if len(parts) < 9 or not all(one.isdecimal() for one in parts[2:6]):
        return None
    nodes, memory, cpus, disk = map(int, parts[2:6])
    blueprint, engine, profile, dataset, options = *parts[:2], *parts[6:]
    size = (memory, cpus, disk)
    return TemplateName(blueprint, engine, nodes, size, profile, dataset, options)


def choose(
    hosts: Sequence[Host], needs: Needs, *, without: Collection[str] = (), patient: bool = False
) -> Host | None:
    """The host for a lab; None if one has to be waited for.

    ``without``: hosts that have a lab of its name, whoever holds that. ``patient``: also wait for
    hosts that are away. Raises InvalidSpec if there is no such host or label, HostUnfit if none can
    take it; its details say what each lacks.
    """
    asked = [host for host in hosts if _is_asked_for(host, needs.on)]
    if needs.on and not asked:
        what = f"label {needs.on}" if needs.on.startswith("@") else f"name {needs.on}"
        raise InvalidSpec(f"no host of the fleet has the {what}", hint="`lab host ls` shows them")
    fetched = any(host.state != "lost" and _has_data(host, needs) for host in hosts)
    lacks = {host.name: _lacks(host, needs, fetched=fetched) for host in asked}
    away = {host.name: _is_away(host) for host in asked}
    for name in without:
        if name in lacks:
            lacks[name] = "has a lab of this name already, which is foreign"
    if all(lacks[name] or (away[name] and not patient) for name in lacks):
        raise HostUnfit(
            "no host of the fleet can take the lab",
            hint="`lab host ls` shows what they have",
            details=[f"{name}: {lacks[name] or away[name]}" for name in lacks],
            retry_after=ROOM_RETRY if any(away.values()) else None,
        )
    fits = [
        host
        for host in asked
        if not lacks[host.name] and not away[host.name] and free(host) >= needs.memory
    ]
    return max(fits, key=lambda host: _rank(host, needs), default=None)


def free(host: Host) -> int:
    """Bytes of memory for labs that nothing takes, nor was promised."""
    return host.facts.memory_free - host.promised


def _is_asked_for(host: Host, on: str) -> bool:
    if on.startswith("@"):
        return on[1:] in host.labels
    return on in ("", host.name)


def _is_away(host: Host) -> str:
    """Why nothing can be placed on a host now, but later; empty if something can."""
    if host.state != "up":
        return f"is {host.state}"
    if host.age > LATE:
        return f"has not been heard of for {host.age:.0f} s"
    if not host.has_said:
        return "has not said yet what it has"
    return "has no disk space left" if host.facts.full else ""


def _lacks(host: Host, needs: Needs, *, fetched: bool) -> str:
    """Why a host can take no such lab, also later; empty if it can, as far as is known.

    ``fetched``: whether it can fetch the dataset.
    """
    if not host.facts.memory:
        return ""
    if needs.dataset and not _has_data(host, needs):
        name = needs.dataset.partition("@")[0]
        if any(one.name == name and not _may(needs, one) for one in host.facts.versions):
            return f"has another dataset {name}"
        if not fetched:
            return f"has no dataset {needs.dataset}, nor has another host"
    if needs.memory > host.facts.memory:
        found, wanted = format_size(host.facts.memory), format_size(needs.memory)
        return f"has {found} of memory for labs, {wanted} is required"
    return ""


def _has_data(host: Host, needs: Needs) -> bool:
    return any(
        needs.dataset in (one.at, one.name) and _may(needs, one) for one in host.facts.versions
    )


def _may(needs: Needs, version: Version) -> bool:
    return needs.project is None or version.project in ("", needs.project)


def _rank(host: Host, needs: Needs) -> tuple[bool, bool, float, float, str]:
    """The greater the better; by name last, so that equal hosts are chosen in one order."""
    warm = bool(needs.template) and needs.template in host.facts.templates
    has_data = bool(needs.dataset) and _has_data(host, needs)
    share = free(host) / max(1, host.facts.memory)
    return warm, has_data, round(share, 2), -host.facts.load, host.name
