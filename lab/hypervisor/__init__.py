"""Hypervisors. ``Hypervisor`` is the seam; drivers: ``libvirt``, ``bhyve``, ``fake``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import ClassVar, Literal, NoReturn, Protocol, cast

from lab.errors import HostUnfit, LabError
from lab.names import GuestName
from lab.progress import never_halt
from lab.storage import Tags, VolumeFormat
from lab.values import dataclass

GuestState = Literal["running", "paused", "stopped", "unknown"]
"""``unknown``: of a recorded guest whose hypervisor does not answer; no driver says that."""


SHUTDOWN_SECONDS = 600.0
"""How long a guest may take to shut down: its server writes what it has in memory, and leaves its
cluster before. The units of servers allow more."""


@dataclass(frozen=True)
class Disk:
    """A disk of a guest. ``serial`` is how the guest finds it, at most 20 characters."""

    path: Path
    format: VolumeFormat
    serial: str
    readonly: bool = False


@dataclass(frozen=True)
class Forward:
    """A port of the host that leads to a port of the guest."""

    host_port: int
    guest_port: int
    address: str = "127.0.0.1"
    """The host's address at which it is; by default its loopback."""
    to: str = ""
    """The guest's own address, where the hypervisor has ``redirects``; else empty."""


@dataclass(frozen=True)
class Network:
    """A guest's two interfaces."""

    outer_mac: str
    """Of the first interface, which reaches the host only. Where the hypervisor forwards ports it
    is user-mode networking, and connections enter by ``forwards`` only; elsewhere the host reaches
    the guest at the guest's own address (``lab.guest.network.own_address``)."""
    inner_mac: str
    """Of the second interface, on the lab's private segment; empty with ``uplink``."""
    forwards: tuple[Forward, ...]
    segment: int
    """A number that only this lab's guests have within the installation (its ``home`` tag)."""
    uplink: bool = False
    """Whether the first interface is on the host's network, configured by DHCP, and there is no
    second."""


BootKind = Literal["direct", "firmware"]


@dataclass(frozen=True)
class DirectBoot:
    """Boot this kernel without firmware."""

    kind: ClassVar[BootKind] = "direct"
    kernel: Path
    initrd: Path
    cmdline: str


@dataclass(frozen=True)
class FirmwareBoot:
    """Boot from the first disk's EFI system partition."""

    kind: ClassVar[BootKind] = "firmware"


@dataclass(frozen=True)
class GuestShape:
    """The properties of a guest that a RAM image depends on: those that determine its devices."""

    memory: int
    cpus: int
    disks: int
    boot: BootKind


@dataclass(frozen=True)
class GuestSpec:
    """The configuration of a guest."""

    name: GuestName
    tags: Tags
    memory: int
    """The size of its RAM, in bytes."""
    cpus: int
    disks: tuple[Disk, ...]
    """Its disks; it boots from the first."""
    network: Network
    boot: DirectBoot | FirmwareBoot
    console_log: Path
    memory_file: Path | None = None
    """RAM is this file, mapped shared, so that ``save_memory`` only writes the device state; None
    for anonymous RAM."""

    @property
    def shape(self) -> GuestShape:
        """The part that a RAM image depends on."""
        return GuestShape(self.memory, self.cpus, len(self.disks), self.boot.kind)


@dataclass(frozen=True)
class MemoryImage:
    """A guest's RAM (``ram``, ``size`` bytes) and device state, saved at one moment."""

    ram: Path
    state: Path
    size: int


@dataclass(frozen=True)
class Caution:
    """A risk for guests that can be started."""

    topic: str
    what: str
    """The risk, in one line."""
    remedy: str


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of the hypervisor on this host."""

    name: str
    accelerator: Literal["kvm", "tcg", "bhyve", "fake"]
    why_cold: str = ""
    """Why RAM can be neither captured nor restored; empty if it can, and then the hypervisor has
    a ``memory``."""
    why_emulated: str = ""
    """Why guests are emulated; empty if they are not."""
    remedy: str = ""
    """How to have guests not emulated."""
    direct: bool = True
    """Whether guests can boot a kernel without firmware."""
    forwards: bool = True
    """Whether ports of the host lead to guests; else guests are reached at their own addresses."""
    reads_ram: bool = True
    """Whether guests can be restored from read-only RAM files."""
    native_aio: bool = False
    """Whether disks of guests use the host's native AIO, of which Linux has a limit."""
    captures: str = ""
    """Where captures of RAM were tested, for ``lab doctor``."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Shown by ``lab doctor``; those that differ are named where RAM cannot be restored."""
    cautions: tuple[Caution, ...] = ()
    """Shown by ``lab doctor`` and ``lab up``."""


@dataclass(frozen=True)
class Guest:
    """An existing guest. ``why``: the error of a disk write, if one paused it."""

    name: GuestName
    state: GuestState
    tags: Tags
    why: str = ""


class Unanswered(HostUnfit):
    """The hypervisor does not answer; its guests may run all the same."""


class TooLong(LabError):
    """A program in a guest wrote more than its caller allowed."""

    exit_code = 6


class GuestChannel(Protocol):
    """Access to one running guest without a network."""

    def ping(self, timeout: float) -> bool:
        """True if the guest answers within ``timeout`` seconds, else False; does not raise."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        halt: Callable[[], None] = never_halt,
        most: int = 0,
    ) -> bytes:
        """Run a program in the guest as root and return its stdout.

        ``most``: for a program whose output we do not know: it is ended if it writes more bytes to
        stdout or stderr, and TooLong is raised. The channel is made for short answers: longer ones
        may end it. Raises CommandFailed (non-zero exit; ``where`` names the guest), NotReady (no
        valid answer within ``timeout`` seconds), and the errors of ``halt``, which is called
        meanwhile.
        """

    def clock(self, *, timeout: float) -> float:
        """The time of the guest's clock, in seconds since the epoch; raises NotReady."""

    def personalise(
        self, message: bytes, *, timeout: float, halt: Callable[[], None] = never_halt
    ) -> int:
        """Send ``message`` (see ``lab.guest.identity``) to the guest's personalising program.

        Returns the number of client sessions that it ended: for this message, and for earlier
        messages that failed. That program runs from boot on, so no process is started. Raises
        CommandFailed if it reports an error, NotReady without a valid answer in ``timeout``
        seconds, and the errors of ``halt``, which is called meanwhile.
        """

    def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Write a file in the guest. Raises as ``run`` does."""


class Memory(Protocol):
    """Pauses guests, and saves and restores their RAM. Safe for use by several threads at once."""

    def pause(self, guests: Sequence[GuestName]) -> None:
        """Stop the virtual CPUs of all ``guests`` at the same time, and flush their disks."""

    def resume(self, guests: Sequence[GuestName]) -> None:
        """Resume all ``guests`` at the same time."""

    def save_memory(self, guest: GuestName, ram: Path, state: Path) -> MemoryImage:
        """Save the RAM and device state of a paused guest whose ``memory_file`` is ``ram``.

        The guest can only be stopped after this.
        """

    def copy_memory(
        self, guest: GuestName, origin: MemoryImage | None, new: MemoryImage
    ) -> Callable[[], MemoryImage]:
        """Copy the RAM and device state of a paused guest to ``new``; it may be resumed afterwards.

        ``origin``: the image it was restored from, None if it was booted. The result completes the
        copy and returns its image: call it once the guest is resumed. The RAM of the image is the
        origin's file, and its state has the pages that the guest changed; without an origin, or if
        its file is missing, the RAM is in the new file ``new.ram``.

        Raises NotFound, Conflict if the guest is not paused, was not restored from ``origin``, or
        a file of ``new`` exists, HostUnfit if its memory cannot be saved, for example for lack of
        space. The result raises HostUnfit too. Files of ``new`` that were written stay then.
        """

    def restore(self, guest: GuestSpec, memory: MemoryImage) -> None:
        """Start a guest from saved RAM, copy-on-write; it stays paused until ``resume``.

        Raises as ``Hypervisor.start`` does, HostUnfit if a file of ``memory`` is missing or has
        another size, RestoreFailed if their content cannot be loaded, NotReady on timeout. If it
        fails, there is no guest.
        """


class Live(Protocol):
    """Changes guests that exist, paused or not. Safe for use by several threads at once."""

    def forward(
        self, guest: GuestName, *, add: Sequence[Forward] = (), remove: Sequence[Forward] = ()
    ) -> None:
        """Forward further ports of the host to a guest, after ``remove`` lead to it no longer.

        Connections that are open stay open. Raises NotFound, PortTaken if a program, or another
        guest, has one of the ports, HostUnfit if it is refused for another reason.
        """

    def quit(self, guest: GuestName) -> None:
        """Have a guest end, as by ``stop`` with ``force``; returns at once.

        Its connections end first. Fine if it has ended. Who must be sure calls ``stop`` later: it
        may not end if this process ends at once. Raises HostUnfit.
        """


class Redirects(Protocol):
    """Redirects connections from other machines, and only those, to guests' own addresses.

    A guest's redirects start and end with it: they are the ``forwards`` of its ``Network``.
    """

    def ports(self) -> dict[int, GuestName]:
        """The ports redirected to guests of any installation; a bind to one of them succeeds.

        Raises HostUnfit, with the remedy, if no port can be redirected now.
        """


class Hypervisor(Protocol):
    """Starts and stops guests. Safe for use by several threads at once."""

    @property
    def memory(self) -> Memory | None:
        """Pauses and restores guests; None if the hypervisor cannot."""

    @property
    def live(self) -> Live | None:
        """Changes guests that exist; None if the hypervisor cannot, or forwards no ports."""

    @property
    def redirects(self) -> Redirects | None:
        """Redirects ports to guests; None if the hypervisor cannot, or forwards ports instead."""

    @property
    def run_as(self) -> tuple[int, int] | None:
        """The uid and gid that must own files to which guests write, None for this process's."""

    def capabilities(self) -> Capabilities:
        """The capabilities on this host; probed once. Raises HostUnfit if guests cannot run."""

    def fingerprint(self, shape: GuestShape) -> str:
        """A hash of all that a RAM image of such a guest depends on: versions, devices, CPU."""

    def start(self, guest: GuestSpec) -> None:
        """Boot a guest. Returns once it runs, before it is ready.

        If a disk write fails the guest is paused, so that no data is lost; when it is resumed, the
        write is retried.

        Raises Conflict if a guest of that name exists, PortTaken if another program has one
        of its ports, HostUnfit if it cannot be started for another reason.
        """

    def stop(
        self,
        guest: GuestName,
        *,
        force: bool,
        timeout: float = SHUTDOWN_SECONDS,
        halt: Callable[[], None] = never_halt,
    ) -> None:
        """Stop a guest: ``force``: power off, else request a shutdown; no error if it is absent.

        Raises NotReady if it has not shut down after ``timeout`` seconds, Conflict if the guest of
        that name is not ours, and the errors of ``halt``, which is called while it shuts down.
        """

    def guests(self) -> dict[GuestName, Guest]:
        """All guests that carry our tags; guests that ended are not listed."""

    def names(self) -> set[GuestName]:
        """The names of all guests on this host, also others'; cheaper than ``guests``."""

    def forget(self, guests: Sequence[GuestName]) -> None:
        """Remove files of ``guests`` that ended, such as logs, as far as permitted.

        Existing guests are not changed. Redirects to guests that ended are removed too, also of
        guests that are not in ``guests``.
        """

    def segment_free(self, segment: int) -> bool:
        """Whether ``segment`` is unused on this host now."""

    def channel(self, guest: GuestName) -> GuestChannel:
        """The channel into a guest; raises NotFound if it does not run."""

    def console_argv(self, guest: GuestName) -> list[str]:
        """The command that connects a terminal to the guest's console; raises NotFound."""

    def evidence(self, guest: GuestName) -> dict[str, str]:
        """What is kept of a guest, by names of files: its definition, and its messages.

        As far as it can be read; empty if nothing is known of it. Raises HostUnfit.
        """

    def processes(self) -> dict[GuestName, int]:
        """The process of this host in which each of our guests runs, as far as that is seen.

        Empty where the host has no ``/proc``, or a guest is no process. Raises HostUnfit.
        """


def memory_of(hypervisor: Hypervisor) -> Memory:
    """The ``memory`` of ``hypervisor``; raises HostUnfit, with the reason, if it has none."""
    if hypervisor.memory is None:
        raise HostUnfit(
            "guests can be neither paused nor restored from RAM here",
            details=[hypervisor.capabilities().why_cold],
        )
    return hypervisor.memory


def live_of(hypervisor: Hypervisor) -> Live:
    """The ``live`` of ``hypervisor``; raises HostUnfit if it has none."""
    if hypervisor.live is None:
        raise HostUnfit("ports cannot be moved between guests here")
    return hypervisor.live


class _Silent:
    def __init__(self, why: Unanswered) -> None:
        self._why = why

    def __getattr__(self, _: str) -> NoReturn:
        raise self._why


def silent(why: Unanswered) -> Hypervisor:
    """In place of a hypervisor that does not answer: raises ``why``, whatever it is asked."""
    return cast("Hypervisor", _Silent(why))
