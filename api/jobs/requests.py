"""The requests of jobs: one type for each kind of job.

A request is kept as JSON until its job has ended, in a table that only the job reads. What others
need of it is in the row of the job: ``facts``. Later versions read both, so every field that is
added has a default, and none changes its meaning; unknown fields are ignored, and a null means the
default. The JSON also identifies a repeated request (see ``submit.digest_of``): all fields are
written, except those of ``TakeSnapshot`` that have their defaults. A field that is added to another
type would change the digests of its requests: ``LATER`` names it, and it is left out while it is
false.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import msgspec

from lab import options, schedule
from lab.errors import InvalidSpec
from lab.lifecycle.core.context import Origin
from lab.names import branch_names
from lab.spec import Identity, LabSpec, NodeSize
from lab.state.records import LabRecord
from lab.state.service import JobRecord

_USUAL = LabSpec("")
"""A specification with the defaults of all fields."""

TRACEPARENT_KEY = "traceparent"
"""The key of a job's facts that holds the traceparent of the HTTP request."""

GUESTS_KEY = "guests"
"""The key of a job's facts that holds memory and processors of its guests; see ``guests_of``."""

_LARGE_OPTIONS = ("set", "my_cnf", "init", "user", "on")
"""Options that say nothing about the number and the sizes of nodes, and may be large."""


class Request(msgspec.Struct, frozen=True):
    """The base of all requests. ``LATER``: fields added after rows were written (see above).

    ``LARGE``: fields that only the job reads, and that end with it: texts, which may hold secrets,
    and lists.
    """

    LATER: ClassVar[tuple[str, ...]] = ()
    LARGE: ClassVar[tuple[str, ...]] = ()


class ClusterRequest(Request, frozen=True, kw_only=True, dict=True):
    """A cluster to create; empty strings and 0 as in ``LabSpec``, ``ttl`` in seconds."""

    LATER = ("dataset", "options")

    blueprint: str
    name: str = ""
    nodes: int = _USUAL.nodes
    engine: str = ""
    memory: int = _USUAL.size.memory
    cpus: int = _USUAL.size.cpus
    disk: int = _USUAL.size.disk
    ttl: float | None = None
    profile: str = ""
    snapshots: str = ""
    image: str = ""
    dataset: str = ""
    options: dict[str, Any] = {}

    @cached_property
    def spec(self) -> LabSpec:
        """The specification, parsed once; raises InvalidSpec."""
        return LabSpec(
            blueprint=self.blueprint,
            name=self.name,
            nodes=self.nodes,
            engine=self.engine,
            size=NodeSize(self.memory, self.cpus, self.disk),
            ttl=self.ttl,
            profile=self.profile,
            snapshots=schedule.parse(self.snapshots) if self.snapshots else schedule.NONE,
            image=self.image,
            dataset=self.dataset,
            options=options.of(self.options),
            accept_pooled_name=self.may_differ,
        )

    @property
    def may_differ(self) -> bool:
        """Whether the lab may have another name than ``name``."""
        return False


class BuildTemplate(ClusterRequest, frozen=True, kw_only=True):
    """``build-template``; ``name``, ``ttl`` and ``snapshots`` are unused."""


class CreateLab(ClusterRequest, frozen=True, kw_only=True):
    """``create``; ``heartbeat`` and ``idle`` in seconds, ``owner``: the token's name."""

    accept_pooled_name: bool = msgspec.field(default=False, name="any_name")
    """Stored as ``any_name``, the name that earlier versions wrote."""
    cold: bool = False
    heartbeat: float | None = None
    idle: float | None = None
    protected: bool = False
    keep_failed: bool = False
    owner: str = ""

    @property
    def may_differ(self) -> bool:
        """See ``ClusterRequest``."""
        return self.accept_pooled_name


class FillPool(CreateLab, frozen=True, kw_only=True):
    """``fill``: a member of the warm pool ``pool``."""

    pool: str = ""

    @staticmethod
    def of(spec: LabSpec, name: str, *, owner: str, pool: str) -> FillPool:
        """The request for a member called ``name`` with the specification of its pool."""
        return FillPool(
            blueprint=spec.blueprint,
            name=name,
            nodes=spec.nodes,
            engine=spec.engine,
            memory=spec.size.memory,
            cpus=spec.size.cpus,
            disk=spec.size.disk,
            ttl=spec.ttl,
            profile=spec.profile,
            snapshots=str(spec.snapshots),
            image=spec.image,
            dataset=spec.dataset,
            options=spec.options.said,
            owner=owner,
            pool=pool,
        )


class LabRequest(Request, frozen=True, kw_only=True):
    """A request about an existing lab.

    ``created_at``: when that lab was created, in epoch seconds: another lab may have its name when
    the job runs. None: any lab of that name.
    """

    created_at: float | None = None


class DeleteLab(LabRequest, frozen=True, kw_only=True):
    """``delete``; ``force``: also if it is protected; ``defer``: with its last branch."""

    LATER = ("defer",)

    force: bool = False
    defer: bool = False


class ExpireLab(LabRequest, frozen=True, kw_only=True):
    """``expire``; ``expires_at``: when the lease expired, in epoch seconds."""

    expires_at: float | None = None


class Power(LabRequest, frozen=True, kw_only=True):
    """``start``, ``stop``, ``restart``: of ``node`` or, if it is empty, all nodes.

    ``force``: stop them without a shutdown.
    """

    node: str = ""
    force: bool = False


class Promote(LabRequest, frozen=True, kw_only=True):
    """``promote`` the node ``node``; ``force``: also without the one that takes writes now."""

    node: str
    force: bool = False


class TakeSnapshot(LabRequest, frozen=True, kw_only=True, omit_defaults=True):
    """``snapshot`` called ``name``; ``scheduled``: take and remove by the lab's schedule instead.

    ``ttl``: seconds until it expires, None for never.
    """

    name: str = ""
    scheduled: bool = False
    disks_only: bool = False
    ttl: float | None = None
    protected: bool = False


class DeleteSnapshot(LabRequest, frozen=True, kw_only=True):
    """``delete-snapshot``: the subject of the job; ``force``: also if it is protected."""

    LATER = ("force",)

    force: bool = False


class PruneSnapshots(LabRequest, frozen=True, kw_only=True):
    """``prune-snapshots``."""


class RollBack(LabRequest, frozen=True, kw_only=True):
    """``rollback`` to the label ``to``: of ``node`` or, if it is empty, all nodes."""

    LATER = ("cold", "keep_sessions")

    to: str
    node: str = ""
    cold: bool = False
    keep_sessions: bool = False


class BranchLab(LabRequest, frozen=True, kw_only=True):
    """``branch``: ``count`` labs that are clones of the lab, or of its snapshot ``at``.

    ``name``: of the branch, with a number where there are several; empty: one is chosen. ``ttl``:
    seconds of their lease. ``owner``: the token's name.
    """

    name: str = ""
    at: str = ""
    count: int = 1
    ttl: float | None = None
    keep_sessions: bool = False
    identity: Identity = "shared"
    owner: str = ""

    @property
    def names(self) -> list[str]:
        """See ``branch_names``."""
        return branch_names(self.name, self.count)


class BuildImage(Request, frozen=True, kw_only=True):
    """``build-image`` of ``recipe``; ``rebuild``: also if it exists."""

    recipe: str
    rebuild: bool = False


class DeleteImage(Request, frozen=True):
    """``delete-image``: the subject of the job."""


class DeleteTemplate(Request, frozen=True):
    """``delete-template``: the subject of the job."""


class CreateDataset(Request, frozen=True, kw_only=True):
    """``create-dataset``; the fields are those of ``dataset.create``.

    ``upload``: the dump of a source ``upload:``, below the home's uploads. ``lab_created_at``: of a
    source ``lab:``, when that lab was created, in epoch seconds: another may have its name when the
    job runs. ``shared``: for all projects.
    """

    LATER = ("engine", "force", "settings", "my_cnf")
    LARGE = (
        "mask",
        "sql",
        "warm",
        "settings",
        "my_cnf",
        "tables",
        "where",
        "schema_only",
        "defaults_file",
    )

    name: str
    source: str
    blueprint: str = "galera"
    keep: int = 0
    mask: str = ""
    sql: str = ""
    tables: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    schema_only: tuple[str, ...] = ()
    defaults_file: str = ""
    warm: str = ""
    upload: str = ""
    lab_created_at: float | None = None
    engine: str = ""
    shared: bool = False
    force: bool = False
    settings: tuple[str, ...] = ()
    my_cnf: str = ""


class RefreshDataset(Request, frozen=True, kw_only=True):
    """``refresh-dataset``: the subject of the job; ``keep``: versions, None: as it was created.

    ``force``: also if the source has much less than the latest version.
    """

    LATER = ("force",)

    keep: int | None = None
    force: bool = False


class DeleteDataset(Request, frozen=True, kw_only=True):
    """``delete-dataset``: the subject of the job; ``defer``: with the last lab."""

    defer: bool = False


R = TypeVar("R", bound=Request)


def read(job: JobRecord, given: Mapping[str, Any], kind: type[R]) -> R:
    """The request ``given`` of a job, or the facts of it, as a ``kind``; raises InvalidSpec."""
    said = {key: value for key, value in given.items() if value is not None}
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise InvalidSpec(f"the request of job {job.id} ({job.kind}) is invalid: {error}") from None


def plain(request: Request) -> dict[str, Any]:
    """``request`` as JSON."""
    found: dict[str, Any] = msgspec.to_builtins(request)
    return {key: value for key, value in found.items() if value or key not in request.LATER}


def read_facts(job: JobRecord, kind: type[R]) -> R:
    """The request of a job without what is ``LARGE`` in it; raises InvalidSpec."""
    return read(job, job.facts, kind)


def facts(request: Request) -> dict[str, Any]:
    """What others than its job need of a request, as JSON for the row of the job."""
    found = {name: value for name, value in plain(request).items() if name not in request.LARGE}
    if isinstance(request, ClusterRequest) and request.options:
        own = request.options.items()
        found["options"] = {name: value for name, value in own if name not in _LARGE_OPTIONS}
    return found


def guests_of(job: JobRecord) -> list[NodeSize]:
    """The guests that a job runs further to the nodes of labs."""
    return [NodeSize(memory, cpus) for memory, cpus in job.facts.get(GUESTS_KEY, ())]


def traceparent_of(job: JobRecord) -> str:
    """The traceparent of the HTTP request that submitted a job; empty if there is none."""
    return str(job.facts.get(TRACEPARENT_KEY, ""))


def concerns(job: JobRecord, lab: LabRecord) -> bool:
    """Whether a job about an existing lab is about ``lab``, not another of the same name."""
    return job.facts.get("created_at") in (None, lab.created_at)


def pool_of(job: JobRecord) -> str:
    """The warm pool that a job creates a member of; empty for other jobs."""
    return str(job.facts.get("pool", ""))


def origin_of(job: JobRecord, request: Request) -> Origin:
    """The origin that is recorded with the lab or template that ``job`` creates."""
    if isinstance(request, CreateDataset) and request.shared:
        return Origin("", job.id)
    if not isinstance(request, CreateLab):
        return Origin(job.project, job.id)
    return Origin(
        project=job.project,
        job=job.id,
        protected=request.protected,
        heartbeat=request.heartbeat,
        pool=request.pool if isinstance(request, FillPool) else "",
        idle=request.idle,
    )
