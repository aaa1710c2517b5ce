"""What is found out about a host: KVM that truly works, QEMU, and whom it runs as."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.errors import HostUnfit

pytest.importorskip("libvirt", reason="no libvirt-python")

from lab.hypervisor import Capabilities
from lab.hypervisor.libvirt.domain import Machine
from lab.hypervisor.libvirt.probe import (
    NO_FLAG,
    captures,
    depended_on,
    describe,
    host_cpu,
    no_kvm,
    probe,
    tsc_khz,
)
from lab.hypervisor.libvirt.session import Login, outside_of_group
from lab.lifecycle.host.doctor import of_hypervisor
from lab.views.host import Finding

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
      <domain type='qemu'/>{kvm}
    </arch>
  </guest>
</capabilities>
"""


def flags(directory: Path, cpuinfo: str = INTEL, *, device: bool = True) -> dict[str, Any]:
    """Files that say what the kernel says of a host."""
    directory.mkdir(exist_ok=True)
    (directory / "cpuinfo").write_text(cpuinfo)
    if device:
        (directory / "kvm").touch()
    return {"cpuinfo": directory / "cpuinfo", "device": directory / "kvm"}


@pytest.mark.parametrize("cpuinfo", [INTEL, AMD])
@pytest.mark.parametrize("session", [False, True])
def test_kvm_that_works(tmp_path: Path, cpuinfo: str, session: bool) -> None:
    found = no_kvm(listed=True, session=session, **flags(tmp_path, cpuinfo))
    assert found == ("", "")


def test_a_device_alone_is_no_kvm(tmp_path: Path) -> None:
    """Protects users of nested clouds: with such a /dev/kvm a guest hangs, though it is listed."""
    why, remedy = no_kvm(listed=True, session=False, **flags(tmp_path, NESTED))
    assert "neither vmx nor svm" in why
    assert "nested virtualisation" in remedy


def test_no_device(tmp_path: Path) -> None:
    why, remedy = no_kvm(listed=True, session=False, **flags(tmp_path, device=False))
    assert f"{tmp_path}/kvm does not exist" in why
    assert "container" in remedy


def test_no_permission(tmp_path: Path) -> None:
    """Protects users without the group kvm, whose guests run as they do."""
    cannot = Path("/proc/sys/kernel/osrelease")
    if os.access(cannot, os.W_OK):
        pytest.skip("this kernel lets its release be changed")
    there = flags(tmp_path) | {"device": cannot}
    why, remedy = no_kvm(listed=True, session=True, **there)
    assert why == f"no permission on {cannot}"
    assert "usermod -aG kvm" in remedy
    # The system's libvirt runs guests as another user: our own permissions do not matter.
    assert no_kvm(listed=True, session=False, **there) == ("", "")


def test_libvirt_knows_better(tmp_path: Path) -> None:
    """Protects from starts that all fail: root can open the device, QEMU's user cannot."""
    there = flags(tmp_path)
    why, remedy = no_kvm(listed=False, session=False, **there)
    assert why == f"libvirt reports that its QEMU cannot use {there['device']}"
    assert f"chgrp kvm {there['device']}" in remedy
    machine, _ = probed(Connection(listed=False), accelerator="auto", **there)
    assert (machine.accelerator, machine.why_emulated) == ("tcg", why)
    with pytest.raises(HostUnfit, match="KVM is required, but libvirt reports") as unfit:
        probed(Connection(listed=False), accelerator="kvm", **there)
    assert remedy in unfit.value.hint


def test_a_daemon_of_before_the_group_was_joined(tmp_path: Path, short: Path) -> None:
    """Protects users who did what doctor said: their libvirtd has the groups of its start."""
    there = flags(tmp_path)
    why, remedy = no_kvm(listed=False, session=True, outside=4711, **there)
    assert why == f"your libvirtd (process 4711) is not in the group that owns {there['device']}"
    assert "`kill 4711`" in remedy
    assert "chgrp" not in remedy

    login = Login(12345, {"XDG_RUNTIME_DIR": str(short)}, short / "run")
    assert outside_of_group(there["device"], login) == 0, "none runs"
    login.socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(login.socket))
        listener.listen()
        assert outside_of_group(there["device"], login) == 0
        if os.geteuid() != 0:
            pytest.skip("only root gives files to other groups")
        os.chown(there["device"], -1, 54321)
        assert outside_of_group(there["device"], login) == os.getpid()


@pytest.mark.parametrize(("version", "tested"), [(7_002_022, True), (12_000_000, False)])
def test_doctor_says_on_which_qemu_captures_were_tested(version: int, tested: bool) -> None:
    text = captures(version)
    assert ("not of this version" in text) == (not tested)
    assert Finding("captures", "ok", text) in of_hypervisor(
        Capabilities("libvirt", "tcg", captures=text)
    )


class Connection:
    """As much of a libvirt connection as the probe asks."""

    def __init__(
        self,
        *,
        qemu: int = 7_002_022,
        libvirt: int = 9_000_000,
        uri: str = "qemu:///system",
        other: str = "none",
        arch: str = "x86_64",
        listed: bool = True,
    ) -> None:
        self._qemu, self._libvirt, self._uri = qemu, libvirt, uri
        kvm = "<domain type='kvm'/>" if listed else ""
        self._capabilities = CAPABILITIES.format(other=other, arch=arch, kvm=kvm)

    def getCapabilities(self) -> str:  # noqa: N802  libvirt's name
        return self._capabilities

    def getVersion(self) -> int:  # noqa: N802  libvirt's name
        return self._qemu

    def getLibVersion(self) -> int:  # noqa: N802  libvirt's name
        return self._libvirt

    def getURI(self) -> str:  # noqa: N802  libvirt's name
        return self._uri


def probed(connection: Connection, **how: Any) -> tuple[Machine, dict[str, str]]:
    """What is found through a connection."""
    return probe(connection, describe(connection), **how)


@pytest.fixture
def bad(tmp_path: Path) -> dict[str, Path]:
    """A host without KVM."""
    return flags(tmp_path / "bad", NESTED)


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Path]:
    """A host with KVM."""
    return flags(tmp_path / "good", INTEL)


def test_a_host_without_kvm(bad: dict[str, Path]) -> None:
    machine, facts = probed(Connection(), accelerator="auto", **bad)
    assert (machine.accelerator, machine.cpu_mode) == ("tcg", "maximum")
    assert (machine.emulator, machine.machine) == ("/usr/bin/qemu-system-x86_64", "pc-i440fx-7.2")
    assert machine.run_as == (64055, 106)
    assert facts["accelerator"] == "TCG"
    assert machine.why_emulated == NO_FLAG
    assert "nested" in machine.remedy
    assert facts["libvirt"] == "9.0.0 at qemu:///system"
    assert facts["qemu"].startswith("7.2.22 ")


@pytest.mark.parametrize(
    ("version", "accelerator", "hidden"),
    [(7_002_022, "auto", True), (7_002_022, "tcg", True), (10_000_002, "tcg", False)],
)
def test_old_qemu_mis_executes_cmpxchg16b(
    version: int, accelerator: str, hidden: bool, bad: dict[str, Path]
) -> None:
    """Protects guests from a panic: only emulation by QEMU before 8 is wrong."""
    machine, _ = probed(Connection(qemu=version), accelerator=accelerator, **bad)
    assert ("cx16" in machine.cpu_without) is hidden


@pytest.mark.parametrize(
    ("libvirt", "without"),
    [(9_000_000, {"erms", "fsrm"}), (11_003_000, {"erms", "fsrm", "fsrs"})],
)
def test_emulated_guests_do_not_copy_byte_by_byte(
    libvirt: int, without: set[str], bad: dict[str, Path]
) -> None:
    """Protects speed under TCG, and hosts whose libvirt refuses a name that it does not know."""
    machine, _ = probed(Connection(libvirt=libvirt), accelerator="auto", **bad)
    assert set(machine.cpu_without) - {"cx16"} == without


@pytest.mark.parametrize(
    ("version", "reads"), [(7_002_022, False), (8_001_005, False), (8_002_000, True)]
)
def test_qemu_that_restores_from_ram_it_may_only_read(
    version: int, reads: bool, bad: dict[str, Path]
) -> None:
    """Protects clones under older QEMU, which opens the file for writing or does not start."""
    machine, _ = probed(Connection(qemu=version), accelerator="auto", **bad)
    assert machine.reads_ram is reads


@pytest.mark.parametrize(("version", "on_one"), [(7_002_022, True), (8_001_000, False)])
def test_qemu_that_may_execute_code_of_before_a_change(
    version: int, on_one: bool, bad: dict[str, Path], good: dict[str, Path]
) -> None:
    """Protects emulated guests of several processors from a crash of their kernel at boot."""
    machine, _ = probed(Connection(qemu=version), accelerator="auto", **bad)
    assert machine.boots_on_one is on_one
    machine, _ = probed(Connection(qemu=version), accelerator="auto", **good)
    assert not machine.boots_on_one


def test_a_host_with_kvm(good: dict[str, Path]) -> None:
    machine, facts = probed(Connection(), accelerator="auto", **good)
    assert (machine.accelerator, machine.cpu_mode) == ("kvm", "host-passthrough")
    assert machine.cpu_without == ("vmx", "svm"), "hosts that are guests refuse their registers"
    assert facts["accelerator"] == "KVM"
    assert facts["kernel"].startswith(platform.release())
    assert facts["processor"] == "unknown, microcode unknown"
    assert machine.why_emulated == ""
    assert "counter" not in facts


def test_kvm_can_be_declined_and_required(bad: dict[str, Path], good: dict[str, Path]) -> None:
    machine, facts = probed(Connection(), accelerator="tcg", **good)
    assert machine.accelerator == "tcg"
    assert facts["accelerator"] == "TCG"
    assert machine.why_emulated == "the accelerator is set to tcg"
    with pytest.raises(HostUnfit, match="neither vmx nor svm"):
        probed(Connection(), accelerator="kvm", **bad)


def test_a_session_runs_as_the_user(bad: dict[str, Path]) -> None:
    machine, _ = probed(Connection(uri="qemu:///session"), accelerator="auto", **bad)
    assert machine.run_as is None


@pytest.mark.parametrize("other", ["apparmor", "selinux"])
def test_apparmor_is_noticed(other: str, bad: dict[str, Path]) -> None:
    machine, _ = probed(Connection(other=other), accelerator="auto", **bad)
    assert machine.apparmor == (other == "apparmor")


def test_a_host_without_qemu(bad: dict[str, Path]) -> None:
    with pytest.raises(HostUnfit) as unfit:
        probed(Connection(arch="aarch64"), accelerator="auto", **bad)
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
def test_the_rate_of_the_counter_is_given_where_it_is_known(flags: str, mhz: str, khz: int) -> None:
    """Protects clocks of emulated guests on busy hosts."""
    assert tsc_khz(_cpuinfo("AMD EPYC", flags, mhz)) == khz


def test_an_emulated_host_passes_its_own_counter_on() -> None:
    """Protects the RAM of templates: it goes from a host to one that this host emulates."""
    assert tsc_khz(_cpuinfo("QEMU TCG CPU version 2.5+", "hypervisor", "2600.000")) == 2_600_000


def test_a_counter_measured_a_little_differently_is_the_same_one(bad: dict[str, Path]) -> None:
    """Protects templates on emulated hosts: after a reboot their RAM is valid as before."""
    machine, _ = probed(Connection(), accelerator="tcg", **bad)
    rates = (2_590_000, 2_600_000, 2_610_000)
    assert len({depended_on(replace(machine, tsc_khz=rate)) for rate in rates}) == 1
    assert depended_on(replace(machine, tsc_khz=3_000_000)).tsc_khz == 3_000_000
    assert depended_on(replace(machine, tsc_khz=0)).tsc_khz == 0


def _cpuinfo(model: str, flags: str, mhz: str) -> str:
    """/proc/cpuinfo of two processors, as far as it matters."""
    lines = {"model name\t": model, "cpu MHz\t\t": mhz, "flags\t\t": f"fpu {flags}"}
    text = "".join(f"{name}: {value}\n" for name, value in lines.items())
    return f"processor\t: 0\n{text}\nprocessor\t: 1\n{text}\n"


def test_only_emulated_guests_are_given_the_rate(good: dict[str, Path]) -> None:
    """Protects templates of hosts with KVM from depending on it."""
    machine, _ = probed(Connection(), accelerator="auto", **good)
    assert machine.tsc_khz == 0


def test_ram_depends_on_the_kernel_under_kvm(tmp_path: Path) -> None:
    """Protects restores: a kernel may refuse registers that another one had guests use."""
    there = flags(tmp_path, _cpuinfo("AMD EPYC", "svm", "2600.000"))["cpuinfo"]
    modules = tmp_path / "module"
    nested = modules / "kvm_amd/parameters/nested"
    nested.parent.mkdir(parents=True)
    found = []
    for release, value in (("6.1.0-25", "1"), ("6.1.0-26", "1"), ("6.1.0-26", "0")):
        nested.write_text(f"{value}\n")
        found.append(host_cpu(cpuinfo=there, release=release, modules=modules))
    assert found[0]["kernel"] == "6.1.0-25, kvm_amd nested=1"
    assert len({tuple(one.items()) for one in found}) == 3
    assert found[0]["processor"] == "AMD EPYC, microcode unknown"
    assert found[0]["processor's features"] == "fpu svm"


def test_ram_depends_on_no_user_and_no_path(good: dict[str, Path]) -> None:
    """Protects exchange: RAM does not depend on QEMU's path and user."""
    machine, _ = probed(Connection(), accelerator="auto", **good)
    same = [
        replace(machine, run_as=(64055, 108)),
        replace(machine, run_as=None),
        replace(machine, apparmor=True),
        replace(machine, emulator="/opt/qemu"),
    ]
    assert {depended_on(one) for one in same} == {depended_on(machine)}
    others = [replace(machine, machine="pc-i440fx-8.0"), replace(machine, cpu_without=())]
    assert len({depended_on(one) for one in (machine, *others)}) == 3


def test_what_kvm_refuses_has_a_way_out() -> None:
    """Protects users whose KVM is held by another hypervisor, or is a broken nested one."""
    from lab.hypervisor.libvirt.driver import way_out

    busy = "ioctl(KVM_CREATE_VM) failed: 16 Device or resource busy"
    for line in (busy, "qemu-system-x86_64: error: failed to set MSR 0x48f to 0x7fff"):
        assert "LAB_ACCELERATOR=tcg" in way_out(["internal error: qemu quit", line])
    assert way_out(["Could not open '/x/disk.qcow2': No such file or directory"]) == ""
