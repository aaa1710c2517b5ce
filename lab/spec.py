"""What the user asked for, validated."""

from collections.abc import Mapping
from typing import Annotated, Literal, cast, get_args

from lab import options, schedule
from lab.errors import InvalidSpec
from lab.keys import Given, Key, number, text
from lab.names import check_lab_name, parse_dataset
from lab.options import Options
from lab.schedule import NONE, Schedule
from lab.units import MIB, Lease, Size, format_size
from lab.values import dataclass

NODES_LIMIT = 9

BLUEPRINTS: Mapping[str, int] = {
    "pxc": 3,
    "galera": 3,
    "single": 1,
    "replication": 3,
    "group": 3,
    "galera-dr": 3,
    "pxc-dr": 3,
}
"""The blueprints, and the number of nodes that a lab of each has unless another is requested."""
_NODES = 3

Identity = Literal["shared", "new"]
"""Whose server ids and UUIDs a branch has: those of what it is a clone of, or its own."""
IDENTITIES: tuple[Identity, ...] = get_args(Identity)


def _schedule(value: object) -> Schedule:
    return schedule.parse(text(value))


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
    """The data that the nodes begin with: a dataset's latest version, or the one after @; with an
    engine, the latest one on that."""
    options: Given[Options] = options.NONE
    """What differs from the defaults of the blueprint; its fields are keys next to these."""
    accept_pooled_name: Given[bool] = False
    """Whether a lab of a service's warm pool, whose name differs from ``name``, is accepted."""

    def __post_init__(self) -> None:
        if self.name:
            check_lab_name(self.name)
        if self.dataset:
            parse_dataset(self.dataset)
            if self.image or self.options.node:
                raise InvalidSpec(
                    f"the dataset {self.dataset} has an image of its own, for all servers",
                    hint="leave out the image and the engines of nodes",
                )
        if cast("int | None", self.nodes) is None:
            object.__setattr__(self, "nodes", BLUEPRINTS.get(self.blueprint, _NODES))
        if not 1 <= self.nodes <= NODES_LIMIT:
            raise InvalidSpec(
                f"a lab has 1 to {NODES_LIMIT} nodes, not {self.nodes}",
                hint="an odd number keeps a majority when a node is lost",
            )
