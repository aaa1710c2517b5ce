"""What is found out about a host: KVM that truly works, QEMU, and whom it runs as."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import HostUnfit

pytest.importorskip("libvirt", reason="no libvirt-python")

from lab.hypervisor.libvirt.probe import known_again, kvm_usable, probe, tsc_khz

INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu vme vmx sse2\n"
AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu svm sse2\n"
NESTED = "processor\t: 0\nmodel name\t: Xeon vmxless\nflags\t\t: fpu hypervisor sse2\n"
CAPABILITIES = """
<capabilities>
  <host>
    <secmodel><model>{other}</model><doi>0</doi></secmodel>
    <secmodel>
      <model>dac</model><doi>0</doi>
      <baselabel type='kvm'>+0:+0</baselabel>
      <baselabel type='qemu'>+64055:+106</baselabel>
    </secmodel>
  </host>
  <guest><arch name='i686'><emulator>/usr/bin/qemu-system-i386</emulator></arch></guest>
  <guest>
    <arch name='{arch}'>
      <emulator>/usr/bin/qemu-system-x86_64</emulator>
      <machine maxCpus='255'>microvm</machine>
      <machine canonical='pc-i440fx-7.2' maxCpus='255'>pc</machine>
    </arch>
  </guest>
</capabilities>
"""


def qemu(directory: Path, script: str) -> str:
    """A pretended QEMU."""
    path = directory / "qemu"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def usable(
    directory: Path, cpuinfo: str, script: str = "exit 0", *, device: bool = True
) -> tuple[bool, str]:
    (directory / "cpuinfo").write_text(cpuinfo)
    if device:
        (directory / "kvm").touch()
    return kvm_usable(
        qemu(directory, script),
        cpuinfo=directory / "cpuinfo",
        device=directory / "kvm",
        patience=0.5,
    )


@pytest.mark.parametrize("cpuinfo", [INTEL, AMD])
def test_kvm_that_works(tmp_path: Path, cpuinfo: str) -> None:
    assert usable(tmp_path, cpuinfo) == (True, "")


def test_qemu_is_told_to_quit(tmp_path: Path) -> None:
    """Protects the probe from waiting for a machine that was never meant to run."""
    script = 'read -r word; [ "$word" = quit ] && [ "$2" = none,accel=kvm ]'
    assert usable(tmp_path, INTEL, script) == (True, "")


def test_a_device_alone_is_no_kvm(tmp_path: Path) -> None:
    """Protects users of nested clouds: with such a /dev/kvm a guest hangs."""
    works, why = usable(tmp_path, NESTED, "echo must not be asked >&2; exit 1")
    assert not works
    assert "neither vmx nor svm" in why


def test_no_device(tmp_path: Path) -> None:
    works, why = usable(tmp_path, INTEL, device=False)
    assert not works
    assert f"{tmp_path}/kvm does not exist" in why


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "kvm").touch(mode=0o000)
    works, why = usable(tmp_path, INTEL)
    assert not works
    assert "no permission" in why


def test_qemu_s_own_reason_is_told(tmp_path: Path) -> None:
    works, why = usable(tmp_path, INTEL, "echo 'failed to initialize kvm: Busy' >&2; exit 1")
    assert not works
    assert "failed to initialize kvm: Busy" in why


def test_a_hanging_probe_ends(tmp_path: Path) -> None:
    began = time.monotonic()
    works, why = usable(tmp_path, INTEL, "sleep 60")
    assert not works
    assert "no result" in why
    assert time.monotonic() - began < 10


class Connection:
    """As much of a libvirt connection as the probe asks."""

    def __init__(
        self,
        *,
        qemu: int = 7_002_022,
        uri: str = "qemu:///system",
        other: str = "none",
        arch: str = "x86_64",
    ) -> None:
        self._qemu, self._uri = qemu, uri
        self._capabilities = CAPABILITIES.format(other=other, arch=arch)

    def getCapabilities(self) -> str:  # noqa: N802  libvirt's name
        return self._capabilities

    def getVersion(self) -> int:  # noqa: N802  libvirt's name
        return self._qemu

    def getLibVersion(self) -> int:  # noqa: N802  libvirt's name
        return 9_000_000

    def getURI(self) -> str:  # noqa: N802  libvirt's name
        return self._uri


def no_kvm(_: str) -> tuple[bool, str]:
    return False, "the test says so"


def good_kvm(_: str) -> tuple[bool, str]:
    return True, ""


def test_a_host_without_kvm() -> None:
    machine, facts = probe(Connection(), accelerator="auto", usable=no_kvm)
    assert (machine.accelerator, machine.cpu_mode) == ("tcg", "maximum")
    assert (machine.emulator, machine.machine) == ("/usr/bin/qemu-system-x86_64", "pc-i440fx-7.2")
    assert machine.run_as == (64055, 106)
    assert facts["accelerator"] == "TCG"
    assert machine.why_emulated == "the test says so"
    assert facts["libvirt"] == "9.0.0 at qemu:///system"
    assert facts["qemu"].startswith("7.2.22 ")


@pytest.mark.parametrize(
    ("version", "accelerator", "without"),
    [
        (7_002_022, "auto", ("cx16",)),
        (7_002_022, "tcg", ("cx16",)),
        (10_000_002, "tcg", ()),
    ],
)
def test_old_qemu_mis_executes_cmpxchg16b(
    version: int, accelerator: str, without: tuple[str, ...]
) -> None:
    """Protects guests from a panic: only emulation by QEMU before 8 is wrong."""
    machine, _ = probe(Connection(qemu=version), accelerator=accelerator, usable=no_kvm)
    assert machine.cpu_without == without


def test_a_host_with_kvm() -> None:
    machine, facts = probe(Connection(), accelerator="auto", usable=good_kvm)
    assert (machine.accelerator, machine.cpu_mode) == ("kvm", "host-passthrough")
    assert machine.cpu_without == ()
    assert facts["accelerator"] == "KVM"
    assert machine.why_emulated == ""
    assert "counter" not in facts


def test_kvm_can_be_declined_and_insisted_on() -> None:
    machine, facts = probe(Connection(), accelerator="tcg", usable=good_kvm)
    assert machine.accelerator == "tcg"
    assert facts["accelerator"] == "TCG"
    assert machine.why_emulated == "tcg was asked for"
    with pytest.raises(HostUnfit, match="the test says so"):
        probe(Connection(), accelerator="kvm", usable=no_kvm)


def test_a_session_runs_as_the_user() -> None:
    machine, _ = probe(Connection(uri="qemu:///session"), accelerator="auto", usable=no_kvm)
    assert machine.run_as is None


@pytest.mark.parametrize("other", ["apparmor", "selinux"])
def test_apparmor_is_noticed(other: str) -> None:
    machine, _ = probe(Connection(other=other), accelerator="auto", usable=no_kvm)
    assert machine.apparmor == (other == "apparmor")


def test_a_host_without_qemu() -> None:
    with pytest.raises(HostUnfit) as unfit:
        probe(Connection(arch="aarch64"), accelerator="auto", usable=no_kvm)
    assert "qemu-system-x86" in unfit.value.hint


@pytest.mark.parametrize(
    ("flags", "mhz", "khz"),
    [
        ("hypervisor constant_tsc", "2596.136", 2_600_000),
        ("hypervisor constant_tsc", "999.999", 1_000_000),
        ("constant_tsc", "2596.136", 0),
        ("hypervisor", "2596.136", 0),
        ("hypervisor constant_tsc aperfmperf", "1198.402", 0),
        ("hypervisor constant_tsc", "", 0),
        ("hypervisor constant_tsc", "unknown", 0),
    ],
)
def test_the_rate_of_the_counter_is_told_where_it_is_known(flags: str, mhz: str, khz: int) -> None:
    """Protects clocks of emulated guests on busy hosts."""
    assert tsc_khz(_cpuinfo("AMD EPYC", flags, mhz)) == khz


def test_an_emulated_host_passes_its_own_counter_on() -> None:
    """Protects the RAM of templates: it goes from a host to one that this host emulates."""
    assert tsc_khz(_cpuinfo("QEMU TCG CPU version 2.5+", "hypervisor", "2600.000")) == 2_600_000


def test_a_counter_measured_a_little_differently_is_the_same_one() -> None:
    """Protects templates on emulated hosts: after a reboot their RAM is of use as before."""
    machine, _ = probe(Connection(), accelerator="tcg", usable=no_kvm)
    rates = (2_590_000, 2_600_000, 2_610_000)
    assert len({known_again(replace(machine, tsc_khz=rate)) for rate in rates}) == 1
    assert known_again(replace(machine, tsc_khz=3_000_000)).tsc_khz == 3_000_000
    assert known_again(replace(machine, tsc_khz=0)).tsc_khz == 0


def _cpuinfo(model: str, flags: str, mhz: str) -> str:
    """/proc/cpuinfo of two processors, as far as it matters."""
    lines = {"model name\t": model, "cpu MHz\t\t": mhz, "flags\t\t": f"fpu {flags}"}
    text = "".join(f"{name}: {value}\n" for name, value in lines.items())
    return f"processor\t: 0\n{text}\nprocessor\t: 1\n{text}\n"


def test_only_emulated_guests_are_told_the_rate() -> None:
    """Protects templates of hosts with KVM from depending on it."""
    machine, _ = probe(Connection(), accelerator="auto", usable=good_kvm)
    assert machine.tsc_khz == 0
