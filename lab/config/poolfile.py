"""Warm pools: the tables ``[[serve.pool]]`` of a config file.

Example::

    [[serve.pool]]
    blueprint = "pxc"
    nodes = 3
    count = 2

Every command reads settings, and only the service has pools: so their files are named here, and
read when it starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lab import options
from lab.errors import InvalidSpec
from lab.keys import Given, Key, Keys, WrongType, keys, matching, parse_all, within
from lab.options import OptionFile, Options
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.spec import LabSpec

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
    values: Given[Mapping[str, Any]] = field(hash=False)
    """What the table says of the labs: the keys of lab.toml."""
    count: Annotated[int, within(1, 100)] = 1
    """How many labs are kept ready."""
    running: Annotated[int, within(0, 100)] = 0
    """How many of these run while they wait; the others are paused."""
    my_cnf: Annotated[tuple[tuple[str, str], ...], Key("files, as [ROLE=]PATH", _named_files)] = ()
    """The roles and paths of option files that ``values`` lack; see ``with_files``."""
    init: Annotated[str, matching("a file of SQL", r"(?s).+")] = ""
    """The path of the file of SQL that ``values`` lack."""

    @cached_property
    def spec(self) -> LabSpec:
        """The labs. Asked for by the service alone: it loads what other commands do not need."""
        from lab.config import labfile

        return labfile.spec_of(self.values)


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
    labfile.check(values)
    return WarmPool(values=values, **own)


def with_files(pools: Sequence[WarmPool], config: Path) -> tuple[WarmPool, ...]:
    """``pools`` of the file ``config``, with their files, whose paths are relative to it.

    Raises InvalidSpec, naming ``config`` and the pool, if a file cannot be used.
    """
    return tuple(_with_files(pool, config) for pool in pools)


def _with_files(pool: WarmPool, config: Path) -> WarmPool:
    found, key = dict[str, Any](), "my_cnf"
    try:
        if pool.my_cnf:
            found[key] = options.read_files(pool.my_cnf, config.parent)
            Options(**found)  # raises if it cannot be
        key = "init"
        if pool.init:
            found[key] = options.read_file(pool.init, config.parent)
            Options(**found)
    except InvalidSpec as error:
        place = f"{config}: [[serve.pool]]: {pool.name}: {key}"
        raise InvalidSpec(f"{place}: {error.what}", hint=error.hint) from None
    return replace(pool, values={**pool.values, **found}, my_cnf=(), init="")
