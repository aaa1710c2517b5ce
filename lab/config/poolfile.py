"""Warm pools: the tables ``[[serve.pool]]`` of a config file.

Example::

    [[serve.pool]]
    blueprint = "pxc"
    nodes = 3
    count = 2
"""

import re
from dataclasses import dataclass
from typing import Annotated

from lab.errors import InvalidSpec
from lab.keys import Given, Keys, WrongType, keys, parse_all, within
from lab.spec import LabSpec

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")

NOT_OF_POOLS = frozenset({"name", "ttl", "snapshots", "image", "user"})
"""Keys of a lab that its claim decides, or that keep a request from being served by a pool."""


@dataclass(frozen=True)
class WarmPool:
    """Labs that are kept ready."""

    name: str
    """The pool's name; that of the blueprint if there is none."""
    spec: Given[LabSpec]
    """The labs; what can be written down of them are keys of the pool's table."""
    count: Annotated[int, within(1, 100)] = 1
    """How many labs are kept ready."""


def all_keys() -> Keys:
    """What the table of a pool may hold."""
    from lab.config import labfile  # every command reads settings, few have pools

    of_labs = {key: entry for key, entry in labfile.KEYS.items() if key not in NOT_OF_POOLS}
    return {**of_labs, **keys(WarmPool)}


def parse(value: object) -> tuple[WarmPool, ...]:
    """The tables of pools; raises WrongType or InvalidSpec."""
    if not isinstance(value, list):
        raise WrongType
    pools = tuple(_pool(table) for table in value)
    names = [pool.name for pool in pools]
    if doubled := next((name for name in names if names.count(name) > 1), ""):
        raise InvalidSpec(f"two pools have the name {doubled}", hint="give each pool its own name")
    return pools


def _pool(table: object) -> WarmPool:
    from lab.config import labfile

    said = parse_all(all_keys(), table, "[[serve.pool]]")
    if not said.get("blueprint"):
        raise InvalidSpec("a pool has no blueprint", hint="such as pxc")
    own = {
        "name": said["blueprint"],
        **{key: said.pop(key) for key in keys(WarmPool) if key in said},
    }
    if not _NAME.fullmatch(own["name"]):
        raise InvalidSpec(
            f"{own['name']!r} is not a name for a pool", hint="small letters, digits and hyphens"
        )
    return WarmPool(spec=labfile.spec_of(said), **own)
