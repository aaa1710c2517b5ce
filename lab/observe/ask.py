"""Questions to nodes: the blueprint's, and what follows from the answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late  # until Python 3.10 not the built-in one
from dataclasses import replace

from lab.blueprints import Blueprint, gtid
from lab.blueprints.dialects import dialect_of, plugin_of
from lab.errors import CommandFailed, HostUnfit, LabError, NotFound, NotReady
from lab.guest import network
from lab.hypervisor import GuestChannel, Hypervisor
from lab.names import LOOPBACK, node_name
from lab.observe.account import Account
from lab.observe.states import NodeState, Requirement
from lab.observe.target import Target, member_of
from lab.observe.ways import Rows, Ways
from lab.sizes import NODES_LIMIT
from lab.values import dataclass
from lab.wait import Deadline

Ask = Callable[[Target], Mapping[str, str]]
"""Puts the blueprint's question to a node; raises LabError while there is no answer."""

THROUGH_PORT = "SQL answers through its port"
FROM_INSIDE = "SQL answers inside"
WORST: Sequence[NodeState] = ("unreachable", "not-primary", "not-synced", "degraded")
"""States of nodes that do not meet a requirement, the worst first."""
AGENT = "the guest agent answers"
"""What is required of a node without SQL."""

LOOK = "SHOW ERRORS"
"""What comes before a question of ours that is counted like statements of users: servers count it
by itself (``Com_show_errors``), and programs hardly use it (``lab.lifecycle.service.activity``)."""

_HOST = ("Master_Host", "Source_Host")
"""The column with the address of a source, in MariaDB and in MySQL."""
_SOURCES = "sources"
_LACKING = "lacking"
"""In an answer: the nodes on whose answers it depends, and that did not answer."""
_BY_ADDRESS = {
    network.inner_address(number): node_name(number) for number in range(1, NODES_LIMIT + 1)
}

_Put = Callable[[Target, str, float], Mapping[str, str]]
"""Puts a question to a node, which may take so many seconds to answer."""

_Answer = Future[Mapping[str, str]]

_PATIENCE = 5.0
_SHORTEST = 0.001
_MOST_TIMES = 8.0
"""How many times the usual time a node gets that has shown to be slow."""
_REST = 0.6
"""The share of its time for a replica after its source, which may not answer."""
_INSIDE_SECONDS = 30.0
"""How long a node may take to answer its guest agent's program."""
_INSIDE = 3
"""Seconds that a question waits in a guest for a server that is starting: less work for a guest
that is busy with just that than to be asked again and again."""
_AGENT_SECONDS = 1.0
"""How long a guest agent may take to answer."""
_VALUE = 1024
"""Characters that are kept of a status variable: what it is goes into messages."""
_POSITION = "position"
"""The variable with what a node has executed: a part of it would be another position."""


def through_port(
    ways: Ways,
    blueprint: Blueprint,
    account: Account,
    nodes: Sequence[Target],
    *,
    patience: float = _PATIENCE,
    deadline: Deadline | None = None,
    down: Collection[str] = (),
    once: bool = False,
) -> Ask:
    """Ask ``nodes`` as a user would: with the lab's account, through the published port.

    ``patience``: seconds that a node has to answer; ``deadline``: they are asked again and again
    until then, and one that is slow gets more time. One without SQL is asked for its guest agent.
    ``down``: the names of those that do not run; ``once``: see ``_sources_first``.
    """
    server, runs_as = ways.kept or ways.sql_all, _runs_as(ways.hypervisor)

    def put(node: Target, question: str, seconds: float) -> Mapping[str, str]:
        if not node.has_sql:
            _check_agent(ways.hypervisor, node, min(patience, _AGENT_SECONDS))
            return {}
        at_node = account_at(account, node.guest_address)
        if node.has_server and not dialect_of(node.release).tls:
            at_node = replace(at_node, ca="", plugin=plugin_of(node.release))
        elif node.has_server and not node.guest_address and at_node.plain:
            at_node = replace(at_node, peer=runs_as)
        through = blueprint.through(node.role)
        if not through:
            # One with SELECT would be taken for use of the lab.
            announced = [] if question.startswith("SHOW ") else [LOOK]
            statements = [*announced, question]
            links = dialect_of(node.release).asked.links
            linked = [links] if blueprint.follows(node.role) else []
            answers = server(at_node, node.sql_port, [*statements, *linked], timeout=seconds)
            found = _pairs(node, answers[len(announced)])
            return found | ({_SOURCES: _sources(answers[-1])} if linked else {})
        found, end = {}, Deadline.after(seconds)
        for service, statement in through.items():
            port, left = node.ports[service], max(end.left, _SHORTEST)
            if statement:
                pairs = _pairs(node, ways.sql_all(at_node, port, [statement], timeout=left)[0])
            else:
                host = node.guest_address or LOOPBACK
                pairs = {"page": ways.page(host, port, timeout=left)}
            found |= {f"{service}.{name}": value for name, value in pairs.items()}
        return found

    ask = _together(put)
    if deadline is not None:
        ask = _patient(ask, deadline)
    return _sources_first(blueprint, nodes, ask, patience, down=down, once=once)


def _runs_as(hypervisor: Hypervisor) -> int | None:
    """The user (id) whose programs forward the ports of guests; None where that is not known."""
    try:
        user = hypervisor.run_as
    except HostUnfit:  # it does not answer
        return None
    return user[0] if user else os.geteuid()


def _patient(put: _Put, deadline: Deadline) -> _Put:
    """Put questions with twice the time to a node that began to answer and was too slow.

    A server works for clients that are gone as well: it reads what they sent, and does the
    cryptography of TLS. On a host where this takes longer than a node has, one that is asked again
    and again would do nothing else, and never answer.
    """
    factors: dict[str, float] = {}

    def put_longer(node: Target, question: str, seconds: float) -> Mapping[str, str]:
        factor = factors.get(node.name, 1.0)
        try:
            return put(node, question, max(seconds, min(seconds * factor, deadline.left)))
        except NotReady as error:
            if error.begun:
                factors[node.name] = min(factor * 2, _MOST_TIMES)
            raise

    return put_longer


def _together(put: _Put) -> _Put:
    """Put a question once for all who want its answer at the same time: replicas of a source.

    QEMU keeps one connection to a port waiting while it is busy (libslirp's ``tcpx_listen``); a
    further one that comes meanwhile is tried again by Linux after a second.
    """
    asking: dict[tuple[str, str], _Answer] = {}
    guard = threading.Lock()

    def put_once(node: Target, question: str, seconds: float) -> Mapping[str, str]:
        key, ours, deadline = (node.name, question), _Answer(), Deadline.after(seconds)
        while True:
            with guard:
                first = asking.setdefault(key, ours)
            if first is ours:
                break
            try:
                return first.result(deadline.left)
            except Late:
                raise NotReady(
                    f"{node.name} does not answer within {round(seconds, 3):g} s"
                ) from None
            except (CommandFailed, NotReady, NotFound) as error:
                if isinstance(error, NotReady) and error.begun:
                    raise  # it is at work; another connection would be more of it
                if deadline.passed:  # else the other one had less time
                    raise
        try:
            answer = put(node, question, max(deadline.left, _SHORTEST))
            ours.set_result(answer)
        except BaseException as error:
            ours.set_exception(error)
            raise
        finally:
            with guard:
                del asking[key]
        return answer

    return put_once


def _pairs(node: Target, rows: Rows) -> dict[str, str]:
    if len(rows.columns) != 2:
        raise NotReady(f"{node.name} sent an invalid answer: {len(rows.columns)} columns")
    pairs = ((str(name), str(value)) for name, value in rows.rows)
    return {name: value if name == _POSITION else value[:_VALUE] for name, value in pairs}


def hosts_in(rows: Rows) -> list[str]:
    """The addresses that a server follows, by its answer to ``Asked.links``."""
    at = next((rows.columns.index(name) for name in _HOST if name in rows.columns), None)
    return [] if at is None else [str(row[at]) for row in rows.rows[:NODES_LIMIT]]


def _sources(rows: Rows) -> str:
    """The nodes that a server follows, by name; other addresses are left out."""
    return ",".join(_BY_ADDRESS[host] for host in hosts_in(rows) if host in _BY_ADDRESS)


def account_at(account: Account, guest_address: str) -> Account:
    """``account`` for a node that may have an address of its own."""
    return replace(account, host=guest_address) if guest_address else account


def through_agent(blueprint: Blueprint, hypervisor: Hypervisor, nodes: Sequence[Target]) -> Ask:
    """Ask ``nodes`` from inside, where nothing is published yet."""

    def put(node: Target, question: str, seconds: float) -> Mapping[str, str]:
        channel = _check_agent(hypervisor, node, 0.0)
        if not node.has_sql:
            return {}
        if node.has_server:
            argv, stdin = ["/usr/lib/lab/sql", str(_INSIDE)], question.encode() + b"\n"
        else:
            argv, stdin = ["/usr/lib/lab/proxied"], b""
        output = channel.run(argv, stdin=stdin, timeout=seconds)
        lines = output.decode(errors="replace")
        pairs = (line.split("\t", 1) for line in lines.splitlines() if "\t" in line)
        return {pair[0]: pair[1] for pair in pairs}

    return _sources_first(blueprint, nodes, put, _INSIDE_SECONDS)


class _Asking:
    """Puts questions of ``blueprint`` to nodes, and what they report to those that depend on it.

    See ``_sources_first``.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        nodes: Sequence[Target],
        put: _Put,
        down: Collection[str],
        *,
        once: bool,
    ) -> None:
        self._blueprint, self._put, self._down, self._once = blueprint, put, down, once
        self._by_name = {node.name: node for node in nodes}
        self._known: dict[str, Mapping[str, str]] = {}

    def ask(
        self, node: Target, reported: Mapping[str, Mapping[str, str]], seconds: float
    ) -> Mapping[str, str]:
        """What a node answers; ``reported``: what it depends on."""
        question = self._blueprint.question(node.role, reported, node.release)
        found = self._put(node, question, seconds)
        if self._once:
            self._known[node.name] = found
        return found

    def reports(self, names: Sequence[str], seconds: float) -> dict[str, Mapping[str, str]]:
        """What nodes say, all asked at the same time: several that are silent take no longer."""
        if len(names) < 2:
            return {name: self._report(name, seconds) for name in names}
        with ThreadPoolExecutor(len(names)) as pool:
            found = pool.map(lambda name: self._report(name, seconds), names)
            return dict(zip(names, found, strict=True))

    def first(self, names: Sequence[str], seconds: float) -> dict[str, Mapping[str, str]]:
        """What one of the nodes says, the first if it answers."""
        found = self.reports(names[:1], seconds / 2)
        return found if any(found.values()) else found | self.reports(names[1:], seconds / 2)

    def _report(self, name: str, seconds: float) -> Mapping[str, str]:
        if name in self._known or name in self._down:
            return self._known.get(name, {})
        try:
            return self.ask(self._by_name[name], {}, seconds)
        except (CommandFailed, NotReady, NotFound):
            return {}


def _sources_first(
    blueprint: Blueprint,
    nodes: Sequence[Target],
    put: _Put,
    patience: float,
    *,
    down: Collection[str] = (),
    once: bool = False,
) -> Ask:
    """Puts a node's question, with what the nodes that it replicates from said just before.

    ``patience``: seconds for all of that, unless ``put`` gives nodes more. ``down``: nodes that do
    not run; they are not asked what others depend on. ``once``: a node that has answered is not
    asked that either, for its answer holds as long as what is returned is used.
    """
    members = [member_of(node) for node in nodes]
    asking = _Asking(blueprint, nodes, put, down, once=once)
    least = patience * _REST

    def answer(node: Target) -> Mapping[str, str]:
        member, end = member_of(node), Deadline.after(patience)
        sources = blueprint.sources(member, members)
        reports = asking.first if blueprint.any_source else asking.reports
        reported = reports(sources, patience - least)
        found = asking.ask(node, reported, max(end.left, least))
        before = set(reported)
        while more := blueprint.elsewhere(member, members, found, reported):
            reported |= asking.reports(more, max(end.left, least) * (1 - _REST))
        if before != set(reported):
            try:
                found = asking.ask(node, reported, max(end.left, least))
            except NotReady as error:
                slow = error.begun or end.passed  # not silent: it answered just before
                raise NotReady(error.what, details=error.details, begun=slow) from None
        silent = [name for name, answered in reported.items() if not answered]
        return {**found, _LACKING: ",".join(silent)}

    return answer


def _check_agent(hypervisor: Hypervisor, node: Target, seconds: float) -> GuestChannel:
    channel = hypervisor.channel(node.guest)
    if not channel.ping(seconds):
        raise NotReady(f"the guest agent of {node.name} does not answer")
    return channel


@dataclass(frozen=True)
class Asked:
    """The role that a node has now, and its requirements."""

    role: str
    """The role that it has; empty if it did not answer."""
    requirements: Sequence[tuple[Requirement, NodeState]]
    """The requirements, each with the node's state if it is unmet."""
    position: str | None = None
    """What it has executed, which may be nothing; None if that is not known."""
    sources: tuple[str, ...] | None = None
    """The nodes that it follows, by name; None if it was not asked for them."""
    lacking: tuple[str, ...] = ()
    """The nodes whose silence is why a requirement is not known."""

    @property
    def missing(self) -> tuple[Requirement, NodeState] | None:
        """The first requirement that is not met, or not known to be."""
        return next((found for found in self.requirements if not found[0].met), None)


def ask_node(node: Target, nodes: int, blueprint: Blueprint, answer: Ask, way: str) -> Asked:
    """What ``node`` is in a lab of ``nodes``, without proxies.

    ``way``: the text of the requirement that SQL answers; without SQL, the guest agent has to.
    """
    name, way = ("SQL", way) if node.has_sql else ("agent", AGENT)
    try:
        found = answer(node)
    except (CommandFailed, NotReady, NotFound) as error:
        conditions = blueprint.requirements(node.role, nodes)
        first = Requirement(node.name, name, way, met=False, found=_reason(error))
        rest = [(Requirement(node.name, c.name, c.what, met=None), c.unmet) for c in conditions]
        return Asked("", [(first, "unreachable"), *rest])
    role = blueprint.role(node.role, found)
    conditions = blueprint.requirements(role, nodes)
    met: list[tuple[Requirement, NodeState]] = [
        (Requirement(node.name, c.name, c.what, c.met(found), c.found(found)), c.unmet)
        for c in conditions
    ]
    answered = Requirement(node.name, name, way, met=True)
    position: str | None = blueprint.position(found)
    if position and not gtid.valid_position(position):
        position = None  # what a guest says in its place is not shown
    linked = found.get(_SOURCES)
    sources = None if linked is None else tuple(filter(None, linked.split(",")))
    silent = filter(None, found.get(_LACKING, "").split(","))
    lacking = tuple(silent) if any(one.met is None for one, _ in met) else ()
    return Asked(role, [(answered, "unreachable"), *met], position, sources, lacking)


def _reason(error: LabError) -> str:
    return error.details[-1] if error.details else error.what
