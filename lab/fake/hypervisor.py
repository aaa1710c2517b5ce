"""A hypervisor for tests that behaves: guests are JSON files, and they answer.

It keeps the whole contract, between processes too, and refuses what the real one refuses.
What runs in its guests is in ``servers``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path

from lab.errors import HostUnfit, NotFound, NotReady, PortTaken
from lab.fake import inside as guest_side
from lab.fake.channel import FakeChannel
from lab.fake.guests import Guests
from lab.fake.memory import FakeMemory, size_ram
from lab.fake.servers import FakeServers
from lab.hypervisor import (  # fmt: skip
    SHUTDOWN_SECONDS,
    Capabilities,
    DirectBoot,
    Forward,
    Guest,
    GuestShape,
    GuestSpec,
)
from lab.names import GuestName
from lab.progress import never_halt


class FakeHypervisor:
    """Guests in ``directory``; ``home`` marks those of this installation.

    ``before`` is called with the name of each step about to happen and may raise: a method's
    name when it starts (``ping``, ``run``, ``write``, ``personalise`` and ``sql`` for what is
    asked of a guest), ``commit`` before a change appears. ``version`` is part of the fingerprint.
    ``boot_seconds``: how long after a cold start a guest begins to answer; ``own_seconds``: how
    long personalising one would take. Nothing waits: what has less time fails at once.
    ``redirects``: it has them.
    """

    def __init__(
        self,
        directory: Path,
        home: str = "home",
        *,
        before: Callable[[str], None] = lambda _: None,
        capabilities: Capabilities | None = None,
        version: str = "1",
        boot_seconds: float = 0.0,
        own_seconds: float = 0.0,
        redirects: bool = False,
    ) -> None:
        self._guests = Guests(directory, before)
        self._home = home
        self._before = before
        facts = {"fake": f"version {version}"}
        self._capabilities = capabilities or Capabilities("fake", "fake", facts=facts)
        self._version = version
        self._boot_seconds = boot_seconds
        self._own_seconds = own_seconds
        forwards = self._capabilities.forwards
        self.servers = FakeServers(self._guests, home, before, forwards=forwards)
        memory = FakeMemory(self._guests, home, self.fingerprint, before)
        self.memory = None if self._capabilities.why_cold else memory
        live = FakeLive(self._guests, self.servers, home, before)
        self.live = live if self.memory is not None and forwards else None
        self.redirects = FakeRedirects(self._guests, before) if redirects else None

    @property
    def run_as(self) -> None:
        """See Hypervisor; guests are files of ours."""

    def close(self) -> None:
        """There is nothing to give back; guests keep running."""

    def capabilities(self) -> Capabilities:
        """See Hypervisor."""
        return self._capabilities

    def fingerprint(self, shape: GuestShape) -> str:
        """See Hypervisor."""
        facts = [self._version, self._capabilities.accelerator, *astuple(shape)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def start(self, guest: GuestSpec) -> None:
        """See Hypervisor."""
        self._before("start")
        redirected = self.redirects is not None and all(f.to for f in guest.network.forwards)
        if guest.network.forwards and not (self._capabilities.forwards or redirected):
            raise HostUnfit(f"starting {guest.name}: ports are not forwarded here")
        if isinstance(guest.boot, DirectBoot) and not self._capabilities.direct:
            raise HostUnfit(f"starting {guest.name}: guests boot by firmware only here")
        with self._guests.hold():
            self._guests.refuse(guest)
            if guest.memory_file is not None:
                size_ram(guest, guest.memory_file)
            self._guests.create(guest, "running", time.time() + self._boot_seconds, "boots")
            guest_side.forget_memory(guest.disks)
            if guest_side.refused(guest.disks):
                inside = guest_side.read_inside(guest.disks)
                guest_side.write_inside(guest.disks, replace(inside, apart="failed"))

    def stop(
        self,
        guest: GuestName,
        *,
        force: bool,
        timeout: float = SHUTDOWN_SECONDS,
        halt: Callable[[], None] = never_halt,
    ) -> None:
        """See Hypervisor; never waits, as what does not shut down at once never will."""
        self._before("stop")
        with self._guests.hold():
            try:
                record = self._guests.find(guest, self._home)
            except NotFound:
                return
            if not force:
                halt()
            if not force and record.state != "running":
                raise NotReady(f"{guest} did not shut down within {timeout:g} s", hint="force it")
            self._before("commit")
            self._guests.remove(guest)
            self.servers.stopped(guest)

    def guests(self) -> dict[GuestName, Guest]:
        """See Hypervisor."""
        self._before("guests")
        with self._guests.hold():
            ours = [record for record in self._guests.all() if record.home == self._home]
        return {one.name: Guest(one.name, one.state, one.tags, one.why) for one in ours}

    def names(self) -> set[GuestName]:
        """See Hypervisor."""
        with self._guests.hold():
            return {record.name for record in self._guests.all()}

    def forget(self, guests: Sequence[GuestName]) -> None:  # noqa: ARG002  part of the protocol
        """See Hypervisor; nothing is kept of a fake guest."""
        self._before("forget")

    def segment_free(self, segment: int) -> bool:
        """See Hypervisor."""
        self._before("segment_free")
        with self._guests.hold():
            return all(
                (record.home, record.segment) != (self._home, segment)
                for record in self._guests.all()
            )

    def channel(self, guest: GuestName) -> FakeChannel:
        """See Hypervisor."""
        self._before("channel")
        with self._guests.hold():
            self._guests.find(guest, self._home)
        return FakeChannel(self.servers, guest, self._before, self._own_seconds)

    def console_argv(self, guest: GuestName) -> list[str]:
        """See Hypervisor."""
        with self._guests.hold():
            return ["tail", "-f", str(self._guests.find(guest, self._home).console_log)]

    def evidence(self, guest: GuestName) -> dict[str, str]:
        """See Hypervisor."""
        with self._guests.hold(), suppress(NotFound):
            return {"guest.txt": f"{self._guests.find(guest, self._home).name}\n"}
        return {}

    def processes(self) -> dict[GuestName, int]:
        """See Hypervisor; guests are files."""
        return {}

    def halt(self, guest: GuestName, why: str) -> None:
        """Pause a guest as QEMU does when a disk cannot be written; raises NotFound."""
        with self._guests.hold():
            record = self._guests.find(guest, self._home)
            self._guests.put(replace(record, state="paused", why=why))


class FakeLive:
    """See Live. ``home`` marks the guests of this installation; ``before`` is called first."""

    def __init__(
        self, guests: Guests, servers: FakeServers, home: str, before: Callable[[str], None]
    ) -> None:
        self._guests = guests
        self._servers = servers
        self._home = home
        self._before = before

    def forward(
        self, guest: GuestName, *, add: Sequence[Forward] = (), remove: Sequence[Forward] = ()
    ) -> None:
        """See Live."""
        self._before("forward")
        with self._guests.hold():
            record = self._guests.find(guest, self._home)
            gone = {one.host_port for one in remove}
            ports = {port: to for port, to in record.ports.items() if port not in gone}
            addresses = {port: at for port, at in record.addresses.items() if port not in gone}
            others = {port for one in self._guests.all() if one.name != guest for port in one.ports}
            for one in add:
                if one.host_port in others or one.host_port in ports:
                    raise PortTaken(f"forwarding port {one.host_port}: another guest has it")
                ports[one.host_port] = one.guest_port
                addresses[one.host_port] = one.address
            self._before("commit")
            self._guests.put(replace(record, ports=ports, addresses=addresses))

    def quit(self, guest: GuestName) -> None:
        """See Live."""
        self._before("quit")
        with self._guests.hold(), suppress(NotFound):
            self._guests.remove(self._guests.find(guest, self._home).name)
            self._servers.stopped(guest)


class FakeRedirects:
    """Ports of the host that lead to guests; see Redirects. ``before`` is called first."""

    def __init__(self, guests: Guests, before: Callable[[str], None]) -> None:
        self._guests = guests
        self._before = before

    def ports(self) -> dict[int, GuestName]:
        """See Redirects."""
        self._before("redirects")
        with self._guests.hold():
            return {port: record.name for record in self._guests.all() for port in record.ports}
