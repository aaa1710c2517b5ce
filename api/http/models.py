"""The models of requests and responses; units are those of ``lab.api.http.units``."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from lab.api.http.units import Seconds
from lab.requests.labs import LEASE_LIMIT
from lab.requests.request import IN_SECONDS

T = TypeVar("T")

Ttl = Annotated[Seconds, Field(ge=10.0, le=LEASE_LIMIT, examples=["1h"])]
Idle = Annotated[Seconds, Field(ge=60, le=LEASE_LIMIT, examples=["30m"])]


class Asked(BaseModel):
    """A request; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


class LabPatch(Asked):
    """Changes of a lab; fields that are left out stay."""

    ttl: Annotated[Ttl | None, Field(description=f"A new lease, from now on, {IN_SECONDS}.")] = None
    idle: Annotated[
        Idle | Literal[0] | None,
        Field(description=f"End the lease after this time without use, {IN_SECONDS}; 0: never."),
    ] = None
    protected: bool | None = None


class Page(BaseModel, Generic[T]):
    """A part of a list. ``next``: the ``after`` that gets the next part; null: this is the last."""

    items: list[T]
    next: str | None = None


class Command(Asked):
    """A program to run in a node, as root."""

    argv: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=65536, pattern=r"^[^\x00]+$")]],
        Field(min_length=1, max_length=1000, examples=[["uptime"]]),
    ]
    stdin: Annotated[str, Field(max_length=1 << 16)] = ""
    timeout: Annotated[
        Seconds, Field(gt=0, le=600, description=f"The longest run time, {IN_SECONDS}.")
    ] = 60.0


class Output(BaseModel):
    """The output of a program."""

    stdout: str


class LogLines(BaseModel):
    """The last lines of a log."""

    lines: list[str]


class Capacity(BaseModel):
    """What all labs together may use, and what they use; memory in bytes."""

    total: int
    used: int


class PoolView(BaseModel):
    """A warm pool. ``count``: how many labs it is to have; ``ready``: how many can be claimed."""

    name: Annotated[str, Field(examples=["pxc"])]
    blueprint: str
    nodes: int
    memory: Annotated[int, Field(description="Of a node, in bytes.")]
    count: int
    ready: int
    hits: Annotated[
        int, Field(description="Requests that it served since the service was started.")
    ]
    misses: Annotated[int, Field(description="Requests that found none of its labs ready.")]


class Usage(BaseModel):
    """What the labs of a project use; memory and processors: of those that are not stopped."""

    project: str
    labs: int
    memory: Annotated[int, Field(description="In bytes.")]
    processors: int


class Host(BaseModel):
    """The host's capabilities and capacity."""

    hypervisor: str
    accelerator: str
    warm: bool
    why_cold: str
    storage: str
    memory: Capacity
    memory_available: Annotated[int, Field(description="In bytes.")]
    ports: Capacity
    processors: int
    processors_used: Annotated[int, Field(description="Those of all running nodes.")]
    space_free: Annotated[int, Field(description="In bytes.")]
    space_total: Annotated[int, Field(description="In bytes.")]
    labs: Annotated[int, Field(description="Without those in pools.")]
    pooled: Annotated[int, Field(description="Labs in pools; what they use is counted, too.")]
    projects: Annotated[
        list[Usage], Field(description="Of the token's project; for administrators, of all.")
    ]
    waiting: Annotated[int, Field(description="Jobs that wait for room.")]
    pools: list[PoolView]
