"""A capture: all nodes of one owner at one moment. Templates and snapshots of labs are captures.

Where its files are (``Home.ram``, ``device_state``, ``seed``, ``manifest``) and which snapshots of
volumes belong to it follow from ``Capture.ref``, its owner and label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lab.errors import NotFound
from lab.lifecycle.core.context import Context
from lab.names import CaptureRef, Owner, VolumeName, template_ref
from lab.schedule import ORIGIN
from lab.sizes import NodeSize
from lab.state.records import LabRecord, NodeRecord
from lab.storage import VolumeSnapshot
from lab.values import dataclass


@dataclass(frozen=True)
class FileFacts:
    """A file as it was when the capture was made; times in nanoseconds."""

    size: int
    mtime: int
    ctime: int
    digest: str


@dataclass(frozen=True)
class CapturedNode:
    """A node of a capture."""

    name: str
    role: str
    ram: FileFacts | None = None
    """None if only disks were captured, as ``state``."""
    state: FileFacts | None = None
    seed: FileFacts | None = None
    """The small disk that it booted with, which clones have open as well; None if it is the
    lab's own."""
    seals: tuple[str, ...] = ()
    """The storage's seal of each disk snapshot; empty if none were recorded."""
    image: str = ""
    """The key of its image; empty for that of the engine."""
    size: NodeSize | None = None
    """None if it was not recorded."""
    base: CaptureRef | None = None
    """The capture whose RAM file ``ram`` is, while ``state`` has the pages that differ; None if
    the RAM file is its own."""
    fingerprint: str = ""
    """The fingerprint of the hypervisor that its RAM fits; empty if the name of the capture has
    it."""


@dataclass(frozen=True)
class Capture:
    """All nodes of an owner at one moment."""

    owner: Owner
    label: str
    """The label of the snapshots of their volumes."""
    nodes: tuple[CapturedNode, ...]
    parent: CaptureRef | None = None
    """The capture whose content the owner's disks had before they changed; None for a template."""
    why_cold: str = ""
    """Why its RAM is not restored although this host could restore some."""
    pause: float = 0.0
    """Seconds for which the nodes of a lab were paused."""
    protected: bool = False
    """Whether the capture of a lab is removed by force only."""
    expires_at: float | None = None
    """When the capture of a lab is removed if nothing descends from it; None for never."""
    source: str = ""
    """The snapshot, as ``shop@loaded``, if it is a template that was captured from a lab in use;
    empty for one of a freshly formed cluster."""

    @property
    def ref(self) -> CaptureRef:
        """Its name."""
        return CaptureRef(self.owner, self.label)

    @property
    def warm(self) -> bool:
        """True if RAM was captured with the disks."""
        return bool(self.nodes) and all(
            node.ram is not None and node.state is not None for node in self.nodes
        )

    @property
    def in_use(self) -> bool:
        """True if it was captured from a lab in use, not from a freshly formed cluster.

        Its RAM then has sessions of clients and the right time, its servers a history: nodes that
        boot from its disks recover as after a crash.
        """
        return self.owner.kind == "lab" or bool(self.source)

    def without_ram(self, why: str) -> Capture:
        """The capture without RAM, so that its disks boot; ``why``: why RAM is not restored."""
        nodes = tuple(replace(node, ram=None, state=None) for node in self.nodes)
        return replace(self, nodes=nodes, why_cold=why)

    def node(self, name: str) -> CapturedNode:
        """One of its nodes."""
        return next(node for node in self.nodes if node.name == name)


def disk_snapshots(
    ctx: Context, capture: Capture, node: str, disks: Sequence[str]
) -> list[VolumeSnapshot]:
    """The snapshots of the volumes ``disks`` of ``node``, in that order; raises NotFound."""
    found = []
    for disk in disks:
        volume = VolumeName(capture.owner, node, disk)
        snapshots = [s for s in ctx.storage.snapshots(volume) if s.label == capture.label]
        if not snapshots:
            raise NotFound(f"the {capture.owner.kind} {capture.owner.name} has lost {volume}")
        found += snapshots
    return found


def parent_of(record: LabRecord) -> CaptureRef | None:
    """The capture that a lab is a clone of; None if it was booted from its image's disks."""
    if record.parent:
        return CaptureRef.parse(record.parent)
    return template_ref(record.template) if record.template else None


def from_use(ctx: Context, record: LabRecord) -> bool:
    """Whether what a lab is a clone of was captured from a lab in use (``Capture.in_use``)."""
    template = ctx.store.templates.find(record.template) if record.template else None
    return bool(record.parent or (template and template.source))


def unformed(ctx: Context, ref: CaptureRef | None) -> bool:
    """Whether clones of ``ref`` are no cluster yet; None stands for the disks of images.

    So it is for the origin of a lab that was made without a template, which is marked before its
    nodes boot, and for that of a branch of it.
    """
    while ref is not None and ref.owner.kind == "lab" and ref.label == ORIGIN:
        ref = parent_of(ctx.store.labs.get(ref.owner.name))
    return ref is None


def position(record: LabRecord) -> CaptureRef | None:
    """The capture that a lab's disks were like when it last was one: taken, or gone back to."""
    return CaptureRef(Owner("lab", record.name), record.at) if record.at else parent_of(record)


def of_lab(record: LabRecord, nodes: Sequence[NodeRecord], label: str) -> Capture:
    """The capture of a lab that is a snapshot of all of its volumes, without RAM."""
    why = "no template has its RAM" if label == ORIGIN else "the snapshot has no RAM"
    return Capture(
        owner=Owner("lab", record.name),
        label=label,
        nodes=tuple(
            CapturedNode(node.name, node.role, image=node.image, size=node.size) for node in nodes
        ),
        parent=parent_of(record),
        why_cold=why,
    )
