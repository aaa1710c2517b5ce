"""``lab.toml`` in the working directory: a lab described in a file.

Example::

    blueprint = "pxc"
    nodes = 3
    memory = "1G"
    ttl = "2h"

What is given on the command line overrides the file, key by key; what neither says has
the default of ``LabSpec``, and the lease that of the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from lab.config import tomlfile
from lab.errors import InvalidSpec
from lab.keys import Keys, keys, parse
from lab.options import OptionFile, Options, ProxyName, Topology
from lab.schedule import Schedule
from lab.spec import LabSpec, NodeSize
from lab.users import User

FILE_NAME = "lab.toml"

_OF_NODES = keys(NodeSize)
_OPTIONS = keys(Options)
KEYS: Keys = {**keys(LabSpec), **_OF_NODES, **_OPTIONS}
"""What can be written down of a lab."""


class LabValues(TypedDict, total=False):
    """What was said about a lab, parsed: ``KEYS`` for the type checker, as a test ensures."""

    blueprint: str
    name: str
    nodes: int
    engine: str
    ttl: float | None
    profile: str
    snapshots: Schedule
    image: str
    dataset: str
    memory: int
    cpus: int
    disk: int
    topology: Topology
    semi_sync: bool
    delay: float
    on: tuple[str, ...]
    multi_primary: bool
    proxy: ProxyName
    arbiter: bool
    client: bool
    replicas: int
    set: tuple[str, ...]
    my_cnf: tuple[OptionFile, ...]
    init: str
    user: tuple[User, ...]
    node: tuple[str, ...]


def here() -> Path:
    """The working directory, also if it was removed: there is no file in it then."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()


def read(directory: Path, unread: Collection[str] = ()) -> LabValues:
    """What ``lab.toml`` in ``directory`` says; empty if there is none.

    ``unread``: the keys that the caller does not need: the files and variables that they name may
    be missing. Raises InvalidSpec, naming the file and the key, for unknown keys, wrong types and
    values that no lab can have.
    """
    path = directory / FILE_NAME
    values = tomlfile.read(path, KEYS, unread)
    for key, value in values.items():
        _check(path, key, value)
    return cast("LabValues", values)


def name_in(directory: Path) -> str:
    """The name in ``lab.toml`` in ``directory``, and nothing else of it; empty if there is none.

    A lab that was made by an earlier content of the file can be used and removed. Raises
    InvalidSpec.
    """
    path = directory / FILE_NAME
    found = tomlfile.table(path)
    if "name" not in found:
        return ""
    name: str = parse(KEYS, "name", found["name"], path)
    _check(path, "name", name)
    return name


def _check(path: Path, key: str, value: object) -> None:
    try:  # each alone, so that the message is about this key
        spec_of({"blueprint": "any", key: value})
    except InvalidSpec as error:
        raise InvalidSpec(f"{path}: {key}: {error.what}", hint=error.hint) from None


def merge(
    file_values: LabValues, flag_values: LabValues, *, default_ttl: float | None = None
) -> LabSpec:
    """The requested lab: each key from the flags, else the file, else its default.

    ``flag_values`` must hold only what was given explicitly. ``default_ttl`` in seconds.
    Raises InvalidSpec, also when nothing names a blueprint.
    """
    values = {"ttl": default_ttl, **file_values, **flag_values}
    if not values.get("blueprint"):
        raise InvalidSpec(
            "no blueprint is named",
            hint=f'`lab up pxc`, or blueprint = "pxc" in {FILE_NAME}',
        )
    return spec_of(values)


def spec_of(values: Mapping[str, Any]) -> LabSpec:
    """The lab that parsed ``values`` of ``KEYS`` describe; raises InvalidSpec."""
    size = {key: value for key, value in values.items() if key in _OF_NODES}
    more = {key: value for key, value in values.items() if key in _OPTIONS}
    rest = {key: value for key, value in values.items() if key not in {**size, **more}}
    return LabSpec(size=NodeSize(**size), options=Options(**more), **rest)
