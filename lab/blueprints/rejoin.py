"""How the nodes of a Galera cluster that all went down become one again.

Galera does most of it: nodes that were its last primary view (``gvwstate.dat``) restore that
together, the most advanced gives the others what they lack. What it cannot do by itself, as
each node sees only itself, is decided here, where all of them are seen:

- no last view is complete, so that everyone waits for ever: the most advanced starts anew;
- a node's tables are ahead of the position that it noted (a CREATE TABLE ... SELECT right
  before a crash): given that statement again, it leaves as inconsistent. Its data are dropped;
- a server does not start at all: once more, then without its data.

Source: the Galera documentation, "Recovering the Primary Component", "Restarting the Cluster".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.blueprints import Remedy
from lab.errors import NotReady

_NOWHERE = "00000000-0000-0000-0000-000000000000"
_ENDED = ("failed", "inactive")
_SEQNO = re.compile("[0-9]{1,19}")


@dataclass(frozen=True)
class _Standing:
    """A node as ``rejoin state`` describes it.

    ``server``: systemd's word. ``history``, ``seqno``: the position from which the server
    started, None while that is not known. ``doubtful``: it may have been in the middle of being
    given another node's data. ``view``: the members of the last primary view that
    the node noted, ``me`` among them.
    """

    node: str
    server: str
    history: str | None
    seqno: int
    doubtful: bool
    status: str
    comment: str
    bootstraps: bool
    transfer: bool
    me: str
    view: frozenset[str]

    @staticmethod
    def parse(node: str, text: str) -> _Standing:
        pairs = [line.split("\t", 1) for line in text.splitlines() if "\t" in line]
        values = dict(pairs)
        history, _, seqno = values.get("position", "").rpartition(":")
        # Since its server started it may have gone on, until it lost the others.
        seqno = max(seqno, values.get("wsrep_last_committed", ""), key=_number)
        return _Standing(
            node,
            values.get("server", ""),
            history if "position" in values else None,
            _number(seqno),
            values.get("doubtful") == "yes",
            values.get("wsrep_cluster_status", ""),
            values.get("wsrep_local_state_comment", ""),
            values.get("bootstraps") == "yes",
            values.get("transfer") == "yes",
            values.get("me", ""),
            frozenset(value for name, value in pairs if name == "member"),
        )

    @property
    def lost(self) -> bool:
        """It runs, but its cluster has given it up for good."""
        gone = self.status == "Disconnected" or self.comment == "Inconsistent"
        return self.server == "active" and gone


def _number(text: str) -> int:
    return int(text) if _SEQNO.fullmatch(text) else -1


def remedies(standings: Mapping[str, str], *, all_here: bool, waited: bool) -> list[Remedy]:
    """See Blueprint."""
    nodes = [_Standing.parse(node, text) for node, text in standings.items()]
    if any(node.status == "Primary" for node in nodes):
        return [r for node in nodes if (r := _follows(node, waited=waited))]
    if any(node.history is None for node in nodes):
        return []
    ended = [
        Remedy(node.node, "restart", "its server had ended")
        for node in nodes
        if node.server in _ENDED
    ]
    starts = any(node.bootstraps and node.server not in _ENDED for node in nodes)
    if not waited and (starts or _restorable(nodes)):
        return ended
    if not all_here:
        names = ", ".join(node.node for node in nodes)
        raise NotReady(
            f"{names} cannot tell whether the nodes that do not run have newer data",
            hint="`lab start` without --node starts all of them",
        )
    best = _most_advanced(nodes)
    why = "no last view is complete, so the cluster starts anew from the most advanced node"
    return [
        Remedy(best.node, "bootstrap", f"{why} ({best.seqno})"),
        *(r for r in ended if r.node != best.node),
    ]


def _follows(node: _Standing, *, waited: bool) -> Remedy | None:
    """What ``node`` needs to follow others that are a cluster already."""
    if node.lost:
        return Remedy(node.node, "transfer", "it does not fit the others' history")
    if node.server in _ENDED:
        return Remedy(node.node, "restart", "its server had ended")
    recovered = node.history is not None
    if waited and recovered and node.server == "activating" and not node.transfer:
        return Remedy(node.node, "transfer", "it did not find the others")
    return None


def _restorable(nodes: Sequence[_Standing]) -> bool:
    """Whether some last primary view has all of its members here."""
    return any(
        node.view and node.view <= {other.me for other in nodes if other.view == node.view}
        for node in nodes
    )


def _most_advanced(nodes: Sequence[_Standing]) -> _Standing:
    """The node that has seen the most of the history that most nodes are of."""
    histories = Counter(n.history for n in nodes if n.history and n.history != _NOWHERE)
    common = histories.most_common(1)[0][0] if histories else None
    return max(nodes, key=lambda n: (not n.doubtful, n.history == common, n.seqno))
