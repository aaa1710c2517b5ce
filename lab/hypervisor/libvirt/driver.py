"""The hypervisor of Linux hosts: QEMU guests as transient domains of libvirt."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import libvirt
import libvirt_qemu

from lab.errors import (
    Conflict,
    HostUnfit,
    LabError,
    NotFound,
    NotReady,
    PortTaken,
    RestoreFailed,
)
from lab.guest.network import segment_group
from lab.hypervisor import (
    SHUTDOWN_SECONDS,
    Capabilities,
    DirectBoot,
    Disk,
    FirmwareBoot,
    Forward,
    Guest,
    GuestShape,
    GuestSpec,
    GuestState,
    Live,
    Memory,
    MemoryImage,
    Network,
)
from lab.hypervisor.agent import AgentChannel
from lab.hypervisor.libvirt import access, device_state, logs, memory_copy, session
from lab.hypervisor.libvirt.channel import DomainPorts
from lab.hypervisor.libvirt.connection import connect, default_uri, translated
from lab.hypervisor.libvirt.domain import (
    USER_NETWORK,
    Machine,
    domain_xml,
    host_end,
    memory_path,
    port_sockets,
    read_tags,
)
from lab.hypervisor.libvirt.pages import Unreadable, process_of
from lab.hypervisor.libvirt.probe import (
    captures,
    depended_on,
    describe,
    host_cpu,
    probe,
    run_as,
)
from lab.names import GuestName
from lab.progress import never_halt
from lab.wait import Deadline, attempts

T = TypeVar("T")

_PARALLEL = 9
_PORT_TAKEN = "Could not set up host forwarding rule"
"""QEMU's error (net/slirp.c) if a port to be forwarded cannot be bound."""
_INTERRUPTED = f"failed to load cgroup BPF prog: {os.strerror(errno.EAGAIN)}"
"""libvirt's error (src/util/vircgroupv2devices.c) if a signal came while Linux verified its program
for a guest's devices. Linux (c3494801cd17) wants to be called again; libbpf does so, libvirt 9 not.
"""
_STARTS = 5
"""As often as libbpf (PROG_LOAD_ATTEMPTS)."""

_HALTED = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR)


class LibvirtHypervisor:
    """See Hypervisor for the contract.

    ``home``: the tag of this installation's guests. ``sockets``: a directory for the unix sockets
    of device state; QEMU's user must be able to write to it.
    """

    def __init__(
        self, *, home: str, sockets: Path, uri: str = "", accelerator: str = "auto"
    ) -> None:
        self._home = home
        self._sockets = sockets
        self._accelerator = accelerator
        self._connection = connect(uri or default_uri())
        self._machine: Machine | None = None
        self._facts: Mapping[str, str] = {}
        self._tags: Mapping[tuple[bytes, int], Mapping[str, str]] = {}
        self._probing = threading.Lock()

    def close(self) -> None:
        """Close the connection; guests keep running."""
        with suppress(libvirt.libvirtError):
            self._connection.close()

    @property
    def machine(self) -> Machine:
        """The virtual machine that guests get on this host; raises HostUnfit."""
        with self._probing:
            if self._machine is None:
                described = self._described
                with translated("querying libvirt's capabilities"):
                    machine, self._facts = probe(
                        self._connection, described, accelerator=self._accelerator
                    )
                if machine.run_as is None:
                    machine = replace(machine, sockets=self._sockets)
                self._machine = machine
            return self._machine

    @cached_property
    def _described(self) -> ET.Element:
        with translated("querying libvirt's capabilities"):
            return describe(self._connection)

    @cached_property
    def run_as(self) -> tuple[int, int] | None:
        """The uid and gid that QEMU runs as, None for this process's; raises HostUnfit.

        Found without the rest of ``machine``: a list of labs needs no more.
        """
        described = self._described
        with translated("querying libvirt's URI"):
            return run_as(self._connection, described)

    @property
    def memory(self) -> Memory:
        """See Hypervisor; QEMU supports it on every host."""
        return self

    @property
    def live(self) -> Live:
        """See Hypervisor; QEMU's monitor and libvirt can."""
        return self

    @property
    def redirects(self) -> None:
        """See Hypervisor; QEMU forwards ports, and listens on them itself."""

    def capabilities(self) -> Capabilities:
        """See Hypervisor."""
        machine = self.machine
        return Capabilities(
            name="libvirt",
            accelerator="kvm" if machine.accelerator == "kvm" else "tcg",
            why_emulated=machine.why_emulated,
            remedy=machine.remedy,
            reads_ram=machine.reads_ram,
            native_aio=True,
            facts=self._facts,
            captures=captures(self._connection.getVersion()),
            cautions=tuple(session.cautions()) if machine.run_as is None else (),
        )

    def fingerprint(self, shape: GuestShape) -> str:
        """See Hypervisor."""
        facts = [
            self._connection.getVersion(),
            self._connection.getLibVersion(),
            domain_xml(_specimen(shape), depended_on(self.machine)),
            host_cpu() if self.machine.accelerator == "kvm" else {},
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def start(self, guest: GuestSpec) -> None:
        """See Hypervisor."""
        self._create(guest, domain_xml(guest, self.machine), flags=0)

    def restore(self, guest: GuestSpec, memory_image: MemoryImage) -> None:
        """See Memory."""
        _check_image(guest, memory_image)
        guest = replace(guest, memory_file=memory_image.ram)
        xml = domain_xml(guest, self.machine, incoming=True)
        domain = self._create(guest, xml, flags=libvirt.VIR_DOMAIN_START_PAUSED)
        try:
            device_state.load(
                self._monitor(domain), self._sockets, memory_image.state, self.machine.run_as
            )
        except BaseException as error:
            self.stop(guest.name, force=True)
            # A timeout on a slow host does not prove that the files are damaged.
            if isinstance(error, NotReady) or not isinstance(
                error, LabError | libvirt.libvirtError
            ):
                raise
            raise RestoreFailed(
                f"{guest.name} could not be restored",
                details=[str(error), *logs.last_words(guest.name)],
            ) from error

    def pause(self, guests: Sequence[GuestName]) -> None:
        """See Memory."""
        self._all(guests, "suspend", "pausing", unless="paused")

    def resume(self, guests: Sequence[GuestName]) -> None:
        """See Memory."""
        self._all(guests, "resume", "resuming", unless="running")

    def forward(
        self, guest: GuestName, *, add: Sequence[Forward] = (), remove: Sequence[Forward] = ()
    ) -> None:
        """See Live: ``hostfwd_add`` and ``hostfwd_remove``, which only QEMU's monitor has.

        They print nothing if a port was added, and a line in any case if one was removed.
        """
        domain = self._find(guest)
        with translated(f"forwarding ports to {guest}"):
            for one in remove:
                _monitor_line(domain, f"hostfwd_remove {USER_NETWORK} {host_end(one)}")
            for one in add:
                line = f"hostfwd_add {USER_NETWORK} {host_end(one)}-:{one.guest_port}"
                if said := _monitor_line(domain, line):
                    what = f"forwarding port {one.host_port} to {guest}"
                    if _PORT_TAKEN in said:
                        raise PortTaken(f"{what}: another program has it", details=[said])
                    raise HostUnfit(f"{what} failed", details=[said])

    def quit(self, guest: GuestName) -> None:
        """See Live.

        QEMU ends in 0.1 s. libvirt looks for that every 0.2 s, and answers no other question about
        the guest meanwhile; often not even the call that had it end, so a thread makes that.
        """
        with suppress(NotFound):
            domain = self._find(guest)
            name = f"quit-{guest}"
            threading.Thread(target=_quit, args=(domain,), name=name, daemon=True).start()

    def save_memory(self, guest: GuestName, ram: Path, state: Path) -> MemoryImage:
        """See Memory."""
        domain = self._find(guest)
        with translated(f"saving the memory of {guest}"):
            found = _state(domain.state()[0])
            if found != "paused":
                raise Conflict(f"{guest} is {found}: pause it before its memory is saved")
            if memory_path(domain.XMLDesc()) != ram:
                raise Conflict(f"the memory of {guest} is not in {ram}")
            if state.exists():
                raise Conflict(f"{state} exists already")
            device_state.save(self._monitor(domain), self._sockets, state, self.machine.run_as)
        return MemoryImage(ram=ram, state=state, size=ram.stat().st_size)

    def copy_memory(
        self, guest: GuestName, origin: MemoryImage | None, new: MemoryImage
    ) -> Callable[[], MemoryImage]:
        """See Memory."""
        domain = self._find(guest)
        with translated(f"saving the memory of {guest}"):
            found, xml = _state(domain.state()[0]), domain.XMLDesc()
            if found != "paused":
                raise Conflict(f"{guest} is {found}: pause it before its memory is saved")
            if origin is not None and memory_path(xml) != origin.ram:
                raise Conflict(f"{guest} was not restored from {origin.ram}")
            for path in (new.state, new.ram) if origin is None else (new.state,):
                if path.exists():
                    raise Conflict(f"{path} exists already")
            return memory_copy.copy(
                self._monitor(domain),
                domain.UUIDString(),
                self._sockets,
                self.machine.run_as,
                origin,
                new,
            )

    def stop(
        self,
        guest: GuestName,
        *,
        force: bool,
        timeout: float = SHUTDOWN_SECONDS,
        halt: Callable[[], None] = never_halt,
    ) -> None:
        """See Hypervisor."""
        try:
            domain = self._find(guest)
        except NotFound:
            return
        try:
            with translated(f"stopping {guest}"):
                if force:
                    domain.destroy()
                    return
                if _state(domain.state()[0]) == "paused":
                    raise NotReady(f"{guest} is paused and cannot shut down", hint="force it")
                domain.shutdown()
        except NotFound:
            return
        for _ in attempts(Deadline.after(timeout), first=0.05, most=0.5):
            if guest not in self.guests():
                return
            halt()
        raise NotReady(f"{guest} did not shut down within {timeout:g} s", hint="force it")

    def guests(self) -> dict[GuestName, Guest]:
        """See Hypervisor."""
        found: dict[GuestName, Guest] = {}
        with translated("listing guests"):
            domains = self._connection.listAllDomains()
        # An XML document for each guest at each look took most of a service's idle time.
        tags_of: dict[tuple[bytes, int], Mapping[str, str]] = {}
        for domain in domains:
            with suppress(libvirt.libvirtError):  # ended since it was listed
                which = domain.UUID(), domain.ID()  # the latter differs at each start
                tags = self._tags.get(which)
                if tags is None:
                    tags = read_tags(domain.XMLDesc())
                if domain.ID() >= 0:  # what is not active may be defined again
                    tags_of[which] = tags
                if tags.get("home") == self._home:
                    name = GuestName(domain.name())
                    code, reason = domain.state()
                    halted = (code, reason) == _HALTED
                    why = _disk_errors(domain) if halted else ""
                    found[name] = Guest(name, _state(code), tags, why)
        self._tags = tags_of
        return found

    def names(self) -> set[GuestName]:
        """See Hypervisor."""
        with translated("listing guests"):
            return {GuestName(domain.name()) for domain in self._connection.listAllDomains()}

    def forget(self, guests: Sequence[GuestName]) -> None:
        """See Hypervisor."""
        ended = sorted(set(guests) - self.names())
        logs.remove(ended)
        if (sockets := self.machine.sockets) is not None:
            # libvirt removes them, unless it was killed together with its guests.
            for guest in ended:
                for path in port_sockets(sockets, self._home, guest).values():
                    path.unlink(missing_ok=True)

    def segment_free(self, segment: int) -> bool:
        """See Hypervisor."""
        return segment_is_free(self._home, segment)

    def channel(self, guest: GuestName) -> AgentChannel:
        """See Hypervisor."""
        return AgentChannel(DomainPorts(self._find(guest), guest), guest)

    def console_argv(self, guest: GuestName) -> list[str]:
        """See Hypervisor."""
        self._find(guest)
        return ["virsh", "--connect", self._connection.getURI(), "console", guest]

    def evidence(self, guest: GuestName) -> dict[str, str]:
        """See Hypervisor."""
        found = {}
        with suppress(NotFound), translated(f"reading the definition of {guest}"):
            found["domain.xml"] = self._find(guest).XMLDesc()
        if log := logs.latest(guest):
            found["qemu.log"] = log
        return found

    def processes(self) -> dict[GuestName, int]:
        """See Hypervisor."""
        found = {}
        for name in self.guests():
            with suppress(NotFound, Unreadable), translated(f"looking for {name}"):
                found[name] = process_of(self._find(name).UUIDString())
        return found

    def _create(self, guest: GuestSpec, xml: str, *, flags: int) -> Any:
        if self.machine.run_as is not None:
            # At each start: rollbacks, imports and reboots create new device nodes.
            for disk in guest.disks:
                if disk.format == "block":
                    access.let_open(disk.path, self.machine.run_as[0])
        try:
            with translated(f"starting {guest.name}"):
                return uninterrupted(lambda: self._connection.createXML(xml, flags))
        except HostUnfit as error:
            error.details += tuple(logs.last_words(guest.name))
            if self.machine.accelerator == "kvm" and not error.hint:
                error.hint = way_out(error.details)
            if any(_PORT_TAKEN in line for line in error.details):
                raise PortTaken(
                    f"starting {guest.name}: another program uses one of its ports",
                    details=error.details,
                ) from error
            raise

    def _find(self, guest: GuestName) -> Any:
        with translated(f"looking for {guest}"):
            domain = self._connection.lookupByName(guest)
            tags = read_tags(domain.XMLDesc())
        if tags.get("home") != self._home:
            raise Conflict(
                f"guest {guest} does not belong to this installation",
                hint="another LAB_HOME may own it",
            )
        return domain

    def _all(
        self, guests: Sequence[GuestName], method: str, doing: str, *, unless: GuestState
    ) -> None:
        # All are looked up first: if one is missing, none is changed.
        domains = [(guest, self._find(guest)) for guest in guests]

        def call(found: tuple[GuestName, Any]) -> None:
            guest, domain = found
            with translated(f"{doing} {guest}"):
                if _state(domain.state()[0]) != unless:
                    getattr(domain, method)()

        # In parallel: a cluster evicts nodes that are paused for longer than the others.
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(call, domains))

    def _monitor(self, domain: Any) -> device_state.Monitor:
        def ask(command: Mapping[str, Any]) -> Mapping[str, Any]:
            answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, json.dumps(command), 0))
            if "error" in answer:
                raise HostUnfit(f"QEMU: {answer['error'].get('desc', answer['error'])}")
            result: Mapping[str, Any] = answer["return"]
            return result

        return ask


def _quit(domain: Any) -> None:
    # It is ending, or its monitor does not answer: who forgets it ends it then.
    with suppress(libvirt.libvirtError):
        _monitor_line(domain, "quit")


def _monitor_line(domain: Any, line: str) -> str:
    """What QEMU's monitor for people prints for ``line``, in one line."""
    flags = libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP
    return " ".join(libvirt_qemu.qemuMonitorCommand(domain, line, flags).split())


def uninterrupted(start: Callable[[], T]) -> T:
    """What ``start`` returns, called again when a signal interrupted libvirt at it."""
    for _ in range(_STARTS - 1):
        try:
            return start()
        except libvirt.libvirtError as error:
            if _INTERRUPTED not in str(error):
                raise
    return start()


def segment_is_free(home: str, segment: int) -> bool:
    """Whether no guest of the installation ``home`` is on ``segment``.

    A segment is a UDP port of the installation's multicast group.
    """
    # Bound without SO_REUSEADDR, unlike in QEMU: so it fails while a guest uses it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((segment_group(home), segment))
        except OSError:
            return False
        return True


def way_out(details: Sequence[str]) -> str:
    """The hint for a guest that did not start because of KVM; else empty."""
    if any("kvm" in line.lower() or "msr" in line.lower() for line in details):
        return "LAB_ACCELERATOR=tcg emulates instead, many times slower"
    return ""


def _state(code: int) -> GuestState:
    if code in (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED):
        return "running"
    if code in (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PMSUSPENDED):
        return "paused"
    return "stopped"


def _disk_errors(domain: Any) -> str:
    """The disk errors that paused a guest."""
    words = {libvirt.VIR_DOMAIN_DISK_ERROR_NO_SPACE: "no space left"}
    found = {words.get(code, "it failed") for code in domain.diskErrors().values()}
    return f"a disk could not be written: {', '.join(sorted(found)) or 'it failed'}"


def _check_image(guest: GuestSpec, image: MemoryImage) -> None:
    # QEMU would create a missing or empty RAM file, and run with zeros as RAM.
    for path in (image.ram, image.state):
        if not path.is_file():
            raise _no_restore(guest, f"{path} does not exist")
    if not image.ram.stat().st_size == image.size == guest.memory:
        raise _no_restore(guest, f"the size of {image.ram} differs from the guest's memory")


def _no_restore(guest: GuestSpec, why: str) -> HostUnfit:
    return HostUnfit(f"{guest.name} could not be restored", details=[why])


def _specimen(shape: GuestShape) -> GuestSpec:
    """A guest of this shape with fixed names: a RAM image depends on its XML."""
    nowhere = Path("/x")
    disks = tuple(Disk(nowhere, "raw", f"disk{number}") for number in range(shape.disks))
    boot = DirectBoot(nowhere, nowhere, "") if shape.boot == "direct" else FirmwareBoot()
    network = Network("02:00:00:00:00:01", "02:00:00:00:00:02", (), 1)
    return GuestSpec(
        GuestName("specimen"), {}, shape.memory, shape.cpus, disks, network, boot, nowhere, nowhere
    )
