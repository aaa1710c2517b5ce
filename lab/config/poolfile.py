"""Warm pools: the tables ``[[serve.pool]]`` of a config file.

Example::

    [[serve.pool]]
    blueprint = "pxc"
    nodes = 3
    count = 2
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.config import tomlfile
from lab.config.tomlfile import Key, Keys, WrongType
from lab.errors import InvalidSpec
from lab.spec import LabSpec, NodeSize

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_MOST = 100
_SIZES = ("memory", "cpus", "disk")


@dataclass(frozen=True)
class WarmPool:
    """Labs that are kept ready: ``count`` of them, each as ``spec`` says."""

    name: str
    spec: LabSpec
    count: int = 1


def parse(value: object) -> tuple[WarmPool, ...]:
    """The tables of pools; raises WrongType or InvalidSpec."""
    if not isinstance(value, list):
        raise WrongType
    pools = tuple(_pool(table) for table in value)
    names = [pool.name for pool in pools]
    if doubled := next((name for name in names if names.count(name) > 1), ""):
        raise InvalidSpec(f"two pools are called {doubled}", hint="give each a name of its own")
    return pools


def _pool(table: object) -> WarmPool:
    if not isinstance(table, Mapping):
        raise WrongType
    said: dict[str, Any] = {
        key: tomlfile.parse(_KEYS, key, each, "[[serve.pool]]") for key, each in table.items()
    }
    if "blueprint" not in said:
        raise InvalidSpec("a pool has no blueprint", hint="such as pxc")
    name, count = said.pop("name", said["blueprint"]), said.pop("count", 1)
    size = NodeSize(**{key: said.pop(key) for key in _SIZES if key in said})
    return WarmPool(name, LabSpec(size=size, **said), count)


def _name(value: object) -> str:
    name = tomlfile.text(value)
    if not _NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a name for a pool", hint="small letters, digits and hyphens"
        )
    return name


def _count(value: object) -> int:
    number = tomlfile.whole(value)
    if not 0 < number <= _MOST:
        raise WrongType
    return number


_KEYS: Keys = {
    "name": Key("a name", _name),
    "blueprint": Key("a blueprint such as pxc", _name),
    "nodes": Key("a whole number", tomlfile.whole),
    "memory": Key("bytes, or a size such as 768M", tomlfile.size),
    "cpus": Key("a whole number", tomlfile.whole),
    "disk": Key("bytes, or a size such as 12G", tomlfile.size),
    "profile": Key("a profile such as balanced", tomlfile.text),
    "engine": Key("an engine such as mariadb", tomlfile.text),
    "count": Key(f"a whole number from 1 to {_MOST}", _count),
}
