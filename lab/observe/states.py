"""The states of nodes and labs, and what they follow from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from lab.values import dataclass

NodeState = Literal[
    "ready", "degraded", "not-synced", "not-primary", "unreachable", "running", "paused", "stopped",
    "unknown",
]  # fmt: skip
NODE_STATES: Mapping[NodeState, str] = {
    "ready": "all its requirements are met",
    "degraded": "it answers, but its cluster lacks nodes of the lab, or it is read-only",
    "not-synced": "in a primary component, but joining, donating or desynced",
    "not-primary": "in no primary component: it refuses statements",
    "unreachable": "its guest runs, but SQL (without SQL, the guest agent) did not answer in time",
    "running": "its guest was not queried: the lab is being created, or its creation failed",
    "paused": "its guest is paused",
    "stopped": "it has no guest",
    "unknown": "never observed, or not within the last 30 s; or neither it nor the hypervisor"
    " answers; or it answers, but a node on which a requirement depends does not",
}
"""The states of a node, and their meanings."""

ListedState = Literal[
    "ready", "degraded", "not-primary", "unreachable", "starting", "asleep", "stopped",
    "creating", "failed", "removing", "unrecorded", "unknown", "lost", "foreign",
]  # fmt: skip
"""The states of labs that a service lists, without those in its pools."""
LabState = Literal[ListedState, "pooled"]
LAB_STATES: Mapping[LabState, str] = {
    "ready": "every requirement of every node is met",
    "degraded": "not all nodes are ready; ready nodes may still accept statements",
    "not-primary": "nodes answer, but none is in a primary component: no node accepts statements",
    "unreachable": "guests run, but no node answered SQL in time",
    "starting": "a command is starting it",
    "asleep": "its nodes are paused while nobody uses it; `lab wake`, commands that need them and,"
    " while a service runs, connections resume it",
    "stopped": "no node has a guest",
    "creating": "a command is creating it",
    "failed": "creation failed, and its guests were kept (`--keep-failed`)",
    "removing": "a command is removing it, or was interrupted",
    "pooled": "ready, and waits to be taken, in a warm pool of the service or made ahead; paused,"
    " unless the pool has it run",
    "unknown": "its nodes were never observed, or not within the last 30 s; or one of them is"
    " `unknown`, and no other is known to be unready",
    "lost": "its host of the fleet is lost: nothing is known of it since then",
    "foreign": "its host of the fleet was declared lost and is back: `lab host adopt` or `lab down`"
    " decides what becomes of it",
    "unrecorded": "missing from the state database; only its guests and volumes exist",
}
"""The states of a lab, and their meanings."""

READY: tuple[LabState, ...] = ("ready", "pooled")
"""The states of a lab in which every requirement is met."""


@dataclass(frozen=True)
class Requirement:
    """Something that must hold for a node to be ready, and whether it does."""

    node: str
    name: str
    """The requirement in a word or two."""
    what: str
    met: bool | None
    """Whether it is met; None if that is not known, as nobody could be asked."""
    found: str = ""
    """What was found, or why it is not known."""
