"""Requests about labs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from lab import options, schedule
from lab.names import branch_names
from lab.requests.request import Request
from lab.spec import Identity, LabSpec, NodeSize

_USUAL = LabSpec("")
"""A specification with the defaults of all fields."""


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
    options: dict[str, Any] = msgspec.field(default_factory=dict)

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
