"""Probes the capabilities of this host's libvirt and QEMU."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from lab.errors import HostUnfit
from lab.hypervisor.libvirt.domain import Machine
from lab.hypervisor.libvirt.session import IDLE, outside_of_group

CAPTURES = "tested on QEMU 7.2 and 10.0, and the streams of 11.1"
"""Where captures with RAM were tested: tests/contract/test_migration_stream.py, and the tests that
``make test-all`` runs on the QEMU of another release."""
_TESTED = range(7, 12)
"""Major versions of QEMU from the oldest to the newest of them."""
NO_FLAG = "the processor offers no virtualisation (neither vmx nor svm)"
_KNOWS_FSRS = 11_003_000
"""A version of libvirt that knows this feature's name; older ones may refuse a guest with it."""


def no_kvm(
    *,
    listed: bool,
    session: bool,
    outside: int = 0,
    cpuinfo: Path = Path("/proc/cpuinfo"),
    device: Path = Path("/dev/kvm"),
) -> tuple[str, str]:
    """Why guests cannot use KVM, and the remedy; both empty if they can.

    ``/dev/kvm`` may exist although the processor offers no virtualisation: a guest hangs then. So
    the processor's flag is checked, as ``kvm-ok`` does. Whether QEMU can use the device is decided
    by libvirt (``listed``: its capabilities have domains of type kvm): it probes QEMU as the user
    that guests run as, once, and again when the device, the kernel or the microcode has changed
    (virQEMUCapsKVMUsable, virQEMUCapsIsValid in src/qemu/qemu_capabilities.c). That user may differ
    from this process's, unless it is a ``session``. Its libvirtd keeps the groups that the user had
    when it was started; ``outside``: its process, if it is not in the device's group.
    """
    flags = cpuinfo.read_text(errors="replace").split()
    if "vmx" not in flags and "svm" not in flags:
        return NO_FLAG, (
            "enable virtualisation in the firmware; in a virtual machine, nested virtualisation"
            " on its host (in clouds a setting, or an instance type that has it)"
        )
    if not device.exists():
        return f"{device} does not exist", (
            "load the module kvm_intel or kvm_amd; in a container, pass the device to it"
        )
    if session and not os.access(device, os.R_OK | os.W_OK):
        return f"no permission on {device}", (
            "join the group that owns it (`sudo usermod -aG kvm $USER`) and log in again"
        )
    if not listed and outside:
        return f"your libvirtd (process {outside}) is not in the group that owns {device}", (
            f"it was started before you joined the group: stop your labs and `kill {outside}`, the"
            f" next command starts it again; without guests it ends by itself after {IDLE} s"
        )
    if not listed:
        return f"libvirt reports that its QEMU cannot use {device}", (
            f"chgrp kvm {device} && chmod 660 {device}; if that is set already, another hypervisor"
            " may use it"
        )
    return "", ""


def host_cpu(
    *,
    cpuinfo: Path = Path("/proc/cpuinfo"),
    release: str = "",
    modules: Path = Path("/sys/module"),
) -> dict[str, str]:
    """The properties of this host that the RAM of a guest depends on under KVM, by name.

    Apart from the processor that is the kernel: its code and its parameter ``nested`` decide which
    registers KVM accepts. QEMU aborts if one of them is refused (kvm_buf_set_msrs in
    target/i386/kvm/kvm.c). libvirt discards its cached capabilities when these change.
    """
    lines = cpuinfo.read_text(errors="replace").split("\n\n", 1)[0].splitlines()
    values = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    nested = [
        f"{module} nested={path.read_text().strip()}"
        for module in ("kvm_intel", "kvm_amd")
        if (path := modules / module / "parameters/nested").exists()
    ]
    microcode = values.get("microcode", "unknown")
    return {
        "kernel": ", ".join([release or platform.release(), *nested]),
        "processor": f"{values.get('model name', 'unknown')}, microcode {microcode}",
        "processor's features": values.get("flags", ""),
    }


def tsc_khz(cpuinfo: str) -> int:
    """The rate of the time stamp counter in kHz, from /proc/cpuinfo; 0 if it is not known.

    An emulated guest has the host's counter. It would measure the rate against a timer that is
    emulated as well: on a busy host the result was an eighth of the real rate, and the guest's
    clock eight times too fast, until Linux marked the counter unstable. Linux refines a given rate
    within one per cent, so this is rounded to 10 MHz.

    Linux prints the rate as ``cpu MHz`` where it can see no changes of the processor's clock, as in
    a virtual machine. Source: show_cpuinfo and arch_freq_get_on_cpu in arch/x86/kernel/cpu. A
    machine that is emulated itself has its host's counter as well, without the flag for it.
    """
    values = dict(re.findall(r"^(flags|cpu MHz|model name)\s*: (.+)$", cpuinfo, re.MULTILINE))
    flags = set(values.get("flags", "").split())
    constant = "constant_tsc" in flags or values.get("model name", "").startswith("QEMU TCG CPU")
    steady = constant and "hypervisor" in flags and "aperfmperf" not in flags
    match = re.fullmatch(r"\d{3,5}\.\d+", values.get("cpu MHz", "")) if steady else None
    return round(float(match[0]) / 10) * 10_000 if match else 0


def describe(connection: Any) -> ET.Element:
    """The capabilities of this host, as libvirt describes them; takes it 3 ms."""
    return ET.fromstring(connection.getCapabilities())  # noqa: S314  libvirt's own XML


def run_as(connection: Any, capabilities: ET.Element) -> tuple[int, int] | None:
    """The uid and gid of guests, None for this process's."""
    if not _of_system(connection):
        return None
    for label in capabilities.findall("host/secmodel[model='dac']/baselabel"):
        if label.get("type") == "qemu" and label.text:
            uid, _, gid = label.text.replace("+", "").partition(":")
            return int(uid), int(gid)
    return None


def probe(
    connection: Any,
    capabilities: ET.Element,
    *,
    accelerator: str,
    cpuinfo: Path = Path("/proc/cpuinfo"),
    device: Path = Path("/dev/kvm"),
) -> tuple[Machine, dict[str, str]]:
    """The virtual machine that guests get on this host, and facts to show; starts no QEMU.

    ``accelerator``: ``auto``, ``kvm`` or ``tcg``. Raises HostUnfit if QEMU is missing or
    the requested accelerator does not work.
    """
    arch = capabilities.find("guest/arch[@name='x86_64']")
    emulator = arch.findtext("emulator") if arch is not None else None
    if arch is None or not emulator:
        raise HostUnfit(
            "libvirt finds no QEMU for x86_64", hint="install the package qemu-system-x86"
        )
    system = _of_system(connection)
    listed = arch.find("domain[@type='kvm']") is not None
    outside = 0 if system or listed else outside_of_group(device)
    why, remedy = no_kvm(
        listed=listed, session=not system, outside=outside, cpuinfo=cpuinfo, device=device
    )
    if accelerator == "kvm" and why:
        hint = f"{remedy}; or set the accelerator to auto"
        raise HostUnfit(f"KVM is required, but {why}", hint=hint)
    use_kvm = not why and accelerator != "tcg"
    version = connection.getVersion()
    models = {model.text for model in capabilities.findall("host/secmodel/model")}
    machine = Machine(
        emulator=emulator,
        machine=_machine_type(arch),
        accelerator="kvm" if use_kvm else "tcg",
        cpu_mode="host-passthrough" if use_kvm else "maximum",
        cpu_without=_hidden(version, connection.getLibVersion(), kvm=use_kvm),
        run_as=run_as(connection, capabilities),
        apparmor="apparmor" in models,
        firmware=_firmware(),
        tsc_khz=0 if use_kvm else tsc_khz(cpuinfo.read_text(errors="replace")),
        why_emulated="" if use_kvm else why or "the accelerator is set to tcg",
        remedy="" if use_kvm else remedy or "set the accelerator to auto (LAB_ACCELERATOR)",
        reads_ram=version >= 8_002_000,
        boots_on_one=version < 8_001_000 and not use_kvm,
    )
    facts = {
        "libvirt": f"{_dotted(connection.getLibVersion())} at {connection.getURI()}",
        "qemu": f"{_dotted(version)} ({emulator}, {machine.machine})",
        "accelerator": "KVM" if use_kvm else "TCG",
    }
    if machine.tsc_khz:
        facts["counter"] = f"about {depended_on(machine).tsc_khz // 1000} MHz"
    if use_kvm:
        found = host_cpu(cpuinfo=cpuinfo)
        facts |= {name: found[name] for name in ("kernel", "processor")}
    return machine, facts


def captures(version: int) -> str:
    """What ``lab doctor`` says of captures with RAM on a version of QEMU, as libvirt has it."""
    return CAPTURES if version // 1_000_000 in _TESTED else f"{CAPTURES}; not of this version"


def depended_on(machine: Machine) -> Machine:
    """The properties of the machine that RAM depends on, with values that survive a reboot.

    Path, user and confinement of QEMU are not among them: they differ between hosts on which the
    same RAM can be restored. A host that is emulated itself measures the frequency of its time
    stamp counter at each boot, with a small error (Linux accepts 0.05 per cent:
    quick_pit_calibrate in arch/x86/kernel/tsc.c), so the rate is rounded to 50 MHz.
    """
    rate = round(machine.tsc_khz / 50_000) * 50_000
    return replace(machine, tsc_khz=rate, emulator="", run_as=None, apparmor=False, sockets=None)


def _hidden(qemu: int, libvirt: int, *, kvm: bool) -> tuple[str, ...]:
    """CPU features that are hidden from guests, by the versions of QEMU and libvirt."""
    if kvm:
        # No guest starts guests. With these shown QEMU writes registers that describe nesting,
        # and aborts where a host that is a guest itself refuses them (kvm_init_msrs).
        return ("vmx", "svm")
    # QEMU before 8 mis-executes cmpxchg16b when it translates code: Linux 6 panics.
    broken = () if qemu >= 8_000_000 else ("cx16",)
    # TCG executes ``rep movsb`` and ``rep stosb`` a byte at a time. With these features Linux and
    # the C library prefer them for copies; without, what they use moves 8 bytes and more: data go
    # through a pipe three times as fast.
    slow = ("erms", "fsrm", "fsrs") if libvirt >= _KNOWS_FSRS else ("erms", "fsrm")
    return broken + slow


def _machine_type(arch: ET.Element) -> str:
    for element in arch.findall("machine"):
        if element.text == "pc":
            return element.get("canonical", "pc")
    raise HostUnfit("QEMU has no machine type pc", hint="install the package qemu-system-x86")


def _of_system(connection: Any) -> bool:
    uri: str = connection.getURI()
    return uri.endswith("/system")


def _firmware() -> str:
    for path in ("/usr/share/ovmf/OVMF.fd", "/usr/share/OVMF/OVMF.fd", "/usr/share/qemu/OVMF.fd"):
        if Path(path).exists():
            return path
    return ""


def _dotted(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"
