"""How many nodes labs have, and what each gets: what every command loads of a lab's request."""

from collections.abc import Mapping
from typing import Annotated

from lab.errors import InvalidSpec
from lab.keys import Key, number
from lab.names import check_lab_name, parse_dataset
from lab.units import MIB, Size, format_size
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


def check(
    *, name: str = "", nodes: int = 1, image: str = "", dataset: str = "", engines: bool = False
) -> None:
    """Raise InvalidSpec if no lab can be as this; ``engines``: nodes have engines of their own."""
    if name:
        check_lab_name(name)
    if dataset:
        parse_dataset(dataset)
        if image or engines:
            raise InvalidSpec(
                f"the dataset {dataset} has an image of its own, for all servers",
                hint="leave out the image and the engines of nodes",
            )
    if not 1 <= nodes <= NODES_LIMIT:
        raise InvalidSpec(
            f"a lab has 1 to {NODES_LIMIT} nodes, not {nodes}",
            hint="an odd number keeps a majority when a node is lost",
        )
