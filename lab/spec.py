"""What the user asked for, validated: sizes, durations and the lab itself."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Literal, cast, get_args

from lab import schedule
from lab.errors import InvalidSpec
from lab.keys import Given, Key, WrongType, number, text, whole
from lab.names import check_lab_name, parse_dataset
from lab.schedule import NONE, Schedule

MIB = 1 << 20
GIB = 1 << 30
NODES_LIMIT = 9

BLUEPRINTS: Mapping[str, int] = {"pxc": 3, "galera": 3, "single": 1, "replication": 3, "group": 3}
"""The blueprints, and the number of nodes that a lab of each has unless another is requested."""
_NODES = 3

Identity = Literal["shared", "new"]
"""Whose server ids and UUIDs a branch has: those of what it is a clone of, or its own."""
IDENTITIES: tuple[Identity, ...] = get_args(Identity)

_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNIT = {"": 1, "K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}
_DURATION = re.compile(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s)?")


def parse_size(text: str) -> int:
    """Bytes from ``768M``, ``2G``, ``512MiB``; binary units; raises InvalidSpec."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise InvalidSpec(f"{text!r} is not a size", hint="write sizes like 768M or 2G")
    return int(match[1]) * _UNIT[match[2].upper()]


def format_size(size: int) -> str:
    """``size`` bytes as a person writes it: ``768M``, ``1.5G``."""
    for unit, factor in (("T", 1 << 40), ("G", GIB), ("M", MIB), ("K", 1 << 10)):
        if size >= factor:
            number = f"{size / factor:.1f}"
            return number.removesuffix(".0") + unit
    return f"{size}B"


def parse_duration(text: str) -> float:
    """Seconds from ``90s``, ``15m``, ``2h``, ``1d12h``; raises InvalidSpec."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not match[0]:
        raise InvalidSpec(
            f"{text!r} is not a duration", hint="write durations like 30m, 2h or 1d12h"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if total <= 0:
        raise InvalidSpec(
            f"the duration must be greater than zero, not {text!r}", hint="give at least 1s"
        )
    return total


def format_duration(seconds: float) -> str:
    """``seconds`` in the two largest units that matter: ``1h30m``, ``45s``."""
    left = int(seconds)
    parts = []
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= factor:
            parts.append(f"{left // factor}{unit}")
            left %= factor
    return "".join(parts[:2]) or "0s"


def format_time(at: float) -> str:
    """``at`` (epoch seconds) as RFC 3339 has it, in UTC: ``2026-11-22T16:35:59.250000Z``."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Epoch seconds from a time of RFC 3339; raises InvalidSpec."""
    try:
        moment = datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidSpec(f"{text!r} is not a time", hint="such as 2026-11-22T16:35:59Z")
    return moment.timestamp()


def _size(value: object) -> int:
    return parse_size(value) if isinstance(value, str) else whole(value)


def _seconds(value: object) -> float:
    if isinstance(value, str):
        if not re.fullmatch(r"\s*\d{1,10}(\.\d{1,9})?\s*", value):
            return parse_duration(value)
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e10:
        raise WrongType
    return float(value)


def _lease(value: object) -> float | None:
    said = text(value).strip().lower()
    if said in {"", "none"}:
        return None
    return parse_duration(f"{said}s" if said.isdecimal() and said.isascii() else said)


def _schedule(value: object) -> Schedule:
    return schedule.parse(text(value))


SIZE = Key("bytes, or a size such as 2G", _size)
Size = Annotated[int, SIZE]
"""The type of a field in bytes."""
Seconds = Annotated[float, Key("seconds, or a duration such as 5m", _seconds)]
"""The type of a field in seconds."""
Lease = Annotated[float | None, Key("a duration such as 2h, or none", _lease)]
"""The type of a lease in seconds; None: none."""


@dataclass(frozen=True)
class NodeSize:
    """What each node gets."""

    memory: Size = 768 * MIB
    """RAM in bytes."""
    cpus: Annotated[int, Key("a whole number", number)] = 1
    """Virtual CPUs."""
    disk: Size = 0
    """Size of the system volume in bytes; 0: that of the image."""

    def __post_init__(self) -> None:
        if self.memory < 384 * MIB:
            raise InvalidSpec(
                f"{format_size(self.memory)} of memory is too little for a node",
                hint="give at least 384M; 768M is the default",
            )
        if self.memory % MIB:
            raise InvalidSpec("a node's memory must be whole MiB", hint="such as 768M")
        if not 1 <= self.cpus <= 64:
            raise InvalidSpec(f"a node has 1 to 64 CPUs, not {self.cpus}")
        if self.disk and self.disk % MIB:
            raise InvalidSpec("a node's disk must be whole MiB", hint="such as 8G")


@dataclass(frozen=True)
class LabSpec:
    """A requested lab: the declaration from which lab.toml, flags and pools take their keys."""

    blueprint: Annotated[str, Key("a text such as pxc", text)]
    """How the nodes become a cluster."""
    name: Annotated[str, Key("a text such as shop", text)] = ""
    """Empty: the first free one made from the blueprint's."""
    # None only until __post_init__.
    nodes: Annotated[int, Key("a whole number", number)] = cast("int", None)
    """How many nodes there are; left out: the blueprint's own number."""
    engine: Annotated[str, Key("a text such as mariadb", text)] = ""
    """The required engine; empty: the blueprint's own choice."""
    size: Given[NodeSize] = NodeSize()
    """Of each node; its fields are keys next to these."""
    ttl: Lease = None
    """The lease in seconds; None: no lease."""
    profile: Annotated[str, Key("a profile such as balanced", text)] = ""
    """The name of the profile; empty: that of the settings."""
    snapshots: Annotated[Schedule, Key("a schedule such as hourly:24,daily:7", _schedule)] = NONE
    """The schedule by which snapshots are taken."""
    image: Annotated[str, Key("the key of an image", text)] = ""
    """The key of the required image; empty: that of the engine's recipe as it is now."""
    dataset: Annotated[str, Key("a dataset such as shop or shop@2", text)] = ""
    """The data that the nodes begin with: a dataset's latest version, or the one after @."""
    accept_pooled_name: Given[bool] = False
    """Whether a lab of a service's warm pool, whose name differs from ``name``, is accepted."""

    def __post_init__(self) -> None:
        if self.name:
            check_lab_name(self.name)
        if self.dataset:
            parse_dataset(self.dataset)
            if self.image or self.engine:
                raise InvalidSpec(
                    f"the dataset {self.dataset} has an engine and an image of its own",
                    hint="leave out the engine and the image",
                )
        if cast("int | None", self.nodes) is None:
            object.__setattr__(self, "nodes", BLUEPRINTS.get(self.blueprint, _NODES))
        if not 1 <= self.nodes <= NODES_LIMIT:
            raise InvalidSpec(
                f"a lab has 1 to {NODES_LIMIT} nodes, not {self.nodes}",
                hint="an odd number keeps a majority when a node is lost",
            )
