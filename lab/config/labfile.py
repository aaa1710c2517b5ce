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

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

from lab import schedule
from lab.config import tomlfile
from lab.config.tomlfile import Key
from lab.errors import InvalidSpec
from lab.schedule import NONE, Schedule
from lab.spec import LabSpec, NodeSize

FILE_NAME = "lab.toml"


class LabValues(TypedDict, total=False):
    """What was said about a lab; a key that is absent was not said.

    ``memory`` and ``disk`` in bytes, ``ttl`` in seconds, None for no lease.
    """

    blueprint: str
    name: str
    nodes: int
    engine: str
    memory: int
    cpus: int
    disk: int
    ttl: float | None
    profile: str
    snapshots: Schedule
    image: str


def read(directory: Path) -> LabValues:
    """What ``lab.toml`` in ``directory`` says; empty if there is none.

    Raises InvalidSpec, naming the file and the key, for unknown keys, wrong types and
    values that no lab can have.
    """
    path = directory / FILE_NAME
    values = tomlfile.read(path, _KEYS)
    for key, value in values.items():
        _check(path, key, value)
    return cast("LabValues", values)


def merge(
    file_values: LabValues, flag_values: LabValues, *, default_ttl: float | None = None
) -> LabSpec:
    """The lab asked for: each key from the flags, else the file, else its default.

    ``flag_values`` must hold only what was given explicitly. ``default_ttl`` in seconds.
    Raises InvalidSpec, also when nothing names a blueprint.
    """
    said: LabValues = {**file_values, **flag_values}
    if not said.get("blueprint"):
        raise InvalidSpec(
            "no blueprint is named",
            hint=f'`lab up pxc`, or blueprint = "pxc" in {FILE_NAME}',
        )
    plain = NodeSize()
    return LabSpec(
        blueprint=said["blueprint"],
        name=said.get("name", ""),
        nodes=said.get("nodes", LabSpec.nodes),
        engine=said.get("engine", ""),
        size=NodeSize(
            memory=said.get("memory", plain.memory),
            cpus=said.get("cpus", plain.cpus),
            disk=said.get("disk", plain.disk),
        ),
        ttl=said.get("ttl", default_ttl),
        profile=said.get("profile", ""),
        snapshots=said.get("snapshots", NONE),
        image=said.get("image", ""),
    )


def _schedule(value: object) -> Schedule:
    return schedule.parse(tomlfile.text(value))


def _check(path: Path, key: str, value: object) -> None:
    """That a lab can have this, seen alone so that the message is about this key."""
    try:
        merge({}, cast("LabValues", {"blueprint": "any", key: value}))
    except InvalidSpec as error:
        raise InvalidSpec(f"{path}: {key}: {error.what}", hint=error.hint) from None


_KEYS: Mapping[str, Key] = {
    "blueprint": Key("a text such as pxc", tomlfile.text),
    "name": Key("a text such as shop", tomlfile.text),
    "nodes": Key("a whole number", tomlfile.number),
    "engine": Key("a text such as mariadb", tomlfile.text),
    "memory": Key("bytes, or a size such as 768M", tomlfile.size),
    "cpus": Key("a whole number", tomlfile.number),
    "disk": Key("bytes, or a size such as 8G", tomlfile.size),
    "ttl": Key("a duration such as 2h, or none", tomlfile.lease),
    "profile": Key("a profile such as balanced", tomlfile.text),
    "snapshots": Key("a schedule such as hourly:24,daily:7", _schedule),
    "image": Key("the key of an image", tomlfile.text),
}
