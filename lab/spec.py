"""What a user asks for: a lab, in one form from lab.toml, flags and HTTP bodies to the verbs."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from lab import options, schedule, sizes
from lab.names import DATASET, ENGINE, LAB_NAME, WORD
from lab.request import EMPTY, IN_BYTES, IN_SECONDS, Bytes, Request, Seconds
from lab.sizes import BLUEPRINTS, NODES_LIMIT, NodeSize
from lab.units import MIB

if TYPE_CHECKING:
    from typing_extensions import Self

    from lab.options import Options
    from lab.schedule import Schedule

_NODES = 3
_USUAL = NodeSize()
_TERABYTE = 1 << 40
LEASE_LIMIT = 366 * 86400.0
"""Seconds of a lease, at most."""

Ttl = Annotated[Seconds, Meta(ge=10.0, le=LEASE_LIMIT, examples=["1h"])]


class LabSpec(Request, frozen=True, dict=True):
    """A requested lab: the base of the requests for one. Left out: the defaults of `lab up`.

    The fields are as JSON has them, in rows and bodies. ``node_count``, ``size``, ``schedule`` and
    ``chosen`` are what some of them mean. One that is no request of a job or a command raises
    InvalidSpec when it is made, if there can be no such lab; of the others ``check`` does.
    """

    LATER: ClassVar[tuple[str, ...]] = ("dataset", "options")

    blueprint: Annotated[str, Meta(pattern=WORD, examples=["pxc"])]
    """How the nodes become a cluster."""
    name: Annotated[str, EMPTY, Meta(pattern=LAB_NAME, examples=["shop"])] = ""
    """Empty: the first free one made from the blueprint's."""
    nodes: Annotated[
        int,
        Meta(ge=1, le=NODES_LIMIT),
        EMPTY,
        Meta(description="Default: the blueprint's; 3 for a cluster."),
    ] = 0
    """As requested; 0: the blueprint's own number."""
    engine: Annotated[str, EMPTY, Meta(pattern=ENGINE, examples=["mariadb:10.11"])] = ""
    """The required engine; empty: the blueprint's own choice."""
    memory: Annotated[
        Bytes,
        Meta(ge=384 * MIB, le=_TERABYTE, multiple_of=MIB, description=f"Of a node, {IN_BYTES}."),
    ] = _USUAL.memory
    cpus: Annotated[int, Meta(ge=1, le=64, description="Of a node.")] = _USUAL.cpus
    disk: Annotated[
        Bytes,
        Meta(
            ge=0,
            le=_TERABYTE,
            multiple_of=MIB,
            description=f"Of a node, {IN_BYTES}; 0: the image's.",
        ),
    ] = _USUAL.disk
    ttl: Annotated[Ttl | None, Meta(description=f"The lease, {IN_SECONDS}.")] = None
    """None: no lease."""
    profile: Annotated[str, EMPTY, Meta(pattern=WORD, examples=["balanced"])] = ""
    """The name of the profile; empty: that of the settings."""
    snapshots: Annotated[
        str,
        EMPTY,
        Meta(
            max_length=100,
            description="A schedule, such as hourly:24,daily:7.",
            examples=["hourly:24"],
        ),
    ] = ""
    image: Annotated[str, EMPTY, Meta(pattern=WORD, description="The key of an image.")] = ""
    """Empty: that of the engine's recipe as it is now."""
    dataset: Annotated[
        str,
        EMPTY,
        Meta(
            pattern=DATASET,
            description="The data that the nodes begin with: one version, or the latest; on"
            " the engine, if one is given.",
            examples=["shop", "shop@2"],
        ),
    ] = ""
    options: Annotated[
        dict[str, Any],
        EMPTY,
        Meta(
            max_length=32,
            description="What differs from the defaults of the blueprint. The names are those of"
            " lab.toml, each with one form: `delay` is a number of seconds; `on`, `set` and"
            " `node` are lists of texts; files are their content: `my_cnf` is a list of"
            " `{text, role}`, `init` a text; `user` is a list of `{name, scope, native,"
            " caching_sha2}`, with what servers keep of a password.",
            examples=[
                {
                    "topology": "chain",
                    "semi_sync": True,
                    "delay": 3600,
                    "on": ["n3"],
                    "set": ["max_connections=50"],
                    "node": ["n2=mariadb:10.11"],
                }
            ],
        ),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # A request is checked by who acts on it: rows of newer versions, which may say what is not
        # known here, are read as well.
        if type(self) is LabSpec:
            self.check()

    def __repr__(self) -> str:
        """As of all requests, but with the names of options: some keep hashes of passwords."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["options"] = list(self.options)
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def check(self) -> None:
        """Raise InvalidSpec if there can be no such lab."""
        _ = self.size, self.schedule  # each raises if it cannot be
        sizes.check(
            name=self.name,
            nodes=self.node_count,
            image=self.image,
            dataset=self.dataset,
            engines=bool(self.chosen.node),
        )

    @property
    def node_count(self) -> int:
        """How many nodes; the blueprint may plan others, such as a proxy."""
        return self.nodes or BLUEPRINTS.get(self.blueprint, _NODES)

    @cached_property
    def size(self) -> NodeSize:
        """What each node gets; raises InvalidSpec."""
        return NodeSize(self.memory, self.cpus, self.disk)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule by which snapshots are taken; raises InvalidSpec."""
        return schedule.parse(self.snapshots)

    @cached_property
    def chosen(self) -> Options:
        """The options; raises InvalidSpec if this version does not know them."""
        return options.of(self.options)

    @classmethod
    def of(cls, spec: LabSpec, **more: Any) -> Self:
        """What ``spec`` says, as one of this kind; ``more``: further fields. Raises InvalidSpec.

        What can be said in several ways, such as the usual number of nodes, is said in one.
        """
        names = [name for name in cls.__struct_fields__ if name in spec.__struct_fields__]
        said = {name: getattr(spec, name) for name in names}
        said |= {
            "nodes": spec.node_count,
            "snapshots": str(spec.schedule),
            "options": spec.chosen.said,
        }
        return cls(**{**said, **more})
