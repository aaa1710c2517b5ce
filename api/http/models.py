"""The models of requests and responses; units are those of ``lab.api.http.units``."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from lab.api.http.units import IN_BYTES, IN_SECONDS, Bytes, Seconds, Time
from lab.blueprints import Known
from lab.lifecycle.core.environment import environment
from lab.lifecycle.service import token as tokens
from lab.names import LAB_NAME_LIMIT
from lab.observe.states import NodeState
from lab.spec import NODES_LIMIT
from lab.state.records import EventRecord, LabRecord
from lab.state.service import AuditRecord, JobKind, JobRecord, Scope, TokenRecord
from lab.units import MIB
from lab.views.labs import LabView, NodeView

T = TypeVar("T")

CA_PATH = "/v1/host/ca"

NAME = rf"^[a-z]([a-z0-9-]{{0,{LAB_NAME_LIMIT - 2}}}[a-z0-9])?$"
NODE = r"^n[1-9]$"
DATASET = r"^[a-z]([a-z0-9-]*[a-z0-9])?(@[1-9][0-9]{0,8})?$"
WORD = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
ENGINE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(:[0-9][0-9.]{0,15})?$"
_LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?$"
_OBSERVED = (
    "When its state was observed; null: not within the last 30 seconds, and the state is unknown."
)
_LEAST_TTL, _MOST_TTL = 10.0, 366 * 86400.0
_TERABYTE = 1 << 40

Ttl = Annotated[Seconds, Field(ge=_LEAST_TTL, le=_MOST_TTL, examples=["1h"])]
Idle = Annotated[Seconds, Field(ge=60, le=_MOST_TTL, examples=["30m"])]
State = Literal[
    "ready", "degraded", "not-primary", "unreachable", "starting", "stopped",
    "creating", "failed", "removing", "unrecorded", "unknown",
]  # fmt: skip
"""``LabState`` of lab.observe.states, without the one that only the service sees."""


class Asked(BaseModel):
    """A request; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid")


class Cluster(Asked):
    """A cluster; fields that are left out have the defaults of `lab up`."""

    blueprint: Annotated[str, Field(pattern=WORD, examples=["pxc"])]
    nodes: Annotated[
        Annotated[int, Field(ge=1, le=NODES_LIMIT)] | None,
        Field(description="Default: the blueprint's; 3 for a cluster."),
    ] = None
    engine: Annotated[str | None, Field(pattern=ENGINE, examples=["mariadb:10.11"])] = None
    image: Annotated[str | None, Field(pattern=WORD, description="The key of an image.")] = None
    dataset: Annotated[
        str | None,
        Field(
            pattern=DATASET,
            description="The data that the nodes begin with: the latest version, or one.",
            examples=["shop", "shop@2"],
        ),
    ] = None
    profile: Annotated[str | None, Field(pattern=WORD, examples=["balanced"])] = None
    options: Annotated[
        dict[str, Any] | None,
        Field(
            max_length=32,
            description="What differs from the defaults of the blueprint. The names are those of"
            " lab.toml, each with one form: `delay` is a number of seconds; `on` and `set` are"
            " lists of texts; files are their content: `my_cnf` is a list of `{text, role}`,"
            " `init` a text; `user` is a list of `{name, scope, native, caching_sha2}`, with what"
            " servers keep of a password.",
            examples=[
                {
                    "topology": "chain",
                    "semi_sync": True,
                    "delay": 3600,
                    "on": ["n3"],
                    "set": ["max_connections=50"],
                }
            ],
        ),
    ] = None
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
    """A lab to create."""

    name: Annotated[str | None, Field(pattern=NAME, examples=["shop"])] = None
    accept_pooled_name: Annotated[
        bool, Field(description="Also accept a lab of a warm pool, whose name differs.")
    ] = False
    snapshots: Annotated[
        str | None,
        Field(
            max_length=100,
            description="A schedule, such as hourly:24,daily:7.",
            examples=["hourly:24"],
        ),
    ] = None
    cold: Annotated[bool, Field(description="Cold boot: do not restore RAM from the template.")] = (
        False
    )
    ttl: Annotated[Ttl | None, Field(description=f"The lease, {IN_SECONDS}.")] = None
    heartbeat: Annotated[
        Annotated[Seconds, Field(ge=_LEAST_TTL, le=3600)] | None,
        Field(description=f"The lease that each heartbeat renews, {IN_SECONDS}."),
    ] = None
    idle: Annotated[
        Idle | None, Field(description=f"End the lease after this time without use, {IN_SECONDS}.")
    ] = None
    protected: Annotated[bool, Field(description="The lab is removed only with force.")] = False
    keep_failed: Annotated[
        bool, Field(description="If creation fails, keep the failed lab until its lease ends.")
    ] = False


class LabPatch(Asked):
    """Changes of a lab; fields that are left out stay."""

    ttl: Annotated[Ttl | None, Field(description=f"A new lease, from now on, {IN_SECONDS}.")] = None
    idle: Annotated[
        Idle | Literal[0] | None,
        Field(description=f"End the lease after this time without use, {IN_SECONDS}; 0: never."),
    ] = None
    protected: bool | None = None


class Connection(BaseModel):
    """The account and the address of a lab's databases."""

    user: str
    password: str
    dsn: Annotated[str, Field(examples=["mysql://lab:secret@127.0.0.1:23306/"])]
    ssl_ca: Annotated[
        str,
        Field(
            description="The path of the CA certificate that verifies the servers; empty: no TLS.",
            examples=["/v1/host/ca"],
        ),
    ]


class Unmet(BaseModel):
    """A requirement that a node does not meet."""

    name: Annotated[str, Field(examples=["cluster"])]
    what: Annotated[str, Field(examples=["wsrep_cluster_size is 3"])]
    found: Annotated[str, Field(description="What it said instead.", examples=["2"])]


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
    disk: Annotated[int | None, Field(description="In bytes; null: the image's.")]
    services: Annotated[
        dict[str, int],
        Field(
            description="The ports on which it listens, in the guest.",
            examples=[{"sql": 3306, "ssh": 22}],
        ),
    ]
    ports: Annotated[
        dict[str, int],
        Field(
            description="The ports at which these are reached; SQL at `host`.",
            examples=[{"sql": 23306, "ssh": 23309}],
        ),
    ]
    addresses: Annotated[
        dict[str, str],
        Field(
            description="Where these are reached, from the host or, if published, from elsewhere.",
            examples=[{"sql": "127.0.0.1:23306", "ssh": "127.0.0.1:23309"}],
        ),
    ]
    position: Annotated[
        str,
        Field(
            description="What it has executed, as its engine names it, if it said so.",
            examples=["0-1-42"],
        ),
    ]
    behind: Annotated[
        int | None,
        Field(
            description="Transactions of the nodes that it replicates from which it has not"
            " executed; null if it replicates from none, or that is not known.",
        ),
    ]
    observed_at: Annotated[Time | None, Field(description=_OBSERVED)]
    role_known: Annotated[
        Known,
        Field(description="Empty: it has the role now; else it had it once, or was made in it."),
    ]
    unmet: Annotated[
        list[Unmet], Field(description="What it lacks to be ready, or is not known to have.")
    ]
    answered: Annotated[
        bool,
        Field(
            description="Whether it answered. Its state may be unknown all the same, while a node"
            " on which a requirement depends does not answer."
        ),
    ]

    @staticmethod
    def of(view: NodeView) -> Node:
        """``view`` as the API returns it."""
        return Node(
            name=view.name,
            role=view.role,
            state=cast(NodeState, view.state),
            host=view.host,
            sql_port=view.sql_port,
            ssh_port=view.ssh_port,
            guest=view.guest,
            image=view.image,
            memory=view.memory,
            cpus=view.cpus,
            disk=view.disk,
            services=dict(view.services),
            ports=dict(view.ports),
            addresses=dict(view.addresses),
            position=view.position,
            behind=view.behind,
            observed_at=view.observed_at,
            role_known=view.role_known,
            unmet=[Unmet(**vars(one)) for one in view.unmet],
            answered=view.answered,
        )


class Link(BaseModel):
    """``replica`` receives what ``source`` commits."""

    source: Annotated[str, Field(examples=["n1"])]
    replica: Annotated[str, Field(examples=["n2"])]
    kind: Annotated[str, Field(description="Such as semi-sync; empty: asynchronous.")]
    known: Annotated[
        Known,
        Field(description="Empty: the replica said so; else that it said so once, or never did."),
    ]


class Lab(BaseModel):
    """A lab. ``connection``, ``env``: for the scope `use`, once the lab has an account."""

    name: Annotated[str, Field(examples=["shop"])]
    project: str
    owner: str
    blueprint: Annotated[str, Field(examples=["pxc"])]
    engine: str
    engine_version: str
    state: State
    nodes: list[Node]
    requested_nodes: Annotated[
        int,
        Field(description="As requested; the blueprint may have others, such as a proxy."),
    ]
    endpoints: Annotated[
        dict[str, list[str]],
        Field(
            description="For users; the default is the first node of the first endpoint.",
            examples=[{"rw": ["n1", "n2", "n3"]}],
        ),
    ]
    addresses: Annotated[
        dict[str, list[str]],
        Field(
            description="Where the nodes of each endpoint answer.",
            examples=[{"rw": ["127.0.0.1:23306", "127.0.0.1:23307", "127.0.0.1:23308"]}],
        ),
    ]
    links: Annotated[list[Link], Field(description="Who replicates from whom.")]
    image: str
    template: str
    parent: Annotated[
        str,
        Field(
            description="The snapshot of another lab that it is a branch of; empty for others.",
            examples=["lab:shop@before-upgrade.20261121t110000"],
        ),
    ]
    profile: str
    started: Annotated[str, Field(description="warm or cold")]
    why_cold: str
    memory: Annotated[int, Field(description="As requested for a node, in bytes.")]
    cpus: Annotated[int, Field(description="As requested for a node.")]
    disk: Annotated[int | None, Field(description="As requested, in bytes; null: the image's.")]
    options: Annotated[
        dict[str, Any],
        Field(description="As requested, with digests of files.", examples=[{"semi_sync": True}]),
    ]
    snapshots: str
    created_at: Time
    expires_at: Time | None
    heartbeat: Annotated[float | None, Field(description="In seconds.")]
    idle: Annotated[float | None, Field(description="In seconds.")]
    protected: bool
    ready_seconds: Annotated[float, Field(description="Duration of its last start, in seconds.")]
    job: Annotated[str, Field(description="The job that created it.")]
    observed_at: Annotated[Time | None, Field(description=_OBSERVED)]
    interrupted: Annotated[
        str, Field(description="What was interrupted, and what completes it; else empty.")
    ]
    connection: Connection | None
    env: Annotated[
        dict[str, str] | None,
        Field(
            description="The variables of `lab env`, but LAB_SSL_CA, a file of this machine.",
            examples=[{"LAB_NAME": "shop", "LAB_HOST": "127.0.0.1", "LAB_PORTS": "23306,23307"}],
        ),
    ]

    @staticmethod
    def of(view: LabView, record: LabRecord | None, *, login: bool) -> Lab:
        """``view`` as the API returns it; ``login``: with the password."""
        connection, env = None, None
        if login and view.dsn:
            env = {name: its for name, its in environment(view).items() if name != "LAB_SSL_CA"}
            ca = CA_PATH if view.ssl_ca else ""
            connection = Connection(user=view.user, password=view.password, dsn=view.dsn, ssl_ca=ca)
        return Lab(
            name=view.name,
            project=record.project if record else "",
            owner=view.owner,
            blueprint=view.blueprint,
            engine=view.engine,
            engine_version=view.engine_version,
            state=cast(State, view.state),
            nodes=[Node.of(node) for node in view.nodes],
            requested_nodes=view.requested_nodes,
            endpoints={name: list(nodes) for name, nodes in view.endpoints.items()},
            addresses={name: list(places) for name, places in view.addresses.items()},
            links=[
                Link(source=one.source, replica=one.replica, kind=one.kind, known=one.known)
                for one in view.links
            ],
            image=view.image,
            template=view.template,
            parent=view.parent,
            profile=view.profile,
            started=view.started,
            interrupted=view.interrupted,
            why_cold=view.why_cold,
            memory=view.memory,
            cpus=view.cpus,
            disk=view.disk,
            options=dict(view.options),
            snapshots=view.snapshots,
            created_at=view.created_at,
            expires_at=view.expires_at,
            heartbeat=record.heartbeat if record else None,
            idle=record.idle if record else None,
            protected=record.protected if record else False,
            ready_seconds=view.seconds,
            job=record.job if record else "",
            observed_at=view.observed_at,
            connection=connection,
            env=env,
        )


class Job(BaseModel):
    """A job. ``lab``: the name of its lab, once known; ``error``: a problem."""

    id: str
    kind: JobKind
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    lab: str
    about: Annotated[
        str,
        Field(
            description="The image, template, snapshots or branches that it concerns, once known.",
            examples=["image:KEY", "template:KEY", "snapshot:LABEL", "snapshots:A,B", "labs:A,B"],
        ),
    ]
    project: str
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    error: dict[str, Any] | None

    @staticmethod
    def of(record: JobRecord) -> Job:
        """``record`` as the API returns it."""
        return Job(
            id=record.id,
            kind=record.kind,
            state=record.state,
            lab=record.lab,
            about=record.about,
            project=record.project,
            created_at=record.created_at,
            started_at=record.started_at,
            ended_at=record.ended_at,
            error=None if record.error is None else dict(record.error),
        )


class Page(BaseModel, Generic[T]):
    """A part of a list. ``next``: the ``after`` that gets the next part; null: this is the last."""

    items: list[T]
    next: str | None = None


class Event(BaseModel):
    """A step of a job. A job's last event has the step `job`, and the job's state as its text."""

    id: int
    at: Time
    job: str
    step: Annotated[str, Field(examples=["clone"])]
    state: Annotated[str, Field(description="begin, end, fail or note", examples=["end"])]
    text: str
    seconds: float

    @staticmethod
    def of(record: EventRecord) -> Event:
        """``record`` as the API returns it."""
        return Event(
            id=record.id,
            at=record.at,
            job=record.owner.removeprefix("job:"),
            step=record.step,
            state=record.state,
            text=record.text,
            seconds=record.seconds,
        )


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


class TokenRequest(Asked):
    """A token to create."""

    name: Annotated[str, Field(pattern=_LABEL, examples=["ci"])]
    project: Annotated[str, Field(pattern=_LABEL, examples=["shop"])]
    scope: Scope = "use"
    ttl: Annotated[
        Annotated[Seconds, Field(gt=0, le=10 * 366 * 86400)] | None,
        Field(description=f"The validity, {IN_SECONDS}; null: until it is revoked."),
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


class Used(BaseModel):
    """What a project has of all that quotas limit, jobs that have not ended included."""

    labs: int
    nodes: int
    memory: Annotated[int, Field(description="In bytes.")]
    cpus: int
    disk: Annotated[int, Field(description="In bytes.")]
    snapshots: int
    templates: int


class Token(BaseModel):
    """A token, without its text. Null: not limited, except by the service's settings."""

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
    last_used_at: Annotated[Time | None, Field(description="Null: never.")]
    used: Annotated[
        Used, Field(description="What its project has now, counted as its quotas count it.")
    ]

    @staticmethod
    def of(record: TokenRecord, *, last_used_at: float | None, used: tokens.Used) -> Token:
        """``record`` as the API returns it."""
        return Token(
            id=record.id,
            name=record.name,
            project=record.project,
            scope=record.scope,
            created_at=record.created_at,
            expires_at=record.expires_at,
            revoked_at=record.revoked_at,
            max_labs=record.max_labs,
            max_nodes=record.max_nodes,
            max_memory=record.max_memory,
            max_cpus=record.max_cpus,
            max_disk=record.max_disk,
            max_snapshots=record.max_snapshots,
            max_templates=record.max_templates,
            max_ttl=record.max_ttl,
            last_used_at=last_used_at,
            used=Used(**vars(used)),
        )


class MadeToken(BaseModel):
    """A new token; its text is not shown again."""

    token: Token
    text: str


class AuditEntry(BaseModel):
    """An audit entry: a request that changes something or reads secrets, and its answer."""

    id: int
    at: Time
    token: str
    project: str
    action: Annotated[str, Field(examples=["createLab"])]
    target: Annotated[str, Field(examples=["/v1/labs"])]
    status: int
    request: str
    address: str

    @staticmethod
    def of(record: AuditRecord) -> AuditEntry:
        """``record`` as the API returns it."""
        return AuditEntry(
            id=record.id,
            at=record.at,
            token=record.token,
            project=record.project,
            action=record.action,
            target=record.target,
            status=record.status,
            request=record.request,
            address=record.address,
        )
