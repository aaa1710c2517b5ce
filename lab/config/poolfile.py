"""Warm pools: the tables ``[[serve.pool]]`` of a config file.

Example::

    [[serve.pool]]
    blueprint = "pxc"
    nodes = 3
    count = 2

Every command reads settings, and only the service has pools: so their files are named here, and
read when it starts.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from lab import options
from lab.errors import InvalidSpec
from lab.keys import Given, Key, Keys, WrongType, keys, matching, parse_all, within
from lab.options import OptionFile, Options
from lab.spec import LabSpec
from lab.values import dataclass

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")

NOT_OF_POOLS = frozenset({"name", "ttl", "snapshots", "image", "user"})
"""Keys of a lab that pools cannot have: the request that takes a lab decides these, or a request
with them is not served from a pool."""


def _named_files(value: object) -> tuple[tuple[str, str], ...]:
    found = options.named_files(value)
    Options(my_cnf=tuple(OptionFile("", role) for role, _ in found))  # raises if it cannot be
    return found


@dataclass(frozen=True)
class WarmPool:
    """Labs that are kept ready."""

    name: str
    """The pool's name; that of the blueprint if there is none."""
    spec: Given[LabSpec]
    """The labs; what can be written down of them are keys of the pool's table."""
    count: Annotated[int, within(1, 100)] = 1
    """How many labs are kept ready."""
    running: Annotated[int, within(0, 100)] = 0
    """How many of these run while they wait; the others are paused."""
    my_cnf: Annotated[tuple[tuple[str, str], ...], Key("files, as [ROLE=]PATH", _named_files)] = ()
    """The roles and paths of option files that ``spec`` lacks; see ``with_files``."""
    init: Annotated[str, matching("a file of SQL", r"(?s).+")] = ""
    """The path of the file of SQL that ``spec`` lacks."""


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

    values = parse_all(all_keys(), table, "[[serve.pool]]")
    if not values.get("blueprint"):
        raise InvalidSpec("a pool has no blueprint", hint="such as pxc")
    own = {
        "name": values["blueprint"],
        **{key: values.pop(key) for key in keys(WarmPool) if key in values},
    }
    if not _NAME.fullmatch(own["name"]):
        raise InvalidSpec(
            f"{own['name']!r} is not a name for a pool", hint="small letters, digits and hyphens"
        )
    return WarmPool(spec=labfile.spec_of(values), **own)


def with_files(pools: Sequence[WarmPool], config: Path) -> tuple[WarmPool, ...]:
    """``pools`` of the file ``config``, with their files, whose paths are relative to it.

    Raises InvalidSpec, naming ``config`` and the pool, if a file cannot be used.
    """
    return tuple(_with_files(pool, config) for pool in pools)


def _with_files(pool: WarmPool, config: Path) -> WarmPool:
    found, key = pool.spec.options, "my_cnf"
    try:
        if pool.my_cnf:
            found = replace(found, my_cnf=options.read_files(pool.my_cnf, config.parent))
        key = "init"
        if pool.init:
            found = replace(found, init=options.read_file(pool.init, config.parent))
    except InvalidSpec as error:
        place = f"{config}: [[serve.pool]]: {pool.name}: {key}"
        raise InvalidSpec(f"{place}: {error.what}", hint=error.hint) from None
    return replace(pool, spec=replace(pool.spec, options=found), my_cnf=(), init="")
