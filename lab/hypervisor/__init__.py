"""What runs guests. ``Hypervisor`` is the seam; drivers: ``libvirt``, ``bhyve``, ``fake``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from lab.errors import HostUnfit
from lab.names import GuestName
from lab.progress import go_on
from lab.storage import Tags, VolumeFormat

GuestState = Literal["running", "paused", "stopped"]


@dataclass(frozen=True)
class Disk:
    """A disk of a guest. ``serial`` is how the guest finds it, at most 20 characters."""

    path: Path
    format: VolumeFormat
    serial: str
    readonly: bool = False


@dataclass(frozen=True)
class Forward:
    """A port of the host's loopback (or ``address``) that leads to a port of the guest.

    ``to``: the guest's own address, where the hypervisor has ``redirects``; else empty.
    """

    host_port: int
    guest_port: int
    address: str = "127.0.0.1"
    to: str = ""


@dataclass(frozen=True)
class Network:
    """A guest's two interfaces.

    The first (``outer_mac``) leads to the host and no further. Where the hypervisor forwards
    ports it is user-mode, and only ``forwards`` lead in; elsewhere the host reaches the guest
    at the guest's own address (``lab.guest.network.own_address``). The second
    (``inner_mac``) is on the lab's private segment; ``segment`` is a number that only this
    lab's guests share within the installation (its ``home`` tag). With ``uplink`` the first leads
    where the host's own network leads, by DHCP, and there is no second (``inner_mac`` is empty).
    """

    outer_mac: str
    inner_mac: str
    forwards: tuple[Forward, ...]
    segment: int
    uplink: bool = False


@dataclass(frozen=True)
class DirectBoot:
    """Boot this kernel without firmware."""

    kernel: Path
    initrd: Path
    cmdline: str


@dataclass(frozen=True)
class FirmwareBoot:
    """Boot from the first disk's EFI system partition."""


@dataclass(frozen=True)
class GuestShape:
    """What decides whether a RAM image fits: everything a guest's devices depend on."""

    memory: int
    cpus: int
    disks: int
    boot: Literal["direct", "firmware"]


@dataclass(frozen=True)
class GuestSpec:
    """A guest as it is to run. ``memory`` in bytes; ``disks[0]`` is the one it boots from.

    ``memory_file``: RAM is kept in this file, shared, so that ``save_memory`` need only
    write the device state; None for anonymous RAM. ``clock_offset`` in seconds: what is
    added to the host's UTC for the guest's hardware clock at start; a hypervisor without
    ``memory`` need not heed it, as no guest of its resumes from another's memory.
    """

    name: GuestName
    tags: Tags
    memory: int
    cpus: int
    disks: tuple[Disk, ...]
    network: Network
    boot: DirectBoot | FirmwareBoot
    console_log: Path
    memory_file: Path | None = None
    clock_offset: int = 0

    @property
    def shape(self) -> GuestShape:
        """The part that a RAM image depends on."""
        boot: Literal["direct", "firmware"] = (
            "direct" if isinstance(self.boot, DirectBoot) else "firmware"
        )
        return GuestShape(self.memory, self.cpus, len(self.disks), boot)


@dataclass(frozen=True)
class MemoryImage:
    """A guest's RAM (``ram``, ``size`` bytes) and device state, saved at one moment."""

    ram: Path
    state: Path
    size: int


@dataclass(frozen=True)
class Caution:
    """A risk for guests that can be started: ``topic``, ``what`` in one line, ``remedy``."""

    topic: str
    what: str
    remedy: str


@dataclass(frozen=True)
class Capabilities:
    """What this hypervisor can do here.

    ``facts`` is shown by ``lab doctor``, and what of it differs where RAM does not fit.
    ``why_emulated``: why guests are emulated, empty if they are not; ``remedy``: the remedy.
    ``why_cold``: why RAM can be neither captured nor restored, empty if it can: the hypervisor has
    a ``memory`` then. ``direct``: guests can boot a kernel without firmware.
    ``forwards``: ports of the host lead to guests; without it guests are reached at their own
    addresses.
    ``cautions`` are shown by ``lab doctor`` and ``lab up``. ``reads_ram``: guests are restored from
    RAM files that they may not write to.
    """

    name: str
    accelerator: Literal["kvm", "tcg", "bhyve", "fake"]
    why_cold: str = ""
    why_emulated: str = ""
    remedy: str = ""
    direct: bool = True
    forwards: bool = True
    reads_ram: bool = True
    facts: Mapping[str, str] = field(default_factory=dict)
    cautions: tuple[Caution, ...] = ()


@dataclass(frozen=True)
class Guest:
    """A guest as it exists. ``why``: what paused it, if a disk that could not be written did."""

    name: GuestName
    state: GuestState
    tags: Tags
    why: str = ""


class GuestChannel(Protocol):
    """A way into one running guest that needs no network."""

    def ping(self, timeout: float) -> bool:
        """True if the guest answers within ``timeout`` seconds; never raises for silence."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        halt: Callable[[], None] = go_on,
    ) -> bytes:
        """Run a program in the guest as root and return its stdout.

        Raises CommandFailed (non-zero exit; ``where`` names the guest), NotReady (no valid
        answer within ``timeout`` seconds), and what ``halt`` raises, which is called meanwhile.
        """

    def clock(self, *, timeout: float) -> float:
        """The guest's time now, in seconds since the epoch; raises NotReady."""

    def personalise(
        self, message: bytes, *, timeout: float, halt: Callable[[], None] = go_on
    ) -> int:
        """Hand ``message`` (see ``lab.guest.identity``) to the program that waits for it.

        Returns how many clients' sessions it has ended: by this message, and by those before it
        that failed. That program runs in every guest from boot on, so this starts nothing. Raises
        CommandFailed if it reports an error, NotReady without a valid answer in ``timeout``
        seconds, and what ``halt`` raises, which is called meanwhile.
        """

    def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Put a file into the guest. Raises as ``run`` does."""


class Memory(Protocol):
    """Pauses guests, and saves and restores their RAM. Safe for use by several threads at once."""

    def pause(self, guests: Sequence[GuestName]) -> None:
        """Stop the virtual CPUs of all ``guests`` together and flush their disks."""

    def resume(self, guests: Sequence[GuestName]) -> None:
        """Let all ``guests`` run again together."""

    def save_memory(self, guest: GuestName, ram: Path, state: Path) -> MemoryImage:
        """Save the RAM and device state of a paused guest whose ``memory_file`` is ``ram``.

        The guest can only be stopped after this.
        """

    def copy_memory(
        self, guest: GuestName, origin: MemoryImage | None, new: MemoryImage
    ) -> Callable[[], MemoryImage]:
        """Copy the RAM and device state of a paused guest to ``new``; it may run again afterwards.

        ``origin``: what it was restored from, None if it was booted. The result completes the copy
        and returns its image: call it once the guest runs again. The RAM of the image is the
        origin's file, and its state has what the guest changed; without an origin, or where its
        file is gone, the RAM is in the new file ``new.ram``.

        Raises NotFound, Conflict if the guest is not paused, was not restored from ``origin``, or
        a file of ``new`` exists, HostUnfit if its memory cannot be saved, such as for lack of
        space. The result raises HostUnfit too. What it made of ``new`` is left in place then.
        """

    def restore(self, guest: GuestSpec, memory: MemoryImage) -> None:
        """Bring a guest up from saved RAM, copy-on-write; it stays paused until ``resume``.

        Raises as ``Hypervisor.start`` does, HostUnfit if a file of ``memory`` is missing or of
        another size, RestoreFailed if what they hold cannot be loaded, NotReady if that takes too
        long; nothing is left when it fails.
        """


class Redirects(Protocol):
    """Redirects connections from other machines, and only those, to guests' own addresses.

    A guest's redirects start and end with it: they are the ``forwards`` of its ``Network``.
    """

    def ports(self) -> dict[int, GuestName]:
        """The ports that are redirected to guests, whoever's; nobody listens there: binds succeed.

        Raises HostUnfit, with the remedy, if no port can be redirected now.
        """


class Hypervisor(Protocol):
    """Starts and stops guests. Safe for use by several threads at once."""

    @property
    def memory(self) -> Memory | None:
        """What pauses guests and restores them; None where that cannot be done."""

    @property
    def redirects(self) -> Redirects | None:
        """What redirects ports to guests; None where guests' ports are forwarded, or neither."""

    @property
    def run_as(self) -> tuple[int, int] | None:
        """The uid and gid that must own the files guests write to, None if they are ours."""

    def capabilities(self) -> Capabilities:
        """What works on this host; probes once. Raises HostUnfit if nothing does."""

    def fingerprint(self, shape: GuestShape) -> str:
        """A hash of all that a RAM image of such a guest depends on (versions, devices, CPU)."""

    def start(self, guest: GuestSpec) -> None:
        """Boot. Returns once the guest runs, not once it is ready.

        Whenever a disk cannot be written the guest is paused, so that it loses nothing; it
        then tries again when it is resumed.

        Raises Conflict if a guest of that name exists, PortTaken if another program has one
        of its ports, HostUnfit if it cannot be started for another reason.
        """

    def stop(self, guest: GuestName, *, force: bool, timeout: float = 60.0) -> None:
        """End a guest: ``force`` at once, else by asking it to shut down; fine if absent.

        Raises NotReady if it has not shut down after ``timeout`` seconds, Conflict if a
        guest of that name exists that is not ours.
        """

    def guests(self) -> dict[GuestName, Guest]:
        """All guests that carry our tags, and no others; what ended is no guest any more."""

    def names(self) -> set[GuestName]:
        """The names that guests have here, ours and others'; cheaper than ``guests``."""

    def forget(self, guests: Sequence[GuestName]) -> None:
        """Remove what is kept of ``guests`` that ended, such as logs, where we may.

        Guests that exist are left alone, whoever's they are. What leads to guests that are no
        more goes too, whether they are named or not.
        """

    def segment_free(self, segment: int) -> bool:
        """Whether nobody uses ``segment`` here now; false where another would be met on it."""

    def channel(self, guest: GuestName) -> GuestChannel:
        """The way into a guest; raises NotFound if it does not run."""

    def console_argv(self, guest: GuestName) -> list[str]:
        """The command that connects a terminal to the guest's console; raises NotFound."""


def memory_of(hypervisor: Hypervisor) -> Memory:
    """The ``memory`` of ``hypervisor``; raises HostUnfit, with the reason, if it has none."""
    if hypervisor.memory is None:
        raise HostUnfit(
            "guests can be neither paused nor restored from RAM here",
            details=[hypervisor.capabilities().why_cold],
        )
    return hypervisor.memory
