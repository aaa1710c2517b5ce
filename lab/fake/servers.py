"""What runs in the guests of the fake hypervisor: servers that answer, programs, a clock.

Guests pretend to be nodes of a Galera cluster, members of a group, replicas or single servers, as
their option files say: through their channel and, in the place of published ports, through ``sql``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.config.enginefile import family_of
from lab.errors import CommandFailed, Conflict, NotFound, NotReady, StatementRefused
from lab.fake import bench, group, proxy, replication
from lab.fake import inside as guest_side
from lab.fake import load as guest_load
from lab.fake import rejoin as fake_rejoin
from lab.fake.guests import Guests, Record, segment_of
from lab.fake.inside import Inside, Result
from lab.imagebuild import manifest
from lab.names import LOOPBACK, GuestName
from lab.passwords import NATIVE

_VERSION = "SELECT VERSION()"
_SLEEP = re.compile(r"(?:DO|SELECT) SLEEP\(([0-9]{1,9})\)")
"""Statements that take so many seconds, of a load, a program or a script; at a port none do."""


def _version(record: Record) -> str:
    """What the server of a guest says of itself, as servers of its family do."""
    if not record.image:
        return "unknown"
    found = manifest.read(Path(record.image))
    family = family_of(found.engine)
    first = family_of(family.dialect)
    said = f"{found.engine_version}-{first.says}" if first.says else found.engine_version
    return said if family is first else f"{said}-6"


def _protocol(record: Record) -> int:
    """The version of a cluster's protocol that a node knows: here that of its server, its first."""
    words = [] if guest_side.arbitrates(record.disks) else _version(record).split(".")
    return int(words[0]) if words and words[0].isdigit() else 99


class FakeServers:
    """What runs in ``guests``; ``home`` and ``before`` as for ``FakeHypervisor``.

    ``forwards``: published ports are ports of the host, else of the guest's own address.
    """

    def __init__(
        self, guests: Guests, home: str, before: Callable[[str], None], *, forwards: bool
    ) -> None:
        self._guests = guests
        self._home = home
        self._before = before
        self._forwards = forwards
        self._loads: dict[GuestName, str] = {}
        self._asleep: dict[GuestName, float] = {}
        self._tablespaces: dict[GuestName, bytes] = {}

    def stopped(self, guest: GuestName) -> None:
        """Forget the statement that the server of ``guest`` was executing."""
        self._asleep.pop(guest, None)

    def clock(self, guest: GuestName) -> float:
        """A guest's clock, in seconds since the epoch; raises NotReady if it does not answer."""
        with self._guests.hold():
            return time.time() + self._awake(guest).clock_offset

    def put_clock(self, guest: GuestName, offset: float) -> None:
        """Set a guest's clock so many seconds ahead of ours; raises NotReady."""
        with self._guests.hold():
            self._guests.put(replace(self._awake(guest), clock_offset=offset))

    def sql(
        self,
        port: int,
        user: str,
        password: str,
        statement: str,
        *,
        host: str = LOOPBACK,
        tls: bool = False,
        plugin: str = NATIVE,
    ) -> Result:
        """What a client gets that runs ``statement`` through ``port`` of ``host``.

        ``plugin``: how it authenticates.

        Raises NotReady if nothing answers there or the login is refused, CommandFailed if
        the statement is.
        """
        self._before("sql")
        with self._guests.hold():
            own = not self._forwards
            listening = [r for r in self._guests.all() if r.serves(host, port, own=own)]
            reached = listening[0] if listening and self._answers(listening[0]) else None
            if reached is not None and guest_side.proxies(reached.disks):
                service = reached.service(port if own else reached.ports[port])
                reached = proxy.server(self._running_with(reached), service)
            if reached is None:
                raise NotReady(f"no SQL at port {port}", details=["Connection refused"])
            inside = self._caught_up(reached)
            known = guest_side.fits(password, inside.accounts.get(user, ""), plugin)
            if not known or (user in inside.tls_only and not tls):
                denied = f"Access denied for user '{user}'@'%'"
                raise NotReady(f"no SQL at port {port}", details=[denied])
            record = self._guests.count(reached, guest_side.counter(statement))
            return guest_side.processes(user, statement) or self._execute(record, statement)

    def page(self, host: str, port: int, *, timeout: float) -> str:  # noqa: ARG002
        """The HTTP status of the page at ``port`` of ``host``; raises NotReady."""
        own = not self._forwards
        with self._guests.hold():
            for record in self._guests.all():
                at_port = record.own == host if own else port in record.ports
                service = record.service(port if own else record.ports.get(port, 0))
                if at_port and service == "admin" and self._answers(record):
                    return "200"
        raise NotReady(f"no page at {host}:{port}", details=["Connection refused"])

    def proxied(self, guest: GuestName) -> str:
        """What the guest's program of that name prints; raises NotReady."""
        with self._guests.hold():
            record = self._awake(guest)
            return proxy.proxied(record, self._running_with(record))

    def bench(self, guest: GuestName, words: Sequence[str]) -> str:
        """What the program of that name does in a client; raises NotReady and CommandFailed."""
        with self._guests.hold():
            record = self._awake(guest)
            if not guest_side.only_uses(record.disks):
                raise CommandFailed(["/usr/lib/lab/bench"], 127, stderr="not found", where=guest)
            inside, verb = guest_side.read_inside(record.disks), words[0]
            if verb == "look":
                at, most = int(words[1]), int(words[2])
                return f"done 0\n{inside.printed[at : at + most]}"
            if verb == "begin":
                if "/run/lab-bench.options" not in inside.files:
                    raise CommandFailed(["sysbench"], 1, stderr="FATAL: no options", where=guest)
                peers = self._running_with(record)
                slow = any(bench.SLOW in guest_side.options_of(peer.disks) for peer in peers)
                inside.printed = bench.output(words[1:], slow=slow)
            else:
                inside.printed = ""
                inside.files.pop("/run/lab-bench.options", None)
                inside.modes.pop("/run/lab-bench.options", None)
            guest_side.write_inside(record.disks, inside)
            return ""

    def has_no_server(self, guest: GuestName) -> bool:
        """Whether a guest is a proxy or an arbiter."""
        with self._guests.hold():
            return proxy.has_no_server(self._guests.find(guest, self._home))

    def inside(self, guest: GuestName) -> Inside:
        """What a guest has on its disk, for tests to look at; raises NotFound."""
        with self._guests.hold():
            return guest_side.read_inside(self._guests.find(guest, self._home).disks)

    def alter(self, guest: GuestName, change: Callable[[Inside], None]) -> None:
        """Let the guest itself change what is on its disk; raises NotReady if it cannot."""
        with self._guests.hold():
            record = self._awake(guest)
            inside = guest_side.read_inside(record.disks)
            change(inside)
            guest_side.write_inside(record.disks, inside)

    def execute(self, guest: GuestName, statement: str) -> Result:
        """Run a statement as the guest's own root; raises NotReady and CommandFailed."""
        with self._guests.hold():
            return self._execute(self._awake(guest), statement)

    def awake(self, guest: GuestName) -> bool:
        """True if the guest runs and has booted."""
        with self._guests.hold():
            try:
                return self._answers(self._guests.find(guest, self._home))
            except (NotFound, Conflict):
                return False

    def _awake(self, guest: GuestName) -> Record:
        try:
            record = self._guests.find(guest, self._home)
        except NotFound:
            record = None
        if record is None or not self._answers(record):
            raise NotReady(f"the guest agent of {guest} does not answer")
        return record

    def _answers(self, record: Record) -> bool:
        return record.state == "running" and time.time() >= record.since

    def load(self, guest: GuestName, argv: Sequence[str]) -> str:
        """What the guest's program of that name does; raises NotReady and CommandFailed."""
        with self._guests.hold():
            record = self._awake(guest)
            execute = partial(self._execute, record)
            if argv[0] in ("disk", "unpack"):
                (disk,) = (disk for disk in record.disks if disk.serial == argv[1])
            if argv[0] == "disk":
                self._loads[guest] = guest_load.run(disk.path, int(argv[2]), execute)
            elif argv[0] == "unpack":
                inside = guest_side.read_inside(record.disks)
                guest_side.write_inside(record.disks, replace(inside, statements=[]))
                unpacked = guest_load.unpack(disk.path, int(argv[2]))
                self._loads[guest], self._tablespaces[guest] = unpacked
            elif argv[0] == "prepare":
                self._loads[guest] = guest_load.prepare(self._tablespaces[guest])
            elif argv[0] == "adopt":
                self._loads[guest] = guest_load.adopt(self._tablespaces[guest], execute)
            elif argv[0] == "look":
                return "read 1\n" if self.asleep(guest) else self._loads[guest]
            elif argv[0] == "links":
                return ""  # it follows nobody
            elif argv[0] == "forget":
                inside = guest_side.read_inside(record.disks)
                if inside.follows:
                    inside = replace(inside, follows=replication.ITSELF)
                    guest_side.write_inside(record.disks, inside)
            else:
                inside = guest_side.read_inside(record.disks)
                inside = replace(inside, files={}, modes={}, noted="")
                guest_side.write_inside(record.disks, inside)
            return ""

    def carry(self, guest: GuestName) -> bytes:
        """What the guest's program of that name does and prints; raises NotReady."""
        with self._guests.hold():
            record = self._awake(guest)
            former = [disk for disk in record.disks if disk.serial == "lab-former"]
            guest_side.write_inside(record.disks, guest_side.read_inside(former))
        return b""

    def log(self, guest: GuestName) -> str:
        """What the server of a guest has logged."""
        with self._guests.hold():
            disks = self._awake(guest).disks
            if option := guest_side.refused(disks):
                return f"[ERROR] unknown variable '{option}'\n"
            removed = guest_side.removed(disks)
            lines = [f"[Warning] '{one}' was removed. It does nothing now" for one in removed]
            return "".join(f"{line}\n" for line in ["[Note] ready for connections", *lines])

    def recover(self, guest: GuestName, argv: Sequence[str], stdin: bytes) -> str:
        """What the guest's program rejoin, regroup or source does.

        Raises NotReady and CommandFailed.
        """
        with self._guests.hold():
            record = self._awake(guest)
            if argv[0].endswith("source"):
                return replication.source(record, self._running_with(record), argv[1:])
            if argv[0].endswith("regroup"):
                statements = stdin.decode().splitlines()
                return group.regroup(record, self._alike(record), argv[1], statements)
            return fake_rejoin.rejoin(record, self._alike(record), argv[1])

    def asleep(self, guest: GuestName) -> bool:
        """Whether the server of a guest executes a ``SLEEP`` that has not ended."""
        return time.monotonic() < self._asleep.get(guest, 0.0)

    def _execute(self, record: Record, statement: str) -> Result:
        if found := _SLEEP.fullmatch(statement):
            began = max(time.monotonic(), self._asleep.get(record.name, 0.0))
            self._asleep[record.name] = began + int(found[1])
            return Result()
        result = self._executed(record, "SELECT 1" if statement == _VERSION else statement)
        return replace(result, rows=((_version(record),),)) if statement == _VERSION else result

    def _executed(self, record: Record, statement: str) -> Result:
        inside = guest_side.read_inside(record.disks)
        if inside.apart not in ("", "inconsistent"):
            raise NotReady(f"no SQL in {record.name}", details=["Connection refused"])
        if guest_side.asks_variables(statement):
            writes = "OFF" if proxy.writes(record, self._running_with(record)) else "ON"
            values = {"read_only": writes, "wsrep_node_name": record.tags.get("node", "")}
            return guest_side.variables(statement, values)
        if (value := guest_side.sets_read_only(statement)) is not None:
            self._guests.put(replace(record, read_only=value))
            return Result()
        follows = replication.follows(inside.follows, statement)
        if follows != inside.follows and guest_side.alone(record.disks):
            inside = replace(inside, follows=follows)
            guest_side.write_inside(record.disks, inside)
        grouped = guest_side.grouped(record.disks)
        if inside.follows or grouped:
            run = group.run if grouped else replication.run
            return self._execute_with_peers(record, statement, run)
        if guest_side.asks_system(statement):
            return guest_side.information(inside, statement)
        if guest_side.alone(record.disks):
            return self._execute_alone(record, inside, statement)
        return self._execute_together(record, inside.apart, statement)

    def _execute_with_peers(
        self,
        record: Record,
        statement: str,
        run: Callable[[Record, Sequence[Record], str], Result],
    ) -> Result:
        counted = {name: str(number) for name, number in record.commands.items()}
        shown = guest_side.show_status(statement, counted)
        if shown is not None:
            return shown
        if statement in guest_side.NO_DATA:
            return Result()
        return run(record, self._running_with(record), statement)

    def _running_with(self, record: Record) -> list[Record]:
        """The guests of the owner of ``record`` that answer, with itself."""
        found = [p for p in segment_of(record, self._guests.all()) if self._answers(p)]
        return [p for p in found if not proxy.has_no_server(p)]

    def _alike(self, record: Record) -> list[Record]:
        """The running guests of a lab on the same side: a cluster, or its replicas."""
        alone = guest_side.alone(record.disks)
        return [p for p in self._running_with(record) if guest_side.alone(p.disks) == alone]

    def _execute_alone(self, record: Record, inside: Inside, statement: str) -> Result:
        counted = {name: str(number) for name, number in record.commands.items()}
        shown = guest_side.show_status(statement, counted)
        if shown is not None:
            return shown
        if statement in guest_side.NO_DATA:
            return Result()
        if statement.startswith("SELECT 'read_only', "):
            writes = proxy.writes(record, self._running_with(record))
            return Result(("", ""), (("read_only", "OFF" if writes else "ON"),), 1)
        result = guest_side.execute(inside, statement)
        guest_side.write_inside(record.disks, inside)
        return result

    def _execute_together(self, record: Record, apart: str, statement: str) -> Result:
        peers = [
            peer
            for peer in segment_of(record, self._guests.all())
            if self._answers(peer)
            and not guest_side.read_inside(peer.disks).apart
            and not guest_side.proxies(peer.disks)
            and not guest_side.only_uses(peer.disks)
            and not guest_side.alone(peer.disks)
        ]
        known = guest_side.members(record.disks)
        if not known:
            owner = record.tags.get("owner")
            near = [r for r in self._guests.all() if r.segment == record.segment]
            known = sum(r.tags.get("owner") == owner for r in near)
        variables = guest_side.status(len(peers), known, apart)
        variables |= {name: str(number) for name, number in record.commands.items()}
        if "'wsrep_protocol_version'" in statement:
            variables["wsrep_protocol_version"] = str(min(map(_protocol, peers), default=0))
        shown = guest_side.show_status(statement, variables)
        if shown is not None:
            return shown
        if statement in guest_side.NO_DATA:
            return Result()
        answer = replication.of_member(statement, variables, guest_side.read_inside(record.disks))
        if answer is not None:
            return answer
        if variables["wsrep_ready"] != "ON":
            text = "WSREP has not yet prepared node for application use"
            raise StatementRefused(1047, text)
        if replication.PASSED_OVER.match(statement):
            return Result()
        nodes = [
            (peer, guest_side.read_inside(peer.disks))
            for peer in peers
            if not guest_side.arbitrates(peer.disks)
        ]
        # A node that was away has caught up by the time that anyone asks.
        newest = max((inside for _, inside in nodes), key=lambda inside: len(inside.statements))
        result = guest_side.execute(newest, statement)
        for peer, inside in nodes:
            if inside.statements != newest.statements or inside is newest:
                guest_side.write_inside(
                    peer.disks, replace(inside, statements=list(newest.statements))
                )
        return result

    def _caught_up(self, record: Record) -> Inside:
        """What a node has by the time that anyone asks: what its cluster has."""
        peers = self._running_with(record)
        if guest_side.grouped(record.disks):
            return group.current(record, peers)
        if guest_side.read_inside(record.disks).follows:
            return replication.current(record, peers)
        found = [guest_side.read_inside(peer.disks) for peer in self._alike(record)]
        return max(found, key=lambda inside: len(inside.statements))
