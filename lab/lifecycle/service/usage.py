"""What projects have of what quotas limit: labs, nodes, memory, disk, snapshots, templates."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from lab import schedule
from lab.imagebuild.recipe import load, recipes
from lab.lifecycle.nodes.standby import memory_of
from lab.lifecycle.snapshots import snapshot
from lab.schedule import PERIODS, Schedule
from lab.storage import sparse
from lab.values import dataclass
from lab.views.tokens import Used

if TYPE_CHECKING:
    from lab.blueprints import NodePlan
    from lab.lifecycle.core.context import Context
    from lab.paths import Home
    from lab.sizes import NodeSize
    from lab.state.records import ImageRecord, LabWithNodes
    from lab.state.store import Store


@dataclass(frozen=True)
class KeptSnapshots:
    """The snapshots of a lab: ``labels`` without its schedule's; ``ram``: of all, in bytes."""

    labels: frozenset[str] = frozenset()
    ram: int = 0


@dataclass(frozen=True)
class Snapshots:
    """The snapshots of ``labs``, by name, as they were ``at`` (epoch seconds) or later."""

    labs: Mapping[str, KeptSnapshots]
    at: float


@dataclass(frozen=True)
class Taken:
    """The usage of a lab: its nodes, the number of its snapshots, and their RAM in bytes."""

    plans: Sequence[NodePlan]
    snapshots: int = 0
    ram: int = 0
    standby: int = 0
    """Bytes of memory of its standby."""
    asleep: bool = False

    @property
    def idle_cpus(self) -> int:
        """Processors of its nodes that it does not take, as it is asleep."""
        return sum(node.size.cpus for node in self.plans) if self.asleep else 0

    @property
    def all_disks(self) -> int:
        """Bytes of all nodes' disks, counted again for each snapshot, plus the snapshots' RAM."""
        disks = sum(node.size.disk or _image_disk() for node in self.plans)
        return disks * (1 + self.snapshots) + self.ram


def used(ctx: Context) -> dict[str, Used]:
    """What each project has by the record and the storage, by its name.

    Jobs of a service that have not ended count there only as far as they are recorded as labs.
    """
    store, taken = ctx.store, snapshots_of(ctx)
    labs = store.labs_with_nodes()
    names = {token.project for token in store.tokens.all()} | {one.lab.project for one in labs}
    found = {}
    for project in names:
        data = sum(one.size for one in datasets_of(store, project))
        data += uploaded(ctx.home, store, project)
        own = [of_lab(one, taken) for one in labs if one.lab.project == project]
        found[project] = total(store, project, own, (), data=data)
    return found


def total(
    store: Store, project: str, labs: Collection[Taken], guests: Iterable[NodeSize], *, data: int
) -> Used:
    """What a project has: its ``labs``, ``guests`` of jobs, and ``data``, in bytes."""
    sizes = [*(node.size for one in labs for node in one.plans), *guests]
    templates = [one for one in store.templates.all() if one.project == project]
    return Used(
        labs=len(labs),
        nodes=len(sizes),
        memory=sum(size.memory for size in sizes) + sum(one.standby for one in labs),
        cpus=sum(size.cpus for size in sizes) - sum(one.idle_cpus for one in labs),
        disk=sum(one.all_disks for one in labs) + data,
        snapshots=sum(one.snapshots for one in labs),
        templates=sum(one.state != "broken" for one in templates),
    )


def of_lab(found: LabWithNodes, taken: Snapshots, more: int = 0) -> Taken:
    """The usage of a lab, of whose snapshots ``more`` are being taken."""
    kept = taken.labs.get(found.lab.name, KeptSnapshots())
    count = kept_by(schedule.parse(found.lab.snapshots)) + len(kept.labels) + more
    asleep = found.lab.asleep_at is not None
    return Taken(found.plans, count, kept.ram, memory_of(found), asleep)


def snapshots_of(ctx: Context, project: str | None = None) -> Snapshots:
    """The snapshots of the labs of a project, or of all; lists the storage's snapshots once."""
    at = time.time()
    taken = snapshot.everywhere(ctx)
    labs = {
        lab.name: KeptSnapshots(
            frozenset(
                one.label
                for one in taken.get(lab.name, ())
                if one.at is not None and one.name not in PERIODS
            ),
            sparse.taken(ctx.home.captured(lab.name)),
        )
        for lab in ctx.store.labs.all()
        if project is None or lab.project == project
    }
    return Snapshots(labs, at)


def datasets_of(store: Store, project: str) -> list[ImageRecord]:
    """The versions of a project's datasets."""
    return [r for r in store.images.all() if r.dataset and r.project == project]


def uploaded(home: Home, store: Store, project: str) -> int:
    """Bytes of the dumps that tokens of a project have sent, whole or in part."""
    return sum(home.uploaded(one.id) for one in store.tokens.all() if one.project == project)


def kept_by(snapshots: Schedule) -> int:
    """How many snapshots a schedule may keep."""
    return sum(count for _, count in snapshots.keep)


@cache
def _image_disk() -> int:
    """Bytes of a node's disk if no size was requested: the largest of all recipes."""
    return max(load(name).disk for name in recipes())
