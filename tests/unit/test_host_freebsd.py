"""FreeBSD as a host: each thing that bhyve needs is looked at, and told how to be mended."""

from __future__ import annotations

from pathlib import Path

import pytest
from zfs_hosts import Programs

from lab.errors import CommandFailed, HostUnfit
from lab.host import freebsd
from lab.host.finding import Finding
from lab.host.system import hypervisor
from lab.host.zfs.source import Source

NO = CommandFailed(["kldstat"], 1)
MEMORY = """\
hw.physmem=17179869184
vm.stats.vm.v_page_size=4096
vm.stats.vm.v_free_count=524288
vm.stats.vm.v_inactive_count=262144
kstat.zfs.misc.arcstats.size=3221225472
kstat.zfs.misc.arcstats.c_min=1073741824
"""
_ASKED = (
    "sysctl -ei hw.physmem vm.stats.vm.v_page_size vm.stats.vm.v_free_count"
    " vm.stats.vm.v_inactive_count kstat.zfs.misc.arcstats.size kstat.zfs.misc.arcstats.c_min"
)
_CPU = "sysctl -ei hw.model hw.vmm.vmx.initialized hw.vmm.vmx.cap.unrestricted_guest"
_NET = "sysctl -ei net.link.tap.up_on_open net.inet.ip.forwarding"
_INTEL = "hw.model=Intel(R) Xeon(R) CPU\n"
_VMX = "hw.vmm.vmx.initialized=1\nhw.vmm.vmx.cap.unrestricted_guest=1\n"
READY: dict[str, str | CommandFailed] = {
    "kldstat -qm vmm": "",
    "kldstat -qn vmm": "",
    "kldstat -qm pf": "",
    _CPU: _INTEL + _VMX,
    _NET: "net.link.tap.up_on_open=1\nnet.inet.ip.forwarding=0\n",
    "vm version": "vm-bhyve: Bhyve virtual machine management v1.7.5\n",
    "sysrc -in vm_enable": "YES\n",
    "sysrc -in vm_dir": "zfs:zroot/vm\n",
    "zfs get -Hpo value mounted zroot/vm": "yes\n",
}


def look(root: Path, **changes: str | CommandFailed | None) -> dict[str, Finding]:
    """The findings of a host that is ready but for ``changes``, by a command's first words."""
    answers = dict(READY)
    for key, said in changes.items():
        (command,) = (c for c in READY if c.replace(" ", "_").replace("-", "").startswith(key))
        if said is None:
            del answers[command]
        else:
            answers[command] = said
    found = list(freebsd.look(Source(root, Programs(answers))))
    assert len({one.topic for one in found}) == len(found)
    return {one.topic: one for one in found}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    firmware = tmp_path / freebsd.FIRMWARE.lstrip("/")
    firmware.parent.mkdir(parents=True)
    firmware.write_bytes(b"")
    return tmp_path


def test_a_host_that_is_ready(root: Path) -> None:
    found = look(root)
    assert {one.level for one in found.values()} == {"ok"}
    assert found["vm-bhyve"].value == "v1.7.5"


@pytest.mark.parametrize(
    ("changes", "topic", "advice"),
    [
        ({"kldstat_qm_vmm": NO, "kldstat_qn_vmm": NO}, "vmm", "kldload vmm"),
        ({"kldstat_qm_vmm": NO}, "vmm", "AMD-V"),
        ({"sysctl_ei_hw.model": _INTEL}, "vt-x", "VT-x"),
        ({"sysctl_ei_hw.model": _INTEL + _VMX.replace("guest=1", "guest=0")}, "vt-x", "newer"),
        ({"vm_version": None}, "vm-bhyve", "pkg install vm-bhyve"),
        ({"sysrc_in_vm_enable": "NO\n"}, "vm-bhyve", "sysrc vm_enable=YES"),
        ({"sysrc_in_vm_dir": ""}, "vm_dir", "sysrc vm_dir="),
        ({"sysrc_in_vm_dir": "/no/such"}, "vm_dir", "mkdir /no/such"),
        ({"zfs_get": "no\n"}, "vm_dir", "zfs mount zroot/vm"),
        ({"zfs_get": NO}, "vm_dir", "zfs create zroot/vm"),
    ],
)
def test_what_is_missing_is_told_with_a_command(
    root: Path, changes: dict[str, str | CommandFailed | None], topic: str, advice: str
) -> None:
    """Protects who sets a host up: one thing at a time, each with what to type."""
    found = look(root, **changes)
    assert found[topic].level == "fail"
    assert advice in found[topic].advice
    assert [one.topic for one in found.values() if one.level == "fail"] == [topic]


def test_without_firmware(tmp_path: Path) -> None:
    assert "pkg install bhyve-firmware" in look(tmp_path)["firmware"].advice


def test_an_amd_processor_is_the_module_s_to_judge(root: Path) -> None:
    found = look(root, **{"sysctl_ei_hw.model": "hw.model=AMD EPYC 7302P\n"})
    assert "vt-x" not in found
    assert {one.level for one in found.values()} == {"ok"}


def test_a_host_that_passes_packets_on(root: Path) -> None:
    """Protects networks from labs, and labs from networks."""
    found = look(root, sysctl_ei_net="net.link.tap.up_on_open=0\nnet.inet.ip.forwarding=1\n")
    assert found["net.inet.ip.forwarding"].level == "note"
    assert "vm init" in found["net.link.tap.up_on_open"].advice


def test_memory() -> None:
    """Free and inactive pages, and what ZFS's cache gives back."""
    available, total = freebsd.memory(Source(run=Programs({_ASKED: MEMORY})))
    assert (available >> 30, total >> 30) == (2 + 1 + 2, 16)


def test_memory_without_zfs() -> None:
    text = MEMORY.partition("kstat")[0]
    assert freebsd.memory(Source(run=Programs({_ASKED: text})))[0] >> 30 == 3


@pytest.mark.parametrize("said", ["", "hw.physmem=1\n", "nonsense", "hw.physmem: 17179869184\n"])
def test_memory_that_cannot_be_read(said: str) -> None:
    with pytest.raises(HostUnfit, match="memory is not known"):
        freebsd.memory(Source(run=Programs({_ASKED: said})))


def test_what_guests_run_under() -> None:
    assert (hypervisor("freebsd"), hypervisor("linux")) == ("bhyve", "libvirt")
