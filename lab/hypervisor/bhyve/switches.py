"""Switches of vm-bhyve: one for each running lab, with a subnet and an address of the host.

A switch is a bridge(4); vm-bhyve's "private" would isolate the nodes of a lab from each other. Both
interfaces of a guest are on its lab's switch: each lab has a separate subnet with the host, between
nodes all labs use the same addresses, and no bridge is connected to another.

A claim, a file in ``.lab`` that names the owner, is written before a switch is created.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

from lab.errors import Conflict, LabError
from lab.guest.network import OWN_PREFIX, own_address
from lab.hypervisor.bhyve import text
from lab.hypervisor.bhyve.command import vm
from lab.hypervisor.bhyve.text import Switch


class Switches:
    """The switches whose claims are in ``directory``; ``home`` is our tag.

    Callers hold the lock of the datastore (``Place.hold``).
    """

    def __init__(self, directory: Path, home: str) -> None:
        self._directory = directory
        self._home = home

    def free(self, segment: int) -> bool:
        """Whether no other switch has the name, the bridge or the subnet of ``segment``."""
        found = _listed()
        return name_of(segment) not in found and not _in_the_way(segment, found)

    def ensure(self, segment: int) -> str:
        """The name of the switch of ``segment``, which is created unless it exists.

        Raises Conflict if a switch of others has its subnet or bridge, and the errors of ``vm``.
        """
        name, found = name_of(segment), _listed()
        if name in found and name not in self._ours():
            raise _conflict(segment, name)
        if other := _in_the_way(segment, found):
            raise _conflict(segment, other)
        doing = f"creating the switch {name}"
        if name not in found:
            self._claim(name).write_text(json.dumps({"home": self._home}))
            address = f"{own_address(segment, 0)}/{OWN_PREFIX}"
            vm(doing, "switch", "create", "-a", address, name)
        elif not found[name].bridge:
            _bridges(doing, [name])
        return name

    def sweep(self, used: Iterable[str]) -> None:
        """Remove those of our switches that are not ``used``."""
        if not (needless := set(self._ours()) - set(used)):
            return
        found = _listed()
        without = [name for name in needless if name in found and not found[name].bridge]
        if without:
            _bridges(
                "creating bridges", without
            )  # `vm switch destroy` refuses a switch without one
        for name in sorted(needless):
            if name in found:
                vm(f"removing the switch {name}", "switch", "destroy", name)
            self._claim(name).unlink(missing_ok=True)

    def _ours(self) -> Iterator[str]:
        for path in self._directory.glob("switch-*.json"):
            try:
                home = json.loads(path.read_text())["home"]
            except (OSError, ValueError, RecursionError, TypeError, KeyError):
                continue  # another's, or unused
            if home == self._home:
                yield path.stem.removeprefix("switch-")

    def _claim(self, name: str) -> Path:
        return self._directory / f"switch-{name}.json"


def name_of(segment: int) -> str:
    """The switch's name: up to 12 characters, so that the bridge is called ``vm-<name>``.

    Without hyphens: it becomes part of variables' names in vm-bhyve's configuration.
    """
    return f"lab{segment}"


def _bridges(doing: str, names: Iterable[str]) -> None:
    """Create the bridges of all switches that have none, as at boot; raises what ``vm`` does."""
    try:
        vm(doing, "init")
    except LabError:
        # It fails if the last switch cannot be created, which may belong to others.
        found = _listed()
        if not all(name in found and found[name].bridge for name in names):
            raise


def _listed() -> dict[str, Switch]:
    return text.switches(vm("listing switches", "switch", "list"))


def _in_the_way(segment: int, found: Mapping[str, Switch]) -> str:
    """The name of a switch that shares the subnet or the bridge of ``segment``, or nothing."""
    name = name_of(segment)
    subnet = IPv4Interface(f"{own_address(segment, 0)}/{OWN_PREFIX}").network
    for other in found.values():
        if other.name == name:
            continue
        # vm-bhyve finds a switch's bridge by this part of its name's hash only.
        if _viid(other.name) == _viid(name) or _overlaps(other.address, subnet):
            return other.name
    return ""


def _overlaps(address: str, subnet: IPv4Network) -> bool:
    try:
        return bool(address) and IPv4Interface(address).network.overlaps(subnet)
    except ValueError:
        return False


def _viid(name: str) -> str:
    # switch::__viid in lib/vm-switch of vm-bhyve: md5 -qs NAME, cut to five characters.
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:5]


def _conflict(segment: int, other: str) -> Conflict:
    return Conflict(
        f"the subnet of {own_address(segment, 0)}/{OWN_PREFIX} is taken by the switch {other}",
        hint="`vm switch list` shows it; another LAB_HOME may own it",
    )
