"""A capture: all nodes of one owner at one moment. Templates and snapshots of labs are captures.

Where its files are (``Home.ram``, ``device_state``, ``seed``, ``manifest``) and which snapshots of
volumes belong to it follow from ``Capture.ref``, its owner and label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.errors import NotFound
from lab.lifecycle.core.context import Context
from lab.names import CaptureRef, Owner, VolumeName, template_ref
from lab.schedule import ORIGIN
from lab.spec import NodeSize
from lab.state.records import LabRecord, NodeRecord
from lab.storage import VolumeSnapshot


@dataclass(frozen=True)
class FileFacts:
    """A file as it was when the capture was made; times in nanoseconds."""

    size: int
    mtime: int
    ctime: int
    digest: str


@dataclass(frozen=True)
class CapturedNode:
    """A node of a capture: RAM and device state, both None when only disks were captured.

    ``seed``: the small disk that it booted with, which clones have open as well; None where it is
    the lab's own. ``seals``: the storage's, of each disk snapshot; empty where none were recorded.
    ``image``: the key of its image, empty for that of the engine; ``size``: None if not recorded.
    """

    name: str
    role: str
    ram: FileFacts | None = None
    state: FileFacts | None = None
    seed: FileFacts | None = None
    seals: tuple[str, ...] = ()
    image: str = ""
    size: NodeSize | None = None


@dataclass(frozen=True)
class Capture:
    """All nodes of ``owner`` at one moment; ``label``: of the snapshots of their volumes.

    ``parent``: the capture that the owner's volumes are clones of, None where that is an image.
    ``why_cold``: why its RAM is not restored although this host could restore some.
    """

    owner: Owner
    label: str
    nodes: tuple[CapturedNode, ...]
    parent: CaptureRef | None = None
    why_cold: str = ""

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

    def without_ram(self, why: str) -> Capture:
        """The capture without RAM, so that its disks boot; ``why``: why RAM is not restored."""
        nodes = tuple(replace(node, ram=None, state=None) for node in self.nodes)
        return replace(self, nodes=nodes, why_cold=why)


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
    return template_ref(record.template) if record.template else None


def of_lab(record: LabRecord, nodes: Sequence[NodeRecord], label: str) -> Capture:
    """The capture of a lab that is a snapshot of all of its volumes, without RAM."""
    why = "no template has its RAM" if label == ORIGIN else "a snapshot has no RAM"
    return Capture(
        owner=Owner("lab", record.name),
        label=label,
        nodes=tuple(
            CapturedNode(node.name, node.role, image=node.image, size=node.size) for node in nodes
        ),
        parent=parent_of(record),
        why_cold=f"rolled back to {'its ' if label == ORIGIN else ''}{label}: {why}",
    )
