"""QEMU's command line for a guest that runs the tests.

Whatever the guest writes goes to files that QEMU has already unlinked (``snapshot=on``), and
the kernel ends QEMU when its parent dies: nothing is left behind, however a run ends.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lab.hypervisor.libvirt.probe import no_kvm, tsc_khz
from lab.run import require, run
from lab.units import GIB
from testvm import overlay, wire

EMULATOR = "qemu-system-x86_64"
MEMORY = 3 * GIB
DISKS = ("/dev/vdb", "/dev/vdc")
"""The blank disks, as the guest sees them."""
GIVEN = "/dev/vdd"
"""The file that the guest was given to read, rounded up to whole sectors."""

_CMDLINE = "console=ttyS0 net.ifnames=0 mitigations=off audit=0 random.trust_cpu=on panic=-1"
# QEMU keeps translated code by its address: at one that is new in each process, all of a program
# is translated with each start of it (`zfs list` then takes three times as long). Debian's kernel
# clears all memory that it hands out to itself, too. And it gives up a counter that does not say
# of itself that it is the same on all CPUs: each look at the clock would go through QEMU.
_EMULATED = "norandmaps init_on_alloc=0 tsc=reliable"


class Load(Enum):
    """What runs in a guest: the tests alone, guests of its own, or those under its own KVM."""

    TESTS = "tests"
    GUESTS = "guests"
    KVM = "kvm"


@dataclass(frozen=True)
class Accelerator:
    """How fast a guest runs here. ``why`` tells why not faster; ``tsc_khz``: see its probe."""

    kvm: bool
    cpu: str
    why: str = ""
    tsc_khz: int = 0

    def options(self, load: Load) -> list[str]:
        """QEMU's options.

        Emulated, one CPU does the work of the tests in less time than two: processors that wait
        for each other (for each change of a page table, say) cost the host most of what they
        spare, and more where other guests want its cores. Processes still race each other: the
        kernel preempts them. Guests within it, each in a QEMU with threads, keep two CPUs busy.

        KVM within it needs one CPU: with two that run at once, a guest of QEMU 7.2's and 10.0's
        emulated SVM soon has its host's state in place of its own, and hangs. With the fifth level
        of page tables each fault of a nested guest costs more.
        """
        if self.kvm:
            return ["-accel", "kvm", "-smp", "2", "-cpu", self.cpu]
        if load is Load.GUESTS:
            return ["-accel", "tcg,thread=multi", "-smp", "2", "-cpu", self.cpu]
        fewer = ",la57=off" if load is Load.KVM else ""
        return ["-accel", "tcg", "-smp", "1", "-cpu", self.cpu + fewer]

    def cmdline(self, load: Load) -> str:
        """The kernel command line of the guest; ``guest/boot`` reads ``testvm.kvm``."""
        words = [_CMDLINE]
        if not self.kvm:
            words += [_EMULATED, *([f"tsc_early_khz={self.tsc_khz}"] if self.tsc_khz else [])]
        return " ".join([*words, *(["testvm.kvm"] if load is Load.KVM else [])])

    def __str__(self) -> str:
        return "KVM" if self.kvm else f"emulated: {self.why}"


def accelerator() -> Accelerator:
    """The best that truly works here; raises HostUnfit if QEMU is not installed."""
    emulator = require(EMULATOR, package="qemu-system-x86")
    # libvirt is not used here: QEMU runs as the current user, as in a session.
    why, _ = no_kvm(listed=True, session=True)
    if not why:
        return Accelerator(True, "host")
    cpu = emulated_cpu(run([emulator, "--version"], timeout=20).stdout)
    khz = tsc_khz(Path("/proc/cpuinfo").read_text(errors="replace"))
    return Accelerator(False, cpu, why, khz)


def emulated_cpu(version: str) -> str:
    """The CPU model for a QEMU that says ``version`` of itself."""
    found = re.search(r"version (\d+)", version)
    # Before 8 it mis-executes cmpxchg16b when it translates code: Linux 6 panics.
    broken = "" if found and int(found[1]) >= 8 else ",cx16=off"
    # With these Linux copies byte by byte, which is slow if it is emulated.
    return f"max{broken},erms=off,fsrm=off"


def _one_cpu() -> int:
    """The CPU of the host for a QEMU that emulates SVM; several get different ones.

    VMRUN and #VMEXIT change a flag among the pending interrupts without QEMU's lock (svm_helper.c)
    while its main loop raises others: on two CPUs at once one of the changes can be lost, and with
    it an interrupt. On one CPU no change can be within another.
    """
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[os.getpid() % len(cpus)]


@contextlib.contextmanager
def initrd(image: Path) -> Iterator[Path]:
    """The initial RAM disk of a boot: a path that is good for the block, but no file."""
    descriptor = os.memfd_create("initrd")
    with os.fdopen(descriptor, "wb") as file:
        file.write(overlay.initrd((image / "initrd").read_bytes()))
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")


def argv(
    image: Path,
    initrd: Path,
    accelerator: Accelerator,
    channel: str,
    *,
    console: str,
    memory: int,
    once: bool,
    load: Load,
    given: Path | None = None,
) -> list[str]:
    """The command that boots ``image``.

    ``channel`` and ``console`` are QEMU's words for what the agent and the serial console are
    connected to; ``memory`` in bytes; ``once``: the guest ends with its first conversation;
    ``given``: a file that it may read.
    """
    words = ["setpriv", "--pdeathsig", "KILL"]
    if load is Load.KVM and not accelerator.kvm:
        words += ["taskset", "--cpu-list", str(_one_cpu())]
    words += [EMULATOR, "-name", f"lab-test-{image.name}"]
    words += ["-machine", "pc", *accelerator.options(load)]
    words += ["-m", f"{memory >> 20}M"]
    words += ["-display", "none", "-no-user-config", "-nodefaults", "-no-reboot"]
    words += ["-kernel", str(image / "kernel"), "-initrd", str(initrd)]
    once_only = " testvm.once" if once else ""
    words += ["-append", f"{accelerator.cmdline(load)} loglevel=4{once_only}"]
    for name, serial in (("disk", "root"), ("blank", "pool0"), ("blank", "pool1")):
        words += ["-drive", _drive(image / f"{name}.raw", serial)]
        words += ["-device", f"virtio-blk-pci,drive={serial},serial={serial}"]
    if given:
        words += ["-drive", f"{_drive(given, 'given')},readonly=on"]
        words += ["-device", "virtio-blk-pci,drive=given,serial=given"]
    words += ["-device", "virtio-serial-pci", "-chardev", f"{channel},id=agent"]
    words += ["-device", f"virtserialport,chardev=agent,name={wire.PORT}"]
    words += ["-chardev", f"{console},id=console", "-serial", "chardev:console"]
    return [*words, "-device", "virtio-rng-pci"]


def escaped(path: Path) -> str:
    """``path`` within one of QEMU's lists of options."""
    return str(path).replace(",", ",,")


def _drive(path: Path, name: str) -> str:
    options = "format=raw,if=none,snapshot=on,cache=unsafe,discard=unmap"
    return f"file={escaped(path)},id={name},{options}"
