"""sysbench in the client node of a lab, over its guest agent.

It runs in the background of the guest; what it prints is read in parts, as the channel is made for
short answers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from lab.bench import sysbench
from lab.blueprints import CLIENT, Member, writers_of
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.guest import network
from lab.hypervisor import GuestChannel
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs.wait import wait
from lab.lifecycle.nodes.connection import account_of
from lab.lifecycle.nodes.inspect import check_usable, lab, nodes_of, record_of
from lab.lifecycle.nodes.nodes import Node
from lab.observe.ways import Rows
from lab.state.records import LabRecord
from lab.values import dataclass
from lab.views.labs import LabView
from lab.wait import Deadline, attempts

DATABASE = "lab_bench"
"""What is made in a lab for a benchmark, and removed after it."""
PROGRAM = "/usr/lib/lab/bench"
OPTIONS = "/run/lab-bench.options"
_PART = 24 << 10
"""Bytes of output in an answer."""
_MOST = 40 << 20
"""Bytes of output of a run; the guest's program keeps fewer."""
_CALL_SECONDS = 60.0
_STATEMENT_SECONDS = 600.0
_READY_SECONDS = 60.0
"""How long a lab may take to be ready again that was not when it was looked at."""
_STATE = re.compile(r"runs|done (\d{1,3})")


@dataclass(frozen=True)
class Bench:
    """A lab with a client, and the server, or the proxy, that this uses."""

    ctx: Context
    record: LabRecord
    nodes: tuple[Node, ...]
    client: Node
    through: Node
    """Which the client connects to."""
    writer: Node
    """The server to which our own statements go."""

    def execute(self, *statements: str) -> list[Rows]:
        """Execute statements as the lab's user; raises NotReady and CommandFailed."""
        account = account_of(self.ctx.home, self.record)
        return self.ctx.ways.sql_all(
            account, self.writer.sql_port, statements, timeout=_STATEMENT_SECONDS
        )

    def begin(self, script: str, command: str, options: Sequence[str]) -> Run:
        """Start sysbench in the client; its last run there ends. Raises NotReady, CommandFailed."""
        account, channel = account_of(self.ctx.home, self.record), self._channel
        at = network.inner_address(self.through.index)
        content = sysbench.connection(
            account.user, account.password, [at], network.SQL_PORT, DATABASE
        )
        channel.write(OPTIONS, content, mode=0o600)
        channel.run([PROGRAM, "begin", script, command, *options], timeout=_CALL_SECONDS)
        return Run(channel, script, time.monotonic())

    def end(self) -> None:
        """End what runs in the client, and remove its files; raises NotReady, CommandFailed."""
        self._channel.run([PROGRAM, "end"], timeout=_CALL_SECONDS)

    @property
    def _channel(self) -> GuestChannel:
        return self.ctx.hypervisor.channel(self.client.guest)


@dataclass(frozen=True)
class Run:
    """sysbench, as it runs in a client."""

    channel: GuestChannel
    script: str
    began: float
    """When it was started, on the monotonic clock."""

    def output(
        self,
        deadline: Deadline,
        halt: Callable[[], None],
        *,
        most: float = 1.0,
        note: Callable[[str], None] = lambda _: None,
    ) -> bytes:
        """What it has printed once it has ended; raises NotReady, CommandFailed.

        ``most``: seconds between two looks; each costs the client a process. ``note`` gets the last
        line at each look.
        """
        found = bytearray()
        for _ in attempts(deadline, first=min(0.2, most), most=most):
            halt()
            ended = self._read(found)
            if found:
                note(bytes(found[-200:]).decode(errors="replace").rstrip().rpartition("\n")[2])
            if ended is not None:
                while self._more(found):
                    halt()
                if ended and b"FATAL" not in found:
                    tail = bytes(found[-2000:]).decode(errors="replace")
                    raise CommandFailed(["sysbench", self.script], ended, stderr=tail)
                return bytes(found)
        raise NotReady(f"sysbench {self.script} did not end in time")

    def _more(self, found: bytearray) -> bool:
        before = len(found)
        self._read(found)
        return len(found) > before

    def _read(self, found: bytearray) -> int | None:
        """Add the next part; the exit code once it has ended, which may be before the last part."""
        argv = [PROGRAM, "look", str(len(found)), str(_PART)]
        answer = self.channel.run(argv, timeout=_CALL_SECONDS)
        head, _, part = answer.partition(b"\n")
        state = _STATE.fullmatch(head[:20].decode(errors="replace"))
        if state is None or len(part) > _PART or len(found) + len(part) > _MOST:
            raise NotReady(f"the client sent an invalid answer about {self.script}")
        found += part
        return int(state[1]) if state[1] else None


def bench_of(ctx: Context, name: str, *, proxied: bool, view: LabView | None = None) -> Bench:
    """A lab that runs, or is asleep, for a benchmark.

    ``view``: of a lab that was just seen to be ready. Raises NotFound, InvalidSpec, Conflict,
    NotReady.
    """
    record, nodes = record_of(ctx, name), nodes_of(ctx, name)
    check_usable(record)
    clients = [node for node in nodes if node.role == CLIENT]
    if not clients:
        raise InvalidSpec(
            f"the lab {name} has no client, from which a benchmark runs",
            hint=f"`lab up {record.blueprint} --client` makes a lab that has one",
        )
    view = view or lab(ctx, name)
    if view.state not in ("ready", "asleep"):
        view = wait(ctx, name, timeout=_READY_SECONDS)
    roles = {one.name: one.role for one in view.nodes}
    by_name = {node.name: node for node in nodes}
    members = [
        Member(node.name, node.index, network.inner_address(node.index), roles[node.name])
        for node in nodes
    ]
    endpoints = record.plan.endpoints(members)
    writer = by_name[writers_of(endpoints)[0]]
    through = writer
    if proxied:
        through = by_name[endpoints[0].nodes[0]]
        if not through.is_proxy:
            raise InvalidSpec(f"the lab {name} has no proxy", hint="`lab up ... --proxy haproxy`")
    return Bench(ctx, record, nodes, clients[0], through, writer)
