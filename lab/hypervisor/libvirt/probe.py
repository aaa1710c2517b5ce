"""What this host's libvirt and QEMU can do: asked for, never guessed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from lab.errors import CommandFailed, HostUnfit
from lab.hypervisor.libvirt.domain import Machine
from lab.run import run

KVM_PROBE_SECONDS = 10.0


def kvm_usable(
    emulator: str,
    *,
    cpuinfo: Path = Path("/proc/cpuinfo"),
    device: Path = Path("/dev/kvm"),
    patience: float = KVM_PROBE_SECONDS,
) -> tuple[bool, str]:
    """Whether KVM truly works, and why not; the answer takes at most ``patience`` seconds.

    ``/dev/kvm`` may exist where the processor offers no virtualisation: a guest hangs then.
    So this asks for the processor's flag (as ``kvm-ok`` does), then for access, then lets
    QEMU open it, for a bounded time.
    """
    flags = cpuinfo.read_text(errors="replace").split()
    if "vmx" not in flags and "svm" not in flags:
        return False, "the processor offers no virtualisation (neither vmx nor svm)"
    if not device.exists():
        return False, f"{device} does not exist (is the kvm module loaded?)"
    if not os.access(device, os.R_OK | os.W_OK):
        return False, f"no permission on {device} (is the user in the group kvm?)"
    argv = [emulator, "-machine", "none,accel=kvm", "-nodefaults", "-display", "none"]
    try:
        run([*argv, "-S", "-monitor", "stdio"], timeout=patience, stdin=b"quit\n")
    except CommandFailed as failed:
        return False, f"QEMU cannot use KVM: {(failed.details or (failed.what,))[-1]}"
    return True, ""


def tsc_khz(cpuinfo: str) -> int:
    """How fast the time stamp counter counts in kHz, from /proc/cpuinfo; 0 if that does not tell.

    An emulated guest has the host's counter. It would measure its rate against a timer that is
    emulated as well: on a busy host the measure was eight times too small, and the guest's clock as
    many times too fast, until Linux gave the counter up. Linux refines what it is told, within one
    per cent, so this is rounded to 10 MHz.

    Linux prints the rate as ``cpu MHz`` where it can see no changes of the processor's clock, as in
    a virtual machine. Source: show_cpuinfo and arch_freq_get_on_cpu in arch/x86/kernel/cpu. A
    machine that is emulated itself has its host's counter as well, without the flag that says so.
    """
    values = dict(re.findall(r"^(flags|cpu MHz|model name)\s*: (.+)$", cpuinfo, re.MULTILINE))
    flags = set(values.get("flags", "").split())
    constant = "constant_tsc" in flags or values.get("model name", "").startswith("QEMU TCG CPU")
    steady = constant and "hypervisor" in flags and "aperfmperf" not in flags
    match = re.fullmatch(r"\d{3,5}\.\d+", values.get("cpu MHz", "")) if steady else None
    return round(float(match[0]) / 10) * 10_000 if match else 0


def probe(
    connection: Any,
    *,
    accelerator: str,
    usable: Callable[[str], tuple[bool, str]] = kvm_usable,
) -> tuple[Machine, dict[str, str]]:
    """What guests are made of here, and facts for people.

    ``accelerator``: ``auto``, ``kvm`` or ``tcg``. ``usable`` tells whether KVM works with an
    emulator, and why not. Raises HostUnfit if QEMU is missing or
    the accelerator asked for does not work.
    """
    capabilities = ET.fromstring(connection.getCapabilities())  # noqa: S314  libvirt's own XML
    arch = capabilities.find("guest/arch[@name='x86_64']")
    emulator = arch.findtext("emulator") if arch is not None else None
    if arch is None or not emulator:
        raise HostUnfit(
            "libvirt finds no QEMU for x86_64", hint="install the package qemu-system-x86"
        )
    kvm, why = usable(emulator)
    if accelerator == "kvm" and not kvm:
        raise HostUnfit(f"KVM was asked for, but {why}", hint="leave the accelerator on auto")
    use_kvm = kvm and accelerator != "tcg"
    version = connection.getVersion()
    models = {model.findtext("model"): model for model in capabilities.findall("host/secmodel")}
    machine = Machine(
        emulator=emulator,
        machine=_machine_type(arch),
        accelerator="kvm" if use_kvm else "tcg",
        cpu_mode="host-passthrough" if use_kvm else "maximum",
        # QEMU before 8 mis-executes cmpxchg16b when it translates code: Linux 6 panics.
        cpu_without=() if use_kvm or version >= 8_000_000 else ("cx16",),
        run_as=_run_as(models.get("dac")) if connection.getURI().endswith("/system") else None,
        apparmor="apparmor" in models,
        firmware=_firmware(),
        tsc_khz=0 if use_kvm else tsc_khz(Path("/proc/cpuinfo").read_text(errors="replace")),
        why_emulated="" if use_kvm else why or "tcg was asked for",
    )
    facts = {
        "libvirt": f"{_dotted(connection.getLibVersion())} at {connection.getURI()}",
        "qemu": f"{_dotted(version)} ({emulator}, {machine.machine})",
        "accelerator": "KVM" if use_kvm else "TCG",
    }
    if machine.tsc_khz:
        facts["counter"] = f"about {known_again(machine).tsc_khz // 1000} MHz"
    return machine, facts


def known_again(machine: Machine) -> Machine:
    """The machine as it will be found after the next boot of this host as well.

    Templates depend on it. A host that is emulated itself measures how fast its counter counts,
    each time a little differently (Linux lets 0.05 per cent pass: quick_pit_calibrate in
    arch/x86/kernel/tsc.c), so the rate is rounded to 50 MHz.
    """
    return replace(machine, tsc_khz=round(machine.tsc_khz / 50_000) * 50_000, sockets=None)


def _machine_type(arch: ET.Element) -> str:
    for element in arch.findall("machine"):
        if element.text == "pc":
            return element.get("canonical", "pc")
    raise HostUnfit("QEMU has no machine type pc", hint="install the package qemu-system-x86")


def _run_as(dac: ET.Element | None) -> tuple[int, int] | None:
    if dac is None:
        return None
    for label in dac.findall("baselabel"):
        if label.get("type") == "qemu" and label.text:
            uid, _, gid = label.text.replace("+", "").partition(":")
            return int(uid), int(gid)
    return None


def _firmware() -> str:
    for path in ("/usr/share/ovmf/OVMF.fd", "/usr/share/OVMF/OVMF.fd", "/usr/share/qemu/OVMF.fd"):
        if Path(path).exists():
            return path
    return ""


def _dotted(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"
