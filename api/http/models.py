"""What requests and responses hold; units are those of ``lab.api.http.units``."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from lab.api.background.pool import PoolView
from lab.api.http.units import IN_BYTES, IN_SECONDS, Bytes, Seconds, Time
from lab.lifecycle.core.views import LabView, NodeState, NodeView
from lab.names import LAB_NAME_LIMIT
from lab.spec import MIB, NODES_LIMIT
from lab.state.records import EventRecord, JobKind, JobRecord, LabRecord, Scope, TokenRecord

T = TypeVar("T")

CA_PATH = "/v1/host/ca"

NAME = rf"^[a-z]([a-z0-9-]{{0,{LAB_NAME_LIMIT - 2}}}[a-z0-9])?$"
NODE = r"^n[1-9]$"
WORD = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?$"
_LEAST_TTL, _MOST_TTL = 10.0, 366 * 86400.0
_TERABYTE = 1 << 40

Ttl = Annotated[Seconds, Field(ge=_LEAST_TTL, le=_MOST_TTL, examples=["1h"])]
Idle = Annotated[Seconds, Field(ge=60, le=_MOST_TTL, examples=["30m"])]
State = Literal[
    "ready", "degraded", "not-primary", "unreachable", "starting", "stopped",
    "creating", "failed", "removing", "unrecorded",
]  # fmt: skip
"""``LabState`` of lab.lifecycle.core.views, without the one that only the service sees."""


class Asked(BaseModel):
    """A request; what it has no use for is an error."""

    model_config = ConfigDict(extra="forbid")


class Cluster(Asked):
    """What a cluster is to be; what is left out is as for `lab up`."""

    blueprint: Annotated[str, Field(pattern=WORD, examples=["pxc"])]
    nodes: Annotated[
        Annotated[int, Field(ge=1, le=NODES_LIMIT)] | None,
        Field(description="Default: the blueprint's, 3 of a cluster."),
    ] = None
    engine: Annotated[str | None, Field(pattern=WORD, examples=["mariadb"])] = None
    image: Annotated[str | None, Field(pattern=WORD, description="Its key.")] = None
    profile: Annotated[str | None, Field(pattern=WORD, examples=["balanced"])] = None
    memory: Annotated[
        Bytes,
        Field(ge=384 * MIB, le=_TERABYTE, multiple_of=MIB, description=f"Of a node, {IN_BYTES}."),
    ] = 768 * MIB
    cpus: Annotated[int, Field(ge=1, le=64, description="Of a node.")] = 1
    disk: Annotated[
        Bytes,
        Field(
            ge=0,
            le=_TERABYTE,
            multiple_of=MIB,
            description=f"Of a node, {IN_BYTES}; 0: the image's.",
        ),
    ] = 0


class LabRequest(Cluster):
    """A lab to be made."""

    name: Annotated[str | None, Field(pattern=NAME, examples=["shop"])] = None
    any_name: Annotated[
        bool, Field(description="A lab that is ready already may have another name.")
    ] = False
    snapshots: Annotated[
        str | None, Field(max_length=100, description="A schedule.", examples=["hourly:24"])
    ] = None
    cold: Annotated[bool, Field(description="Boot, even if RAM could be restored.")] = False
    ttl: Annotated[Ttl | None, Field(description=f"A lease, {IN_SECONDS}.")] = None
    heartbeat: Annotated[
        Annotated[Seconds, Field(ge=_LEAST_TTL, le=3600)] | None,
        Field(description=f"What each sign of life gives the lab, {IN_SECONDS}."),
    ] = None
    idle: Annotated[
        Idle | None, Field(description=f"The lease ends after so long without use, {IN_SECONDS}.")
    ] = None
    protected: Annotated[bool, Field(description="Not to be removed without force.")] = False
    keep_failed: Annotated[
        bool, Field(description="If it fails, the lab stays as it is until its lease ends.")
    ] = False


class LabPatch(Asked):
    """What can be changed of a lab; what is left out stays."""

    ttl: Annotated[Ttl | None, Field(description=f"A new lease, from now on, {IN_SECONDS}.")] = None
    idle: Annotated[
        Idle | Literal[0] | None,
        Field(description=f"The lease ends after so long without use, {IN_SECONDS}; 0: never."),
    ] = None
    protected: bool | None = None


class Connection(BaseModel):
    """How to log in at a lab's databases."""

    user: str
    password: str
    dsn: Annotated[str, Field(examples=["mysql://lab:secret@127.0.0.1:23306/"])]
    ssl_ca: Annotated[
        str,
        Field(
            description="Where the certificate is that servers are checked with; empty: no TLS.",
            examples=["/v1/host/ca"],
        ),
    ]


class Node(BaseModel):
    """A node of a lab."""

    name: Annotated[str, Field(examples=["n1"])]
    role: Annotated[str, Field(examples=["member"])]
    state: NodeState
    host: Annotated[str, Field(examples=["127.0.0.1"])]
    sql_port: Annotated[int, Field(examples=[23306])]
    ssh_port: int
    guest: str
    image: Annotated[str, Field(description="The key of its image.")]
    memory: Annotated[int, Field(description="In bytes.")]
    cpus: int
    disk: Annotated[int, Field(description="In bytes; 0: the image's.")]
    services: Annotated[
        dict[str, int],
        Field(
            description="The ports on which it listens, in the guest.",
            examples=[{"sql": 3306, "ssh": 22}],
        ),
    ]

    @staticmethod
    def of(view: NodeView) -> Node:
        """``view`` as the service tells of it."""
        return Node(**vars(view))


class Lab(BaseModel):
    """A lab. ``connection``: for callers who may use it, once it has an account."""

    name: Annotated[str, Field(examples=["shop"])]
    project: str
    owner: str
    blueprint: Annotated[str, Field(examples=["pxc"])]
    engine: str
    engine_version: str
    state: State
    nodes: list[Node]
    endpoints: Annotated[
        dict[str, list[str]],
        Field(
            description="The nodes that users connect to; the first of the first is the default.",
            examples=[{"rw": ["n1", "n2", "n3"]}],
        ),
    ]
    image: str
    template: str
    profile: str
    started: Annotated[str, Field(description="warm or cold")]
    why_cold: str
    memory: Annotated[int, Field(description="Of a node, in bytes.")]
    cpus: Annotated[int, Field(description="Of a node.")]
    disk: Annotated[int, Field(description="Of a node, in bytes; 0: the image's.")]
    snapshots: str
    created_at: Time
    expires_at: Time | None
    heartbeat: Annotated[float | None, Field(description="In seconds.")]
    idle: Annotated[float | None, Field(description="In seconds.")]
    protected: bool
    ready_seconds: Annotated[float, Field(description="How long its last start took.")]
    job: Annotated[str, Field(description="The job that made it.")]
    connection: Connection | None

    @staticmethod
    def of(view: LabView, record: LabRecord | None, *, login: bool) -> Lab:
        """``view`` as the service tells of it; ``login``: with the password."""
        connection = None
        if login and view.dsn:
            ca = CA_PATH if view.ssl_ca else ""
            connection = Connection(user=view.user, password=view.password, dsn=view.dsn, ssl_ca=ca)
        same = {
            name: getattr(view, name)
            for name in Lab.model_fields
            if hasattr(view, name) and name != "nodes"
        }
        return Lab(
            **same,
            nodes=[Node.of(node) for node in view.nodes],
            ready_seconds=view.seconds,
            connection=connection,
            project=record.project if record else "",
            job=record.job if record else "",
            protected=record.protected if record else False,
            heartbeat=record.heartbeat if record else None,
            idle=record.idle if record else None,
        )


class Job(BaseModel):
    """Something that takes time. ``lab``: its name, once known; ``error``: a problem."""

    id: str
    kind: JobKind
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    lab: str
    about: Annotated[
        str,
        Field(
            description="What it is about besides or instead of that, once known.",
            examples=["image:KEY", "template:KEY", "snapshot:LABEL", "snapshots:A,B"],
        ),
    ]
    project: str
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    error: dict[str, Any] | None

    @staticmethod
    def of(record: JobRecord) -> Job:
        """``record`` as the service tells of it."""
        return Job(**{name: getattr(record, name) for name in Job.model_fields})


class Page(BaseModel, Generic[T]):
    """A part of a list. ``next``: the ``after`` that gets the next part; None: it was all."""

    items: list[T]
    next: str | None = None


class Event(BaseModel):
    """A step of a job. A job's last one is of the step `job`, and its text is the job's state."""

    id: int
    at: Time
    job: str
    step: Annotated[str, Field(examples=["clone"])]
    state: Annotated[str, Field(description="begin, end, fail or note", examples=["end"])]
    text: str
    seconds: float

    @staticmethod
    def of(record: EventRecord) -> Event:
        """``record`` as the service tells of it."""
        same = {name: getattr(record, name) for name in Event.model_fields if name != "job"}
        return Event(**same, job=record.owner.removeprefix("job:"))


class Command(Asked):
    """A program to be run in a node, as root."""

    argv: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=65536, pattern=r"^[^\x00]+$")]],
        Field(min_length=1, max_length=1000, examples=[["uptime"]]),
    ]
    stdin: Annotated[str, Field(max_length=1 << 20)] = ""
    timeout: Annotated[
        Seconds, Field(gt=0, le=600, description=f"How long it may run, {IN_SECONDS}.")
    ] = 60.0


class Output(BaseModel):
    """What a program printed."""

    stdout: str


class LogLines(BaseModel):
    """The last lines of a log."""

    lines: list[str]


class Capacity(BaseModel):
    """How much of something labs may have together, and what they have; memory in bytes."""

    total: int
    used: int


class Host(BaseModel):
    """What the host can do, and what room it has."""

    hypervisor: str
    accelerator: str
    warm: bool
    why_cold: str
    storage: str
    memory: Capacity
    memory_available: Annotated[int, Field(description="In bytes.")]
    ports: Capacity
    processors: int
    space_free: Annotated[int, Field(description="In bytes.")]
    space_total: Annotated[int, Field(description="In bytes.")]
    labs: int
    waiting: Annotated[int, Field(description="Jobs that wait for room.")]
    pools: list[PoolView]


class TokenRequest(Asked):
    """A token to be made."""

    name: Annotated[str, Field(pattern=_LABEL, examples=["ci"])]
    project: Annotated[str, Field(pattern=_LABEL, examples=["shop"])]
    scope: Scope = "use"
    ttl: Annotated[
        Annotated[Seconds, Field(gt=0, le=10 * 366 * 86400)] | None,
        Field(description=f"How long it is valid, {IN_SECONDS}; null: until it is revoked."),
    ] = None
    max_labs: Annotated[int | None, Field(ge=0, le=10000)] = None
    max_nodes: Annotated[int | None, Field(ge=0, le=100000)] = None
    max_memory: Annotated[
        Annotated[Bytes, Field(ge=0, le=1 << 50)] | None,
        Field(description=f"Of all nodes together, {IN_BYTES}."),
    ] = None
    max_cpus: Annotated[int | None, Field(ge=0, le=1000000)] = None
    max_disk: Annotated[
        Annotated[Bytes, Field(ge=0, le=1 << 60)] | None,
        Field(description=f"Of all nodes and their snapshots together, {IN_BYTES}."),
    ] = None
    max_snapshots: Annotated[int | None, Field(ge=0, le=100000)] = None
    max_templates: Annotated[int | None, Field(ge=0, le=10000)] = None
    max_ttl: Annotated[
        Annotated[Seconds, Field(ge=10, le=_MOST_TTL)] | None,
        Field(description=f"The longest lease, {IN_SECONDS}."),
    ] = None


class Token(BaseModel):
    """A token, without its text. What a null limits is not limited, but by the service."""

    id: str
    name: str
    project: str
    scope: Scope
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    max_labs: int | None
    max_nodes: int | None
    max_memory: Annotated[int | None, Field(description="In bytes.")]
    max_cpus: int | None
    max_disk: Annotated[int | None, Field(description="In bytes.")]
    max_snapshots: int | None
    max_templates: int | None
    max_ttl: Annotated[float | None, Field(description="In seconds.")]

    @staticmethod
    def of(record: TokenRecord) -> Token:
        """``record`` as the service tells of it."""
        return Token(**{name: getattr(record, name) for name in Token.model_fields})


class MadeToken(BaseModel):
    """A token that was just made; its text cannot be told again."""

    token: Token
    text: str


class AuditEntry(BaseModel):
    """Who did what: a request that was to change something, and how it was answered."""

    id: int
    at: Time
    token: str
    project: str
    action: Annotated[str, Field(examples=["createLab"])]
    target: Annotated[str, Field(examples=["/v1/labs"])]
    status: int
    request: str
    address: str
