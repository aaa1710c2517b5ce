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
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from lab import schedule, sizes
from lab.config import tomlfile
from lab.errors import InvalidSpec
from lab.keys import Key, Keys, keys, number, parse, text
from lab.options import OptionFile, Options, ProxyName, Topology
from lab.sizes import NodeSize
from lab.units import Lease
from lab.users import User

if TYPE_CHECKING:
    from lab.spec import LabSpec

FILE_NAME = "lab.toml"


def _schedule(value: object) -> str:
    return str(schedule.parse(text(value)))


# How fields of ``LabSpec`` are written down. Not said there: settings and `lab ls` read keys, and
# do without msgspec.
class _OwnValues(TypedDict, total=False):
    blueprint: Annotated[str, Key("a text such as pxc", text)]
    name: Annotated[str, Key("a text such as shop", text)]
    nodes: Annotated[int, Key("a whole number", number)]
    engine: Annotated[str, Key("a text such as mysql:8.4", text)]
    ttl: Lease
    profile: Annotated[str, Key("a profile such as balanced", text)]
    snapshots: Annotated[str, Key("a schedule such as hourly:24,daily:7", _schedule)]
    image: Annotated[str, Key("the key of an image", text)]
    dataset: Annotated[str, Key("a dataset such as shop or shop@2", text)]


class LabValues(_OwnValues, total=False):
    """What was said about a lab, parsed: ``KEYS`` for the type checker, as a test ensures."""

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


_OF_NODES = keys(NodeSize)
_OPTIONS = keys(Options)
_CHECKED = ("name", "nodes", "image", "dataset")
KEYS: Keys = {**keys(_OwnValues), **_OF_NODES, **_OPTIONS}
"""What can be written down of a lab."""


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
        check({key: value})
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
    from lab.spec import LabSpec  # with msgspec, which reading settings does without

    check(values)  # of a LabSpec, 0 nodes are the blueprint's own number
    own = {key: value for key, value in values.items() if key not in _OPTIONS}
    return LabSpec(**own, options=_options(values).said)


def check(values: Mapping[str, Any]) -> None:
    """Raise InvalidSpec if there can be no lab as parsed ``values`` of ``KEYS`` describe."""
    NodeSize(**{key: value for key, value in values.items() if key in _OF_NODES})
    options = _options(values)
    own = {key: values[key] for key in _CHECKED if values.get(key) is not None}
    sizes.check(**own, engines=bool(options.node))


def _options(values: Mapping[str, Any]) -> Options:
    return Options(**{key: value for key, value in values.items() if key in _OPTIONS})
