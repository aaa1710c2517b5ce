"""How the nodes of a Galera cluster stop together, and how they form it again after a crash.

Galera does most of it: the nodes of the last primary component (``gvwstate.dat``) restore it
together, and the one with the highest seqno is the donor of the others. A node sees only itself, so
these cases are decided here, where all nodes are seen:

- no primary component is complete, so that all nodes wait forever: the node with the highest
  seqno bootstraps;
- a node's tables are ahead of the position that it recorded (a CREATE TABLE ... SELECT right
  before a crash): it would apply that statement twice, and leave as inconsistent. Its data are
  replaced by a state transfer;
- a server does not start: it is restarted, then, once others are a cluster, its data are replaced.

Source: the Galera documentation, "Recovering the Primary Component", "Restarting the Cluster".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lab.blueprints import Cluster, Engine, Member, Remedy, Situation, proxy
from lab.errors import CommandFailed, NotReady
from lab.values import dataclass
from lab.wait import Deadline, attempts

_PROGRAM = "/usr/lib/lab/rejoin"
_SQL = "/usr/lib/lab/sql"
_REST = "/usr/lib/lab/rest"
_STOP_SECONDS = 120.0
_EVENTS = (
    "SELECT ID FROM information_schema.PROCESSLIST"
    " WHERE COMMAND IN ('Connect', 'Killed') AND USER <> 'system user'"
)
"""Which events are executed: a session of one has the definer as its user, and as its command
``Connect``, or ``Killed`` until what it wrote is undone."""
_MOST = 2
"""How often the same action is taken on a node; then a server that ends gets other data."""
_EFFECTS = {
    "restart": "; its server is restarted",
    "transfer": "; its data are replaced by a state transfer (SST) from another node",
    "bootstrap": "",
}
_POSITION = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):(\d{1,19})\n")
_NOWHERE = "00000000-0000-0000-0000-000000000000"
_ENDED = ("failed", "inactive")
_SEQNO = re.compile("[0-9]{1,19}")


@dataclass(frozen=True)
class _Standing:
    """A node as ``rejoin state`` describes it."""

    node: str
    server: str
    """Systemd's word for its state."""
    history: str | None
    """The history of the position from which the server started; None while that is not known."""
    seqno: int
    """The number of that position."""
    doubtful: bool
    """Whether it may have been in the middle of being given another node's data."""
    status: str
    comment: str
    bootstraps: bool
    transfer: bool
    me: str
    """The node itself, as a member of ``view``."""
    view: frozenset[str]
    """The members of the last primary view that the node noted."""

    @staticmethod
    def parse(node: str, text: str) -> _Standing:
        pairs = [line.split("\t", 1) for line in text.splitlines() if "\t" in line]
        values = dict(pairs)
        # With wsrep_gtid_mode the position in the binary log follows, with a comma between.
        history, _, seqno = values.get("position", "").partition(",")[0].rpartition(":")
        # Since its server started it may have advanced, until it lost the others.
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
        """Whether the server runs, but its cluster has given it up for good."""
        gone = self.status == "Disconnected" or self.comment == "Inconsistent"
        return self.server == "active" and gone


def _number(text: str) -> int:
    return int(text) if _SEQNO.fullmatch(text) else -1


def program(action: str, engine: Engine) -> tuple[str, ...]:
    """The guest's program ``rejoin`` with an action: state, restart, bootstrap or transfer."""
    return (_PROGRAM, action, engine.service)


def unchanging(standing: str) -> str:
    """See Blueprint."""
    return "".join(line for line in standing.splitlines() if "last_committed" not in line)


def remark(standing: str) -> str:
    """See Blueprint."""
    if "transfer\tyes" not in standing.splitlines():
        return ""
    return (
        "lacks write sets of its cluster: state transfer from another node"
        " (IST; SST if no node has them any more)"
    )


def remedies(situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
    """See Blueprint."""
    found, nodes = [], _parsed(situation)
    donor = any(node.status == "Primary" for node in nodes)
    for node, action, why in _actions(situation, nodes):
        if action == "restart" and situation.given.get((node, action), 0) >= _MOST:
            action = "transfer" if donor else action  # noqa: PLW2901
        if situation.given.get((node, action), 0) < _MOST:
            argv, effect = program(action, engines[node]), _EFFECTS[action]
            found.append(Remedy(node, action, argv, why, effect, replaces=action == "transfer"))
    # The node that starts the cluster is first: the others find it when they look.
    return sorted(found, key=lambda remedy: remedy.action != "bootstrap")


def rest(cluster: Cluster, engines: Mapping[str, Engine]) -> None:
    """See Blueprint.

    A node that boots from such a disk needs no recovery pass, which is a second start of the
    server, and restores the view together with the others, with nothing to transfer.
    """
    cluster.each(lambda member: _rest(cluster, member, "view"))
    last = stop(cluster, engines)
    cluster.each(lambda member: _rest(cluster, member, "at", str(last)))


def settle(cluster: Cluster) -> None:
    """Have all nodes apply the same write sets, after which only clients could write.

    Nodes stop one after the other: what an event writes meanwhile, or what a node that lags behind
    has not applied by then, only some of them have. Raises NotReady or CommandFailed.
    """
    cluster.each(lambda member: _end_events(cluster, member))
    # The statement waits until all that was certified before it is applied.
    cluster.each(
        lambda member: _ask(cluster, member, "SET SESSION wsrep_sync_wait = 1", "SELECT 1")
    )


def _end_events(cluster: Cluster, member: Member) -> None:
    """Execute no events any more, until the server starts again, and end those of now."""
    if not _ask(cluster, member, "SHOW GLOBAL VARIABLES LIKE 'event_scheduler'").endswith("\tON\n"):
        return
    _ask(cluster, member, "SET GLOBAL event_scheduler = OFF")
    for _ in attempts(Deadline.after(_STOP_SECONDS)):
        running = _ask(cluster, member, _EVENTS).split()
        if not running:
            return
        for number in running:
            with suppress(CommandFailed):  # it has ended
                _ask(cluster, member, f"KILL {number}")
    raise NotReady(f"events of {member.name} did not end in {_STOP_SECONDS:.0f} s")


def _ask(cluster: Cluster, member: Member, *statements: str) -> str:
    stdin = "".join(f"{statement}\n" for statement in statements).encode()
    return cluster.run(member, [_SQL], stdin=stdin, timeout=_STOP_SECONDS)


def stop(cluster: Cluster, engines: Mapping[str, Engine]) -> int:
    """Stop all servers; the highest seqno at which one stopped. Raises NotReady, CommandFailed.

    An arbiter stops, too; it has no position.
    """
    stopped = cluster.each(
        lambda node: (node.role, _rest(cluster, node, "stop", engines[node.name].service))
    )
    return last_of([position for role, position in stopped if proxy.serves(role)])


def _rest(cluster: Cluster, member: Member, *words: str) -> str:
    return cluster.run(member, [_REST, *words], timeout=_STOP_SECONDS)


def last_of(positions: Sequence[str]) -> int:
    """The highest seqno of the ``positions`` (``UUID:SEQNO``) at which the nodes stopped.

    Raises NotReady unless all of them stopped cleanly, with one cluster UUID.
    """
    found = [match for match in map(_POSITION.fullmatch, positions) if match]
    if len(found) < len(positions) or len({match[1] for match in found}) != 1:
        stopped = [repr(position) for position in positions]
        raise NotReady(
            "clean shutdown failed: the positions of the nodes are not of one cluster",
            details=stopped,
        )
    return max(int(match[2]) for match in found)


def _parsed(situation: Situation) -> list[_Standing]:
    return [_Standing.parse(node, text) for node, text in situation.standings.items()]


def _actions(situation: Situation, nodes: Sequence[_Standing]) -> list[tuple[str, str, str]]:
    """Node, action and reason."""
    if any(node.status == "Primary" for node in nodes):
        return [r for node in nodes if (r := _follows(node, waited=situation.waited))]
    if any(node.history is None for node in nodes):
        return []
    ended = [
        (node.node, "restart", "its server was not running")
        for node in nodes
        if node.server in _ENDED
    ]
    starts = any(node.bootstraps and node.server not in _ENDED for node in nodes)
    if not situation.waited and (starts or _restorable(nodes)):
        return ended
    if not situation.all_here:
        names = ", ".join(node.node for node in nodes)
        raise NotReady(
            f"cannot bootstrap from {names}: a stopped node may have a higher seqno",
            hint="`lab start` without --node starts all of them",
        )
    best = _most_advanced(nodes)
    why = (
        "no primary component can be restored from gvwstate.dat:"
        " bootstrapping from the highest seqno"
    )
    return [
        (best.node, "bootstrap", f"{why} ({best.seqno})"),
        *(action for action in ended if action[0] != best.node),
    ]


def _follows(node: _Standing, *, waited: bool) -> tuple[str, str, str] | None:
    """What ``node`` needs to follow others that are a cluster already."""
    if node.lost:
        return node.node, "transfer", "its data conflict with the cluster's"
    if node.server in _ENDED:
        return node.node, "restart", "its server was not running"
    recovered = node.history is not None
    if waited and recovered and node.server == "activating" and not node.transfer:
        return node.node, "transfer", "it did not connect to the other nodes"
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
