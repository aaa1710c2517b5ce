"""Requests about labs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from lab.names import (
    ARGUMENT,
    ENGINE,
    LAB_NAME,
    NODE_NAME,
    ON_HOST,
    SNAPSHOT_LABEL,
    Identity,
    branch_names,
)
from lab.request import EMPTY, HOST_ONLY, IN_SECONDS, LAB, Request, Seconds
from lab.schedule import ORIGIN
from lab.spec import LEASE_LIMIT, LabSpec, Ttl

Idle = Annotated[Seconds, Meta(ge=60, le=LEASE_LIMIT, examples=["30m"])]
Asleep = Annotated[Seconds, Meta(ge=0, le=LEASE_LIMIT, examples=["10m"])] | None
"""Seconds without use after which a lab sleeps; 0: never."""
_ASLEEP = f"Pause the lab after this time without use, {IN_SECONDS}; 0: never; null: "

PROGRAM_LIMIT = 600
"""Seconds that a service runs a program in a node, at most."""
BRANCHES_LIMIT = 50
"""Branches that one request makes, at most."""
_KEEP_SESSIONS = "Keep the client sessions in the restored RAM; by default they are ended."


class CreateLab(LabSpec, frozen=True, kw_only=True):
    """A lab to create."""

    LATER = (*LabSpec.LATER, "host", "on_host_lost", "asleep_after")

    host: Annotated[
        str,
        EMPTY,
        Meta(
            pattern=ON_HOST,
            examples=["h1", "@nvme"],
            description="Of a fleet: the host's name, or `@` and one of its labels.",
        ),
    ] = ""
    on_host_lost: Annotated[
        Literal["", "fail", "recreate"],
        EMPTY,
        Meta(description="Of a fleet: what becomes of the job if its host is lost; null: fail."),
    ] = ""
    accept_pooled_name: Annotated[
        bool, Meta(description="Also accept a lab of a warm pool, whose name differs.")
    ] = msgspec.field(default=False, name="any_name")
    """Stored as ``any_name``, the name that earlier versions wrote."""
    cold: Annotated[bool, Meta(description="Cold boot: do not restore RAM from the template.")] = (
        False
    )
    heartbeat: Annotated[
        Annotated[Seconds, Meta(ge=10.0, le=3600)] | None,
        Meta(description=f"The lease that each heartbeat renews, {IN_SECONDS}."),
    ] = None
    idle: Annotated[
        Idle | None, Meta(description=f"End the lease after this time without use, {IN_SECONDS}.")
    ] = None
    asleep_after: Annotated[
        Asleep, Meta(description=f"{_ASLEEP}the token's, or the service's.")
    ] = None
    protected: Annotated[bool, Meta(description="The lab is removed only with force.")] = False
    keep_failed: Annotated[
        bool, Meta(description="If creation fails, keep the failed lab until its lease ends.")
    ] = False
    owner: Annotated[str, HOST_ONLY] = ""
    """The token's name."""


class EnsureLab(CreateLab, frozen=True, kw_only=True):
    """A lab that may exist already, of the same configuration: no job, a command's request."""


class FillPool(CreateLab, frozen=True, kw_only=True):
    """A member of a warm pool."""

    pool: Annotated[str, HOST_ONLY] = ""


class LabRequest(Request, frozen=True, kw_only=True):
    """A request about an existing lab."""

    lab: Annotated[str, LAB] = ""
    created_at: Annotated[float | None, HOST_ONLY] = None
    """When that lab was created, in epoch seconds: another lab may have its name when the job runs.
    None: any lab of that name."""


class DeleteLab(LabRequest, frozen=True, kw_only=True):
    """The removal of a lab."""

    LATER = ("defer",)

    force: Annotated[bool, Meta(description="Also if the lab is protected.")] = False
    defer: Annotated[
        bool,
        Meta(description="If the lab has branches: its nodes now, its disks with the last branch."),
    ] = False


class ExpireLab(LabRequest, frozen=True, kw_only=True):
    """The removal of a lab whose lease has expired."""

    expires_at: Annotated[float | None, HOST_ONLY] = None
    """When it expired, in epoch seconds."""


class Power(LabRequest, frozen=True, kw_only=True):
    """A change of the power of a lab, or of one node."""

    node: str = ""
    """Empty: all nodes."""
    force: bool = False
    """Of a stop: without a shutdown. The rows of the others have it as well."""


class StartLab(Power, frozen=True, kw_only=True):
    """The start of a lab or a node."""


class StopLab(Power, frozen=True, kw_only=True):
    """The stop of a lab or a node."""


class RestartLab(Power, frozen=True, kw_only=True):
    """The stop, then the start of a lab or a node."""


class SleepLab(Power, frozen=True, kw_only=True):
    """The pause of all nodes of a lab."""


class WakeLab(Power, frozen=True, kw_only=True):
    """The end of that."""


NodeAction = Literal["start", "stop", "restart", "kill"]
Action = Literal["start", "stop", "restart", "kill", "sleep", "wake"]
_POWER: Mapping[Action, type[Power]] = {
    "start": StartLab,
    "stop": StopLab,
    "restart": RestartLab,
    "kill": StopLab,
    "sleep": SleepLab,
    "wake": WakeLab,
}


def power(action: Action, **fields: Any) -> Power:
    """The request of an action, as HTTP and the client name it; kill: stop without a shutdown."""
    return _POWER[action](force=action == "kill", **fields)


class UpgradeLab(LabRequest, frozen=True, kw_only=True):
    """The upgrade of the servers of a lab, one after the other, to another series."""

    to: Annotated[
        str,
        Meta(pattern=ENGINE, description="The engine, with its series.", examples=["mariadb:11.8"]),
    ]
    node: Annotated[str, EMPTY, Meta(description="The only node; null: all, the writer last.")] = ""
    keep_failed: Annotated[
        bool, Meta(description="After a step that failed: no rollback to the snapshot before it.")
    ] = False
    workload: Annotated[tuple[str, ...], HOST_ONLY] = ()
    """A program with its arguments, which runs on the host meanwhile; empty: none."""
    statements: Annotated[str, HOST_ONLY] = ""
    """The content of a file of SELECT statements, compared before and after; empty: none."""


class ChangeLab(LabRequest, frozen=True, kw_only=True):
    """Changes of a lab; fields that are left out stay."""

    ttl: Annotated[Ttl | None, Meta(description=f"A new lease, from now on, {IN_SECONDS}.")] = None
    endless: Annotated[bool, HOST_ONLY] = False
    """No end of the lease, in place of ``ttl``."""
    idle: Annotated[
        Idle | Literal[0] | None,
        Meta(description=f"End the lease after this time without use, {IN_SECONDS}; 0: never."),
    ] = None
    asleep_after: Annotated[Asleep, Meta(description=f"{_ASLEEP}as before.")] = None
    protected: bool | None = None


class RunProgram(LabRequest, frozen=True, kw_only=True):
    """A program to run in a node, as root."""

    argv: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=65536, pattern=ARGUMENT)], ...],
        Meta(min_length=1, max_length=1000, examples=[["uptime"]]),
    ]
    stdin: Annotated[str, Meta(max_length=1 << 16)] = ""
    timeout: Annotated[
        Seconds, Meta(gt=0, le=PROGRAM_LIMIT, description=f"The longest run time, {IN_SECONDS}.")
    ] = 60.0


class Promote(LabRequest, frozen=True, kw_only=True):
    """The node that is to take writes."""

    node: Annotated[str, Meta(pattern=NODE_NAME, examples=["n2"])]
    force: Annotated[
        bool,
        Meta(description="Also if the node that takes writes is lost; it is powered off."),
    ] = False


class RollBack(LabRequest, frozen=True, kw_only=True):
    """The snapshot to roll back to."""

    LATER = ("cold", "keep_sessions")

    to: Annotated[
        str,
        Meta(
            pattern=SNAPSHOT_LABEL,
            description="A label, a name (the newest of it), or `origin`.",
        ),
    ] = ORIGIN
    node: Annotated[str, EMPTY, Meta(pattern=NODE_NAME, description="Only this node.")] = ""
    cold: Annotated[bool, Meta(description="Cold boot: do not restore RAM from the snapshot.")] = (
        False
    )
    keep_sessions: Annotated[bool, Meta(description=_KEEP_SESSIONS)] = False


_LAST = (
    "A label, a name (the newest of it), or `origin`; null: the snapshot that the lab was put back"
    " to last, its origin at first."
)


class ResetLab(LabRequest, frozen=True, kw_only=True):
    """A rollback of all nodes by a standby, after which the next standby is made."""

    to: Annotated[str, EMPTY, Meta(pattern=SNAPSHOT_LABEL, description=_LAST)] = ""
    once: Annotated[bool, Meta(description="Make no standby for the next reset.")] = False


class MakeStandby(LabRequest, frozen=True, kw_only=True):
    """A standby for rollbacks to a snapshot: the nodes once more, restored and paused."""

    to: Annotated[str, EMPTY, Meta(pattern=SNAPSHOT_LABEL, description=_LAST)] = ""


class DropStandby(LabRequest, frozen=True, kw_only=True):
    """The removal of a lab's standby, if it has one."""


class MakeAhead(Request, frozen=True, kw_only=True):
    """Labs ahead, for the next creations on this host, as many as its settings say."""


class DropAhead(Request, frozen=True, kw_only=True):
    """The removal of the labs that were made ahead."""


class BranchLab(LabRequest, frozen=True, kw_only=True):
    """Branches of a lab."""

    name: Annotated[
        str,
        EMPTY,
        Meta(
            pattern=LAB_NAME,
            description="Numbered if there are several.",
            examples=["shop-try"],
        ),
    ] = ""
    """Empty: made from the name of the lab."""
    at: Annotated[
        str,
        EMPTY,
        Meta(
            pattern=SNAPSHOT_LABEL,
            description="A label, a name (the newest of it); null: the lab as it is now.",
        ),
    ] = ""
    """Empty: one is taken for the branches."""
    count: Annotated[int, Meta(ge=1, le=BRANCHES_LIMIT, description="How many labs to create.")] = 1
    ttl: Annotated[Ttl | None, Meta(description=f"The lease, {IN_SECONDS}.")] = None
    keep_sessions: Annotated[bool, Meta(description=_KEEP_SESSIONS)] = False
    identity: Annotated[
        Identity,
        Meta(description="`new`: restart the servers with ids and UUIDs that no other lab has."),
    ] = "shared"
    """With new ones, a branch can be connected to other labs."""
    owner: Annotated[str, HOST_ONLY] = ""
    """The token's name."""

    @property
    def names(self) -> list[str]:
        """See ``branch_names``."""
        return branch_names(self.name, self.count)
