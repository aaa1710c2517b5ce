"""Promotions where nodes fail in the middle: what is done, what is refused, who takes writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from lab.blueprints import Engine, Member, Promotion, Situation, switchover
from lab.blueprints.dialects import Asked
from lab.blueprints.switchover import Role, Star
from lab.errors import CommandFailed, Conflict, NotReady
from lab.guest import network
from lab.wait import Deadline

T = TypeVar("T")
ENGINE = Engine("mariadb", "11.8", "", "my.cnf", "mysql", 1, 1, "/var/log", "mariadb")
ADDRESS = {f"n{index}": network.inner_address(index) for index in range(1, 4)}


LINK = ("CHANGE MASTER TO MASTER_HOST='{address}'",)
ROLE = Role(("read_only=OFF",), ("read_only=ON",), ("STOP SLAVE",), LINK, (), (), Asked().reached)


@dataclass
class Server:
    """The server of a node, and what the node remembers."""

    executed: str
    follows: str = ""
    writable: bool = False
    noted: tuple[str, str] = ("", "")
    silent_at: Sequence[int] = ()
    """Looks at which it does not answer."""
    refuses: str = ""
    """The action that fails."""
    looks: int = 0

    def state(self) -> str:
        """As the guest's program prints it."""
        self.looks += 1
        if self.looks in self.silent_at:
            raise NotReady("no answer")
        found = {
            "server": "active",
            "read_only": "OFF" if self.writable else "ON",
            "executed": self.executed,
            "position": self.executed,
            "received": self.executed,
            "follows": ADDRESS.get(self.follows, ""),
            "running": "yes" if self.follows else "no",
        }
        if self.noted[1]:
            found |= {"epoch": self.noted[0], "source": self.noted[1]}
        return "".join(f"{name}\t{value}\n" for name, value in found.items())


@dataclass
class Nodes:
    """A cluster whose guests behave as the programs in them do."""

    servers: dict[str, Server]
    off: list[str] = field(default_factory=list)

    @property
    def members(self) -> Sequence[Member]:
        return [
            Member(name, int(name[1:]), ADDRESS[name])
            for name in self.servers
            if name not in self.off
        ]

    def each(self, work: Callable[[Member], T]) -> list[T]:
        return [work(member) for member in self.members]

    def run(
        self, member: Member, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> str:
        del timeout
        server = self.servers[member.name]
        if argv[0] != switchover.PROGRAM:
            return "yes\n" if b"GTID_WAIT" in stdin else ""
        if argv[1] == server.refuses:
            raise CommandFailed(list(argv), 1, stderr="No space left on device")
        match list(argv[1:]):
            case ["state", _]:
                return server.state()
            case ["note", epoch, node]:
                server.noted = (epoch, node)
            case ["lead", epoch, node, *_]:
                server.noted, server.writable = (epoch, node), True
            case ["yield", *_]:
                server.writable = False
            case ["follow"]:
                address = [a for a in ADDRESS.values() if f"'{a}'".encode() in stdin]
                server.follows = next((n for n, a in ADDRESS.items() if a in address), "")
        return ""

    @property
    def writers(self) -> list[str]:
        """The nodes that take writes."""
        return [name for name, server in self.servers.items() if server.writable]

    def promote(self, to: str, *, force: bool = False) -> None:
        asked = Promotion(
            to, tuple(self.servers), Deadline.after(5), force=force, fence=self.off.append
        )
        engines = dict.fromkeys(self.servers, ENGINE)
        Star(self, engines, lambda _: ROLE, "n1", {}, "secret", asked).promote()


def star(source: str = "0-1-40", *others: str, writable: bool = True) -> Nodes:
    servers = {"n1": Server(source, writable=writable)}
    servers |= {f"n{at}": Server(has, "n1") for at, has in enumerate(others, 2)}
    return Nodes(servers)


@pytest.mark.parametrize("silent", ["n2", "n3"])
def test_a_node_that_is_silent_for_a_moment_is_not_left_out(silent: str) -> None:
    """Protects transactions: those that a replica has are compared, or nothing is promoted."""
    nodes = star("0-1-40", "0-1-40", "0-1-41", writable=False)
    nodes.off.append("n1")
    nodes.servers[silent].silent_at = (3,) if silent == "n2" else (2,)
    with pytest.raises(NotReady, match=f"{silent} does not answer any more"):
        nodes.promote("n2", force=True)
    assert nodes.writers == []
    with pytest.raises(Conflict, match="n3 has transactions that n2 lacks"):
        nodes.promote("n2", force=True)
    nodes.promote("n3", force=True)
    assert nodes.writers == ["n3"]


def test_a_source_that_lost_transactions_is_not_the_measure() -> None:
    """Protects transactions: of the replicas, the one that has the most can be promoted."""
    nodes = star("0-1-40", "0-1-41", "0-1-42", writable=False)
    with pytest.raises(Conflict, match="n3 has transactions that n2 lacks"):
        nodes.promote("n2")
    assert nodes.writers == []
    nodes.promote("n3")
    assert nodes.writers == ["n3"]


def test_a_node_that_cannot_remember() -> None:
    """Protects labs from having no source: the old one decides, others may be noted later."""
    nodes = star("0-1-40", "0-1-40", "0-1-40")
    nodes.servers["n1"].refuses = "note"
    with pytest.raises(CommandFailed, match="status 1"):
        nodes.promote("n2")
    assert nodes.writers == ["n1"]
    nodes.servers["n1"].refuses, nodes.servers["n3"].refuses = "", "note"
    with pytest.raises(CommandFailed, match="status 1"):
        nodes.promote("n2")
    assert nodes.writers == ["n2"]
    nodes.servers["n3"].refuses = ""
    nodes.promote("n2")
    assert {server.noted for server in nodes.servers.values()} == {("1", "n2")}


def test_a_source_alone_takes_writes_only_by_force() -> None:
    """Protects against two sources: a node that is silent may have been promoted since."""
    nodes = star("0-1-40", "0-1-40", writable=False)
    nodes.servers["n2"].writable, nodes.servers["n2"].silent_at = True, (1,)
    with pytest.raises(Conflict, match="n2 does not answer, and may have been promoted"):
        nodes.promote("n1")
    assert nodes.writers == ["n2"]
    nodes.servers["n2"].silent_at = (2,)
    nodes.promote("n1", force=True)
    assert nodes.off == ["n2"]


def test_a_start_leaves_one_that_takes_writes() -> None:
    """Protects data: of two that do, the one that was promoted last remains."""
    nodes = star("0-1-40", "0-1-40", "0-1-40")
    for name, noted in {"n1": ("3", "n1"), "n2": ("4", "n2"), "n3": ("3", "n1")}.items():
        nodes.servers[name].noted, nodes.servers[name].writable = noted, name != "n3"
    standings = {name: server.state() for name, server in nodes.servers.items()}
    engines = dict.fromkeys(nodes.servers, ENGINE)
    found = switchover.remedies(
        Situation(standings, True, True, {}, "pw"), engines, lambda _: ROLE, "n1", {}
    )
    assert [(one.node, one.action) for one in found] == [
        ("n1", "note"), ("n1", "yield"), ("n1", "follow"), ("n3", "note"), ("n3", "follow"),
    ]  # fmt: skip
